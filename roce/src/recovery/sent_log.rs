//! The sent-packet log of a selective-repeat requester: one entry for each PSN of the window, written when the packet
//! is sent, and the rule that marks packets lost.
//!
//! ```text
//!   PSN           una        executed                     max_sent
//!                  | responses  | requests                   |  never sent
//!   state          | . x L x .  | L x . .                    |     acked x, lost L, in flight .
//!   transmission   | 5 1 2 3 4  | 6 7 8 9                    |     number, counted over both spaces
//!
//!   in flight --lost--> lost --retransmitted, with a new number--> in flight --> acked
//! ```
//! Each transmission has a new number. A packet in flight is marked lost if an acknowledged packet of the same PSN
//! space has a transmission number that is higher by at least the reordering threshold (RFC 9002 section 6.1.1, RFC
//! 8985 section 6.2). The rule applies to first transmissions and to retransmissions.
//!
//! PSNs in flight below `executed` are READ responses; PSNs in flight from `executed` on are requests. All PSNs of a
//! READ request have consecutive transmission numbers. Until the peer has executed the READ request, these PSNs have
//! one common state.
//!
//! In two cases the peer sends READ responses in another order than the requester sent the READ requests. First, a READ
//! request buffered above a gap is executed after the retransmission that closes the gap: the responses get the
//! transmission number of this retransmission, and are ordered by PSN. Second, the responses to a retransmitted part of
//! a READ are sent before the responses to READs with higher PSNs: a response to such a part shows losses only at lower
//! PSNs.

use super::circular_array::CircularArray;
use super::events::PsnSpan;
use super::psn_set::PsnSet;
use crate::psn::{PerSpace, Psn, PsnSpace};
use crate::start;
use crate::time::Instant;

/// Number of transmissions between calls of [`SentLog::renew_marks`], which raises old transmission numbers in fields
/// of the log: 2^30, so that two transmission numbers passed to [`is_before`] differ by less than 2^31.
const RENEW_TRANSMISSIONS: u32 = 1 << 30;

/// Number of PSNs that are removed together from the set of retransmitted PSNs: cheaper than a removal for each packet
/// sent.
const BLOCK_PKTS: u32 = u64::BITS;

/// The latest transmission of a PSN.
#[derive(Clone, Copy, Debug, Default)]
struct Transmission {
    /// Transmission number, modulo 2^32.
    number: u32,
    /// Time of the transmission in nanoseconds, modulo 2^32.
    sent_nanos: u32,
}

/// Time at which an acknowledgement arrived, and the shortest round trip.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AckTime {
    pub now: Instant,
    /// The shortest round trip measured, in nanoseconds; [`RTT_UNKNOWN_NANOS`] before the first sample.
    pub rtt_min_nanos: u64,
}

/// Value of `rtt_min_nanos` before the first sample, in nanoseconds: half the range of `Transmission::sent_nanos`. If
/// the acknowledgement of a retransmitted packet arrives less than `rtt_min_nanos` after the retransmission, no other
/// packet becomes lost, because the first transmission may have elicited the acknowledgement.
pub(crate) const RTT_UNKNOWN_NANOS: u64 = 1 << 31;

#[derive(Clone, Debug)]
pub(crate) struct SentLog {
    una: Psn,
    max_sent: Psn,
    /// The peer executed all requests below this PSN.
    executed: Psn,
    transmissions: CircularArray<Transmission>,
    acked: PsnSet,
    lost: PsnSet,
    /// The retransmitted PSNs among the last `window_pkts` PSNs sent; some of these PSNs may be below una. When the
    /// first PSN of a block of [`BLOCK_PKTS`] is sent, all PSNs of the block are removed. With a capacity of two
    /// windows, no other PSN of the last `window_pkts` PSNs shares a bit with a PSN of the block.
    retransmitted: PsnSet,
    /// If this PSN is above una, [`SentLog::has_no_gap`] returns false. A retransmission raises this PSN to one past
    /// the PSN retransmitted. A doubtful ACK (see `doubtful`) raises this PSN to two past the highest PSN that the ACK
    /// reports as executed, and thereby above una.
    retransmitted_end: Psn,
    next_number: u32,
    /// Number of READ requests that a SACK acknowledged, and that the peer has not executed: the peer buffers them.
    buffered_reads: u32,
    /// Per PSN space: one past the highest transmission number acknowledged.
    largest_acked: PerSpace<u32>,
    /// If several READ responses have the highest acknowledged transmission number: the highest acknowledged PSN among
    /// these responses. Otherwise not used.
    largest_acked_psn: Psn,
    /// Transmission number and PSN of one READ response. Of the READ responses that a retransmitted READ request
    /// requested, and that were received since the last [`SentLog::detect_losses`] for responses, this response has the
    /// highest transmission number.
    retransmission_acked: Option<(u32, Psn)>,
    /// Highest PSN that the latest doubtful ACK reported as executed, and the value that `largest_acked` of requests
    /// had before this ACK. An ACK is doubtful if the ACK raises `largest_acked`, and if the highest PSN that the ACK
    /// reports as executed is newly acknowledged and was retransmitted: the first transmission of this PSN may have
    /// elicited the ACK.
    doubtful: Option<(Psn, u32)>,
    /// The highest transmission number of the requests executed.
    executed_number: u32,
    /// If this PSN is above una: one past the last PSN of the READ request that the peer executed last from its reorder
    /// buffer. The responses to such a READ request share one transmission number.
    shared_end: Psn,
    /// Per PSN space: lower bound of the transmission numbers of the packets in flight.
    oldest: PerSpace<u32>,
    /// Values at the last search, with reordering threshold 0, for lost READ responses: `largest_acked` of responses,
    /// and `largest_acked_psn`, the highest acknowledged PSN with the highest acknowledged transmission number. No READ
    /// response in flight with this transmission number has a lower PSN.
    searched: Option<(u32, Psn)>,
}

