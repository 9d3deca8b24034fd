//! READs of a responder: the queue of READs whose responses are still to be sent, and the responder resources,
//! by which duplicates are recognised (IBA 9.7.5.1.2, C9-112).
//!
//! ```text
//!   resources | served | served    | served in part | waiting | early READs |      in PSN order
//!   queue              | duplicate | served in part | waiting | early READs |
//! ```
//! An early READ is served although the READ request with the expected PSN, which is below it, is missing. When the
//! expected PSN reaches the early READ, the early READ counts as executed.
//!
//! Under both kinds of go-back-N, the responder resources hold the last `max_dest_rd_atomic` READs. Under selective
//! repeat, the peer's limit `max_rd_atomic` counts only READs with a missing response, and between two such READs the
//! peer may have received all responses of any number of READs. Therefore the responder resources hold all READs of one
//! window.
//!
//! A duplicate READ request of 74 bytes may cause the retransmission of a megabyte. Therefore each READ in the
//! responder resources has a retransmission limit, in responses: [`RETRANSMITS_PER_READ`] times the number of responses
//! of the READ, plus [`RETRANSMIT_PKTS_MIN`]. A response retransmitted beyond the retransmission limit takes a token of
//! a token bucket, which the READs of the queue pair share; see [`RETRANSMIT_PKTS_PER_SEC`].

use crate::id::Msn;
use crate::psn::Psn;
use crate::qp::segment::packets_in;
use crate::recovery::responder::SelectiveReads;
use crate::time::Instant;
use crate::wire::Reth;
use std::collections::VecDeque;

/// The retransmission limit of a READ is this number times the number of its responses, plus [`RETRANSMIT_PKTS_MIN`].
/// At 5 % loss, with 256 responses in flight, a go-back-N peer requests all responses of a READ 13 times.
pub const RETRANSMITS_PER_READ: u32 = 16;

/// The retransmission limit of a READ is this number, in responses, plus [`RETRANSMITS_PER_READ`] times the number of
/// its responses, because the single response of a short READ may be lost many times.
pub const RETRANSMIT_PKTS_MIN: u32 = 64;

/// Responses per second that a queue pair may retransmit beyond the retransmission limits of its READs
/// ([`RETRANSMITS_PER_READ`], [`RETRANSMIT_PKTS_MIN`]), so that READs progress at high loss.
pub const RETRANSMIT_PKTS_PER_SEC: u64 = 50_000;

/// Largest burst of responses, in packets, that a queue pair may retransmit beyond the retransmission limits of its
/// READs ([`RETRANSMITS_PER_READ`], [`RETRANSMIT_PKTS_MIN`]).
pub const RETRANSMIT_BURST_PKTS: u64 = 256;

const NANOS_PER_PKT: u64 = 1_000_000_000 / RETRANSMIT_PKTS_PER_SEC;

/// A READ, or the part of a READ requested by a duplicate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ReadRequest {
    /// PSN of the first response.
    pub first: Psn,
    pub packets: u32,
    pub reth: Reth,
    /// MSN in the AETHs of the responses.
    pub msn: Msn,
}

impl ReadRequest {
    pub(crate) fn new(first: Psn, reth: Reth, msn: Msn, mtu_bytes: u32) -> Self {
        ReadRequest { first, packets: packets_in(reth.len_bytes, mtu_bytes), reth, msn }
    }

    pub(crate) fn end(&self) -> Psn {
        self.first.plus(self.packets)
    }

    /// Removes the responses below `psn`, one of the PSNs of this READ.
    fn skip_to(&mut self, psn: Psn, mtu_bytes: u32) {
        let skipped = psn.distance_from(self.first);
        let skipped_bytes = skipped * mtu_bytes;
        (self.first, self.packets) = (psn, self.packets - skipped);
        self.reth.va = self.reth.va.wrapping_add(u64::from(skipped_bytes));
        self.reth.len_bytes -= skipped_bytes;
    }

    /// Returns the responses to a duplicate that has PSN `psn` and RETH `reth`. Returns `None` if this READ has no
    /// response `psn`, or if `reth` does not begin at the address of response `psn`, has another R_Key or, unless
    /// `is_cut`, ends beyond the end of this READ. If `is_cut`, returns no responses beyond the end of this READ: under
    /// selective repeat, this READ may be only a part of the peer's READ.
    fn part_at(&self, psn: Psn, reth: &Reth, mtu_bytes: u32, is_cut: bool) -> Option<Waiting> {
        let index = psn.index_in(self.first, self.packets)?;
        let skipped = index * mtu_bytes;
        let left = self.reth.len_bytes - skipped;
        let inside = reth.rkey == self.reth.rkey
            && reth.va == self.reth.va.wrapping_add(u64::from(skipped))
            && (reth.len_bytes <= left || is_cut);
        if !inside {
            return None;
        }
        if reth.len_bytes == left {
            return Some(Waiting { sent: index, is_duplicate: true, ..Waiting::new(*self) });
        }
        let reth = Reth { len_bytes: reth.len_bytes.min(left), ..*reth };
        let request = ReadRequest::new(psn, reth, self.msn, mtu_bytes);
        Some(Waiting { is_duplicate: true, ..Waiting::new(request) })
    }
}

