//! Plays one scenario from beginning to end.

use lab::world::{EndAttr, QpSizes, Step, World, WorldConfig};
use netsim::{LinkCounters, LinkId};
use roce::congestion::CongestionScheme;
use roce::counters::{DropCounters, QpCounters};
use roce::engine::limits::{REORDER_BYTES, REORDER_NANOS_MAX};
use roce::mem::{Access, Memory};
use roce::qp::{ConnAttr, PathMtu};
use roce::queue::CqPoller;
use roce::recovery::RecoveryScheme;
use roce::start;
use tests::record::{self, Trace};

use super::plan::{INLINE_BYTES_MAX, Images, Plan, SGES_MAX};
use super::run::{Apps, Handles, Mirror, Mirrors, Verdict, ensure};
use super::scenario::{ConnPlan, Scenario};

/// What all runs together did.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Tally {
    pub(crate) runs: u64,
    /// Runs in which the tape changed nothing.
    pub(crate) clean_runs: u64,
    /// Runs in which a packet was lost as often as it was sent.
    pub(crate) exhausted_runs: u64,
    /// Completions.
    pub(crate) completed: u64,
    pub(crate) frames: u64,
    pub(crate) frames_dropped: u64,
    pub(crate) frames_corrupted: u64,
    pub(crate) polls: u64,
    pub(crate) virtual_nanos: u64,
    pub(crate) counters: QpCounters,
    pub(crate) drops: DropCounters,
}

impl Tally {
    pub(crate) fn add(&mut self, other: &Tally) {
        self.runs += other.runs;
        self.clean_runs += other.clean_runs;
        self.exhausted_runs += other.exhausted_runs;
        self.completed += other.completed;
        self.frames += other.frames;
        self.frames_dropped += other.frames_dropped;
        self.frames_corrupted += other.frames_corrupted;
        self.polls += other.polls;
        self.virtual_nanos += other.virtual_nanos;
        self.counters.add(&other.counters);
        self.drops.add(&other.drops);
    }

    /// Checks that the runs met what they are meant to meet, many times over.
    pub(crate) fn check_variety(&self) {
        assert!(
            self.exhausted_runs * 1_000 <= self.runs,
            "{} of {} runs lost too much",
            self.exhausted_runs,
            self.runs
        );
        let counters = &self.counters;
        let met = [
            ("clean runs", self.clean_runs),
            ("frames dropped", self.frames_dropped),
            ("frames corrupted", self.frames_corrupted),
            ("duplicate requests", counters.duplicate_request),
            ("requests out of sequence", counters.out_of_seq_request),
            ("sequence error NAKs", counters.packet_seq_err),
            ("responses found missing", counters.implied_nak_seq_err),
            ("timeouts", counters.local_ack_timeout_err),
            ("RNR NAKs", counters.rcvd_rnr_err),
            ("stale responses", counters.stale_responses),
            ("retransmissions", counters.retransmitted_pkts),
            ("wrong ICRCs", self.drops.rx_icrc_errors),
        ];
        for (what, count) in met {
            assert!(count * 50 >= self.runs, "{} runs met only {count} {what}", self.runs);
        }
    }
}

/// Where either memory of a host begins: ranges cross a multiple of 2^32.
const LOCAL_BASE: u64 = 0x1_0000_0000 - 3_000;
const REMOTE_BASE: u64 = 0x7_0000_0000 - 2_001;

/// A run takes no more time than this, and a little for each fault.
const LIMIT_NANOS: u64 = 50_000_000;
const RETRY_COUNT: u8 = 7;
const LIMIT_STEPS: u64 = 2_000_000;

struct Run {
    world: World,
    apps: Apps,
    /// The completion queues of each end: receives, then sends.
    cqs: Vec<(usize, CqPoller, CqPoller)>,
    wake_nanos: Option<u64>,
    /// When the run began, after its hosts had met.
    start: Start,
}

/// Counts at the beginning of a run.
#[derive(Default)]
struct Start {
    nanos: u64,
    polls: u64,
    links: Vec<LinkCounters>,
    drops: Vec<DropCounters>,
}

