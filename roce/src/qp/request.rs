//! The common interface of received requests, buffered requests and placed requests.

use crate::psn::Psn;
use crate::wire::{ExtHeader, ImmDt, OpcodeInfo, Packet, Reth};

/// A request to execute: a received packet, a packet in the reorder buffer, or the record of a placed packet.
pub(crate) trait Request {
    fn psn(&self) -> Psn;
    fn info(&self) -> &'static OpcodeInfo;
    fn ack_req(&self) -> bool;
    fn solicited(&self) -> bool;
    fn reth(&self) -> Option<Reth>;
    fn immdt(&self) -> Option<u32>;
    /// True for a SEND with invalidate.
    fn invalidates(&self) -> bool;
    /// True for a numbered SEND.
    fn is_numbered(&self) -> bool;
    fn len_bytes(&self) -> u32;
    /// Returns the payload; `None` if it was placed on arrival.
    fn payload(&self) -> Option<&[u8]>;
    /// Returns the destination of a SEND payload that was placed on arrival; `None` for any other payload.
    fn rq_offset(&self) -> Option<RqOffset>;

    #[inline(always)]
    fn header(&self) -> RequestHeader {
        let (info, psn, ack_req, solicited) = (self.info(), self.psn(), self.ack_req(), self.solicited());
        RequestHeader { info, psn, ack_req, solicited }
    }
}

impl Request for Packet<'_> {
    #[inline(always)]
    fn psn(&self) -> Psn {
        self.bth.psn
    }

    #[inline(always)]
    fn info(&self) -> &'static OpcodeInfo {
        self.info
    }

    #[inline(always)]
    fn ack_req(&self) -> bool {
        self.bth.ack_req
    }

    #[inline(always)]
    fn solicited(&self) -> bool {
        self.bth.solicited
    }

    #[inline(always)]
    fn reth(&self) -> Option<Reth> {
        Packet::reth(self)
    }

    #[inline(always)]
    fn immdt(&self) -> Option<u32> {
        Packet::immdt(self)
    }

    #[inline(always)]
    fn invalidates(&self) -> bool {
        self.ieth().is_some()
    }

    #[inline(always)]
    fn is_numbered(&self) -> bool {
        self.info.offset_of(ExtHeader::RecvEth).is_some()
    }

    #[inline(always)]
    #[expect(clippy::cast_possible_truncation, reason = "`Packet::parse` checks it against 16-bit fields")]
    fn len_bytes(&self) -> u32 {
        self.payload.len() as u32
    }

    #[inline(always)]
    fn payload(&self) -> Option<&[u8]> {
        Some(self.payload)
    }

    #[inline(always)]
    fn rq_offset(&self) -> Option<RqOffset> {
        None
    }
}

/// Destination of the payload of a SEND packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RqOffset {
    /// Recv WQE sequence number of the receive whose scatter list names the destination memory.
    pub recv_seq: u32,
    pub offset_bytes: u32,
}

/// Fields of the base transport header that the execution of a request needs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RequestHeader {
    pub(crate) info: &'static OpcodeInfo,
    pub(crate) psn: Psn,
    pub(crate) ack_req: bool,
    pub(crate) solicited: bool,
}

/// A request from the reorder buffer. Its execution parses no packet, because the packet passed all checks of
/// [`Packet::parse`] on arrival.
pub(crate) struct Buffered<'a> {
    header: RequestHeader,
    ext: &'a [u8],
    payload: &'a [u8],
}

impl<'a> Buffered<'a> {
    /// Returns the request. `body`: extension headers and payload, as [`Packet::body`] returns them.
    pub(crate) fn new(header: RequestHeader, body: &'a [u8]) -> Self {
        let (ext, payload) = body.split_at_checked(header.info.ext_len_bytes).unwrap_or((body, &[]));
        Buffered { header, ext, payload }
    }
}

impl Request for Buffered<'_> {
    fn psn(&self) -> Psn {
        self.header.psn
    }

    fn info(&self) -> &'static OpcodeInfo {
        self.header.info
    }

    fn ack_req(&self) -> bool {
        self.header.ack_req
    }

    fn solicited(&self) -> bool {
        self.header.solicited
    }

    fn reth(&self) -> Option<Reth> {
        self.header.info.find(self.ext, ExtHeader::Reth).map(Reth::parse)
    }

    fn immdt(&self) -> Option<u32> {
        self.header.info.find(self.ext, ExtHeader::ImmDt).map(|bytes| ImmDt::parse(bytes).imm)
    }

    fn invalidates(&self) -> bool {
        self.header.info.offset_of(ExtHeader::Ieth).is_some()
    }

    fn is_numbered(&self) -> bool {
        self.header.info.offset_of(ExtHeader::RecvEth).is_some()
    }

    #[expect(clippy::cast_possible_truncation, reason = "`Packet::parse` checks it against 16-bit fields")]
    fn len_bytes(&self) -> u32 {
        self.payload.len() as u32
    }

    fn payload(&self) -> Option<&[u8]> {
        Some(self.payload)
    }

    fn rq_offset(&self) -> Option<RqOffset> {
        None
    }
}
