//! One engine on a link with two honest stations and a stranger. `run` executes a script and checks the invariants
//! below. The fuzz target, the replay of its corpus and a property test call `run`.
//!
//! ```text
//!   bytes --tape--> steps --> ARP, neighbour discovery, echo, raw frames --> Engine::poll --> frames --> checks
//!                                                       honest answers <----------------------'
//! ```
//!
//! * If a station has answered every query with one MAC, packets to the station have this destination MAC.
//! * A poll sends at most `NEIGHBOUR_FRAMES_PER_POLL` frames that are not RoCE.
//! * The neighbour cache and the memory that the engine allocates are bounded.
//! * The engine becomes idle after each step.

mod frames;
mod tape;

use crate::wire_port::WirePort;
use frames::Question;
use roce::engine::limits::{DeviceLimits, NEIGHBOUR_FRAMES_PER_POLL};
use roce::engine::{Engine, EngineConfig};
use roce::id::{Gid, Mac, Qpn};
use roce::mem::Access;
use roce::neighbour::{Mode, NeighbourConfig, Resolution};
use roce::psn::Psn;
use roce::qp::{AddressVector, ConnAttr, PathMtu, QpInit, ServiceType};
use roce::queue::{SendData, SendFlags, SendOp, SendPoster, SendRequest};
use roce::recovery::RecoveryScheme;
use roce::time::Instant;
use roce::wire::Packet;
use std::net::IpAddr;
use tape::Step;

pub(crate) const OWN_MAC: Mac = Mac([2, 0, 0, 0, 0, 1]);
/// Largest number of polls per step until the engine is idle.
const POLLS_MAX: usize = 400;
/// Largest net allocation of the engine in one run, in bytes: queued replies, and the neighbour cache.
const ALLOCATED_MAX_BYTES: i64 = 256 << 10;
/// Bound of the neighbour cache, in entries: six addresses that a script can resolve, and the two connected peers.
const NEIGHBOURS_MAX: usize = 8;

/// Counts of a run. Tests assert minimum counts, to ensure that scripts reach rare states.
#[derive(Clone, Copy, Debug, Default)]
#[allow(dead_code)] // the fuzz target counts nothing
pub(crate) struct Tally {
    pub(crate) moves_claimed: u64,
    pub(crate) moves_refuted: u64,
    pub(crate) moves_followed: u64,
    pub(crate) conflicts: u64,
    pub(crate) answers: u64,
    pub(crate) packets: u64,
}

/// An honest station and its connection.
struct Station {
    ip: IpAddr,
    mac: Mac,
    /// True while the station answers queries.
    is_there: bool,
    /// True if the station has answered every query, always with the same MAC.
    is_faithful: bool,
    send: SendPoster,
}

struct Link {
    engine: Engine<WirePort>,
    stations: Vec<Station>,
    now: Instant,
    allocated_bytes: i64,
    tally: Tally,
}

/// Runs the script that `bytes` encode; panics if an invariant does not hold.
pub(crate) fn run(bytes: &[u8]) -> Tally {
    let mut link = Link::new();
    for step in tape::script(bytes) {
        link.step(step);
    }
    let counters = link.engine.neighbour().counters();
    Tally {
        moves_claimed: counters.moves_claimed,
        moves_refuted: counters.moves_refuted,
        moves_followed: counters.moves_followed,
        conflicts: counters.address_conflicts,
        answers: counters.arp_replies_tx + counters.nd_advertisements_tx + counters.echo_replies_tx,
        ..link.tally
    }
}

/// Returns an address of the link; `last` is the last byte.
pub(crate) fn address(is_ipv6: bool, last: u8) -> IpAddr {
    if is_ipv6 {
        IpAddr::from([0xFD00, 0, 0, 0, 0, 0, 0, u16::from(last)])
    } else {
        IpAddr::from([10, 0, 0, last])
    }
}

impl Link {
    fn new() -> Self {
        let neighbour = NeighbourConfig {
            mac: OWN_MAC,
            mode: Mode::Dedicated,
            gids: vec![(address(false, 1), 24), (address(true, 1), 64)],
            gateway_v4: None,
            gateway_v6: None,
            vlan: None,
        };
        let mut config = EngineConfig::new([7; 32], neighbour);
        config.limits =
            DeviceLimits { max_pds: 2, max_mrs: 2, max_cqs: 2, max_qps: 4, ..DeviceLimits::default() };
        let engine = Engine::new(WirePort::new(OWN_MAC), config).unwrap();
        let mut link = Link {
            engine,
            stations: Vec::new(),
            now: Instant::from_nanos(1),
            allocated_bytes: 0,
            tally: Tally::default(),
        };
        for (is_ipv6, last) in [(false, 2), (true, 3)] {
            link.connect(address(is_ipv6, last), Mac([2, 0, 0, 0, 0, last]));
        }
        link
    }

