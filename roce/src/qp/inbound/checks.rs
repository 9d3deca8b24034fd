//! Checks of a request before its execution (IBA 9.7.4.1): access rights, receives, memory, and the order of the
//! packets of a message.

use super::message::{Message, Partial};
use crate::id::RKey;
use crate::mem::{Access, MemoryView, Span};
use crate::qp::context::RxContext;
use crate::qp::request::Request;
use crate::queue::wqe::MAX_MESSAGE_BYTES;
use crate::wire::{NakCode, Operation, Position};

/// Reason for not executing a request.
#[derive(Clone, Copy)]
pub(crate) enum Refusal {
    /// The request is invalid, or has no access to the memory named by its RETH, or this memory could not be accessed
    /// (memory fault). A reliable connection sends a NAK with this code.
    Invalid(NakCode),
    /// The message is longer than its receive.
    TooLong,
    /// The memory named by the scatter list of the receive cannot be written.
    BadReceive,
    /// No receive is posted.
    NotReady,
    /// The request is a READ, and the queue of READs to serve is full.
    Deferred,
}

pub(crate) const INVALID: Refusal = Refusal::Invalid(NakCode::InvalidRequest);
pub(crate) const NO_ACCESS: Refusal = Refusal::Invalid(NakCode::RemoteAccessError);
/// The responder cannot execute a valid request (IBA 9.7.5.2).
pub(crate) const FAILED: Refusal = Refusal::Invalid(NakCode::RemoteOperationalError);

/// A request whose opcode and length fit the message in progress.
pub(crate) struct Sequenced<'p, R> {
    request: &'p R,
}

/// A request that passed the checks of access rights, memory and receives.
pub(crate) struct Authorized<'m> {
    pub(super) effect: Effect<'m>,
}

pub(super) enum Effect<'m> {
    /// Payload to place in the current receive, from byte `at` of the receive on.
    Send { at: u32 },
    /// Payload to place in `span`. The last `left` of the `total` bytes of the message are to be placed later, at
    /// `va` with `rkey`.
    Write { span: Span<'m>, va: u64, rkey: RKey, left: u32, total: u32 },
}

/// Checks that opcode (IBA 9.7.4.1) and length (9.7.4.1.6) of a request fit the message in progress.
#[inline]
pub(crate) fn sequence<'p, R: Request>(
    request: &'p R,
    message: &Message,
) -> Result<Sequenced<'p, R>, Refusal> {
    let info = request.info();
    let in_turn = match message.partial {
        Partial::None => info.starts_message(),
        Partial::Send { .. } => info.operation == Operation::Send && !info.starts_message(),
        Partial::Write { .. } => info.operation == Operation::Write && !info.starts_message(),
    };
    let len = request.len_bytes();
    let fits = if !info.ends_message() { len == message.mtu_bytes } else { len <= message.mtu_bytes };
    let last_is_empty = info.position == Position::Last && len == 0;
    if !in_turn || !fits || last_is_empty {
        return Err(INVALID);
    }
    Ok(Sequenced { request })
}

/// Checks a SEND or WRITE against access rights, receives and memory (IBA 9.7.4.1). Refuses all other operations as
/// invalid.
#[inline]
pub(super) fn authorize<'m, R: Request>(
    request: Sequenced<'_, R>,
    message: &Message,
    rx: &mut RxContext<'_>,
    memory: &'m MemoryView,
) -> Result<Authorized<'m>, Refusal> {
    let request = request.request;
    let effect = match request.info().operation {
        Operation::Send => authorize_send(request, message, rx)?,
        Operation::Write => authorize_write(request, message, rx, memory)?,
        _ => return Err(INVALID),
    };
    Ok(Authorized { effect })
}

#[inline]
fn authorize_send<'m, R: Request>(
    request: &R,
    message: &Message,
    rx: &mut RxContext<'_>,
) -> Result<Effect<'m>, Refusal> {
    let room_bytes = rx.receive().ok_or(Refusal::NotReady)?.list.len_bytes;
    // SEND with invalidate is refused, because neither memory windows nor fast registration are supported: no R_Key
    // may be invalidated by the peer. A numbered SEND is refused unless the recovery scheme is selective repeat.
    if request.invalidates() || (request.is_numbered() && !message.has_numbered_sends) {
        return Err(INVALID);
    }
    let at = if let Partial::Send { received_bytes } = message.partial { received_bytes } else { 0 };
    if u64::from(request.len_bytes()) + u64::from(at) > u64::from(room_bytes) {
        return Err(Refusal::TooLong);
    }
    Ok(Effect::Send { at })
}

#[inline]
fn authorize_write<'m, R: Request>(
    request: &R,
    message: &Message,
    rx: &mut RxContext<'_>,
    memory: &'m MemoryView,
) -> Result<Effect<'m>, Refusal> {
    if !rx.access.contains(Access::REMOTE_WRITE) {
        return Err(INVALID);
    }
    if request.info().has_immediate && rx.receive().is_none() {
        return Err(Refusal::NotReady);
    }
    let (va, rkey, wanted, total) = match (request.reth(), message.partial) {
        (Some(reth), _) => (reth.va, reth.rkey, reth.len_bytes, reth.len_bytes),
        (None, Partial::Write { va, rkey, left, total }) => (va, rkey, left, total),
        _ => return Err(INVALID),
    };
    let len = request.len_bytes();
    // LAST and ONLY must carry all remaining bytes of the message; FIRST and MIDDLE must leave at least one byte.
    let left = wanted.checked_sub(len).filter(|left| (*left == 0) == request.info().ends_message());
    let Some(left) = left.filter(|_| total <= MAX_MESSAGE_BYTES) else { return Err(INVALID) };
    // At the first packet, the destination memory of the whole message is checked, so that a message beyond its memory
    // region writes nothing. The destination memory of each payload is checked, too, because the memory region may be
    // deregistered between two packets. The payload of an ONLY is the whole message.
    if request.info().starts_message() && (left > 0 || request.payload().is_none()) {
        let whole = memory.open_remote(rx.pd, rkey, va, total, Access::REMOTE_WRITE);
        whole.map_err(|_| NO_ACCESS)?;
    }
    let span = match request.payload() {
        Some(_) => memory.open_remote(rx.pd, rkey, va, len, Access::REMOTE_WRITE),
        None => Ok(Span::EMPTY),
    };
    let span = span.map_err(|_| NO_ACCESS)?;
    Ok(Effect::Write { span, va: va.wrapping_add(u64::from(len)), rkey, left, total })
}
