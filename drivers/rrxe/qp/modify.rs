// SPDX-License-Identifier: GPL-2.0

//! MODIFY_QP and QUERY_QP.

use super::{
    create::QpHandle,
    responder::{Resource, Responder},
    Qp,
};
use crate::{
    limits,
    module::Rrxe,
    transport::{path::Path, tx::TxState},
};
use kernel::{prelude::*, sync::Arc};
use linux_rdma::{
    errno::not_supported,
    rdma::{
        memory::access,
        qp::{modify_is_ok, QpAttr, QpAttrMask, QpCap, QpState, QpType},
        AddressInfo, Device,
    },
    sync::lock_bh,
    time::monotonic_ns,
};
use rrxe_core::{wire::QPN_MASK, Mtu, RecoveryMode, Time};

/// The attributes defined by the specification (`IB_QP_ATTR_STANDARD_BITS`).
const STANDARD: u32 = (1 << 21) - 1;

/// Largest code of the acknowledge timeout and of the RNR timer: five bits.
const MAX_TIMER_CODE: u8 = 31;
/// Largest retry count: three bits.
const MAX_RETRY: u8 = 7;

/// Checks the values of the attributes in `mask`.
fn check(device: &Device<Rrxe>, attr: &QpAttr, mask: QpAttrMask) -> Result {
    let bad = mask.has(QpAttrMask::PORT) && attr.port != 1
        || mask.has(QpAttrMask::PKEY_INDEX) && attr.pkey_index >= limits::PKEY_TABLE_LEN
        || mask.has(QpAttrMask::TIMEOUT) && attr.timeout > MAX_TIMER_CODE
        || mask.has(QpAttrMask::MIN_RNR_TIMER) && attr.min_rnr_timer > MAX_TIMER_CODE
        || mask.has(QpAttrMask::RETRY_CNT) && attr.retry_cnt > MAX_RETRY
        || mask.has(QpAttrMask::RNR_RETRY) && attr.rnr_retry > MAX_RETRY
        || mask.has(QpAttrMask::MAX_QP_RD_ATOMIC)
            && u32::from(attr.max_rd_atomic) > limits::MAX_INIT_RD_ATOMIC
        || mask.has(QpAttrMask::MAX_DEST_RD_ATOMIC)
            && u32::from(attr.max_dest_rd_atomic) > limits::MAX_RD_ATOMIC
        // The device supports neither resizing of queues nor path migration.
        || mask.has(QpAttrMask::CAP)
        || mask.has(QpAttrMask::ALT_PATH)
        // The migration state is always "migrated" (IBA 10.4, J-19).
        || mask.has(QpAttrMask::PATH_MIG_STATE) && !attr.migrated;
    if bad {
        return Err(EINVAL);
    }
    if mask.has(QpAttrMask::PATH_MTU) {
        let netdev = device.netdev().ok_or(ENODEV)?;
        if attr.path_mtu > limits::ib_mtu(netdev.mtu()) {
            return Err(EINVAL);
        }
    }
    // ib_core has checked that the caller may set a Q_Key with the top bit (IBA 10.2.5, A-36): it
    // needs CAP_NET_RAW (uverbs_cmd.c, modify_qp()).
    Ok(())
}

/// Executes the action of each attribute that is in the mask.
macro_rules! for_each_in {
    ($mask:ident: $($bit:ident => $action:expr),* $(,)?) => {
        $(if $mask.has(QpAttrMask::$bit) {
            $action;
        })*
    };
}

/// Stores the attributes in `mask`.
fn save(to: &mut QpAttr, from: &QpAttr, mask: QpAttrMask) {
    for_each_in!(mask:
        ACCESS_FLAGS => to.access_flags = from.access_flags,
        AV => to.address = from.address,
        DEST_QPN => to.dest_qpn = from.dest_qpn,
        EN_SQD_ASYNC_NOTIFY => to.en_sqd_async_notify = from.en_sqd_async_notify,
        MAX_DEST_RD_ATOMIC => to.max_dest_rd_atomic = from.max_dest_rd_atomic,
        MAX_QP_RD_ATOMIC => to.max_rd_atomic = from.max_rd_atomic,
        MIN_RNR_TIMER => to.min_rnr_timer = from.min_rnr_timer,
        PATH_MTU => to.path_mtu = from.path_mtu,
        PKEY_INDEX => to.pkey_index = from.pkey_index,
        QKEY => to.qkey = from.qkey,
        RETRY_CNT => to.retry_cnt = from.retry_cnt,
        RNR_RETRY => to.rnr_retry = from.rnr_retry,
        RQ_PSN => to.rq_psn = from.rq_psn,
        SQ_PSN => to.sq_psn = from.sq_psn,
        TIMEOUT => to.timeout = from.timeout,
    );
}

