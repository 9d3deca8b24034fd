//! Invariants of `Packet::parse` for any bytes. Shared by the fuzz target and the test that replays the corpus.

use roce::wire::{
    ExtHeader, FrameParts, HeaderSpec, HeaderTemplate, ICRC_LEN, Opcode, Packet, PacketSpec, icrc,
};

/// Parses `frame`; panics if the result is inconsistent. Returns the opcode; `None` if `frame` is refused.
pub(crate) fn check(frame: &[u8]) -> Option<Opcode> {
    let packet = Packet::parse(frame).ok()?;
    let info = packet.info;
    assert_eq!(packet.bth.opcode.info(), Some(info));
    assert!(info.has_payload || packet.payload.is_empty());
    let udp_len =
        8 + 12 + info.ext_len_bytes + packet.payload.len() + usize::from(packet.bth.pad_bytes) + ICRC_LEN;
    let ip_header_len = if packet.ip().is_ipv6 { 40 } else { 20 };
    assert_eq!(packet.l3().len() + ICRC_LEN, ip_header_len + udp_len);
    assert_eq!(packet.icrc_ok(), icrc::compute(packet.l3()) == Some(packet.icrc()));

    let (src, dst) = (packet.src_gid(), packet.dst_gid());
    // No template writes IPv6 packets with mapped IPv4 addresses, so this packet cannot be rebuilt.
    if packet.ip().is_ipv6 && (src.is_ipv4() || dst.is_ipv4()) {
        return Some(info.opcode);
    }
    let again = write_again(&packet);
    let second = Packet::parse(&again).expect("what was written can be read");
    assert!(second.icrc_ok());
    assert_eq!((second.src_gid(), second.dst_gid()), (src, dst));
    assert_eq!(
        (second.src_mac(), second.dst_mac(), second.vlan),
        (packet.src_mac(), packet.dst_mac(), packet.vlan)
    );
    assert_eq!((second.ip(), second.udp_source_port), (packet.ip(), packet.udp_source_port));
    assert_eq!(second.payload, packet.payload);
    let pad_bytes = (4 - packet.payload.len() % 4) as u8 % 4;
    assert_eq!(second.bth, roce::wire::Bth { pad_bytes, ..packet.bth });
    assert_eq!(
        (second.reth(), second.aeth(), second.immdt()),
        (packet.reth(), packet.aeth(), packet.immdt())
    );
    assert_eq!((second.deth(), second.ieth(), second.feth()), (packet.deth(), packet.ieth(), packet.feth()));
    assert_eq!((second.atomiceth(), second.atomicacketh()), (packet.atomiceth(), packet.atomicacketh()));
    assert_eq!((second.xrceth(), second.sacketh()), (packet.xrceth(), packet.sacketh()));
    assert_eq!(second.recveth(), packet.recveth());
    Some(info.opcode)
}

/// Builds a frame from the parsed values of `packet`.
fn write_again(packet: &Packet<'_>) -> Vec<u8> {
    let mut template = HeaderTemplate::new(&HeaderSpec {
        src_mac: packet.src_mac(),
        dst_mac: packet.dst_mac(),
        vlan: packet.vlan,
        src: packet.src_gid(),
        dst: packet.dst_gid(),
        tclass: packet.ip().tclass,
        ttl: packet.ip().ttl,
        flow_label: packet.ip().flow_label,
        udp_source_port: packet.udp_source_port,
        pkey: packet.bth.pkey,
        dest_qp: packet.bth.dest_qp,
    })
    .expect("both addresses are of one family");
    template.set_mig_req(packet.bth.mig_req);
    let spec = PacketSpec {
        opcode: packet.bth.opcode,
        solicited: packet.bth.solicited,
        ack_req: packet.bth.ack_req,
        preceding_reads: packet.preceding_reads(),
        fecn: packet.bth.fecn,
        becn: packet.bth.becn,
        psn: packet.bth.psn,
        ip_id: 0,
        payload_len: packet.payload.len(),
    };
    let mut frame = vec![0; template.frame_len(packet.info.ext_len_bytes, packet.payload.len())];
    let mut parts = template.write(&mut frame, &spec).expect("a payload no longer than it was");
    parts.payload.copy_from_slice(packet.payload);
    for header in packet.info.headers {
        copy_header(packet, &mut parts, *header).expect("the opcode has the header");
    }
    template.seal(&mut frame).expect("a frame just written");
    frame
}

fn copy_header(packet: &Packet<'_>, parts: &mut FrameParts<'_>, header: ExtHeader) -> Option<()> {
    match header {
        ExtHeader::Reth => parts.set_reth(packet.reth()?),
        ExtHeader::Aeth => parts.set_aeth(packet.aeth()?),
        ExtHeader::AtomicEth => parts.set_atomiceth(packet.atomiceth()?),
        ExtHeader::AtomicAckEth => parts.set_atomicacketh(packet.atomicacketh()?),
        ExtHeader::ImmDt => parts.set_immdt(packet.immdt()?),
        ExtHeader::Ieth => parts.set_ieth(packet.ieth()?),
        ExtHeader::Deth => parts.set_deth(packet.deth()?),
        ExtHeader::XrcEth => parts.set_xrceth(packet.xrceth()?),
        ExtHeader::Feth => parts.set_feth(packet.feth()?),
        ExtHeader::SackEth => parts.set_sacketh(packet.sacketh()?),
        ExtHeader::RecvEth => parts.set_recveth(packet.recveth()?),
        ExtHeader::Rdeth | ExtHeader::CnpReserved => Some(()),
    }
}
