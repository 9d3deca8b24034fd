//! Loss window: the largest number of packets in flight under improved go-back-N, where a loss causes the
//! retransmission of all packets in flight. Under selective repeat the loss window limits `max_sent - una`, and only
//! packets dropped by a full reorder buffer count as losses. No limit applies before the first loss, and after the
//! window has grown beyond `LOSS_WINDOW_PKTS_MAX`.
//!
//! ```text
//!   loss without a limit:    a third of the packets acknowledged while no limit applied,
//!                            at most 3/4 of max_sent - una
//!   loss with a limit:       window * 3/4, at most 3/4 of max_sent - una
//!   smallest window:         16 packets; 32 after two losses within 16 packets
//!   a window acknowledged without a loss:    window * 9/8
//!   If 29 % of the windows have a loss, the window is constant on average. If 1 % of the packets are lost, 29 % of the
//!   windows of 34 packets have a loss.
//! ```

#[derive(Clone, Copy, Debug)]
pub(crate) struct LossWindow {
    window_pkts: u32,
    /// Number of packets acknowledged since the loss window last changed; at most `u16::MAX`.
    acked_pkts: u16,
    /// Whether the loss window last changed by a loss.
    has_shrunk: bool,
}

// With 4 more bytes, the fields of the requester that a SEND needs would fill two more cache lines.
const _: () = assert!(size_of::<LossWindow>() == 8);

const LOSS_WINDOW_PKTS_MIN: u32 = 16;
/// The smallest loss window after two losses within `LOSS_WINDOW_PKTS_MIN` packets. These packets are more probably
/// reordered than lost: a packet sent several times arrives in order sooner, so that a smaller window would be slower.
const REORDERING_WINDOW_PKTS_MIN: u32 = 32;

/// The largest limited loss window, in packets. A window that grows beyond this number becomes unlimited.
const LOSS_WINDOW_PKTS_MAX: u32 = 1024;

impl Default for LossWindow {
    fn default() -> Self {
        LossWindow { window_pkts: u32::MAX, acked_pkts: 0, has_shrunk: false }
    }
}

impl LossWindow {
    /// Returns the number of packets that may be in flight; `u32::MAX`: no limit.
    #[inline]
    pub(crate) fn window_pkts(&self) -> u32 {
        self.window_pkts
    }

    /// Records `acked_pkts` newly acknowledged packets. If `lost` is true, a packet was lost or the peer's reorder
    /// buffer had no room, and the loss window shrinks. `sent_pkts` is `max_sent - una`.
    #[inline]
    pub(crate) fn on_ack_event(&mut self, acked_pkts: u32, sent_pkts: u32, lost: bool) {
        self.acked_pkts = self.acked_pkts.saturating_add(u16::try_from(acked_pkts).unwrap_or(u16::MAX));
        let acked_pkts = u32::from(self.acked_pkts);
        if lost {
            let likely_pkts = if self.window_pkts == u32::MAX { acked_pkts / 3 } else { u32::MAX };
            let is_reordering = self.has_shrunk && acked_pkts < LOSS_WINDOW_PKTS_MIN;
            let min_pkts = if is_reordering { REORDERING_WINDOW_PKTS_MIN } else { LOSS_WINDOW_PKTS_MIN };
            let window_pkts =
                (self.window_pkts.min(sent_pkts).min(LOSS_WINDOW_PKTS_MAX) * 3 / 4).min(likely_pkts);
            *self = LossWindow { window_pkts: window_pkts.max(min_pkts), acked_pkts: 0, has_shrunk: true };
        } else if acked_pkts >= self.window_pkts && self.window_pkts != u32::MAX {
            (self.acked_pkts, self.has_shrunk) = (0, false);
            self.window_pkts += self.window_pkts.div_ceil(8);
            if self.window_pkts > LOSS_WINDOW_PKTS_MAX {
                self.window_pkts = u32::MAX;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_window_follows_the_losses() {
        let mut loss_window = LossWindow::default();
        loss_window.on_ack_event(1 << 20, 1 << 20, false);
        assert_eq!(loss_window.window_pkts(), u32::MAX, "without loss there is no bound");
        loss_window.on_ack_event(3, 128, true);
        assert_eq!(loss_window.window_pkts(), 96);
        loss_window.on_ack_event(95, 96, false);
        assert_eq!(loss_window.window_pkts(), 96);
        loss_window.on_ack_event(1, 96, false);
        assert_eq!(loss_window.window_pkts(), 108);
        (0..20).for_each(|_| loss_window.on_ack_event(LOSS_WINDOW_PKTS_MIN, 1 << 20, true));
        assert_eq!(loss_window.window_pkts(), LOSS_WINDOW_PKTS_MIN);
        loss_window.on_ack_event(LOSS_WINDOW_PKTS_MIN, LOSS_WINDOW_PKTS_MIN, false);
        assert_eq!(loss_window.window_pkts(), LOSS_WINDOW_PKTS_MIN + LOSS_WINDOW_PKTS_MIN / 8);
        (0..60).for_each(|_| loss_window.on_ack_event(LOSS_WINDOW_PKTS_MAX, 0, false));
        assert_eq!(loss_window.window_pkts(), u32::MAX);
        loss_window.on_ack_event(0, u32::MAX, true);
        assert_eq!(loss_window.window_pkts(), LOSS_WINDOW_PKTS_MAX * 3 / 4);
    }

    #[test]
    fn frequent_losses_are_taken_for_reordering() {
        let mut loss_window = LossWindow::default();
        loss_window.on_ack_event(0, 128, true);
        assert_eq!(loss_window.window_pkts(), LOSS_WINDOW_PKTS_MIN, "no earlier loss");
        for (acked_pkts, window_pkts) in [
            (LOSS_WINDOW_PKTS_MIN - 1, REORDERING_WINDOW_PKTS_MIN),
            (LOSS_WINDOW_PKTS_MIN - 1, REORDERING_WINDOW_PKTS_MIN),
            (LOSS_WINDOW_PKTS_MIN, REORDERING_WINDOW_PKTS_MIN * 3 / 4),
            (LOSS_WINDOW_PKTS_MIN, REORDERING_WINDOW_PKTS_MIN * 9 / 16),
            (LOSS_WINDOW_PKTS_MIN, LOSS_WINDOW_PKTS_MIN),
        ] {
            loss_window.on_ack_event(acked_pkts, 128, true);
            assert_eq!(loss_window.window_pkts(), window_pkts, "{acked_pkts} after the last loss");
        }
        loss_window.on_ack_event(LOSS_WINDOW_PKTS_MIN, 128, false);
        loss_window.on_ack_event(0, 128, true);
        assert_eq!(
            loss_window.window_pkts(),
            LOSS_WINDOW_PKTS_MIN,
            "a window was acknowledged since the last loss"
        );
    }

    #[test]
    fn the_first_loss_tells_of_the_next() {
        for (acked_pkts, window_pkts) in [(0, LOSS_WINDOW_PKTS_MIN), (90, 30), (300, 96)] {
            let mut loss_window = LossWindow::default();
            loss_window.on_ack_event(acked_pkts / 2, 128, false);
            loss_window.on_ack_event(acked_pkts / 2, 128, true);
            assert_eq!(loss_window.window_pkts(), window_pkts, "after {acked_pkts}");
        }
    }
}
