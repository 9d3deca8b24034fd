//! Flows: messages between hosts, each a WRITE on a connection of its own, timed from its post to its completion
//! at the sender.

use std::collections::HashMap;

use netsim::workload::{Flow, Incast, Poisson};
use netsim::{LinkConfig, LinkCounters, LinkId};
use roce::counters::QpCounters;
use roce::engine::QpHandles;
use roce::id::Qpn;
use roce::qp::{QpInit, ServiceType};
use roce::queue::{SendData, SendFlags, SendOp, SendPoster, SendRequest, Sge, WcStatus};

use super::fabric::{BASE, HostObjects, Hosts, build, first_psns};
use super::plan::Point;
use super::results::{self, FlowResult, PointResult, Sample};
use super::spec::{Setup, Workload};
use crate::world::EndAttr;

/// Bytes of every host's phantom memory; no flow is longer.
const MEMORY_BYTES: usize = 1 << 31;
/// A long run has from `SAMPLES` to `2 * SAMPLES` samples of queues and rates.
const SAMPLES: usize = 250;
/// Initial interval between samples.
const FIRST_INTERVAL_NANOS: u64 = 1_000;

/// Header bytes of a WRITE packet and of an ACK on IPv4, without FCS: Ethernet 14, IP 20, UDP 8, BTH 12, ICRC 4;
/// RETH 16 on the first packet of a message, AETH 4 on an ACK.
pub(super) const HEADERS_BYTES: usize = 58;
const RETH_BYTES: usize = 16;
const ACK_BYTES: usize = HEADERS_BYTES + 4;

/// A flow that has started and not completed.
struct InTransit {
    flow: Flow,
    /// The queue pairs of sender and receiver.
    qpns: [Qpn; 2],
    _send: SendPoster,
}

pub(super) fn run(point: &Point) -> Result<PointResult, String> {
    let setup = &point.setup;
    let hosts = build(setup, point.seed)?;
    let count = hosts.ids.len();
    let (flows, limit_ms): (Vec<Flow>, u64) = match &setup.workload {
        Workload::Flows { sizes, load, flows, limit_ms } => {
            let rate = setup.link.config().rate_bits_per_sec;
            (Poisson::new(sizes.0.clone(), count, rate, *load, point.seed).take(*flows).collect(), *limit_ms)
        }
        Workload::Incast { senders, total_kbytes, limit_ms } => {
            let bytes_each = (total_kbytes * 1e3 / *senders as f64) as u32; // at most 1e9, and checked
            let incast = Incast { start_nanos: 0, senders: *senders, bytes_each };
            (incast.flows(count, point.seed), *limit_ms)
        }
        _ => return Err("flows were expected".to_owned()),
    };
    let mut run = Run::new(hosts, flows, setup);
    let mut result = PointResult::of(point);
    result.ended_early = run.run_until_done(limit_ms)?;
    let flows = run.all_flows();
    run.figures(&flows, &mut result);
    result.flows = flows;
    result.samples = run.sampler.samples;
    Ok(result)
}

/// The state of a run. A connection is created at the start of each flow, and destroyed at its completion.
struct Run<'a> {
    setup: &'a Setup,
    hosts: Hosts,
    objects: Vec<HostObjects>,
    /// All flows of the run, sorted by start time.
    flows: Vec<Flow>,
    started: usize,
    /// Flows that have started and not completed, by index in `flows`.
    in_transit: HashMap<u64, InTransit>,
    finished: Vec<FlowResult>,
    /// Flows that completed with an error.
    failed: Vec<Flow>,
    start_nanos: u64,
    sampler: Sampler,
}

impl<'a> Run<'a> {
    fn new(mut hosts: Hosts, flows: Vec<Flow>, setup: &'a Setup) -> Self {
        let objects = hosts.create_objects(MEMORY_BYTES);
        let sampler = Sampler::new(&hosts);
        let start_nanos = hosts.world.now_nanos();
        Run {
            setup,
            hosts,
            objects,
            flows,
            started: 0,
            in_transit: HashMap::new(),
            finished: Vec::new(),
            failed: Vec::new(),
            start_nanos,
            sampler,
        }
    }

    /// Runs until all flows have completed or failed, or the limit is reached. Returns a message if any flow did not
    /// complete with success.
    fn run_until_done(&mut self, limit_ms: u64) -> Result<Option<String>, String> {
        let limit_nanos = self.start_nanos + limit_ms * 1_000_000;
        let mut polled = Vec::new();
        while self.finished.len() + self.failed.len() < self.flows.len() {
            let now_nanos = self.hosts.world.now_nanos();
            if now_nanos >= limit_nanos {
                break;
            }
            while self
                .flows
                .get(self.started)
                .is_some_and(|flow| self.start_nanos + flow.start_nanos <= now_nanos)
            {
                self.start()?;
            }
            self.sampler.look(&self.hosts, now_nanos - self.start_nanos);
            let arrival = self.flows.get(self.started).map(|flow| self.start_nanos + flow.start_nanos);
            let sample = self.start_nanos + self.sampler.next_nanos;
            let wake = arrival.into_iter().chain([sample, limit_nanos]).min();
            self.hosts.world.step(wake);
            polled.clear();
            polled.extend_from_slice(self.hosts.world.polled());
            polled.iter().for_each(|host| self.collect(*host));
        }
        let left = self.flows.len() - self.finished.len();
        if left == 0 {
            return Ok(None);
        }
        let (failed, of) = (self.failed.len(), self.flows.len());
        Ok(Some(format!("{left} of {of} flows unfinished after {limit_ms} ms, {failed} of them failed")))
    }

