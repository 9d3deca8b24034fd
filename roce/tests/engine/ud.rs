//! Unreliable datagrams (IBA 9.8.3): each packet is a message to the queue pair and the address that its work request
//! names; a packet that cannot be received is dropped without a response.

use crate::common::forge::Forged;
use crate::common::{
    self, End, conn, pair, ports, put, settle, start_datagrams, state_of, statuses, take, ud_pair_over,
};
use proptest::prelude::*;
use roce::engine::{CreateError, DestroyError, Event};
use roce::id::{AhId, Gid, LKey, Mac, PKey, QKey, Qpn};
use roce::port::Port;
use roce::psn::Psn;
use roce::qp::{AddressVector, PathMtu, QpAttr, QpInit, QpState, ServiceType};
use roce::queue::{
    Cqe, Destination, NetworkHeader, Notify, PostError, RecvRequest, SendData, SendFlags, SendOp,
    SendRequest, Sge, SrqAttr, WcOpcode, WcStatus,
};
use roce::wire::{Opcode, Packet};

const QKEY: QKey = QKey(0x1111_1111);

/// Length of the GRH area, the bytes of a receive before the payload.
const GRH: u32 = 40;

/// Path MTU of the ports of `common`, in bytes: they carry IP packets of 4,200 bytes.
const MTU: u32 = 4096;

fn ud_pair() -> (End, End) {
    let (port_a, port_b) = ports();
    ud_pair_over(port_a, port_b, 1 << 16, QKEY)
}

/// Creates an address handle of `from` for packets to the GID `peer` from the GID with index 1 (IPv4).
fn ah_to(from: &mut End, peer: Gid) -> AhId {
    from.engine.create_ah(from.pd, &AddressVector::new(peer, 1)).unwrap()
}

fn to(ah: AhId, qpn: Qpn) -> SendOp {
    SendOp::SendTo { to: Destination { ah, qpn, qkey: QKEY } }
}

fn bytes(end: &End, offset: usize, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    end.memory.read(offset, &mut bytes).unwrap();
    bytes
}

#[test]
fn a_datagram_arrives_with_the_ip_header_and_the_number_of_its_sender() {
    let (mut a, mut b) = ud_pair();
    let link_local = |mac: Mac| Gid::from(mac.link_local());
    let (mac_a, mac_b) = (a.engine.port().caps().mac, b.engine.port().caps().mac);
    let rows = [
        (b.gid, 1, NetworkHeader::Ipv4, a.gid),
        (link_local(mac_b), 0, NetworkHeader::Ipv6, link_local(mac_a)),
    ];
    a.memory.write(0, &[7; 100]).unwrap();
    for (dgid, sgid_index, header, sgid) in rows {
        let path = AddressVector { traffic_class: 0x68, ..AddressVector::new(dgid, sgid_index) };
        let ah = a.engine.create_ah(a.pd, &path).unwrap();
        let destination = Destination { ah, qpn: b.qpn, qkey: QKEY };
        b.post_recv(1, b.sge(1000, GRH + 100));
        a.post(2, SendOp::SendToWithImm { to: destination, imm: 9 }, a.sge(0, 100));
        settle(&mut a, &mut b);
        let sent: Vec<_> = a.completions().iter().map(|cqe| (cqe.wr_id, cqe.opcode, cqe.status)).collect();
        assert_eq!(sent, [(2, WcOpcode::Send, WcStatus::Success)]);
        let received = Cqe {
            wr_id: 1,
            status: WcStatus::Success,
            opcode: WcOpcode::Recv,
            len_bytes: GRH + 100,
            imm: Some(9),
            qpn: b.qpn,
            src_qpn: a.qpn,
            grh: Some(header),
        };
        assert_eq!(b.completions(), [received]);
        let grh = bytes(&b, 1000, GRH as usize);
        let (version, class, src, dst) = match header {
            NetworkHeader::Ipv4 => {
                assert_eq!(grh[..20], [0; 20]);
                let sum: u32 = grh[20..].chunks(2).map(|b| u32::from(u16::from_be_bytes([b[0], b[1]]))).sum();
                assert_eq!((sum & 0xFFFF) + (sum >> 16), 0xFFFF, "the checksum is valid");
                (grh[20] >> 4, grh[21], grh[32..36].to_vec(), grh[36..].to_vec())
            }
            NetworkHeader::Ipv6 => {
                (grh[0] >> 4, grh[0] << 4 | grh[1] >> 4, grh[8..24].to_vec(), grh[24..].to_vec())
            }
        };
        let address = |gid: Gid| gid.0[16 - src.len()..].to_vec();
        let expected =
            (if header == NetworkHeader::Ipv4 { 4 } else { 6 }, 0x68, address(sgid), address(dgid));
        assert_eq!((version, class, src.clone(), dst), expected);
        assert_eq!(bytes(&b, 1040, 101), [[7; 100].to_vec(), vec![0]].concat());
    }
    assert_eq!(b.engine.counters().sent_pkts, 0, "no response");
}

