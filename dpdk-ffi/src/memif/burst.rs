//! Bursts of a memif port, which replace the driver's own.

use std::mem::ManuallyDrop;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use dpdk_sys::rte_mbuf;

use super::control::{Live, Rings, add_wake, live};
use super::event::{heavy_barrier, notify};
use super::ring::{Map, Piece, Put, Taken, TxRing, Violation};
use crate::counter::BurstCounts;
use crate::eventfd::RingWake;
use crate::guard::{Burst, BurstFlag};
use crate::mbuf::{Header, Mbuf, Segments, free};
use crate::mempool::Mempool;
use crate::port_id::PortId;

/// A receive queue and a transmit queue of a memif port, which use the rings of their number. Other queues of the port
/// may burst at the same time.
pub(crate) struct Queue {
    port: PortId,
    number: u16,
    flag: BurstFlag,
    /// `None` if the process has no descriptor left.
    wake: Option<Arc<RingWake>>,
}

/// The connection during a burst: shared by the port's queues, except for the rings of the burst's queue.
struct Connection<'a> {
    live: &'a Live,
    rings: &'a mut Rings,
    burst: Burst<'a>,
}

impl Queue {
    /// The queue `number` of `port`. The caller makes only one `Queue` for each number of an open port.
    pub(crate) fn new(port: PortId, number: u16) -> Self {
        let wake = RingWake::new();
        if let Some(wake) = &wake {
            add_wake(port, number, wake.clone());
        }
        Self { port, number, flag: BurstFlag::new(), wake }
    }

    /// Returns a descriptor that is readable when frames arrive while the queue is armed, and after the connection has
    /// begun or ended.
    pub(crate) fn wake_fd(&self) -> Option<BorrowedFd<'_>> {
        self.wake.as_ref().map(|wake| wake.fd())
    }

    /// Makes the peer raise the queue's interrupt, and forgets earlier interrupts. False if the peer cannot, or its
    /// connection is changing at present.
    pub(crate) fn arm(&mut self) -> bool {
        let Some(wake) = self.wake.clone() else { return false };
        // Before the connection is looked at, so that a later change makes the descriptor readable again.
        wake.clear_link_change();
        let Some(_burst) = self.flag.begin() else { return false };
        // SAFETY: during a burst of this queue.
        // Without a connection, its begin is all there is to wait for.
        let Some((_, rings)) = (unsafe { rings_of(self.port, self.number) }) else { return true };
        let (Some(ring), Some(event)) = (&mut rings.rx, &rings.rx_event) else { return false };
        event.clear();
        if !ring.is_armed() {
            ring.set_armed(true);
            if !heavy_barrier() {
                ring.set_armed(false);
            }
        }
        ring.is_armed()
    }

    /// Whether the port has a connection.
    pub(crate) fn is_connected(&self) -> bool {
        !live(self.port).is_null()
    }

    /// Makes the peer raise no interrupt.
    pub(crate) fn disarm(&mut self) {
        if let Some(Connection { rings: Rings { rx: Some(ring), .. }, .. }) = self.connection()
            && ring.is_armed()
        {
            ring.set_armed(false);
        }
    }

    /// Begins a burst; `None` if the port has no live connection, or its peer is in violation.
    #[inline]
    fn connection(&mut self) -> Option<Connection<'_>> {
        let burst = self.flag.begin()?;
        // SAFETY: during a burst of this queue.
        let (live, rings) = unsafe { rings_of(self.port, self.number) }?;
        Some(Connection { live, rings, burst })
    }

    /// Receives at most `frames.len()` frames and returns their number.
    #[inline]
    pub(crate) fn rx(&mut self, pool: &Mempool, frames: &mut [*mut rte_mbuf], counts: &BurstCounts) -> usize {
        let Some(Connection { live, rings, burst: _burst }) = self.connection() else { return 0 };
        rx_live(&live.map, rings, pool, frames, counts).unwrap_or_else(|(received, _)| {
            live.give_up(counts);
            received
        })
    }

    /// Sends `frames` in order, as many as there is room for; frees those and returns their number.
    #[inline]
    pub(crate) fn tx(&mut self, frames: &mut [*mut rte_mbuf], counts: &BurstCounts) -> usize {
        let Some(Connection { live, rings, burst }) = self.connection() else { return 0 };
        let Some(ring) = &mut rings.tx else { return 0 };
        let (taken, outcome) = tx_live(&live.map, ring, frames, counts);
        if taken > 0 && notify(rings.tx_event.as_ref(), || ring.is_masked()) {
            counts.tx_interrupts.add(1);
        }
        if outcome.is_err() {
            live.give_up(counts);
        }
        drop(burst);
        free(frames.get_mut(..taken).unwrap_or_default());
        taken
    }
}

