//! One direction of a cable: a queue, a wire, and what goes wrong on it.

use std::collections::VecDeque;

use crate::frame::FrameId;
use crate::network::{LinkId, Node};
use crate::rng::SplitMix;
use crate::tape::{Fault, Tape};

/// What a frame takes on the wire besides its own bytes: preamble 8, FCS 4, gap 12.
pub const WIRE_OVERHEAD_BYTES: u64 = 24;

/// The shortest frame without its FCS; shorter ones take this much time on the wire.
const MIN_FRAME_BYTES: u64 = 60;

const NANOS_PER_SEC: u64 = 1_000_000_000;

/// What a link can do, in each direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkConfig {
    /// Speed of the wire, at least 1.
    pub rate_bits_per_sec: u64,
    /// Time from the last bit sent to its arrival.
    pub propagation_nanos: u64,
    /// Bytes that may wait for the wire, those of the frame on it included; a frame that finds no
    /// room is dropped. At least one frame of the longest.
    pub queue_bytes_max: usize,
}

impl LinkConfig {
    /// Time that a frame of `len_bytes` takes on the wire, in nanoseconds, rounded up.
    pub fn wire_nanos(&self, len_bytes: usize) -> u64 {
        self.wire_nanos_after(len_bytes, 0).0
    }

    /// The same for a frame behind another that was given `excess` too much time by rounding, and what it
    /// is given too much itself: both in parts of a nanosecond, `rate_bits_per_sec` of which are a whole one.
    #[inline]
    fn wire_nanos_after(&self, len_bytes: usize, excess: u64) -> (u64, u64) {
        let bytes = (len_bytes as u64).max(MIN_FRAME_BYTES) + WIRE_OVERHEAD_BYTES;
        let Some(parts) = bytes.checked_mul(8 * NANOS_PER_SEC) else { return (u64::MAX, 0) };
        let parts = parts.saturating_sub(excess);
        let nanos = parts.div_ceil(self.rate_bits_per_sec);
        (nanos, nanos.saturating_mul(self.rate_bits_per_sec) - parts)
    }

    /// Bytes that the wire sends in `nanos`, rounded up.
    pub fn bytes_in(&self, nanos: u64) -> usize {
        let bits = u128::from(self.rate_bits_per_sec) * u128::from(nanos);
        bits.div_ceil(8 * u128::from(NANOS_PER_SEC)) as usize
    }
}

/// What became of the frames of one direction of a link.
/// `offered = overrun + left + waiting`, and `delivered = left - dropped + duplicated - under way`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkCounters {
    /// Frames put to the link.
    pub offered: u64,
    /// Frames that found the queue, or the switch's memory before it, full.
    pub overrun: u64,
    /// Frames whose last bit left the sender.
    pub left: u64,
    /// Bytes of those frames.
    pub left_bytes: u64,
    /// Frames lost by the tape or at random.
    pub dropped: u64,
    /// Frames doubled by the tape.
    pub duplicated: u64,
    /// Frames with a bit flipped by the tape and not lost.
    pub corrupted: u64,
    /// Frames delayed or put behind others by the tape and not lost.
    pub displaced: u64,
    /// Frames that arrived.
    pub delivered: u64,
    /// Frames that the switch before the link marked "congestion experienced".
    pub marked: u64,
    /// Times that the far end paused the link.
    pub pauses: u64,
    /// How long it stood paused, in all.
    pub paused_nanos: u64,
    /// The most bytes that waited for the wire at once.
    pub queue_bytes_peak: u64,
    /// The most bytes that came by this link and waited at once in the switch behind it.
    pub input_bytes_peak: u64,
}

/// A frame that waits for others to pass it.
pub(crate) struct DelayedFrame {
    pub(crate) number: u32,
    pub(crate) frame: FrameId,
    pub(crate) passes_left: u32,
}

/// A frame that waits for the wire.
#[derive(Clone, Copy)]
pub(crate) struct Queued {
    pub(crate) frame: FrameId,
    pub(crate) len_bytes: u32,
    /// The link by which it came into this switch; [`crate::frame::NONE`] where a host sent it.
    pub(crate) input: u32,
}

pub(crate) struct Link {
    pub(crate) config: LinkConfig,
    pub(crate) from: Node,
    pub(crate) to: Node,
    /// Frames that wait for the wire; where it is busy, the one on it first.
    queue: VecDeque<Queued>,
    pub(crate) queued_bytes: usize,
    pub(crate) busy: bool,
    /// When the frame on the wire has left.
    pub(crate) busy_until_nanos: u64,
    /// Whether what rounding adds to a frame's time is taken from the next one's.
    pub(crate) keeps_fractions: bool,
    /// What that is at present, in parts of a nanosecond.
    excess: u64,
    /// Since when the far end has it paused.
    pub(crate) paused_since_nanos: Option<u64>,
    /// Bytes that came by this link and wait in the switch behind it.
    pub(crate) input_bytes: usize,
    /// That switch asked for a pause of this link.
    pub(crate) asked_to_pause: bool,
    /// Random bits below this lose a frame.
    pub(crate) loss_threshold: u64,
    pub(crate) rng: SplitMix,
    /// The tape's entries for this link that are still to come.
    faults: VecDeque<Fault>,
    /// Frames that left since the tape was put in.
    pub(crate) left_on_tape: u64,
    pub(crate) held: Vec<DelayedFrame>,
    pub(crate) held_count: u32,
    pub(crate) counters: LinkCounters,
}

