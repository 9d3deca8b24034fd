//! A queue of frames between a decorator's caller and the port beneath, for decorators that must
//! see a frame after its caller has filled it.

use std::collections::VecDeque;

use super::Port;

/// Frames that may wait at once; a full queue is a full port to the caller.
const STAGED_FRAMES_MAX: usize = 1024;

/// Frames in the order they were reserved, in buffers that are used again.
#[derive(Default)]
pub(super) struct Staging {
    frames: VecDeque<Vec<u8>>,
    spare: Vec<Vec<u8>>,
    /// Whether the port beneath was full at the last drain.
    blocked: bool,
}

impl Staging {
    pub(super) fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    /// A buffer of `len_bytes` at the end of the queue, or `None` where the queue or the port beneath
    /// is full.
    pub(super) fn reserve(&mut self, len_bytes: usize) -> Option<&mut [u8]> {
        if self.blocked || self.frames.len() >= STAGED_FRAMES_MAX {
            return None;
        }
        let mut buffer = self.spare.pop().unwrap_or_default();
        buffer.resize(len_bytes, 0);
        self.frames.push_back(buffer);
        self.frames.back_mut().map(Vec::as_mut_slice)
    }

    pub(super) fn push(&mut self, frame: Vec<u8>) {
        self.frames.push_back(frame);
    }

    pub(super) fn pop(&mut self) -> Option<Vec<u8>> {
        self.frames.pop_front()
    }

    /// Gives a buffer back for a later `reserve`.
    pub(super) fn recycle(&mut self, buffer: Vec<u8>) {
        if self.spare.len() < STAGED_FRAMES_MAX {
            self.spare.push(buffer);
        }
    }

    /// Hands the buffers that are free for use again to `other`.
    pub(super) fn return_spares(&mut self, other: &mut Staging) {
        self.spare.drain(..).for_each(|buffer| other.recycle(buffer));
    }

    /// Copies the frames into `port`, telling `sent` of each; the caller flushes it. Frames that a port which is
    /// full after a flush does not take stay at the head of the queue for the next call, in order.
    pub(super) fn drain_into<P: Port>(&mut self, port: &mut P, mut sent: impl FnMut(&[u8])) {
        let mut flushed = false;
        while let Some(frame) = self.frames.pop_front() {
            if let Some(buffer) = port.tx_reserve(frame.len()) {
                buffer.copy_from_slice(&frame);
                sent(&frame);
                self.recycle(frame);
                flushed = false;
            } else {
                self.frames.push_front(frame);
                if flushed {
                    break;
                }
                port.tx_flush();
                flushed = true;
            }
        }
        self.blocked = !self.frames.is_empty();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_queue_is_bounded() {
        let mut staging = Staging::default();
        (0..STAGED_FRAMES_MAX).for_each(|_| assert!(staging.reserve(9).is_some()));
        assert!(staging.reserve(9).is_none());
        let buffer = staging.pop().unwrap();
        staging.recycle(buffer);
        assert!(staging.reserve(9).is_some());
    }
}
