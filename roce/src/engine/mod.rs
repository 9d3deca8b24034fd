//! The engine: one device, driven by `poll`.
//!
//! ```text
//!   poll(now):  port.rx_burst -> ingress -> responder | completer      at most RX_BURST_FRAMES
//!               doorbells     -> queue pairs with news are scheduled
//!               timers        -> requester                             at most TIMERS_PER_POLL
//!               kept packets  -> dropped with age                      at most REORDER_EXPIRED_PER_POLL
//!               errors        -> flush                                 at most FLUSHED_QPS_PER_POLL
//!               notifier      -> port                                  at most CNPS_PER_POLL
//!               egress        -> responder, requester -> port          at most TX_BUDGET_PKTS
//!               neighbour     -> port                                  at most NEIGHBOUR_FRAMES_PER_POLL
//!               port.tx_flush
//! ```

mod admit;
mod egress;
pub mod event;
mod ingress;
pub mod limits;
mod modify;
mod notify;
mod objects;
mod out_of_order;
mod qp_object;
mod reorder;
mod timers;

use std::collections::VecDeque;
use std::sync::Arc;

use crate::congestion::{CongestionScheme, NotificationConfig};
use crate::counters::{DropCounters, QpCounters};
use crate::id::Mac;
use crate::mem::MemoryTable;
use crate::neighbour::{GidError, Neighbour, NeighbourConfig};
use crate::port::Port;
use crate::queue::{CqTable, Doorbells};
use crate::random::Random;
use crate::table::Table;
use crate::time::Instant;

pub use admit::SourceChecks;
pub use event::Event;
pub use objects::{CreateError, DestroyError, QpHandles};
pub use qp_object::Attributes;

use egress::Outgoing;
use limits::{
    DEFAULT_LINK_BITS_PER_SEC, DeviceLimits, FLUSHED_QPS_PER_POLL, FLUSHED_WRS_PER_QP, RX_BURST_FRAMES,
    TIMERS_PER_POLL,
};
use notify::Notifier;
use qp_object::Qp;
use reorder::ReorderBuffer;
use timers::Timers;

/// Bits of a queue pair number, all of them random.
const QPN_BITS: u32 = 24;

/// Bits of a protection domain's number. It is never on the wire, and only has to differ from others.
const PD_BITS: u32 = 32;

/// How an engine is set up.
#[derive(Clone, Debug)]
pub struct EngineConfig {
    /// Seed of all keys, queue pair numbers and PSNs: from the operating system on a live device.
    pub seed: [u8; 32],
    /// How many objects it has room for.
    pub limits: DeviceLimits,
    /// Addresses, and who answers for them.
    pub neighbour: NeighbourConfig,
    /// Congestion control of queue pairs that name none.
    pub congestion: CongestionScheme,
    /// How peers are told of packets that came marked "congestion experienced".
    pub notification: NotificationConfig,
    /// Speed of the port's link, in bits per second: where congestion control starts.
    pub link_bits_per_sec: u64,
    /// What of a packet's source is compared besides its IP address.
    pub source_checks: SourceChecks,
}

impl EngineConfig {
    /// Defaults for everything but the seed and the addresses.
    pub fn new(seed: [u8; 32], neighbour: NeighbourConfig) -> Self {
        EngineConfig {
            seed,
            limits: DeviceLimits::default(),
            neighbour,
            congestion: CongestionScheme::default(),
            notification: NotificationConfig::default(),
            link_bits_per_sec: DEFAULT_LINK_BITS_PER_SEC,
            source_checks: SourceChecks::default(),
        }
    }
}

/// What one poll did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Frames received.
    pub rx_frames: usize,
    /// Packets sent.
    pub tx_pkts: u32,
    /// There is more to do now, for which this poll's bounds left no room.
    pub more: bool,
}

impl Progress {
    /// Whether the poll found nothing to do.
    pub fn is_idle(&self) -> bool {
        self.rx_frames == 0 && self.tx_pkts == 0 && !self.more
    }
}