/// Returns whether transmission number `a` is lower than `b`. The two numbers must differ by less than 2^31.
#[inline]
fn is_before(a: u32, b: u32) -> bool {
    a.wrapping_sub(b) > u32::MAX / 2
}

#[inline]
#[expect(clippy::cast_possible_truncation, reason = "modulo 2^32 is meant")]
fn low_nanos(at: Instant) -> u32 {
    at.as_nanos() as u32
}

impl SentLog {
    pub(crate) fn new(first: Psn, window_pkts: u32) -> Self {
        let set = PsnSet::new(window_pkts);
        SentLog {
            una: first,
            max_sent: first,
            executed: first,
            transmissions: CircularArray::new(window_pkts, Transmission::default()),
            acked: set.clone(),
            lost: set,
            retransmitted: PsnSet::new(2 * window_pkts),
            retransmitted_end: first,
            next_number: start::transmission(),
            buffered_reads: 0,
            largest_acked: PerSpace::new(start::transmission()),
            largest_acked_psn: first,
            retransmission_acked: None,
            doubtful: None,
            executed_number: start::transmission().wrapping_sub(1),
            shared_end: first,
            oldest: PerSpace::new(start::transmission()),
            searched: None,
        }
    }

    #[inline]
    pub(crate) fn una(&self) -> Psn {
        self.una
    }

    #[inline]
    pub(crate) fn executed(&self) -> Psn {
        self.executed
    }

    #[inline]
    pub(crate) fn sent(&self) -> u32 {
        self.max_sent.distance_from(self.una)
    }

    #[inline]
    pub(crate) fn unacked(&self) -> u32 {
        self.sent() - self.acked.len() - self.lost.len()
    }

    #[inline]
    pub(crate) fn window_pkts(&self) -> u32 {
        self.transmissions.len()
    }

    /// Returns the PSN to send next: the lowest lost PSN; `max_sent` if no PSN is lost.
    #[inline]
    pub(crate) fn next_psn(&self) -> Psn {
        self.lost.first_in(self.una, self.window_pkts()).unwrap_or(self.max_sent)
    }

    #[inline]
    pub(crate) fn has_lost(&self) -> bool {
        !self.lost.is_empty()
    }

    /// Returns the number of consecutive PSNs from `psn` on that are marked lost; at most `count`.
    pub(crate) fn lost_run(&self, psn: Psn, count: u32) -> u32 {
        self.lost.first_missing(psn, count).map_or(count, |end| end.distance_from(psn))
    }

    /// Returns the distance of `psn` from una; `None` if `psn` is below una or was not sent.
    #[inline]
    fn tracked(&self, psn: Psn) -> Option<u32> {
        psn.index_in(self.una, self.sent())
    }

    #[inline]
    pub(crate) fn is_executed(&self, psn: Psn) -> bool {
        self.executed.offset_from(psn).is_some_and(|offset| offset > 0)
    }

    /// Returns whether the peer executed all requests that were sent.
    #[inline]
    pub(crate) fn has_executed_all(&self) -> bool {
        self.executed == self.max_sent
    }

    #[inline]
    pub(crate) fn is_unacked(&self, psn: Psn) -> bool {
        self.tracked(psn).is_some() && !self.acked.contains(psn)
    }

