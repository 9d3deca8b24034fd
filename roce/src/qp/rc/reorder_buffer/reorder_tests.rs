//! Table tests of the reorder buffer: requests that are buffered, that are dropped to make room, and that expire.

use super::store::{CELL_BYTES, REORDER_RESERVED_BYTES, REORDER_SHARE_OF_FREE, cells_of};
use super::{REORDER_NANOS_MAX, ReorderBuffer, ReorderStore};
use crate::port::Payload;
use crate::psn::Psn;
use crate::qp::rc::harness::{Pkt, index_of};
use crate::qp::request::{Buffered, Request as _};
use crate::time::Instant;
use crate::wire::{Opcode, Packet};

const WINDOW_PKTS: u32 = 64;
const BYTES_MAX: usize = 1 << 20;

/// Expected PSN in the tables, 20 below 2^24, so that PSNs wrap inside the window.
const EXPECTED: Psn = Psn::new(Psn::COUNT - 20);

/// Lengths in bytes of a payload that takes one cell, and of a payload that takes two cells.
const SHORT: usize = CELL_BYTES;
const LONG: usize = CELL_BYTES + 1;

fn psn(index: u32) -> Psn {
    EXPECTED.plus(index)
}

fn at(nanos: u64) -> Instant {
    Instant::from_nanos(nanos)
}

/// Reorder buffers of several queue pairs, and their store.
struct Buffers {
    store: ReorderStore,
    of_slot: Vec<ReorderBuffer>,
    /// Number of requests dropped to make room.
    dropped: u64,
}

impl Buffers {
    fn new(bytes_max: usize, window_pkts: u32, open: usize) -> Self {
        let mut store = ReorderStore::new(bytes_max, Payload::Carried);
        (0..open).for_each(|slot| store.open(slot));
        let of_slot = (0..8).map(|_| ReorderBuffer::new(window_pkts, false)).collect();
        Buffers { store, of_slot, dropped: 0 }
    }

    /// Buffers a packet with `len_bytes` bytes of payload; each byte of the payload is the low byte of the PSN.
    fn buffer(&mut self, slot: usize, index: u32, len_bytes: usize, now: u64) -> bool {
        let at_index = index_of(psn(index));
        let fill = psn(index).value() as u8;
        let pkt = Pkt { fill, ..Pkt::new(Opcode::RC_RDMA_WRITE_MIDDLE, at_index, len_bytes as u32) };
        let frame = pkt.frame(&[]);
        let packet = Packet::parse(&frame).expect("well-formed");
        self.of_slot[slot].buffer(&packet, (EXPECTED, slot, at(now)), &mut self.store, &mut self.dropped)
    }

    /// Removes the request of `index` for execution. Returns its payload.
    fn take(&mut self, slot: usize, index: u32) -> Option<Vec<u8>> {
        let (header, body) = self.of_slot[slot].buffered(psn(index), &mut self.store)?;
        assert_eq!(header.psn, psn(index));
        let payload = Buffered::new(header, body).payload().map(<[u8]>::to_vec);
        self.of_slot[slot].pass(psn(index), 1, &mut self.store);
        payload
    }

    fn is_buffered(&self, slot: usize, index: u32) -> bool {
        let buffer = &self.of_slot[slot];
        let is_in_set = buffer.set().contains(psn(index));
        assert_eq!(buffer.cell(psn(index)).is_some(), is_in_set, "slot {slot}, PSN {index}");
        is_in_set
    }

    fn cells(&self) -> usize {
        self.store.occupied_bytes() / CELL_BYTES
    }
}

/// Columns: length of a payload in bytes; number of cells that the payload takes.
const LENGTHS: &[(usize, usize)] = &[
    (0, 1),
    (1, 1),
    (255, 1),
    (SHORT, 1),
    (LONG, 2),
    (2 * SHORT, 2),
    (2 * SHORT + 1, 3),
    // A MIDDLE and a FIRST of path MTU 4096.
    (4096, 16),
    (4096 + 16, 16),
    (9000, 34),
];

#[test]
fn a_payload_comes_back_as_it_was() {
    for (len_bytes, taken) in LENGTHS {
        let mut buffers = Buffers::new(BYTES_MAX, WINDOW_PKTS, 1);
        assert!(buffers.buffer(0, 3, *len_bytes, 0));
        assert_eq!((buffers.cells(), cells_of(*len_bytes) as usize), (*taken, *taken), "{len_bytes} bytes");
        let bytes = vec![psn(3).value() as u8; *len_bytes];
        assert_eq!(buffers.take(0, 3), Some(bytes), "{len_bytes} bytes");
        assert_eq!((buffers.take(0, 3), buffers.cells()), (None, 0), "{len_bytes} bytes");
    }
}

