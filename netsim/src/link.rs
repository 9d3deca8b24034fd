//! One direction of a cable: a queue, a wire, and its impairments.

use std::collections::VecDeque;

use crate::frame::FrameId;
use crate::id::{LinkId, Node};
use crate::rng::SplitMix;
use crate::tape::{Tape, TapeEntry};

/// Bytes that a frame occupies on the wire in addition to its own bytes: preamble 8, FCS 4, interpacket gap 12.
pub const WIRE_OVERHEAD_BYTES: u64 = 24;

/// Bytes of the shortest frame without FCS; a shorter frame occupies the wire for the same time.
const MIN_FRAME_BYTES: u64 = 60;

const NANOS_PER_SEC: u64 = 1_000_000_000;

/// Properties of one direction of a cable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkConfig {
    /// Bit rate of the wire, at least 1.
    pub rate_bits_per_sec: u64,
    /// Propagation delay in nanoseconds.
    pub propagation_nanos: u64,
    /// Limit of the queue in bytes, the frame on the wire included; a frame that does not fit is dropped. At least the
    /// length of the longest frame.
    pub queue_bytes_max: usize,
}

impl LinkConfig {
    /// Serialisation time of a frame of `len_bytes` in nanoseconds, rounded up.
    pub fn wire_nanos(&self, len_bytes: usize) -> u64 {
        self.wire_nanos_after(len_bytes, 0).0
    }

    /// Returns the serialisation time of a frame in nanoseconds, rounded up, and the rounding in units of
    /// `1 / rate_bits_per_sec` ns. `excess`: the rounding of the frame before, which is deducted from the serialisation
    /// time.
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

/// Counters of a link, in frames unless the name has another unit. If `queued` frames are not sent yet, and
/// `travelling` frames are sent but not received, then `offered = overrun + left + queued` and
/// `delivered = left - dropped + duplicated - travelling`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkCounters {
    /// Frames passed to the link for sending, dropped frames included.
    pub offered: u64,
    /// Frames dropped because the queue, or the memory of the switch that sends, was full.
    pub overrun: u64,
    /// Frames whose last bit left the sender.
    pub left: u64,
    /// Bytes of the frames whose last bit left the sender.
    pub left_bytes: u64,
    /// Frames dropped by the tape or by random loss.
    pub dropped: u64,
    /// Duplicates that the tape added.
    pub duplicated: u64,
    /// Frames corrupted by the tape and not dropped.
    pub corrupted: u64,
    /// Frames delayed or reordered by the tape and not dropped.
    pub displaced: u64,
    /// Frames that arrived at the end of the link.
    pub delivered: u64,
    /// Frames that got a CE mark from the switch that sends.
    pub marked: u64,
    /// PAUSE frames received by the sender.
    pub pauses: u64,
    /// Total time paused, in nanoseconds.
    pub paused_nanos: u64,
    /// Largest number of bytes in the queue.
    pub queue_bytes_peak: u64,
    /// Largest number of bytes received on this link and buffered in the switch at its end.
    pub input_bytes_peak: u64,
}

/// A frame held until `passes_left` later frames have passed it.
pub(crate) struct DelayedFrame {
    pub(crate) number: u32,
    pub(crate) frame: FrameId,
    pub(crate) passes_left: u32,
}

/// A frame in the queue of a link.
#[derive(Clone, Copy)]
pub(crate) struct Queued {
    pub(crate) frame: FrameId,
    pub(crate) len_bytes: u32,
    /// The link on which the switch received the frame; [`crate::frame::NONE`] if a host sends it.
    pub(crate) input: u32,
}

/// Frames of an output port by input port, served in turn.
#[derive(Default)]
struct InputQueues {
    /// An input link, and its frames.
    queues: Vec<(u32, VecDeque<Queued>)>,
    /// Index of the input port to be served next.
    turn: usize,
}

impl InputQueues {
    fn push(&mut self, queued: Queued) {
        match self.queues.iter_mut().find(|(input, _)| *input == queued.input) {
            Some((_, queue)) => queue.push_back(queued),
            None => self.queues.push((queued.input, VecDeque::from([queued]))),
        }
    }

    /// Removes the frame to be sent next: the first of the next input port that has any.
    fn pop(&mut self) -> Option<Queued> {
        for _ in 0..self.queues.len() {
            let turn = self.turn % self.queues.len();
            self.turn = turn + 1;
            if let Some(queued) = self.queues[turn].1.pop_front() {
                return Some(queued);
            }
        }
        None
    }
}

