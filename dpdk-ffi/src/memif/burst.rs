//! Bursts of a memif port, which replace the driver's own.

use std::mem::ManuallyDrop;
use std::ptr::NonNull;

use dpdk_sys::rte_mbuf;

use super::control::{Live, live};
use super::ring::{Piece, Put, Taken, TxRing, Violation};
use crate::ethdev::PortStats;
use crate::mbuf::{Header, Mbuf, Segments};
use crate::mempool::Mempool;
use crate::port_id::PortId;

/// Counters of a port's bursts, since it was opened or its statistics reset.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) rx_frames: u64,
    pub(crate) rx_bytes: u64,
    /// Frames dropped because they are too long, have too many pieces, or do not end.
    pub(crate) rx_bad: u64,
    /// Allocations for received frames that failed.
    pub(crate) rx_no_mbuf: u64,
    pub(crate) tx_frames: u64,
    pub(crate) tx_bytes: u64,
    /// Frames dropped because they need more of the peer's buffers than a frame may.
    pub(crate) tx_bad: u64,
    /// Connections ended because of the peer's writes to the shared memory.
    pub(crate) violations: u64,
}

impl Counts {
    /// Returns basic statistics, in place of the driver's, whose bursts are not used.
    pub(crate) fn stats(&self) -> PortStats {
        PortStats {
            rx_frames: self.rx_frames,
            tx_frames: self.tx_frames,
            rx_bytes: self.rx_bytes,
            tx_bytes: self.tx_bytes,
            rx_missed: 0,
            rx_errors: self.rx_bad + self.violations,
            tx_errors: self.tx_bad,
            rx_no_mbuf: self.rx_no_mbuf,
        }
    }

    /// Returns the counters by the names that DPDK gives, and further ones.
    pub(crate) fn xstats(&self, peers_refused: u64) -> Vec<(String, u64)> {
        let named = [
            ("rx_good_packets", self.rx_frames),
            ("tx_good_packets", self.tx_frames),
            ("rx_good_bytes", self.rx_bytes),
            ("tx_good_bytes", self.tx_bytes),
            ("rx_mbuf_allocation_errors", self.rx_no_mbuf),
            ("rx_bad_frames", self.rx_bad),
            ("tx_bad_frames", self.tx_bad),
            ("peer_violations", self.violations),
            ("peers_refused", peers_refused),
        ];
        named.map(|(name, value)| (name.to_owned(), value)).to_vec()
    }
}

/// Keeps the driver's thread from unmapping memory during a burst.
struct Guard(PortId);

impl Guard {
    /// Begins a burst; `None` while a handler of the driver runs.
    #[inline]
    fn begin(port: PortId) -> Option<Self> {
        // SAFETY: ended by `drop`; a port's bursts are made through `&mut`, one at a time.
        unsafe { dpdk_sys::shim_guard_burst_begin(port) }.then_some(Self(port))
    }

    /// Returns the port's live connection, unless its peer is in violation.
    #[inline]
    fn live(&mut self) -> Option<&mut Live> {
        // SAFETY: dropped by handlers and control operations only, and none of those runs during a burst.
        unsafe { live(self.0).as_mut() }.filter(|live| !live.broken)
    }
}

impl Drop for Guard {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: begun by `begin`.
        unsafe { dpdk_sys::shim_guard_burst_end(self.0) };
    }
}

impl Live {
    /// Makes the driver close the connection, on its own thread.
    #[cold]
    fn give_up(&mut self, counts: &mut Counts) {
        self.broken = true;
        counts.violations += 1;
        // SAFETY: the control connection's descriptor is open as long as the connection is live.
        unsafe { libc::shutdown(self.fd, libc::SHUT_RDWR) };
    }
}

/// Receives at most `frames.len()` frames and returns their number.
#[inline]
pub(crate) fn rx(
    port: PortId,
    queue: u16,
    pool: &Mempool,
    frames: &mut [*mut rte_mbuf],
    counts: &mut Counts,
) -> usize {
    let Some(mut guard) = Guard::begin(port) else { return 0 };
    let Some(live) = guard.live() else { return 0 };
    rx_live(live, queue, pool, frames, counts).unwrap_or_else(|(received, _)| {
        live.give_up(counts);
        received
    })
}

/// Receives over a live connection. The error has the number of frames received before the violation.
#[inline]
fn rx_live(
    live: &mut Live,
    queue: u16,
    pool: &Mempool,
    frames: &mut [*mut rte_mbuf],
    counts: &mut Counts,
) -> Result<usize, (usize, Violation)> {
    let Live { map, rx, pieces, .. } = live;
    let Some(ring) = rx.get_mut(usize::from(queue)) else { return Ok(0) };
    let mut available = ring.available().map_err(|violation| (0, violation))?;
    // At most as many frames as slots, and as the pool has mbufs for.
    let mut most = frames.len().min(usize::from(available));
    while most > 0 && !pool.alloc_raw(frames.get_mut(..most).unwrap_or_default()) {
        counts.rx_no_mbuf += 1;
        most /= 2;
    }
    let frames = frames.get_mut(..most).unwrap_or_default();
    let (mut received, mut bytes, mut violation) = (0, 0, None);
    while let Some(&mut raw) = frames.get_mut(received) {
        if available == 0 {
            break;
        }
        match ring.take(map, &mut available, pieces) {
            Ok(Taken::Frame) => {
                // SAFETY: allocated above, and not handed out yet.
                let filled =
                    NonNull::new(raw).is_some_and(|raw| unsafe { fill(raw, pool, pieces.as_slice()) });
                received += usize::from(filled);
                counts.rx_no_mbuf += u64::from(!filled);
                bytes += if filled { pieces.len_bytes() as u64 } else { 0 };
            }
            Ok(Taken::Dropped) => counts.rx_bad += 1,
            Err(found) => {
                violation = Some(found);
                break;
            }
        }
    }
    free(frames.get_mut(received..).unwrap_or_default());
    counts.rx_frames += received as u64;
    counts.rx_bytes += bytes;
    if let Some(violation) = violation {
        return Err((received, violation));
    }
    ring.give_back();
    Ok(received)
}

