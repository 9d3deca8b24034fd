//! Assigns PSNs to the work requests of a send queue, and finds the work request of a PSN.
//!
//! ```text
//!   send queue   | w0      | w1   | w2 (READ) | w3 (local) | w4 posted ...
//!   PSNs         |f  ..  l |f .. l|f   ..   l |f no PSNs   |        f first, l last PSN of a work request
//!                 oldest                       end: the first PSN not yet assigned
//!   assigned     '--- 4 work requests --------------------'
//! ```
//! A work request is assigned PSNs just before its first packet is sent. The PSNs stay assigned until the work request
//! completes. A local operation is assigned a span of 0 PSNs when the local operation is executed. Because una is never
//! below the first PSN of the oldest work request, an executed local operation completes as soon as it is the oldest.

use super::segment::packets_in;
use crate::prefetch::prefetch;
use crate::psn::Psn;
use crate::queue::{SendQueue, SendWqe};
use crate::recovery::circular_array::CircularArray;
use crate::recovery::{PsnSpan, Requests};
use crate::start;
use crate::wire::PrecedingReads;

/// Maximum number of PSNs assigned and not acknowledged: half the PSN circle (IBA 9.7.2), as many as a message of 2^31
/// bytes takes at path MTU 256.
pub(crate) const MAX_OUTSTANDING_PSNS: u32 = 1 << 23;

/// Length of the array `Outstanding::assignments` (PSNs of each work request) of a new queue pair.
const ASSIGNMENTS_MIN: u32 = 8;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Kind {
    pub is_read: bool,
    /// True if the message consumes a receive of the peer: a SEND, or a WRITE with immediate.
    pub takes_receive: bool,
}

/// An outstanding work request, and one of its PSNs. `packet`, the index of the PSN, is 0 for a local operation, which
/// has no PSN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    /// Index of the work request among the outstanding work requests; 0: the oldest.
    pub index: u32,
    /// Index of the PSN among the PSNs of the work request.
    pub packet: u32,
    pub span: PsnSpan,
}

/// The PSNs of a work request (none for a local operation).
#[derive(Clone, Copy, Debug, Default)]
struct Assignment {
    span: PsnSpan,
    /// SEND or WRITE: recv WQE sequence number. READ or local operation: number of PSNs directly below `span` that belong
    /// to READs. One field for both numbers, so that four assignments lie in one cache line.
    before: u32,
}

impl Assignment {
    /// Returns whether `before` is a number of PSNs of READs.
    fn counts_reads(&self) -> bool {
        self.span.is_read || self.span.packets == 0
    }
}

/// Send work requests not yet completed: first the work requests with assigned PSNs (0 PSNs for an executed local
/// operation), then the posted work requests without assigned PSNs.
pub(crate) struct Outstanding {
    queue: SendQueue,
    /// One entry for each work request with assigned PSNs, indexed by the position of the work request (see the field
    /// `position`). The array is short at first, so that an idle queue pair takes little memory, and doubles when all
    /// entries are in use.
    assignments: CircularArray<Assignment>,
    /// Position of the oldest work request; incremented when a work request completes. The positions of the work
    /// requests of the send queue are consecutive in the order of posting, modulo 2^32.
    position: u32,
    assigned: u32,
    assigned_reads: u32,
    end: Psn,
    /// Number of receives of the peer consumed by all messages that were ever assigned PSNs, modulo 2^32.
    receives: u32,
    /// Position in the send queue (see the field `position`) of the work request to which PSNs were assigned last, or
    /// that `find` found last. `find` starts at this position, because PSNs are mostly looked up in order.
    cursor: u32,
    /// Maximum number of responses of one READ request. A READ with more responses needs several READ requests.
    read_pkts_max: u32,
    /// Number of READ requests sent of which at least one response is missing; counted under selective repeat only.
    read_requests: u32,
}

impl Outstanding {
    pub(crate) fn new(queue: SendQueue, first: Psn) -> Self {
        Outstanding {
            queue,
            assignments: CircularArray::new(ASSIGNMENTS_MIN, Assignment::default()),
            position: start::ring_position(),
            assigned: 0,
            assigned_reads: 0,
            end: first,
            receives: start::receive(),
            cursor: start::ring_position(),
            read_pkts_max: u32::MAX,
            read_requests: 0,
        }
    }

    /// Sets the first PSN, and the maximum number of responses of one READ request. Must not be called while a work
    /// request has assigned PSNs.
    pub(crate) fn start(&mut self, first: Psn, read_pkts_max: u32) {
        debug_assert_eq!(self.assigned, 0);
        self.end = first;
        self.receives = start::receive();
        self.read_pkts_max = read_pkts_max;
        self.read_requests = 0;
    }

