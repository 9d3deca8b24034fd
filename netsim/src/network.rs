//! Hosts and switches, and the frames between them.

use std::collections::{HashMap, VecDeque};

use crate::event::{Event, Events};
use crate::link::{Held, Link, LinkConfig, LinkCounters};
use crate::tape::{Action, Tape, flip_bit, mark_ce};

/// Buffers kept for use again.
const SPARE_BUFFERS_MAX: usize = 4096;

/// A host of a network: one port, an endless receive queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct HostId(pub usize);

/// A switch of a network: forwards by destination address, learns from source addresses, floods
/// what it does not know.
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
    /// The frame.
    pub frame: &'a [u8],
}

type Recorder = Box<dyn FnMut(Sighting<'_>)>;

#[derive(Default)]
struct Host {
    egress: Option<LinkId>,
    received: VecDeque<Vec<u8>>,
}

#[derive(Default)]
struct Switch {
    /// Links out of the switch, each with the link into the switch from the same neighbour.
    ports: Vec<(LinkId, LinkId)>,
    /// The link out to an address.
    learned: HashMap<[u8; 6], LinkId>,
}

/// A simulated Ethernet. See the crate's own text for how to drive it.
#[derive(Default)]
pub struct Network {
    now_nanos: u64,
    events: Events,
    links: Vec<Link>,
    hosts: Vec<Host>,
    switches: Vec<Switch>,
    recorder: Option<Recorder>,
    spare: Vec<Vec<u8>>,
}

impl Network {
    /// An empty network at time 0.
    pub fn new() -> Self {
        Network::default()
    }

    /// Adds a host; it needs a cable before it sends.
    pub fn add_host(&mut self) -> HostId {
        self.hosts.push(Host::default());
        HostId(self.hosts.len() - 1)
    }

    /// Adds a switch. Cables between switches must form a tree, for unknown destinations are flooded.
    pub fn add_switch(&mut self) -> SwitchId {
        self.switches.push(Switch::default());
        SwitchId(self.switches.len() - 1)
    }

    /// Joins two ends by a cable: the link from `a` to `b` and the link from `b` to `a`.
    ///
    /// # Panics
    /// Where a host already has a cable, or the rate is 0.
    pub fn connect(&mut self, a: impl Into<Node>, b: impl Into<Node>, config: LinkConfig) -> [LinkId; 2] {
        let (a, b) = (a.into(), b.into());
        let there = LinkId(self.links.len());
        let back = LinkId(self.links.len() + 1);
        self.links.push(Link::new(config, b));
        self.links.push(Link::new(config, a));
        self.plug(a, there, back);
        self.plug(b, back, there);
        [there, back]
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

    /// Puts in a tape; frames are counted from now on.
    pub fn set_tape(&mut self, tape: &Tape) {
        for (number, link) in self.links.iter_mut().enumerate() {
            link.set_tape(tape, LinkId(number));
        }
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
            match event {
                Event::Sent { link } => self.sent(link),
                Event::Arrived { link, frame } => self.arrived(link, frame),
                Event::HeldTooLong { link, held } => {
                    let waiting = &mut self.links[link.0].held;
                    if let Some(at) = waiting.iter().position(|frame| frame.number == held) {
                        let frame = waiting.remove(at).frame;
                        self.travel(link, frame, 0);
                    }
                }
            }
        }
        self.now_nanos = self.now_nanos.max(nanos);
    }

    /// An empty-handed caller's buffer of `len_bytes` bytes for a frame; what is in it is unspecified.
    pub fn buffer(&mut self, len_bytes: usize) -> Vec<u8> {
        let mut buffer = self.spare.pop().unwrap_or_default();
        buffer.resize(len_bytes, 0);
        buffer
    }

    /// Takes back a buffer that is not needed any more.
    pub fn recycle(&mut self, buffer: Vec<u8>) {
        if self.spare.len() < SPARE_BUFFERS_MAX {
            self.spare.push(buffer);
        }
    }

    /// Whether the queue of `host`'s link takes `len_bytes` more bytes now.
    pub fn has_room(&self, host: HostId, len_bytes: usize) -> bool {
        self.hosts[host.0].egress.is_some_and(|link| self.links[link.0].has_room(len_bytes))
    }

    /// Sends a frame, without FCS, from `host`. It is dropped and counted where the queue is full.
    ///
    /// # Panics
    /// Where the host has no cable.
    pub fn send(&mut self, host: HostId, frame: Vec<u8>) {
        let link = self.hosts[host.0].egress.expect("a host sends over its cable");
        self.offer(link, frame);
    }

    /// Takes the oldest frame that arrived at `host`.
    pub fn receive(&mut self, host: HostId) -> Option<Vec<u8>> {
        self.hosts[host.0].received.pop_front()
    }

    /// Frames that arrived at `host` and were not taken yet.
    pub fn waiting(&self, host: HostId) -> usize {
        self.hosts[host.0].received.len()
    }

    /// What became of the frames of a link.
    pub fn counters(&self, link: LinkId) -> LinkCounters {
        self.links[link.0].counters
    }

    fn offer(&mut self, id: LinkId, frame: Vec<u8>) {
        match self.links[id.0].enqueue(frame) {
            Ok(true) => self.transmit(id),
            Ok(false) => {}
            Err(frame) => self.recycle(frame),
        }
    }

    /// Puts the frame at the head of a link's queue on the wire.
    fn transmit(&mut self, id: LinkId) {
        if let Some(wire_nanos) = self.links[id.0].wire_nanos() {
            self.events.schedule(self.now_nanos.saturating_add(wire_nanos), Event::Sent { link: id });
        }
    }

    fn sent(&mut self, id: LinkId) {
        let link = &mut self.links[id.0];
        let Some(frame) = link.dequeue() else { return };
        let number = link.left_on_tape;
        link.left_on_tape += 1;
        if let Some(recorder) = &mut self.recorder {
            recorder(Sighting { nanos: self.now_nanos, link: id, number, frame: &frame });
        }
        self.meet_faults(id, number, frame);
        self.transmit(id);
    }

    /// Does to a frame what the tape says, and sends it on its way.
    fn meet_faults(&mut self, id: LinkId, number: u64, mut frame: Vec<u8>) {
        let (mut dropped, mut copies, mut delay_nanos, mut behind, mut corrupted) =
            (false, 0, 0u64, 0, false);
        while let Some(fault) = self.links[id.0].next_fault(number) {
            match fault.action {
                Action::Drop => dropped = true,
                Action::Duplicate => copies += 1,
                Action::Delay { nanos } => delay_nanos = delay_nanos.saturating_add(nanos),
                Action::Reorder { behind: frames } => behind = behind.max(frames),
                Action::Corrupt { bit } => {
                    flip_bit(&mut frame, bit);
                    corrupted = true;
                }
                Action::MarkCe => mark_ce(&mut frame),
            }
        }
        let counters = &mut self.links[id.0].counters;
        if dropped {
            counters.dropped += 1;
            self.recycle(frame);
        } else {
            counters.corrupted += u64::from(corrupted);
            counters.displaced += u64::from(delay_nanos > 0 || behind > 0);
            counters.duplicated += copies;
            for _ in 0..copies {
                let mut copy = self.buffer(frame.len());
                copy.copy_from_slice(&frame);
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
    fn hold(&mut self, id: LinkId, frame: Vec<u8>, passes_left: u32) {
        let link = &mut self.links[id.0];
        let number = link.held_count;
        link.held_count += 1;
        link.held.push(Held { number, frame, passes_left });
        let too_long_nanos = self.now_nanos + Tape::HOLD_NANOS_MAX;
        self.events.schedule(too_long_nanos, Event::HeldTooLong { link: id, held: number });
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
    fn travel(&mut self, id: LinkId, frame: Vec<u8>, delay_nanos: u64) {
        let nanos = self.links[id.0].config.propagation_nanos.saturating_add(delay_nanos);
        self.events.schedule(self.now_nanos.saturating_add(nanos), Event::Arrived { link: id, frame });
    }

    fn arrived(&mut self, id: LinkId, frame: Vec<u8>) {
        let link = &mut self.links[id.0];
        link.counters.delivered += 1;
        match link.to {
            Node::Host(host) => self.hosts[host.0].received.push_back(frame),
            Node::Switch(switch) => self.forward(switch, id, frame),
        }
    }

    fn forward(&mut self, id: SwitchId, from: LinkId, frame: Vec<u8>) {
        let switch = &mut self.switches[id.0];
        let address = |at: usize| frame.get(at..at + 6).and_then(|bytes| <[u8; 6]>::try_from(bytes).ok());
        let (Some(destination), Some(source)) = (address(0), address(6)) else {
            return self.recycle(frame);
        };
        let is_group = |address: [u8; 6]| address[0] & 1 != 0;
        let back = switch.ports.iter().find(|(_, into)| *into == from).map(|(out, _)| *out);
        if let Some(back) = back
            && !is_group(source)
        {
            switch.learned.insert(source, back);
        }
        match switch.learned.get(&destination).copied() {
            Some(out) if !is_group(destination) && Some(out) == back => self.recycle(frame),
            Some(out) if !is_group(destination) => self.offer(out, frame),
            _ => self.flood(id, from, frame),
        }
    }

    /// Sends a frame to every neighbour but the one it came from.
    fn flood(&mut self, id: SwitchId, from: LinkId, frame: Vec<u8>) {
        for at in 0..self.switches[id.0].ports.len() {
            let (out, into) = self.switches[id.0].ports[at];
            if into != from {
                let mut copy = self.buffer(frame.len());
                copy.copy_from_slice(&frame);
                self.offer(out, copy);
            }
        }
        self.recycle(frame);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tape::Fault;
    use std::cell::RefCell;
    use std::rc::Rc;

    /// One byte takes 8 ns and the shortest frame 672 ns.
    const CONFIG: LinkConfig =
        LinkConfig { rate_bits_per_sec: 1_000_000_000, propagation_nanos: 1_000, queue_bytes_max: 100_000 };

    struct Pair {
        network: Network,
        a: HostId,
        b: HostId,
        a_to_b: LinkId,
    }

    fn pair(config: LinkConfig, faults: &[(u64, Action)]) -> Pair {
        let mut network = Network::new();
        let (a, b) = (network.add_host(), network.add_host());
        let [a_to_b, _] = network.connect(a, b, config);
        let faults = faults.iter().map(|&(frame, action)| Fault { link: a_to_b, frame, action }).collect();
        network.set_tape(&Tape(faults));
        Pair { network, a, b, a_to_b }
    }

    /// Sends `count` frames of 60 bytes, numbered in the first byte.
    fn send_numbered(pair: &mut Pair, count: u8) {
        for number in 0..count {
            pair.network.send(pair.a, vec![number; 60]);
        }
    }

    /// The numbers of the frames that arrive and their times.
    fn arrivals(pair: &mut Pair) -> Vec<(u64, u8)> {
        let mut arrived = Vec::new();
        while let Some(nanos) = pair.network.next_event_nanos() {
            pair.network.run_until(nanos);
            while let Some(frame) = pair.network.receive(pair.b) {
                arrived.push((nanos, frame[0]));
            }
        }
        arrived
    }

    fn numbers(faults: &[(u64, Action)], count: u8) -> Vec<u8> {
        let mut pair = pair(CONFIG, faults);
        send_numbered(&mut pair, count);
        let arrived = arrivals(&mut pair).into_iter().map(|(_, number)| number).collect();
        let counters = pair.network.counters(pair.a_to_b);
        assert_eq!(counters.delivered, counters.left - counters.dropped + counters.duplicated);
        arrived
    }

    #[test]
    fn frames_take_their_time_on_the_wire_one_after_the_other() {
        let mut pair = pair(CONFIG, &[]);
        send_numbered(&mut pair, 2);
        pair.network.send(pair.a, vec![2; 976]);
        assert_eq!(arrivals(&mut pair), [(1_672, 0), (2_344, 1), (10_344, 2)]);
    }

    #[test]
    fn a_full_queue_drops_what_comes_last() {
        let mut pair = pair(LinkConfig { queue_bytes_max: 120, ..CONFIG }, &[]);
        assert!(pair.network.has_room(pair.a, 120) && !pair.network.has_room(pair.a, 121));
        send_numbered(&mut pair, 3);
        assert!(!pair.network.has_room(pair.a, 60));
        pair.network.run_until(672);
        assert!(pair.network.has_room(pair.a, 60));
        assert_eq!(arrivals(&mut pair).len(), 2);
        let counters = pair.network.counters(pair.a_to_b);
        assert_eq!((counters.offered, counters.overrun, counters.left), (3, 1, 2));
    }

    #[test]
    fn the_tape_does_what_it_says_to_the_frame_it_names() {
        assert_eq!(numbers(&[(1, Action::Drop)], 4), [0, 2, 3]);
        assert_eq!(numbers(&[(1, Action::Duplicate), (1, Action::Duplicate)], 3), [0, 1, 1, 1, 2]);
        assert_eq!(numbers(&[(0, Action::Reorder { behind: 2 })], 4), [1, 2, 0, 3]);
        assert_eq!(numbers(&[(0, Action::Reorder { behind: 9 })], 3), [1, 2, 0], "goes in the end");
        assert_eq!(numbers(&[(0, Action::Delay { nanos: 1_000 })], 4), [1, 0, 2, 3]);
        assert_eq!(numbers(&[(0, Action::Corrupt { bit: 0 })], 1), [0x80]);
        assert_eq!(numbers(&[(0, Action::Drop), (0, Action::Duplicate)], 2), [1], "what is lost is lost");
        assert_eq!(numbers(&[(7, Action::Drop)], 2), [0, 1], "a fault of a frame that never comes");
    }

    #[test]
    fn frames_are_counted_from_where_the_tape_was_put_in() {
        let mut pair = pair(CONFIG, &[]);
        send_numbered(&mut pair, 2);
        assert_eq!(arrivals(&mut pair).len(), 2);
        let faults = vec![Fault { link: pair.a_to_b, frame: 0, action: Action::Drop }];
        pair.network.set_tape(&Tape(faults));
        let seen = Rc::new(RefCell::new(Vec::new()));
        let record = seen.clone();
        pair.network.set_recorder(move |sighting: Sighting<'_>| {
            record.borrow_mut().push((sighting.link, sighting.number, sighting.frame[0]));
        });
        send_numbered(&mut pair, 2);
        assert_eq!(arrivals(&mut pair).iter().map(|(_, number)| *number).collect::<Vec<_>>(), [1]);
        assert_eq!(*seen.borrow(), [(pair.a_to_b, 0, 0), (pair.a_to_b, 1, 1)], "before the fault");
    }

    #[test]
    fn a_switch_floods_until_it_has_learned() {
        let mut network = Network::new();
        let switch = network.add_switch();
        let hosts: Vec<HostId> = (0..3).map(|_| network.add_host()).collect();
        for &host in &hosts {
            network.connect(host, switch, CONFIG);
        }
        let frame = |to: u8, from: u8| {
            let mut frame = vec![0; 60];
            (frame[5], frame[11]) = (to, from);
            frame
        };
        let mut send = |from: usize, frame: Vec<u8>| {
            network.send(hosts[from], frame);
            let later = network.now_nanos() + 1_000_000;
            network.run_until(later);
            let count = |host: &HostId| std::iter::from_fn(|| network.receive(*host)).count();
            hosts.iter().map(count).collect::<Vec<_>>()
        };
        assert_eq!(send(0, frame(2, 10)), [0, 1, 1], "2 is unknown");
        assert_eq!(send(2, frame(10, 2)), [1, 0, 0]);
        assert_eq!(send(0, frame(2, 10)), [0, 0, 1]);
        assert_eq!(send(0, frame(10, 10)), [0, 0, 0], "not sent back");
        assert_eq!(send(1, vec![0xFF; 60]), [1, 0, 1], "a broadcast");
        assert_eq!(send(1, vec![0; 11]), [0, 0, 0], "no Ethernet header");
    }
}