    /// Adds an honest station, connected to a queue pair.
    fn connect(&mut self, ip: IpAddr, mac: Mac) {
        let pd = self.engine.objects().alloc_pd().unwrap();
        let (cq, _) = self.engine.objects().create_cq(1024).unwrap();
        let init = QpInit {
            service: ServiceType::Rc,
            srq: None,
            pd,
            send_cq: cq,
            recv_cq: cq,
            max_send_wr: 64,
            max_recv_wr: 1,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_bytes: 64,
            signal_all: false,
        };
        let handles = self.engine.create_qp(&init).unwrap();
        self.stations.push(Station { ip, mac, is_there: true, is_faithful: true, send: handles.send });
        self.engine.resolve(Gid::from(ip));
        self.settle();
        let path = AddressVector::new(Gid::from(ip), if ip.is_ipv4() { 1 } else { 2 });
        let conn = ConnAttr {
            path_mtu: PathMtu::Mtu256,
            access: Access::NONE,
            max_rd_atomic: 1,
            max_dest_rd_atomic: 1,
            min_rnr_timer: 1,
            recovery: RecoveryScheme::GoBackN,
            ..ConnAttr::default()
        };
        let (peer, first_psn) = (Qpn::new(0x1234), Psn::new(0));
        for attr in [conn.to_init(), conn.to_rtr(path, peer, first_psn), conn.to_rts(first_psn)] {
            self.engine.modify_qp(handles.qpn, &attr).unwrap();
        }
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Frame(frame) => self.put(frame),
            Step::Wait(nanos) => self.now = self.now.plus_nanos(nanos),
            Step::Resolve { is_ipv6, last } => drop(self.engine.resolve(address(is_ipv6, last).into())),
            Step::Leave(index) => {
                let station = &mut self.stations[index];
                (station.is_there, station.is_faithful) = (!station.is_there, false);
            }
            Step::Move(index, mac) => {
                let station = &mut self.stations[index];
                (station.mac, station.is_there, station.is_faithful) = (mac, true, false);
                let announcement = frames::announcement(station.ip, mac);
                self.put(announcement);
            }
            Step::Send(index) => {
                let op = SendOp::Write { remote_addr: 0, rkey: roce::id::RKey(1) };
                let data = SendData::Inline(&[0x55; 64]);
                // The result is ignored, because the send queue may be full or in error.
                let _ = self.stations[index].send.post(&SendRequest {
                    wr_id: 0,
                    op,
                    flags: SendFlags::default(),
                    data,
                });
            }
        }
        self.settle();
        self.check();
    }

    fn put(&mut self, frame: Vec<u8>) {
        self.engine.port_mut().incoming.push_back(frame.into());
    }

    /// Polls until no frame is in flight. Honest stations answer each query at once.
    fn settle(&mut self) {
        for _ in 0..POLLS_MAX {
            let (engine, now) = (&mut self.engine, self.now);
            let measured = allocation_counter::measure(|| {
                engine.poll(now);
            });
            self.allocated_bytes += measured.bytes_current;
            let sent = self.engine.port_mut().take_sent();
            let packets = sent.iter().filter(|frame| self.on_packet(frame)).count();
            assert!(sent.len() - packets <= NEIGHBOUR_FRAMES_PER_POLL, "a poll sends {} frames", sent.len());
            self.tally.packets += packets as u64;
            sent.iter().for_each(|frame| self.answer(frame));
            if sent.is_empty() && self.engine.port().incoming.is_empty() {
                return;
            }
        }
        panic!("the engine does not come to rest");
    }

    /// Returns whether `frame` is RoCE. Panics if a packet to an `is_faithful` station has a wrong destination MAC.
    fn on_packet(&self, frame: &[u8]) -> bool {
        let Ok(packet) = Packet::parse(frame) else { return false };
        let to = self.stations.iter().find(|station| packet.is_to(&Gid::from(station.ip)));
        let to = to.expect("no packet goes elsewhere");
        assert!(
            !to.is_faithful || packet.dst_mac() == to.mac,
            "a packet for {} went to {}",
            to.ip,
            packet.dst_mac()
        );
        true
    }

    fn answer(&mut self, frame: &[u8]) {
        let Some(Question { target, asker, to }) = frames::question(frame) else { return };
        let answers = self.stations.iter().filter(|station| {
            station.is_there && station.ip == target && (to == station.mac || to.is_group())
        });
        let answers: Vec<_> = answers.map(|station| frames::answer(target, station.mac, asker)).collect();
        answers.into_iter().for_each(|answer| self.put(answer));
    }

    fn check(&mut self) {
        for station in self.stations.iter().filter(|station| station.is_faithful) {
            let found = self.engine.resolve(Gid::from(station.ip));
            assert_eq!(found, Resolution::Known(station.mac), "{} is faithful", station.ip);
        }
        assert!(self.engine.neighbour().neighbour_count() <= NEIGHBOURS_MAX);
        assert!(self.allocated_bytes <= ALLOCATED_MAX_BYTES, "{} bytes", self.allocated_bytes);
    }
}
