//! Names of DPDK virtual devices.

use std::sync::atomic::{AtomicU32, Ordering};

static NEXT_VDEV: AtomicU32 = AtomicU32::new(0);

/// Returns a new name for a virtual device of the DPDK driver `driver`: the driver's name and a number.
pub(super) fn vdev_name(driver: &str) -> String {
    format!("{driver}{}", NEXT_VDEV.fetch_add(1, Ordering::Relaxed))
}