    /// Returns whether the READ response `psn` is missing. If the peer has not executed the READ request, the response
    /// is missing even if `psn` is acknowledged, because a SACK acknowledged the READ request, not the response.
    #[inline]
    pub(crate) fn is_response_missing(&self, psn: Psn) -> bool {
        self.tracked(psn).is_some() && !(self.acked.contains(psn) && self.is_executed(psn))
    }

    /// Returns whether any PSN of `span`, whose PSNs were sent, is in flight or lost.
    #[inline]
    pub(crate) fn has_unacked(&self, span: PsnSpan) -> bool {
        let Some(left) = span.end().offset_from(self.una).filter(|left| *left > 0) else { return false };
        let count = span.packets.min(left.unsigned_abs());
        self.acked.first_missing(span.end().minus(count), count).is_some()
    }

    /// Returns whether `psn` is acknowledged; false if `psn` is below una or was not sent.
    pub(crate) fn is_acked(&self, psn: Psn) -> bool {
        self.tracked(psn).is_some() && self.acked.contains(psn)
    }

    /// Returns whether `psn` was retransmitted; false if `psn` is not one of the last `window_pkts` PSNs sent.
    pub(crate) fn is_retransmitted(&self, psn: Psn) -> bool {
        let window_pkts = self.window_pkts();
        psn.index_in(self.max_sent.minus(window_pkts), window_pkts).is_some()
            && self.retransmitted.contains(psn)
    }

    /// Returns whether any PSN in the log, that is, any of the last [`SentLog::window_pkts`] PSNs sent, was
    /// retransmitted.
    pub(crate) fn has_retransmitted(&self) -> bool {
        let window_pkts = self.window_pkts();
        self.retransmitted.first_in(self.max_sent.minus(window_pkts), window_pkts).is_some()
    }

    /// Returns the time since the PSN below una was sent, in nanoseconds: a round trip, if an ACK at `now` is the first
    /// to acknowledge that PSN. `None` if that PSN was retransmitted (Karn's algorithm, RFC 6298 section 3).
    pub(crate) fn rtt_nanos(&self, now: Instant) -> Option<u64> {
        self.nanos_since_sent(self.una.minus(1), now)
    }

    /// Returns the time since `trigger` was sent, in nanoseconds: a round trip, if `trigger` elicited a SACK received at
    /// `now`. `None` if that PSN was retransmitted, or is not acknowledged above una.
    pub(crate) fn sacked_rtt_nanos(&self, trigger: Psn, now: Instant) -> Option<u64> {
        if self.is_acked(trigger) { self.nanos_since_sent(trigger, now) } else { None }
    }

    fn nanos_since_sent(&self, psn: Psn, now: Instant) -> Option<u64> {
        let sent_nanos = self.transmissions.at(psn.value()).sent_nanos;
        (!self.is_retransmitted(psn)).then(|| u64::from(low_nanos(now).wrapping_sub(sent_nanos)))
    }

    pub(crate) fn is_lost(&self, psn: Psn) -> bool {
        self.tracked(psn).is_some() && self.lost.contains(psn)
    }

    /// Returns the number of READ requests that the peer buffers: acknowledged by a SACK, and not executed.
    #[inline]
    pub(crate) fn buffered_reads(&self) -> u32 {
        self.buffered_reads
    }

    /// Returns whether any response to the READ request `read` was received.
    pub(crate) fn is_answered(&self, read: PsnSpan) -> bool {
        let is_below_una = self.una.offset_from(read.first).is_some_and(|offset| offset > 0);
        is_below_una
            || self.is_executed(read.first) && self.acked.first_in(read.first, read.packets).is_some()
    }

    /// Returns whether any packet from una on is acknowledged.
    pub(crate) fn has_acked(&self) -> bool {
        !self.acked.is_empty()
    }

    pub(crate) fn last_in_flight(&self) -> Option<Psn> {
        let mut left = self.sent();
        while left > 0 {
            let step = left.min(u64::BITS);
            let first = self.una.plus(left - step);
            let in_flight = self.in_flight_bits(first, step);
            if in_flight != 0 {
                return Some(first.plus(u64::BITS - 1 - in_flight.leading_zeros()));
            }
            left -= step;
        }
        None
    }

    /// Returns the PSNs in flight among the `count` (1 to 64) PSNs sent from `first` on, as a bitmap.
    #[inline]
    fn in_flight_bits(&self, first: Psn, count: u32) -> u64 {
        !(self.acked.bits(first) | self.lost.bits(first)) & (u64::MAX >> (u64::BITS - count))
    }