/// Plays `scenario`; `trace` sees its frames.
pub(crate) fn play(scenario: &Scenario, trace: Option<&Trace>) -> Verdict<Tally> {
    let mut run = Run::new(scenario);
    run.world.settle();
    run.world.network.borrow_mut().set_tape(&scenario.tape());
    if let Some(trace) = trace {
        record::record(&mut run.world.network.borrow_mut(), trace);
    }
    run.start = run.counts(scenario);
    run.play_out(scenario)?;
    if run.apps.is_exhausted {
        return run.exhausted();
    }
    run.apps.compare_all()?;
    run.tally(scenario)
}

fn mirror(world: &mut World, host: usize, image: &[u8], base: u64, access: Access) -> Mirror {
    let memory = Memory::alloc(image.len());
    memory.write(0, image).expect("it has the image's length");
    let (lkey, rkey) = world.hosts[host].register(&memory, base, access);
    Mirror { memory, copy: image.to_vec(), base, lkey, rkey }
}

impl Run {
    fn new(scenario: &Scenario) -> Run {
        let plan = Plan::new(scenario);
        let mut world = World::new(&WorldConfig {
            hosts: scenario.hosts,
            link: scenario.link_config(),
            mtu_bytes: scenario.mtu_bytes as usize + roce::qp::HEADER_ROOM_BYTES,
            poll_gap_nanos: scenario.poll_gap_nanos,
            congestion: scenario.congestion,
            seed: scenario.seed,
            reorder_bytes: REORDER_BYTES,
        });
        let mirrors = plan.images.iter().enumerate().map(|(host, Images { local, remote })| Mirrors {
            local: mirror(&mut world, host, local, LOCAL_BASE, Access::LOCAL_WRITE),
            remote: mirror(&mut world, host, remote, REMOTE_BASE, Access::ALL),
        });
        let mirrors = mirrors.collect();
        let (mut handles, mut cqs) = (Vec::new(), Vec::new());
        for end in &plan.ends {
            let sizes = QpSizes {
                sends: end.plan.sq_depth,
                recvs: end.plan.rq_depth,
                cqes: [end.plan.sq_depth, end.plan.rq_depth],
                sges: SGES_MAX as u32,
                inline_bytes: INLINE_BYTES_MAX as u32,
            };
            let qp = world.hosts[end.host].create_qp(&sizes);
            handles.push(Handles { qpn: qp.qpn, send: qp.send, recv: qp.recv });
            cqs.push((end.host, qp.recv_cq, qp.send_cq));
        }
        connect(&mut world, scenario, &plan, &handles);
        let apps = Apps::new(plan, handles, mirrors, scenario.seed);
        Run { world, apps, cqs, wake_nanos: None, start: Start::default() }
    }

    fn play_out(&mut self, scenario: &Scenario) -> Verdict {
        let faults = scenario.tape().0.len() as u64;
        let patience_nanos = 8 * (4_096u64 << scenario.timeout);
        let limit_nanos =
            self.world.now_nanos() + LIMIT_NANOS + scenario.pauses_nanos() + faults * patience_nanos;
        self.apps_turn()?;
        let mut steps = 0;
        while !self.apps.is_done() && !self.apps.is_exhausted {
            let now_nanos = self.world.now_nanos();
            ensure!(now_nanos < limit_nanos, "not done after {now_nanos} ns:\n{}", self.apps.missing());
            steps += 1;
            ensure!(steps < LIMIT_STEPS, "not done after {steps} steps:\n{}", self.apps.missing());
            let step = self.world.step(self.wake_nanos);
            ensure!(step != Step::Idle, "stalled at {now_nanos} ns:\n{}", self.apps.missing());
            self.apps_turn()?;
        }
        // Packets still in flight arrive now, and must change nothing. The responder keeps requests above a gap that a
        // requester without retries will not close.
        let kept_nanos = if self.apps.is_exhausted { REORDER_NANOS_MAX } else { 0 };
        let idle_by_nanos = self.world.now_nanos() + LIMIT_NANOS + patience_nanos + kept_nanos;
        while self.world.step(None) != Step::Idle {
            ensure!(self.world.now_nanos() < idle_by_nanos, "all is done, but the engines do not rest");
            self.apps_turn()?;
        }
        Ok(())
    }

