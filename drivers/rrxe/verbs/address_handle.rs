// SPDX-License-Identifier: GPL-2.0

//! Address handles: destinations of datagrams.

use super::device::DeviceState;
use crate::{
    limits,
    pd::{Pd, PdId},
    ring::abi::CreateAhResp,
    tables::Tables,
    transport::path::Path,
};
use kernel::{prelude::*, sync::Arc};
use linux_rdma::rdma::{AddressInfo, Udata};

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
    /// CREATE_AH. Returns `EPERM` if the program may not use the source address.
    pub(crate) fn create(
        device: &DeviceState,
        pd: &Pd,
        info: AddressInfo,
        may_sleep: bool,
        udata: Option<&mut Udata<'_>>,
    ) -> Result<Arc<Self>> {
        if udata.is_some() {
            device.interfaces.check_use(&info)?;
        }
        let flags = if may_sleep {
            GFP_KERNEL_ACCOUNT
        } else {
            GFP_ATOMIC
        };
        let tables = &device.tables;
        let number = tables.address_numbers.alloc(1..=limits::MAX_AH, flags)?;
        let ah = Arc::pin_init(
            try_pin_init!(Self {
                tables: tables.clone(),
                number,
                pd: pd.id,
                path <- Path::new(info, &device.interfaces),
            }),
            flags,
        )
        .and_then(|ah| {
            let inserted = tables.addresses.insert(number, ah.clone(), flags);
            inserted.map(|()| ah)
        })
        .inspect_err(|_| tables.address_numbers.free(number))?;
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
        if self.tables.addresses.remove(self.number) {
            self.tables.address_numbers.free(self.number);
        }
    }
}
