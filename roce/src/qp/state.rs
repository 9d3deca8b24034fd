//! Queue pair states, and the attributes that each transition requires and allows (IBA 10.3.1, 11.2.5.2).
//!
//! ```text
//!   RESET --> INIT --> RTR --> RTS <--> SQD        any state --> RESET
//!                               ^                  any state --> ERR
//!                               '-- SQE            unreliable services only
//! ```

use std::fmt;

use super::service::ServiceType;

/// State of a queue pair, numbered as `enum ibv_qp_state`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum QpState {
    /// Created or reset: work requests cannot be posted, and received packets are dropped.
    Reset = 0,
    /// Receives may be posted; received packets are dropped.
    Init = 1,
    /// Ready to receive: the peer's requests are executed; receives may be posted, send work requests may not.
    Rtr = 2,
    /// Ready to send: send work requests and receives may be posted; requests are sent and executed.
    Rts = 3,
    /// Send queue drain: send work requests that have started are completed; no other send work request starts.
    Sqd = 4,
    /// Send queue error, of unreliable services only: a send work request failed, and later send work requests are
    /// flushed; the peer's requests are still executed.
    Sqe = 5,
    /// Error: all work requests are flushed, and received packets are dropped.
    Err = 6,
}

impl QpState {
    /// Returns the name in `enum ibv_qp_state` without its prefix `IBV_QPS_`.
    pub const fn name(self) -> &'static str {
        match self {
            QpState::Reset => "RESET",
            QpState::Init => "INIT",
            QpState::Rtr => "RTR",
            QpState::Rts => "RTS",
            QpState::Sqd => "SQD",
            QpState::Sqe => "SQE",
            QpState::Err => "ERR",
        }
    }

    /// Returns whether received packets are processed in this state: true in RTR, RTS, SQD and SQE.
    pub const fn receives(self) -> bool {
        matches!(self, QpState::Rtr | QpState::Rts | QpState::Sqd | QpState::Sqe)
    }

    /// Returns whether send work requests are flushed in this state: true in SQE and ERR.
    pub(crate) const fn flushes_sends(self) -> bool {
        matches!(self, QpState::Sqe | QpState::Err)
    }

    /// Returns whether send work requests may be posted in this state. Send work requests posted in SQE or ERR are
    /// flushed.
    pub(crate) const fn takes_sends(self) -> bool {
        matches!(self, QpState::Rts | QpState::Sqd | QpState::Sqe | QpState::Err)
    }
}

impl fmt::Display for QpState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A set of attributes: bits of `enum ibv_qp_attr_mask`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AttrMask(pub u32);

macro_rules! attr_bits {
    ($($name:ident = $bit:literal),* $(,)?) => {
        impl AttrMask {
            $(#[doc = concat!("IBV_QP_", stringify!($name), ".")] pub const $name: AttrMask = AttrMask(1 << $bit);)*
            const NAMES: &'static [(AttrMask, &'static str)] = &[$((AttrMask::$name, stringify!($name))),*];
        }
    };
}

attr_bits! {
    CUR_STATE = 1, ACCESS_FLAGS = 3, PKEY_INDEX = 4, PORT = 5, QKEY = 6, AV = 7, PATH_MTU = 8, TIMEOUT = 9,
    RETRY_CNT = 10, RNR_RETRY = 11, RQ_PSN = 12, MAX_QP_RD_ATOMIC = 13, MIN_RNR_TIMER = 15, SQ_PSN = 16,
    MAX_DEST_RD_ATOMIC = 17, DEST_QPN = 20,
}

impl AttrMask {
    /// The empty set of attributes.
    pub const NONE: AttrMask = AttrMask(0);

    /// Returns the attributes of this set that are not in `other`.
    pub const fn without(self, other: AttrMask) -> AttrMask {
        AttrMask(self.0 & !other.0)
    }

    /// Returns whether the set has no attribute.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    const fn and(self, other: AttrMask) -> AttrMask {
        AttrMask(self.0 | other.0)
    }
}

impl std::ops::BitOr for AttrMask {
    type Output = AttrMask;

    fn bitor(self, other: AttrMask) -> AttrMask {
        self.and(other)
    }
}

impl fmt::Display for AttrMask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> =
            Self::NAMES.iter().filter(|(bit, _)| self.0 & bit.0 != 0).map(|(_, name)| *name).collect();
        f.write_str(if names.is_empty() { "none" } else { "" })?;
        f.write_str(&names.join(" "))
    }
}

struct Transition {
    from: QpState,
    to: QpState,
    required: AttrMask,
    optional: AttrMask,
}

const fn row(from: QpState, to: QpState, required: AttrMask, optional: AttrMask) -> Transition {
    Transition { from, to, required, optional }
}

