//! Long flows: standing connections through one bottleneck, whose send queues are kept full.
//!
//! ```text
//!   hosts 1, 2, .. n --> switches --> host 0      payload; its last link is the bottleneck
//!
//!   |- warm-up: flows start -|------ measurement ------|
//!                             goodput of each flow, queue and pacer every SAMPLE_NANOS
//! ```

use netsim::LinkId;
use netsim::rng::SplitMix;
use roce::id::Qpn;
use roce::queue::{SendData, SendFlags, SendOp, SendPoster, SendRequest, Sge, WcStatus};

use super::fabric::{BASE, HostObjects, Hosts, build, first_psns};
use super::flows::{HEADERS_BYTES, Sampler, network_figures, percentile};
use super::plan::Point;
use super::results::{self, PointResult, RateResult};
use super::spec::{MESSAGE_BYTES_MAX, Op, Setup, Workload};
use crate::world::{EndAttr, QpSizes, Step};

/// Interval between samples of queue, rates and windows.
const SAMPLE_NANOS: u64 = 1_000;
const NANOS_PER_MS: u64 = 1_000_000;

/// A connection whose send queue is kept full.
struct Flow {
    /// Hosts of requester and responder.
    ends: [usize; 2],
    /// The end that sends the payload, and its queue pair.
    source: (usize, Qpn),
    requester_qpn: Qpn,
    send: SendPoster,
    start_nanos: u64,
    is_started: bool,
    completed_bytes: u64,
}

#[derive(Default)]
struct Samples {
    queue_bytes: Vec<f64>,
    rate_gbits: Vec<f64>,
    window_pkts: Vec<f64>,
}

struct Run<'a> {
    setup: &'a Setup,
    op: Op,
    message_bytes: u32,
    depth: u32,
    hosts: Hosts,
    objects: Vec<HostObjects>,
    flows: Vec<Flow>,
    failed: Option<WcStatus>,
    sampler: Sampler,
    samples: Samples,
}

pub(super) fn run(point: &Point) -> Result<PointResult, String> {
    let setup = &point.setup;
    let Workload::LongFlows { op, flows, message_bytes, depth, max_rd_atomic, warm_up_ms, measured_ms } =
        setup.workload
    else {
        return Err("long flows were expected".to_owned());
    };
    let mut hosts = build(setup, point.seed)?;
    let objects = hosts.create_objects(MESSAGE_BYTES_MAX as usize);
    let sampler = Sampler::new(&hosts);
    let samples = Samples::default();
    let mut run = Run {
        setup,
        op,
        message_bytes,
        depth,
        hosts,
        objects,
        flows: Vec::new(),
        failed: None,
        sampler,
        samples,
    };
    let mut rng = SplitMix::new(point.seed);
    let start_span_nanos = (warm_up_ms * NANOS_PER_MS / 4).max(1);
    for number in 0..flows {
        run.connect(number, max_rd_atomic, rng.bits() % start_span_nanos);
    }
    run.run_until(warm_up_ms * NANOS_PER_MS, false);
    let before: Vec<u64> = run.flows.iter().map(|flow| flow.completed_bytes).collect();
    run.run_until((warm_up_ms + measured_ms) * NANOS_PER_MS, true);
    Ok(run.result(point, &before, measured_ms * NANOS_PER_MS))
}

