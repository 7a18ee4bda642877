// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! FLUSH Extended Transport Header (IBA A19.4.1).

/// The FETH: guarantees of a FLUSH, and the part of the region that it covers.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_stand_where_they_should() {
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