    /// The applications poll all completion queues, receives first, and post what they can.
    fn apps_turn(&mut self) -> Verdict {
        let now_nanos = self.world.now_nanos();
        for (host, recv_cq, _) in &mut self.cqs {
            while let Some(cqe) = recv_cq.pop() {
                self.apps.on_cqe(*host, &cqe, now_nanos)?;
            }
        }
        for (host, _, send_cq) in &mut self.cqs {
            while let Some(cqe) = send_cq.pop() {
                self.apps.on_cqe(*host, &cqe, now_nanos)?;
            }
        }
        let hosts = &mut self.world.hosts;
        self.wake_nanos = self.apps.post(now_nanos, |host| hosts[host].kick())?;
        Ok(())
    }

    /// A few tapes kill the first try and all retries of a packet, which must then fail; no fewer
    /// faults may do that.
    fn exhausted(&self) -> Verdict<Tally> {
        let network = self.world.network.borrow();
        let lost = |counters: LinkCounters| {
            counters.dropped + counters.corrupted + counters.displaced + counters.overrun
        };
        let lost: u64 = (0..self.start.links.len()).map(|link| lost(network.counters(LinkId(link)))).sum();
        ensure!(lost > u64::from(RETRY_COUNT), "out of retries, but only {lost} frames were lost or late");
        Ok(Tally { runs: 1, exhausted_runs: 1, ..Tally::default() })
    }

    fn counts(&self, scenario: &Scenario) -> Start {
        let network = self.world.network.borrow();
        Start {
            nanos: self.world.now_nanos(),
            polls: self.world.polls,
            links: (0..scenario.links()).map(|link| network.counters(LinkId(link))).collect(),
            drops: self.world.hosts.iter().map(|host| host.engine.drop_counters()).collect(),
        }
    }

    /// Checks that the counters of network and engines add up, and sums them.
    fn tally(&self, scenario: &Scenario) -> Verdict<Tally> {
        let (start, end) = (&self.start, self.counts(scenario));
        let mut tally = Tally {
            runs: 1,
            completed: self.apps.completed,
            polls: end.polls - start.polls,
            virtual_nanos: end.nanos - start.nanos,
            ..Tally::default()
        };
        let mut tampered = 0;
        for (before, after) in start.links.iter().zip(&end.links) {
            tally.frames += after.left - before.left;
            tally.frames_dropped += after.dropped;
            tally.frames_corrupted += after.corrupted;
            tampered += after.dropped + after.duplicated + after.corrupted + after.displaced + after.overrun;
            ensure!(after.offered == after.overrun + after.left, "frames stay in a queue: {after:?}");
            let arrived = after.left - after.dropped + after.duplicated;
            ensure!(after.delivered == arrived, "frames stay on a wire: {after:?}");
        }
        for (number, host) in self.world.hosts.iter().enumerate() {
            let counters = host.engine.counters();
            let out = scenario.link_from(number).0;
            let sent = end.links[out].offered - start.links[out].offered;
            ensure!(end.links[out].overrun == 0, "host {number} sent to a full port");
            ensure!(counters.sent_pkts == sent, "host {number} sent {sent} frames: {counters:?}");
            let into = scenario.link_to(number).0;
            let arrived = end.links[into].delivered - start.links[into].delivered;
            let (before, after) = (start.drops[number], host.engine.drop_counters());
            let dropped = after.total() + after.not_roce - before.total() - before.not_roce;
            ensure!(
                counters.rcvd_pkts + dropped == arrived,
                "{arrived} frames came to host {number}, {dropped} were dropped: {counters:?} {after:?}"
            );
            tally.counters.add(&counters);
            tally.drops.add(&after);
        }
        self.check_counters(scenario, &tally, tampered)?;
        tally.clean_runs = u64::from(tampered == 0);
        Ok(tally)
    }

