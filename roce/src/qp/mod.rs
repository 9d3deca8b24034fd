//! Queue pairs: their states and attributes, and the reliable connection.

pub mod attr;
mod endpoint;
pub mod rc;
pub mod state;

pub use attr::{AddressVector, PathMtu, Placement, QpAttr, QpInit};
pub use endpoint::{Endpoint, EndpointError};
pub use state::{ModifyError, QpState};
