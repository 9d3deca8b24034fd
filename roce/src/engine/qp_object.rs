use std::mem::offset_of;
use std::ops::Range;

use super::address_handle::AddressHandleId;
use super::source::SourcePorts;
use crate::congestion::Congestion;
use crate::counters::QpCounters;
use crate::id::{QKey, Qpn};
use crate::mem::{Access, PdId};
use crate::prefetch::{CACHE_LINE_BYTES, whole_lines};
use crate::psn::Psn;
use crate::qp::completions::SendCompletions;
use crate::qp::emit::QpHeaders;
use crate::qp::outstanding::Outstanding;
use crate::qp::rc::Rc;
use crate::qp::rc::reorder_buffer::ReorderStore;
use crate::qp::rc::requester::Requester;
use crate::qp::receives::Receives;
use crate::qp::uc::Uc;
use crate::qp::ud::Ud;
use crate::qp::{AddressVector, ConnAttr, QpInit, QpState};
use crate::queue::{CqSlot, CqTable, Cqe, Posting, RecvPoster, SendPoster, SendQueue, WcOpcode, WcStatus};
use crate::time::Instant;

/// Attributes of a queue pair (`struct ibv_qp_attr`), as last modified.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attributes {
    /// Attributes of the connection. `conn.congestion` is `None` in RESET only; the transition to INIT sets a scheme.
    pub conn: ConnAttr,
    /// Address vector; `None` before RTR.
    pub path: Option<AddressVector>,
    /// The peer's QPN.
    pub dest_qpn: Qpn,
    /// Q_Key of a queue pair of UD; 0 for other transport services.
    pub qkey: QKey,
    /// PSN of the first request from the peer.
    pub rq_psn: Psn,
    /// PSN of the first request to the peer.
    pub sq_psn: Psn,
}

impl Default for Attributes {
    fn default() -> Self {
        Attributes {
            conn: ConnAttr::RESET,
            path: None,
            dest_qpn: Qpn::default(),
            qkey: QKey::default(),
            rq_psn: Psn::default(),
            sq_psn: Psn::default(),
        }
    }
}

/// A new queue pair: its QPN, and the objects through which the application posts to its send and receive queues.
pub struct QpHandles {
    /// Queue pair number, 24 bits: the QPN prefix of the device, and random low bits.
    pub qpn: Qpn,
    /// The object through which the application posts to the send queue.
    pub send: SendPoster,
    /// The object through which the application posts to the receive queue; `None` with a shared receive queue.
    pub recv: Option<RecvPoster>,
}

/// SENDs without loss increment only the first `HOT_COUNTERS` counters of `QpCounters`.
const HOT_COUNTERS: usize = 6;

/// The protocol state of a connection, by transport service.
#[expect(
    clippy::large_enum_variant,
    reason = "a box would add a cache line to each packet of the larger variant"
)]
pub(super) enum Service {
    Rc(Rc),
    Uc(Uc),
}

impl Service {
    /// Returns the congestion control of the queue pair.
    pub(super) fn congestion(&self) -> &Congestion {
        match self {
            Service::Rc(rc) => rc.requester.congestion(),
            Service::Uc(uc) => uc.sender.congestion(),
        }
    }

    pub(super) fn congestion_mut(&mut self) -> &mut Congestion {
        match self {
            Service::Rc(rc) => rc.requester.congestion_mut(),
            Service::Uc(uc) => uc.sender.congestion_mut(),
        }
    }

    /// Returns the expected PSN of the peer's next request.
    pub(super) fn expected_psn(&self) -> Psn {
        match self {
            Service::Rc(rc) => rc.responder.expected_psn(),
            Service::Uc(uc) => uc.receiver.expected_psn(),
        }
    }

    /// If `draining` is true, no further work request starts (state SQD).
    pub(super) fn set_draining(&mut self, draining: bool) {
        match self {
            Service::Rc(rc) => rc.requester.set_draining(draining),
            Service::Uc(uc) => uc.sender.set_draining(draining),
        }
    }
}

/// The connection of a queue pair, from RTR on.
#[repr(C)] // the order of the fields groups the cache lines that each message needs
pub(super) struct Connection {
    pub service: Service,
    /// Address handle of the peer. The address handle counts this connection as one of its users.
    pub address_handle: AddressHandleId,
    pub headers: QpHeaders,
    pub source_ports: SourcePorts,
    /// Copy of the attribute `access` of the queue pair. Each received request needs this attribute.
    pub access: Access,
}

