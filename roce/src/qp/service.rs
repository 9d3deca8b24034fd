//! Transport services.

/// Transport service of a queue pair, numbered as `enum ibv_qp_type`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum ServiceType {
    /// Reliable connection: requests are acknowledged and retransmitted (IBA 9.7).
    #[default]
    Rc = 2,
    /// Unreliable connection: SENDs and WRITEs without acknowledgement. If a packet of a message is lost, the message
    /// is dropped (IBA 9.8).
    Uc = 3,
    /// Unreliable datagram: SENDs of one packet each, without acknowledgement, to any queue pair of this service (IBA
    /// 9.8.3).
    Ud = 4,
}

impl ServiceType {
    /// Returns the name in `enum ibv_qp_type` without its prefix `IBV_QPT_`.
    pub const fn name(self) -> &'static str {
        match self {
            ServiceType::Rc => "RC",
            ServiceType::Uc => "UC",
            ServiceType::Ud => "UD",
        }
    }
}
