//! The calls of an application for each message, in C and in Rust.

pub(crate) mod c;
pub(crate) mod rust;

/// Calls of each count, so few that no post drives the engine: the 16th post without a poll does.
pub(crate) const CALLS: u32 = 8;
/// Messages of a round of `warm_up`: the queues then have room for `CALLS` work requests, and do not grow any more.
const ROUND: u32 = 15;
/// Empty polls after which the application has taken over the port from the background thread, so that no post has to
/// wake that thread.
const POLLS: u32 = 4096;

pub(crate) const PORT: &str = "eal:net_ring62,ip=10.0.62.1/24";
pub(crate) const GID_INDEX: u8 = 1;
pub(crate) const DEPTH: u32 = 64;
pub(crate) const MESSAGE_BYTES: u32 = 64;
/// Local ACK timeout of 4.3 s.
pub(crate) const TIMEOUT: u8 = 20;

/// A queue pair that is connected with itself, and its two completion queues.
pub(crate) trait Calls {
    fn open() -> Self;
    /// Posts a signaled SEND with one scatter/gather entry.
    fn post_send(&mut self);
    /// Posts the same SEND step by step (`ibv_wr_start` to `ibv_wr_complete`).
    fn build_send(&mut self);
    /// Posts a receive with one scatter/gather entry.
    fn post_recv(&mut self);
    /// Returns whether the completion queue of the send queue had a completion.
    fn poll_send_cq(&mut self) -> bool;
    /// Returns whether the completion queue of the receive queue had a completion.
    fn poll_recv_cq(&mut self) -> bool;

    /// Sends messages whose receives are completed, and not polled.
    fn send(&mut self, messages: u32) {
        (0..messages).for_each(|_| self.post_recv());
        (0..messages).for_each(|_| self.post_send());
        let mut left = messages;
        while left > 0 {
            left -= u32::from(self.poll_send_cq());
        }
    }

    /// Brings queues and port to the state that they have in a program that sends and polls.
    fn warm_up(&mut self) {
        for _ in 0..4 {
            self.send(ROUND);
            (0..ROUND).for_each(|_| assert!(self.poll_recv_cq(), "a receive has completed"));
        }
        (0..POLLS).for_each(|_| assert!(!self.poll_send_cq()));
    }
}
