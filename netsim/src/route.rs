//! The shortest ways through a network, and all of them.

use crate::network::{HostId, LinkId, Node, SwitchId};

/// For each switch and host, the links that lead on by a shortest way.
#[derive(Clone, Debug, Default)]
pub struct Routes {
    hosts: usize,
    /// Where the links of a switch and host begin in `hops`; those of the next pair end them.
    starts: Vec<u32>,
    hops: Vec<LinkId>,
    /// The link out of each host, and each link's far end: to walk the ways.
    egress: Vec<Option<LinkId>>,
    to: Vec<Node>,
}

impl Routes {
    /// Measures from every host, breadth first and against the direction of the links.
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
        let (mut starts, mut hops) = (vec![0], Vec::new());
        for switch in 0..switches {
            for (host, distance) in distances.iter().enumerate() {
                let is_nearer = |link: &&usize| match ends[**link][1] {
                    Node::Host(to) => to.0 == host,
                    Node::Switch(to) => {
                        distance[switch] != u32::MAX
                            && distance[to.0].checked_add(1) == Some(distance[switch])
                    }
                };
                hops.extend(out[switch].iter().filter(is_nearer).map(|link| LinkId(*link)));
                starts.push(hops.len() as u32);
            }
        }
        Routes { hosts, starts, hops, egress, to: ends.iter().map(|ends| ends[1]).collect() }
    }

    /// The links out of `switch` on all shortest ways to host number `to`; none where there is no way.
    #[inline]
    pub fn next_hops(&self, switch: SwitchId, to: usize) -> &[LinkId] {
        let pair = switch.0 * self.hosts + to;
        &self.hops[self.starts[pair] as usize..self.starts[pair + 1] as usize]
    }

    /// Every shortest way from one host to another, as the links in their order; many in a large
    /// network.
    pub fn paths(&self, from: HostId, to: HostId) -> Vec<Vec<LinkId>> {
        let mut found = Vec::new();
        let mut open: Vec<Vec<LinkId>> = self.egress[from.0].iter().map(|link| vec![*link]).collect();
        while let Some(path) = open.pop() {
            match path.last().map(|link| self.to[link.0]) {
                Some(Node::Switch(switch)) => {
                    let ways = self.next_hops(switch, to.0).iter();
                    open.extend(ways.map(|way| path.iter().copied().chain([*way]).collect()));
                }
                Some(Node::Host(host)) if host == to => found.push(path),
                _ => {}
            }
        }
        found
    }

    /// One of the shortest ways from one host to another, as the links in their order; empty where there is
    /// none.
    pub fn path(&self, from: HostId, to: HostId) -> Vec<LinkId> {
        let mut path: Vec<LinkId> = self.egress[from.0].into_iter().collect();
        while let Some(Node::Switch(switch)) = path.last().map(|link| self.to[link.0]) {
            match self.next_hops(switch, to.0) {
                [first, ..] => path.push(*first),
                [] => return Vec::new(),
            }
        }
        path
    }
}

/// Links from each switch to `host`; `u32::MAX` where there is no way.
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
