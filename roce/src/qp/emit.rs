//! Writes packets to a port: headers, payload and ICRC.

use crate::mem::MemoryFault;
use crate::port::{PHANTOM_ICRC, Payload, Port};
use crate::psn::Psn;
use crate::wire::{AddressTemplate, FrameParts, Opcode, PacketSpec, PrecedingReads, QpFields};

/// The header fields that a queue pair does not share with the other queue pairs of its address handle.
#[derive(Clone, Copy, Debug)]
pub(crate) struct QpHeaders {
    pub fields: QpFields,
    /// IPv4 identification of the next packet.
    pub ip_id: u16,
}

/// Builds packets from the headers of an address handle and those of a queue pair.
pub(crate) struct PacketBuilder<'a> {
    pub template: &'a AddressTemplate,
    pub headers: &'a mut QpHeaders,
}

/// Error: the port has no free transmit buffer. The packet is sent in a later poll.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PortFull;

/// Reason for not sending a packet with payload.
pub(crate) enum NotSent {
    PortFull,
    /// The memory that contains the payload cannot be read.
    BadMemory,
}

impl PacketBuilder<'_> {
    #[inline]
    pub(crate) fn packet(&mut self, opcode: Opcode, psn: Psn, payload_len: u32) -> PacketSpec {
        PacketSpec {
            opcode,
            solicited: false,
            ack_req: false,
            preceding_reads: PrecedingReads::NONE,
            fecn: false,
            becn: false,
            psn,
            ip_id: self.headers.ip_id,
            payload_len: payload_len as usize,
        }
    }

    /// Returns the length of a frame in bytes, from its Ethernet header to its ICRC.
    #[inline]
    pub(crate) fn frame_bytes(&self, opcode: Opcode, payload_len: u32) -> u32 {
        let ext_len = opcode.info().map_or(0, |info| info.ext_len_bytes);
        u32::try_from(self.template.frame_len(ext_len, payload_len as usize)).unwrap_or(u32::MAX)
    }

    /// Sends a CNP to the peer's queue pair, with BECN 1, PSN 0 and 16 bytes of value 0 (IBA A17.9). The CNP has the
    /// UDP source port of the connection, so that ECMP routes the CNP as it routes ACKs.
    pub(crate) fn emit_notification<P: Port>(
        &mut self,
        port: &mut P,
        traffic_class: u8,
    ) -> Result<(), PortFull> {
        let mut template = *self.template;
        template.set_tclass(traffic_class);
        template.set_mig_req(false);
        let mut spec = self.packet(Opcode::CNP, Psn::new(0), 0);
        spec.becn = true;
        PacketBuilder { template: &template, headers: self.headers }
            .emit(port, &spec, |parts| parts.ext.fill(0))
    }

    /// Reserves a transmit buffer of `port`, writes the headers, calls `fill` to write extension headers and payload,
    /// and appends the ICRC.
    #[inline(always)]
    pub(crate) fn emit<P: Port>(
        &mut self,
        port: &mut P,
        spec: &PacketSpec,
        fill: impl FnOnce(&mut FrameParts<'_>),
    ) -> Result<(), PortFull> {
        let filled = |parts: &mut FrameParts<'_>| {
            fill(parts);
            Ok(())
        };
        self.emit_copied(port, spec, filled).map_err(|_| PortFull)
    }

    /// Sends a packet as [`PacketBuilder::emit`] does; `fill` copies the payload from registered memory. At a memory
    /// fault, no packet is sent.
    #[inline(always)]
    pub(crate) fn emit_copied<P: Port>(
        &mut self,
        port: &mut P,
        spec: &PacketSpec,
        fill: impl FnOnce(&mut FrameParts<'_>) -> Result<(), MemoryFault>,
    ) -> Result<(), NotSent> {
        let ext_len = spec.opcode.info().map_or(0, |info| info.ext_len_bytes);
        let frame_len = self.template.frame_len(ext_len, spec.payload_len);
        let payload = port.payload();
        let fields = &self.headers.fields;
        let frame = port.tx_reserve(frame_len).ok_or(NotSent::PortFull)?;
        #[expect(clippy::expect_used, reason = "internal: the port returns what was reserved")]
        let mut parts = self.template.write(frame, fields, spec).expect("the frame has the length asked for");
        if fill(&mut parts).is_err() {
            port.tx_cancel();
            return Err(NotSent::BadMemory);
        }
        let sealed = match payload {
            Payload::Carried => self.template.seal(frame, fields),
            Payload::Phantom => frame.last_chunk_mut().map(|icrc| *icrc = PHANTOM_ICRC.to_le_bytes()),
        };
        #[expect(clippy::expect_used, reason = "internal: the frame has room for its headers")]
        sealed.expect("the frame was just written");
        self.headers.ip_id = self.headers.ip_id.wrapping_add(1);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::{Gid, Mac, PKey, Qpn};
    use crate::port::PortCaps;
    use crate::port::loopback::Loopback;
    use crate::wire::AddressSpec;
    use crate::wire::icrc::CONNECTX_4_CNP;
    use std::net::Ipv4Addr;

    #[test]
    fn a_notification_is_to_the_byte_that_of_a_connectx_4_lx() {
        let template = AddressTemplate::new(&AddressSpec {
            src_mac: Mac([2, 0, 0, 0, 0, 1]),
            dst_mac: Mac([2, 0, 0, 0, 0, 2]),
            vlan: None,
            src: Gid::from(Ipv4Addr::new(10, 0, 17, 1)),
            dst: Gid::from(Ipv4Addr::new(10, 0, 18, 1)),
            tclass: 0,
            ttl: 64,
            flow_label: 0,
            pkey: PKey::DEFAULT,
        })
        .unwrap();
        let mut headers = QpHeaders { fields: template.qp_fields(Qpn::new(0x118), 0), ip_id: 0x718C };
        let before = headers.fields;
        let caps = |last| PortCaps { mac: Mac([2, 0, 0, 0, 0, last]), mtu_bytes: 1500 };
        let (mut from, mut to) = Loopback::pair(caps(1), caps(2), 4);
        let mut builder = PacketBuilder { template: &template, headers: &mut headers };
        builder.emit_notification(&mut from, 0xC2).unwrap();
        assert_eq!((headers.fields, headers.ip_id), (before, 0x718D), "data is sent as before");
        from.tx_flush();
        let mut frames = Vec::new();
        to.rx_burst(&mut frames, 4);
        let frame: &[u8] = frames[0].as_ref();
        assert_eq!(frame[14..], CONNECTX_4_CNP);
    }
}
