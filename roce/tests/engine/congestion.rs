//! CNPs from end to end: packets that elicit CNPs, and queue pairs that reduce their rate.

use crate::common::{End, conn, connect, pair, pair_over, ports, put, settle, take};
use roce::congestion::CongestionScheme;
use roce::id::{Gid, Mac, PKey, Qpn};
use roce::port::Port;
use roce::psn::Psn;
use roce::qp::{AddressVector, ConnAttr, PathMtu, QpAttr, QpState};
use roce::queue::{SendOp, WcStatus};
use roce::start;
use roce::wire::{HeaderSpec, HeaderTemplate, Opcode, PacketSpec, PrecedingReads};
use std::net::Ipv4Addr;

const MTU: PathMtu = PathMtu::Mtu1024;

/// Returns two connected ends. The first end has `scheme` and `traffic_class`.
fn connected(scheme: &str, traffic_class: u8) -> (End, End) {
    let (mut a, b) = pair(MTU, 1 << 16, true);
    let reset = QpAttr { state: Some(QpState::Reset), ..QpAttr::default() };
    a.engine.modify_qp(a.qpn, &reset).unwrap();
    let scheme: CongestionScheme = scheme.parse().unwrap();
    let path = AddressVector { traffic_class, ..AddressVector::new(b.gid, 1) };
    connect(&mut a, b.qpn, path, &ConnAttr { congestion: Some(scheme), ..conn(MTU) });
    (a, b)
}

/// A CNP, with fields that may be wrong.
#[derive(Clone, Copy)]
struct Cnp {
    src: Gid,
    qpn: Qpn,
    becn: bool,
    sound: bool,
}

impl Cnp {
    fn of(a: &End, b: &End) -> Cnp {
        Cnp { src: b.gid, qpn: a.qpn, becn: true, sound: true }
    }

    /// Sends the CNP from the port of `b`, and polls `a`, which receives the CNP.
    fn send(self, a: &mut End, b: &mut End, nanos: u64) {
        let template = HeaderTemplate::new(&HeaderSpec {
            src_mac: Mac([2, 0, 0, 0, 0, 2]),
            dst_mac: Mac([2, 0, 0, 0, 0, 1]),
            vlan: None,
            src: self.src,
            dst: a.gid,
            tclass: 0xC2,
            ttl: 64,
            flow_label: 0,
            udp_source_port: 0,
            pkey: PKey::DEFAULT,
            dest_qp: self.qpn,
        })
        .unwrap();
        let spec = PacketSpec {
            opcode: Opcode::CNP,
            solicited: false,
            ack_req: false,
            preceding_reads: PrecedingReads::NONE,
            fecn: false,
            becn: self.becn,
            psn: Psn::new(0),
            ip_id: 0,
            payload_len: 0,
        };
        let port = b.engine.port_mut();
        let frame = port.tx_reserve(template.frame_len(16, 0)).unwrap();
        template.write(frame, &spec).unwrap().ext.fill(0);
        template.seal(frame).unwrap();
        if !self.sound {
            frame[60] ^= 1;
        }
        port.tx_flush();
        a.poll(nanos);
    }
}

fn rate(a: &End) -> Option<u64> {
    a.engine.qp_congestion(a.qpn).and_then(|congestion| congestion.rate_bits_per_sec())
}

#[test]
fn a_notification_from_the_peer_slows_the_queue_pair_down() {
    let (mut a, mut b) = connected("dcqcn:rpg_max_rate=10000", 0);
    assert_eq!(rate(&a), None);
    Cnp::of(&a, &b).send(&mut a, &mut b, 1);
    assert_eq!(rate(&a), Some(10_000_000_000 - 10_000_000_000 * 1023 / 2048));
    assert_eq!(a.engine.counters().rp_cnp_handled, 1);
}

#[test]
fn one_that_is_wrong_in_any_way_does_not() {
    let (mut a, mut b) = connected("dcqcn", 0);
    let right = Cnp::of(&a, &b);
    let stranger = Gid::from(Ipv4Addr::new(10, 0, 0, 77));
    Cnp { src: stranger, ..right }.send(&mut a, &mut b, 1);
    assert_eq!(a.engine.drop_counters().wrong_source, 1);
    Cnp { qpn: Qpn::new(right.qpn.value() ^ 0x80_0000), ..right }.send(&mut a, &mut b, 2);
    assert_eq!(a.engine.drop_counters().unknown_qp, 1);
    Cnp { sound: false, ..right }.send(&mut a, &mut b, 3);
    assert_eq!(a.engine.drop_counters().rx_icrc_errors, 1);
    Cnp { becn: false, ..right }.send(&mut a, &mut b, 4);
    assert_eq!(a.engine.counters().rp_cnp_ignored, 1);
    let counters = a.engine.counters();
    assert_eq!((rate(&a), counters.rp_cnp_handled, counters.rcvd_pkts), (None, 0, 1));
}

