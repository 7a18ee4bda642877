// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Requests that come again, and READs and atomics as they are remembered.

use super::*;

/// C-01, C-02, C-03
#[test]
fn c_01_duplicate_send_and_write() {
    let mut host = host();
    host.post_recv(0, 64);
    host.post_recv(1, 64);
    expect(&ask(&mut host, &send(0)), 0, ACK);
    let write = packet(O::WriteOnly, psn(1), reth(BASE, 4), 4);
    expect(&ask(&mut host, &write), 1, ACK);
    host.driver.memory[0] = 7;
    let again = ask(&mut host, &send(0));
    expect(&again, 1, ACK);
    assert_eq!(msn(&again[0].0), 2);
    expect(&ask(&mut host, &write), 1, ACK);
    assert_eq!(host.driver.memory[0], 7);
    assert_eq!(statuses(&host), [Status::Success]);
    assert_eq!(host.driver.rq.len(), 1);
    let mut quiet = send(0);
    quiet.bth.ackreq = false;
    assert!(ask(&mut host, &quiet).is_empty());
}

fn filled() -> Host {
    let mut host = host();
    for (i, byte) in host.driver.memory.iter_mut().enumerate() {
        *byte = (i / 256) as u8;
    }
    host
}

/// C-05, C-06, C-07: a READ again, whole or from the middle on.
#[test]
fn c_05_duplicate_read() {
    let mut host = filled();
    let len = 3 * MTU as u32 + 10;
    let first = ask(&mut host, &read(0, BASE + 8, len));
    assert_eq!(first.len(), 4);
    assert_eq!(first[3].1, host.driver.memory[8 + 3 * MTU..][..10]);
    assert_eq!(ask(&mut host, &read(0, BASE + 8, len)), first);
    let mtu = MTU as u64;
    let tail = ask(&mut host, &read(1, BASE + 8 + mtu, len - MTU as u32));
    assert_eq!(
        said(&tail),
        [
            (1, O::ReadResponseFirst, Some(ACK)),
            (2, O::ReadResponseMiddle, None),
            (3, O::ReadResponseLast, Some(ACK))
        ]
    );
    assert!(tail.iter().zip(&first[1..]).all(|(a, b)| a.1 == b.1));
    let end = ask(&mut host, &read(3, BASE + 8 + 3 * mtu, 10));
    assert_eq!(said(&end), [(3, O::ReadResponseOnly, Some(ACK))]);
    // Another start, another end, another key.
    assert!(ask(&mut host, &read(1, BASE + 9 + mtu, len - MTU as u32)).is_empty());
    assert!(ask(&mut host, &read(1, BASE + 8 + mtu, len - MTU as u32 - 1)).is_empty());
    assert!(ask(&mut host, &read(1, BASE + 8, len)).is_empty());
    let mut other = read(0, BASE + 8, len);
    other.ext = Ext::Reth(Reth {
        va: BASE + 8,
        rkey: RKEY + 1,
        len,
    });
    assert!(ask(&mut host, &other).is_empty());
    assert_eq!(host.responder.msn(), 1);
}

/// C-09, C-13: the last max_dest_rd_atomic can be replayed, no older ones.
#[test]
fn c_13_replayable() {
    for max in [1u8, 3, 16] {
        let mut host = filled();
        host.responder.set_max_dest_rd_atomic(max);
        for n in 0..40u32 {
            let packet = match n % 2 {
                0 => read(n, BASE, 4),
                _ => fetch_add(n, BASE + 4096, 1),
            };
            assert_eq!(ask(&mut host, &packet).len(), 1);
        }
        for n in 0..40u32 {
            let again = match n % 2 {
                0 => ask(&mut host, &read(n, BASE, 4)),
                _ => ask(&mut host, &fetch_add(n, BASE + 4096, 1)),
            };
            assert_eq!(
                again.len(),
                usize::from(n + u32::from(max) >= 40),
                "{n} of {max}"
            );
        }
    }
}

/// C-10, C-11
#[test]
fn c_10_duplicate_atomic() {
    let mut host = host();
    let first = ask(&mut host, &fetch_add(0, BASE + 16, 5));
    let Ext::AtomicAck(_, ack) = first[0].0.ext else {
        panic!()
    };
    assert_eq!(ack.original, 0);
    host.driver.memory[16] = 77;
    assert_eq!(ask(&mut host, &fetch_add(0, BASE + 16, 5)), first);
    assert_eq!((host.driver.memory[16], host.driver.atomics), (77, 1));
}

/// C-14, C-15
#[test]
fn c_14_too_many() {
    for max in 0..=16u8 {
        let mut host = host();
        host.responder.set_max_dest_rd_atomic(max);
        let max = u32::from(max);
        for n in 0..=max {
            give(&mut host, &read(n, BASE, 1), 0);
        }
        let answers = host.drain(0);
        assert_eq!(answers.len() as u32, max + 1);
        assert_eq!(
            says(&answers[max as usize].0),
            (max, O::Acknowledge, Some(INVALID))
        );
        assert!(host.error);
    }
}

/// C-17: the same READ again while its answer is being made. Every run of responses is in order,
/// and every byte is right.
#[test]
fn c_17_duplicate_during_the_answer() {
    let mut host = filled();
    let len = 10 * MTU as u32;
    give(&mut host, &read(0, BASE, len), 0);
    host.budget = 4;
    host.transmit(0);
    give(&mut host, &read(0, BASE, len), 0);
    let answers = host.drain(0);
    let indices: Vec<u32> = answers.iter().map(|(p, _)| says(p).0).collect();
    assert_eq!(indices, [0, 1, 2, 3, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9]);
    assert_eq!(answers[4].0.operation, O::ReadResponseFirst);
    assert_eq!(answers[13].0.operation, O::ReadResponseLast);
    for (packet, payload) in &answers {
        let at = says(packet).0 as usize * MTU;
        assert_eq!(*payload, host.driver.memory[at..at + MTU]);
    }
}

/// C-18: the memory is gone.
#[test]
fn c_18_replay_without_memory() {
    let mut host = host();
    assert_eq!(ask(&mut host, &read(0, BASE, 4)).len(), 1);
    host.driver.rkey = None;
    assert!(ask(&mut host, &read(0, BASE, 4)).is_empty());
    assert!(!host.error);
}

/// G-28: the memory goes in the middle of the answer.
#[test]
fn g_28_memory_goes_during_the_answer() {
    let mut host = host();
    give(&mut host, &read(0, BASE, 10 * MTU as u32), 0);
    host.budget = 3;
    host.transmit(0);
    host.driver.rkey = None;
    let answers = host.drain(0);
    assert_eq!(answers.len(), 4);
    assert_eq!(says(&answers[3].0), (3, O::Acknowledge, Some(ACCESS)));
    assert!(host.error);
    assert!(host.driver.events.contains(&ResponderEvent::AccessError));
}
