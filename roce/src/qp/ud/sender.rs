//! The sender of datagrams (IBA 9.8.3.1): a work request is one packet, and completes when this packet is sent.

use crate::counters::QpCounters;
use crate::id::{AhId, QKey, Qpn};
use crate::mem::{MemoryView, PdId};
use crate::port::Port;
use crate::psn::Psn;
use crate::qp::PathMtu;
use crate::qp::context::{TxContext, TxOutcome};
use crate::qp::emit::{NotSent, PacketBuilder, QpHeaders};
use crate::qp::outbound::send_segment;
use crate::qp::outstanding::{Kind, Outstanding};
use crate::qp::segment::segment;
use crate::queue::{Destination, WcStatus};
use crate::time::Instant;
use crate::wire::{AddressTemplate, Deth, QpFields, Transport, flow_label_from_qpns, udp_source_port};

pub(crate) struct Sender {
    qpn: Qpn,
    next: Psn,
    /// True in state SQD: no further work request starts.
    draining: bool,
    /// Error status of the oldest work request, if this work request cannot be sent.
    fault: Option<WcStatus>,
    /// Destination (address handle and QPN) for which the header fields `headers` were computed. Consecutive datagrams
    /// often have the same destination.
    last: Option<(AhId, Qpn)>,
    headers: QpHeaders,
}

/// State needed to send datagrams.
pub(crate) struct DatagramContext<'a, P: Port> {
    pub now: Instant,
    pub port: &'a mut P,
    /// Number of packets that may still be sent; decremented by 1 for each packet.
    pub budget: &'a mut u32,
    pub memory: &'a MemoryView,
    pub pd: PdId,
    /// Q_Key of the queue pair.
    pub qkey: QKey,
    pub counters: &'a mut QpCounters,
}

/// An address handle that an application created.
#[derive(Clone, Copy)]
pub(crate) struct OpenAh<'a> {
    pub template: &'a AddressTemplate,
    /// Protection domain of the address handle.
    pub pd: PdId,
    /// Flow label of the address vector, 20 bits; 0: the UDP source port of a datagram is computed from the QPNs of its
    /// sender and receiver.
    pub flow_label: u32,
}

/// Reason for not sending a datagram.
enum Refused {
    PortFull,
    /// The work request fails with this status.
    Failed(WcStatus),
}

impl Sender {
    pub(crate) fn new(qpn: Qpn, first: Psn, ip_id: u16) -> Self {
        let headers = QpHeaders { fields: QpFields::default(), ip_id };
        Sender { qpn, next: first, draining: false, fault: None, last: None, headers }
    }

    /// Sets the PSN of the first packet, at the transition to RTS.
    pub(crate) fn start(&mut self, first: Psn) {
        self.next = first;
    }

    /// Returns the PSN of the next packet: all packets below this PSN have been sent.
    pub(crate) fn next(&self) -> Psn {
        self.next
    }

    pub(crate) fn set_draining(&mut self, draining: bool) {
        self.draining = draining;
    }

    /// If the oldest work request cannot be sent, returns and clears its error status.
    pub(crate) fn take_fault(&mut self) -> Option<WcStatus> {
        self.fault.take()
    }

    /// Sends datagrams until none is left, the oldest datagram cannot be sent, `tx.budget` is 0, or the port has no
    /// free transmit buffer.
    /// `open` returns the address handle of an `AhId`; `None` if the `AhId` was destroyed or never existed.
    pub(crate) fn transmit<'h, P: Port>(
        &mut self,
        outstanding: &mut Outstanding,
        tx: &mut DatagramContext<'_, P>,
        open: impl Fn(AhId) -> Option<OpenAh<'h>>,
    ) -> TxOutcome {
        let mtu_bytes = PathMtu::largest_for(tx.port.caps().mtu_bytes).map_or(0, PathMtu::bytes);
        while !self.draining && outstanding.next_unassigned().is_some() {
            if *tx.budget == 0 {
                return TxOutcome::MoreToSend;
            }
            match self.send_next(outstanding, tx, &open, mtu_bytes) {
                Ok(()) => {}
                Err(Refused::PortFull) => return TxOutcome::TxRingFull,
                Err(Refused::Failed(status)) => {
                    self.fault = Some(status);
                    break;
                }
            }
        }
        TxOutcome::Done
    }

    fn send_next<'h, P: Port>(
        &mut self,
        outstanding: &mut Outstanding,
        tx: &mut DatagramContext<'_, P>,
        open: &impl Fn(AhId) -> Option<OpenAh<'h>>,
        mtu_bytes: u32,
    ) -> Result<(), Refused> {
        let index = outstanding.assigned();
        let open_wqe = outstanding.queue().open(index, tx.memory, tx.pd);
        let open_wqe = open_wqe.ok_or(Refused::Failed(WcStatus::LocProtErr))?;
        let (op, len_bytes) = (open_wqe.wqe.op, open_wqe.wqe.list.len_bytes);
        let to = op.destination().ok_or(Refused::Failed(WcStatus::LocQpOpErr))?;
        let ah = open(to.ah).filter(|ah| ah.pd == tx.pd).ok_or(Refused::Failed(WcStatus::LocQpOpErr))?;
        if len_bytes > mtu_bytes {
            return Err(Refused::Failed(WcStatus::LocLenErr));
        }
        self.address(to, &ah);
        let part = segment(&op, len_bytes, 0, mtu_bytes, false);
        let mut builder = PacketBuilder { template: ah.template, headers: &mut self.headers };
        let mut spec = builder.packet(part.opcode.of(Transport::Ud), self.next, len_bytes);
        let qkey = if to.qkey.0 & QKey::CONTROLLED != 0 { tx.qkey } else { to.qkey };
        let deth = Deth { qkey, src_qp: self.qpn };
        let mut packet = TxContext {
            now: tx.now,
            port: &mut *tx.port,
            budget: &mut *tx.budget,
            memory: tx.memory,
            pd: tx.pd,
            builder,
            counters: &mut *tx.counters,
        };
        send_segment(open_wqe, &part, &mut spec, (None, Some(deth)), &mut packet).map_err(|not_sent| {
            match not_sent {
                NotSent::PortFull => Refused::PortFull,
                NotSent::BadMemory => Refused::Failed(WcStatus::LocProtErr),
            }
        })?;
        *tx.budget -= 1;
        tx.counters.sent_pkts += 1;
        tx.counters.sent_bytes += u64::from(len_bytes);
        let kind = Kind { is_read: false, takes_receive: true };
        outstanding.assign(len_bytes, kind, 0, mtu_bytes);
        self.next = self.next.plus(1);
        Ok(())
    }

    /// Unless `headers` is already computed for the destination `to`, computes `headers` for this destination.
    fn address(&mut self, to: Destination, ah: &OpenAh<'_>) {
        let key = Some((to.ah, to.qpn));
        if self.last != key {
            let label = match ah.flow_label {
                0 => flow_label_from_qpns(self.qpn, to.qpn),
                label => label,
            };
            self.headers.fields = ah.template.qp_fields(to.qpn, udp_source_port(label));
            self.last = key;
        }
    }
}
