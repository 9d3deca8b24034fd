//! Congestion control: whether a packet may go now.
//!
//! A scheme is asked [`Congestion::permit`] before each packet, with what is in flight, and told of what
//! was sent, acknowledged, lost and marked. It never learns which packet it is.
//!
//! ```text
//!   permit(now, in flight) --no, in flight is enough--> wait for an acknowledgement
//!             |            '-no, it is too soon-------> wait until next_permit_at()
//!            yes --> on_sent --> .. on_ack, on_loss, on_cnp
//! ```

pub mod scheme;

pub use scheme::{CongestionScheme, DEFAULT_WINDOW_PKTS, NoCongestionScheme};

use crate::time::Instant;

/// The state of a queue pair's scheme.
#[derive(Clone, Debug)]
pub enum Congestion {
    /// No control, or a fixed cap on packets in flight: no more than a bandwidth-delay product is of any use.
    Window {
        /// The cap.
        window_pkts: u32,
    },
}

impl Congestion {
    /// Starts as a connection does, over a link of `link_bits_per_sec`.
    pub fn new(scheme: &CongestionScheme, _link_bits_per_sec: u64) -> Self {
        match *scheme {
            CongestionScheme::None | CongestionScheme::Window { .. } => {
                Congestion::Window { window_pkts: scheme.window_pkts() }
            }
        }
    }

    /// Whether one more packet may join `in_flight_pkts` now. One that takes the place of a lost one, or
    /// that the peer asked for, joins none.
    #[inline]
    pub fn permit(&mut self, _now: Instant, in_flight_pkts: u32) -> bool {
        match self {
            Congestion::Window { window_pkts } => in_flight_pkts < *window_pkts,
        }
    }

    /// Whether the next packet is the last that the window admits: it then asks for an acknowledgement, or
    /// nothing would open the window again.
    #[inline]
    pub fn is_last_permit(&self, in_flight_pkts: u32) -> bool {
        in_flight_pkts.saturating_add(1) >= self.window_pkts()
    }

    /// Packets in flight at most.
    #[inline]
    pub fn window_pkts(&self) -> u32 {
        match self {
            Congestion::Window { window_pkts } => *window_pkts,
        }
    }

    /// When the pacer lets the next packet go, as it stands; `None` where nothing is paced.
    #[inline]
    pub fn next_permit_at(&self) -> Option<Instant> {
        match self {
            Congestion::Window { .. } => None,
        }
    }

    /// A packet went out, `frame_bytes` long from Ethernet header to ICRC.
    #[inline]
    pub fn on_sent(&mut self, _now: Instant, _frame_bytes: u32) {
        match self {
            Congestion::Window { .. } => {}
        }
    }

    /// `acked_pkts` were newly acknowledged; with the round trip of one that was timed, where one was.
    #[inline]
    pub fn on_ack(&mut self, _now: Instant, _acked_pkts: u32, _rtt_nanos: Option<u64>) {
        match self {
            Congestion::Window { .. } => {}
        }
    }

    /// The peer received a packet that was marked "congestion experienced". Returns whether this scheme
    /// listens to that.
    pub fn on_cnp(&mut self, _now: Instant) -> bool {
        match self {
            Congestion::Window { .. } => false,
        }
    }

    /// Packets were lost, as a negative or selective acknowledgement tells, or a timeout.
    pub fn on_loss(&mut self, _now: Instant) {
        match self {
            Congestion::Window { .. } => {}
        }
    }
}
