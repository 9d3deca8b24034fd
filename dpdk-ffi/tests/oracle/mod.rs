//! Invariants of the rings of a memif port, whatever its peer writes into the shared memory, and whenever.
//! Shared by the fuzz target and the test that replays the corpus; both include the file of the rings as
//! `crate::ring`.
//!
//! A script determines the regions and the rings, and then, step by step, the peer's writes and this
//! process's operations. The memory is on the heap, so the address sanitizer finds an access outside of it.

use std::cell::RefCell;

use crate::ring::{
    DESC_BYTES, FRAME_BYTES_MAX, Map, PIECES_MAX, Pieces, Put, Region, RxRing, Taken, TxRing, ring_bytes,
};

/// Steps of one script.
const STEPS_MAX: usize = 256;
/// Frames of one burst.
const BURST: usize = 32;

/// Events that a script reached, so that a test can check the coverage of the corpus.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Reached {
    /// Frames taken.
    pub(crate) taken: usize,
    /// Frames passed over.
    pub(crate) dropped: usize,
    /// Frames put.
    pub(crate) put: usize,
    /// Rings that lay outside.
    pub(crate) outside: usize,
    /// Connections given up.
    pub(crate) violations: usize,
}

/// The rest of a script; zeroes behind its end.
struct Script<'a>(&'a [u8]);

impl Script<'_> {
    fn byte(&mut self) -> u8 {
        let (first, rest) = self.0.split_first().unwrap_or((&0, &[]));
        self.0 = rest;
        *first
    }

    fn half(&mut self) -> u16 {
        u16::from_le_bytes([self.byte(), self.byte()])
    }

    fn word(&mut self) -> u32 {
        u32::from(self.half()) | u32::from(self.half()) << 16
    }
}

/// Memory that both sides have mapped: words, so that rings are aligned as pages are.
struct Shared(Vec<Vec<u64>>);

impl Shared {
    fn new(script: &mut Script<'_>) -> Self {
        let count = 1 + usize::from(script.byte() % 3);
        Self((0..count).map(|_| vec![0; 1 + usize::from(script.half() % 2048)]).collect())
    }

    fn map(&mut self) -> Map {
        let region = |words: &mut Vec<u64>| {
            // SAFETY: the words live as long as the script runs, and are reached through pointers only.
            unsafe { Region::new(words.as_mut_ptr().cast(), 8 * words.len() as u64) }
        };
        Map::new(self.0.iter_mut().map(region).collect())
    }

    /// The peer writes one value, where the script says: anywhere, or near what rings have at their front.
    fn scribble(&mut self, script: &mut Script<'_>) {
        let (place, at, value) = (script.byte(), script.half(), script.word());
        let regions = self.0.len();
        let Some(words) = self.0.get_mut(usize::from(place) % regions) else { return };
        let len = 8 * words.len();
        let near = [usize::from(at), 6, 64, 128 + 4 * usize::from(at % 64)];
        let at = near[usize::from(place >> 4) % near.len()];
        let width = if place & 0x80 == 0 { 2 } else { 4 };
        if at + width <= len {
            // SAFETY: inside of the region. Nothing refers to it now.
            unsafe {
                let to = words.as_mut_ptr().cast::<u8>().add(at);
                std::ptr::copy_nonoverlapping(value.to_le_bytes().as_ptr(), to, width);
            }
        }
    }

    /// The peer writes a descriptor, or one over many slots, whose buffer ends where the region does or near it.
    fn describe(&mut self, script: &mut Script<'_>) {
        let (place, kind, slot) = (script.byte(), script.byte(), script.byte());
        let (region, flags, near, value) =
            (script.byte() % 5, script.byte() & 3, script.byte(), script.half());
        let regions = self.0.len();
        let end = self.0.get(usize::from(region) % regions).map_or(0, |words| 8 * words.len() as u32);
        let offset = if kind & 1 == 0 { u32::from(value) } else { end.wrapping_sub(u32::from(near)) };
        let rest = end.wrapping_sub(offset).wrapping_add_signed(i32::from(near as i8));
        let length = if kind & 2 == 0 { u32::from(value) >> (kind >> 4) } else { rest };
        let halves = u32::from(flags) | u32::from(region) << 16;
        let Some(words) = self.0.get_mut(usize::from(place) % regions) else { return };
        let first = 16 + 2 * usize::from(slot) + 2 * usize::from(place >> 4);
        let slots = if kind & 4 == 0 { 1 } else { 256 };
        let low = u64::from(halves) | u64::from(length) << 32;
        let (base, len) = (words.as_mut_ptr(), words.len());
        for at in (first..).step_by(2).take(slots).take_while(|at| at + 1 < len) {
            // SAFETY: inside of the region. Nothing refers to it now.
            unsafe {
                base.add(at).write(low);
                base.add(at + 1).write(u64::from(offset));
            }
        }
    }

    fn has(&self, data: *const u8, len_bytes: usize) -> bool {
        self.0.iter().any(|words| {
            let (base, len) = (words.as_ptr() as usize, 8 * words.len());
            (data as usize).checked_sub(base).is_some_and(|at| at + len_bytes <= len)
        })
    }
}

/// The rings of one process; `None` after a violation.
struct Side {
    rx: Option<RxRing>,
    tx: Option<TxRing>,
    slots: u16,
}