impl Link {
    pub(crate) fn new(config: LinkConfig, from: Node, to: Node, rng: SplitMix) -> Self {
        assert!(config.rate_bits_per_sec > 0, "a link needs a rate");
        Link {
            config,
            from,
            to,
            queue: VecDeque::new(),
            queued_bytes: 0,
            busy: false,
            busy_until_nanos: 0,
            keeps_fractions: false,
            excess: 0,
            paused_since_nanos: None,
            input_bytes: 0,
            asked_to_pause: false,
            loss_threshold: 0,
            rng,
            faults: VecDeque::new(),
            left_on_tape: 0,
            held: Vec::new(),
            held_count: 0,
            counters: LinkCounters::default(),
        }
    }

    pub(crate) fn set_tape(&mut self, tape: &Tape, own: LinkId) {
        self.faults = tape.of_link(own).into();
        self.left_on_tape = 0;
    }

    /// Whether `len_bytes` more bytes may wait.
    #[inline]
    pub(crate) fn has_room(&self, len_bytes: usize) -> bool {
        self.queued_bytes + len_bytes <= self.config.queue_bytes_max
    }

    /// Puts a frame at the end of the queue, where there is room.
    #[inline]
    pub(crate) fn enqueue(&mut self, queued: Queued) {
        self.queued_bytes += queued.len_bytes as usize;
        self.counters.queue_bytes_peak = self.counters.queue_bytes_peak.max(self.queued_bytes as u64);
        self.queue.push_back(queued);
    }

    /// Starts the next frame, where the wire is free and may be used. Returns when it will have left.
    #[inline]
    pub(crate) fn start_next(&mut self, now_nanos: u64) -> Option<u64> {
        if self.busy || self.paused_since_nanos.is_some() {
            return None;
        }
        let len_bytes = self.queue.front()?.len_bytes as usize;
        let follows = self.keeps_fractions && now_nanos == self.busy_until_nanos;
        let excess = if follows { self.excess } else { 0 };
        let (wire_nanos, excess) = self.config.wire_nanos_after(len_bytes, excess);
        self.excess = excess;
        self.busy = true;
        self.busy_until_nanos = now_nanos.saturating_add(wire_nanos);
        Some(self.busy_until_nanos)
    }

    /// Takes the frame whose last bit has left.
    #[inline]
    pub(crate) fn take_sent(&mut self) -> Option<Queued> {
        self.busy = false;
        let queued = self.queue.pop_front()?;
        self.queued_bytes -= queued.len_bytes as usize;
        self.counters.left += 1;
        self.counters.left_bytes += u64::from(queued.len_bytes);
        Some(queued)
    }

    /// Whether chance loses the next frame.
    #[inline]
    pub(crate) fn is_unlucky(&mut self) -> bool {
        self.loss_threshold > 0 && self.rng.bits() < self.loss_threshold
    }

    /// The tape's next entry for frame number `frame`.
    #[inline]
    pub(crate) fn next_fault(&mut self, frame: u64) -> Option<Fault> {
        if self.faults.front()?.frame == frame { self.faults.pop_front() } else { None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::{Frames, NONE, UnderWay};
    use crate::network::HostId;

    #[test]
    fn a_wire_that_never_rests_sends_at_its_rate() {
        for gbits in [10, 25, 40, 100, 400] {
            let config = LinkConfig {
                rate_bits_per_sec: gbits * 1_000_000_000,
                propagation_nanos: 0,
                queue_bytes_max: usize::MAX,
            };
            let end = Node::Host(HostId(0));
            let mut link = Link::new(config, end, end, SplitMix::new(0));
            link.keeps_fractions = true;
            let frame = Frames::default().insert(UnderWay::default());
            let mut now_nanos = 0;
            let lens = [60u32, 1_082, 4_154, 61];
            for len_bytes in lens.into_iter().cycle().take(1_000) {
                link.enqueue(Queued { frame, len_bytes, input: NONE });
            }
            while let Some(sent_nanos) = link.start_next(now_nanos) {
                now_nanos = sent_nanos;
                link.take_sent();
            }
            let bits = 8 * 250 * lens.iter().map(|len| u64::from(*len) + WIRE_OVERHEAD_BYTES).sum::<u64>();
            assert_eq!(now_nanos, bits.div_ceil(gbits), "{gbits} Gbit/s");
            // After a rest nothing is owed.
            link.enqueue(Queued { frame, len_bytes: 61, input: NONE });
            assert_eq!(link.start_next(now_nanos + 1), Some(now_nanos + 1 + config.wire_nanos(61)));
        }
    }
}
