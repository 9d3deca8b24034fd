//! Loss recovery: selects the PSN to send next.
//!
//! A recovery scheme processes PSNs, not packets. The requester reports the PSNs of responses to the scheme, and sends
//! the PSN that the scheme returns. The responder compares the PSN of each request with the expected PSN (`Verdict`).
//! Congestion control decides separately whether a packet may be sent now.

// The lints against unwrap, indexing and narrowing casts are errors, because a value from a received frame must cause
// neither a panic nor a truncation (docs/ARCHITECTURE.md, decision 7).
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
pub(crate) mod loss_timer;
pub(crate) mod out_of_order_set;
pub(crate) mod psn_set;
pub(crate) mod responder;
pub(crate) mod rto;
pub(crate) mod selective_repeat;
pub(crate) mod sent_log;

pub use selective_repeat::WINDOW_PKTS_MIN;

pub(crate) use events::{
    AckEvent, Nak, PsnSpan, RecoveryResult, Refusal, Requests, ResponseState, SentRequest, Spurious, Verdict,
};
pub(crate) use go_back_n::{ExpectedPsn, GoBackN};
pub(crate) use rto::Expiry;
pub(crate) use selective_repeat::SelectiveRepeat;
pub(crate) use sent_log::AckTime;

use selective_repeat::WINDOW_PKTS_MAX;

use crate::psn::Psn;
use crate::time::Instant;
use crate::wire::Transport;
use std::fmt;
use std::str::FromStr;

/// Loss recovery scheme of a queue pair. Takes effect if set no later than the transition to RTR.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RecoveryScheme {
    /// Go-back-N of the IBA: interoperates with any peer.
    GoBackN,
    /// Improved go-back-N: the packets are those of go-back-N, but the responder buffers out-of-order packets, and the
    /// requester has probe timeouts and a loss window. Interoperates with any peer.
    #[default]
    ImprovedGoBackN,
    /// Selective repeat with SACKs. Both queue pairs of a connection must use selective repeat, with equal windows.
    SelectiveRepeat {
        /// Window in packets: the maximum number of PSNs that the requester sends from una on, and that the responder
        /// buffers. A power of two from 64 to 4096.
        window_pkts: u32,
    },
}

/// Window in packets, if the name `selective-repeat` is given without a window. The window exceeds a bandwidth-delay
/// product, so that the requester can send new packets while a packet that was lost twice is missing.
const DEFAULT_WINDOW_PKTS: u32 = 1024;

/// Lower bound of [`RecoveryScheme::read_pkts_max`], in packets. If the window of congestion control is smaller than
/// this bound, the responses to one READ request may exceed that window.
const READ_PKTS_MIN: u32 = 16;

/// Minimum number of responses to a doubled READ request. With this number, at a path MTU of 1024 bytes or more, the
/// second packet of the READ request has at most 1 % of the bytes of the responses.
const DOUBLED_PKTS_MIN: u32 = 16;

/// Number of responses that the probe of a READ elicits under improved go-back-N.
const PROBE_PKTS: u32 = 1;

/// Window of the responder under improved go-back-N, in packets.
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

/// Error of parsing a [`RecoveryScheme`]: an unknown name, or a window that is no power of two from 64 to 4096.
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
    /// Returns whether the window of selective repeat is a power of two from 64 to 4096; true for other schemes.
    pub fn is_valid(self) -> bool {
        self.invalid_window_pkts().is_none()
    }

    /// Returns the window of selective repeat in packets if the window is not a power of two from 64 to 4096.
    pub(crate) fn invalid_window_pkts(self) -> Option<u32> {
        let RecoveryScheme::SelectiveRepeat { window_pkts } = self else { return None };
        let is_valid =
            window_pkts.is_power_of_two() && (WINDOW_PKTS_MIN..=WINDOW_PKTS_MAX).contains(&window_pkts);
        (!is_valid).then_some(window_pkts)
    }

    /// Returns the responder's window in packets, a power of two; `None` under go-back-N, which buffers no packet.
    pub fn buffered_pkts_max(self) -> Option<u32> {
        match self {
            RecoveryScheme::GoBackN => None,
            RecoveryScheme::ImprovedGoBackN => Some(IMPROVED_WINDOW_PKTS),
            RecoveryScheme::SelectiveRepeat { window_pkts } => Some(window_pkts),
        }
    }

    /// Returns the maximum number of responses to one READ request; a longer READ is divided into several READ
    /// requests. Under both kinds of go-back-N: no limit (`u32::MAX`). Under selective repeat: at least 16, and
    /// computed from the smaller of the window of selective repeat and `window_pkts` (window of congestion control).
    /// If `max_rd_atomic` is 1: the smaller window. Otherwise: half of the smaller window, so that responses to a
    /// second READ request show losses of responses to the first.
    pub fn read_pkts_max(self, window_pkts: u32, max_rd_atomic: u8) -> u32 {
        match self {
            RecoveryScheme::GoBackN | RecoveryScheme::ImprovedGoBackN => u32::MAX,
            RecoveryScheme::SelectiveRepeat { window_pkts: recovery_window_pkts } => {
                let window_pkts = window_pkts.min(recovery_window_pkts);
                (if max_rd_atomic > 1 { window_pkts / 2 } else { window_pkts }).max(READ_PKTS_MIN)
            }
        }
    }

    /// Returns whether the scheme uses PTO and RTO, computed from round trips, besides the local ACK timeout.
    pub(crate) fn is_adaptive(self) -> bool {
        self != RecoveryScheme::GoBackN
    }
}

