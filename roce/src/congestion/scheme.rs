//! Congestion control schemes by name, and what can be changed about each.

use std::fmt;
use std::str::FromStr;

/// Packets in flight of one queue pair, unless configured otherwise.
pub const DEFAULT_WINDOW_PKTS: u32 = 256;

/// The largest window, in packets: a quarter of the PSNs, so that what is in flight stays well within half
/// the circle.
pub const WINDOW_PKTS_MAX: u32 = 1 << 22;

/// What a queue pair is configured with: a decision of each sender alone, which its peer need not know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CongestionScheme {
    /// Everything that is posted goes out at once.
    None,
    /// A fixed cap on packets in flight (BDP-FC of IRN, SIGCOMM'18, section 3.2).
    Window {
        /// The cap, at least 1.
        window_pkts: u32,
    },
}

impl Default for CongestionScheme {
    fn default() -> Self {
        CongestionScheme::Window { window_pkts: DEFAULT_WINDOW_PKTS }
    }
}

impl CongestionScheme {
    /// Packets in flight at most.
    pub fn window_pkts(&self) -> u32 {
        match *self {
            CongestionScheme::None => WINDOW_PKTS_MAX,
            CongestionScheme::Window { window_pkts } => window_pkts,
        }
    }

    /// Whether its window is in range.
    pub fn is_valid(&self) -> bool {
        (1..=WINDOW_PKTS_MAX).contains(&self.window_pkts())
    }
}

impl fmt::Display for CongestionScheme {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CongestionScheme::None => f.write_str("none"),
            CongestionScheme::Window { window_pkts } => write!(f, "window:{window_pkts}"),
        }
    }
}

/// Why a text names no congestion control.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoCongestionScheme {
    /// There is no such scheme.
    #[error("there is no congestion control `{name}`: needed none, window or window:PKTS")]
    UnknownScheme {
        /// What was given.
        name: String,
    },
    /// A value out of range.
    #[error("{name} = `{value}`: needed a number from {min} to {max}")]
    BadValue {
        /// The parameter.
        name: String,
        /// What was given.
        value: String,
        /// The smallest possible.
        min: u32,
        /// The largest possible.
        max: u32,
    },
}

impl FromStr for CongestionScheme {
    type Err = NoCongestionScheme;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.split_once(':') {
            None if text == "none" => Ok(CongestionScheme::None),
            None if text == "window" => Ok(CongestionScheme::default()),
            Some(("window", window)) => {
                let window_pkts = number("window", window, 1, WINDOW_PKTS_MAX)?;
                Ok(CongestionScheme::Window { window_pkts })
            }
            _ => Err(NoCongestionScheme::UnknownScheme { name: text.to_owned() }),
        }
    }
}

/// The value of the parameter `name`.
fn number(name: &str, value: &str, min: u32, max: u32) -> Result<u32, NoCongestionScheme> {
    value.parse().ok().filter(|number| (min..=max).contains(number)).ok_or_else(|| {
        NoCongestionScheme::BadValue { name: name.to_owned(), value: value.to_owned(), min, max }
    })
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
    }

    #[test]
    fn a_refusal_says_what_was_needed() {
        let said = |name: &str| name.parse::<CongestionScheme>().unwrap_err().to_string();
        for wrong in ["window:", "window:0", "window:4194305", "window:x"] {
            assert!(said(wrong).contains("from 1 to 4194304"), "{wrong}");
        }
        for wrong in ["", "None", "cubic", "none:"] {
            assert!(said(wrong).contains("needed none, window"), "{wrong}");
        }
    }
}
