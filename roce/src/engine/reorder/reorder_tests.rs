//! Tests of the reorder buffer by tables: which packets are buffered, which one is dropped to make room, and which ones
//! expire.

use super::{Kind, ReorderBuffer, Room, Taken};
use crate::engine::limits::{
    REORDER_COPIES_MAX, REORDER_COPY_BYTES, REORDER_FRAMES_MAX, REORDER_NANOS_MAX, REORDER_RESERVED,
    REORDER_SHARE_OF_FREE,
};
use crate::psn::Psn;
use crate::time::Instant;

const WINDOW_PKTS: u32 = 64;

/// Expected PSN in the tables, 20 below 2^24, so that PSNs wrap inside the window.
const EXPECTED: Psn = Psn::new(Psn::COUNT - 20);

const FRAME: usize = REORDER_COPY_BYTES + 1;
const COPY: usize = REORDER_COPY_BYTES;

fn psn(index: u32) -> Psn {
    EXPECTED.plus(index)
}

fn at(nanos: u64) -> Instant {
    Instant::from_nanos(nanos)
}

/// Buffers a packet of `len_bytes` bytes, all of them the low byte of its PSN.
fn buffer(reorder: &mut ReorderBuffer<Vec<u8>>, slot: usize, index: u32, len_bytes: usize, now: u64) {
    let bytes = vec![psn(index).value() as u8; len_bytes];
    match Kind::of(len_bytes) {
        Kind::Frame => reorder.buffer_frame(slot, psn(index), bytes, at(now)),
        Kind::Copy => reorder.buffer_copy(slot, psn(index), &bytes, at(now)),
    }
}

/// Columns: length of a frame in bytes; form in which the frame is buffered.
const KINDS: &[(usize, Kind)] =
    &[(0, Kind::Copy), (60, Kind::Copy), (COPY, Kind::Copy), (FRAME, Kind::Frame), (9000, Kind::Frame)];

