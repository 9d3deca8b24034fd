//! Creation of queue pairs (`ibv_create_qp`, `ibv_create_qp_ex`).

use std::mem::zeroed;
use std::ptr;

use libc::c_void;
use verbs::{QpInit, ServiceType};
use verbs_sys::{
    IBV_QP_INIT_ATTR_PD, IBV_QP_INIT_ATTR_SEND_OPS_FLAGS, IBV_QPS_RESET, IBV_QPT_RC, IBV_QPT_UC, IBV_QPT_UD,
    ibv_context, ibv_cq, ibv_pd, ibv_qp, ibv_qp_cap, ibv_qp_ex, ibv_qp_init_attr, ibv_qp_init_attr_ex,
    ibv_qp_type, ibv_srq,
};

use crate::boundary::{Errno, INVALID, UNSUPPORTED, object};
use crate::builder::Building;
use crate::context::{ContextHandle, own};
use crate::cq::cq_of;
use crate::events::Unacknowledged;
use crate::handle::Place;
use crate::mr::pd_of;
use crate::next::next;
use crate::qp::QpHandle;
use crate::qp_attr::cap_of;
use crate::srq::srq_of;
use crate::wr;

/// Attributes of a new queue pair, which `ibv_qp_init_attr` and `ibv_qp_init_attr_ex` have in common.
struct Wanted {
    pd: *mut ibv_pd,
    qp_context: *mut c_void,
    send_cq: *mut ibv_cq,
    recv_cq: *mut ibv_cq,
    srq: *mut ibv_srq,
    cap: ibv_qp_cap,
    qp_type: ibv_qp_type,
    signal_all: bool,
    /// Operations of the builder interface; `None`: the queue pair has only `ibv_post_send`.
    send_ops: Option<u64>,
}

impl Wanted {
    /// Returns the attributes for `verbs`, which needs at least one entry of each kind.
    fn init(&self) -> Result<QpInit, Errno> {
        let service = match self.qp_type {
            IBV_QPT_RC => ServiceType::Rc,
            IBV_QPT_UC => ServiceType::Uc,
            IBV_QPT_UD => ServiceType::Ud,
            _ => return Err(UNSUPPORTED),
        };
        // SAFETY: the program passes objects or null.
        unsafe {
            let srq = srq_of(self.srq);
            if srq.is_none() && !self.srq.is_null() {
                return Err(INVALID);
            }
            Ok(QpInit {
                service,
                pd: pd_of(self.pd).ok_or(INVALID)?.0.id,
                send_cq: cq_of(self.send_cq).ok_or(INVALID)?.0.id,
                recv_cq: cq_of(self.recv_cq).ok_or(INVALID)?.0.id,
                srq: srq.map(|(srq, _)| srq.id),
                max_send_wr: self.cap.max_send_wr.max(1),
                max_recv_wr: self.cap.max_recv_wr.max(1),
                max_send_sge: self.cap.max_send_sge.max(1),
                max_recv_sge: self.cap.max_recv_sge.max(1),
                max_inline_bytes: self.cap.max_inline_data,
                signal_all: self.signal_all,
            })
        }
    }

    /// Creates the queue pair, and returns it with its actual capacities.
    fn create(&self, context: &ContextHandle) -> Result<(*mut ibv_qp, ibv_qp_cap), Errno> {
        let init = self.init()?;
        let is_ud = init.service == ServiceType::Ud;
        let building = self.send_ops.map(|ops| Building::new(ops, is_ud)).transpose()?;
        let place = Place::new();
        let (qpn, queues) = context.objects()?.create_qp(&init, place.cookie())?;
        // SAFETY: zeros are a value of each field: null pointers, no functions, an unlocked mutex.
        let mut c: ibv_qp_ex = unsafe { zeroed() };
        match building {
            Some(_) if is_ud => wr::fill_datagrams(&mut c),
            Some(_) => wr::fill(&mut c),
            None => {}
        }
        // SAFETY: `qp_base` is the base of the union and of the structure.
        let base = unsafe { &mut *(&raw mut c).cast::<ibv_qp>() };
        // SAFETY: `init` has found that the protection domain is ours.
        base.context = unsafe { (*self.pd).context };
        (base.qp_context, base.pd, base.srq) = (self.qp_context, self.pd, self.srq);
        (base.send_cq, base.recv_cq) = (self.send_cq, self.recv_cq);
        (base.qp_num, base.state, base.qp_type) = (qpn.value(), IBV_QPS_RESET, self.qp_type);
        let handle = QpHandle { c, queues, qpn, is_ud, async_events: Unacknowledged::default(), building };
        let max_recv_wr = if self.srq.is_null() { init.max_recv_wr } else { 0 };
        let cap = ibv_qp_cap { max_recv_wr, ..cap_of(&init) };
        Ok((place.fill(handle).cast(), cap))
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_create_qp(pd: *mut ibv_pd, attr: *mut ibv_qp_init_attr) -> *mut ibv_qp {
    // SAFETY: the program passes a protection domain.
    match unsafe { pd_of(pd) } {
        Some((_, context)) => object(|| {
            // SAFETY: and attributes.
            let attr = unsafe { &mut *attr };
            let wanted = Wanted {
                pd,
                qp_context: attr.qp_context,
                send_cq: attr.send_cq,
                recv_cq: attr.recv_cq,
                srq: attr.srq,
                cap: attr.cap,
                qp_type: attr.qp_type,
                signal_all: attr.sq_sig_all != 0,
                send_ops: None,
            };
            let (qp, cap) = wanted.create(context)?;
            attr.cap = cap;
            Ok(qp)
        }),
        None => next!(
            ibv_create_qp(pd: *mut ibv_pd, attr: *mut ibv_qp_init_attr) -> *mut ibv_qp,
            ptr::null_mut()
        ),
    }
}

pub(crate) unsafe extern "C" fn create_qp_ex(
    context: *mut ibv_context,
    attr: *mut ibv_qp_init_attr_ex,
) -> *mut ibv_qp {
    object(|| {
        // SAFETY: the context's table of functions was used, and the program passes attributes.
        let (context, attr) = unsafe { (own(context)?, &mut *attr) };
        let has = |bit| attr.comp_mask & bit != 0;
        if attr.comp_mask & !(IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS) != 0 {
            return Err(UNSUPPORTED);
        }
        let wanted = Wanted {
            pd: if has(IBV_QP_INIT_ATTR_PD) { attr.pd } else { ptr::null_mut() },
            qp_context: attr.qp_context,
            send_cq: attr.send_cq,
            recv_cq: attr.recv_cq,
            srq: attr.srq,
            cap: attr.cap,
            qp_type: attr.qp_type,
            signal_all: attr.sq_sig_all != 0,
            send_ops: has(IBV_QP_INIT_ATTR_SEND_OPS_FLAGS).then_some(attr.send_ops_flags),
        };
        let (qp, cap) = wanted.create(context)?;
        attr.cap = cap;
        Ok(qp)
    })
}
