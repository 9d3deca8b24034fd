use std::collections::VecDeque;

use super::Port;

/// If a [`Staging`] has at least this number of frames, `reserve` returns `None`. A [`Staging`] stores at most this
/// number of spare buffers.
const STAGED_FRAMES_MAX: usize = 1024;

/// Queue of frames of a port decorator: frames to be filled by the caller, or frames to be sent. Buffers are reused.
#[derive(Default)]
pub(super) struct Staging {
    frames: VecDeque<Vec<u8>>,
    spare: Vec<Vec<u8>>,
    /// True if the last call of `drain_into` left frames in `frames`, because the port given to this call was full.
    blocked: bool,
}

impl Staging {
    pub(super) fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    /// Appends a buffer of `len_bytes` bytes to `frames` and returns the buffer; `None` if `frames` is full, or if
    /// the last call of `drain_into` left frames in `frames` (`blocked`).
    pub(super) fn reserve(&mut self, len_bytes: usize) -> Option<&mut [u8]> {
        if self.blocked || self.frames.len() >= STAGED_FRAMES_MAX {
            return None;
        }
        let mut buffer = self.spare.pop().unwrap_or_default();
        buffer.resize(len_bytes, 0);
        self.frames.push_back(buffer);
        self.frames.back_mut().map(Vec::as_mut_slice)
    }

    /// Removes the buffer that the last call of `reserve` returned.
    pub(super) fn cancel(&mut self) {
        if let Some(buffer) = self.frames.pop_back() {
            self.recycle(buffer);
        }
    }

    pub(super) fn push(&mut self, frame: Vec<u8>) {
        self.frames.push_back(frame);
    }

    pub(super) fn pop(&mut self) -> Option<Vec<u8>> {
        self.frames.pop_front()
    }

    pub(super) fn recycle(&mut self, buffer: Vec<u8>) {
        if self.spare.len() < STAGED_FRAMES_MAX {
            self.spare.push(buffer);
        }
    }

    pub(super) fn return_spares(&mut self, other: &mut Staging) {
        self.spare.drain(..).for_each(|buffer| other.recycle(buffer));
    }

    /// Copies the queued frames to transmit buffers of `port`, and calls `sent` for each copied frame. If `port` has no
    /// free buffer, flushes `port` and retries once; if `port` is still full, the remaining frames stay queued. The
    /// caller must flush `port` after the call, because the frames copied last may not be flushed yet.
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
