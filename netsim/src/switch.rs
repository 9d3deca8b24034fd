//! A switch: forwarding, buffer limits, ECN marking and priority flow control.
//!
//! ```text
//!            input port                         output port
//!   link in ----------> [ forward ] -> room? -> mark? -> | queue | -> link out
//!      ^                                                     |
//!      '--- PAUSE above xoff, RESUME at xon <-- input bytes -'  until the frame's last bit has left
//! ```

use std::collections::HashMap;

use crate::id::LinkId;
use crate::rng::{SplitMix, mix, threshold};

/// Selection of a frame's output port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Forwarding {
    /// Forwards by learned source addresses; floods frames to unknown destinations. For networks without loops.
    #[default]
    Learning,
    /// Equal-cost multipath: one of the shortest paths by a hash of addresses, protocol and ports, salted per
    /// switch. All frames of a flow take one path.
    Ecmp,
    /// A random one of the shortest paths for each frame.
    SprayRandom,
    /// The shortest paths in turn, frame by frame.
    SprayRoundRobin,
}

/// Order in which an output port sends the frames of its queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Service {
    /// In the order of their arrival.
    #[default]
    Fifo,
    /// One frame of each input port in turn, those of an input port in the order of their arrival (virtual output queues
    /// with round-robin scheduling, as in IRN, SIGCOMM 2018, section 4.1).
    RoundRobin,
}

/// ECN marking by the bytes in the output queue before a frame is added: never up to `kmin_bytes`, always above
/// `kmax_bytes`, and between with a probability that increases linearly from 0 to `pmax` (RED on the
/// instantaneous queue, as for DCQCN; Zhu et al., SIGCOMM 2015, figure 5). Frames that are not ECT are neither
/// marked nor dropped.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Red {
    /// Queue length in bytes above which marking begins.
    pub kmin_bytes: usize,
    /// Queue length in bytes above which every frame is marked; not below `kmin_bytes`.
    pub kmax_bytes: usize,
    /// Marking probability at `kmax_bytes`, 0 to 1.
    pub pmax: f64,
}

impl Red {
    /// The probability that a frame is marked if the queue holds `queue_bytes`.
    pub fn probability(&self, queue_bytes: usize) -> f64 {
        if queue_bytes <= self.kmin_bytes {
            0.0
        } else if queue_bytes > self.kmax_bytes {
            1.0
        } else {
            let share = (queue_bytes - self.kmin_bytes) as f64 / (self.kmax_bytes - self.kmin_bytes) as f64;
            self.pmax * share
        }
    }
}

/// Priority flow control (IEEE 802.1Qbb) of one class: a switch pauses the sender of a link while frames received
/// from it occupy too much memory.
///
/// PAUSE and RESUME are sent after the frame on the wire, and are never lost. They do not delay other frames. A
/// pause lasts until RESUME, without the standard's time limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pfc {
    /// Buffered bytes of an input port above which its sender is paused.
    pub xoff_bytes: usize,
    /// Buffered bytes of an input port at which its sender may transmit again; below `xoff_bytes`.
    pub xon_bytes: usize,
}

/// Bytes of a PAUSE frame without FCS.
pub const PAUSE_BYTES: usize = 60;

impl Pfc {
    /// Thresholds for an input port with `input_bytes_max` of memory at the end of `link`. Above xoff there is
    /// [`Pfc::headroom_bytes`] for frames that arrive after PAUSE was triggered; xon is two longest frames below xoff.
    ///
    /// # Panics
    /// If `input_bytes_max` is too small for these thresholds.
    pub fn lossless(input_bytes_max: usize, link: &crate::LinkConfig, frame_bytes_max: usize) -> Pfc {
        let headroom_bytes = Pfc::headroom_bytes(link, frame_bytes_max);
        let xoff_bytes = input_bytes_max.checked_sub(headroom_bytes);
        let Some((xoff_bytes, xon_bytes)) =
            xoff_bytes.and_then(|xoff| Some((xoff, xoff.checked_sub(2 * frame_bytes_max)?)))
        else {
            panic!(
                "{input_bytes_max} bytes an input port are too few for lossless pauses: {} are needed",
                headroom_bytes + 2 * frame_bytes_max
            )
        };
        Pfc { xoff_bytes, xon_bytes }
    }

    /// Largest number of bytes received on `link` above xoff: the bytes that arrive while the frame on the reverse wire
    /// and the PAUSE frame are sent and during two propagation delays, the frame that crossed xoff, and the frame that
    /// the sender has begun.
    pub fn headroom_bytes(link: &crate::LinkConfig, frame_bytes_max: usize) -> usize {
        let pause_nanos = link.wire_nanos(frame_bytes_max) + link.wire_nanos(PAUSE_BYTES);
        link.bytes_in(pause_nanos + 2 * link.propagation_nanos) + 2 * frame_bytes_max
    }
}

/// Configuration of a switch. The queue of each output port is bounded by its link's `queue_bytes_max`. A frame
/// that exceeds any bound is dropped.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SwitchConfig {
    /// Selection of the output port.
    pub forwarding: Forwarding,
    /// Order of the frames of an output port.
    pub service: Service,
    /// Largest number of bytes buffered for one input port.
    pub input_bytes_max: usize,
    /// Largest number of bytes buffered in the whole switch.
    pub shared_bytes_max: usize,
    /// ECN marking; `None`: no marking.
    pub ecn: Option<Red>,
    /// Priority flow control; `None`: no flow control.
    pub pfc: Option<Pfc>,
}

