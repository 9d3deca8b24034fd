//! Loss in turns within one run. Other load of the machine, and the placement of processes, then affect each
//! probability of loss alike, so that the ratio of the rates is the cost of the loss.
//!
//! ```text
//!   loss      0  1 %  5 %   0  1 %  5 %   0  1 %  5 %   0  1 %
//!             |-- cycle -|  |-- cycle -|  |-- cycle -|  |- ...    each turn lasts SETTLING and COUNTED
//!              warming up    counted       counted        not whole
//!
//!   a turn    | SETTLING: in flight from the turn before | COUNTED |
//! ```
//! The settling time ends when as much payload was carried as may have been outstanding when the turn began, because
//! messages that wait for a retransmission complete in the next turn: otherwise the turn without loss would be credited
//! with messages of the one before.
//!
//! Carried is the payload of requests sent for the first time, and of READ responses placed. Completions are no
//! measure: if 16 queue pairs send 8 MiB each, they complete at the same time, in one turn of several.

use std::str::FromStr;
use std::time::Duration;

use roce::port::fault::{FaultConfig, FaultDirection};
use roce::port::probability::Probability;
use serde::Serialize;

/// Counted part of a turn: many round trips, and short against changes of the machine's load.
const COUNTED: Duration = Duration::from_millis(20);
/// Shortest part of a turn before that: some round trips, and the shortest timeouts.
const SETTLING: Duration = Duration::from_millis(5);
/// Longest part of a turn before that, in which a slow scheme may not carry what was outstanding.
const SETTLING_MAX: Duration = Duration::from_millis(200);
/// Probabilities of loss, at most: a second then still has two cycles that count.
const CHANCES_MAX: usize = 12;

/// Message if no turn can be compared.
pub(super) const NOTHING_TO_COMPARE: &str = "--loss-turns: no turn of 20 ms carried a packet, or too few turns were whole, \
     to compare them: give a longer -D, or fewer queue pairs with -q";

/// Probabilities of loss that take turns; the others' rates are compared with the first one's.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct LossTurns(Vec<Probability>);

impl FromStr for LossTurns {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let chances = text
            .split(',')
            .map(|part| {
                let chance: Probability = part.parse().map_err(|error| format!("{error}"))?;
                if chance == Probability::ALWAYS {
                    return Err("where every frame is lost there is nothing to compare".to_owned());
                }
                Ok(chance)
            })
            .collect::<Result<Vec<Probability>, String>>()?;
        if !(2..=CHANCES_MAX).contains(&chances.len()) {
            return Err(format!(
                "give 2 to {CHANCES_MAX} chances between commas, the one to compare with first, as in 0,0.01,0.05"
            ));
        }
        Ok(LossTurns(chances))
    }
}

impl LossTurns {
    /// Returns `faults` with these losses in both directions, because only one end has the clock.
    pub(super) fn faults(&self, faults: FaultConfig) -> FaultConfig {
        // Because a port that is opened without impairments stays without.
        let highest = self.0.iter().copied().max_by(|a, b| a.value().total_cmp(&b.value()));
        FaultConfig {
            drop_probability: highest.unwrap_or_default(),
            direction: FaultDirection::Both,
            ..faults
        }
    }
}

/// Result of one turn.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Turn {
    bytes: u64,
    took: Duration,
}

impl Turn {
    fn gbit_per_sec(self) -> f64 {
        self.bytes as f64 * 8.0 / 1e9 / self.took.as_secs_f64()
    }
}

/// Time since the start of a run, and the payload carried by then, in bytes.
#[derive(Clone, Copy, Debug)]
struct Reading {
    at: Duration,
    bytes: u64,
}

/// State of the turns of a run.
#[derive(Debug)]
pub(super) struct Turns {
    chances: Vec<Probability>,
    /// Payload in bytes that may be outstanding.
    outstanding_bytes: u64,
    done: Vec<Turn>,
    /// Start of the current turn.
    began: Reading,
    /// Start of its counted part, if that has begun.
    counting: Option<Reading>,
}

