// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Congestion notification, statement by statement: marked packets that cause a notification, and
//! the effect of a notification on the rate.

use rrxe_core::congestion::{
    self, NotificationPoint, RateLimiter, MAX_RATE, MIN_RATE, RECOVERY_STEPS,
};
use rrxe_core::reorder::MAX_DISTANCE;
use rrxe_core::wire::{Aeth, Operation, Reth, Syndrome};
use rrxe_core::{Ext, Packet, Psn, Service, Span, Time};
use rrxe_testkit::{acknowledge, packet, packet_of, Host, Op, Request, BASE, RKEY, START_PSN};

const MTU: u32 = 1024;

// Times in nanoseconds.
const SECOND: u64 = 1_000_000_000;
const BURST: u64 = congestion::BURST.ns();
const RAISE_INTERVAL: u64 = congestion::RAISE_INTERVAL.ns();
const REDUCE_INTERVAL: u64 = congestion::REDUCE_INTERVAL.ns();

/// Bytes of a packet on the wire that the core does not see: Ethernet, IPv4 and UDP headers.
const OVERHEAD: u64 = 42;

/// Keeps a limiter busy with packets of this size from `now` to `end`: sends whenever permitted,
/// and otherwise waits as told. Returns the bytes sent.
fn busy(limiter: &mut RateLimiter, mut now: u64, end: u64, size: u32, unlimited: u64) -> u64 {
    let mut bytes = 0;
    while now < end {
        if limiter.admit(Time::from_ns(now)) {
            limiter.sent(Time::from_ns(now), size, 1);
            bytes += u64::from(size) + OVERHEAD;
            // As fast as the link accepts packets.
            now += (u64::from(size) + OVERHEAD) * SECOND / unlimited;
        } else {
            let wake = limiter.wakeup.unwrap().ns();
            assert!(wake > now, "asks to be woken at once");
            now = wake;
        }
    }
    bytes
}

/// Returns a limiter that has sent at this rate for 20 ms, and the current time.
fn warm(rate: u64) -> (RateLimiter, u64) {
    let mut limiter = RateLimiter::default();
    let now = 20_000_000;
    busy(&mut limiter, 0, now, 4096, rate);
    assert_eq!(limiter.limit(Time::from_ns(now)), None);
    (limiter, now)
}

/// L-02: one notification per interval; with an interval of zero, one for every packet.
#[test]
fn l_02_interval() {
    let mut point = NotificationPoint::default();
    let marked = [7, 8, 49_999, 50_006, 50_007, 50_008, 100_006, 1_000_000];
    let sent: Vec<u64> = marked
        .into_iter()
        .filter(|&now| point.marked(Time::from_ns(now), Span::from_us(50)))
        .collect();
    assert_eq!(sent, [7, 50_007, 1_000_000]);
    let mut point = NotificationPoint::default();
    assert!([5, 5, 5, 6]
        .into_iter()
        .all(|now| point.marked(Time::from_ns(now), Span::ZERO)));
}

fn psn(n: u32) -> Psn {
    Psn::new(START_PSN[1]).add(n)
}

fn send() -> Packet {
    packet(Operation::SendOnly, psn(0), Ext::None, 4)
}

/// A notification equals that of hardware: opcode 0x81, BECN, 16 reserved bytes.
#[test]
fn l_03_notification_packet() {
    let host = Host::new(Service::Rc, 0, MTU);
    let cnp = host.responder.cnp(&send()).unwrap();
    let mut wanted = [0; 28];
    wanted[..12].copy_from_slice(&[0x81, 0, 0xff, 0xff, 0x40, 0, 0, 101, 0, 0, 0, 0]);
    assert_eq!(cnp.header(), wanted);
    assert_eq!(cnp.udp_payload_len(), 32);
}

