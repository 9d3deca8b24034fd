use proptest::prelude::*;

use super::plan::{CONNECTIONS_MAX, EVENTS_MAX};
use super::*;
use crate::id::{Mac, PKey};
use crate::port::impairment::{BEHIND_PKTS_MAX, DELAY_NANOS_MAX, Impairment};
use crate::port::loopback::{Loopback, LoopbackPort};
use crate::wire::{HeaderSpec, HeaderTemplate, PacketSpec, PrecedingReads};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

const CAPS: PortCaps = PortCaps { mac: Mac([2, 0, 0, 0, 0, 1]), mtu_bytes: 1500 };
const SEND: Opcode = Opcode::RC_SEND_MIDDLE;
const ACK: Opcode = Opcode::RC_ACKNOWLEDGE;
const V4: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2));
const V6: IpAddr = IpAddr::V6(Ipv6Addr::new(0xFD00, 0, 0, 0, 0, 0, 0, 2));
const PAYLOAD: [u8; 16] = [7; 16];

fn template(qpn: u32, to: IpAddr, vlan: Option<u16>) -> HeaderTemplate {
    HeaderTemplate::new(&HeaderSpec {
        src_mac: CAPS.mac,
        dst_mac: Mac([2, 0, 0, 0, 0, 2]),
        vlan,
        src: if to.is_ipv4() { Gid::from(Ipv4Addr::new(10, 0, 0, 1)) } else { Gid::from(to) },
        dst: Gid::from(to),
        tclass: 0,
        ttl: 64,
        flow_label: 0,
        udp_source_port: 0xC000,
        pkey: PKey::DEFAULT,
        dest_qp: Qpn::new(qpn),
    })
    .unwrap()
}

struct Bench {
    port: Events<LoopbackPort>,
    far: LoopbackPort,
}

impl Bench {
    fn new(events: &[PacketEvent]) -> Self {
        let (near, far) = Loopback::pair(CAPS, CAPS, 256);
        Bench { port: Events::new(near, EventPlan::new(events.to_vec()).unwrap()), far }
    }

    fn at(&mut self, nanos: u64) -> &mut Self {
        self.port.set_now(Instant::from_nanos(nanos));
        self
    }

    fn send(&mut self, template: &HeaderTemplate, opcode: Opcode, psn: u32) {
        let payload_len = if opcode == ACK { 0 } else { PAYLOAD.len() };
        let spec = PacketSpec {
            opcode,
            solicited: false,
            ack_req: false,
            preceding_reads: PrecedingReads::NONE,
            fecn: false,
            becn: false,
            psn: Psn::new(psn),
            ip_id: 9,
            payload_len,
        };
        let ext_len = opcode.info().unwrap().ext_len_bytes;
        let frame = self.port.tx_reserve(template.frame_len(ext_len, payload_len)).unwrap();
        let parts = template.write(frame, &spec).unwrap();
        parts.payload.copy_from_slice(&PAYLOAD[..payload_len]);
        parts.ext.fill(0);
        template.seal(frame).unwrap();
        self.port.tx_flush();
    }

    fn sends(&mut self, psns: impl IntoIterator<Item = u32>) -> &mut Self {
        let template = template(0x11, V4, None);
        psns.into_iter().for_each(|psn| self.send(&template, SEND, psn));
        self
    }

    fn frames(&mut self) -> Vec<Vec<u8>> {
        let mut frames = Vec::new();
        self.port.tx_flush();
        self.far.rx_burst(&mut frames, 1000);
        frames.iter().map(|frame| frame.as_ref().to_vec()).collect()
    }

    fn arrived(&mut self) -> Vec<u32> {
        let frames = self.frames();
        let psn = |frame: &Vec<u8>| {
            let packet = Packet::parse(frame).unwrap();
            assert!(packet.icrc_ok());
            packet.bth.psn.value()
        };
        frames.iter().map(psn).collect()
    }

    fn fired(&self) -> Vec<Option<Firing>> {
        self.port.outcomes().iter().map(|outcome| outcome.fired).collect()
    }
}

fn event(psn: u32, pass: u32, impairment: Impairment) -> PacketEvent {
    let (qp, psn) = (EventQp::Number(1), EventPsn::Relative(psn));
    PacketEvent { qp, space: PsnSpace::Request, psn, opcode: None, pass, impairment }
}

