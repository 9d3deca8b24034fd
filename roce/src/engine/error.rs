use crate::id::Gid;
use crate::mem::RegisterError;

/// Reason why an object was not created.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CreateError {
    /// The number of objects of the kind `what` has reached the limit of the device.
    #[error("all {max} {what} of the device are in use: destroy one, or open the device with a higher limit")]
    TooMany {
        /// Kind of object.
        what: &'static str,
        /// Largest number of objects of the kind `what`.
        max: usize,
    },
    /// The value of an attribute is out of range.
    #[error("{what} = {value} is out of range: this device takes {min} to {max}")]
    OutOfRange {
        /// Name of the attribute.
        what: &'static str,
        /// Value of the attribute, passed by the caller.
        value: u64,
        /// Smallest valid value of the attribute.
        min: u64,
        /// Largest valid value of the attribute.
        max: u64,
    },
    /// The protection domain, completion queue or shared receive queue to be used does not exist.
    #[error("this device has no such {0}")]
    Unknown(&'static str),
    /// Packets cannot be sent with the address vector of an address handle.
    #[error("no path to {dgid}: {reason}")]
    NoPath {
        /// GID of the destination.
        dgid: Gid,
        /// Cause and remedy, as text.
        reason: String,
    },
    /// The memory region cannot be registered.
    #[error(transparent)]
    Register(#[from] RegisterError),
}

/// Reason why an object was not destroyed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DestroyError {
    /// The device has no object with this number or key.
    #[error("this device has no such {0}")]
    Unknown(&'static str),
    /// Other objects still use the object.
    #[error("the {0} is still in use: destroy the queue pairs and regions that use it first")]
    Busy(&'static str),
}

pub(super) fn check_range(what: &'static str, value: u32, min: u32, max: u32) -> Result<(), CreateError> {
    if (min..=max).contains(&value) {
        return Ok(());
    }
    Err(CreateError::OutOfRange { what, value: u64::from(value), min: u64::from(min), max: u64::from(max) })
}
