//! Attributes of queue pairs (`ibv_modify_qp`, `ibv_query_qp`).

use std::mem::zeroed;

use libc::c_int;
use verbs::{
    AddressVector, Attributes, Gid, ModifyError, PathMtu, Psn, QKey, QpAttr, QpInit, QpState, Qpn,
    ServiceType,
};
use verbs_sys::{
    IBV_QP_ACCESS_FLAGS, IBV_QP_AV, IBV_QP_CUR_STATE, IBV_QP_DEST_QPN, IBV_QP_EN_SQD_ASYNC_NOTIFY,
    IBV_QP_MAX_DEST_RD_ATOMIC, IBV_QP_MAX_QP_RD_ATOMIC, IBV_QP_MIN_RNR_TIMER, IBV_QP_PATH_MTU,
    IBV_QP_PKEY_INDEX, IBV_QP_PORT, IBV_QP_QKEY, IBV_QP_RETRY_CNT, IBV_QP_RNR_RETRY, IBV_QP_RQ_PSN,
    IBV_QP_SQ_PSN, IBV_QP_STATE, IBV_QP_TIMEOUT, IBV_QPS_ERR, IBV_QPS_INIT, IBV_QPS_RESET, IBV_QPS_RTR,
    IBV_QPS_RTS, IBV_QPS_SQD, IBV_QPS_SQE, ibv_ah_attr, ibv_gid, ibv_global_route, ibv_qp, ibv_qp_attr,
    ibv_qp_cap, ibv_qp_init_attr, ibv_qp_state,
};

use crate::boundary::{Errno, INVALID, UNSUPPORTED, explain, status};
use crate::config;
use crate::context::ContextHandle;
use crate::mr::qp_access_of;
use crate::next::next;
use crate::qp::{QpHandle, qp_of};
use crate::query::mtu_code;

/// Bits of the mask of `ibv_modify_qp` that a queue pair can have.
const KNOWN: u32 = IBV_QP_STATE
    | IBV_QP_CUR_STATE
    | IBV_QP_EN_SQD_ASYNC_NOTIFY
    | IBV_QP_ACCESS_FLAGS
    | IBV_QP_PKEY_INDEX
    | IBV_QP_PORT
    | IBV_QP_QKEY
    | IBV_QP_AV
    | IBV_QP_PATH_MTU
    | IBV_QP_TIMEOUT
    | IBV_QP_RETRY_CNT
    | IBV_QP_RNR_RETRY
    | IBV_QP_RQ_PSN
    | IBV_QP_MAX_QP_RD_ATOMIC
    | IBV_QP_MIN_RNR_TIMER
    | IBV_QP_SQ_PSN
    | IBV_QP_MAX_DEST_RD_ATOMIC
    | IBV_QP_DEST_QPN;

const STATES: [(ibv_qp_state, QpState); 7] = [
    (IBV_QPS_RESET, QpState::Reset),
    (IBV_QPS_INIT, QpState::Init),
    (IBV_QPS_RTR, QpState::Rtr),
    (IBV_QPS_RTS, QpState::Rts),
    (IBV_QPS_SQD, QpState::Sqd),
    (IBV_QPS_SQE, QpState::Sqe),
    (IBV_QPS_ERR, QpState::Err),
];

fn state_of(code: ibv_qp_state) -> Result<QpState, Errno> {
    STATES.iter().find(|(c, _)| *c == code).map(|(_, state)| *state).ok_or(INVALID)
}

fn state_code(state: QpState) -> ibv_qp_state {
    STATES.iter().find(|(_, rust)| *rust == state).map_or(IBV_QPS_ERR, |(code, _)| *code)
}

