// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
// Written by provider/layouts: do not edit.

//! The layouts of libibverbs' private interface in the releases of rdma-core.

use super::driver::{Layout, PABI};

/// The layouts that libibverbs has had with the private ABI of this build.
pub(crate) const LAYOUTS: &[Layout] = match PABI {
    34 => &[FROM_46],
    57 => &[FROM_57],
    59 => &[FROM_59, FROM_62],
    64 => &[FROM_64],
    65 => &[FROM_65],
    _ => panic!("there is no table for this private ABI: see provider/README.md"),
};

/// rdma-core 46.0 to 56.4, private ABI 34. From libibverbs/driver.h of v56.4, SHA-256
/// 57c4e69a4f23276411583ebdba8e170ec3080e0f27c825f5772e6a50728db4ec.
#[rustfmt::skip]
const FROM_46: Layout = Layout {
    context: 320,
    operations: &[
        "advise_mr", "alloc_dm", "alloc_mw", "alloc_null_mr", "alloc_parent_domain", "alloc_pd",
        "alloc_td", "async_event", "attach_counters_point_flow", "attach_mcast", "bind_mw",
        "close_xrcd", "cq_event", "create_ah", "create_counters", "create_cq", "create_cq_ex",
        "create_flow", "create_flow_action_esp", "create_qp", "create_qp_ex",
        "create_rwq_ind_table", "create_srq", "create_srq_ex", "create_wq", "dealloc_mw",
        "dealloc_pd", "dealloc_td", "dereg_mr", "destroy_ah", "destroy_counters", "destroy_cq",
        "destroy_flow", "destroy_flow_action", "destroy_qp", "destroy_rwq_ind_table", "destroy_srq",
        "destroy_wq", "detach_mcast", "free_context", "free_dm", "get_srq_num", "import_dm",
        "import_mr", "import_pd", "modify_cq", "modify_flow_action_esp", "modify_qp",
        "modify_qp_rate_limit", "modify_srq", "modify_wq", "open_qp", "open_xrcd", "poll_cq",
        "post_recv", "post_send", "post_srq_ops", "post_srq_recv", "query_device_ex", "query_ece",
        "query_port", "query_qp", "query_qp_data_in_order", "query_rt_values", "query_srq",
        "read_counters", "reg_dm_mr", "reg_dmabuf_mr", "reg_mr", "req_notify_cq", "rereg_mr",
        "resize_cq", "set_ece", "unimport_dm", "unimport_mr", "unimport_pd",
    ],
};

/// rdma-core 57.0 to 58.2, private ABI 57. From libibverbs/driver.h of v58.2, SHA-256
/// eab315e395cf31f9ff034765e4110317cccf56a6d56a3f2bbb240b950796db39.
#[rustfmt::skip]
const FROM_57: Layout = Layout {
    context: 320,
    operations: &[
        "advise_mr", "alloc_dm", "alloc_mw", "alloc_null_mr", "alloc_parent_domain", "alloc_pd",
        "alloc_td", "async_event", "attach_counters_point_flow", "attach_mcast", "bind_mw",
        "close_xrcd", "cq_event", "create_ah", "create_counters", "create_cq", "create_cq_ex",
        "create_flow", "create_flow_action_esp", "create_qp", "create_qp_ex",
        "create_rwq_ind_table", "create_srq", "create_srq_ex", "create_wq", "dealloc_mw",
        "dealloc_pd", "dealloc_td", "dereg_mr", "destroy_ah", "destroy_counters", "destroy_cq",
        "destroy_flow", "destroy_flow_action", "destroy_qp", "destroy_rwq_ind_table", "destroy_srq",
        "destroy_wq", "detach_mcast", "free_context", "free_dm", "get_srq_num", "import_dm",
        "import_mr", "import_pd", "modify_cq", "modify_flow_action_esp", "modify_qp",
        "modify_qp_rate_limit", "modify_srq", "modify_wq", "open_qp", "open_xrcd", "poll_cq",
        "post_recv", "post_send", "post_srq_ops", "post_srq_recv", "query_device_ex", "query_ece",
        "query_port", "query_qp", "query_qp_data_in_order", "query_rt_values", "query_srq",
        "read_counters", "reg_dm_mr", "reg_dmabuf_mr", "reg_mr", "req_notify_cq", "rereg_mr",
        "resize_cq", "set_ece", "unimport_dm", "unimport_mr", "unimport_pd",
    ],
};

