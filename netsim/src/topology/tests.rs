use super::*;
use crate::link::LinkConfig;
use crate::switch::{Forwarding, SwitchConfig};

fn config() -> FabricConfig {
    let cable =
        LinkConfig { rate_bits_per_sec: 40_000_000_000, propagation_nanos: 2_000, queue_bytes_max: 240_000 };
    FabricConfig {
        host_cable: cable,
        trunk: cable,
        host_queue_bytes_max: 10_000,
        switch: SwitchConfig { forwarding: Forwarding::Ecmp, ..SwitchConfig::PLAIN },
        seed: 1,
    }
}

/// Number of shortest paths from one host to another, and of the links of each.
fn ways(fabric: &mut Fabric, from: usize, to: usize) -> (usize, usize) {
    let (from, to) = (fabric.hosts[from], fabric.hosts[to]);
    let paths = fabric.network.routes().paths(from, to);
    let links = paths[0].len();
    assert!(paths.iter().all(|path| path.len() == links));
    assert_eq!(fabric.network.routes().path(from, to).len(), links);
    let mut different = paths.clone();
    different.sort_by_key(|path| path.iter().map(|link| link.0).collect::<Vec<_>>());
    different.dedup();
    assert_eq!(different.len(), paths.len());
    (paths.len(), links)
}

#[test]
fn a_fat_tree_has_the_ways_that_it_should() {
    for (k, hosts) in [(2, 2), (4, 16), (6, 54), (8, 128), (10, 250)] {
        let mut fabric = fat_tree(k, &config()).unwrap();
        let half = k / 2;
        assert_eq!((fabric.hosts.len(), fat_tree_hosts(k)), (hosts, Some(hosts)));
        assert_eq!(fabric.tiers.iter().map(Vec::len).collect::<Vec<_>>(), [k * half, k * half, half * half]);
        // `hosts` cables each from hosts to edge, edge to aggregation, and aggregation to core; a cable is two links.
        assert_eq!(fabric.network.links(), 2 * 3 * hosts);
        assert_eq!(ways(&mut fabric, 0, hosts - 1), (half * half, 6));
        if k > 2 {
            assert_eq!(ways(&mut fabric, 0, 1), (1, 2));
            assert_eq!(ways(&mut fabric, 0, half), (half, 4));
            assert_eq!(ways(&mut fabric, half, half * half), (half * half, 6), "the next pod");
        }
    }
}

#[test]
fn a_leaf_spine_network_has_a_way_over_each_spine() {
    let size = LeafSpine { hosts_per_leaf: 3, leaves: 4, spines: 5 };
    let mut fabric = leaf_spine(size, &config()).unwrap();
    assert_eq!(fabric.hosts.len(), 12);
    assert_eq!(ways(&mut fabric, 0, 2), (1, 2));
    assert_eq!(ways(&mut fabric, 0, 3), (5, 4));
    let mut star = star(7, &config()).unwrap();
    assert_eq!(ways(&mut star, 0, 6), (1, 2));
}

#[test]
fn what_cannot_be_built_is_refused() {
    let refusal = |built: Result<Fabric, TopologyError>| built.err().unwrap();
    assert_eq!(refusal(fat_tree(5, &config())), TopologyError::OddPorts(5));
    assert_eq!(refusal(fat_tree(0, &config())), TopologyError::OddPorts(0));
    assert_eq!(refusal(fat_tree(usize::MAX - 1, &config())), TopologyError::TooManyHosts(usize::MAX));
    assert_eq!(refusal(star(0, &config())), TopologyError::Zero("hosts"));
    let size = LeafSpine { hosts_per_leaf: 2, leaves: 2, spines: 0 };
    assert_eq!(refusal(leaf_spine(size, &config())), TopologyError::Zero("spines"));
    let size = LeafSpine { hosts_per_leaf: 2, leaves: 2, spines: usize::MAX };
    assert_eq!(refusal(leaf_spine(size, &config())), TopologyError::TooManySpines(usize::MAX));
    let size = LeafSpine { hosts_per_leaf: 1, leaves: 1000, spines: 1000 };
    assert_eq!(refusal(leaf_spine(size, &config())), TopologyError::TooManyCables(1_000_000));
    let text = refusal(fat_tree(40, &config())).to_string();
    assert!(text.contains("16000 hosts"), "{text}");
}