/// A READ in the queue, with responses still to be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Waiting {
    pub request: ReadRequest,
    /// Index, in `request`, of the response to be sent next.
    pub sent: u32,
    /// True if the next response is FIRST or ONLY: the first response of a READ, or the first that is retransmitted for
    /// a duplicate. After an ACK, rxe (Linux 6.12) accepts no MIDDLE or LAST as the next response.
    pub starts_message: bool,
    /// True for a duplicate of a READ; a duplicate does not count against `max_dest_rd_atomic`.
    is_duplicate: bool,
    /// Under both kinds of go-back-N: the next response was sent before, and is the first that a duplicate requested
    /// again. Under selective repeat false: the peer requests only the lost responses again, so the retransmissions
    /// hardly add to a congestion.
    shows_loss: bool,
}

impl Waiting {
    fn new(request: ReadRequest) -> Self {
        Waiting { request, sent: 0, starts_message: true, is_duplicate: false, shows_loss: false }
    }

    pub(crate) fn next_psn(&self) -> Psn {
        self.request.first.plus(self.sent)
    }

    fn end(&self) -> Psn {
        self.request.end()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NotQueued {
    /// The peer has more READs outstanding than the responder resources permit.
    OverLimit,
    /// Duplicates fill the queue of READs; the READ is dropped as if lost.
    NoRoom,
    /// The READ is a duplicate, but is not part of a READ in the responder resources.
    NotRemembered,
    /// The READ is a duplicate; its retransmission limit and the [`Allowance`] permit no retransmission of responses.
    TooOften,
}

/// A READ in the responder resources, and the unused part of its retransmission limit, in responses.
#[derive(Clone, Copy, Debug)]
struct ResponderResource {
    request: ReadRequest,
    /// Number of responses that may still be retransmitted without a token of the [`Allowance`].
    retransmits_left: u32,
}

impl ResponderResource {
    fn new(request: ReadRequest) -> Self {
        let retransmits_left =
            request.packets.saturating_mul(RETRANSMITS_PER_READ).saturating_add(RETRANSMIT_PKTS_MIN);
        ResponderResource { request, retransmits_left }
    }
}

/// Early READs that follow each other without a gap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct EarlyRun {
    pub reads: u32,
    /// Number of PSNs of all these READs.
    pub packets: u32,
    /// First PSN of the highest READ.
    pub last: Psn,
}

/// Token bucket of a queue pair for responses retransmitted beyond the retransmission limits of its READs
/// ([`RETRANSMITS_PER_READ`], [`RETRANSMIT_PKTS_MIN`]); one token is one response.
#[derive(Clone, Copy, Debug)]
struct Allowance {
    /// Time since which the unused tokens have accrued. If responses used tokens not yet accrued, this time is in the
    /// future.
    since: Instant,
}

impl Allowance {
    /// Takes the tokens accrued, at most `wanted`. Returns the number of tokens taken.
    fn take(&mut self, now: Instant, wanted: u32) -> u32 {
        let taken = u32::try_from(self.accrued(now)).map_or(wanted, |accrued| accrued.min(wanted));
        self.since = self.since.plus_nanos(u64::from(taken) * NANOS_PER_PKT);
        taken
    }

    /// If the number of tokens accrued is at least `wanted`, or is the maximum [`RETRANSMIT_BURST_PKTS`], takes
    /// `wanted` tokens and returns true; tokens not yet accrued are taken in advance. Otherwise takes no token and
    /// returns false.
    fn take_all(&mut self, now: Instant, wanted: u32) -> bool {
        let is_granted = self.accrued(now) >= u64::from(wanted).min(RETRANSMIT_BURST_PKTS);
        if is_granted {
            self.since = self.since.plus_nanos(u64::from(wanted) * NANOS_PER_PKT);
        }
        is_granted
    }

