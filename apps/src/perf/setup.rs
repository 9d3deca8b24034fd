//! From options to connected queue pairs with memory.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use anyhow::{Context as _, anyhow, bail};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use verbs::{
    Access, CompChannel, ConnAttr, ConnectOptions, Context, Cq, Cqe, Endpoint, Gid, Mr, Notify, PathMtu, Qp,
    QpOptions, RKey, RecoveryScheme, RecvRequest, Srq, SrqOptions, WcStatus,
};

use super::affinity::pin;
use super::args::{Local, PeerArgs, Program};
use super::control::{Control, Message, judge, unexpected};
use super::message::{End, Hello};
use super::own::Own;
use super::params::{Choices, Measure, Offer, Params, Recovery, Test, Verb};
use super::perftest::{self, Greeting, Perftest};
use super::session::{Done, PeerEnds, Session};
use super::turns::TurnRow;
use crate::device::DeviceArgs;
use crate::exchange::gid::{self, Reach};
use crate::exchange::limits::{HELLO_BYTES_MAX, PEER_MEMORY_BYTES_MAX};
use crate::exchange::perftest::{GREETING_BYTES, greeting, is_version};
use crate::exchange::{self, DeviceReach, Framing, Lockstep, Refusal, Stall};

/// Time limit for the link to come up, once the peer has connected over TCP.
const LINK_PATIENCE: Duration = Duration::from_secs(10);
/// Sends of a latency test that may be outstanding without a signalled one.
const LAT_SEND_DEPTH: u32 = 256;
/// Largest memory of a verified test, per queue pair and direction, in bytes.
const VERIFY_AREA_BYTES: usize = 64 << 20;
/// Bytes of memory in which small messages cycle, as in perftest.
const CYCLE_BYTES: usize = 4096;
/// Alignment of slots, to cache lines.
const SLOT_ALIGN_BYTES: usize = 64;
/// Longest sleep for a completion, because the peer may end a run without causing one.
const SLEEP_MAX: Duration = Duration::from_millis(20);

/// Positions of messages in an area of memory: message `n` in slot `n % slots`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Layout {
    stride_bytes: usize,
    pub(super) slots: u64,
    area_bytes: usize,
}

impl Layout {
    /// Returns the layout for messages of at most `size_max` bytes. A verified test has a slot for each outstanding
    /// message, as far as [`VERIFY_AREA_BYTES`] suffice.
    pub(super) fn new(size_max: u32, depth: u32, verify: bool) -> Layout {
        let stride_bytes = (size_max as usize).max(1).next_multiple_of(SLOT_ALIGN_BYTES);
        let slots = if verify {
            (VERIFY_AREA_BYTES / stride_bytes).clamp(1, depth as usize)
        } else {
            (CYCLE_BYTES / stride_bytes).max(1)
        };
        Layout { stride_bytes, slots: slots as u64, area_bytes: stride_bytes * slots }
    }

    /// Returns the layout in areas of at least `bytes`, for a peer whose messages lie elsewhere in an area.
    fn in_area(self, bytes: u32) -> Layout {
        Layout { area_bytes: self.area_bytes.max(bytes as usize), ..self }
    }

    /// Returns the bytes of both areas of `qps` queue pairs.
    fn memory_bytes(&self, qps: u32) -> u64 {
        self.area_bytes as u64 * 2 * u64::from(qps)
    }

    pub(super) fn offset(&self, n: u64) -> usize {
        (n % self.slots) as usize * self.stride_bytes
    }
}

pub(super) struct PerfQp {
    pub(super) qp: Qp,
    srq: Option<Srq>,
    mr: Mr,
    area_bytes: usize,
    peer_rx_addr: u64,
    peer_tx_addr: u64,
    peer_rkey: RKey,
}

/// Area of the memory of a queue pair.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Area {
    /// Destination of messages received.
    Rx,
    /// Source of messages sent.
    Tx,
}

impl PerfQp {
    fn place(&self, area: Area, offset: usize) -> usize {
        offset + if area == Area::Tx { self.area_bytes } else { 0 }
    }

    pub(super) fn sge(&self, area: Area, offset: usize, len_bytes: u32) -> verbs::Sge {
        self.mr.sge(self.place(area, offset), len_bytes)
    }

