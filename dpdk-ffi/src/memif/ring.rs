//! Rings and buffers in memory that a peer may write at any time. Independent of DPDK, because the fuzz
//! target includes this file.
//!
//! ```text
//! region: [ring | ring | .. | buffer | buffer | ..]      ring: cookie, flags, head | tail | descriptors
//!
//! to the server   the client fills slots and moves head; the server empties them and moves tail
//! to the client   the client offers empty slots and moves head; the server fills them and moves tail
//! ```
//!
//! Soundness rests on three rules. Shared data is read once, into a copy, which is checked and then used; that a
//! descriptor is also read for a prefetch changes nothing, because a prefetch may have any address. Of
//! the two indices of a ring only the peer's is read; this process's own is held in private memory. Address
//! and length of a mapped region are private, and constant while the region is mapped.

use std::sync::atomic::{AtomicU16, Ordering};

/// Flag of a descriptor: the frame continues in the next slot.
pub(crate) const DESC_NEXT: u16 = 1;
/// Slots of the largest ring, as a power of two.
pub(crate) const LOG2_SLOTS_MAX: u8 = 14;
/// Distance, in slots, from the slot in use to the slot whose buffer is prefetched.
const PREFETCH_SLOTS: u16 = 8;
/// Bytes prefetched of a buffer: those of a frame with 64 B of payload. The CPU itself prefetches the rest of a long
/// frame.
const PREFETCH_BYTES: usize = 192;
const CACHE_LINE_BYTES: usize = 64;
/// Buffers of one frame, at most.
pub(crate) const PIECES_MAX: usize = 64;
/// Longest frame, in bytes.
pub(crate) const FRAME_BYTES_MAX: usize = 65_535;
/// Bytes of a ring before its descriptors.
pub(crate) const RING_HEADER_BYTES: u64 = 128;
/// Bytes of a descriptor, and alignment of a ring.
pub(crate) const DESC_BYTES: u64 = 16;

/// Flag of a ring: the consumer polls, and needs no interrupt.
const MASK_INT: u16 = 1;

/// Offsets of flags, head and tail in a ring's header.
const FLAGS_AT: usize = 4;
const HEAD_AT: usize = 6;
const TAIL_AT: usize = 64;

/// A violation of the protocol by the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Violation {
    /// An index that gives this process more slots than the ring has.
    Index,
    /// A buffer outside of its region.
    Buffer,
}

/// A region: mapped, readable and writable, for as long as the value is used.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Region {
    base: *mut u8,
    len_bytes: u64,
}

impl Region {
    /// # Safety
    /// `len_bytes` bytes from `base` on are mapped, and stay so while the region, or what was made from it, is
    /// used. Nothing in this process has a reference to them.
    pub(crate) unsafe fn new(base: *mut u8, len_bytes: u64) -> Self {
        Self { base, len_bytes }
    }

    /// Returns the address of the first byte.
    pub(crate) fn base(&self) -> *mut u8 {
        self.base
    }
}

/// A descriptor, copied out of the ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Desc {
    flags: u16,
    region: u16,
    length: u32,
    offset: u32,
}

/// Bytes that a descriptor named, checked to lie inside of their region.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Piece {
    /// Address of the first byte.
    pub(crate) data: *mut u8,
    /// Length in bytes.
    pub(crate) len_bytes: u32,
}

/// The buffers of one frame, in order.
#[derive(Debug)]
pub(crate) struct Pieces {
    pieces: [Piece; PIECES_MAX],
    count: usize,
    len_bytes: usize,
}

impl Default for Pieces {
    fn default() -> Self {
        Self::new()
    }
}

impl Pieces {
    /// Returns an empty list.
    pub(crate) fn new() -> Self {
        let none = Piece { data: std::ptr::null_mut(), len_bytes: 0 };
        Self { pieces: [none; PIECES_MAX], count: 0, len_bytes: 0 }
    }

    /// Returns the buffers.
    #[inline]
    pub(crate) fn as_slice(&self) -> &[Piece] {
        self.pieces.get(..self.count).unwrap_or_default()
    }

