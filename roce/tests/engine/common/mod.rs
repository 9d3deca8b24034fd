//! Two engines over loopback ports, with one connected queue pair each.
#![allow(dead_code)] // each test and bench uses its part

pub(crate) mod forge;

use roce::engine::{Engine, EngineConfig, Progress, SharedObjects};
use roce::id::{Gid, LKey, Mac, QKey, Qpn, RKey};
use roce::mem::{Access, Memory, PdId};
use roce::neighbour::{Mode, NeighbourConfig};
use roce::port::loopback::{Loopback, LoopbackPort};
use roce::port::{Port, PortCaps};
use roce::psn::Psn;
use roce::qp::{AddressVector, ConnAttr, PathMtu, QpAttr, QpInit, QpState, ServiceType};
use roce::queue::{
    CqId, CqPoller, Cqe, RecvPoster, RecvRequest, SendData, SendFlags, SendOp, SendPoster, SendRequest, Sge,
    WcStatus,
};
use roce::recovery::RecoveryScheme;
use roce::start;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

/// An engine with one connected queue pair: one end of the connection.
pub(crate) struct End<P: Port = LoopbackPort> {
    pub(crate) engine: Engine<P>,
    pub(crate) pd: PdId,
    pub(crate) cq: CqId,
    pub(crate) poller: CqPoller,
    pub(crate) qpn: Qpn,
    pub(crate) send: SendPoster,
    pub(crate) recv: RecvPoster,
    pub(crate) memory: Memory,
    pub(crate) lkey: LKey,
    pub(crate) rkey: RKey,
    pub(crate) gid: Gid,
}

/// PSN of the first request of each end.
pub(crate) fn first_psn() -> Psn {
    start::psn(0xFF_FF00)
}

/// Depth of every send and receive queue, in work requests. The ring of each queue has 1,024 entries, the next power of
/// two.
pub(crate) const DEPTH: u32 = 600;

fn end<P: Port>(
    index: u8,
    port: P,
    memory_bytes: usize,
    signal_all: bool,
    change: impl Fn(&mut EngineConfig),
) -> End<P> {
    let mut config = config(index);
    change(&mut config);
    end_of(Engine::new(port, config).unwrap(), index, memory_bytes, signal_all)
}

fn ip(index: u8) -> IpAddr {
    IpAddr::V4(Ipv4Addr::new(10, 0, 0, index))
}

fn config(index: u8) -> EngineConfig {
    let mac = Mac([2, 0, 0, 0, 0, index]);
    let neighbour = NeighbourConfig {
        mac,
        mode: Mode::Shared,
        gids: vec![(ip(index), 24)],
        gateway_v4: None,
        gateway_v6: None,
        vlan: None,
    };
    EngineConfig::new([index; 32], neighbour)
}

fn end_of<P: Port>(mut engine: Engine<P>, index: u8, memory_bytes: usize, signal_all: bool) -> End<P> {
    engine.neighbour_mut().set_neighbour(ip(3 - index), Mac([2, 0, 0, 0, 0, 3 - index]));
    let pd = engine.objects().alloc_pd().unwrap();
    let (cq, poller) = engine.objects().create_cq(4 * DEPTH).unwrap();
    let init = QpInit {
        service: ServiceType::Rc,
        srq: None,
        pd,
        send_cq: cq,
        recv_cq: cq,
        max_send_wr: DEPTH,
        max_recv_wr: DEPTH,
        max_send_sge: 4,
        max_recv_sge: 4,
        max_inline_bytes: 256,
        signal_all,
    };
    let handles = engine.create_qp(&init).unwrap();
    let memory = Memory::alloc(memory_bytes);
    let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
    let (lkey, rkey) = engine.objects().register(pd, memory.clone(), memory.addr(), access).unwrap();
    let (qpn, send, recv) = (handles.qpn, handles.send, handles.recv.expect("no SRQ"));
    End { engine, pd, cq, poller, qpn, send, recv, memory, lkey, rkey, gid: ip(index).into() }
}

/// Returns attributes for go-back-N, with at most four READs at once and the shortest RNR wait.
pub(crate) fn conn(path_mtu: PathMtu) -> ConnAttr {
    ConnAttr {
        path_mtu,
        access: Access::REMOTE_WRITE | Access::REMOTE_READ,
        max_rd_atomic: 4,
        max_dest_rd_atomic: 4,
        min_rnr_timer: 1,
        recovery: RecoveryScheme::GoBackN,
        ..ConnAttr::default()
    }
}

pub(crate) fn connect<P: Port>(this: &mut End<P>, peer: Qpn, path: AddressVector, conn: &ConnAttr) {
    connect_qp(&mut this.engine, this.qpn, peer, path, conn);
}

