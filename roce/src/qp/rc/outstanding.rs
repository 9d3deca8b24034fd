//! Assigns PSNs to the work requests of a send queue, and finds the work request of a PSN.
//!
//! ```text
//!   send queue   | w0      | w1   | w2 (READ) | w3 posted ...
//!   PSNs         |f  ..  l |f .. l|f   ..   l |        f first, l last PSN of a work request
//!                 oldest                       end: the first PSN not yet assigned
//!   assigned     '--- 3 work requests -------'
//! ```
//! A work request is assigned PSNs just before its first packet is sent. The PSNs stay assigned until it completes.

use super::segment::packets_in;
use crate::psn::Psn;
use crate::queue::{SendQueue, SendWqe};
use crate::recovery::circular_array::CircularArray;
use crate::start;

/// PSNs that may be assigned and unacknowledged at once: half the circle (IBA 9.7.2), which is also the longest
/// message at the smallest path MTU.
pub(crate) const MAX_OUTSTANDING_PSNS: u32 = 1 << 23;

/// PSNs of a work request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct PsnSpan {
    /// First PSN.
    pub first: Psn,
    /// Number of PSNs, 1 to [`MAX_OUTSTANDING_PSNS`].
    pub packets: u32,
    /// The work request is a READ: responses complete it, not ACKs.
    pub is_read: bool,
}

impl PsnSpan {
    /// PSN after the last.
    pub(crate) const fn end(&self) -> Psn {
        self.first.plus(self.packets)
    }
}

/// Properties of a work request that is assigned PSNs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Kind {
    /// The work request is a READ.
    pub is_read: bool,
    /// The message consumes a receive of the peer: SEND, or WRITE with immediate.
    pub takes_receive: bool,
}

/// Position of a packet: its work request, and its index in the message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    /// Outstanding work requests before its own.
    pub index: u32,
    /// Packets of the work request before this one.
    pub packet: u32,
    /// PSNs of the work request.
    pub span: PsnSpan,
}

impl Place {
    /// Packets of the work request from this one on, at least 1.
    pub(crate) fn rest_pkts(&self) -> u32 {
        self.span.packets - self.packet
    }
}

/// Send work requests not yet completed: those with PSNs, then those only posted.
pub(crate) struct Outstanding {
    queue: SendQueue,
    /// Spans of assigned work requests, by absolute position.
    spans: CircularArray<PsnSpan>,
    /// Beside each span, the recv WQE sequence number: receives that all messages before it consume, modulo 2^32.
    receives_before: CircularArray<u32>,
    /// Absolute position of the oldest work request: +1 for each completed, modulo 2^32.
    position: u32,
    assigned: u32,
    assigned_reads: u32,
    end: Psn,
    /// Recv WQE sequence number of the next work request to be assigned PSNs.
    receives: u32,
    /// Absolute position of the work request found last, because PSNs are mostly looked up in order.
    cursor: u32,
}

impl Outstanding {
    /// Assigns PSNs from `first` on to the work requests of `queue`, which holds at most `depth`.
    pub(crate) fn new(queue: SendQueue, depth: u32, first: Psn) -> Self {
        Outstanding {
            queue,
            spans: CircularArray::new(depth, PsnSpan::default()),
            receives_before: CircularArray::new(depth, 0),
            position: start::RING_POSITION,
            assigned: 0,
            assigned_reads: 0,
            end: first,
            receives: start::RECEIVE,
            cursor: start::RING_POSITION,
        }
    }

    /// Sets the first PSN. No work request may have PSNs yet.
    pub(crate) fn set_first_psn(&mut self, first: Psn) {
        debug_assert_eq!(self.assigned, 0);
        self.end = first;
        self.receives = start::RECEIVE;
    }

    /// Returns the send queue, for posting rights, payloads and flushing.
    pub(crate) fn queue(&mut self) -> &mut SendQueue {
        &mut self.queue
    }

    /// First PSN not yet assigned.
    #[inline]
    pub(crate) fn end(&self) -> Psn {
        self.end
    }

    /// Number of work requests with PSNs.
    #[inline]
    pub(crate) fn assigned(&self) -> u32 {
        self.assigned
    }

