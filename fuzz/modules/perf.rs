//! Files of module `perf` of `apps` that do no input or output, and checks of their invariants.

#[path = "../../apps/src/perf/message.rs"]
pub(crate) mod message;
#[path = "../../apps/src/perf/params.rs"]
pub(crate) mod params;

#[path = "../oracle/exchange.rs"]
pub(crate) mod oracle;
