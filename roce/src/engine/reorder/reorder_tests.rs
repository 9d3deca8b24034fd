//! Tests of the reorder buffer by tables: which packets are buffered, which one is dropped to make room, and which ones
//! expire.

use super::store::{CELL_BYTES, cells_of};
use super::{ReorderBuffer, Room};
use crate::engine::limits::{REORDER_NANOS_MAX, REORDER_RESERVED_BYTES, REORDER_SHARE_OF_FREE};
use crate::psn::Psn;
use crate::time::Instant;

const WINDOW_PKTS: u32 = 64;
const BYTES_MAX: usize = 1 << 20;

/// Expected PSN in the tables, 20 below 2^24, so that PSNs wrap inside the window.
const EXPECTED: Psn = Psn::new(Psn::COUNT - 20);

/// Lengths of a frame of one cell, and of one of two cells, in bytes.
const SHORT: usize = CELL_BYTES;
const LONG: usize = CELL_BYTES + 1;

fn psn(index: u32) -> Psn {
    EXPECTED.plus(index)
}

fn at(nanos: u64) -> Instant {
    Instant::from_nanos(nanos)
}

/// Buffers a packet of `len_bytes` bytes, all of them the low byte of its PSN.
fn buffer(reorder: &mut ReorderBuffer, slot: usize, index: u32, len_bytes: usize, now: u64) -> bool {
    reorder.buffer(slot, psn(index), &vec![psn(index).value() as u8; len_bytes], at(now))
}

fn cells(reorder: &ReorderBuffer) -> usize {
    reorder.occupied_bytes() / CELL_BYTES
}

/// Columns: length of a frame in bytes; its cells.
const LENGTHS: &[(usize, usize)] =
    &[(0, 1), (1, 1), (255, 1), (SHORT, 1), (LONG, 2), (512, 2), (513, 3), (4206, 17), (9000, 36)];

#[test]
fn a_frame_comes_back_as_it_was() {
    for (len_bytes, taken) in LENGTHS {
        let mut reorder = ReorderBuffer::new(BYTES_MAX);
        reorder.open(0, WINDOW_PKTS);
        assert!(buffer(&mut reorder, 0, 3, *len_bytes, 0));
        let (bytes, mut frame) = (vec![psn(3).value() as u8; *len_bytes], vec![9; 7]);
        assert!(reorder.copy_to(0, psn(3), &mut frame) && frame == bytes, "{len_bytes} bytes");
        assert_eq!((cells(&reorder), cells_of(*len_bytes) as usize), (*taken, *taken), "{len_bytes} bytes");
        assert!(reorder.take(0, psn(3), &mut frame) && frame == bytes, "{len_bytes} bytes");
        assert!(!reorder.take(0, psn(3), &mut frame) && cells(&reorder) == 0, "{len_bytes} bytes");
    }
}

/// An operation on a reorder buffer in which queue pairs 0 and 1 have windows of 64 packets. PSNs are relative to
/// `EXPECTED`.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// Buffers a packet: queue pair, PSN, length in bytes.
    Buffer(usize, u32, usize),
    /// Executes a packet: queue pair, PSN, and whether the packet was buffered.
    Take(usize, u32, bool),
    /// Drops a packet: queue pair, PSN.
    Discard(usize, u32),
    Clear(usize),
    Close(usize),
    Open(usize),
}
use Step::{Buffer, Clear, Close, Discard, Open, Take};