/// Returns the connection of `port` and the rings of its queue `number`; `None` if the port has no live connection, its
/// peer is in violation, or the connection has no such rings.
///
/// # Safety
/// The caller has begun a burst of this queue, and calls this function once in the burst. The references must not
/// outlive the burst.
#[inline]
unsafe fn rings_of<'a>(port: PortId, number: u16) -> Option<(&'a Live, &'a mut Rings)> {
    // SAFETY: dropped by handlers and control operations only, and none of those runs during a burst.
    let live = unsafe { live(port).as_ref() }.filter(|live| !live.broken.load(Ordering::Relaxed))?;
    // SAFETY: only bursts of this queue access these rings, and they are made one at a time.
    let rings = unsafe { &mut *live.rings.get(usize::from(number))?.get() };
    Some((live, rings))
}

impl Live {
    /// Makes the driver close the connection, on its own thread.
    #[cold]
    fn give_up(&self, counts: &BurstCounts) {
        // Another queue may have found a violation in the same moment.
        if !self.broken.swap(true, Ordering::Relaxed) {
            counts.violations.add(1);
            // SAFETY: the control connection's descriptor is open as long as the connection is live.
            unsafe { libc::shutdown(self.fd, libc::SHUT_RDWR) };
        }
    }
}

/// Receives over a live connection. The error has the number of frames received before the violation.
#[inline]
fn rx_live(
    map: &Map,
    rings: &mut Rings,
    pool: &Mempool,
    frames: &mut [*mut rte_mbuf],
    counts: &BurstCounts,
) -> Result<usize, (usize, Violation)> {
    let Rings { rx: Some(ring), pieces, .. } = rings else { return Ok(0) };
    let mut available = ring.available().map_err(|violation| (0, violation))?;
    // At most as many frames as slots, and as the pool has mbufs for.
    let mut most = frames.len().min(usize::from(available));
    while most > 0 && !pool.alloc_raw(frames.get_mut(..most).unwrap_or_default()) {
        counts.rx_no_mbuf.add(1);
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
                if !filled {
                    counts.rx_no_mbuf.add(1);
                }
                bytes += if filled { pieces.len_bytes() as u64 } else { 0 };
            }
            Ok(Taken::Dropped) => counts.rx_bad.add(1),
            Err(found) => {
                violation = Some(found);
                break;
            }
        }
    }
    free(frames.get_mut(received..).unwrap_or_default());
    counts.rx_frames.add(received as u64);
    counts.rx_bytes.add(bytes);
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

/// Returns how many frames were sent or dropped, and the violation that ended the burst, if any.
#[inline]
fn tx_live(
    map: &Map,
    ring: &mut TxRing,
    frames: &[*mut rte_mbuf],
    counts: &BurstCounts,
) -> (usize, Result<(), Violation>) {
    let mut available = match ring.available() {
        Ok(available) => available,
        Err(violation) => return (0, Err(violation)),
    };
    let (mut taken, mut sent, mut bytes) = (0, 0, 0);
    let mut outcome = Ok(());
    for raw in frames.iter().filter_map(|raw| NonNull::new(*raw)) {
        // SAFETY: an mbuf that the caller owns until it is freed, after this.
        let segments = unsafe { Segments::of(raw) };
        match ring.put(map, &mut available, segments) {
            Ok(Put::Frame) => {
                sent += 1;
                // SAFETY: as above.
                bytes += u64::from(unsafe { Header::new(raw) }.pkt_len());
            }
            Ok(Put::Dropped) => counts.tx_bad.add(1),
            Ok(Put::Full) => break,
            Err(violation) => {
                outcome = Err(violation);
                break;
            }
        }
        taken += 1;
    }
    counts.tx_frames.add(sent);
    counts.tx_bytes.add(bytes);
    if taken > 0 {
        ring.publish();
    }
    (taken, outcome)
}