#[test]
fn short_packets_are_copied() {
    for (len_bytes, kind) in KINDS {
        assert_eq!(Kind::of(*len_bytes), *kind, "{len_bytes} bytes");
        let mut reorder = ReorderBuffer::new();
        reorder.open(0, WINDOW_PKTS);
        buffer(&mut reorder, 0, 3, *len_bytes, 0);
        let bytes = vec![psn(3).value() as u8; *len_bytes];
        assert_eq!(reorder.get(0, psn(3)), Some(&bytes[..]), "{len_bytes} bytes");
        let (frames, copies) = if *kind == Kind::Frame { (1, 0) } else { (0, 1) };
        assert_eq!(reorder.len(), (frames, copies));
        let mut room = [0; REORDER_COPY_BYTES];
        let is_right = match reorder.take(0, psn(3), &mut room) {
            Some(Taken::Frame(frame)) => *kind == Kind::Frame && frame == bytes,
            Some(Taken::Copy(len)) => *kind == Kind::Copy && room[..len] == bytes,
            None => false,
        };
        assert!(is_right && reorder.len() == (0, 0), "{len_bytes} bytes");
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

/// Columns: name; operations; packets then buffered (queue pair, PSN); numbers of frames and of copies.
type Row = (&'static str, &'static [Step], &'static [(usize, u32)], (usize, usize));

#[rustfmt::skip]
const CONTENTS: &[Row] = &[
    ("a frame and a copy", &[Buffer(0, 2, FRAME), Buffer(0, 4, COPY)], &[(0, 2), (0, 4)], (1, 1)),
    ("one PSN of two queue pairs", &[Buffer(0, 2, FRAME), Buffer(1, 2, FRAME)], &[(0, 2), (1, 2)], (2, 0)),
    ("executed once", &[Buffer(0, 2, FRAME), Take(0, 2, true), Take(0, 2, false)], &[], (0, 0)),
    ("another slot's is not executed", &[Buffer(0, 2, FRAME), Take(1, 2, false)], &[(0, 2)], (1, 0)),
    ("a second version: the later", &[Buffer(0, 2, FRAME), Buffer(0, 2, FRAME + 1)], &[(0, 2)], (1, 0)),
    ("a second version of the other kind", &[Buffer(0, 2, FRAME), Buffer(0, 2, COPY)], &[(0, 2)], (0, 1)),
    ("one window above: in place of the other", &[Buffer(0, 2, FRAME), Buffer(0, 66, FRAME)], &[(0, 66)], (1, 0)),
    ("one window above is not executed", &[Buffer(0, 66, COPY), Take(0, 2, false)], &[(0, 66)], (0, 1)),
    ("dropped", &[Buffer(0, 2, FRAME), Buffer(0, 4, COPY), Discard(0, 2), Discard(0, 4)], &[], (0, 0)),
    ("dropped, but not buffered", &[Buffer(0, 2, FRAME), Discard(0, 3), Discard(1, 2)], &[(0, 2)], (1, 0)),
    ("cleared: all of one queue pair", &[Buffer(0, 0, FRAME), Buffer(0, 63, COPY), Buffer(1, 2, COPY), Clear(0)],
     &[(1, 2)], (0, 1)),
    ("cleared: the window stays", &[Buffer(0, 2, FRAME), Clear(0), Buffer(0, 3, FRAME)], &[(0, 3)], (1, 0)),
    ("closed: no window", &[Buffer(0, 2, FRAME), Close(0), Buffer(0, 3, FRAME), Buffer(0, 4, COPY)], &[], (0, 0)),
    ("closed twice", &[Buffer(1, 2, COPY), Close(0), Close(0)], &[(1, 2)], (0, 1)),
    ("opened anew: empty", &[Buffer(0, 2, FRAME), Open(0)], &[], (0, 0)),
    ("never opened", &[Buffer(7, 2, FRAME), Buffer(7, 3, COPY), Discard(7, 2), Clear(7), Close(7), Take(7, 2, false)],
     &[], (0, 0)),
];

#[test]
fn packets_are_found_by_slot_and_psn() {
    for (name, steps, wanted, len) in CONTENTS {
        let mut reorder = ReorderBuffer::new();
        (0..2).for_each(|slot| reorder.open(slot, WINDOW_PKTS));
        for step in *steps {
            match *step {
                Buffer(slot, index, len_bytes) => buffer(&mut reorder, slot, index, len_bytes, 0),
                Take(slot, index, wanted) => {
                    let taken = reorder.take(slot, psn(index), &mut [0; REORDER_COPY_BYTES]);
                    assert_eq!(taken.is_some(), wanted, "{name}: {step:?}");
                }
                Discard(slot, index) => reorder.discard(slot, psn(index)),
                Clear(slot) => reorder.clear(slot),
                Close(slot) => reorder.close(slot),
                Open(slot) => reorder.open(slot, WINDOW_PKTS),
            }
        }
        let all = (0..2).flat_map(|slot| (0..128).map(move |index| (slot, index)));
        let found: Vec<_> = all.filter(|(slot, index)| reorder.get(*slot, psn(*index)).is_some()).collect();
        assert_eq!((found.as_slice(), reorder.len()), (*wanted, *len), "{name}");
    }
}

/// Returns how many of `entries` a single queue pair can take: its reservation, and further entries while their number
/// is below `REORDER_SHARE_OF_FREE` times the free entries.
const fn alone(entries: usize) -> usize {
    let shared = entries - REORDER_RESERVED;
    REORDER_RESERVED + (REORDER_SHARE_OF_FREE * shared).div_ceil(REORDER_SHARE_OF_FREE + 1)
}

#[derive(Clone, Copy, Debug)]
enum Wanted {
    Free,
    /// The packet may be buffered if the packet farthest from the expected PSN is dropped.
    Instead,
    None,
}

/// One queue pair has taken all entries of one kind that it may take, with packets of PSN 1000 and above. Columns:
/// name; length of those packets in bytes; length in bytes and PSN of the next packet; result of `room` for it.
#[rustfmt::skip]
const FULL: &[(&str, usize, usize, u32, Wanted)] = &[
    ("frames: below all", FRAME, FRAME, 999, Wanted::Instead),
    ("frames: below the farthest", FRAME, FRAME, 998, Wanted::Instead),
    ("copies: below all", COPY, COPY, 999, Wanted::Instead),
    ("frames are full, a copy", FRAME, COPY, 1, Wanted::Free),
    ("copies are full, a frame", COPY, FRAME, 1, Wanted::Free),
    ("frames: above all", FRAME, FRAME, 8191, Wanted::None),
    ("copies: above all", COPY, COPY, 8191, Wanted::None),
];

#[test]
fn the_farthest_packet_makes_room_for_a_nearer_one() {
    for (name, taken, next, index, wanted) in FULL {
        let mut reorder = ReorderBuffer::new();
        reorder.open(0, 8192);
        let entries = if Kind::of(*taken) == Kind::Frame { REORDER_FRAMES_MAX } else { REORDER_COPIES_MAX };
        let mut count = 0;
        while reorder.room(0, Kind::of(*taken), psn(1000 + count), EXPECTED) == Room::Free {
            buffer(&mut reorder, 0, 1000 + count, *taken, 0);
            count += 1;
        }
        assert_eq!(count as usize, alone(entries), "{name}");
        let room = reorder.room(0, Kind::of(*next), psn(*index), EXPECTED);
        let farthest = psn(1000 + count - 1);
        let is_right = match wanted {
            Wanted::Free => room == Room::Free,
            Wanted::Instead => room == Room::Instead(farthest),
            Wanted::None => room == Room::None,
        };
        assert!(is_right, "{name}: {room:?}, farthest {farthest}");
        assert_eq!(reorder.room(1, Kind::of(*next), psn(*index), EXPECTED), Room::None, "no window");
    }
}

/// Columns: name; packets buffered (queue pair, PSN, length in bytes, time in nanoseconds); time of the test in
/// nanoseconds; packets that expire then (queue pair, PSN), in the order in which they are dropped: frames before
/// copies.
type Expiry = (&'static str, &'static [(usize, u32, usize, u64)], u64, &'static [(usize, u32)]);

const LATER: u64 = REORDER_NANOS_MAX;

#[rustfmt::skip]
const EXPIRIES: &[Expiry] = &[
    ("none is buffered", &[], 10 * LATER, &[]),
    ("a nanosecond before", &[(0, 2, FRAME, 10), (0, 4, COPY, 10)], LATER + 9, &[]),
    ("due", &[(0, 2, FRAME, 10)], LATER + 10, &[(0, 2)]),
    ("a copy is due", &[(0, 2, COPY, 10)], LATER + 10, &[(0, 2)]),
    ("the older of two", &[(0, 2, FRAME, 10), (0, 3, FRAME, 11)], LATER + 10, &[(0, 2)]),
    ("by age, not by PSN", &[(0, 9, FRAME, 10), (0, 3, FRAME, 11)], LATER + 11, &[(0, 9), (0, 3)]),
    ("of two queue pairs", &[(1, 9, FRAME, 10), (0, 3, FRAME, 11), (1, 10, FRAME, 12)], LATER + 12,
     &[(1, 9), (0, 3), (1, 10)]),
    ("of both kinds", &[(0, 2, COPY, 10), (0, 3, FRAME, 11)], LATER + 11, &[(0, 3), (0, 2)]),
    ("a second version is as old as its arrival", &[(0, 2, FRAME, 10), (0, 2, FRAME, 20)], LATER + 19, &[]),
    ("at the end of time", &[(0, 2, FRAME, u64::MAX - 5)], u64::MAX, &[(0, 2)]),
];

#[test]
fn the_oldest_packet_expires() {
    for (name, packets, now, wanted) in EXPIRIES {
        let mut reorder = ReorderBuffer::new();
        (0..2).for_each(|slot| reorder.open(slot, WINDOW_PKTS));
        packets.iter().for_each(|(slot, index, len, time)| buffer(&mut reorder, *slot, *index, *len, *time));
        let next = reorder.next_expiry();
        assert_eq!(next.is_some_and(|next| next <= at(*now)), !wanted.is_empty(), "{name}: {next:?}");
        let popped: Vec<_> = std::iter::from_fn(|| reorder.pop_expired(at(*now))).collect();
        let wanted: Vec<_> = wanted.iter().map(|(slot, index)| (*slot, psn(*index))).collect();
        assert_eq!(popped, wanted, "{name}");
    }
}