/// `call`: name of the function, for the explanation of an error.
pub(crate) fn path_of(call: &str, ah: &ibv_ah_attr) -> Result<AddressVector, Errno> {
    if ah.is_global == 0 {
        explain(call, "RoCE needs a GID (is_global): give the program the index of one, as -g 0 or -x 0");
        return Err(INVALID);
    }
    // SAFETY: all values of the bytes of a GID are valid.
    let dgid = Gid(unsafe { ah.grh.dgid.raw });
    Ok(AddressVector {
        dgid,
        sgid_index: ah.grh.sgid_index,
        flow_label: ah.grh.flow_label,
        hop_limit: ah.grh.hop_limit,
        traffic_class: ah.grh.traffic_class,
    })
}

fn mtu_of(code: u32) -> Result<PathMtu, Errno> {
    PathMtu::ALL.into_iter().find(|mtu| mtu_code(*mtu) == code).ok_or(INVALID)
}

fn attr_of(attr: &ibv_qp_attr, mask: u32) -> Result<QpAttr, Errno> {
    let has = |bit| mask & bit != 0;
    if mask & !KNOWN != 0 {
        return Err(INVALID);
    }
    let state = has(IBV_QP_STATE).then(|| state_of(attr.qp_state)).transpose()?;
    Ok(QpAttr {
        state,
        current_state: has(IBV_QP_CUR_STATE).then(|| state_of(attr.cur_qp_state)).transpose()?,
        pkey_index: has(IBV_QP_PKEY_INDEX).then_some(attr.pkey_index),
        port_num: has(IBV_QP_PORT).then_some(attr.port_num),
        access: has(IBV_QP_ACCESS_FLAGS).then(|| qp_access_of(attr.qp_access_flags)).transpose()?,
        qkey: has(IBV_QP_QKEY).then_some(QKey(attr.qkey)),
        path: has(IBV_QP_AV).then(|| path_of("ibv_modify_qp", &attr.ah_attr)).transpose()?,
        path_mtu: has(IBV_QP_PATH_MTU).then(|| mtu_of(attr.path_mtu)).transpose()?,
        dest_qpn: has(IBV_QP_DEST_QPN).then(|| Qpn::new(attr.dest_qp_num)),
        rq_psn: has(IBV_QP_RQ_PSN).then(|| Psn::new(attr.rq_psn)),
        sq_psn: has(IBV_QP_SQ_PSN).then(|| Psn::new(attr.sq_psn)),
        max_dest_rd_atomic: has(IBV_QP_MAX_DEST_RD_ATOMIC).then_some(attr.max_dest_rd_atomic),
        max_rd_atomic: has(IBV_QP_MAX_QP_RD_ATOMIC).then_some(attr.max_rd_atomic),
        min_rnr_timer: has(IBV_QP_MIN_RNR_TIMER).then_some(attr.min_rnr_timer),
        timeout: has(IBV_QP_TIMEOUT).then_some(attr.timeout),
        retry_count: has(IBV_QP_RETRY_CNT).then_some(attr.retry_cnt),
        rnr_retry: has(IBV_QP_RNR_RETRY).then_some(attr.rnr_retry),
        recovery: config::recovery(state),
        placement: None,
        congestion: None,
        initial_rtt_nanos: None,
    })
}