/// Connects queue pair `qpn` to `peer`: RESET, INIT, RTR, RTS.
pub(crate) fn connect_qp<P: Port>(
    engine: &mut Engine<P>,
    qpn: Qpn,
    peer: Qpn,
    path: AddressVector,
    conn: &ConnAttr,
) {
    let service = engine.query_qp(qpn).unwrap().2.service;
    for attr in [conn.to_init(), conn.to_rtr(path, peer, first_psn()), conn.to_rts(first_psn())] {
        engine.modify_qp(qpn, &attr.of_service(service)).unwrap();
    }
}

/// Returns two connected ends with `memory_bytes` of registered memory each.
pub(crate) fn pair(mtu: PathMtu, memory_bytes: usize, signal_all: bool) -> (End, End) {
    let (port_a, port_b) = ports();
    pair_over(port_a, port_b, memory_bytes, signal_all, &conn(mtu))
}

pub(crate) fn ports() -> (LoopbackPort, LoopbackPort) {
    ports_of(1024)
}

pub(crate) fn ports_of(depth_frames: usize) -> (LoopbackPort, LoopbackPort) {
    let caps = |index| PortCaps { mac: Mac([2, 0, 0, 0, 0, index]), mtu_bytes: 4200 };
    Loopback::pair(caps(1), caps(2), depth_frames)
}

/// Like [`pair`], over `port_a` and `port_b`, and with attributes `conn`.
pub(crate) fn pair_over<P: Port, Q: Port>(
    port_a: P,
    port_b: Q,
    memory_bytes: usize,
    signal_all: bool,
    conn: &ConnAttr,
) -> (End<P>, End<Q>) {
    let a = end(1, port_a, memory_bytes, signal_all, |_| ());
    let b = end(2, port_b, memory_bytes, signal_all, |_| ());
    joined(a, b, conn)
}

/// Like [`pair`], with the configuration of both engines changed by `change`.
pub(crate) fn pair_of(mtu: PathMtu, memory_bytes: usize, change: impl Fn(&mut EngineConfig)) -> (End, End) {
    pair_of_over(ports(), mtu, memory_bytes, change)
}

/// Like [`pair`]; the first end is an engine of the device with `objects`.
pub(crate) fn pair_of_device(objects: &Arc<SharedObjects>, memory_bytes: usize) -> (End, End) {
    let (port_a, port_b) = ports();
    let engine = Engine::with_objects(port_a, config(1), objects.clone()).unwrap();
    let (a, b) = (end_of(engine, 1, memory_bytes, true), end(2, port_b, memory_bytes, true, |_| ()));
    joined(a, b, &conn(PathMtu::Mtu1024))
}

/// Like [`pair_of`], over `port_a` and `port_b`.
pub(crate) fn pair_of_over(
    (port_a, port_b): (LoopbackPort, LoopbackPort),
    mtu: PathMtu,
    memory_bytes: usize,
    change: impl Fn(&mut EngineConfig),
) -> (End, End) {
    let [a, b] =
        [(1, port_a), (2, port_b)].map(|(index, port)| end(index, port, memory_bytes, true, &change));
    joined(a, b, &conn(mtu))
}

/// Like [`pair_over`], with an unreliable connection of path MTU 256.
pub(crate) fn uc_pair_over<P: Port, Q: Port>(port_a: P, port_b: Q, memory_bytes: usize) -> (End<P>, End<Q>) {
    let mut a = end(1, port_a, memory_bytes, true, |_| ());
    let mut b = end(2, port_b, memory_bytes, true, |_| ());
    a.replace_qp(ServiceType::Uc);
    b.replace_qp(ServiceType::Uc);
    joined(a, b, &conn(PathMtu::Mtu256))
}

/// Like [`pair_over`], with queue pairs of UD in RTS, whose Q_Key is `qkey`. Each end knows the MAC of the other end's
/// IPv4 address and link-local address.
pub(crate) fn ud_pair_over<P: Port, Q: Port>(
    port_a: P,
    port_b: Q,
    memory_bytes: usize,
    qkey: QKey,
) -> (End<P>, End<Q>) {
    let mut a = end(1, port_a, memory_bytes, true, |_| ());
    let mut b = end(2, port_b, memory_bytes, true, |_| ());
    a.replace_qp(ServiceType::Ud);
    b.replace_qp(ServiceType::Ud);
    let (mac_a, mac_b) = (a.engine.port().caps().mac, b.engine.port().caps().mac);
    a.engine.neighbour_mut().set_neighbour(mac_b.link_local().into(), mac_b);
    b.engine.neighbour_mut().set_neighbour(mac_a.link_local().into(), mac_a);
    start_datagrams(&mut a.engine, a.qpn, qkey);
    start_datagrams(&mut b.engine, b.qpn, qkey);
    (a, b)
}

