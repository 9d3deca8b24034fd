//! Queue pairs: their states and attributes, and the reliable connection.

pub(crate) mod attr;
mod endpoint;
pub(crate) mod rc;
pub(crate) mod state;

pub use attr::{AddressVector, HEADER_ROOM_BYTES, PathMtu, Placement, QpAttr, QpInit};
pub use endpoint::{Endpoint, EndpointError};
pub use rc::segment::{Segment, segment};
pub use state::{AttrMask, ModifyError, QpState};
