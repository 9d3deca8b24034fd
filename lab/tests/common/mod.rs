//! Messages between hosts of a fabric, each over a connection of its own.

use lab::world::{EndAttr, Host, HostConfig, Neighbours, QpSizes, Step, World};
use netsim::topology::{Fabric, FabricConfig, fat_tree};
use netsim::workload::Flow;
use netsim::{Forwarding, LinkConfig, LinkCounters, LinkId, Pfc, Red, SwitchConfig};
use roce::congestion::CongestionScheme;
use roce::counters::QpCounters;
use roce::engine::limits::{DeviceLimits, REORDER_BYTES};
use roce::id::{LKey, RKey};
use roce::mem::{Access, Memory};
use roce::port::Payload;
use roce::qp::ConnAttr;
use roce::queue::{CqId, CqPoller, SendData, SendFlags, SendOp, SendPoster, SendRequest, Sge, WcStatus};
use roce::recovery::RecoveryScheme;
use roce::start;

/// IRN's cable: 40 Gbit/s and 2 us.
pub(crate) const CABLE: LinkConfig =
    LinkConfig { rate_bits_per_sec: 40_000_000_000, propagation_nanos: 2_000, queue_bytes_max: 240_000 };

/// Input memory of a lossless switch.
pub(crate) const INPUT_BYTES_MAX: usize = 60_000;

/// The longest frame of these tests: a path MTU of 1024 and headers.
pub(crate) const FRAME_BYTES_MAX: usize = 1_024 + 80 + 18;

const BASE: u64 = 0x10_0000;

/// No run here takes longer, in nanoseconds of virtual time.
const LIMIT_NANOS: u64 = 2_000_000_000;

/// What a run is like.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MeshConfig {
    /// Ports of a switch of the fat-tree.
    pub(crate) k: usize,
    /// How switches choose.
    pub(crate) forwarding: Forwarding,
    /// Whether they pause; they have bounded queues where they do not.
    pub(crate) lossless: bool,
    /// Bounds of output queues where they do not.
    pub(crate) queue_bytes_max: usize,
    /// Recovery.
    pub(crate) recovery: RecoveryScheme,
    /// Carried or phantom.
    pub(crate) payload: Payload,
    /// Congestion control of each connection.
    pub(crate) congestion: CongestionScheme,
    /// Marking.
    pub(crate) ecn: Option<Red>,
    /// The seed.
    pub(crate) seed: u64,
}

/// One message.
struct Message {
    flow: Flow,
    send: SendPoster,
}

/// What the connections of one host share.
struct PerHost {
    keys: (LKey, RKey),
    cq: CqId,
    completions: CqPoller,
}

/// Hosts of a fat-tree and messages between them.
pub(crate) struct Mesh {
    /// The hosts.
    pub(crate) world: World,
    hosts: Vec<PerHost>,
    messages: Vec<Message>,
    /// When each message was complete, in the order of completion: its number and the time.
    pub(crate) completed: Vec<(usize, u64)>,
}

/// The fat-tree of a configuration.
pub(crate) fn build(config: &MeshConfig) -> Fabric {
    let pfc = config.lossless.then(|| Pfc::lossless(INPUT_BYTES_MAX, &CABLE, FRAME_BYTES_MAX));
    let queue_bytes_max = if config.lossless { usize::MAX } else { config.queue_bytes_max };
    let cable = LinkConfig { queue_bytes_max, ..CABLE };
    let input_bytes_max = if config.lossless { INPUT_BYTES_MAX } else { usize::MAX };
    let switch = SwitchConfig {
        forwarding: config.forwarding,
        input_bytes_max,
        pfc,
        ecn: config.ecn,
        ..SwitchConfig::PLAIN
    };
    let fabric = FabricConfig {
        host_cable: cable,
        trunk: cable,
        host_queue_bytes_max: 4 * FRAME_BYTES_MAX,
        switch,
        seed: config.seed,
    };
    fat_tree(config.k, &fabric).expect("an even k")
}

impl Mesh {
    /// Hosts with a connection for each of `flows`, and nothing posted.
    pub(crate) fn new(config: &MeshConfig, flows: &[Flow]) -> Mesh {
        let fabric = build(config);
        let hosts = fabric.hosts.len();
        let most = (0..hosts).map(|host| flows.iter().filter(|f| f.from == host || f.to == host).count());
        let max_qps = most.max().unwrap_or(0).max(1);
        let host_config = HostConfig {
            mtu_bytes: FRAME_BYTES_MAX - 18,
            poll_gap_nanos: 200,
            congestion: config.congestion,
            seed: config.seed,
            limits: DeviceLimits {
                max_pds: 1,
                max_mrs: 1,
                max_cqs: 1,
                max_srqs: 0,
                max_qps,
                max_ahs: 0,
                reorder_bytes: REORDER_BYTES,
            },
            neighbours: Neighbours::Static,
            payload: config.payload,
        };
        let mut world = World::on(fabric.network, &fabric.hosts, &host_config);
        let bytes_max = flows.iter().map(|flow| flow.bytes).max().unwrap_or(0) as usize;
        let per_host = |host: &mut Host| {
            let memory = match config.payload {
                Payload::Carried => Memory::alloc(bytes_max),
                Payload::Phantom => Memory::phantom(bytes_max),
            };
            let (cq, completions) =
                host.engine.objects().create_cq(max_qps as u32).expect("there is room for one");
            PerHost { keys: host.register(&memory, BASE, Access::ALL), cq, completions }
        };
        let hosts: Vec<PerHost> = world.hosts.iter_mut().map(per_host).collect();
        let connect = |flow: &Flow| connect(&mut world, &hosts, config.recovery, *flow);
        let messages = flows.iter().map(connect).collect();
        Mesh { world, hosts, messages, completed: Vec::new() }
    }

