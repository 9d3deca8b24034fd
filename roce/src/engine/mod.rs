//! The engine: one device over one port, driven by `poll`.
//!
//! ```text
//!   poll(now):  port.rx_burst  -> ingress -> responder | completer     at most RX_BURST_FRAMES
//!               doorbells      -> queue pairs with new work requests are scheduled
//!               timers         -> requester                            at most TIMERS_PER_POLL
//!               reorder buffer -> expired requests are dropped         at most REORDER_EXPIRED_PER_POLL
//!               errors         -> flush                                at most FLUSHED_QPS_PER_POLL
//!               neighbour      -> MACs of address handles, if changed  at most FOLLOWED_ADDRESS_HANDLES_PER_POLL
//!               notifier       -> port                                 at most CNPS_PER_POLL
//!               egress         -> responder, requester -> port         at most TX_BUDGET_PKTS
//!               neighbour      -> port                                 at most NEIGHBOUR_FRAMES_PER_POLL
//!               port.tx_flush
//! ```

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

mod address_handle;
mod admit;
mod datagram;
mod egress;
mod error;
pub mod event;
mod ingress;
pub mod limits;
mod modify;
mod notifier;
mod notify;
mod objects;
mod qp_object;
mod qpn_prefix;
mod shared_objects;
mod source;
#[expect(
    clippy::indexing_slicing,
    clippy::cast_possible_truncation,
    reason = "its indices are slots and places of its own heap, below 2^32"
)]
mod timers;

use std::collections::VecDeque;
use std::sync::Arc;

use crate::congestion::{CongestionScheme, NotificationConfig};
use crate::counters::{DropCounters, QpCounters};
use crate::id::Mac;
use crate::mem::MemoryView;
use crate::neighbour::{GidError, Neighbour, NeighbourConfig};
use crate::port::Port;
use crate::qp::QpState;
use crate::qp::rc::reorder_buffer::ReorderStore;
use crate::queue::{CqTable, Doorbells, SrqTable};
use crate::random::Random;
use crate::table::Table;
use crate::time::{Instant, OptionalInstant};

pub use error::{CreateError, DestroyError};
pub use event::Event;
pub use qp_object::{Attributes, QpHandles};
pub use qpn_prefix::QpnPrefix;
pub use shared_objects::SharedObjects;
pub use source::SourceChecks;

use address_handle::{AH_BITS, AddressHandles, CreatedAh};
use limits::{
    ADDRESS_HANDLES_PER_QP, CACHED_QPS, DEFAULT_LINK_BITS_PER_SEC, DeviceLimits, FLUSHED_QPS_PER_POLL,
    FLUSHED_WRS_PER_QP, REORDER_EXPIRED_PER_POLL, RX_BURST_FRAMES, TIMER_CHECKS_PER_POLL, TIMERS_PER_POLL,
};
use notifier::Notifier;
use qp_object::{Connection, Qp, Service};
use timers::Timers;

/// Configuration of an engine.
#[derive(Clone, Debug)]
pub struct EngineConfig {
    /// Seed of the generator of QPNs and first PSNs; [`Engine::new`] computes the seed of the generator of keys from
    /// this seed. The seed must be random, except in simulations and tests.
    pub seed: [u8; 32],
    /// Largest numbers of objects (for example, queue pairs), and of bytes of the reorder buffers.
    pub limits: DeviceLimits,
    /// The port's addresses, and whether the engine answers ARP, neighbour discovery and ICMP echo for these addresses.
    pub neighbour: NeighbourConfig,
    /// Congestion control of queue pairs whose `QpAttr` sets no congestion control.
    pub congestion: CongestionScheme,
    /// Settings of the notification point: least time between CNPs, and DSCP of CNPs.
    pub notification: NotificationConfig,
    /// Speed of the link in bits per second: the rate at which congestion control starts.
    pub link_bits_per_sec: u64,
    /// Whether the source MAC and the UDP source port of received packets are checked besides the IP address.
    pub source_checks: SourceChecks,
    /// High bits of all QPNs of the device.
    pub qpn_prefix: QpnPrefix,
}

