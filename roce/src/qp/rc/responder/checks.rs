//! Checks of a request before its execution (IBA 9.7.4.1): its place in the message in progress, access rights,
//! receives and memory.

use super::context::RxContext;
use super::message::Partial;
use crate::id::RKey;
use crate::mem::{Access, MemoryTable, Span};
use crate::qp::rc::read_queue::{NotQueued, ReadQueue};
use crate::qp::rc::request::Request;
use crate::queue::WcStatus;
use crate::queue::wqe::MAX_MESSAGE_BYTES;
use crate::recovery::responder::ResponderRecovery;
use crate::wire::{NakCode, Operation, Position, Reth};

/// Reason for not executing a request.
#[derive(Clone, Copy)]
pub(super) enum Refusal {
    /// A NAK is sent, and the queue pair changes to ERR.
    Nak(NakCode),
    /// A NAK is sent, the oldest receive completes in error, and the queue pair changes to ERR.
    NakAndFailReceive(NakCode, WcStatus),
    /// An RNR NAK is sent, because no receive is posted.
    NotReady,
    /// The request is dropped without a response, as if it were lost.
    Drop,
}

const INVALID: Refusal = Refusal::Nak(NakCode::InvalidRequest);

/// A request with the expected PSN whose opcode and length fit the message in progress.
pub(super) struct Sequenced<'p, R> {
    request: &'p R,
}

/// A request that passed the checks of access rights, memory and receives.
pub(super) struct Authorized<'m> {
    effect: Effect<'m>,
}

pub(super) enum Effect<'m> {
    /// Payload for the oldest receive, to be placed from byte `at` of the receive on.
    Send { at: u32 },
    /// Payload to place in `span`. `va`, `rkey`, `left`: rest of the message after the packet; `total`: message length.
    Write { span: Span<'m>, va: u64, rkey: RKey, left: u32, total: u32 },
    /// A READ, to be queued.
    Read { reth: Reth },
}

impl<'m> Authorized<'m> {
    #[inline]
    pub(super) fn effect(&self) -> &Effect<'m> {
        &self.effect
    }
}

/// Checks that opcode (IBA 9.7.4.1.2) and length (9.7.4.1.6) of a request fit the message in progress.
#[inline]
pub(super) fn sequence<'p, R: Request>(
    request: &'p R,
    partial: Partial,
    mtu_bytes: u32,
) -> Result<Sequenced<'p, R>, Refusal> {
    let info = request.info();
    let in_turn = match partial {
        Partial::None => info.starts_message(),
        Partial::Send { .. } => info.operation == Operation::Send && !info.starts_message(),
        Partial::Write { .. } => info.operation == Operation::Write && !info.starts_message(),
    };
    let len = request.len_bytes();
    let fits = if !info.ends_message() { len == mtu_bytes } else { len <= mtu_bytes };
    let last_is_empty = info.position == Position::Last && len == 0;
    if !in_turn || !fits || last_is_empty {
        return Err(INVALID);
    }
    Ok(Sequenced { request })
}

pub(super) struct Checks<'a> {
    pub partial: Partial,
    pub reads: &'a ReadQueue,
    pub recovery: &'a ResponderRecovery,
}

impl Checks<'_> {
    /// Checks a request against access rights, receives and memory (IBA 9.7.4.1.3 to 9.7.4.1.5).
    #[inline]
    pub(super) fn authorize<'m, R: Request>(
        &self,
        request: Sequenced<'_, R>,
        rx: &mut RxContext<'_>,
        memory: &'m MemoryTable,
    ) -> Result<Authorized<'m>, Refusal> {
        let request = request.request;
        let effect = match request.info().operation {
            Operation::Send => self.authorize_send(request, rx)?,
            Operation::Write => self.authorize_write(request, rx, memory)?,
            Operation::ReadRequest => self.authorize_read(request, rx)?,
            _ => return Err(INVALID),
        };
        Ok(Authorized { effect })
    }

    #[inline]
    fn authorize_send<'m, R: Request>(
        &self,
        request: &R,
        rx: &mut RxContext<'_>,
    ) -> Result<Effect<'m>, Refusal> {
        let room_bytes = rx.rq.oldest().ok_or(Refusal::NotReady)?.list.len_bytes;
        // SEND with invalidate needs memory windows, which are not supported. Only selective repeat has numbered SENDs.
        if request.invalidates() || (request.is_numbered() && !self.recovery.accepts_numbered_sends()) {
            return Err(INVALID);
        }
        let at = if let Partial::Send { received_bytes } = self.partial { received_bytes } else { 0 };
        if u64::from(request.len_bytes()) + u64::from(at) > u64::from(room_bytes) {
            return Err(Refusal::NakAndFailReceive(NakCode::InvalidRequest, WcStatus::LocLenErr));
        }
        Ok(Effect::Send { at })
    }

    #[inline]
    fn authorize_write<'m, R: Request>(
        &self,
        request: &R,
        rx: &mut RxContext<'_>,
        memory: &'m MemoryTable,
    ) -> Result<Effect<'m>, Refusal> {
        if !rx.access.contains(Access::REMOTE_WRITE) {
            return Err(INVALID);
        }
        if request.info().has_immediate && rx.rq.is_empty() {
            return Err(Refusal::NotReady);
        }
        let (va, rkey, wanted, total) = match (request.reth(), self.partial) {
            (Some(reth), _) => (reth.va, reth.rkey, reth.len_bytes, reth.len_bytes),
            (None, Partial::Write { va, rkey, left, total }) => (va, rkey, left, total),
            _ => return Err(INVALID),
        };
        let len = request.len_bytes();
        // LAST and ONLY must carry all remaining bytes of the message; FIRST and MIDDLE must leave at least one byte.
        let left = wanted.checked_sub(len).filter(|left| (*left == 0) == request.info().ends_message());
        let Some(left) = left.filter(|_| total <= MAX_MESSAGE_BYTES) else { return Err(INVALID) };
        // The first packet of a message is checked for the whole message, so that a message beyond the region writes
        // nothing. Each packet is checked for itself, because the region may be deregistered between two packets.
        if request.info().starts_message() {
            let whole = memory.open_remote(rx.pd, rkey, va, total, Access::REMOTE_WRITE);
            whole.map_err(|_| Refusal::Nak(NakCode::RemoteAccessError))?;
        }
        let span = match request.payload() {
            Some(_) => memory.open_remote(rx.pd, rkey, va, len, Access::REMOTE_WRITE),
            None => Ok(Span::EMPTY),
        };
        let span = span.map_err(|_| Refusal::Nak(NakCode::RemoteAccessError))?;
        Ok(Effect::Write { span, va: va.wrapping_add(u64::from(len)), rkey, left, total })
    }

    fn authorize_read<'m, R: Request>(
        &self,
        request: &R,
        rx: &mut RxContext<'_>,
    ) -> Result<Effect<'m>, Refusal> {
        let Some(reth) = request.reth().filter(|reth| reth.len_bytes <= MAX_MESSAGE_BYTES) else {
            return Err(INVALID);
        };
        if !rx.access.contains(Access::REMOTE_READ) {
            return Err(INVALID);
        }
        match self.reads.admit() {
            Ok(()) => {}
            Err(NotQueued::OverLimit) => return Err(INVALID),
            Err(_) => {
                rx.counters.read_deferred += 1;
                return Err(Refusal::Drop);
            }
        }
        rx.memory
            .open_remote(rx.pd, reth.rkey, reth.va, reth.len_bytes, Access::REMOTE_READ)
            .map_err(|_| Refusal::Nak(NakCode::RemoteAccessError))?;
        Ok(Effect::Read { reth })
    }
}
