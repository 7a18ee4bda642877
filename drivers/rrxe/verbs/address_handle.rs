// SPDX-License-Identifier: GPL-2.0

//! Address handles: destinations of datagrams.

use super::{
    device::DeviceState,
    pd::{Pd, PdId},
};
use crate::{limits, ring::abi::CreateAhResp, tables::Tables, transport::path::Path};
use kernel::{
    prelude::*,
    sync::{rcu, Arc},
};
use linux_rdma::{
    rdma::{AddressInfo, Udata},
    sync::{arc_borrow_ref, IndexPool, RcuTable},
};

/// Address handles by number. Only the owning process sees the numbers.
#[pin_data]
pub(crate) struct AddressTable {
    #[pin]
    pool: IndexPool,
    table: RcuTable<AddressHandle>,
}

impl AddressTable {
    pub(crate) fn new() -> impl PinInit<Self, Error> {
        try_pin_init!(Self {
            pool <- IndexPool::new(),
            table: RcuTable::new()?,
        })
    }

    /// Returns the handle with this number.
    #[inline]
    pub(crate) fn get<'a>(&'a self, number: u32, rcu: &'a rcu::Guard) -> Option<&'a AddressHandle> {
        self.table.get(number, rcu).map(arc_borrow_ref)
    }
}

/// An address handle.
#[pin_data]
pub(crate) struct AddressHandle {
    tables: Arc<Tables>,
    /// The number by which work-queue entries name it.
    pub(crate) number: u32,
    /// The protection domain that may use it.
    pub(crate) pd: PdId,
    #[pin]
    pub(crate) path: Path,
}

impl AddressHandle {
    /// CREATE_AH.
    pub(crate) fn create(
        device: &DeviceState,
        pd: &Pd,
        info: AddressInfo,
        may_sleep: bool,
        udata: Option<&mut Udata<'_>>,
    ) -> Result<Arc<Self>> {
        let flags = if may_sleep {
            GFP_KERNEL_ACCOUNT
        } else {
            GFP_ATOMIC
        };
        let addresses = &device.tables.addresses;
        let number = addresses.pool.alloc(1..=limits::MAX_AH, flags)?;
        let ah = Arc::pin_init(
            try_pin_init!(Self {
                tables: device.tables.clone(),
                number,
                pd: pd.id,
                path <- Path::new(info),
            }),
            flags,
        )
        .and_then(|ah| {
            addresses
                .table
                .insert(number, ah.clone(), flags)
                .map(|()| ah)
        })
        .inspect_err(|_| addresses.pool.free(number))?;
        if let Some(udata) = udata {
            let resp = CreateAhResp {
                ah: number,
                reserved: 0,
            };
            udata
                .expect_no_input()
                .and_then(|()| udata.write(&resp))
                .inspect_err(|_| ah.destroy())?;
        }
        Ok(ah)
    }

    /// DESTROY_AH: hides the handle from work requests, and frees its number.
    pub(crate) fn destroy(&self) {
        let addresses = &self.tables.addresses;
        if addresses.table.remove(self.number) {
            addresses.pool.free(self.number);
        }
    }
}