impl EngineConfig {
    /// Returns a configuration with the given `seed` and `neighbour`, and with defaults for all other fields.
    pub fn new(seed: [u8; 32], neighbour: NeighbourConfig) -> Self {
        EngineConfig {
            seed,
            limits: DeviceLimits::default(),
            neighbour,
            congestion: CongestionScheme::default(),
            notification: NotificationConfig::default(),
            link_bits_per_sec: DEFAULT_LINK_BITS_PER_SEC,
            source_checks: SourceChecks::default(),
            qpn_prefix: QpnPrefix::default(),
        }
    }
}

/// Result of one poll.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Frames received, including dropped frames.
    pub rx_frames: usize,
    /// Sum of three counts: RoCE packets sent; local operations executed; due CNPs discarded, because their queue pairs
    /// were destroyed or left RTR, RTS, SQD and SQE. ARP, neighbour discovery and ICMP frames are not counted.
    pub tx_pkts: u32,
    /// Whether the bounds of one poll left work undone; if so, the next poll is due at once.
    pub more: bool,
}

impl Progress {
    /// Returns whether `rx_frames` and `tx_pkts` are 0, and the poll left no work.
    pub fn is_idle(&self) -> bool {
        self.rx_frames == 0 && self.tx_pkts == 0 && !self.more
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outgoing {
    All,
    /// Requests only: responses (ACKs, NAKs and READ responses) are delayed to the next poll.
    Requests,
}

/// A RoCEv2 device over a port.
///
/// The engine works only while one of its functions is called. No call blocks, and a poll does a bounded amount of work
/// ([`limits`]).
///
/// # Kinds of call
/// * Configuration: [`EngineConfig`] at the start; [`Engine::neighbour_mut`], [`Engine::port_mut`] and
///   [`Engine::set_link_bits_per_sec`] at any time.
/// * Objects: protection domain, memory region and completion queue ([`Engine::objects`], shared by the engines of a
///   device, on any thread); shared receive queue and queue pair (of one engine). An object must be
///   created after the objects that it uses, and destroyed before these objects; otherwise the call returns `Unknown`
///   or `Busy`. Exception: a memory region may be deregistered at any time; work requests that use the region fail.
///   [`Engine::modify_qp`] connects a queue pair. The transition to RTR needs the MAC of the next hop: while
///   [`Engine::resolve`] returns `Pending`, call `poll` and `resolve` in turn.
/// * Polling: [`Engine::poll`] receives, executes, retransmits and sends. [`Engine::push`] sends posted work requests
///   and does nothing else.
/// * Events: after each call of the kinds above, call [`Engine::poll_event`] until the result is `None`.
/// * Time: after these calls, [`Engine::next_deadline`] returns the time of the next poll.
///
/// The objects through which the application posts and polls are not part of the engine: other threads may use
/// [`SendPoster`](crate::queue::SendPoster), [`RecvPoster`](crate::queue::RecvPoster),
/// [`CqPoller`](crate::queue::CqPoller) and [`CqNotifier`](crate::queue::CqNotifier) during any call. Memory regions
/// are accessed only during `poll` and `push`, and during the calls that send the last READ responses of a queue pair:
/// [`Engine::destroy_qp`], and [`Engine::modify_qp`] to RESET or ERR.
///
/// # Time
/// `now` comes from one clock of any origin, and must not decrease from call to call. A call without `now` uses the
/// `now` of the last `poll` or `push`, or [`Instant::ZERO`] before the first of these calls.
///
/// # When to poll
/// * If [`Progress::more`] is set: at once.
/// * Otherwise: when the port has received a frame, when a send was posted (`push` is enough), when a receive was
///   posted to a queue pair in ERR, and at the latest at [`Engine::next_deadline`] (`None`: no limit). Any call may
///   change this deadline. A late poll delays timers, and causes no error.
///
/// # Frames
/// A poll receives at most [`RX_BURST_FRAMES`] frames from the port and frees their buffers before it returns. Copies
/// of out-of-order frames ([`Engine::buffered_bytes`]) are stored until a later poll executes or drops them, at most
/// for [`REORDER_NANOS_MAX`](limits::REORDER_NANOS_MAX). A frame that is malformed, or to another station, is counted
/// in [`Engine::drop_counters`]; no frame makes a call fail. Frames are built in buffers of the port, and sent before
/// `poll` or `push` returns. If the port has no free buffer, a later poll sends the packets, and `more` is set.
///
/// # Example
/// One SEND between two engines, both driven by this thread:
///
/// ```
/// use roce::engine::{Engine, EngineConfig, QpHandles};
/// use roce::id::{Mac, Qpn};
/// use roce::mem::{Access, Memory};
/// use roce::neighbour::{Mode, NeighbourConfig};
/// use roce::port::loopback::{Loopback, LoopbackPort};
/// use roce::port::PortCaps;
/// use roce::psn::Psn;
/// use roce::qp::{AddressVector, ConnAttr, QpInit, ServiceType};
/// use roce::queue::{RecvRequest, SendData, SendFlags, SendOp, SendRequest, Sge, WcStatus};
/// use roce::time::Instant;
/// use std::net::{IpAddr, Ipv4Addr};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let ip = |host| IpAddr::V4(Ipv4Addr::new(10, 0, 0, host));
/// let mac = |host| Mac([2, 0, 0, 0, 0, host]);
/// let caps = |host| PortCaps { mac: mac(host), mtu_bytes: 1500 };
/// let (port_a, port_b) = Loopback::pair(caps(1), caps(2), 64);
///
/// // Configuration: the peer's MAC is set, so `resolve` need not be called.
/// let device = |host, peer, port| {
///     let (mode, gids) = (Mode::Dedicated, vec![(ip(host), 24)]);
///     let (gateway_v4, gateway_v6, vlan) = (None, None, None);
///     let neighbour = NeighbourConfig { mac: mac(host), mode, gids, gateway_v4, gateway_v6, vlan };
///     let mut engine = Engine::new(port, EngineConfig::new([host; 32], neighbour))?;
///     engine.neighbour_mut().set_neighbour(ip(peer), mac(peer));
///     Ok::<_, roce::neighbour::GidError>(engine)
/// };
/// let (mut a, mut b) = (device(1, 2, port_a)?, device(2, 1, port_b)?);
///
/// // Objects: a queue pair, its completion queue, and 64 bytes of memory.
/// let objects = |engine: &mut Engine<LoopbackPort>| {
///     let pd = engine.objects().alloc_pd()?;
///     let (cq, completions) = engine.objects().create_cq(16)?;
///     let qp = engine.create_qp(&QpInit {
///         service: ServiceType::Rc,
///         pd,
///         send_cq: cq,
///         recv_cq: cq,
///         srq: None,
///         max_send_wr: 8,
///         max_recv_wr: 8,
///         max_send_sge: 1,
///         max_recv_sge: 1,
///         max_inline_bytes: 0,
///         signal_all: true,
///     })?;
///     let memory = Memory::alloc(64);
///     let (lkey, _) = engine.objects().register(pd, memory.clone(), memory.addr(), Access::LOCAL_WRITE)?;
///     let sge = Sge { addr: memory.addr(), len_bytes: 64, lkey };
///     Ok::<_, roce::engine::CreateError>((qp, completions, memory, sge, engine.random_psn()))
/// };
/// let (mut qp_a, mut completions_a, memory_a, sge_a, psn_a) = objects(&mut a)?;
/// let (mut qp_b, mut completions_b, memory_b, sge_b, psn_b) = objects(&mut b)?;
///
/// // Connect. Hosts would exchange GIDs, QPNs and first PSNs, over TCP for example.
/// let connect = |engine: &mut Engine<LoopbackPort>, own: (&QpHandles, Psn), peer: (Qpn, Psn, u8)| {
///     let conn = ConnAttr { access: Access::NONE, ..ConnAttr::default() };
///     let path = AddressVector::new(ip(peer.2).into(), 1);
///     engine.modify_qp(own.0.qpn, &conn.to_init())?;
///     engine.modify_qp(own.0.qpn, &conn.to_rtr(path, peer.0, peer.1))?;
///     engine.modify_qp(own.0.qpn, &conn.to_rts(own.1))
/// };
/// connect(&mut a, (&qp_a, psn_a), (qp_b.qpn, psn_b, 2))?;
/// connect(&mut b, (&qp_b, psn_b), (qp_a.qpn, psn_a, 1))?;
///
/// // Post: a receive, then a SEND of 5 bytes.
/// memory_a.write(0, b"hello")?;
/// let recv = qp_b.recv.as_mut().expect("it has no shared receive queue");
/// recv.post(&RecvRequest { wr_id: 1, sges: &[sge_b] })?;
/// let data = SendData::Sges(&[Sge { len_bytes: 5, ..sge_a }]);
/// qp_a.send.post(&SendRequest { wr_id: 2, op: SendOp::Send, flags: SendFlags::default(), data })?;
///
/// // Poll, until the ACK completes the SEND.
/// let mut now = Instant::ZERO;
/// let sent = loop {
///     for engine in [&mut a, &mut b] {
///         engine.poll(now);
///         while let Some(event) = engine.poll_event() {
///             println!("{event:?}");
///         }
///     }
///     if let Some(cqe) = completions_a.pop() {
///         break cqe;
///     }
///     now = now.plus_nanos(1_000);
///     assert!(now < Instant::from_nanos(1_000_000_000), "no completion");
/// };
/// assert_eq!((sent.wr_id, sent.status), (2, WcStatus::Success));
/// let received = completions_b.pop().expect("the receive completes first");
/// assert_eq!((received.wr_id, received.status, received.len_bytes), (1, WcStatus::Success, 5));
/// let mut text = [0; 5];
/// memory_b.read(0, &mut text)?;
/// assert_eq!(&text, b"hello");
/// # Ok(())
/// # }
/// ```
pub struct Engine<P: Port> {
    port: P,
    mac: Mac,
    congestion: CongestionScheme,
    link_bits_per_sec: u64,
    source_checks: SourceChecks,
    qpn_prefix: QpnPrefix,
    random: Random,
    neighbour: Neighbour,
    neighbour_generation: u64,
    address_handles: AddressHandles,
    /// Address handles that applications created, by number.
    ahs: Table<CreatedAh>,
    /// Slot of the first address handle whose MAC is not yet updated from the changed neighbour cache; `None` if no
    /// update is pending.
    following: Option<usize>,
    objects: Arc<SharedObjects>,
    memory: MemoryView,
    cqs: CqTable,
    srqs: SrqTable,
    qps: Table<Qp>,
    doorbells: Arc<Doorbells>,
    /// Indices in `qps` of the queue pairs scheduled to transmit, in round-robin order.
    tx_ready: VecDeque<usize>,
    /// Indices in `qps` of queue pairs whose responses are delayed in a call of `transmit`. The end of the call moves
    /// the indices to `tx_ready` (the queue pairs scheduled to transmit).
    tx_deferred: Vec<usize>,
    /// Indices in `qps` of queue pairs in ERR or SQE that may have work requests to flush, in round-robin order.
    errors: VecDeque<usize>,
    timers: Timers,
    notifier: Notifier,
    events: VecDeque<Event>,
    drops: DropCounters,
    /// Sums of the counters of destroyed queue pairs.
    past: QpCounters,
    qp_errors: u64,
    frames: Vec<P::Frame>,
    reorder: ReorderStore,
    now: Instant,
}

impl<P: Port> Engine<P> {
    /// Creates a device of one engine over `port`. Returns an error if an address of the configuration is not valid for
    /// a port.
    pub fn new(port: P, config: EngineConfig) -> Result<Self, GidError> {
        // Keys are drawn from another generator than QPNs and PSNs, so that a key does not reveal QPNs and PSNs.
        let mut random = Random::new(config.seed);
        let mut seed = [0; 32];
        seed.chunks_mut(4).for_each(|bytes| bytes.copy_from_slice(&random.bits().to_be_bytes()));
        let objects = SharedObjects::new(seed, &config.limits);
        Self::with_objects(port, config, objects)
    }

    /// Creates an engine over `port`, of a device whose engines use `objects`. Returns an error if an address of the
    /// configuration is not valid for a port.
    pub fn with_objects(
        port: P,
        config: EngineConfig,
        objects: Arc<SharedObjects>,
    ) -> Result<Self, GidError> {
        let neighbour = Neighbour::new(config.neighbour)?;
        let limits = config.limits;
        let qps = config.qpn_prefix.table(limits.max_qps).with_reserved_slots();
        let slots = qps.max_len();
        let payload = port.payload();
        Ok(Engine {
            mac: port.caps().mac,
            port,
            congestion: config.congestion,
            link_bits_per_sec: config.link_bits_per_sec,
            source_checks: config.source_checks,
            qpn_prefix: config.qpn_prefix,
            random: Random::new(config.seed),
            neighbour_generation: neighbour.generation(),
            neighbour,
            address_handles: AddressHandles::new(ADDRESS_HANDLES_PER_QP * slots + limits.max_ahs),
            ahs: Table::new(AH_BITS, limits.max_ahs),
            following: None,
            memory: objects.memory(),
            objects,
            cqs: CqTable::new(),
            srqs: SrqTable::new(limits.max_srqs),
            doorbells: Arc::new(Doorbells::new(slots)),
            tx_ready: VecDeque::new(),
            tx_deferred: Vec::new(),
            errors: VecDeque::new(),
            timers: Timers::new(slots),
            notifier: Notifier::new(config.notification, slots),
            qps,
            events: VecDeque::new(),
            drops: DropCounters::default(),
            past: QpCounters::default(),
            qp_errors: 0,
            frames: Vec::with_capacity(RX_BURST_FRAMES),
            reorder: ReorderStore::new(limits.reorder_bytes, payload),
            now: Instant::ZERO,
        })
    }

    /// Receives frames and does all other work that is due at `now`, each kind up to a bound ([`limits`]).
    pub fn poll(&mut self, now: Instant) -> Progress {
        self.now = now;
        self.port.set_now(now);
        let rx_frames = self.receive();
        self.answer_doorbells();
        self.expire_timers();
        let more_to_expire = self.expire_buffered();
        self.flush_errors();
        self.follow_neighbours();
        let notifications = if self.notifier.is_idle() { 0 } else { self.transmit_notifications() };
        let tx_pkts = notifications + self.transmit(Outgoing::All);
        self.transmit_neighbour();
        self.port.tx_flush();
        self.collect_events();
        let more = rx_frames == RX_BURST_FRAMES || more_to_expire || self.has_more();
        Progress { rx_frames, tx_pkts, more }
    }

    /// Sends posted work requests and does nothing else, so that these work requests need not wait for the next poll.
    pub fn push(&mut self, now: Instant) {
        self.now = now;
        self.port.set_now(now);
        self.answer_doorbells();
        self.transmit(Outgoing::Requests);
        self.port.tx_flush();
        self.collect_events();
    }

    /// Ends a poll that a panic interrupted. Otherwise [`SharedObjects::register`] and [`SharedObjects::deregister`]
    /// could wait for ever for the end of this poll.
    pub fn abandon_poll(&mut self) {
        self.memory.leave();
    }

    #[inline]
    fn answer_doorbells(&mut self) {
        let (qps, tx_ready, errors) = (&mut self.qps, &mut self.tx_ready, &mut self.errors);
        self.doorbells.drain_words(|slots| {
            if qps.len() > CACHED_QPS {
                slots.for_each(|slot| qps.prefetch(slot, Qp::SCHEDULE));
            }
            for slot in slots {
                let Some(qp) = qps.at_mut(slot) else { continue };
                qp.has_sends = true;
                schedule_qp(qp, tx_ready, slot);
                if qp.state.flushes_sends() {
                    flush_later(qps, errors, slot);
                }
            }
        });
    }

    /// Returns whether a bound of the last poll left packets to be sent, queue pairs to be flushed, or address handles
    /// to be updated from the neighbour cache.
    #[inline]
    fn has_more(&self) -> bool {
        !self.tx_ready.is_empty()
            || !self.notifier.is_idle()
            || !self.errors.is_empty()
            || self.following.is_some()
    }

    /// Returns the time at which the next poll is due, unless a frame is received or a work request is posted earlier;
    /// `None` if no work is pending.
    pub fn next_deadline(&self) -> Option<Instant> {
        let immediate = (self.has_more() || self.doorbells.any()).then_some(self.now);
        let buffered = self.reorder.next_expiry();
        [immediate, self.timers.earliest().get(), buffered, self.neighbour.next_deadline()]
            .into_iter()
            .flatten()
            .min()
    }

    /// Updates the timer entries of queue pairs whose deadline an ACK postponed or cancelled, so that
    /// [`Engine::next_deadline`] returns only times at which work is due. An ACK itself does not update these entries,
    /// because this update costs more than a later poll that finds no work due. A thread that is about to sleep calls
    /// this function.
    pub fn settle_timers(&mut self) {
        for _ in 0..TIMER_CHECKS_PER_POLL {
            if !self.timers.settle() {
                return;
            }
        }
    }

    /// Returns the protection domains, memory regions and completion queues of the device.
    pub fn objects(&self) -> &Arc<SharedObjects> {
        &self.objects
    }

    /// Returns the port of this engine.
    pub fn port(&self) -> &P {
        &self.port
    }

    /// Returns the port of this engine, to change its settings.
    pub fn port_mut(&mut self) -> &mut P {
        &mut self.port
    }

    /// Returns the port's addresses and neighbours.
    pub fn neighbour(&self) -> &Neighbour {
        &self.neighbour
    }

    /// Returns the port's addresses and neighbours, to change them.
    pub fn neighbour_mut(&mut self) -> &mut Neighbour {
        &mut self.neighbour
    }

    /// Removes and returns the oldest event.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// Returns the counters of frames dropped before they reached a queue pair, by reason.
    pub fn drop_counters(&self) -> DropCounters {
        self.drops
    }

    /// Returns the sums of the counters of all queue pairs, destroyed ones included.
    pub fn counters(&self) -> QpCounters {
        let mut sum = self.past;
        self.qps.iter().for_each(|(_, qp)| sum.add(&qp.counters));
        sum
    }

    /// Returns the number of queue pairs. [`Engine::counters`] takes a time proportional to this number.
    pub fn qp_count(&self) -> usize {
        self.qps.len()
    }

    /// Returns the number of transitions of queue pairs to ERR. If this number is unchanged, the counters of errors
    /// that cause such a transition are unchanged, too.
    pub fn qp_errors(&self) -> u64 {
        self.qp_errors
    }

    /// Returns the number of bytes of the reorder buffers that out-of-order requests occupy; at most
    /// [`DeviceLimits::reorder_bytes`].
    pub fn buffered_bytes(&self) -> usize {
        self.reorder.occupied_bytes()
    }

    /// Drops expired requests of the reorder buffers. Returns whether expired requests may remain.
    #[inline]
    fn expire_buffered(&mut self) -> bool {
        self.reorder.next_expiry().is_some_and(|expiry| expiry <= self.now) && self.drop_expired()
    }

    /// Drops expired requests of the reorder buffers. Out of line (`cold`), because inlined code would occupy registers
    /// in each idle poll.
    #[cold]
    fn drop_expired(&mut self) -> bool {
        for _ in 0..REORDER_EXPIRED_PER_POLL {
            let Some((slot, psn)) = self.reorder.pop_expired(self.now) else { return false };
            let Some(qp) = self.qps.at_mut(slot) else { continue };
            qp.counters.reorder_expired += 1;
            if let Some(Connection { service: Service::Rc(rc), .. }) = &mut qp.connection {
                rc.responder.on_expired(psn);
            }
        }
        true
    }

    #[inline]
    fn expire_timers(&mut self) {
        if self.timers.earliest() <= OptionalInstant::some(self.now) {
            self.expire_some();
        }
    }

    #[inline(never)]
    fn expire_some(&mut self) {
        let mut left = TIMERS_PER_POLL;
        for _ in 0..TIMER_CHECKS_PER_POLL {
            if left == 0 {
                return;
            }
            let Some(expired) = self.timers.expire(self.now) else { return };
            let Some(slot) = expired else { continue };
            left -= 1;
            self.on_expired(slot);
        }
    }

    /// Called when the deadline of the queue pair with index `slot` has passed.
    fn on_expired(&mut self, slot: usize) {
        let Some(qp) = self.qps.at_mut(slot) else { return };
        if qp.state == QpState::Err {
            return flush_later(&mut self.qps, &mut self.errors, slot);
        }
        match &mut qp.connection {
            Some(Connection { service: Service::Rc(rc), .. }) => {
                let failed = rc.requester.on_time(self.now, &mut qp.outstanding, &mut qp.counters);
                self.after_requester(slot, failed);
            }
            // All deadlines of an unreliable connection are those of its pacer: at the deadline, the next packet may be
            // sent.
            Some(Connection { service: Service::Uc(_), .. }) => {
                schedule(&mut self.qps, &mut self.tx_ready, slot);
            }
            None => {}
        }
    }

    #[inline]
    fn flush_errors(&mut self) {
        if !self.errors.is_empty() {
            self.flush_some();
        }
    }

    #[cold]
    fn flush_some(&mut self) {
        for _ in 0..FLUSHED_QPS_PER_POLL.min(self.errors.len()) {
            let Some(slot) = self.errors.pop_front() else { break };
            let Some(qp) = self.qps.at_mut(slot).filter(|qp| qp.flushing) else { continue };
            if qp.flush(&mut self.cqs, FLUSHED_WRS_PER_QP) {
                self.errors.push_back(slot);
                continue;
            }
            qp.flushing = false;
            // At `flush_until` the queues are flushed a second time, because a receive posted during the transition to
            // ERR may have set no doorbell.
            if self.now < qp.flush_until {
                self.timers.no_later_than(slot, qp.flush_until, self.now);
            }
        }
    }

    fn collect_events(&mut self) {
        // Each engine writes completions to a ring of its own in each completion queue. If the ring of another engine
        // overflowed, `take_notified` adds the completion queue to those that `take_overflowed` returns. Therefore
        // `take_notified` is called first.
        while let Some(cq) = self.cqs.take_notified() {
            self.events.push_back(Event::Completion(cq));
        }
        while let Some(cq) = self.cqs.take_overflowed() {
            self.events.push_back(Event::CqError(cq));
            self.fail_users_of(cq);
        }
    }
}

impl<P: Port> Drop for Engine<P> {
    /// Releases the protection domains and completion queues of the queue pairs, and the protection domains of the
    /// shared receive queues and address handles, of this engine.
    fn drop(&mut self) {
        // A panic may have interrupted an epoch. `leave` ends the epoch, because a thread that registers or
        // deregisters a region may be waiting for the end of the epoch.
        self.memory.leave();
        for (_, qp) in self.qps.iter() {
            self.objects.release_pd(qp.init.pd);
            self.objects.release_cqs([qp.init.send_cq, qp.init.recv_cq]);
        }
        self.srqs.pds().for_each(|pd| self.objects.release_pd(pd));
        self.ahs.iter().for_each(|(_, ah)| self.objects.release_pd(ah.pd));
    }
}

#[inline]
fn schedule(qps: &mut Table<Qp>, tx_ready: &mut VecDeque<usize>, slot: usize) {
    if let Some(qp) = qps.at_mut(slot) {
        schedule_qp(qp, tx_ready, slot);
    }
}

/// Schedules the queue pair `qp`, whose index is `slot`, to transmit.
#[inline]
fn schedule_qp(qp: &mut Qp, tx_ready: &mut VecDeque<usize>, slot: usize) {
    if !std::mem::replace(&mut qp.scheduled, true) {
        tx_ready.push_back(slot);
    }
}

/// Adds a queue pair in ERR or SQE to `errors`, the queue pairs to flush.
#[cold]
fn flush_later(qps: &mut Table<Qp>, errors: &mut VecDeque<usize>, slot: usize) {
    if let Some(qp) = qps.at_mut(slot)
        && !std::mem::replace(&mut qp.flushing, true)
    {
        errors.push_back(slot);
    }
}

/// Removes from `errors` (the queue pairs to flush) a queue pair that leaves ERR or SQE.
fn end_flush(qp: &mut Qp, errors: &mut VecDeque<usize>, slot: usize) {
    qp.flushing = false;
    errors.retain(|other| *other != slot);
}
