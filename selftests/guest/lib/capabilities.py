# SPDX-License-Identifier: GPL-2.0
"""Every capability that rrxe reports, and the tests that use it (K-10).

`make lint` fails if a test that is named here does not exist, or failed when it last ran. The
guest's case `statements/capabilities` fails if the device reports a capability without an entry
here, or if an entry names a capability that the device does not report.
"""

# Bits of device_cap_flags and device_cap_flags_ex (`device`), and of port_cap_flags (`port`).
NAMES = {
    "device[1]": "BAD_PKEY_CNTR",
    "device[2]": "BAD_QKEY_CNTR",
    "device[7]": "CURR_QP_STATE_MOD",
    "device[10]": "PORT_ACTIVE_EVENT",
    "device[11]": "SYS_IMAGE_GUID",
    "device[12]": "RC_RNR_NAK_GEN",
    "device[13]": "SRQ_RESIZE",
    "device[17]": "MEM_WINDOW",
    "device[20]": "XRC",
    "device[21]": "MEM_MGT_EXTENSIONS",
    "device[24]": "MEM_WINDOW_TYPE_2B",
    "device[38]": "FLUSH_GLOBAL",
    "device[40]": "ATOMIC_WRITE",
    "port[16]": "CM_SUP",
    "port[26]": "IP_BASED_GIDS",
}

# Each capability and the tests that exercise it: cases of guest suites as SUITE/CASE (without the
# ending of a variant), and scripts of selftests/conformance by name.
TESTS = {
    "BAD_PKEY_CNTR": ("counters/wrong-packet", "counters/saturation"),
    "BAD_QKEY_CNTR": ("counters/qkey-violation", "counters/saturation", "a-33-qkey-counter"),
    "CURR_QP_STATE_MOD": ("statements/current-state",),
    "PORT_ACTIVE_EVENT": ("statements/port-events",),
    "SYS_IMAGE_GUID": ("statements/system-image",),
    "RC_RNR_NAK_GEN": ("e-01-not-ready", "bad-input/receiver-not-ready"),
    "SRQ_RESIZE": ("srq/resize", "srq/resize-under-traffic"),
    "MEM_WINDOW": ("keys/use",),
    "XRC": ("xrc/traffic",),
    "MEM_MGT_EXTENSIONS": ("keys/invalidated-locally", "keys/invalidated-by-peer", "storage/nvme"),
    "MEM_WINDOW_TYPE_2B": ("keys/other-queue-pair",),
    "FLUSH_GLOBAL": ("placement/flush-of-ranges", "g-26-flush"),
    "ATOMIC_WRITE": ("placement/atomic-writes", "g-25-atomic-write"),
    # IBV_ATOMIC_HCA: atomic among the queue pairs of the device.
    "atomic_cap": ("statements/atomics-of-several",),
    "completion_timestamp_mask": ("statements/completion-times",),
    "hca_core_clock": ("statements/completion-times",),
    "max_dm_size": ("device-memory/limit", "device-memory/many"),
    "cq_mod_caps.max_cq_count": ("completion-events/moderated-by-count", "completion-events/moderated-by-the-library"),
    "cq_mod_caps.max_cq_period": ("completion-events/moderated-by-time", "storage/nvme-with-adaptive-moderation"),
    # SUPPORT and SUPPORT_IMPLICIT.
    "odp_caps.general_caps": ("paging/untouched", "paging/whole-address-space"),
    "odp_caps.rc_odp_caps": ("paging/cold", "paging/anything"),
    "odp_caps.uc_odp_caps": ("paging/unreliable",),
    "odp_caps.ud_odp_caps": ("paging/unreliable",),
    "odp_caps.xrc_odp_caps": ("xrc/on-demand",),
    # Maxima. Users share the numbers of all kinds of objects by the same rule
    # (drivers/rrxe/quota.rs). Tests reach the smallest of them.
    "max_qp": ("objects/share-of-a-user",),
    "max_cq": ("objects/share-of-a-user",),
    "max_mr": ("objects/share-of-a-user",),
    "max_mw": ("objects/share-of-a-user",),
    "max_srq": ("objects/share-of-a-user",),
    "max_pd": ("objects/domains-of-a-user",),
    "max_ah": ("limits/address-handles",),
    "max_qp_wr": ("limits/queue-sizes", "limits/queues-filled"),
    "max_srq_wr": ("limits/queue-sizes", "limits/queues-filled", "srq/sizes-refused"),
    "max_srq_sge": ("limits/queue-sizes", "srq/sizes-refused"),
    "max_sge": ("limits/segments",),
    "max_sge_rd": ("limits/segments",),
    "max_cqe": ("limits/completions",),
    "max_mr_size": ("limits/region",),
    "max_msg_sz": ("limits/message", "bad-input/longer-than-a-message"),
    "max_qp_rd_atom": ("limits/reads",),
    "max_qp_init_rd_atom": ("limits/reads",),
    "max_res_rd_atom": ("limits/reads",),
    "max_mcast_grp": ("limits/multicast-groups",),
    "max_mcast_qp_attach": ("limits/multicast-groups", "multicast/refusals"),
    "max_pkeys": ("limits/partition-keys",),
    "pkey_tbl_len": ("limits/partition-keys",),
    "gid_tbl_len": ("limits/gids", "lifecycle/gid-table"),
    "CM_SUP": ("rdmacm/rping-200",),
    "IP_BASED_GIDS": ("link/gid-of-address",),
}