    /// Returns the number of tokens accrued, at most [`RETRANSMIT_BURST_PKTS`].
    fn accrued(&mut self, now: Instant) -> u64 {
        let full = Instant::from_nanos(now.as_nanos().saturating_sub(RETRANSMIT_BURST_PKTS * NANOS_PER_PKT));
        self.since = self.since.max(full);
        now.as_nanos().saturating_sub(self.since.as_nanos()) / NANOS_PER_PKT
    }
}

#[derive(Debug)]
pub(crate) struct ReadQueue {
    allowance: Allowance,
    /// `None` under both kinds of go-back-N. Under selective repeat, the peer requests only the lost responses of a
    /// READ.
    selective: Option<SelectiveReads>,
    new_reads: usize,
    mtu_bytes: u32,
    limit: u8,
    /// All PSNs from `run_first` to the last PSN of the newest READ of `resources` belong to READs of `resources`; the
    /// PSN before `run_first` does not.
    run_first: Psn,
    /// READs in PSN order: first the READs below the expected PSN, then the early READs.
    resources: VecDeque<ResponderResource>,
    /// Number of early READs in `resources`.
    early: usize,
    queue: VecDeque<Waiting>,
}

impl ReadQueue {
    /// Creates an empty queue, and empty responder resources. `limit` is `max_dest_rd_atomic`, `selective` is `None`
    /// under both kinds of go-back-N. Under selective repeat queue and responder resources grow if the peer sends more
    /// than `limit` short READs per window.
    pub(crate) fn new(limit: u8, selective: Option<SelectiveReads>, mtu_bytes: u32) -> Self {
        let places = usize::from(limit);
        let duplicates_max = selective.map_or(places, |selective| selective.duplicates_max);
        // If `limit` is 0, no READ is executed, so the queue needs no room for duplicates.
        let duplicates_max = if places == 0 { 0 } else { duplicates_max };
        ReadQueue {
            allowance: Allowance { since: Instant::ZERO },
            selective,
            new_reads: 0,
            mtu_bytes,
            limit,
            run_first: Psn::default(),
            early: 0,
            resources: VecDeque::with_capacity(places),
            queue: VecDeque::with_capacity(places + duplicates_max),
        }
    }

    /// Returns whether the queue has no room for a duplicate. Under both kinds of go-back-N the queue has room for
    /// `limit` (`max_dest_rd_atomic`) READs and as many duplicates, because the peer retransmits all outstanding READs.
    fn is_full(&self) -> bool {
        match self.selective {
            Some(selective) => self.queue.len() - self.new_reads >= selective.duplicates_max,
            None => self.queue.len() >= 2 * usize::from(self.limit),
        }
    }

    /// Checks that a READ that is not a duplicate may be queued. Under selective repeat at most `window_pkts` READs
    /// that are not duplicates are queued (none if `limit` is 0), because READ requests that were buffered above a gap
    /// do not count against the peer's `max_rd_atomic`, and all these READ requests are executed when the gap is
    /// closed.
    pub(crate) fn admit(&self) -> Result<(), NotQueued> {
        let limit = match self.selective {
            Some(selective) if self.limit > 0 => selective.window_pkts as usize,
            _ => usize::from(self.limit),
        };
        if self.new_reads >= limit {
            return Err(NotQueued::OverLimit);
        }
        if self.selective.is_none() && self.is_full() { Err(NotQueued::NoRoom) } else { Ok(()) }
    }

    /// Queues a READ that [`ReadQueue::admit`] permitted, and adds this READ to the responder resources.
    pub(crate) fn push(&mut self, request: ReadRequest) {
        self.forget_stale(request.first);
        if self.selective.is_none() && self.resources.len() >= usize::from(self.limit) {
            self.forget_oldest();
        }
        self.forget_unneeded(&request);
        self.extend_run(request.first);
        self.insert(self.executed_in_order(), request);
    }

    /// Queues an early READ that [`ReadQueue::admit`] permitted, and adds it to the responder resources.
    pub(crate) fn push_early(&mut self, request: ReadRequest) {
        self.forget_unneeded(&request);
        let is_below = |read: &ResponderResource| is_below(read.request.first, request.first);
        let above = self.resources.iter().rev().take(self.early).take_while(|read| !is_below(read)).count();
        self.insert(self.resources.len() - above, request);
        self.early += 1;
    }

    /// Inserts a READ at position `at` of the responder resources, and in PSN order into the queue.
    fn insert(&mut self, at: usize, request: ReadRequest) {
        let is_above =
            |waiting: &Waiting| !waiting.is_duplicate && is_below(request.first, waiting.request.first);
        let above = self.queue.iter().rev().take_while(|waiting| is_above(waiting)).count();
        insert_at(&mut self.resources, at, ResponderResource::new(request));
        let at = self.queue.len() - above;
        insert_at(&mut self.queue, at, Waiting::new(request));
        self.new_reads += 1;
    }

    /// Returns the number of READs in the responder resources without the early READs.
    fn executed_in_order(&self) -> usize {
        self.resources.len() - self.early
    }

    fn last_executed(&self) -> Option<&ReadRequest> {
        Some(&self.resources.get(self.executed_in_order().checked_sub(1)?)?.request)
    }

    /// Returns the number of early READs.
    pub(crate) fn early(&self) -> usize {
        self.early
    }

