//! A port decorator with random impairments: loss, corruption, duplication and reordering of frames.
//!
//! ```text
//!   frame --drop?--> --corrupt?--> --duplicate?--> --reorder?--> passed on
//!             |                         |               |            ^
//!             x                    a copy is passed   held until 1 to 8 frames
//!                                                     or 64 polls have passed
//! ```
//!
//! Each direction has its own random stream. Losses, corruptions and duplicates depend only on the seed and the
//! sequence of frames; reordering also depends on the number of polls.

use std::collections::VecDeque;

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

use super::impairment::flip_bit;
use super::probability::{Probability, Threshold};
use super::staging::Staging;
use super::{Payload, Port, PortCaps};
use crate::time::Instant;

/// A frame held for reordering is passed on at the latest when this number of later frames, none of them held, have
/// been passed on.
const REORDER_FRAMES_MAX: u32 = 8;
/// Largest number of polls (calls of `rx_burst` or `tx_flush`) for which a frame is held for reordering.
const REORDER_POLLS_MAX: u32 = 64;
/// Largest number of frames held for reordering at once, per direction.
const HELD_FRAMES_MAX: usize = 64;

/// Direction of the frames that a [`Fault`] port impairs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FaultDirection {
    /// Impairs received frames.
    Rx,
    /// Impairs sent frames.
    #[default]
    Tx,
    /// Impairs received and sent frames; each direction has its own random stream.
    Both,
}

/// Impairments of a [`Fault`] port: probabilities per frame, seed and direction.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct FaultConfig {
    /// Probability that a frame is dropped.
    pub drop_probability: Probability,
    /// Probability that a frame is reordered: passed on after 1 to 8 later frames or 64 polls, whichever is first.
    pub reorder_probability: Probability,
    /// Probability that one random bit of a frame is flipped.
    pub corrupt_probability: Probability,
    /// Probability that a frame is duplicated.
    pub duplicate_probability: Probability,
    /// Seed of the random numbers; runs with equal seeds and equal frames draw equal numbers.
    pub seed: u64,
    /// Direction of the frames that are impaired.
    pub direction: FaultDirection,
}

impl FaultConfig {
    pub(crate) fn is_active(&self) -> bool {
        [
            self.drop_probability,
            self.reorder_probability,
            self.corrupt_probability,
            self.duplicate_probability,
        ]
        .iter()
        .any(|&probability| probability != Probability::NEVER)
    }
}

/// Counters of one direction of a [`Fault`] port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ImpairedFrames {
    /// Number of frames received ([`FaultCounters::rx`]) or sent ([`FaultCounters::tx`]), impaired or not; 0 if no
    /// impairment is configured for this direction.
    pub frames: u64,
    /// Frames dropped.
    pub dropped: u64,
    /// Frames held for reordering.
    pub reordered: u64,
    /// Frames with a bit flipped.
    pub corrupted: u64,
    /// Frames duplicated.
    pub duplicated: u64,
}

/// Counters of the impairments of a [`Fault`] port, per direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FaultCounters {
    /// Counters of received frames.
    pub rx: ImpairedFrames,
    /// Counters of sent frames.
    pub tx: ImpairedFrames,
}

/// A frame received through a [`Fault`] port.
pub enum FaultFrame<F> {
    /// A frame that [`Fault::inner`] received, unchanged.
    Intact(F),
    /// A corrupted frame, or the copy of a duplicated frame.
    Copied(Vec<u8>),
}

impl<F: AsRef<[u8]>> AsRef<[u8]> for FaultFrame<F> {
    fn as_ref(&self) -> &[u8] {
        match self {
            FaultFrame::Intact(frame) => frame.as_ref(),
            FaultFrame::Copied(bytes) => bytes,
        }
    }
}

struct DelayedFrame<F> {
    frame: FaultFrame<F>,
    frames_left: u32,
    polls_left: u32,
}

struct Direction<F> {
    active: bool,
    drop: Threshold,
    reorder: Threshold,
    corrupt: Threshold,
    duplicate: Threshold,
    rng: ChaCha8Rng,
    held: VecDeque<DelayedFrame<F>>,
    passed: VecDeque<FaultFrame<F>>,
    tally: ImpairedFrames,
}

