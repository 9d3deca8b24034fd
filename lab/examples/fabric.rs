//! Packet-hops per second of CPU with real engines: each host of a fat-tree writes to others, all at once.
//!
//! `cargo run --release -p lab --example fabric -- [k] [peers of each host] [bytes of each message] [seeds]`

#[path = "../tests/common/mod.rs"]
#[allow(dead_code)]
mod common;

use std::time::Instant;

use common::{Mesh, MeshConfig, to_others};
use netsim::Forwarding;
use netsim::topology::fat_tree_hosts;
use roce::congestion::CongestionScheme;
use roce::port::Payload;
use roce::recovery::RecoveryScheme;

/// Time that this thread had a processor, in seconds, where the kernel tells it; else the time of day.
fn cpu_seconds(start: Instant) -> f64 {
    let told = std::fs::read_to_string("/proc/thread-self/schedstat").ok();
    let nanos = told.and_then(|text| text.split_whitespace().next()?.parse::<f64>().ok());
    nanos.map_or(start.elapsed().as_secs_f64(), |nanos| nanos / 1e9)
}

fn main() {
    let args = std::env::args().skip(1).map(|arg| arg.parse().expect("numbers: k, peers, bytes, seeds"));
    let args: Vec<u64> = args.collect();
    let arg = |at: usize, default: u64| args.get(at).copied().unwrap_or(default);
    let k = arg(0, 6) as usize;
    let hosts = fat_tree_hosts(k).expect("a small k");
    let peers = (arg(1, u64::MAX) as usize).min(hosts - 1);
    let bytes = arg(2, 100_000) as u32;
    let seeds: Vec<u64> = (0..arg(3, 1)).collect();
    let run = |lossless, seed| {
        let config = MeshConfig {
            k,
            forwarding: Forwarding::Ecmp,
            lossless,
            queue_bytes_max: 240_000,
            recovery: RecoveryScheme::SelectiveRepeat { window_pkts: 128 },
            payload: Payload::Phantom,
            congestion: CongestionScheme::Window { window_pkts: 110 },
            ecn: None,
            seed,
        };
        let start = Instant::now();
        let mut mesh = Mesh::new(&config, &to_others(hosts, peers, bytes));
        let connected = cpu_seconds(start);
        mesh.run();
        let seconds = cpu_seconds(start) - connected;
        let hops = mesh.world.network.borrow().hops();
        println!(
            "k={k}, {hosts} hosts, {}, seed {seed}: {:.2} M packet-hops per second of CPU ({hops} hops, \
             {:.1} s, {} polls, {:.2} ms of virtual time)",
            if lossless { "PFC" } else { "tail drop" },
            hops as f64 / seconds / 1e6,
            seconds,
            mesh.world.polls,
            mesh.world.now_nanos() as f64 / 1e6,
        );
        hops
    };
    for lossless in [true, false] {
        let start = Instant::now();
        let hops: u64 = lab::seeds::run_all(&seeds, usize::MAX, |seed| run(lossless, seed)).iter().sum();
        let rate = hops as f64 / start.elapsed().as_secs_f64() / 1e6;
        println!(
            "{} seeds: {rate:.2} M packet-hops per second of real time, setting up included",
            seeds.len()
        );
    }
}
