// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The performance management agent (IBA 16.1): responds to the management datagrams (MADs) that
//! read the counters of a port for monitoring.
//!
//! The agent responds to Get of three attributes:
//!
//! | attribute | contents |
//! |---|---|
//! | ClassPortInfo | that the counters of 64 bits exist, except for multicasts |
//! | PortCounters | counters of at most 32 bits, which stop at their maximum |
//! | PortCountersExtended | counters of 64 bits |
//!
//! It responds to no other MAD. Set, which resets counters, is one of them: MADs are not
//! authenticated, and the statistics of `rdma statistic` have no reset.

/// Length of a MAD in bytes (IBA 13.4.2).
pub const MAD_LEN: usize = 256;

/// The counters of a port. They start at 0, and wrap at 2^64.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortCounters {
    /// Bytes sent.
    pub sent_bytes: u64,
    /// Bytes received.
    pub received_bytes: u64,
    /// Packets sent.
    pub sent_packets: u64,
    /// Packets received.
    pub received_packets: u64,
    /// Received packets with a wrong ICRC or a malformed header.
    pub receive_errors: u64,
    /// Packets that could not be sent.
    pub send_discards: u64,
}

/// Management class, and its version (IBA 13.4.4, 16.1.1).
const PERF_MGMT: u8 = 0x04;
const VERSION: u8 = 1;

/// Methods (IBA 13.4.5).
const GET: u8 = 0x01;
const GET_RESP: u8 = 0x81;

/// Attributes (IBA 16.1.2).
const CLASS_PORT_INFO: u16 = 0x0001;
const PORT_COUNTERS: u16 = 0x0012;
const PORT_COUNTERS_EXTENDED: u16 = 0x001d;

/// Statuses (IBA 13.4.7): success, and a field with an invalid value.
const SUCCESS: u16 = 0;
const INVALID_FIELD: u16 = 0x001c;

/// Bit of ClassPortInfo's CapabilityMask (IBA 16.1.3.1): PortCountersExtended exists, without the
/// counters of unicasts and multicasts.
const EXTENDED_WIDTH_WITHOUT_MULTICASTS: u16 = 1 << 10;

/// ClassPortInfo's RespTimeValue (IBA 13.4.8.1): the agent responds within 4.096 us * 2^18, which
/// is about a second.
const RESPONSE_TIME: u32 = 18;

/// Start of the attribute in a MAD of this class (IBA 16.1.1).
const ATTRIBUTE: usize = 64;

/// Returns the response of `port` to a MAD, or `None` if the agent does not respond to it. Reads
/// the counters only if the response contains them.
pub fn respond(
    request: &[u8; MAD_LEN],
    port: u32,
    counters: impl FnOnce() -> PortCounters,
) -> Option<[u8; MAD_LEN]> {
    let [base_version, class, class_version, method, _, _, _, _, tid @ .., a0, a1, _, _, m0, m1, m2, m3] =
        request.first_chunk::<24>()?;
    if [*base_version, *class, *class_version, *method] != [VERSION, PERF_MGMT, VERSION, GET] {
        return None;
    }
    let attribute = u16::from_be_bytes([*a0, *a1]);
    let selected = *request.get(ATTRIBUTE + 1)?;

    let mut response = Writer([0; MAD_LEN]);
    response.put(0, [VERSION, PERF_MGMT, VERSION, GET_RESP]);
    response.put(8, *tid);
    response.put(16, [*a0, *a1]);
    response.put(20, [*m0, *m1, *m2, *m3]);
    let status = match attribute {
        CLASS_PORT_INFO => {
            response.class_port_info();
            SUCCESS
        }
        PORT_COUNTERS | PORT_COUNTERS_EXTENDED if u32::from(selected) != port => INVALID_FIELD,
        PORT_COUNTERS => {
            response.port_counters(selected, &counters());
            SUCCESS
        }
        PORT_COUNTERS_EXTENDED => {
            response.port_counters_extended(selected, &counters());
            SUCCESS
        }
        _ => return None,
    };
    response.put(4, status.to_be_bytes());
    Some(response.0)
}

/// Writes a field at an offset.
fn write<const N: usize>(to: &mut [u8], at: usize, value: [u8; N]) {
    let field = to.get_mut(at..).and_then(<[u8]>::first_chunk_mut);
    debug_assert!(field.is_some(), "a field beyond the MAD");
    if let Some(field) = field {
        *field = value;
    }
}

/// A response being built. All bytes that nothing writes are zero.
struct Writer([u8; MAD_LEN]);