    fn start(&mut self) -> Result<(), String> {
        let number = self.started as u64;
        let flow = self.flows[self.started];
        self.started += 1;
        let sender = self.create_qp(flow.from)?;
        let receiver = self.create_qp(flow.to)?;
        let mut send = sender.send;
        let qpns = [sender.qpn, receiver.qpn];
        let transport = &self.setup.transport;
        let end = |end: usize, host: usize| EndAttr {
            host,
            qpn: qpns[end],
            first_psn: first_psns()[end],
            conn: transport.conn(end, 1),
        };
        self.hosts.world.connect(false, [end(0, flow.from), end(1, flow.to)]);
        let sges = [Sge { addr: BASE, len_bytes: flow.bytes, lkey: self.objects[flow.from].lkey }];
        let op = SendOp::Write { remote_addr: BASE, rkey: self.objects[flow.to].rkey };
        let flags = SendFlags { signaled: true, ..SendFlags::default() };
        let request = SendRequest { wr_id: number, op, flags, data: SendData::Sges(&sges) };
        send.post(&request).expect("the queue is empty");
        self.hosts.world.hosts[flow.from].kick();
        self.in_transit.insert(number, InTransit { flow, qpns, _send: send });
        Ok(())
    }

    fn create_qp(&mut self, host: usize) -> Result<QpHandles, String> {
        let objects = &self.objects[host];
        let host = &mut self.hosts.world.hosts[host];
        let init = QpInit {
            service: ServiceType::Rc,
            srq: None,
            pd: host.pd,
            send_cq: objects.send_cq,
            recv_cq: objects.recv_cq,
            max_send_wr: 1,
            max_recv_wr: 1,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_bytes: 0,
            signal_all: false,
        };
        host.engine.create_qp(&init).map_err(|error| format!("too many flows under way at one host: {error}"))
    }

    fn collect(&mut self, host: usize) {
        while let Some(cqe) = self.objects[host].completions.pop() {
            let Some(InTransit { flow, qpns, .. }) = self.in_transit.remove(&cqe.wr_id) else { continue };
            for (host, qpn) in [(flow.from, qpns[0]), (flow.to, qpns[1])] {
                let host = &mut self.hosts.world.hosts[host];
                host.engine.destroy_qp(qpn).expect("it was there");
                host.kick();
            }
            if cqe.status != WcStatus::Success {
                self.failed.push(flow);
                continue;
            }
            let now_nanos = self.hosts.world.now_nanos() - self.start_nanos;
            let result = self.result(flow, now_nanos, true);
            self.finished.push(result);
        }
    }

    fn result(&mut self, flow: Flow, end_nanos: u64, completed: bool) -> FlowResult {
        let path = self.hosts.path(flow.from, flow.to);
        FlowResult {
            from: flow.from,
            to: flow.to,
            bytes: flow.bytes,
            start_nanos: flow.start_nanos,
            fct_nanos: end_nanos.saturating_sub(flow.start_nanos),
            completed,
            ideal_nanos: ideal_nanos(self.setup, path, flow.bytes),
        }
    }

    /// Returns the results of all started flows. The completion time of an uncompleted flow is the time from its start
    /// until now.
    fn all_flows(&mut self) -> Vec<FlowResult> {
        let now_nanos = self.hosts.world.now_nanos() - self.start_nanos;
        let mut flows = std::mem::take(&mut self.finished);
        let unfinished: Vec<Flow> = self.in_transit.values().map(|in_transit| in_transit.flow).collect();
        for flow in self.failed.clone().into_iter().chain(unfinished) {
            flows.push(self.result(flow, now_nanos, false));
        }
        flows.sort_by_key(|flow| (flow.start_nanos, flow.from, flow.to));
        flows
    }

    fn figures(&self, flows: &[FlowResult], result: &mut PointResult) {
        let done = || flows.iter().filter(|flow| flow.completed);
        result.set(results::FLOWS, done().count() as f64);
        if let Some(last_nanos) = done().map(|flow| flow.start_nanos + flow.fct_nanos).max() {
            let mean = |of: fn(&FlowResult) -> f64| flows.iter().map(of).sum::<f64>() / flows.len() as f64;
            result.set(results::SLOWDOWN, mean(FlowResult::slowdown));
            result.set(results::FCT, mean(FlowResult::fct_us));
            result.set(results::SLOWDOWN_99, percentile(flows.iter().map(FlowResult::slowdown), 0.99));
            result.set(results::FCT_99, percentile(flows.iter().map(FlowResult::fct_us), 0.99));
            result.set(results::LAST, last_nanos as f64 / 1e3);
            let bits: u64 = done().map(|flow| u64::from(flow.bytes) * 8).sum();
            result.set(results::GOODPUT_ALL, bits as f64 / last_nanos as f64);
        }
        network_figures(&self.hosts, result);
    }
}

