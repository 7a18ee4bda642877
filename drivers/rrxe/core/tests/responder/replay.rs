// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Duplicate requests, and stored READs and atomics.

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
    host.driver.regions[0].bytes[0] = 7;
    let again = ask(&mut host, &send(0));
    expect(&again, 1, ACK);
    assert_eq!(msn(&again[0].0), 2);
    expect(&ask(&mut host, &write), 1, ACK);
    assert_eq!(host.driver.regions[0].bytes[0], 7);
    assert_eq!(statuses(&host), [Status::Success]);
    assert_eq!(host.driver.rq.len(), 1);
    let mut quiet = send(0);
    quiet.bth.ackreq = false;
    assert!(ask(&mut host, &quiet).is_empty());
}

fn filled() -> Host {
    let mut host = host();
    for (i, byte) in host.driver.regions[0].bytes.iter_mut().enumerate() {
        *byte = (i / 256) as u8;
    }
    host
}

/// C-05, C-06, C-07: a duplicate READ, whole or from the middle on.
#[test]
fn c_05_duplicate_read() {
    let mut host = filled();
    let len = 3 * MTU as u32 + 10;
    let first = ask(&mut host, &read(0, BASE + 8, len));
    assert_eq!(first.len(), 4);
    assert_eq!(
        first[3].1,
        host.driver.regions[0].bytes[8 + 3 * MTU..][..10]
    );
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
    assert_eq!(host.responder.msn.get(), 1);
}

