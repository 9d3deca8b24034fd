//! From options to connected queue pairs with memory behind them.

use std::time::Duration;

use anyhow::{Context as _, anyhow, bail};
use verbs::{
    Access, CompChannel, ConnectOptions, Context, Cq, Cqe, Endpoint, Gid, Mr, Notify, Qp, QpOptions, RKey,
    RecvRequest, WcStatus,
};

use super::args::{Local, PeerArgs};
use super::control::{Control, End, Hello, Message, unexpected};
use super::params::{Choices, Measure, Offer, Params, Test, Verb};
use super::turns::TurnRow;
use crate::device::DeviceArgs;

/// How long an end waits for the link, once its peer has been heard of.
const LINK_PATIENCE: Duration = Duration::from_secs(10);
/// Sends of a latency test that may be outstanding without a visible completion.
const LAT_SEND_DEPTH: u32 = 256;
/// The most memory that a verified test takes for one queue pair and direction.
const VERIFY_AREA_BYTES: usize = 64 << 20;
/// Small messages go round in a page, as perftest's do.
const CYCLE_BYTES: usize = 4096;
/// Slots begin at cache lines.
const SLOT_ALIGN_BYTES: usize = 64;
/// How long a sleep for completions lasts at most: the peer may be done without one.
const SLEEP_MAX: Duration = Duration::from_millis(20);

/// Where messages lie in an area of memory: message `n` in slot `n % slots`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Layout {
    stride_bytes: usize,
    pub(super) slots: u64,
}

impl Layout {
    /// For messages of at most `size_max` bytes. A verified test has a slot for each message in flight.
    pub(super) fn new(size_max: u32, depth: u32, verify: bool) -> Layout {
        let stride_bytes = (size_max as usize).max(1).next_multiple_of(SLOT_ALIGN_BYTES);
        let slots = if verify {
            (VERIFY_AREA_BYTES / stride_bytes).clamp(1, depth as usize)
        } else {
            (CYCLE_BYTES / stride_bytes).max(1)
        };
        Layout { stride_bytes, slots: slots as u64 }
    }

    /// Bytes of an area.
    fn area_bytes(&self) -> usize {
        self.stride_bytes * self.slots as usize
    }

    /// Where the slot of message `n` begins.
    pub(super) fn offset(&self, n: u64) -> usize {
        (n % self.slots) as usize * self.stride_bytes
    }
}

/// A connected queue pair, its memory, and the peer's.
pub(super) struct Lane {
    pub(super) qp: Qp,
    mr: Mr,
    area_bytes: usize,
    peer_rx_addr: u64,
    peer_tx_addr: u64,
    peer_rkey: RKey,
}

/// Half of a lane's memory.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Area {
    /// What arrives here.
    Rx,
    /// What goes from here.
    Tx,
}

impl Lane {
    fn place(&self, area: Area, offset: usize) -> usize {
        offset + if area == Area::Tx { self.area_bytes } else { 0 }
    }

    /// The scatter/gather entry of bytes of an area.
    pub(super) fn sge(&self, area: Area, offset: usize, len_bytes: u32) -> verbs::Sge {
        self.mr.sge(self.place(area, offset), len_bytes)
    }

    /// Copies bytes of an area.
    pub(super) fn read(&self, area: Area, offset: usize, out: &mut [u8]) -> anyhow::Result<()> {
        Ok(self.mr.read(self.place(area, offset), out)?)
    }

    /// Changes bytes of an area.
    pub(super) fn write(&self, area: Area, offset: usize, bytes: &[u8]) -> anyhow::Result<()> {
        Ok(self.mr.write(self.place(area, offset), bytes)?)
    }

    /// The address and key of the peer's bytes at `offset` of its area.
    pub(super) fn remote(&self, area: Area, offset: usize) -> (u64, RKey) {
        let base = if area == Area::Rx { self.peer_rx_addr } else { self.peer_tx_addr };
        (base.wrapping_add(offset as u64), self.peer_rkey)
    }

    /// Posts a receive into the slot of message `n`.
    pub(super) fn post_recv(&self, offset: usize, len_bytes: u32, lane: usize) -> anyhow::Result<()> {
        let sges = [self.sge(Area::Rx, offset, len_bytes)];
        Ok(self.qp.post_recv(&RecvRequest { wr_id: recv_id(lane, offset), sges: &sges })?)
    }
}

const OFFSET_BITS: u32 = 48;

fn recv_id(lane: usize, offset: usize) -> u64 {
    (lane as u64) << OFFSET_BITS | offset as u64
}

/// Lane and number out of a work request's id: an offset or a count.
pub(super) fn split_id(wr_id: u64) -> (usize, u64) {
    ((wr_id >> OFFSET_BITS) as usize, wr_id & ((1 << OFFSET_BITS) - 1))
}

/// The id of a send that is message `count` of its lane.
pub(super) fn send_id(lane: usize, count: u64) -> u64 {
    (lane as u64) << OFFSET_BITS | count
}

