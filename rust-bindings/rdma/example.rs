// SPDX-License-Identifier: GPL-2.0

//! An example of a driver, which has only what each driver must have. Clippy checks it, the KUnit
//! tests of [`ops`](super::ops) use it, and it is not part of the module as shipped.

#![allow(dead_code, reason = "compiled to be checked")]

use super::{
    attr::{mtu_to_enum, CqInitAttr, DeviceAttr, PortAttr},
    device::{self, LinkOps, LinkRequest},
    memory::{KernelMemory, PinOwner, Umem},
    qp::{QpAttr, QpAttrMask, QpCap, QpInit},
    wr::{RecvWrs, SendWrs, WcBuffer},
    CqEvent, CqTarget, Device, Driver, NewGid, QpTarget, Udata, UserMemory,
};
use crate::{errno::not_supported, net::NetDevice};
use kernel::{
    prelude::*,
    str::CStr,
    sync::{
        atomic::{Atomic, Relaxed},
        Arc,
    },
};

/// The driver. Its queue pairs accept work requests, and none of them completes.
pub(super) struct Minimal;

/// A completion queue that is always empty.
pub(super) struct CompletionQueue {
    target: Arc<CqTarget>,
}

impl CompletionQueue {
    /// Reports that a completion was lost.
    fn report_overflow(&self) {
        self.target.dispatch(CqEvent::Error);
    }
}

/// A queue pair, with its state and capacity.
pub(super) struct QueuePair {
    state: Atomic<u32>,
    cap: QpCap,
}

/// A memory region. Pinned memory belongs to it.
pub(super) struct Region(Option<PinOwner>);

static LINK_OPS: LinkOps<Minimal> = LinkOps::new();

#[vtable]
impl Driver for Minimal {
    type Device = ();
    type Ucontext = ();
    type Pd = ();
    type Ah = ();
    type Cq = CompletionQueue;
    type Qp = QueuePair;
    type Srq = ();
    type Xrcd = ();
    type Dm = ();
    type Mr = Region;
    type Mw = ();
    type Counter = ();

    const DRIVER_ID: u32 = u32::MAX;
    const ABI_VERSION: u32 = 1;
    const LINK_TYPE: &'static CStr = c"minimal";
    const VERSION: &'static CStr = c"1";
    const HCA_TYPE: &'static CStr = c"minimal";
    const HW_REV: &'static CStr = c"1";
    const BOARD_ID: &'static CStr = c"minimal";

    fn link_ops() -> &'static LinkOps<Self> {
        &LINK_OPS
    }

    fn newlink(request: &LinkRequest<'_, Self>, name: &CStr, netdev: &NetDevice) -> Result {
        let [a, b, c, d, e, f] = netdev.ethernet_address().ok_or_else(not_supported)?;
        device::register(request, name, netdev, [a, b, c, 0xff, 0xfe, d, e, f], 1, ())
    }

    fn dellink(_device: &Device<Self>) -> Result {
        Ok(())
    }

    fn dealloc(_device: &()) {}

    fn query_device(_device: &Device<Self>) -> DeviceAttr {
        DeviceAttr {
            max_qp: 16,
            max_qp_wr: 64,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_cq: 16,
            max_cqe: 64,
            max_mr: 16,
            max_pd: 16,
            ..DeviceAttr::default()
        }
    }

    fn query_port(_device: &Device<Self>, netdev: &NetDevice) -> PortAttr {
        PortAttr {
            max_mtu: mtu_to_enum(4096),
            active_mtu: mtu_to_enum(netdev.mtu()),
            phys_mtu: netdev.mtu(),
            gid_tbl_len: 16,
            pkey_tbl_len: 1,
            ..PortAttr::default()
        }
    }

    fn add_gid(_device: &Device<Self>, gid: &NewGid<'_>) -> Result {
        gid.netdev.carries_ip().then_some(()).ok_or(ENODEV)
    }

    fn del_gid(_device: &Device<Self>, _index: u32) {}

    fn alloc_ucontext(_device: &Device<Self>, udata: &mut Udata<'_>) -> Result {
        udata.expect_no_input()?;
        udata.write_nothing()
    }

    fn alloc_pd(_device: &Device<Self>, _is_user: bool) -> Result {
        Ok(())
    }

    fn create_cq(
        _device: &Device<Self>,
        attr: &CqInitAttr,
        target: Arc<CqTarget>,
        _udata: Option<&mut Udata<'_>>,
    ) -> Result<(CompletionQueue, u32)> {
        Ok((CompletionQueue { target }, attr.cqe))
    }

    fn poll_cq(_cq: &CompletionQueue, _to: &mut WcBuffer<'_>) {}

    fn req_notify_cq(_cq: &CompletionQueue, _solicited_only: bool, _report_missed: bool) -> bool {
        false
    }

    fn create_qp(
        _device: &Device<Self>,
        _context: Option<&()>,
        _pd: Option<&()>,
        init: &mut QpInit<'_, Self>,
        _target: Arc<QpTarget>,
        _udata: Option<&mut Udata<'_>>,
    ) -> Result<(QueuePair, u32)> {
        if !init.qp_type.is_connected() {
            return Err(not_supported());
        }
        init.cap.max_inline_data = 0;
        let qp = QueuePair {
            state: Atomic::new(0),
            cap: init.cap,
        };
        Ok((qp, 2))
    }

    fn modify_qp(
        _device: &Device<Self>,
        qp: &QueuePair,
        attr: &QpAttr,
        mask: QpAttrMask,
    ) -> Result {
        if mask.has(QpAttrMask::STATE) {
            qp.state.store(attr.state as u32, Relaxed);
        }
        Ok(())
    }

    fn query_qp(qp: &QueuePair) -> (QpAttr, QpCap, bool) {
        (QpAttr::default(), qp.cap, false)
    }

    fn post_send(qp: &QueuePair, wrs: &mut SendWrs<'_, Self>) -> Result {
        let fits = |num_sge| num_sge <= qp.cap.max_send_sge;
        wrs.try_for_each(|wr| fits(wr.num_sge).then_some(()).ok_or(EINVAL))
    }

    fn post_recv(qp: &QueuePair, wrs: &mut RecvWrs<'_>) -> Result {
        let fits = |num_sge| num_sge <= qp.cap.max_recv_sge;
        wrs.try_for_each(|wr| fits(wr.num_sge).then_some(()).ok_or(EINVAL))
    }

    fn get_dma_mr(
        _device: &Device<Self>,
        _pd: &(),
        _memory: KernelMemory,
        _access: u32,
    ) -> Result<(Region, u32)> {
        Ok((Region(None), 1))
    }

    fn reg_user_mr(
        device: &Device<Self>,
        _context: Option<&()>,
        _pd: &(),
        memory: &UserMemory,
        access: u32,
    ) -> Result<(Region, u32)> {
        let len = usize::try_from(memory.length)?;
        let umem = Umem::get(device, memory.start, len, access)?;
        Ok((Region(Some(PinOwner::new(umem)?)), 2))
    }

    fn dereg_mr(_mr: &Region) -> Result {
        Ok(())
    }
}
