//! Real engines on a fat-tree.

mod common;

use common::{FRAME_BYTES_MAX, INPUT_BYTES_MAX, Mesh, MeshConfig, all_to_all};
use lab::seeds;
use netsim::workload::{Flow, Incast};
use netsim::{Forwarding, Red};
use roce::congestion::CongestionScheme;
use roce::port::Payload;
use roce::recovery::RecoveryScheme;

const SELECTIVE: RecoveryScheme = RecoveryScheme::SelectiveRepeat { window_pkts: 128 };

const CONFIG: MeshConfig = MeshConfig {
    k: 4,
    forwarding: Forwarding::Ecmp,
    lossless: true,
    queue_bytes_max: 40_000,
    recovery: RecoveryScheme::GoBackN,
    payload: Payload::Phantom,
    congestion: CongestionScheme::Window { window_pkts: 110 },
    ecn: None,
    seed: 1,
};

/// Bytes of each message of an all-to-all.
const BYTES: u32 = 50_000;

fn run(config: &MeshConfig) -> Mesh {
    let mut mesh = Mesh::new(config, &all_to_all(16, BYTES));
    mesh.run();
    assert_eq!(mesh.counters().rcvd_bytes, u64::from(BYTES) * 16 * 15);
    mesh
}

#[test]
fn with_pauses_nothing_is_lost_and_nothing_sent_twice() {
    let mesh = run(&CONFIG);
    let links = mesh.links();
    assert_eq!(links.iter().map(|link| link.overrun + link.dropped).sum::<u64>(), 0);
    assert!(links.iter().map(|link| link.pauses).sum::<u64>() > 0, "an all-to-all fills some input");
    assert!(links.iter().all(|link| link.input_bytes_peak <= INPUT_BYTES_MAX as u64));
    let counters = mesh.counters();
    assert_eq!((counters.retransmitted_pkts, counters.out_of_seq_request), (0, 0), "{counters:?}");
}

#[test]
fn with_tail_drop_selective_repeat_retransmits_what_was_lost_and_little_else() {
    let mesh = run(&MeshConfig { lossless: false, recovery: SELECTIVE, ..CONFIG });
    let overrun: u64 = mesh.links().iter().map(|link| link.overrun).sum();
    assert!(overrun > 100, "{overrun} frames were lost");
    let counters = mesh.counters();
    assert!(counters.retransmitted_pkts > 0, "{counters:?}");
    assert_eq!(mesh.links().iter().map(|link| link.pauses).sum::<u64>(), 0);
}

#[test]
fn each_connection_learns_of_sprayed_packets_by_itself_at_a_small_cost() {
    let config = MeshConfig {
        forwarding: Forwarding::SprayRandom,
        recovery: SELECTIVE,
        queue_bytes_max: usize::MAX,
        lossless: false,
        ..CONFIG
    };
    let wave = |start_nanos| all_to_all(16, BYTES).into_iter().map(move |flow| Flow { start_nanos, ..flow });
    let retransmitted = |waves: u64| {
        // Each message over a connection of its own, and the waves apart.
        let flows: Vec<Flow> = (0..waves).flat_map(|n| wave(n * 50_000_000)).collect();
        let mut mesh = Mesh::new(&config, &flows);
        mesh.run();
        let counters = mesh.counters();
        assert!(counters.out_of_seq_request > 0, "{counters:?}");
        assert_eq!(mesh.links().iter().map(|link| link.overrun).sum::<u64>(), 0, "nothing is lost");
        // The end of a message is probed, whatever the order of packets.
        (counters.retransmitted_pkts - counters.tail_probes, counters.sent_pkts)
    };
    let [(first, first_sent), (both, _)] = [1, 2].map(retransmitted);
    assert!(first > 0, "something is to be learned");
    assert!(20 * first < first_sent, "{first} of {first_sent} packets");
    assert!((first..=2 * first).contains(&both), "{both} in two waves, {first} in one");
}

#[test]
fn the_same_seed_gives_the_same_run_whatever_the_payload_and_the_thread() {
    let config = MeshConfig { lossless: false, recovery: SELECTIVE, ..CONFIG };
    let outcome = |config: &MeshConfig| {
        let mesh = run(config);
        (mesh.completed.clone(), mesh.links())
    };
    let of_seed = |seed| outcome(&MeshConfig { seed, ..config });
    let results = seeds::run_all(&[1, 2, 1], usize::MAX, of_seed);
    assert_eq!(results[0], results[2]);
    assert_ne!(results[0].0, results[1].0);
    assert_eq!(results[0], outcome(&MeshConfig { payload: Payload::Carried, ..config }));
}

#[test]
fn a_frame_in_the_network_has_no_payload() {
    let mut mesh = Mesh::new(&CONFIG, &all_to_all(16, BYTES));
    let longest = std::rc::Rc::new(std::cell::Cell::new((0, 0)));
    let seen = longest.clone();
    mesh.world.network.borrow_mut().set_recorder(move |sighting| {
        let (bytes, len_bytes) = seen.get();
        seen.set((bytes.max(sighting.frame.len()), len_bytes.max(sighting.len_bytes)));
    });
    mesh.run();
    let (bytes, len_bytes) = longest.get();
    assert!(bytes <= 100, "a frame carried {bytes} bytes");
    assert!((1_024..=FRAME_BYTES_MAX).contains(&len_bytes));
}

#[test]
fn a_corrupted_phantom_frame_is_dropped_for_its_icrc() {
    use netsim::{Impairment, LinkId, Tape, TapeEntry};
    let mut mesh = Mesh::new(&CONFIG, &all_to_all(16, BYTES)[..1]);
    // Host 0's own link: a bit of the payload of its third frame, and the PSN of its fifth.
    let entry = |frame, bit| TapeEntry { link: LinkId(0), frame, impairment: Impairment::Corrupt { bit } };
    mesh.world.network.borrow_mut().set_tape(&Tape(vec![entry(2, 700 * 8), entry(4, 52 * 8)]));
    mesh.run();
    let drops: u64 = mesh.world.hosts.iter().map(|host| host.engine.drop_counters().rx_icrc_errors).sum();
    assert_eq!(drops, 2);
    assert!(mesh.counters().retransmitted_pkts > 0);
}

#[test]
fn marks_reach_the_senders_of_an_incast_and_spare_it_pauses() {
    let incast = Incast { start_nanos: 0, senders: 8, bytes_each: 1_000_000 };
    let red = Red { kmin_bytes: 5_000, kmax_bytes: 40_000, pmax: 0.2 };
    let run = |congestion: &str| {
        let congestion = congestion.parse().expect("a scheme");
        let mut mesh = Mesh::new(&MeshConfig { congestion, ecn: Some(red), ..CONFIG }, &incast.flows(16, 1));
        mesh.run();
        let links = mesh.links();
        let sum = |count: fn(&netsim::LinkCounters) -> u64| links.iter().map(count).sum::<u64>();
        assert_eq!(sum(|link| link.overrun), 0);
        (sum(|link| link.marked), sum(|link| link.paused_nanos), mesh.counters())
    };
    let (marked, paused_nanos, counters) = run("dcqcn");
    assert!(marked > 0 && counters.np_ecn_marked_roce_packets == marked, "{marked} {counters:?}");
    assert!(counters.np_cnp_sent > 0 && counters.rp_cnp_handled == counters.np_cnp_sent, "{counters:?}");
    let (unmarked, longer_nanos, _) = run("none");
    assert_eq!(unmarked, 0, "no scheme, no permission to mark");
    assert!(paused_nanos * 3 < longer_nanos * 2, "{paused_nanos} of {longer_nanos} ns");
}
