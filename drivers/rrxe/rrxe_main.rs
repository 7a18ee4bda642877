// SPDX-License-Identifier: GPL-2.0

//! The module.

use kernel::prelude::*;

module! {
    type: Rrxe,
    name: "rrxe",
    authors: ["The rrxe authors"],
    description: "Software RoCEv2 device",
    license: "GPL",
}

struct Rrxe;

impl kernel::Module for Rrxe {
    fn init(_module: &'static ThisModule) -> Result<Self> {
        pr_info!("loaded\n");
        Ok(Self)
    }
}