impl<F: AsRef<[u8]>> Direction<F> {
    fn new(config: FaultConfig, active: bool, stream: u64) -> Self {
        let mut rng = ChaCha8Rng::seed_from_u64(config.seed);
        rng.set_stream(stream);
        Direction {
            active: active && config.is_active(),
            drop: config.drop_probability.into(),
            reorder: config.reorder_probability.into(),
            corrupt: config.corrupt_probability.into(),
            duplicate: config.duplicate_probability.into(),
            rng,
            held: VecDeque::new(),
            passed: VecDeque::new(),
            tally: ImpairedFrames::default(),
        }
    }

    /// Applies the impairments to `frame`. If `frame` is dropped, returns `frame`, so that the caller can reuse the
    /// buffer.
    fn admit(&mut self, frame: F) -> Option<F> {
        self.tally.frames += 1;
        if self.drop.hits(|| self.rng.next_u32()) {
            self.tally.dropped += 1;
            return Some(frame);
        }
        let mut frame = FaultFrame::Intact(frame);
        if self.corrupt.hits(|| self.rng.next_u32()) {
            self.tally.corrupted += 1;
            let (mut bytes, bit) = (frame.as_ref().to_vec(), self.rng.next_u64().cast_signed());
            let len_bytes = bytes.len();
            flip_bit(&mut bytes, len_bytes, bit);
            frame = FaultFrame::Copied(bytes);
        }
        if self.duplicate.hits(|| self.rng.next_u32()) {
            self.tally.duplicated += 1;
            self.pass(FaultFrame::Copied(frame.as_ref().to_vec()));
        }
        // Random numbers are drawn even if `held` is full. Because polls release held frames, the number of polls
        // decides whether `held` is full; the random numbers of later frames must not depend on the number of polls.
        let is_reordered = self.reorder.hits(|| self.rng.next_u32());
        let frames_left = is_reordered.then(|| 1 + self.rng.next_u32() % REORDER_FRAMES_MAX);
        match frames_left {
            Some(frames_left) if self.held.len() < HELD_FRAMES_MAX => {
                self.tally.reordered += 1;
                self.held.push_back(DelayedFrame { frame, frames_left, polls_left: REORDER_POLLS_MAX });
            }
            _ => self.pass(frame),
        }
        None
    }

    fn pass(&mut self, frame: FaultFrame<F>) {
        self.passed.push_back(frame);
        for held in &mut self.held {
            held.frames_left = held.frames_left.saturating_sub(1);
        }
        self.release();
    }

    fn tick(&mut self) {
        for held in &mut self.held {
            held.polls_left = held.polls_left.saturating_sub(1);
        }
        self.release();
    }

    fn release(&mut self) {
        let due = |held: &DelayedFrame<F>| held.frames_left == 0 || held.polls_left == 0;
        while let Some(at) = self.held.iter().position(due) {
            self.passed.extend(self.held.remove(at).map(|held| held.frame));
        }
    }
}

/// A port with the impairments of a [`FaultConfig`]. If all probabilities are 0, the cost is a branch per call, and a
/// few instructions per received frame.
pub struct Fault<P: Port> {
    port: P,
    rx: Direction<P::Frame>,
    tx: Direction<Vec<u8>>,
    /// Frames of the inner port (`port`) during `rx_burst` and `free_frames`; otherwise empty.
    arrived: Vec<P::Frame>,
    reserved: Staging,
    /// Frames to be sent, not yet accepted by the inner port (`port`).
    outgoing: Staging,
}

impl<P: Port> Fault<P> {
    /// Applies the impairments of `config` to the frames of `port`.
    pub fn new(port: P, config: FaultConfig) -> Self {
        let (rx, tx) = match config.direction {
            FaultDirection::Rx => (true, false),
            FaultDirection::Tx => (false, true),
            FaultDirection::Both => (true, true),
        };
        Fault {
            port,
            rx: Direction::new(config, rx, 0),
            tx: Direction::new(config, tx, 1),
            arrived: Vec::new(),
            reserved: Staging::default(),
            outgoing: Staging::default(),
        }
    }

    /// Sets the loss probability for the `direction` (one or both) of the [`FaultConfig`] given to [`Fault::new`]. If
    /// all probabilities of this `FaultConfig` are 0, the call has no effect.
    pub fn set_drop_probability(&mut self, probability: Probability) {
        self.rx.drop = probability.into();
        self.tx.drop = probability.into();
    }

    /// Returns the counters of the impairments applied.
    pub fn counters(&self) -> FaultCounters {
        FaultCounters { rx: self.rx.tally, tx: self.tx.tally }
    }

