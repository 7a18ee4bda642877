// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Sizes and offsets that a C compiler gives the structures declared in this folder, measured on
//! x86-64 with the headers of rdma-core 56.1 and 65.0. A build fails if one of them
//! differs.

/// Asserts the size of a structure and the offset of each of its members, in bytes.
#[cfg(target_arch = "x86_64")]
macro_rules! layout {
    ($ty:ty, $size:expr, { $($field:ident: $offset:expr),* $(,)? }) => {
        const _: () = {
            assert!(core::mem::size_of::<$ty>() == $size);
            $(assert!(core::mem::offset_of!($ty, $field) == $offset);)*
        };
    };
}

/// Asserts the size of a structure of pointers and their order.
#[cfg(target_arch = "x86_64")]
macro_rules! pointers {
    ($ty:ty, $size:expr, { $($field:ident,)* }) => {
        const _: () = {
            let mut offset = 0_usize;
            $(
                assert!(core::mem::offset_of!($ty, $field) == offset);
                offset = offset.wrapping_add(core::mem::size_of::<usize>());
            )*
            assert!(offset == $size && core::mem::size_of::<$ty>() == $size);
        };
    };
}

/// `infiniband/verbs.h`.
#[cfg(target_arch = "x86_64")]
mod verbs {
    use crate::ffi::verbs::*;