#[derive(Clone, Debug)]
pub(crate) enum Recovery {
    GoBackN(GoBackN),
    SelectiveRepeat(Box<SelectiveRepeat>),
}

/// Evaluates `$value` on the state of either kind of go-back-N, or on the sent-packet log of selective repeat.
macro_rules! either {
    ($self:ident, $scheme:ident => $value:expr) => {
        match $self {
            Recovery::GoBackN($scheme) => $value,
            Recovery::SelectiveRepeat(scheme) => {
                let $scheme = scheme.log();
                $value
            }
        }
    };
}

impl Recovery {
    pub(crate) fn new(scheme: RecoveryScheme, first: Psn) -> Self {
        match scheme {
            RecoveryScheme::GoBackN | RecoveryScheme::ImprovedGoBackN => {
                let is_improved = scheme == RecoveryScheme::ImprovedGoBackN;
                Recovery::GoBackN(GoBackN::new(first, is_improved))
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

    /// Returns whether [`Recovery::next_psn`] was sent before, so that the next packet sent is a retransmission.
    #[inline]
    pub(crate) fn is_retransmission(&self) -> bool {
        match self {
            Recovery::GoBackN(scheme) => scheme.is_retransmission(),
            Recovery::SelectiveRepeat(scheme) => scheme.log().has_lost(),
        }
    }

    /// Returns whether `psn` was sent more than once. Under both kinds of go-back-N, false if `psn` is acknowledged,
    /// and true also for a received READ response between retransmitted PSNs. Under selective repeat, false if `psn` is
    /// not one of the last `window_pkts` PSNs sent.
    pub(crate) fn is_retransmitted(&self, psn: Psn) -> bool {
        either!(self, scheme => scheme.is_retransmitted(psn))
    }

    #[inline]
    pub(crate) fn is_selective(&self) -> bool {
        matches!(self, Recovery::SelectiveRepeat(_))
    }

    /// Returns whether packets of `transport` are accepted. Manufacturer opcodes, which are those of SACKs and numbered
    /// SENDs, are accepted under selective repeat only.
    #[inline]
    pub(crate) fn accepts(&self, transport: Transport) -> bool {
        match transport {
            Transport::Rc | Transport::Cnp => true,
            Transport::Manufacturer => matches!(self, Recovery::SelectiveRepeat(_)),
            _ => false,
        }
    }

    #[inline]
    pub(crate) fn una(&self) -> Psn {
        either!(self, scheme => scheme.una())
    }

    /// Returns the number of PSNs from una to the highest PSN sent, whether in flight, acknowledged or lost.
    #[inline]
    pub(crate) fn sent(&self) -> u32 {
        either!(self, scheme => scheme.sent())
    }

    /// Returns the number of PSNs in flight. While either kind of go-back-N retransmits, counts only the PSNs from una
    /// to below [`Recovery::next_psn`].
    #[inline]
    pub(crate) fn unacked(&self) -> u32 {
        either!(self, scheme => scheme.unacked())
    }

    /// Records that the packet of [`Recovery::next_psn`] was sent. `span`: number of PSNs of the packet; for a READ
    /// request, the number of responses.
    #[inline]
    pub(crate) fn on_sent(&mut self, span: u32, now: Instant) {
        match self {
            Recovery::GoBackN(scheme) => scheme.on_sent(span),
            Recovery::SelectiveRepeat(scheme) => scheme.on_sent(span, now),
        }
    }

    /// Returns the number of packets in flight, for comparison with the window of congestion control. Under both kinds
    /// of go-back-N, returns `None` if `pkts_max` or more packets are in flight. Under selective repeat, returns 0 if a
    /// packet is marked lost; otherwise `None` if the number of PSNs from una to the highest PSN sent
    /// ([`Recovery::sent`]) has reached `pkts_max` or the window of selective repeat.
    #[inline]
    pub(crate) fn limited_pkts(&self, pkts_max: u32) -> Option<u32> {
        match self {
            Recovery::GoBackN(scheme) => Some(scheme.unacked()).filter(|pkts| *pkts < pkts_max),
            // Returns 0 as the number of packets in flight, so that no window limits retransmissions. Otherwise READ
            // responses in flight that fill a window would block the retransmissions.
            Recovery::SelectiveRepeat(scheme) if scheme.log().has_lost() => Some(0),
            Recovery::SelectiveRepeat(scheme) => {
                let log = scheme.log();
                (log.sent() < log.window_pkts().min(pkts_max)).then(|| log.unacked())
            }
        }
    }

    /// Returns the number of responses to a READ request that begins at [`Recovery::next_psn`]; `None` if this request
    /// may not be sent now. `request`: the original READ request that contains this PSN. `is_probe`: the packet is a
    /// probe of improved go-back-N. `may_start`: returns whether a first transmission is permitted.
    #[inline]
    pub(crate) fn read_span(
        &self,
        request: PsnSpan,
        is_probe: bool,
        may_start: impl FnOnce() -> bool,
    ) -> Option<u32> {
        let psn = self.next_psn();
        let rest_pkts = request.end().distance_from(psn);
        match self {
            Recovery::GoBackN(_) if is_probe => Some(PROBE_PKTS),
            Recovery::GoBackN(scheme) => Some(scheme.read_part(rest_pkts)),
            Recovery::SelectiveRepeat(scheme) if scheme.log().has_lost() => {
                Some(scheme.read_part(psn, request))
            }
            Recovery::SelectiveRepeat(scheme) => {
                let has_room = scheme.log().sent() + rest_pkts <= scheme.log().window_pkts();
                (has_room && may_start()).then_some(rest_pkts)
            }
        }
    }

    /// Returns the number of READ requests that the peer buffers because an earlier request is missing. Always 0 under
    /// both kinds of go-back-N: the peer buffers no READ request.
    #[inline]
    pub(crate) fn buffered_reads(&self) -> u32 {
        match self {
            Recovery::GoBackN(_) => 0,
            Recovery::SelectiveRepeat(scheme) => scheme.log().buffered_reads(),
        }
    }

    /// Returns whether the READ request to be sent next, of `span` responses, is doubled: under selective repeat, at
    /// its first transmission, if `span` is at least [`DOUBLED_PKTS_MIN`] and one of the last `window_pkts` PSNs sent
    /// was retransmitted. If a READ request that is not doubled is lost, the peer sends no responses for a round trip.
    pub(crate) fn doubles_read(&self, span: u32) -> bool {
        let Recovery::SelectiveRepeat(scheme) = self else { return false };
        let log = scheme.log();
        span >= DOUBLED_PKTS_MIN && log.has_retransmitted() && !log.has_lost()
    }

    /// Returns the state of `psn`, the PSN of a READ response. The READ request must have been sent, and `psn` must not
    /// be below una.
    #[inline]
    pub(crate) fn response_state(&self, psn: Psn, requests: &impl Requests) -> ResponseState {
        match self {
            Recovery::GoBackN(scheme) => scheme.response_state(psn, requests),
            Recovery::SelectiveRepeat(scheme) => scheme.response_state(psn),
        }
    }

    /// Processes a response: marks packets as acknowledged, or as lost.
    // Always inlined, because otherwise the result would be returned in memory.
    #[inline(always)]
    pub(crate) fn on_event(
        &mut self,
        event: &AckEvent<'_>,
        requests: &mut impl Requests,
        time: AckTime,
    ) -> RecoveryResult {
        match self {
            Recovery::GoBackN(scheme) => scheme.on_event(event, requests),
            Recovery::SelectiveRepeat(scheme) => scheme.on_event(event, requests, time),
        }
    }

    /// Marks all requests below `next` as acknowledged; `next` is the PSN of a request that failed or was refused (RNR
    /// NAK). Both kinds of go-back-N mark no PSN from the first missing READ response on. Selective repeat marks
    /// `next` for retransmission.
    pub(crate) fn on_refused(&mut self, next: Psn, requests: &mut impl Requests, time: AckTime) -> Refusal {
        match self {
            Recovery::GoBackN(scheme) => scheme.on_refused(next, requests),
            Recovery::SelectiveRepeat(scheme) => scheme.on_refused(next, requests, time),
        }
    }

    /// Under both kinds of go-back-N: see [`GoBackN::on_lost_again`].
    #[cold]
    pub(crate) fn on_lost_again(&mut self) {
        if let Recovery::GoBackN(scheme) = self {
            scheme.on_lost_again();
        }
    }

    /// Under both kinds of go-back-N, moves [`Recovery::next_psn`] back to una, after a local ACK timeout or an RNR
    /// NAK.
    pub(crate) fn go_back(&mut self) {
        if let Recovery::GoBackN(scheme) = self {
            scheme.on_timeout();
        }
    }
}

#[cfg(test)]
mod out_of_order_set_tests;

#[cfg(test)]
mod tests {
    use super::*;

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