/// L-03: no notification for packets dropped because of their header, or for notifications.
#[test]
fn l_03_not_for_dropped_packets() {
    let host = Host::new(Service::Rc, 0, MTU);
    let silent = |packet: &Packet| {
        host.responder.cnp(packet).is_none() && host.requester.cnp(packet).is_none()
    };
    let mut wrong = send();
    wrong.bth.pkey = 0x1234;
    assert!(silent(&wrong));
    assert!(silent(&packet_of(
        Service::Uc,
        Operation::SendOnly,
        psn(0),
        Ext::None,
        4
    )));
    let mut cnp = packet(Operation::Cnp, psn(0), Ext::Cnp, 0);
    cnp.bth.opcode = rrxe_core::wire::Opcode::CNP;
    assert!(silent(&cnp));

    // No peer has sent a packet with a PSN so far off.
    let base = Psn::new(host.responder.expected_psn());
    let una = host.requester.expected_psn();
    for (off, near) in [
        (0, true),
        (MAX_DISTANCE - 1, true),
        (MAX_DISTANCE, false),
        (1 << 22, false),
        (1 << 23, false),
        ((1 << 24) - MAX_DISTANCE - 1, false),
        ((1 << 24) - MAX_DISTANCE, true),
        ((1 << 24) - 1, true),
    ] {
        let mut request = send();
        request.bth.psn = base.add(off);
        let ack = acknowledge(una.add(off), Syndrome::ACK_UNLIMITED);
        assert_eq!(host.responder.cnp(&request).is_some(), near);
        assert_eq!(host.requester.cnp(&ack).is_some(), near);
    }

    let mut idle = Host::new(Service::Rc, 0, MTU);
    idle.responder.reset();
    idle.requester.reset();
    assert!(idle.responder.cnp(&send()).is_none());
    let ack = acknowledge(psn(0), Syndrome::ACK_UNLIMITED);
    assert!(idle.requester.cnp(&ack).is_none());

    let uc = Host::new(Service::Uc, 0, MTU);
    let unreliable = packet_of(Service::Uc, Operation::SendOnly, psn(0), Ext::None, 4);
    assert!(uc.responder.cnp(&unreliable).is_some());
}

/// A fatal error is reported at once, after the READ responses in front of it, whatever the rate.
#[test]
fn a_fatal_nak_does_not_wait_for_the_rate() {
    let mut host = Host::new(Service::Rc, 0, MTU);
    let len = 128 * MTU;
    let reth = |rkey| {
        Ext::Reth(Reth {
            va: BASE,
            rkey,
            len,
        })
    };
    let read = |n, rkey| packet(Operation::ReadRequest, psn(n), reth(rkey), 0);
    let _ = host.take(0, &read(0, RKEY), &[]);
    let progress = host
        .responder
        .poll_transmit(Time::from_ns(0), 64, &mut host.driver);
    assert_eq!((progress.sent, progress.more), (64, true));
    host.responder.on_cnp(Time::from_ns(0));
    let first = host.drain(0).len();
    assert!(first < 128);
    let _ = host.take(0, &read(128, RKEY + 1), &[]);
    let rest = host.drain(0);
    assert_eq!(first + rest.len(), 129);
    let (nak, _) = rest.last().unwrap();
    assert_eq!(nak.operation, Operation::Acknowledge);
    assert_eq!(nak.psn(), psn(128));
    assert!(host.error);
}

/// L-04: for a READ the requester notifies, and the responder slows down.
#[test]
fn l_04_read() {
    let mut host = Host::new(Service::Rc, 0, MTU);
    let response = packet(
        Operation::ReadResponseOnly,
        Psn::new(START_PSN[0]),
        Ext::Aeth(Aeth::new(Syndrome::ACK_UNLIMITED, psn(0))),
        4,
    );
    let cnp = host.requester.cnp(&response).unwrap();
    assert_eq!(cnp.header()[..8], [0x81, 0, 0xff, 0xff, 0x40, 0, 0, 101]);
    assert!(host.responder.cnp(&response).is_none());

    // The responder: a READ of 128 packets, and a notification after the first batch.
    let read = Packet {
        xrc_srqn: 0,
        header_len: 28,
        ..packet(
            Operation::ReadRequest,
            psn(0),
            Ext::Reth(Reth {
                va: BASE,
                rkey: RKEY,
                len: 128 * MTU,
            }),
            0,
        )
    };
    let _ = host.take(0, &read, &[]);
    let progress = host
        .responder
        .poll_transmit(Time::from_ns(0), 64, &mut host.driver);
    assert_eq!((progress.sent, progress.more), (64, true));
    host.responder.on_cnp(Time::from_ns(0));
    let rate = host.responder.rate.limit(Time::from_ns(0)).unwrap();
    let mut now = 0;
    let mut waits = 0;
    loop {
        let progress = host
            .responder
            .poll_transmit(Time::from_ns(now), 64, &mut host.driver);
        assert!(!progress.fatal);
        match host.responder.next_timeout().map(Time::ns) {
            Some(at) => {
                assert!(at > now);
                now = at;
                waits += 1;
            }
            None if progress.more => {}
            None => break,
        }
    }
    assert_eq!(host.drain(now).len() + host.driver.out.len(), 128);
    assert!(waits > 1, "the rest left at once");
    // The second half has left, so its transmission time has passed, except for a burst.
    assert!(now + BURST >= 64 * 1024 * SECOND / (rate * 2), "at {now}");
}