/// A RoCEv2 device over a port.
///
/// Nothing happens between polls; [`Engine::next_deadline`] says when the next one is due at the
/// latest, and frames or posted work are reason for one at any time. The application's ends of the
/// queues ([`crate::queue::SendPoster`] and its like) may be used from other threads meanwhile.
pub struct Engine<P: Port> {
    port: P,
    /// The port's own Ethernet address.
    mac: Mac,
    congestion: CongestionScheme,
    link_bits_per_sec: u64,
    source_checks: SourceChecks,
    random: Random,
    neighbour: Neighbour,
    neighbour_generation: u64,
    memory: MemoryTable,
    pds: Table<()>,
    cqs: CqTable,
    qps: Table<Box<Qp>>,
    doorbells: Arc<Doorbells>,
    /// Slots of queue pairs that have something to send, in turn.
    tx_ready: VecDeque<u32>,
    /// Slots whose turn comes again at the next poll; empty between polls.
    tx_deferred: Vec<u32>,
    /// Slots of queue pairs in error.
    errors: VecDeque<u32>,
    /// Of these, how many were seen in a row with nothing left to flush: when all were, there is rest.
    flushed_in_a_row: usize,
    timers: Timers,
    notifier: Notifier,
    events: VecDeque<Event>,
    drops: DropCounters,
    /// Counters of queue pairs that are no more.
    past: QpCounters,
    qp_errors: u64,
    frames: Vec<P::Frame>,
    reorder: ReorderBuffer<P::Frame>,
    /// How many packets the network lets overtake one, as queue pairs have seen under selective repeat.
    reorder_pkts: u32,
    now: Instant,
}

impl<P: Port> Engine<P> {
    /// A device over `port`.
    pub fn new(port: P, config: EngineConfig) -> Result<Self, GidError> {
        let neighbour = Neighbour::new(config.neighbour)?;
        let limits = config.limits;
        let qps = Table::new(QPN_BITS, limits.max_qps);
        let slots = qps.max_len();
        Ok(Engine {
            mac: port.caps().mac,
            port,
            congestion: config.congestion,
            link_bits_per_sec: config.link_bits_per_sec,
            source_checks: config.source_checks,
            random: Random::new(config.seed),
            neighbour_generation: neighbour.generation(),
            neighbour,
            memory: MemoryTable::new(limits.max_mrs),
            pds: Table::new(PD_BITS, limits.max_pds),
            cqs: CqTable::new(limits.max_cqs),
            doorbells: Arc::new(Doorbells::new(slots)),
            tx_ready: VecDeque::new(),
            tx_deferred: Vec::new(),
            errors: VecDeque::new(),
            flushed_in_a_row: 0,
            timers: Timers::new(slots),
            notifier: Notifier::new(config.notification, slots),
            qps,
            events: VecDeque::new(),
            drops: DropCounters::default(),
            past: QpCounters::default(),
            qp_errors: 0,
            frames: Vec::with_capacity(RX_BURST_FRAMES),
            reorder: ReorderBuffer::new(),
            reorder_pkts: 0,
            now: Instant::ZERO,
        })
    }

    /// Does a bounded amount of everything there is to do.
    pub fn poll(&mut self, now: Instant) -> Progress {
        self.now = now;
        self.port.set_now(now);
        let rx_frames = self.receive();
        self.answer_doorbells();
        self.expire_timers();
        let more_to_expire = self.expire_buffered();
        let more_to_flush = self.flush_errors();
        self.follow_neighbours();
        let notifications = if self.notifier.is_idle() { 0 } else { self.transmit_notifications() };
        let tx_pkts = notifications + self.transmit(Outgoing::All);
        self.transmit_neighbour();
        self.port.tx_flush();
        self.collect_events();
        let more_to_send = !self.tx_ready.is_empty() || !self.notifier.is_idle();
        let more = rx_frames == RX_BURST_FRAMES || more_to_send || more_to_flush || more_to_expire;
        Progress { rx_frames, tx_pkts, more }
    }

    /// Sends what was posted, and nothing else: what a post does that will not wait for the next poll.
    pub fn push(&mut self, now: Instant) {
        self.now = now;
        self.port.set_now(now);
        self.answer_doorbells();
        self.transmit(Outgoing::Requests);
        self.port.tx_flush();
        self.collect_events();
    }

