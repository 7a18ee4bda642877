// SPDX-License-Identifier: GPL-2.0

//! The environment traits of the core: executes each request and checks it.

mod requester;
mod responder;

use crate::data::data;
use crate::flow::{Message, Trap};
use crate::oracle::{Oracle, QKEY};
use rrxe_core::*;

/// The driver of one queue pair.
pub struct Env<'a> {
    pub oracle: &'a mut Oracle,
    pub qp: usize,
}

impl Env<'_> {
    fn use_space(&mut self) -> Result<(), TxError> {
        if self.oracle.space == 0 {
            self.oracle.refused = true;
            return Err(TxError::Full);
        }
        self.oracle.space -= 1;
        Ok(())
    }
}

fn words(message: &Message) -> String {
    format!(
        "{:?} of {} bytes from PSN {}",
        message.op, message.len, message.first
    )
}

/// Returns the compare (or add) and swap operands of an atomic.
pub fn operands(message: &Message) -> (u64, u64) {
    let word = |at: u32| {
        let bytes = data(message.data + at, 8);
        u64::from_ne_bytes(bytes.try_into().expect("8 bytes"))
    };
    (word(0) & 3, word(8) & 3)
}

/// Returns the Q_Key of a datagram's work request. One with the top bit set stands for the Q_Key of
/// the queue pair.
pub fn qkey(message: &Message) -> u32 {
    match message.trap {
        Trap::Qkey => QKEY + 1,
        _ if message.number % 2 != 0 => 1 << 31,
        _ => QKEY,
    }
}