#[test]
fn the_nth_packet_and_its_retransmission_are_dropped_once_each() {
    for first in [0, 5, 0xFF_FFFE] {
        let psns = |range: std::ops::Range<u32>| range.map(|n| (first + n) & 0xFF_FFFF).collect::<Vec<_>>();
        let mut bench = Bench::new(&[event(5, 1, Impairment::Drop), event(5, 2, Impairment::Drop)]);
        bench.at(1000).sends(psns(0..8));
        assert_eq!(bench.arrived(), [psns(0..4), psns(5..8)].concat());
        bench.at(3000).sends(psns(4..6));
        assert_eq!(bench.arrived(), psns(5..6));
        bench.at(10_000).sends(psns(4..6));
        assert_eq!(bench.arrived(), psns(4..6));
        let firing = |after_nanos, retransmitted| Firing {
            after_nanos,
            dest_qpn: Qpn::new(0x11),
            psn: Psn::new(first + 4),
            opcode: SEND,
            retransmitted_after_nanos: Some(retransmitted),
        };
        assert_eq!(bench.fired(), [Some(firing(0, 2000)), Some(firing(2000, 7000))]);
    }
}

#[test]
fn an_event_of_a_send_acts_on_a_numbered_one_too() {
    for opcode in [Opcode::RC_SEND_ONLY, Opcode::RC_NUMBERED_SEND_ONLY] {
        let only = PacketEvent { opcode: Some(opcode), ..event(1, 1, Impairment::Drop) };
        let mut bench = Bench::new(&[PacketEvent { psn: EventPsn::Any, ..only }]);
        let template = template(0x11, V4, None);
        bench.send(&template, SEND, 0);
        bench.send(&template, Opcode::RC_NUMBERED_SEND_ONLY, 1);
        bench.send(&template, Opcode::RC_NUMBERED_SEND_MIDDLE, 2);
        assert_eq!(bench.arrived(), [0, 2], "{opcode}");
    }
}

#[test]
fn a_psn_may_be_as_on_the_wire_or_any() {
    let absolute = EventPsn::Absolute(Psn::new(3));
    let mut bench = Bench::new(&[
        PacketEvent { psn: absolute, ..event(1, 1, Impairment::Drop) },
        PacketEvent { psn: EventPsn::Any, ..event(1, 6, Impairment::Drop) },
    ]);
    bench.sends([0xFF_FFFF, 0, 1, 2, 3, 4, 5]);
    assert_eq!(bench.arrived(), [0xFF_FFFF, 0, 1, 2, 5]);
    assert_eq!(bench.port.outcomes()[1].passes, 6);
    bench.at(50).sends([4]);
    assert_eq!(bench.fired()[1].unwrap().retransmitted_after_nanos, Some(50));
}

#[test]
fn a_psn_that_comes_round_again_is_another() {
    let mut bench = Bench::new(&[event(2, 2, Impairment::Drop)]);
    let step = 1 << 22;
    bench.sends([0, 1, step, 2 * step, 3 * step, 0, 1]);
    assert_eq!(bench.arrived().len(), 7);
    assert_eq!(bench.port.outcomes()[0].passes, 1);
}

#[test]
fn damaged_and_marked_frames_differ_in_that_alone() {
    for (to, vlan) in [(V4, None), (V6, None), (V4, Some(5)), (V6, Some(5))] {
        let template = template(0x11, to, vlan);
        let [mut plain, mut with] =
            [&[][..], &[event(1, 1, Impairment::CORRUPT_ICRC), event(2, 1, Impairment::MarkCe)]]
                .map(Bench::new);
        for bench in [&mut plain, &mut with] {
            bench.send(&template, SEND, 0);
            bench.send(&template, SEND, 1);
        }
        let (plain, with) = (plain.frames(), with.frames());
        let [damaged, marked] = [0, 1].map(|at| Packet::parse(&with[at]).unwrap());
        assert!(!damaged.icrc_ok() && !damaged.congestion_experienced());
        let flipped: u32 = plain[0].iter().zip(&with[0]).map(|(a, b)| (a ^ b).count_ones()).sum();
        assert_eq!(flipped, 1);
        assert!(marked.icrc_ok() && marked.congestion_experienced());
        assert_eq!(marked.l3()[20..], Packet::parse(&plain[1]).unwrap().l3()[20..]);
    }
}

#[test]
fn a_doubled_packet_goes_twice_and_counts_once() {
    let mut bench = Bench::new(&[event(2, 1, Impairment::Duplicate), event(2, 2, Impairment::Drop)]);
    bench.sends([0, 1, 2, 1, 3]);
    assert_eq!(bench.arrived(), [0, 1, 1, 2, 3]);
}

#[test]
fn a_delayed_packet_goes_at_its_time() {
    let mut bench = Bench::new(&[event(2, 1, Impairment::Delay { nanos: 5000 })]);
    bench.at(100).sends([0, 1, 2]);
    assert_eq!(bench.arrived(), [0, 2]);
    bench.at(5099).sends([3]);
    assert_eq!(bench.arrived(), [3]);
    bench.at(5100).sends([4]);
    assert_eq!(bench.arrived(), [1, 4]);
}