    /// Returns the first PSN of each early READ.
    pub(crate) fn early_psns(&self) -> impl Iterator<Item = Psn> {
        self.resources.range(self.executed_in_order()..).map(|read| read.request.first)
    }

    /// Called before the READ with first PSN `first` is executed: updates `run_first`.
    fn extend_run(&mut self, first: Psn) {
        if self.last_executed().is_none_or(|last| last.end() != first) {
            self.run_first = first;
        }
    }

    /// Returns whether `psn` belongs to an early READ.
    pub(crate) fn is_early(&self, psn: Psn) -> bool {
        // Most READ requests are above all READs received before, and need no search.
        if self.early == 0 || self.resources.back().is_none_or(|last| !is_below(psn, last.request.end())) {
            return false;
        }
        let read = self.index_at(psn).filter(|index| *index >= self.executed_in_order());
        let read = read.and_then(|index| self.resources.get(index));
        read.is_some_and(|read| psn.index_in(read.request.first, read.request.packets).is_some())
    }

    /// Returns the index in `resources` of the READ with the highest first PSN at or below `psn`.
    fn index_at(&self, psn: Psn) -> Option<usize> {
        let base = self.resources.front()?.request.first;
        let wanted = psn.distance_from(base);
        let behind = self.resources.partition_point(|read| read.request.first.distance_from(base) <= wanted);
        behind.checked_sub(1)
    }

    /// Records that early READs count as executed: the early READ that begins at `psn`, the expected PSN, and those that
    /// follow without a gap. Returns `None` if no early READ begins at `psn`.
    pub(crate) fn take_early_run(&mut self, psn: Psn) -> Option<EarlyRun> {
        let mut run = EarlyRun { reads: 0, packets: 0, last: psn };
        for ResponderResource { request, .. } in self.resources.range(self.executed_in_order()..) {
            let end = psn.plus(run.packets);
            if request.first != end {
                break;
            }
            run = EarlyRun { reads: run.reads + 1, packets: run.packets + request.packets, last: end };
        }
        if run.reads == 0 {
            return None;
        }
        self.extend_run(psn);
        self.early -= run.reads as usize;
        Some(run)
    }

    /// Returns whether any PSN below `psn` belongs to an early READ.
    #[inline]
    fn has_early_below(&self, psn: Psn) -> bool {
        self.early > 0
            && self
                .resources
                .get(self.executed_in_order())
                .is_some_and(|read| is_below(read.request.first, psn))
    }

    /// Removes the PSNs below `psn` from the early READs: shortens an early READ that ends above `psn`, and removes an
    /// early READ that does not. Returns whether there was one.
    #[inline]
    pub(crate) fn forget_early_below(&mut self, psn: Psn) -> bool {
        // In line, because after most READs there is none.
        let had_any = self.has_early_below(psn);
        if had_any {
            self.cut_early_below(psn);
        }
        had_any
    }

    #[inline(never)]
    fn cut_early_below(&mut self, psn: Psn) {
        let mtu_bytes = self.mtu_bytes;
        while self.has_early_below(psn) {
            let at = self.executed_in_order();
            if let Some(read) = self.resources.get_mut(at).map(|read| &mut read.request)
                && is_below(psn, read.end())
            {
                return read.skip_to(psn, mtu_bytes);
            }
            self.resources.remove(at);
            self.early -= 1;
        }
    }