    pub(super) fn read(&self, area: Area, offset: usize, out: &mut [u8]) -> anyhow::Result<()> {
        Ok(self.mr.read(self.place(area, offset), out)?)
    }

    pub(super) fn write(&self, area: Area, offset: usize, bytes: &[u8]) -> anyhow::Result<()> {
        Ok(self.mr.write(self.place(area, offset), bytes)?)
    }

    /// Returns address and R_Key of the peer's area at `offset`.
    pub(super) fn remote(&self, area: Area, offset: usize) -> (u64, RKey) {
        let base = if area == Area::Rx { self.peer_rx_addr } else { self.peer_tx_addr };
        (base.wrapping_add(offset as u64), self.peer_rkey)
    }

    /// Posts a receive at `offset` of the area for messages received.
    pub(super) fn post_recv(&self, offset: usize, len_bytes: u32, lane: usize) -> anyhow::Result<()> {
        let sges = [self.sge(Area::Rx, offset, len_bytes)];
        let request = RecvRequest { wr_id: recv_id(lane, offset), sges: &sges };
        match &self.srq {
            Some(srq) => Ok(srq.post_recv(&request)?),
            None => Ok(self.qp.post_recv(&request)?),
        }
    }
}

const OFFSET_BITS: u32 = 48;

fn recv_id(lane: usize, offset: usize) -> u64 {
    (lane as u64) << OFFSET_BITS | offset as u64
}

/// Splits the ID of a work request into the index of the queue pair, and the offset of a receive or the count of a
/// send.
pub(super) fn split_id(wr_id: u64) -> (usize, u64) {
    ((wr_id >> OFFSET_BITS) as usize, wr_id & ((1 << OFFSET_BITS) - 1))
}

/// Returns the ID of the send of message `count` of queue pair `lane`.
pub(super) fn send_id(lane: usize, count: u64) -> u64 {
    (lane as u64) << OFFSET_BITS | count
}

pub(super) fn check(cqe: &Cqe) -> anyhow::Result<()> {
    if cqe.status == WcStatus::Success {
        return Ok(());
    }
    let (lane, number) = split_id(cqe.wr_id);
    bail!("queue pair {lane}, work request {number} failed: {}", cqe.status.text())
}

/// A test whose queue pairs are connected.
pub(super) struct Bench {
    // Dropped in this order: queue pairs before the objects that they use.
    pub(super) lanes: Vec<PerfQp>,
    pub(super) send_cq: Cq,
    pub(super) recv_cq: Cq,
    channel: Option<CompChannel>,
    armed: bool,
    receives_posted: bool,
    pub(super) context: Context,
    pub(super) session: Box<dyn Session>,
    stall: Stall,
    pub(super) params: Params,
    pub(super) local: Local,
    pub(super) layout: Layout,
    pub(super) is_client: bool,
    pub(super) gid_index: u8,
    ends: [Vec<(Endpoint, End)>; 2],
    /// Results per probability of loss, if the test alternates between several.
    pub(super) turns: Vec<TurnRow>,
    /// Messages of the peer that did not arrive; always 0 under RC.
    pub(super) lost_messages: u64,
}

impl Bench {
    pub(super) fn open(
        test: Test,
        device: &DeviceArgs,
        peer: &PeerArgs,
        (choices, mut local): (Choices, Local),
    ) -> anyhow::Result<Bench> {
        let faults = device.faults();
        let context =
            device.open_with(local.loss_turns.as_ref().map_or(faults, |turns| turns.faults(faults)))?;
        if let Some(cpu) = peer.cpu {
            pin(cpu)?;
        }
        let attr = context.attr();
        let active = attr.active_mtu.ok_or_else(|| {
            anyhow!("an MTU of {} bytes carries no path MTU; the smallest needs 336", attr.mtu_bytes)
        })?;
        let gids: Vec<(u8, Gid)> =
            attr.gids.iter().filter_map(|(index, gid)| Some((u8::try_from(*index).ok()?, *gid))).collect();
        if let Some(wanted) = local.gid_index {
            // Checked before a client connects, because no client could correct it.
            find_gid(&gids, wanted)?;
        }
        let offer = Offer { test, choices, active_mtu_bytes: active.bytes() };
        let own = Hello::new(offer, (local.tx_depth, local.rx_depth), &gids, local.gid_index);
        let meeting = Meeting {
            own,
            gids,
            is_client: peer.host.is_some(),
            program: local.program,
            in_gbits: local.report_gbits,
            any_gid: peer.exchange.any_gid,
            reach: DeviceReach::new(&context, &device.port),
        };
        let (session, agreed) = meeting.hold(peer)?;
        if agreed.params.verify {
            // A message must stay in its slot until it has been compared, so at most `slots` messages are outstanding.
            let slots = agreed.layout.slots as u32;
            (local.tx_depth, local.rx_depth) = (local.tx_depth.min(slots), local.rx_depth.min(slots));
        }
        Bench::connect(context.clone(), session, agreed, local, &meeting)
    }