    fn pass_on(&mut self) {
        while let Some(frame) = self.reserved.pop() {
            self.tx.admit(frame).into_iter().for_each(|lost| self.reserved.recycle(lost));
        }
        for frame in self.tx.passed.drain(..) {
            self.outgoing.push(match frame {
                FaultFrame::Intact(bytes) | FaultFrame::Copied(bytes) => bytes,
            });
        }
        self.outgoing.drain_into(&mut self.port, |_| {});
        // Buffers of sent frames are returned to `reserved`. Otherwise each `tx_reserve` would allocate a buffer.
        self.outgoing.return_spares(&mut self.reserved);
    }

    /// Returns the inner port: the port whose frames are impaired.
    pub fn inner(&self) -> &P {
        &self.port
    }

    /// Returns the port whose frames are impaired (the inner port), mutably.
    pub fn inner_mut(&mut self) -> &mut P {
        &mut self.port
    }
}

impl<P: Port> Port for Fault<P> {
    type Frame = FaultFrame<P::Frame>;

    fn caps(&self) -> PortCaps {
        self.port.caps()
    }

    #[inline]
    fn payload(&self) -> Payload {
        self.port.payload()
    }

    fn rx_burst(&mut self, frames: &mut Vec<Self::Frame>, max: usize) -> usize {
        if !self.rx.active {
            let count = self.port.rx_burst(&mut self.arrived, max);
            frames.extend(self.arrived.drain(..).map(FaultFrame::Intact));
            return count;
        }
        self.rx.tick();
        self.port.rx_burst(&mut self.arrived, max.saturating_sub(self.rx.passed.len()));
        for frame in self.arrived.drain(..) {
            self.rx.admit(frame);
        }
        let count = self.rx.passed.len().min(max);
        frames.extend(self.rx.passed.drain(..count));
        count
    }

    fn free_frames(&mut self, frames: &mut Vec<Self::Frame>) {
        if self.rx.active {
            return frames.clear();
        }
        let own = |frame| if let FaultFrame::Intact(frame) = frame { Some(frame) } else { None };
        self.arrived.extend(frames.drain(..).filter_map(own));
        self.port.free_frames(&mut self.arrived);
    }

    fn tx_reserve(&mut self, len_bytes: usize) -> Option<&mut [u8]> {
        if !self.tx.active {
            return self.port.tx_reserve(len_bytes);
        }
        // Processes the frame of the previous `tx_reserve`, which the caller has filled.
        self.pass_on();
        // If a frame waits in `outgoing`, `self.port` (the inner port) is full, and no further frame can be sent.
        if self.outgoing.is_empty() { self.reserved.reserve(len_bytes) } else { None }
    }

    fn tx_cancel(&mut self) {
        if !self.tx.active {
            return self.port.tx_cancel();
        }
        self.reserved.cancel();
    }

    fn tx_flush(&mut self) {
        if !self.tx.active {
            return self.port.tx_flush();
        }
        self.tx.tick();
        self.pass_on();
        self.port.tx_flush();
    }

