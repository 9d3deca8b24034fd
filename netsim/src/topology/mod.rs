//! Networks of common topologies: star, leaf-spine, fat-tree.

mod fabric;
mod fat_tree;
mod leaf_spine;

pub use fabric::{CABLES_MAX, Fabric, FabricConfig, HOSTS_MAX, SPINES_MAX, TopologyError};
pub use fat_tree::{fat_tree, fat_tree_hosts};
pub use leaf_spine::{LeafSpine, leaf_spine, star};

#[cfg(test)]
mod tests;
