// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The path MTU.

/// A path MTU: 256, 512, 1024, 2048 or 4096 bytes of payload in a full packet (IBA 5.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mtu {
    shift: u8,
}

impl Default for Mtu {
    /// 1024 bytes.
    fn default() -> Mtu {
        Mtu { shift: 10 }
    }
}

impl Mtu {
    /// Returns the MTU of this many bytes; `None` if it is not one of the five sizes.
    pub const fn from_bytes(bytes: u32) -> Option<Mtu> {
        match bytes {
            256 | 512 | 1024 | 2048 | 4096 => Some(Mtu {
                shift: bytes.trailing_zeros() as u8,
            }),
            _ => None,
        }
    }

    /// Returns the MTU in bytes.
    #[inline]
    pub const fn bytes(self) -> u32 {
        debug_assert!(self.shift >= 8 && self.shift <= 12, "not an MTU");
        self.offset(1)
    }

    /// Returns the number of packets of a message of `length` bytes. An empty message takes one.
    #[inline]
    pub const fn packets(self, length: u32) -> u32 {
        let last = length.saturating_sub(1).wrapping_shr(self.shift as u32);
        last.wrapping_add(1)
    }

    /// Returns the offset in bytes of the packet with this index in its message.
    #[inline]
    pub const fn offset(self, index: u32) -> u32 {
        debug_assert!(
            index.leading_zeros() >= self.shift as u32,
            "a packet beyond the longest message"
        );
        index.wrapping_shl(self.shift as u32)
    }
}

#[cfg(test)]
mod tests {
    use super::Mtu;

    #[test]
    fn sizes() {
        assert_eq!(Mtu::from_bytes(0), None);
        assert_eq!(Mtu::from_bytes(1500), None);
        for bytes in [256, 512, 1024, 2048, 4096] {
            let mtu = Mtu::from_bytes(bytes).unwrap();
            assert_eq!(mtu.bytes(), bytes);
            assert_eq!(mtu.packets(0), 1);
            assert_eq!(mtu.packets(1), 1);
            assert_eq!(mtu.packets(bytes), 1);
            assert_eq!(mtu.packets(bytes + 1), 2);
            assert_eq!(mtu.packets(1 << 31), (1 << 31) / bytes);
            assert_eq!(mtu.offset(3), 3 * bytes);
        }
    }
}