/// A change of attributes, with what follows from them.
struct Change<'a> {
    mask: QpAttrMask,
    attr: &'a QpAttr,
    /// The new path to the peer of a connected queue pair.
    path: Option<Arc<Path>>,
    /// The UDP source port, once the address is known.
    source_port: Option<u16>,
    mtu: Option<Mtu>,
}

impl Change<'_> {
    fn set_tx(&self, tx: &mut TxState) {
        if let Some(path) = &self.path {
            tx.path = Some(path.clone());
        }
        if let Some(port) = self.source_port {
            tx.source_port = port;
        }
    }

    /// Changes the send side.
    fn set_send(&self, qp: &Qp) {
        let mut side = lock_bh(&qp.send);
        self.set_tx(&mut side.tx);
        let (requester, mask, attr) = (&mut side.requester, self.mask, self.attr);
        if let Some(mtu) = self.mtu {
            requester.mtu = mtu;
        }
        for_each_in!(mask:
            DEST_QPN => requester.dest_qpn = attr.dest_qpn & QPN_MASK,
            SQ_PSN => requester.set_psn(attr.sq_psn),
            TIMEOUT => {
                requester.set_timeout(attr.timeout);
                requester.start_timers(Time::from_ns(monotonic_ns()));
            },
            RETRY_CNT => requester.set_retry_count(attr.retry_cnt),
            RNR_RETRY => requester.set_rnr_retry(attr.rnr_retry),
            MAX_QP_RD_ATOMIC => requester.max_rd_atomic = attr.max_rd_atomic,
            QKEY => requester.qkey = attr.qkey,
        );
    }

    /// Changes the receive side, and replaces its resources with `resources`. Returns the old
    /// resources, which the caller frees without a lock.
    fn set_recv(&self, qp: &Qp, resources: Option<KVec<Resource>>) -> Option<KVec<Resource>> {
        let mut side = lock_bh(&qp.recv);
        self.set_tx(&mut side.tx);
        let (responder, mask, attr) = (&mut side.responder, self.mask, self.attr);
        if let Some(mtu) = self.mtu {
            responder.mtu = mtu;
        }
        for_each_in!(mask:
            DEST_QPN => responder.dest_qpn = attr.dest_qpn & QPN_MASK,
            RQ_PSN => responder.set_psn(attr.rq_psn),
            MIN_RNR_TIMER => responder.min_rnr_timer = attr.min_rnr_timer,
            ACCESS_FLAGS => set_access(responder, attr.access_flags),
            QKEY => responder.qkey = attr.qkey,
        );
        resources.map(|resources| responder.set_resources(resources))
    }
}

/// Sets the operations that requests may perform, from `IB_ACCESS_*` flags.
fn set_access(responder: &mut Responder, flags: u32) {
    let has = |flag| flags & flag != 0;
    responder.set_access(
        has(access::REMOTE_READ),
        has(access::REMOTE_WRITE),
        has(access::REMOTE_ATOMIC),
    );
    responder.set_flush_access(has(access::FLUSH_GLOBAL), has(access::FLUSH_PERSISTENT));
}

/// Returns the path MTU: the attribute for connected queue pairs, the port's for datagrams.
fn mtu(
    device: &Device<Rrxe>,
    qp: &Qp,
    attr: &QpAttr,
    mask: QpAttrMask,
    next: QpState,
) -> Result<Option<Mtu>> {
    let bytes = match qp.qp_type.is_connected() {
        true if mask.has(QpAttrMask::PATH_MTU) => attr.path_mtu,
        false if next == QpState::Rtr => limits::ib_mtu(device.netdev().ok_or(ENODEV)?.mtu()),
        _ => return Ok(None),
    };
    Mtu::from_bytes(bytes).map(Some).ok_or(EINVAL)
}

/// Returns the state that the consumer asks for. Returns `EINVAL` if it is not allowed now.
fn next_state(qp: &Qp, actual: QpState, attr: &QpAttr, mask: QpAttrMask) -> Result<QpState> {
    // The consumer may name the state that it believes the queue pair to be in (IBA 11.2.5.2).
    if mask.has(QpAttrMask::CUR_STATE) && attr.cur_state != actual {
        return Err(EINVAL);
    }
    let next = if mask.has(QpAttrMask::STATE) {
        attr.state
    } else {
        actual
    };
    // SQ Draining (IBA 10.3.1, J-08).
    let resumes = actual == QpState::Sqd && next == QpState::Rts;
    if resumes && !lock_bh(&qp.send).is_drained() || !modify_is_ok(actual, next, qp.qp_type, mask) {
        return Err(EINVAL);
    }
    Ok(next)
}

