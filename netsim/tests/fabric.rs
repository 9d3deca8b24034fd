//! Switches of a fabric: ways, marks, pauses, losses; and that a seed repeats a run.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::rc::Rc;

use netsim::rng::SplitMix;
use netsim::topology::{Fabric, FabricConfig, LeafSpine, fat_tree, leaf_spine, star};
use netsim::workload::{Cdf, Poisson};
use netsim::{Forwarding, Frame, LinkConfig, LinkId, Pfc, Red, Service, SwitchConfig};

const CABLE: LinkConfig =
    LinkConfig { rate_bits_per_sec: 40_000_000_000, propagation_nanos: 2_000, queue_bytes_max: 1 << 30 };

const SWITCH: SwitchConfig = SwitchConfig { forwarding: Forwarding::Ecmp, ..SwitchConfig::PLAIN };

/// Payload of a frame; its headers take [`HEADERS_BYTES`].
const PAYLOAD_BYTES: u32 = 1_024;
const HEADERS_BYTES: usize = 58;
const FRAME_BYTES: usize = HEADERS_BYTES + PAYLOAD_BYTES as usize;

fn config(switch: SwitchConfig) -> FabricConfig {
    FabricConfig { host_cable: CABLE, trunk: CABLE, host_queue_bytes_max: 1 << 30, switch, seed: 1 }
}

fn address(host: usize) -> [u8; 6] {
    [2, 0, 0, 0, (host >> 8) as u8, host as u8]
}

fn with_addresses(mut fabric: Fabric) -> Fabric {
    fabric.hosts.iter().for_each(|host| fabric.network.set_address(*host, address(host.0)));
    fabric
}

/// A frame of an IPv4 flow, which lets switches mark it; `port` is the UDP source port.
fn frame(from: usize, to: usize, port: u16) -> Frame {
    let mut bytes = vec![0; HEADERS_BYTES];
    bytes[..6].copy_from_slice(&address(to));
    bytes[6..12].copy_from_slice(&address(from));
    bytes[12..14].copy_from_slice(&[8, 0]);
    bytes[15] = 2;
    bytes[23] = 17;
    bytes[29] = from as u8;
    bytes[33] = to as u8;
    bytes[34..36].copy_from_slice(&port.to_be_bytes());
    Frame { bytes, phantom_bytes: PAYLOAD_BYTES, corrupted: false }
}

fn is_marked(frame: &Frame) -> bool {
    frame.bytes[15] & 3 == 3
}

/// Runs until nothing is left to happen.
fn settle(fabric: &mut Fabric) {
    while let Some(nanos) = fabric.network.next_event_nanos() {
        fabric.network.run_until(nanos);
    }
}

fn receive(fabric: &mut Fabric, host: usize) -> Vec<Frame> {
    let id = fabric.hosts[host];
    std::iter::from_fn(|| fabric.network.receive(id)).collect()
}

/// How many frames left on each link of a list.
fn left(fabric: &Fabric, links: &[LinkId]) -> Vec<u64> {
    links.iter().map(|link| fabric.network.counters(*link).left).collect()
}

/// The first links out of host 0's leaf on the ways to the last host.
fn ways_up(fabric: &mut Fabric) -> Vec<LinkId> {
    let last = fabric.hosts[fabric.hosts.len() - 1];
    let leaf = fabric.tiers[0][0];
    fabric.network.routes().next_hops(leaf, last)
}

