use super::*;
use crate::id::{Gid, Mac, Msn, PKey, QKey, Qpn, RKey};
use crate::psn::Psn;
use etherparse::{NetSlice, SlicedPacket, TransportSlice};
use proptest::prelude::*;

const UDP_PORT: u16 = 4791;

#[derive(Clone, Debug)]
struct Recipe {
    header: HeaderSpec,
    packet: PacketSpec,
    mig_req: bool,
    ext: Ext,
    payload: Vec<u8>,
}

#[derive(Clone, Copy, Debug)]
struct Ext {
    reth: Reth,
    aeth: Aeth,
    atomiceth: AtomicEth,
    atomicacketh: AtomicAckEth,
    imm: u32,
    ieth: Ieth,
    deth: Deth,
    xrceth: XrcEth,
    feth: Feth,
    sacketh: SackEth,
    recveth: RecvEth,
}

fn any_ext() -> impl Strategy<Value = Ext> {
    any::<([u64; 4], [u32; 4], [u8; 3])>().prop_map(|([a, b, c, d], [e, f, g, h], [i, j, k])| Ext {
        reth: Reth { va: a, rkey: RKey(e), len_bytes: f },
        aeth: Aeth { syndrome: Syndrome::from_byte(i), msn: Msn::new(g) },
        atomiceth: AtomicEth { va: b, rkey: RKey(g), swap_or_add: c, compare: d },
        atomicacketh: AtomicAckEth { original: d },
        imm: h,
        ieth: Ieth { rkey: RKey(f) },
        deth: Deth { qkey: QKey(h), src_qp: Qpn::new(e) },
        xrceth: XrcEth { srqn: g & 0xFF_FFFF },
        feth: Feth { placement: j & 0x0F, selectivity: k & 3 },
        sacketh: SackEth {
            version: i >> 4,
            duplicate: j & 1 == 1,
            no_room: j & 2 == 2,
            trigger: Psn::new(e),
        },
        recveth: RecvEth { recv_seq: f, packet: h },
    })
}

fn any_addresses() -> impl Strategy<Value = (Gid, Gid)> {
    let v4 = any::<[[u8; 4]; 2]>().prop_map(|[a, b]| (Gid::from(Ipv4(a)), Gid::from(Ipv4(b))));
    let v6 = any::<[[u8; 16]; 2]>()
        .prop_map(|[a, b]| (Gid(a), Gid(b)))
        .prop_filter("a mapped IPv4 address", |(a, b)| !a.is_ipv4() && !b.is_ipv4());
    prop_oneof![v4, v6]
}

struct Ipv4([u8; 4]);

impl From<Ipv4> for Gid {
    fn from(ip: Ipv4) -> Gid {
        std::net::Ipv4Addr::from(ip.0).into()
    }
}

fn any_header() -> impl Strategy<Value = HeaderSpec> {
    let macs = any::<([u8; 6], [u8; 6], Option<u16>)>();
    let rest = any::<([u8; 2], u32, [u16; 2], u32)>();
    (macs, any_addresses(), rest).prop_map(
        |((src_mac, dst_mac, vlan), (src, dst), ([tclass, ttl], flow_label, [port, pkey], qpn))| HeaderSpec {
            src_mac: Mac(src_mac),
            dst_mac: Mac(dst_mac),
            vlan,
            src,
            dst,
            tclass,
            ttl,
            flow_label: flow_label & 0xF_FFFF,
            udp_source_port: port,
            pkey: PKey(pkey),
            dest_qp: Qpn::new(qpn),
        },
    )
}

/// Generates payload lengths in bytes: three of four are near a path MTU or a block size of the ICRC computation, one
/// of four is any length from 0 to 4096.
fn any_payload_len() -> impl Strategy<Value = usize> {
    let near = prop::sample::select(vec![0usize, 16, 32, 64, 128, 256, 512, 1024, 2048, 4092]);
    prop_oneof![3 => (near, 0..=4usize).prop_map(|(a, b)| a + b), 1 => 0..=4096usize]
}