/// Fails where a completion did.
pub(super) fn check(cqe: &Cqe) -> anyhow::Result<()> {
    if cqe.status == WcStatus::Success {
        return Ok(());
    }
    let (lane, number) = split_id(cqe.wr_id);
    bail!("queue pair {lane}, work request {number} failed: {}", cqe.status.text())
}

/// Both ends, ready to measure.
pub(super) struct Bench {
    // Queue pairs go before what they use.
    pub(super) lanes: Vec<Lane>,
    pub(super) send_cq: Cq,
    pub(super) recv_cq: Cq,
    channel: Option<CompChannel>,
    armed: bool,
    receives_posted: bool,
    pub(super) context: Context,
    pub(super) control: Control,
    pub(super) params: Params,
    pub(super) local: Local,
    pub(super) layout: Layout,
    pub(super) is_client: bool,
    pub(super) gid_index: u8,
    ends: [Vec<(Endpoint, End)>; 2],
    /// What each chance of loss carried, where they took turns.
    pub(super) turns: Vec<TurnRow>,
}

impl Bench {
    /// Opens the port, finds the peer, agrees with it and connects.
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
            super::pin(cpu)?;
        }
        let attr = context.attr();
        let active = attr.active_mtu.ok_or_else(|| {
            anyhow!("an MTU of {} bytes carries no path MTU; the smallest needs 336", attr.mtu_bytes)
        })?;
        let gids: Vec<(u8, Gid)> =
            attr.gids.iter().filter_map(|(index, gid)| Some((u8::try_from(*index).ok()?, *gid))).collect();
        let offer = Offer { test, choices, active_mtu_bytes: active.bytes() };
        let named = gids.iter().map(|(index, gid)| (*index, gid.ip().to_string())).collect();
        let own = Hello::new(offer, (local.tx_depth, local.rx_depth), named, local.gid_index);
        let is_client = peer.host.is_some();
        let mut control = Control::open(peer.host.as_deref(), peer.tcp_port, || announce(peer.json))?;
        let hello = exchange(&mut control, &own)?;
        let result = (|| {
            let (server, client) = if is_client { (&hello, &own) } else { (&own, &hello) };
            let params = Params::agree(&server.offer, &client.offer)?;
            let gid_index = choose_gid(&gids, local.gid_index, &peer_gids(&hello)?, hello.gid_index)?;
            let depth = own.tx_depth.max(own.rx_depth).max(hello.tx_depth).max(hello.rx_depth);
            let layout = Layout::new(params.size_max(), depth, params.verify);
            if params.verify {
                // A message must stay in its slot until it has been compared.
                let slots = layout.slots as u32;
                (local.tx_depth, local.rx_depth) = (local.tx_depth.min(slots), local.rx_depth.min(slots));
            }
            Ok((params, gid_index, layout))
        })();
        let (params, gid_index, layout) = match result {
            Ok(agreed) => agreed,
            Err(error) => return Err(tell(&mut control, error)),
        };
        Bench::connect(context, control, params, local, layout, is_client, gid_index)
    }

    fn connect(
        context: Context,
        mut control: Control,
        params: Params,
        local: Local,
        layout: Layout,
        is_client: bool,
        gid_index: u8,
    ) -> anyhow::Result<Bench> {
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
        let mut queue_pairs = Vec::new();
        let mut own = Vec::new();
        for _ in 0..params.qps {
            let qp = pd.create_qp(&QpOptions {
                recv_cq: &recv_cq,
                max_send_wr: send_depth,
                max_recv_wr: local.rx_depth,
                max_inline_bytes: local.inline_bytes,
                ..QpOptions::new(&send_cq)
            })?;
            let mr = pd.alloc(layout.area_bytes() * 2, access)?;
            let endpoint = qp.endpoint(gid_index);
            let tx_addr = mr.addr().wrapping_add(layout.area_bytes() as u64);
            let end = End { endpoint: endpoint.to_string(), rx_addr: mr.addr(), tx_addr, rkey: mr.rkey().0 };
            own.push((endpoint, end));
            queue_pairs.push((qp, mr));
        }
        control.send(&Message::Ends(own.iter().map(|(_, end)| end.clone()).collect()))?;
        let peers = match control.recv()? {
            Message::Ends(ends) if ends.len() == queue_pairs.len() => ends,
            other => return Err(unexpected(&other)),
        };
        let peers: Vec<(Endpoint, End)> =
            peers.into_iter().map(|end| Ok((end.endpoint.parse()?, end))).collect::<anyhow::Result<_>>()?;
        let connected = connect_all(&context, queue_pairs, &peers, &params, &local, gid_index, &layout);
        let lanes = connected.map_err(|error| tell(&mut control, error))?;
        Ok(Bench {
            lanes,
            send_cq,
            recv_cq,
            channel,
            armed: false,
            receives_posted: false,
            context,
            control,
            params,
            local,
            layout,
            is_client,
            gid_index,
            ends: [own, peers],
            turns: Vec::new(),
        })
    }

    /// Whether this side sends requests.
    pub(super) fn initiates(&self) -> bool {
        self.is_client || self.params.bidirectional
    }

    /// Whether the peer does.
    pub(super) fn peer_initiates(&self) -> bool {
        !self.is_client || self.params.bidirectional
    }

    /// Posts receives for messages of every size of the test, once. Who takes one posts it again.
    pub(super) fn fill_receive_queues(&mut self) -> anyhow::Result<()> {
        if std::mem::replace(&mut self.receives_posted, true) {
            return Ok(());
        }
        let size_max = self.params.size_max();
        for (index, lane) in self.lanes.iter().enumerate() {
            for n in 0..u64::from(self.local.rx_depth) {
                lane.post_recv(self.layout.offset(n), size_max, index)?;
            }
        }
        Ok(())
    }

    /// The addresses of both ends, as perftest prints them.
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

    /// Called when a look at all queues found nothing: sleeps where events were asked for. The first
    /// call only arms the queues, for a completion may have come since the look.
    pub(super) fn idle(&mut self) -> anyhow::Result<()> {
        let Some(channel) = &self.channel else { return Ok(()) };
        if !std::mem::replace(&mut self.armed, true) {
            self.send_cq.request_notify(Notify::Any)?;
            self.recv_cq.request_notify(Notify::Any)?;
            return Ok(());
        }
        if channel.wait(SLEEP_MAX)?.is_some() {
            while channel.try_wait()?.is_some() {}
        }
        self.armed = false;
        Ok(())
    }
}

