//! Queue pairs: states, attributes, and the protocol of the reliable connection (RC) service.

// No value from the wire reaches unwrap, indexing or a narrowing cast, because a received frame must not cause a panic
// (docs/ARCHITECTURE.md, decision 7).
#![cfg_attr(
    not(test),
    deny(
        clippy::indexing_slicing,
        clippy::cast_possible_truncation,
        clippy::unwrap_used,
        clippy::expect_used
    )
)]

pub(crate) mod attr;
mod endpoint;
pub(crate) mod rc;
pub(crate) mod state;

pub use attr::{AddressVector, ConnAttr, HEADER_ROOM_BYTES, PathMtu, Placement, QpAttr, QpInit};
pub use endpoint::{Endpoint, EndpointError};
pub use rc::segment::{Segment, segment};
pub use state::{AttrMask, ModifyError, QpState};