/// Transitions of a reliable connection, except those to RESET and ERR: these two are permitted in every state, and
/// allow the attribute `CUR_STATE` only.
#[rustfmt::skip]
const RC_TRANSITIONS: &[Transition] = {
    use QpState::*;
    type M = AttrMask;
    const IDENTITY: AttrMask = M::PKEY_INDEX.and(M::PORT).and(M::ACCESS_FLAGS);
    const RECEIVE: AttrMask =
        M::AV.and(M::PATH_MTU).and(M::DEST_QPN).and(M::RQ_PSN).and(M::MAX_DEST_RD_ATOMIC).and(M::MIN_RNR_TIMER);
    const SEND: AttrMask = M::TIMEOUT.and(M::RETRY_CNT).and(M::RNR_RETRY).and(M::SQ_PSN).and(M::MAX_QP_RD_ATOMIC);
    const LIVE: AttrMask = M::CUR_STATE.and(M::ACCESS_FLAGS).and(M::MIN_RNR_TIMER);
    const DRAINED: AttrMask = IDENTITY.and(M::AV).and(M::TIMEOUT).and(M::RETRY_CNT).and(M::RNR_RETRY)
        .and(M::MAX_QP_RD_ATOMIC).and(M::MAX_DEST_RD_ATOMIC).and(M::MIN_RNR_TIMER);
    &[
        //  from   to     required   optional
        row(Reset, Init,  IDENTITY,  M::NONE),
        row(Init,  Init,  M::NONE,   IDENTITY),
        row(Init,  Rtr,   RECEIVE,   M::ACCESS_FLAGS.and(M::PKEY_INDEX)),
        row(Rtr,   Rts,   SEND,      LIVE),
        row(Rts,   Rts,   M::NONE,   LIVE),
        row(Rts,   Sqd,   M::NONE,   M::NONE),
        row(Sqd,   Rts,   M::NONE,   LIVE),
        row(Sqd,   Sqd,   M::NONE,   DRAINED),
    ]
};

/// Transitions of an unreliable connection, except those to RESET and ERR; see [`RC_TRANSITIONS`].
#[rustfmt::skip]
const UC_TRANSITIONS: &[Transition] = {
    use QpState::*;
    type M = AttrMask;
    const IDENTITY: AttrMask = M::PKEY_INDEX.and(M::PORT).and(M::ACCESS_FLAGS);
    const RECEIVE: AttrMask = M::AV.and(M::PATH_MTU).and(M::DEST_QPN).and(M::RQ_PSN);
    const LIVE: AttrMask = M::CUR_STATE.and(M::ACCESS_FLAGS);
    &[
        //  from   to     required   optional
        row(Reset, Init,  IDENTITY,  M::NONE),
        row(Init,  Init,  M::NONE,   IDENTITY),
        row(Init,  Rtr,   RECEIVE,   M::ACCESS_FLAGS.and(M::PKEY_INDEX)),
        row(Rtr,   Rts,   M::SQ_PSN, LIVE),
        row(Rts,   Rts,   M::NONE,   LIVE),
        row(Rts,   Sqd,   M::NONE,   M::NONE),
        row(Sqd,   Rts,   M::NONE,   LIVE),
        row(Sqd,   Sqd,   M::NONE,   M::AV.and(M::ACCESS_FLAGS).and(M::PKEY_INDEX)),
        row(Sqe,   Rts,   M::NONE,   LIVE),
    ]
};

/// Transitions of a queue pair of UD, except those to RESET and ERR; see [`RC_TRANSITIONS`].
#[rustfmt::skip]
const UD_TRANSITIONS: &[Transition] = {
    use QpState::*;
    type M = AttrMask;
    const IDENTITY: AttrMask = M::PKEY_INDEX.and(M::PORT).and(M::QKEY);
    const LIVE: AttrMask = M::CUR_STATE.and(M::QKEY);
    &[
        //  from   to     required   optional
        row(Reset, Init,  IDENTITY,  M::NONE),
        row(Init,  Init,  M::NONE,   IDENTITY),
        row(Init,  Rtr,   M::NONE,   M::PKEY_INDEX.and(M::QKEY)),
        row(Rtr,   Rts,   M::SQ_PSN, LIVE),
        row(Rts,   Rts,   M::NONE,   LIVE),
        row(Rts,   Sqd,   M::NONE,   M::NONE),
        row(Sqd,   Rts,   M::NONE,   LIVE),
        row(Sqd,   Sqd,   M::NONE,   M::PKEY_INDEX.and(M::QKEY)),
        row(Sqe,   Rts,   M::NONE,   LIVE),
    ]
};