    fn set_now(&mut self, now: Instant) {
        self.port.set_now(now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::Mac;
    use crate::port::loopback::{Loopback, LoopbackPort};

    const CAPS: PortCaps = PortCaps { mac: Mac([2, 0, 0, 0, 0, 1]), mtu_bytes: 1500 };
    const SOME: Probability = Probability(0.25);

    fn tx_fault(config: FaultConfig, depth_frames: usize) -> (Fault<LoopbackPort>, LoopbackPort) {
        let (a, b) = Loopback::pair(CAPS, CAPS, depth_frames);
        (Fault::new(a, config), b)
    }

    fn send(port: &mut impl Port, n: u32) -> bool {
        let Some(buffer) = port.tx_reserve(4) else { return false };
        buffer.copy_from_slice(&n.to_be_bytes());
        port.tx_flush();
        true
    }

    fn receive(port: &mut impl Port) -> Vec<u32> {
        let mut frames = Vec::new();
        assert_eq!(port.rx_burst(&mut frames, 4096), frames.len());
        frames.iter().map(|f| u32::from_be_bytes(f.as_ref().try_into().unwrap())).collect()
    }

    fn run_tx(config: FaultConfig) -> (Vec<u32>, ImpairedFrames) {
        let (mut a, mut b) = tx_fault(config, 4096);
        (0..1000).for_each(|n| assert!(send(&mut a, n)));
        (0..REORDER_POLLS_MAX).for_each(|_| a.tx_flush());
        (receive(&mut b), a.counters().tx)
    }

    fn run_rx(config: FaultConfig) -> (Vec<u32>, ImpairedFrames) {
        let (mut a, b) = Loopback::pair(CAPS, CAPS, 4096);
        let mut b = Fault::new(b, FaultConfig { direction: FaultDirection::Rx, ..config });
        (0..1000).for_each(|n| assert!(send(&mut a, n)));
        let mut got = Vec::new();
        for _ in 0..=REORDER_POLLS_MAX + 2 {
            got.extend(receive(&mut b));
        }
        (got, b.counters().rx)
    }

    #[test]
    fn without_faults_everything_passes_in_order() {
        let all: Vec<u32> = (0..1000).collect();
        assert_eq!(run_tx(FaultConfig::default()), (all.clone(), ImpairedFrames::default()));
        assert_eq!(run_rx(FaultConfig::default()), (all, ImpairedFrames::default()));
    }

    #[test]
    fn a_frame_goes_on_when_the_next_is_begun() {
        let config = FaultConfig { corrupt_probability: Probability(1e-9), ..FaultConfig::default() };
        let (mut a, mut b) = tx_fault(config, 8);
        a.tx_reserve(4).unwrap().copy_from_slice(&7_u32.to_be_bytes());
        a.port.tx_flush();
        assert!(receive(&mut b).is_empty(), "it is not filled yet, for all that is known");
        assert!(a.tx_reserve(4).is_some());
        a.port.tx_flush();
        assert_eq!(receive(&mut b), [7]);
    }

    #[test]
    fn a_cancelled_frame_is_not_sent() {
        let active = FaultConfig { corrupt_probability: Probability(1e-9), ..FaultConfig::default() };
        for config in [FaultConfig::default(), active] {
            let (mut a, mut b) = tx_fault(config, 8);
            for (number, is_cancelled) in [(1_u32, false), (2, true), (3, false), (4, true)] {
                a.tx_reserve(4).unwrap().copy_from_slice(&number.to_be_bytes());
                if is_cancelled {
                    a.tx_cancel();
                }
            }
            a.tx_flush();
            assert_eq!(receive(&mut b), [1, 3]);
        }
    }

    #[test]
    fn dropped_frames_are_missing_and_the_rest_in_order() {
        for run in [run_tx, run_rx] {
            let (got, tally) = run(FaultConfig { drop_probability: SOME, ..FaultConfig::default() });
            assert_eq!(got.len() as u64 + tally.dropped, tally.frames);
            assert!((150..350).contains(&tally.dropped), "{tally:?}");
            assert!(got.is_sorted());
            let (got, _) =
                run(FaultConfig { drop_probability: Probability::ALWAYS, ..FaultConfig::default() });
            assert!(got.is_empty());
        }
    }

    #[test]
    fn the_probability_of_a_drop_changes_from_one_frame_to_the_next() {
        let config = FaultConfig { drop_probability: SOME, ..FaultConfig::default() };
        let (mut a, mut b) = tx_fault(config, 4096);
        for (probability, frames) in
            [(Probability::ALWAYS, 0), (Probability::NEVER, 100), (Probability::ALWAYS, 0)]
        {
            a.set_drop_probability(probability);
            (0..100).for_each(|n| assert!(send(&mut a, n)));
            assert_eq!(receive(&mut b).len(), frames);
        }
        assert_eq!(a.counters().tx.dropped, 200);
    }

    #[test]
    fn corrupted_frames_differ_in_one_bit() {
        for run in [run_tx, run_rx] {
            let (got, tally) = run(FaultConfig { corrupt_probability: SOME, ..FaultConfig::default() });
            let flipped: Vec<u32> = (0..1000).zip(got).map(|(sent, got)| (sent ^ got).count_ones()).collect();
            assert!(flipped.iter().all(|&bits| bits <= 1));
            assert_eq!(flipped.iter().sum::<u32>() as u64, tally.corrupted);
            assert!((150..350).contains(&tally.corrupted), "{tally:?}");
        }
    }

    #[test]
    fn duplicated_frames_come_twice_in_a_row() {
        for run in [run_tx, run_rx] {
            let (mut got, tally) = run(FaultConfig { duplicate_probability: SOME, ..FaultConfig::default() });
            assert_eq!(got.len() as u64, 1000 + tally.duplicated);
            assert!((150..350).contains(&tally.duplicated), "{tally:?}");
            got.dedup();
            assert_eq!(got, (0..1000).collect::<Vec<_>>());
        }
    }

    #[test]
    fn reordered_frames_all_arrive_and_are_late_by_no_more_than_the_limits() {
        for run in [run_tx, run_rx] {
            let (mut got, tally) = run(FaultConfig { reorder_probability: SOME, ..FaultConfig::default() });
            assert!((150..350).contains(&tally.reordered), "{tally:?}");
            assert!(!got.is_sorted());
            // A held frame F is overtaken by at most `REORDER_FRAMES_MAX` frames that were not held, and also by frames
            // that were held after F but passed on before F.
            let late = got.iter().enumerate().map(|(at, &n)| at as i64 - i64::from(n)).max().unwrap();
            assert!((1..=2 * i64::from(REORDER_FRAMES_MAX)).contains(&late), "{late}");
            got.sort_unstable();
            assert_eq!(got, (0..1000).collect::<Vec<_>>());
        }
    }

    #[test]
    fn a_held_last_frame_goes_after_some_polls() {
        let (mut a, mut b) =
            tx_fault(FaultConfig { reorder_probability: Probability::ALWAYS, ..FaultConfig::default() }, 8);
        assert!(send(&mut a, 7));
        (1..REORDER_POLLS_MAX).for_each(|_| a.tx_flush());
        assert!(receive(&mut b).is_empty());
        a.tx_flush();
        assert_eq!(receive(&mut b), [7]);
    }

    #[test]
    fn the_same_seed_does_the_same_and_another_does_not() {
        let config = FaultConfig {
            drop_probability: SOME,
            reorder_probability: SOME,
            corrupt_probability: SOME,
            duplicate_probability: SOME,
            seed: 42,
            direction: FaultDirection::Tx,
        };
        assert_eq!(run_tx(config), run_tx(config));
        assert_ne!(run_tx(config).0, run_tx(FaultConfig { seed: 43, ..config }).0);
        assert_ne!(run_tx(config).0, run_rx(config).0, "each direction draws its own");
    }

    #[test]
    fn the_draws_of_a_frame_do_not_depend_on_the_number_of_polls() {
        let config = FaultConfig {
            drop_probability: SOME,
            // The reorder probability is below 1, otherwise no random number would be drawn for reordering. The
            // duplicate probability is 0, because each duplicate counts as a frame that overtakes the held frames: held
            // frames would be released earlier, and `held` might not become full.
            reorder_probability: Probability(0.999_999_999),
            corrupt_probability: SOME,
            ..FaultConfig::default()
        };
        let run = |polls_per_frame| {
            let (mut a, mut b) = tx_fault(config, 4096);
            for n in 0..1000_u32 {
                a.tx_reserve(4).unwrap().copy_from_slice(&n.to_be_bytes());
                (0..polls_per_frame).for_each(|_| a.tx_flush());
            }
            (0..=REORDER_POLLS_MAX).for_each(|_| a.tx_flush());
            let mut got = receive(&mut b);
            got.sort_unstable();
            (got, ImpairedFrames { reordered: 0, ..a.counters().tx })
        };
        let [none, some, many] = [0, 1, REORDER_POLLS_MAX].map(run);
        assert_eq!(none, many);
        assert_eq!(some, many);
    }

    #[test]
    fn a_full_port_beneath_loses_nothing_and_refuses_new_frames() {
        let config = FaultConfig { duplicate_probability: Probability::ALWAYS, ..FaultConfig::default() };
        let (mut a, mut b) = tx_fault(config, 3);
        assert!(send(&mut a, 1));
        assert!(send(&mut a, 2));
        assert!(!send(&mut a, 3), "three of four copies fill the port beneath");
        assert_eq!(receive(&mut b), [1, 1, 2]);
        a.tx_flush();
        assert!(send(&mut a, 3));
        assert_eq!(receive(&mut b), [2, 3, 3]);
    }

    #[test]
    fn a_receive_burst_keeps_to_its_maximum() {
        let (mut a, b) = Loopback::pair(CAPS, CAPS, 64);
        let config = FaultConfig {
            duplicate_probability: Probability::ALWAYS,
            direction: FaultDirection::Both,
            ..FaultConfig::default()
        };
        let mut b = Fault::new(b, config);
        (0..10).for_each(|n| assert!(send(&mut a, n)));
        let mut frames = Vec::new();
        let mut total = 0;
        while b.rx_burst(&mut frames, 3) > 0 {
            assert!(frames.len() <= 3);
            assert!(b.rx.passed.len() <= 3, "what waits is not added to");
            total += frames.len();
            frames.clear();
        }
        assert_eq!(total, 20);
    }
}