pub(crate) struct Link {
    pub(crate) config: LinkConfig,
    pub(crate) from: Node,
    pub(crate) to: Node,
    /// Frames to send. While the wire is busy, the first frame is on the wire. If `inputs` is `Some`, only the frame on
    /// the wire is in this queue.
    queue: VecDeque<Queued>,
    /// Frames to send by input port, if the input ports are served in turn.
    inputs: Option<InputQueues>,
    pub(crate) queued_bytes: usize,
    pub(crate) busy: bool,
    /// The time at which the last bit of the frame on the wire leaves.
    pub(crate) busy_until_nanos: u64,
    /// Whether the rounding of a frame's serialisation time is deducted from the serialisation time of the next frame.
    pub(crate) keeps_fractions: bool,
    /// Rounding of the last frame's serialisation time, in units of `1 / rate_bits_per_sec` ns.
    excess: u64,
    /// The time since which the link is paused; `None`: not paused.
    pub(crate) paused_since_nanos: Option<u64>,
    /// Bytes received on this link and buffered in the switch at its end.
    pub(crate) input_bytes: usize,
    /// Whether the switch at the end of the link has sent PAUSE, and no RESUME since.
    pub(crate) asked_to_pause: bool,
    /// A frame is dropped if a random number of 64 bits is below this threshold.
    pub(crate) loss_threshold: u64,
    pub(crate) rng: SplitMix,
    /// The tape's entries for this link that have not been applied.
    entries: VecDeque<TapeEntry>,
    /// Frames that left since the tape was set.
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
            inputs: None,
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
            entries: VecDeque::new(),
            left_on_tape: 0,
            held: Vec::new(),
            held_count: 0,
            counters: LinkCounters::default(),
        }
    }

    pub(crate) fn set_tape(&mut self, tape: &Tape, own: LinkId) {
        self.entries = tape.of_link(own).into();
        self.left_on_tape = 0;
    }

    /// Serves the input ports in turn. No frame may be queued yet.
    pub(crate) fn serve_inputs_in_turn(&mut self) {
        self.inputs = Some(InputQueues::default());
    }

    #[inline]
    pub(crate) fn has_room(&self, len_bytes: usize) -> bool {
        self.queued_bytes + len_bytes <= self.config.queue_bytes_max
    }

    /// Appends a frame to the queue; the caller has checked `has_room`.
    #[inline]
    pub(crate) fn enqueue(&mut self, queued: Queued) {
        self.queued_bytes += queued.len_bytes as usize;
        self.counters.queue_bytes_peak = self.counters.queue_bytes_peak.max(self.queued_bytes as u64);
        match &mut self.inputs {
            Some(inputs) => inputs.push(queued),
            None => self.queue.push_back(queued),
        }
    }

    /// Starts to send the next frame, unless the wire is busy or paused. Returns the time at which its last bit leaves.
    #[inline]
    pub(crate) fn start_next(&mut self, now_nanos: u64) -> Option<u64> {
        if self.busy || self.paused_since_nanos.is_some() {
            return None;
        }
        if let Some(inputs) = &mut self.inputs {
            self.queue.extend(inputs.pop());
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

    #[inline]
    pub(crate) fn take_sent(&mut self) -> Option<Queued> {
        self.busy = false;
        let queued = self.queue.pop_front()?;
        self.queued_bytes -= queued.len_bytes as usize;
        self.counters.left += 1;
        self.counters.left_bytes += u64::from(queued.len_bytes);
        Some(queued)
    }

    /// Draws whether random loss drops the next frame.
    #[inline]
    pub(crate) fn is_unlucky(&mut self) -> bool {
        self.loss_threshold > 0 && self.rng.bits() < self.loss_threshold
    }

    /// Removes and returns the tape's next entry, if it is for frame number `frame`.
    #[inline]
    pub(crate) fn next_entry(&mut self, frame: u64) -> Option<TapeEntry> {
        if self.entries.front()?.frame == frame { self.entries.pop_front() } else { None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::{Frames, InTransit, NONE};
    use crate::id::HostId;

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
            let frame = Frames::default().insert(InTransit::default());
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
            // After an idle time no rounding is deducted.
            link.enqueue(Queued { frame, len_bytes: 61, input: NONE });
            assert_eq!(link.start_next(now_nanos + 1), Some(now_nanos + 1 + config.wire_nanos(61)));
        }
    }
}