    /// Queues the responses requested by a duplicate with PSN `psn` and RETH `reth`, except responses that the queue
    /// contains and that are still to be sent. If the retransmission limit of the READ and the [`Allowance`] do not
    /// permit all these responses, queues fewer: those with the lowest PSNs. Under both kinds of go-back-N, if a READ
    /// in the queue contains response `psn`, and this response was sent already, rewinds this READ to `psn` instead
    /// (`rewind`).
    pub(crate) fn on_duplicate(&mut self, psn: Psn, reth: &Reth, now: Instant) -> Result<(), NotQueued> {
        let (read, mut again) = self.resource_of(psn, reth).ok_or(NotQueued::NotRemembered)?;
        let covers = |waiting: &Waiting| psn.index_in(waiting.request.first, waiting.request.packets);
        // `again`: the responses requested by the duplicate. `at`: index in the queue at which `again` is inserted.
        // `rest`: PSN of the next response of the original READ, if this READ is in the queue. `continues`: true if the
        // queue has a duplicate whose responses to be sent include the first, but not the last response of `again`.
        let (mut at, mut rest, mut continues) = (None, None, false);
        for (place, waiting) in self.queue.iter().enumerate() {
            let (index, next) = (covers(waiting), waiting.next_psn());
            if !waiting.is_duplicate
                && waiting.request.first.offset_from(psn).is_some_and(|offset| offset > 0)
            {
                // Queued READs are in PSN order: the READ of this iteration and all READs after it are above `psn`.
                at = at.or(Some(place));
                break;
            }
            if index.is_some_and(|index| index >= waiting.sent) {
                let is_longer = again.end().offset_from(waiting.end()).is_some_and(|offset| offset > 0);
                if !waiting.is_duplicate || !is_longer {
                    return Ok(());
                }
                // The queue already contains a duplicate that ends below the end of `again`, the responses
                // requested by the received duplicate. The responses of the queued duplicate are removed from `again`.
                again.sent = waiting.end().distance_from(again.request.first);
                (at, continues) = (Some(place + 1), true);
                continue;
            }
            if at.is_none() && next.offset_from(psn).is_some_and(|offset| offset > 0) {
                at = Some(place);
            }
            if !waiting.is_duplicate && index.is_some() {
                rest = Some(next);
            }
        }
        if !continues
            && self.selective.is_none()
            && let Some((place, index)) =
                self.queue.iter().enumerate().find_map(|(place, w)| Some((place, covers(w)?)))
        {
            return self.rewind(place, index, read, now);
        }
        if self.is_full() {
            return Err(NotQueued::NoRoom);
        }
        // Responses that are still to be sent for the original READ are removed from the duplicate. Otherwise the peer
        // could receive all responses, and send its next READ, while the original READ still counts against
        // `max_dest_rd_atomic`.
        if let Some(rest) = rest {
            let sent_pkts = rest.distance_from(again.request.first);
            again.request.packets = again.request.packets.min(sent_pkts);
        }
        let wanted = again.request.packets.saturating_sub(again.sent);
        if continues && wanted == 0 {
            return Ok(());
        }
        match self.charge(read, wanted, now) {
            0 => return Err(NotQueued::TooOften),
            granted => again.request.packets = again.sent + granted,
        }
        again.shows_loss = self.selective.is_none();
        let at = at.unwrap_or(self.queue.len());
        insert_at(&mut self.queue, at, again);
        Ok(())
    }

    /// Removes from the responder resources each READ that is half the PSN circle or more below `psn`, because new
    /// requests reuse its PSNs. `psn`: PSN executed last, or expected PSN. While `psn` advances by half the circle, at
    /// least one call is required.
    #[inline]
    pub(crate) fn forget_stale(&mut self, psn: Psn) {
        let is_behind =
            |read: &ResponderResource| read.request.first.offset_from(psn).is_some_and(|offset| offset <= 0);
        while self.executed_in_order() > 0 && self.resources.front().is_some_and(|read| !is_behind(read)) {
            self.forget_oldest();
        }
    }

    /// Under selective repeat, removes from the responder resources the executed READs whose PSNs are all a window or
    /// more below the end of `added`, the READ to be added. The peer has received all responses to the removed READs,
    /// because the peer sends no PSN that is a window or more above the first PSN that the peer misses.
    fn forget_unneeded(&mut self, added: &ReadRequest) {
        let Some(selective) = self.selective else { return };
        let psn = added.end().minus(selective.window_pkts);
        let is_below = |read: &ResponderResource| psn.offset_from(read.request.end()).is_some_and(|o| o >= 0);
        while self.executed_in_order() > 0 && self.resources.front().is_some_and(is_below) {
            self.forget_oldest();
        }
    }

    fn forget_oldest(&mut self) {
        let Some(oldest) = self.resources.pop_front() else { return };
        if oldest.request.first == self.run_first {
            self.run_first = oldest.request.end();
        }
    }

    /// Rewinds the READ at position `place` of the queue, so that response `index` is sent next. The responses to be
    /// retransmitted are deducted from `retransmits_left` of this READ (index `read` of `resources`). The responses
    /// beyond `retransmits_left` take tokens of the [`Allowance`].
    fn rewind(&mut self, place: usize, index: u32, read: usize, now: Instant) -> Result<(), NotQueued> {
        let Some(sent) = self.queue.get(place).map(|waiting| waiting.sent) else { return Ok(()) };
        let wanted = sent.saturating_sub(index);
        let Some(read) = self.resources.get_mut(read) else { return Ok(()) };
        // Either all `wanted` responses are retransmitted, or none, because a rewind by fewer responses would not
        // retransmit response `index`.
        let beyond_limit = wanted.saturating_sub(read.retransmits_left);
        if beyond_limit > 0 && !self.allowance.take_all(now, beyond_limit) {
            return Err(NotQueued::TooOften);
        }
        read.retransmits_left -= wanted - beyond_limit;
        if let Some(waiting) = self.queue.get_mut(place) {
            waiting.sent -= wanted;
            waiting.starts_message = true;
            waiting.shows_loss = true;
        }
        Ok(())
    }

