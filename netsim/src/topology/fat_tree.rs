//! The k-ary fat-tree (Al-Fares, Loukissas, Vahdat, SIGCOMM 2008): k pods of k/2 edge and k/2
//! aggregation switches, (k/2)^2 core switches, k/2 hosts per edge switch.
//!
//! ```text
//!             core 0    core 1      core 2    core 3        k = 4
//!               |  each connected to one aggregation switch of every pod
//!       pod:  aggregation 0   aggregation 1
//!               |   \       /   |
//!             edge 0          edge 1
//!             h   h           h   h
//! ```

use super::fabric::{Fabric, FabricConfig, TopologyError, check_hosts};

/// Number of hosts of the fat-tree of `k`-port switches, k^3/4: 16, 54, 128 and 250 for 4, 6, 8 and 10. `None`
/// on overflow.
pub fn fat_tree_hosts(k: usize) -> Option<usize> {
    Some(k.checked_mul(k)?.checked_mul(k)? / 4)
}

/// Builds the fat-tree of `k`-port switches. Shortest paths: between hosts of one edge switch 1 path of 2 links, of one
/// pod k/2 paths of 4 links, of two pods (k/2)^2 paths of 6 links.
///
/// # Errors
/// [`TopologyError`] if `k` is odd or 0, or there are more than [`super::HOSTS_MAX`] hosts.
pub fn fat_tree(k: usize, config: &FabricConfig) -> Result<Fabric, TopologyError> {
    if k == 0 || !k.is_multiple_of(2) {
        return Err(TopologyError::OddPorts(k));
    }
    check_hosts(fat_tree_hosts(k))?;
    let half = k / 2;
    let mut fabric = Fabric::new(config);
    let edge = fabric.add_tier(config, k * half);
    let aggregation = fabric.add_tier(config, k * half);
    let core = fabric.add_tier(config, half * half);
    for pod in 0..k {
        let pod_switches = pod * half..(pod + 1) * half;
        for &edge in &edge[pod_switches.clone()] {
            for _ in 0..half {
                fabric.add_host(config, edge);
            }
            for &aggregation in &aggregation[pod_switches.clone()] {
                fabric.network.connect(edge, aggregation, config.trunk);
            }
        }
        for (number, &aggregation) in aggregation[pod_switches].iter().enumerate() {
            for &core in &core[number * half..(number + 1) * half] {
                fabric.network.connect(aggregation, core, config.trunk);
            }
        }
    }
    Ok(fabric)
}
