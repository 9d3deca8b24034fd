//! The pure half of the module of this name in `apps`, and what must hold of it.

#[path = "../../apps/src/perf/message.rs"]
pub(crate) mod message;
#[path = "../../apps/src/perf/params.rs"]
pub(crate) mod params;

#[path = "../oracle/exchange.rs"]
pub(crate) mod oracle;