    /// Returns the bytes of all buffers.
    #[inline]
    pub(crate) fn len_bytes(&self) -> usize {
        self.len_bytes
    }

    /// Appends a piece. False if the frame then has too many pieces or bytes.
    #[inline]
    fn push(&mut self, piece: Piece) -> bool {
        self.len_bytes = self.len_bytes.saturating_add(piece.len_bytes as usize);
        match self.pieces.get_mut(self.count) {
            Some(place) if self.len_bytes <= FRAME_BYTES_MAX => {
                *place = piece;
                self.count += 1;
                true
            }
            _ => false,
        }
    }
}

/// The regions of one connection.
#[derive(Debug)]
pub(crate) struct Map(Vec<Region>);

impl Map {
    /// The regions, in order of their numbers.
    pub(crate) fn new(regions: Vec<Region>) -> Self {
        Self(regions)
    }

    /// Whether a region begins at `base`.
    pub(crate) fn has(&self, base: *mut u8) -> bool {
        self.0.iter().any(|region| region.base == base)
    }

    /// Returns the address of `len_bytes` bytes at `offset` of region `region`, if they lie inside.
    #[inline]
    fn bytes(&self, region: u16, offset: u32, len_bytes: u32) -> Option<*mut u8> {
        let region = self.0.get(usize::from(region))?;
        let end = u64::from(offset) + u64::from(len_bytes);
        // SAFETY: the offset is at most the region's length.
        (end <= region.len_bytes).then(|| unsafe { region.base.add(offset as usize) })
    }

    /// Returns the ring of 1 << `log2_slots` slots at `offset` of region `region`, if it lies inside and is
    /// aligned.
    pub(crate) fn ring(&self, region: u16, offset: u32, log2_slots: u8) -> Option<Ring> {
        if log2_slots > LOG2_SLOTS_MAX || !u64::from(offset).is_multiple_of(DESC_BYTES) {
            return None;
        }
        let len_bytes = u32::try_from(ring_bytes(log2_slots)).ok()?;
        let base = self.bytes(region, offset, len_bytes)?;
        // Because indices and descriptors are accessed as aligned words.
        base.cast::<u64>().is_aligned().then_some(Ring { base, slots: 1 << log2_slots })
    }
}

/// Returns the bytes of a ring: header and descriptors.
pub(crate) fn ring_bytes(log2_slots: u8) -> u64 {
    RING_HEADER_BYTES + (DESC_BYTES << log2_slots.min(LOG2_SLOTS_MAX))
}

