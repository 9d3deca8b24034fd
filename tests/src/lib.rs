//! What the integration tests share: engines on a simulated network in virtual time.

pub mod pair;
pub mod protocol;
pub mod record;
pub mod rng;
pub mod sim_port;
pub mod world;