    /// Returns the PSNs of the message at `place`; for a READ, only the PSNs of the READ request that covers `place`.
    #[inline]
    pub(crate) fn request_of(&self, place: &Place) -> PsnSpan {
        let span = place.span;
        if !span.is_read || span.packets <= self.read_pkts_max {
            return span;
        }
        let from = place.packet / self.read_pkts_max * self.read_pkts_max;
        let packets = (span.packets - from).min(self.read_pkts_max);
        PsnSpan { first: span.first.plus(from), packets, is_read: true }
    }

    /// Records the first transmission of a READ request.
    #[inline]
    pub(crate) fn on_read_sent(&mut self) {
        self.read_requests += 1;
    }

    /// Returns the number of outstanding READ requests, which `max_rd_atomic` limits. Under selective repeat: READ
    /// requests sent of which at least one response is missing. Under both kinds of go-back-N: READs not completed.
    #[inline]
    pub(crate) fn outstanding_reads(&self) -> u32 {
        if self.read_pkts_max == u32::MAX { self.assigned_reads } else { self.read_requests }
    }

    /// Returns whether all posted work requests have completed.
    #[inline]
    pub(crate) fn is_idle(&mut self) -> bool {
        self.assigned == 0 && self.queue.get(0).is_none()
    }

    /// Prefetches the [`Assignment`] of the work request to which PSNs are assigned next.
    #[inline]
    pub(crate) fn prefetch_next(&self) {
        let entry = self.assignments.at(self.position.wrapping_add(self.assigned));
        prefetch(entry, 0..size_of::<Assignment>());
    }

    pub(crate) fn queue(&mut self) -> &mut SendQueue {
        &mut self.queue
    }

    /// Returns the first PSN not yet assigned to a work request.
    #[inline]
    pub(crate) fn end(&self) -> Psn {
        self.end
    }

    /// Returns the number of work requests with assigned PSNs, including executed local operations (0 PSNs).
    #[inline]
    pub(crate) fn assigned(&self) -> u32 {
        self.assigned
    }

    #[inline]
    pub(crate) fn assigned_reads(&self) -> u32 {
        self.assigned_reads
    }

    #[inline]
    fn span(&self, index: u32) -> PsnSpan {
        self.assignments.at(self.position.wrapping_add(index)).span
    }

    #[inline]
    pub(crate) fn next_unassigned(&mut self) -> Option<&SendWqe> {
        self.queue.get(self.assigned)
    }

    /// Assigns PSNs to the work request that [`Outstanding::next_unassigned`] has returned; its message has `len_bytes`
    /// bytes. Returns the [`Place`] of its first packet; `None` if the number of these PSNs, plus the number `unacked`
    /// of unacknowledged PSNs before them, exceeds [`MAX_OUTSTANDING_PSNS`].
    #[inline(always)]
    pub(crate) fn assign(
        &mut self,
        len_bytes: u32,
        kind: Kind,
        unacked: u32,
        mtu_bytes: u32,
    ) -> Option<Place> {
        let packets = packets_in(len_bytes, mtu_bytes);
        (unacked + packets <= MAX_OUTSTANDING_PSNS).then(|| self.append(packets, kind))
    }

    /// Assigns 0 PSNs to the next work request, a local operation that was executed. Returns its [`Place`], with a
    /// span of 0 packets.
    pub(crate) fn assign_local(&mut self) -> Place {
        self.append(0, Kind { is_read: false, takes_receive: false })
    }

    #[inline(always)]
    fn append(&mut self, packets: u32, kind: Kind) -> Place {
        let Kind { is_read, takes_receive } = kind;
        let index = self.assigned;
        if index == self.assignments.len() {
            self.assignments.double(self.position, Assignment::default());
        }
        let span = PsnSpan { first: self.end, packets, is_read };
        self.cursor = self.position.wrapping_add(index);
        *self.assignments.at_mut(self.cursor) = Assignment { span, before: self.receives };
        if is_read || packets == 0 {
            self.count_reads_before(index);
        }
        self.end = self.end.plus(packets);
        self.assigned += 1;
        self.assigned_reads += u32::from(is_read);
        self.receives = self.receives.wrapping_add(u32::from(takes_receive));
        Place { index, packet: 0, span }
    }

    /// Sets `before` of the READ or local operation at `index`. Counts no PSN of completed work requests, and at most
    /// [`PrecedingReads::PKTS_MAX`] plus the PSNs of one READ.
    #[inline(never)]
    fn count_reads_before(&mut self, index: u32) {
        let at = self.position.wrapping_add(index);
        let below = self.assignments.at(at.wrapping_sub(1));
        let before = if index > 0 && below.counts_reads() {
            below.before.min(PrecedingReads::PKTS_MAX) + below.span.packets
        } else {
            0
        };
        self.assignments.at_mut(at).before = before;
    }

    /// Returns the [`Place`] of packet `psn`; `None` if `psn` belongs to no outstanding work request.
    #[inline]
    pub(crate) fn find(&mut self, psn: Psn) -> Option<Place> {
        for ahead in 0..2 {
            let index = self.cursor.wrapping_sub(self.position).wrapping_add(ahead);
            if let Some(place) = self.place_in(index, psn) {
                self.cursor = self.position.wrapping_add(index);
                return Some(place);
            }
        }
        let place = self.search(psn)?;
        self.cursor = self.position.wrapping_add(place.index);
        Some(place)
    }

