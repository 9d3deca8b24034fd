//! Recovery: which packet is next.
//!
//! A scheme sees PSNs and feedback, never packets or work requests. Its requester side answers
//! `next_psn`; its responder side turns an arrival into a [`Verdict`]. The requester asks
//! congestion control separately whether that packet may go now.

pub mod go_back_n;
pub mod psn_window;
pub mod retransmissions;
pub mod rto;
pub mod selective_repeat;

pub use go_back_n::{ExpectedPsn, GoBackN, LossWindow};
pub use rto::{AdaptiveRto, Expiry, RetransmitTimer};
pub use selective_repeat::SelectiveRepeat;

use selective_repeat::{WINDOW_PKTS_MAX, WINDOW_PKTS_MIN};

use crate::psn::Psn;
use std::fmt;
use std::str::FromStr;

/// What the peer's answers say of the packets sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AckEvent {
    /// Everything before `next` has arrived.
    Cumulative {
        /// The first PSN not acknowledged.
        next: Psn,
    },
    /// As `Cumulative`, and `next` itself was lost: a NAK, or a response that never came.
    Lost {
        /// The PSN to resume at.
        next: Psn,
    },
}

/// What a scheme made of feedback.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AckResult {
    /// Packets newly acknowledged.
    pub newly_acked_pkts: u32,
    /// Sending resumes at an earlier PSN.
    pub lost: bool,
}

/// What a responder does with an arrival.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The packet expected next.
    InOrder,
    /// It was received before.
    Duplicate,
    /// Ahead of what is expected: packets are missing.
    OutOfOrder {
        /// The first sign of this gap: it is to be answered with a NAK.
        first: bool,
    },
}

/// The scheme of a queue pair, agreed with its peer before it is ready to receive.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RecoveryScheme {
    /// The standard's: any peer has it.
    #[default]
    GoBackN,
    /// Go-back-N on the wire, with all that either end can do for it by itself: what arrives out of order
    /// is kept, timeouts follow the round trip. Nothing of it needs the peer's consent.
    ImprovedGoBackN,
    /// Selective repeat, which only a peer that has agreed understands.
    SelectiveRepeat {
        /// Packets that either side keeps out of order; both must have the same.
        window_pkts: u32,
    },
}

/// The window of a selective repeat that names none: well over a bandwidth-delay product, so that a
/// packet lost twice stops nothing.
const DEFAULT_WINDOW_PKTS: u32 = 1024;

/// Packets that improved go-back-N keeps out of order: more than a peer has in flight.
const IMPROVED_WINDOW_PKTS: u32 = 256;

impl fmt::Display for RecoveryScheme {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RecoveryScheme::GoBackN => f.write_str("go-back-n"),
            RecoveryScheme::ImprovedGoBackN => f.write_str("improved-go-back-n"),
            RecoveryScheme::SelectiveRepeat { window_pkts } => write!(f, "selective-repeat:{window_pkts}"),
        }
    }
}

/// Not the name of a scheme.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "needed go-back-n, improved-go-back-n, selective-repeat or selective-repeat:WINDOW, a power of two from \
     {WINDOW_PKTS_MIN} to {WINDOW_PKTS_MAX} packets"
)]
pub struct NoRecoveryScheme;

impl FromStr for RecoveryScheme {
    type Err = NoRecoveryScheme;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        let scheme = match name.split_once(':') {
            None if name == "go-back-n" => RecoveryScheme::GoBackN,
            None if name == "improved-go-back-n" => RecoveryScheme::ImprovedGoBackN,
            None if name == "selective-repeat" => {
                RecoveryScheme::SelectiveRepeat { window_pkts: DEFAULT_WINDOW_PKTS }
            }
            Some(("selective-repeat", window)) => {
                RecoveryScheme::SelectiveRepeat { window_pkts: window.parse().map_err(|_| NoRecoveryScheme)? }
            }
            _ => return Err(NoRecoveryScheme),
        };
        if scheme.is_valid() { Ok(scheme) } else { Err(NoRecoveryScheme) }
    }
}

impl RecoveryScheme {
    /// Whether its numbers are in range.
    pub fn is_valid(self) -> bool {
        match self {
            RecoveryScheme::GoBackN | RecoveryScheme::ImprovedGoBackN => true,
            RecoveryScheme::SelectiveRepeat { window_pkts } => {
                window_pkts.is_power_of_two() && (WINDOW_PKTS_MIN..=WINDOW_PKTS_MAX).contains(&window_pkts)
            }
        }
    }

    /// Packets that the responder keeps out of order, a power of two, where it keeps any.
    pub fn buffered_pkts_max(self) -> Option<u32> {
        match self {
            RecoveryScheme::GoBackN => None,
            RecoveryScheme::ImprovedGoBackN => Some(IMPROVED_WINDOW_PKTS),
            RecoveryScheme::SelectiveRepeat { window_pkts } => Some(window_pkts),
        }
    }

