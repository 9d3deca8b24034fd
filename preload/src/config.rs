//! The devices of the process: the environment variable ROCE_PORT has their ports, separated by spaces.

use std::env;

use verbs::PortSpec;

use crate::boundary::explain;

/// Environment variable with the ports.
const PORTS: &str = "ROCE_PORT";

/// Returns the ports of the devices roce0, roce1 and so on. A port that cannot be parsed is reported and left out.
pub(crate) fn ports() -> Vec<PortSpec> {
    let text = env::var(PORTS).unwrap_or_default();
    let parse = |name: &str| name.parse().map_err(|error| explain(PORTS, error)).ok();
    text.split_ascii_whitespace().filter_map(parse).collect()
}
