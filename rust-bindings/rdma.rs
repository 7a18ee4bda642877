// SPDX-License-Identifier: GPL-2.0

//! RDMA devices: the interface of ib_core for drivers.
//!
//! A driver implements [`Driver`], with its own type for each verbs object. ib_core allocates most
//! objects itself (`size_ib_*` of `struct ib_device_ops`), with the ib struct first; the driver's
//! data follows it in an [`Object`]. Users create devices through `rdma link add`, for which a
//! driver has [`LinkOps`](device::LinkOps). It registers the devices with [`device::register`].
//! `example.rs` has the smallest driver.
//!
//! C headers: [`include/rdma/ib_verbs.h`](srctree/include/rdma/ib_verbs.h),
//! [`include/rdma/ib_umem.h`](srctree/include/rdma/ib_umem.h),
//! [`include/rdma/rdma_netlink.h`](srctree/include/rdma/rdma_netlink.h).

pub mod attr;
pub mod details;
pub mod device;
pub mod event;
#[cfg(any(CONFIG_KUNIT = "y", clippy))]
mod example;
pub mod import;
pub mod memory;
pub mod object;
mod ops;
pub mod qp;
pub mod roce;
pub mod udata;
pub mod wr;

pub use details::Details;
pub use device::{Device, LinkRegistration};
#[cfg(CONFIG_KUNIT = "y")]
pub use event::TestQp;
pub use event::{CqEvent, CqTarget, QpEvent, QpTarget, SrqEvent, SrqTarget};
pub use import::ContextQuery;
pub use object::{advice, Driver, Mad, MrAdvice, MrChange, NewGid, Object, UserMemory, XrcSrq};
pub use roce::AddressInfo;
pub use udata::{no_udata, Udata};