/// MODIFY_QP.
pub(crate) fn modify(
    device: &Device<Rrxe>,
    handle: &QpHandle,
    attr: &QpAttr,
    mask: QpAttrMask,
) -> Result {
    if mask.0 & !STANDARD != 0 {
        return Err(not_supported());
    }
    let qp = &handle.qp;
    let mut known = qp.attr.lock();
    let actual = qp.state.get();
    let next = next_state(qp, actual, attr, mask)?;
    check(device, attr, mask)?;
    let mtu = mtu(device, qp, attr, mask, next)?;
    let address = attr.address.filter(|_| qp.qp_type.is_connected());
    if let Some(info) = address.filter(|_| qp.is_user) {
        qp.device.interfaces.check_use(&info)?;
    }
    let path = address
        .map(|info| Arc::pin_init(Path::new(info, &qp.device.interfaces), GFP_KERNEL_ACCOUNT));
    let path = path.transpose()?;
    let max = usize::from(attr.max_dest_rd_atomic);
    let resources = mask
        .has(QpAttrMask::MAX_DEST_RD_ATOMIC)
        .then(|| KVec::from_elem(Resource::default(), max, GFP_KERNEL_ACCOUNT));
    let resources = resources.transpose()?;

    // No error is possible from here on. Work requests posted earlier are sent first, with or
    // without a doorbell.
    Qp::end_stream(qp.as_arc_borrow());
    let goes_on = !matches!(next, QpState::Reset | QpState::Error);
    if goes_on && lock_bh(&qp.recv).responder.stop_delay() {
        // Sends the ACK that was delayed.
        Qp::kick_recv(qp.as_arc_borrow());
    }
    save(&mut known, attr, mask);
    let port = |address: AddressInfo| address.udp_source_port(qp.number, known.dest_qpn);
    let change = Change {
        mask,
        attr,
        path,
        source_port: known.address.map(port),
        mtu,
    };
    change.set_send(qp);
    if mask.has(QpAttrMask::TIMEOUT) && actual >= QpState::Rts {
        // Arms the timer of the packets in flight.
        Qp::kick_send(qp.as_arc_borrow());
    }
    drop(change.set_recv(qp, resources));
    let result = match mask.has(QpAttrMask::STATE) {
        true => transition(qp, actual, next, &mut known),
        false => Ok(()),
    };
    drop(known);
    Qp::report_events(qp.as_arc_borrow());
    // If the change was refused, an error has come in between, and the attributes have no effect.
    result
}

/// Changes the state from `from` to `to`. Returns `EINVAL` if an error has changed the state
/// meanwhile.
///
/// A side starts with its lock held across the change of state. A later error therefore finds the
/// side running, and stops it.
fn transition(qp: &Arc<Qp>, from: QpState, to: QpState, known: &mut QpAttr) -> Result {
    let change = || qp.state.change(from, to).then_some(()).ok_or(EINVAL);
    let this = qp.as_arc_borrow();
    match to {
        QpState::Reset => {
            qp.state.reset();
            *known = QpAttr::default();
            Qp::reset(this);
        }
        QpState::Init | QpState::Sqe => change()?,
        QpState::Rtr => {
            let mut side = lock_bh(&qp.recv);
            change()?;
            if qp.qp_type != QpType::XrcInitiator {
                side.responder.max_ack_delay = qp.device.config.max_ack_delay;
                side.responder.buffering = qp.recovery == RecoveryMode::Selective;
                side.responder.prompt_replies = limits::path::PROMPT_REPLIES;
                side.responder.start();
            }
        }
        QpState::Rts => {
            if from == QpState::Sqe {
                Qp::finish_flush(this);
            }
            let mut side = lock_bh(&qp.send);
            change()?;
            side.notify_drained = false;
            if qp.qp_type != QpType::XrcTarget {
                side.requester.start();
            }
            drop(side);
            if from != QpState::Rtr {
                // Sends the work requests that waited.
                Qp::kick_send(this);
            }
        }
        QpState::Sqd => {
            let mut side = lock_bh(&qp.send);
            change()?;
            side.requester.pause();
            side.notify_drained = known.en_sqd_async_notify;
            drop(side);
            Qp::kick_send(this);
        }
        QpState::Error => Qp::enter_error(this, limits::path::LAST_BATCHES),
    }
    Ok(())
}

/// QUERY_QP.
pub(crate) fn query(handle: &QpHandle) -> (QpAttr, QpCap, bool) {
    let qp = &handle.qp;
    let mut attr = *qp.attr.lock();
    attr.state = qp.state.get();
    attr.cur_state = attr.state;
    if attr.state >= QpState::Rts {
        let side = lock_bh(&qp.send);
        attr.sq_psn = side.requester.next_psn();
        attr.sq_draining = attr.state == QpState::Sqd && !side.is_drained();
    }
    if attr.state >= QpState::Rtr {
        attr.rq_psn = lock_bh(&qp.recv).responder.expected_psn();
    }
    (attr, qp.cap, qp.signal_all)
}
