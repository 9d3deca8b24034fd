//! Tests of [`OutOfOrderSet`] by tables: the states of PSNs, and the bitmap of a SACK.

use super::out_of_order_set::OutOfOrderSet;
use super::out_of_order_set::PsnState::{self, Kept, Missing, OutOfWindow};
use crate::psn::Psn;

const WINDOW_PKTS: u32 = 64;

/// Expected PSN in the tables, 20 below 2^24, so that PSNs wrap inside the window.
const EXPECTED: Psn = Psn::new(Psn::COUNT - 20);

fn psn(index: i32) -> Psn {
    if index < 0 { EXPECTED.minus(index.unsigned_abs()) } else { EXPECTED.plus(index.unsigned_abs()) }
}

fn set(buffered: &[i32]) -> OutOfOrderSet {
    let mut set = OutOfOrderSet::new(WINDOW_PKTS);
    buffered.iter().for_each(|index| set.insert(psn(*index)));
    set
}

fn indices(range: std::ops::Range<i32>, is_in: impl Fn(Psn) -> bool) -> Vec<i32> {
    range.filter(|index| is_in(psn(*index))).collect()
}

/// States of PSNs, as distances from the expected PSN, while 1, 5 and 63 are buffered.
const PSNS: &[(i32, PsnState)] = &[
    (-1, OutOfWindow),
    (-63, OutOfWindow), // has the same bit in the set as distance 1
    (-59, OutOfWindow), // has the same bit in the set as distance 5
    (0, OutOfWindow),
    (1, Kept),
    (2, Missing),
    (5, Kept),
    (62, Missing),
    (63, Kept),
    (64, OutOfWindow), // has the same bit in the set as the expected PSN
    (65, OutOfWindow), // has the same bit in the set as distance 1
    (1 << 23, OutOfWindow),
];

#[test]
fn the_window_lies_above_the_expected_psn() {
    let set = set(&[1, 5, 63]);
    for (index, wanted) in PSNS {
        assert_eq!(set.state(EXPECTED, psn(*index)), *wanted, "{index}");
    }
}

/// Change of a set. PSNs are distances from `EXPECTED`.
#[derive(Clone, Copy, Debug)]
enum Change {
    Insert(i32),
    /// `OutOfOrderSet::remove` of `.0` while `.1` is the expected PSN.
    Remove(i32, i32),
    /// `OutOfOrderSet::advance` from the expected PSN `.0` by `.1` PSNs.
    Advance(i32, u32),
    Clear,
}
use Change::{Advance, Clear, Insert, Remove};

/// Columns: PSNs buffered (distances from `EXPECTED`); change; PSNs buffered after the change.
#[rustfmt::skip]
const CHANGES: &[(&[i32], Change, &[i32])] = &[
    (&[],             Insert(1),        &[1]),
    (&[1],            Insert(1),        &[1]),
    (&[1, 2],         Remove(1, 0),     &[2]),
    (&[1, 2],         Remove(3, 0),     &[1, 2]),
    (&[1, 2],         Remove(65, 0),    &[1, 2]), // 65 is 1 + `WINDOW_PKTS`
    (&[1, 2],         Remove(-63, 0),   &[1, 2]), // -63 is 1 - `WINDOW_PKTS`
    (&[1, 2],         Remove(1, 1),     &[1, 2]), // the PSN to remove is the expected PSN
    (&[1, 2, 3],      Advance(0, 1),    &[1, 2, 3]),
    (&[1, 2, 3],      Advance(0, 0),    &[1, 2, 3]),
    (&[1, 2, 3],      Advance(1, 1),    &[2, 3]),
    (&[1, 2, 3],      Advance(0, 3),    &[3]),
    (&[1, 2, 3, 63],  Advance(0, 63),   &[63]),
    (&[1, 2, 3, 63],  Advance(0, 64),   &[]),
    (&[1, 2, 3, 63],  Advance(0, 1000), &[]),     // a READ longer than the window
    (&[1, 33, 63],    Advance(20, 20),  &[1, 63]),
    (&[1, 33, 63],    Clear,            &[]),
    (&[],             Clear,            &[]),
];

fn apply(set: &mut OutOfOrderSet, change: Change) {
    match change {
        Insert(index) => set.insert(psn(index)),
        Remove(index, expected) => set.remove(psn(expected), psn(index)),
        Advance(index, span) => set.advance(psn(index), span),
        Clear => set.clear(),
    }
}

