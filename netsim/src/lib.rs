//! Simulated Ethernet in virtual time, from one cable to a fabric of hundreds of hosts.
//!
//! ```text
//!   host --send--> [ queue | wire at its rate ] --tape, loss--> propagation --> host or switch --> ...
//!                    one link, one direction     drop, delay ..       forward, room? mark? pause?
//! ```
//!
//! A [`Network`] holds hosts and switches connected by links. The caller advances the time with
//! [`Network::run_until`], sends frames with [`Network::send`] and receives frames with [`Network::receive`]. Time is
//! nanoseconds in a `u64`. Events at the same time are processed in the order in which they were scheduled, so a run
//! depends on its inputs and its seed only.
//!
//! * [`Frame`]: bytes, and phantom bytes, which have a length but no contents.
//! * [`topology`]: [`topology::leaf_spine`], [`topology::fat_tree`], [`topology::star`].
//! * [`SwitchConfig`]: buffer limits, ECN marking ([`Red`]), priority flow control ([`Pfc`]), [`Service`]: frames in
//!   order of arrival, or input ports in turn, and [`Forwarding`]: learning, or multipath over all shortest paths, per
//!   flow or per frame.
//! * [`Tape`]: impairments by frame number, as plain data that a property test can generate and shrink.
//!   [`Network::set_loss`] drops frames at random.
//! * [`workload`]: flows of published size distributions, and incasts.
//!
//! Two hosts and a cable:
//!
//! ```
//! use netsim::{LinkConfig, Network, WIRE_OVERHEAD_BYTES};
//!
//! let mut network = Network::new();
//! let (a, b) = (network.add_host(), network.add_host());
//! let config =
//!     LinkConfig { rate_bits_per_sec: 8_000_000_000, propagation_nanos: 500, queue_bytes_max: 10_000 };
//! let [a_to_b, _] = network.connect(a, b, config);
//! network.send(a, vec![0; 1_000]);
//! // 1 ns per byte on the wire, then the propagation.
//! let arrival = 1_000 + WIRE_OVERHEAD_BYTES + 500;
//! network.run_until(arrival - 1);
//! assert!(network.receive(b).is_none());
//! network.run_until(arrival);
//! assert_eq!(network.receive(b).unwrap().len_bytes(), 1_000);
//! assert_eq!(network.counters(a_to_b).delivered, 1);
//! ```
//!
//! A fabric:
//!
//! ```
//! use netsim::topology::{FabricConfig, fat_tree};
//! use netsim::{Forwarding, Frame, LinkConfig, SwitchConfig};
//!
//! let cable = LinkConfig {
//!     rate_bits_per_sec: 40_000_000_000,
//!     propagation_nanos: 2_000,
//!     queue_bytes_max: 240_000,
//! };
//! let config = FabricConfig {
//!     host_cable: cable,
//!     trunk: cable,
//!     host_queue_bytes_max: 10_000,
//!     switch: SwitchConfig { forwarding: Forwarding::Ecmp, ..SwitchConfig::PLAIN },
//!     seed: 1,
//! };
//! let mut fabric = fat_tree(4, &config)?;
//! let (first, last) = (fabric.hosts[0], fabric.hosts[15]);
//! fabric.network.set_address(last, [2, 0, 0, 0, 0, 16]);
//! let mut bytes = vec![0; 64];
//! bytes[..6].copy_from_slice(&[2, 0, 0, 0, 0, 16]);
//! fabric.network.send(first, Frame { bytes, phantom_bytes: 1_000, corrupted: false });
//! fabric.network.run_until(20_000);
//! assert_eq!(fabric.network.receive(last).unwrap().len_bytes(), 1_064);
//! # Ok::<(), netsim::topology::TopologyError>(())
//! ```

mod event;
mod frame;
mod id;
mod link;
mod network;
pub mod rng;
mod route;
mod switch;
mod tape;
pub mod topology;
pub mod workload;

pub use event::EventQueue;
pub use frame::Frame;
pub use id::{HostId, LinkId, Node, SwitchId};
pub use link::{LinkConfig, LinkCounters, WIRE_OVERHEAD_BYTES};
pub use network::{Network, Sighting};
pub use roce::port::impairment::Impairment;
pub use route::Routes;
pub use switch::{Forwarding, PAUSE_BYTES, Pfc, Red, Service, SwitchConfig};
pub use tape::{Tape, TapeEntry};
