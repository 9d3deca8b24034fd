//! Two ports in one process, connected back to back, to measure the engine without a driver.
//!
//! ```text
//!   LoopbackPort a                                     LoopbackPort b
//!     free -> reserved --tx_flush--> Wire a->b --rx_burst--> LoopbackFrame
//!      ^                                                          |
//!      +-- the buffer is free when the LoopbackFrame is dropped --+
//! ```
//!
//! Each port has one reference to each of its buffers; a sent frame contains a second reference. A buffer is free if
//! its reference count is one, so no locked free list is needed. The two ports may run on one thread or on two threads.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::{Port, PortCaps};

/// Largest number of buffers that `tx_reserve` checks to find a free buffer. The user of the other port frees received
/// frames (`LoopbackFrame`) nearly in the order in which the frames were sent, so a free buffer is soon found.
const SEARCH_MAX: usize = 64;

struct Buffer {
    len_bytes: usize,
    bytes: Box<[u8]>,
}

/// A received frame; dropping the frame returns its buffer to the port that sent the frame.
pub struct LoopbackFrame(Arc<Buffer>);

impl AsRef<[u8]> for LoopbackFrame {
    fn as_ref(&self) -> &[u8] {
        &self.0.bytes[..self.0.len_bytes]
    }
}

/// Frames sent and not received yet, in one direction of a pair of ports.
struct Wire(Mutex<VecDeque<LoopbackFrame>>);

