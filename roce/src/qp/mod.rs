//! Queue pairs: states, attributes, and the protocols of the transport services.

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
pub(crate) mod completions;
pub(crate) mod context;
pub(crate) mod emit;
mod endpoint;
pub(crate) mod inbound;
pub(crate) mod local;
pub(crate) mod outbound;
pub(crate) mod outstanding;
pub(crate) mod rc;
pub(crate) mod receives;
pub(crate) mod request;
pub(crate) mod segment;
pub(crate) mod service;
pub(crate) mod state;
pub(crate) mod uc;
pub(crate) mod ud;

#[cfg(test)]
mod outstanding_tests;

pub use attr::{AddressVector, ConnAttr, HEADER_ROOM_BYTES, PathMtu, Placement, QpAttr, QpInit};
pub use endpoint::{Endpoint, EndpointError};
pub use segment::{Segment, segment};
pub use service::ServiceType;
pub use state::{AttrMask, ModifyError, QpState};
