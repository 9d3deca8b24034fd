//! Table tests of duplicate READs at the responder (IBA 9.7.5.1.2, 9.7.5.1.3): which responses are retransmitted, in
//! which order, and within which limits.

use super::harness::{MTU_BYTES, index_of, psn};
use super::read_queue::{
    NotQueued, RETRANSMIT_BURST_PKTS, RETRANSMIT_PKTS_MIN, RETRANSMIT_PKTS_PER_SEC, RETRANSMITS_PER_READ,
    ReadQueue, ReadRequest,
};
use crate::id::{Msn, RKey};
use crate::recovery::responder::SelectiveReads;
use crate::time::Instant;
use crate::wire::Reth;
use NotQueued::{NoRoom, NotRemembered, TooOften};

const NANOS_PER_PKT: u64 = 1_000_000_000 / RETRANSMIT_PKTS_PER_SEC;

#[derive(Clone, Copy, Debug)]
enum Step {
    /// A new READ: PSN, and number of responses.
    Read(i32, u32),
    /// This number of responses is sent.
    Sent(u32),
    /// A duplicate READ: PSN, number of responses, result of `on_duplicate`.
    Again(i32, u32, Result<(), NotQueued>),
    /// Time advances by this number times [`NANOS_PER_PKT`], the time in which one token of `Allowance` accrues.
    /// Each response retransmitted beyond the retransmission limit of its READ takes one token.
    Later(u64),
    /// Equal duplicate READs, each received after all responses to the previous duplicate were sent: PSN, number of
    /// responses to one duplicate, number of duplicates.
    Repeat(i32, u32, u32),
}
use Step::{Again, Later, Read, Repeat, Sent};

