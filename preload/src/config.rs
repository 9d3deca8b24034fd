//! The devices of the process and the attributes of its queue pairs, as the environment configures them.

use std::sync::OnceLock;

use verbs::config::ProcessConfig;
use verbs::{DeviceOptions, PortSpec, QpState, RecoveryScheme};

use crate::boundary::explain;

/// Returns the configuration. A configuration that cannot be read is reported, and the process has no device.
fn config() -> &'static ProcessConfig {
    static CONFIG: OnceLock<ProcessConfig> = OnceLock::new();
    CONFIG.get_or_init(|| {
        ProcessConfig::from_environment().unwrap_or_else(|error| {
            explain("no device", error);
            ProcessConfig::default()
        })
    })
}

/// Returns port and options of the devices roce0, roce1 and so on.
pub(crate) fn devices() -> Vec<(PortSpec, DeviceOptions)> {
    config().devices()
}

/// Returns the recovery scheme of a queue pair that enters `state`; `None` if the scheme does not change.
pub(crate) fn recovery(state: Option<QpState>) -> Option<RecoveryScheme> {
    (state == Some(QpState::Init)).then(|| config().recovery)
}
