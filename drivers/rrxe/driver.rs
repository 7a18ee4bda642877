// SPDX-License-Identifier: GPL-2.0

//! The driver's interface to ib_core: forwards each verb to the file of its object.

use crate::{
    counters::{self, QpCounters},
    limits,
    marker::Rrxe,
    qp::{self, Poller, QpHandle},
    ring::abi,
    verbs::{
        address_handle::AddressHandle,
        cq::Cq,
        device::DeviceState,
        link,
        mr::{Mr, MrHandle},
        pd::Pd,
        quota::{Charge, Charged},
        srq::{self, SrqHandle, Xrcd},
    },
};
use kernel::{c_str, prelude::*, str::CStr, sync::Arc, ThisModule};
use linux_rdma::{
    errno::not_supported,
    net::NetDevice,
    rdma::{
        attr::{
            device_cap, CqInitAttr, DeviceAttr, PortAttr, PortImmutable, PortState, StatName,
            KERNEL_CAP_ALLOW_USER_UNREG,
        },
        memory::KernelMemory,
        qp::{QpAttr, QpAttrMask, QpCap, QpInit},
        srq::{SrqAttr, SrqAttrMask, XrcSrq},
        wr::{RecvWrs, SendWrs, Wc},
        AddressInfo, CqTarget, Device, Driver, Identity, MrChange, MrKeys, QpTarget, SrqTarget,
        Udata, UserMemory,
    },
};

/// Checks that a command without a driver part has no input, and writes no response.
fn no_udata(udata: Option<&mut Udata<'_>>) -> Result {
    match udata {
        Some(udata) => udata.expect_nothing(),
        None => Ok(()),
    }
}

impl Driver for Rrxe {
    type Device = Arc<DeviceState>;
    type Ucontext = Option<Poller>;
    type Pd = Charged<Pd>;
    type Ah = Charged<Arc<AddressHandle>>;
    type Cq = Charged<Arc<Cq>>;
    type Qp = Charged<QpHandle>;
    type Srq = Charged<SrqHandle>;
    type Xrcd = Charged<Xrcd>;
    type Mr = Charged<MrHandle>;
    type Mw = Charged<MrHandle>;
    type Counter = QpCounters;

    const DRIVER_ID: u32 = abi::DRIVER_ID;
    const ABI_VERSION: u32 = abi::ABI_VERSION;
    const PORT_STATS: &'static [StatName] = counters::NAMES;
    const PORT_ONLY_STATS: &'static [usize] = counters::PORT_ONLY;
    const LINK_TYPE: &'static CStr = c_str!("rrxe");
    const IDENTITY: Identity = Identity {
        version: abi::VERSION_TEXT,
        hca_type: c_str!("rrxe"),
        hw_rev: c_str!("0"),
        board_id: c_str!("RRXE_SOFT_ROCE_V2"),
    };

