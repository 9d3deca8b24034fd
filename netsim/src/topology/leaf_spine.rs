//! Leaf-spine: two tiers, with a cable from every leaf to every spine.
//!
//! ```text
//!      spine    spine
//!      |  | \  / | |
//!      |  |  \/  | |
//!     leaf   leaf  leaf
//!     | | |  | | | | | |   hosts
//! ```

use super::fabric::{CABLES_MAX, Fabric, FabricConfig, SPINES_MAX, TopologyError, check_hosts};

/// The size of a leaf-spine network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeafSpine {
    /// Hosts per leaf switch.
    pub hosts_per_leaf: usize,
    /// Number of leaf switches.
    pub leaves: usize,
    /// Number of spine switches; may be 0 if there is one leaf.
    pub spines: usize,
}

/// Builds a leaf-spine network. Shortest paths: between hosts of one leaf 1 path of 2 links, between hosts of different
/// leaves `spines` paths of 4 links.
///
/// # Errors
/// [`TopologyError`] if a number is 0 or above its limit.
pub fn leaf_spine(size: LeafSpine, config: &FabricConfig) -> Result<Fabric, TopologyError> {
    let LeafSpine { hosts_per_leaf, leaves, spines } = size;
    check_hosts(hosts_per_leaf.checked_mul(leaves))?;
    if leaves > 1 && spines == 0 {
        return Err(TopologyError::Zero("spines"));
    }
    if spines > SPINES_MAX {
        return Err(TopologyError::TooManySpines(spines));
    }
    let cables = leaves * spines; // of two numbers of a few thousand
    if cables > CABLES_MAX {
        return Err(TopologyError::TooManyCables(cables));
    }
    let mut fabric = Fabric::new(config);
    let leaf_tier = fabric.add_tier(config, leaves);
    let spine_tier = fabric.add_tier(config, spines);
    for &leaf in &leaf_tier {
        for _ in 0..hosts_per_leaf {
            fabric.add_host(config, leaf);
        }
        for &spine in &spine_tier {
            fabric.network.connect(leaf, spine, config.trunk);
        }
    }
    Ok(fabric)
}

/// Builds a star: `hosts` hosts at one switch.
///
/// # Errors
/// [`TopologyError`] if `hosts` is 0 or above [`super::HOSTS_MAX`].
pub fn star(hosts: usize, config: &FabricConfig) -> Result<Fabric, TopologyError> {
    leaf_spine(LeafSpine { hosts_per_leaf: hosts, leaves: 1, spines: 0 }, config)
}
