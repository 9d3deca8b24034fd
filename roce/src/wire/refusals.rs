//! Tests: a frame for each `ParseError`, and packets that [`HeaderTemplate::write`] refuses.

use super::*;
use crate::id::{Gid, Mac, PKey, Qpn};
use crate::psn::Psn;
use std::net::{Ipv4Addr, Ipv6Addr};

const IP: usize = EthHeader::LEN;
const BTH_V4: usize = IP + Ipv4Header::LEN + UdpHeader::LEN;
const UDP_V6: usize = IP + Ipv6Header::LEN;

fn header(is_ipv6: bool) -> HeaderSpec {
    let v4 = |last| Gid::from(Ipv4Addr::new(192, 0, 2, last));
    let v6 = |last| Gid::from(Ipv6Addr::new(0x2001, 0xDB8, 0, 0, 0, 0, 0, last));
    let [src, dst] = if is_ipv6 { [v6(1), v6(2)] } else { [v4(1), v4(2)] };
    HeaderSpec {
        src_mac: Mac([2, 0, 0, 0, 0, 1]),
        dst_mac: Mac([2, 0, 0, 0, 0, 2]),
        vlan: None,
        src,
        dst,
        tclass: 0,
        ttl: 64,
        flow_label: 0,
        udp_source_port: 0xC000,
        pkey: PKey::DEFAULT,
        dest_qp: Qpn::new(17),
    }
}

fn packet(opcode: Opcode, payload_len: usize) -> PacketSpec {
    PacketSpec {
        opcode,
        solicited: false,
        ack_req: true,
        preceding_reads: PrecedingReads::NONE,
        fecn: false,
        becn: false,
        psn: Psn::new(1),
        ip_id: 1,
        payload_len,
    }
}

fn frame(spec: &HeaderSpec, opcode: Opcode, payload_len: usize) -> Vec<u8> {
    let template = HeaderTemplate::new(spec).unwrap();
    let mut frame = vec![0; template.frame_len(opcode.info().unwrap().ext_len_bytes, payload_len)];
    template.write(&mut frame, &packet(opcode, payload_len)).unwrap();
    template.seal(&mut frame).unwrap();
    frame
}

fn after(is_ipv6: bool, change: impl FnOnce(&mut Vec<u8>)) -> ParseError {
    let mut frame = frame(&header(is_ipv6), Opcode::RC_SEND_ONLY, 5);
    change(&mut frame);
    Packet::parse(&frame).unwrap_err()
}

fn mend_checksum(frame: &mut [u8]) {
    let header = frame[IP..].first_chunk_mut::<{ Ipv4Header::LEN }>().unwrap();
    header[10..12].fill(0);
    let checksum = !ipv4::fold(ipv4::word_sum(header));
    header[10..12].copy_from_slice(&checksum.to_be_bytes());
}

#[test]
fn other_protocols_are_not_roce() {
    use ParseError::NotRoce;
    assert_eq!(after(false, |f| f[12..14].copy_from_slice(&[0x08, 0x06])), NotRoce, "ARP");
    assert_eq!(after(false, |f| f[IP + 9] = 1), NotRoce, "ICMP; its checksum is not ours to judge");
    assert_eq!(after(false, |f| (f[IP], f[IP + 9]) = (0x46, 2)), NotRoce, "IGMP has IP options");
    assert_eq!(after(false, |f| f[IP + 22..IP + 24].copy_from_slice(&[0, 53])), NotRoce, "another port");
    assert_eq!(after(true, |f| f[IP + 6] = 58), NotRoce, "ICMPv6");
    assert_eq!(after(true, |f| f[IP + 6] = 0), NotRoce, "hop-by-hop options: multicast listener reports");
    assert_eq!(after(true, |f| f[UDP_V6 + 2..UDP_V6 + 4].copy_from_slice(&[0, 53])), NotRoce, "another port");
}

#[test]
fn bad_ip_headers_are_told_apart() {
    use ParseError::*;
    assert_eq!(
        after(false, |f| f[12..14].copy_from_slice(&[0x81, 0x00])),
        NotRoce,
        "a tag before no EtherType"
    );
    assert_eq!(after(false, |f| f[12..14].copy_from_slice(&[0x88, 0xA8])), StackedVlan);
    let tagged_twice = |f: &mut Vec<u8>| drop(f.splice(12..12, [0x81, 0, 0, 7, 0x81, 0, 0, 8]));
    assert_eq!(after(false, tagged_twice), StackedVlan);
    assert_eq!(after(false, |f| f[IP] = 0x65), BadIpVersion);
    assert_eq!(after(true, |f| f[IP] = 0x40), BadIpVersion);
    assert_eq!(after(false, |f| f[IP] = 0x46), Ipv4Options);
    assert_eq!(after(false, |f| f[IP + 6] = 0x20), Fragment, "more fragments");
    assert_eq!(after(false, |f| f[IP + 7] = 1), Fragment, "offset");
    assert_eq!(after(true, |f| f[IP + 6] = 44), Fragment);
    assert_eq!(after(false, |f| f[IP + 8] -= 1), BadIpChecksum);
}