#[test]
fn a_reordered_packet_goes_behind_others_or_after_a_while() {
    let mut bench = Bench::new(&[event(2, 1, Impairment::Reorder { behind_pkts: 3 })]);
    let other = template(0x12, V4, None);
    bench.sends([0, 1, 2, 3]);
    bench.send(&other, SEND, 100);
    bench.sends([4, 5]);
    assert_eq!(bench.arrived(), [0, 2, 3, 100, 4, 1, 5], "another connection's packets do not count");
    let mut bench = Bench::new(&[event(1, 1, Impairment::Reorder { behind_pkts: 3 })]);
    bench.at(7).sends([0, 1]);
    assert_eq!(bench.arrived(), [1]);
    assert!(bench.at(6 + OVERTAKEN_NANOS_MAX).arrived().is_empty());
    assert_eq!(bench.at(7 + OVERTAKEN_NANOS_MAX).arrived(), [0]);
}

#[test]
fn lanes_connections_and_opcodes_are_told_apart() {
    let drop = event(2, 1, Impairment::Drop);
    let mut bench = Bench::new(&[
        PacketEvent { space: PsnSpace::Response, ..drop },
        PacketEvent { qp: EventQp::Number(2), ..drop },
        PacketEvent { qp: EventQp::Dest(Qpn::new(0x33)), opcode: Some(Opcode::RC_SEND_LAST), ..drop },
    ]);
    let [one, two, three] = [0x11, 0x22, 0x33].map(|qpn| template(qpn, V4, None));
    for (template, first) in [(&one, 0), (&two, 100), (&three, 200)] {
        bench.send(template, SEND, first);
        bench.send(template, SEND, first + 1);
    }
    assert_eq!(bench.arrived(), [0, 1, 100, 200, 201]);
    for psn in [50, 51, 52] {
        bench.send(&one, ACK, psn);
    }
    assert_eq!(bench.arrived(), [50, 52]);
    bench.send(&three, Opcode::RC_SEND_LAST, 201);
    assert!(bench.arrived().is_empty());
    assert_eq!(
        bench.fired().iter().map(|fired| fired.unwrap().dest_qpn.value()).collect::<Vec<_>>(),
        [0x11, 0x22, 0x33]
    );
}

#[test]
fn all_events_of_a_transmission_act() {
    let (mark, duplicate) = (event(1, 1, Impairment::MarkCe), event(1, 1, Impairment::Duplicate));
    let delay = |nanos| event(1, 1, Impairment::Delay { nanos });
    let reorder = |behind_pkts| event(1, 1, Impairment::Reorder { behind_pkts });
    let drop = event(1, 1, Impairment::Drop);
    // The events, and the PSNs received at three times: 10 ns (the time of sending), 23 ns, and 10 ns + 1 ms.
    let cases: [(&[PacketEvent], [&[u32]; 3]); 6] = [
        (&[duplicate, mark, duplicate], [&[0, 0, 0, 1, 2], &[], &[]]),
        (&[delay(6), mark, delay(7)], [&[1, 2], &[0], &[]]),
        (&[duplicate, mark, delay(13)], [&[0, 1, 2], &[0], &[]]),
        (&[delay(9), mark, reorder(2), reorder(1)], [&[1, 2, 0], &[], &[]]),
        (&[mark, reorder(3), duplicate], [&[0, 1, 2], &[], &[0]]),
        (&[mark, duplicate, delay(5), reorder(1), drop], [&[1, 2], &[], &[]]),
    ];
    for (events, expected) in cases {
        let mut bench = Bench::new(events);
        bench.at(10).sends([0, 1, 2]);
        for (nanos, psns) in [10, 23, 10 + OVERTAKEN_NANOS_MAX].into_iter().zip(expected) {
            let frames = bench.at(nanos).frames();
            let packets: Vec<_> = frames.iter().map(|frame| Packet::parse(frame).unwrap()).collect();
            let arrived: Vec<_> = packets.iter().map(|packet| packet.bth.psn.value()).collect();
            assert_eq!(arrived, psns, "{events:?} at {nanos} ns");
            for packet in packets {
                let is_first = packet.bth.psn.value() == 0;
                assert!(packet.icrc_ok() && packet.congestion_experienced() == is_first, "{events:?}");
            }
        }
        assert!(bench.fired().iter().all(Option::is_some), "{events:?}");
    }
}

#[test]
fn other_frames_pass_and_connections_beyond_the_table_too() {
    let mut bench = Bench::new(&[event(1, 2, Impairment::Drop)]);
    bench.port.tx_reserve(60).unwrap().fill(3);
    assert_eq!(bench.frames(), [vec![3; 60]]);
    for qpn in 0..CONNECTIONS_MAX + 2 {
        bench.send(&template(qpn, V4, None), SEND, 0);
        assert_eq!(bench.arrived(), [0]);
    }
    bench.send(&template(0, V4, None), SEND, 0);
    assert!(bench.arrived().is_empty(), "the first of them is still known");
}

