//! Congestion control: decides whether a packet may be sent now.
//!
//! Before each packet, the requester calls `Congestion::permit` with the number of packets in flight. The requester
//! notifies the scheme of packets sent, ACKs, losses and CNPs. A scheme processes no PSNs.
//!
//! ```text
//!   permit(now, in flight) --no, the window is full---> wait for an ACK
//!             |            '-no, the pacer waits------> wait until next_permit_at()
//!            yes --> on_sent --> .. on_ack, on_cnp, on_timeout, on_nak, on_detected_loss, on_repeated_read
//!
//!                     | window  dcqcn  swift  timely   effect, in the schemes marked x
//!   on_sent           |           x      x      x       the next packet waits for its time
//!   on_ack            |                  x      x       the round trip changes window or rate
//!   on_cnp            |           x                     a CNP reduces the rate
//!   on_timeout        |           x      x              a timeout reduces rate or window
//!   on_nak            |           x      x              under both kinds of go-back-N, a NAK reduces rate or window; the
//!                     |                                 rate only soon after a CNP
//!   on_detected_loss  |                  x              packets that selective repeat marks lost reduce the window if
//!                     |                                 they are many or the round trip is long
//!   on_repeated_read  |           x                     under both kinds of go-back-N, READ responses requested again
//!                     |                                 reduce the rate of the responder soon after a CNP
//! ```

pub(crate) mod dcqcn;
pub(crate) mod loss_window;
pub(crate) mod notification;
pub(crate) mod pacer;
pub(crate) mod parameters;
pub(crate) mod scheme;
pub(crate) mod swift;
pub(crate) mod timely;

pub use dcqcn::{Dcqcn, DcqcnParameters};
pub use notification::{CnpPacing, NotificationConfig};
pub use parameters::{DEFAULT_WINDOW_PKTS, NoCongestionScheme};
pub use scheme::CongestionScheme;
pub use swift::{Swift, SwiftParameters};
pub use timely::{Timely, TimelyParameters};

use crate::time::Instant;

/// Upper bound of round-trip samples, in nanoseconds: 1,000 s. Longer samples count as 1,000 s.
const RTT_NANOS_MAX: u64 = 1_000_000_000_000;

/// Congestion control state of a queue pair.
#[derive(Clone, Debug)]
pub enum Congestion {
    /// No congestion control, or a fixed window (IRN's BDP-FC).
    Window {
        /// Largest number of packets in flight; `WINDOW_PKTS_MAX` without congestion control.
        window_pkts: u32,
    },
    /// DCQCN's reaction point: CNPs reduce the rate.
    Dcqcn(Box<Dcqcn>),
    /// Swift: round trips increase or reduce the window.
    Swift(Box<Swift>),
    /// Timely: the gradient of round trips increases or reduces the rate.
    Timely(Box<Timely>),
}

impl Congestion {
    pub(crate) fn new(scheme: &CongestionScheme, link_bits_per_sec: u64) -> Self {
        match scheme {
            CongestionScheme::None | CongestionScheme::Window { .. } => {
                Congestion::Window { window_pkts: scheme.window_pkts() }
            }
            CongestionScheme::Dcqcn(parameters) => {
                Congestion::Dcqcn(Box::new(Dcqcn::new(parameters, link_bits_per_sec)))
            }
            CongestionScheme::Swift(parameters) => Congestion::Swift(Box::new(Swift::new(parameters))),
            CongestionScheme::Timely(parameters) => {
                Congestion::Timely(Box::new(Timely::new(parameters, link_bits_per_sec)))
            }
        }
    }

    /// Returns whether the scheme is `none` or a fixed window; [`Congestion::on_sent`] has no effect in these schemes.
    #[inline]
    pub(crate) fn is_window(&self) -> bool {
        matches!(self, Congestion::Window { .. })
    }

    /// Returns whether one more packet may be sent while `in_flight_pkts` are in flight. The window limits neither
    /// retransmissions of selective repeat nor READ responses: for these, callers pass 0.
    #[inline]
    pub(crate) fn permit(&mut self, now: Instant, in_flight_pkts: u32) -> bool {
        if let Congestion::Window { window_pkts } = self {
            return in_flight_pkts < *window_pkts;
        }
        in_flight_pkts < self.scheme_window_pkts() && self.may_send(now)
    }