impl Writer {
    /// Writes a field at an offset in the MAD.
    fn put<const N: usize>(&mut self, at: usize, value: [u8; N]) {
        write(&mut self.0, at, value);
    }

    /// Writes a field at an offset in the attribute.
    fn attribute<const N: usize>(&mut self, at: usize, value: [u8; N]) {
        let attribute = self.0.get_mut(ATTRIBUTE..);
        write(attribute.unwrap_or_default(), at, value);
    }

    /// Writes ClassPortInfo (IBA 13.4.8.1).
    fn class_port_info(&mut self) {
        self.attribute(0, [VERSION, VERSION]);
        self.attribute(2, EXTENDED_WIDTH_WITHOUT_MULTICASTS.to_be_bytes());
        self.attribute(4, RESPONSE_TIME.to_be_bytes());
    }

    /// Writes PortCounters (IBA 16.1.3.5). A counter that would overflow stays at its maximum.
    fn port_counters(&mut self, port: u8, counters: &PortCounters) {
        let short = |value: u64| u16::try_from(value).unwrap_or(u16::MAX).to_be_bytes();
        let long = |value: u64| u32::try_from(value).unwrap_or(u32::MAX).to_be_bytes();
        self.attribute(1, [port]);
        self.attribute(8, short(counters.receive_errors));
        self.attribute(14, short(counters.send_discards));
        self.attribute(24, long(words(counters.sent_bytes)));
        self.attribute(28, long(words(counters.received_bytes)));
        self.attribute(32, long(counters.sent_packets));
        self.attribute(36, long(counters.received_packets));
    }

    /// Writes PortCountersExtended (IBA 16.1.4.11).
    fn port_counters_extended(&mut self, port: u8, counters: &PortCounters) {
        self.attribute(1, [port]);
        self.attribute(8, words(counters.sent_bytes).to_be_bytes());
        self.attribute(16, words(counters.received_bytes).to_be_bytes());
        self.attribute(24, counters.sent_packets.to_be_bytes());
        self.attribute(32, counters.received_packets.to_be_bytes());
    }
}

/// Returns an amount of data in the unit of PortXmitData and PortRcvData: four bytes.
const fn words(bytes: u64) -> u64 {
    bytes >> 2
}

#[cfg(test)]
mod tests {
    use super::*;

    const PORT: u32 = 1;

    const COUNTERS: PortCounters = PortCounters {
        sent_bytes: 4 * 0x1122_3344 + 3,
        received_bytes: 4 * 0x5566_7788,
        sent_packets: 0x0102_0304,
        received_packets: 0x0506_0708,
        receive_errors: 0x090a,
        send_discards: 0x0b0c,
    };

    /// Returns a Get of an attribute of `PORT`, with recognizable values of all other fields.
    fn get(attribute: u16) -> [u8; MAD_LEN] {
        let mut mad = [0xee; MAD_LEN];
        mad[..4].copy_from_slice(&[1, 4, 1, 1]);
        mad[8..16].copy_from_slice(b"transact");
        mad[16..18].copy_from_slice(&attribute.to_be_bytes());
        mad[20..24].copy_from_slice(b"modi");
        mad[65] = PORT as u8;
        mad
    }

    /// Checks the header of a response to `get(attribute)`, and returns its attribute.
    fn checked(response: &[u8; MAD_LEN], attribute: u16, status: u16) -> &[u8] {
        let mut header = *b"\x01\x04\x01\x81..\0\0transact..\0\0modi";
        header[4..6].copy_from_slice(&status.to_be_bytes());
        header[16..18].copy_from_slice(&attribute.to_be_bytes());
        assert_eq!(response[..24], header);
        assert_eq!(response[24..64], [0; 40]);
        &response[64..]
    }

    /// Returns the attribute of the response to a Get of a port with these counters.
    fn attribute_of(attribute: u16, counters: PortCounters) -> [u8; 192] {
        let response = respond(&get(attribute), PORT, || counters).expect("a response");
        *checked(&response, attribute, 0).first_chunk().expect("192")
    }

    /// Returns an attribute with the given fields (offset and bytes), and zeros elsewhere.
    fn with(fields: &[(usize, &[u8])]) -> [u8; 192] {
        let mut attribute = [0; 192];
        for (at, bytes) in fields {
            attribute[*at..at + bytes.len()].copy_from_slice(bytes);
        }
        attribute
    }