/// Starts to load the cache line at `address`, which may be any address, and does not wait for it. No effect on other
/// CPUs than x86-64.
#[inline]
fn prefetch_to_read(address: *mut u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch reads no value and cannot fault, whatever the address.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(address.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = address;
}

/// As [`prefetch_to_read`]; also takes the cache line from the other CPUs. `_mm_prefetch` compiles to this instruction
/// only if the compiler may assume a CPU that has it; a CPU that lacks it executes it as a NOP.
#[inline]
fn prefetch_to_write(address: *mut u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: as in `prefetch_to_read`.
    unsafe {
        std::arch::asm!("prefetchw [{}]", in(reg) address, options(nostack, preserves_flags));
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = address;
}

/// A ring inside of a region.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ring {
    base: *mut u8,
    /// Number of slots, a power of two.
    slots: u16,
}

/// The two indices of a ring, each written by one of the processes.
#[derive(Clone, Copy)]
enum Index {
    Head,
    Tail,
}

impl Ring {
    #[inline]
    fn index(&self, which: Index) -> &AtomicU16 {
        let at = match which {
            Index::Head => HEAD_AT,
            Index::Tail => TAIL_AT,
        };
        // SAFETY: inside of the ring's header, aligned as the ring is, and only ever accessed as an atomic here.
        unsafe { AtomicU16::from_ptr(self.base.add(at).cast()) }
    }

    #[inline]
    fn flags(&self) -> &AtomicU16 {
        // SAFETY: as in `index`.
        unsafe { AtomicU16::from_ptr(self.base.add(FLAGS_AT).cast()) }
    }

    #[inline]
    fn desc_at(&self, position: u16) -> *mut u8 {
        let slot = usize::from(position & (self.slots - 1));
        // SAFETY: the ring has this slot, and all its descriptors are inside of the region.
        unsafe { self.base.add(RING_HEADER_BYTES as usize + DESC_BYTES as usize * slot) }
    }

    /// Reads a descriptor, once.
    #[inline]
    fn desc(&self, position: u16) -> Desc {
        let at = self.desc_at(position).cast::<u64>();
        // SAFETY: 16 bytes of the ring, aligned to 16. Volatile, because the value checked must be the value
        // used.
        let (low, high) = unsafe { (at.read_volatile(), at.add(1).read_volatile()) };
        let ([f0, f1, r0, r1, l @ ..], [o0, o1, o2, o3, ..]) = (low.to_ne_bytes(), high.to_ne_bytes());
        Desc {
            flags: u16::from_ne_bytes([f0, f1]),
            region: u16::from_ne_bytes([r0, r1]),
            length: u32::from_ne_bytes(l),
            offset: u32::from_ne_bytes([o0, o1, o2, o3]),
        }
    }

    /// Calls `prefetch` for the first cache lines of the buffer of the slot [`PREFETCH_SLOTS`] after `position`, if this
    /// slot is among the `available` slots from `position` on. Otherwise each frame would wait until its cache lines
    /// have moved from the CPU of the peer.
    #[inline]
    fn prefetch_ahead(&self, map: &Map, position: u16, available: u16, prefetch: impl Fn(*mut u8)) {
        if available <= PREFETCH_SLOTS {
            return;
        }
        let desc = self.desc(position.wrapping_add(PREFETCH_SLOTS));
        if let Some(data) = map.bytes(desc.region, desc.offset, 0) {
            (0..PREFETCH_BYTES)
                .step_by(CACHE_LINE_BYTES)
                .for_each(|offset| prefetch(data.wrapping_add(offset)));
        }
    }

    #[inline]
    fn set_flags_and_length(&self, position: u16, flags: u16, length: u32) {
        let at = self.desc_at(position);
        // SAFETY: fields of a descriptor, aligned. Volatile, because the peer may read at any time.
        unsafe {
            at.cast::<u16>().write_volatile(flags);
            at.add(4).cast::<u32>().write_volatile(length);
        }
    }

    #[inline]
    fn set_length(&self, position: u16, length: u32) {
        // SAFETY: as in `set_flags_and_length`.
        unsafe { self.desc_at(position).add(4).cast::<u32>().write_volatile(length) };
    }

    /// Returns the slots from `position`, this process's index, up to the peer's index plus `lead`.
    #[inline]
    fn available(&self, which: Index, position: u16, lead: u16) -> Result<u16, Violation> {
        let index = self.index(which).load(Ordering::Acquire);
        let available = index.wrapping_add(lead).wrapping_sub(position);
        if available <= self.slots { Ok(available) } else { Err(Violation::Index) }
    }
}

/// Result of taking the frame at the front of a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Taken {
    /// A frame; its buffers are in the pieces.
    Frame,
    /// The frame is too long, has too many pieces, or does not end: all its slots were skipped.
    Dropped,
}

/// The ring that this process receives from.
#[derive(Debug)]
pub(crate) struct RxRing {
    ring: Ring,
    /// This process's index: the next slot to empty.
    position: u16,
    /// The index as last written for the peer.
    given: u16,
    /// Bytes of the buffers that a client offers anew; `None` for a server, which returns slots unchanged.
    offers: Option<u32>,
    /// Whether the peer is to raise the ring's interrupt.
    armed: bool,
}

impl RxRing {
    /// A newly connected ring, whose indices are zero; `offers` is the length of this process's buffers, if
    /// it is the client.
    pub(crate) fn new(ring: Ring, offers: Option<u32>) -> Self {
        Self { ring, position: 0, given: 0, offers, armed: false }
    }

