// SPDX-License-Identifier: GPL-2.0

//! The performance management agent: it handles every MAD, and responds only to its own requests.

use rrxe_core::pma::{respond, PortCounters, MAD_LEN};

const PORT: u8 = 1;

/// Fields of PortCounters: offset in the MAD, bytes, and value. Like the next one, from ib_pma.h.
fn port_counters(counters: &PortCounters) -> [(usize, usize, u64); 6] {
    [
        (72, 2, counters.receive_errors),
        (78, 2, counters.send_discards),
        (88, 4, counters.sent_bytes / 4),
        (92, 4, counters.received_bytes / 4),
        (96, 4, counters.sent_packets),
        (100, 4, counters.received_packets),
    ]
}

/// Fields of PortCountersExtended.
fn port_counters_extended(counters: &PortCounters) -> [(usize, usize, u64); 4] {
    [
        (72, 8, counters.sent_bytes / 4),
        (80, 8, counters.received_bytes / 4),
        (88, 8, counters.sent_packets),
        (96, 8, counters.received_packets),
    ]
}

/// Input: six counters in 48 bytes, then the start of a MAD.
pub fn run(data: &[u8]) {
    let Some((numbers, start)) = data.split_first_chunk::<48>() else {
        return;
    };
    let number = |i: usize| u64::from_le_bytes(std::array::from_fn(|byte| numbers[8 * i + byte]));
    let counters = PortCounters {
        sent_bytes: number(0),
        received_bytes: number(1),
        sent_packets: number(2),
        received_packets: number(3),
        receive_errors: number(4),
        send_discards: number(5),
    };
    let request: [u8; MAD_LEN] = std::array::from_fn(|at| start.get(at).copied().unwrap_or(0));

    let mut was_read = false;
    let response = respond(&request, PORT.into(), || {
        was_read = true;
        counters
    });
    let expected = expected(&request, &counters);
    assert_eq!(response, expected, "the response to {request:02x?}");
    let shows_counters = expected.is_some_and(|mad| mad[17] != 1 && mad[5] == 0);
    assert_eq!(was_read, shows_counters, "the counters were read");
}

/// Returns the response that the specification asks for.
fn expected(request: &[u8; MAD_LEN], counters: &PortCounters) -> Option<[u8; MAD_LEN]> {
    if request[..4] != [1, 4, 1, 1] || request[16] != 0 {
        return None;
    }
    let mut mad = [0; MAD_LEN];
    for echoed in [0..3, 8..18, 20..24] {
        mad[echoed.clone()].copy_from_slice(&request[echoed]);
    }
    mad[3] = 0x81;
    let fields = match request[17] {
        0x01 => {
            mad[64..72].copy_from_slice(&[1, 1, 4, 0, 0, 0, 0, 18]);
            return Some(mad);
        }
        0x12 => port_counters(counters).to_vec(),
        0x1d => port_counters_extended(counters).to_vec(),
        _ => return None,
    };
    if request[65] != PORT {
        mad[5] = 0x1c;
        return Some(mad);
    }
    mad[65] = PORT;
    for (at, bytes, value) in fields {
        let largest = u64::MAX >> (64 - 8 * bytes);
        let shown = value.min(largest).to_be_bytes();
        mad[at..at + bytes].copy_from_slice(&shown[8 - bytes..]);
    }
    Some(mad)
}
