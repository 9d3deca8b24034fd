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
//! Messages that wait for a retransmission complete in the next turn. Without the settling time, the turn
//! without loss would be credited with messages of the one before.

use std::str::FromStr;
use std::time::Duration;

use roce::port::fault::{FaultConfig, FaultDirection};
use roce::port::probability::Probability;
use serde::Serialize;

/// Counted part of a turn: many round trips, and short against changes of the machine's load.
const COUNTED: Duration = Duration::from_millis(20);
/// Part of a turn before that: some round trips, and the shortest timeouts.
const SETTLING: Duration = Duration::from_millis(5);
/// Probabilities of loss, at most: a second then still has two cycles that count.
const CHANCES_MAX: usize = 12;

/// Message if no turn can be compared.
pub(super) const NOTHING_TO_COMPARE: &str = "--loss-turns: no turn of 20 ms completed a message, or too few turns were whole, to compare \
     them: give a longer -D, or shorter messages with -s";

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
    messages: u64,
    took: Duration,
}

impl Turn {
    fn per_sec(self) -> f64 {
        self.messages as f64 / self.took.as_secs_f64()
    }
}

/// State of the turns of a run.
#[derive(Debug)]
pub(super) struct Turns {
    chances: Vec<Probability>,
    done: Vec<Turn>,
    /// Time at which the current turn began.
    began: Duration,
    /// Time at which its counted part began, if it has, and messages completed by then.
    counting: Option<(Duration, u64)>,
}

impl Turns {
    /// The state before the first turn.
    pub(super) fn new(turns: &LossTurns) -> Self {
        Turns { chances: turns.0.clone(), done: Vec::new(), began: Duration::ZERO, counting: None }
    }

    /// Returns the probability of the current turn.
    pub(super) fn chance(&self) -> Probability {
        self.chances[self.done.len() % self.chances.len()]
    }

    /// Ends the turn if its time is over: `elapsed` since the start, with `completed` messages completed.
    /// Returns whether a new turn has begun.
    pub(super) fn watch(&mut self, elapsed: Duration, completed: u64) -> bool {
        let Some((since, completed_before)) = self.counting else {
            if elapsed.saturating_sub(self.began) >= SETTLING {
                self.counting = Some((elapsed, completed));
            }
            return false;
        };
        let took = elapsed.saturating_sub(since);
        if took < COUNTED {
            return false;
        }
        self.done.push(Turn { messages: completed - completed_before, took });
        (self.began, self.counting) = (elapsed, None);
        true
    }

    /// Returns the results of each probability for messages of `bytes`. The first cycle, and a last one that
    /// is not whole, do not count. Empty if no others remain, or nothing was completed in the turns to compare
    /// with.
    pub(super) fn rows(&self, bytes: u32) -> Vec<TurnRow> {
        let cycles: Vec<&[Turn]> = self.done.chunks_exact(self.chances.len()).skip(1).collect();
        if cycles.is_empty() {
            return Vec::new();
        }
        let base_chance = self.chances[0].value();
        let row = |(at, chance): (usize, &Probability)| {
            let chance = chance.value();
            let due = (1.0 - chance) / (1.0 - base_chance);
            let kept = cycles.iter().map(|cycle| cycle[at].per_sec() / cycle[0].per_sec() / due);
            let per_sec = median(cycles.iter().map(|cycle| cycle[at].per_sec()))?;
            let gbit_per_sec = per_sec * f64::from(bytes) * 8.0 / 1e9;
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

    fn turns(text: &str) -> Turns {
        Turns::new(&text.parse().unwrap())
    }

    /// Runs a turn from `at` on: `settling` messages complete and do not count, then `counted` in `took`.
    fn take(
        turns: &mut Turns,
        (at, completed): (Duration, u64),
        settling: u64,
        counted: u64,
        took: Duration,
    ) {
        assert!(!turns.watch(at + SETTLING - Duration::from_millis(1), completed));
        assert!(!turns.watch(at + SETTLING, completed + settling));
        assert!(
            !turns.watch(
                at + SETTLING + COUNTED - Duration::from_millis(1),
                completed + settling + counted / 2
            )
        );
        assert!(turns.watch(at + SETTLING + took, completed + settling + counted));
    }

    #[test]
    fn chances_take_turns_and_are_compared_within_a_cycle() {
        let mut turns = turns("0,0.2,0.5");
        // Messages of the turns of five cycles; the last has two turns alone. Machine and loss both weigh.
        let carried = [[9, 9, 9], [100, 80, 40], [50, 40, 20], [1000, 400, 500], [7, 7, 7]];
        let (mut at, mut completed) = (Duration::ZERO, 0);
        for (n, messages) in carried.as_flattened().iter().take(14).enumerate() {
            assert_eq!(turns.chance().value(), [0.0, 0.2, 0.5][n % 3]);
            let before = carried.as_flattened()[n.saturating_sub(1)];
            take(&mut turns, (at, completed), before, *messages, COUNTED);
            at += SETTLING + COUNTED;
            completed += before + messages;
        }
        let rows = turns.rows(1000);
        let kept: Vec<f64> = rows.iter().map(|row| (row.kept * 1000.0).round() / 1000.0).collect();
        assert_eq!(kept, [1.0, 1.0, 0.8]);
        assert!(rows.iter().all(|row| row.turns == 3));
        // 100 messages of 8,000 bits in 20 ms.
        assert_eq!(rows[0].gbit_per_sec, 0.04);
        assert_eq!(rows[2].line(), " 3          50.0000    0.02                 0.800");
    }

    #[test]
    fn a_turn_that_a_stall_made_longer_counts_by_its_rate() {
        let mut turns = turns("0,0.5");
        let mut at = Duration::ZERO;
        for (n, millis) in [20, 20, 20, 40].into_iter().enumerate() {
            let took = Duration::from_millis(millis);
            take(&mut turns, (at, 200 * n as u64), 100, 100, took);
            at += SETTLING + took;
        }
        assert_eq!(turns.rows(1).iter().map(|row| row.kept).collect::<Vec<_>>(), [1.0, 1.0]);
    }

    #[test]
    fn without_a_whole_cycle_there_is_nothing_to_say() {
        let mut turns = turns("0,0.5");
        let at = |n: u32| n * (SETTLING + COUNTED);
        take(&mut turns, (at(0), 0), 0, 3, COUNTED);
        take(&mut turns, (at(1), 3), 0, 3, COUNTED);
        assert_eq!(turns.rows(1), []);
        take(&mut turns, (at(2), 6), 0, 0, COUNTED);
        take(&mut turns, (at(3), 6), 0, 1, COUNTED);
        assert_eq!(turns.rows(1), [], "nothing was carried in the turn to compare with");
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