    /// Returns whether the pacer permits a packet. Not inlined, so that the inlined [`Congestion::permit`] has little
    /// code besides the comparison with a fixed window.
    #[inline(never)]
    fn may_send(&mut self, now: Instant) -> bool {
        match self {
            Congestion::Window { .. } => true,
            Congestion::Dcqcn(dcqcn) => dcqcn.may_send(now),
            Congestion::Swift(swift) => swift.may_send(now),
            Congestion::Timely(timely) => timely.may_send(now),
        }
    }

    /// Returns the number of packets that may be in flight, at least 1.
    #[inline]
    pub fn window_pkts(&self) -> u32 {
        if let Congestion::Window { window_pkts } = self { *window_pkts } else { self.scheme_window_pkts() }
    }

    /// Returns the number of packets that may be in flight. Not inlined, so that the inlined
    /// [`Congestion::window_pkts`] contains only the code of a fixed window.
    #[inline(never)]
    fn scheme_window_pkts(&self) -> u32 {
        match self {
            Congestion::Window { window_pkts } => *window_pkts,
            Congestion::Dcqcn(dcqcn) => dcqcn.window_pkts(),
            Congestion::Swift(swift) => swift.window_pkts(),
            Congestion::Timely(timely) => timely.window_pkts(),
        }
    }

    /// Returns the rate of the scheme in bits per second. `None`: the scheme has no rate (no congestion control, a
    /// fixed window, Swift), or DCQCN has no limiter, because the rate is the maximum.
    pub fn rate_bits_per_sec(&self) -> Option<u64> {
        match self {
            Congestion::Window { .. } | Congestion::Swift(_) => None,
            Congestion::Dcqcn(dcqcn) => dcqcn.rate_bits_per_sec(),
            Congestion::Timely(timely) => Some(timely.rate_bits_per_sec()),
        }
    }

    /// Returns the time at which to call [`Congestion::permit`] again; `None` if packets do not wait for the pacer.
    #[inline]
    pub(crate) fn next_permit_at(&self) -> Option<Instant> {
        match self {
            Congestion::Window { .. } => None,
            Congestion::Dcqcn(dcqcn) => dcqcn.next_permit_at(),
            Congestion::Swift(swift) => swift.next_permit_at(),
            Congestion::Timely(timely) => timely.next_permit_at(),
        }
    }

    /// Records that a packet was sent. `frame_bytes`: frame length from the Ethernet header to the ICRC, in bytes.
    #[inline(never)]
    pub(crate) fn on_sent(&mut self, now: Instant, frame_bytes: u32) {
        match self {
            Congestion::Window { .. } => {}
            Congestion::Dcqcn(dcqcn) => dcqcn.on_sent(now, frame_bytes),
            Congestion::Swift(swift) => swift.on_sent(now),
            Congestion::Timely(timely) => timely.on_sent(now, frame_bytes),
        }
    }

    /// Records that a READ request for `pkts` responses of `frame_bytes` each was sent. Only the pacer of Timely counts
    /// these bytes. Under DCQCN the responder receives the CNPs and paces the responses; Swift has a window, no rate.
    pub(crate) fn on_read_sent(&mut self, now: Instant, pkts: u32, frame_bytes: u32) {
        if let Congestion::Timely(timely) = self {
            timely.on_sent(now, frame_bytes.saturating_mul(pkts).min(pacer::BYTES_MAX));
        }
    }

    /// Returns whether the scheme takes a round-trip sample from each READ response. False for Timely: the responses to
    /// one READ request arrive one after the other, so their round trips rise even without congestion.
    #[inline]
    pub(crate) fn samples_each_response(&self) -> bool {
        matches!(self, Congestion::Swift(_))
    }

    /// Returns whether the scheme needs round-trip samples.
    #[inline]
    pub(crate) fn follows_round_trip(&self) -> bool {
        matches!(self, Congestion::Swift(_) | Congestion::Timely(_))
    }

    /// Records `acked_pkts` newly acknowledged packets, and a round-trip sample in nanoseconds, if one was measured.
    #[inline]
    pub(crate) fn on_ack(&mut self, now: Instant, acked_pkts: u32, rtt_nanos: Option<u64>) {
        let bounded = |rtt_nanos: u64| rtt_nanos.clamp(1, RTT_NANOS_MAX);
        match self {
            Congestion::Window { .. } | Congestion::Dcqcn(_) => {}
            Congestion::Swift(swift) => swift.on_ack(now, acked_pkts, rtt_nanos.map(bounded)),
            Congestion::Timely(timely) => {
                if let Some(rtt_nanos) = rtt_nanos {
                    timely.on_round_trip(now, bounded(rtt_nanos));
                }
            }
        }
    }

