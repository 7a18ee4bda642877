// SPDX-License-Identifier: GPL-2.0

//! The driver's interface to ib_core: forwards each verb to the file of its object.

use crate::{
    counters::{self, QpCounters},
    device::DeviceState,
    limits, link,
    module::Rrxe,
    mr::{
        device_memory::{DmHandle, Memories},
        pager::{Pager, PagerOwner},
        Mr, MrHandle, NewMr,
    },
    pd::Pd,
    qp::{
        self,
        create::{Parents, QpHandle},
        poll::Poller,
    },
    quota::{Charge, Charged, Kind},
    ring::abi,
    tables::Tables,
    transport::local_queue::LocalQueue,
    verbs::{
        address_handle::AddressHandle,
        cq::{Cq, CqHandle},
        srq::{self, SrqHandle},
    },
};
use kernel::{c_str, mm::virt::VmaNew, prelude::*, str::CStr, sync::Arc};
use linux_rdma::{
    errno::not_supported,
    net::NetDevice,
    rdma::{
        attr::{
            device_cap, mtu_to_enum, odp, CqInitAttr, DeviceAttr, Moderation, OdpCaps, PortAttr,
            SrqAttr, StatName, ATOMIC_HCA, KERNEL_CAP_ALLOW_USER_UNREG,
            KERNEL_CAP_ON_DEMAND_PAGING,
        },
        device::{LinkOps, LinkRequest},
        memory::{DeviceRange, KernelMemory, HAS_ON_DEMAND_PAGING},
        qp::{QpAttr, QpAttrMask, QpCap, QpInit},
        wr::{RecvWrs, SendWrs, WcBuffer},
        AddressInfo, ContextQuery, CqTarget, Details, Device, Driver, Mad, MrAdvice, MrChange,
        NewGid, QpTarget, SrqTarget, Udata, UserMemory, XrcSrq,
    },
};
use rrxe_core::pma;

/// The driver's data of a context: the threads of the program that opened it, and its device
/// memories. Programs that have imported the context share it.
pub(crate) struct Context {
    poller: Option<Poller>,
    pager: PagerOwner,
    memories: Arc<Memories>,
    /// Key of the null region.
    null_key: u32,
}

impl Context {
    /// Returns the pager of the context, if a program has one.
    fn pager(this: Option<&Self>) -> Option<&Arc<Pager>> {
        this.map(|context| &context.pager.0)
    }

    /// Returns the response for a program that opens or imports the context.
    fn response(&self) -> abi::AllocUcontextResp {
        let poll = self.poller.as_ref().map_or(0, |_| abi::FEATURE_POLL);
        abi::AllocUcontextResp {
            features: abi::FEATURE_EVENT_LIMIT | abi::FEATURE_NULL_KEY | poll,
            max_inline: limits::MAX_INLINE,
            max_sge: limits::MAX_SGE,
            null_key: self.null_key,
            reserved: 0,
        }
    }
}

/// Returns the operations whose memory may be absent. A packet for absent memory is dropped, which
/// loses the message of an unreliable service.
fn odp_caps() -> OdpCaps {
    if !HAS_ON_DEMAND_PAGING {
        return OdpCaps::default();
    }
    let reliable = odp::SEND
        | odp::RECV
        | odp::WRITE
        | odp::READ
        | odp::ATOMIC
        | odp::SRQ_RECV
        | odp::FLUSH
        | odp::ATOMIC_WRITE;
    OdpCaps {
        general: odp::GENERAL,
        rc: reliable,
        uc: odp::SEND,
        ud: odp::SEND,
        xrc: reliable,
    }
}

const _: () = {
    use linux_rdma::rdma::import;
    assert!(abi::import::CONTEXT_RESPONSE == import::CONTEXT_RESPONSE);
    assert!(abi::import::QUERY_PD == import::QUERY_PD);
    assert!(abi::import::PD_HANDLE == import::PD_HANDLE);
    assert!(abi::import::QUERY_DM == import::QUERY_DM);
    assert!(abi::import::DM_HANDLE == import::DM_HANDLE);
    assert!(abi::import::DM_LENGTH == import::DM_LENGTH);
};