    /// Records that `span` PSNs from `psn` on were sent at `sent_at`. If `psn` is `max_sent`, the PSNs are new;
    /// otherwise they are retransmitted.
    #[inline]
    pub(crate) fn on_sent(&mut self, psn: Psn, span: u32, sent_at: Instant) {
        let (number, sent_nanos) = (self.take_numbers(span), low_nanos(sent_at));
        for i in 0..span {
            *self.transmissions.at_mut(psn.value().wrapping_add(i)) =
                Transmission { number: number.wrapping_add(i), sent_nanos };
        }
        if psn == self.max_sent {
            self.max_sent = psn.plus(span);
            if !self.retransmitted.is_empty() {
                self.begin_blocks(span);
            }
        } else {
            self.mark_retransmitted(psn, span);
        }
    }

    /// If any of the `span` PSNs below `max_sent` is the first PSN of a block, removes the PSNs of this block, and of
    /// the blocks after it up to that of the PSN below `max_sent`, from the set of retransmitted PSNs.
    #[inline]
    fn begin_blocks(&mut self, span: u32) {
        let last_in_block = self.max_sent.minus(1).value() % BLOCK_PKTS;
        if last_in_block < span {
            let rest = BLOCK_PKTS - 1 - last_in_block;
            self.retransmitted.remove_range(self.max_sent.minus(span), span + rest);
        }
    }

    /// Marks `span` PSNs from `psn` on as retransmitted and in flight.
    #[inline]
    fn mark_retransmitted(&mut self, psn: Psn, span: u32) {
        for psn in (0..span).map(|i| psn.plus(i)) {
            self.lost.remove(psn);
            self.retransmitted.insert(psn);
        }
        self.raise_retransmitted_end(psn.plus(span));
    }

    /// Records that the probe `psn`, a request, was retransmitted at `sent_at`. The probe keeps the transmission number
    /// of the previous transmission of `psn`: an acknowledgement of `psn` shows the loss only of packets sent before
    /// this previous transmission.
    pub(crate) fn on_doubtful_probe_sent(&mut self, psn: Psn, sent_at: Instant) {
        let transmission = self.transmissions.at_mut(psn.value());
        transmission.sent_nanos = low_nanos(sent_at);
        let number = transmission.number;
        self.lower_oldest(PsnSpace::Request, number);
        self.mark_retransmitted(psn, 1);
    }

    /// Lowers `oldest` of `space` to `number`, the transmission number of a packet in flight, unless `oldest` is lower.
    #[inline]
    fn lower_oldest(&mut self, space: PsnSpace, number: u32) {
        if is_before(number, self.oldest[space]) {
            self.oldest[space] = number;
        }
    }

    #[inline]
    fn raise_retransmitted_end(&mut self, end: Psn) {
        if end.offset_from(self.retransmitted_end).is_some_and(|offset| offset > 0) {
            self.retransmitted_end = end;
        }
    }

    pub(crate) fn skip_numbers(&mut self, count: u32) {
        self.take_numbers(count);
    }

    /// Returns the first of `count` new transmission numbers.
    #[inline]
    fn take_numbers(&mut self, count: u32) -> u32 {
        let number = self.next_number;
        self.next_number = number.wrapping_add(count);
        if (number ^ self.next_number) >= RENEW_TRANSMISSIONS {
            self.renew_marks();
        }
        number
    }

    /// Sets `doubtful` and `searched`, which contain transmission numbers, to `None`. If one of the transmission
    /// numbers `largest_acked`, `oldest` (of the packets in flight) and `executed_number` (of the requests executed) is
    /// more than 2^30 below the next transmission number, raises the field to 2^30 below the next transmission number,
    /// because [`is_before`] is wrong for a number 2^31 above the field.
    #[cold]
    fn renew_marks(&mut self) {
        (self.doubtful, self.searched) = (None, None);
        let low = self.next_number.wrapping_sub(RENEW_TRANSMISSIONS);
        let marks = self.largest_acked.both_mut().into_iter().chain(self.oldest.both_mut());
        for mark in marks.chain([&mut self.executed_number]).filter(|mark| is_before(**mark, low)) {
            *mark = low;
        }
    }

