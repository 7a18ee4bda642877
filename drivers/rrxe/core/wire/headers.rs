// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The extension headers except the AETH (IBA 9.3, A14, A19).

use super::QPN_MASK;

/// Declares a header of big-endian integers. Bits outside of a field's mask are reserved.
macro_rules! header {
    (
        $(#[$doc:meta])*
        pub struct $name:ident {
            $($(#[$field_doc:meta])* $field:ident: $int:ident $(& $mask:ident)?,)+
        }
    ) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub struct $name {
            $($(#[$field_doc])* pub $field: $int,)+
        }

        impl $name {
            /// Length of the header in bytes.
            pub const LEN: usize = 0 $(+ size_of::<$int>())+;

            /// Parses the header.
            #[inline]
            pub fn from_bytes(bytes: &[u8; $name::LEN]) -> $name {
                let rest = bytes.as_slice();
                $(let ($field, rest) = take(rest);)+
                debug_assert!(rest.is_empty(), "a header is longer than its fields");
                $name { $($field: $int::from_be_bytes($field) $(& $mask)?,)+ }
            }

            /// Serializes the header. Values wider than their field lose their upper bits.
            #[inline]
            pub fn to_bytes(&self) -> [u8; $name::LEN] {
                let mut bytes = [0; $name::LEN];
                let rest = bytes.as_mut_slice();
                $(let rest = put(rest, (self.$field $(& $mask)?).to_be_bytes());)+
                debug_assert!(rest.is_empty(), "a header is longer than its fields");
                bytes
            }
        }
    };
}

header! {
    /// The RETH (IBA 9.3.3): the remote memory of an RDMA READ or WRITE.
    pub struct Reth {
        /// Virtual address in the remote region.
        va: u64,
        /// Key of the remote region.
        rkey: u32,
        /// DMA length: bytes of the whole message, at most 2^31.
        len: u32,
    }
}

impl Reth {
    /// Returns the remote memory without its first `offset` bytes.
    #[inline]
    pub fn rest(self, offset: u32) -> Reth {
        debug_assert!(offset <= self.len, "a part beyond the remote memory");
        Reth {
            va: self.va.wrapping_add(offset.into()),
            len: self.len.saturating_sub(offset),
            ..self
        }
    }
}

header! {
    /// The AtomicETH (IBA 9.3.4): target and operands of an atomic operation.
    pub struct AtomicEth {
        /// Virtual address in the remote region, a multiple of 8.
        va: u64,
        /// Key of the remote region.
        rkey: u32,
        /// CmpSwap: the new value. FetchAdd: the addend.
        swap_add: u64,
        /// CmpSwap: the value to compare with. FetchAdd: unused.
        compare: u64,
    }
}

header! {
    /// The AtomicAckETH (IBA 9.5.3): the value before an atomic operation.
    pub struct AtomicAckEth {
        /// The original value.
        original: u64,
    }
}

header! {
    /// The DETH (IBA 9.3.2): the sender of a datagram, and its authorization.
    pub struct Deth {
        /// Q_Key, which must equal that of the receiving queue pair.
        qkey: u32,
        /// Sending queue pair number: 24 bits.
        src_qpn: u32 & QPN_MASK,
    }
}

header! {
    /// The XRCETH (IBA A14), after the BTH of every XRC request: names the shared receive queue.
    pub struct XrcEth {
        /// Shared receive queue number of the receiver: 24 bits.
        srqn: u32 & QPN_MASK,
    }
}

header! {
    /// The IETH (IBA 9.3.7): the key that a SEND with invalidate invalidates.
    pub struct Ieth {
        /// R_Key of the receiver.
        rkey: u32,
    }
}

/// Immediate data (IBA 9.3.6): four bytes that the transport does not interpret.
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

/// The FETH (IBA A19.4.1): guarantees of a FLUSH, and the part of the region that it covers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Feth {
    /// Placement type, four bits: [`Feth::GLOBAL`], [`Feth::PERSISTENT`] or both. Other bits are
    /// reserved.
    pub placement: u8,
    /// Selectivity level, two bits: [`Feth::RANGE`] or [`Feth::REGION`]. 2 and 3 are reserved.
    pub level: u8,
}

impl Feth {
    /// Length of the header in bytes.
    pub const LEN: usize = 4;

    /// [`Feth::placement`]: earlier writes become globally visible (`IBV_FLUSH_GLOBAL`).
    pub const GLOBAL: u8 = 1;
    /// [`Feth::placement`]: earlier writes become persistent (`IBV_FLUSH_PERSISTENT`).
    pub const PERSISTENT: u8 = 2;

    /// [`Feth::level`]: the range in the RETH (`IBV_FLUSH_RANGE`).
    pub const RANGE: u8 = 0;
    /// [`Feth::level`]: the whole region, regardless of the range in the RETH (`IBV_FLUSH_MR`).
    pub const REGION: u8 = 1;

    /// Parses the header.
    #[inline]
    pub const fn from_bytes(b: &[u8; Feth::LEN]) -> Feth {
        let [_, _, _, low] = *b;
        Feth {
            placement: low & 0x0f,
            level: (low >> 4) & 3,
        }
    }

    /// Serializes the header. Values wider than their field lose their upper bits.
    #[inline]
    pub const fn to_bytes(&self) -> [u8; Feth::LEN] {
        [0, 0, 0, ((self.level & 3) << 4) | (self.placement & 0x0f)]
    }
}

/// Splits off the next field of a header, which is long enough.
#[inline(always)]
fn take<const N: usize>(header: &[u8]) -> ([u8; N], &[u8]) {
    match header.split_first_chunk() {
        Some((field, rest)) => (*field, rest),
        None => {
            debug_assert!(false, "a field beyond its header");
            ([0; N], &[])
        }
    }
}

/// Writes the next field of a header, which is long enough. Returns the rest.
#[inline(always)]
fn put<const N: usize>(header: &mut [u8], field: [u8; N]) -> &mut [u8] {
    match header.split_first_chunk_mut() {
        Some((place, rest)) => {
            *place = field;
            rest
        }
        None => {
            debug_assert!(false, "a field beyond its header");
            &mut []
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reth_fields() {
        let b = [
            0, 0, 0x55, 0xd4, 0xc0, 0x72, 0x60, 0, 0, 0, 0x47, 0xb3, 0, 0, 0, 5,
        ];
        let reth = Reth::from_bytes(&b);
        assert_eq!(
            reth,
            Reth {
                va: 0x55d4_c072_6000,
                rkey: 0x47b3,
                len: 5
            }
        );
        assert_eq!(reth.to_bytes(), b);
    }

    #[test]
    fn atomic_eth_fields() {
        let eth = AtomicEth {
            va: 0x0102_0304_0506_0708,
            rkey: 0x090a_0b0c,
            swap_add: 0x0d0e_0f10_1112_1314,
            compare: 0x1516_1718_191a_1b1c,
        };
        let bytes: [u8; 28] = core::array::from_fn(|i| i as u8 + 1);
        assert_eq!(eth.to_bytes(), bytes);
        assert_eq!(AtomicEth::from_bytes(&bytes), eth);
    }

    #[test]
    fn deth_fields() {
        let b = [0x80, 1, 0, 0, 0xff, 0, 0, 1];
        let deth = Deth::from_bytes(&b);
        assert_eq!(
            deth,
            Deth {
                qkey: 0x8001_0000,
                src_qpn: 1
            }
        );
        assert_eq!(deth.to_bytes(), [0x80, 1, 0, 0, 0, 0, 0, 1]);
    }

    #[test]
    fn xrceth_fields() {
        // the reserved byte.
        let eth = XrcEth::from_bytes(&[0xff, 1, 2, 3]);
        assert_eq!(eth, XrcEth { srqn: 0x01_0203 });
        assert_eq!(eth.to_bytes(), [0, 1, 2, 3]);
        assert_eq!(XrcEth { srqn: u32::MAX }.to_bytes(), [0, 0xff, 0xff, 0xff]);
    }

    #[test]
    fn immediate_data_keeps_its_bytes() {
        let wire = [1, 2, 3, 4];
        assert_eq!(ImmDt(wire).to_verbs(), 0x0102_0304u32.to_be());
        assert_eq!(ImmDt::from_verbs(0x0102_0304u32.to_be()).0, wire);
    }

    #[test]
    fn atomic_ack_is_big_endian() {
        let ack = AtomicAckEth::from_bytes(&[1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(ack.original, 0x0102_0304_0506_0708);
        assert_eq!(ack.to_bytes(), [1, 2, 3, 4, 5, 6, 7, 8]);
    }

    #[test]
    fn invalidate_is_big_endian() {
        assert_eq!(Ieth::from_bytes(&[1, 2, 3, 4]).rkey, 0x0102_0304);
        assert_eq!(Ieth { rkey: 0x0102_0304 }.to_bytes(), [1, 2, 3, 4]);
    }

    #[test]
    fn feth_fields() {
        let feth = Feth::from_bytes(&[0, 0, 0, 0x12]);
        assert_eq!(
            feth,
            Feth {
                placement: Feth::PERSISTENT,
                level: Feth::REGION
            }
        );
        assert_eq!(feth.to_bytes(), [0, 0, 0, 0x12]);
        //
        assert_eq!(Feth::from_bytes(&[0xff, 0xff, 0xff, 0xd2]), feth);
    }
}