fn modify(handle: &QpHandle, context: &ContextHandle, attr: &QpAttr) -> Result<(), Errno> {
    context.objects()?.modify_qp(handle.qpn, attr).map_err(|error| {
        if !matches!(error, verbs::Error::Modify(ModifyError::UnknownQp)) {
            explain("ibv_modify_qp", &error);
        }
        error.into()
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_modify_qp(qp: *mut ibv_qp, attr: *mut ibv_qp_attr, mask: c_int) -> c_int {
    // SAFETY: the program passes a queue pair.
    match unsafe { qp_of(qp) } {
        Some((handle, context)) => status(|| {
            // SAFETY: and attributes.
            let wanted = attr_of(unsafe { &*attr }, mask.cast_unsigned())?;
            modify(handle, context, &wanted)?;
            if let Some(state) = wanted.state {
                // SAFETY: the program does not read the state while it modifies the queue pair.
                unsafe { (*qp).state = state_code(state) };
            }
            Ok(())
        }),
        None => next!(
            ibv_modify_qp(qp: *mut ibv_qp, attr: *mut ibv_qp_attr, mask: c_int) -> c_int,
            libc::ENOSYS
        ),
    }
}

fn ah_of(path: &AddressVector) -> ibv_ah_attr {
    let grh = ibv_global_route {
        dgid: ibv_gid { raw: path.dgid.0 },
        flow_label: path.flow_label,
        sgid_index: path.sgid_index,
        hop_limit: path.hop_limit,
        traffic_class: path.traffic_class,
    };
    ibv_ah_attr { grh, dlid: 0, sl: 0, src_path_bits: 0, static_rate: 0, is_global: 1, port_num: 1 }
}

pub(crate) fn cap_of(init: &QpInit) -> ibv_qp_cap {
    ibv_qp_cap {
        max_send_wr: init.max_send_wr,
        max_recv_wr: init.max_recv_wr,
        max_send_sge: init.max_send_sge,
        max_recv_sge: init.max_recv_sge,
        max_inline_data: init.max_inline_bytes,
    }
}

fn c_attr((state, attributes, init): &(QpState, Attributes, QpInit)) -> ibv_qp_attr {
    // SAFETY: zeros are a value of each field.
    let mut attr: ibv_qp_attr = unsafe { zeroed() };
    let conn = &attributes.conn;
    (attr.qp_state, attr.cur_qp_state) = (state_code(*state), state_code(*state));
    attr.path_mtu = mtu_code(conn.path_mtu);
    (attr.rq_psn, attr.sq_psn) = (attributes.rq_psn.value(), attributes.sq_psn.value());
    attr.dest_qp_num = attributes.dest_qpn.value();
    attr.qkey = attributes.qkey.0;
    attr.qp_access_flags = conn.access.0;
    attr.cap = cap_of(init);
    if let Some(path) = &attributes.path {
        attr.ah_attr = ah_of(path);
    }
    (attr.max_rd_atomic, attr.max_dest_rd_atomic) = (conn.max_rd_atomic, conn.max_dest_rd_atomic);
    (attr.min_rnr_timer, attr.timeout) = (conn.min_rnr_timer, conn.timeout);
    (attr.retry_cnt, attr.rnr_retry, attr.port_num) = (conn.retry_count, conn.rnr_retry, 1);
    if init.service != ServiceType::Rc {
        (attr.timeout, attr.retry_cnt, attr.rnr_retry) = (0, 0, 0);
    }
    attr
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_qp(
    qp: *mut ibv_qp,
    attr: *mut ibv_qp_attr,
    mask: c_int,
    init_attr: *mut ibv_qp_init_attr,
) -> c_int {
    // SAFETY: the program passes a queue pair.
    match unsafe { qp_of(qp) } {
        Some((handle, context)) => status(|| {
            let queried = context.objects()?.query_qp(handle.qpn).ok_or(UNSUPPORTED)?;
            // SAFETY: the program passes room for the attributes, and does not modify the queue pair at the same time.
            unsafe {
                (*qp).state = state_code(queried.0);
                let base = &*qp;
                attr.write(c_attr(&queried));
                init_attr.write(ibv_qp_init_attr {
                    qp_context: base.qp_context,
                    send_cq: base.send_cq,
                    recv_cq: base.recv_cq,
                    srq: base.srq,
                    cap: cap_of(&queried.2),
                    qp_type: base.qp_type,
                    sq_sig_all: c_int::from(queried.2.signal_all),
                });
            }
            Ok(())
        }),
        None => next!(
            ibv_query_qp(qp: *mut ibv_qp, attr: *mut ibv_qp_attr, mask: c_int, init_attr: *mut ibv_qp_init_attr)
                -> c_int,
            libc::ENOSYS
        ),
    }
}
