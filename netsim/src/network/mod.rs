//! The simulated network: hosts, switches, links and their events.

mod forward;
mod pause;
#[cfg(test)]
mod tests;

use std::collections::{HashMap, VecDeque};

use roce::port::impairment::Disposition;

use crate::event::EventQueue;
use crate::frame::{Frame, FrameId, Frames, InTransit, NONE, flow_hash};
use crate::id::{HostId, LinkId, Node, SwitchId};
use crate::link::{DelayedFrame, Link, LinkConfig, LinkCounters, Queued};
use crate::rng::{SplitMix, threshold};
use crate::route::Routes;
use crate::switch::{Forwarding, Service, Switch, SwitchConfig};
use crate::tape::Tape;

/// A frame as it left a sender, before impairments.
#[derive(Clone, Copy, Debug)]
pub struct Sighting<'a> {
    /// The time at which the frame's last bit left the sender.
    pub nanos: u64,
    /// The link on which the frame was sent.
    pub link: LinkId,
    /// Number of the frame on the link, counted from 0 since the tape was set.
    pub number: u64,
    /// The frame's bytes, without phantom bytes.
    pub frame: &'a [u8],
    /// Length of the frame on the wire, phantom bytes included, without FCS.
    pub len_bytes: usize,
}

type Recorder = Box<dyn FnMut(Sighting<'_>)>;

/// A scheduled event.
#[derive(Clone, Copy)]
enum Event {
    /// The last bit of the frame on the wire leaves the sender.
    Sent { link: u32 },
    /// A frame arrives at the end of the link.
    Arrived { link: u32, frame: FrameId },
    /// A reordered frame has been held for [`Tape::HOLD_NANOS_MAX`].
    HeldTooLong { link: u32, held: u32 },
    /// PAUSE or RESUME arrives at the sender of the link.
    Pause { link: u32, on: bool },
}

#[derive(Default)]
struct Host {
    egress: Option<LinkId>,
    received: VecDeque<FrameId>,
    /// Bytes of free queue space at which the host is notified; 0: no notification.
    room_wanted_bytes: usize,
    /// Whether the host is in `Network::news`.
    has_news: bool,
}

/// A simulated Ethernet; for its use see the crate's documentation.
#[derive(Default)]
pub struct Network {
    now_nanos: u64,
    events: EventQueue<Event>,
    frames: Frames,
    links: Vec<Link>,
    hosts: Vec<Host>,
    switches: Vec<Switch>,
    addresses: HashMap<[u8; 6], u32>,
    /// The routes are computed at first use; a new switch or cable resets them.
    routes: Option<Routes>,
    news: Vec<HostId>,
    recorder: Option<Recorder>,
    seed: u64,
    keeps_fractions: bool,
    hops: u64,
    unroutable: u64,
}

impl Network {
    /// Creates an empty network at time 0, with seed 0.
    pub fn new() -> Self {
        Network::default()
    }

    /// Creates an empty network at time 0. `seed` determines hash salts, sprayed paths, marks and losses.
    pub fn seeded(seed: u64) -> Self {
        Network { seed, ..Network::default() }
    }

    /// Adds a host; to send, it needs a cable.
    pub fn add_host(&mut self) -> HostId {
        self.hosts.push(Host::default());
        HostId(self.hosts.len() - 1)
    }

    /// Maps an Ethernet address to `host`. All switches except learning switches forward by this mapping only.
    pub fn set_address(&mut self, host: HostId, address: [u8; 6]) {
        self.addresses.insert(address, host.0 as u32);
    }

    /// Adds a learning switch. Cables between learning switches must form a tree, otherwise flooded frames
    /// circulate.
    pub fn add_switch(&mut self) -> SwitchId {
        self.add_switch_with(SwitchConfig::PLAIN)
    }

    /// Adds a switch.
    ///
    /// # Panics
    /// If `pmax` is no probability, kmin is above kmax, or xon not below xoff.
    pub fn add_switch_with(&mut self, config: SwitchConfig) -> SwitchId {
        let id = SwitchId(self.switches.len());
        self.switches.push(Switch::new(config, SplitMix::stream(self.seed, (id.0 as u64) << 1)));
        self.routes = None;
        id
    }

    /// Connects two nodes by a cable; returns the link from `a` to `b` and the link from `b` to `a`.
    ///
    /// # Panics
    /// If a host already has a cable, or the rate is 0.
    pub fn connect(&mut self, a: impl Into<Node>, b: impl Into<Node>, config: LinkConfig) -> [LinkId; 2] {
        self.connect_each_way(a, b, [config; 2])
    }

    /// As [`Network::connect`], with a configuration for each direction.
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
        if let Node::Switch(switch) = from
            && self.switches[switch.0].config.service == Service::RoundRobin
        {
            link.serve_inputs_in_turn();
        }
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

    /// Makes cables connected after this call deduct the rounding of a frame's serialisation time from the
    /// serialisation time of the next frame, so that a wire that is never idle sends at its exact rate. Without this
    /// call, each time is rounded up to whole nanoseconds: 0.4 % too long for 1 KB at 40 Gbit/s, and 4 % at 400 Gbit/s.
    pub fn keep_fractions(&mut self) {
        self.keeps_fractions = true;
    }

    /// Sets the fault tape, and restarts the frame numbers of all links at 0.
    pub fn set_tape(&mut self, tape: &Tape) {
        for (number, link) in self.links.iter_mut().enumerate() {
            link.set_tape(tape, LinkId(number));
        }
    }

    /// Drops each frame of `link` with this probability from now on, in addition to the tape.
    ///
    /// # Panics
    /// If `probability` is not between 0 and 1.
    pub fn set_loss(&mut self, link: LinkId, probability: f64) {
        self.links[link.0].loss_threshold = threshold(probability);
    }

    /// Calls `recorder` for every frame that leaves a host or switch from now on.
    pub fn set_recorder(&mut self, recorder: impl FnMut(Sighting<'_>) + 'static) {
        self.recorder = Some(Box::new(recorder));
    }

    /// The virtual time, in nanoseconds since the start.
    pub fn now_nanos(&self) -> u64 {
        self.now_nanos
    }

    /// The time of the next scheduled event, in nanoseconds; `None` if no event is scheduled.
    pub fn next_event_nanos(&self) -> Option<u64> {
        self.events.next_nanos()
    }

    /// Processes all events due up to `nanos`, and sets the time to `nanos`.
    pub fn run_until(&mut self, nanos: u64) {
        while let Some((at, event)) = self.events.pop_until(nanos) {
            self.now_nanos = at;
            self.happen(event);
        }
        self.now_nanos = self.now_nanos.max(nanos);
    }

    /// Processes events up to `nanos`, or up to the first time at which a host is to be notified, because a frame
    /// arrived or queue space is free ([`Network::want_room`]). All events of that time are processed.
    /// [`Network::take_news`] then lists the host.
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

    /// Appends to `hosts` the hosts notified since the last call, each once, in the order of their first notification.
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

    /// Returns a buffer of `len_bytes` bytes for a frame to send, reused if possible. Its contents are unspecified.
    pub fn buffer(&mut self, len_bytes: usize) -> Vec<u8> {
        self.frames.buffer(len_bytes)
    }

    /// Recycles the buffer of a received frame for [`Network::buffer`].
    pub fn recycle(&mut self, buffer: Vec<u8>) {
        self.frames.recycle(buffer);
    }

    /// Whether the queue of `host`'s link has room for a frame of `len_bytes`.
    pub fn has_room(&self, host: HostId, len_bytes: usize) -> bool {
        self.hosts[host.0].egress.is_some_and(|link| self.links[link.0].has_room(len_bytes))
    }

    /// Requests one notification of `host`, when a frame has left and the queue of its link has room for `len_bytes`.
    pub fn want_room(&mut self, host: HostId, len_bytes: usize) {
        self.hosts[host.0].room_wanted_bytes = len_bytes;
    }

    /// Sends a frame, without FCS, from `host`. If the link's queue is full, the frame is dropped and counted.
    ///
    /// # Panics
    /// If the host has no cable.
    pub fn send(&mut self, host: HostId, frame: impl Into<Frame>) {
        let link = self.hosts[host.0].egress.expect("a host sends over its cable");
        let frame = frame.into();
        // Destination and flow hash are computed once, not at each switch.
        let to = frame.address(0).and_then(|address| self.addresses.get(&address)).copied();
        let flow_hash = if to.is_some() { flow_hash(&frame.bytes) } else { 0 };
        let id = self.frames.insert(InTransit { frame, to: to.unwrap_or(NONE), flow_hash });
        self.offer(link, id);
    }

    /// Removes and returns the oldest frame of `host`'s receive queue.
    pub fn receive(&mut self, host: HostId) -> Option<Frame> {
        let frame = self.hosts[host.0].received.pop_front()?;
        Some(self.frames.remove(frame))
    }

    /// Number of frames in `host`'s receive queue.
    pub fn waiting(&self, host: HostId) -> usize {
        self.hosts[host.0].received.len()
    }

    /// Returns the counters of a link. `paused_nanos` includes a pause in progress.
    pub fn counters(&self, link: LinkId) -> LinkCounters {
        let link = &self.links[link.0];
        let pause_nanos = link.paused_since_nanos.map_or(0, |since| self.now_nanos - since);
        LinkCounters { paused_nanos: link.counters.paused_nanos + pause_nanos, ..link.counters }
    }

    /// Bytes in the queue of `link`, the frame on the wire included.
    pub fn queued_bytes(&self, link: LinkId) -> usize {
        self.links[link.0].queued_bytes
    }

    /// Number of links, which are numbered from 0.
    pub fn links(&self) -> usize {
        self.links.len()
    }

    /// Returns the sending and the receiving node of a link.
    pub fn ends(&self, link: LinkId) -> [Node; 2] {
        [self.links[link.0].from, self.links[link.0].to]
    }

    /// Rate, propagation delay and queue limit of a link.
    pub fn link_config(&self, link: LinkId) -> LinkConfig {
        self.links[link.0].config
    }

    /// Rate, propagation delay and queue limit of the link from `host`.
    ///
    /// # Panics
    /// If the host has no cable.
    pub fn host_link_config(&self, host: HostId) -> LinkConfig {
        self.link_config(self.hosts[host.0].egress.expect("a host sends over its cable"))
    }

    /// Frames sent over all links, each frame counted once per link.
    pub fn hops(&self) -> u64 {
        self.hops
    }

    /// Frames dropped because no host has the destination address, or no path leads to it; not by learning switches.
    pub fn unroutable(&self) -> u64 {
        self.unroutable
    }

    fn tell(&mut self, host: HostId) {
        if !std::mem::replace(&mut self.hosts[host.0].has_news, true) {
            self.news.push(host);
        }
    }

    fn offer(&mut self, id: LinkId, frame: FrameId) {
        let len_bytes = self.frames.get(frame).frame.len_bytes();
        let link = &mut self.links[id.0];
        link.counters.offered += 1;
        if !link.has_room(len_bytes) {
            link.counters.overrun += 1;
            return self.frames.discard(frame);
        }
        // Frame lengths are below 2^32.
        link.enqueue(Queued { frame, len_bytes: len_bytes as u32, input: NONE });
        self.transmit(id);
    }

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
        self.impair(id, number, queued.frame);
        self.transmit(id);
    }

    fn impair(&mut self, id: LinkId, number: u64, frame: FrameId) {
        let mut disposition =
            Disposition { is_dropped: self.links[id.0].is_unlucky(), ..Disposition::default() };
        while let Some(entry) = self.links[id.0].next_entry(number) {
            self.frames.get_mut(frame).frame.impair(entry.impairment, &mut disposition);
        }
        let Disposition { is_dropped, is_corrupted, copies, delay_nanos, behind_pkts } = disposition;
        let counters = &mut self.links[id.0].counters;
        if is_dropped {
            counters.dropped += 1;
            self.frames.discard(frame);
        } else {
            counters.corrupted += u64::from(is_corrupted);
            counters.displaced += u64::from(delay_nanos > 0 || behind_pkts > 0);
            counters.duplicated += u64::from(copies);
            for _ in 0..copies {
                let copy = self.frames.duplicate(frame);
                self.travel(id, copy, 0);
            }
            if behind_pkts > 0 {
                self.hold(id, frame, behind_pkts);
                return;
            }
            self.travel(id, frame, delay_nanos);
        }
        self.passed(id);
    }

    /// Holds a frame until `passes_left` later frames have passed it, for [`Tape::HOLD_NANOS_MAX`] at most.
    fn hold(&mut self, id: LinkId, frame: FrameId, passes_left: u32) {
        let link = &mut self.links[id.0];
        let number = link.held_count;
        link.held_count += 1;
        link.held.push(DelayedFrame { number, frame, passes_left });
        let too_long_nanos = self.now_nanos + Tape::HOLD_NANOS_MAX;
        self.events.schedule(too_long_nanos, Event::HeldTooLong { link: id.0 as u32, held: number });
    }

    /// Counts one more frame that passed all held frames, and schedules the arrival of held frames that are due.
    fn passed(&mut self, id: LinkId) {
        for held in &mut self.links[id.0].held {
            held.passes_left = held.passes_left.saturating_sub(1);
        }
        while let Some(at) = self.links[id.0].held.iter().position(|held| held.passes_left == 0) {
            let frame = self.links[id.0].held.remove(at).frame;
            self.travel(id, frame, 0);
        }
    }

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