/// Sets the figures of the engines' counters and of the network's counters.
pub(super) fn network_figures(hosts: &Hosts, result: &mut PointResult) {
    let mut all = QpCounters::default();
    hosts.world.hosts.iter().for_each(|host| all.add(&host.engine.counters()));
    let network = hosts.world.network.borrow();
    let links: Vec<_> = (0..network.links()).map(|link| network.counters(LinkId(link))).collect();
    let sum = |of: fn(&LinkCounters) -> u64| links.iter().map(of).sum::<u64>();
    let lost = sum(|link| link.overrun + link.dropped + link.corrupted);
    for (figure, count) in [
        (results::SENT, all.sent_pkts),
        (results::LOST, lost),
        (results::RETRANSMITTED, all.retransmitted_pkts),
        (results::NEEDLESS, all.retransmitted_pkts.saturating_sub(lost)),
        (results::NAKS, all.packet_seq_err + all.implied_nak_seq_err + all.sacks_received),
        (results::TIMEOUTS, all.local_ack_timeout_err + all.roce_adp_retrans_to),
        (results::PROBES, all.tail_probes),
        (results::MARKED, sum(|link| link.marked)),
        (results::PAUSES, sum(|link| link.pauses)),
        (results::HOPS, network.hops()),
    ] {
        result.set(figure, count as f64);
    }
    let peak = links.iter().map(|link| link.queue_bytes_peak).max().unwrap_or(0);
    result.set(results::QUEUE_PEAK, peak as f64 / 1e3);
    result.set(results::PAUSED, sum(|link| link.paused_nanos) as f64 / 1e3);
}

/// The completion time of a flow alone in the network, with packets sent back to back and an immediate last ACK.
///
/// ```text
///   host 0 --| 1 | 2 | .. | n |--> switch        packet n waits for all others on the first
///   switch     --| 1 | 2 | .. | n |--> host 1    link, and for packet n-1 on each later link
/// ```
fn ideal_nanos(setup: &Setup, path_links: usize, bytes: u32) -> u64 {
    let link: LinkConfig = setup.link.config();
    let mtu_bytes = setup.transport.path_mtu.bytes();
    let packets = bytes.div_ceil(mtu_bytes).max(1);
    let last_bytes = (bytes - (packets - 1) * mtu_bytes) as usize;
    let links = path_links as u64;
    let frame_nanos = |payload: usize| link.wire_nanos(HEADERS_BYTES + payload);
    let data_nanos = if packets == 1 {
        links * frame_nanos(RETH_BYTES + last_bytes)
    } else {
        let full_nanos = frame_nanos(mtu_bytes as usize);
        let first_nanos = frame_nanos(RETH_BYTES + mtu_bytes as usize);
        first_nanos + u64::from(packets - 2) * full_nanos + (links - 1) * full_nanos + frame_nanos(last_bytes)
    };
    data_nanos + links * (link.wire_nanos(ACK_BYTES) + 2 * link.propagation_nanos)
}

/// Returns the percentile by nearest rank: the value that the share `share` (0 to 1) does not exceed; 0 without values.
pub(super) fn percentile(values: impl Iterator<Item = f64>, share: f64) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    let place = ((values.len() as f64 * share).ceil() as usize).clamp(1, values.len().max(1));
    values.get(place - 1).copied().unwrap_or(0.0)
}

/// Samples queues and rates at intervals. At `2 * SAMPLES` samples, every other sample is discarded and the interval
/// doubled, because the duration of a run is not known beforehand.
pub(super) struct Sampler {
    next_nanos: u64,
    interval_nanos: u64,
    pub(super) samples: Vec<Sample>,
    /// Links from switches; the queues of these links are sampled.
    queues: Vec<LinkId>,
}

impl Sampler {
    pub(super) fn new(hosts: &Hosts) -> Self {
        let links = (0..hosts.world.network.borrow().links()).map(LinkId);
        let queues = links.filter(|link| !hosts.uplinks.contains(link)).collect();
        Sampler { next_nanos: 0, interval_nanos: FIRST_INTERVAL_NANOS, samples: Vec::new(), queues }
    }

    pub(super) fn look(&mut self, hosts: &Hosts, now_nanos: u64) {
        if now_nanos < self.next_nanos {
            return;
        }
        let network = hosts.world.network.borrow();
        let queue_bytes = self.queues.iter().map(|link| network.queued_bytes(*link)).max().unwrap_or(0);
        let received_bytes = hosts.downlinks.iter().map(|link| network.counters(*link).left_bytes).sum();
        self.samples.push(Sample { nanos: now_nanos, queue_bytes: queue_bytes as u64, received_bytes });
        if self.samples.len() >= 2 * SAMPLES {
            let mut number = 0;
            self.samples.retain(|_| {
                number += 1;
                number % 2 == 1
            });
            self.interval_nanos *= 2;
        }
        self.next_nanos = now_nanos + self.interval_nanos;
    }
}
