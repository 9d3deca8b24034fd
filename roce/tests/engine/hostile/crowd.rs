//! Several queue pairs fill the reorder buffer of one engine. `run` executes a script of gaps, forged packets, errors
//! and destroyed queue pairs, and checks the invariants below at least every 16 polls. The fuzz target, the replay of
//! its corpus and a property test call `run`.
//!
//! * The engine returns every frame to the port, and buffers at most `REORDER_BYTES` bytes.
//! * If no queue pair is in a state that receives packets, the reorder buffer is empty.
//! * Every frame is dropped for a counted reason or reaches a queue pair.
//! * Memory changes only by a receive or a permitted WRITE.
//! * The engine becomes idle; after all queue pairs are destroyed, the reorder buffer is empty.

use super::REORDER_BYTES;
use super::several::{Several, retransmitted};
use super::tape::{self, Tape};
use roce::engine::limits::REORDER_NANOS_MAX;
use roce::qp::QpState;
use roce::recovery::RecoveryScheme;

const STEPS_MAX: usize = 200;
/// Number of frames after which a run ends: enough frames to fill the reorder buffer.
const FRAMES_MAX: usize = 10_000;
/// Largest number of polls between two checks of the invariants.
const UNCHECKED_POLLS_MAX: usize = 16;
const QPS_MAX: usize = 4;
/// Payload in bytes of a packet so small that it takes one cell of the reorder buffer.
const TINY: usize = 64;

/// Counts of a run. Tests assert minimum counts, to ensure that scripts reach rare states.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Tally {
    pub(crate) buffered_bytes_max: usize,
    /// Packets dropped because the reorder buffer was full.
    pub(crate) no_room: u64,
    pub(crate) expired: u64,
    pub(crate) conflicts: u64,
    /// WRITEs executed.
    pub(crate) writes: u64,
}

struct Crowd<'a> {
    tape: Tape<'a>,
    several: Several,
    /// Frames that each peer has sent, by index of the queue pair.
    sent: Vec<Vec<Vec<u8>>>,
    frames: usize,
    tally: Tally,
}

/// Runs the script that `bytes` encode; panics if an invariant does not hold.
pub(crate) fn run(bytes: &[u8]) -> Tally {
    let mut tape = Tape(bytes);
    let mut setup = tape::setup(&mut tape);
    if let RecoveryScheme::SelectiveRepeat { window_pkts } = &mut setup.conn.recovery {
        *window_pkts = tape.pick(&[64, 1024, 4096, 4096]);
    }
    let several = Several::new(setup, QPS_MAX);
    let sent = vec![Vec::new(); QPS_MAX];
    let mut crowd = Crowd { tape, several, sent, frames: 0, tally: Tally::default() };
    for _ in 0..STEPS_MAX {
        if crowd.tape.0.is_empty() || crowd.frames > FRAMES_MAX {
            break;
        }
        crowd.step();
    }
    crowd.finish();
    crowd.tally
}

