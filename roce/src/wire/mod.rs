//! Wire formats: headers, opcodes, the invariant CRC, and the parser and the writer of whole frames.
//!
//! Each header type has `parse(&[u8; N]) -> Self` and `write(&self, &mut [u8; N])`. Neither function can fail, because
//! the caller checks the length when it converts a slice to an array of `N` bytes. [`Packet::parse`] parses a whole
//! frame; [`HeaderTemplate`] writes the headers and the ICRC of a frame.
//!
//! ```text
//!   Eth [VLAN] | IPv4 or IPv6 | UDP 4791 | BTH | extension headers | payload | pad | ICRC
//!              '------------------- covered by the ICRC -------------------------'
//! ```

// Values from the wire reach no unwrap, indexing or narrowing cast, because a received frame must cause neither a panic
// nor a truncated value (docs/ARCHITECTURE.md, decision 7).
#![cfg_attr(
    not(test),
    deny(
        clippy::indexing_slicing,
        clippy::cast_possible_truncation,
        clippy::unwrap_used,
        clippy::expect_used
    )
)]

pub(crate) mod aeth;
pub(crate) mod atomiceth;
pub(crate) mod bth;
pub(crate) mod deth;
pub mod eth;
pub(crate) mod feth;
pub mod icrc;
pub(crate) mod ieth;
pub(crate) mod immdt;
pub mod ipv4;
pub(crate) mod ipv6;
pub(crate) mod opcode;
pub(crate) mod packet;
pub(crate) mod recveth;
pub(crate) mod reth;
pub(crate) mod sacketh;
pub(crate) mod template;
pub mod udp;
pub(crate) mod xrceth;

pub use aeth::{Aeth, NakCode, Syndrome, rnr_timer_nanos};
pub use atomiceth::{AtomicAckEth, AtomicEth};
pub use bth::{Bth, PrecedingReads};
pub use deth::Deth;
pub use eth::EthHeader;
pub use feth::Feth;
pub use icrc::ICRC_LEN;
pub use ieth::Ieth;
pub use ipv4::Ipv4Header;
pub use ipv6::Ipv6Header;
pub use opcode::{ExtHeader, Opcode, OpcodeInfo, Operation, Position, Transport};
pub use packet::{IpInfo, Packet, ParseError, probable_dest_qp};
pub use recveth::RecvEth;
pub use reth::Reth;
pub use sacketh::{SackEth, bitmap_words};
pub use template::{FrameParts, HeaderSpec, HeaderTemplate, MixedFamilies, PacketSpec};
pub use udp::{UdpHeader, flow_label_from_qpns, udp_source_port};
pub use xrceth::XrcEth;

pub(crate) use eth::VlanTag;
pub(crate) use immdt::ImmDt;
pub(crate) use packet::{AddressPair, Fingerprint, GRH_BYTES};
pub(crate) use template::{AddressSpec, AddressTemplate, QpFields};

#[cfg(test)]
mod refusals;
#[cfg(test)]
mod tests;