/// Moves a queue pair of UD from RESET to RTS.
pub(crate) fn start_datagrams<P: Port>(engine: &mut Engine<P>, qpn: Qpn, qkey: QKey) {
    let conn = ConnAttr::default();
    let init = QpAttr { qkey: Some(qkey), ..conn.to_init() };
    let to_rtr = QpAttr { state: Some(QpState::Rtr), ..QpAttr::default() };
    for attr in [init, to_rtr, conn.to_rts(first_psn())] {
        engine.modify_qp(qpn, &attr.of_service(ServiceType::Ud)).unwrap();
    }
}

fn joined<P: Port, Q: Port>(mut a: End<P>, mut b: End<Q>, conn: &ConnAttr) -> (End<P>, End<Q>) {
    connect(&mut a, b.qpn, AddressVector::new(b.gid, 1), conn);
    connect(&mut b, a.qpn, AddressVector::new(a.gid, 1), conn);
    (a, b)
}

pub(crate) fn post_send(send: &mut SendPoster, wr_id: u64, op: SendOp, sge: Sge) {
    let data = SendData::Sges(&[sge]);
    send.post(&SendRequest { wr_id, op, flags: SendFlags::default(), data }).unwrap();
}

pub(crate) fn post_recv(recv: &mut RecvPoster, wr_id: u64, sge: Sge) {
    recv.post(&RecvRequest { wr_id, sges: &[sge] }).unwrap();
}

impl<P: Port> End<P> {
    pub(crate) fn sge(&self, offset: usize, len_bytes: u32) -> Sge {
        Sge { addr: self.memory.addr() + offset as u64, len_bytes, lkey: self.lkey }
    }

    pub(crate) fn post(&mut self, wr_id: u64, op: SendOp, sge: Sge) {
        post_send(&mut self.send, wr_id, op, sge);
    }

    pub(crate) fn post_recv(&mut self, wr_id: u64, sge: Sge) {
        post_recv(&mut self.recv, wr_id, sge);
    }

    /// Returns parameters of a queue pair: one work request per queue, one scatter/gather entry per work request.
    pub(crate) fn small_qp(&self) -> QpInit {
        QpInit {
            service: ServiceType::Rc,
            srq: None,
            pd: self.pd,
            send_cq: self.cq,
            recv_cq: self.cq,
            max_send_wr: 1,
            max_recv_wr: 1,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_bytes: 0,
            signal_all: false,
        }
    }

    /// Replaces the queue pair by a queue pair of `service`, in RESET.
    fn replace_qp(&mut self, service: ServiceType) {
        let (_, _, init) = self.engine.query_qp(self.qpn).unwrap();
        self.engine.destroy_qp(self.qpn).unwrap();
        let handles = self.engine.create_qp(&QpInit { service, ..init }).unwrap();
        (self.qpn, self.send, self.recv) = (handles.qpn, handles.send, handles.recv.expect("no SRQ"));
    }

    /// Creates a further queue pair, which stays in RESET.
    pub(crate) fn create_idle_qp(&mut self) -> Qpn {
        self.engine.create_qp(&self.small_qp()).unwrap().qpn
    }

    /// Polls the engine at `nanos` nanoseconds after `start::instant()`.
    pub(crate) fn poll(&mut self, nanos: u64) -> Progress {
        self.engine.poll(start::instant().plus_nanos(nanos))
    }

    pub(crate) fn completions(&mut self) -> Vec<Cqe> {
        std::iter::from_fn(|| self.poller.pop()).collect()
    }
}

/// Polls both ends in turn until both are idle.
pub(crate) fn settle(a: &mut End, b: &mut End) {
    for nanos in 0..100_000 {
        let now = start::instant().plus_nanos(nanos);
        let idle = a.engine.poll(now).is_idle() & b.engine.poll(now).is_idle();
        if idle {
            return;
        }
    }
    panic!("two engines talk for ever");
}

/// Removes the completions of `end`. Returns the number of the work request and the status of each completion.
pub(crate) fn statuses(end: &mut End) -> Vec<(u64, WcStatus)> {
    end.completions().iter().map(|cqe| (cqe.wr_id, cqe.status)).collect()
}

pub(crate) fn state_of(end: &End) -> QpState {
    end.engine.query_qp(end.qpn).unwrap().0
}

/// Removes and returns all frames in flight to `port`.
pub(crate) fn take(port: &mut LoopbackPort) -> Vec<Vec<u8>> {
    let mut frames = Vec::new();
    port.rx_burst(&mut frames, usize::MAX);
    frames.iter().map(|frame| frame.as_ref().to_vec()).collect()
}

/// Sends `frame` from `port`.
pub(crate) fn put(port: &mut LoopbackPort, frame: &[u8]) {
    port.tx_reserve(frame.len()).unwrap().copy_from_slice(frame);
    port.tx_flush();
}