#[test]
fn lengths_must_agree() {
    use ParseError::*;
    let set_ip_len = |len: u8| {
        move |f: &mut Vec<u8>| {
            f[IP + 3] = len;
            mend_checksum(f);
        }
    };
    // The IP packet of the unchanged frame has 52 bytes: 20 IP, 8 UDP, 12 BTH, 5 payload, 3 pad, 4 ICRC.
    assert_eq!(after(false, set_ip_len(52 + 1)), Truncated);
    assert_eq!(after(false, set_ip_len(52 - 1)), LengthMismatch);
    assert_eq!(after(false, set_ip_len(19)), LengthMismatch, "shorter than its own header");
    assert_eq!(after(false, |f| f[IP + 25] += 1), LengthMismatch);
    assert_eq!(after(true, |f| f[IP + 5] += 1), Truncated);
    assert_eq!(after(true, |f| f[IP + 5] -= 1), LengthMismatch);
    assert_eq!(after(true, |f| f[UDP_V6 + 5] -= 1), LengthMismatch);
}

#[test]
fn bad_transport_headers_are_told_apart() {
    use ParseError::*;
    assert_eq!(after(false, |f| f[BTH_V4 + 1] |= 1), BadTver);
    assert_eq!(after(false, |f| f[BTH_V4] = 0x15), UnknownOpcode);
    assert_eq!(after(false, |f| f[BTH_V4] = 0xC1), UnknownOpcode, "manufacturers' opcodes");
    assert_eq!(
        after(false, |f| f[BTH_V4] = Opcode::RC_RDMA_WRITE_ONLY.value()),
        Truncated,
        "no room for a RETH"
    );
    assert_eq!(after(false, |f| f[BTH_V4] = Opcode::RC_ACKNOWLEDGE.value()), UnexpectedPayload);
    let mut no_payload = frame(&header(false), Opcode::RC_SEND_ONLY, 0);
    no_payload[BTH_V4 + 1] |= 0x10;
    assert_eq!(Packet::parse(&no_payload).unwrap_err(), BadPad, "more pad than bytes");
    let odd = |f: &mut Vec<u8>| {
        f.pop();
        f[IP + 3] -= 1;
        f[IP + 25] -= 1;
        mend_checksum(f);
    };
    assert_eq!(after(false, odd), BadPad, "not a multiple of four");
}

#[test]
fn every_reason_has_its_own_counter() {
    for (index, reason) in ParseError::ALL.iter().enumerate() {
        assert_eq!(reason.index(), index);
    }
}

#[test]
fn congestion_marks_are_seen() {
    for is_ipv6 in [false, true] {
        for ecn in 0..4 {
            let frame = frame(&HeaderSpec { tclass: 0xC0 | ecn, ..header(is_ipv6) }, Opcode::RC_SEND_ONLY, 0);
            assert_eq!(Packet::parse(&frame).unwrap().congestion_experienced(), ecn == 3);
        }
    }
}

#[test]
fn a_template_refuses_what_would_be_malformed() {
    let template = HeaderTemplate::new(&header(false)).unwrap();
    let len = template.frame_len(0, 5);
    assert_eq!(len, 14 + 52);
    let write = |len: usize, spec: &PacketSpec| template.write(&mut vec![0; len], spec).is_some();
    assert!(write(len, &packet(Opcode::RC_SEND_ONLY, 5)));
    assert!(!write(len + 1, &packet(Opcode::RC_SEND_ONLY, 5)), "a frame of another length");
    assert!(!write(len, &packet(Opcode::RC_RDMA_WRITE_ONLY, 5)), "no room for its extension header");
    assert!(!write(len, &packet(Opcode::new(0x15), 5)), "an opcode that the table does not list");
    let ack_len = template.frame_len(Aeth::LEN, 4);
    assert!(!write(ack_len, &packet(Opcode::RC_ACKNOWLEDGE, 4)), "payload where the opcode has none");
    let long = 65_535 - 20 - 8 - 12 - 4;
    assert!(write(template.frame_len(0, long / 4 * 4), &packet(Opcode::RC_SEND_ONLY, long / 4 * 4)));
    assert!(
        !write(template.frame_len(0, long + 1), &packet(Opcode::RC_SEND_ONLY, long + 1)),
        "over 65,535 bytes"
    );
    let mixed = HeaderSpec { dst: Gid::ZERO, ..header(false) };
    assert_eq!(HeaderTemplate::new(&mixed), Err(MixedFamilies { src: mixed.src, dst: Gid::ZERO }));
}

#[test]
fn an_extension_header_is_written_only_where_the_opcode_has_it() {
    let template = HeaderTemplate::new(&header(true)).unwrap();
    let mut frame = vec![0; template.frame_len(Aeth::LEN, 0)];
    let mut parts = template.write(&mut frame, &packet(Opcode::RC_ACKNOWLEDGE, 0)).unwrap();
    assert_eq!(parts.set_immdt(1), None);
    assert_eq!(
        parts.set_aeth(Aeth { syndrome: Syndrome::Ack { credits: 31 }, msn: crate::id::Msn::new(1) }),
        Some(())
    );
}

#[test]
fn sealing_less_than_headers_is_refused() {
    let template = HeaderTemplate::new(&header(false)).unwrap();
    assert_eq!(template.seal(&mut []), None);
    assert_eq!(template.seal(&mut vec![0; template.frame_len(0, 0) - 1]), None);
}
