//! Hosts and switches, and the frames between them.

mod forward;
mod pause;
#[cfg(test)]
mod tests;

use std::collections::{HashMap, VecDeque};

use crate::event::EventQueue;
use crate::frame::{Frame, FrameId, Frames, NONE, UnderWay, flow_hash};
use crate::link::{DelayedFrame, Link, LinkConfig, LinkCounters, Queued};
use crate::rng::{SplitMix, threshold};
use crate::route::Routes;
use crate::switch::{Forwarding, Switch, SwitchConfig};
use crate::tape::{Action, Tape, mark_ce};

/// A host of a network: one port, an endless receive queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct HostId(pub usize);

/// A switch of a network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SwitchId(pub usize);

/// One direction of a cable, numbered in the order of [`Network::connect`]: 0 and 1 for the first
/// cable, and so on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LinkId(pub usize);

/// An end of a cable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Node {
    /// A host.
    Host(HostId),
    /// A switch.
    Switch(SwitchId),
}

impl From<HostId> for Node {
    fn from(host: HostId) -> Self {
        Node::Host(host)
    }
}

impl From<SwitchId> for Node {
    fn from(switch: SwitchId) -> Self {
        Node::Switch(switch)
    }
}

/// A frame as it left a sender, before the tape did anything to it.
#[derive(Clone, Copy, Debug)]
pub struct Sighting<'a> {
    /// When its last bit left.
    pub nanos: u64,
    /// On which link.
    pub link: LinkId,
    /// Its number on the link since the tape was put in.
    pub number: u64,
    /// The frame, as far as it has content.
    pub frame: &'a [u8],
    /// Its length on the wire, without FCS.
    pub len_bytes: usize,
}

