//! After a warm-up, neither end of a connection allocates memory for packets. The tests transfer SENDs, WRITEs and
//! READs of several sizes, with and without retransmissions.

use crate::common::{End, conn, connect, pair_over, ports};
use roce::port::Port;
use roce::port::events::{EventPlan, EventPsn, EventQp, Events, PacketEvent};
use roce::port::fault::{Fault, FaultConfig, FaultDirection};
use roce::port::impairment::Impairment;
use roce::psn::PsnSpace;
use roce::qp::{AddressVector, ConnAttr, PathMtu, QpAttr, QpState};
use roce::queue::{SendOp, WcStatus};
use roce::start;
use roce::time::Instant;

/// Number of messages of the warm-up. During the warm-up, queues grow to their final size.
const WARM_MESSAGES: u64 = 600;
const MESSAGES: u64 = 300;
/// Largest number of messages posted and not completed.
const WINDOW: u64 = 16;
const MEMORY_BYTES: usize = 64 << 10;

#[derive(Clone, Copy, Debug)]
enum Kind {
    Send,
    Write,
    Read,
}

/// Two connected ends; all messages have the same operation and the same length.
struct Flow<P: Port> {
    a: End<P>,
    b: End<P>,
    op: SendOp,
    len_bytes: u32,
    now: Instant,
}

/// Number of allocations by each end during posts and polls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Allocations {
    requester: u64,
    responder: u64,
}

fn count(work: impl FnOnce()) -> u64 {
    allocation_counter::measure(work).count_total
}

impl<P: Port> Flow<P> {
    fn new((port_a, port_b): (P, P), kind: Kind, len_bytes: u32) -> Self {
        let (a, mut b) = pair_over(port_a, port_b, MEMORY_BYTES, true, &conn(PathMtu::Mtu4096));
        let (remote_addr, rkey) = (b.memory.addr(), b.rkey);
        let op = match kind {
            Kind::Send => SendOp::Send,
            Kind::Write => SendOp::Write { remote_addr, rkey },
            Kind::Read => SendOp::Read { remote_addr, rkey },
        };
        if op == SendOp::Send {
            (0..2 * WINDOW).for_each(|wr_id| b.post_recv(wr_id, b.sge(0, len_bytes)));
        }
        Flow { a, b, op, len_bytes, now: start::instant() }
    }

    /// Reconnects both ends with the congestion control `congestion`. Every packet of the new connection has a CE mark.
    fn reconnect(&mut self, congestion: &str) {
        let congestion = congestion.parse().unwrap();
        let [(qpn_a, gid_a), (qpn_b, gid_b)] = [&self.a, &self.b].map(|end| (end.qpn, end.gid));
        for (end, qpn, gid) in [(&mut self.a, qpn_b, gid_b), (&mut self.b, qpn_a, gid_a)] {
            let reset = QpAttr { state: Some(QpState::Reset), ..QpAttr::default() };
            end.engine.modify_qp(end.qpn, &reset).unwrap();
            let path = AddressVector { traffic_class: 3, ..AddressVector::new(gid, 1) };
            let conn = ConnAttr { congestion: Some(congestion), ..conn(PathMtu::Mtu4096) };
            connect(end, qpn, path, &conn);
        }
    }

    fn run(&mut self, messages: u64) -> Allocations {
        let mut allocations = Allocations::default();
        let (mut posted, mut done) = (0, 0);
        while done < messages {
            let (mut idle_a, mut idle_b) = (false, false);
            let now = self.now;
            allocations.requester += count(|| {
                while posted < messages && posted - done < WINDOW {
                    self.a.post(posted, self.op, self.a.sge(0, self.len_bytes));
                    posted += 1;
                }
                idle_a = self.a.engine.poll(now).is_idle();
            });
            allocations.responder += count(|| {
                idle_b = self.b.engine.poll(now).is_idle();
                while let Some(cqe) = self.b.poller.pop() {
                    self.b.post_recv(cqe.wr_id, self.b.sge(0, self.len_bytes));
                }
            });
            while let Some(cqe) = self.a.poller.pop() {
                assert_eq!(cqe.status, WcStatus::Success);
                done += 1;
            }
            let deadlines = [&self.a, &self.b].map(|end| end.engine.next_deadline());
            let deadline = deadlines.into_iter().flatten().min().filter(|_| idle_a && idle_b);
            self.now = deadline.unwrap_or(now.plus_nanos(1000));
        }
        allocations
    }
}

