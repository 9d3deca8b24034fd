//! Congestion control: whether a packet may go now.
//!
//! A scheme is asked [`Congestion::permit`] before each packet of a requester, with what is in
//! flight. It never learns which packet it is.

/// The scheme of a queue pair, fixed when it is created.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Congestion {
    /// A fixed cap on packets in flight: no more than a bandwidth-delay product is of any use.
    Window {
        /// The cap.
        window_pkts: u32,
    },
}

impl Congestion {
    /// Whether one more packet may join `in_flight_pkts`.
    #[inline]
    pub fn permit(&self, in_flight_pkts: u32) -> bool {
        match *self {
            Congestion::Window { window_pkts } => in_flight_pkts < window_pkts,
        }
    }

    /// Whether the next packet is the last that fits: it then asks for an acknowledgement, or
    /// nothing would open the window again.
    #[inline]
    pub fn is_last_permit(&self, in_flight_pkts: u32) -> bool {
        !self.permit(in_flight_pkts + 1)
    }
}