    /// Each message was executed once, and nothing was repeated without a reason.
    fn check_counters(&self, scenario: &Scenario, tally: &Tally, tampered: u64) -> Verdict {
        let read_requests = |end: usize, len: usize| {
            let conn = &scenario.conns[end / 2];
            let max_rd_atomic = conn.ends[end % 2].max_rd_atomic;
            let window_pkts = scenario.congestion.read_window_pkts(max_rd_atomic);
            let pkts_max = conn.recovery[end % 2].read_pkts_max(window_pkts, max_rd_atomic);
            (len as u64).div_ceil(u64::from(scenario.mtu_bytes)).max(1).div_ceil(u64::from(pkts_max))
        };
        let (counters, expected) = (&tally.counters, self.apps.expected_counters(read_requests));
        let executed = [
            ("SENDs and WRITEs completed", counters.rdma_sends, expected.rdma_sends),
            ("receives completed", counters.rdma_recvs, expected.rdma_recvs),
            ("WRITEs executed", counters.rx_write_requests, expected.rx_write_requests),
            ("bytes received", counters.rcvd_bytes, expected.rcvd_bytes),
        ];
        for (what, is, must_be) in executed {
            ensure!(is == must_be, "{is} {what}, not {must_be}: {counters:?}");
        }
        // A probe of improved go-back-N requests the first response of a READ; the rest is then a READ of its own.
        let split =
            scenario.conns.iter().any(|conn| conn.recovery.contains(&RecoveryScheme::ImprovedGoBackN));
        let probes = counters.tail_probes + counters.roce_adp_retrans_to;
        let (least, most) =
            (expected.rx_read_requests, expected.rx_read_requests + if split { probes } else { 0 });
        let reads = counters.rx_read_requests;
        ensure!(
            (least..=most).contains(&reads),
            "{reads} READs executed, not {least} to {most}: {counters:?}"
        );
        if tally.frames_corrupted == 0 {
            ensure!(tally.drops.total() == 0, "frames were dropped though all were good: {:?}", tally.drops);
        }
        if tampered > 0 {
            return Ok(());
        }
        // Queues that drain for longer than the timeout look like losses, and rightly so, as do packets that
        // wait for a pacer.
        let timeout_nanos = 4_096u64 << scenario.timeout;
        let is_paced =
            !matches!(scenario.congestion, CongestionScheme::None | CongestionScheme::Window { .. });
        if 4 * scenario.wire_nanos() < timeout_nanos && !is_paced {
            ensure!(counters.local_ack_timeout_err == 0, "a timeout without a loss: {counters:?}");
        }
        // A probe that asks too early is no loss either.
        if counters.tail_probes + counters.roce_adp_retrans_to > 0 {
            return Ok(());
        }
        let for_rnr = counters.retransmitted_pkts + counters.out_of_seq_request;
        ensure!(counters.rcvd_rnr_err > 0 || for_rnr == 0, "repeated without a loss: {counters:?}");
        // What was kept behind a refused request comes again, if the peer goes back.
        let keeps = |conn: &ConnPlan| conn.recovery.contains(&RecoveryScheme::ImprovedGoBackN);
        if counters.rcvd_rnr_err > 0 && scenario.conns.iter().any(keeps) {
            return Ok(());
        }
        let repeated = counters.duplicate_request + counters.packet_seq_err + counters.implied_nak_seq_err;
        let unasked = counters.stale_responses + counters.read_deferred;
        let is_quiet = repeated + unasked == 0 || counters.local_ack_timeout_err > 0;
        ensure!(is_quiet, "repeated without a loss: {counters:?}");
        Ok(())
    }
}

fn connect(world: &mut World, scenario: &Scenario, plan: &Plan, handles: &[Handles]) {
    let attr = |number: usize| {
        let (end, peer) = (&plan.ends[number], &plan.ends[number ^ 1]);
        EndAttr {
            host: end.host,
            qpn: handles[number].qpn,
            first_psn: start::psn(end.plan.first_psn),
            conn: ConnAttr {
                path_mtu: PathMtu::from_bytes(scenario.mtu_bytes).expect("a path MTU was drawn"),
                access: Access::ALL,
                max_rd_atomic: end.plan.max_rd_atomic,
                max_dest_rd_atomic: peer.plan.max_rd_atomic + end.plan.dest_rd_atomic_extra,
                timeout: scenario.timeout,
                retry_count: RETRY_COUNT,
                rnr_retry: 7,
                min_rnr_timer: scenario.min_rnr_timer,
                recovery: scenario.conns[number / 2].recovery[number % 2],
                placement: scenario.conns[number / 2].placement[number % 2],
                initial_rtt_nanos: 0,
                ..ConnAttr::default()
            },
        }
    };
    for number in (0..plan.ends.len()).step_by(2) {
        world.connect(scenario.ipv6, [attr(number), attr(number + 1)]);
    }
}
