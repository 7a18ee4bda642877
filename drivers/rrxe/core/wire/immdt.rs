// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Immediate data and invalidate headers (IBA 9.3.6, 9.3.7).

/// Immediate data: four bytes that the transport does not interpret.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ImmDt(
    /// The bytes in the order of the packet.
    pub [u8; ImmDt::LEN],
);

impl ImmDt {
    /// Length of the header in bytes.
    pub const LEN: usize = 4;

    /// Converts from the `imm_data` of verbs, which is in network order on every machine.
    #[inline]
    pub const fn from_verbs(imm_data: u32) -> ImmDt {
        ImmDt(imm_data.to_ne_bytes())
    }

    /// Converts to the `imm_data` of verbs.
    #[inline]
    pub const fn to_verbs(self) -> u32 {
        u32::from_ne_bytes(self.0)
    }
}

header! {
    /// Invalidate extended transport header: the key that a SEND with invalidate invalidates.
    pub struct Ieth {
        /// R_Key of the receiver.
        rkey: u32,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn immediate_data_keeps_its_bytes() {
        let wire = [1, 2, 3, 4];
        assert_eq!(ImmDt(wire).to_verbs(), 0x0102_0304u32.to_be());
        assert_eq!(ImmDt::from_verbs(0x0102_0304u32.to_be()).0, wire);
    }

    #[test]
    fn invalidate_is_big_endian() {
        assert_eq!(Ieth::from_bytes(&[1, 2, 3, 4]).rkey, 0x0102_0304);
        assert_eq!(Ieth { rkey: 0x0102_0304 }.to_bytes(), [1, 2, 3, 4]);
    }
}