    #[cold]
    fn search(&self, psn: Psn) -> Option<Place> {
        let PsnSpan { first: base, packets, .. } = self.oldest()?;
        let wanted = psn.index_in(base, MAX_OUTSTANDING_PSNS)?;
        // If all work requests have equal lengths, as is common, a division finds the work request of `psn`. The
        // division fails if the oldest work request is a local operation, which has no packets.
        if let Some(place) = wanted.checked_div(packets).and_then(|index| self.place_in(index, psn)) {
            return Some(place);
        }
        // Searches for the last work request that starts at or below `psn`. Local operations with the same first PSN
        // precede this work request.
        let (mut low, mut high) = (0, self.assigned);
        while high - low > 1 {
            let middle = low + (high - low) / 2;
            let starts = self.span(middle).first.index_in(base, MAX_OUTSTANDING_PSNS);
            if starts.is_some_and(|starts| starts <= wanted) { low = middle } else { high = middle }
        }
        self.place_in(low, psn)
    }

    #[inline]
    fn place_in(&self, index: u32, psn: Psn) -> Option<Place> {
        if index >= self.assigned {
            return None;
        }
        let span = self.span(index);
        let packet = psn.index_in(span.first, span.packets)?;
        Some(Place { index, packet, span })
    }

    /// Returns the work request at `index` among those with PSNs and the executed local operations; 0: the oldest.
    #[inline]
    pub(crate) fn wqe(&self, index: u32) -> Option<&SendWqe> {
        self.queue.seen(index)
    }

    /// Returns the recv WQE sequence number of the SEND or WRITE `index` positions after the oldest work request: the
    /// number of the peer's receives that earlier messages consume, modulo 2^32. `index` must be below
    /// [`Outstanding::assigned`].
    #[inline]
    pub(crate) fn receives_before(&self, index: u32) -> u32 {
        self.assignments.at(self.position.wrapping_add(index)).before
    }

    #[inline]
    pub(crate) fn oldest(&self) -> Option<PsnSpan> {
        (self.assigned > 0).then(|| self.span(0))
    }

    /// Returns whether the oldest work request is an executed local operation, which completes without a response.
    #[inline]
    pub(crate) fn oldest_is_local(&self) -> bool {
        self.oldest().is_some_and(|span| span.packets == 0)
    }

    pub(crate) fn oldest_is(&self, position: u32) -> bool {
        self.position == position
    }

    pub(crate) fn position_of(&self, index: u32) -> u32 {
        self.position.wrapping_add(index)
    }

    /// Removes and returns the oldest work request, with or without assigned PSNs.
    pub(crate) fn pop(&mut self) -> Option<SendWqe> {
        let Some(span) = self.oldest() else {
            let wqe = self.queue.release_oldest()?;
            self.position = self.position.wrapping_add(1);
            return Some(wqe);
        };
        let wqe = self.wqe(0).copied();
        self.release(span);
        wqe
    }

    /// Removes the oldest work request, which has the PSNs `span`.
    #[inline(always)]
    pub(crate) fn release(&mut self, span: PsnSpan) {
        self.queue.release_oldest();
        self.position = self.position.wrapping_add(1);
        self.assigned -= 1;
        if span.is_read {
            self.assigned_reads -= 1;
        }
    }
}

impl Requests for Outstanding {
    #[inline]
    fn request_at(&mut self, psn: Psn) -> Option<PsnSpan> {
        let place = self.find(psn)?;
        Some(self.request_of(&place))
    }

    fn preceding_reads(&mut self, psn: Psn) -> PrecedingReads {
        let Some(place) = self.find(psn) else { return PrecedingReads::NONE };
        let assignment = self.assignments.at(self.position.wrapping_add(place.index));
        let before = if assignment.counts_reads() { assignment.before + place.packet } else { 0 };
        PrecedingReads::from_pkts(before)
    }

    #[inline]
    fn has_reads(&self) -> bool {
        self.assigned_reads > 0
    }

    #[inline]
    fn on_read_answered(&mut self) {
        self.read_requests -= 1;
    }

    fn first_read_before(&self, una: Psn, end: Psn) -> Option<Psn> {
        if self.assigned_reads == 0 {
            return None;
        }
        let distance = end.index_in(una, MAX_OUTSTANDING_PSNS + 1)?;
        let spans = (0..self.assigned).map(|index| self.span(index));
        let read = spans
            .take_while(|span| span.first.offset_from(una).is_none_or(|o| o < distance as i32))
            .find(|span| span.is_read)?;
        // If `read` is partly acknowledged, `read` begins below `una`, and its first unacknowledged PSN is `una`.
        let first = if read.first.offset_from(una).is_some_and(|o| o < 0) { una } else { read.first };
        first.index_in(una, distance).map(|_| first)
    }
}
