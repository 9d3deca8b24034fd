use std::sync::Arc;

use super::Engine;
use super::error::{CreateError, DestroyError, check_range};
use super::limits::{MAX_INLINE_BYTES, MAX_QP_WR, MAX_SGE};
use super::qp_object::{Attributes, Qp, QpHandles};
use crate::congestion::Congestion;
use crate::counters::QpCounters;
use crate::id::Qpn;
use crate::port::Port;
use crate::psn::Psn;
use crate::qp::receives::{Receives, SharedReceive};
use crate::qp::{QpInit, QpState, ServiceType};
use crate::queue::{
    CqId, CqSlot, Doorbells, RecvPoster, RecvQueueSize, SendQueueSize, SrqAttr, SrqId, recv_queue, send_queue,
};
use crate::start;

const SRQ: &str = "shared receive queue";

/// Returns whether a QPN is reserved: 0 and 1 for the management queue pairs (QP0, QP1), 0xFFFFFF for multicast.
fn is_reserved_qpn(number: u32) -> bool {
    number < 2 || number == 0xFF_FFFF
}

impl<P: Port> Engine<P> {
    /// Creates a shared receive queue. `max_wr` is 1 to [`MAX_QP_WR`], `max_sge` 0 to [`MAX_SGE`].
    pub fn create_srq(&mut self, attr: &SrqAttr) -> Result<(SrqId, RecvPoster), CreateError> {
        check_range("max_wr of the SRQ", attr.max_wr, 1, MAX_QP_WR)?;
        check_range("max_sge of the SRQ", attr.max_sge, 0, MAX_SGE)?;
        self.objects.acquire_pd(attr.pd)?;
        let max = self.srqs.max_len();
        let created = self.srqs.create(&mut self.random, *attr, self.doorbells.clone());
        if created.is_none() {
            self.objects.release_pd(attr.pd);
        }
        created.ok_or(CreateError::TooMany { what: "shared receive queues", max })
    }

    /// Sets the limit of a shared receive queue; 0: no limit. If the queue has fewer than `limit` receives at this call
    /// or later, [`super::Event::SrqLimitReached`] is reported once.
    pub fn set_srq_limit(&mut self, srq: SrqId, limit: u32) -> Result<(), DestroyError> {
        let known = self.srqs.set_limit(srq, limit);
        self.report_srq_limits();
        if known { Ok(()) } else { Err(DestroyError::Unknown(SRQ)) }
    }

    /// Returns the attributes of a shared receive queue; `None` if `srq` does not exist. As soon as
    /// [`super::Event::SrqLimitReached`] is due, `SrqAttr::limit` becomes 0.
    pub fn query_srq(&self, srq: SrqId) -> Option<SrqAttr> {
        self.srqs.get(srq).map(|(attr, _)| attr)
    }

    /// Destroys a shared receive queue, and discards its receives; [`DestroyError::Busy`] while a queue pair uses the
    /// SRQ.
    pub fn destroy_srq(&mut self, srq: SrqId) -> Result<(), DestroyError> {
        match self.srqs.get(srq) {
            None => Err(DestroyError::Unknown(SRQ)),
            Some((attr, 0)) => {
                self.srqs.destroy(srq);
                self.objects.release_pd(attr.pd);
                Ok(())
            }
            Some(_) => Err(DestroyError::Busy(SRQ)),
        }
    }

    /// Creates a queue pair, in RESET.
    pub fn create_qp(&mut self, init: &QpInit) -> Result<QpHandles, CreateError> {
        self.check_init(init)?;
        let max = self.qps.max_len();
        if self.qps.len() == max {
            return Err(CreateError::TooMany { what: "queue pairs", max });
        }
        let cq_ids = [init.send_cq, init.recv_cq];
        let shared_cqs = self.objects.acquire_cqs(cq_ids)?;
        if let Err(error) = self.objects.acquire_pd(init.pd) {
            self.objects.release_cqs(cq_ids);
            return Err(error);
        }
        let [send_cq, recv_cq] = shared_cqs.each_ref().map(|shared| self.cqs.attach(shared));
        let srq_attr = init.srq.and_then(|srq| self.query_srq(srq));
        let doorbells = self.doorbells.clone();
        let mut handles = None;
        self.qps.insert_with(&mut self.random, is_reserved_qpn, |number, slot| {
            let (new, qp) = new_qp(Qpn::new(number), init, [send_cq, recv_cq], srq_attr, doorbells, slot);
            handles = Some(new);
            qp
        });
        init.srq.into_iter().for_each(|srq| self.srqs.acquire(srq));
        self.tx_ready.reserve(self.qps.len());
        self.tx_deferred.reserve(self.qps.len());
        self.errors.reserve(self.qps.len());
        self.notifier.reserve(self.qps.len());
        handles.ok_or(CreateError::TooMany { what: "queue pairs", max })
    }