impl SwitchConfig {
    /// A learning switch bounded by its output queues only, without marking and flow control.
    pub const PLAIN: SwitchConfig = SwitchConfig {
        forwarding: Forwarding::Learning,
        service: Service::Fifo,
        input_bytes_max: usize::MAX,
        shared_bytes_max: usize::MAX,
        ecn: None,
        pfc: None,
    };
}

impl Default for SwitchConfig {
    fn default() -> Self {
        SwitchConfig::PLAIN
    }
}

pub(crate) struct Switch {
    pub(crate) config: SwitchConfig,
    /// Links out of the switch, each with the link into the switch from the same neighbour.
    pub(crate) ports: Vec<(LinkId, LinkId)>,
    /// Output link of each learned Ethernet address.
    pub(crate) learned: HashMap<[u8; 6], LinkId>,
    pub(crate) shared_bytes: usize,
    /// XORed into a flow's hash, so that switches choose independently.
    salt: u64,
    rng: SplitMix,
    /// Frames sprayed so far.
    sprayed: u64,
}

impl Switch {
    pub(crate) fn new(config: SwitchConfig, mut rng: SplitMix) -> Self {
        if let Some(red) = config.ecn {
            let _ = threshold(red.pmax); // it must be a probability
            assert!(red.kmin_bytes <= red.kmax_bytes, "RED needs kmin <= kmax: {red:?}");
        }
        if let Some(pfc) = config.pfc {
            assert!(pfc.xon_bytes < pfc.xoff_bytes, "PFC needs xon < xoff: {pfc:?}");
        }
        Switch {
            config,
            ports: Vec::new(),
            learned: HashMap::new(),
            shared_bytes: 0,
            salt: rng.bits(),
            rng,
            sprayed: 0,
        }
    }

    /// Chooses one of `ways` (at least one) paths for a frame of the flow with hash `flow_hash`.
    #[inline]
    pub(crate) fn choose(&mut self, ways: usize, flow_hash: u64) -> usize {
        if ways == 1 {
            return 0;
        }
        let bits = match self.config.forwarding {
            Forwarding::Learning | Forwarding::Ecmp => mix(flow_hash ^ self.salt),
            Forwarding::SprayRandom => self.rng.bits(),
            Forwarding::SprayRoundRobin => {
                self.sprayed += 1;
                return ((self.sprayed - 1) % ways as u64) as usize;
            }
        };
        // Scales the high 32 bits to `0..ways`: evenly distributed, without a division.
        (((bits >> 32) * ways as u64) >> 32) as usize
    }

    /// Draws whether a frame is to be marked if its output queue holds `queue_bytes`.
    #[inline]
    pub(crate) fn draws_mark(&mut self, queue_bytes: usize) -> bool {
        let Some(red) = self.config.ecn else { return false };
        if queue_bytes <= red.kmin_bytes {
            return false;
        }
        queue_bytes > red.kmax_bytes || self.rng.unit() < red.probability(queue_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_red_curve_has_its_corners_where_it_says() {
        let red = Red { kmin_bytes: 100, kmax_bytes: 300, pmax: 0.2 };
        let curve = [(0, 0.0), (100, 0.0), (200, 0.1), (300, 0.2), (301, 1.0)];
        for (queue_bytes, probability) in curve {
            assert!((red.probability(queue_bytes) - probability).abs() < 1e-12, "{queue_bytes}");
        }
        let step = Red { kmin_bytes: 50, kmax_bytes: 50, pmax: 1.0 };
        assert_eq!([50, 51].map(|bytes| step.probability(bytes)), [0.0, 1.0]);
    }

    #[test]
    fn marks_come_as_often_as_the_curve_says() {
        let red = Red { kmin_bytes: 1_000, kmax_bytes: 9_000, pmax: 0.4 };
        let config = SwitchConfig { ecn: Some(red), ..SwitchConfig::PLAIN };
        let mut switch = Switch::new(config, SplitMix::new(3));
        for queue_bytes in [0, 1_000, 1_001, 3_000, 5_000, 9_000, 9_001, 1 << 30] {
            let draws = 20_000;
            let marks = (0..draws).filter(|_| switch.draws_mark(queue_bytes)).count();
            let expected = red.probability(queue_bytes) * f64::from(draws);
            // Five standard deviations of the binomial distribution.
            let slack = 5.0 * (expected * (1.0 - red.probability(queue_bytes))).sqrt();
            assert!((marks as f64 - expected).abs() <= slack, "{marks} marks at {queue_bytes}");
        }
    }

    #[test]
    fn a_flow_keeps_its_way_and_sprayed_frames_spread_evenly() {
        let choices = |forwarding, same_flow: bool| {
            let config = SwitchConfig { forwarding, ..SwitchConfig::PLAIN };
            let mut switch = Switch::new(config, SplitMix::new(9));
            let mut counts = [0u32; 5];
            let flow = |n: u64| mix(if same_flow { 1 } else { n });
            (0..10_000).for_each(|n| counts[switch.choose(5, flow(n))] += 1);
            counts
        };
        let ecmp = choices(Forwarding::Ecmp, true);
        assert!(ecmp.contains(&10_000), "{ecmp:?}");
        assert_eq!(choices(Forwarding::SprayRoundRobin, true), [2_000; 5]);
        for even in [choices(Forwarding::SprayRandom, true), choices(Forwarding::Ecmp, false)] {
            // 40 is the standard deviation.
            assert!(even.iter().all(|count| count.abs_diff(2_000) < 200), "{even:?}");
        }
    }
}