    fn module() -> &'static ThisModule {
        linux_rdma::this_module!()
    }

    fn newlink(name: &CStr, netdev: &NetDevice) -> Result {
        link::add(name, netdev)
    }

    fn dellink(device: &Device<Self>) -> Result {
        device.data().release_sockets();
        Ok(())
    }

    fn dealloc(device: &Arc<DeviceState>) {
        device.release_sockets();
        device.forget();
    }

    fn query_device(device: &Device<Self>, attr: &mut DeviceAttr<'_>) -> Result {
        attr.fw_ver(abi::VERSION)
            .sys_image_guid(device.data().guid)
            .max_mr_size(limits::MAX_MR_SIZE)
            // Any page size from 4 KiB.
            .page_size_cap(!0xfff)
            .vendor_id(limits::VENDOR_ID)
            .vendor_part_id(limits::VENDOR_PART_ID)
            .hw_ver(0)
            .max_qp(limits::MAX_QP)
            .max_qp_wr(limits::MAX_QP_WR)
            .device_cap_flags(
                device_cap::BAD_PKEY_CNTR
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
                    | device_cap::MEM_MGT_EXTENSIONS,
            )
            .kernel_cap_flags(KERNEL_CAP_ALLOW_USER_UNREG)
            .max_send_sge(limits::MAX_SGE)
            .max_recv_sge(limits::MAX_SGE)
            .max_sge_rd(limits::MAX_SGE)
            .max_cq(limits::MAX_CQ)
            .max_cqe(limits::MAX_CQE)
            .max_mr(limits::MAX_MR)
            .max_mw(limits::MAX_MW)
            .max_fast_reg_page_list_len(limits::MAX_FAST_REG_PAGES)
            .max_pd(limits::MAX_PD)
            .max_qp_rd_atom(limits::MAX_RD_ATOMIC)
            .max_res_rd_atom(limits::MAX_RD_ATOMIC * limits::MAX_QP)
            .max_qp_init_rd_atom(limits::MAX_INIT_RD_ATOMIC)
            .atomics_within_device()
            .max_mcast_grp(limits::MAX_MCAST_GRP)
            .max_mcast_qp_attach(limits::MAX_MCAST_QP_ATTACH)
            .max_total_mcast_qp_attach(limits::MAX_TOTAL_MCAST_QP_ATTACH)
            .max_ah(limits::MAX_AH)
            .max_srq(limits::MAX_SRQ)
            .max_srq_wr(limits::MAX_SRQ_WR)
            .max_srq_sge(limits::MAX_SRQ_SGE)
            .max_pkeys(limits::PKEY_TABLE_LEN)
            .local_ca_ack_delay(limits::LOCAL_ACK_DELAY)
            // Completion timestamps are nanoseconds of CLOCK_MONOTONIC.
            .timestamp_mask(u64::MAX)
            .hca_core_clock(1_000_000);
        Ok(())
    }

    fn query_port(device: &Device<Self>, port: u32, attr: &mut PortAttr<'_>) -> Result {
        if port != 1 {
            return Err(EINVAL);
        }
        let netdev = device.netdev(port).ok_or(ENODEV)?;
        let state = if netdev.is_operational() && netdev.is_up() {
            PortState::Active
        } else if netdev.is_up() {
            PortState::Polling
        } else {
            PortState::Disabled
        };
        let (bad_pkeys, bad_qkeys) = device.data().violations();
        attr.state(state)
            .mtu(limits::MAX_MTU, limits::ib_mtu(netdev.mtu()))
            .phys_mtu(netdev.mtu())
            .gid_tbl_len(device.data().config.gid_table_len)
            .ip_gids()
            .port_cap_flags(link::PORT_CAP_FLAGS)
            .max_msg_sz(limits::MAX_MESSAGE)
            .bad_pkey_cntr(bad_pkeys)
            .qkey_viol_cntr(bad_qkeys)
            .pkey_tbl_len(limits::PKEY_TABLE_LEN)
            .max_vl_num(1);
        device.fill_speed(port, attr)
    }

    fn port_immutable(device: &Device<Self>, port: u32) -> Result<PortImmutable> {
        if port != 1 {
            return Err(EINVAL);
        }
        Ok(PortImmutable {
            pkey_tbl_len: limits::PKEY_TABLE_LEN.into(),
            gid_tbl_len: device.data().config.gid_table_len,
        })
    }

    fn query_pkey(_device: &Device<Self>, port: u32, index: u16) -> Result<u16> {
        match (port, index) {
            (1, 0) => Ok(limits::DEFAULT_PKEY),
            _ => Err(EINVAL),
        }
    }

    fn port_stats(device: &Device<Self>, port: u32, values: &mut [u64]) -> Result {
        if port != 1 {
            return Err(EINVAL);
        }
        device.data().counters.read(values);
        Ok(())
    }

    fn create_counter(device: &Device<Self>) -> Result<(QpCounters, u32)> {
        QpCounters::create(device.data())
    }

    fn destroy_counter(device: &Device<Self>, counter: &QpCounters) {
        counter.destroy(device.data());
    }

    fn bind_counter(counter: &QpCounters, qp: &Self::Qp) -> Result {
        counter.bind(&qp.qp)
    }

    fn unbind_counter(qp: &Self::Qp) {
        qp.qp.counters.unbind();
    }

    fn counter_value(counter: &QpCounters, stat: usize) -> u64 {
        counter.value(stat)
    }

    fn alloc_ucontext(device: &Device<Self>, udata: &mut Udata<'_>) -> Result<Option<Poller>> {
        let cmd: abi::AllocUcontextCmd = udata.read_as_far_as_known()?;
        if cmd.reserved != 0 {
            return Err(not_supported());
        }
        let poller = Poller::new(cmd.poll_idle_us, &device.data().config)?;
        udata.write(&abi::AllocUcontextResp {
            features: poller.as_ref().map_or(0, |_| abi::FEATURE_POLL),
            max_inline: limits::MAX_INLINE,
            max_sge: limits::MAX_SGE,
        })?;
        Ok(poller)
    }

    fn alloc_pd(device: &Device<Self>, udata: Option<&mut Udata<'_>>) -> Result<Self::Pd> {
        let is_user = udata.is_some();
        no_udata(udata)?;
        let charge = Charge::new(&device.data().tables.quotas.domains, is_user)?;
        Ok(charge.of(Pd::new(is_user)))
    }

    fn create_ah(
        device: &Device<Self>,
        pd: &Self::Pd,
        info: AddressInfo,
        may_sleep: bool,
        udata: Option<&mut Udata<'_>>,
    ) -> Result<Self::Ah> {
        let device = device.data();
        let charge = Charge::new(&device.tables.quotas.address_handles, udata.is_some())?;
        let ah = AddressHandle::create(device, pd, info, may_sleep, udata)?;
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
        let quotas = &device.data().tables.quotas;
        let charge = Charge::new(&quotas.completion_queues, udata.is_some())?;
        let (cq, cqe) = Cq::create(device, attr, target, udata)?;
        Ok((charge.of(cq), cqe))
    }

    fn resize_cq(
        device: &Device<Self>,
        cq: &Self::Cq,
        cqe: u32,
        udata: Option<&mut Udata<'_>>,
    ) -> Result<u32> {
        cq.resize(device, cqe, udata)
    }

    fn destroy_cq(cq: &Self::Cq) {
        cq.destroy();
    }

    fn poll_cq(cq: &Self::Cq, wc: &mut [Wc]) -> Result<usize> {
        Ok(cq.poll(wc))
    }

    fn req_notify_cq(cq: &Self::Cq, solicited_only: bool, report_missed: bool) -> Result<bool> {
        Ok(Cq::arm(cq, solicited_only) && report_missed)
    }

    fn create_qp(
        device: &Device<Self>,
        context: Option<&Option<Poller>>,
        pd: Option<&Self::Pd>,
        init: &mut QpInit<'_, Self>,
        target: Arc<QpTarget>,
        udata: Option<&mut Udata<'_>>,
    ) -> Result<(Self::Qp, u32)> {
        let poller = context.and_then(Option::as_ref);
        // Only programs have XRC targets, whose creation comes without their part of the command.
        let is_user = udata.is_some() || init.xrcd.is_some();
        let charge = Charge::new(&device.data().tables.quotas.queue_pairs, is_user)?;
        let pd = pd.map(|pd| &**pd);
        let handle = qp::create::create(device, poller, pd, init, target, udata)?;
        let number = handle.qp.number;
        Ok((charge.of(handle), number))
    }

    fn modify_qp(device: &Device<Self>, qp: &Self::Qp, attr: &QpAttr, mask: QpAttrMask) -> Result {
        qp::modify::modify(device, qp, attr, mask)
    }

    fn query_qp(qp: &Self::Qp) -> Result<(QpAttr, QpCap, bool)> {
        qp::modify::query(qp)
    }

    fn destroy_qp(qp: &Self::Qp) -> Result {
        qp::create::destroy(qp);
        Ok(())
    }

    fn attach_mcast(device: &Device<Self>, qp: &Self::Qp, gid: &[u8; 16]) -> Result {
        let state = device.data();
        let groups = &state.multicast;
        groups.attach(&state.netdev, gid, &qp.qp, qp.payer())
    }

    fn detach_mcast(device: &Device<Self>, qp: &Self::Qp, gid: &[u8; 16]) -> Result {
        let state = device.data();
        let groups = &state.multicast;
        groups.detach(&state.netdev, gid, &qp.qp, qp.payer())
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
        let quotas = &device.data().tables.quotas;
        let charge = Charge::new(&quotas.shared_receive_queues, udata.is_some())?;
        let (srq, number) = srq::create(device, pd, attr, xrc, target, udata)?;
        Ok((charge.of(srq), number))
    }

    fn alloc_xrcd(device: &Device<Self>, udata: Option<&mut Udata<'_>>) -> Result<Self::Xrcd> {
        let is_user = udata.is_some();
        no_udata(udata)?;
        let charge = Charge::new(&device.data().tables.quotas.domains, is_user)?;
        Ok(charge.of(Xrcd(Pd::new(false).id)))
    }

    fn modify_srq(
        device: &Device<Self>,
        srq: &Self::Srq,
        attr: &SrqAttr,
        mask: SrqAttrMask,
        udata: Option<&mut Udata<'_>>,
    ) -> Result {
        srq.modify(device, attr, mask, udata)
    }

    fn query_srq(srq: &Self::Srq) -> Result<SrqAttr> {
        Ok(srq.query())
    }

    fn destroy_srq(srq: &Self::Srq) {
        srq.destroy();
    }

    fn post_srq_recv(srq: &Self::Srq, wrs: &mut RecvWrs<'_>) -> Result {
        srq.post(wrs)
    }

    fn get_dma_mr(
        device: &Device<Self>,
        pd: &Self::Pd,
        memory: KernelMemory,
        access: u32,
    ) -> Result<(Self::Mr, MrKeys)> {
        Mr::kernel(device.data(), pd, memory, access)
    }

    fn reg_user_mr(
        device: &Device<Self>,
        pd: &Self::Pd,
        memory: &UserMemory,
        access: u32,
        udata: Option<&mut Udata<'_>>,
    ) -> Result<(Self::Mr, MrKeys)> {
        no_udata(udata)?;
        Mr::user(device, pd, memory, access)
    }

    fn rereg_user_mr(
        device: &Device<Self>,
        mr: &Self::Mr,
        pd: &Self::Pd,
        change: &MrChange,
        udata: Option<&mut Udata<'_>>,
    ) -> Result<Option<(Self::Mr, MrKeys)>> {
        no_udata(udata)?;
        mr.change(device, pd, change)
    }

    fn dereg_mr(mr: &Self::Mr) -> Result {
        mr.close()
    }

    fn alloc_mr(device: &Device<Self>, pd: &Self::Pd, pages: u32) -> Result<(Self::Mr, MrKeys)> {
        Mr::fast(device.data(), pd, pages)
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

    fn alloc_mw(
        device: &Device<Self>,
        pd: &Self::Pd,
        mw_type: u32,
        udata: Option<&mut Udata<'_>>,
    ) -> Result<(Self::Mw, u32)> {
        no_udata(udata)?;
        Mr::window(device.data(), pd, mw_type)
    }

    fn dealloc_mw(mw: &Self::Mw) -> Result {
        mw.close()
    }
}