    /// Records a CNP: the peer received a packet with a CE mark. Returns whether the scheme reacts to CNPs.
    pub(crate) fn on_cnp(&mut self, now: Instant) -> bool {
        match self {
            Congestion::Dcqcn(dcqcn) => {
                dcqcn.on_cnp(now);
                true
            }
            Congestion::Window { .. } | Congestion::Swift(_) | Congestion::Timely(_) => false,
        }
    }

    /// Records that a response caused selective repeat to mark `lost_pkts` packets as lost.
    pub(crate) fn on_detected_loss(&mut self, now: Instant, lost_pkts: u32) {
        if let Congestion::Swift(swift) = self {
            swift.on_detected_loss(now, lost_pkts);
        }
    }

    /// Records a timeout. Under go-back-N: a local ACK timeout. Under the other recovery schemes: a probe timeout that
    /// is reported as a loss (see RTO in docs/GLOSSARY.md).
    pub(crate) fn on_timeout(&mut self, now: Instant) {
        match self {
            Congestion::Swift(swift) => swift.on_loss(now),
            Congestion::Dcqcn(dcqcn) => dcqcn.on_timeout(now),
            Congestion::Window { .. } | Congestion::Timely(_) => {}
        }
    }

    /// Records a PSN sequence error or implied NAK after which packets are retransmitted. Not called under selective
    /// repeat. If `is_limited`, the loss window limits the packets in flight.
    pub(crate) fn on_nak(&mut self, now: Instant, is_limited: bool) {
        match self {
            Congestion::Swift(swift) => swift.on_loss(now),
            Congestion::Dcqcn(dcqcn) => dcqcn.on_loss(now, is_limited),
            Congestion::Window { .. } | Congestion::Timely(_) => {}
        }
    }

    /// Records that the responder sent the first of the responses that a duplicate READ request requested again. Not
    /// called under selective repeat.
    pub(crate) fn on_repeated_read(&mut self, now: Instant) {
        if let Congestion::Dcqcn(dcqcn) = self {
            dcqcn.on_loss(now, false);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Instant = Instant::from_nanos(1_000_000);

    #[test]
    fn every_scheme_has_a_window() {
        for name in ["window:3", "dcqcn:window_pkts=3", "swift:window_pkts=3", "timely:window_pkts=3"] {
            let scheme: CongestionScheme = name.parse().unwrap();
            let mut congestion = Congestion::new(&scheme, 1_000_000_000);
            assert!(congestion.permit(NOW, 2) && !congestion.permit(NOW, 3), "{name}");
            assert_eq!(congestion.window_pkts(), 3, "{name}");
            assert_eq!(congestion.next_permit_at().filter(|at| *at > NOW), None, "{name}");
            assert_eq!(congestion.is_window(), name.starts_with("window"));
        }
    }

    #[test]
    fn none_lets_all_go() {
        let mut congestion = Congestion::new(&CongestionScheme::None, 1_000_000_000);
        assert!(congestion.permit(NOW, 1 << 20) && congestion.window_pkts() > 1 << 20);
    }

    type Tell = fn(&mut Congestion);

    #[test]
    fn each_scheme_follows_its_signals() {
        let after = |name: &str, tell: Tell| {
            let mut congestion = Congestion::new(&name.parse().unwrap(), 10_000_000_000);
            // A CNP 60 us before the signal: DCQCN follows two signals only soon after a CNP.
            congestion.on_cnp(Instant::from_nanos(NOW.as_nanos() - 60_000));
            congestion.permit(NOW, 0);
            let before = (congestion.window_pkts(), congestion.rate_bits_per_sec());
            tell(&mut congestion);
            (congestion.window_pkts(), congestion.rate_bits_per_sec()) != before
        };
        let followers: [(&str, Tell); 6] = [
            ("dcqcn", |congestion| _ = congestion.on_cnp(NOW)),
            ("swift dcqcn", |congestion| congestion.on_timeout(NOW)),
            ("swift dcqcn", |congestion| congestion.on_nak(NOW, true)),
            ("dcqcn", |congestion| congestion.on_repeated_read(NOW)),
            ("swift", |congestion| congestion.on_detected_loss(NOW, 200)),
            ("swift timely", |congestion| congestion.on_ack(NOW, 1, Some(1_000_000))),
        ];
        for (who, tell) in followers {
            for name in ["none", "window", "dcqcn", "swift", "timely"] {
                assert_eq!(after(name, tell), who.contains(name), "{name} gets the signal that {who} follow");
            }
        }
    }
}