    fn connect(
        context: Context,
        mut session: Box<dyn Session>,
        agreed: Agreed,
        local: Local,
        meeting: &Meeting<DeviceReach<'_>>,
    ) -> anyhow::Result<Bench> {
        let Agreed { params, layout, gid_index, tcp_peer } = agreed;
        let send_depth = match params.test.measure {
            Measure::Bw => local.tx_depth,
            Measure::Lat => local.tx_depth.max(LAT_SEND_DEPTH),
        };
        let channel = local.cq_events.then(|| context.create_comp_channel()).transpose()?;
        let (send_cq, recv_cq) = (
            context.create_cq(send_depth * params.qps, channel.as_ref())?,
            context.create_cq(local.rx_depth * params.qps, channel.as_ref())?,
        );
        let pd = context.alloc_pd()?;
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
        let srq_options = SrqOptions { max_wr: local.rx_depth, ..SrqOptions::default() };
        let srq = local.use_srq.then(|| pd.create_srq(&srq_options)).transpose()?;
        let mut queue_pairs = Vec::new();
        let mut own = Vec::new();
        for _ in 0..params.qps {
            let qp = pd.create_qp(&QpOptions {
                service: params.connection.service(),
                srq: srq.as_ref(),
                recv_cq: &recv_cq,
                max_send_wr: send_depth,
                max_recv_wr: local.rx_depth,
                max_inline_bytes: local.inline_bytes,
                ..QpOptions::new(&send_cq)
            })?;
            let mr = pd.alloc(layout.area_bytes * 2, access)?;
            let endpoint = qp.endpoint(gid_index);
            let tx_addr = mr.addr().wrapping_add(layout.area_bytes as u64);
            own.push((endpoint, End::new(&endpoint, mr.addr(), tx_addr, mr.rkey().0)));
            queue_pairs.push((qp, srq.clone(), mr));
        }
        // Before the ends are sent, because they make the peer connect: without a link, perftest resolves no Ethernet
        // address and fails.
        context.wait_link(LINK_PATIENCE).map_err(|error| session.give_up(error.into()))?;
        let exchanged = session.exchange_ends(&own, &|gid| meeting.check_gid(gid, tcp_peer));
        let peers = exchanged.map_err(|error| session.give_up(error))?;
        let connected = connect_all(queue_pairs, &peers, &params, &local, gid_index, &layout);
        let lanes = connected.map_err(|error| session.give_up(error))?;
        session.connected().map_err(|error| session.give_up(error))?;
        let stall = Stall::new(session.timeout(), Instant::now());
        Ok(Bench {
            lanes,
            send_cq,
            recv_cq,
            channel,
            armed: false,
            receives_posted: false,
            context,
            session,
            stall,
            params,
            local,
            layout,
            is_client: meeting.is_client,
            gid_index,
            ends: [own, peers.ends],
            turns: Vec::new(),
            lost_messages: 0,
        })
    }

    pub(super) fn begin_run(&mut self) -> anyhow::Result<()> {
        self.session.begin_run()?;
        self.stall = Stall::new(self.session.timeout(), Instant::now());
        Ok(())
    }