    /// Returns the number of responses, at most `wanted`, that may be retransmitted. Deducts these responses from
    /// `retransmits_left` of READ `read`; the responses beyond `retransmits_left` take tokens of the [`Allowance`].
    fn charge(&mut self, read: usize, wanted: u32, now: Instant) -> u32 {
        let Some(read) = self.resources.get_mut(read) else { return 0 };
        let granted = wanted.min(read.retransmits_left);
        read.retransmits_left -= granted;
        granted + self.allowance.take(now, wanted - granted)
    }

    /// Searches `resources`, which are in PSN order, for the READ that contains the duplicate with PSN `psn` and RETH
    /// `reth`. Returns the index of this READ, and the responses requested by the duplicate.
    fn resource_of(&self, psn: Psn, reth: &Reth) -> Option<(usize, Waiting)> {
        let index = self.index_at(psn)?;
        let is_cut = self.selective.is_some();
        Some((index, self.resources.get(index)?.request.part_at(psn, reth, self.mtu_bytes, is_cut)?))
    }

    /// Returns the PSN for an ACK if `psn` is the PSN executed last: `psn`, or, if `psn` belongs to the last READ, the
    /// highest PSN below `psn` that belongs to no READ in the responder resources. The PSN returned may belong to a
    /// READ that was removed from the responder resources: the peer has received all responses of that READ.
    pub(crate) fn last_before(&self, psn: Psn) -> Psn {
        let Some(last) = self.last_executed() else { return psn };
        let run_pkts = last.end().distance_from(self.run_first);
        if psn.index_in(self.run_first, run_pkts).is_some() { self.run_first.minus(1) } else { psn }
    }

    /// Returns whether the next response of a queued READ has one of the `count` PSNs from `first` on.
    pub(crate) fn has_queued(&self, first: Psn, count: u32) -> bool {
        self.queue.iter().any(|waiting| waiting.next_psn().index_in(first, count).is_some())
    }

    #[inline]
    pub(crate) fn front(&self) -> Option<Waiting> {
        self.queue.front().copied()
    }

    /// Records that the next response was sent. Returns whether the response shows a loss ([`Waiting::shows_loss`]).
    #[inline]
    pub(crate) fn on_sent(&mut self) -> bool {
        let Some(front) = self.queue.front_mut() else { return false };
        front.sent += 1;
        front.starts_message = false;
        let shows_loss = std::mem::take(&mut front.shows_loss);
        if front.sent >= front.request.packets {
            self.new_reads -= usize::from(!front.is_duplicate);
            self.queue.pop_front();
        }
        shows_loss
    }

