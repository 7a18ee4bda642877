// SPDX-License-Identifier: GPL-2.0

//! Receive work requests: which one is current, and how they complete.

use super::Model;

/// A completed receive work request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Done {
    /// Number of the work request.
    pub id: u32,
    /// `enum ibv_wc_status`.
    pub status: u8,
    /// 128 or 129, if the status is success.
    pub opcode: u8,
    /// Bytes received.
    pub length: u32,
    /// Immediate data in wire order.
    pub imm: Option<[u8; 4]>,
    /// Key that was invalidated.
    pub invalidated: Option<u32>,
    /// The sender requested a solicited event.
    pub solicited: bool,
    /// Source queue pair of a datagram.
    pub source: u32,
    /// Contents of the buffer.
    pub data: Vec<u8>,
}

/// Statuses of [`Done`].
pub mod status {
    /// IBV_WC_SUCCESS
    pub const SUCCESS: u8 = 0;
    /// IBV_WC_LOC_LEN_ERR
    pub const LENGTH: u8 = 1;
    /// IBV_WC_WR_FLUSH_ERR
    pub const FLUSHED: u8 = 5;
    /// IBV_WC_LOC_ACCESS_ERR
    pub const LOCAL_ACCESS: u8 = 8;
    /// IBV_WC_REM_INV_REQ_ERR
    pub const INVALID: u8 = 9;
    /// IBV_WC_REM_ACCESS_ERR
    pub const ACCESS: u8 = 10;
}

impl Model {
    pub(super) fn current(&mut self) -> Option<&mut (u32, Vec<u8>)> {
        if self.state.current.is_none() {
            self.state.current = self.receives.pop_front();
        }
        self.state.current.as_mut()
    }

    pub(super) fn fill(&mut self, at: usize, payload: &[u8]) {
        let (_, memory) = self.current().expect("checked before");
        memory[at..at + payload.len()].copy_from_slice(payload);
    }

    pub(super) fn fail_current(&mut self, status: u8) {
        if self.state.current.is_some() {
            self.finish(status, 128, 0, None, None, false, 0);
        }
    }

    #[expect(clippy::too_many_arguments, reason = "a completion has so many fields")]
    pub(super) fn finish(
        &mut self,
        status: u8,
        opcode: u8,
        length: u32,
        imm: Option<[u8; 4]>,
        invalidated: Option<u32>,
        solicited: bool,
        source: u32,
    ) {
        let (id, data) = self.state.current.take().expect("a receive is current");
        self.done.push(Done {
            id,
            status,
            opcode,
            length,
            imm,
            invalidated,
            solicited,
            source,
            data,
        });
    }
}
