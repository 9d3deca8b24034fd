//! One direction of a cable: a queue, a wire, and the faults of the tape.

use std::collections::VecDeque;

use crate::network::{LinkId, Node};
use crate::tape::{Fault, Tape};

/// What a frame takes on the wire besides its own bytes: preamble 8, FCS 4, gap 12.
pub const WIRE_OVERHEAD_BYTES: u64 = 24;

/// The shortest frame without its FCS; shorter ones take this much time on the wire.
const MIN_FRAME_BYTES: u64 = 60;

const NANOS_PER_SEC: u128 = 1_000_000_000;

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

/// What became of the frames of one direction of a link.
/// `offered = overrun + left + waiting`, and `delivered = left - dropped + duplicated - under way`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkCounters {
    /// Frames put to the link.
    pub offered: u64,
    /// Frames that found the queue full.
    pub overrun: u64,
    /// Frames whose last bit left the sender.
    pub left: u64,
    /// Frames lost by the tape.
    pub dropped: u64,
    /// Frames doubled by the tape.
    pub duplicated: u64,
    /// Frames with a bit flipped by the tape and not lost.
    pub corrupted: u64,
    /// Frames delayed or put behind others by the tape and not lost.
    pub displaced: u64,
    /// Frames that arrived.
    pub delivered: u64,
}

/// A frame that waits for others to pass it.
pub(crate) struct Held {
    pub(crate) number: u64,
    pub(crate) frame: Vec<u8>,
    pub(crate) passes_left: u32,
}

pub(crate) struct Link {
    pub(crate) config: LinkConfig,
    pub(crate) to: Node,
    /// Frames that wait for the wire, the one on it first.
    pub(crate) queue: VecDeque<Vec<u8>>,
    queued_bytes: usize,
    /// The tape's entries for this link that are still to come.
    faults: VecDeque<Fault>,
    /// Frames that left since the tape was put in.
    pub(crate) left_on_tape: u64,
    pub(crate) held: Vec<Held>,
    pub(crate) held_count: u64,
    pub(crate) counters: LinkCounters,
}

impl Link {
    pub(crate) fn new(config: LinkConfig, to: Node) -> Self {
        assert!(config.rate_bits_per_sec > 0, "a link needs a rate");
        Link {
            config,
            to,
            queue: VecDeque::new(),
            queued_bytes: 0,
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
    pub(crate) fn has_room(&self, len_bytes: usize) -> bool {
        self.queued_bytes + len_bytes <= self.config.queue_bytes_max
    }

    /// Puts a frame at the end of the queue; gives it back where there is no room.
    /// `Ok(true)`: the wire was idle and the frame is now on it.
    pub(crate) fn enqueue(&mut self, frame: Vec<u8>) -> Result<bool, Vec<u8>> {
        self.counters.offered += 1;
        if !self.has_room(frame.len()) {
            self.counters.overrun += 1;
            return Err(frame);
        }
        self.queued_bytes += frame.len();
        self.queue.push_back(frame);
        Ok(self.queue.len() == 1)
    }

    /// Takes the frame whose last bit has left.
    pub(crate) fn dequeue(&mut self) -> Option<Vec<u8>> {
        let frame = self.queue.pop_front()?;
        self.queued_bytes -= frame.len();
        self.counters.left += 1;
        Some(frame)
    }

    /// Time that the frame at the head takes on the wire.
    pub(crate) fn wire_nanos(&self) -> Option<u64> {
        let bytes = (self.queue.front()?.len() as u64).max(MIN_FRAME_BYTES) + WIRE_OVERHEAD_BYTES;
        let nanos =
            (u128::from(bytes) * 8 * NANOS_PER_SEC).div_ceil(u128::from(self.config.rate_bits_per_sec));
        Some(u64::try_from(nanos).unwrap_or(u64::MAX))
    }

    /// The tape's next entry for frame number `frame`.
    pub(crate) fn next_fault(&mut self, frame: u64) -> Option<Fault> {
        if self.faults.front()?.frame == frame { self.faults.pop_front() } else { None }
    }
}
