//! AckReq: the bit by which a request packet requests an ACK (IBA 9.7.5.1).

use crate::qp::outstanding::MAX_OUTSTANDING_PSNS;

/// Maximum distance between packets with AckReq, in packets: a long message is acknowledged before its end.
pub const ACK_REQ_INTERVAL_PKTS: u32 = 32;

const _: () = assert!(ACK_REQ_INTERVAL_PKTS < MAX_OUTSTANDING_PSNS);

/// Number of packets sent since the last packet with AckReq.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct AckReq {
    since_pkts: u32,
}

impl AckReq {
    /// Returns whether the next packet has AckReq. `is_last`: the packet ends its message. `window_pkts`: packets that
    /// may be in flight. `unacked_pkts`: packets in flight. `is_overdue`: the time since the last packet with AckReq is
    /// at least the shortest round trip measured on the connection; always false without a pacer, or under go-back-N.
    #[inline(always)]
    pub(super) fn is_due(
        self,
        is_last: bool,
        window_pkts: impl FnOnce() -> u32,
        unacked_pkts: impl FnOnce() -> u32,
        is_overdue: impl FnOnce() -> bool,
    ) -> bool {
        let ends_interval = |window_pkts| {
            // AckReq at least twice in a window, so that the ACK of one half arrives while the other half is in flight.
            self.since_pkts + 1 >= ACK_REQ_INTERVAL_PKTS.min(window_pkts / 2)
                // AckReq in the last packet of the window, because only an ACK opens the window.
                || unacked_pkts() + 1 >= window_pkts
                || is_overdue()
        };
        is_last || ends_interval(window_pkts())
    }

    /// Records that a packet was sent, with AckReq or without.
    #[inline]
    pub(super) fn on_sent(&mut self, has_ack_req: bool) {
        self.since_pkts = if has_ack_req { 0 } else { self.since_pkts + 1 };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Columns: name; packets of the message; packets in flight before the message; window in packets; index of the
    /// first packet for which `is_overdue` returns true; indices of the packets with AckReq. No ACK arrives.
    type Row = (&'static str, u32, u32, u32, Option<u32>, &'static [u32]);

    #[rustfmt::skip]
    const ROWS: &[Row] = &[
        ("a message of one packet",             1,   0, 256, None,    &[0]),
        ("a message of an interval",            32,  0, 256, None,    &[31]),
        ("one packet more",                     33,  0, 256, None,    &[31, 32]),
        ("three intervals",                     96,  0, 256, None,    &[31, 63, 95]),
        ("twice in a window",                   20,  0, 20,  None,    &[9, 19]),
        ("twice in an odd window",              21,  0, 21,  None,    &[9, 19, 20]),
        ("a window of two packets",             2,   0, 2,   None,    &[0, 1]),
        ("a window of one packet",              1,   0, 1,   None,    &[0]),
        ("the last packet of the window",       10,  7, 16,  None,    &[7, 8, 9]),
        ("a window that shrank below in flight", 3,  20, 16, None,    &[0, 1, 2]),
        ("an overdue ACK",                      10,  0, 256, Some(4), &[4, 5, 6, 7, 8, 9]),
    ];

    #[test]
    fn packets_with_ack_req() {
        for (name, packets, in_flight_pkts, window_pkts, overdue_from, wanted) in ROWS {
            let mut ack_req = AckReq::default();
            let mut set = Vec::new();
            for index in 0..*packets {
                let is_overdue = || overdue_from.is_some_and(|from| index >= from);
                let is_last = index + 1 == *packets;
                let is_due = ack_req.is_due(is_last, || *window_pkts, || in_flight_pkts + index, is_overdue);
                ack_req.on_sent(is_due);
                if is_due {
                    set.push(index);
                }
            }
            assert_eq!(set, *wanted, "{name}");
        }
    }
}