type Recorder = Box<dyn FnMut(Sighting<'_>)>;

/// What happens at a known time.
#[derive(Clone, Copy)]
enum Event {
    /// The last bit of the frame under way leaves the sender.
    Sent { link: u32 },
    /// A frame reaches the far end.
    Arrived { link: u32, frame: FrameId },
    /// A frame held back for others to pass has waited long enough.
    HeldTooLong { link: u32, held: u32 },
    /// A PAUSE or RESUME from the far end reaches the sender.
    Pause { link: u32, on: bool },
}

#[derive(Default)]
struct Host {
    egress: Option<LinkId>,
    received: VecDeque<FrameId>,
    /// It wants to know when its queue takes so many bytes; 0 where it does not.
    room_wanted_bytes: usize,
    /// It is on the list of those with news.
    has_news: bool,
}

/// A simulated Ethernet. See the crate's own text for how to drive it.
#[derive(Default)]
pub struct Network {
    now_nanos: u64,
    events: EventQueue<Event>,
    frames: Frames,
    links: Vec<Link>,
    hosts: Vec<Host>,
    switches: Vec<Switch>,
    addresses: HashMap<[u8; 6], u32>,
    /// Made when they are first needed.
    routes: Option<Routes>,
    news: Vec<HostId>,
    recorder: Option<Recorder>,
    seed: u64,
    keeps_fractions: bool,
    hops: u64,
    unroutable: u64,
}

impl Network {
    /// An empty network at time 0, with seed 0.
    pub fn new() -> Self {
        Network::default()
    }

    /// An empty network at time 0; `seed` decides all that is drawn: hashes, sprayed ways, marks, losses.
    pub fn seeded(seed: u64) -> Self {
        Network { seed, ..Network::default() }
    }

    /// Adds a host; it needs a cable before it sends.
    pub fn add_host(&mut self) -> HostId {
        self.hosts.push(Host::default());
        HostId(self.hosts.len() - 1)
    }

    /// Says that frames to `address` go to `host`: all that a switch which does not learn goes by.
    pub fn set_address(&mut self, host: HostId, address: [u8; 6]) {
        self.addresses.insert(address, host.0 as u32);
    }

    /// Adds a switch that learns. Cables between such switches must form a tree, for unknown
    /// destinations are flooded.
    pub fn add_switch(&mut self) -> SwitchId {
        self.add_switch_with(SwitchConfig::PLAIN)
    }

    /// Adds a switch.
    ///
    /// # Panics
    /// Where its thresholds contradict one another.
    pub fn add_switch_with(&mut self, config: SwitchConfig) -> SwitchId {
        let id = SwitchId(self.switches.len());
        self.switches.push(Switch::new(config, SplitMix::stream(self.seed, (id.0 as u64) << 1)));
        self.routes = None;
        id
    }

    /// Joins two ends by a cable: the link from `a` to `b` and the link from `b` to `a`.
    ///
    /// # Panics
    /// Where a host already has a cable, or the rate is 0.
    pub fn connect(&mut self, a: impl Into<Node>, b: impl Into<Node>, config: LinkConfig) -> [LinkId; 2] {
        self.connect_each_way(a, b, [config; 2])
    }

    /// The same with a link there and a link back that differ.
    ///
    /// # Panics
    /// As [`Network::connect`].
    pub fn connect_each_way(
        &mut self,
        a: impl Into<Node>,
        b: impl Into<Node>,
        [there, back]: [LinkConfig; 2],
    ) -> [LinkId; 2] {
        let (a, b) = (a.into(), b.into());
        let (there, back) = (self.add_link(there, a, b), self.add_link(back, b, a));
        self.plug(a, there, back);
        self.plug(b, back, there);
        self.routes = None;
        [there, back]
    }

    fn add_link(&mut self, config: LinkConfig, from: Node, to: Node) -> LinkId {
        let id = LinkId(self.links.len());
        let rng = SplitMix::stream(self.seed, (id.0 as u64) << 1 | 1);
        let mut link = Link::new(config, from, to, rng);
        link.keeps_fractions = self.keeps_fractions;
        self.links.push(link);
        id
    }

    fn plug(&mut self, node: Node, out: LinkId, into: LinkId) {
        match node {
            Node::Host(host) => {
                let before = self.hosts[host.0].egress.replace(out);
                assert!(before.is_none(), "{host:?} has one port and it is taken");
            }
            Node::Switch(switch) => self.switches[switch.0].ports.push((out, into)),
        }
    }

    /// Lets wires of cables connected from now on keep fractions of a nanosecond from frame to frame: a
    /// wire that never rests then sends at its rate exactly. Otherwise every frame takes the same whole
    /// time, rounded up, wherever it stands: 0.4 % too much for 1 KB at 40 Gbit/s, and 4 % at 400.
    pub fn keep_fractions(&mut self) {
        self.keeps_fractions = true;
    }

    /// Puts in a tape; frames are counted from now on.
    pub fn set_tape(&mut self, tape: &Tape) {
        for (number, link) in self.links.iter_mut().enumerate() {
            link.set_tape(tape, LinkId(number));
        }
    }

    /// Loses each frame of `link` with this probability from now on, besides what the tape does.
    ///
    /// # Panics
    /// Where it is not between 0 and 1.
    pub fn set_loss(&mut self, link: LinkId, probability: f64) {
        self.links[link.0].loss_threshold = threshold(probability);
    }

    /// Calls `recorder` for every frame that leaves a sender from now on.
    pub fn set_recorder(&mut self, recorder: impl FnMut(Sighting<'_>) + 'static) {
        self.recorder = Some(Box::new(recorder));
    }

    /// The time, in nanoseconds since the start.
    pub fn now_nanos(&self) -> u64 {
        self.now_nanos
    }

    /// When something happens next, if nobody sends before.
    pub fn next_event_nanos(&self) -> Option<u64> {
        self.events.next_nanos()
    }

    /// Moves the time to `nanos`, letting everything happen that is due by then.
    pub fn run_until(&mut self, nanos: u64) {
        while let Some((at, event)) = self.events.pop_until(nanos) {
            self.now_nanos = at;
            self.happen(event);
        }
        self.now_nanos = self.now_nanos.max(nanos);
    }

    /// Moves the time to `nanos`, or to an earlier moment at which a host has news (a frame arrived, or
    /// there is the room it asked for): all that is due at that moment has then happened, and the host
    /// is in [`Network::take_news`].
    pub fn run_until_news(&mut self, nanos: u64) {
        let mut until = nanos;
        while let Some((at, event)) = self.events.pop_until(until) {
            self.now_nanos = at;
            self.happen(event);
            if !self.news.is_empty() {
                until = at;
            }
        }
        self.now_nanos = self.now_nanos.max(until);
    }

    /// Appends the hosts that had news since the last call, each once, in the order of their news.
    pub fn take_news(&mut self, hosts: &mut Vec<HostId>) {
        for host in &self.news {
            self.hosts[host.0].has_news = false;
        }
        hosts.append(&mut self.news);
    }

    #[inline]
    fn happen(&mut self, event: Event) {
        match event {
            Event::Sent { link } => self.sent(LinkId(link as usize)),
            Event::Arrived { link, frame } => self.arrived(LinkId(link as usize), frame),
            Event::HeldTooLong { link, held } => {
                let waiting = &mut self.links[link as usize].held;
                if let Some(at) = waiting.iter().position(|frame| frame.number == held) {
                    let frame = waiting.remove(at).frame;
                    self.travel(LinkId(link as usize), frame, 0);
                }
            }
            Event::Pause { link, on } => self.paused(LinkId(link as usize), on),
        }
    }

    /// An empty-handed caller's buffer of `len_bytes` bytes for a frame; what is in it is unspecified.
    pub fn buffer(&mut self, len_bytes: usize) -> Vec<u8> {
        self.frames.buffer(len_bytes)
    }

    /// Takes back a buffer that is not needed any more.
    pub fn recycle(&mut self, buffer: Vec<u8>) {
        self.frames.recycle(buffer);
    }

    /// Whether the queue of `host`'s link takes `len_bytes` more bytes now.
    pub fn has_room(&self, host: HostId, len_bytes: usize) -> bool {
        self.hosts[host.0].egress.is_some_and(|link| self.links[link.0].has_room(len_bytes))
    }

    /// Makes it news of `host`, once, that the queue of its link takes `len_bytes` more bytes.
    pub fn want_room(&mut self, host: HostId, len_bytes: usize) {
        self.hosts[host.0].room_wanted_bytes = len_bytes;
    }

    /// Sends a frame, without FCS, from `host`. It is dropped and counted where the queue is full.
    ///
    /// # Panics
    /// Where the host has no cable.
    pub fn send(&mut self, host: HostId, frame: impl Into<Frame>) {
        let link = self.hosts[host.0].egress.expect("a host sends over its cable");
        let frame = frame.into();
        // Looked up once, not at each switch.
        let to = frame.address(0).and_then(|address| self.addresses.get(&address)).copied();
        let flow_hash = if to.is_some() { flow_hash(&frame.bytes) } else { 0 };
        let id = self.frames.insert(UnderWay { frame, to: to.unwrap_or(NONE), flow_hash });
        self.offer(link, id);
    }

    /// Takes the oldest frame that arrived at `host`.
    pub fn receive(&mut self, host: HostId) -> Option<Frame> {
        let frame = self.hosts[host.0].received.pop_front()?;
        Some(self.frames.remove(frame))
    }

    /// Frames that arrived at `host` and were not taken yet.
    pub fn waiting(&self, host: HostId) -> usize {
        self.hosts[host.0].received.len()
    }

    /// What became of the frames of a link.
    pub fn counters(&self, link: LinkId) -> LinkCounters {
        let link = &self.links[link.0];
        let pause_nanos = link.paused_since_nanos.map_or(0, |since| self.now_nanos - since);
        LinkCounters { paused_nanos: link.counters.paused_nanos + pause_nanos, ..link.counters }
    }

    /// Bytes that wait for the wire of `link` now, those of the frame on it included.
    pub fn queued_bytes(&self, link: LinkId) -> usize {
        self.links[link.0].queued_bytes
    }

    /// Links there are: their numbers are below it.
    pub fn links(&self) -> usize {
        self.links.len()
    }

    /// The two ends of a link: from, to.
    pub fn ends(&self, link: LinkId) -> [Node; 2] {
        [self.links[link.0].from, self.links[link.0].to]
    }

    /// What a link can do.
    pub fn link_config(&self, link: LinkId) -> LinkConfig {
        self.links[link.0].config
    }

    /// What the link out of `host` can do.
    ///
    /// # Panics
    /// Where the host has no cable.
    pub fn host_link_config(&self, host: HostId) -> LinkConfig {
        self.link_config(self.hosts[host.0].egress.expect("a host sends over its cable"))
    }

    /// Frames that went over a link, over all links: the work done so far.
    pub fn hops(&self) -> u64 {
        self.hops
    }

    /// Frames dropped by switches that do not learn: to an address no host has, or to a group.
    pub fn unroutable(&self) -> u64 {
        self.unroutable
    }

    fn tell(&mut self, host: HostId) {
        if !std::mem::replace(&mut self.hosts[host.0].has_news, true) {
            self.news.push(host);
        }
    }

    /// Puts a frame that comes from a host to its link.
    fn offer(&mut self, id: LinkId, frame: FrameId) {
        let len_bytes = self.frames.get(frame).frame.len_bytes();
        let link = &mut self.links[id.0];
        link.counters.offered += 1;
        if !link.has_room(len_bytes) {
            link.counters.overrun += 1;
            return self.frames.discard(frame);
        }
        // No frame is as long as 4 GB.
        link.enqueue(Queued { frame, len_bytes: len_bytes as u32, input: NONE });
        self.transmit(id);
    }

    /// Puts the frame at the head of a link's queue on the wire, where that is free.
    #[inline]
    fn transmit(&mut self, id: LinkId) {
        if let Some(nanos) = self.links[id.0].start_next(self.now_nanos) {
            self.events.schedule(nanos, Event::Sent { link: id.0 as u32 });
        }
    }

    fn sent(&mut self, id: LinkId) {
        let link = &mut self.links[id.0];
        let Some(queued) = link.take_sent() else { return };
        let number = link.left_on_tape;
        link.left_on_tape += 1;
        self.hops += 1;
        if let Node::Host(host) = link.from {
            let wanted_bytes = self.hosts[host.0].room_wanted_bytes;
            if wanted_bytes > 0 && link.has_room(wanted_bytes) {
                self.hosts[host.0].room_wanted_bytes = 0;
                self.tell(host);
            }
        }
        if let Some(recorder) = &mut self.recorder {
            let frame = &self.frames.get(queued.frame).frame;
            let (nanos, len_bytes) = (self.now_nanos, frame.len_bytes());
            recorder(Sighting { nanos, link: id, number, frame: &frame.bytes, len_bytes });
        }
        self.release(id, queued);
        self.meet_faults(id, number, queued.frame);
        self.transmit(id);
    }

    /// Does to a frame what the tape and chance say, and sends it on its way.
    fn meet_faults(&mut self, id: LinkId, number: u64, frame: FrameId) {
        let mut dropped = self.links[id.0].is_unlucky();
        let (mut copies, mut delay_nanos, mut behind, mut corrupted) = (0, 0u64, 0, false);
        while let Some(fault) = self.links[id.0].next_fault(number) {
            match fault.action {
                Action::Drop => dropped = true,
                Action::Duplicate => copies += 1,
                Action::Delay { nanos } => delay_nanos = delay_nanos.saturating_add(nanos),
                Action::Reorder { behind: frames } => behind = behind.max(frames),
                Action::Corrupt { bit } => {
                    self.frames.get_mut(frame).frame.corrupt(bit);
                    corrupted = true;
                }
                Action::MarkCe => mark_ce(&mut self.frames.get_mut(frame).frame.bytes),
            }
        }
        let counters = &mut self.links[id.0].counters;
        if dropped {
            counters.dropped += 1;
            self.frames.discard(frame);
        } else {
            counters.corrupted += u64::from(corrupted);
            counters.displaced += u64::from(delay_nanos > 0 || behind > 0);
            counters.duplicated += copies;
            for _ in 0..copies {
                let copy = self.frames.duplicate(frame);
                self.travel(id, copy, 0);
            }
            if behind > 0 {
                self.hold(id, frame, behind);
                return;
            }
            self.travel(id, frame, delay_nanos);
        }
        self.passed(id);
    }

    /// Keeps a frame back until `passes_left` others have passed.
    fn hold(&mut self, id: LinkId, frame: FrameId, passes_left: u32) {
        let link = &mut self.links[id.0];
        let number = link.held_count;
        link.held_count += 1;
        link.held.push(DelayedFrame { number, frame, passes_left });
        let too_long_nanos = self.now_nanos + Tape::HOLD_NANOS_MAX;
        self.events.schedule(too_long_nanos, Event::HeldTooLong { link: id.0 as u32, held: number });
    }

    /// Counts a frame that passed the held ones, and lets those go that it was the last for.
    fn passed(&mut self, id: LinkId) {
        for held in &mut self.links[id.0].held {
            held.passes_left = held.passes_left.saturating_sub(1);
        }
        while let Some(at) = self.links[id.0].held.iter().position(|held| held.passes_left == 0) {
            let frame = self.links[id.0].held.remove(at).frame;
            self.travel(id, frame, 0);
        }
    }

    /// Lets a frame travel to the far end.
    #[inline]
    fn travel(&mut self, id: LinkId, frame: FrameId, delay_nanos: u64) {
        let nanos = self.links[id.0].config.propagation_nanos.saturating_add(delay_nanos);
        let at_nanos = self.now_nanos.saturating_add(nanos);
        self.events.schedule(at_nanos, Event::Arrived { link: id.0 as u32, frame });
    }

    fn arrived(&mut self, id: LinkId, frame: FrameId) {
        let link = &mut self.links[id.0];
        link.counters.delivered += 1;
        match link.to {
            Node::Host(host) => {
                self.hosts[host.0].received.push_back(frame);
                self.tell(host);
            }
            Node::Switch(switch) => match self.switches[switch.0].config.forwarding {
                Forwarding::Learning => self.forward_learned(switch, id, frame),
                _ => self.forward_routed(switch, id, frame),
            },
        }
    }
}