impl Wire {
    fn new(depth_frames: usize) -> Arc<Self> {
        Arc::new(Wire(Mutex::new(VecDeque::with_capacity(depth_frames))))
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<LoopbackFrame>> {
        // Poisoning of the mutex is ignored: no operation on the queue panics midway, so the queue is always
        // consistent.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Creates pairs of connected ports.
pub struct Loopback;

impl Loopback {
    /// Creates two connected ports; each port receives the frames of the other port. `depth_frames` bounds, per
    /// direction, the frames that are reserved by `tx_reserve`, on the wire, or received as a [`LoopbackFrame`] that
    /// is not dropped yet.
    pub fn pair(caps_a: PortCaps, caps_b: PortCaps, depth_frames: usize) -> (LoopbackPort, LoopbackPort) {
        let (a_to_b, b_to_a) = (Wire::new(depth_frames), Wire::new(depth_frames));
        (
            LoopbackPort::new(caps_a, depth_frames, a_to_b.clone(), b_to_a.clone()),
            LoopbackPort::new(caps_b, depth_frames, b_to_a, a_to_b),
        )
    }
}

/// One port of a [`Loopback::pair`].
pub struct LoopbackPort {
    caps: PortCaps,
    /// The buffers of this port: from index `next` on, modulo the length, first those not reserved by `tx_reserve`
    /// (free, on the wire, or of a received [`LoopbackFrame`] that is not dropped yet), then the `reserved` buffers.
    buffers: Box<[Arc<Buffer>]>,
    next: usize,
    reserved: usize,
    outgoing: Arc<Wire>,
    incoming: Arc<Wire>,
}

impl LoopbackPort {
    fn new(caps: PortCaps, depth_frames: usize, outgoing: Arc<Wire>, incoming: Arc<Wire>) -> Self {
        let buffer =
            || Arc::new(Buffer { len_bytes: 0, bytes: vec![0; caps.frame_bytes_max()].into_boxed_slice() });
        LoopbackPort {
            caps,
            buffers: (0..depth_frames).map(|_| buffer()).collect(),
            next: 0,
            reserved: 0,
            outgoing,
            incoming,
        }
    }

    /// Drops the frames in flight to this port for which `is_lost` returns true, except the first `spared`. Returns the
    /// number of frames left in flight.
    pub fn lose(&mut self, spared: usize, mut is_lost: impl FnMut(&LoopbackFrame) -> bool) -> usize {
        let mut incoming = self.incoming.lock();
        let mut index = 0;
        incoming.retain(|frame| {
            index += 1;
            index <= spared || !is_lost(frame)
        });
        incoming.len()
    }

    /// Searches `buffers` from index `next` on for a free buffer, and moves this buffer to index `next`. Examines at
    /// most `SEARCH_MAX` buffers, and no buffer that `tx_reserve` has reserved. Returns false if all examined buffers
    /// are in use.
    #[inline]
    fn find_free(&mut self) -> bool {
        let is_free = |buffer: &Arc<Buffer>| Arc::strong_count(buffer) == 1;
        if self.reserved < self.buffers.len() && self.buffers.get(self.next).is_some_and(is_free) {
            return true;
        }
        let ahead = (self.buffers.len() - self.reserved).min(SEARCH_MAX);
        let mut places = (self.next..self.next + ahead).map(|place| place % self.buffers.len());
        let Some(found) = places.find(|place| self.buffers.get(*place).is_some_and(is_free)) else {
            // If no buffer is reserved, advances `next`, so that the next search checks other buffers. If buffers are
            // reserved, `next` does not change, because the reserved buffers must be directly before `next`.
            if self.reserved == 0 {
                self.next = (self.next + ahead) % self.buffers.len().max(1);
            }
            return false;
        };
        self.buffers.swap(self.next, found);
        true
    }
}

impl Port for LoopbackPort {
    type Frame = LoopbackFrame;

    fn caps(&self) -> PortCaps {
        self.caps
    }

    fn rx_burst(&mut self, frames: &mut Vec<LoopbackFrame>, max: usize) -> usize {
        let mut incoming = self.incoming.lock();
        if incoming.is_empty() {
            return 0;
        }
        let count = incoming.len().min(max);
        frames.extend(incoming.drain(..count));
        count
    }

    fn tx_reserve(&mut self, len_bytes: usize) -> Option<&mut [u8]> {
        debug_assert!(len_bytes <= self.caps.frame_bytes_max(), "{len_bytes} bytes exceed the port's MTU");
        if len_bytes > self.caps.frame_bytes_max() || !self.find_free() {
            return None;
        }
        let place = self.next;
        self.next = if place + 1 < self.buffers.len() { place + 1 } else { 0 };
        self.reserved += 1;
        let buffer = Arc::get_mut(self.buffers.get_mut(place)?)?;
        buffer.len_bytes = len_bytes;
        buffer.bytes.get_mut(..len_bytes)
    }

    fn tx_cancel(&mut self) {
        debug_assert!(self.reserved > 0, "nothing is reserved");
        self.next = self.next.checked_sub(1).unwrap_or(self.buffers.len() - 1);
        self.reserved -= 1;
    }

    fn tx_flush(&mut self) {
        if self.reserved == 0 {
            return;
        }
        let mut outgoing = self.outgoing.lock();
        // The reserved buffers are directly before `next`, modulo the length: if fewer buffers than `reserved` are
        // before `next`, the first `wrapped` reserved buffers are at the end of `buffers`.
        let (before, after) = self.buffers.split_at(self.next);
        let wrapped = self.reserved.saturating_sub(before.len());
        for part in [&after[after.len() - wrapped..], &before[before.len() + wrapped - self.reserved..]] {
            outgoing.extend(part.iter().map(|buffer| LoopbackFrame(buffer.clone())));
        }
        self.reserved = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::Mac;

    const CAPS: PortCaps = PortCaps { mac: Mac([2, 0, 0, 0, 0, 1]), mtu_bytes: 1500 };

    fn send(port: &mut LoopbackPort, bytes: &[u8]) -> bool {
        let Some(buffer) = port.tx_reserve(bytes.len()) else { return false };
        buffer.copy_from_slice(bytes);
        port.tx_flush();
        true
    }

    fn receive(port: &mut LoopbackPort, max: usize) -> Vec<Vec<u8>> {
        let mut frames = Vec::new();
        assert_eq!(port.rx_burst(&mut frames, max), frames.len());
        frames.iter().map(|f| f.as_ref().to_vec()).collect()
    }

    #[test]
    fn frames_arrive_whole_and_in_order_and_only_after_the_flush() {
        let (mut a, mut b) = Loopback::pair(CAPS, CAPS, 8);
        a.tx_reserve(3).unwrap().copy_from_slice(b"one");
        a.tx_reserve(5).unwrap().copy_from_slice(b"three");
        assert!(receive(&mut b, 8).is_empty());
        a.tx_flush();
        assert_eq!(receive(&mut b, 1), [b"one".to_vec()]);
        assert_eq!(receive(&mut b, 8), [b"three".to_vec()]);
        assert!(send(&mut b, b"back"));
        assert_eq!(receive(&mut a, 8), [b"back".to_vec()]);
        assert!(receive(&mut b, 8).is_empty(), "a port does not hear itself");
    }

    #[test]
    fn a_cancelled_reservation_is_not_sent_and_leaves_its_buffer_free() {
        let (mut a, mut b) = Loopback::pair(CAPS, CAPS, 2);
        for round in 0..3 {
            a.tx_reserve(3).unwrap().copy_from_slice(b"one");
            a.tx_reserve(4).unwrap().fill(round);
            a.tx_cancel();
            a.tx_reserve(3).unwrap().copy_from_slice(b"two");
            assert!(a.tx_reserve(1).is_none());
            a.tx_flush();
            assert_eq!(receive(&mut b, 8), [b"one".to_vec(), b"two".to_vec()]);
            a.tx_reserve(1).unwrap().fill(round);
            a.tx_cancel();
            a.tx_flush();
            assert!(receive(&mut b, 8).is_empty());
        }
    }

    #[test]
    fn a_full_port_refuses_until_a_frame_is_dropped_and_reuses_its_buffers() {
        let (mut a, mut b) = Loopback::pair(CAPS, CAPS, 2);
        assert!(send(&mut a, b"1") && send(&mut a, b"2"));
        assert!(!send(&mut a, b"3"));
        let mut held = Vec::new();
        b.rx_burst(&mut held, 8);
        assert!(!send(&mut a, b"3"), "received, but not yet dropped");
        // `b` drops the second frame before the first frame, so the search for a free buffer skips the buffer of the
        // first frame.
        let at = held.pop().unwrap().as_ref().as_ptr();
        assert_eq!(a.tx_reserve(1).unwrap().as_ptr(), at);
        a.tx_flush();
        assert_eq!(held[0].as_ref(), b"1");
        assert!(!send(&mut a, b"4"));
    }

    #[test]
    fn frames_in_flight_are_lost_except_those_spared() {
        let (mut a, mut b) = Loopback::pair(CAPS, CAPS, 8);
        assert_eq!(b.lose(0, |_| true), 0);
        assert!([b"1", b"2", b"3", b"4"].iter().all(|frame| send(&mut a, *frame)));
        assert_eq!(b.lose(2, |frame| frame.as_ref() < b"4".as_slice()), 3);
        assert_eq!(receive(&mut b, 8), [b"1".to_vec(), b"2".to_vec(), b"4".to_vec()]);
        assert_eq!(a.lose(0, |_| true), 0, "a port does not lose its own frames");
    }

    #[test]
    fn the_whole_depth_can_be_reserved_in_one_burst() {
        let (mut a, mut b) = Loopback::pair(CAPS, CAPS, 100);
        for round in 0..3u8 {
            for _ in 0..100 {
                a.tx_reserve(1).unwrap()[0] = round;
            }
            assert!(a.tx_reserve(1).is_none());
            a.tx_flush();
            assert_eq!(receive(&mut b, 1000), vec![vec![round]; 100]);
        }
    }

    #[test]
    fn a_free_buffer_is_found_behind_many_frames_that_the_receiver_holds() {
        let (mut a, mut b) = Loopback::pair(CAPS, CAPS, SEARCH_MAX + 2);
        (0..SEARCH_MAX + 2).for_each(|_| assert!(send(&mut a, b"1")));
        let mut held = Vec::new();
        b.rx_burst(&mut held, SEARCH_MAX + 2);
        held.truncate(SEARCH_MAX);
        assert!((0..2).any(|_| send(&mut a, b"2")));
    }

    #[test]
    fn ends_may_live_on_different_threads() {
        let (mut a, mut b) = Loopback::pair(CAPS, CAPS, 4);
        let sender = std::thread::spawn(move || {
            for n in 0..1000u32 {
                while !send(&mut a, &n.to_be_bytes()) {
                    std::thread::yield_now();
                }
            }
        });
        let mut next = 0u32;
        while next < 1000 {
            for frame in receive(&mut b, 3) {
                assert_eq!(frame, next.to_be_bytes());
                next += 1;
            }
            std::thread::yield_now();
        }
        sender.join().unwrap();
    }
}