    layout!(IbvDevice, 664, {
        ops: 0, node_type: 16, transport_type: 20, name: 24, dev_name: 88, dev_path: 152,
        ibdev_path: 408,
    });
    layout!(IbvContext, 328, {
        device: 0, ops: 8, cmd_fd: 264, async_fd: 268, num_comp_vectors: 272, mutex: 280,
        abi_compat: 320,
    });
    layout!(IbvDeviceAttr, 232, {
        fw_ver: 0, node_guid: 64, sys_image_guid: 72, max_mr_size: 80, page_size_cap: 88,
        vendor_id: 96, vendor_part_id: 100, hw_ver: 104, max_qp: 108, max_qp_wr: 112,
        device_cap_flags: 116, max_sge: 120, max_sge_rd: 124, max_cq: 128, max_cqe: 132,
        unused: 136, max_srq: 212, max_srq_wr: 216, max_srq_sge: 220, rest: 224,
    });
    layout!(IbvDeviceAttrEx, 280, {
        orig_attr: 0, comp_mask: 232, odp_caps: 240, completion_timestamp_mask: 264,
        hca_core_clock: 272,
    });
    layout!(IbvValuesEx, 24, { comp_mask: 0, raw_clock: 8 });
    layout!(IbvPd, 16, { context: 0, handle: 8 });
    layout!(IbvMr, 48, { context: 0, pd: 8, addr: 16, length: 24, handle: 32, lkey: 36, rkey: 40 });
    layout!(IbvMw, 32, { context: 0, pd: 8, rkey: 16, handle: 20, mw_type: 24 });
    layout!(IbvMwBindInfo, 32, { mr: 0, addr: 8, length: 16, mw_access_flags: 24 });
    layout!(IbvMwBind, 48, { wr_id: 0, send_flags: 8, bind_info: 16 });
    layout!(WrBindMw, 48, { mw: 0, rkey: 8, bind_info: 16 });
    layout!(IbvAh, 24, { context: 0, pd: 8, handle: 16 });
    layout!(IbvCq, 128, {
        context: 0, channel: 8, cq_context: 16, handle: 24, cqe: 28, mutex: 32, cond: 72,
        comp_events_completed: 120, async_events_completed: 124,
    });
    layout!(IbvSrq, 128, {
        context: 0, srq_context: 8, pd: 16, handle: 24, mutex: 32, cond: 72, events_completed: 120,
    });
    layout!(IbvSrqAttr, 12, { max_wr: 0, max_sge: 4, srq_limit: 8 });
    layout!(IbvSrqInitAttr, 24, { srq_context: 0, attr: 8 });
    layout!(IbvSrqInitAttrEx, 64, {
        srq_context: 0, attr: 8, comp_mask: 20, srq_type: 24, pd: 32, xrcd: 40, cq: 48, tm_cap: 56,
    });
    layout!(IbvXrcd, 8, { context: 0 });
    layout!(IbvCqEx, 288, {
        base: 0, comp_mask: 128, status: 132, wr_id: 136, start_poll: 144, next_poll: 152,
        end_poll: 160, read_opcode: 168, read_vendor_err: 176, read_byte_len: 184,
        read_imm_data: 192, read_qp_num: 200, read_src_qp: 208, read_wc_flags: 216, read_slid: 224,
        read_sl: 232, read_dlid_path_bits: 240, read_completion_ts: 248, read_cvlan: 256,
        read_flow_tag: 264, read_tm_info: 272, read_completion_wallclock_ns: 280,
    });
    layout!(IbvPollCqAttr, 4, { comp_mask: 0 });
    layout!(IbvCqInitAttrEx, 56, {
        cqe: 0, cq_context: 8, channel: 16, comp_vector: 24, wc_flags: 32, comp_mask: 40, flags: 44,
        parent_domain: 48,
    });
    layout!(IbvWc, 48, {
        wr_id: 0, status: 8, opcode: 12, vendor_err: 16, byte_len: 20, imm_data: 24, qp_num: 28,
        src_qp: 32, wc_flags: 36, pkey_index: 40, slid: 42, sl: 44, dlid_path_bits: 45,
    });
    layout!(IbvQpCap, 20, {
        max_send_wr: 0, max_recv_wr: 4, max_send_sge: 8, max_recv_sge: 12, max_inline_data: 16,
    });
    layout!(IbvQpInitAttr, 64, {
        qp_context: 0, send_cq: 8, recv_cq: 16, srq: 24, cap: 32, qp_type: 52, sq_sig_all: 56,
    });
    layout!(IbvQpInitAttrEx, 136, {
        qp_context: 0, send_cq: 8, recv_cq: 16, srq: 24, cap: 32, qp_type: 52, sq_sig_all: 56,
        comp_mask: 60, pd: 64, xrcd: 72, create_flags: 80, max_tso_header: 84, rwq_ind_tbl: 88,
        rx_hash_conf: 96, source_qpn: 120, send_ops_flags: 128,
    });
    layout!(IbvQpAttr, 144, {
        qp_state: 0, cur_qp_state: 4, path_mtu: 8, path_mig_state: 12, qkey: 16, rq_psn: 20,
        sq_psn: 24, dest_qp_num: 28, qp_access_flags: 32, cap: 36, rest: 56,
    });
    layout!(IbvSge, 16, { addr: 0, length: 8, lkey: 12 });
    layout!(IbvDataBuf, 16, { addr: 0, length: 8 });
    layout!(IbvSendWr, 128, {
        wr_id: 0, next: 8, sg_list: 16, num_sge: 24, opcode: 28, send_flags: 32, imm_data: 36,
        wr: 40, remote_srqn: 72, extra: 80,
    });
    layout!(IbvRecvWr, 32, { wr_id: 0, next: 8, sg_list: 16, num_sge: 24 });
    layout!(IbvQp, 160, {
        context: 0, qp_context: 8, pd: 16, send_cq: 24, recv_cq: 32, srq: 40, handle: 48,
        qp_num: 52, state: 56, qp_type: 60, mutex: 64, cond: 104, events_completed: 152,
    });
    layout!(IbvQpEx, 360, {
        qp_base: 0, comp_mask: 160, wr_id: 168, wr_flags: 176, wr_atomic_cmp_swp: 184,
        wr_atomic_fetch_add: 192, wr_bind_mw: 200, wr_local_inv: 208, wr_rdma_read: 216,
        wr_rdma_write: 224, wr_rdma_write_imm: 232, wr_send: 240, wr_send_imm: 248,
        wr_send_inv: 256, wr_send_tso: 264, wr_set_ud_addr: 272, wr_set_xrc_srqn: 280,
        wr_set_inline_data: 288, wr_set_inline_data_list: 296, wr_set_sge: 304,
        wr_set_sge_list: 312, wr_start: 320, wr_complete: 328, wr_abort: 336, wr_atomic_write: 344,
        wr_flush: 352,
    });
}

/// `infiniband/driver.h`.
#[cfg(target_arch = "x86_64")]
mod driver {
    use crate::ffi::driver::*;

    layout!(VerbsMatchEnt, 24, { driver_data: 0, driver_id: 8, vendor: 16, device: 18, kind: 20 });
    layout!(VerbsDeviceOps, 72, {
        name: 0, match_min_abi_version: 8, match_max_abi_version: 12, match_table: 16,
        static_providers: 24, match_device: 32, alloc_context: 40, import_context: 48,
        alloc_device: 56, uninit_device: 64,
    });
    layout!(VerbsDevice, 712, {
        device: 0, ops: 664, refcount: 672, entry: 680, sysfs: 696, core_support: 704,
    });
    layout!(VerbsMr, 56, { ibv_mr: 0, mr_type: 48, access: 52 });
    layout!(VerbsCq, 288, { cq_ex: 0 });
    layout!(VerbsSrq, 160, { srq: 0, srq_type: 128, xrcd: 136, cq: 144, srq_num: 152 });
    layout!(VerbsXrcd, 16, { xrcd: 0, comp_mask: 8, handle: 12 });
    layout!(VerbsQp, 376, { qp_ex: 0, comp_mask: 360, xrcd: 368 });
}

