// SPDX-License-Identifier: GPL-2.0

//! `struct ib_device_ops`: adapters from ib_core's calls to the driver's functions.
//!
//! Operations with an enum in their signature go through C trampolines (trampolines.h).

mod counter;
mod cq;
mod device;
mod dm;
mod mr;
mod pd;
mod qp;
mod srq;
#[cfg(CONFIG_KUNIT = "y")]
mod tests;

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
        modify_srq: if D::HAS_CREATE_SRQ {
            Some(Self::modify_srq)
        } else {
            None
        },
        alloc_mr: if D::HAS_ALLOC_MR {
            Some(Self::alloc_mr)
        } else {
            None
        },
        advise_mr: if D::HAS_ADVISE_MR {
            Some(Self::advise_mr)
        } else {
            None
        },
        hca_type: as_char_ptr_in_const_context(D::HCA_TYPE).cast(),
        hw_rev: as_char_ptr_in_const_context(D::HW_REV).cast(),
        board_id: as_char_ptr_in_const_context(D::BOARD_ID).cast(),
    };

    /// Returns the operations of the driver's devices. Those that the driver lacks are null.
    fn operations() -> raw::ib_device_ops {
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
        // In a constant, so that the adapter of a missing function is not compiled.
        macro_rules! set_if {
            ($($has:ident: $($operation:ident = $function:expr),*;)*) => {
                $($(ops.$operation = const { if D::$has { Some($function) } else { None } };)*)*
            };
        }
        set! {
            dealloc_driver, get_dev_fw_str, query_device, query_port, get_port_immutable,
            add_gid, del_gid, alloc_ucontext, dealloc_ucontext, disassociate_ucontext,
            alloc_pd, create_cq, poll_cq, create_qp, modify_qp, query_qp, post_send, post_recv,
            get_dma_mr, reg_user_mr, dereg_mr,
        }
        ops.dealloc_pd = Some(Pd::<D>::destroy);
        ops.destroy_cq = Some(Cq::<D>::destroy);
        ops.destroy_qp = Some(Qp::<D>::destroy);
        ops.create_user_cq = Some(Self::create_cq);
        ops.device_group = &raw const raw::rdma_identity_group;
        // The trampolines call the functions in `FOR_C`.
        ops.get_link_layer = Some(raw::rdma_trampoline_get_link_layer);
        ops.req_notify_cq = Some(raw::rdma_trampoline_req_notify_cq);
        set_if! {
            HAS_QUERY_PKEY: query_pkey = Self::query_pkey;
            HAS_QUERY_UCONTEXT: query_ucontext = Self::query_ucontext;
            HAS_PORT_STATS: alloc_hw_port_stats = Self::alloc_hw_port_stats,
                get_hw_stats = Self::get_hw_stats;
            HAS_PROCESS_MAD: process_mad = Self::process_mad;
            HAS_CREATE_COUNTER: counter_init = Self::counter_init,
                counter_alloc_stats = Self::counter_alloc_stats,
                counter_bind_qp = Self::counter_bind_qp,
                counter_unbind_qp = Self::counter_unbind_qp,
                counter_update_stats = Self::counter_update_stats,
                counter_dealloc = Self::counter_dealloc;
            HAS_ALLOC_XRCD: alloc_xrcd = Self::alloc_xrcd, dealloc_xrcd = Xrcd::<D>::destroy;
            HAS_CREATE_AH: create_ah = Self::create_ah, create_user_ah = Self::create_ah,
                query_ah = Self::query_ah, destroy_ah = Self::destroy_ah;
            HAS_RESIZE_CQ: resize_user_cq = Self::resize_user_cq;
            HAS_MODIFY_CQ: modify_cq = Self::modify_cq;
            HAS_DESCRIBE_QP: fill_res_qp_entry = Self::fill_res_qp_entry;
            HAS_ATTACH_MCAST: attach_mcast = Self::attach_mcast,
                detach_mcast = Self::detach_mcast;
            HAS_CREATE_SRQ: create_srq = Self::create_srq, query_srq = Self::query_srq,
                modify_srq = raw::rdma_trampoline_modify_srq,
                post_srq_recv = Self::post_srq_recv, destroy_srq = Srq::<D>::destroy;
            HAS_REREG_USER_MR: rereg_user_mr = Self::rereg_user_mr;
            HAS_ALLOC_DM: alloc_dm = Self::alloc_dm, dealloc_dm = Self::dealloc_dm,
                reg_dm_mr = Self::reg_dm_mr;
            HAS_MMAP: mmap = Self::mmap;
            HAS_ADVISE_MR: advise_mr = raw::rdma_trampoline_advise_mr;
            HAS_ALLOC_MR: alloc_mr = raw::rdma_trampoline_alloc_mr, map_mr_sg = Self::map_mr_sg;
            HAS_ALLOC_MW: alloc_mw = Self::alloc_mw, dealloc_mw = Self::dealloc_mw;
        }

        ops.size_ib_ucontext = size_of::<Ucontext<D>>();
        ops.size_ib_pd = size_of::<Pd<D>>();
        ops.size_ib_ah = size_of::<Ah<D>>();
        ops.size_ib_cq = size_of::<Cq<D>>();
        ops.size_ib_mw = size_of::<Mw<D>>();
        ops.size_ib_qp = size_of::<Qp<D>>();
        ops.size_ib_srq = size_of::<Srq<D>>();
        ops.size_ib_xrcd = size_of::<Xrcd<D>>();
        ops.size_rdma_counter = size_of::<Counter<D>>();
        ops
    }

    /// Sets the operations of a device.
    ///
    /// # Safety
    ///
    /// `ib` was allocated as a [`Device<D>`](super::device::Device) and is not registered yet.
    pub(super) unsafe fn install(ib: *mut raw::ib_device) {
        let ops = Self::operations();
        // SAFETY: ib_set_device_ops() (device.c) copies the operations into the device, which is
        // not registered yet.
        unsafe { raw::ib_set_device_ops(ib, &ops) };
    }
}
