// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! A portable CRC-32.

static TABLES: [[u32; 256]; 8] = tables();

const fn tables() -> [[u32; 256]; 8] {
    let mut tables = [[0u32; 256]; 8];
    let mut i = 0;
    while i < 256 {
        let mut crc = i as u32;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 1 != 0 {
                (crc >> 1) ^ 0xedb8_8320
            } else {
                crc >> 1
            };
            bit += 1;
        }
        tables[0][i] = crc;
        i += 1;
    }
    let mut t = 1;
    while t < 8 {
        let mut i = 0;
        while i < 256 {
            let previous = tables[t - 1][i];
            tables[t][i] = (previous >> 8) ^ tables[0][(previous & 0xff) as usize];
            i += 1;
        }
        t += 1;
    }
    tables
}

/// Computes CRC-32 as the kernel's `crc32_le` does, eight bytes at a time.
pub fn crc32_le(mut crc: u32, bytes: &[u8]) -> u32 {
    let [t0, t1, t2, t3, t4, t5, t6, t7] = &TABLES;
    let at = |table: &[u32; 256], i: u8| table[usize::from(i)];
    let mut rest = bytes;
    while let Some((chunk, tail)) = rest.split_first_chunk::<8>() {
        let [b0, b1, b2, b3, b4, b5, b6, b7] = *chunk;
        let [c0, c1, c2, c3] = crc.to_le_bytes();
        crc = at(t7, b0 ^ c0)
            ^ at(t6, b1 ^ c1)
            ^ at(t5, b2 ^ c2)
            ^ at(t4, b3 ^ c3)
            ^ at(t3, b4)
            ^ at(t2, b5)
            ^ at(t1, b6)
            ^ at(t0, b7);
        rest = tail;
    }
    for byte in rest {
        let [low, ..] = crc.to_le_bytes();
        crc = (crc >> 8) ^ at(t0, low ^ byte);
    }
    crc
}

#[cfg(test)]
mod tests {
    use super::crc32_le;

    #[test]
    fn known_crc() {
        assert_eq!(!crc32_le(!0, b"123456789"), 0xcbf4_3926);
    }

    #[test]
    fn pieces_make_the_whole() {
        let bytes: Vec<u8> = (0..100_u8).map(|i| i.wrapping_mul(7)).collect();
        for at in 0..=bytes.len() {
            let (a, b) = bytes.split_at(at);
            assert_eq!(crc32_le(crc32_le(!0, a), b), crc32_le(!0, &bytes));
        }
    }
}