#[test]
fn a_flow_keeps_one_path_and_its_order_and_flows_spread() {
    let mut fabric = with_addresses(fat_tree(8, &config(SWITCH)).unwrap());
    let last = fabric.hosts.len() - 1;
    let seen: Rc<RefCell<BTreeMap<u16, Vec<Vec<usize>>>>> = Rc::default();
    let record = seen.clone();
    fabric.network.set_recorder(move |sighting| {
        let port = u16::from_be_bytes([sighting.frame[34], sighting.frame[35]]);
        let number = usize::from(sighting.frame[40]);
        let mut seen = record.borrow_mut();
        let paths = seen.entry(port).or_insert_with(|| vec![Vec::new(); 4]);
        paths[number].push(sighting.link.0);
    });
    for number in 0..4u8 {
        for port in 0..200 {
            let mut frame = frame(0, last, port);
            frame.bytes[40] = number;
            fabric.network.send(fabric.hosts[0], frame);
        }
    }
    settle(&mut fabric);
    let order: Vec<(u16, u8)> = receive(&mut fabric, last)
        .iter()
        .map(|frame| (u16::from_be_bytes([frame.bytes[34], frame.bytes[35]]), frame.bytes[40]))
        .collect();
    for port in 0..200 {
        let of_flow: Vec<u8> = order.iter().filter(|(p, _)| *p == port).map(|(_, n)| *n).collect();
        assert_eq!(of_flow, [0, 1, 2, 3]);
    }
    let seen = seen.borrow();
    assert!(seen.values().all(|paths| paths.iter().all(|path| *path == paths[0] && path.len() == 6)));
    let paths: std::collections::BTreeSet<_> = seen.values().map(|paths| paths[0].clone()).collect();
    // 200 flows over 16 paths miss one of them once in 25,000 times.
    assert_eq!(paths.len(), 16);
}

#[test]
fn spraying_uses_every_way_evenly() {
    let size = LeafSpine { hosts_per_leaf: 2, leaves: 2, spines: 5 };
    for (forwarding, slack) in [(Forwarding::SprayRoundRobin, 0), (Forwarding::SprayRandom, 200)] {
        let switch = SwitchConfig { forwarding, ..SWITCH };
        let mut fabric = with_addresses(leaf_spine(size, &config(switch)).unwrap());
        (0..10_000).for_each(|_| fabric.network.send(fabric.hosts[0], frame(0, 3, 7)));
        settle(&mut fabric);
        let ways = ways_up(&mut fabric);
        let left = left(&fabric, &ways);
        assert!(left.iter().all(|frames| frames.abs_diff(2_000) <= slack), "{forwarding:?}: {left:?}");
        assert_eq!(receive(&mut fabric, 3).len(), 10_000);
    }
}

#[test]
fn a_frame_for_nobody_or_for_everybody_is_dropped_and_counted() {
    let mut fabric = with_addresses(star(3, &config(SWITCH)).unwrap());
    for to in [[2, 9, 9, 9, 9, 9], [0xFF; 6]] {
        let mut frame = frame(0, 1, 1);
        frame.bytes[..6].copy_from_slice(&to);
        fabric.network.send(fabric.hosts[0], frame);
    }
    fabric.network.send(fabric.hosts[0], vec![2; 5]);
    settle(&mut fabric);
    assert_eq!(fabric.network.unroutable(), 3);
    assert!((0..3).all(|host| receive(&mut fabric, host).is_empty()));
}

/// What a switch did to frames of many senders to one receiver, `frames` from each.
fn incast(switch: SwitchConfig, cable: LinkConfig, senders: usize, frames: usize) -> Fabric {
    let config = FabricConfig { host_cable: cable, ..config(switch) };
    let mut fabric = with_addresses(star(senders + 1, &config).unwrap());
    for _ in 0..frames {
        for sender in 1..=senders {
            fabric.network.send(fabric.hosts[sender], frame(sender, 0, 1));
        }
    }
    settle(&mut fabric);
    fabric
}

#[test]
fn marks_follow_the_queue() {
    // 400 frames reach an empty port at twice its rate: the queue grows by half a frame with each.
    let red = |kmin_bytes, kmax_bytes, pmax| SwitchConfig {
        ecn: Some(Red { kmin_bytes, kmax_bytes, pmax }),
        ..SWITCH
    };
    let marks = |switch| {
        let mut fabric = incast(switch, CABLE, 2, 200);
        let frames = receive(&mut fabric, 0);
        assert_eq!(frames.len(), 400);
        let marks = frames.iter().filter(|frame| is_marked(frame)).count();
        assert_eq!(fabric.network.counters(fabric.downlinks[0]).marked, marks as u64);
        (marks, frames.iter().position(is_marked))
    };
    assert_eq!(marks(red(usize::MAX, usize::MAX, 1.0)).0, 0);
    // The 101st frame or so meets 50 frames.
    let (count, first) = marks(red(50 * FRAME_BYTES, 50 * FRAME_BYTES, 1.0));
    let first = first.unwrap();
    assert!((99..=104).contains(&first) && count == 400 - first, "{count} from {first} on");
    // Between 0 and 200 frames the probability grows to 1/2: 100 marks, less or more 43 (five deviations).
    let (count, _) = marks(red(0, 200 * FRAME_BYTES, 0.5));
    assert!(count.abs_diff(100) < 43, "{count}");
}

