//! The probability of an impairment.

use std::str::FromStr;

/// A probability: a number from 0 to 1; as text `0.05`, `5 %` or `1/20`.
#[derive(Clone, Copy, Debug, Default, PartialEq, PartialOrd)]
pub struct Probability(pub(super) f64);

/// Error of parsing a [`Probability`]: the text is not a number from 0 to 1.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` is no probability: needed a number from 0 (never) to 1 (always), as 0.05, or text as \"5 %\" or \"1/20\""
)]
pub struct ProbabilityError(String);

impl Probability {
    /// Probability 0.
    pub const NEVER: Probability = Probability(0.0);
    /// Probability 1.
    pub const ALWAYS: Probability = Probability(1.0);

    /// Returns the probability as a number, 0 to 1.
    pub const fn value(self) -> f64 {
        self.0
    }
}

impl FromStr for Probability {
    type Err = ProbabilityError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let refused = || ProbabilityError(text.to_owned());
        let number = |text: &str| text.trim().parse::<f64>().map_err(|_| refused());
        let probability = match (text.trim().strip_suffix('%'), text.split_once('/')) {
            (Some(percent), _) => number(percent)? / 100.0,
            (None, Some((part, whole))) => number(part)? / number(whole)?,
            (None, None) => number(text)?,
        };
        if (0.0..=1.0).contains(&probability) { Ok(Probability(probability)) } else { Err(refused()) }
    }
}

/// A probability in units of 2^-32, for comparison with random 32-bit numbers, because the hot path has no floats.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Threshold(u64);

impl Threshold {
    const DRAWS: u64 = 1 << 32;

    /// Returns whether a frame is impaired. If the rounded probability is 0 or 1, `draw` is not called.
    pub(super) fn hits(self, draw: impl FnOnce() -> u32) -> bool {
        self.0 != 0 && (self.0 == Self::DRAWS || u64::from(draw()) < self.0)
    }
}

impl From<Probability> for Threshold {
    /// Rounds down to a multiple of 2^-32.
    fn from(probability: Probability) -> Self {
        Threshold((probability.0 * Threshold::DRAWS as f64) as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probabilities_are_numbers_fractions_and_percents() {
        for (text, probability) in [
            ("0", 0.0),
            ("1", 1.0),
            (" 0.5 ", 0.5),
            ("1/4096", 1.0 / 4096.0),
            ("1 / 4", 0.25),
            ("2%", 0.02),
            ("2 %", 0.02),
        ] {
            assert_eq!(text.parse(), Ok(Probability(probability)), "{text}");
        }
        for text in
            ["", "x", "NaN", "inf", "1/0", "0/0", "101 %", "200 %", "-0.1", "1.5", "2", "%", "1/", "1/2/3"]
        {
            let refused = text.parse::<Probability>().unwrap_err().to_string();
            assert!(refused.contains(text) && refused.contains("0.05"), "{refused}");
        }
    }

    #[test]
    fn a_threshold_is_rounded_down_and_draws_only_between_never_and_always() {
        let hits =
            |text: &str, draw: u32| Threshold::from(text.parse::<Probability>().unwrap()).hits(|| draw);
        assert!(hits("0.5", (1 << 31) - 1) && !hits("0.5", 1 << 31));
        assert!(hits("1/4294967296", 0) && !hits("1/4294967296", 1));
        assert!(!hits("1/4294967297", 0));
        assert!(hits("0.99999999999", u32::MAX - 1) && !hits("0.99999999999", u32::MAX));
        let no_draw = || panic!("a draw");
        assert!(!Threshold::from(Probability::NEVER).hits(no_draw));
        assert!(Threshold::from(Probability::ALWAYS).hits(no_draw));
    }
}