    /// After an acknowledgement of `psn`, raises `largest_acked` of `space` or, for a READ response that a
    /// retransmitted READ request requested, `retransmission_acked`: the highest transmission number of such READ
    /// responses received since the last [`SentLog::detect_losses`] for responses. If the acknowledgement arrives less
    /// than the shortest round trip after the latest retransmission of `psn`, has no effect: an earlier transmission of
    /// `psn` elicited the acknowledgement (RFC 8985 section 6.2 step 2).
    #[inline]
    fn raise_largest_acked(&mut self, space: PsnSpace, psn: Psn, time: AckTime) {
        let Transmission { number, sent_nanos } = *self.transmissions.at(psn.value());
        if self.retransmitted.contains(psn) {
            if u64::from(low_nanos(time.now).wrapping_sub(sent_nanos)) < time.rtt_min_nanos {
                return;
            }
            if space == PsnSpace::Response {
                if self.retransmission_acked.is_none_or(|(highest, _)| is_before(highest, number)) {
                    self.retransmission_acked = Some((number, psn));
                }
                return;
            }
        }
        let end = number.wrapping_add(1);
        if !is_before(end, self.largest_acked[space]) {
            let is_same = end == self.largest_acked[space];
            self.largest_acked[space] = end;
            if space == PsnSpace::Response
                && (!is_same || psn.offset_from(self.largest_acked_psn).is_some_and(|offset| offset > 0))
            {
                self.largest_acked_psn = psn;
            }
        }
    }

    /// Returns whether `next`, one past the highest PSN that a response reports as executed, is above
    /// [`SentLog::executed`]. If true, the caller must pass the requests from `executed` to below `next`, in PSN order,
    /// to [`SentLog::on_executed`] or [`SentLog::on_read_executed`].
    #[inline]
    pub(crate) fn advances_executed(&self, next: Psn) -> bool {
        let from_una = |psn: Psn| psn.index_in(self.una, self.sent() + 1);
        from_una(next) > from_una(self.executed)
    }

    /// Records that the peer executed the READ request of `count` PSNs from `first` on: its responses are in flight.
    pub(crate) fn on_read_executed(&mut self, first: Psn, count: u32, time: AckTime) {
        self.executed = first.plus(count);
        self.raise_largest_acked(PsnSpace::Request, first, time);
        if self.acked.contains(first) {
            self.on_read_not_buffered();
        }
        self.acked.remove_range(first, count);
        self.lost.remove_range(first, count);
        let number = self.transmissions.at(first.value()).number;
        let number = if is_before(number, self.executed_number) {
            // The peer buffered the READ request until a later retransmission closed the gap below the READ request,
            // and then sent the responses, which therefore get the transmission number of this retransmission.
            for psn in (0..count).map(|i| first.plus(i)) {
                self.transmissions.at_mut(psn.value()).number = self.executed_number;
            }
            self.shared_end = self.executed;
            self.executed_number
        } else {
            self.executed_number = number.wrapping_add(count - 1);
            number
        };
        self.lower_oldest(PsnSpace::Response, number);
    }

    /// Records a SACK of the READ request of `count` PSNs from `first` on: the peer buffers the READ request.
    pub(crate) fn on_read_sacked(&mut self, first: Psn, count: u32, time: AckTime) {
        if self.tracked(first).is_none() {
            return;
        }
        self.raise_largest_acked(PsnSpace::Request, first, time);
        self.buffered_reads += u32::from(!self.acked.contains(first));
        for psn in (0..count.min(self.sent())).map(|i| first.plus(i)) {
            self.lost.remove(psn);
            self.acked.insert(psn);
        }
    }

    /// Records that a READ request acknowledged by a SACK was executed or discarded. The subtraction saturates, because
    /// a peer that violates the protocol may report that a READ request was executed in parts.
    fn on_read_not_buffered(&mut self) {
        self.buffered_reads = self.buffered_reads.saturating_sub(1);
    }

    /// Records that the peer has responded to all READ requests that this requester sent before the request `psn`.
    pub(crate) fn on_responses_sent(&mut self, psn: Psn, time: AckTime) {
        if self.tracked(psn).is_some() {
            self.raise_largest_acked(PsnSpace::Response, psn, time);
        }
    }

    /// Returns whether each PSN from una on was sent once, is in flight, and has a transmission number of its own.
    #[inline]
    fn has_no_gap(&self) -> bool {
        self.acked.is_empty()
            && self.lost.is_empty()
            && self.retransmitted_end.offset_from(self.una).is_some_and(|offset| offset <= 0)
            && !self.shares_number(self.una)
    }

    #[inline]
    fn shares_number(&self, psn: Psn) -> bool {
        self.shared_end.offset_from(psn).is_some_and(|offset| offset > 0)
    }

