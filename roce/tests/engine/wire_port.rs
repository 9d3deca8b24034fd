//! A port for test harnesses: a harness adds frames for the engine, and removes the frames that the engine has sent.
//! The port allocates no memory while the engine polls.

#![allow(dead_code)] // each harness uses its part

use roce::id::Mac;
use roce::port::{Port, PortCaps};
use std::collections::VecDeque;
use std::rc::Rc;

/// Largest number of frames that the engine sends in one poll.
const FRAMES_MAX: usize = 128;
pub(crate) const MTU_BYTES: usize = 4200;

/// Initial value of all bytes of a transmit buffer.
pub(crate) const STALE: u8 = 0xBA;

pub(crate) struct WirePort {
    mac: Mac,
    /// Frames in flight to the engine. The harness has a second reference to each frame.
    pub incoming: VecDeque<Rc<[u8]>>,
    /// Number of frames that the engine has received.
    pub taken: u64,
    /// Number of further frames that the port accepts from the engine.
    pub room: usize,
    bytes: Vec<u8>,
    lens: Vec<usize>,
}

impl WirePort {
    pub(crate) fn new(mac: Mac) -> Self {
        WirePort {
            mac,
            incoming: VecDeque::new(),
            taken: 0,
            room: usize::MAX,
            bytes: Vec::with_capacity(FRAMES_MAX * (MTU_BYTES + 18)),
            lens: Vec::with_capacity(FRAMES_MAX),
        }
    }

    /// Returns the frames sent since the last call.
    pub(crate) fn take_sent(&mut self) -> Vec<Vec<u8>> {
        let mut rest = self.bytes.as_slice();
        let frames = self.lens.iter().map(|len| {
            let (frame, after) = rest.split_at(*len);
            rest = after;
            frame.to_vec()
        });
        let frames = frames.collect();
        self.bytes.clear();
        self.lens.clear();
        frames
    }
}

impl Port for WirePort {
    type Frame = Rc<[u8]>;

    fn caps(&self) -> PortCaps {
        PortCaps { mac: self.mac, mtu_bytes: MTU_BYTES }
    }

    fn rx_burst(&mut self, frames: &mut Vec<Rc<[u8]>>, max: usize) -> usize {
        let count = self.incoming.len().min(max);
        frames.extend(self.incoming.drain(..count));
        self.taken += count as u64;
        count
    }

    fn tx_reserve(&mut self, len_bytes: usize) -> Option<&mut [u8]> {
        assert!(len_bytes <= self.caps().frame_bytes_max(), "a frame of {len_bytes} bytes");
        self.room = self.room.checked_sub(1)?;
        assert!(self.lens.len() < FRAMES_MAX, "one poll sends without bound");
        let start = self.bytes.len();
        self.bytes.resize(start + len_bytes, STALE);
        self.lens.push(len_bytes);
        Some(&mut self.bytes[start..])
    }

    fn tx_cancel(&mut self) {
        let len_bytes = self.lens.pop().expect("a reservation");
        self.bytes.truncate(self.bytes.len() - len_bytes);
        self.room = self.room.saturating_add(1);
    }

    fn tx_flush(&mut self) {}
}
