// SPDX-License-Identifier: GPL-2.0

//! Marks the structs of the user ABI as plain data, which may be copied from and to user space.

use super::abi;
use kernel::transmute::{AsBytes, FromBytes};

macro_rules! plain_data {
    ($($ty:ty),* $(,)?) => {
        $(
            // SAFETY: A `repr(C)` struct of integers: any byte pattern is a valid value.
            unsafe impl FromBytes for $ty {}
            // SAFETY: A `repr(C)` struct of integers without padding: abi.rs asserts its size,
            // which is the sum of its fields' sizes.
            unsafe impl AsBytes for $ty {}
        )*
    };
}

plain_data!(
    abi::SendWqe,
    abi::RecvWqe,
    abi::Sge,
    abi::Cqe,
    abi::AllocUcontextCmd,
    abi::AllocUcontextResp,
    abi::CreateCqCmd,
    abi::CreateQpCmd,
    abi::CreateSrqCmd,
    abi::CreateAhResp,
);
