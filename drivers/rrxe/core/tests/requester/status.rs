// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The reason why a requester sends nothing, as a person reads it.

use super::*;
use rrxe_core::requester::SendLimit;

fn limit(host: &Host) -> SendLimit {
    host.requester.status(&host.slots).limit
}

#[test]
fn requests_and_acknowledgements() {
    let mut host = host();
    assert_eq!(limit(&host), SendLimit::NoRequest);
    post(&mut host, Op::Write, 2 * MTU);
    assert_eq!(limit(&host), SendLimit::Nothing);
    host.drain(0);
    let status = host.requester.status(&host.slots);
    assert_eq!(status.limit, SendLimit::Acknowledgement);
    assert_eq!((status.una, status.next), (psn(0), psn(2)));
    assert_eq!((status.requests, status.in_flight), (1, 2));
    ack_at(&mut host, 50_000, 1, ACK);
    let status = host.requester.status(&host.slots);
    assert_eq!(status.limit, SendLimit::NoRequest);
    assert_eq!((status.requests, status.in_flight), (0, 0));
    assert_eq!(
        (status.srtt, status.min_rtt),
        (Span::from_us(50), Span::from_us(50))
    );
}

#[test]
fn a_full_window() {
    let mut host = host();
    post(&mut host, Op::Write, 1000 * MTU);
    host.drain(0);
    let status = host.requester.status(&host.slots);
    assert_eq!(status.limit, SendLimit::Window);
    assert_eq!(status.in_flight, status.window);
}

#[test]
fn a_peer_that_is_not_ready() {
    let mut host = host();
    post(&mut host, Op::Send, 1);
    host.drain(0);
    ack(&mut host, 0, Syndrome::RnrNak { timer: 1 });
    assert_eq!(limit(&host), SendLimit::Rnr);
}

#[test]
fn a_peer_without_receives() {
    let mut host = host();
    post(&mut host, Op::Send, 1);
    host.drain(0);
    ack(&mut host, 0, Syndrome::Ack { credit: 0 });
    for _ in 0..2 {
        post(&mut host, Op::Send, 1);
    }
    host.drain(0);
    assert_eq!(limit(&host), SendLimit::Credits);
}

#[test]
fn a_fence() {
    let mut host = host();
    host.requester.max_rd_atomic = 1;
    for _ in 0..2 {
        post(&mut host, Op::Read, 1);
    }
    host.drain(0);
    assert_eq!(limit(&host), SendLimit::Order);
    assert_eq!(host.requester.status(&host.slots).reads, 1);
}

#[test]
fn a_drained_queue_and_an_error() {
    let mut host = host();
    host.requester.pause();
    post(&mut host, Op::Write, 1);
    assert_eq!(limit(&host), SendLimit::Drained);
    host.requester.enter_error();
    assert_eq!(limit(&host), SendLimit::Error);
    host.requester.reset();
    assert_eq!(limit(&host), SendLimit::NotReady);
}