    /// Puts queue pairs with posts in line.
    #[inline]
    fn answer_doorbells(&mut self) {
        let (qps, tx_ready, flushed) = (&mut self.qps, &mut self.tx_ready, &mut self.flushed_in_a_row);
        self.doorbells.drain(|slot| {
            schedule(qps, tx_ready, slot);
            *flushed = 0; // it may be one in error
        });
    }

    /// The latest time at which the engine wants to be polled, if nothing else happens.
    pub fn next_deadline(&self) -> Option<Instant> {
        let has_more = !self.tx_ready.is_empty() || !self.notifier.is_idle() || self.doorbells.any();
        let immediate = has_more.then_some(self.now);
        let buffered = self.reorder.next_expiry();
        [immediate, self.timers.earliest(), buffered, self.neighbour.next_deadline()]
            .into_iter()
            .flatten()
            .min()
    }

    /// The port.
    pub fn port(&self) -> &P {
        &self.port
    }

    /// The port, to change its settings.
    pub fn port_mut(&mut self) -> &mut P {
        &mut self.port
    }

    /// Addresses and neighbours.
    pub fn neighbour(&self) -> &Neighbour {
        &self.neighbour
    }

    /// Addresses and neighbours, to change.
    pub fn neighbour_mut(&mut self) -> &mut Neighbour {
        &mut self.neighbour
    }

    /// The next event, oldest first.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// Frames dropped, by reason.
    pub fn drop_counters(&self) -> DropCounters {
        self.drops
    }

    /// The sums over all queue pairs, past and present.
    pub fn counters(&self) -> QpCounters {
        let mut sum = self.past;
        self.qps.iter().for_each(|(_, qp)| sum.add(&qp.counters));
        sum
    }

    /// Queue pairs that there are: as many as [`Engine::counters`] visits.
    pub fn qp_count(&self) -> usize {
        self.qps.len()
    }

    /// Queue pairs that went into error, other than by `modify`. While this stands still, so do the counters of
    /// what puts a queue pair into error.
    pub fn qp_errors(&self) -> u64 {
        self.qp_errors
    }

    /// Frames of the port that are kept out of order, which are missing in its pool, and packets kept as copies.
    pub fn kept_frames(&self) -> (usize, usize) {
        self.reorder.len()
    }

    fn expire_timers(&mut self) {
        for _ in 0..TIMERS_PER_POLL {
            let Some(slot) = self.timers.pop_due(self.now) else { return };
            let Some(qp) = self.qps.at_mut(slot) else { continue };
            let Some(connection) = &mut qp.connection else { continue };
            let failed = connection.requester.on_time(self.now, &mut qp.outstanding, &mut qp.counters);
            self.after_requester(slot, failed);
        }
    }

    /// Flushes some of the queue pairs in error, in turn. Returns whether any may have more to flush.
    fn flush_errors(&mut self) -> bool {
        for _ in 0..FLUSHED_QPS_PER_POLL.min(self.errors.len()) {
            let Some(slot) = self.errors.pop_front() else { break };
            // In error for good: what is posted later is flushed too.
            if let Some(qp) = self.qps.at_mut(slot as usize)
                && qp.flushing
            {
                let left = qp.flush(&mut self.cqs, FLUSHED_WRS_PER_QP);
                self.flushed_in_a_row = if left { 0 } else { self.flushed_in_a_row + 1 };
                self.errors.push_back(slot);
            }
        }
        self.flushed_in_a_row = self.flushed_in_a_row.min(self.errors.len());
        self.flushed_in_a_row < self.errors.len()
    }

    fn collect_events(&mut self) {
        while let Some(cq) = self.cqs.take_overflowed() {
            self.events.push_back(Event::CqError(cq));
            self.fail_users_of(cq);
        }
        while let Some(cq) = self.cqs.take_notified() {
            self.events.push_back(Event::Completion(cq));
        }
    }
}

/// Puts a queue pair in the line of those that send.
fn schedule(qps: &mut Table<Box<Qp>>, tx_ready: &mut VecDeque<u32>, slot: usize) {
    if let Some(qp) = qps.at_mut(slot)
        && !std::mem::replace(&mut qp.scheduled, true)
    {
        tx_ready.push_back(slot as u32);
    }
}