#[test]
fn a_frame_that_does_not_allow_it_is_not_marked() {
    let switch = SwitchConfig { ecn: Some(Red { kmin_bytes: 0, kmax_bytes: 0, pmax: 1.0 }), ..SWITCH };
    let mut fabric = with_addresses(star(3, &config(switch)).unwrap());
    for (host, ecn) in [(0, 2), (1, 0), (0, 1), (1, 0), (0, 2), (1, 2)] {
        let mut frame = frame(host, 2, 1);
        frame.bytes[15] = ecn;
        fabric.network.send(fabric.hosts[host], frame);
    }
    settle(&mut fabric);
    let marks: Vec<(usize, bool)> = receive(&mut fabric, 2)
        .iter()
        .map(|frame| (usize::from(frame.bytes[29]), is_marked(frame)))
        .collect();
    // The first meets nobody; those of host 1 but for the last may not be marked.
    assert_eq!(marks, [(0, false), (1, false), (0, true), (1, false), (0, true), (1, true)]);
}

#[test]
fn each_bound_of_memory_drops_what_exceeds_it() {
    let cases = [
        (SWITCH, LinkConfig { queue_bytes_max: 20 * FRAME_BYTES, ..CABLE }),
        (SwitchConfig { shared_bytes_max: 20 * FRAME_BYTES, ..SWITCH }, CABLE),
        (SwitchConfig { input_bytes_max: 5 * FRAME_BYTES, ..SWITCH }, CABLE),
    ];
    for (switch, cable) in cases {
        let mut fabric = incast(switch, cable, 4, 100);
        let counters = fabric.network.counters(fabric.downlinks[0]);
        assert_eq!(counters.offered, 400);
        assert_eq!(counters.queue_bytes_peak, 20 * FRAME_BYTES as u64, "{switch:?}");
        assert!(counters.overrun > 200, "{counters:?}");
        assert_eq!(receive(&mut fabric, 0).len() as u64, 400 - counters.overrun);
    }
}

#[test]
fn pauses_lose_nothing_stay_within_their_headroom_and_reach_the_hosts() {
    const INPUT_BYTES_MAX: usize = 100_000;
    for propagation_nanos in [0, 500, 2_000, 5_000] {
        let cable = LinkConfig { propagation_nanos, ..CABLE };
        let pfc = Pfc::lossless(INPUT_BYTES_MAX, &cable, FRAME_BYTES);
        let switch = SwitchConfig { pfc: Some(pfc), input_bytes_max: INPUT_BYTES_MAX, ..SWITCH };
        let config = FabricConfig { host_cable: cable, trunk: cable, ..config(switch) };
        // Twelve hosts in three pods send to one in the fourth: they fill the ways down to it.
        let mut fabric = with_addresses(fat_tree(4, &config).unwrap());
        for port in 0..500 {
            (0..12).for_each(|from| fabric.network.send(fabric.hosts[from], frame(from, 15, port)));
            // And back, so that a PAUSE has to wait for a frame.
            (0..12).for_each(|to| fabric.network.send(fabric.hosts[15], frame(15, to, port)));
        }
        settle(&mut fabric);
        assert_eq!(receive(&mut fabric, 15).len(), 6_000);
        let links: Vec<LinkId> = (0..fabric.network.links()).map(LinkId).collect();
        let counters: Vec<_> = links.iter().map(|link| fabric.network.counters(*link)).collect();
        assert_eq!(counters.iter().map(|link| link.overrun + link.dropped).sum::<u64>(), 0);
        let peak = counters.iter().map(|link| link.input_bytes_peak).max().unwrap() as usize;
        assert!(peak > pfc.xoff_bytes && peak <= INPUT_BYTES_MAX, "{peak} {pfc:?}");
        // From the last switch over both switches between to the hosts that send.
        let paused = |link: &LinkId| counters[link.0].pauses > 0 && counters[link.0].paused_nanos > 0;
        let path = fabric.network.routes().path(fabric.hosts[0], fabric.hosts[15]);
        assert!(!paused(&path[5]), "a host never pauses");
        let all_ways: Vec<_> = fabric.network.routes().paths(fabric.hosts[0], fabric.hosts[15]);
        for hop in 0..5 {
            assert!(all_ways.iter().any(|way| paused(&way[hop])), "hop {hop} of {propagation_nanos} ns");
        }
    }
}