    /// Returns the end of the peer's part of a run, once it is reached. Fails if no packet of the peer has arrived for
    /// too long.
    pub(super) fn poll_done(&mut self) -> anyhow::Result<Option<Done>> {
        let done = self.session.try_done()?;
        match &done {
            None => self.check_stall()?,
            Some(Done { sent: Some(sent), .. }) if sent.len() != self.lanes.len() => {
                bail!("the peer counts {} queue pairs, and there are {}", sent.len(), self.lanes.len())
            }
            Some(_) => {}
        }
        Ok(done)
    }

    /// Returns the index of the queue pair to which the message of a completed receive was sent. With a shared receive
    /// queue the memory may be that of another queue pair.
    pub(super) fn lane_of(&self, cqe: &Cqe) -> usize {
        let own = split_id(cqe.wr_id).0;
        let is_own = |index: usize| self.lanes.get(index).is_some_and(|lane| lane.qp.qpn() == cqe.qpn);
        if !self.local.use_srq || is_own(own) {
            return own;
        }
        (0..self.lanes.len()).find(|index| is_own(*index)).unwrap_or(own)
    }

    /// Fails if no packet of the peer has arrived for too long.
    pub(super) fn check_stall(&mut self) -> anyhow::Result<()> {
        let rcvd_pkts = || self.context.counters().0.rcvd_pkts;
        if self.stall.is_over(Instant::now(), rcvd_pkts) {
            return Err(self.stall.error());
        }
        Ok(())
    }

    pub(super) fn initiates(&self) -> bool {
        self.is_client || self.params.bidirectional
    }

    pub(super) fn peer_initiates(&self) -> bool {
        !self.is_client || self.params.bidirectional
    }

    /// Posts receives for messages of every size of the test, once. Each completed receive is to be reposted.
    pub(super) fn fill_receive_queues(&mut self) -> anyhow::Result<()> {
        if std::mem::replace(&mut self.receives_posted, true) {
            return Ok(());
        }
        let size_max = self.params.size_max();
        let depth = u64::from(self.local.rx_depth);
        // As in perftest, the receives of a shared receive queue are divided among the memory of the queue pairs.
        let depth = if self.local.use_srq { depth / self.lanes.len() as u64 } else { depth };
        if depth == 0 {
            bail!("--use-srq: -r {} must be at least the number of queue pairs (-q)", self.local.rx_depth);
        }
        for (index, lane) in self.lanes.iter().enumerate() {
            for n in 0..depth {
                lane.post_recv(self.layout.offset(n), size_max, index)?;
            }
        }
        Ok(())
    }

    /// Returns lines with the addresses of both ends, in the format of perftest.
    pub(super) fn addresses(&self) -> Vec<String> {
        let mut lines = Vec::new();
        for (side, ends) in ["local", "remote"].into_iter().zip(&self.ends) {
            for (endpoint, end) in ends {
                let (qpn, psn) = (endpoint.qpn.value(), endpoint.psn.value());
                let memory = if self.params.test.verb == Verb::Send {
                    String::new()
                } else {
                    format!(" RKey {:#08x} VAddr {:#016x}", end.rkey, end.rx_addr)
                };
                lines.push(format!(" {side} address: LID 0000 QPN {qpn:#06x} PSN {psn:#08x}{memory}"));
                let bytes: Vec<String> = endpoint.gid.0.iter().map(|byte| format!("{byte:02}")).collect();
                lines.push(format!(" GID: {}", bytes.join(":")));
            }
        }
        lines
    }

    /// Called when a poll of all queues found no completion: sleeps if events were requested. The first call
    /// only arms the queues, because a completion may have arrived since the poll.
    pub(super) fn idle(&mut self) -> anyhow::Result<()> {
        let Some(channel) = &self.channel else { return Ok(()) };
        if !std::mem::replace(&mut self.armed, true) {
            self.send_cq.request_notify(Notify::Any)?;
            self.recv_cq.request_notify(Notify::Any)?;
            return Ok(());
        }
        if self.local.poll_fd {
            let sleep_max = Timespec::try_from(SLEEP_MAX)?;
            poll(&mut [PollFd::new(channel, PollFlags::IN)], Some(&sleep_max))?;
            while channel.try_wait()?.is_some() {}
        } else if channel.wait(SLEEP_MAX)?.is_some() {
            while channel.try_wait()?.is_some() {}
        }
        self.armed = false;
        Ok(())
    }
}

