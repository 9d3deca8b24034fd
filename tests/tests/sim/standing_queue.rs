//! Many queue pairs that start at once on one link without loss: the queue in front of the link makes round trips longer
//! than the first probe timeouts, so that probes are sent, and an ACK of a probe is one of its first transmission.

use lab::world::{EndAttr, QpEnds, QpSizes, World, WorldConfig};
use netsim::LinkConfig;
use roce::congestion::CongestionScheme;
use roce::engine::limits::REORDER_BYTES;
use roce::id::{LKey, RKey};
use roce::mem::{Access, Memory};
use roce::qp::{ConnAttr, PathMtu};
use roce::queue::{SendData, SendFlags, SendOp, SendRequest, Sge, WcStatus};
use roce::recovery::RecoveryScheme;
use roce::start;
use tests::pair::conn;

const LINK: LinkConfig =
    LinkConfig { rate_bits_per_sec: 40_000_000_000, propagation_nanos: 4_000, queue_bytes_max: 1 << 28 };
const NANOS: u64 = 30_000_000;
/// Largest number of probes of a queue pair: the backoff ends at each of the first ACKs, until 8 timeouts expired
/// without a round-trip sample.
const PROBES_MAX: u64 = 12;

#[derive(Clone, Copy, Debug)]
struct Case {
    flows: usize,
    path_mtu: PathMtu,
    window_pkts: u32,
    len_bytes: u32,
    is_read: bool,
}

impl Case {
    /// Work requests in progress of each queue pair.
    fn depth(self) -> u32 {
        (self.window_pkts * self.path_mtu.bytes() / self.len_bytes).clamp(16, 512)
    }

    fn request(self, number: u64, (lkey, rkey): (LKey, RKey), post: impl FnOnce(&SendRequest<'_>)) {
        let remote_addr = 0;
        let op = if self.is_read {
            SendOp::Read { remote_addr, rkey }
        } else {
            SendOp::Write { remote_addr, rkey }
        };
        let sges = [Sge { addr: 0, len_bytes: self.len_bytes, lkey }];
        let flags = SendFlags { signaled: true, ..SendFlags::default() };
        post(&SendRequest { wr_id: number, op, flags, data: SendData::Sges(&sges) });
    }
}

struct Flow {
    ends: [QpEnds; 2],
    posted: u64,
    completed: u64,
}

fn connect(world: &mut World, case: Case, congestion: CongestionScheme) -> Flow {
    let depth = case.depth();
    let sizes = QpSizes { sends: depth, recvs: 1, cqes: [2 * depth, 1], sges: 1, inline_bytes: 0 };
    let conn = ConnAttr {
        path_mtu: case.path_mtu,
        congestion: Some(congestion),
        timeout: 14,
        max_rd_atomic: 16,
        max_dest_rd_atomic: 16,
        recovery: RecoveryScheme::SelectiveRepeat { window_pkts: case.window_pkts },
        ..conn()
    };
    let ends = [0, 1].map(|host| world.hosts[host].create_qp(&sizes));
    let end = |host: usize| EndAttr { host, qpn: ends[host].qpn, first_psn: start::psn(7), conn };
    world.connect(false, [end(0), end(1)]);
    Flow { ends, posted: 0, completed: 0 }
}

/// Returns the number of retransmitted packets, and of probes.
fn run(case: Case) -> [u64; 2] {
    let congestion = CongestionScheme::Window { window_pkts: case.window_pkts / 4 };
    let config = WorldConfig {
        hosts: 2,
        link: LINK,
        mtu_bytes: 4200,
        poll_gap_nanos: 200,
        congestion,
        seed: 1,
        reorder_bytes: REORDER_BYTES,
    };
    let mut world = World::new(&config);
    let [(lkey, _), (_, rkey)] = [0, 1].map(|host| {
        let memory = Memory::alloc(case.len_bytes as usize);
        world.hosts[host].register(&memory, 0, Access::ALL)
    });
    let mut flows: Vec<_> = (0..case.flows).map(|_| connect(&mut world, case, congestion)).collect();
    world.settle();
    let end_nanos = world.now_nanos() + NANOS;
    while world.now_nanos() < end_nanos {
        for flow in &mut flows {
            let [requester, _] = &mut flow.ends;
            while let Some(done) = requester.send_cq.pop() {
                assert_eq!(done.status, WcStatus::Success);
                flow.completed += 1;
            }
            while flow.posted - flow.completed < u64::from(case.depth()) {
                let post = |request: &SendRequest<'_>| requester.send.post(request).expect("there is room");
                case.request(flow.posted, (lkey, rkey), post);
                flow.posted += 1;
                world.hosts[0].kick();
            }
        }
        world.step(None);
    }
    assert!(flows.iter().all(|flow| flow.completed > 0));
    let counters = world.hosts[0].engine.counters();
    [counters.retransmitted_pkts, counters.tail_probes + counters.roce_adp_retrans_to]
}

#[test]
fn only_probes_are_retransmitted() {
    let mut wrong = Vec::new();
    for flows in [32, 64] {
        for (path_mtu, window_pkts) in
            [(PathMtu::Mtu1024, 256), (PathMtu::Mtu1024, 1024), (PathMtu::Mtu4096, 1024)]
        {
            for (is_read, len_bytes) in [(false, 65_536), (true, 65_536), (false, 1_500)] {
                let case = Case { flows, path_mtu, window_pkts, len_bytes, is_read };
                let [retransmitted, probes] = run(case);
                if retransmitted > probes || probes > PROBES_MAX * flows as u64 {
                    wrong.push(format!("{case:?}: {retransmitted} retransmitted, {probes} probes"));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{} rows:\n{}", wrong.len(), wrong.join("\n"));
}