fn connect_all(
    context: &Context,
    queue_pairs: Vec<(Qp, Mr)>,
    peers: &[(Endpoint, End)],
    params: &Params,
    local: &Local,
    gid_index: u8,
    layout: &Layout,
) -> anyhow::Result<Vec<Lane>> {
    context.wait_link(LINK_PATIENCE)?;
    let options = ConnectOptions {
        gid_index,
        path_mtu: params.mtu,
        rd_atomic: params.outs,
        timeout: local.qp_timeout,
        recovery: params.recovery,
        congestion: local.congestion,
        placement: local.placement,
        ..ConnectOptions::default()
    };
    let mut lanes = Vec::new();
    for ((qp, mr), (endpoint, end)) in queue_pairs.into_iter().zip(peers) {
        qp.connect(endpoint, &options).with_context(|| format!("cannot connect to {}", endpoint.gid))?;
        lanes.push(Lane {
            qp,
            mr,
            area_bytes: layout.area_bytes(),
            peer_rx_addr: end.rx_addr,
            peer_tx_addr: end.tx_addr,
            peer_rkey: RKey(end.rkey),
        });
    }
    Ok(lanes)
}

/// Tells the peer why this side gives up.
pub(super) fn tell(control: &mut Control, error: anyhow::Error) -> anyhow::Error {
    // It may be the peer that is gone.
    let _ = control.send(&Message::Failed(format!("{error:#}")));
    error
}

fn announce(json: bool) {
    if !json {
        let line = "*".repeat(36);
        println!("\n{line}\n* Waiting for client to connect... *\n{line}");
    }
}

fn exchange(control: &mut Control, own: &Hello) -> anyhow::Result<Hello> {
    control.send(&Message::Hello(Box::new(own.clone())))?;
    match control.recv()? {
        Message::Hello(hello) => Ok(*hello),
        Message::RawHello(_) => bail!("the peer runs `roce perf raw`, and this end {}", own.offer.test),
        other => Err(unexpected(&other)),
    }
}

fn peer_gids(hello: &Hello) -> anyhow::Result<Vec<(u8, Gid)>> {
    hello.gids.iter().map(|(index, ip)| Ok((*index, Gid::from(ip.parse::<std::net::IpAddr>()?)))).collect()
}

/// Kinds of GID, the one to be preferred first.
fn rank(gid: Gid) -> u8 {
    match (gid.is_ipv4(), gid.is_link_local()) {
        (true, _) => 0,
        (_, false) => 1,
        (_, true) => 2,
    }
}

/// The index of this side's GID: the user's choice, or one of the kind that the peer's user chose,
/// or of the first kind that both have.
fn choose_gid(
    own: &[(u8, Gid)],
    choice: Option<u8>,
    peer: &[(u8, Gid)],
    peer_choice: Option<u8>,
) -> anyhow::Result<u8> {
    let list = || own.iter().map(|(index, gid)| format!("{index}: {gid}")).collect::<Vec<_>>().join(", ");
    let find = |gids: &[(u8, Gid)], wanted| gids.iter().find(|(index, _)| *index == wanted).copied();
    if let Some(wanted) = choice {
        let found = find(own, wanted);
        return found
            .map(|(index, _)| index)
            .ok_or_else(|| anyhow!("-x {wanted}: there is no such GID; there are {}", list()));
    }
    let of_rank = |gids: &[(u8, Gid)], wanted| gids.iter().find(|(_, gid)| rank(*gid) == wanted).copied();
    let found = match peer_choice.and_then(|wanted| find(peer, wanted)) {
        Some((_, gid)) => of_rank(own, rank(gid)),
        None => (0..3).find_map(|rank| of_rank(peer, rank).and(of_rank(own, rank))),
    };
    found.map(|(index, _)| index).ok_or_else(|| {
        anyhow!(
            "the peer has no GID of the kinds that this end has ({}): give both ports ip= of one family",
            list()
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