    /// Whether the peer is to raise the ring's interrupt, by the last [`RxRing::set_armed`]; false when connected.
    pub(crate) fn is_armed(&self) -> bool {
        self.armed
    }

    /// Sets whether the peer is to raise the ring's interrupt after it fills slots. A barrier must follow before the
    /// next read of the peer's index.
    pub(crate) fn set_armed(&mut self, armed: bool) {
        self.armed = armed;
        self.ring.flags().store(if armed { 0 } else { MASK_INT }, Ordering::Relaxed);
    }

    /// Returns the slots that the peer has filled.
    ///
    /// # Errors
    /// [`Violation::Index`]
    #[inline]
    pub(crate) fn available(&self) -> Result<u16, Violation> {
        let filled = if self.offers.is_some() { Index::Tail } else { Index::Head };
        self.ring.available(filled, self.position, 0)
    }

    /// Takes the frame at the front of the `available` slots, and subtracts its slots.
    ///
    /// # Errors
    /// [`Violation::Buffer`]
    #[inline]
    pub(crate) fn take(
        &mut self,
        map: &Map,
        available: &mut u16,
        pieces: &mut Pieces,
    ) -> Result<Taken, Violation> {
        (pieces.count, pieces.len_bytes) = (0, 0);
        self.ring.prefetch_ahead(map, self.position, *available, prefetch_to_read);
        let mut fits = true;
        // Bounded by the slots of the ring.
        while *available > 0 {
            let desc = self.ring.desc(self.position);
            let data = map.bytes(desc.region, desc.offset, desc.length).ok_or(Violation::Buffer)?;
            self.position = self.position.wrapping_add(1);
            *available -= 1;
            fits &= pieces.push(Piece { data, len_bytes: desc.length });
            if desc.flags & DESC_NEXT == 0 {
                return Ok(if fits { Taken::Frame } else { Taken::Dropped });
            }
        }
        Ok(Taken::Dropped)
    }

    /// Returns the slots taken so far to the peer, with their buffers.
    #[inline]
    pub(crate) fn give_back(&mut self) {
        let (index, goal) = match self.offers {
            Some(_) => (Index::Head, self.position.wrapping_add(self.ring.slots)),
            None => (Index::Tail, self.position),
        };
        // A store of the same value would take the cache line from the peer.
        if self.given == goal {
            return;
        }
        if let Some(buffer_bytes) = self.offers {
            let mut offered = self.given;
            while offered != goal {
                self.ring.set_length(offered, buffer_bytes);
                offered = offered.wrapping_add(1);
            }
        }
        self.ring.index(index).store(goal, Ordering::Release);
        self.given = goal;
    }
}

/// Result of putting a frame into a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Put {
    /// The frame is in the ring.
    Frame,
    /// The peer offers too few slots at present.
    Full,
    /// The frame needs more than [`PIECES_MAX`] of the peer's buffers.
    Dropped,
}

/// The ring that this process sends to.
#[derive(Debug)]
pub(crate) struct TxRing {
    ring: Ring,
    /// This process's index: the next slot to fill.
    position: u16,
    /// Bytes of a client's own buffers; `None` for a server, which reads the length from the peer's
    /// descriptors.
    owns: Option<u32>,
}

impl TxRing {
    /// A newly connected ring, whose indices are zero; `owns` is the length of this process's buffers, if it
    /// is the client.
    pub(crate) fn new(ring: Ring, owns: Option<u32>) -> Self {
        Self { ring, position: 0, owns }
    }

    /// Returns the slots that may be filled.
    ///
    /// # Errors
    /// [`Violation::Index`]
    #[inline]
    pub(crate) fn available(&self) -> Result<u16, Violation> {
        match self.owns {
            // The peer's index is at most a whole ring behind.
            Some(_) => self.ring.available(Index::Tail, self.position, self.ring.slots),
            None => self.ring.available(Index::Head, self.position, 0),
        }
    }

