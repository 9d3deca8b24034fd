//! Execution of requests: placement of payloads, completion of receives, and the message in progress.

use super::checks::{Authorized, Effect, Refusal};
use super::context::RxContext;
use super::message::Partial;
use crate::id::Msn;
use crate::qp::rc::read_queue::{ReadQueue, ReadRequest};
use crate::qp::rc::request::{Request, RqOffset};
use crate::queue::{Cqe, WcOpcode, WcStatus};
use crate::start;
use crate::wire::NakCode;

#[derive(Debug)]
pub(super) struct Execution {
    mtu_bytes: u32,
    msn: Msn,
    partial: Partial,
    /// Recv WQE sequence number of the oldest receive, modulo 2^32; incremented when a receive completes.
    recv_seq: u32,
}

impl Execution {
    pub(super) fn new(mtu_bytes: u32) -> Self {
        Execution { mtu_bytes, msn: start::MSN, partial: Partial::None, recv_seq: start::RECEIVE }
    }

    #[inline]
    pub(super) fn mtu_bytes(&self) -> u32 {
        self.mtu_bytes
    }

    #[inline]
    pub(super) fn msn(&self) -> Msn {
        self.msn
    }

    #[inline]
    pub(super) fn partial(&self) -> Partial {
        self.partial
    }

    pub(super) fn recv_seq(&self) -> u32 {
        self.recv_seq
    }

    /// Executes `packets` placed MIDDLEs of the message in progress, each with a payload of the path MTU.
    pub(super) fn execute_middles(&mut self, packets: u32, rx: &mut RxContext<'_>) -> Result<(), Refusal> {
        let len = packets.saturating_mul(self.mtu_bytes);
        let room_bytes = rx.rq.oldest().map_or(0, |wqe| wqe.list.len_bytes);
        self.partial = match self.partial {
            Partial::Send { received_bytes } if received_bytes.saturating_add(len) <= room_bytes => {
                Partial::Send { received_bytes: received_bytes + len }
            }
            Partial::Write { va, rkey, left, total } if left > len => {
                Partial::Write { va: va.wrapping_add(u64::from(len)), rkey, left: left - len, total }
            }
            // The placed MIDDLEs exceed the message in progress or its receive, so they belong to another message.
            _ => return Err(Refusal::Nak(NakCode::InvalidRequest)),
        };
        rx.counters.rcvd_bytes += u64::from(len);
        Ok(())
    }

    /// Executes a request. Returns the number of PSNs that it takes: 1, or for a READ the number of its responses.
    #[inline]
    pub(super) fn execute<R: Request>(
        &mut self,
        request: &R,
        authorized: &Authorized<'_>,
        reads: &mut ReadQueue,
        rx: &mut RxContext<'_>,
    ) -> Result<u32, Refusal> {
        let ends = request.info().ends_message();
        let len = request.len_bytes();
        rx.counters.rcvd_bytes += u64::from(len);
        match *authorized.effect() {
            Effect::Send { at } => {
                match request.payload() {
                    Some(payload) => fill_receive(payload, at, rx)?,
                    None => self.is_in_place(request, at)?,
                }
                self.partial = if ends { Partial::None } else { Partial::Send { received_bytes: at + len } };
                if ends {
                    self.complete_receive(request, WcOpcode::Recv, at + len, rx);
                }
            }
            Effect::Write { span, va, rkey, left, total } => {
                if let Some(payload) = request.payload() {
                    span.copy_from(payload);
                }
                self.partial = if ends { Partial::None } else { Partial::Write { va, rkey, left, total } };
                rx.counters.rx_write_requests += u64::from(ends);
                if request.info().has_immediate {
                    self.complete_receive(request, WcOpcode::RecvRdmaWithImm, total, rx);
                }
            }
            Effect::Read { reth } => {
                self.msn = self.msn.next();
                let read = ReadRequest::new(request.psn(), reth, self.msn, self.mtu_bytes);
                reads.push(read);
                rx.counters.rx_read_requests += 1;
                return Ok(read.packets);
            }
        }
        if ends {
            self.msn = self.msn.next();
        }
        Ok(1)
    }

    /// Checks that a SEND payload placed out of order lies where execution in order would place it. If not, its RecvETH
    /// was wrong, and the request is invalid.
    fn is_in_place<R: Request>(&self, request: &R, at: u32) -> Result<(), Refusal> {
        let rq_offset = RqOffset { recv_seq: self.recv_seq, offset_bytes: at };
        if request.rq_offset() == Some(rq_offset) {
            Ok(())
        } else {
            Err(Refusal::Nak(NakCode::InvalidRequest))
        }
    }

    #[inline]
    fn complete_receive<R: Request>(
        &mut self,
        request: &R,
        opcode: WcOpcode,
        len_bytes: u32,
        rx: &mut RxContext<'_>,
    ) {
        let Some(wqe) = rx.rq.release_oldest() else { return };
        rx.counters.rdma_recvs += 1;
        self.recv_seq = self.recv_seq.wrapping_add(1);
        let imm = request.immdt();
        let (wr_id, status, qpn) = (wqe.wr_id, WcStatus::Success, rx.qpn);
        rx.cqs.write(rx.cq, Cqe { wr_id, status, opcode, len_bytes, imm, qpn }, request.solicited());
    }
}

#[inline]
fn fill_receive(payload: &[u8], at: u32, rx: &mut RxContext<'_>) -> Result<(), Refusal> {
    let list = rx.rq.oldest().ok_or(Refusal::NotReady)?.list;
    let mut lists = rx.rq.lists(rx.memory, rx.pd);
    lists
        .scatter(&list, at, payload)
        .map_err(|_| Refusal::NakAndFailReceive(NakCode::RemoteOperationalError, WcStatus::LocProtErr))
}
