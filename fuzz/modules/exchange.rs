//! Files of module `exchange` of `apps` that do no input or output.

#[path = "../../apps/src/exchange/framing.rs"]
pub(crate) mod framing;
#[path = "../../apps/src/exchange/gid.rs"]
pub(crate) mod gid;
#[path = "../../apps/src/exchange/limits.rs"]
pub(crate) mod limits;
#[path = "../../apps/src/exchange/perftest.rs"]
pub(crate) mod perftest;
#[path = "../../apps/src/exchange/pingpong.rs"]
pub(crate) mod pingpong;