/// Copies a frame into the empty mbuf `head` and, if it is longer, into further ones of `pool`. False if the
/// pool has too few; `head` is then empty.
///
/// # Safety
/// `head` is an mbuf of `pool`, single, empty and the caller's; the pieces are as `Pieces` has them.
#[inline]
unsafe fn fill(head: NonNull<rte_mbuf>, pool: &Mempool, pieces: &[Piece]) -> bool {
    let room = u32::from(pool.config().data_room_bytes);
    match pieces {
        [piece] if piece.len_bytes <= room => {
            // SAFETY: the mbuf has the room; the piece is inside of a region, and another process's writes to it
            // at this moment change what is copied and nothing else.
            unsafe {
                let data = Header::new(head).set_frame_len(piece.len_bytes as u16);
                std::ptr::copy_nonoverlapping(piece.data, data, piece.len_bytes as usize);
            }
            true
        }
        // SAFETY: the caller's promise.
        _ => unsafe { fill_chain(head, pool, pieces) },
    }
}

/// # Safety
/// As `fill`.
#[cold]
unsafe fn fill_chain(head: NonNull<rte_mbuf>, pool: &Mempool, pieces: &[Piece]) -> bool {
    let room = usize::from(pool.config().data_room_bytes);
    // SAFETY: the caller's mbuf, which stays the caller's.
    let mut first = ManuallyDrop::new(unsafe { Mbuf::from_raw(head) });
    // The mbufs behind `first`.
    let mut rest: Option<Mbuf> = None;
    let mut filled = 0;
    for piece in pieces {
        let mut copied = 0;
        while copied < piece.len_bytes as usize {
            if filled == room {
                let longer = pool.alloc().is_some_and(|next| match &mut rest {
                    Some(rest) => rest.chain(next).is_ok(),
                    None => rest.replace(next).is_none(),
                });
                if !longer {
                    // SAFETY: as above; the mbuf is single.
                    unsafe { Header::new(head).set_frame_len(0) };
                    return false;
                }
                filled = 0;
            }
            let len = (room - filled).min(piece.len_bytes as usize - copied);
            let last = rest.as_mut().unwrap_or(&mut first);
            let bytes = last.append(len).expect("an mbuf has the room of its pool");
            // SAFETY: `len` bytes from `copied` on are within the piece, which is inside of a region.
            unsafe { std::ptr::copy_nonoverlapping(piece.data.add(copied), bytes.as_mut_ptr(), len) };
            (filled, copied) = (filled + len, copied + len);
        }
    }
    rest.is_none_or(|rest| first.chain(rest).is_ok())
}

fn free(mbufs: &mut [*mut rte_mbuf]) {
    if !mbufs.is_empty() {
        // SAFETY: owned mbufs, given up.
        unsafe { dpdk_sys::rte_pktmbuf_free_bulk(mbufs.as_mut_ptr(), mbufs.len() as u32) };
    }
}

/// Sends `frames` in order, as many as there is room for; frees those and returns their number.
#[inline]
pub(crate) fn tx(port: PortId, queue: u16, frames: &mut [*mut rte_mbuf], counts: &mut Counts) -> usize {
    let Some(mut guard) = Guard::begin(port) else { return 0 };
    let Some(live) = guard.live() else { return 0 };
    let Some(ring) = live.tx.get_mut(usize::from(queue)) else { return 0 };
    let (taken, outcome) = tx_live(&live.map, ring, frames, counts);
    if outcome.is_err() {
        live.give_up(counts);
    }
    drop(guard);
    free(frames.get_mut(..taken).unwrap_or_default());
    taken
}

/// Returns how many frames were sent or dropped, and the violation that ended the burst, if any.
#[inline]
fn tx_live(
    map: &super::ring::Map,
    ring: &mut TxRing,
    frames: &[*mut rte_mbuf],
    counts: &mut Counts,
) -> (usize, Result<(), Violation>) {
    let mut available = match ring.available() {
        Ok(available) => available,
        Err(violation) => return (0, Err(violation)),
    };
    let mut taken = 0;
    let mut outcome = Ok(());
    for raw in frames.iter().filter_map(|raw| NonNull::new(*raw)) {
        // SAFETY: an mbuf that the caller owns until it is freed, after this.
        let segments = unsafe { Segments::of(raw) };
        match ring.put(map, &mut available, segments) {
            Ok(Put::Frame) => {
                counts.tx_frames += 1;
                // SAFETY: as above.
                counts.tx_bytes += u64::from(unsafe { Header::new(raw) }.pkt_len());
            }
            Ok(Put::Dropped) => counts.tx_bad += 1,
            Ok(Put::Full) => break,
            Err(violation) => {
                outcome = Err(violation);
                break;
            }
        }
        taken += 1;
    }
    if taken > 0 {
        ring.publish();
    }
    (taken, outcome)
}
