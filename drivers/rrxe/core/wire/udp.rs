// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Consistency of the lengths in IP and UDP headers.

/// Length of a UDP header in bytes.
const UDP_HEADER: u32 = 8;
/// Length of an IPv4 header in bytes. RoCEv2 allows no options (IBA A17.3).
const IPV4_HEADER: u32 = 20;

/// Returns whether the IPv4 total length, the UDP length and the actual number of UDP payload bytes
/// agree.
#[inline]
pub fn ipv4_lengths_agree(ip: &[u8; 20], udp: &[u8; 8], payload: u32) -> bool {
    let [_, _, t0, t1, ..] = *ip;
    let total = u32::from(u16::from_be_bytes([t0, t1]));
    lengths_agree(total.checked_sub(IPV4_HEADER), udp, payload)
}

/// Returns whether the IPv6 payload length, the UDP length and the actual number of UDP payload
/// bytes agree.
#[inline]
pub fn ipv6_lengths_agree(ip: &[u8; 40], udp: &[u8; 8], payload: u32) -> bool {
    let [_, _, _, _, l0, l1, ..] = *ip;
    lengths_agree(Some(u16::from_be_bytes([l0, l1]).into()), udp, payload)
}

#[inline]
fn lengths_agree(datagram: Option<u32>, udp: &[u8; 8], payload: u32) -> bool {
    let [_, _, _, _, l0, l1, _, _] = *udp;
    let length = u32::from(u16::from_be_bytes([l0, l1]));
    datagram == Some(length) && length.checked_sub(UDP_HEADER) == Some(payload)
}

#[cfg(test)]
mod tests {
    use super::*;

    ///
    #[test]
    fn a_12_lengths() {
        for payload in [0u16, 16, 4116, 65000] {
            for (ip_off, udp_off, off) in [
                (0i32, 0i32, 0i32),
                (1, 0, 0),
                (-1, 0, 0),
                (0, 4, 0),
                (4, 4, 0),
                (0, -4, 0),
                (0, 0, 4),
                (4, 0, 4),
                (0, 4, 4),
            ] {
                let be = |n: i32| (n as u16).to_be_bytes();
                let payload = i32::from(payload);
                let mut udp = [0; 8];
                udp[4..6].copy_from_slice(&be(payload + 8 + udp_off));
                let mut ipv4 = [0; 20];
                ipv4[2..4].copy_from_slice(&be(payload + 28 + ip_off));
                let mut ipv6 = [0; 40];
                ipv6[4..6].copy_from_slice(&be(payload + 8 + ip_off));
                let right = (ip_off, udp_off, off) == (0, 0, 0);
                let there = (payload + off) as u32;
                let agree = ipv4_lengths_agree(&ipv4, &udp, there);
                assert_eq!(agree, right, "{payload}: {ip_off} {udp_off} {off}");
                let agree = ipv6_lengths_agree(&ipv6, &udp, there);
                assert_eq!(agree, right, "{payload}: {ip_off} {udp_off} {off}");
            }
        }
        // A UDP length below the length of the UDP header.
        assert!(!ipv4_lengths_agree(&[0; 20], &[0; 8], u32::MAX - 7));
    }
}