#[test]
fn changes_leave_the_others() {
    for (before, change, after) in CHANGES {
        let mut set = set(before);
        apply(&mut set, *change);
        let is = indices(0..WINDOW_PKTS as i32, |psn| set.contains(psn));
        assert_eq!((is.as_slice(), set.is_empty()), (*after, after.is_empty()), "{before:?} {change:?}");
    }
}

/// Columns: PSNs buffered (distances from `EXPECTED`); words of the SACK bitmap. Bit 0 of the first word is
/// `EXPECTED` + 1.
#[rustfmt::skip]
const BITMAPS: &[(&[i32], &[u32])] = &[
    (&[],               &[]),
    (&[1],              &[1]),
    (&[2],              &[0b10]),
    (&[1, 2, 4],        &[0b1011]),
    (&[32],             &[0x8000_0000]),
    (&[33],             &[0, 1]),
    (&[63],             &[0, 0x4000_0000]),
    (&[1, 32, 33, 63],  &[0x8000_0001, 0x4000_0001]),
    (&[19, 20, 21],     &[0b111 << 18]), // `EXPECTED` + 20 is PSN 0
];

#[test]
fn a_bitmap_ends_with_its_last_bit() {
    for (buffered, words) in BITMAPS {
        let set = set(buffered);
        assert_eq!(set.words(EXPECTED).collect::<Vec<_>>(), *words, "{buffered:?}");
        assert_eq!(set.words(EXPECTED).len(), words.len(), "the length is known before");
    }
}

#[test]
fn the_bitmap_is_that_of_every_expected_psn() {
    for first in 0..2 * WINDOW_PKTS as i32 {
        let mut set = OutOfOrderSet::new(WINDOW_PKTS);
        [1, 40, 63].iter().for_each(|index| set.insert(psn(first + index)));
        assert_eq!(set.words(psn(first)).collect::<Vec<_>>(), [1, 0x4000_0080], "{first}");
    }
}

/// Columns: changes; a PSN of the set; whether this PSN extends a run: the PSN below is in the set, and the PSN above
/// is not. PSNs are distances from `EXPECTED`.
#[rustfmt::skip]
const RUNS: &[(&[Change], i32, bool)] = &[
    (&[Insert(1)],                                      1,  false),
    (&[Insert(1), Insert(2)],                           2,  true),
    (&[Insert(2), Insert(1)],                           1,  false),
    (&[Insert(1), Insert(3), Insert(2)],                2,  false),
    (&[Insert(1), Insert(4), Insert(2)],                2,  true),
    (&[Insert(1), Insert(2), Remove(2, 0), Insert(3)],  3,  false),
    (&[Insert(1), Insert(4), Remove(4, 0), Insert(2)],  2,  true),
    (&[Insert(1), Insert(4), Remove(4, 0), Insert(3)],  3,  false),
    (&[Insert(62), Insert(63)],                         63, true),
    (&[Insert(9), Clear, Insert(1), Insert(2)],         2,  true),
    (&[Insert(9), Clear, Insert(8), Insert(9)],         9,  true),
    (&[Insert(1), Advance(0, 60), Insert(61), Insert(62)], 62, true),
];

#[test]
fn a_run_is_extended_at_its_end() {
    for (changes, index, wanted) in RUNS {
        let mut set = set(&[]);
        changes.iter().for_each(|change| apply(&mut set, *change));
        assert!(set.contains(psn(*index)), "{changes:?}");
        assert_eq!(set.extends_run(psn(*index)), *wanted, "{changes:?}: {index}");
    }
}

/// The upper bound of the set remains from before, however far the expected PSN has advanced.
#[test]
fn states_do_not_depend_on_the_psns_before() {
    for distance in (0..1 << 24).step_by(1 << 20).chain((1 << 23) - 70..(1 << 23) + 70) {
        for inserted in [[1, 2, 5, 62], [62, 5, 2, 1], [5, 1, 62, 2]] {
            let mut set = set(&[1, 63]);
            set.advance(EXPECTED, WINDOW_PKTS);
            let expected = EXPECTED.plus(distance);
            inserted.iter().for_each(|index| set.insert(expected.plus(*index)));
            let is_kept = |index: &u32| set.state(expected, expected.plus(*index)) == Kept;
            assert_eq!(
                (0..80).filter(is_kept).collect::<Vec<_>>(),
                [1, 2, 5, 62],
                "{distance}, {inserted:?}"
            );
            let extends_run = [2, 5, 62].map(|index| set.extends_run(expected.plus(index)));
            assert_eq!(extends_run, [true, false, false], "{distance}, {inserted:?}");
        }
    }
}