/// A queue pair. The order of the fields groups the cache lines that the engine accesses for a message, in the ranges
/// [`Qp::SEND`], [`Qp::BOTH`] and [`Qp::RECEIVE`]:
///
/// ```text
///   outstanding | requester | responder | headers | flags | receives | first counters | rest
///   '-------- `SEND` -------'           '------------- `BOTH` -----------------------'
///                           '----------------- `RECEIVE` ----------------------------'
///   message sent: `SEND` and `BOTH`; message received: `RECEIVE`
/// ```
#[repr(C, align(64))]
pub(super) struct Qp {
    /// Send queue and the PSNs of its work requests.
    pub outstanding: Outstanding,
    pub connection: Option<Connection>,
    pub state: QpState,
    pub scheduled: bool,
    /// False only if no work request of the send queue is outstanding. A doorbell sets this flag. If the flag is false,
    /// an ACK is sent without an access to `outstanding`, which is in other cache lines.
    pub has_sends: bool,
    /// Whether `CommunicationEstablished` was reported.
    pub established: bool,
    /// Whether `SendQueueDrained` was reported since the queue pair entered SQD.
    pub drained: bool,
    /// Whether a CNP to the peer is due; if so, the queue pair's index is in `Notifier::due`.
    pub cnp_due: bool,
    /// Whether `Engine::errors` (the queue pairs to flush) contains this queue pair.
    pub flushing: bool,
    /// Copy of `attributes.conn.min_rnr_timer`. Each received request needs this attribute.
    pub min_rnr_timer: u8,
    /// Copy of `init.pd`.
    pub pd: PdId,
    pub qpn: Qpn,
    pub send_cq: CqSlot,
    pub recv_cq: CqSlot,
    pub receives: Receives,
    /// The first fields of [`QpCounters`] are the counters that each SEND increments.
    pub counters: QpCounters,
    pub init: QpInit,
    attributes: Attributes,
    /// Sender and Q_Key of a queue pair of UD, from the transition to RTR on; `None` before this transition, and for
    /// other transport services, which have a connection instead. Allocated separately, so that queue pairs of other
    /// transport services contain only a pointer.
    pub datagrams: Option<Box<Ud>>,
    /// Time of the second flush of the queues in state ERR. The first flush may miss a receive that a thread posts
    /// during the transition to ERR; this receive is in the receive queue before the second flush.
    pub flush_until: Instant,
}

// The state that a SEND needs fills whole cache lines: 8 more bytes would add a cache line to each message.
const _: () = assert!(Qp::SEND.end == 5 * CACHE_LINE_BYTES);

impl Qp {
    /// Bytes of a `Qp` that contain its send queue (`outstanding`) and its requester. To send a message, the engine
    /// accesses these bytes and [`Qp::BOTH`].
    pub(super) const SEND: Range<usize> = 0..offset_of!(Qp, connection) + size_of::<Requester>();
    /// Bytes of a `Qp` that the engine accesses for each message, sent or received.
    pub(super) const BOTH: Range<usize> = {
        let end = offset_of!(Qp, counters) + HOT_COUNTERS * size_of::<u64>();
        whole_lines(offset_of!(Qp, connection) + offset_of!(Rc, responses)..end)
    };
    /// Bytes of a `Qp` that the engine accesses to schedule the queue pair.
    pub(super) const SCHEDULE: Range<usize> = Qp::BOTH.start..offset_of!(Qp, pd);
    /// Bytes of a `Qp` that the engine accesses to receive a message.
    pub(super) const RECEIVE: Range<usize> =
        whole_lines(offset_of!(Qp, connection) + offset_of!(Rc, responder)..Qp::BOTH.end);

    /// Creates a queue pair in RESET.
    pub(super) fn new(
        qpn: Qpn,
        init: &QpInit,
        [send_cq, recv_cq]: [CqSlot; 2],
        queue: SendQueue,
        receives: Receives,
    ) -> Self {
        let attributes = Attributes::default();
        Qp {
            outstanding: Outstanding::new(queue, Psn::default()),
            connection: None,
            state: QpState::Reset,
            scheduled: false,
            has_sends: false,
            established: false,
            drained: false,
            cnp_due: false,
            flushing: false,
            min_rnr_timer: attributes.conn.min_rnr_timer,
            pd: init.pd,
            qpn,
            send_cq,
            recv_cq,
            receives,
            counters: QpCounters::default(),
            init: *init,
            attributes,
            datagrams: None,
            flush_until: Instant::ZERO,
        }
    }

    pub(super) fn attributes(&self) -> &Attributes {
        &self.attributes
    }

