//! Loss recovery: selects the PSN to send next.
//!
//! A scheme has no access to packets or work requests, only to PSNs. Its requester half processes the PSNs of
//! responses and returns `next_psn`; its responder half classifies the PSN of a received request as a `Verdict`.
//! Congestion control decides separately whether the packet with `next_psn` may be sent now.

// No value from the wire reaches unwrap, indexing or a narrowing cast, because a received frame must not cause a panic
// (docs/ARCHITECTURE.md, decision 7).
#![cfg_attr(
    not(test),
    deny(
        clippy::indexing_slicing,
        clippy::cast_possible_truncation,
        clippy::unwrap_used,
        clippy::expect_used
    )
)]

pub(crate) mod circular_array;
mod events;
pub(crate) mod go_back_n;
pub(crate) mod psn_window;
pub(crate) mod retransmissions;
pub(crate) mod rto;
pub(crate) mod selective_repeat;

pub use selective_repeat::WINDOW_PKTS_MIN;

pub(crate) use events::{AckEvent, AckResult, Verdict};
pub(crate) use go_back_n::{ExpectedPsn, GoBackN, LossWindow};
pub(crate) use rto::{AdaptiveRto, Expiry, RetransmitTimer};
pub(crate) use selective_repeat::SelectiveRepeat;

use selective_repeat::WINDOW_PKTS_MAX;

use crate::psn::Psn;
use std::fmt;
use std::str::FromStr;

/// Recovery scheme of a queue pair, agreed with the peer before the transition to RTR.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RecoveryScheme {
    /// Go-back-N of the IBA: interoperates with any peer.
    #[default]
    GoBackN,
    /// Go-back-N on the wire, with what either end can do alone: the responder buffers out-of-order
    /// packets, the requester's probes and RTO follow the round trip. Interoperates with any peer.
    ImprovedGoBackN,
    /// Selective repeat with SACKs: both peers must have agreed on it.
    SelectiveRepeat {
        /// Window in packets, in flight at the requester and buffered at the responder: a power of two
        /// from 64 to 4096, equal at both peers.
        window_pkts: u32,
    },
}

/// Window of `selective-repeat` without a number, in packets: well above a bandwidth-delay product,
/// because otherwise a packet lost twice would stall the requester.
const DEFAULT_WINDOW_PKTS: u32 = 1024;

/// Reorder window of improved go-back-N, in packets: a peer is expected to have fewer in flight.
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

/// Error of parsing a [`RecoveryScheme`]: unknown name, or window out of range.
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
    /// Returns whether the window, if any, is a power of two from 64 to 4096 packets.
    pub fn is_valid(self) -> bool {
        match self {
            RecoveryScheme::GoBackN | RecoveryScheme::ImprovedGoBackN => true,
            RecoveryScheme::SelectiveRepeat { window_pkts } => {
                window_pkts.is_power_of_two() && (WINDOW_PKTS_MIN..=WINDOW_PKTS_MAX).contains(&window_pkts)
            }
        }
    }

    /// Returns the responder's reorder window in packets, a power of two; `None` if it buffers nothing.
    pub fn buffered_pkts_max(self) -> Option<u32> {
        match self {
            RecoveryScheme::GoBackN => None,
            RecoveryScheme::ImprovedGoBackN => Some(IMPROVED_WINDOW_PKTS),
            RecoveryScheme::SelectiveRepeat { window_pkts } => Some(window_pkts),
        }
    }

    /// Returns whether the requester sends tail loss probes and has an RTO that follows the round trip,
    /// both well before the local ACK timeout.
    pub(crate) fn is_adaptive(self) -> bool {
        self != RecoveryScheme::GoBackN
    }
}

/// Requester half of a scheme.
#[derive(Clone, Debug)]
pub(crate) enum Recovery {
    /// Under [`RecoveryScheme::GoBackN`] and [`RecoveryScheme::ImprovedGoBackN`].
    GoBackN(GoBackN),
    /// Under [`RecoveryScheme::SelectiveRepeat`].
    SelectiveRepeat(Box<SelectiveRepeat>),
}

/// Evaluates one expression on the state of either scheme.
macro_rules! either {
    ($self:ident, $scheme:ident => $value:expr) => {
        match $self {
            Recovery::GoBackN($scheme) => $value,
            Recovery::SelectiveRepeat($scheme) => $value,
        }
    };
}

impl Recovery {
    /// Creates the state before the first send; `first` is the first PSN of the connection.
    pub(crate) fn new(scheme: RecoveryScheme, first: Psn) -> Self {
        match scheme {
            RecoveryScheme::GoBackN | RecoveryScheme::ImprovedGoBackN => {
                Recovery::GoBackN(GoBackN::new(first))
            }
            RecoveryScheme::SelectiveRepeat { window_pkts } => {
                Recovery::SelectiveRepeat(Box::new(SelectiveRepeat::new(first, window_pkts)))
            }
        }
    }

    #[inline]
    pub(crate) fn next_psn(&self) -> Psn {
        either!(self, scheme => scheme.next_psn())
    }

    /// Returns whether sending [`Recovery::next_psn`] is a retransmission.
    #[inline]
    pub(crate) fn is_retransmission(&self) -> bool {
        either!(self, scheme => scheme.is_retransmission())
    }

    /// Returns una, the oldest unacknowledged PSN (RFC 9293: SND.UNA).
    #[inline]
    pub(crate) fn una(&self) -> Psn {
        either!(self, scheme => scheme.una())
    }

    /// Returns the PSNs sent from una on, in flight or not.
    #[inline]
    pub(crate) fn sent(&self) -> u32 {
        either!(self, scheme => scheme.sent())
    }

    /// Returns the PSNs in flight: sent, and neither acknowledged nor marked lost.
    #[inline]
    pub(crate) fn unacked(&self) -> u32 {
        either!(self, scheme => scheme.unacked())
    }

    /// Records that the packet at [`Recovery::next_psn`] was sent. `span`: its PSNs, for a READ request
    /// those of all responses.
    #[inline]
    pub(crate) fn on_sent(&mut self, span: u32) {
        either!(self, scheme => scheme.on_sent(span))
    }

    /// Under go-back-N, moves the next PSN to send back to una, after a local ACK timeout or an RNR NAK.
    pub(crate) fn go_back(&mut self) {
        if let Recovery::GoBackN(scheme) = self {
            scheme.on_timeout();
        }
    }

    /// Returns the most PSNs, from [`Recovery::next_psn`] on, that one READ request may cover;
    /// `u32::MAX`: no limit.
    #[inline]
    pub(crate) fn read_span_max(&self) -> u32 {
        match self {
            // Only READs that the peer has executed are retransmitted in part, because otherwise it would
            // execute the part as a READ of its own.
            Recovery::SelectiveRepeat(scheme) => {
                let psn = scheme.next_psn();
                if scheme.is_executed(psn) { scheme.lost_run(psn) } else { u32::MAX }
            }
            Recovery::GoBackN(_) => u32::MAX,
        }
    }
}

#[cfg(test)]
mod out_of_order_set_tests;
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
        // una advances by the packet before the READ, so the last PSN of the READ enters the window.
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