#[vtable]
impl Driver for Rrxe {
    type Device = Arc<DeviceState>;
    type Ucontext = Context;
    type Pd = Charged<Pd>;
    type Ah = Charged<Arc<AddressHandle>>;
    type Cq = Charged<CqHandle>;
    type Qp = Charged<QpHandle>;
    type Srq = Charged<SrqHandle>;
    /// An identity only, like a protection domain.
    type Xrcd = Charged<Pd>;
    type Mr = Charged<MrHandle>;
    type Mw = Charged<MrHandle>;
    type Dm = DmHandle;
    type Counter = QpCounters;

    const DRIVER_ID: u32 = abi::DRIVER_ID;
    const ABI_VERSION: u32 = abi::ABI_VERSION;
    const PORT_STATS: &'static [StatName] = counters::NAMES;
    const PORT_ONLY_STATS: &'static [usize] = counters::PORT_ONLY;
    const LINK_TYPE: &'static CStr = c_str!("rrxe");
    const VERSION: &'static CStr = abi::VERSION_TEXT;
    const HCA_TYPE: &'static CStr = c_str!("rrxe");
    const HW_REV: &'static CStr = c_str!("0");
    const BOARD_ID: &'static CStr = c_str!("RRXE_SOFT_ROCE_V2");

    fn link_ops() -> &'static LinkOps<Self> {
        &link::LINK_OPS
    }

    fn newlink(request: &LinkRequest<'_, Self>, name: &CStr, netdev: &NetDevice) -> Result {
        link::add(request, name, netdev)
    }

    fn dellink(device: &Device<Self>) -> Result {
        device.data().core.end_long_calls();
        device.data().release_sockets();
        Ok(())
    }

    fn dealloc(device: &Arc<DeviceState>) {
        device.release_sockets();
        LocalQueue::close(&device.qps.local_queue);
    }

    fn add_gid(device: &Device<Self>, gid: &NewGid<'_>) -> Result {
        device.data().add_gid(gid)
    }

    fn del_gid(device: &Device<Self>, index: u32) {
        device.data().del_gid(index);
    }

    fn query_device(device: &Device<Self>) -> DeviceAttr {
        DeviceAttr {
            fw_ver: abi::VERSION,
            sys_image_guid: device.data().guid,
            max_mr_size: limits::MAX_MR_SIZE,
            // Any page size from 4 KiB.
            page_size_cap: !0xfff,
            vendor_id: limits::VENDOR_ID,
            vendor_part_id: limits::VENDOR_PART_ID,
            max_qp: limits::MAX_QP,
            max_qp_wr: limits::MAX_QP_WR,
            device_cap_flags: (device_cap::BAD_PKEY_CNTR
                | device_cap::BAD_QKEY_CNTR
                | device_cap::PORT_ACTIVE_EVENT
                | device_cap::SYS_IMAGE_GUID
                | device_cap::CURR_QP_STATE_MOD
                | device_cap::RC_RNR_NAK_GEN
                | device_cap::SRQ_RESIZE
                | device_cap::XRC
                | device_cap::FLUSH_GLOBAL
                | device_cap::ATOMIC_WRITE
                | device_cap::MEM_WINDOW
                | device_cap::MEM_WINDOW_TYPE_2B
                | device_cap::MEM_MGT_EXTENSIONS) as u64,
            kernel_cap_flags: match HAS_ON_DEMAND_PAGING {
                true => KERNEL_CAP_ALLOW_USER_UNREG | KERNEL_CAP_ON_DEMAND_PAGING,
                false => KERNEL_CAP_ALLOW_USER_UNREG,
            },
            max_send_sge: limits::MAX_SGE,
            max_recv_sge: limits::MAX_SGE,
            max_sge_rd: limits::MAX_SGE,
            max_cq: limits::MAX_CQ,
            max_cqe: limits::MAX_CQE,
            max_mr: limits::MAX_MR,
            max_mw: limits::MAX_MW,
            max_fast_reg_page_list_len: limits::MAX_FAST_REG_PAGES,
            max_pd: limits::MAX_PD,
            max_qp_rd_atom: limits::MAX_RD_ATOMIC,
            max_res_rd_atom: limits::MAX_RD_ATOMIC * limits::MAX_QP,
            max_qp_init_rd_atom: limits::MAX_INIT_RD_ATOMIC,
            atomic_cap: ATOMIC_HCA,
            max_mcast_grp: limits::MAX_MCAST_GRP,
            max_mcast_qp_attach: limits::MAX_MCAST_QP_ATTACH,
            max_total_mcast_qp_attach: limits::MAX_TOTAL_MCAST_QP_ATTACH,
            max_ah: limits::MAX_AH,
            max_srq: limits::MAX_SRQ,
            max_srq_wr: limits::MAX_QP_WR,
            max_srq_sge: limits::MAX_SGE,
            max_pkeys: limits::PKEY_TABLE_LEN,
            local_ca_ack_delay: limits::LOCAL_ACK_DELAY,
            // Completion timestamps are nanoseconds of CLOCK_MONOTONIC: 64 bits at 10^6 kHz.
            timestamp_mask: u64::MAX,
            hca_core_clock: 1_000_000,
            odp_caps: odp_caps(),
            max_dm_size: limits::MAX_DM_SIZE,
            max_cq_moderation: Moderation {
                count: u16::MAX,
                period: u16::MAX,
            },
        }
    }

    fn query_port(device: &Device<Self>, netdev: &NetDevice) -> PortAttr {
        let (bad_pkey_cntr, qkey_viol_cntr) = device.data().core.violations();
        PortAttr {
            max_mtu: mtu_to_enum(limits::MAX_MTU),
            active_mtu: mtu_to_enum(limits::ib_mtu(netdev.mtu())),
            phys_mtu: netdev.mtu(),
            gid_tbl_len: device.data().core.config.gid_table_len,
            // Communication management is supported.
            port_cap_flags: 1 << 16,
            max_msg_sz: limits::MAX_MESSAGE,
            bad_pkey_cntr,
            qkey_viol_cntr,
            pkey_tbl_len: limits::PKEY_TABLE_LEN,
            max_vl_num: 1,
        }
    }

    fn query_pkey(index: u16) -> Result<u16> {
        match index {
            0 => Ok(limits::DEFAULT_PKEY),
            _ => Err(EINVAL),
        }
    }

    fn port_stats(device: &Device<Self>, values: &mut [u64]) {
        for (stat, value) in values.iter_mut().enumerate() {
            *value = device.data().core.counters.value(stat);
        }
    }

    fn create_counter(device: &Device<Self>) -> Result<(QpCounters, u32)> {
        device.data().bound_counters.create()
    }

    fn destroy_counter(device: &Device<Self>, counter: &QpCounters) {
        device.data().bound_counters.destroy(counter);
    }

    fn bind_counter(counter: &QpCounters, qp: &Self::Qp) -> Result {
        qp.qp.counters.set(counter.counters.clone())
    }

    fn unbind_counter(qp: &Self::Qp) {
        // Waits until the queue pair no longer counts there: ib_core reads the final values next.
        drop(qp.qp.counters.take());
    }

    fn counter_value(counter: &QpCounters, stat: usize) -> u64 {
        counter.counters.value(stat)
    }

    fn process_mad(device: &Device<Self>, port: u32, mad: &Mad) -> Option<Mad> {
        let device = device.data();
        pma::respond(mad, port, || {
            device.bound_counters.port(&device.core.counters)
        })
    }

    fn alloc_ucontext(device: &Device<Self>, udata: &mut Udata<'_>) -> Result<Context> {
        let cmd: abi::AllocUcontextCmd = udata.read_as_far_as_known()?;
        if cmd.reserved != 0 {
            return Err(not_supported());
        }
        let poller = Poller::new(cmd.poll_idle_us, &device.data().core.config)?;
        let pager = PagerOwner::new(device.data().qps.tables.qps.clone())?;
        let context = Context {
            poller,
            pager,
            memories: Memories::new(&device.data().core.allocations)?,
            null_key: device.data().core.tables.null_key,
        };
        udata.write(&context.response())?;
        Ok(context)
    }

    fn query_ucontext(context: &Context, query: &mut ContextQuery<'_>) -> Result {
        query.write(&context.response())
    }

    fn alloc_pd(device: &Device<Self>, is_user: bool) -> Result<Self::Pd> {
        let charge = Charge::new(&device.data().core.tables.quotas, Kind::Domain, is_user)?;
        Ok(charge.of(Pd::new(is_user)))
    }

    fn create_ah(
        device: &Device<Self>,
        pd: &Self::Pd,
        info: AddressInfo,
        may_sleep: bool,
        udata: Option<&mut Udata<'_>>,
    ) -> Result<Self::Ah> {
        let core = &device.data().core;
        let (handles, interfaces) = (&core.tables.addresses, &core.interfaces);
        let charge = Charge::new(&core.tables.quotas, Kind::AddressHandle, udata.is_some())?;
        let ah = AddressHandle::create(handles, interfaces, pd, info, may_sleep, udata)?;
        Ok(charge.of(ah))
    }

    fn query_ah(ah: &Self::Ah) -> AddressInfo {
        ah.path.info
    }

    fn destroy_ah(ah: &Self::Ah) {
        ah.destroy();
    }

    fn create_cq(
        device: &Device<Self>,
        attr: &CqInitAttr,
        target: Arc<CqTarget>,
        udata: Option<&mut Udata<'_>>,
    ) -> Result<(Self::Cq, u32)> {
        let quotas = &device.data().core.tables.quotas;
        let charge = Charge::new(quotas, Kind::CompletionQueue, udata.is_some())?;
        let (cq, cqe) = Cq::create(device, attr, target, udata)?;
        Ok((charge.of(cq), cqe))
    }

    fn resize_cq(
        device: &Device<Self>,
        cq: &Self::Cq,
        cqe: u32,
        udata: Option<&mut Udata<'_>>,
    ) -> Result<u32> {
        cq.0.resize(device, cqe, udata)
    }

    fn modify_cq(cq: &Self::Cq, moderation: Moderation) -> Result {
        cq.0.moderate(moderation);
        Ok(())
    }

    fn poll_cq(cq: &Self::Cq, to: &mut WcBuffer<'_>) {
        cq.0.poll(to);
    }

    fn req_notify_cq(cq: &Self::Cq, solicited_only: bool, report_missed: bool) -> bool {
        Cq::arm(&cq.0, solicited_only) && report_missed
    }

    fn create_qp(
        device: &Device<Self>,
        context: Option<&Context>,
        pd: Option<&Self::Pd>,
        init: &mut QpInit<'_, Self>,
        target: Arc<QpTarget>,
        udata: Option<&mut Udata<'_>>,
    ) -> Result<(Self::Qp, u32)> {
        let state = device.data();
        let parents = Parents {
            device,
            qps: &state.qps,
            poller: context.and_then(|context| context.poller.as_ref()),
            pd: pd.map(|pd| &**pd),
        };
        // Only programs have XRC targets, whose creation comes without their part of the command.
        let is_user = udata.is_some() || init.xrcd.is_some();
        let charge = Charge::new(&state.core.tables.quotas, Kind::QueuePair, is_user)?;
        let handle = qp::create::create(&parents, init, charge.payer, target, udata)?;
        let number = handle.qp.number;
        Ok((charge.of(handle), number))
    }

    fn modify_qp(device: &Device<Self>, qp: &Self::Qp, attr: &QpAttr, mask: QpAttrMask) -> Result {
        qp::modify::modify(device, qp, attr, mask)
    }

    fn query_qp(qp: &Self::Qp) -> (QpAttr, QpCap, bool) {
        qp::modify::query(qp)
    }

    fn describe_qp(qp: &Self::Qp, details: &mut Details<'_>) -> Result {
        qp.qp.describe(details)
    }

    fn attach_mcast(qp: &Self::Qp, gid: &[u8; 16]) -> Result {
        qp.siblings.multicast.attach(gid, &qp.qp, qp.charge.payer)
    }

    fn detach_mcast(qp: &Self::Qp, gid: &[u8; 16]) -> Result {
        qp.siblings.multicast.detach(gid, &qp.qp, qp.charge.payer)
    }

    fn post_send(qp: &Self::Qp, wrs: &mut SendWrs<'_, Self>) -> Result {
        qp::post::send(qp, wrs)
    }

    fn post_recv(qp: &Self::Qp, wrs: &mut RecvWrs<'_>) -> Result {
        qp::post::recv(qp, wrs)
    }

    fn create_srq(
        device: &Device<Self>,
        pd: &Self::Pd,
        attr: &mut SrqAttr,
        xrc: Option<XrcSrq<'_, Self>>,
        target: Arc<SrqTarget>,
        udata: Option<&mut Udata<'_>>,
    ) -> Result<(Self::Srq, u32)> {
        let Tables { srqs, quotas, .. } = &*device.data().core.tables;
        let charge = Charge::new(quotas, Kind::SharedReceiveQueue, udata.is_some())?;
        let (srq, number) = srq::create(device, srqs, pd, attr, xrc, target, udata)?;
        Ok((charge.of(srq), number))
    }

    fn alloc_xrcd(device: &Device<Self>, is_user: bool) -> Result<Self::Xrcd> {
        Self::alloc_pd(device, is_user)
    }

    fn modify_srq(
        device: &Device<Self>,
        srq: &Self::Srq,
        max_wr: Option<u32>,
        limit: Option<u32>,
        udata: Option<&mut Udata<'_>>,
    ) -> Result {
        srq.modify(device, max_wr, limit, udata)
    }

    fn query_srq(srq: &Self::Srq) -> SrqAttr {
        srq.query()
    }

    fn post_srq_recv(srq: &Self::Srq, wrs: &mut RecvWrs<'_>) -> Result {
        srq.post(wrs)
    }

    fn get_dma_mr(
        device: &Device<Self>,
        pd: &Self::Pd,
        memory: KernelMemory,
        access: u32,
    ) -> Result<NewMr> {
        let Tables { mrs, quotas, .. } = &*device.data().core.tables;
        Mr::kernel(mrs, quotas, pd, memory, access)
    }

    fn reg_user_mr(
        device: &Device<Self>,
        context: Option<&Context>,
        pd: &Self::Pd,
        memory: &UserMemory,
        access: u32,
    ) -> Result<NewMr> {
        let Tables { mrs, quotas, .. } = &*device.data().core.tables;
        let pager = Context::pager(context);
        Mr::user(device, mrs, quotas, pager, pd, memory, access)
    }

    fn rereg_user_mr(
        device: &Device<Self>,
        context: Option<&Context>,
        mr: &Self::Mr,
        pd: &Self::Pd,
        change: &MrChange,
    ) -> Result<Option<NewMr>> {
        let quotas = &device.data().core.tables.quotas;
        mr.change(device, quotas, Context::pager(context), pd, change)
    }

    fn advise_mr(device: &Device<Self>, pd: &Self::Pd, advice: &MrAdvice<'_>) -> Result {
        let core = &device.data().core;
        let _call = core.begin_long_call()?;
        core.tables.mrs.advise(pd, advice)
    }

    fn alloc_dm(
        _device: &Device<Self>,
        context: &Context,
        handle: u32,
        len: u64,
        log_alignment: u32,
    ) -> Result<DmHandle> {
        DmHandle::new(&context.memories, handle, len, log_alignment)
    }

    fn reg_dm_mr(
        device: &Device<Self>,
        pd: &Self::Pd,
        dm: &DmHandle,
        offset: u64,
        len: u64,
        access: u32,
    ) -> Result<NewMr> {
        let Tables { mrs, quotas, .. } = &*device.data().core.tables;
        let memory = DeviceRange::new(dm.memory.clone(), offset, len)?;
        Mr::device(mrs, quotas, pd, memory, len, access)
    }

    fn mmap(context: &Context, page: usize, area: &VmaNew) -> Result {
        let handle = u32::try_from(page).map_err(|_| EINVAL)?;
        context.memories.map(handle, area)
    }

    fn dereg_mr(mr: &Self::Mr) -> Result {
        mr.close()
    }

    fn alloc_mr(device: &Device<Self>, pd: &Self::Pd, pages: u32) -> Result<NewMr> {
        let Tables { mrs, quotas, .. } = &*device.data().core.tables;
        Mr::fast(mrs, quotas, pd, pages)
    }

    fn unmap_mr(mr: &Self::Mr) {
        mr.unmap();
    }

    fn map_mr_page(mr: &Self::Mr, address: u64) -> Result {
        mr.map_page(address)
    }

    fn map_mr_end(mr: &Self::Mr, address: u64, length: u64, page_size: u32) -> Result {
        mr.map_end(address, length, page_size)
    }

    fn alloc_mw(device: &Device<Self>, pd: &Self::Pd, mw_type: u32) -> Result<NewMr> {
        let Tables { mrs, quotas, .. } = &*device.data().core.tables;
        Mr::window(mrs, quotas, pd, mw_type)
    }

    fn dealloc_mw(mw: &Self::Mw) -> Result {
        mw.close()
    }
}