    pub(super) fn set_attributes(&mut self, attributes: Attributes) {
        self.min_rnr_timer = attributes.conn.min_rnr_timer;
        if let Some(connection) = &mut self.connection {
            connection.access = attributes.conn.access;
        }
        if let Some(ud) = &mut self.datagrams {
            ud.qkey = attributes.qkey;
        }
        self.attributes = attributes;
    }

    /// Returns whether a work request of the send queue is outstanding.
    #[inline]
    pub(super) fn has_sends(&mut self) -> bool {
        self.has_sends = self.has_sends && !self.outstanding.is_idle();
        self.has_sends
    }

    pub(super) fn send_completions<'a>(
        cqs: &'a mut CqTable,
        cq: CqSlot,
        qpn: Qpn,
        counters: &'a mut QpCounters,
    ) -> SendCompletions<'a> {
        SendCompletions { cqs, cq, qpn, counters }
    }

    /// Sets the state, and whether work requests may be posted: to the send queue in RTS, SQD, SQE and ERR, to the
    /// receive queue in all states except RESET.
    pub(super) fn set_state(&mut self, state: QpState) {
        self.state = state;
        let posting = |takes: bool| match state {
            QpState::Err => Posting::Flushed,
            _ if takes => Posting::Queued,
            _ => Posting::Refused,
        };
        self.outstanding.queue().set_posting(posting(state.takes_sends()));
        if let Receives::Own(queue) = &self.receives {
            queue.set_posting(posting(state != QpState::Reset));
        }
    }

    /// If `draining` is true, no further work request starts (state SQD).
    pub(super) fn set_draining(&mut self, draining: bool) {
        if let Some(connection) = &mut self.connection {
            connection.service.set_draining(draining);
        }
        if let Some(ud) = &mut self.datagrams {
            ud.sender.set_draining(draining);
        }
    }

    /// On an unreliable service, returns the PSN of the next packet to send, and the error status of the oldest work
    /// request, if this work request cannot be sent. `None` on a reliable connection, and before RTR.
    pub(super) fn sent_unreliably(&mut self) -> Option<(Psn, Option<WcStatus>)> {
        if let Some(ud) = &mut self.datagrams {
            return Some((ud.sender.next(), ud.sender.take_fault()));
        }
        match &mut self.connection {
            Some(Connection { service: Service::Uc(uc), .. }) => {
                Some((uc.sender.next(), uc.sender.take_fault()))
            }
            _ => None,
        }
    }

    /// Flushes at most `count` work requests of each queue; in SQE, of the send queue only. Returns false only if
    /// no work request is left to flush.
    pub(super) fn flush(&mut self, cqs: &mut CqTable, count: usize) -> bool {
        let is_left = self.flush_sends(cqs, count);
        is_left | (self.state == QpState::Err && self.flush_receives(cqs, count))
    }

    pub(super) fn flush_sends(&mut self, cqs: &mut CqTable, count: usize) -> bool {
        let mut completions = Qp::send_completions(cqs, self.send_cq, self.qpn, &mut self.counters);
        for _ in 0..count {
            if !completions.fail_oldest(&mut self.outstanding, WcStatus::WrFlushErr) {
                break;
            }
        }
        !self.outstanding.queue().is_empty()
    }

    /// Flushes at most `count` receives of the receive queue, or the receive taken from a shared receive queue. Returns
    /// false only if no receive is left to flush.
    pub(super) fn flush_receives(&mut self, cqs: &mut CqTable, count: usize) -> bool {
        for _ in 0..count {
            let Some(wqe) = self.receives.release() else { return false };
            self.counters.cqe_flush_err += 1;
            let (wr_id, status, opcode) = (wqe.wr_id, WcStatus::WrFlushErr, WcOpcode::Recv);
            let cqe = Cqe::new(wr_id, status, opcode, 0, self.qpn);
            cqs.write(self.recv_cq, cqe, false);
        }
        true
    }

    /// Drops all buffered and placed requests, and ends the reservation that this queue pair has in `store`. `slot` is
    /// the index of the queue pair.
    pub(super) fn close_reorder_buffer(&mut self, slot: usize, store: &mut ReorderStore) {
        if let Some(Connection { service: Service::Rc(rc), .. }) = &mut self.connection {
            rc.responder.clear_out_of_order(store);
        }
        store.close(slot);
    }

    /// Discards connection, attributes and work requests, at the transition to RESET. No completions are written. The
    /// caller releases the address handle that this function returns.
    pub(super) fn discard(&mut self) -> Option<AddressHandleId> {
        while self.outstanding.pop().is_some() {}
        while self.receives.release().is_some() {}
        self.set_attributes(Attributes::default());
        self.established = false;
        self.drained = false;
        self.datagrams = None;
        self.connection.take().map(|connection| connection.address_handle)
    }
}
