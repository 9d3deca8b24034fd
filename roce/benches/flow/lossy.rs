//! Messages under selective repeat, of whose frames some are dropped. Both ends are on one core.

use super::common::{End, pair_over, ports_of};
use super::{Case, MEMORY_BYTES, MTU, WINDOW_PKTS, selective};
use roce::qp::Placement;
use roce::queue::WcStatus;

/// Number of data packets of a measurement, without retransmissions.
pub(crate) const PACKETS: u64 = 6400;
/// Number of frame buffers of each port: a window of requests and its responses fit.
const PORT_FRAMES: usize = 1024;
/// Advance of the engines' clock per poll, in nanoseconds: about the time that a CPU needs for a burst of packets.
const POLL_NANOS: u64 = 5_000;

/// An end, to which frames are lost.
struct Receiver {
    end: End,
    /// Number of frames in flight that are not lost.
    spared: usize,
    /// State of the random numbers (xorshift), never 0.
    random: u32,
}

impl Receiver {
    /// Polls the end. Before this, of the frames in flight to it, drops one of `frames_per_loss` at random; none if
    /// `frames_per_loss` is 0.
    fn poll(&mut self, frames_per_loss: u32, nanos: u64) {
        let (spared, random) = (self.spared, &mut self.random);
        self.spared = self.end.engine.port_mut().lose(spared, |_| {
            *random ^= *random << 13;
            *random ^= *random >> 17;
            *random ^= *random << 5;
            *random < u32::MAX.checked_div(frames_per_loss).unwrap_or(0)
        });
        self.spared -= self.end.poll(nanos).rx_frames;
    }
}

/// A connection whose requester always has a window of packets in flight.
pub(crate) struct Lossy {
    a: Receiver,
    b: Receiver,
    case: Case,
    frames_per_loss: u32,
    nanos: u64,
}

impl Lossy {
    /// Returns a connection that loses one of `frames_per_loss` frames in each direction (0: none), after a warm-up of
    /// [`PACKETS`].
    pub(crate) fn new(case: Case, frames_per_loss: u32) -> Box<Self> {
        let (port_a, port_b) = ports_of(PORT_FRAMES);
        let conn = selective(Placement::Relaxed);
        let (a, mut b) = pair_over(port_a, port_b, MEMORY_BYTES, true, &conn);
        let depth = u64::from(WINDOW_PKTS / case.packets());
        (0..2 * depth).for_each(|wr_id| b.post_recv(wr_id, b.sge(0, MTU.bytes())));
        let [a, b] = [a, b].map(|end| Receiver { end, spared: 0, random: 1 });
        let mut lossy = Box::new(Lossy { a, b, case, frames_per_loss, nanos: 0 });
        (0..depth).for_each(|wr_id| lossy.post(wr_id));
        lossy.complete_packets();
        lossy
    }

    fn post(&mut self, wr_id: u64) {
        let a = &mut self.a.end;
        a.post(wr_id, self.case.op(&self.b.end), a.sge(0, self.case.len_bytes()));
    }

    /// Completes the messages of [`PACKETS`], and posts the next for each.
    pub(crate) fn complete_packets(&mut self) {
        let mut messages = PACKETS / u64::from(self.case.packets());
        while messages > 0 {
            self.nanos += POLL_NANOS;
            self.a.poll(self.frames_per_loss, self.nanos);
            while let Some(cqe) = self.a.end.poller.pop() {
                assert_eq!(cqe.status, WcStatus::Success);
                self.post(cqe.wr_id);
                messages = messages.saturating_sub(1);
            }
            self.b.poll(self.frames_per_loss, self.nanos);
            let b = &mut self.b.end;
            while let Some(cqe) = b.poller.pop() {
                assert_eq!(cqe.status, WcStatus::Success);
                b.post_recv(cqe.wr_id, b.sge(0, MTU.bytes()));
            }
        }
    }
}