    #[inline]
    fn room(&self, map: &Map, position: u16) -> Result<Piece, Violation> {
        let desc = self.ring.desc(position);
        let len_bytes = self.owns.unwrap_or(desc.length);
        let data = map.bytes(desc.region, desc.offset, len_bytes).ok_or(Violation::Buffer)?;
        Ok(Piece { data, len_bytes })
    }

    /// Copies a frame, segment by segment, into the first of the `available` slots, and subtracts those that
    /// it needs. The peer receives it after [`TxRing::publish`].
    ///
    /// # Errors
    /// [`Violation::Buffer`]
    #[inline]
    pub(crate) fn put<'a>(
        &mut self,
        map: &Map,
        available: &mut u16,
        segments: impl Iterator<Item = &'a [u8]>,
    ) -> Result<Put, Violation> {
        if *available == 0 {
            return Ok(Put::Full);
        }
        self.ring.prefetch_ahead(map, self.position, *available, prefetch_to_write);
        let mut position = self.position;
        let mut used = 1;
        let mut room = self.room(map, position)?;
        let mut filled = 0;
        for mut segment in segments {
            while !segment.is_empty() {
                if filled == room.len_bytes {
                    if usize::from(used) == PIECES_MAX {
                        return Ok(Put::Dropped);
                    }
                    if used == *available {
                        return Ok(Put::Full);
                    }
                    self.ring.set_flags_and_length(position, DESC_NEXT, filled);
                    (position, used) = (position.wrapping_add(1), used + 1);
                    (room, filled) = (self.room(map, position)?, 0);
                    continue;
                }
                let len = segment.len().min((room.len_bytes - filled) as usize);
                let (now, later) = segment.split_at(len);
                // SAFETY: `len` bytes from `filled` on are within the room, which is inside of a region; the
                // segment is private memory.
                unsafe {
                    std::ptr::copy_nonoverlapping(now.as_ptr(), room.data.add(filled as usize), len);
                }
                filled += len as u32;
                segment = later;
            }
        }
        self.ring.set_flags_and_length(position, 0, filled);
        self.position = position.wrapping_add(1);
        *available -= used;
        Ok(Put::Frame)
    }

    /// Whether the peer polls, and needs no interrupt.
    #[inline]
    pub(crate) fn is_masked(&self) -> bool {
        self.ring.flags().load(Ordering::Relaxed) & MASK_INT != 0
    }

    /// Returns a view of the ring by which any thread can tell whether the peer has received all frames.
    pub(crate) fn unread(&self) -> Unread {
        Unread { ring: self.ring, is_client: self.owns.is_some() }
    }

    /// Passes the frames put so far to the peer.
    #[inline]
    pub(crate) fn publish(&self) {
        let filled = if self.owns.is_some() { Index::Head } else { Index::Tail };
        self.ring.index(filled).store(self.position, Ordering::Release);
    }
}

/// The frames of a transmit ring that the peer has not received, by the two indices in the shared memory. The peer can
/// write both, so the result is no bound of any access; a thread that waits for the peer needs a time limit.
///
/// ```text
///   client: tail .. head    are filled, and not emptied by the server
///   server: tail .. head    are offered by the client, which offers each slot again after it has emptied the slot
/// ```
#[derive(Clone, Copy, Debug)]
pub(crate) struct Unread {
    ring: Ring,
    is_client: bool,
}

