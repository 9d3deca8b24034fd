//! The TOML form of an impairment: the key `action`, and `micros` or `behind` for the actions that need a number. The
//! workload `reaction` of an experiment has these keys, and each packet event in the file of `--events`.

use roce::port::impairment::Impairment;
use serde::Deserialize;

/// Value of the key `action`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Action {
    /// The packet is dropped.
    Drop,
    /// A bit of the packet's ICRC is flipped.
    Corrupt,
    /// The packet gets a CE mark.
    #[serde(alias = "ecn")]
    MarkCe,
    /// The packet is sent twice.
    Duplicate,
    /// The packet is held for `micros` microseconds.
    Delay,
    /// The packet is held until `behind` later packets were sent.
    Reorder,
}

impl Action {
    /// Returns the impairment that this action and the keys `micros` and `behind` specify.
    ///
    /// # Errors
    /// A key is missing, is of another action, or is out of its range.
    pub fn impairment(self, micros: Option<u64>, behind: Option<u32>) -> Result<Impairment, &'static str> {
        if micros.is_some() && self != Action::Delay {
            return Err("micros goes with action = \"delay\" alone");
        }
        if behind.is_some() && self != Action::Reorder {
            return Err("behind goes with action = \"reorder\" alone");
        }
        let impairment = match self {
            Action::Drop => Impairment::Drop,
            Action::Corrupt => Impairment::CORRUPT_ICRC,
            Action::MarkCe => Impairment::MarkCe,
            Action::Duplicate => Impairment::Duplicate,
            Action::Delay => {
                let micros = micros.ok_or("action = \"delay\" needs micros, as micros = 50")?;
                Impairment::Delay { nanos: micros.saturating_mul(1000) }
            }
            Action::Reorder => {
                let behind_pkts = behind.ok_or("action = \"reorder\" needs behind, as behind = 3")?;
                Impairment::Reorder { behind_pkts }
            }
        };
        impairment.check()?;
        Ok(impairment)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Deserialize)]
    struct Keys {
        action: Action,
        micros: Option<u64>,
        behind: Option<u32>,
    }

    fn read(text: &str) -> Result<Impairment, String> {
        let keys: Keys = toml::from_str(text).map_err(|error| error.to_string())?;
        Ok(keys.action.impairment(keys.micros, keys.behind)?)
    }

    #[test]
    fn each_action_is_an_impairment() {
        for (text, impairment) in [
            ("action = \"drop\"", Impairment::Drop),
            ("action = \"corrupt\"", Impairment::Corrupt { bit: -25 }),
            ("action = \"mark-ce\"", Impairment::MarkCe),
            ("action = \"ecn\"", Impairment::MarkCe),
            ("action = \"duplicate\"", Impairment::Duplicate),
            ("action = \"delay\"\nmicros = 50", Impairment::Delay { nanos: 50_000 }),
            ("action = \"delay\"\nmicros = 10000000", Impairment::Delay { nanos: 10_000_000_000 }),
            ("action = \"reorder\"\nbehind = 3", Impairment::Reorder { behind_pkts: 3 }),
        ] {
            assert_eq!(read(text), Ok(impairment), "{text}");
        }
    }

    #[test]
    fn a_wrong_action_or_number_is_told_what_is_needed() {
        for (text, said) in [
            ("action = \"explode\"", "unknown variant `explode`, expected one of `drop`, `corrupt`, "),
            ("action = \"explode\"", "`ecn`"),
            ("action = \"explode\"", "`mark-ce`"),
            ("action = \"drop\"\nmicros = 1", "micros goes with action = \"delay\" alone"),
            ("action = \"delay\"\nmicros = 1\nbehind = 1", "behind goes with action = \"reorder\" alone"),
            ("action = \"delay\"", "needs micros, as micros = 50"),
            ("action = \"reorder\"", "needs behind, as behind = 3"),
            ("action = \"delay\"\nmicros = 0", "needs some time"),
            ("action = \"delay\"\nmicros = 10000001", "at most 10 seconds"),
            ("action = \"delay\"\nmicros = 9000000000000000000", "at most 10 seconds"),
            ("action = \"reorder\"\nbehind = 0", "1 to 1024"),
            ("action = \"reorder\"\nbehind = 1025", "1 to 1024"),
            ("action = \"reorder\"\nbehind = -1", "invalid value: integer `-1`"),
        ] {
            let error = read(text).unwrap_err();
            assert!(error.contains(said), "{text}: {error}");
        }
    }
}