    /// Records that the peer executed requests other than READs: acknowledges the `count` PSNs from `first` on.
    /// `has_reads`: READ requests are outstanding. Only these need the highest transmission number executed, because
    /// READ requests sent later have higher transmission numbers.
    #[inline]
    pub(crate) fn on_executed(&mut self, first: Psn, count: u32, has_reads: bool, time: AckTime) {
        self.executed = first.plus(count);
        if first == self.una && self.has_no_gap() {
            return self.on_next_acked(PsnSpace::Request, count);
        }
        let count = count.min(self.window_pkts());
        self.decide_doubtful(first);
        let (last, largest_acked) = (first.plus(count - 1), self.largest_acked[PsnSpace::Request]);
        let is_last_retransmitted = self.is_unacked(last) && self.retransmitted.contains(last);
        if has_reads {
            self.raise_executed_number(first, count);
        }
        let mut done = 0;
        while done < count {
            let step = (count - done).min(u64::BITS);
            self.mark_requests_acked(first.plus(done), u64::MAX >> (u64::BITS - step), time);
            done += step;
        }
        if is_last_retransmitted && self.largest_acked[PsnSpace::Request] != largest_acked {
            self.doubtful = Some((last, largest_acked));
            // `retransmitted_end` is set above una, so that `has_no_gap` returns false at the next ACK. Otherwise the
            // next call of `on_executed` would return before `decide_doubtful`, which may restore `largest_acked`
            // (F-RTO).
            self.raise_retransmitted_end(last.plus(2));
        }
        self.advance();
    }

    /// Raises `executed_number` to the highest transmission number of the `count` PSNs from `first` on.
    fn raise_executed_number(&mut self, first: Psn, count: u32) {
        for psn in (0..count).map(|i| first.plus(i)) {
            let number = self.transmissions.at(psn.value()).number;
            if is_before(self.executed_number, number) {
                self.executed_number = number;
            }
        }
    }

    /// Called when an ACK acknowledges PSNs from `first` on. If the ACK of PSN `first` - 1 was doubtful (elicited by
    /// the first transmission of this PSN, or by a retransmission), and PSN `first` was sent only once, the first
    /// transmission of PSN `first` - 1 elicited the doubtful ACK. In this case restores the value that
    /// `largest_acked` had before the doubtful ACK (F-RTO, RFC 5682 section 2.1 step 3).
    #[inline]
    fn decide_doubtful(&mut self, first: Psn) {
        let Some((psn, largest_acked)) = self.doubtful.take_if(|(psn, _)| psn.plus(1) == first) else {
            return;
        };
        let end = self.transmissions.at(psn.value()).number.wrapping_add(1);
        let is_raised = self.largest_acked[PsnSpace::Request] == end;
        if is_raised && self.is_unacked(first) && !self.retransmitted.contains(first) {
            self.largest_acked[PsnSpace::Request] = largest_acked;
        }
    }

    /// Records that the READ response `psn`, of an executed READ request, was received.
    #[inline]
    pub(crate) fn on_response(&mut self, psn: Psn, time: AckTime) {
        if psn == self.una && self.has_no_gap() {
            return self.on_next_acked(PsnSpace::Response, 1);
        }
        if !self.lost.is_empty() {
            self.lost.remove(psn);
        }
        if self.acked.insert(psn) {
            self.on_newly_acked(PsnSpace::Response, psn, time);
        }
        if psn == self.una {
            self.advance();
        }
    }

    /// Marks `count` PSNs from una on as acknowledged. [`SentLog::has_no_gap`] must be true.
    #[inline]
    fn on_next_acked(&mut self, space: PsnSpace, count: u32) {
        self.una = self.una.plus(count);
        (self.retransmitted_end, self.shared_end) = (self.una, self.una);
        self.largest_acked_psn = self.una;
        // Each packet in flight was sent after the PSN below una, and so has at least the transmission number `end`.
        let end = self.transmissions.at(self.una.minus(1).value()).number.wrapping_add(1);
        self.oldest[space] = end;
        if is_before(self.largest_acked[space], end) {
            self.largest_acked[space] = end;
        }
    }

    #[inline]
    fn on_newly_acked(&mut self, space: PsnSpace, psn: Psn, time: AckTime) {
        let number = self.transmissions.at(psn.value()).number;
        if number == self.oldest[space] && !self.shares_number(psn) {
            self.oldest[space] = number.wrapping_add(1);
        }
        self.raise_largest_acked(space, psn, time);
    }

    /// Records that request `first + i` is acknowledged for each set bit `i` of `bits`. Ignores PSNs not sent.
    #[inline]
    pub(crate) fn on_sacked(&mut self, first: Psn, bits: u64, time: AckTime) {
        self.mark_requests_acked(first, bits, time);
        self.advance();
    }