impl Unread {
    /// Whether the peer has not received all frames. Also true while a client has not offered all of its slots, as
    /// before its first burst.
    pub(crate) fn any(&self) -> bool {
        let [head, tail] =
            [Index::Head, Index::Tail].map(|which| self.ring.index(which).load(Ordering::Acquire));
        let when_received = if self.is_client { 0 } else { self.ring.slots };
        head.wrapping_sub(tail) != when_received
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SLOTS: u16 = 8;
    const BUFFER: usize = 64;
    const RING: usize = RING_HEADER_BYTES as usize + DESC_BYTES as usize * SLOTS as usize;
    const BUFFERS_AT: usize = 1024;
    const LEN: usize = BUFFERS_AT + BUFFER * SLOTS as usize;

    /// A region with one ring, whose slots have a buffer each.
    struct Shared(Box<[u64; LEN / 8]>);

    impl Shared {
        fn new() -> Self {
            let mut shared = Self(Box::new([0; LEN / 8]));
            for slot in 0..SLOTS {
                shared.desc(slot, 0, 0, BUFFER as u32, (BUFFERS_AT + BUFFER * usize::from(slot)) as u32);
            }
            shared
        }

        fn bytes(&mut self) -> &mut [u8] {
            // SAFETY: plain numbers, borrowed through `self`.
            unsafe { std::slice::from_raw_parts_mut(self.0.as_mut_ptr().cast(), LEN) }
        }

        fn desc(&mut self, slot: u16, flags: u16, region: u16, length: u32, offset: u32) {
            let at = RING_HEADER_BYTES as usize + DESC_BYTES as usize * usize::from(slot);
            let halves = [flags, region].map(u16::to_ne_bytes).concat();
            let words = [length, offset].map(u32::to_ne_bytes).concat();
            self.bytes()[at..at + 12].copy_from_slice(&[halves, words].concat());
        }

        fn set(&mut self, at: usize, index: u16) {
            self.bytes()[at..at + 2].copy_from_slice(&index.to_ne_bytes());
        }

        fn get(&mut self, at: usize) -> u16 {
            u16::from_ne_bytes(self.bytes()[at..at + 2].try_into().unwrap())
        }

        fn map(&mut self) -> Map {
            // SAFETY: lives longer than the map, in every test.
            Map::new(vec![unsafe { Region::new(self.0.as_mut_ptr().cast(), LEN as u64) }])
        }
    }

    fn take(ring: &mut RxRing, map: &Map) -> Result<(Taken, Vec<u32>), Violation> {
        let mut available = ring.available()?;
        let mut pieces = Pieces::new();
        let taken = ring.take(map, &mut available, &mut pieces)?;
        Ok((taken, pieces.as_slice().iter().map(|piece| piece.len_bytes).collect()))
    }

    #[test]
    fn rings_lie_inside_of_their_region() {
        let mut shared = Shared::new();
        let map = shared.map();
        assert!(map.ring(0, 0, 3).is_some());
        let last = (LEN - RING) as u32;
        assert!(map.ring(0, last, 3).is_some());
        for (region, offset, log2_slots) in [
            (1, 0, 3),
            (0xffff, 0, 3),
            (0, last + 16, 3),
            (0, 8, 3),
            (0, u32::MAX - 15, 3),
            (0, 0, 15),
            (0, 0, 255),
        ] {
            assert!(map.ring(region, offset, log2_slots).is_none(), "{region} {offset} {log2_slots}");
        }
    }

    #[test]
    fn buffers_lie_inside_of_their_region() {
        let end = LEN as u32;
        for (region, length, offset, inside) in [
            (0, 64, 0, true),
            (0, 0, end, true),
            (0, 1, end - 1, true),
            (0, 2, end - 1, false),
            (0, 1, end, false),
            (0, u32::MAX, 1, false),
            (0, 64, u32::MAX, false),
            (1, 64, 0, false),
            (0xffff, 64, 0, false),
        ] {
            let mut shared = Shared::new();
            shared.desc(0, 0, region, length, offset);
            shared.set(HEAD_AT, 1);
            let map = shared.map();
            let ring = map.ring(0, 0, 3).unwrap();
            let taken = take(&mut RxRing::new(ring, None), &map);
            assert_eq!(taken.is_ok(), inside, "to receive: {region} {length} {offset}");
            let mut available = 1;
            let put = TxRing::new(ring, None).put(&map, &mut available, [[0; 0].as_slice()].into_iter());
            assert_eq!(put.is_ok(), inside, "to send: {region} {length} {offset}");
        }
    }

    #[test]
    fn a_buffer_is_checked_when_its_slot_is_used_not_when_it_is_prefetched() {
        let slots = 2 * PREFETCH_SLOTS;
        for (region, offset) in [(0xffff, 0), (0, LEN as u32 - 1), (0, LEN as u32), (0, u32::MAX)] {
            let mut shared = Shared::new();
            (SLOTS..slots).for_each(|slot| shared.desc(slot, 0, 0, BUFFER as u32, 0));
            shared.desc(PREFETCH_SLOTS, 0, region, BUFFER as u32, offset);
            shared.set(HEAD_AT, slots);
            let map = shared.map();
            let ring = map.ring(0, 0, 4).unwrap();
            let (mut rx, mut tx) = (RxRing::new(ring, None), TxRing::new(ring, None));
            let (mut taken, mut put) = (0, 0);
            while take(&mut rx, &map).is_ok() {
                taken += 1;
            }
            let mut available = slots;
            while tx.put(&map, &mut available, [[7; 10].as_slice()].into_iter()) == Ok(Put::Frame) {
                put += 1;
            }
            assert_eq!((taken, put), (PREFETCH_SLOTS, PREFETCH_SLOTS), "{region} {offset}");
        }
    }

    #[test]
    fn indices_stay_within_the_ring() {
        for (index, inside) in
            [(0, true), (SLOTS, true), (SLOTS + 1, false), (0x8000, false), (0u16.wrapping_sub(9), false)]
        {
            let mut shared = Shared::new();
            shared.set(HEAD_AT, index);
            shared.set(TAIL_AT, index);
            let ring = shared.map().ring(0, 0, 3).unwrap();
            assert_eq!(RxRing::new(ring, None).available().is_ok(), inside, "a server receives: {index}");
            assert_eq!(RxRing::new(ring, Some(64)).available().is_ok(), inside, "a client receives: {index}");
            assert_eq!(TxRing::new(ring, None).available().is_ok(), inside, "a server sends: {index}");
            // The slots of a client that its server has not emptied: none, or more than were sent.
            let own = TxRing::new(ring, Some(64)).available();
            assert_eq!(own.is_ok(), index == 0, "a client sends: {index}");
        }
    }

    #[test]
    fn a_chain_is_one_frame_or_none() {
        let mut shared = Shared::new();
        let map = shared.map();
        let mut ring = RxRing::new(map.ring(0, 0, 3).unwrap(), None);
        shared.desc(0, DESC_NEXT, 0, 10, 0);
        shared.desc(1, 0, 0, 20, 0);
        shared.set(HEAD_AT, 3);
        assert_eq!(take(&mut ring, &map), Ok((Taken::Frame, vec![10, 20])));
        assert_eq!(take(&mut ring, &map), Ok((Taken::Frame, vec![64])));
        ring.give_back();
        assert_eq!(shared.get(TAIL_AT), 3);
        // All slots, and none is the last.
        (0..SLOTS).for_each(|slot| shared.desc(slot, DESC_NEXT, 0, 10, 0));
        shared.set(HEAD_AT, 3 + SLOTS);
        assert_eq!(take(&mut ring, &map).unwrap().0, Taken::Dropped);
        assert_eq!(ring.available(), Ok(0));
        // Longer than any frame.
        let mut long = Shared::new();
        let map = long.map();
        let mut ring = RxRing::new(map.ring(0, 0, 3).unwrap(), None);
        let mut available = SLOTS;
        let mut pieces = Pieces::new();
        pieces.len_bytes = 1;
        assert!(!pieces.push(Piece { data: std::ptr::null_mut(), len_bytes: FRAME_BYTES_MAX as u32 }));
        assert_eq!(ring.take(&map, &mut available, &mut pieces), Ok(Taken::Frame), "begins anew");
    }

    #[test]
    fn a_frame_is_spread_over_buffers_and_read_back() {
        let mut shared = Shared::new();
        let map = shared.map();
        let ring = map.ring(0, 0, 3).unwrap();
        let (mut tx, mut rx) = (TxRing::new(ring, Some(BUFFER as u32)), RxRing::new(ring, None));
        let frame: Vec<u8> = (0..150).collect();
        for round in 0..20 {
            let mut available = tx.available().unwrap();
            assert_eq!(available, SLOTS, "round {round}");
            let segments = [&frame[..100], &[], &frame[100..]];
            assert_eq!(tx.put(&map, &mut available, segments.into_iter()), Ok(Put::Frame));
            assert_eq!(available, SLOTS - 3);
            assert_eq!(rx.available(), Ok(0), "not before it is published");
            tx.publish();
            let mut available = rx.available().unwrap();
            let mut pieces = Pieces::new();
            assert_eq!(rx.take(&map, &mut available, &mut pieces), Ok(Taken::Frame));
            let read: Vec<u8> = pieces
                .as_slice()
                .iter()
                // SAFETY: inside of the region, which nobody writes now.
                .flat_map(|piece| unsafe { std::slice::from_raw_parts(piece.data, piece.len_bytes as usize) })
                .copied()
                .collect();
            assert_eq!((read, pieces.len_bytes()), (frame.clone(), 150));
            rx.give_back();
        }
        let mut available = 2;
        assert_eq!(tx.put(&map, &mut available, [frame.as_slice()].into_iter()), Ok(Put::Full));
        assert_eq!((available, rx.available()), (2, Ok(0)), "as if it had not been tried");
    }

    #[test]
    fn a_client_offers_its_buffers_again() {
        let mut shared = Shared::new();
        let map = shared.map();
        let ring = map.ring(0, 0, 3).unwrap();
        let (mut tx, mut rx) = (TxRing::new(ring, None), RxRing::new(ring, Some(BUFFER as u32)));
        assert_eq!(tx.available(), Ok(0), "before anything is offered");
        for _ in 0..3 {
            rx.give_back();
            let mut available = tx.available().unwrap();
            assert_eq!(available, SLOTS);
            for _ in 0..SLOTS {
                assert_eq!(tx.put(&map, &mut available, [[7; 10].as_slice()].into_iter()), Ok(Put::Frame));
            }
            assert_eq!(tx.put(&map, &mut available, [[7; 10].as_slice()].into_iter()), Ok(Put::Full));
            tx.publish();
            for _ in 0..SLOTS {
                assert_eq!(take(&mut rx, &map), Ok((Taken::Frame, vec![10])));
            }
        }
    }

    #[test]
    fn frames_are_unread_until_the_peer_has_emptied_their_slots() {
        for is_client in [false, true] {
            let mut shared = Shared::new();
            let map = shared.map();
            let ring = map.ring(0, 0, 3).unwrap();
            let of = |is: bool| is.then_some(BUFFER as u32);
            let (mut tx, mut rx) = (TxRing::new(ring, of(is_client)), RxRing::new(ring, of(!is_client)));
            let unread = tx.unread();
            rx.give_back();
            // More frames than slots, so that the indices go round the ring.
            for round in 0..20 {
                assert!(!unread.any(), "round {round}, of a client: {is_client}");
                let mut available = tx.available().unwrap();
                assert_eq!(tx.put(&map, &mut available, [[7; 10].as_slice()].into_iter()), Ok(Put::Frame));
                tx.publish();
                assert!(unread.any(), "round {round}, of a client: {is_client}");
                assert_eq!(take(&mut rx, &map), Ok((Taken::Frame, vec![10])));
                assert!(unread.any(), "the peer may still copy the frame");
                rx.give_back();
            }
        }
    }

    #[test]
    fn buffers_of_no_bytes_hold_nobody_up() {
        let mut shared = Shared::new();
        (0..SLOTS).for_each(|slot| shared.desc(slot, 0, 0, 0, 0));
        let map = shared.map();
        let mut ring = TxRing::new(map.ring(0, 0, 3).unwrap(), None);
        let mut available = SLOTS;
        assert_eq!(ring.put(&map, &mut available, [[7; 10].as_slice()].into_iter()), Ok(Put::Full));
        assert_eq!(available, SLOTS);
    }
}