    /// Number of READs with PSNs.
    #[inline]
    pub(crate) fn assigned_reads(&self) -> u32 {
        self.assigned_reads
    }

    #[inline]
    fn span(&self, index: u32) -> PsnSpan {
        *self.spans.at(self.position.wrapping_add(index))
    }

    /// Returns the work request to be assigned PSNs next, if one is posted.
    #[inline]
    pub(crate) fn next_unassigned(&mut self) -> Option<&SendWqe> {
        self.queue.get(self.assigned)
    }

    /// Assigns PSNs to the next work request, of `len_bytes`, and returns the place of its first packet; `None` if
    /// they and the `unacked` PSNs before them exceed [`MAX_OUTSTANDING_PSNS`].
    #[inline]
    pub(crate) fn assign(
        &mut self,
        len_bytes: u32,
        kind: Kind,
        unacked: u32,
        mtu_bytes: u32,
    ) -> Option<Place> {
        let Kind { is_read, takes_receive } = kind;
        let packets = packets_in(len_bytes, mtu_bytes);
        if unacked + packets > MAX_OUTSTANDING_PSNS {
            return None;
        }
        let index = self.assigned;
        let span = PsnSpan { first: self.end, packets, is_read };
        self.cursor = self.position.wrapping_add(index);
        *self.spans.at_mut(self.cursor) = span;
        *self.receives_before.at_mut(self.cursor) = self.receives;
        self.end = self.end.plus(packets);
        self.assigned += 1;
        self.assigned_reads += u32::from(is_read);
        self.receives = self.receives.wrapping_add(u32::from(takes_receive));
        Some(Place { index, packet: 0, span })
    }

    /// Returns the place of packet `psn`; `None` if it is not assigned, or completed.
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
        // Because work requests mostly have equal lengths, a division finds most of them.
        if let Some(place) = self.place_in(wanted / packets, psn) {
            return Some(place);
        }
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

    /// Returns the work request `index` places after the oldest.
    #[inline]
    pub(crate) fn wqe(&mut self, index: u32) -> Option<SendWqe> {
        self.queue.get(index).copied()
    }

    /// Returns the recv WQE sequence number of the assigned work request `index` places after the oldest: receives
    /// of the peer that messages before it consume, since the connection was made, modulo 2^32.
    #[inline]
    pub(crate) fn receives_before(&self, index: u32) -> u32 {
        *self.receives_before.at(self.position.wrapping_add(index))
    }

    /// Returns the PSNs of the oldest work request, if it has any.
    #[inline]
    pub(crate) fn oldest(&self) -> Option<PsnSpan> {
        (self.assigned > 0).then(|| self.span(0))
    }

    /// Whether the oldest work request is that of absolute `position`.
    pub(crate) fn oldest_is(&self, position: u32) -> bool {
        self.position == position
    }

    /// Returns the absolute position of the work request `index` places after the oldest.
    pub(crate) fn position_of(&self, index: u32) -> u32 {
        self.position.wrapping_add(index)
    }

    /// Returns the first PSN of `una..end` that belongs to a READ: its response is missing.
    pub(crate) fn first_read_before(&self, una: Psn, end: Psn) -> Option<Psn> {
        if self.assigned_reads == 0 {
            return None;
        }
        let distance = end.index_in(una, MAX_OUTSTANDING_PSNS + 1)?;
        let spans = (0..self.assigned).map(|index| self.span(index));
        let read = spans
            .take_while(|span| span.first.offset_from(una).is_none_or(|o| o < distance as i32))
            .find(|span| span.is_read)?;
        // The oldest work request may begin below `una`.
        let first = if read.first.offset_from(una).is_some_and(|o| o < 0) { una } else { read.first };
        first.index_in(una, distance).map(|_| first)
    }

    /// Removes the oldest work request, and returns it.
    #[inline]
    pub(crate) fn pop(&mut self) -> Option<SendWqe> {
        let span = self.oldest();
        let wqe = self.queue.release_oldest()?;
        self.position = self.position.wrapping_add(1);
        if let Some(span) = span {
            self.assigned -= 1;
            self.assigned_reads -= u32::from(span.is_read);
        }
        Some(wqe)
    }
}
