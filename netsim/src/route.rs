//! All shortest paths through a network.

use std::collections::HashMap;

use crate::id::{HostId, LinkId, Node, SwitchId};

/// For each switch and destination host, the output links on shortest paths.
///
/// ```text
///   starts[switch, host] --> lists: | 1 | link | 2 | link | link | ...      a length, then that many links
/// ```
/// Equal lists are stored once; most hosts share one list per switch, so the table is small.
#[derive(Clone, Debug, Default)]
pub struct Routes {
    hosts: usize,
    starts: Vec<u32>,
    lists: Vec<u32>,
    egress: Vec<Option<LinkId>>,
    to: Vec<Node>,
}

impl Routes {
    /// Computes the routes by a breadth-first search from every host, against the direction of the links.
    pub(crate) fn new(ends: &[[Node; 2]], switches: usize, hosts: usize) -> Routes {
        let mut into: Vec<Vec<usize>> = vec![Vec::new(); switches];
        let mut out: Vec<Vec<usize>> = vec![Vec::new(); switches];
        let mut egress = vec![None; hosts];
        for (link, [from, to]) in ends.iter().enumerate() {
            match from {
                Node::Host(host) => egress[host.0] = Some(LinkId(link)),
                Node::Switch(switch) => out[switch.0].push(link),
            }
            if let Node::Switch(switch) = to {
                into[switch.0].push(link);
            }
        }
        let distances: Vec<Vec<u32>> =
            (0..hosts).map(|host| distances_to(HostId(host), ends, &into, switches)).collect();
        let (mut starts, mut lists, mut known) = (Vec::new(), Vec::new(), HashMap::new());
        for switch in 0..switches {
            for (host, distance) in distances.iter().enumerate() {
                let is_nearer = |link: &&usize| match ends[**link][1] {
                    Node::Host(to) => to.0 == host,
                    Node::Switch(to) => {
                        distance[switch] != u32::MAX
                            && distance[to.0].checked_add(1) == Some(distance[switch])
                    }
                };
                let ways: Vec<u32> = out[switch].iter().filter(is_nearer).map(|link| *link as u32).collect();
                let start = known.entry(ways).or_insert_with_key(|ways| {
                    let start = lists.len() as u32;
                    lists.push(ways.len() as u32);
                    lists.extend(ways);
                    start
                });
                starts.push(*start);
            }
        }
        Routes { hosts, starts, lists, egress, to: ends.iter().map(|ends| ends[1]).collect() }
    }

    /// The numbers of the links from `switch` on all shortest paths to host number `to`.
    #[inline]
    pub(crate) fn ways(&self, switch: SwitchId, to: usize) -> &[u32] {
        let start = self.starts[switch.0 * self.hosts + to] as usize;
        &self.lists[start + 1..][..self.lists[start] as usize]
    }

    /// The links from `switch` on all shortest paths to `to`; empty if there is no path.
    pub fn next_hops(&self, switch: SwitchId, to: HostId) -> Vec<LinkId> {
        self.ways(switch, to.0).iter().map(|link| LinkId(*link as usize)).collect()
    }

    /// All shortest paths from one host to another, each a list of links in order. Their number can be large.
    pub fn paths(&self, from: HostId, to: HostId) -> Vec<Vec<LinkId>> {
        let mut found = Vec::new();
        let mut open: Vec<Vec<LinkId>> = self.egress[from.0].iter().map(|link| vec![*link]).collect();
        while let Some(path) = open.pop() {
            match path.last().map(|link| self.to[link.0]) {
                Some(Node::Switch(switch)) => {
                    let ways = self.next_hops(switch, to).into_iter();
                    open.extend(ways.map(|way| path.iter().copied().chain([way]).collect()));
                }
                Some(Node::Host(host)) if host == to => found.push(path),
                _ => {}
            }
        }
        found
    }

    /// One of the shortest paths from one host to another, a list of links in order; empty if there is no path.
    pub fn path(&self, from: HostId, to: HostId) -> Vec<LinkId> {
        let mut path: Vec<LinkId> = self.egress[from.0].into_iter().collect();
        while let Some(Node::Switch(switch)) = path.last().map(|link| self.to[link.0]) {
            match self.ways(switch, to.0) {
                [first, ..] => path.push(LinkId(*first as usize)),
                [] => return Vec::new(),
            }
        }
        path
    }
}

/// Number of links from each switch to `host`; `u32::MAX` if there is no path.
fn distances_to(host: HostId, ends: &[[Node; 2]], into: &[Vec<usize>], switches: usize) -> Vec<u32> {
    let mut distance = vec![u32::MAX; switches];
    let last = ends.iter().filter(|ends| ends[1] == Node::Host(host)).map(|ends| ends[0]);
    let mut reached: Vec<usize> = last.filter_map(switch_of).collect();
    reached.iter().for_each(|switch| distance[*switch] = 1);
    let mut at = 0;
    while let Some(&switch) = reached.get(at) {
        at += 1;
        for before in into[switch].iter().filter_map(|link| switch_of(ends[*link][0])) {
            if distance[before] == u32::MAX {
                distance[before] = distance[switch] + 1;
                reached.push(before);
            }
        }
    }
    distance
}

fn switch_of(node: Node) -> Option<usize> {
    match node {
        Node::Switch(switch) => Some(switch.0),
        Node::Host(_) => None,
    }
}
