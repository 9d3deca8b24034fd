//! The unreliable connection (UC): SENDs and WRITEs without acknowledgement (IBA 9.8).

pub(crate) mod receiver;
pub(crate) mod sender;

use receiver::Receiver;
use sender::Sender;

/// The protocol state of an unreliable connection, from RTR on.
pub(crate) struct Uc {
    pub sender: Sender,
    pub receiver: Receiver,
}