fn any_recipe() -> impl Strategy<Value = Recipe> {
    let opcode = prop::sample::select(Opcode::known().collect::<Vec<_>>());
    let payload = any_payload_len().prop_flat_map(|len| prop::collection::vec(any::<u8>(), len));
    (any_header(), opcode, any::<([bool; 5], u16, u32, u16)>(), any_ext(), payload).prop_map(
        |(header, info, ([solicited, ack_req, fecn, becn, mig_req], reads, psn, ip_id), ext, payload)| {
            let payload = if info.has_payload { payload } else { Vec::new() };
            let packet = PacketSpec {
                opcode: info.opcode,
                solicited,
                ack_req,
                preceding_reads: PrecedingReads::from_pkts(reads.into()),
                fecn,
                becn,
                psn: Psn::new(psn),
                ip_id,
                payload_len: payload.len(),
            };
            Recipe { header, packet, mig_req, ext, payload }
        },
    )
}

impl Recipe {
    fn template(&self) -> HeaderTemplate {
        let mut template = HeaderTemplate::new(&self.header).unwrap();
        template.set_mig_req(self.mig_req);
        template
    }

    fn frame(&self) -> Vec<u8> {
        let template = self.template();
        let info = self.packet.opcode.info().unwrap();
        let mut frame = vec![0xA5; template.frame_len(info.ext_len_bytes, self.payload.len())];
        let mut parts = template.write(&mut frame, &self.packet).unwrap();
        assert_eq!(parts.ext.len(), info.ext_len_bytes);
        parts.payload.copy_from_slice(&self.payload);
        for header in info.headers {
            match header {
                ExtHeader::Reth => parts.set_reth(self.ext.reth),
                ExtHeader::Aeth => parts.set_aeth(self.ext.aeth),
                ExtHeader::AtomicEth => parts.set_atomiceth(self.ext.atomiceth),
                ExtHeader::AtomicAckEth => parts.set_atomicacketh(self.ext.atomicacketh),
                ExtHeader::ImmDt => parts.set_immdt(self.ext.imm),
                ExtHeader::Ieth => parts.set_ieth(self.ext.ieth),
                ExtHeader::Deth => parts.set_deth(self.ext.deth),
                ExtHeader::XrcEth => parts.set_xrceth(self.ext.xrceth),
                ExtHeader::Feth => parts.set_feth(self.ext.feth),
                ExtHeader::SackEth => parts.set_sacketh(self.ext.sacketh),
                ExtHeader::RecvEth => parts.set_recveth(self.ext.recveth),
                // `FrameParts` cannot set an RDETH or the reserved bytes of a CNP; both retain the initial value 0xA5.
                ExtHeader::Rdeth | ExtHeader::CnpReserved => Some(()),
            }
            .unwrap();
        }
        template.seal(&mut frame).unwrap();
        frame
    }

    fn check(&self, packet: &Packet<'_>) {
        let Recipe { header, packet: spec, ext, .. } = self;
        let info = spec.opcode.info().unwrap();
        assert_eq!((packet.src_mac(), packet.dst_mac()), (header.src_mac, header.dst_mac));
        assert_eq!(packet.vlan, header.vlan);
        assert_eq!((packet.src_gid(), packet.dst_gid()), (header.src, header.dst));
        let flow_label = if header.src.is_ipv4() { 0 } else { header.flow_label };
        let is_ipv6 = !header.src.is_ipv4();
        let ip = IpInfo { is_ipv6, tclass: header.tclass, ttl: header.ttl, flow_label };
        assert_eq!(packet.ip(), ip);
        assert_eq!(packet.udp_source_port, header.udp_source_port);
        let bth = Bth {
            opcode: spec.opcode,
            solicited: spec.solicited,
            mig_req: self.mig_req,
            pad_bytes: ((4 - self.payload.len() % 4) % 4) as u8,
            tver: 0,
            pkey: header.pkey,
            fecn: spec.fecn,
            becn: spec.becn,
            dest_qp: header.dest_qp,
            ack_req: spec.ack_req,
            psn: spec.psn,
        };
        assert_eq!(packet.bth, bth);
        assert_eq!(packet.preceding_reads(), spec.preceding_reads);
        assert_eq!(packet.info, info);
        assert_eq!(packet.payload, self.payload);
        let has = |header| info.headers.contains(&header);
        assert_eq!(packet.reth(), has(ExtHeader::Reth).then_some(ext.reth));
        assert_eq!(packet.aeth(), has(ExtHeader::Aeth).then_some(ext.aeth));
        assert_eq!(packet.atomiceth(), has(ExtHeader::AtomicEth).then_some(ext.atomiceth));
        assert_eq!(packet.atomicacketh(), has(ExtHeader::AtomicAckEth).then_some(ext.atomicacketh));
        assert_eq!(packet.immdt(), has(ExtHeader::ImmDt).then_some(ext.imm));
        assert_eq!(packet.ieth(), has(ExtHeader::Ieth).then_some(ext.ieth));
        assert_eq!(packet.deth(), has(ExtHeader::Deth).then_some(ext.deth));
        assert_eq!(packet.xrceth(), has(ExtHeader::XrcEth).then_some(ext.xrceth));
        assert_eq!(packet.feth(), has(ExtHeader::Feth).then_some(ext.feth));
        assert_eq!(packet.sacketh(), has(ExtHeader::SackEth).then_some(ext.sacketh));
        assert_eq!(packet.recveth(), has(ExtHeader::RecvEth).then_some(ext.recveth));
    }
}