impl Turns {
    /// The state before the first turn, of ends that have at most `outstanding_bytes` of payload outstanding.
    pub(super) fn new(turns: &LossTurns, outstanding_bytes: u64) -> Self {
        Turns {
            chances: turns.0.clone(),
            outstanding_bytes,
            done: Vec::new(),
            began: Reading { at: Duration::ZERO, bytes: 0 },
            counting: None,
        }
    }

    /// Returns the probability of the current turn.
    pub(super) fn chance(&self) -> Probability {
        self.chances[self.done.len() % self.chances.len()]
    }

    /// Ends the turn if its time is over: `at` since the start, when `bytes` of payload were carried. `bytes` is asked
    /// for only where a part of the turn may end. Returns whether a new turn has begun.
    pub(super) fn watch(&mut self, at: Duration, bytes: impl FnOnce() -> u64) -> bool {
        let is_counting = self.counting.is_some();
        let since = self.counting.unwrap_or(self.began);
        let took = at.saturating_sub(since.at);
        if took < if is_counting { COUNTED } else { SETTLING } {
            return false;
        }
        let reading = Reading { at, bytes: bytes() };
        let carried_bytes = reading.bytes.saturating_sub(since.bytes);
        if is_counting {
            self.done.push(Turn { bytes: carried_bytes, took });
            (self.began, self.counting) = (reading, None);
        } else if carried_bytes >= self.outstanding_bytes || took >= SETTLING_MAX {
            self.counting = Some(reading);
        }
        is_counting
    }

    /// Returns the results of each probability. The first cycle, and a last one that is not whole, do not count. Empty
    /// if no others remain, or nothing was carried in the turns to compare with.
    pub(super) fn rows(&self) -> Vec<TurnRow> {
        let cycles: Vec<&[Turn]> = self.done.chunks_exact(self.chances.len()).skip(1).collect();
        if cycles.is_empty() {
            return Vec::new();
        }
        let base_chance = self.chances[0].value();
        let row = |(at, chance): (usize, &Probability)| {
            let chance = chance.value();
            let due = (1.0 - chance) / (1.0 - base_chance);
            let kept = cycles.iter().map(|cycle| cycle[at].gbit_per_sec() / cycle[0].gbit_per_sec() / due);
            let gbit_per_sec = median(cycles.iter().map(|cycle| cycle[at].gbit_per_sec()))?;
            Some(TurnRow { chance, turns: cycles.len(), gbit_per_sec, kept: median(kept)? })
        };
        self.chances.iter().enumerate().filter_map(row).collect()
    }
}

/// Returns the median of the values that are numbers.
fn median(figures: impl Iterator<Item = f64>) -> Option<f64> {
    let mut figures: Vec<f64> = figures.filter(|figure| figure.is_finite()).collect();
    figures.sort_by(f64::total_cmp);
    figures.get(figures.len() / 2).copied()
}

/// Result of the turns of one probability.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(super) struct TurnRow {
    /// Probability that a frame was lost, in each direction.
    pub(super) chance: f64,
    /// Number of turns counted.
    pub(super) turns: usize,
    /// Median of their rates.
    pub(super) gbit_per_sec: f64,
    /// Median of their rates divided by that of the first turn of the same cycle and by the expected share
    /// that is not lost: 1 if a loss costs no more than itself.
    pub(super) kept: f64,
}

impl TurnRow {
    /// Returns the header of the table.
    pub(super) const HEADER: &str = " #turns     loss[%]    BW median[Gb/sec]    kept of (1 - loss)";

