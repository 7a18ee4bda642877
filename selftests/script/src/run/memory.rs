// SPDX-License-Identifier: GPL-2.0

//! Memory regions and their expected content.

use super::{Result, Run};
use crate::endpoint::Region;
use crate::packet;

/// A region and its expected content.
pub(super) struct Memory {
    pub(super) name: String,
    pub(super) region: Region,
    pub(super) shadow: Vec<u8>,
}

/// Returns `count` bytes of a pattern without short repetitions.
fn initial(count: usize) -> Vec<u8> {
    (0..count)
        .map(|n| (n.wrapping_mul(7).wrapping_add(n >> 8) as u8) ^ 0x55)
        .collect()
}

impl Run<'_> {
    pub(super) fn find(&self, name: &str) -> Result<usize> {
        self.memory
            .iter()
            .position(|memory| memory.name == name)
            .ok_or_else(|| {
                format!("there is no region {name}; right is first: mr {name} 4096 read")
            })
    }

    pub(super) fn region(&mut self, name: &str, len: usize, rights: &str) -> Result<()> {
        let shadow = initial(len);
        let region = self.end.region(&shadow, rights)?;
        self.memory.push(Memory {
            name: name.into(),
            region,
            shadow,
        });
        Ok(())
    }

    pub(super) fn set(&mut self, name: &str, offset: usize, bytes: &[u8]) -> Result<()> {
        let at = self.find(name)?;
        let memory = &mut self.memory[at];
        let place = memory
            .shadow
            .get_mut(offset..offset + bytes.len())
            .ok_or_else(|| format!("region {name} is not that long"))?;
        place.copy_from_slice(bytes);
        self.end.set_memory(memory.region.id, offset, bytes)
    }

    /// Compares all regions with their expected content. In real time, retries for up to four
    /// seconds, because the last packets may carry no ACK request and still be in flight.
    pub(super) fn check_memory(&mut self) -> Result<()> {
        let mut verdict = self.compare_memory();
        for _ in 0..200 {
            if verdict.is_ok() || self.end.virtual_time() {
                break;
            }
            self.end.advance(20_000_000)?;
            verdict = self.compare_memory();
        }
        verdict
    }

    fn compare_memory(&mut self) -> Result<()> {
        for memory in &self.memory {
            let found = self.end.memory(memory.region.id, memory.shadow.len())?;
            let at = found.iter().zip(&memory.shadow).position(|(a, b)| a != b);
            if let Some(at) = at {
                return Err(format!(
                    "region {} from byte {at} on\nexpected {}\nreal     {}",
                    memory.name,
                    packet::hex(&memory.shadow[at..], 16),
                    packet::hex(&found[at..], 16)
                ));
            }
        }
        Ok(())
    }
}