/// L-07: the first notification halves the measured rate.
#[test]
fn l_07_rate_falls() {
    for full in [100_000_000, 1_000_000_000, 10_000_000_000] {
        let (mut limiter, now) = warm(full);
        limiter.on_cnp(Time::from_ns(now));
        let rate = limiter.limit(Time::from_ns(now)).unwrap();
        assert!(
            (full * 2 / 5..=full * 3 / 5).contains(&rate),
            "{rate} of {full}"
        );
        // The limiter enforces that rate for any packet size.
        for size in [64, 1024, 4096] {
            let mut limiter = limiter;
            let end = now + RAISE_INTERVAL - 1;
            let bytes = busy(&mut limiter, now, end, size, full);
            let allowed = rate * (end - now) / SECOND;
            let burst = rate * BURST / SECOND + 5000;
            assert!(bytes <= allowed + burst, "{bytes}, not {allowed}");
            assert!(bytes + burst >= allowed, "{bytes}, not {allowed}");
        }
    }
}

/// L-07: the rate never falls below the minimum, and falls at most once per interval.
#[test]
fn l_07_minimum() {
    let (mut limiter, mut now) = warm(1_000_000_000);
    limiter.on_cnp(Time::from_ns(now));
    let first = limiter.limit(Time::from_ns(now));
    for _ in 0..100 {
        limiter.on_cnp(Time::from_ns(now + REDUCE_INTERVAL - 1));
    }
    assert_eq!(limiter.limit(Time::from_ns(now)), first);
    let mut last = first.unwrap();
    for _ in 0..1000 {
        let end = now + REDUCE_INTERVAL;
        busy(&mut limiter, now, end, 4096, 1_000_000_000);
        now = end;
        limiter.on_cnp(Time::from_ns(now));
        let rate = limiter.limit(Time::from_ns(now)).unwrap();
        assert!(rate <= last && rate >= MIN_RATE);
        last = rate;
    }
    assert_eq!(last, MIN_RATE);
    // It continues at the minimum rate: ten packets in the time of ten.
    let time = 10 * (4096 + OVERHEAD) * SECOND / MIN_RATE;
    let mut slow = limiter;
    let mut sent = 0;
    let mut at = now;
    while at < now + time {
        slow.on_cnp(Time::from_ns(at));
        if slow.admit(Time::from_ns(at)) {
            slow.sent(Time::from_ns(at), 4096, 1);
            sent += 1;
        }
        at += REDUCE_INTERVAL;
    }
    assert!((9..=11).contains(&sent), "{sent}");
}

/// L-07: without notifications the rate rises step by step, until there is no limit.
#[test]
fn l_07_recovery() {
    let (mut limiter, mut now) = warm(1_000_000_000);
    let before = 1_000_000_000;
    limiter.on_cnp(Time::from_ns(now));
    let mut last = limiter.limit(Time::from_ns(now)).unwrap();
    let mut steps = 0;
    let free = loop {
        let end = now + RAISE_INTERVAL;
        busy(&mut limiter, now, end, 4096, 10_000_000_000);
        now = end;
        steps += 1;
        match limiter.limit(Time::from_ns(now)) {
            Some(rate) => {
                assert!(rate > last && rate < MAX_RATE);
                last = rate;
                if steps == 5 {
                    // Most of the way back.
                    assert!(rate > before * 9 / 10 && rate < before * 11 / 10, "{rate}");
                }
            }
            None => break now,
        }
    };
    assert!(last > before);
    assert!(free <= 20_000_000 + 30_000_000, "{free}");
    // A limiter that was idle meanwhile recovers as well.
    let (mut limiter, now) = warm(1_000_000_000);
    limiter.on_cnp(Time::from_ns(now));
    assert_eq!(limiter.limit(Time::from_ns(now + 30_000_000)), None);
    assert!(limiter.admit(Time::from_ns(u64::MAX)));
}