    /// Returns its line of the table.
    pub(super) fn line(&self) -> String {
        let (turns, loss) = (self.turns, self.chance * 100.0);
        format!(" {turns:<10} {loss:<10.4} {:<20.2} {:.3}", self.gbit_per_sec, self.kept)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OUTSTANDING_BYTES: u64 = 6;

    fn turns(text: &str) -> Turns {
        Turns::new(&text.parse().unwrap(), OUTSTANDING_BYTES)
    }

    fn watch(turns: &mut Turns, at: Duration, bytes: u64) -> bool {
        turns.watch(at, || bytes)
    }

    /// Runs a turn from `at` on: what was outstanding is carried and does not count, then `counted` bytes in `took`.
    fn take(turns: &mut Turns, (at, carried): (Duration, u64), counted: u64, took: Duration) {
        const MILLI: Duration = Duration::from_millis(1);
        let settled = carried + OUTSTANDING_BYTES;
        assert!(!watch(turns, at + SETTLING - MILLI, settled));
        assert!(!watch(turns, at + SETTLING, settled - 1));
        assert!(!watch(turns, at + 2 * SETTLING, settled));
        assert!(!watch(turns, at + 2 * SETTLING + COUNTED - MILLI, settled + counted / 2));
        assert!(watch(turns, at + 2 * SETTLING + took, settled + counted));
    }

    #[test]
    fn chances_take_turns_and_are_compared_within_a_cycle() {
        let mut turns = turns("0,0.2,0.5");
        // Bytes of the turns of five cycles; the last has two turns alone. Machine and loss both weigh.
        let counted = [[9, 9, 9], [100, 80, 40], [50, 40, 20], [1000, 400, 500], [7, 7, 7]];
        let (mut at, mut carried) = (Duration::ZERO, 0);
        for (n, bytes) in counted.as_flattened().iter().take(14).enumerate() {
            assert_eq!(turns.chance().value(), [0.0, 0.2, 0.5][n % 3]);
            take(&mut turns, (at, carried), *bytes, COUNTED);
            at += 2 * SETTLING + COUNTED;
            carried += OUTSTANDING_BYTES + bytes;
        }
        let rows = turns.rows();
        let kept: Vec<f64> = rows.iter().map(|row| (row.kept * 1000.0).round() / 1000.0).collect();
        assert_eq!(kept, [1.0, 1.0, 0.8]);
        assert!(rows.iter().all(|row| row.turns == 3));
        assert!((rows[0].gbit_per_sec - 0.00004).abs() < 1e-12, "100 bytes in 20 ms");
        assert_eq!(rows[2].line(), " 3          50.0000    0.00                 0.800");
    }

    #[test]
    fn a_turn_that_a_stall_made_longer_counts_by_its_rate() {
        let mut turns = turns("0,0.5");
        let (mut at, mut carried) = (Duration::ZERO, 0);
        for millis in [20, 20, 20, 40] {
            let took = Duration::from_millis(millis);
            take(&mut turns, (at, carried), 100, took);
            at += 2 * SETTLING + took;
            carried += OUTSTANDING_BYTES + 100;
        }
        assert_eq!(turns.rows().iter().map(|row| row.kept).collect::<Vec<_>>(), [1.0, 1.0]);
    }

    #[test]
    fn a_turn_that_carries_too_little_to_settle_counts_nevertheless() {
        let mut turns = turns("0,0.5");
        assert!(!watch(&mut turns, SETTLING_MAX, OUTSTANDING_BYTES - 1));
        assert!(watch(&mut turns, SETTLING_MAX + COUNTED, OUTSTANDING_BYTES - 1));
    }

    #[test]
    fn without_a_whole_cycle_there_is_nothing_to_say() {
        let mut turns = turns("0,0.5");
        let (mut at, mut carried) = (Duration::ZERO, 0);
        let mut take_next = |turns: &mut Turns, bytes| {
            take(turns, (at, carried), bytes, COUNTED);
            at += 2 * SETTLING + COUNTED;
            carried += OUTSTANDING_BYTES + bytes;
        };
        take_next(&mut turns, 3);
        take_next(&mut turns, 3);
        assert_eq!(turns.rows(), []);
        take_next(&mut turns, 0);
        take_next(&mut turns, 1);
        assert_eq!(turns.rows(), [], "nothing was carried in the turn to compare with");
    }

    #[test]
    fn turns_that_cannot_be_are_refused() {
        let too_many = ["0"; CHANCES_MAX + 1].join(",");
        for (text, why) in [
            ("0", "2 to 12"),
            ("", "0 (never)"),
            ("0,2", "0 (never)"),
            ("0,1", "nothing"),
            (&*too_many, "2 to 12"),
        ] {
            let error = text.parse::<LossTurns>().unwrap_err();
            assert!(error.contains(why), "{text}: {error}");
        }
        assert!(["0"; CHANCES_MAX].join(",").parse::<LossTurns>().is_ok());
    }
}
