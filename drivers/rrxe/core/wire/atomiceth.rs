// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Atomic Extended Transport Header (IBA 9.3.4).

header! {
    /// The AtomicETH: target and operands of an atomic operation.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_stand_where_they_should() {
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
}