/// Columns: name; `duplicates_max`, the maximum number of duplicates queued (`None`: go-back-N, `Some`: selective
/// repeat with a window of 64 PSNs); steps; PSNs of the responses sent after the steps, or those that show a loss.
type Row = (&'static str, Option<usize>, &'static [Step], &'static [i32]);

const OK: Result<(), NotQueued> = Ok(());

/// Returns the RETH of a READ of `count` responses, the first with PSN `at`; the address grows with `at`.
fn reth(at: i32, count: u32) -> Reth {
    let va = 0x10_0000u64.wrapping_add_signed(i64::from(at) * i64::from(MTU_BYTES));
    Reth { va, rkey: RKey(1), len_bytes: count * MTU_BYTES }
}

/// Returns the PSNs of the responses sent after the steps, and for each whether the response shows a loss.
fn run((name, duplicates_max, steps, _): &Row) -> Vec<(i32, bool)> {
    let selective = duplicates_max.map(|duplicates_max| SelectiveReads { duplicates_max, window_pkts: 64 });
    let mut reads = ReadQueue::new(2, selective, MTU_BYTES);
    let mut now = Instant::ZERO;
    for step in *steps {
        match *step {
            Read(at, count) => {
                assert_eq!(reads.admit(), Ok(()), "{name}: {step:?}");
                reads.push(ReadRequest::new(psn(at), reth(at, count), Msn::new(1), MTU_BYTES));
            }
            Sent(count) => (0..count).for_each(|_| _ = reads.on_sent()),
            Again(at, count, result) => {
                let is = reads.on_duplicate(psn(at), &reth(at, count), now);
                assert_eq!(is, result, "{name}: {step:?}");
            }
            Later(count) => now = now.plus_nanos(count * NANOS_PER_PKT),
            Repeat(at, count, times) => (0..times).for_each(|time| {
                let is = reads.on_duplicate(psn(at), &reth(at, count), now);
                assert_eq!(is, Ok(()), "{name}: {step:?}, {time}");
                (0..count).for_each(|_| _ = reads.on_sent());
            }),
        }
    }
    std::iter::from_fn(|| Some((index_of(reads.front()?.next_psn()), reads.on_sent()))).collect()
}

fn check_sent(row: &Row) {
    let sent: Vec<i32> = run(row).iter().map(|(psn, _)| *psn).collect();
    assert_eq!(sent, row.3, "{}", row.0);
}

#[rustfmt::skip]
const DUPLICATES: &[Row] = &[
    ("a duplicate of a READ that was served", None, &[Read(0, 3), Sent(3), Again(0, 3, OK)], &[0, 1, 2]),
    ("of its end", None, &[Read(0, 3), Sent(3), Again(1, 2, OK)], &[1, 2]),
    ("of a part", None, &[Read(0, 4), Sent(4), Again(1, 2, OK)], &[1, 2]),
    ("of one served in part: it is rewound", None, &[Read(0, 4), Sent(3), Again(1, 3, OK)], &[1, 2, 3]),
    ("of one served in part: at the next response", None, &[Read(0, 4), Sent(2), Again(2, 2, OK)], &[2, 3]),
    ("of one served in part: above the next response", None, &[Read(0, 4), Sent(1), Again(2, 2, OK)], &[1, 2, 3]),
    ("of one not served yet", None, &[Read(0, 4), Again(0, 4, OK)], &[0, 1, 2, 3]),
    ("of the older of two", None, &[Read(0, 2), Sent(2), Read(2, 2), Again(0, 2, OK)], &[0, 1, 2, 3]),
    ("of the older of two, the younger served in part", None,
     &[Read(0, 2), Sent(2), Read(2, 3), Sent(1), Again(1, 1, OK)], &[1, 3, 4]),
    ("of both", None, &[Read(0, 2), Read(2, 2), Sent(4), Again(0, 2, OK), Again(2, 2, OK)], &[0, 1, 2, 3]),
    ("of both, the younger first", None, &[Read(0, 2), Read(2, 2), Sent(4), Again(2, 2, OK), Again(0, 2, OK)],
     &[0, 1, 2, 3]),
    ("twice while it waits", None, &[Read(0, 2), Sent(2), Again(0, 2, OK), Again(0, 2, OK)], &[0, 1]),
    ("again while it is retransmitted: rewound", None, &[Read(0, 3), Sent(3), Again(0, 3, OK), Sent(2),
     Again(0, 3, OK)], &[0, 1, 2]),
    ("longer than the READ", None, &[Read(0, 3), Sent(3), Again(0, 4, Err(NotRemembered)),
     Again(2, 2, Err(NotRemembered))], &[]),
    ("below all READs", None, &[Read(0, 3), Sent(3), Again(-1, 1, Err(NotRemembered))], &[]),
    ("of a third READ before", None, &[Read(0, 1), Sent(1), Read(1, 1), Sent(1), Read(2, 1), Sent(1),
     Again(0, 1, Err(NotRemembered)), Again(1, 1, OK)], &[1]),
    ("without a READ", None, &[Again(0, 1, Err(NotRemembered))], &[]),
    ("parts: at most as many as READs", None,
     &[Read(0, 6), Sent(6), Again(4, 1, OK), Again(3, 1, OK), Again(2, 1, OK), Again(1, 1, OK),
       Again(0, 1, Err(NoRoom))], &[1, 2, 3, 4]),
    ("longer than a part of it that waits", None, &[Read(0, 4), Sent(4), Again(0, 2, OK), Again(0, 4, OK)],
     &[0, 1, 2, 3]),
    ("selective repeat: longer than a part of it that waits", Some(4),
     &[Read(0, 4), Sent(4), Again(0, 2, OK), Again(0, 4, OK)], &[0, 1, 2, 3]),
    ("selective repeat: longer than a part that was served in part", Some(4),
     &[Read(0, 6), Sent(6), Again(0, 3, OK), Sent(1), Again(2, 4, OK)], &[1, 2, 3, 4, 5]),
    ("selective repeat: a lost part of one served in part", Some(4), &[Read(0, 6), Sent(4), Again(1, 2, OK)],
     &[1, 2, 4, 5]),
    ("selective repeat: the lost part reaches what is still to be sent", Some(4),
     &[Read(0, 6), Sent(4), Again(3, 3, OK)], &[3, 4, 5]),
    ("selective repeat: all is still to be sent", Some(4), &[Read(0, 6), Sent(2), Again(3, 2, OK)], &[2, 3, 4, 5]),
    ("selective repeat: two lost parts", Some(4), &[Read(0, 6), Sent(6), Again(4, 1, OK), Again(1, 2, OK)], &[1, 2, 4]),
    ("selective repeat: a part is lost again while its end waits", Some(4),
     &[Read(0, 6), Sent(6), Again(1, 3, OK), Sent(2), Again(1, 1, OK)], &[1, 3]),
    ("selective repeat: a part is lost again while its end waits, and the end is asked for, too", Some(4),
     &[Read(0, 6), Sent(6), Again(1, 3, OK), Sent(2), Again(1, 3, OK)], &[1, 2, 3, 3]),
    ("selective repeat: the lost part contains one that waits", Some(4),
     &[Read(0, 6), Sent(4), Again(2, 1, OK), Again(1, 5, OK)], &[1, 2, 3, 2, 4, 5]),
    ("selective repeat: a part of one that waits needs no room", Some(1),
     &[Read(0, 4), Sent(4), Again(0, 4, OK), Again(1, 3, OK), Again(1, 2, OK)], &[0, 1, 2, 3]),
    ("selective repeat: of the first READ of a window", Some(4),
     &[Read(0, 1), Sent(1), Read(1, 1), Sent(1), Read(2, 60), Sent(60), Read(62, 2), Sent(2), Again(0, 1, OK),
       Again(1, 1, OK)], &[0, 1]),
    ("selective repeat: of a READ a window before", Some(4),
     &[Read(0, 1), Sent(1), Read(1, 2), Sent(2), Read(3, 60), Sent(60), Read(63, 2), Sent(2),
       Again(0, 1, Err(NotRemembered)), Again(1, 1, OK)], &[1]),
    ("selective repeat: duplicates fill the queue", Some(1),
     &[Read(0, 6), Sent(6), Read(6, 1), Read(7, 1), Read(8, 1), Again(0, 1, OK), Again(2, 1, Err(NoRoom))],
     &[0, 6, 7, 8]),
];

#[test]
fn duplicates_are_served_in_psn_order() {
    DUPLICATES.iter().for_each(check_sent);
}

#[rustfmt::skip]
const LOSSES: &[Row] = &[
    ("a READ", None, &[Read(0, 3)], &[]),
    ("a duplicate of a READ that was served", None, &[Read(0, 3), Sent(3), Again(0, 3, OK)], &[0]),
    ("of its end", None, &[Read(0, 3), Sent(3), Again(1, 2, OK)], &[1]),
    ("of a part", None, &[Read(0, 4), Sent(4), Again(1, 2, OK)], &[1]),
    ("of two", None, &[Read(0, 2), Read(2, 2), Sent(4), Again(0, 2, OK), Again(2, 2, OK)], &[0, 2]),
    ("of one served in part: it is rewound", None, &[Read(0, 4), Sent(3), Again(1, 3, OK)], &[1]),
    ("of one not served yet", None, &[Read(0, 4), Again(0, 4, OK)], &[]),
    ("twice while it waits", None, &[Read(0, 2), Sent(2), Again(0, 2, OK), Again(0, 2, OK)], &[0]),
    ("after its first response", None, &[Read(0, 2), Sent(2), Again(0, 2, OK), Sent(1), Again(0, 2, OK)], &[0]),
    ("selective repeat", Some(4), &[Read(0, 4), Sent(4), Again(1, 2, OK)], &[]),
];

#[test]
fn the_first_response_that_is_requested_again_shows_a_loss() {
    for row in LOSSES {
        let shown: Vec<i32> =
            run(row).into_iter().filter(|(_, shows_loss)| *shows_loss).map(|(psn, _)| psn).collect();
        assert_eq!(shown, row.3, "{}", row.0);
    }
}

/// Retransmission limit of a READ of 10 responses, in responses: 16 * 10 + 64.
const LIMIT: u32 = 10 * RETRANSMITS_PER_READ + RETRANSMIT_PKTS_MIN;

#[rustfmt::skip]
const LIMITS: &[Row] = &[
    ("the limit of a READ", None, &[Read(0, 10), Sent(10), Repeat(0, 10, LIMIT / 10), Again(0, 4, OK), Sent(4),
     Again(0, 1, Err(TooOften))], &[]),
    ("the limit is one of each READ", None,
     &[Read(0, 10), Sent(10), Read(10, 10), Sent(10), Repeat(0, 10, LIMIT / 10), Repeat(10, 10, LIMIT / 10)], &[]),
    ("time permits more", None, &[Read(0, 10), Sent(10), Repeat(0, 8, LIMIT / 8), Again(0, 1, Err(TooOften)),
     Later(3), Again(0, 10, OK)], &[0, 1, 2]),
    ("time permits what is beyond the limit", None,
     &[Read(0, 10), Sent(10), Repeat(0, 10, LIMIT / 10), Later(100), Again(0, 10, OK)],
     &[0, 1, 2, 3, 4, 5, 6, 7, 8, 9]),
    ("time permits a burst at most", None,
     &[Read(0, 300), Sent(300), Repeat(0, 300, 16), Again(0, 64, OK), Sent(64), Later(100_000), Again(0, 300, OK),
       Sent(RETRANSMIT_BURST_PKTS as u32),
       Again(0, 1, Err(TooOften))], &[]),
    ("a rewind costs the responses that are retransmitted", None,
     &[Read(0, 10), Sent(10), Repeat(0, 10, LIMIT / 10 - 1), Again(0, 10, OK), Sent(8), Again(4, 6, OK), Sent(6),
       Again(0, 1, Err(TooOften))], &[]),
    ("a refused rewind uses up nothing of the limit", None,
     &[Read(0, 100), Sent(100), Repeat(0, 100, 16), Again(90, 10, OK), Sent(5), Again(0, 100, Err(TooOften)),
       Again(90, 10, OK)], &[90, 91, 92, 93, 94, 95, 96, 97, 98, 99]),
    ("a refused rewind uses up nothing of what time permits", None,
     &[Read(0, 9), Sent(9), Repeat(0, 9, 22), Again(0, 9, OK), Sent(5), Again(0, 9, Err(TooOften)), Later(4),
       Again(0, 9, OK)], &[0, 1, 2, 3, 4, 5, 6, 7, 8]),
    ("time permits a rewind longer than a burst, and then nothing for as long", None,
     &[Read(0, 400), Sent(400), Repeat(0, 400, 16), Again(0, 64, OK), Sent(64), Again(390, 10, Err(TooOften)),
       Later(10), Again(390, 10, OK), Sent(5), Again(0, 400, Err(TooOften)), Later(100_000), Again(0, 400, OK),
       Sent(400), Later(100), Again(0, 1, Err(TooOften))], &[]),
];

#[test]
fn retransmissions_of_a_read_are_limited() {
    LIMITS.iter().for_each(check_sent);
}