/// rdma-core 59.0 to 61.1, private ABI 59. From libibverbs/driver.h of v61.1, SHA-256
/// f1383e1f4c8a507dd95c6ba321c46cc591996131f11df55a8e3e5e88494a3f46.
#[rustfmt::skip]
const FROM_59: Layout = Layout {
    context: 344,
    operations: &[
        "advise_mr", "alloc_dm", "alloc_dmah", "alloc_mw", "alloc_null_mr", "alloc_parent_domain",
        "alloc_pd", "alloc_td", "async_event", "attach_counters_point_flow", "attach_mcast",
        "bind_mw", "close_xrcd", "cq_event", "create_ah", "create_counters", "create_cq",
        "create_cq_ex", "create_flow", "create_flow_action_esp", "create_qp", "create_qp_ex",
        "create_rwq_ind_table", "create_srq", "create_srq_ex", "create_wq", "dealloc_dmah",
        "dealloc_mw", "dealloc_pd", "dealloc_td", "dereg_mr", "destroy_ah", "destroy_counters",
        "destroy_cq", "destroy_flow", "destroy_flow_action", "destroy_qp", "destroy_rwq_ind_table",
        "destroy_srq", "destroy_wq", "detach_mcast", "free_context", "free_dm", "get_srq_num",
        "import_dm", "import_mr", "import_pd", "modify_cq", "modify_flow_action_esp", "modify_qp",
        "modify_qp_rate_limit", "modify_srq", "modify_wq", "open_qp", "open_xrcd", "poll_cq",
        "post_recv", "post_send", "post_srq_ops", "post_srq_recv", "query_device_ex", "query_ece",
        "query_port", "query_qp", "query_qp_data_in_order", "query_rt_values", "query_srq",
        "read_counters", "reg_dm_mr", "reg_dmabuf_mr", "reg_mr", "reg_mr_ex", "req_notify_cq",
        "rereg_mr", "resize_cq", "set_ece", "unimport_dm", "unimport_mr", "unimport_pd",
    ],
};

/// rdma-core 62.0 to 63.1, private ABI 59. From libibverbs/driver.h of v63.1, SHA-256
/// bafa4d8e540efb54982d63f6d3001d799f18e894735919dc926dedf28c88a269.
#[rustfmt::skip]
const FROM_62: Layout = Layout {
    context: 352,
    operations: &[
        "advise_mr", "alloc_dm", "alloc_dmah", "alloc_mw", "alloc_null_mr", "alloc_parent_domain",
        "alloc_pd", "alloc_td", "async_event", "attach_counters_point_flow", "attach_mcast",
        "bind_mw", "close_xrcd", "cq_event", "create_ah", "create_counters", "create_cq",
        "create_cq_ex", "create_flow", "create_flow_action_esp", "create_qp", "create_qp_ex",
        "create_rwq_ind_table", "create_srq", "create_srq_ex", "create_wq", "dealloc_dmah",
        "dealloc_mw", "dealloc_pd", "dealloc_td", "dereg_mr", "destroy_ah", "destroy_counters",
        "destroy_cq", "destroy_flow", "destroy_flow_action", "destroy_qp", "destroy_rwq_ind_table",
        "destroy_srq", "destroy_wq", "detach_mcast", "dm_export_dmabuf_fd", "free_context",
        "free_dm", "get_srq_num", "import_dm", "import_mr", "import_pd", "modify_cq",
        "modify_flow_action_esp", "modify_qp", "modify_qp_rate_limit", "modify_srq", "modify_wq",
        "open_qp", "open_xrcd", "poll_cq", "post_recv", "post_send", "post_srq_ops",
        "post_srq_recv", "query_device_ex", "query_ece", "query_port", "query_port_speed",
        "query_qp", "query_qp_data_in_order", "query_rt_values", "query_srq", "read_counters",
        "reg_dm_mr", "reg_dmabuf_mr", "reg_mr", "reg_mr_ex", "req_notify_cq", "rereg_mr",
        "resize_cq", "set_ece", "unimport_dm", "unimport_mr", "unimport_pd",
    ],
};