    #[inline]
    fn mark_requests_acked(&mut self, first: Psn, bits: u64, time: AckTime) {
        // A SACK repeats the bits of the SACKs before it. The bits of PSNs outside the log are cleared below.
        let newly = bits & !self.acked.bits(first);
        if newly == 0 {
            return;
        }
        let Some(offset) = first.offset_from(self.una) else { return };
        let below = 0.max(-offset).unsigned_abs();
        let room = i64::from(self.sent()) - i64::from(0.max(offset));
        let (first, newly) = (first.plus(below), newly.checked_shr(below).unwrap_or(0));
        let newly = match room {
            ..=0 => return,
            1..64 => newly & ((1 << room) - 1),
            _ => newly,
        };
        // No acknowledged PSN is marked lost.
        self.lost.remove_bits(first, newly);
        self.acked.insert_bits(first, newly);
        let mut again =
            if self.retransmitted.is_empty() { 0 } else { newly & self.retransmitted.bits(first) };
        let once = newly & !again;
        if again != 0 && self.is_executed(first) {
            again &= !self.first_transmissions(first, again, once);
        }
        while again != 0 {
            let psn = first.plus(again.trailing_zeros());
            again &= again - 1;
            self.on_newly_acked(PsnSpace::Request, psn, time);
        }
        if once != 0 {
            // Transmission numbers of first transmissions rise with PSNs, so the highest PSN of `once` (the PSNs newly
            // acknowledged that were sent only once) has the highest transmission number.
            let low = first.plus(once.trailing_zeros());
            let run_pkts = (once >> once.trailing_zeros()).trailing_ones();
            let number = |psn: Psn| self.transmissions.at(psn.value()).number;
            let (low_number, high_number) = (number(low), number(low.plus(run_pkts - 1)));
            if low_number == self.oldest[PsnSpace::Request]
                && high_number.wrapping_sub(low_number) == run_pkts - 1
            {
                self.oldest[PsnSpace::Request] = high_number.wrapping_add(1);
            }
            self.raise_largest_acked(
                PsnSpace::Request,
                first.plus(u64::BITS - 1 - once.leading_zeros()),
                time,
            );
        }
    }

    /// `again` and `once` are bitmaps, from `first` on, of the PSNs that the current ACK newly acknowledges: `again`
    /// has the retransmitted PSNs, `once` the others. Returns the PSNs of `again` whose first transmissions elicited
    /// this ACK: each run of consecutive PSNs of `again` directly below a PSN of `once`. If the first transmissions of
    /// a run had been lost, an earlier SACK would have acknowledged the PSN directly above the run (F-RTO, RFC 5682
    /// section 2.1 step 3).
    #[cold]
    fn first_transmissions(&self, first: Psn, again: u64, once: u64) -> u64 {
        let above = first.plus(u64::BITS);
        let is_above_acked =
            self.is_executed(above) && self.is_unacked(above) && !self.retransmitted.contains(above);
        let acked_above = once >> 1 | u64::from(is_above_acked) << (u64::BITS - 1);
        // `run` has the PSNs of `again` (retransmitted, now acknowledged). `last` has the highest PSN of each returned
        // run: each run of consecutive PSNs of `again` directly below a PSN of `once` (sent once, now acknowledged). In
        // the sum of `run` and `last`, a carry clears the bits of each returned run, and of no other run. The bits are
        // reversed, because a carry passes to higher bits, but must pass to the lower PSNs of the run.
        let (run, last) = (again.reverse_bits(), (again & acked_above).reverse_bits());
        (run & !run.wrapping_add(last) | last).reverse_bits()
    }

    #[inline]
    pub(crate) fn acked_bits(&self, first: Psn) -> u64 {
        self.acked.bits(first)
    }

    /// Advances una over PSNs that are acknowledged and executed. Una does not pass a request that the responder
    /// buffers, because the responder may still refuse this request with an RNR NAK.
    #[inline]
    fn advance(&mut self) {
        if self.sent() == 0 || !self.acked.contains(self.una) {
            return;
        }
        let executed = self.executed.index_in(self.una, self.sent() + 1).unwrap_or(0);
        let end = self.acked.first_missing(self.una, executed).unwrap_or(self.una.plus(executed));
        let gone = end.distance_from(self.una);
        self.acked.remove_range(self.una, gone);
        self.lost.remove_range(self.una, gone);
        self.una = end;
    }

    /// Marks lost the packets of `space` that were sent at least `threshold_pkts` transmissions before an acknowledged
    /// packet of `space`. Returns the number of PSNs newly marked.
    #[inline]
    pub(crate) fn detect_losses(&mut self, space: PsnSpace, threshold_pkts: u32) -> u32 {
        let end = self.largest_acked[space].wrapping_sub(threshold_pkts);
        let is_response = space == PsnSpace::Response;
        let newly = if is_before(self.oldest[space], end) {
            self.search(space, end, is_response && threshold_pkts == 0)
        } else {
            0
        };
        match self.retransmission_acked.take_if(|_| is_response) {
            Some((number, psn)) => newly + self.scan_psns(self.una, psn, number.wrapping_sub(threshold_pkts)),
            None => newly,
        }
    }

