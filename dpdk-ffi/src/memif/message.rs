//! The control protocol, as far as memory safety depends on it: the order of messages, and the bounds of
//! their fields. The driver implements the protocol, but trusts the order, the counts and the offsets that a
//! peer sends.
//!
//! ```text
//! client           server            client           server
//!   |--- connects --->|                |--- ADD_RING ---->|   as many as there are rings
//!   |<---- HELLO -----|                |<----- ACK -------|
//!   |---- INIT ------>|                |---- CONNECT ---->|
//!   |<---- ACK -------|                |<-- CONNECTED ----|
//!   |-- ADD_REGION -->|   each with    |                  |
//!   |<---- ACK -------|   a file       |<- DISCONNECT --->|   at any time
//! ```

use std::os::fd::RawFd;
use std::sync::Arc;

use super::ring::{LOG2_SLOTS_MAX, Map, RxRing, TxRing, ring_bytes};
use crate::eventfd::Event;

/// Length of every message, in bytes.
pub(super) const MESSAGE_BYTES: usize = 128;
/// Regions of one connection, at most.
const REGIONS_MAX: usize = 256;
/// Bytes of all regions of a connection, at most, because offsets have 32 bits.
const REGIONS_BYTES_MAX: u64 = 1 << 32;
/// Rings of one connection in each direction, at most.
const RINGS_MAX: usize = 255;

/// Message types.
pub(super) mod kind {
    pub(crate) const ACK: u16 = 1;
    pub(crate) const HELLO: u16 = 2;
    pub(crate) const INIT: u16 = 3;
    pub(crate) const ADD_REGION: u16 = 4;
    pub(crate) const ADD_RING: u16 = 5;
    pub(crate) const CONNECT: u16 = 6;
    pub(crate) const CONNECTED: u16 = 7;
    pub(crate) const DISCONNECT: u16 = 8;
}

/// A message.
pub(super) type Message = [u8; MESSAGE_BYTES];

/// Role of this process on a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    /// Has accepted the connection. The memory is the peer's.
    Server,
    /// Has made the connection. The memory is its own, and the peer maps it too.
    Client,
}

/// State of the handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// No message was received.
    Fresh,
    /// INIT (as server) or HELLO (as client) was received; the client adds regions and rings.
    Introduced,
    /// CONNECT was received (as server) or sent (as client).
    Asked,
    /// CONNECTED was sent or received; frames may be exchanged.
    Connected,
}

/// A region of memory that the client offers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RegionSpec {
    /// Descriptor of the memory file.
    pub(super) fd: RawFd,
    /// Length of the region, in bytes.
    pub(super) len_bytes: u64,
}

/// A ring within a region.
#[derive(Clone, Debug)]
struct RingSpec {
    region: u16,
    offset: u32,
    log2_slots: u8,
    /// `None` if the ring came without an eventfd.
    event: Option<Arc<Event>>,
}

/// Eventfds of the rings of one direction, by number.
pub(super) type Events = Vec<Option<Arc<Event>>>;

impl RingSpec {
    fn end(&self) -> u64 {
        u64::from(self.offset) + ring_bytes(self.log2_slots)
    }
}

/// The handshake of one connection, and what has been agreed so far.
#[derive(Debug)]
pub(super) struct Handshake {
    role: Role,
    state: State,
    regions: Vec<RegionSpec>,
    to_server: Vec<RingSpec>,
    to_client: Vec<RingSpec>,
}

fn half(message: &Message, at: usize) -> u16 {
    let bytes = message.get(at..at + 2).and_then(|bytes| bytes.first_chunk());
    bytes.map_or(0, |bytes| u16::from_ne_bytes(*bytes))
}

fn word(message: &Message, at: usize) -> u32 {
    let bytes = message.get(at..at + 4).and_then(|bytes| bytes.first_chunk());
    bytes.map_or(0, |bytes| u32::from_ne_bytes(*bytes))
}

/// Returns the type of a message.
pub(super) fn kind_of(message: &Message) -> u16 {
    half(message, 0)
}

/// Returns number and region of an ADD_REGION message whose file is `fd`.
fn region_of(message: &Message, fd: RawFd) -> (u16, RegionSpec) {
    let len_bytes = u64::from(word(message, 4)) | u64::from(word(message, 8)) << 32;
    (half(message, 2), RegionSpec { fd, len_bytes })
}

/// Terminates the texts of a message, because the driver reads them up to a zero.
pub(super) fn end_texts(message: &mut Message) {
    let last = match kind_of(message) {
        kind::HELLO | kind::CONNECT | kind::CONNECTED => 33,
        kind::INIT => 64,
        kind::DISCONNECT => 101,
        _ => return,
    };
    if let Some(byte) = message.get_mut(last) {
        *byte = 0;
    }
}

impl Handshake {
    /// The handshake of a new connection.
    pub(super) fn new(role: Role) -> Self {
        Self { role, state: State::Fresh, regions: Vec::new(), to_server: Vec::new(), to_client: Vec::new() }
    }

    /// Whether frames may be exchanged.
    pub(super) fn is_connected(&self) -> bool {
        self.state == State::Connected
    }

    /// Returns the regions offered so far.
    pub(super) fn regions(&self) -> &[RegionSpec] {
        &self.regions
    }