/// rdma-core 64.0, private ABI 64. From libibverbs/driver.h of v64.0, SHA-256
/// 64670c835d463dc942250c7da860dfc5c72fd8218db89750d3e1ef2872c218cd.
#[rustfmt::skip]
const FROM_64: Layout = Layout {
    context: 368,
    operations: &[
        "advise_mr", "alloc_buf", "alloc_dm", "alloc_dmah", "alloc_mw", "alloc_null_mr",
        "alloc_parent_domain", "alloc_pd", "alloc_td", "async_event", "attach_counters_point_flow",
        "attach_mcast", "bind_mw", "close_xrcd", "cq_event", "create_ah", "create_counters",
        "create_cq", "create_cq_ex", "create_flow", "create_flow_action_esp", "create_qp",
        "create_qp_ex", "create_rwq_ind_table", "create_srq", "create_srq_ex", "create_wq",
        "dealloc_dmah", "dealloc_mw", "dealloc_pd", "dealloc_td", "dereg_mr", "destroy_ah",
        "destroy_counters", "destroy_cq", "destroy_flow", "destroy_flow_action", "destroy_qp",
        "destroy_rwq_ind_table", "destroy_srq", "destroy_wq", "detach_mcast", "dm_export_dmabuf_fd",
        "free_buf", "free_context", "free_dm", "get_srq_num", "import_dm", "import_mr", "import_pd",
        "modify_cq", "modify_flow_action_esp", "modify_qp", "modify_qp_rate_limit", "modify_srq",
        "modify_wq", "open_qp", "open_xrcd", "poll_cq", "post_recv", "post_send", "post_srq_ops",
        "post_srq_recv", "query_device_ex", "query_ece", "query_port", "query_port_speed",
        "query_qp", "query_qp_data_in_order", "query_rt_values", "query_srq", "read_counters",
        "reg_dm_mr", "reg_dmabuf_mr", "reg_mr", "reg_mr_ex", "req_notify_cq", "rereg_mr",
        "resize_cq", "set_ece", "unimport_dm", "unimport_mr", "unimport_pd",
    ],
};

/// rdma-core 65.0, private ABI 65. From libibverbs/driver.h of v65.0, SHA-256
/// 3d80f7eda25d4f891a9a0ffe8e82d9488b89e79aa3002e1a621d2adc93ae8ad1.
#[rustfmt::skip]
const FROM_65: Layout = Layout {
    context: 368,
    operations: &[
        "advise_mr", "alloc_buf", "alloc_dm", "alloc_dmah", "alloc_mw", "alloc_null_mr",
        "alloc_parent_domain", "alloc_pd", "alloc_td", "async_event", "attach_counters_point_flow",
        "attach_mcast", "bind_mw", "close_xrcd", "cq_event", "create_ah", "create_comp_cntr",
        "create_counters", "create_cq", "create_cq_ex", "create_flow", "create_flow_action_esp",
        "create_qp", "create_qp_ex", "create_rwq_ind_table", "create_srq", "create_srq_ex",
        "create_wq", "dealloc_dmah", "dealloc_mw", "dealloc_pd", "dealloc_td", "dereg_mr",
        "destroy_ah", "destroy_comp_cntr", "destroy_counters", "destroy_cq", "destroy_flow",
        "destroy_flow_action", "destroy_qp", "destroy_rwq_ind_table", "destroy_srq", "destroy_wq",
        "detach_mcast", "dm_export_dmabuf_fd", "free_buf", "free_context", "free_dm", "get_srq_num",
        "import_dm", "import_mr", "import_pd", "inc_comp_cntr", "inc_err_comp_cntr", "modify_cq",
        "modify_flow_action_esp", "modify_qp", "modify_qp_rate_limit", "modify_srq", "modify_wq",
        "open_qp", "open_xrcd", "poll_cq", "post_recv", "post_send", "post_srq_ops",
        "post_srq_recv", "qp_attach_comp_cntr", "query_comp_cntr_caps", "query_device_ex",
        "query_ece", "query_port", "query_port_speed", "query_qp", "query_qp_data_in_order",
        "query_rt_values", "query_srq", "read_comp_cntr", "read_counters", "read_err_comp_cntr",
        "reg_dm_mr", "reg_dmabuf_mr", "reg_mr", "reg_mr_ex", "req_notify_cq", "rereg_mr",
        "resize_cq", "set_comp_cntr", "set_ece", "set_err_comp_cntr", "unimport_dm", "unimport_mr",
        "unimport_pd",
    ],
};