fn udp_payload(frame: &[u8]) -> Vec<u8> {
    let sliced = SlicedPacket::from_ethernet(frame).unwrap();
    if let Some(NetSlice::Ipv4(ip)) = &sliced.net {
        let header = ip.header().to_header();
        assert_eq!(header.header_checksum, header.calc_header_checksum());
        assert!(header.dont_fragment);
    }
    match sliced.transport {
        Some(TransportSlice::Udp(udp)) => {
            assert_eq!(udp.destination_port(), UDP_PORT);
            udp.payload().to_vec()
        }
        other => panic!("not UDP: {other:?}"),
    }
}

/// Returns whether the ICRC covers bit `bit` (0: least significant) of the byte at offset `at` of the IP packet.
fn is_covered(is_ipv6: bool, at: usize, bit: u32) -> bool {
    if is_ipv6 {
        // IPv6: the traffic class starts in the low half of byte 0, and the flow label ends with byte 3.
        !matches!((at, bit), (0, 0..=3) | (1..=3 | 7 | 46..=47 | 52, _))
    } else {
        !matches!(at, 1 | 8 | 10..=11 | 26..=27 | 32)
    }
}

proptest! {
    #[test]
    fn a_written_frame_is_read_back(recipe in any_recipe()) {
        let frame = recipe.frame();
        let packet = Packet::parse(&frame).unwrap();
        recipe.check(&packet);
        prop_assert!(packet.icrc_ok());
        prop_assert_eq!(probable_dest_qp(&frame), Some(packet.bth.dest_qp));

        let udp = udp_payload(&frame);
        prop_assert_eq!(udp.len() % 4, 0);
        let ext_end = Bth::LEN + packet.info.ext_len_bytes;
        prop_assert_eq!(&udp[ext_end..ext_end + recipe.payload.len()], &recipe.payload[..]);
        prop_assert!(udp[ext_end + recipe.payload.len()..udp.len() - ICRC_LEN].iter().all(|pad| *pad == 0));
    }

    #[test]
    fn ethernet_padding_is_ignored(recipe in any_recipe(), padding in prop::collection::vec(any::<u8>(), 0..64)) {
        let mut frame = recipe.frame();
        frame.extend(padding);
        let packet = Packet::parse(&frame).unwrap();
        recipe.check(&packet);
        prop_assert!(packet.icrc_ok());
    }

    #[test]
    fn a_cut_frame_is_truncated(recipe in any_recipe(), cut in any::<prop::sample::Index>()) {
        let frame = recipe.frame();
        let cut = cut.index(frame.len());
        prop_assert_eq!(Packet::parse(&frame[..cut]).unwrap_err(), ParseError::Truncated);
    }

    #[test]
    fn icrc_covers_all_but_the_masked_bits(recipe in any_recipe(), at in any::<prop::sample::Index>(), bit in 0..8u32) {
        let frame = recipe.frame();
        let packet = Packet::parse(&frame).unwrap();
        let mut l3 = packet.l3().to_vec();
        let at = at.index(l3.len());
        l3[at] ^= 1 << bit;
        let unchanged = icrc::compute(&l3) == Some(packet.icrc());
        prop_assert_eq!(unchanged, !is_covered(packet.ip().is_ipv6, at, bit), "byte {} bit {}", at, bit);
    }

    #[test]
    fn icrc_is_the_crc_of_the_masked_packet(recipe in any_recipe()) {
        let frame = recipe.frame();
        let packet = Packet::parse(&frame).unwrap();
        prop_assert_eq!(packet.icrc(), plain_icrc(&packet));
    }

    #[test]
    fn traffic_class_and_mac_change_alone(header in any_header(), tclass in any::<u8>(), mac in any::<[u8; 6]>()) {
        let other = HeaderSpec { tclass, dst_mac: Mac(mac), ..header };
        let [mut template, other] = [header, other].map(|spec| AddressTemplate::new(&spec.address()).unwrap());
        let fields = template.qp_fields(header.dest_qp, header.udp_source_port);
        template.set_tclass(tclass);
        template.set_dst_mac(Mac(mac));
        prop_assert_eq!(template, other);
        let same = other.qp_fields(header.dest_qp, header.udp_source_port);
        prop_assert_eq!(fields, same, "queue pairs keep their fields");
    }

    #[test]
    fn no_bytes_can_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        look_at_everything(&bytes);
        probable_dest_qp(&bytes);
    }

    #[test]
    fn no_damage_can_panic(
        recipe in any_recipe(),
        damage in prop::collection::vec((0..96usize, any::<u8>()), 1..6),
        len in prop::option::of(0..4400usize),
    ) {
        let mut frame = recipe.frame();
        for (at, byte) in damage {
            if let Some(target) = frame.get_mut(at) {
                *target = byte;
            }
        }
        if let Some(len) = len {
            frame.resize(len, 0x5A);
        }
        look_at_everything(&frame);
    }
}