/// An operation on the reorder buffers of queue pairs 0 and 1, with windows of 64 packets. PSNs are relative to
/// `EXPECTED`.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// Buffers a packet: queue pair, PSN, length in bytes.
    Buffer(usize, u32, usize),
    /// Executes a packet: queue pair, PSN, and whether the packet was buffered.
    Take(usize, u32, bool),
    /// Drops a packet: queue pair, PSN.
    Discard(usize, u32),
    /// Removes PSNs, as after their execution: queue pair, first PSN, number of PSNs.
    Pass(usize, u32, u32),
    /// Drops all packets of a queue pair.
    Clear(usize),
    /// Drops all packets of a queue pair, and releases its reservation.
    Close(usize),
}
use Step::{Buffer, Clear, Close, Discard, Pass, Take};

/// Columns: name; operations; packets buffered after the operations (queue pair, PSN); number of cells that these
/// packets occupy.
type Row = (&'static str, &'static [Step], &'static [(usize, u32)], usize);

#[rustfmt::skip]
const CONTENTS: &[Row] = &[
    ("a long and a short frame", &[Buffer(0, 2, LONG), Buffer(0, 4, SHORT)], &[(0, 2), (0, 4)], 3),
    ("one PSN of two queue pairs", &[Buffer(0, 2, LONG), Buffer(1, 2, LONG)], &[(0, 2), (1, 2)], 4),
    ("executed once", &[Buffer(0, 2, LONG), Take(0, 2, true), Take(0, 2, false)], &[], 0),
    ("another slot's is not executed", &[Buffer(0, 2, LONG), Take(1, 2, false)], &[(0, 2)], 2),
    ("dropped", &[Buffer(0, 2, LONG), Buffer(0, 4, SHORT), Discard(0, 2), Discard(0, 4)], &[], 0),
    ("dropped, but not buffered", &[Buffer(0, 2, LONG), Discard(0, 3), Discard(1, 2)], &[(0, 2)], 2),
    ("cleared: all of one queue pair", &[Buffer(0, 0, LONG), Buffer(0, 63, SHORT), Buffer(1, 2, SHORT), Clear(0)],
     &[(1, 2)], 1),
    ("cleared: the window stays", &[Buffer(0, 2, LONG), Clear(0), Buffer(0, 3, LONG)], &[(0, 3)], 2),
    ("closed: no window", &[Buffer(0, 2, LONG), Close(0), Buffer(0, 3, LONG), Buffer(0, 4, SHORT)], &[], 0),
    ("closed twice", &[Buffer(1, 2, SHORT), Close(0), Close(0)], &[(1, 2)], 1),
    ("never opened", &[Buffer(7, 2, LONG), Buffer(7, 3, SHORT), Discard(7, 2), Clear(7), Close(7), Take(7, 2, false)],
     &[], 0),
    ("passed: the buffered one of four", &[Buffer(0, 2, LONG), Buffer(0, 4, SHORT), Pass(0, 0, 4)], &[(0, 4)], 1),
    ("passed: more than a window", &[Buffer(0, 2, LONG), Buffer(0, 63, SHORT), Pass(0, 0, 1000)], &[], 0),
];

#[test]
fn packets_of_one_psn_with_different_contents_are_told_apart() {
    let at_index = index_of(psn(3));
    let buffered = Pkt::new(Opcode::RC_RDMA_WRITE_MIDDLE, at_index, 2 * SHORT as u32);
    let frame_of = |pkt: &Pkt| pkt.frame(&[]);
    let mut last_byte = frame_of(&buffered);
    let icrc_at = last_byte.len() - 4;
    last_byte[icrc_at - 1] ^= 1;
    let rows = [
        ("the same", frame_of(&buffered), true),
        ("AckReq", frame_of(&Pkt { ack_req: true, ..buffered }), true),
        ("payload", frame_of(&Pkt { fill: 1, ..buffered }), false),
        ("last byte of the payload", last_byte, false),
        ("length", frame_of(&Pkt { len_bytes: SHORT as u32, ..buffered }), false),
        ("opcode", frame_of(&Pkt { opcode: Opcode::RC_RDMA_WRITE_LAST, ..buffered }), false),
        ("solicited event", frame_of(&Pkt { solicited: true, ..buffered }), false),
    ];
    for payload in [Payload::Carried, Payload::Phantom] {
        let mut store = ReorderStore::new(BYTES_MAX, payload);
        store.open(0);
        let mut buffer = ReorderBuffer::new(WINDOW_PKTS, false);
        let first = Packet::parse(&rows[0].1).expect("well-formed");
        assert!(buffer.buffer(&first, (EXPECTED, 0, at(0)), &mut store, &mut 0));
        for (name, frame, is_same) in &rows {
            let packet = Packet::parse(frame).expect("well-formed");
            let compared = *is_same || payload == Payload::Phantom;
            assert_eq!(buffer.is_same(&packet, &store), compared, "{name}");
        }
    }
}

#[test]
fn requests_are_found_by_slot_and_psn() {
    for (name, steps, wanted, taken) in CONTENTS {
        let mut buffers = Buffers::new(BYTES_MAX, WINDOW_PKTS, 2);
        for step in *steps {
            match *step {
                Buffer(slot, index, len_bytes) => _ = buffers.buffer(slot, index, len_bytes, 0),
                Take(slot, index, wanted) => {
                    assert_eq!(buffers.take(slot, index).is_some(), wanted, "{name}: {step:?}");
                }
                Discard(slot, index) => {
                    buffers.of_slot[slot].discard(EXPECTED, psn(index), &mut buffers.store);
                }
                Pass(slot, index, span) => buffers.of_slot[slot].pass(psn(index), span, &mut buffers.store),
                Clear(slot) => buffers.of_slot[slot].clear(&mut buffers.store),
                Close(slot) => {
                    buffers.of_slot[slot].clear(&mut buffers.store);
                    buffers.store.close(slot);
                }
            }
        }
        let all = (0..2).flat_map(|slot| (0..64).map(move |index| (slot, index)));
        let found: Vec<_> = all.filter(|(slot, index)| buffers.is_buffered(*slot, *index)).collect();
        assert_eq!((found.as_slice(), buffers.cells()), (*wanted, *taken), "{name}");
    }
}

/// Before the packet of a row is received, packets with PSNs from 1000 on, of one cell each, take all cells that the
/// queue pair may take. Columns: name; length in bytes and PSN of the packet; whether the buffered packet with the
/// highest PSN is dropped to make room. PSNs are relative to `EXPECTED`.
#[rustfmt::skip]
const FULL: &[(&str, usize, u32, bool)] = &[
    ("below all", SHORT, 999, true),
    ("below the farthest", SHORT, 998, true),
    ("below all, longer", LONG, 999, true),
    ("above all", SHORT, 8191, false),
];

#[test]
fn the_farthest_request_makes_room_for_a_nearer_one() {
    for (name, next, index, is_nearer) in FULL {
        let mut buffers = Buffers::new(BYTES_MAX, 8192, 1);
        let mut count = 0;
        while buffers.store.has_room(0, SHORT) {
            assert!(buffers.buffer(0, 1000 + count, SHORT, 0));
            count += 1;
        }
        let (reserved, share) = (REORDER_RESERVED_BYTES / CELL_BYTES, REORDER_SHARE_OF_FREE as usize);
        let alone = reserved + (share * (BYTES_MAX / CELL_BYTES - reserved)).div_ceil(share + 1);
        assert_eq!((count as usize, buffers.dropped), (alone, 0), "{name}");
        assert_eq!(buffers.buffer(0, *index, *next, 0), *is_nearer, "{name}");
        assert_eq!(buffers.dropped, u64::from(*is_nearer), "{name}");
        let farthest = 1000 + count - 1 - u32::from(*is_nearer);
        assert!(buffers.is_buffered(0, farthest) && !buffers.is_buffered(0, farthest + 1), "{name}");
        assert!(!buffers.buffer(1, *index, *next, 0), "no share");
    }
}

#[test]
fn memory_that_is_full_takes_no_request() {
    let mut buffers = Buffers::new(2 * CELL_BYTES, WINDOW_PKTS, 1);
    assert!(buffers.buffer(0, 1, SHORT, 0) && !buffers.buffer(0, 2, LONG, 0));
    assert!(buffers.buffer(0, 2, SHORT, 0) && !buffers.buffer(0, 3, 0, 0));
    assert_eq!(buffers.cells(), 2);
    assert!(!Buffers::new(CELL_BYTES - 1, WINDOW_PKTS, 1).buffer(0, 1, 0, 0));
}

/// Columns: name; packets buffered (queue pair, PSN, length in bytes, time in nanoseconds); a later time in
/// nanoseconds; packets that have expired at the later time (queue pair, PSN), in the order in which they are dropped.
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
    ("at the end of time", &[(0, 2, LONG, u64::MAX - 5)], u64::MAX, &[(0, 2)]),
];

#[test]
fn the_oldest_request_expires() {
    for (name, packets, now, wanted) in EXPIRIES {
        let mut buffers = Buffers::new(BYTES_MAX, WINDOW_PKTS, 2);
        for (slot, index, len, time) in *packets {
            assert!(buffers.buffer(*slot, *index, *len, *time), "{name}");
        }
        let next = buffers.store.next_expiry();
        assert_eq!(next.is_some_and(|next| next <= at(*now)), !wanted.is_empty(), "{name}: {next:?}");
        let popped: Vec<_> = std::iter::from_fn(|| buffers.store.pop_expired(at(*now))).collect();
        let wanted: Vec<_> = wanted.iter().map(|(slot, index)| (*slot, psn(*index))).collect();
        assert_eq!(popped, wanted, "{name}");
        for (slot, psn) in popped {
            buffers.of_slot[slot].on_dropped(EXPECTED, psn);
        }
        assert!(wanted.iter().all(|(slot, psn)| !buffers.of_slot[*slot].set().contains(*psn)), "{name}");
    }
}