    fn check_init(&self, init: &QpInit) -> Result<(), CreateError> {
        check_range("max_send_wr", init.max_send_wr, 1, MAX_QP_WR)?;
        check_range("max_send_sge", init.max_send_sge, 0, MAX_SGE)?;
        match init.srq {
            Some(srq) => self.srqs.get(srq).map(drop).ok_or(CreateError::Unknown(SRQ))?,
            None => {
                check_range("max_recv_wr", init.max_recv_wr, 1, MAX_QP_WR)?;
                check_range("max_recv_sge", init.max_recv_sge, 0, MAX_SGE)?;
            }
        }
        check_range("max_inline_data", init.max_inline_bytes, 0, MAX_INLINE_BYTES)
    }

    /// Destroys a queue pair. The responses due are sent first, as far as the port and congestion control permit.
    /// Outstanding work requests are discarded without completions, including a receive taken from a shared receive
    /// queue. In ERR that receive is flushed already ([`super::Event::LastWqeReached`]).
    pub fn destroy_qp(&mut self, qpn: Qpn) -> Result<(), DestroyError> {
        let unknown = DestroyError::Unknown("queue pair");
        let slot = self.qps.slot_of(qpn.value()).ok_or(unknown)?;
        self.send_last_responses(slot);
        let mut qp = self.qps.remove(qpn.value()).ok_or(unknown)?;
        qp.close_reorder_buffer(slot, &mut self.reorder);
        let address_handle = qp.connection.as_ref().map(|connection| connection.address_handle);
        address_handle.into_iter().for_each(|id| self.address_handles.release(id));
        self.objects.release_pd(qp.init.pd);
        self.objects.release_cqs([qp.init.send_cq, qp.init.recv_cq]);
        qp.init.srq.into_iter().for_each(|srq| self.srqs.release(srq));
        self.past.add(&qp.counters);
        self.timers.remove(slot);
        self.tx_ready.retain(|other| *other != slot);
        self.errors.retain(|other| *other != slot);
        Ok(())
    }

    /// Returns a queue pair's state, its attributes, and the values given at its creation; `None` if `qpn` does not
    /// exist.
    pub fn query_qp(&self, qpn: Qpn) -> Option<(QpState, Attributes, QpInit)> {
        self.qps.get(qpn.value()).map(|qp| (qp.state, *qp.attributes(), qp.init))
    }

    /// Returns a queue pair's counters; `None` if `qpn` does not exist.
    pub fn qp_counters(&self, qpn: Qpn) -> Option<QpCounters> {
        self.qps.get(qpn.value()).map(|qp| qp.counters)
    }

    /// Returns the congestion control of a queue pair; `None` if the queue pair does not exist or is not connected.
    /// Under DCQCN, a rate change that has become due is applied by the next call of `Congestion::permit` or by the
    /// next CNP, so the rate in the result may be out of date.
    pub fn qp_congestion(&self, qpn: Qpn) -> Option<&Congestion> {
        let connection = self.qps.get(qpn.value())?.connection.as_ref()?;
        Some(connection.service.congestion())
    }

    /// Sets the speed of the link in bits per second, for later connections of queue pairs.
    pub fn set_link_bits_per_sec(&mut self, link_bits_per_sec: u64) {
        self.link_bits_per_sec = link_bits_per_sec;
    }

    /// Returns a random PSN, for the first request of a connection.
    pub fn random_psn(&mut self) -> Psn {
        start::psn(self.random.bits())
    }

    pub(super) fn fail_users_of(&mut self, cq: CqId) {
        let uses = |qp: &Qp| qp.init.send_cq == cq || qp.init.recv_cq == cq;
        let slots: Vec<usize> = self
            .qps
            .iter()
            .filter(|(_, qp)| uses(qp))
            .filter_map(|(number, _)| self.qps.slot_of(number))
            .collect();
        for slot in slots {
            let event = self.qps.at_mut(slot).map(|qp| super::Event::QpFatal(qp.qpn));
            self.enter_error(slot, event);
        }
    }
}

fn new_qp(
    qpn: Qpn,
    init: &QpInit,
    cqs: [CqSlot; 2],
    srq_attr: Option<SrqAttr>,
    doorbells: Arc<Doorbells>,
    slot: usize,
) -> (QpHandles, Qp) {
    let size = SendQueueSize {
        depth: init.max_send_wr,
        max_sges: init.max_send_sge,
        max_inline_bytes: init.max_inline_bytes,
    };
    let (send, sq) = send_queue(size, init.signal_all, doorbells.clone(), slot);
    let send = if init.service == ServiceType::Ud { send.with_datagrams() } else { send };
    let (recv, receives) = match init.srq.zip(srq_attr) {
        Some((srq, attr)) => {
            (None, Receives::Shared(Box::new(SharedReceive::new(srq, attr.pd, attr.max_sge))))
        }
        None => {
            let size = RecvQueueSize { depth: init.max_recv_wr, max_sges: init.max_recv_sge };
            let (recv, rq) = recv_queue(size, doorbells, slot);
            (Some(recv), Receives::Own(rq))
        }
    };
    let qp = Qp::new(qpn, init, cqs, sq, receives);
    (QpHandles { qpn, send, recv }, qp)
}