impl Run<'_> {
    /// Connects flow `number`, which starts at `start_nanos`.
    fn connect(&mut self, number: usize, max_rd_atomic: u8, start_nanos: u64) {
        let far = 1 + number % (self.hosts.ids.len() - 1);
        let is_read = self.op == Op::Read;
        let ends = if is_read { [0, far] } else { [far, 0] };
        let sizes = QpSizes { sends: self.depth, recvs: 1, cqes: [0; 2], sges: 1, inline_bytes: 0 };
        let [requester, responder] = ends.map(|host| {
            let HostObjects { send_cq, recv_cq, .. } = self.objects[host];
            self.hosts.world.hosts[host].create_qp_on(&sizes, send_cq, recv_cq)
        });
        let qpns = [requester.qpn, responder.qpn];
        let attr = |end: usize| EndAttr {
            host: ends[end],
            qpn: qpns[end],
            first_psn: first_psns()[end],
            conn: self.setup.transport.conn(end, max_rd_atomic),
        };
        self.hosts.world.connect(false, [attr(0), attr(1)]);
        self.flows.push(Flow {
            ends,
            source: (far, qpns[usize::from(is_read)]),
            requester_qpn: requester.qpn,
            send: requester.send,
            start_nanos,
            is_started: false,
            completed_bytes: 0,
        });
    }

    fn post(&mut self, number: usize) {
        let flow = &mut self.flows[number];
        let [requester, responder] = flow.ends;
        let sges = [Sge { addr: BASE, len_bytes: self.message_bytes, lkey: self.objects[requester].lkey }];
        let (remote_addr, rkey) = (BASE, self.objects[responder].rkey);
        let op = match self.op {
            Op::Read => SendOp::Read { remote_addr, rkey },
            Op::Send | Op::Write => SendOp::Write { remote_addr, rkey },
        };
        let flags = SendFlags { signaled: true, ..SendFlags::default() };
        let request = SendRequest { wr_id: number as u64, op, flags, data: SendData::Sges(&sges) };
        flow.send.post(&request).expect("a completion made room");
        self.hosts.world.hosts[requester].kick();
    }

    /// Runs until `end_nanos` or a failed work request, and samples if `is_measured`.
    fn run_until(&mut self, end_nanos: u64, is_measured: bool) {
        let mut polled = Vec::new();
        let mut sample_nanos = self.hosts.world.now_nanos();
        while self.failed.is_none() {
            let now_nanos = self.hosts.world.now_nanos();
            if now_nanos >= end_nanos {
                return;
            }
            for number in 0..self.flows.len() {
                let flow = &mut self.flows[number];
                if !flow.is_started && flow.start_nanos <= now_nanos {
                    flow.is_started = true;
                    (0..self.depth).for_each(|_| self.post(number));
                }
            }
            self.sampler.look(&self.hosts, now_nanos);
            if now_nanos >= sample_nanos {
                sample_nanos = now_nanos + SAMPLE_NANOS;
                if is_measured {
                    self.sample();
                }
            }
            if self.hosts.world.step(Some(sample_nanos.min(end_nanos))) == Step::Polled {
                polled.clear();
                polled.extend_from_slice(self.hosts.world.polled());
                polled.iter().for_each(|host| self.collect(*host));
            }
        }
    }

    /// Counts the completions of `host`, and posts a message for each.
    fn collect(&mut self, host: usize) {
        while let Some(cqe) = self.objects[host].completions.pop() {
            if cqe.status != WcStatus::Success {
                self.failed = Some(cqe.status);
                return;
            }
            let number = cqe.wr_id as usize; // a flow's index
            self.flows[number].completed_bytes += u64::from(self.message_bytes);
            self.post(number);
        }
    }

    fn sample(&mut self) {
        let bottleneck: LinkId = self.hosts.downlinks[0];
        let network = self.hosts.world.network.borrow();
        self.samples.queue_bytes.push(network.queued_bytes(bottleneck) as f64);
        let link_gbits = network.link_config(bottleneck).rate_bits_per_sec as f64 / 1e9;
        for flow in &self.flows {
            let (source, qpn) = flow.source;
            let of = |host: usize, qpn: Qpn| self.hosts.world.hosts[host].engine.qp_congestion(qpn);
            // READs of Swift and Timely are paced by the requester, those of DCQCN by the responder.
            let ends = [of(source, qpn), of(flow.ends[0], flow.requester_qpn)];
            let rates = ends.iter().flatten().filter_map(|congestion| congestion.rate_bits_per_sec());
            let rate_gbits = rates.min().map_or(link_gbits, |rate| rate as f64 / 1e9);
            self.samples.rate_gbits.push(rate_gbits);
            let window_pkts = ends.iter().flatten().map(|congestion| congestion.window_pkts()).min();
            self.samples.window_pkts.push(f64::from(window_pkts.unwrap_or(0)));
        }
    }

    fn result(mut self, point: &Point, before: &[u64], nanos: u64) -> PointResult {
        let mut result = PointResult::of(point);
        let goodput =
            |(flow, before): (&Flow, &u64)| (flow.completed_bytes - before) as f64 * 8.0 / nanos as f64;
        let goodputs: Vec<f64> = self.flows.iter().zip(before).map(goodput).collect();
        let all: f64 = goodputs.iter().sum();
        let squares: f64 = goodputs.iter().map(|goodput| goodput * goodput).sum();
        let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len().max(1) as f64;
        let queue_kbytes = |share| percentile(self.samples.queue_bytes.iter().copied(), share) / 1e3;
        for (figure, value) in [
            (results::GOODPUT_ALL, all),
            (results::LINK_SHARE, all / capacity_gbits(self.setup)),
            (results::JAIN, if squares > 0.0 { all * all / (goodputs.len() as f64 * squares) } else { 0.0 }),
            (results::GOODPUT_LEAST, goodputs.iter().copied().fold(f64::INFINITY, f64::min)),
            (results::GOODPUT_MOST, goodputs.iter().copied().fold(0.0, f64::max)),
            (results::QUEUE_50, queue_kbytes(0.5)),
            (results::QUEUE_99, queue_kbytes(0.99)),
            (results::RATE, mean(&self.samples.rate_gbits)),
            (results::WINDOW, mean(&self.samples.window_pkts)),
        ] {
            result.set(figure, value);
        }
        network_figures(&self.hosts, &mut result);
        result.rates = self
            .flows
            .iter()
            .zip(&goodputs)
            .map(|(flow, goodput)| RateResult {
                from: flow.source.0,
                to: 0,
                start_nanos: flow.start_nanos,
                goodput_gbits: *goodput,
            })
            .collect();
        result.ended_early = self.failed.map(|status| format!("a queue pair failed: {status:?}"));
        result.samples = std::mem::take(&mut self.sampler.samples);
        result
    }
}

/// Returns the largest goodput of the bottleneck in Gbit/s: the share of payload in the bytes sent, times the share of
/// packets not lost.
fn capacity_gbits(setup: &Setup) -> f64 {
    let link = setup.link.config();
    let payload_bytes = setup.transport.path_mtu.bytes() as usize;
    let wire_bytes = HEADERS_BYTES + payload_bytes + netsim::WIRE_OVERHEAD_BYTES as usize;
    let share = payload_bytes as f64 / wire_bytes as f64;
    link.rate_bits_per_sec as f64 / 1e9 * share * (1.0 - setup.loss.chance.value())
}
