//! Packet-hops per second of CPU on a fat-tree of k ports, without engines: random frames of 1 KB.
//!
//! `cargo run --release -p netsim --example hops -- [k] [hops]`

use std::time::Instant;

use netsim::rng::SplitMix;
use netsim::topology::{FabricConfig, fat_tree};
use netsim::{Forwarding, Frame, LinkConfig, Red, SwitchConfig};

/// Time that this thread had a processor, in seconds, where the kernel tells it; else the time of day.
fn cpu_seconds(start: Instant) -> f64 {
    let told = std::fs::read_to_string("/proc/thread-self/schedstat").ok();
    let nanos = told.and_then(|text| text.split_whitespace().next()?.parse::<f64>().ok());
    nanos.map_or(start.elapsed().as_secs_f64(), |nanos| nanos / 1e9)
}

fn main() {
    let mut args = std::env::args().skip(1).map(|arg| arg.parse::<u64>().expect("numbers: k, hops"));
    let (k, hops) = (args.next().unwrap_or(6) as usize, args.next().unwrap_or(20_000_000));
    let cable =
        LinkConfig { rate_bits_per_sec: 40_000_000_000, propagation_nanos: 2_000, queue_bytes_max: 240_000 };
    for forwarding in [Forwarding::Ecmp, Forwarding::SprayRandom] {
        let red = Red { kmin_bytes: 20_000, kmax_bytes: 80_000, pmax: 0.2 };
        let config = FabricConfig {
            host_cable: cable,
            trunk: cable,
            host_queue_bytes_max: 10_000,
            switch: SwitchConfig { forwarding, ecn: Some(red), ..SwitchConfig::PLAIN },
            seed: 1,
        };
        let mut fabric = fat_tree(k, &config).expect("an even k");
        let hosts = fabric.hosts.clone();
        let address = |number: usize| [2, 0, 0, 0, (number >> 8) as u8, number as u8];
        hosts.iter().for_each(|host| fabric.network.set_address(*host, address(host.0)));
        fabric.network.routes();
        let mut rng = SplitMix::new(1);
        let network = &mut fabric.network;
        let start = Instant::now();
        let before = cpu_seconds(start);
        while network.hops() < hops {
            // 7 of 10 frames that the hosts' links would take in this time.
            let later = network.now_nanos() + 217;
            for &host in &hosts {
                if rng.up_to(9) < 7 {
                    let to = address(rng.up_to(hosts.len() - 1));
                    let mut bytes = network.buffer(58);
                    bytes[..6].copy_from_slice(&to);
                    bytes[12..14].copy_from_slice(&[8, 0]);
                    bytes[26..34].copy_from_slice(&rng.bits().to_le_bytes());
                    network.send(host, Frame { bytes, phantom_bytes: 1_028, corrupted: false });
                }
            }
            network.run_until(later);
            for &host in &hosts {
                while let Some(frame) = network.receive(host) {
                    network.recycle(frame.bytes);
                }
            }
        }
        let seconds = cpu_seconds(start) - before;
        println!(
            "fat-tree k={k}, {} hosts, {forwarding:?}: {:.2} M packet-hops per second of CPU ({} hops, {:.0} ns each)",
            hosts.len(),
            network.hops() as f64 / seconds / 1e6,
            network.hops(),
            seconds * 1e9 / network.hops() as f64,
        );
    }
}