#[test]
fn schemes_that_need_no_marks_count_and_ignore_it() {
    for scheme in ["none", "window", "swift", "timely"] {
        let (mut a, mut b) = connected(scheme, 0);
        let before = rate(&a);
        Cnp::of(&a, &b).send(&mut a, &mut b, 1);
        assert_eq!(a.engine.counters().rp_cnp_ignored, 1, "{scheme}");
        assert_eq!(rate(&a), before, "{scheme}");
    }
}

#[test]
fn a_flood_of_notifications_stops_at_the_least_rate_and_stops_nothing() {
    let (mut a, mut b) = connected("dcqcn:nvidia,rpg_min_rate=100", 0);
    let cnp = Cnp::of(&a, &b);
    for nanos in 0..20_000 {
        cnp.send(&mut a, &mut b, 10 * nanos);
        assert!(rate(&a).is_some_and(|rate| rate >= 100_000_000), "{:?}", rate(&a));
    }
    assert_eq!(rate(&a), Some(100_000_000));
    assert_eq!(a.engine.counters().rp_cnp_handled, 20_000);
    let (sge, remote_addr, rkey) = (a.sge(0, 8192), b.memory.addr(), b.rkey);
    a.post(1, SendOp::Write { remote_addr, rkey }, sge);
    // At the minimum rate (100 Mbit/s), each of the eight packets takes 87 us, so the transfer takes less than the 800
    // us of the polls.
    for nanos in (200_000..1_000_000).step_by(500) {
        a.poll(nanos);
        b.poll(nanos);
    }
    assert_eq!(a.completions().len(), 1);
}

#[test]
fn marked_data_is_answered_and_marked_acknowledgements_are_not() {
    // Traffic class 3: all packets of the first end have a CE mark.
    let (mut a, mut b) = connected("window", 3);
    let (sge, remote_addr, rkey) = (a.sge(0, 8192), b.memory.addr(), b.rkey);
    a.post(1, SendOp::Write { remote_addr, rkey }, sge);
    settle(&mut a, &mut b);
    assert_eq!(a.completions().len(), 1);
    let [counters_a, counters_b] = [&a, &b].map(|end| end.engine.counters());
    assert_eq!(counters_b.np_ecn_marked_roce_packets, 8);
    assert_eq!(counters_b.np_cnp_sent, 1, "for all came within 4 us");
    assert_eq!((counters_a.rp_cnp_ignored, counters_a.np_ecn_marked_roce_packets), (1, 0));
    // The ACKs and READ requests of the first end have a CE mark.
    let (sge, remote_addr, rkey) = (b.sge(0, 1024), a.memory.addr(), a.rkey);
    b.post(2, SendOp::Write { remote_addr, rkey }, sge);
    settle(&mut a, &mut b);
    let (sge, remote_addr, rkey) = (a.sge(0, 1024), b.memory.addr(), b.rkey);
    a.post(3, SendOp::Read { remote_addr, rkey }, sge);
    settle(&mut a, &mut b);
    let counters_b = b.engine.counters();
    assert_eq!((counters_b.np_ecn_marked_roce_packets, counters_b.np_cnp_sent), (10, 1));
}

/// A push advances the time of the engine, but does not expire timers. If a push passes the time at which the pacer
/// permits a packet, the engine must still have the timer of the pacer.
#[test]
fn a_push_does_not_drop_the_timer_of_a_pacer() {
    let (mut a, mut b) = connected("dcqcn:nvidia,rpg_min_rate=100,rpg_max_rate=10000", 0);
    let cnp = Cnp::of(&a, &b);
    (0..20_000).for_each(|nanos| cnp.send(&mut a, &mut b, 10 * nanos));
    let (sge, remote_addr, rkey) = (a.sge(0, 8192), b.memory.addr(), b.rkey);
    a.post(1, SendOp::Write { remote_addr, rkey }, sge);
    a.poll(200_000);
    let sent = a.engine.counters().sent_pkts;
    assert!(sent < 8, "the pacer delays the rest");
    a.engine.settle_timers();
    let permit_at = a.engine.next_deadline().unwrap();
    a.engine.push(permit_at.plus_nanos(1));
    a.engine.settle_timers();
    assert!(a.engine.next_deadline().unwrap() <= permit_at, "a poll is due");
    a.poll(permit_at.nanos_since(start::instant()) + 2);
    assert_eq!(a.engine.counters().sent_pkts, sent + 1);
}