/// Columns: name; operations; packets then buffered (queue pair, PSN); cells taken.
type Row = (&'static str, &'static [Step], &'static [(usize, u32)], usize);

#[rustfmt::skip]
const CONTENTS: &[Row] = &[
    ("a long and a short frame", &[Buffer(0, 2, LONG), Buffer(0, 4, SHORT)], &[(0, 2), (0, 4)], 3),
    ("one PSN of two queue pairs", &[Buffer(0, 2, LONG), Buffer(1, 2, LONG)], &[(0, 2), (1, 2)], 4),
    ("executed once", &[Buffer(0, 2, LONG), Take(0, 2, true), Take(0, 2, false)], &[], 0),
    ("another slot's is not executed", &[Buffer(0, 2, LONG), Take(1, 2, false)], &[(0, 2)], 2),
    ("a second version: the later", &[Buffer(0, 2, LONG), Buffer(0, 2, LONG + 1)], &[(0, 2)], 2),
    ("a second version of another length", &[Buffer(0, 2, LONG), Buffer(0, 2, SHORT)], &[(0, 2)], 1),
    ("one window above: in place of the other", &[Buffer(0, 2, LONG), Buffer(0, 66, LONG)], &[(0, 66)], 2),
    ("one window above is not executed", &[Buffer(0, 66, SHORT), Take(0, 2, false)], &[(0, 66)], 1),
    ("dropped", &[Buffer(0, 2, LONG), Buffer(0, 4, SHORT), Discard(0, 2), Discard(0, 4)], &[], 0),
    ("dropped, but not buffered", &[Buffer(0, 2, LONG), Discard(0, 3), Discard(1, 2)], &[(0, 2)], 2),
    ("cleared: all of one queue pair", &[Buffer(0, 0, LONG), Buffer(0, 63, SHORT), Buffer(1, 2, SHORT), Clear(0)],
     &[(1, 2)], 1),
    ("cleared: the window stays", &[Buffer(0, 2, LONG), Clear(0), Buffer(0, 3, LONG)], &[(0, 3)], 2),
    ("closed: no window", &[Buffer(0, 2, LONG), Close(0), Buffer(0, 3, LONG), Buffer(0, 4, SHORT)], &[], 0),
    ("closed twice", &[Buffer(1, 2, SHORT), Close(0), Close(0)], &[(1, 2)], 1),
    ("opened anew: empty", &[Buffer(0, 2, LONG), Open(0)], &[], 0),
    ("never opened", &[Buffer(7, 2, LONG), Buffer(7, 3, SHORT), Discard(7, 2), Clear(7), Close(7), Take(7, 2, false)],
     &[], 0),
];

#[test]
fn packets_are_found_by_slot_and_psn() {
    for (name, steps, wanted, taken) in CONTENTS {
        let mut reorder = ReorderBuffer::new(BYTES_MAX);
        (0..2).for_each(|slot| reorder.open(slot, WINDOW_PKTS));
        for step in *steps {
            match *step {
                Buffer(slot, index, len_bytes) => _ = buffer(&mut reorder, slot, index, len_bytes, 0),
                Take(slot, index, wanted) => {
                    let is_taken = reorder.take(slot, psn(index), &mut Vec::new());
                    assert_eq!(is_taken, wanted, "{name}: {step:?}");
                }
                Discard(slot, index) => reorder.discard(slot, psn(index)),
                Clear(slot) => reorder.clear(slot),
                Close(slot) => reorder.close(slot),
                Open(slot) => reorder.open(slot, WINDOW_PKTS),
            }
        }
        let all = (0..2).flat_map(|slot| (0..128).map(move |index| (slot, index)));
        let is_buffered = |(slot, index): &(usize, u32)| reorder.copy_to(*slot, psn(*index), &mut Vec::new());
        let found: Vec<_> = all.filter(is_buffered).collect();
        assert_eq!((found.as_slice(), cells(&reorder)), (*wanted, *taken), "{name}");
    }
}

/// One queue pair has taken all cells that it may take, with packets of one cell and of PSN 1000 and above. Columns:
/// name; length in bytes and PSN of the next packet; whether the packet farthest from
/// the expected PSN makes room for it.
#[rustfmt::skip]
const FULL: &[(&str, usize, u32, bool)] = &[
    ("below all", SHORT, 999, true),
    ("below the farthest", SHORT, 998, true),
    ("below all, longer", LONG, 999, true),
    ("above all", SHORT, 8191, false),
];

#[test]
fn the_farthest_packet_makes_room_for_a_nearer_one() {
    for (name, next, index, wanted) in FULL {
        let mut reorder = ReorderBuffer::new(BYTES_MAX);
        reorder.open(0, 8192);
        let mut count = 0;
        while reorder.room(0, SHORT, psn(1000 + count), EXPECTED) == Room::Free {
            assert!(buffer(&mut reorder, 0, 1000 + count, SHORT, 0));
            count += 1;
        }
        let (reserved, share) = (REORDER_RESERVED_BYTES / CELL_BYTES, REORDER_SHARE_OF_FREE as usize);
        let alone = reserved + (share * (BYTES_MAX / CELL_BYTES - reserved)).div_ceil(share + 1);
        assert_eq!(count as usize, alone, "{name}");
        let room = reorder.room(0, *next, psn(*index), EXPECTED);
        let wanted = if *wanted { Room::Instead(psn(1000 + count - 1)) } else { Room::None };
        assert_eq!(room, wanted, "{name}");
        assert_eq!(reorder.room(1, *next, psn(*index), EXPECTED), Room::None, "no window");
    }
}

#[test]
fn memory_that_is_full_takes_no_frame() {
    let mut reorder = ReorderBuffer::new(2 * CELL_BYTES);
    reorder.open(0, WINDOW_PKTS);
    assert!(buffer(&mut reorder, 0, 1, SHORT, 0) && !buffer(&mut reorder, 0, 2, LONG, 0));
    assert!(buffer(&mut reorder, 0, 2, SHORT, 0) && !buffer(&mut reorder, 0, 3, 0, 0));
    assert_eq!(cells(&reorder), 2);
    let mut none = ReorderBuffer::new(CELL_BYTES - 1);
    none.open(0, WINDOW_PKTS);
    assert_eq!(none.room(0, 0, psn(1), EXPECTED), Room::None);
}

/// Columns: name; packets buffered (queue pair, PSN, length in bytes, time in nanoseconds); time of the test in
/// nanoseconds; packets that expire then (queue pair, PSN), in the order in which they are dropped.
type Expiry = (&'static str, &'static [(usize, u32, usize, u64)], u64, &'static [(usize, u32)]);

const LATER: u64 = REORDER_NANOS_MAX;

#[rustfmt::skip]
const EXPIRIES: &[Expiry] = &[
    ("none is buffered", &[], 10 * LATER, &[]),
    ("a nanosecond before", &[(0, 2, LONG, 10), (0, 4, SHORT, 10)], LATER + 9, &[]),
    ("due", &[(0, 2, LONG, 10)], LATER + 10, &[(0, 2)]),
    ("a short frame is due", &[(0, 2, SHORT, 10)], LATER + 10, &[(0, 2)]),
    ("the older of two", &[(0, 2, LONG, 10), (0, 3, LONG, 11)], LATER + 10, &[(0, 2)]),
    ("by age, not by PSN", &[(0, 9, LONG, 10), (0, 3, LONG, 11)], LATER + 11, &[(0, 9), (0, 3)]),
    ("of two queue pairs", &[(1, 9, LONG, 10), (0, 3, LONG, 11), (1, 10, LONG, 12)], LATER + 12,
     &[(1, 9), (0, 3), (1, 10)]),
    ("of both lengths", &[(0, 2, SHORT, 10), (0, 3, LONG, 11)], LATER + 11, &[(0, 2), (0, 3)]),
    ("a second version is as old as its arrival", &[(0, 2, LONG, 10), (0, 2, LONG, 20)], LATER + 19, &[]),
    ("at the end of time", &[(0, 2, LONG, u64::MAX - 5)], u64::MAX, &[(0, 2)]),
];

#[test]
fn the_oldest_packet_expires() {
    for (name, packets, now, wanted) in EXPIRIES {
        let mut reorder = ReorderBuffer::new(BYTES_MAX);
        (0..2).for_each(|slot| reorder.open(slot, WINDOW_PKTS));
        for (slot, index, len, time) in *packets {
            assert!(buffer(&mut reorder, *slot, *index, *len, *time), "{name}");
        }
        let next = reorder.next_expiry();
        assert_eq!(next.is_some_and(|next| next <= at(*now)), !wanted.is_empty(), "{name}: {next:?}");
        let popped: Vec<_> = std::iter::from_fn(|| reorder.pop_expired(at(*now))).collect();
        let wanted: Vec<_> = wanted.iter().map(|(slot, index)| (*slot, psn(*index))).collect();
        assert_eq!(popped, wanted, "{name}");
    }
}