#[test]
fn without_the_headroom_pauses_come_too_late() {
    const INPUT_BYTES_MAX: usize = 100_000;
    let good = Pfc::lossless(INPUT_BYTES_MAX, &CABLE, FRAME_BYTES);
    let pfc = Pfc { xoff_bytes: INPUT_BYTES_MAX - 4 * FRAME_BYTES, ..good };
    let switch = SwitchConfig { pfc: Some(pfc), input_bytes_max: INPUT_BYTES_MAX, ..SWITCH };
    let fabric = incast(switch, CABLE, 8, 1_000);
    assert!(fabric.network.counters(fabric.downlinks[0]).overrun > 0);
}

#[test]
fn a_paused_host_stands_for_as_long_as_it_is_told() {
    let pfc = Pfc::lossless(40_000, &CABLE, FRAME_BYTES);
    let switch = SwitchConfig { pfc: Some(pfc), input_bytes_max: 40_000, ..SWITCH };
    let fabric = incast(switch, CABLE, 2, 1_000);
    for uplink in &fabric.uplinks[1..] {
        let counters = fabric.network.counters(*uplink);
        let sent_nanos = 1_000 * fabric.network.link_config(*uplink).wire_nanos(FRAME_BYTES);
        // Two hosts share a wire: each sends for half of the time, and stands for most of the other half.
        assert!(counters.pauses > 10, "{counters:?}");
        let share = counters.paused_nanos as f64 / (counters.paused_nanos + sent_nanos) as f64;
        assert!((0.4..=0.51).contains(&share), "{share}");
    }
}

#[test]
fn random_losses_come_at_their_rate() {
    let mut fabric = with_addresses(star(2, &config(SWITCH)).unwrap());
    fabric.network.set_loss(fabric.uplinks[0], 0.02);
    (0..50_000).for_each(|_| fabric.network.send(fabric.hosts[0], frame(0, 1, 1)));
    settle(&mut fabric);
    let dropped = fabric.network.counters(fabric.uplinks[0]).dropped;
    // 31 is the standard deviation.
    assert!(dropped.abs_diff(1_000) < 160, "{dropped}");
    assert_eq!(receive(&mut fabric, 1).len() as u64, 50_000 - dropped);
    for (probability, lost) in [(0.0, 0), (1.0, 100)] {
        let mut fabric = with_addresses(star(2, &config(SWITCH)).unwrap());
        fabric.network.set_loss(fabric.uplinks[0], probability);
        (0..100).for_each(|_| fabric.network.send(fabric.hosts[0], frame(0, 1, 1)));
        settle(&mut fabric);
        assert_eq!(fabric.network.counters(fabric.uplinks[0]).dropped, lost);
    }
}

