// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Tests of the requester, statement by statement, against a peer made of single packets.

mod answers;
mod credits;
mod local;
mod recovery;
mod retries;
mod sending;
mod states;
mod strict;

use rrxe_core::requester::{self, MAX_FLUSH};
use rrxe_core::wire::{Aeth, AtomicAckEth, NakCode, Operation, Syndrome};
use rrxe_core::{wire, Ext, Fault, Packet, Progress, Psn, SendOp, SendSlot, Service, Status};
use rrxe_testkit::{acknowledge, packet, Host, Pair, BASE, RKEY, START_PSN};

const MTU: u32 = 1024;
const ACK: Syndrome = Syndrome::ACK_UNLIMITED;
const SEQUENCE_ERROR: Syndrome = Syndrome::Nak(NakCode::SequenceError);

/// The acknowledge timeout of the hosts (code 8).
const TIMEOUT: u64 = 4_096 << 8;

/// Returns a host whose driver drops out-of-order packets.
fn host() -> Host {
    buffering_host().without_reorder_buffer()
}

/// Returns a host whose driver buffers out-of-order packets.
fn buffering_host() -> Host {
    Host::new(Service::Rc, 0, MTU)
}

/// Returns the requester's PSN with this index.
fn psn(n: u32) -> Psn {
    Psn::new(START_PSN[0]).add(n)
}

fn post(host: &mut Host, op: SendOp, length: u32) -> u64 {
    post_with(
        host,
        SendSlot {
            op,
            length,
            ..Default::default()
        },
    )
}

fn post_with(host: &mut Host, mut request: SendSlot) -> u64 {
    request.remote_addr = BASE;
    if request.rkey_or_qkey == 0 {
        request.rkey_or_qkey = RKEY;
    }
    request.signaled = true;
    request.remote_qpn = 42;
    let room = request.length.max(8) as usize;
    host.post(request, vec![0x5a; room]).unwrap()
}

fn response(operation: Operation, n: u32, len: usize) -> Packet {
    let ext = match operation {
        Operation::ReadResponseMiddle => Ext::None,
        _ => Ext::Aeth(Aeth::new(ACK, Psn::new(0))),
    };
    packet(operation, psn(n), ext, len)
}

fn atomic_ack(n: u32, original: u64) -> Packet {
    let ext = Ext::AtomicAck(Aeth::new(ACK, Psn::new(0)), AtomicAckEth { original });
    packet(Operation::AtomicAcknowledge, psn(n), ext, 0)
}

fn ack(host: &mut Host, n: u32, syndrome: Syndrome) {
    let _ = host.take(0, &acknowledge(psn(n), syndrome), &[]);
}

fn psns(packets: &[(Packet, Vec<u8>)]) -> Vec<u32> {
    packets.iter().map(|(p, _)| p.psn().since(psn(0))).collect()
}