/// L-07: notifications in a row, without a step of recovery between them, keep the rate to which
/// the sender returns. After such a step, that rate falls, too.
#[test]
fn l_07_target() {
    const FULL: u64 = 1_000_000_000;
    // Returns the rate at the end of fast recovery.
    let recovered = |pauses: &[u64]| {
        let (mut limiter, mut now) = warm(FULL);
        limiter.on_cnp(Time::from_ns(now));
        for pause in pauses {
            busy(&mut limiter, now, now + pause, 4096, 10 * FULL);
            now += pause;
            let before = limiter.limit(Time::from_ns(now));
            limiter.on_cnp(Time::from_ns(now));
            assert!(limiter.limit(Time::from_ns(now)) < before);
        }
        now += RECOVERY_STEPS as u64 * RAISE_INTERVAL;
        limiter.limit(Time::from_ns(now)).unwrap()
    };
    let once = recovered(&[]);
    assert!(once > FULL * 9 / 10);
    const { assert!(REDUCE_INTERVAL < RAISE_INTERVAL) };
    for count in 1..4 {
        let rate = recovered(&vec![REDUCE_INTERVAL; count]);
        assert!(rate > FULL * 9 / 10 && rate <= once, "{count}: {rate}");
    }
    let rate = recovered(&[RAISE_INTERVAL]);
    assert!(rate < FULL * 8 / 10, "{rate}");
}

/// L-07: an idle or nearly idle sender has no rate to lower.
#[test]
fn l_07_idle() {
    let mut limiter = RateLimiter::default();
    assert!(!limiter.on_cnp(Time::from_ns(5)));
    assert_eq!(limiter.limit(Time::from_ns(5)), None);
    limiter.sent(Time::from_ns(6), 64, 1);
    assert!(!limiter.on_cnp(Time::from_ns(7)));
    assert_eq!(limiter.limit(Time::from_ns(7)), None);
    let (mut limiter, now) = warm(1_000_000_000);
    assert!(!limiter.on_cnp(Time::from_ns(now + SECOND)));
    assert_eq!(limiter.limit(Time::from_ns(now + SECOND)), None);
}

/// L-07: a notification reports a reduction if it lowers the rate: at most once per interval, and
/// not at the minimum.
#[test]
fn l_07_reductions() {
    let (mut limiter, mut now) = warm(1_000_000_000);
    let mut last = u64::MAX;
    for _ in 0..1000 {
        let reduced = limiter.on_cnp(Time::from_ns(now));
        let rate = limiter.limit(Time::from_ns(now)).unwrap();
        assert_eq!(reduced, rate < last, "from {last} to {rate}");
        assert!(!limiter.on_cnp(Time::from_ns(now + REDUCE_INTERVAL - 1)));
        busy(
            &mut limiter,
            now,
            now + REDUCE_INTERVAL,
            4096,
            1_000_000_000,
        );
        now += REDUCE_INTERVAL;
        last = limiter.limit(Time::from_ns(now)).unwrap();
    }
    assert_eq!(last, MIN_RATE);
}

fn post(host: &mut Host, length: u32) {
    let request = Request {
        op: Op::Write,
        length,
        signaled: true,
        ..Default::default()
    };
    host.post(request, vec![0x5a; length as usize]).unwrap();
}

/// L-07, A-08: a notification changes the rate of its queue pair and nothing else.
#[test]
fn l_07_that_queue_pair_only() {
    // They fit into the first window.
    const PACKETS: u32 = 60;
    let mut hosts = [0, 1].map(|_| Host::new(Service::Rc, 0, MTU));
    for host in &mut hosts {
        post(host, PACKETS * MTU);
        let progress =
            host.requester
                .poll_transmit(&mut host.slots, Time::from_ns(0), 32, &mut host.driver);
        assert_eq!(progress.sent, 32);
    }
    let [lowered, other] = &mut hosts;
    let before = (
        lowered.requester.next_psn(),
        lowered.requester.counters,
        lowered.responder.expected_psn(),
        lowered.responder.msn.get(),
        lowered.requester.next_timeout().map(Time::ns),
    );
    assert!(lowered.requester.on_cnp(Time::from_ns(0)));
    // The responder was not sending.
    assert!(!lowered.responder.on_cnp(Time::from_ns(0)));
    let after = (
        lowered.requester.next_psn(),
        lowered.requester.counters,
        lowered.responder.expected_psn(),
        lowered.responder.msn.get(),
        lowered.requester.next_timeout().map(Time::ns),
    );
    assert_eq!(before, after);
    assert!(lowered
        .requester
        .congestion
        .rate
        .limit(Time::from_ns(0))
        .is_some());
    assert_eq!(lowered.responder.rate.limit(Time::from_ns(0)), None);
    assert_eq!(
        other.requester.congestion.rate.limit(Time::from_ns(0)),
        None
    );

    let rest = other.drain(0).len();
    assert_eq!(
        rest, PACKETS as usize,
        "the other one goes on, as one batch with the first"
    );
    // This one waits, and reports until when.
    let first = lowered.drain(0).len();
    assert!(first < PACKETS as usize, "{first}");
    let mut sent = first;
    let mut now = 0;
    let mut asked = false;
    // Retransmissions for lack of a response do not count.
    let mut next = lowered.requester.next_psn();
    while sent < PACKETS as usize {
        let wake = lowered.requester.next_timeout().map(Time::ns).unwrap();
        assert!(wake > now);
        now = wake;
        let _ = lowered.timeout(now);
        for (packet, _) in lowered.drain(now) {
            if packet.psn().get() == next {
                next = packet.psn().next().get();
                sent += 1;
            }
            asked |= packet.bth.ackreq && sent < PACKETS as usize;
            if packet.bth.ackreq {
                let ack = acknowledge(packet.psn(), Syndrome::ACK_UNLIMITED);
                let _ = lowered.take(now, &ack, &[]);
            }
        }
    }
    assert!(asked, "nothing asks for acknowledgements at a low rate");
    assert_eq!(lowered.requester.counters.timeouts, 0);
    assert_eq!(lowered.statuses(), [rrxe_core::Status::Success]);
}

