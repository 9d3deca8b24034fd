//! Congestion control schemes by name, with their parameters.

use super::dcqcn::DcqcnParameters;
use super::parameters::{DEFAULT_WINDOW_PKTS, Limits, NoCongestionScheme, Parameters, WINDOW_PKTS_MAX};
use super::swift::SwiftParameters;
use super::timely::TimelyParameters;
use std::fmt;
use std::str::FromStr;

/// Congestion control scheme of a queue pair; the peer may use another scheme.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CongestionScheme {
    /// No congestion control: no limit of the rate, and a window of `WINDOW_PKTS_MAX` packets.
    None,
    /// A fixed window (BDP-FC of IRN, SIGCOMM'18, section 3.2).
    Window {
        /// Largest number of packets in flight, from 1 to `WINDOW_PKTS_MAX`.
        window_pkts: u32,
    },
    /// DCQCN (SIGCOMM'15): a rate that CNPs reduce.
    Dcqcn(DcqcnParameters),
    /// Swift (SIGCOMM'20): a window adapted to a target of the round trip.
    Swift(SwiftParameters),
    /// Timely (SIGCOMM'15): a rate that falls while the round trip rises.
    Timely(TimelyParameters),
}

/// Range of PKTS in the text `window:PKTS`.
const WINDOW: Limits = Limits { name: "window", min: 1, max: WINDOW_PKTS_MAX };

impl Default for CongestionScheme {
    fn default() -> Self {
        CongestionScheme::Window { window_pkts: DEFAULT_WINDOW_PKTS }
    }
}

impl CongestionScheme {
    /// Returns the number of packets that may be in flight; `WINDOW_PKTS_MAX` without congestion control.
    pub fn window_pkts(&self) -> u32 {
        match *self {
            CongestionScheme::None => WINDOW_PKTS_MAX,
            CongestionScheme::Window { window_pkts } => window_pkts,
            CongestionScheme::Dcqcn(parameters) => parameters.window_pkts,
            CongestionScheme::Swift(parameters) => parameters.window_pkts,
            CongestionScheme::Timely(parameters) => parameters.window_pkts,
        }
    }

    /// Returns the `window_pkts` to pass to `RecoveryScheme::read_pkts_max`, which computes the maximum number of
    /// responses to one READ request. The returned number is the window of this scheme; under Swift and Timely, at most
    /// `2 * window / max_rd_atomic`, so that the responses to one READ request fit even a reduced window.
    pub fn read_window_pkts(&self, max_rd_atomic: u8) -> u32 {
        let window_pkts = self.window_pkts();
        if !self.follows_round_trip() {
            return window_pkts;
        }
        window_pkts.min(2 * window_pkts / u32::from(max_rd_atomic.max(1)))
    }

    /// Returns whether every parameter is in its range.
    pub fn is_valid(&self) -> bool {
        match self {
            CongestionScheme::None => true,
            CongestionScheme::Window { window_pkts } => (WINDOW.min..=WINDOW.max).contains(window_pkts),
            CongestionScheme::Dcqcn(parameters) => parameters.is_valid(),
            CongestionScheme::Swift(parameters) => parameters.is_valid(),
            CongestionScheme::Timely(parameters) => parameters.is_valid(),
        }
    }

    /// Returns whether the round trip changes the window or the rate of the scheme.
    pub(crate) fn follows_round_trip(&self) -> bool {
        matches!(self, CongestionScheme::Swift(_) | CongestionScheme::Timely(_))
    }

    /// Returns whether packets are sent with ECT(0) (RFC 3168), because the scheme needs CE marks.
    pub(crate) fn is_ecn_capable(&self) -> bool {
        matches!(self, CongestionScheme::Dcqcn(_))
    }
}

impl fmt::Display for CongestionScheme {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CongestionScheme::None => f.write_str("none"),
            CongestionScheme::Window { window_pkts } => write!(f, "window:{window_pkts}"),
            CongestionScheme::Dcqcn(parameters) => parameters.write(f),
            CongestionScheme::Swift(parameters) => parameters.write(f),
            CongestionScheme::Timely(parameters) => parameters.write(f),
        }
    }
}