fn look_at_everything(frame: &[u8]) {
    let Ok(packet) = Packet::parse(frame) else { return };
    let ext = [
        packet.reth().is_some(),
        packet.aeth().is_some(),
        packet.atomiceth().is_some(),
        packet.atomicacketh().is_some(),
        packet.immdt().is_some(),
        packet.ieth().is_some(),
        packet.deth().is_some(),
        packet.xrceth().is_some(),
        packet.feth().is_some(),
        packet.sacketh().is_some(),
        packet.recveth().is_some(),
        packet.info.headers.contains(&ExtHeader::Rdeth),
        packet.info.headers.contains(&ExtHeader::CnpReserved),
    ];
    assert_eq!(ext.iter().filter(|has| **has).count(), packet.info.headers.len());
    assert!(icrc::compute(packet.l3()).is_some());
    let sliced = SlicedPacket::from_ethernet(frame).unwrap();
    let Some(TransportSlice::Udp(udp)) = sliced.transport else { panic!("not UDP") };
    let pad_len = usize::from(packet.bth.pad_bytes);
    let len = Bth::LEN + packet.info.ext_len_bytes + packet.payload.len() + pad_len + ICRC_LEN;
    assert_eq!(udp.payload().len(), len);
}

/// Computes the ICRC as IBA defines it, bit by bit over the masked packet.
fn plain_icrc(packet: &Packet<'_>) -> u32 {
    let mut crc = u32::MAX;
    let mut feed = |byte: u8| {
        crc ^= u32::from(byte);
        for _ in 0..8 {
            crc = if crc & 1 != 0 { (crc >> 1) ^ 0xEDB8_8320 } else { crc >> 1 };
        }
    };
    (0..8).for_each(|_| feed(0xFF));
    for (at, byte) in packet.l3().iter().enumerate() {
        let mask =
            (0..8).filter(|bit| !is_covered(packet.ip().is_ipv6, at, *bit)).map(|bit| 1u8 << bit).sum::<u8>();
        feed(byte | mask);
    }
    !crc
}

/// Returns the frames of a capture of soft-RoCE.
fn captured(name: &str) -> Vec<Vec<u8>> {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/pcap").join(name);
    let mut reader = pcap_file::pcap::PcapReader::new(std::fs::File::open(path).unwrap()).unwrap();
    let mut frames = Vec::new();
    while let Some(packet) = reader.next_packet() {
        frames.push(packet.unwrap().data.into_owned());
    }
    frames
}

/// `soft_roce` is the GRH area that soft-RoCE wrote to the receive of the captured IPv4 datagram.
#[test]
fn the_grh_area_is_that_of_soft_roce() {
    let soft_roce =
        [[0; 20], [0x45, 0, 0, 0x74, 0x28, 0x95, 0x40, 0, 0x40, 0x11, 0xFD, 0xDF, 10, 1, 0, 1, 10, 1, 0, 2]]
            .concat();
    let frame = captured("ud_send_v4.pcap").remove(0);
    assert_eq!(Packet::parse(&frame).unwrap().grh_area()[..], soft_roce);
    let frame = captured("ud_send_v6.pcap").remove(0);
    let packet = Packet::parse(&frame).unwrap();
    let area = packet.grh_area();
    assert_eq!((area[0] >> 4, &area[..]), (6, &packet.l3()[..40]));
}