#[test]
fn without_events_the_port_beneath_is_used_as_it_is() {
    let mut bench = Bench::new(&[]);
    bench.sends([0, 1, 0]);
    assert_eq!(bench.arrived(), [0, 1, 0]);
    assert!(bench.port.reserved.is_empty() && bench.port.outcomes().is_empty());
}

#[test]
fn a_cancelled_frame_is_not_sent() {
    for events in [&[][..], &[event(1, 2, Impairment::Drop)]] {
        let mut bench = Bench::new(events);
        bench.port.tx_reserve(60).unwrap().fill(3);
        bench.port.tx_reserve(60).unwrap().fill(4);
        bench.port.tx_cancel();
        assert_eq!(bench.frames(), [vec![3; 60]]);
    }
}

#[test]
fn a_full_port_beneath_loses_nothing_and_refuses_new_frames() {
    let (near, mut far) = Loopback::pair(CAPS, CAPS, 2);
    let plan = EventPlan::new(vec![event(1, 1, Impairment::Duplicate)]).unwrap();
    let mut bench = Bench { port: Events::new(near, plan), far: Loopback::pair(CAPS, CAPS, 1).0 };
    bench.sends([0]);
    bench.port.tx_reserve(60).unwrap().fill(3);
    bench.port.tx_flush();
    assert!(bench.port.tx_reserve(60).is_none());
    let mut frames = Vec::new();
    assert_eq!(far.rx_burst(&mut frames, 9), 2);
    frames.clear();
    bench.port.tx_flush();
    assert_eq!(far.rx_burst(&mut frames, 9), 1);
    assert_eq!(frames[0].as_ref(), [3; 60]);
}

#[test]
fn numbers_out_of_range_are_refused() {
    let drop = event(1, 1, Impairment::Drop);
    let refused = |event: PacketEvent| EventPlan::new(vec![drop, event]).unwrap_err().to_string();
    let numbered = |number| PacketEvent { qp: EventQp::Number(number), ..drop };
    for (wrong, said) in [
        (event(0, 1, Impairment::Drop), "PSNs are counted from 1"),
        (event(1, 0, Impairment::Drop), "transmissions are counted from 1"),
        (numbered(0), "numbered from 1"),
        (numbered(CONNECTIONS_MAX + 1), "up to 4096"),
        (event(1, 1, Impairment::Delay { nanos: 0 }), "needs some time"),
        (event(1, 1, Impairment::Delay { nanos: DELAY_NANOS_MAX + 1 }), "10 seconds"),
        (event(1, 1, Impairment::Reorder { behind_pkts: 0 }), "1 to 1024"),
        (event(1, 1, Impairment::Reorder { behind_pkts: BEHIND_PKTS_MAX + 1 }), "1 to 1024"),
    ] {
        let error = refused(wrong);
        assert!(error.contains(said) && error.starts_with("event 2: "), "{error}");
    }
    assert!(EventPlan::new(vec![numbered(CONNECTIONS_MAX); EVENTS_MAX]).is_ok());
    let error = EventPlan::new(vec![drop; EVENTS_MAX + 1]).unwrap_err().to_string();
    assert!(error.contains("257") && error.contains("256"), "{error}");
}

proptest! {
    #[test]
    fn each_event_acts_on_its_transmission_alone(
        psns in prop::collection::vec(0..6u32, 1..60),
        wanted in prop::collection::vec((1..8u32, 1..5u32, any::<bool>()), 0..8),
        first in prop::sample::select(vec![0, 1 << 23, 0xFF_FFFD]),
    ) {
        let action = |drops| if drops { Impairment::Drop } else { Impairment::Duplicate };
        let events: Vec<_> =
            wanted.iter().map(|&(psn, pass, drops)| event(psn, pass, action(drops))).collect();
        // `psns` are offsets from PSN `first`. Offset 0 is sent first, because events count PSNs from the first PSN
        // sent.
        let psns: Vec<u32> = std::iter::once(0).chain(psns).collect();
        let mut expected = Vec::new();
        let mut counts = [0; 6];
        for &psn in &psns {
            counts[psn as usize] += 1;
            let acting: Vec<bool> = wanted
                .iter()
                .filter(|&&(n, pass, _)| n == psn + 1 && pass == counts[psn as usize])
                .map(|&(.., drops)| drops)
                .collect();
            let copies = if acting.contains(&true) { 0 } else { 1 + acting.len() };
            expected.extend(std::iter::repeat_n((first + psn) & 0xFF_FFFF, copies));
        }
        let mut bench = Bench::new(&events);
        bench.sends(psns.iter().map(|psn| (first + psn) & 0xFF_FFFF));
        prop_assert_eq!(bench.arrived(), expected);
    }
}