/// C-09, C-13: the last max_dest_rd_atomic requests can be replayed, older ones cannot.
#[test]
fn c_13_replayable() {
    for max in [1u8, 3, 16] {
        let mut host = filled();
        host.responder
            .set_resources(vec![Resource::default(); usize::from(max)]);
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
    host.driver.regions[0].bytes[16] = 77;
    assert_eq!(ask(&mut host, &fetch_add(0, BASE + 16, 5)), first);
    assert_eq!(
        (host.driver.regions[0].bytes[16], host.driver.atomics),
        (77, 1)
    );
}

/// C-12: a request with other operands is not a duplicate of the executed atomic.
#[test]
fn c_12_other_operands() {
    let atomic = |operation, va, rkey, swap_add, compare| {
        let eth = AtomicEth {
            va,
            rkey,
            swap_add,
            compare,
        };
        packet(operation, psn(0), Ext::Atomic(eth), 0)
    };
    let swap = |va, rkey, compare, swap_add| atomic(O::CompareSwap, va, rkey, swap_add, compare);
    let add = |va, rkey, swap_add, compare| atomic(O::FetchAdd, va, rkey, swap_add, compare);
    let (swapped, added) = (swap(BASE, RKEY, 0, 5), add(BASE, RKEY, 5, 0));
    let others = [
        swap(BASE + 8, RKEY, 0, 5),
        swap(BASE, RKEY + 1, 0, 5),
        swap(BASE, RKEY, 1, 5),
        swap(BASE, RKEY, 0, 6),
        add(BASE + 8, RKEY, 5, 0),
        add(BASE, RKEY + 1, 5, 0),
        add(BASE, RKEY, 6, 0),
    ];
    for original in [swapped, added] {
        let mut host = host();
        let first = ask(&mut host, &original);
        assert_eq!(first.len(), 1);
        for other in &others {
            assert!(ask(&mut host, other).is_empty());
        }
        assert_eq!(ask(&mut host, &original), first);
        assert_eq!(host.driver.atomics, 1);
    }
    // The compare field of FETCH ADD is ignored.
    let mut host = host();
    let first = ask(&mut host, &added);
    assert_eq!(ask(&mut host, &add(BASE, RKEY, 5, 77)), first);
}

/// C-12: FLUSH and ATOMIC WRITE, too.
#[test]
fn c_12_other_atomic_write() {
    let mut host = host();
    let write = |at| packet(O::AtomicWrite, psn(0), reth(BASE + at, 8), 8);
    let first = ask(&mut host, &write(0));
    assert_eq!(first.len(), 1);
    assert!(ask(&mut host, &write(8)).is_empty());
    assert_eq!(ask(&mut host, &write(0)), first);
}

/// C-10: of two atomics with one PSN, 2^24 PSNs apart, the response to the newer one is repeated.
#[test]
fn c_10_the_newest_of_two_with_one_psn() {
    let mut host = host();
    let old = ask(&mut host, &fetch_add(0, BASE, 5));
    host.responder.set_psn(psn(0).get());
    let new = ask(&mut host, &fetch_add(0, BASE, 5));
    assert_ne!(old[0].0.ext, new[0].0.ext);
    assert_eq!(ask(&mut host, &fetch_add(0, BASE, 5)), new);
    assert_eq!(host.driver.atomics, 2);
    // If the newer one is another operation, the older one is not considered.
    host.responder.set_psn(psn(0).get());
    assert_eq!(ask(&mut host, &read(0, BASE, 8)).len(), 1);
    assert!(ask(&mut host, &fetch_add(0, BASE, 5)).is_empty());
}

/// C-13: a smaller or larger number of resources keeps the pending responses and the possible
/// replays.
#[test]
fn c_13_changed_number_of_resources() {
    for count in [2, 3, 4, 5, 9, 128] {
        let mut host = host();
        let first = [0, 1, 2, 3, 4].map(|n| ask(&mut host, &fetch_add(n, BASE, 5)));
        give(&mut host, &read(5, BASE, 2 * MTU as u32), 0);
        let resources = vec![Resource::default(); count as usize];
        assert_eq!(host.responder.set_resources(resources).len(), 4);
        assert_eq!(host.drain(0).len(), 2);
        for n in 0..5 {
            let again = ask(&mut host, &fetch_add(n, BASE, 5));
            if n + count.min(4) >= 6 {
                let original = |responses: &[(Packet, Vec<u8>)]| match responses[0].0.ext {
                    Ext::AtomicAck(_, ack) => ack.original,
                    _ => panic!("no response to an atomic"),
                };
                assert_eq!(original(&again), original(&first[n as usize]));
            } else {
                assert!(again.is_empty());
            }
        }
        // The number of resources is exactly the requested one.
        for n in 0..count {
            give(&mut host, &read(7 + n, BASE, 1), 0);
        }
        assert_eq!(host.drain(0).len() as u32, count);
        assert!(!host.error);
    }
}

/// C-14, C-15
#[test]
fn c_14_too_many() {
    for max in 0..=16u8 {
        let mut host = host();
        host.responder
            .set_resources(vec![Resource::default(); usize::from(max)]);
        let max = u32::from(max);
        for n in 0..=max {
            give(&mut host, &read(n, BASE, 1), 0);
        }
        let responses = host.drain(0);
        assert_eq!(responses.len() as u32, max + 1);
        assert_eq!(
            says(&responses[max as usize].0),
            (max, O::Acknowledge, Some(INVALID))
        );
        assert!(host.error);
    }
}

/// C-17: a duplicate READ while its response is being sent. Every burst of responses is in order,
/// and every byte is correct.
#[test]
fn c_17_duplicate_during_the_response() {
    let mut host = filled();
    let len = 10 * MTU as u32;
    give(&mut host, &read(0, BASE, len), 0);
    host.budget = 4;
    host.transmit(0);
    give(&mut host, &read(0, BASE, len), 0);
    let responses = host.drain(0);
    let indices: Vec<u32> = responses.iter().map(|(p, _)| says(p).0).collect();
    assert_eq!(indices, [0, 1, 2, 3, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9]);
    assert_eq!(responses[4].0.operation, O::ReadResponseFirst);
    assert_eq!(responses[13].0.operation, O::ReadResponseLast);
    for (packet, payload) in &responses {
        let at = says(packet).0 as usize * MTU;
        assert_eq!(*payload, host.driver.regions[0].bytes[at..at + MTU]);
    }
}

/// C-18: the memory is no longer accessible.
#[test]
fn c_18_replay_without_memory() {
    let mut host = host();
    assert_eq!(ask(&mut host, &read(0, BASE, 4)).len(), 1);
    host.driver.regions[0].valid = false;
    assert!(ask(&mut host, &read(0, BASE, 4)).is_empty());
    assert!(!host.error);
}

/// G-28: access to the memory ends in the middle of the response.
#[test]
fn g_28_memory_is_deregistered_during_the_response() {
    let mut host = host();
    give(&mut host, &read(0, BASE, 10 * MTU as u32), 0);
    host.budget = 3;
    host.transmit(0);
    host.driver.regions[0].valid = false;
    let responses = host.drain(0);
    assert_eq!(responses.len(), 4);
    assert_eq!(says(&responses[3].0), (3, O::Acknowledge, Some(ACCESS)));
    assert!(host.error);
    assert!(host.driver.events.contains(&ResponderEvent::AccessError));
}

/// C-01: an unsupported request, or one never executed, gets no acknowledgement as a duplicate.
#[test]
fn c_01_duplicates_of_nothing() {
    let mut host = host();
    host.post_recv(0, 64);
    expect(&ask(&mut host, &send(0)), 0, ACK);
    assert!(ask(&mut host, &packet(O::Unsupported, psn(0), Ext::None, 0)).is_empty());
    assert!(ask(&mut host, &read(0, BASE, 4)).is_empty());
    assert!(ask(&mut host, &fetch_add(0, BASE, 4)).is_empty());
    assert!(!host.error);
}

/// C-02, C-03: duplicates within a message of several packets are acknowledged with the current
/// PSN.
#[test]
fn c_02_duplicates_within_a_message() {
    let mut host = host();
    host.post_recv(0, 4 * MTU);
    let first = packet(O::SendFirst, psn(0), Ext::None, MTU);
    let middle = packet(O::SendMiddle, psn(1), Ext::None, MTU);
    give(&mut host, &first, 1);
    give(&mut host, &middle, 2);
    let _ = host.drain(0);
    give(&mut host, &first, 9);
    let again = host.drain(0);
    expect(&again, 1, ACK);
    assert_eq!(msn(&again[0].0), 0);
    give(&mut host, &packet(O::SendLast, psn(2), Ext::None, 1), 3);
    let done = &host.driver.received[0];
    assert_eq!(
        (done.data[0], done.data[MTU], done.data[2 * MTU]),
        (1, 2, 3)
    );
    assert_eq!(host.responder.msn.get(), 1);
}

/// C-05: a duplicate READ is executed again, and returns the current memory contents.
#[test]
fn c_05_a_duplicate_read_reads_memory_again() {
    let mut host = host();
    let first = ask(&mut host, &read(0, BASE, 4));
    assert_eq!(first[0].1, [0; 4]);
    host.driver.regions[0].bytes[..4].fill(5);
    let again = ask(&mut host, &read(0, BASE, 4));
    assert_eq!(again[0].1, [5; 4]);
    assert_eq!(says(&again[0].0), says(&first[0].0));
    // C-03
    assert_eq!(msn(&again[0].0), 1);
}

/// C-10: the stored response belongs to that operation, not to another one with its PSN.
#[test]
fn c_10_another_operation_with_its_psn() {
    let mut host = host();
    let add = fetch_add(0, BASE, 5);
    assert_eq!(ask(&mut host, &add).len(), 1);
    let mut swap = add;
    swap.operation = O::CompareSwap;
    swap.bth.opcode = rrxe_core::wire::Opcode::new(Service::Rc, O::CompareSwap);
    assert!(ask(&mut host, &swap).is_empty());
    assert!(ask(&mut host, &read(0, BASE, 8)).is_empty());
    assert_eq!(ask(&mut host, &add).len(), 1);
    assert_eq!(host.driver.atomics, 1);
}

/// C-14: a READ counts as outstanding until its last response is sent.
#[test]
fn c_14_until_the_last_response() {
    let mut host = filled();
    host.responder.set_resources(vec![Resource::default(); 1]);
    give(&mut host, &read(0, BASE, 2 * MTU as u32), 0);
    assert_eq!(host.drain(0).len(), 2);
    give(&mut host, &read(2, BASE, 2 * MTU as u32), 0);
    host.budget = 1;
    host.transmit(0);
    give(&mut host, &read(4, BASE, 1), 0);
    let responses = host.drain(0);
    // D-03: the response is completed before the refusal.
    assert_eq!(
        said(&responses),
        [
            (2, O::ReadResponseFirst, Some(ACK)),
            (3, O::ReadResponseLast, Some(ACK)),
            (4, O::Acknowledge, Some(INVALID)),
        ]
    );
}

/// C-17: two READs in progress, then duplicates of the older and the newer: all in order.
#[test]
fn c_17_two_reads() {
    let mut host = filled();
    give(&mut host, &read(0, BASE, 2 * MTU as u32), 0);
    give(&mut host, &read(2, BASE + 4096, 2 * MTU as u32), 0);
    host.budget = 3;
    host.transmit(0);
    give(&mut host, &read(1, BASE + MTU as u64, MTU as u32), 0);
    give(&mut host, &read(2, BASE + 4096, 2 * MTU as u32), 0);
    let responses = host.drain(0);
    let ack = Some(ACK);
    assert_eq!(
        said(&responses)[3..],
        [
            (1, O::ReadResponseOnly, ack),
            (2, O::ReadResponseFirst, ack),
            (3, O::ReadResponseLast, ack),
        ]
    );
}

/// C-18: a failure of the original, while its response is being sent, is reported to the peer
/// (G-28). A failure of a replay, while others wait, loses only the replay.
#[test]
fn c_18_only_the_replay_is_lost() {
    let mut host = filled();
    assert_eq!(ask(&mut host, &read(0, BASE, 4)).len(), 1);
    host.driver.regions[0].valid = false;
    give(&mut host, &read(0, BASE, 4), 0);
    give(&mut host, &read(1, 0, 0), 0);
    let responses = host.drain(0);
    assert_eq!(said(&responses), [(1, O::ReadResponseOnly, Some(ACK))]);
    assert!(!host.error);
}
