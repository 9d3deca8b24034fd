//! Forged packets of a stranger, which knows some fields of a connection and guesses the other fields.

use super::End;
use roce::id::{Gid, Mac, PKey, QKey, Qpn, RKey};
use roce::port::Port;
use roce::psn::Psn;
use roce::wire::{
    Aeth, Deth, HeaderSpec, HeaderTemplate, Opcode, PacketSpec, PrecedingReads, Reth, Syndrome,
    flow_label_from_qpns, udp_source_port,
};

/// Fields of a packet. [`Forged::to`] returns the fields of a genuine packet; a test then changes some fields.
#[derive(Clone, Copy)]
pub(crate) struct Forged {
    pub(crate) src_mac: Mac,
    pub(crate) dst_mac: Mac,
    pub(crate) src: Gid,
    pub(crate) dst: Gid,
    pub(crate) udp_source_port: u16,
    pub(crate) traffic_class: u8,
    pub(crate) pkey: PKey,
    pub(crate) qpn: Qpn,
    pub(crate) opcode: Opcode,
    pub(crate) psn: Psn,
    pub(crate) ack_req: bool,
    pub(crate) becn: bool,
    pub(crate) reth: Reth,
    pub(crate) deth: Deth,
    pub(crate) syndrome: Syndrome,
    pub(crate) payload: u8,
    pub(crate) payload_len: usize,
    /// True if the ICRC is correct.
    pub(crate) sound: bool,
}

impl Forged {
    /// Returns a packet from `peer` to `victim`. A RETH refers to the memory of `victim`.
    pub(crate) fn to<P: Port, Q: Port>(victim: &End<P>, peer: &End<Q>, opcode: Opcode, psn: Psn) -> Forged {
        let payload_len = if opcode.info().is_some_and(|info| info.has_payload) { 64 } else { 0 };
        Forged {
            src_mac: peer.engine.port().caps().mac,
            dst_mac: victim.engine.port().caps().mac,
            src: peer.gid,
            dst: victim.gid,
            udp_source_port: udp_source_port(flow_label_from_qpns(peer.qpn, victim.qpn)),
            traffic_class: 0,
            pkey: PKey::DEFAULT,
            qpn: victim.qpn,
            opcode,
            psn,
            ack_req: true,
            becn: opcode == Opcode::CNP,
            reth: Reth { va: victim.memory.addr(), rkey: RKey(victim.rkey.0), len_bytes: 64 },
            deth: Deth { qkey: QKey(0), src_qp: peer.qpn },
            syndrome: Syndrome::ACK,
            payload: 0xEE,
            payload_len,
            sound: true,
        }
    }

    pub(crate) fn frame(&self) -> Vec<u8> {
        let template = HeaderTemplate::new(&HeaderSpec {
            src_mac: self.src_mac,
            dst_mac: self.dst_mac,
            vlan: None,
            src: self.src,
            dst: self.dst,
            tclass: self.traffic_class,
            ttl: 64,
            flow_label: 0,
            udp_source_port: self.udp_source_port,
            pkey: self.pkey,
            dest_qp: self.qpn,
        })
        .unwrap();
        let spec = PacketSpec {
            opcode: self.opcode,
            solicited: false,
            ack_req: self.ack_req,
            preceding_reads: PrecedingReads::NONE,
            fecn: false,
            becn: self.becn,
            psn: self.psn,
            ip_id: 0,
            payload_len: self.payload_len,
        };
        let mut frame =
            vec![0; template.frame_len(self.opcode.info().unwrap().ext_len_bytes, self.payload_len)];
        let mut parts = template.write(&mut frame, &spec).unwrap();
        parts.ext.fill(0);
        parts.payload.fill(self.payload);
        let _ = parts.set_reth(self.reth);
        let _ = parts.set_deth(self.deth);
        let _ = parts.set_aeth(Aeth { syndrome: self.syndrome, msn: roce::id::Msn::new(1) });
        template.seal(&mut frame).unwrap();
        if !self.sound {
            *frame.last_mut().unwrap() ^= 1;
        }
        frame
    }

    /// Sends the packet from the port of `from`.
    pub(crate) fn send_from<P: Port>(&self, from: &mut End<P>) {
        let frame = self.frame();
        let port = from.engine.port_mut();
        port.tx_reserve(frame.len()).unwrap().copy_from_slice(&frame);
        port.tx_flush();
    }
}