/// Private ABI 34.
#[cfg(all(target_arch = "x86_64", not(feature = "pabi65")))]
mod pabi34 {
    use crate::ffi::driver::VerbsContext;
    use crate::ffi::operations::VerbsContextOps;

    pointers!(VerbsContextOps, 608, {
        advise_mr, alloc_dm, alloc_mw, alloc_null_mr, alloc_parent_domain, alloc_pd, alloc_td,
        async_event, attach_counters_point_flow, attach_mcast, bind_mw, close_xrcd, cq_event,
        create_ah, create_counters, create_cq, create_cq_ex, create_flow, create_flow_action_esp,
        create_qp, create_qp_ex, create_rwq_ind_table, create_srq, create_srq_ex, create_wq,
        dealloc_mw, dealloc_pd, dealloc_td, dereg_mr, destroy_ah, destroy_counters, destroy_cq,
        destroy_flow, destroy_flow_action, destroy_qp, destroy_rwq_ind_table, destroy_srq,
        destroy_wq, detach_mcast, free_context, free_dm, get_srq_num, import_dm, import_mr,
        import_pd, modify_cq, modify_flow_action_esp, modify_qp, modify_qp_rate_limit, modify_srq,
        modify_wq, open_qp, open_xrcd, poll_cq, post_recv, post_send, post_srq_ops, post_srq_recv,
        query_device_ex, query_ece, query_port, query_qp, query_qp_data_in_order, query_rt_values,
        query_srq, read_counters, reg_dm_mr, reg_dmabuf_mr, reg_mr, req_notify_cq, rereg_mr,
        resize_cq, set_ece, unimport_dm, unimport_mr, unimport_pd,
    });
    layout!(VerbsContext, 648, { private: 0, context: 320 });
}

/// Private ABI 65.
#[cfg(all(target_arch = "x86_64", feature = "pabi65"))]
mod pabi65 {
    use crate::ffi::driver::VerbsContext;
    use crate::ffi::operations::VerbsContextOps;

    pointers!(VerbsContextOps, 744, {
        advise_mr, alloc_buf, alloc_dm, alloc_dmah, alloc_mw, alloc_null_mr, alloc_parent_domain,
        alloc_pd, alloc_td, async_event, attach_counters_point_flow, attach_mcast, bind_mw,
        close_xrcd, cq_event, create_ah, create_comp_cntr, create_counters, create_cq, create_cq_ex,
        create_flow, create_flow_action_esp, create_qp, create_qp_ex, create_rwq_ind_table,
        create_srq, create_srq_ex, create_wq, dealloc_dmah, dealloc_mw, dealloc_pd, dealloc_td,
        dereg_mr, destroy_ah, destroy_comp_cntr, destroy_counters, destroy_cq, destroy_flow,
        destroy_flow_action, destroy_qp, destroy_rwq_ind_table, destroy_srq, destroy_wq,
        detach_mcast, dm_export_dmabuf_fd, free_buf, free_context, free_dm, get_srq_num, import_dm,
        import_mr, import_pd, inc_comp_cntr, inc_err_comp_cntr, modify_cq, modify_flow_action_esp,
        modify_qp, modify_qp_rate_limit, modify_srq, modify_wq, open_qp, open_xrcd, poll_cq,
        post_recv, post_send, post_srq_ops, post_srq_recv, qp_attach_comp_cntr,
        query_comp_cntr_caps, query_device_ex, query_ece, query_port, query_port_speed, query_qp,
        query_qp_data_in_order, query_rt_values, query_srq, read_comp_cntr, read_counters,
        read_err_comp_cntr, reg_dm_mr, reg_dmabuf_mr, reg_mr, reg_mr_ex, req_notify_cq, rereg_mr,
        resize_cq, set_comp_cntr, set_ece, set_err_comp_cntr, unimport_dm, unimport_mr, unimport_pd,
    });
    layout!(VerbsContext, 696, { private: 0, context: 368 });
}

/// `rdma/ib_user_verbs.h`.
#[cfg(target_arch = "x86_64")]
mod command {
    use crate::ffi::command::*;

    layout!(PostDoorbell, 32, {
        command: 0, in_words: 4, out_words: 6, response: 8, qp_handle: 16, wr_count: 20,
        sge_count: 24, wqe_size: 28,
    });
}
