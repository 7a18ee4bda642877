// SPDX-License-Identifier: GPL-2.0

//! `struct ib_device_ops`: adapters from ib_core's calls to the driver's functions.
//!
//! Operations with an enum in their signature go through C trampolines (trampolines.c). kCFI
//! compares the types of a call and its target, and treats an enum and an integer as different
//! types.

mod ah;
mod counter;
mod cq;
mod device;
mod mr;
mod pd;
mod qp;
mod srq;

use super::{
    object::{Ah, Counter, Cq, Driver, Mw, Pd, Qp, Srq, Ucontext, Xrcd},
    udata::Udata,
};
use crate::raw;
use core::mem::size_of;
use kernel::{ffi::c_int, prelude::*, str::as_char_ptr_in_const_context, ThisModule};

/// Implements `ERR_PTR()` for operations that return an object.
fn err_ptr<T>(e: Error) -> *mut T {
    e.to_errno() as isize as *mut T
}

/// Converts a result to a non-negative count or a negative error number.
fn count(result: Result<usize>) -> c_int {
    match result {
        Ok(n) => c_int::try_from(n).unwrap_or(c_int::MAX),
        Err(e) => e.to_errno(),
    }
}

/// Checks and completes the udata of a command without a driver-specific part.
fn no_udata(udata: Option<&mut Udata<'_>>) -> Result {
    match udata {
        Some(udata) => udata.expect_nothing(),
        None => Ok(()),
    }
}

/// The operations of driver `D`, as C functions: each implements the operation of `struct
/// ib_device_ops` that has its name.
///
/// # Safety
///
/// Only the callers of `struct ib_device_ops` may call these functions: ib_core, uverbs, and kernel
/// consumers, through the functions of ib_verbs.h. They pass objects of this driver's devices,
/// which exist during the call, and other arguments that are valid during the call. `udata` is null
/// or that of the running command.
///
/// An object to be created is zeroed, except for the fields that ib_core sets, and nothing else
/// uses it. Any other object is live: it was created and is not being destroyed. Once an object's
/// destruction has succeeded, nothing uses the object. ib_core serializes creation and destruction
/// of an object with its other operations.
struct Ops<D: Driver>(core::marker::PhantomData<D>);

impl<D: Driver> Ops<D> {
    /// The functions that the trampolines call.
    const ENUM_OPS: raw::rdma_enum_ops = raw::rdma_enum_ops {
        req_notify_cq: Some(Self::req_notify_cq),
        get_link_layer: Some(Self::get_link_layer),
        modify_srq: Some(Self::modify_srq),
        alloc_mr: Some(Self::alloc_mr),
    };

    const ENUM_OPS_REF: &'static raw::rdma_enum_ops = &Self::ENUM_OPS;

    /// The contents of the sysfs files.
    const IDENTITY: raw::rdma_identity = raw::rdma_identity {
        hca_type: as_char_ptr_in_const_context(D::IDENTITY.hca_type).cast(),
        hw_rev: as_char_ptr_in_const_context(D::IDENTITY.hw_rev).cast(),
        board_id: as_char_ptr_in_const_context(D::IDENTITY.board_id).cast(),
    };

    const IDENTITY_REF: &'static raw::rdma_identity = &Self::IDENTITY;
}

/// Returns the contents of the sysfs files for driver `D`.
pub(super) fn identity<D: Driver>() -> *const raw::rdma_identity {
    Ops::<D>::IDENTITY_REF
}

/// Returns the operations that the trampolines call.
pub(super) fn enum_ops<D: Driver>() -> *const raw::rdma_enum_ops {
    Ops::<D>::ENUM_OPS_REF
}