    /// Whether the requester sends again when the network should have answered, well before the local ACK
    /// timeout.
    pub fn is_adaptive(self) -> bool {
        self != RecoveryScheme::GoBackN
    }
}

/// The requester side of a scheme.
#[derive(Clone, Debug)]
pub enum Recovery {
    /// Go-back-N.
    GoBackN(GoBackN),
    /// Selective repeat.
    SelectiveRepeat(Box<SelectiveRepeat>),
}

/// What the schemes have in common, as each of them describes it.
macro_rules! either {
    ($self:ident, $scheme:ident => $value:expr) => {
        match $self {
            Recovery::GoBackN($scheme) => $value,
            Recovery::SelectiveRepeat($scheme) => $value,
        }
    };
}

impl Recovery {
    /// Starts at the first PSN of the connection.
    pub fn new(scheme: RecoveryScheme, first: Psn) -> Self {
        match scheme {
            RecoveryScheme::GoBackN | RecoveryScheme::ImprovedGoBackN => {
                Recovery::GoBackN(GoBackN::new(first))
            }
            RecoveryScheme::SelectiveRepeat { window_pkts } => {
                Recovery::SelectiveRepeat(Box::new(SelectiveRepeat::new(first, window_pkts)))
            }
        }
    }

    /// The packet to send next.
    #[inline]
    pub fn next_psn(&self) -> Psn {
        either!(self, scheme => scheme.next_psn())
    }

    /// Whether the packet to send next was sent before.
    #[inline]
    pub fn is_retransmission(&self) -> bool {
        either!(self, scheme => scheme.is_retransmission())
    }

    /// The first PSN not acknowledged.
    #[inline]
    pub fn una(&self) -> Psn {
        either!(self, scheme => scheme.una())
    }

    /// PSNs sent, counted from [`Recovery::una`].
    #[inline]
    pub fn sent(&self) -> u32 {
        either!(self, scheme => scheme.sent())
    }

    /// PSNs in flight.
    #[inline]
    pub fn unacked(&self) -> u32 {
        either!(self, scheme => scheme.unacked())
    }

    /// The packet at [`Recovery::next_psn`] was sent; it stands for `span` PSNs.
    #[inline]
    pub fn on_sent(&mut self, span: u32) {
        either!(self, scheme => scheme.on_sent(span))
    }

    /// Under go-back-N, everything in flight is to be sent again: nothing was heard for the whole timeout.
    pub fn go_back(&mut self) {
        if let Recovery::GoBackN(scheme) = self {
            scheme.on_timeout();
        }
    }

    /// The longest stretch of PSNs from [`Recovery::next_psn`] on that one READ asks for.
    #[inline]
    pub fn read_span_max(&self) -> u32 {
        match self {
            // The peer takes a part for a READ of its own, unless it has the whole.
            Recovery::SelectiveRepeat(scheme) => {
                let psn = scheme.next_psn();
                if scheme.is_executed(psn) { scheme.lost_run(psn) } else { u32::MAX }
            }
            Recovery::GoBackN(_) => u32::MAX,
        }
    }
}

#[cfg(test)]
mod wraps;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_asked_only_of_a_read_that_the_peer_has() {
        let first = Psn::new(5);
        let mut recovery = Recovery::new(RecoveryScheme::SelectiveRepeat { window_pkts: 64 }, first);
        recovery.on_sent(1);
        recovery.on_sent(64);
        let Recovery::SelectiveRepeat(scheme) = &mut recovery else { unreachable!("it was asked for") };
        scheme.on_lost(first, 64);
        // The window moves on by the packet before the READ, whose last packet was not in it.
        scheme.on_executed(first.plus(1));
        scheme.on_acked(crate::psn::PsnSpace::Request, first, 1);
        assert_eq!((recovery.next_psn(), recovery.read_span_max()), (first.plus(1), u32::MAX));
        let Recovery::SelectiveRepeat(scheme) = &mut recovery else { unreachable!("it was asked for") };
        scheme.on_executed(first.plus(65));
        assert_eq!(recovery.read_span_max(), 63);
    }

    #[test]
    fn schemes_are_named() {
        for name in ["go-back-n", "improved-go-back-n", "selective-repeat:64", "selective-repeat:4096"] {
            assert_eq!(name.parse::<RecoveryScheme>().map(|scheme| scheme.to_string()), Ok(name.to_owned()));
        }
        assert_eq!(
            "selective-repeat".parse::<RecoveryScheme>().unwrap().to_string(),
            "selective-repeat:1024"
        );
        for wrong in [
            "",
            "sr",
            "go-back-n:64",
            "selective-repeat:",
            "selective-repeat:32",
            "selective-repeat:100",
            "selective-repeat:8192",
        ] {
            assert_eq!(wrong.parse::<RecoveryScheme>(), Err(NoRecoveryScheme), "{wrong}");
        }
    }
}