    /// Checks a message received from the peer, with the file that it carried, and advances the state. The
    /// error names the violation. The caller must check the file.
    pub(super) fn received(&mut self, message: &Message, fd: Option<RawFd>) -> Result<(), &'static str> {
        let unexpected = Err("a message out of its turn");
        match (kind_of(message), fd) {
            (kind::DISCONNECT, None) => Ok(()),
            (kind::INIT, None) if self.is_at(Role::Server, State::Fresh) => {
                self.state = State::Introduced;
                Ok(())
            }
            (kind::ADD_REGION, Some(fd)) if self.is_at(Role::Server, State::Introduced) => {
                self.add_region(message, fd)
            }
            (kind::ADD_RING, Some(fd)) if self.is_at(Role::Server, State::Introduced) => {
                self.add_ring(message, Some(fd))
            }
            (kind::CONNECT, None) if self.is_at(Role::Server, State::Introduced) => {
                self.check_rings()?;
                self.state = State::Asked;
                Ok(())
            }
            (kind::HELLO, None) if self.is_at(Role::Client, State::Fresh) => {
                self.state = State::Introduced;
                Ok(())
            }
            (kind::ACK, None) if self.is_at(Role::Client, State::Introduced) => Ok(()),
            (kind::CONNECTED, None) if self.is_at(Role::Client, State::Asked) => {
                self.check_rings()?;
                self.state = State::Connected;
                Ok(())
            }
            _ => unexpected,
        }
    }

    /// Records a message that the driver is about to send, with the file that it carries.
    pub(super) fn sent(&mut self, message: &Message, fd: Option<RawFd>) -> Result<(), &'static str> {
        match (self.role, kind_of(message), fd) {
            (Role::Client, kind::ADD_REGION, Some(fd)) => self.add_region(message, fd),
            (Role::Client, kind::ADD_RING, fd) => self.add_ring(message, fd),
            (Role::Client, kind::CONNECT, _) => {
                self.state = State::Asked;
                Ok(())
            }
            (Role::Server, kind::CONNECTED, _) if self.state == State::Asked => {
                self.state = State::Connected;
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn is_at(&self, role: Role, state: State) -> bool {
        (self.role, self.state) == (role, state)
    }

    fn add_region(&mut self, message: &Message, fd: RawFd) -> Result<(), &'static str> {
        let (index, region) = region_of(message, fd);
        if usize::from(index) != self.regions.len() || self.regions.len() == REGIONS_MAX {
            return Err("a region out of its turn");
        }
        let others: u64 = self.regions.iter().map(|region| region.len_bytes).sum();
        if region.len_bytes == 0 || region.len_bytes > REGIONS_BYTES_MAX - others {
            return Err("a region of no or too many bytes");
        }
        self.regions.push(region);
        Ok(())
    }

    fn add_ring(&mut self, message: &Message, fd: Option<RawFd>) -> Result<(), &'static str> {
        let rings = if half(message, 2) & 1 == 1 { &mut self.to_server } else { &mut self.to_client };
        if usize::from(half(message, 4)) != rings.len() || rings.len() == RINGS_MAX {
            return Err("a ring out of its turn");
        }
        let log2_slots = message.get(12).copied().unwrap_or(u8::MAX);
        if log2_slots > LOG2_SLOTS_MAX {
            return Err("a ring of too many slots");
        }
        let event = fd.and_then(Event::duplicate);
        rings.push(RingSpec { region: half(message, 6), offset: word(message, 8), log2_slots, event });
        Ok(())
    }

    /// Checks that the rings lie within regions, because the driver reads their headers next.
    fn check_rings(&self) -> Result<(), &'static str> {
        let inside = |ring: &RingSpec| {
            let region = self.regions.get(usize::from(ring.region));
            region.is_some_and(|region| ring.end() <= region.len_bytes) && ring.offset.is_multiple_of(16)
        };
        let all = self.to_server.iter().chain(&self.to_client);
        if all.clone().next().is_some() && all.clone().all(inside) {
            Ok(())
        } else {
            Err("rings outside of the memory")
        }
    }

    /// Returns the length of the client's buffers, in bytes: its first region without the rings, in equal
    /// parts.
    fn buffer_bytes(&self) -> Option<u32> {
        let rings = self.to_server.iter().chain(&self.to_client);
        let end = rings.clone().map(|ring| ring.end()).max()?;
        let slots: u64 = rings.map(|ring| 1_u64 << ring.log2_slots).sum();
        let rest = self.regions.first()?.len_bytes.checked_sub(end)?;
        u32::try_from(rest / slots).ok().filter(|bytes| *bytes > 0)
    }

    /// Returns the eventfds of the rings that this process receives from and sends to.
    pub(super) fn events(&self) -> (Events, Events) {
        let events = |rings: &[RingSpec]| rings.iter().map(|ring| ring.event.clone()).collect();
        match self.role {
            Role::Server => (events(&self.to_server), events(&self.to_client)),
            Role::Client => (events(&self.to_client), events(&self.to_server)),
        }
    }

    /// Returns the rings that this process receives from and sends to; `map` has the mapped regions. `None`
    /// if a ring lies outside of them.
    pub(super) fn rings(&self, map: &Map) -> Option<(Vec<RxRing>, Vec<TxRing>)> {
        let ring = |ring: &RingSpec| map.ring(ring.region, ring.offset, ring.log2_slots);
        let (own, from, to) = match self.role {
            Role::Server => (None, &self.to_server, &self.to_client),
            Role::Client => (Some(self.buffer_bytes()?), &self.to_client, &self.to_server),
        };
        let rx = from.iter().map(|spec| Some(RxRing::new(ring(spec)?, own))).collect::<Option<_>>()?;
        let tx = to.iter().map(|spec| Some(TxRing::new(ring(spec)?, own))).collect::<Option<_>>()?;
        Some((rx, tx))
    }
}
