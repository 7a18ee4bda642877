// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Decoding of the timer codes that queue pairs use, to nanoseconds.

/// Returns the acknowledge timeout `4.096 us * 2^code` (IBA 9.7.6.1.3); `None` for 0, which
/// disables the timer. Ignores all but the low five bits.
#[inline]
pub const fn ack_timeout(code: u8) -> Option<u64> {
    match code & 0x1f {
        0 => None,
        n => Some(4096u64.wrapping_shl(n as u32)),
    }
}

/// Returns the minimum wait of the RNR NAK timer (IBA 9.7.5.2.8, table of the encodings). Ignores
/// all but the low five bits.
#[inline]
pub const fn rnr_timer(code: u8) -> u64 {
    let hundredths_of_ms = match code & 0x1f {
        0 => 65_536,
        n => crate::wire::scale(n),
    };
    (hundredths_of_ms as u64).wrapping_mul(10_000)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// F-02
    #[test]
    fn f_02_zero_disables() {
        assert_eq!(ack_timeout(0), None);
        assert_eq!(ack_timeout(1), Some(8_192));
        assert_eq!(ack_timeout(14), Some(67_108_864));
        assert_eq!(ack_timeout(31), Some(8_796_093_022_208));
    }

    /// E-04: the table in milliseconds, as printed in the specification.
    #[test]
    fn e_04_rnr_table() {
        let ms = [
            655.36, 0.01, 0.02, 0.03, 0.04, 0.06, 0.08, 0.12, 0.16, 0.24, 0.32, 0.48, 0.64, 0.96,
            1.28, 1.92, 2.56, 3.84, 5.12, 7.68, 10.24, 15.36, 20.48, 30.72, 40.96, 61.44, 81.92,
            122.88, 163.84, 245.76, 327.68, 491.52,
        ];
        for (code, ms) in ms.iter().enumerate() {
            let ns = (ms * 1e6f64).round() as u64;
            assert_eq!(rnr_timer(code as u8), ns, "code {code}");
        }
    }
}