    /// Removes all READs from the queue; the responder resources are unchanged.
    pub(crate) fn clear(&mut self) {
        self.queue.clear();
        self.new_reads = 0;
    }
}

/// Inserts `value` at position `at` of `queue`: in most cases at the end, where `VecDeque::insert` is slow.
#[inline]
fn insert_at<T>(queue: &mut VecDeque<T>, at: usize, value: T) {
    if at == queue.len() { queue.push_back(value) } else { queue.insert(at, value) }
}

/// Returns whether `a` is less than half the PSN circle below `b`.
fn is_below(a: Psn, b: Psn) -> bool {
    b.offset_from(a).is_some_and(|offset| offset > 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::RKey;

    const MTU: u32 = 256;

    fn selective(duplicates_max: usize) -> Option<SelectiveReads> {
        Some(SelectiveReads { duplicates_max, window_pkts: 64 })
    }

    fn reth(index: u32, len_bytes: u32) -> Reth {
        Reth { va: 0x1000 + u64::from(index * MTU), rkey: RKey(5), len_bytes }
    }

    fn read(first: u32, packets: u32) -> ReadRequest {
        ReadRequest::new(Psn::new(first), reth(0, packets * MTU), Msn::new(1), MTU)
    }

    fn again(reads: &mut ReadQueue, psn: Psn, reth: &Reth) -> Result<(), NotQueued> {
        reads.on_duplicate(psn, reth, Instant::ZERO)
    }

    fn drain(reads: &mut ReadQueue) -> Vec<u32> {
        std::iter::from_fn(|| {
            let psn = reads.front()?.next_psn().value();
            reads.on_sent();
            Some(psn)
        })
        .collect()
    }

    #[test]
    fn the_last_psn_that_no_read_takes() {
        let mut reads = ReadQueue::new(3, None, MTU);
        assert_eq!(reads.last_before(Psn::new(9)), Psn::new(9));
        for (first, packets) in [(10, 2), (13, 1), (14, 4)] {
            reads.push(read(first, packets));
        }
        for (psn, last) in [(9, 9), (12, 12), (14, 12), (17, 12), (18, 18)] {
            assert_eq!(reads.last_before(Psn::new(psn)), Psn::new(last), "up to {psn}");
        }
        reads.push(read(0, 3));
        assert_eq!(reads.last_before(Psn::new(2)), Psn::new(0).minus(1), "around zero");
    }

    #[test]
    fn a_read_removed_from_the_responder_resources_takes_no_psn() {
        for (at, last) in [(12, 11), (13, 12)] {
            let mut reads = ReadQueue::new(3, None, MTU);
            reads.push(read(10, 2));
            for first in at..at + 3 {
                drain(&mut reads);
                reads.push(read(first, 1));
            }
            assert_eq!(reads.last_before(Psn::new(at + 2)), Psn::new(last), "the second READ at {at}");
        }
    }

    #[test]
    fn a_read_longer_than_the_window_removes_no_early_read() {
        let mut reads = ReadQueue::new(2, selective(4), MTU);
        reads.push_early(read(10, 1));
        reads.push(read(0, 100));
        assert_eq!((reads.early(), reads.is_early(Psn::new(10))), (1, true));
    }

    #[test]
    fn a_part_asked_again_ends_where_the_read_itself_goes_on() {
        let mut reads = ReadQueue::new(1, selective(4), MTU);
        reads.push(read(10, 8));
        (0..3).for_each(|_| _ = reads.on_sent());
        again(&mut reads, Psn::new(11), &reth(1, 7 * MTU)).unwrap();
        again(&mut reads, Psn::new(12), &reth(2, 4 * MTU)).unwrap();
        assert_eq!(drain(&mut reads), [11, 12, 13, 14, 15, 16, 17]);
        assert_eq!(reads.admit(), Ok(()));
    }

    #[test]
    fn responses_go_in_order_and_the_limit_counts_fresh_reads() {
        let mut reads = ReadQueue::new(2, None, MTU);
        for first in [10, 12] {
            assert_eq!(reads.admit(), Ok(()));
            reads.push(read(first, 2));
        }
        assert_eq!(reads.admit(), Err(NotQueued::OverLimit));
        assert_eq!(drain(&mut reads), [10, 11, 12, 13]);
        assert_eq!(reads.admit(), Ok(()));
    }

    #[test]
    fn a_duplicate_lies_inside_a_read_that_was_served() {
        let mut reads = ReadQueue::new(2, None, MTU);
        reads.push(read(10, 4));
        drain(&mut reads);
        assert_eq!(again(&mut reads, Psn::new(12), &reth(2, 2 * MTU)), Ok(()));
        assert_eq!(drain(&mut reads), [12, 13]);
        for (psn, reth) in [(9, reth(0, MTU)), (14, reth(4, MTU)), (12, reth(1, MTU)), (12, reth(2, 3 * MTU))]
        {
            assert_eq!(again(&mut reads, Psn::new(psn), &reth), Err(NotQueued::NotRemembered));
        }
        let other_key = Reth { rkey: RKey(6), ..reth(2, MTU) };
        assert_eq!(again(&mut reads, Psn::new(12), &other_key), Err(NotQueued::NotRemembered));
    }

    #[test]
    fn a_duplicate_of_a_waiting_read_rewinds_it_and_an_older_one_goes_first() {
        let mut reads = ReadQueue::new(2, None, MTU);
        reads.push(read(10, 2));
        drain(&mut reads);
        reads.push(read(12, 3));
        reads.on_sent();
        reads.on_sent();
        assert_eq!(again(&mut reads, Psn::new(13), &reth(1, 2 * MTU)), Ok(()));
        assert_eq!(again(&mut reads, Psn::new(10), &reth(0, 2 * MTU)), Ok(()));
        assert_eq!(again(&mut reads, Psn::new(11), &reth(1, MTU)), Ok(()), "waits already");
        assert_eq!(drain(&mut reads), [10, 11, 13, 14]);
    }

    #[test]
    fn a_lost_part_of_what_waits_goes_first_and_rewinds_nothing() {
        let mut reads = ReadQueue::new(2, selective(2), MTU);
        reads.push(read(10, 5));
        reads.push(read(15, 2));
        for (psn, packets) in [(10, 1), (10, 5), (15, 1), (15, 2), (16, 1)] {
            let index = psn - if psn < 15 { 10 } else { 15 };
            assert_eq!(
                again(&mut reads, Psn::new(psn), &reth(index, packets * MTU)),
                Ok(()),
                "waits already"
            );
        }
        (0..3).for_each(|_| _ = reads.on_sent());
        assert_eq!(again(&mut reads, Psn::new(11), &reth(1, MTU)), Ok(()));
        assert_eq!(again(&mut reads, Psn::new(11), &reth(1, MTU)), Ok(()), "waits already");
        assert_eq!(again(&mut reads, Psn::new(14), &reth(4, MTU)), Ok(()), "still to come");
        assert_eq!(drain(&mut reads), [11, 13, 14, 15, 16]);
    }

    #[test]
    fn an_early_read_is_shortened_to_the_psns_above_the_expected_psn() {
        let mut reads = ReadQueue::new(2, None, MTU);
        reads.push_early(read(10, 4));
        drain(&mut reads);
        reads.forget_early_below(Psn::new(12));
        assert_eq!(reads.early_psns().collect::<Vec<_>>(), [Psn::new(12)]);
        for (psn, reth) in [(11, reth(1, MTU)), (12, reth(1, MTU)), (12, reth(2, 3 * MTU))] {
            assert_eq!(again(&mut reads, Psn::new(psn), &reth), Err(NotQueued::NotRemembered));
        }
        assert_eq!(again(&mut reads, Psn::new(12), &reth(2, 2 * MTU)), Ok(()));
        assert_eq!(drain(&mut reads), [12, 13]);
        reads.push_early(read(14, 1));
        reads.forget_early_below(Psn::new(14));
        assert_eq!(reads.early_psns().collect::<Vec<_>>(), [Psn::new(14)], "the READ at 12 ends below 14");
        let run = EarlyRun { reads: 1, packets: 1, last: Psn::new(14) };
        assert_eq!(reads.take_early_run(Psn::new(14)), Some(run));
    }

    #[test]
    fn early_reads_without_a_gap_count_as_executed_together() {
        let mut reads = ReadQueue::new(2, None, MTU);
        for (first, packets) in [(10, 2), (12, 1), (14, 3)] {
            reads.push_early(read(first, packets));
        }
        assert_eq!(reads.take_early_run(Psn::new(9)), None);
        let run = EarlyRun { reads: 2, packets: 3, last: Psn::new(12) };
        assert_eq!(reads.take_early_run(Psn::new(10)), Some(run));
        assert_eq!((reads.early(), reads.last_before(Psn::new(12))), (1, Psn::new(9)));
    }

    #[test]
    fn a_cleared_queue_keeps_the_responder_resources() {
        let mut reads = ReadQueue::new(1, None, MTU);
        reads.push(read(10, 2));
        reads.clear();
        assert_eq!((reads.front(), reads.admit()), (None, Ok(())));
        assert_eq!(again(&mut reads, Psn::new(11), &reth(1, MTU)), Ok(()));
        assert_eq!(drain(&mut reads), [11]);
    }

    #[test]
    fn duplicates_cannot_fill_memory() {
        let mut reads = ReadQueue::new(1, None, MTU);
        reads.push(read(10, 4));
        drain(&mut reads);
        assert_eq!(again(&mut reads, Psn::new(12), &reth(2, MTU)), Ok(()));
        assert_eq!(again(&mut reads, Psn::new(11), &reth(1, MTU)), Ok(()));
        assert_eq!(again(&mut reads, Psn::new(10), &reth(0, MTU)), Err(NotQueued::NoRoom));
        assert_eq!(reads.admit(), Err(NotQueued::NoRoom));
        assert_eq!(drain(&mut reads), [11, 12], "parts of one READ, each a READ of its own");
    }

    #[test]
    fn a_read_is_retransmitted_so_often_and_then_at_a_rate() {
        for limits in [None, selective(4)] {
            let mut reads = ReadQueue::new(1, limits, MTU);
            reads.push(read(10, 100));
            drain(&mut reads);
            let mut served = 0;
            while again(&mut reads, Psn::new(10), &reth(0, 100 * MTU)).is_ok() {
                served += drain(&mut reads).len() as u32;
            }
            assert_eq!(served, RETRANSMITS_PER_READ * 100 + RETRANSMIT_PKTS_MIN);
            let mut later = |nanos| {
                let queued =
                    reads.on_duplicate(Psn::new(20), &reth(10, 90 * MTU), Instant::from_nanos(nanos));
                (queued, drain(&mut reads))
            };
            assert_eq!(later(NANOS_PER_PKT - 1), (Err(NotQueued::TooOften), vec![]));
            assert_eq!(later(3 * NANOS_PER_PKT), (Ok(()), vec![20, 21, 22]), "as far as it goes");
            assert_eq!(later(3 * NANOS_PER_PKT + 1).0, Err(NotQueued::TooOften));
            assert_eq!(later(u64::MAX / 2).1.len(), 90, "after a long while");
        }
    }

    #[test]
    fn a_rewind_costs_what_is_retransmitted() {
        let mut reads = ReadQueue::new(1, None, MTU);
        reads.push(read(10, 10));
        let mut rewound = 0;
        while again(&mut reads, Psn::new(10), &reth(0, 10 * MTU)).is_ok() {
            (0..5).for_each(|_| _ = reads.on_sent());
            rewound += 1;
        }
        // The first duplicate is received before any response is sent, so it takes nothing from the retransmission
        // limit of the READ.
        assert_eq!(rewound - 1, (RETRANSMITS_PER_READ * 10 + RETRANSMIT_PKTS_MIN) / 5);
        assert_eq!(drain(&mut reads), (15..20).collect::<Vec<_>>(), "it goes on where it was");
    }
}
