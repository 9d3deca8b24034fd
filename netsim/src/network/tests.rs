use super::*;
use crate::tape::TapeEntry;
use roce::port::impairment::Impairment;
use std::cell::RefCell;
use std::rc::Rc;

/// 1 Gbit/s: a byte takes 8 ns, the shortest frame 672 ns.
const CONFIG: LinkConfig =
    LinkConfig { rate_bits_per_sec: 1_000_000_000, propagation_nanos: 1_000, queue_bytes_max: 100_000 };

struct Pair {
    network: Network,
    a: HostId,
    b: HostId,
    a_to_b: LinkId,
}

fn pair(config: LinkConfig, entries: &[(u64, Impairment)]) -> Pair {
    let mut network = Network::new();
    let (a, b) = (network.add_host(), network.add_host());
    let [a_to_b, _] = network.connect(a, b, config);
    let entry = |&(frame, impairment)| TapeEntry { link: a_to_b, frame, impairment };
    network.set_tape(&Tape(entries.iter().map(entry).collect()));
    Pair { network, a, b, a_to_b }
}

fn send_numbered(pair: &mut Pair, count: u8) {
    for number in 0..count {
        pair.network.send(pair.a, vec![number; 60]);
    }
}

/// Time and number of each frame that arrives.
fn arrivals(pair: &mut Pair) -> Vec<(u64, u8)> {
    let mut arrived = Vec::new();
    while let Some(nanos) = pair.network.next_event_nanos() {
        pair.network.run_until(nanos);
        while let Some(frame) = pair.network.receive(pair.b) {
            arrived.push((nanos, frame.bytes[0]));
        }
    }
    arrived
}

fn numbers(entries: &[(u64, Impairment)], count: u8) -> Vec<u8> {
    let mut pair = pair(CONFIG, entries);
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
    assert_eq!(numbers(&[(1, Impairment::Drop)], 4), [0, 2, 3]);
    assert_eq!(numbers(&[(1, Impairment::Duplicate), (1, Impairment::Duplicate)], 3), [0, 1, 1, 1, 2]);
    assert_eq!(numbers(&[(0, Impairment::Reorder { behind_pkts: 2 })], 4), [1, 2, 0, 3]);
    assert_eq!(numbers(&[(0, Impairment::Reorder { behind_pkts: 9 })], 3), [1, 2, 0], "goes in the end");
    assert_eq!(numbers(&[(0, Impairment::Delay { nanos: 1_000 })], 4), [1, 0, 2, 3]);
    assert_eq!(numbers(&[(0, Impairment::Corrupt { bit: 0 })], 1), [0x80]);
    assert_eq!(numbers(&[(0, Impairment::Drop), (0, Impairment::Duplicate)], 2), [1], "what is lost is lost");
    assert_eq!(numbers(&[(7, Impairment::Drop)], 2), [0, 1], "an entry of a frame that is never sent");
}

#[test]
fn frames_are_counted_from_where_the_tape_was_put_in() {
    let mut pair = pair(CONFIG, &[]);
    send_numbered(&mut pair, 2);
    assert_eq!(arrivals(&mut pair).len(), 2);
    let entry = TapeEntry { link: pair.a_to_b, frame: 0, impairment: Impairment::Drop };
    pair.network.set_tape(&Tape(vec![entry]));
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
