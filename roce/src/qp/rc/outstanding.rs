//! The send queue with PSNs: which work request owns which packets.
//!
//! ```text
//!   send queue   | w0      | w1   | w2 (READ) | w3 posted ...
//!   PSNs         |f  ..  l |f .. l|f   ..   l |
//!                 oldest                       end: the first PSN not yet assigned
//!   assigned     '----------- 3 -------------'
//! ```
//! A work request gets its PSNs when its first packet is about to be sent and keeps them until it
//! completes.

use super::segment::packets_in;
use crate::psn::Psn;
use crate::queue::{SendQueue, SendWqe};
use crate::start;

/// PSNs that may be assigned and unacknowledged at once: half the circle (IBA 9.7.2), which is also
/// the longest message at the smallest path MTU.
pub const MAX_OUTSTANDING_PSNS: u32 = 1 << 23;

/// The PSNs of one work request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PsnSpan {
    /// Its first PSN.
    pub first: Psn,
    /// How many it has.
    pub packets: u32,
    /// Whether they are answered by READ responses.
    pub is_read: bool,
}

impl PsnSpan {
    /// The first PSN after it.
    pub const fn end(&self) -> Psn {
        self.first.plus(self.packets)
    }
}

/// What is to be known of a work request that gets PSNs.
#[derive(Clone, Copy, Debug)]
pub struct Kind {
    /// It is answered by READ responses.
    pub is_read: bool,
    /// It takes a receive of the peer.
    pub takes_receive: bool,
}

/// A packet's place: which outstanding work request, and which packet of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Work requests before it.
    pub index: u32,
    /// Packets of the work request before this one.
    pub packet: u32,
    /// The work request's PSNs.
    pub span: PsnSpan,
}

impl Place {
    /// Packets of the work request from this one on.
    pub fn rest_pkts(&self) -> u32 {
        self.span.packets - self.packet
    }
}

/// Send work requests not yet completed.
pub struct Outstanding {
    queue: SendQueue,
    /// Spans of assigned work requests, in a ring by absolute position.
    spans: Box<[PsnSpan]>,
    /// Beside each, how many receives of the peer all before it take, modulo 2^32.
    receives_before: Box<[u32]>,
    /// The position of the oldest: one more for each work request completed, modulo 2^32.
    position: u32,
    assigned: u32,
    assigned_reads: u32,
    end: Psn,
    /// Receives of the peer that those assigned so far take, modulo 2^32.
    receives: u32,
    /// Where the last search ended: packets are mostly asked for in order.
    cursor: u32,
}

impl Outstanding {
    /// The work requests of `queue`, which holds at most `depth`; the first gets PSN `first`.
    pub fn new(queue: SendQueue, depth: u32, first: Psn) -> Self {
        let places = depth.next_power_of_two() as usize;
        let spans = vec![PsnSpan::default(); places].into_boxed_slice();
        let receives_before = vec![0; places].into_boxed_slice();
        Outstanding {
            queue,
            spans,
            receives_before,
            position: start::RING_POSITION,
            assigned: 0,
            assigned_reads: 0,
            end: first,
            receives: start::RECEIVE,
            cursor: start::RING_POSITION,
        }
    }

    /// Sets the first PSN; only while nothing is assigned.
    pub fn set_first_psn(&mut self, first: Psn) {
        debug_assert_eq!(self.assigned, 0);
        self.end = first;
        self.receives = start::RECEIVE;
    }

    /// The queue, for posting rights and flushing.
    pub fn queue(&mut self) -> &mut SendQueue {
        &mut self.queue
    }

    /// The first PSN not yet assigned.
    #[inline]
    pub fn end(&self) -> Psn {
        self.end
    }

    /// Work requests with PSNs.
    #[inline]
    pub fn assigned(&self) -> u32 {
        self.assigned
    }

    /// READs with PSNs.
    #[inline]
    pub fn assigned_reads(&self) -> u32 {
        self.assigned_reads
    }

    #[inline]
    fn span(&self, index: u32) -> PsnSpan {
        let mask = self.spans.len() - 1;
        self.spans[self.position.wrapping_add(index) as usize & mask]
    }

    /// The work request that gets PSNs next, if one is posted.
    #[inline]
    pub fn next_unassigned(&mut self) -> Option<&SendWqe> {
        self.queue.get(self.assigned)
    }

    /// Gives the next work request, of `len_bytes`, its PSNs: the place of its first packet. `None` where
    /// they do not fit beside the `unacked` PSNs of its predecessors.
    #[inline]
    pub fn assign(&mut self, len_bytes: u32, kind: Kind, unacked: u32, mtu_bytes: u32) -> Option<Place> {
        let Kind { is_read, takes_receive } = kind;
        let packets = packets_in(len_bytes, mtu_bytes);
        if unacked + packets > MAX_OUTSTANDING_PSNS {
            return None;
        }
        let (index, mask) = (self.assigned, self.spans.len() - 1);
        let span = PsnSpan { first: self.end, packets, is_read };
        self.cursor = self.position.wrapping_add(index);
        self.spans[self.cursor as usize & mask] = span;
        self.receives_before[self.cursor as usize & mask] = self.receives;
        self.end = self.end.plus(packets);
        self.assigned += 1;
        self.assigned_reads += u32::from(is_read);
        self.receives = self.receives.wrapping_add(u32::from(takes_receive));
        Some(Place { index, packet: 0, span })
    }

    /// Where the packet `psn` lies, if it is assigned and not completed.
    #[inline]
    pub fn find(&mut self, psn: Psn) -> Option<Place> {
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
        // Work requests are mostly alike.
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

    /// The work request `index` places after the oldest.
    #[inline]
    pub fn wqe(&mut self, index: u32) -> Option<SendWqe> {
        self.queue.get(index).copied()
    }

    /// How many messages before the work request `index` places after the oldest, which is assigned, take a
    /// receive of the peer; since the connection was made, modulo 2^32.
    #[inline]
    pub fn receives_before(&self, index: u32) -> u32 {
        let mask = self.spans.len() - 1;
        self.receives_before[self.position.wrapping_add(index) as usize & mask]
    }

    /// The PSNs of the oldest work request, if it has been assigned any.
    #[inline]
    pub fn oldest(&self) -> Option<PsnSpan> {
        (self.assigned > 0).then(|| self.span(0))
    }

    /// Whether the oldest assigned work request is the one at absolute `position`.
    pub fn oldest_is(&self, position: u32) -> bool {
        self.position == position
    }

    /// The absolute position of the work request `index` places after the oldest.
    pub fn position_of(&self, index: u32) -> u32 {
        self.position.wrapping_add(index)
    }

    /// The first PSN from `una` on that a READ response still has to bring, looking at packets
    /// before `end` only.
    pub fn first_read_before(&self, una: Psn, end: Psn) -> Option<Psn> {
        if self.assigned_reads == 0 {
            return None;
        }
        let distance = end.index_in(una, MAX_OUTSTANDING_PSNS + 1)?;
        let spans = (0..self.assigned).map(|index| self.span(index));
        let read = spans
            .take_while(|span| span.first.offset_from(una).is_none_or(|o| o < distance as i32))
            .find(|span| span.is_read)?;
        // The oldest work request may have begun before `una`.
        let first = if read.first.offset_from(una).is_some_and(|o| o < 0) { una } else { read.first };
        first.index_in(una, distance).map(|_| first)
    }

    /// Takes the oldest work request out.
    #[inline]
    pub fn pop(&mut self) -> Option<SendWqe> {
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