/// Sets the operations of a device.
///
/// # Safety
///
/// `ib` was allocated as a [`Device<D>`](super::device::Device) and is not registered yet.
pub(super) unsafe fn set_ops<D: Driver>(ib: *mut raw::ib_device) {
    let mut ops: raw::ib_device_ops = pin_init::zeroed();
    ops.owner = ThisModule::as_ptr(D::module());
    ops.driver_id = D::DRIVER_ID;
    ops.uverbs_abi_ver = D::ABI_VERSION;
    ops.set_uverbs_robust_udata(1);

    ops.dealloc_driver = Some(Ops::<D>::dealloc_driver);
    ops.device_group = &raw const raw::rdma_identity_group;
    ops.get_dev_fw_str = Some(Ops::<D>::get_dev_fw_str);
    ops.query_device = Some(Ops::<D>::query_device);
    ops.query_port = Some(Ops::<D>::query_port);
    ops.get_port_immutable = Some(Ops::<D>::get_port_immutable);
    ops.get_link_layer = Some(raw::rdma_trampoline_get_link_layer);
    ops.query_pkey = Some(Ops::<D>::query_pkey);
    ops.alloc_hw_port_stats = Some(Ops::<D>::alloc_hw_port_stats);
    ops.get_hw_stats = Some(Ops::<D>::get_hw_stats);
    ops.counter_init = Some(Ops::<D>::counter_init);
    ops.counter_alloc_stats = Some(Ops::<D>::counter_alloc_stats);
    ops.counter_bind_qp = Some(Ops::<D>::counter_bind_qp);
    ops.counter_unbind_qp = Some(Ops::<D>::counter_unbind_qp);
    ops.counter_update_stats = Some(Ops::<D>::counter_update_stats);
    ops.counter_dealloc = Some(Ops::<D>::counter_dealloc);
    ops.alloc_ucontext = Some(Ops::<D>::alloc_ucontext);
    ops.dealloc_ucontext = Some(Ops::<D>::dealloc_ucontext);
    ops.disassociate_ucontext = Some(Ops::<D>::disassociate_ucontext);
    ops.alloc_pd = Some(Ops::<D>::alloc_pd);
    ops.dealloc_pd = Some(Ops::<D>::dealloc_pd);
    ops.create_ah = Some(Ops::<D>::create_ah);
    ops.create_user_ah = Some(Ops::<D>::create_ah);
    ops.query_ah = Some(Ops::<D>::query_ah);
    ops.destroy_ah = Some(Ops::<D>::destroy_ah);
    ops.create_cq = Some(Ops::<D>::create_cq);
    ops.create_user_cq = Some(Ops::<D>::create_cq);
    ops.resize_user_cq = Some(Ops::<D>::resize_user_cq);
    ops.destroy_cq = Some(Ops::<D>::destroy_cq);
    ops.poll_cq = Some(Ops::<D>::poll_cq);
    ops.req_notify_cq = Some(raw::rdma_trampoline_req_notify_cq);
    ops.create_qp = Some(Ops::<D>::create_qp);
    ops.modify_qp = Some(Ops::<D>::modify_qp);
    ops.query_qp = Some(Ops::<D>::query_qp);
    ops.destroy_qp = Some(Ops::<D>::destroy_qp);
    ops.attach_mcast = Some(Ops::<D>::attach_mcast);
    ops.detach_mcast = Some(Ops::<D>::detach_mcast);
    ops.post_send = Some(Ops::<D>::post_send);
    ops.post_recv = Some(Ops::<D>::post_recv);
    ops.alloc_xrcd = Some(Ops::<D>::alloc_xrcd);
    ops.dealloc_xrcd = Some(Ops::<D>::dealloc_xrcd);
    ops.create_srq = Some(Ops::<D>::create_srq);
    ops.modify_srq = Some(raw::rdma_trampoline_modify_srq);
    ops.query_srq = Some(Ops::<D>::query_srq);
    ops.destroy_srq = Some(Ops::<D>::destroy_srq);
    ops.post_srq_recv = Some(Ops::<D>::post_srq_recv);
    ops.get_dma_mr = Some(Ops::<D>::get_dma_mr);
    ops.reg_user_mr = Some(Ops::<D>::reg_user_mr);
    ops.rereg_user_mr = Some(Ops::<D>::rereg_user_mr);
    ops.dereg_mr = Some(Ops::<D>::dereg_mr);
    ops.alloc_mr = Some(raw::rdma_trampoline_alloc_mr);
    ops.map_mr_sg = Some(Ops::<D>::map_mr_sg);
    ops.alloc_mw = Some(Ops::<D>::alloc_mw);
    ops.dealloc_mw = Some(Ops::<D>::dealloc_mw);

    ops.size_ib_ucontext = size_of::<Ucontext<D>>();
    ops.size_ib_pd = size_of::<Pd<D>>();
    ops.size_ib_ah = size_of::<Ah<D>>();
    ops.size_ib_cq = size_of::<Cq<D>>();
    ops.size_ib_mw = size_of::<Mw<D>>();
    ops.size_ib_qp = size_of::<Qp<D>>();
    ops.size_ib_srq = size_of::<Srq<D>>();
    ops.size_ib_xrcd = size_of::<Xrcd<D>>();
    ops.size_rdma_counter = size_of::<Counter<D>>();

    // SAFETY: ib_set_device_ops() (device.c) copies the operations into the device, which is not
    // registered yet.
    unsafe { raw::ib_set_device_ops(ib, &ops) };
}