fn connect_all(
    queue_pairs: Vec<(Qp, Option<Srq>, Mr)>,
    peers: &PeerEnds,
    params: &Params,
    local: &Local,
    gid_index: u8,
    layout: &Layout,
) -> anyhow::Result<Vec<PerfQp>> {
    let conn = ConnAttr {
        path_mtu: params.mtu,
        max_rd_atomic: params.outs.min(peers.reads_max.unwrap_or(params.outs)),
        max_dest_rd_atomic: params.outs,
        timeout: local.qp_timeout,
        recovery: params.recovery,
        congestion: local.congestion,
        placement: local.placement,
        initial_rtt_nanos: peers.initial_rtt_nanos,
        ..ConnAttr::default()
    };
    let options = ConnectOptions { gid_index, conn, ..ConnectOptions::default() };
    let mut lanes = Vec::new();
    for ((qp, srq, mr), (endpoint, end)) in queue_pairs.into_iter().zip(&peers.ends) {
        qp.connect(endpoint, &options).with_context(|| format!("cannot connect to {}", endpoint.gid))?;
        lanes.push(PerfQp {
            qp,
            srq,
            mr,
            area_bytes: layout.area_bytes,
            peer_rx_addr: end.rx_addr,
            peer_tx_addr: end.tx_addr,
            peer_rkey: RKey(end.rkey),
        });
    }
    Ok(lanes)
}

fn announce(json: bool) {
    if !json {
        let line = "*".repeat(36);
        println!("\n{line}\n* Waiting for client to connect... *\n{line}");
    }
}

/// State by which the first message of a peer is judged.
struct Meeting<R> {
    own: Hello,
    gids: Vec<(u8, Gid)>,
    is_client: bool,
    program: Program,
    in_gbits: bool,
    any_gid: bool,
    reach: R,
}

/// Parameters on which both ends agreed.
struct Agreed {
    params: Params,
    layout: Layout,
    gid_index: u8,
    tcp_peer: IpAddr,
}

/// First message of a client, accepted.
enum First {
    /// Hello of `roce perf`, and the GID of the peer, which both ends derive from the two hellos.
    Hello(Agreed, Gid),
    /// The greeting of perftest, and its first line.
    Perftest(Agreed, Vec<u8>),
}

impl<R: Reach> Meeting<R> {
    fn hold(&self, peer: &PeerArgs) -> anyhow::Result<(Box<dyn Session>, Agreed)> {
        let timeout = peer.exchange.peer_timeout();
        let hello = Message::Hello(Box::new(self.own.clone()));
        match (&peer.host, self.program) {
            (Some(host), Program::Perftest) => {
                self.check_perftest()?;
                let command = format!("ib_{}", self.own.offer.test.to_string().replace('-', "_"));
                let stream = exchange::connect(host, peer.tcp_port, &command, timeout)?;
                let tcp_peer = stream.peer_addr()?.ip();
                let mut lockstep = Lockstep::new(stream, true, Vec::new(), timeout)?;
                let greeting = Greeting::swap(&mut lockstep, &self.greeting())
                    .map_err(|error| perftest::with_options(&error))?;
                Ok(self.perftest_session(lockstep, self.follow(&greeting, tcp_peer)?))
            }
            (Some(_), Program::Roce) => {
                let (control, (agreed, gid)) =
                    Control::open(peer, &hello, || {}, |message, ip| self.settle(message, ip))?;
                Ok(self.own_session(control, agreed, gid))
            }
            (None, _) => {
                let listener = exchange::listen(peer.tcp_port)?;
                announce(peer.json);
                let framing = Framing::PerftestOrLine { own: self.greeting(), line_bytes: HELLO_BYTES_MAX };
                let (stream, first) =
                    exchange::accept(&listener, framing, |bytes, ip| self.judge(bytes, ip))?;
                match first {
                    First::Perftest(agreed, line) => {
                        let lockstep = Lockstep::new(stream, false, line, timeout)?;
                        Ok(self.perftest_session(lockstep, agreed))
                    }
                    First::Hello(agreed, gid) => {
                        let control = Control::answer(stream, timeout, &hello)?;
                        Ok(self.own_session(control, agreed, gid))
                    }
                }
            }
        }
    }