impl FromStr for CongestionScheme {
    type Err = NoCongestionScheme;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (name, parameters) = text.split_once(':').map_or((text, None), |(name, rest)| (name, Some(rest)));
        match (name, parameters) {
            ("none", None) => Ok(CongestionScheme::None),
            ("window", None) => Ok(CongestionScheme::default()),
            ("window", Some(window)) => Ok(CongestionScheme::Window { window_pkts: WINDOW.number(window)? }),
            (DcqcnParameters::SCHEME, _) => parsed(parameters).map(CongestionScheme::Dcqcn),
            (SwiftParameters::SCHEME, _) => parsed(parameters).map(CongestionScheme::Swift),
            (TimelyParameters::SCHEME, _) => parsed(parameters).map(CongestionScheme::Timely),
            _ => Err(NoCongestionScheme::UnknownScheme { name: text.to_owned() }),
        }
    }
}

fn parsed<P: Parameters>(parameters: Option<&str>) -> Result<P, NoCongestionScheme> {
    parameters.map_or_else(|| Ok(P::default()), P::parse)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn schemes_are_named() {
        for name in ["none", "window:1", "window:4194304"] {
            assert_eq!(
                name.parse::<CongestionScheme>().map(|scheme| scheme.to_string()),
                Ok(name.to_owned())
            );
        }
        assert_eq!("window".parse(), Ok(CongestionScheme::default()));
        for name in [
            "dcqcn",
            "swift",
            "timely",
            "dcqcn:window_pkts=110,rpg_gd=10,dce_tcp_g=1000",
            "dcqcn:nvidia",
            "dcqcn:nvidia,window_pkts=110,rpg_gd=10",
            "swift:base_target_nanos=15000",
            "timely:t_low_nanos=20000,t_high_nanos=100000",
        ] {
            assert_eq!(
                name.parse::<CongestionScheme>().map(|scheme| scheme.to_string()),
                Ok(name.to_owned())
            );
        }
        let defaults = "dcqcn:rpg_gd=11,dce_tcp_g=1020".parse::<CongestionScheme>();
        assert_eq!(defaults.map(|scheme| scheme.to_string()), Ok("dcqcn".to_owned()));
    }

    #[test]
    fn defaults_are_in_their_ranges() {
        for name in ["none", "window", "dcqcn", "swift", "timely"] {
            let scheme: CongestionScheme = name.parse().unwrap();
            assert!(scheme.is_valid(), "{name}");
            assert_eq!(scheme.is_ecn_capable(), name == "dcqcn");
        }
        let out = DcqcnParameters { rpg_gd: 16, ..DcqcnParameters::default() };
        assert!(!CongestionScheme::Dcqcn(out).is_valid());
        assert!(!CongestionScheme::Window { window_pkts: 0 }.is_valid());
    }

    #[test]
    fn a_refusal_says_what_was_needed() {
        let said = |name: &str| name.parse::<CongestionScheme>().unwrap_err().to_string();
        for wrong in ["window:", "window:0", "window:4194305", "window:x"] {
            assert!(said(wrong).contains("from 1 to 4194304"), "{wrong}");
        }
        for wrong in ["", "None", "cubic", "none:", "none:1", "dcqcn2"] {
            assert!(said(wrong).contains("needed none, window"), "{wrong}");
        }
        for wrong in [
            "dcqcn:",
            "dcqcn:rpg_gd=11,",
            "dcqcn:gd=11",
            "dcqcn:nvidia,",
            "swift:nvidia",
            "swift:rpg_gd=11",
            "timely:dcqcn",
        ] {
            assert!(said(wrong).contains("has no parameter"), "{wrong}");
            assert!(said(wrong).contains("it has window_pkts, "), "{wrong}");
        }
        for (wrong, range) in [("dcqcn:rpg_gd=16", "10 to 15"), ("dcqcn:dce_tcp_g", "0 to 1023")] {
            assert!(said(wrong).contains(range), "{wrong}");
        }
    }
}