#[test]
fn the_payload_may_be_inline_scattered_or_empty_and_the_completion_notifies_if_solicited() {
    let (mut a, mut b) = ud_pair();
    let ah = ah_to(&mut a, b.gid);
    a.memory.write(0, b"0123456789").unwrap();
    let (parts, areas) = ([a.sge(2, 3), a.sge(7, 2)], [b.sge(0, 20), b.sge(100, 22), b.sge(200, 9)]);
    let flags = |solicited| SendFlags { solicited, ..SendFlags::default() };
    let notified = |end: &mut End| std::iter::from_fn(|| end.engine.poll_event()).count();
    let rows: [(SendData<'_>, &[u8]); 3] = [
        (SendData::Inline(b"inline"), b"inline"),
        (SendData::Sges(&parts), b"23478"),
        (SendData::Sges(&[]), b""),
    ];
    for (data, expected) in rows {
        b.poller.notifier().request(Notify::Solicited);
        for solicited in [false, true] {
            b.recv.post(&RecvRequest { wr_id: 3, sges: &areas }).unwrap();
            let flags = flags(solicited);
            a.send.post(&SendRequest { wr_id: 4, op: to(ah, b.qpn), flags, data }).unwrap();
            settle(&mut a, &mut b);
            assert_eq!(notified(&mut b), usize::from(solicited));
        }
        let received = b.completions();
        assert_eq!(received[1], received[0]);
        assert_eq!(received[0].len_bytes as usize, GRH as usize + expected.len());
        // The GRH area ends 20 bytes after the begin of the second entry.
        let placed = [bytes(&b, 120, 2), bytes(&b, 200, 9)].concat();
        assert_eq!(placed[..expected.len()], *expected);
    }
}

#[derive(Clone, Copy, Debug)]
enum Fate {
    Delivered,
    Lost,
    Doubled,
    WrongQKey,
    UnknownQp,
}

fn fates() -> impl Strategy<Value = Fate> {
    let rare = [Fate::Lost, Fate::Doubled, Fate::WrongQKey, Fate::UnknownQp];
    prop_oneof![4 => Just(Fate::Delivered), 3 => prop::sample::select(rare.to_vec())]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// The model delivers each packet to the oldest receive, if the packet fits into this receive.
    #[test]
    fn each_packet_is_delivered_once_or_dropped_and_counted(
        datagrams in proptest::collection::vec((0u32..=MTU + 2, fates()), 1..40),
        rooms in proptest::collection::vec(0u32..GRH + MTU, 0..40),
        is_ipv6: bool,
    ) {
        let (port_a, mut from_a) = ports();
        let (mut to_b, port_b) = ports();
        let (mut a, mut b) = ud_pair_over(port_a, port_b, 1 << 18, QKEY);
        let path = match is_ipv6 {
            true => AddressVector::new(b.engine.port().caps().mac.link_local().into(), 0),
            false => AddressVector::new(b.gid, 1),
        };
        let ah = a.engine.create_ah(a.pd, &path).unwrap();
        for (n, room) in rooms.iter().enumerate() {
            b.post_recv(n as u64, b.sge(5000 * n, *room));
        }
        let mut receives = rooms.iter().enumerate();
        let mut next = receives.next();
        let (mut expected, mut dropped, mut wrong_qkey, mut unknown) = (Vec::new(), 0, 0, 0);
        for (n, (len, fate)) in datagrams.iter().enumerate() {
            a.memory.write(0, &vec![1 + n as u8; *len as usize]).unwrap();
            let qkey = if matches!(fate, Fate::WrongQKey) { QKey(7) } else { QKEY };
            let qpn = if matches!(fate, Fate::UnknownQp) { Qpn::new(b.qpn.value() ^ 1) } else { b.qpn };
            a.post(n as u64, SendOp::SendTo { to: Destination { ah, qpn, qkey } }, a.sge(0, *len));
            a.poll(n as u64);
            let sent = a.completions();
            let status = if *len > MTU { WcStatus::LocLenErr } else { WcStatus::Success };
            prop_assert_eq!(sent.iter().map(|cqe| cqe.status).collect::<Vec<_>>(), [status]);
            let frames = take(&mut from_a);
            if *len > MTU {
                prop_assert_eq!((frames.len(), state_of(&a)), (0, QpState::Sqe));
                let rts = QpAttr { state: Some(QpState::Rts), ..QpAttr::default() };
                a.engine.modify_qp(a.qpn, &rts).unwrap();
                continue;
            }
            prop_assert_eq!(frames.len(), 1);
            let copies = match fate {
                Fate::Lost => 0,
                Fate::Doubled => 2,
                _ => 1,
            };
            for _ in 0..copies {
                put(&mut to_b, &frames[0]);
                b.poll(n as u64);
                match (fate, next) {
                    (Fate::WrongQKey, _) => wrong_qkey += 1,
                    (Fate::UnknownQp, _) => unknown += 1,
                    (_, Some((at, room))) if *room >= GRH + len => {
                        expected.push((at as u64, GRH + len, 1 + n as u8));
                        next = receives.next();
                    }
                    _ => dropped += 1,
                }
            }
        }
        let received: Vec<_> = b.completions().iter().map(|cqe| {
            assert_eq!((cqe.status, cqe.src_qpn), (WcStatus::Success, a.qpn));
            let payload = bytes(&b, 5000 * cqe.wr_id as usize + 40, (cqe.len_bytes - GRH) as usize);
            assert!(payload.windows(2).all(|pair| pair[0] == pair[1]), "one message");
            (cqe.wr_id, cqe.len_bytes, payload.first().copied())
        }).collect();
        let expected: Vec<_> =
            expected.into_iter().map(|(id, len, fill)| (id, len, (len > GRH).then_some(fill))).collect();
        prop_assert_eq!(received, expected);
        let (drops, counters) = (b.engine.drop_counters(), b.engine.counters());
        let counted = (drops.wrong_qkey, drops.unknown_qp, counters.ud_requests_dropped);
        prop_assert_eq!(counted, (wrong_qkey, unknown, dropped));
        prop_assert_eq!((state_of(&b), counters.sent_pkts), (QpState::Rts, 0));
    }
}

#[test]
fn a_controlled_q_key_stands_for_that_of_the_sender() {
    let (mut a, mut b) = ud_pair();
    let ah = ah_to(&mut a, b.gid);
    let qpn = b.qpn;
    let send = |qkey| SendOp::SendTo { to: Destination { ah, qpn, qkey: QKey(qkey) } };
    let ops = [send(0x8000_0000), send(0x9111_1111), send(QKEY.0 + 1)];
    (0..3).for_each(|wr_id| b.post_recv(wr_id, b.sge(0, GRH)));
    ops.into_iter().for_each(|op| a.post(9, op, a.sge(0, 0)));
    settle(&mut a, &mut b);
    assert_eq!((b.completions().len(), b.engine.drop_counters().wrong_qkey), (2, 1));
    // The Q_Key may change in RTS. Received packets must then have the new Q_Key, and packets whose work request gives
    // a controlled Q_Key are sent with the new Q_Key.
    let change = QpAttr { qkey: Some(QKey(5)), ..QpAttr::default() };
    a.engine.modify_qp(a.qpn, &change).unwrap();
    a.post(9, send(0x8000_0000), a.sge(0, 0));
    settle(&mut a, &mut b);
    assert_eq!((b.completions().len(), b.engine.drop_counters().wrong_qkey), (0, 2));
    b.engine.modify_qp(b.qpn, &change).unwrap();
    a.post(9, send(0x8000_0000), a.sge(0, 0));
    settle(&mut a, &mut b);
    assert_eq!(statuses(&mut b), [(2, WcStatus::Success)]);
}

#[test]
fn a_datagram_that_cannot_be_sent_stops_the_send_queue_only() {
    let (mut a, mut b) = ud_pair();
    let (ah, stale) = (ah_to(&mut a, b.gid), ah_to(&mut a, b.gid));
    a.engine.destroy_ah(stale).unwrap();
    let other_pd = a.engine.objects().alloc_pd().unwrap();
    let foreign = a.engine.create_ah(other_pd, &AddressVector::new(b.gid, 1)).unwrap();
    let bad = Sge { lkey: LKey(1), ..a.sge(0, 8) };
    let rows = [
        (to(stale, b.qpn), a.sge(0, 8), WcStatus::LocQpOpErr),
        (to(foreign, b.qpn), a.sge(0, 8), WcStatus::LocQpOpErr),
        (to(AhId::default(), b.qpn), a.sge(0, 8), WcStatus::LocQpOpErr),
        (to(ah, b.qpn), a.sge(0, MTU + 1), WcStatus::LocLenErr),
        (to(ah, b.qpn), bad, WcStatus::LocProtErr),
    ];
    let good = to(ah, b.qpn);
    for (op, sge, status) in rows {
        (10..12).for_each(|wr_id| b.post_recv(wr_id, b.sge(0, GRH + 8)));
        a.post(1, good, a.sge(0, 8));
        a.post(2, op, sge);
        a.post(3, good, a.sge(0, 8));
        settle(&mut a, &mut b);
        let wanted = [(1, WcStatus::Success), (2, status), (3, WcStatus::WrFlushErr)];
        assert_eq!((statuses(&mut a), state_of(&a)), (wanted.to_vec(), QpState::Sqe));
        a.post(4, good, a.sge(0, 8));
        // The queue pair still receives.
        let back = ah_to(&mut b, a.gid);
        a.post_recv(5, a.sge(100, GRH));
        b.post(6, to(back, a.qpn), b.sge(0, 0));
        settle(&mut a, &mut b);
        assert_eq!(statuses(&mut a), [(4, WcStatus::WrFlushErr), (5, WcStatus::Success)]);
        let rts = QpAttr { state: Some(QpState::Rts), ..QpAttr::default() };
        a.engine.modify_qp(a.qpn, &rts).unwrap();
        a.post(8, good, a.sge(0, 8));
        settle(&mut a, &mut b);
        assert_eq!(statuses(&mut a), [(8, WcStatus::Success)]);
        let of_b = [(10, WcStatus::Success), (6, WcStatus::Success), (11, WcStatus::Success)];
        assert_eq!(statuses(&mut b), of_b);
    }
    assert_eq!((a.engine.qp_errors(), a.engine.poll_event(), state_of(&b)), (0, None, QpState::Rts));
}

#[test]
fn only_datagrams_are_sent_and_only_by_queue_pairs_of_ud() {
    let (mut a, mut b) = ud_pair();
    let ah = ah_to(&mut a, b.gid);
    let (mut rc, _) = pair(PathMtu::Mtu256, 4096, true);
    let (remote_addr, rkey) = (b.memory.addr(), b.rkey);
    let post = |send: &mut roce::queue::SendPoster, op| {
        let (flags, data) = (SendFlags::default(), SendData::Sges(&[]));
        send.post(&SendRequest { wr_id: 1, op, flags, data })
    };
    let datagrams = [to(ah, b.qpn), SendOp::SendToWithImm { to: Destination::default(), imm: 1 }];
    let others = [
        SendOp::Send,
        SendOp::SendWithImm { imm: 1 },
        SendOp::Write { remote_addr, rkey },
        SendOp::WriteWithImm { remote_addr, rkey, imm: 1 },
        SendOp::Read { remote_addr, rkey },
        SendOp::LocalInvalidate { rkey },
    ];
    for op in datagrams {
        assert_eq!(post(&mut a.send, op), Ok(()));
        assert_eq!(post(&mut rc.send, op), Err(PostError::WrongService));
    }
    settle(&mut a, &mut b);
    assert_eq!(
        statuses(&mut a),
        [(1, WcStatus::Success), (1, WcStatus::LocQpOpErr)],
        "it names no address handle"
    );
    let rts = QpAttr { state: Some(QpState::Rts), ..QpAttr::default() };
    a.engine.modify_qp(a.qpn, &rts).unwrap();
    for op in others {
        assert_eq!((post(&mut a.send, op), post(&mut rc.send, op)), (Ok(()), Ok(())));
        settle(&mut a, &mut b);
        assert_eq!(statuses(&mut a), [(1, WcStatus::LocQpOpErr)], "{op:?}");
        a.engine.modify_qp(a.qpn, &rts).unwrap();
    }
    // The destination of a staged datagram can be set later, as by `ibv_wr_set_ud_addr`.
    let stage = |send: &mut roce::queue::SendPoster, op| {
        let (flags, data) = (SendFlags::default(), SendData::Sges(&[]));
        send.stage(&SendRequest { wr_id: 1, op, flags, data }).unwrap();
        send.set_destination(Destination { ah, qpn: b.qpn, qkey: QKEY })
    };
    assert_eq!(a.send.set_destination(Destination::default()), Err(PostError::NoneStaged));
    assert_eq!(stage(&mut a.send, datagrams[1]), Ok(()));
    assert_eq!(stage(&mut rc.send, SendOp::Send), Err(PostError::WrongService));
}

/// Sends packets to a queue pair of UD, each with the counter of its drop. Packets without a counter are received: a
/// genuine packet, and a packet from another source.
#[test]
fn a_forged_packet_is_dropped_and_counted() {
    let (port_a, _) = ports();
    let (mut to_b, port_b) = ports();
    let (a, mut b) = ud_pair_over(port_a, port_b, 4096, QKEY);
    let genuine = |opcode| {
        let mut forged = Forged::to(&b, &a, opcode, Psn::new(1));
        (forged.ack_req, forged.deth.qkey) = (false, QKEY);
        forged
    };
    let right = genuine(Opcode::UD_SEND_ONLY);
    let stranger = Gid::from(std::net::Ipv4Addr::new(10, 0, 0, 77));
    let rows = [
        ("", right),
        ("", Forged { src: stranger, src_mac: Mac([2; 6]), udp_source_port: 7, psn: Psn::new(99), ..right }),
        ("wrong_qkey", Forged { deth: roce::wire::Deth { qkey: QKey(0), ..right.deth }, ..right }),
        ("wrong_pkey", Forged { pkey: PKey(0x1234), ..right }),
        ("wrong_destination", Forged { dst: stranger, ..right }),
        ("wrong_transport", genuine(Opcode::RC_SEND_ONLY)),
        ("wrong_transport", genuine(Opcode::UC_SEND_ONLY)),
        ("wrong_transport", genuine(Opcode::RC_ACKNOWLEDGE)),
        ("wrong_transport", genuine(Opcode::CNP)),
        ("rx_icrc_errors", Forged { sound: false, ..right }),
        ("unknown_qp", Forged { qpn: Qpn::new(b.qpn.value() ^ 1), ..right }),
    ];
    (0..rows.len() as u64).for_each(|wr_id| b.post_recv(wr_id, b.sge(0, GRH + 64)));
    for (counter, forged) in rows {
        let count = |b: &End| {
            let drops = b.engine.drop_counters();
            drops.iter().find(|(name, _)| *name == counter).map_or(0, |(_, count)| count)
        };
        let (before, dropped) = (count(&b), b.engine.drop_counters().total());
        put(&mut to_b, &forged.frame());
        b.poll(1);
        assert_eq!(b.completions().len(), usize::from(counter.is_empty()), "{counter}");
        assert_eq!(count(&b) - before, u64::from(!counter.is_empty()), "{counter}");
        assert_eq!(b.engine.drop_counters().total() - dropped, u64::from(!counter.is_empty()), "{counter}");
    }
    assert_eq!((state_of(&b), b.engine.counters().sent_pkts, b.engine.poll_event()), (QpState::Rts, 0, None));
}

/// Cuts a packet at each length, and changes each of its bytes. The queue pair receives a changed packet only if no
/// check covers the changed byte.
#[test]
fn a_damaged_packet_is_not_received() {
    let (port_a, mut from_a) = ports();
    let (mut to_b, port_b) = ports();
    let (mut a, mut b) = ud_pair_over(port_a, port_b, 4096, QKEY);
    let ah = ah_to(&mut a, b.gid);
    a.post(1, to(ah, b.qpn), a.sge(0, 9));
    a.poll(0);
    let frame = take(&mut from_a).remove(0);
    (0..500).for_each(|wr_id| b.post_recv(wr_id, b.sge(0, GRH + 64)));
    for len in 0..frame.len() {
        put(&mut to_b, &frame[..len]);
        b.poll(1);
    }
    assert_eq!(b.completions(), [], "a cut packet");
    // The source MAC is not checked. The UDP checksum and the byte with FECN and BECN are not covered by the ICRC.
    // Neither are type of service, TTL and header checksum, but a change of these makes the header checksum wrong.
    let mut received = 0;
    for at in 0..frame.len() {
        let mut damaged = frame.clone();
        damaged[at] ^= 0x10;
        put(&mut to_b, &damaged);
        b.poll(1);
        let count = b.completions().len();
        assert!(count == 0 || (6..12).contains(&at) || [40, 41, 46].contains(&at), "byte {at}");
        received += count;
    }
    assert_eq!(received, 6 + 3, "source MAC, UDP checksum, FECN and BECN");
}

fn any_packet() -> impl Strategy<Value = (usize, usize, [bool; 8])> {
    // Each field is genuine in most packets, so that many packets pass all checks but one.
    (any::<usize>(), prop_oneof![0usize..300, 0usize..65], prop::array::uniform8(prop::bool::weighted(0.1)))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    /// Each packet, of any opcode and length, completes a receive or increments one counter, and no packet writes to
    /// other memory than that of its receive.
    #[test]
    fn any_packet_is_received_or_dropped_and_counted(packets in proptest::collection::vec(any_packet(), 1..60)) {
        const ROOM: usize = 104;
        let opcodes: Vec<Opcode> = Opcode::known().map(|info| info.opcode).collect();
        let (port_a, _) = ports();
        let (mut to_b, port_b) = ports();
        let (a, mut b) = ud_pair_over(port_a, port_b, 1 << 14, QKEY);
        let mut received = 0;
        for (opcode, payload_len, wrong) in packets {
            b.post_recv(1, b.sge(1000, ROOM as u32));
            let opcode = if opcode % 3 == 0 { opcodes[opcode % opcodes.len()] } else { Opcode::UD_SEND_ONLY };
            let mut forged = Forged::to(&b, &a, opcode, Psn::new(payload_len as u32));
            forged.payload_len = if opcode.info().unwrap().has_payload { payload_len } else { 0 };
            forged.deth.qkey = QKEY;
            let [qkey, pkey, dst, icrc, src, ack_req, marked, no_receive] = wrong;
            forged.deth.qkey.0 ^= u32::from(qkey);
            forged.pkey.0 ^= u16::from(pkey);
            forged.dst.0[15] ^= u8::from(dst);
            forged.src.0[15] ^= u8::from(src);
            forged.traffic_class = if marked { 3 } else { 0 };
            (forged.sound, forged.ack_req) = (!icrc, ack_req);
            if no_receive {
                let reset = QpAttr { state: Some(QpState::Reset), ..QpAttr::default() };
                b.engine.modify_qp(b.qpn, &reset).unwrap();
                start_datagrams(&mut b.engine, b.qpn, QKEY);
            }
            let count = |b: &End| {
                b.engine.drop_counters().total() + b.engine.counters().ud_requests_dropped
            };
            let before = count(&b);
            put(&mut to_b, &forged.frame());
            b.poll(1);
            let completions = b.completions();
            prop_assert_eq!(completions.len() as u64 + count(&b) - before, 1, "{:?}", opcode);
            let is_datagram = opcode == Opcode::UD_SEND_ONLY || opcode == Opcode::UD_SEND_ONLY_WITH_IMMEDIATE;
            let fits = GRH as usize + forged.payload_len <= ROOM;
            let is_good = is_datagram && fits && !(qkey || pkey || dst || icrc || no_receive);
            prop_assert_eq!(completions.len(), usize::from(is_good));
            received += completions.len();
        }
        let memory = bytes(&b, 0, 1 << 14);
        prop_assert!(memory[..1000].iter().chain(&memory[1000 + ROOM..]).all(|byte| *byte == 0));
        let counters = b.engine.counters();
        prop_assert_eq!((counters.rdma_recvs, counters.sent_pkts, state_of(&b)), (received as u64, 0, QpState::Rts));
    }
}

#[test]
fn packets_are_received_from_rtr_on_and_datagrams_sent_in_rts() {
    let (mut a, mut b) = ud_pair();
    let ah = ah_to(&mut a, b.gid);
    let change =
        |end: &mut End, attr: &QpAttr| end.engine.modify_qp(end.qpn, &attr.of_service(ServiceType::Ud));
    let to_state = |state| QpAttr { state: Some(state), ..QpAttr::default() };
    let send = |a: &mut End, b: &mut End| {
        a.post(1, to(ah, b.qpn), a.sge(0, 0));
        settle(a, b);
        a.completions();
        (b.completions().len(), b.engine.drop_counters().qp_state)
    };
    change(&mut b, &to_state(QpState::Reset)).unwrap();
    assert_eq!(send(&mut a, &mut b), (0, 1));
    let init = conn(PathMtu::Mtu256).to_init();
    change(&mut b, &init).unwrap_err();
    change(&mut b, &QpAttr { qkey: Some(QKEY), ..init }).unwrap();
    (0..3).for_each(|wr_id| b.post_recv(wr_id, b.sge(0, GRH)));
    assert_eq!(send(&mut a, &mut b), (0, 2));
    change(&mut b, &to_state(QpState::Rtr)).unwrap();
    assert_eq!(send(&mut a, &mut b), (1, 2));
    assert_eq!(b.engine.poll_event(), None, "a datagram establishes no communication");
    let request =
        SendRequest { wr_id: 1, op: to(ah, a.qpn), flags: SendFlags::default(), data: SendData::Sges(&[]) };
    assert_eq!(b.send.post(&request), Err(PostError::WrongState));
    change(&mut b, &conn(PathMtu::Mtu256).to_rts(Psn::new(5))).unwrap();
    assert_eq!(send(&mut a, &mut b), (1, 2));
    let (_, attributes, _) = b.engine.query_qp(b.qpn).unwrap();
    assert_eq!((attributes.qkey, attributes.sq_psn, attributes.path), (QKEY, Psn::new(5), None));
    // In SQD no datagram starts; in ERR all work requests are flushed.
    change(&mut b, &to_state(QpState::Sqd)).unwrap();
    assert_eq!(b.engine.poll_event(), Some(Event::SendQueueDrained(b.qpn)));
    b.send.post(&request).unwrap();
    settle(&mut a, &mut b);
    assert_eq!(statuses(&mut b), []);
    change(&mut b, &to_state(QpState::Err)).unwrap();
    settle(&mut a, &mut b);
    assert_eq!(statuses(&mut b), [(1, WcStatus::WrFlushErr), (2, WcStatus::WrFlushErr)]);
    assert_eq!(send(&mut a, &mut b), (0, 3));
}

#[test]
fn a_receive_that_cannot_be_written_fails_the_queue_pair() {
    let (mut a, mut b) = ud_pair();
    let ah = ah_to(&mut a, b.gid);
    b.post_recv(10, Sge { lkey: LKey(1), ..b.sge(0, GRH + 8) });
    b.post_recv(11, b.sge(0, GRH + 8));
    a.post(1, to(ah, b.qpn), a.sge(0, 8));
    settle(&mut a, &mut b);
    assert_eq!(statuses(&mut b), [(10, WcStatus::LocProtErr), (11, WcStatus::WrFlushErr)]);
    assert_eq!((state_of(&b), statuses(&mut a)), (QpState::Err, vec![(1, WcStatus::Success)]));
    assert_eq!(b.engine.poll_event(), Some(Event::QpFatal(b.qpn)));
}

#[test]
fn queue_pairs_of_ud_share_a_receive_queue() {
    let (mut a, mut b) = ud_pair();
    let ah = ah_to(&mut a, b.gid);
    let attr = SrqAttr { pd: b.pd, max_wr: 4, max_sge: 1, limit: 0 };
    let (srq, mut receives) = b.engine.create_srq(&attr).unwrap();
    let init = QpInit { service: ServiceType::Ud, srq: Some(srq), ..b.small_qp() };
    let qpns = [(); 2].map(|()| b.engine.create_qp(&init).unwrap().qpn);
    qpns.into_iter().for_each(|qpn| start_datagrams(&mut b.engine, qpn, QKEY));
    for (wr_id, room) in [(1, GRH + 8), (2, GRH + 8), (3, GRH + 8)] {
        common::post_recv(&mut receives, wr_id, b.sge(100 * wr_id as usize, room));
    }
    // The second datagram is too long for its receive, which its queue pair keeps for the next datagram.
    for (qpn, len) in [(qpns[0], 8), (qpns[1], 9), (qpns[0], 8), (qpns[1], 8), (qpns[0], 8)] {
        a.post(1, to(ah, qpn), a.sge(0, len));
    }
    settle(&mut a, &mut b);
    let received: Vec<_> = b.completions().iter().map(|cqe| (cqe.wr_id, cqe.qpn)).collect();
    assert_eq!(received, [(1, qpns[0]), (3, qpns[0]), (2, qpns[1])]);
    let counters = b.engine.counters();
    assert_eq!((counters.ud_requests_dropped, counters.out_of_buffer), (2, 1));
}

#[test]
fn an_address_handle_needs_a_path_and_a_protection_domain() {
    let (mut a, b) = ud_pair();
    let unknown: Gid = std::net::Ipv4Addr::new(10, 0, 0, 99).into();
    for path in [AddressVector::new(b.gid, 9), AddressVector::new(b.gid, 0), AddressVector::new(unknown, 1)] {
        let created = a.engine.create_ah(a.pd, &path);
        assert!(matches!(created, Err(CreateError::NoPath { .. })), "{created:?}");
    }
    let pd = a.engine.objects().alloc_pd().unwrap();
    let path = AddressVector::new(b.gid, 1);
    let [first, second] = [(); 2].map(|()| a.engine.create_ah(pd, &path).unwrap());
    assert_ne!(first, second, "two numbers of one address handle");
    a.engine.destroy_ah(first).unwrap();
    assert!(matches!(a.engine.destroy_ah(first), Err(DestroyError::Unknown(_))));
    let objects = a.engine.objects().clone();
    assert!(matches!(objects.dealloc_pd(pd), Err(DestroyError::Busy(_))), "the second one uses it");
    a.engine.destroy_ah(second).unwrap();
    objects.dealloc_pd(pd).unwrap();
    let created = a.engine.create_ah(pd, &path);
    assert!(matches!(created, Err(CreateError::Unknown(_))), "{created:?}");
}

#[test]
fn a_datagram_goes_to_the_new_mac_of_a_neighbour() {
    let (port_a, mut from_a) = ports();
    let (_, port_b) = ports();
    let (mut a, b) = ud_pair_over(port_a, port_b, 4096, QKEY);
    let ah = ah_to(&mut a, b.gid);
    let moved = Mac([2, 0, 0, 0, 0, 77]);
    a.engine.neighbour_mut().set_neighbour(b.gid.ip(), moved);
    let late = ah_to(&mut a, b.gid);
    a.poll(0);
    [ah, late].into_iter().for_each(|ah| a.post(1, to(ah, b.qpn), a.sge(0, 0)));
    a.poll(1);
    let frames = take(&mut from_a);
    let macs: Vec<_> = frames.iter().map(|frame| Packet::parse(frame).unwrap().dst_mac()).collect();
    assert_eq!(macs, [moved, moved]);
}

#[test]
fn the_udp_source_port_follows_the_flow_label_or_the_queue_pair_numbers() {
    let (port_a, mut from_a) = ports();
    let (_, port_b) = ports();
    let (mut a, b) = ud_pair_over(port_a, port_b, 4096, QKEY);
    let path = AddressVector { flow_label: 5, ..AddressVector::new(b.gid, 1) };
    let (labelled, plain) = (a.engine.create_ah(a.pd, &path).unwrap(), ah_to(&mut a, b.gid));
    let qpns = [b.qpn, Qpn::new(b.qpn.value() ^ 3)];
    for (ah, qpn) in [(labelled, qpns[0]), (labelled, qpns[1]), (plain, qpns[0]), (plain, qpns[1])] {
        a.post(1, to(ah, qpn), a.sge(0, 1));
    }
    a.poll(0);
    let frames = take(&mut from_a);
    let packets: Vec<_> = frames.iter().map(|frame| Packet::parse(frame).unwrap()).collect();
    let from_qpns = |qpn| roce::wire::udp_source_port(roce::wire::flow_label_from_qpns(a.qpn, qpn));
    let ports: Vec<u16> = packets.iter().map(|packet| packet.udp_source_port).collect();
    assert_eq!(ports, [0xC005, 0xC005, from_qpns(qpns[0]), from_qpns(qpns[1])]);
    let first = packets[0].bth.psn;
    for (n, packet) in packets.iter().enumerate() {
        assert!(packet.icrc_ok() && packet.bth.psn == first.plus(n as u32), "PSNs count the datagrams");
        assert_eq!(packet.deth().unwrap().src_qp, a.qpn);
    }
}

#[test]
fn nothing_is_allocated_per_packet() {
    let (mut a, mut b) = ud_pair();
    let ah = ah_to(&mut a, b.gid);
    for round in 0..40 {
        let allocations = allocation_counter::measure(|| {
            b.post_recv(1, b.sge(0, GRH + 64));
            a.post(2, to(ah, b.qpn), a.sge(0, 64));
            settle(&mut a, &mut b);
        });
        assert_eq!((a.poller.pop().is_some(), b.poller.pop().is_some()), (true, true));
        assert!(round < 20 || allocations.count_total == 0, "{allocations:?}");
    }
}
