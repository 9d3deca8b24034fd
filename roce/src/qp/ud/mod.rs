//! The unreliable datagram service (UD, IBA 9.8.3): SENDs of one packet each, to any queue pair, without
//! acknowledgement. A queue pair of UD has no connection: each work request names its destination, and packets from any
//! source are received if they have the queue pair's Q_Key.
//!
//! ```text
//!   work request: AhId, QPN, Q_Key --sender--> BTH, DETH (Q_Key, source QPN), payload
//!   packet, Q_Key checked --receiver--> receive: | GRH area, 40 bytes | payload |, CQE with the source QPN
//! ```

pub(crate) mod receiver;
pub(crate) mod sender;

use crate::id::{QKey, Qpn};
use crate::psn::Psn;
use sender::Sender;

/// The protocol state of a queue pair of UD, from RTR on.
pub(crate) struct Ud {
    /// Q_Key that received packets must have. Sent packets have this Q_Key if their work request gives a controlled
    /// Q_Key.
    pub qkey: QKey,
    pub sender: Sender,
}

impl Ud {
    /// Creates the protocol state of a queue pair of UD. `first` and `ip_id` are the PSN and the IPv4 identification of
    /// the first packet sent.
    pub(crate) fn new(qpn: Qpn, qkey: QKey, first: Psn, ip_id: u16) -> Self {
        Ud { qkey, sender: Sender::new(qpn, first, ip_id) }
    }
}