    /// Posts each message at its time and runs until all are complete.
    ///
    /// # Panics
    /// Where one fails, or never completes.
    pub(crate) fn run(&mut self) {
        let start_nanos = self.world.now_nanos();
        let mut order: Vec<usize> = (0..self.messages.len()).collect();
        order.sort_by_key(|number| self.messages[*number].flow.start_nanos);
        let mut next = 0;
        while self.completed.len() < self.messages.len() {
            let now_nanos = self.world.now_nanos();
            assert!(now_nanos < LIMIT_NANOS, "{} of {} complete", self.completed.len(), self.messages.len());
            let start_of = |number: &usize| start_nanos + self.messages[*number].flow.start_nanos;
            let mut wake_nanos = order.get(next).map(start_of);
            while let Some(at_nanos) = wake_nanos.filter(|at_nanos| *at_nanos <= now_nanos) {
                debug_assert!(at_nanos <= now_nanos);
                self.post(order[next]);
                next += 1;
                let start_of = |number: &usize| start_nanos + self.messages[*number].flow.start_nanos;
                wake_nanos = order.get(next).map(start_of);
            }
            assert_ne!(self.world.step(wake_nanos), Step::Idle, "idle with messages under way");
            self.take_completions();
        }
    }

    fn post(&mut self, number: usize) {
        let message = &mut self.messages[number];
        let Flow { from, to, bytes, .. } = message.flow;
        let sges = [Sge { addr: BASE, len_bytes: bytes, lkey: self.hosts[from].keys.0 }];
        let op = SendOp::Write { remote_addr: BASE, rkey: self.hosts[to].keys.1 };
        let flags = SendFlags { signaled: true, ..SendFlags::default() };
        let request = SendRequest { wr_id: number as u64, op, flags, data: SendData::Sges(&sges) };
        message.send.post(&request).expect("there is room for one");
        self.world.hosts[from].kick();
    }

    fn take_completions(&mut self) {
        let now_nanos = self.world.now_nanos();
        for host in self.world.polled() {
            while let Some(cqe) = self.hosts[*host].completions.pop() {
                assert_eq!(cqe.status, WcStatus::Success, "message {} at {now_nanos} ns", cqe.wr_id);
                self.completed.push((cqe.wr_id as usize, now_nanos));
            }
        }
    }

    /// The sums of all engines' counters.
    pub(crate) fn counters(&self) -> QpCounters {
        let mut sum = QpCounters::default();
        self.world.hosts.iter().for_each(|host| sum.add(&host.engine.counters()));
        sum
    }

    /// The counters of all links.
    pub(crate) fn links(&self) -> Vec<LinkCounters> {
        let network = self.world.network.borrow();
        (0..network.links()).map(|link| network.counters(LinkId(link))).collect()
    }
}

fn connect(world: &mut World, hosts: &[PerHost], recovery: RecoveryScheme, flow: Flow) -> Message {
    let sizes = QpSizes { sends: 1, recvs: 1, cqes: [1; 2], sges: 1, inline_bytes: 0 };
    let mut create = |host: usize| world.hosts[host].create_qp_on(&sizes, hosts[host].cq, hosts[host].cq);
    let (own, peer) = (create(flow.from), create(flow.to));
    let conn = ConnAttr {
        access: Access::ALL,
        max_rd_atomic: 0,
        max_dest_rd_atomic: 0,
        min_rnr_timer: 1,
        recovery,
        initial_rtt_nanos: 0,
        ..ConnAttr::default()
    };
    let end = |host, qpn| EndAttr { host, qpn, first_psn: start::psn(7), conn };
    world.connect(false, [end(flow.from, own.qpn), end(flow.to, peer.qpn)]);
    Message { flow, send: own.send }
}

/// One message from each host to each other, all at once.
pub(crate) fn all_to_all(hosts: usize, bytes: u32) -> Vec<Flow> {
    to_others(hosts, hosts - 1, bytes)
}

/// One message from each host to each of `peers` others, which stand evenly around it, all at once.
pub(crate) fn to_others(hosts: usize, peers: usize, bytes: u32) -> Vec<Flow> {
    let of_host = |from: usize| {
        let others = (1..=peers).map(move |number| (from + number * (hosts - 1) / peers) % hosts);
        others.map(move |to| Flow { start_nanos: 0, from, to, bytes })
    };
    (0..hosts).flat_map(of_host).collect()
}