    fn own_session(&self, control: Control, agreed: Agreed, peer_gid: Gid) -> (Box<dyn Session>, Agreed) {
        (Box::new(Own { control, is_client: self.is_client, peer_gid }), agreed)
    }

    fn judge(&self, bytes: &[u8], tcp_peer: IpAddr) -> Result<First, Refusal> {
        if is_version(bytes) {
            self.check_perftest()?;
            let agreed = self.follow(&Greeting::parse(bytes)?, tcp_peer)?;
            return Ok(First::Perftest(agreed, bytes.get(GREETING_BYTES..).unwrap_or_default().to_vec()));
        }
        let (agreed, gid) = judge(bytes, tcp_peer, |message, ip| self.settle(message, ip))?;
        Ok(First::Hello(agreed, gid))
    }

    /// Fails if this end was given options that perftest cannot follow.
    fn check_perftest(&self) -> anyhow::Result<()> {
        let Choices { verify, recovery, .. } = &self.own.offer.choices;
        let letter = match recovery {
            _ if *verify => "--verify",
            Some(Recovery(RecoveryScheme::SelectiveRepeat { .. })) => "--recovery selective-repeat",
            _ => return Ok(()),
        };
        bail!("{letter}: needs `roce perf` at both ends, and the peer is perftest; leave it out")
    }

    fn greeting(&self) -> [u8; GREETING_BYTES] {
        let Offer { choices, active_mtu_bytes, .. } = &self.own.offer;
        let mtu = PathMtu::from_bytes(choices.mtu_bytes.unwrap_or(*active_mtu_bytes));
        greeting(mtu.unwrap_or(PathMtu::Mtu256))
    }

    /// Returns the parameters agreed with perftest at `tcp_peer`, which sent `greeting`.
    fn follow(&self, greeting: &Greeting, tcp_peer: IpAddr) -> anyhow::Result<Agreed> {
        let own = &self.own;
        let offer = greeting.offer(own.offer.test, &own.offer.choices);
        let (server, client) = if self.is_client { (&offer, &own.offer) } else { (&own.offer, &offer) };
        let params = Params::agree(server, client)?;
        let peer_gids = match greeting.gid {
            Some(gid) => {
                self.check_gid(gid, tcp_peer)?;
                vec![(0, gid)]
            }
            None => self.gids.clone(),
        };
        let gid_index = choose_gid(&self.gids, own.gid_index, &peer_gids, None)?;
        let layout = Layout::new(params.size_max(), own.tx_depth.max(own.rx_depth), params.verify);
        let layout = layout.in_area(greeting.cycle_bytes);
        check_memory(&params, layout.memory_bytes(params.qps), self.wanted_bytes()?)?;
        Ok(Agreed { params, layout, gid_index, tcp_peer })
    }

    fn perftest_session(&self, lockstep: Lockstep, mut agreed: Agreed) -> (Box<dyn Session>, Agreed) {
        let session = Perftest::new(lockstep, &mut agreed.params, self.is_client, self.in_gbits);
        (Box::new(session), agreed)
    }

    fn check_gid(&self, gid: Gid, tcp_peer: IpAddr) -> anyhow::Result<()> {
        Ok(gid::check(gid, tcp_peer, self.any_gid, &self.reach)?)
    }

    /// Returns the memory that this end's choices alone cost, in bytes.
    fn wanted_bytes(&self) -> anyhow::Result<u64> {
        let own = &self.own;
        let alone = Params::agree(&own.offer, &own.offer)?;
        let depth = own.tx_depth.max(own.rx_depth);
        Ok(Layout::new(alone.size_max(), depth, alone.verify).memory_bytes(alone.qps))
    }