    #[test]
    fn class_port_info() {
        let response = respond(&get(1), PORT, || panic!("it has no counters")).expect("a response");
        // Versions, CapabilityMask, CapabilityMask2 and RespTimeValue.
        let wanted = with(&[(0, &[1, 1, 0x04, 0, 0, 0, 0, 18])]);
        assert_eq!(checked(&response, 1, 0), wanted);
        // It is that of the agent, whatever the port.
        let mut other = get(1);
        other[65] = 7;
        assert_eq!(respond(&other, PORT, || COUNTERS), Some(response));
    }

    /// The figures of this test are those of `struct ib_pma_portcounters` in ib_pma.h.
    #[test]
    fn port_counters() {
        let wanted = with(&[
            (1, &[PORT as u8]),
            (8, &[0x09, 0x0a]),
            (14, &[0x0b, 0x0c]),
            (24, &[0x11, 0x22, 0x33, 0x44]),
            (28, &[0x55, 0x66, 0x77, 0x88]),
            (32, &[1, 2, 3, 4]),
            (36, &[5, 6, 7, 8]),
        ]);
        assert_eq!(attribute_of(0x12, COUNTERS), wanted);
    }

    /// The figures of this test are those of `struct ib_pma_portcounters_ext` in ib_pma.h.
    #[test]
    fn port_counters_extended() {
        let counters = PortCounters {
            sent_bytes: u64::MAX,
            ..COUNTERS
        };
        let wanted = with(&[
            (1, &[PORT as u8]),
            (8, &[0x3f, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff]),
            (16, &[0, 0, 0, 0, 0x55, 0x66, 0x77, 0x88]),
            (24, &[0, 0, 0, 0, 1, 2, 3, 4]),
            (32, &[0, 0, 0, 0, 5, 6, 7, 8]),
        ]);
        assert_eq!(attribute_of(0x1d, counters), wanted);
    }

    /// Each counter of PortCounters stops at all ones, and the next ones are unaffected.
    #[test]
    fn port_counters_stop() {
        let below = PortCounters {
            sent_bytes: 4 * 0xffff_fffe + 3,
            received_bytes: 4 * 0xffff_fffe,
            sent_packets: 0xffff_fffe,
            received_packets: 0xffff_fffe,
            receive_errors: 0xfffe,
            send_discards: 0xfffe,
        };
        let last = |at| [vec![0xff; at], vec![0xfe]].concat();
        let wanted = with(&[
            (1, &[PORT as u8]),
            (8, &last(1)),
            (14, &last(1)),
            (24, &last(3)),
            (28, &last(3)),
            (32, &last(3)),
            (36, &last(3)),
        ]);
        assert_eq!(attribute_of(0x12, below), wanted);
        let stopped = with(&[
            (1, &[PORT as u8]),
            (8, &[0xff; 2]),
            (14, &[0xff; 2]),
            (24, &[0xff; 16]),
        ]);
        for beyond in [4 * 0xffff_ffff, 4 * 0x1_0000_0000, u64::MAX] {
            let counters = PortCounters {
                sent_bytes: beyond,
                received_bytes: beyond,
                sent_packets: beyond,
                received_packets: beyond,
                receive_errors: beyond,
                send_discards: beyond,
            };
            assert_eq!(attribute_of(0x12, counters), stopped, "{beyond:#x}");
        }
    }

    #[test]
    fn another_port() {
        for attribute in [0x12, 0x1d] {
            for port in [0, 2, 0xff] {
                let mut request = get(attribute);
                request[65] = port;
                let response = respond(&request, PORT, || panic!("not of this port"));
                let response = response.expect("a response");
                assert_eq!(checked(&response, attribute, 0x1c), [0; 192], "port {port}");
            }
        }
    }

    /// MADs for others: another class, as that of the connection manager, another version, another
    /// method (a response among them, which must draw none), another attribute.
    #[test]
    fn other_mads() {
        let refused = |at: usize, values: &[u8]| {
            for attribute in [0x01, 0x12, 0x1d] {
                for value in values {
                    let mut request = get(attribute);
                    request[at] = *value;
                    assert_eq!(
                        respond(&request, PORT, || COUNTERS),
                        None,
                        "{at}: {value:#x}"
                    );
                }
            }
        };
        refused(0, &[0, 2, 0x80]);
        refused(1, &[0x01, 0x03, 0x07, 0x81]);
        refused(2, &[0, 2]);
        refused(3, &[0, 0x02, 0x03, 0x05, 0x06, 0x07, 0x12, 0x81, 0x86]);
        for attribute in (0..=0xffff).filter(|a| ![0x01, 0x12, 0x1d].contains(a)) {
            assert_eq!(respond(&get(attribute), PORT, || COUNTERS), None);
        }
    }
}