/// A hash of all deliveries of a run with everything in it that draws: where, when, what.
fn deliveries(seed: u64) -> u64 {
    let red = Red { kmin_bytes: 5_000, kmax_bytes: 50_000, pmax: 0.5 };
    let forwarding = Forwarding::SprayRandom;
    let switch = SwitchConfig { forwarding, ecn: Some(red), shared_bytes_max: 200_000, ..SWITCH };
    let mut fabric = with_addresses(fat_tree(4, &FabricConfig { seed, ..config(switch) }).unwrap());
    (0..fabric.network.links()).for_each(|link| fabric.network.set_loss(LinkId(link), 0.001));
    let mut hasher = DefaultHasher::new();
    let mut news = Vec::new();
    for flow in Poisson::new(Cdf::irn(), 16, CABLE.rate_bits_per_sec, 0.9, 7).take(200) {
        for number in 0..flow.bytes.div_ceil(PAYLOAD_BYTES) {
            fabric.network.send(fabric.hosts[flow.from], frame(flow.from, flow.to, number as u16));
        }
        loop {
            fabric.network.run_until_news(flow.start_nanos);
            fabric.network.take_news(&mut news);
            for host in news.drain(..) {
                while let Some(frame) = fabric.network.receive(host) {
                    (fabric.network.now_nanos(), host, frame.bytes).hash(&mut hasher);
                }
            }
            if fabric.network.now_nanos() >= flow.start_nanos {
                break;
            }
        }
    }
    hasher.finish()
}

#[test]
fn a_seed_repeats_a_run_and_another_does_not() {
    assert_eq!(deliveries(1), deliveries(1));
    assert_ne!(deliveries(1), deliveries(2));
}

#[test]
fn news_come_once_and_at_their_moment() {
    let mut fabric = with_addresses(star(3, &config(SWITCH)).unwrap());
    let (a, b) = (fabric.hosts[0], fabric.hosts[1]);
    let mut rng = SplitMix::new(1);
    (0..3).for_each(|_| fabric.network.send(a, frame(0, 1, rng.bits() as u16)));
    let network = &mut fabric.network;
    let wire_nanos = CABLE.wire_nanos(FRAME_BYTES);
    let mut news = Vec::new();
    for number in 0..3u64 {
        network.run_until_news(1_000_000);
        // Wires that never rest: 221.2 ns a frame, and the last one rounded up.
        let sent_nanos = ((number + 1) * 2_212).div_ceil(10);
        assert_eq!(network.now_nanos(), sent_nanos + wire_nanos + 2 * 2_000);
        network.take_news(&mut news);
        assert_eq!(news, [b]);
        news.clear();
        assert_eq!(network.waiting(b), 1 + number as usize);
    }
    network.run_until_news(1_000_000);
    assert_eq!(network.now_nanos(), 1_000_000);
    network.take_news(&mut news);
    assert!(news.is_empty());
    // Room is news where it was asked for.
    network.send(a, frame(0, 1, 1));
    network.want_room(a, 1 << 30);
    network.run_until_news(2_000_000);
    network.take_news(&mut news);
    assert_eq!((news[0], network.now_nanos()), (a, 1_000_000 + wire_nanos));
}

#[test]
fn an_input_port_served_in_turn_does_not_wait_for_the_frames_of_others() {
    let place = |service| {
        let mut fabric = with_addresses(star(4, &config(SwitchConfig { service, ..SWITCH })).unwrap());
        for _ in 0..20 {
            for from in [0, 1] {
                fabric.network.send(fabric.hosts[from], frame(from, 3, 1));
            }
        }
        // Hosts 0 and 1 send twice the rate of host 3's link: half of their frames wait when the frame of host 2 arrives.
        fabric.network.run_until(10 * CABLE.wire_nanos(FRAME_BYTES));
        fabric.network.send(fabric.hosts[2], frame(2, 3, 1));
        settle(&mut fabric);
        let from: Vec<u8> = receive(&mut fabric, 3).iter().map(|frame| frame.bytes[29]).collect();
        assert_eq!([0, 1, 2].map(|host| from.iter().filter(|from| **from == host).count()), [20, 20, 1]);
        from.iter().position(|from| *from == 2).unwrap()
    };
    let [fifo, in_turn] = [Service::Fifo, Service::RoundRobin].map(place);
    assert!(fifo >= 20 && in_turn <= 13, "after {fifo} frames, and after {in_turn}");
}