    /// Marks lost the packets that [`SentLog::scan`] marks. If `by_psn`, and if no higher transmission number was
    /// acknowledged since the last search, searches only from the PSN at which the last search ended.
    fn search(&mut self, space: PsnSpace, end: u32, by_psn: bool) -> u32 {
        let oldest = self.oldest[space];
        let searched = if by_psn { self.searched.replace((end, self.largest_acked_psn)) } else { None };
        match searched {
            // The READ responses in flight with transmission numbers below `end` (one past the highest number
            // acknowledged) all have number `end - 1`.
            Some((searched_end, from)) if searched_end == end && oldest.wrapping_add(1) == end => {
                self.scan_psns(from, self.largest_acked_psn, oldest)
            }
            _ => self.scan(space, end, by_psn),
        }
    }

    /// Marks lost the READ responses with PSNs from `from` to below `below` and transmission numbers of at most
    /// `number`. Returns the number of PSNs newly marked.
    fn scan_psns(&mut self, from: Psn, below: Psn, number: u32) -> u32 {
        let (mut newly, mut at) = (0, self.tracked(from).unwrap_or(0));
        let to = self.tracked(below).unwrap_or(0);
        while at < to {
            let (first, step) = (self.una.plus(at), (to - at).min(u64::BITS));
            let mut in_flight = self.in_flight_bits(first, step);
            while in_flight != 0 {
                let psn = first.plus(in_flight.trailing_zeros());
                in_flight &= in_flight - 1;
                if !is_before(number, self.transmissions.at(psn.value()).number) {
                    newly += u32::from(self.lost.insert(psn));
                }
            }
            at += step;
        }
        newly
    }

    /// Marks lost the packets of `space` with transmission numbers below `end`, and updates `oldest[space]`, the lower
    /// bound of the transmission numbers in flight. If `by_psn`, `space` is that of responses, and a READ response with
    /// transmission number `end - 1` is marked only if its PSN is below `largest_acked_psn`, the highest acknowledged
    /// PSN with this transmission number.
    fn scan(&mut self, space: PsnSpace, end: u32, by_psn: bool) -> u32 {
        let executed = self.executed.index_in(self.una, self.sent() + 1).unwrap_or(0);
        let (from, to) = match space {
            PsnSpace::Response => (0, executed),
            PsnSpace::Request => (executed, self.sent()),
        };
        // Above the highest retransmitted PSN, transmission numbers rise with PSNs. Therefore the scan ends at the
        // first packet that is above the highest retransmitted PSN and remains in flight.
        let last = self.retransmitted.last_in(self.una, to);
        let ordered_from = last.map_or(0, |psn| psn.distance_from(self.una) + 1);
        let (mut newly, mut oldest, mut at) = (0, self.next_number, from);
        'words: while at < to {
            let (first, step) = (self.una.plus(at), (to - at).min(u64::BITS));
            let mut in_flight = self.in_flight_bits(first, step);
            while in_flight != 0 {
                let index = in_flight.trailing_zeros();
                in_flight &= in_flight - 1;
                let number = self.transmissions.at(first.value().wrapping_add(index)).number;
                let is_last_number = by_psn && number.wrapping_add(1) == end;
                let psn = first.plus(index);
                let is_earlier = self.largest_acked_psn.offset_from(psn).is_some_and(|offset| offset > 0);
                if is_before(number, end) && (!is_last_number || is_earlier) {
                    newly += u32::from(self.lost.insert(psn));
                    continue;
                }
                if is_before(number, oldest) {
                    oldest = number;
                }
                if at + index >= ordered_from {
                    break 'words;
                }
            }
            at += step;
        }
        self.oldest[space] = oldest;
        newly
    }

    /// Marks lost the PSNs of `span`, even if acknowledged: the peer dropped the packets from its reorder buffer or
    /// sent an RNR NAK, or a probe timeout expired.
    pub(crate) fn retransmit(&mut self, span: PsnSpan) {
        let PsnSpan { first, packets, is_read } = span;
        if is_read && self.is_acked(first) && !self.is_executed(first) {
            self.on_read_not_buffered();
        }
        for psn in (0..packets.min(self.window_pkts())).map(|i| first.plus(i)) {
            if self.tracked(psn).is_some() {
                self.acked.remove(psn);
                self.lost.insert(psn);
            }
        }
    }
}

#[cfg(test)]
#[path = "sent_log_tests.rs"]
mod tests;