impl Crowd<'_> {
    fn step(&mut self) {
        let index = usize::from(self.tape.byte()) % self.sent.len().max(1);
        if self.sent.is_empty() {
            return self.create();
        }
        match self.tape.below(16) {
            0..=2 => self.message(index),
            3..=4 => self.forge(index),
            5 => self.packet(index),
            6..=7 => self.retransmit(index),
            8..=9 => self.fill(index),
            10 => {
                let len_bytes = u32::from(self.tape.byte()) * 8;
                self.several.post_recv(index, len_bytes);
            }
            11 => {
                let nanos = self.tape.pick(&[1_000, 1_000_000, REORDER_NANOS_MAX / 2, REORDER_NANOS_MAX]);
                self.several.now = self.several.now.plus_nanos(nanos);
                self.poll();
            }
            12 if self.tape.once_in(4) => {
                self.several.destroy(index);
                self.sent.swap_remove(index);
                self.poll();
            }
            13 if self.sent.len() < QPS_MAX => self.create(),
            14 => self.modify(index),
            _ => {
                self.poll();
            }
        }
    }

    fn create(&mut self) {
        self.several.create();
        self.sent.push(Vec::new());
    }

    fn modify(&mut self, index: usize) {
        let to = self.tape.pick(&[QpState::Err, QpState::Reset, QpState::Sqd, QpState::Rts]);
        if self.several.modify(index, to) && to == QpState::Reset {
            self.connect(index);
        }
        self.check_states();
    }

    fn connect(&mut self, index: usize) {
        self.several.connect(index);
        self.sent[index].clear();
    }

    fn put(&mut self, frame: Vec<u8>) {
        self.frames += 1;
        self.several.put(frame);
    }

    /// Sends a message; some of its packets are lost.
    fn message(&mut self, index: usize) {
        let (kind, mtu_bytes) = (tape::kind(&mut self.tape), self.several.setup.conn.path_mtu.bytes());
        let reth = self.several.arena.reth(tape::honest_reth(&mut self.tape, mtu_bytes));
        let lost = tape::losses(&mut self.tape);
        for (number, frame) in self.several.message(index, kind, reth).into_iter().enumerate() {
            self.sent[index].push(frame.clone());
            if lost >> (number % 32) & 1 == 0 {
                self.put(frame);
            }
        }
    }

    /// Sends a forged message, at PSNs that the peer has used or will use.
    fn forge(&mut self, index: usize) {
        let peer = &mut self.several.ends[index].peer;
        let (expected, fill) = (peer.expected, peer.fill);
        let (back, ahead) = (u32::from(self.tape.byte() % 16), u32::from(self.tape.byte() % 16));
        peer.expected = expected.minus(back).plus(ahead);
        peer.fill = 0x66;
        let (kind, mtu_bytes) = (tape::kind(&mut self.tape), self.several.setup.conn.path_mtu.bytes());
        let reth = self.several.arena.reth(tape::honest_reth(&mut self.tape, mtu_bytes));
        let frames = self.several.message(index, kind, reth);
        let peer = &mut self.several.ends[index].peer;
        (peer.expected, peer.fill) = (expected, fill);
        frames.into_iter().for_each(|frame| self.put(frame));
    }

    /// Sends a packet, valid or invalid.
    fn packet(&mut self, index: usize) {
        let plan = tape::packet(&mut self.tape, self.several.setup.conn.path_mtu.bytes());
        let reth = self.several.arena.reth(plan.reth);
        let frame = self.several.ends[index].peer.packet(&plan, reth);
        self.put(frame);
    }

    /// Retransmits some of the frames that the peer has sent.
    fn retransmit(&mut self, index: usize) {
        let len = self.sent[index].len();
        let from = usize::from(self.tape.byte()) * len / 256;
        let count = usize::from(self.tape.byte() % 64);
        let frames: Vec<_> = self.sent[index].iter().skip(from).take(count).cloned().collect();
        for frame in frames {
            let is_ipv4 = !self.several.setup.is_ipv6;
            let frame = if is_ipv4 && self.tape.once_in(4) { retransmitted(&frame) } else { frame };
            self.put(frame);
        }
    }

    /// Sends many packets behind a gap.
    fn fill(&mut self, index: usize) {
        let count = usize::from(self.tape.pick(&[3u16, 40, 300, 4095, 3, 40, 300, 40]));
        let mtu_bytes = self.several.setup.conn.path_mtu.bytes() as usize;
        let len_bytes = self.tape.pick(&[TINY, mtu_bytes, mtu_bytes]);
        let mut frames = self.several.writes(index, count + 1, len_bytes);
        self.sent[index].extend(frames.iter().cloned());
        if self.tape.once_in(4) {
            frames.reverse();
        }
        let lost = usize::from(self.tape.byte()) * count / 256;
        for (number, frame) in frames.into_iter().enumerate() {
            if number != lost {
                self.put(frame);
            }
        }
        self.poll();
    }

    /// Polls until the engine is idle. Checks the invariants at least every 16 polls, and at the end.
    fn poll(&mut self) {
        let mut unchecked = 0;
        while !(self.several.poll() && self.several.engine.port().incoming.is_empty()) {
            unchecked += 1;
            if unchecked == UNCHECKED_POLLS_MAX {
                self.check();
                unchecked = 0;
            }
        }
        self.check();
        self.check_states();
        // The script may reset and reconnect a queue pair that is in ERR.
        for index in 0..self.sent.len() {
            if self.several.state(index) == QpState::Err && self.tape.once_in(2) {
                assert!(self.several.modify(index, QpState::Reset));
                self.connect(index);
            }
        }
    }

    fn check(&mut self) {
        self.several.check();
        let buffered_bytes = self.several.engine.buffered_bytes();
        assert!(buffered_bytes <= REORDER_BYTES, "{buffered_bytes} bytes are buffered");
        self.tally.buffered_bytes_max = self.tally.buffered_bytes_max.max(buffered_bytes);
        let counters = self.several.engine.counters();
        let dropped: u64 = self.several.engine.drop_counters().iter().map(|(_, count)| count).sum();
        assert_eq!(
            dropped + counters.rcvd_pkts,
            self.several.engine.port().taken,
            "every frame is counted once"
        );
    }

    fn check_states(&self) {
        let takes = |index| matches!(self.several.state(index), QpState::Rtr | QpState::Rts | QpState::Sqd);
        if !(0..self.sent.len()).any(takes) {
            assert_eq!(self.several.engine.buffered_bytes(), 0, "buffered for no queue pair");
        }
    }

    fn finish(&mut self) {
        self.poll();
        while !self.sent.is_empty() {
            let index = usize::from(self.tape.byte()) % self.sent.len();
            self.several.destroy(index);
            self.sent.swap_remove(index);
            self.check();
        }
        self.poll();
        assert_eq!(self.several.engine.buffered_bytes(), 0, "packets of destroyed queue pairs");
        let counters = self.several.engine.counters();
        self.tally.no_room = counters.reorder_no_room;
        self.tally.expired = counters.reorder_expired;
        self.tally.conflicts = counters.reorder_conflicts;
        self.tally.writes = counters.rx_write_requests;
    }
}