/// Reason for refusing to modify a queue pair. State and attributes of the queue pair stay unchanged.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ModifyError {
    /// The state cannot change from `from` to `to`.
    #[error("a queue pair cannot go from {from} to {to}")]
    NoSuchTransition {
        /// Present state.
        from: QpState,
        /// Requested state.
        to: QpState,
    },
    /// Attributes are missing, or not allowed in this transition.
    #[error("{from} to {to}: missing {missing}; not allowed here: {not_allowed}")]
    WrongAttributes {
        /// Present state.
        from: QpState,
        /// Requested state.
        to: QpState,
        /// Required attributes that are not given.
        missing: AttrMask,
        /// Given attributes that are neither required nor optional.
        not_allowed: AttrMask,
    },
    /// The value of an attribute is out of range.
    #[error("{attribute} = {value} is out of range: {needed}")]
    OutOfRange {
        /// Name of the attribute.
        attribute: &'static str,
        /// Value given for the attribute.
        value: u64,
        /// Permitted values of the attribute, as text.
        needed: String,
    },
    /// The attribute cannot change after the transition to RTR, because the responder already uses its value.
    #[error(
        "{attribute} cannot change in {state}: give it with or before the transition to RTR; RESET permits a new one"
    )]
    Fixed {
        /// Name of the attribute.
        attribute: &'static str,
        /// Present state.
        state: QpState,
    },
    /// The present state is not `QpAttr::current_state`.
    #[error("the queue pair is in {actual}, not in {believed}")]
    NotInState {
        /// State that the caller gave as `QpAttr::current_state`.
        believed: QpState,
        /// Present state.
        actual: QpState,
    },
    /// The device has no queue pair with the QPN given.
    #[error("this device has no queue pair with that number")]
    UnknownQp,
    /// Packets cannot be sent with the address vector given.
    #[error("no path to {dgid}: {reason}")]
    NoPath {
        /// GID of the peer.
        dgid: crate::id::Gid,
        /// Cause and remedy, as text.
        reason: String,
    },
}

/// Checks that a queue pair of `service` may change from state `from` to `to` with exactly the attributes `given`.
pub(crate) fn check_transition(
    service: ServiceType,
    from: QpState,
    to: QpState,
    given: AttrMask,
) -> Result<(), ModifyError> {
    let anywhere = [Transition { from, to, required: AttrMask::NONE, optional: AttrMask::CUR_STATE }];
    let rows: &[Transition] = match to {
        QpState::Reset | QpState::Err => &anywhere,
        _ => match service {
            ServiceType::Rc => RC_TRANSITIONS,
            ServiceType::Uc => UC_TRANSITIONS,
            ServiceType::Ud => UD_TRANSITIONS,
        },
    };
    let row = rows
        .iter()
        .find(|row| row.from == from && row.to == to)
        .ok_or(ModifyError::NoSuchTransition { from, to })?;
    let missing = row.required.without(given);
    let not_allowed = given.without(row.required | row.optional);
    if missing.is_empty() && not_allowed.is_empty() {
        return Ok(());
    }
    Err(ModifyError::WrongAttributes { from, to, missing, not_allowed })
}

#[cfg(test)]
mod tests {
    use super::*;
    use QpState::*;

    const STATES: [QpState; 7] = [Reset, Init, Rtr, Rts, Sqd, Sqe, Err];

    #[test]
    fn every_state_can_be_reset_and_failed_and_few_other_ways_exist() {
        for (service, expected) in [(ServiceType::Rc, 8), (ServiceType::Uc, 9), (ServiceType::Ud, 9)] {
            for from in STATES {
                assert_eq!(check_transition(service, from, Reset, AttrMask::NONE), Ok(()));
                assert_eq!(check_transition(service, from, Err, AttrMask::NONE), Ok(()));
            }
            let listed = |from, to| {
                !matches!(
                    check_transition(service, from, to, AttrMask::NONE),
                    Result::Err(ModifyError::NoSuchTransition { .. })
                )
            };
            let ways =
                |from| STATES.iter().filter(|to| !matches!(to, Reset | Err) && listed(from, **to)).count();
            assert_eq!(STATES.into_iter().map(ways).sum::<usize>(), expected, "{}", service.name());
        }
    }

    #[test]
    fn a_refusal_names_what_was_missing_and_what_was_not_allowed() {
        let given = AttrMask::PORT | AttrMask::PKEY_INDEX | AttrMask::SQ_PSN;
        let refusal = check_transition(ServiceType::Rc, Reset, Init, given).unwrap_err();
        assert_eq!(refusal.to_string(), "RESET to INIT: missing ACCESS_FLAGS; not allowed here: SQ_PSN");
        let refusal = check_transition(ServiceType::Ud, Reset, Init, given).unwrap_err();
        assert_eq!(refusal.to_string(), "RESET to INIT: missing QKEY; not allowed here: SQ_PSN");
        let refusal = check_transition(ServiceType::Rc, Reset, Rts, given).unwrap_err();
        assert_eq!(refusal.to_string(), "a queue pair cannot go from RESET to RTS");
    }

    #[test]
    fn attribute_bits_are_those_of_libibverbs() {
        assert_eq!(AttrMask::DEST_QPN.0, 1 << 20);
        assert_eq!((AttrMask::QKEY.0, AttrMask::AV.0), (64, 128));
        assert_eq!(AttrMask::MAX_DEST_RD_ATOMIC.0, 131_072);
    }
}
