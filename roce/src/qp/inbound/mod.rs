//! Execution of SENDs and WRITEs of reliable and unreliable connections: checks access rights and the order of the
//! packets of a message, places payloads and completes receives (IBA 9.7.4.1, 9.8.2.2). The modules `rc` and `uc`
//! process PSNs and responses.
//!
//! ```text
//!   request --sequence--> Sequenced --authorize--> Authorized --execute--> payload placed, receive completed
//!               |                       |                        |
//!               '-----------------------'------------------------'- Refusal: NAK (RC), drop (UC)
//! ```

mod checks;
mod message;

pub(crate) use checks::{INVALID, NO_ACCESS, Refusal, sequence};
pub(crate) use message::Partial;

use checks::{Authorized, Effect, FAILED, authorize};
use message::Message;

use crate::mem::{MemoryFault, MemoryView};
use crate::qp::context::RxContext;
use crate::qp::request::{Request, RqOffset};
use crate::queue::{WcOpcode, WcStatus};
use crate::start;

#[derive(Debug)]
pub(crate) struct Inbound {
    message: Message,
    /// Recv WQE sequence number of the current receive, modulo 2^32; incremented when a receive completes.
    recv_seq: u32,
}

impl Inbound {
    pub(crate) fn new(mtu_bytes: u32, has_numbered_sends: bool) -> Self {
        let message = Message { mtu_bytes, has_numbered_sends, partial: Partial::None };
        Inbound { message, recv_seq: start::receive() }
    }

    pub(crate) fn message(&self) -> &Message {
        &self.message
    }

    #[inline]
    pub(crate) fn mtu_bytes(&self) -> u32 {
        self.message.mtu_bytes
    }

    #[inline]
    pub(crate) fn partial(&self) -> Partial {
        self.message.partial
    }

    pub(crate) fn recv_seq(&self) -> u32 {
        self.recv_seq
    }

    /// Drops the message in progress without a completion. The next message uses the receive of the dropped message.
    pub(crate) fn abort(&mut self) {
        self.message.partial = Partial::None;
    }

    /// Checks a SEND or WRITE against the message in progress, access rights, receives and memory.
    #[inline]
    pub(crate) fn check<'m, R: Request>(
        &self,
        request: &R,
        rx: &mut RxContext<'_>,
        memory: &'m MemoryView,
    ) -> Result<Authorized<'m>, Refusal> {
        sequence(request, &self.message).and_then(|request| authorize(request, &self.message, rx, memory))
    }

    /// Executes `packets` MIDDLEs of the message in progress. Their payloads, each of the path MTU, were placed on
    /// arrival.
    pub(crate) fn execute_middles(&mut self, packets: u32, rx: &mut RxContext<'_>) -> Result<(), Refusal> {
        let len = packets.saturating_mul(self.message.mtu_bytes);
        self.message.partial = match self.message.partial {
            Partial::Send { received_bytes } => {
                let room_bytes = rx.receive().map_or(0, |wqe| wqe.list.len_bytes);
                let received_bytes = received_bytes.saturating_add(len);
                if received_bytes > room_bytes {
                    return Err(INVALID);
                }
                Partial::Send { received_bytes }
            }
            Partial::Write { va, rkey, left, total } if left > len => {
                Partial::Write { va: va.wrapping_add(u64::from(len)), rkey, left: left - len, total }
            }
            // MIDDLEs are invalid if no message is in progress, or if they leave no byte of the WRITE for its LAST.
            _ => return Err(INVALID),
        };
        rx.counters.rcvd_bytes += u64::from(len);
        Ok(())
    }

    #[inline]
    pub(crate) fn execute<R: Request>(
        &mut self,
        request: &R,
        authorized: &Authorized<'_>,
        rx: &mut RxContext<'_>,
    ) -> Result<(), Refusal> {
        let ends = request.info().ends_message();
        let len = request.len_bytes();
        rx.counters.rcvd_bytes += u64::from(len);
        match authorized.effect {
            Effect::Send { at } => {
                match request.payload() {
                    Some(payload) => fill_receive(payload, at, rx)?,
                    None => self.is_in_place(request, at)?,
                }
                self.message.partial =
                    if ends { Partial::None } else { Partial::Send { received_bytes: at + len } };
                if ends {
                    self.complete_receive(request, WcOpcode::Recv, at + len, rx);
                }
            }
            Effect::Write { span, va, rkey, left, total } => {
                if let Some(payload) = request.payload() {
                    span.copy_from(payload).map_err(|MemoryFault| FAILED)?;
                }
                self.message.partial =
                    if ends { Partial::None } else { Partial::Write { va, rkey, left, total } };
                rx.counters.rx_write_requests += u64::from(ends);
                if request.info().has_immediate {
                    self.complete_receive(request, WcOpcode::RecvRdmaWithImm, total, rx);
                }
            }
        }
        Ok(())
    }

    /// Executes `packets` WRITE ONLYs without immediate, whose payloads, of `bytes` together, were placed on arrival. No
    /// message may be in progress.
    #[inline]
    pub(crate) fn execute_write_onlys(packets: u32, bytes: u64, rx: &mut RxContext<'_>) {
        rx.counters.rcvd_bytes += bytes;
        rx.counters.rx_write_requests += u64::from(packets);
    }

    /// Executes a SEND ONLY whose payload was placed on arrival. Returns false, without an effect, if a message is in
    /// progress, or if the payload is not in the current receive. If it is, its length was checked on arrival.
    #[inline]
    pub(crate) fn execute_send_only<R: Request>(&mut self, request: &R, rx: &mut RxContext<'_>) -> bool {
        if self.message.partial != Partial::None || self.is_in_place(request, 0).is_err() {
            return false;
        }
        let len = request.len_bytes();
        rx.counters.rcvd_bytes += u64::from(len);
        self.complete_receive(request, WcOpcode::Recv, len, rx);
        true
    }

    /// Checks that a SEND payload placed on arrival is where in-order execution would place it. If not, the RecvETH was
    /// wrong, and the request is invalid.
    fn is_in_place<R: Request>(&self, request: &R, at: u32) -> Result<(), Refusal> {
        let rq_offset = RqOffset { recv_seq: self.recv_seq, offset_bytes: at };
        if request.rq_offset() == Some(rq_offset) { Ok(()) } else { Err(INVALID) }
    }

    #[inline]
    fn complete_receive<R: Request>(
        &mut self,
        request: &R,
        opcode: WcOpcode,
        len_bytes: u32,
        rx: &mut RxContext<'_>,
    ) {
        rx.counters.rdma_recvs += 1;
        self.recv_seq = self.recv_seq.wrapping_add(1);
        let (imm, solicited) = (request.immdt(), request.solicited());
        rx.complete_receive(WcStatus::Success, opcode, len_bytes, imm, solicited);
    }
}

#[inline]
fn fill_receive(payload: &[u8], at: u32, rx: &mut RxContext<'_>) -> Result<(), Refusal> {
    let list = rx.receive().ok_or(Refusal::NotReady)?.list;
    rx.receives.lists(rx.memory, rx.pd).scatter(&list, at, payload).map_err(|_| Refusal::BadReceive)
}