    /// Judges the first message of the peer at `tcp_peer`. Returns the parameters, and the GID of the peer.
    fn settle(&self, message: Message, tcp_peer: IpAddr) -> anyhow::Result<(Agreed, Gid)> {
        let own = &self.own;
        let hello = match message {
            Message::Hello(hello) => *hello,
            Message::RawHello(_) => bail!("the peer runs `roce perf raw`, and this end {}", own.offer.test),
            other => return Err(unexpected(&other)),
        };
        let (server, client) = if self.is_client { (&hello, own) } else { (own, &hello) };
        let params = Params::agree(&server.offer, &client.offer)?;
        let (gids, peer_gids) = (&self.gids, &hello.gids());
        let gid_index = choose_gid(gids, own.gid_index, peer_gids, hello.gid_index)?;
        let peer_index = choose_gid(peer_gids, hello.gid_index, gids, own.gid_index)?;
        let peer_gid = find_gid(peer_gids, peer_index)?;
        self.check_gid(peer_gid, tcp_peer)?;
        let depth = own.tx_depth.max(own.rx_depth);
        let layout =
            Layout::new(params.size_max(), depth.max(hello.tx_depth).max(hello.rx_depth), params.verify);
        check_memory(&params, layout.memory_bytes(params.qps), self.wanted_bytes()?)?;
        Ok((Agreed { params, layout, gid_index, tcp_peer }, peer_gid))
    }
}

/// Refuses choices of the peer that cost this end too much memory; its own alone cost `wanted_bytes`.
fn check_memory(params: &Params, bytes: u64, wanted_bytes: u64) -> anyhow::Result<()> {
    let most = PEER_MEMORY_BYTES_MAX.max(wanted_bytes);
    if bytes <= most {
        return Ok(());
    }
    bail!(
        "-q {} and -s {} take {} MiB of memory, and at the other end's word alone {} at most: start this end with the \
         same options",
        params.qps,
        params.size_max(),
        bytes >> 20,
        most >> 20
    )
}

/// Returns the rank of the kind of a GID: IPv4 (0, preferred), IPv6, link-local IPv6.
fn rank(gid: Gid) -> u8 {
    match (gid.is_ipv4(), gid.is_link_local()) {
        (true, _) => 0,
        (_, false) => 1,
        (_, true) => 2,
    }
}

fn list(gids: &[(u8, Gid)]) -> String {
    gids.iter().map(|(index, gid)| format!("{index}: {gid}")).collect::<Vec<_>>().join(", ")
}

fn find_gid(gids: &[(u8, Gid)], wanted: u8) -> anyhow::Result<Gid> {
    let found = gids.iter().find(|(index, _)| *index == wanted).map(|(_, gid)| *gid);
    found.ok_or_else(|| anyhow!("-x {wanted}: there is no such GID; there are {}", list(gids)))
}

