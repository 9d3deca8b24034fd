//! The error of ports.

use crate::errno::Errno;
use crate::log::{self, LogLines};

/// Reason why a port could not be opened or changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PortError {
    /// DPDK or the driver refused.
    #[error("port {device} ({driver}): {operation}: {errno}{log}")]
    Refused {
        /// Name of the device.
        device: String,
        /// Name of the driver.
        driver: String,
        /// Operation that failed.
        operation: String,
        /// Error number reported.
        errno: Errno,
        /// Lines that DPDK logged during the operation.
        log: LogLines,
    },
    /// A value outside of the device's range.
    #[error("port {device} ({driver}): {what} {wanted}, and the device takes {min} to {max}")]
    OutOfRange {
        /// Name of the device.
        device: String,
        /// Name of the driver.
        driver: String,
        /// The quantity.
        what: &'static str,
        /// Value requested.
        wanted: u32,
        /// Least value allowed.
        min: u32,
        /// Greatest value allowed.
        max: u32,
    },
    /// An operation beside which no burst may be made, without all queues of the port.
    #[error(
        "port {device} ({driver}): {operation} while {missing} of its queues may be in use: pass all queues of the port"
    )]
    QueuesInUse {
        /// Name of the device.
        device: String,
        /// Name of the driver.
        driver: String,
        /// Operation that failed.
        operation: &'static str,
        /// Number of queues that exist and were not passed.
        missing: usize,
    },
    /// The driver shares the pool with the kernel, and would lose frames sent from a pool that is not packed.
    #[error("port {device} ({driver}): its mempool must be a packed one (MempoolConfig::packed)")]
    PoolNotPacked {
        /// Name of the device.
        device: String,
        /// Name of the driver.
        driver: String,
    },
}

/// Names of device and driver, for error values.
pub(super) struct Context<'a> {
    pub(super) device: &'a str,
    pub(super) driver: &'a str,
}

impl Context<'_> {
    /// Runs `call`, a DPDK function that returns a negative error number.
    pub(super) fn check(
        &self,
        operation: impl FnOnce() -> String,
        call: impl FnOnce() -> i32,
    ) -> Result<(), PortError> {
        let mark = log::mark();
        let ret = call();
        Errno::check(ret).map(drop).map_err(|errno| PortError::Refused {
            device: self.device.to_owned(),
            driver: self.driver.to_owned(),
            operation: operation(),
            errno,
            log: log::since(mark),
        })
    }

    pub(super) fn queues_in_use(&self, operation: &'static str, missing: usize) -> PortError {
        let (device, driver) = (self.device.to_owned(), self.driver.to_owned());
        PortError::QueuesInUse { device, driver, operation, missing }
    }

    pub(super) fn out_of_range(&self, what: &'static str, wanted: u16, min: u16, max: u16) -> PortError {
        PortError::OutOfRange {
            device: self.device.to_owned(),
            driver: self.driver.to_owned(),
            what,
            wanted: wanted.into(),
            min: min.into(),
            max: max.into(),
        }
    }
}