/// L-07: retransmissions obey the rate like other packets: only missing packets if the peer keeps
/// out-of-order packets, otherwise everything after the gap.
#[test]
fn l_07_retransmissions() {
    for buffers in [true, false] {
        let mut host = Host::new(Service::Rc, 0, MTU);
        host.requester.set_timeout(20);
        let psn = |n| Psn::new(START_PSN[0]).add(n);
        let sequence_error = Syndrome::Nak(rrxe_core::wire::NakCode::SequenceError);
        // The round trip is known to be short.
        post(&mut host, MTU);
        host.drain(0);
        let _ = host.take(10_000, &acknowledge(psn(0), Syndrome::ACK_UNLIMITED), &[]);
        for _ in 0..60 {
            post(&mut host, MTU);
        }
        let mut now = 2_000_000;
        assert_eq!(host.drain(now).len(), 60);
        host.requester.on_cnp(Time::from_ns(now));
        let rate = host
            .requester
            .congestion
            .rate
            .limit(Time::from_ns(now))
            .unwrap();
        let mut allowed = rate * BURST / SECOND + u64::from(MTU) + 100;
        let mut bytes = 0;
        for una in 1..40 {
            let before = now;
            let _ = host.take(now, &acknowledge(psn(una), sequence_error), &[]);
            let mut again = Vec::new();
            loop {
                for (packet, payload) in host.drain(now) {
                    bytes += payload.len() as u64 + 32 + OVERHEAD;
                    again.push(packet.psn());
                }
                if !again.is_empty() {
                    break;
                }
                let wake = host
                    .requester
                    .next_timeout()
                    .map(Time::ns)
                    .expect("it waits for its time");
                assert!(wake > now, "asks to be woken at once");
                now = wake;
                let _ = host.timeout(now);
            }
            assert_eq!(again[0], psn(una));
            now += 10_000;
            if !buffers {
                let ack = acknowledge(psn(una), Syndrome::ACK_UNLIMITED);
                let _ = host.take(now, &ack, &[]);
            }
            // The rate has not been higher since the last round.
            let Some(rate) = host.requester.congestion.rate.limit(Time::from_ns(now)) else {
                break;
            };
            allowed += rate * (now - before) / SECOND;
            assert!(bytes <= allowed, "{bytes} bytes, {allowed} allowed");
        }
        let retransmitted = host.requester.counters.retransmitted.get();
        assert!(
            retransmitted >= if buffers { 39 } else { 100 },
            "{retransmitted}"
        );
    }
}

/// A queue pair that enters Error or Reset while it waits clears its wake-up.
#[test]
fn no_pending_wakeup() {
    let mut host = Host::new(Service::Rc, 0, MTU);
    host.requester.set_timeout(0);
    post(&mut host, 200 * MTU);
    let _ = host
        .requester
        .poll_transmit(&mut host.slots, Time::from_ns(0), 32, &mut host.driver);
    host.requester.on_cnp(Time::from_ns(0));
    let _ = host.drain(0);
    assert!(host.requester.next_timeout().is_some());
    host.go_to_error();
    let _ = host.drain(0);
    assert_eq!(host.requester.next_timeout(), None);
}
