// SPDX-License-Identifier: GPL-2.0

//! Work queue entries as a user program may have left them in its ring. For any contents, the
//! driver's decoding stays within bounds, and no malformed entry is executed.

use crate::abi::{RecvWqe, SendWqe, Sge, WqeOp, WQE_INLINE};
use crate::entry::{for_each_piece, set_length, total, Data, RecvEntry, SendBounds, SendSlot};
use crate::limits;
use crate::script::{Script, Service};
use rrxe_core::{Fault, Mtu, Requester, SendOp};

/// Input: two bytes of set-up, then entries.
pub fn run(data: &[u8]) {
    let mut script = Script::new(data);
    let [kind, sizes] = [script.u8(), script.u8()];
    let service = Service::read(kind).core();
    let bounds = SendBounds {
        service,
        is_user: true,
        signal_all: kind & 0x80 != 0,
        max_sge: u32::from(sizes % 33),
        max_inline: u32::from(sizes >> 5) * 128,
    };
    let mut requester = Requester::new(service);
    requester.mtu = Mtu::default();
    requester.start();
    while !script.is_empty() {
        match script.u8() & 3 {
            0 => receive(&mut script, bounds.max_sge as usize),
            _ => send(&mut script, &bounds, &mut requester),
        }
    }
}

/// Reads a value that is small, the largest, or arbitrary.
fn any(script: &mut Script<'_>) -> u32 {
    match script.u8() {
        0xff => u32::MAX,
        0xfe => script.u32(),
        0xfd => 1 << 31,
        0xfc => script.u16().into(),
        n => n.into(),
    }
}

fn segments(script: &mut Script<'_>, n: usize) -> Vec<Sge> {
    let segment = |script: &mut Script<'_>| Sge {
        addr: match script.u8() {
            0xff => u64::MAX - 16,
            n => u64::from(n) << 12,
        },
        length: any(script),
        lkey: script.u8().into(),
    };
    (0..n).map(|_| segment(script)).collect()
}

fn send(script: &mut Script<'_>, bounds: &SendBounds, requester: &mut Requester) {
    let wqe = SendWqe {
        wr_id: 1,
        opcode: script.u8(),
        flags: script.u8(),
        num_sge: any(script) as u16,
        imm_or_key: any(script),
        inline_length: any(script),
        ah: any(script),
        op: WqeOp {
            remote_addr: any(script).into(),
            compare_add: any(script).into(),
            swap: any(script).into(),
            rkey_or_qkey: any(script),
            remote_qpn: any(script),
        },
        reserved: 0,
    };
    let slot = &mut SendSlot::default();
    slot.local.index = 7;
    wqe.decode(slot, bounds);
    assert_eq!((slot.local.index, slot.local.wr_id), (7, 1));
    if wqe.flags & 0xf0 != 0 {
        assert!(matches!(slot.op, SendOp::Invalid(Fault::Malformed)));
    }
    let mut list = Vec::new();
    match slot.local.data {
        Data::None => {}
        Data::Inline => {
            assert!(slot.length <= bounds.max_inline, "beyond the entry");
            assert!(wqe.flags & WQE_INLINE != 0);
        }
        Data::Segments(n) => {
            assert!(u32::from(n) <= bounds.max_sge, "beyond the entry");
            list = segments(script, n.into());
            set_length(slot, total(&list));
        }
    }
    let decoded = slot.op;
    requester.post(slot);
    assert!(slot.length <= limits::MAX_MESSAGE);
    if matches!(slot.op, SendOp::Invalid(_)) {
        let was_invalid = matches!(decoded, SendOp::Invalid(_));
        assert!(slot.length == 0 && (!was_invalid || slot.op == decoded));
        return;
    }
    assert_eq!(slot.op, decoded, "the requester changes the operation");
    let known = matches!(wqe.opcode, 0..10 | 14 | 15);
    assert!(known, "an opcode that does not exist");
    let sum: u64 = list.iter().map(|s| u64::from(s.length)).sum();
    match slot.local.data {
        Data::Inline => {
            assert_eq!((slot.length, wqe.num_sge), (wqe.inline_length, 0));
            assert!(!slot.op.is_read_or_atomic(), "no buffer for the response");
        }
        Data::None => {
            assert_eq!(wqe.num_sge, 0);
            match slot.op {
                SendOp::AtomicWrite { value, .. } => {
                    assert_eq!((slot.length, value), (8, wqe.op.swap.to_ne_bytes()));
                }
                SendOp::Flush { .. } => assert!(slot.length < limits::MAX_MESSAGE),
                op => panic!("{op:?} without data"),
            }
        }
        Data::Segments(n) => {
            assert_eq!(wqe.num_sge, n);
            let no_length = slot.op.is_atomic() || slot.op.is_local();
            assert_eq!(u64::from(slot.length), if no_length { 0 } else { sum });
            assert!(!slot.op.is_atomic() || sum == 8);
            walk(script, &list, sum);
        }
    }
}

/// Checks that the pieces of a range cover it in order, each within its segment.
fn walk(script: &mut Script<'_>, list: &[Sge], sum: u64) {
    let (offset, len) = (any(script), any(script) as usize);
    let end = u64::from(offset) + len as u64;
    let mut done = 0;
    let result = for_each_piece(list, offset, len, |lkey, addr, at, n| {
        assert_eq!(at, done, "a gap");
        assert_ne!(n, 0, "an empty piece");
        done += n as usize;
        assert!(done <= len, "more than was asked for");
        // Finds the segment the slow way.
        let mut start = u64::from(offset) + at as u64;
        let segment = list.iter().find(|s| {
            let here = start < u64::from(s.length);
            if !here {
                start -= u64::from(s.length);
            }
            here
        });
        let segment = segment.expect("beyond the list");
        assert_eq!((lkey, addr), (segment.lkey, segment.addr + start));
        assert!(
            start + u64::from(n) <= u64::from(segment.length),
            "beyond its segment"
        );
        Ok(())
    });
    match result {
        Ok(()) => assert!(done == len && (end <= sum || len == 0)),
        Err(Fault::Malformed) => assert!(end > sum && len != 0, "all of it was there"),
        Err(_) => assert!(list
            .iter()
            .any(|s| s.addr.checked_add(s.length.into()).is_none())),
    }
}

fn receive(script: &mut Script<'_>, max_sge: usize) {
    let wqe = RecvWqe {
        wr_id: 1,
        num_sge: any(script),
        reserved: 0,
    };
    let mut entry = RecvEntry::decode(&wqe, max_sge);
    assert!(entry.num_sge <= max_sge);
    let list = segments(script, entry.num_sge);
    let sum = total(&list);
    entry.set_length(sum);
    if entry.malformed {
        assert!(wqe.num_sge as usize > max_sge || sum > limits::MAX_MESSAGE.into());
        assert_eq!(
            entry.length(),
            limits::MAX_MESSAGE,
            "must take anything, to fail then"
        );
    } else {
        assert_eq!(wqe.num_sge as usize, entry.num_sge);
        assert_eq!(u64::from(entry.length()), sum);
    }
}
