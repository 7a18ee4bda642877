// SPDX-License-Identifier: GPL-2.0

//! Address handles: destinations of datagrams.

use crate::{
    limits,
    pd::{Pd, PdId},
    ring::abi::CreateAhResp,
    transport::{gids::Interfaces, path::Path},
};
use kernel::{
    prelude::*,
    sync::{rcu, Arc, ArcBorrow},
};
use linux_rdma::{
    rdma::{AddressInfo, Udata},
    sync::{IndexPool, RcuTable},
};

/// The address handles of all devices, by number. Only the owning process sees the numbers.
#[pin_data]
pub(crate) struct AddressHandles {
    table: RcuTable<AddressHandle>,
    #[pin]
    numbers: IndexPool,
}

impl AddressHandles {
    pub(crate) fn new() -> impl PinInit<Self, Error> {
        try_pin_init!(Self {
            table: RcuTable::new()?,
            numbers <- IndexPool::new(),
        })
    }

    /// Returns the address handle with this number.
    #[inline]
    pub(crate) fn get<'a>(
        &'a self,
        number: u32,
        rcu: &'a rcu::Guard,
    ) -> Option<ArcBorrow<'a, AddressHandle>> {
        self.table.get(number, rcu)
    }
}

/// An address handle.
#[pin_data]
pub(crate) struct AddressHandle {
    handles: Arc<AddressHandles>,
    /// The number by which work-queue entries name it.
    pub(crate) number: u32,
    /// The protection domain that may use it.
    pub(crate) pd: PdId,
    #[pin]
    pub(crate) path: Path,
}

impl AddressHandle {
    /// CREATE_AH. Returns `EPERM` if the program may not use the source address.
    pub(crate) fn create(
        handles: &Arc<AddressHandles>,
        interfaces: &Interfaces,
        pd: &Pd,
        info: AddressInfo,
        may_sleep: bool,
        udata: Option<&mut Udata<'_>>,
    ) -> Result<Arc<Self>> {
        if udata.is_some() {
            interfaces.check_use(&info)?;
        }
        let flags = if may_sleep {
            GFP_KERNEL_ACCOUNT
        } else {
            GFP_ATOMIC
        };
        let number = handles.numbers.alloc(1..=limits::MAX_AH, flags)?;
        let ah = Arc::pin_init(
            try_pin_init!(Self {
                handles: handles.clone(),
                number,
                pd: pd.id,
                path <- Path::new(info, interfaces),
            }),
            flags,
        )
        .and_then(|ah| {
            let inserted = handles.table.insert(number, ah.clone(), flags);
            inserted.map(|()| ah)
        })
        .inspect_err(|_| handles.numbers.free(number))?;
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
        if self.handles.table.remove(self.number) {
            self.handles.numbers.free(self.number);
        }
    }
}
