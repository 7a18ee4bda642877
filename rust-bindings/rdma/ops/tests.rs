// SPDX-License-Identifier: GPL-2.0

//! KUnit tests of the operations that ib_core gets for a driver.

#[kernel::prelude::kunit_tests(linux_rdma_ops)]
mod cases {
    use crate::rdma::{example::Minimal, ops::Ops};

    #[test]
    fn a_driver_has_the_operations_that_ib_core_requires() {
        // `ib_device_check_mandatory()` (device.c) has the list.
        let ops = Ops::<Minimal>::operations();
        assert!(ops.query_device.is_some() && ops.query_port.is_some());
        assert!(ops.alloc_pd.is_some() && ops.dealloc_pd.is_some());
        assert!(ops.create_qp.is_some() && ops.modify_qp.is_some() && ops.destroy_qp.is_some());
        assert!(ops.post_send.is_some() && ops.post_recv.is_some());
        assert!(ops.create_cq.is_some() && ops.destroy_cq.is_some());
        assert!(ops.poll_cq.is_some() && ops.req_notify_cq.is_some());
        assert!(ops.get_dma_mr.is_some() && ops.reg_user_mr.is_some() && ops.dereg_mr.is_some());
        assert!(ops.get_port_immutable.is_some());
    }

    #[test]
    fn a_function_that_the_driver_lacks_is_no_operation() {
        let ops = Ops::<Minimal>::operations();
        assert!(ops.query_pkey.is_none() && ops.process_mad.is_none());
        assert!(ops.alloc_hw_port_stats.is_none() && ops.get_hw_stats.is_none());
        assert!(ops.counter_init.is_none() && ops.counter_bind_qp.is_none());
        assert!(ops.create_ah.is_none() && ops.create_user_ah.is_none());
        assert!(ops.resize_user_cq.is_none() && ops.rereg_user_mr.is_none());
        assert!(ops.attach_mcast.is_none() && ops.detach_mcast.is_none());
        assert!(ops.alloc_xrcd.is_none() && ops.dealloc_xrcd.is_none());
        assert!(ops.create_srq.is_none() && ops.modify_srq.is_none());
        assert!(ops.alloc_mr.is_none() && ops.map_mr_sg.is_none());
        assert!(ops.alloc_mw.is_none() && ops.dealloc_mw.is_none());
        assert!(Ops::<Minimal>::FOR_C.modify_srq.is_none());
        assert!(Ops::<Minimal>::FOR_C.alloc_mr.is_none());
    }
}