/// Returns the rate of the first end, under DCQCN with `loss_after_cnp`, after a CNP and then `scenario`. The rate does
/// not increase before 131 ms.
fn rate_after(loss_after_cnp: u32, scenario: fn(&mut End, &mut End)) -> u64 {
    let scheme = format!("dcqcn:rpg_max_rate=10000,rpg_time_reset=131071,loss_after_cnp={loss_after_cnp}");
    let (mut a, mut b) = connected(&scheme, 0);
    Cnp::of(&a, &b).send(&mut a, &mut b, 1);
    scenario(&mut a, &mut b);
    rate(&a).unwrap()
}

/// Polls `from` for 10 us, drops the first of the frames sent to `to`, and delivers the others at 70 us.
fn lose_first(from: &mut End, to: &mut End) {
    (0..10).for_each(|step| _ = from.poll(60_000 + 1000 * step));
    let frames = take(to.engine.port_mut());
    assert_eq!(frames.len(), 4);
    frames.iter().skip(1).for_each(|frame| put(from.engine.port_mut(), frame));
    to.poll(70_000);
    from.poll(71_000);
}

fn lose_a_request(a: &mut End, b: &mut End) {
    let (sge, remote_addr, rkey) = (a.sge(0, 4096), b.memory.addr(), b.rkey);
    a.post(1, SendOp::Write { remote_addr, rkey }, sge);
    lose_first(a, b);
    assert_eq!(a.engine.counters().packet_seq_err, 1);
}

/// The second end requests the READ response again that was lost.
fn lose_a_response(a: &mut End, b: &mut End) {
    let (sge, remote_addr, rkey) = (b.sge(0, 4096), a.memory.addr(), a.rkey);
    b.post(1, SendOp::Read { remote_addr, rkey }, sge);
    b.poll(2);
    lose_first(a, b);
    (0..10).for_each(|step| _ = a.poll(72_000 + 1000 * step));
    assert_eq!(a.engine.counters().duplicate_request, 1);
}

fn lose_all_requests(a: &mut End, b: &mut End) {
    let (sge, remote_addr, rkey) = (a.sge(0, 64), b.memory.addr(), b.rkey);
    a.post(1, SendOp::Write { remote_addr, rkey }, sge);
    a.poll(2);
    a.poll(90_000_000);
    assert_eq!(a.engine.counters().local_ack_timeout_err, 1);
}

#[test]
fn a_loss_slows_the_queue_pair_down_soon_after_a_notification() {
    let first = 10_000_000_000 - 10_000_000_000 * 1023 / 2048;
    for (name, scenario, others) in [
        ("a NAK", lose_a_request as fn(&mut End, &mut End), &[0, 50][..]),
        ("a response requested again", lose_a_response, &[0, 50]),
        ("a timeout", lose_all_requests, &[0]),
    ] {
        assert!(rate_after(400, scenario) < first, "{name}");
        for loss_after_cnp in others {
            assert_eq!(rate_after(*loss_after_cnp, scenario), first, "{name}, {loss_after_cnp}");
        }
    }
}

/// At 1 Mbit/s a packet takes 8.7 ms, and the local ACK timeout is 1 ms: it passes several times before the pacer
/// permits a retransmission.
#[test]
fn each_retry_is_a_retransmission_though_the_pacer_delays_it() {
    for recovery in ["go-back-n", "improved-go-back-n", "selective-repeat:64"] {
        let scheme = "dcqcn:rpg_min_rate=1,rpg_max_rate=10000,rpg_time_reset=131071".parse().unwrap();
        let attr = ConnAttr {
            congestion: Some(scheme),
            recovery: recovery.parse().unwrap(),
            timeout: 8,
            retry_count: 3,
            ..conn(MTU)
        };
        let (port_a, port_b) = ports();
        let (mut a, mut b) = pair_over(port_a, port_b, 1 << 16, true, &attr);
        let cnp = Cnp::of(&a, &b);
        (0..100).for_each(|step| cnp.send(&mut a, &mut b, 50_000 * step));
        assert_eq!(rate(&a), Some(1_000_000));
        let (sge, remote_addr, rkey) = (a.sge(0, 1024), b.memory.addr(), b.rkey);
        a.post(1, SendOp::Write { remote_addr, rkey }, sge);
        let failed = (50..5000).find_map(|step| {
            a.poll(100_000 * step);
            a.completions().first().map(|cqe| cqe.status)
        });
        assert_eq!(failed, Some(WcStatus::RetryExcErr), "{recovery}");
        let retransmitted_pkts = a.engine.counters().retransmitted_pkts;
        assert!(retransmitted_pkts >= 3, "{recovery}: {retransmitted_pkts} for three retries");
    }
}