impl Side {
    /// Where the script says that the ring is, if it can be there.
    fn new(map: &Map, script: &mut Script<'_>, reached: &mut Reached) -> Self {
        let (region, place, kind) = (u16::from(script.byte()), script.half(), script.byte());
        let (log2_slots, offset) = match kind & 0x80 {
            0 => (kind & 7, u32::from(place) * DESC_BYTES as u32),
            _ => (kind & 0x1f, u32::from(place) * 0x10001),
        };
        let ring = map.ring(region % 5, offset, log2_slots);
        reached.outside += usize::from(ring.is_none());
        let own = (kind & 0x40 != 0).then(|| u32::from(script.half()));
        let is_rx = kind & 0x20 != 0;
        let slots = ring.map_or(0, |_| ((ring_bytes(log2_slots) - ring_bytes(0)) / DESC_BYTES) as u16 + 1);
        Self {
            rx: ring.filter(|_| is_rx).map(|ring| RxRing::new(ring, own)),
            tx: ring.filter(|_| !is_rx).map(|ring| TxRing::new(ring, own)),
            slots,
        }
    }

    fn receive(&mut self, map: &Map, shared: &Shared, pieces: &mut Pieces, reached: &mut Reached) {
        let Some(rx) = &mut self.rx else { return };
        let Ok(mut available) = rx.available() else {
            reached.violations += 1;
            self.rx = None;
            return;
        };
        assert!(available <= self.slots);
        for _ in 0..BURST {
            if available == 0 {
                break;
            }
            let before = available;
            let taken = rx.take(map, &mut available, pieces);
            match taken {
                Ok(taken) => {
                    assert!(available < before, "a frame takes slots");
                    let frame = usize::from(taken == Taken::Frame);
                    (reached.taken, reached.dropped) = (reached.taken + frame, reached.dropped + 1 - frame);
                    if taken == Taken::Frame {
                        check_frame(shared, pieces);
                    }
                }
                Err(_) => {
                    reached.violations += 1;
                    self.rx = None;
                    return;
                }
            }
        }
        rx.give_back();
    }

    /// Between one segment and the next the peer may write.
    fn send(
        &mut self,
        map: &Map,
        peer: &RefCell<(&mut Shared, Script<'_>)>,
        lens: [u16; 3],
        reached: &mut Reached,
    ) {
        let Some(tx) = &mut self.tx else { return };
        let Ok(mut available) = tx.available() else {
            reached.violations += 1;
            self.tx = None;
            return;
        };
        assert!(available <= self.slots);
        let frame = vec![0xa5_u8; usize::from(u16::MAX)];
        let segments = || {
            lens.iter().filter_map(|len| {
                let (shared, script) = &mut *peer.borrow_mut();
                shared.scribble(script);
                frame.get(..usize::from(*len))
            })
        };
        for _ in 0..4 {
            let before = available;
            match tx.put(map, &mut available, segments()) {
                Ok(Put::Frame) => {
                    assert!(available < before, "a frame takes slots");
                    reached.put += 1;
                }
                Ok(_) => {
                    assert_eq!(available, before, "as if it had not been tried");
                    break;
                }
                Err(_) => {
                    reached.violations += 1;
                    self.tx = None;
                    return;
                }
            }
        }
        tx.publish();
    }
}

/// Every byte of the frame is in memory that is shared.
fn check_frame(shared: &Shared, pieces: &Pieces) {
    assert!(pieces.len_bytes() <= FRAME_BYTES_MAX && pieces.as_slice().len() <= PIECES_MAX);
    let sum: usize = pieces.as_slice().iter().map(|piece| piece.len_bytes as usize).sum();
    assert_eq!(sum, pieces.len_bytes());
    let mut copy = vec![0; sum];
    let mut rest = copy.as_mut_slice();
    for piece in pieces.as_slice() {
        assert!(shared.has(piece.data, piece.len_bytes as usize), "outside of every region: {piece:?}");
        let (to, behind) = rest.split_at_mut(piece.len_bytes as usize);
        // SAFETY: inside of a region (checked above), and `to` is as long.
        unsafe { std::ptr::copy_nonoverlapping(piece.data, to.as_mut_ptr(), to.len()) };
        rest = behind;
    }
}

/// Plays a script; panics where this side is led astray.
pub(crate) fn run(script: &[u8]) -> Reached {
    let mut script = Script(script);
    let mut reached = Reached::default();
    let mut shared = Shared::new(&mut script);
    let map = shared.map();
    let mut sides = [(); 2].map(|()| Side::new(&map, &mut script, &mut reached));
    let mut pieces = Pieces::new();
    for _ in 0..STEPS_MAX {
        if script.0.is_empty() {
            break;
        }
        let step = script.byte();
        let [first, second] = &mut sides;
        let side = if step & 0x80 == 0 { first } else { second };
        match step & 3 {
            0 => shared.scribble(&mut script),
            1 => shared.describe(&mut script),
            2 => side.receive(&map, &shared, &mut pieces, &mut reached),
            _ => {
                let lens = [script.half(), script.half() % 4096, script.half() % 64];
                let peer = RefCell::new((&mut shared, Script(script.0)));
                side.send(&map, &peer, lens, &mut reached);
                script = Script(peer.into_inner().1.0);
            }
        }
    }
    reached
}