/// Sends messages of each operation and size over the ports that `ports` returns. Asserts that the messages after the
/// warm-up allocate no memory, and returns the number of packets that the requester retransmitted for these messages.
fn assert_no_allocations<P: Port>(mut ports: impl FnMut() -> (P, P)) -> u64 {
    let mut retransmitted_pkts = 0;
    for kind in [Kind::Send, Kind::Write, Kind::Read] {
        for len_bytes in [64, 64 << 10] {
            let mut flow = Flow::new(ports(), kind, len_bytes);
            flow.run(WARM_MESSAGES);
            let warm = flow.a.engine.counters().retransmitted_pkts;
            let allocations = flow.run(MESSAGES);
            assert_eq!(allocations, Allocations::default(), "{kind:?}: {MESSAGES} messages of {len_bytes} B");
            retransmitted_pkts += flow.a.engine.counters().retransmitted_pkts - warm;
        }
    }
    retransmitted_pkts
}

#[test]
fn the_counter_counts() {
    assert_eq!(count(|| drop(std::hint::black_box(vec![1]))), 1);
}

#[test]
fn nothing_is_allocated_while_nothing_is_lost() {
    assert_eq!(assert_no_allocations(ports), 0);
}

#[test]
fn nothing_is_allocated_while_losses_are_made_good() {
    let retransmitted_pkts = assert_no_allocations(|| {
        let probability = "0.02".parse().unwrap();
        let direction = FaultDirection::Rx;
        // Only received frames are impaired. If the port delayed a sent frame, the next frame to send could need a new
        // buffer, which the test would count.
        let config = FaultConfig {
            drop_probability: probability,
            reorder_probability: probability,
            direction,
            ..FaultConfig::default()
        };
        let (a, b) = ports();
        (Fault::new(a, FaultConfig { seed: 1, ..config }), Fault::new(b, FaultConfig { seed: 2, ..config }))
    });
    assert!(retransmitted_pkts > 100, "only {retransmitted_pkts} packets were lost");
}

#[test]
fn nothing_is_allocated_while_congestion_is_controlled() {
    for congestion in ["dcqcn:rpg_min_rate=1000", "swift:base_target_nanos=2000", "timely:t_high_nanos=60000"]
    {
        for kind in [Kind::Write, Kind::Read] {
            let mut flow = Flow::new(ports(), kind, 64 << 10);
            flow.reconnect(congestion);
            flow.run(WARM_MESSAGES);
            // Long enough for 100 CNPs, of which a queue pair sends one in 4 us at most.
            let allocations = flow.run(4 * MESSAGES);
            assert_eq!(allocations, Allocations::default(), "{congestion}, {kind:?}");
            let [a, b] = [&flow.a, &flow.b].map(|end| end.engine.counters());
            assert!(a.np_cnp_sent + b.np_cnp_sent > 100, "{congestion}, {kind:?}: marks are answered");
            let handled = a.rp_cnp_handled + b.rp_cnp_handled;
            assert_eq!(handled > 100, congestion.starts_with("dcqcn"), "{congestion}: {handled}");
        }
    }
}

#[test]
fn nothing_is_allocated_while_events_are_waited_for() {
    let plan = |space| {
        let (qp, psn) = (EventQp::Number(1), EventPsn::Relative(1 << 23));
        let impairment = Impairment::Drop;
        let event = PacketEvent { qp, space, psn, opcode: None, pass: 1, impairment };
        EventPlan::new(vec![event]).unwrap()
    };
    let retransmitted_pkts = assert_no_allocations(|| {
        let (a, b) = ports();
        (Events::new(a, plan(PsnSpace::Request)), Events::new(b, plan(PsnSpace::Response)))
    });
    assert_eq!(retransmitted_pkts, 0);
}