/// Returns the index of this end's GID: `choice`, if its user has chosen one; otherwise the first GID of the kind that
/// the peer's user chose, or of the preferred kind among those that both ends have.
fn choose_gid(
    own: &[(u8, Gid)],
    choice: Option<u8>,
    peer: &[(u8, Gid)],
    peer_choice: Option<u8>,
) -> anyhow::Result<u8> {
    if let Some(wanted) = choice {
        return find_gid(own, wanted).map(|_| wanted);
    }
    let of_rank = |gids: &[(u8, Gid)], wanted| gids.iter().find(|(_, gid)| rank(*gid) == wanted).copied();
    let found = match peer_choice.and_then(|wanted| find_gid(peer, wanted).ok()) {
        Some(gid) => of_rank(own, rank(gid)),
        None => (0..3).find_map(|rank| of_rank(peer, rank).and(of_rank(own, rank))),
    };
    found.map(|(index, _)| index).ok_or_else(|| {
        anyhow!(
            "the peer has no GID of the kinds that this end has ({}): give both ports ip= of one family",
            list(own)
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gids(list: &[(u8, &str)]) -> Vec<(u8, Gid)> {
        list.iter().map(|(i, ip)| (*i, Gid::from(ip.parse::<std::net::IpAddr>().unwrap()))).collect()
    }

    #[test]
    fn gids_of_one_kind_find_each_other() {
        let own = gids(&[(0, "fe80::1"), (1, "10.0.0.1"), (2, "fd00::1")]);
        let plain = gids(&[(0, "fe80::2")]);
        let six = gids(&[(0, "fe80::2"), (1, "fd00::2")]);
        assert_eq!(choose_gid(&own, None, &own, None).unwrap(), 1);
        assert_eq!(choose_gid(&own, None, &plain, None).unwrap(), 0);
        assert_eq!(choose_gid(&own, None, &six, None).unwrap(), 2);
        assert_eq!(choose_gid(&own, None, &six, Some(0)).unwrap(), 0);
        assert_eq!(choose_gid(&own, Some(2), &six, Some(1)).unwrap(), 2);
        let error = choose_gid(&own, Some(7), &six, None).unwrap_err().to_string();
        assert!(error.contains("-x 7") && error.contains("10.0.0.1"), "{error}");
        let four = gids(&[(3, "10.0.0.2")]);
        assert!(choose_gid(&plain, None, &four, None).is_err());
    }

    /// A dedicated port with 10.0.0.1/24 and fe80::1.
    struct Port;

    impl Reach for Port {
        fn has_kernel_addresses(&self) -> bool {
            false
        }
        fn is_own(&self, gid: Gid) -> bool {
            ["10.0.0.1", "fe80::1"].contains(&gid.ip().to_string().as_str())
        }
        fn is_on_link(&self, gid: Gid) -> bool {
            ["10.0.0.", "fe80::"].iter().any(|prefix| gid.ip().to_string().starts_with(prefix))
        }
        fn is_of_this_host(&self, _: IpAddr) -> bool {
            false
        }
        fn is_same_station(&self, _: Gid, _: Gid) -> bool {
            false
        }
    }

    fn hello(choices: Choices, list: &[(u8, &str)]) -> Hello {
        let test = Test { verb: Verb::Write, measure: Measure::Bw };
        Hello::new(Offer { test, choices, active_mtu_bytes: 4096 }, (128, 512), &gids(list), None)
    }

    /// Returns how a server started with `own` judges a client started with `other`, whose GIDs are `list`.
    fn settle(own: Choices, other: Choices, list: &[(u8, &str)]) -> anyhow::Result<(Agreed, Gid)> {
        let ports = [(0, "fe80::1"), (1, "10.0.0.1")];
        let meeting = Meeting {
            own: hello(own, &ports),
            gids: gids(&ports),
            is_client: false,
            program: Program::Roce,
            in_gbits: false,
            any_gid: false,
            reach: Port,
        };
        let message = Message::Hello(Box::new(hello(other, list)));
        meeting.settle(message, "127.0.0.1".parse().unwrap())
    }

    #[test]
    fn a_hello_leads_to_the_gid_that_its_sender_will_choose() {
        let (near, peer_gid) =
            settle(Choices::default(), Choices::default(), &[(0, "fe80::2"), (3, "10.0.0.2")]).unwrap();
        assert_eq!((near.gid_index, peer_gid.ip().to_string()), (1, "10.0.0.2".to_owned()));
        for (far, said) in [("10.9.0.2", "no subnet"), ("10.0.0.1", "one of this end")] {
            let error =
                settle(Choices::default(), Choices::default(), &[(0, "fe80::2"), (1, far)]).err().unwrap();
            assert!(error.to_string().contains(said), "{error}");
        }
    }

    #[test]
    fn memory_is_not_taken_at_the_other_ends_word_alone() {
        let list = [(0, "fe80::2")];
        let many = |size, qps| Choices { size: Some(size), qps: Some(qps), ..Choices::default() };
        for (size, qps) in [((1 << 29) + 1, 1), (1 << 20, 4096)] {
            let error = settle(Choices::default(), many(size, qps), &list).err().unwrap().to_string();
            assert!(error.contains(&format!("-q {qps} and -s {size}")), "{error}");
            assert!(settle(many(size, qps), Choices::default(), &list).is_ok());
        }
        assert!(settle(Choices::default(), many(1 << 29, 1), &list).is_ok());
    }

    #[test]
    fn verified_messages_do_not_share_a_slot() {
        let layout = Layout::new(100, 128, true);
        assert_eq!((layout.slots, layout.offset(1), layout.offset(128)), (128, 128, 0));
        assert_eq!(Layout::new(1 << 30, 128, true).slots, 1);
        assert_eq!(Layout::new(0, 128, false).slots, 64);
        assert_eq!(Layout::new(65536, 128, false).slots, 1);
    }

    #[test]
    fn ids_hold_a_lane_and_a_number() {
        assert_eq!(split_id(send_id(4095, 1 << 40)), (4095, 1 << 40));
        assert_eq!(split_id(recv_id(7, 64)), (7, 64));
    }
}
