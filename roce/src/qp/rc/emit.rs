//! Putting one packet into a port.

use crate::port::Port;
use crate::psn::Psn;
use crate::wire::{FrameParts, HeaderTemplate, Opcode, PacketSpec};

/// The way to the peer: the headers of every packet, and what counts up in them.
#[derive(Clone, Copy, Debug)]
pub struct Path {
    /// Headers.
    pub template: HeaderTemplate,
    /// IPv4 identification of the next packet.
    pub ip_id: u16,
}

/// The port takes no frame for now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortFull;

impl Path {
    /// A packet of `opcode` at `psn` with nothing asked for.
    #[inline]
    pub fn packet(&mut self, opcode: Opcode, psn: Psn, payload_len: u32) -> PacketSpec {
        PacketSpec {
            opcode,
            solicited: false,
            ack_req: false,
            fecn: false,
            becn: false,
            psn,
            ip_id: self.ip_id,
            payload_len: payload_len as usize,
        }
    }

    /// Bytes of a frame, from its Ethernet header to its ICRC.
    #[inline]
    pub fn frame_bytes(&self, opcode: Opcode, payload_len: u32) -> u32 {
        let ext_len = opcode.info().map_or(0, |info| info.ext_len_bytes);
        // Frames are shorter than 2^17 bytes.
        self.template.frame_len(ext_len, payload_len as usize) as u32
    }

    /// Reserves a frame, writes its headers, lets `fill` write extension headers and payload, and
    /// seals it.
    #[inline]
    pub fn emit<P: Port>(
        &mut self,
        port: &mut P,
        spec: &PacketSpec,
        fill: impl FnOnce(&mut FrameParts<'_>),
    ) -> Result<(), PortFull> {
        let ext_len = spec.opcode.info().map_or(0, |info| info.ext_len_bytes);
        let frame_len = self.template.frame_len(ext_len, spec.payload_len);
        let frame = port.tx_reserve(frame_len).ok_or(PortFull)?;
        let mut parts = self.template.write(frame, spec).expect("the frame has the length asked for");
        fill(&mut parts);
        self.template.seal(frame).expect("the frame was just written");
        self.ip_id = self.ip_id.wrapping_add(1);
        Ok(())
    }
}
