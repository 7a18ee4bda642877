// SPDX-License-Identifier: GPL-2.0

//! `struct ib_device_ops`: adapters from ib_core's calls to the driver's functions.
//!
//! Operations with an enum in their signature go through C trampolines (trampolines.h).

mod counter;
mod cq;
mod device;
mod mr;
mod pd;
mod qp;
mod srq;

use super::object::{Ah, Counter, Cq, Driver, Mw, Pd, Qp, Srq, Ucontext, Xrcd};
use crate::raw;
use core::mem::size_of;
use kernel::str::as_char_ptr_in_const_context;

/// The operations of driver `D`, as C functions: each one that has the name of an operation of
/// `struct ib_device_ops` implements that operation.
///
/// # Safety
///
/// Only the callers of `struct ib_device_ops` may call these functions: ib_core, uverbs, and kernel
/// consumers, through the functions of ib_verbs.h. (Functions of this module may, under the same
/// conditions.) They pass objects of this driver's devices, which exist during the call, and other
/// arguments that are valid during the call. `udata` is null or that of the running command.
///
/// An object to be created is zeroed, except for the fields that ib_core sets, and nothing else
/// uses it. Any other object is live: it was created and is not being destroyed. (The driver's part
/// of a counter exists only while the counter's `id` is not 0.) Once an object's destruction has
/// succeeded, nothing uses the object. ib_core serializes creation and destruction of an object
/// with its other operations.
pub(super) struct Ops<D: Driver>(core::marker::PhantomData<D>);

impl<D: Driver> Ops<D> {
    /// The functions that the trampolines call, and the contents of the sysfs files.
    pub(super) const FOR_C: &'static raw::rdma_rust_driver = &raw::rdma_rust_driver {
        req_notify_cq: Some(Self::req_notify_cq),
        modify_srq: Some(Self::modify_srq),
        alloc_mr: Some(Self::alloc_mr),
        hca_type: as_char_ptr_in_const_context(D::HCA_TYPE).cast(),
        hw_rev: as_char_ptr_in_const_context(D::HW_REV).cast(),
        board_id: as_char_ptr_in_const_context(D::BOARD_ID).cast(),
    };

    /// Sets the operations of a device.
    ///
    /// # Safety
    ///
    /// `ib` was allocated as a [`Device<D>`](super::device::Device) and is not registered yet.
    pub(super) unsafe fn install(ib: *mut raw::ib_device) {
        let mut ops: raw::ib_device_ops = pin_init::zeroed();
        // The driver is in the same module as this crate.
        ops.owner = (&raw const raw::__this_module).cast_mut();
        ops.driver_id = D::DRIVER_ID;
        ops.uverbs_abi_ver = D::ABI_VERSION;
        ops.set_uverbs_robust_udata(1);

        macro_rules! set {
            ($($operation:ident),* $(,)?) => {
                $(ops.$operation = Some(Self::$operation);)*
            };
        }
        set! {
            dealloc_driver, get_dev_fw_str, query_device, query_port, get_port_immutable,
            query_pkey, add_gid, del_gid, alloc_hw_port_stats, get_hw_stats, process_mad,
            counter_init, counter_alloc_stats, counter_bind_qp, counter_unbind_qp,
            counter_update_stats, counter_dealloc,
            alloc_ucontext, dealloc_ucontext, disassociate_ucontext,
            alloc_pd, alloc_xrcd, create_ah, query_ah, destroy_ah,
            create_cq, resize_user_cq, poll_cq,
            create_qp, modify_qp, query_qp, attach_mcast, detach_mcast, post_send, post_recv,
            create_srq, query_srq, post_srq_recv,
            get_dma_mr, reg_user_mr, rereg_user_mr, dereg_mr, map_mr_sg,
            alloc_mw, dealloc_mw,
        }
        ops.dealloc_pd = Some(Pd::<D>::destroy);
        ops.dealloc_xrcd = Some(Xrcd::<D>::destroy);
        ops.destroy_cq = Some(Cq::<D>::destroy);
        ops.destroy_qp = Some(Qp::<D>::destroy);
        ops.destroy_srq = Some(Srq::<D>::destroy);
        ops.create_user_ah = Some(Self::create_ah);
        ops.create_user_cq = Some(Self::create_cq);
        ops.device_group = &raw const raw::rdma_identity_group;
        // The trampolines call the functions in `FOR_C`.
        ops.get_link_layer = Some(raw::rdma_trampoline_get_link_layer);
        ops.req_notify_cq = Some(raw::rdma_trampoline_req_notify_cq);
        ops.modify_srq = Some(raw::rdma_trampoline_modify_srq);
        ops.alloc_mr = Some(raw::rdma_trampoline_alloc_mr);

        ops.size_ib_ucontext = size_of::<Ucontext<D>>();
        ops.size_ib_pd = size_of::<Pd<D>>();
        ops.size_ib_ah = size_of::<Ah<D>>();
        ops.size_ib_cq = size_of::<Cq<D>>();
        ops.size_ib_mw = size_of::<Mw<D>>();
        ops.size_ib_qp = size_of::<Qp<D>>();
        ops.size_ib_srq = size_of::<Srq<D>>();
        ops.size_ib_xrcd = size_of::<Xrcd<D>>();
        ops.size_rdma_counter = size_of::<Counter<D>>();

        // SAFETY: ib_set_device_ops() (device.c) copies the operations into the device, which is
        // not registered yet.
        unsafe { raw::ib_set_device_ops(ib, &ops) };
    }
}
