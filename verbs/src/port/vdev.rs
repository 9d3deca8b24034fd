//! Names of DPDK virtual devices.

use std::sync::atomic::{AtomicU32, Ordering};

/// Number of the next virtual device of this process.
static NEXT_VDEV: AtomicU32 = AtomicU32::new(0);

/// Returns an unused name for a virtual device of the DPDK driver `driver`.
pub(super) fn vdev_name(driver: &str) -> String {
    format!("{driver}{}", NEXT_VDEV.fetch_add(1, Ordering::Relaxed))
}
