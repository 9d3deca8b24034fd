//! The peer: builds the frames of a script's steps, and records requests of the engine.

use super::tape::{Damage, Kind, PacketPlan, PsnPlan};
use crate::wire_port::MTU_BYTES;
use roce::id::{Gid, Mac, Msn, PKey, Qpn};
use roce::psn::Psn;
use roce::start;
use roce::wire::{
    Aeth, HeaderSpec, HeaderTemplate, ICRC_LEN, Opcode, Operation, Packet, PacketSpec, PrecedingReads,
    RecvEth, Reth, SackEth, Syndrome, icrc,
};
use std::collections::VecDeque;

/// Initial value of `Peer::fill`.
pub(crate) const PEER: u8 = 0x44;

pub(crate) const ETH_LEN: usize = 14;
/// Largest number of recorded requests.
const REQUESTS_MAX: usize = 512;
/// Largest number of responses to one READ.
const RESPONSES_MAX: u32 = 64;

/// A request packet of the engine.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request {
    pub psn: Psn,
    pub operation: Operation,
    pub ack_req: bool,
    pub reth: Option<Reth>,
}

pub(crate) struct Peer {
    pub own: Gid,
    pub engine: Gid,
    pub stranger: Gid,
    pub qpn: Qpn,
    pub other_qpn: Qpn,
    pub idle_qpn: Qpn,
    pub mtu_bytes: u32,
    /// Value of all payload bytes that the peer sends.
    pub fill: u8,
    /// The engine's expected PSN, computed from the peer's requests and the engine's ACKs and NAKs.
    pub expected: Psn,
    pub requests: VecDeque<Request>,
    unanswered: usize,
    /// True under selective repeat: SENDs are numbered SENDs.
    is_selective: bool,
    /// True for UC: opcodes below 0x20 become the UC opcodes with the same low five bits.
    pub is_uc: bool,
    /// The recv WQE sequence number of the next message that takes a receive.
    receives: u32,
}

/// Header fields of a frame; a script may set wrong values.
struct Address {
    src: Gid,
    dst: Gid,
    qpn: Qpn,
    pkey: PKey,
    /// The frame has a CE mark.
    marked: bool,
}

impl Peer {
    pub(crate) fn new(own: Gid, engine: Gid, stranger: Gid, mtu_bytes: u32) -> Self {
        let [qpn, other_qpn, idle_qpn] = [Qpn::default(); 3];
        let (expected, requests) = (Psn::default(), VecDeque::new());
        Peer {
            own,
            engine,
            stranger,
            qpn,
            other_qpn,
            idle_qpn,
            mtu_bytes,
            fill: PEER,
            expected,
            requests,
            unanswered: 0,
            is_selective: false,
            is_uc: false,
            receives: start::receive(),
        }
    }

    pub(crate) fn restart(&mut self, expected: Psn, is_selective: bool) {
        self.expected = expected;
        self.is_selective = is_selective;
        self.receives = start::receive();
        self.requests.clear();
        self.unanswered = 0;
    }

    /// Records a packet of the engine. If `is_latest` (the engine has received all frames), an ACK or NAK sets
    /// `expected`.
    pub(crate) fn observe(&mut self, packet: &Packet<'_>, is_latest: bool) {
        if packet.info.is_request {
            if self.requests.len() == REQUESTS_MAX {
                self.requests.pop_front();
                self.unanswered = self.unanswered.min(REQUESTS_MAX - 1);
            }
            let (psn, ack_req) = (packet.bth.psn, packet.bth.ack_req);
            let (operation, reth) = (packet.info.operation, packet.reth());
            self.requests.push_back(Request { psn, operation, ack_req, reth });
            self.unanswered += 1;
        } else if is_latest && packet.info.operation == Operation::Acknowledge {
            let is_ack = matches!(packet.aeth().map(|aeth| aeth.syndrome), Some(Syndrome::Ack { .. }));
            self.expected = packet.bth.psn.plus(u32::from(is_ack));
        }
    }

    fn frame(
        &self,
        address: &Address,
        spec: &PacketSpec,
        reth: Reth,
        aeth: Aeth,
        recveth: RecvEth,
    ) -> Vec<u8> {
        let template = HeaderTemplate::new(&HeaderSpec {
            src_mac: Mac([2, 0, 0, 0, 0, 2]),
            dst_mac: Mac([2, 0, 0, 0, 0, 1]),
            vlan: None,
            src: address.src,
            dst: address.dst,
            tclass: if address.marked { 3 } else { 0 },
            ttl: 64,
            flow_label: 0,
            udp_source_port: 0xC001,
            pkey: address.pkey,
            dest_qp: address.qpn,
        })
        .unwrap();
        let info = spec.opcode.info().unwrap();
        let mut frame = vec![0; template.frame_len(info.ext_len_bytes, spec.payload_len)];
        let mut parts = template.write(&mut frame, spec).unwrap();
        parts.payload.fill(self.fill);
        let _ = parts.set_reth(reth);
        let _ = parts.set_aeth(aeth);
        let _ = parts.set_recveth(recveth);
        let _ = parts.set_immdt(0x4949_4949);
        let (trigger, duplicate, no_room) = (spec.psn.plus(3), spec.solicited, spec.ack_req);
        let _ = parts.set_sacketh(SackEth { version: SackEth::VERSION, duplicate, no_room, trigger });
        template.seal(&mut frame).unwrap();
        frame
    }

    fn address(&self) -> Address {
        Address { src: self.own, dst: self.engine, qpn: self.qpn, pkey: PKey::DEFAULT, marked: false }
    }

    /// Returns opcode `value`; for UC, an RC opcode (below 0x20) becomes the UC opcode with the same low five bits.
    fn opcode(&self, value: u8) -> Opcode {
        Opcode::new(if self.is_uc && value < 0x20 { value | 0x20 } else { value })
    }

    pub(crate) fn packet(&mut self, plan: &PacketPlan, reth: Reth) -> Vec<u8> {
        let known = self.opcode(plan.opcode).info();
        let opcode = known.map_or(Opcode::RC_SEND_ONLY, |info| info.opcode);
        let has_payload = known.is_none_or(|info| info.has_payload);
        let psn = match plan.psn {
            PsnPlan::Expected(offset) => self.expected.plus(offset as u32),
            PsnPlan::Any(value) => Psn::new(value),
            PsnPlan::Request { back, offset } => {
                let request = self.requests.iter().rev().nth(usize::from(back));
                request.map_or(self.expected, |request| request.psn).plus(offset as u32)
            }
        };
        let spec = PacketSpec {
            opcode,
            solicited: plan.flags & 1 != 0,
            ack_req: plan.flags & 2 != 0,
            preceding_reads: PrecedingReads::from_pkts(u32::from(plan.flags >> 6) * 11),
            fecn: plan.flags & 4 != 0,
            becn: plan.flags & 8 != 0,
            psn,
            ip_id: 0,
            payload_len: if has_payload { plan.payload_len } else { 0 },
        };
        let aeth = Aeth { syndrome: Syndrome::from_byte(plan.syndrome), msn: Msn::new(1) };
        let mut address = self.address();
        address.marked = plan.flags & 0x30 == 0x30;
        match plan.damage {
            Damage::UnknownQp(number) => address.qpn = Qpn::new(number),
            Damage::OtherQp => address.qpn = self.other_qpn,
            Damage::IdleQp => address.qpn = self.idle_qpn,
            Damage::PKey(pkey) => address.pkey = PKey(pkey),
            Damage::WrongSource => address.src = self.stranger,
            Damage::WrongDestination => address.dst = self.stranger,
            _ => {}
        }
        // About one packet in eight has the expected recv WQE sequence number.
        let recveth = RecvEth {
            recv_seq: self.receives.wrapping_add(u32::from(plan.syndrome & 3)).wrapping_sub(1),
            packet: if plan.syndrome == 0xFF { u32::MAX } else { u32::from(plan.flags >> 6) },
        };
        let mut frame = self.frame(&address, &spec, reth, aeth, recveth);
        let bth = ETH_LEN + if self.own.is_ipv4() { 28 } else { 48 };
        if known.is_none() {
            frame[bth] = self.opcode(plan.opcode).value();
            reseal(&mut frame);
        }
        damage(&mut frame, plan.damage, bth);
        if psn == self.expected
            && matches!(plan.damage, Damage::None)
            && spec.opcode.info().unwrap().is_request
        {
            self.expected = psn.plus(span(spec.opcode, &reth, self.mtu_bytes));
        }
        frame
    }

    /// Returns the frames of a message, and advances `expected`.
    pub(crate) fn message(&mut self, kind: Kind, reth: Reth) -> Vec<Vec<u8>> {
        let [first, middle, last, only] = match kind {
            Kind::Send if self.is_selective => [0xE0, 0xE1, 0xE2, 0xE4],
            Kind::SendWithImm if self.is_selective => [0xE0, 0xE1, 0xE3, 0xE5],
            Kind::Send => [0x00, 0x01, 0x02, 0x04],
            Kind::SendWithImm => [0x00, 0x01, 0x03, 0x05],
            Kind::Write => [0x06, 0x07, 0x08, 0x0A],
            Kind::WriteWithImm => [0x06, 0x07, 0x09, 0x0B],
            Kind::Read if self.is_uc => [0x06, 0x07, 0x08, 0x0A],
            Kind::Read => [0x0C; 4],
        };
        // A message has at most 16 packets, even if the length in the RETH requires more packets.
        let is_read = kind == Kind::Read && !self.is_uc;
        let len_bytes = if is_read { 0 } else { reth.len_bytes.min(16 * self.mtu_bytes) };
        let packets = len_bytes.div_ceil(self.mtu_bytes).max(1);
        let mut frames = Vec::new();
        for index in 0..packets {
            let opcode = self.opcode(match (index == 0, index + 1 == packets) {
                (true, true) => only,
                (true, false) => first,
                (false, true) => last,
                (false, false) => middle,
            });
            let payload_len = (len_bytes - index * self.mtu_bytes).min(self.mtu_bytes) as usize;
            let spec = self.spec(opcode, self.expected, payload_len, index + 1 == packets);
            let recveth = RecvEth { recv_seq: self.receives, packet: index };
            frames.push(self.frame(&self.address(), &spec, reth, ACK, recveth));
            self.expected = self.expected.plus(span(opcode, &reth, self.mtu_bytes));
        }
        let takes_receive = !matches!(kind, Kind::Write | Kind::Read);
        self.receives = self.receives.wrapping_add(u32::from(takes_receive));
        frames
    }

    fn spec(&self, opcode: Opcode, psn: Psn, payload_len: usize, ack_req: bool) -> PacketSpec {
        let (solicited, fecn, becn) = (false, false, false);
        PacketSpec {
            opcode,
            solicited,
            ack_req,
            preceding_reads: PrecedingReads::NONE,
            fecn,
            becn,
            psn,
            ip_id: 0,
            payload_len,
        }
    }

    /// Returns the ACKs and READ responses of an honest peer to all unanswered requests.
    pub(crate) fn answers(&mut self) -> Vec<Vec<u8>> {
        let mut frames = Vec::new();
        let first = self.requests.len() - self.unanswered;
        for request in self.requests.iter().skip(first) {
            let reth = request.reth.filter(|_| request.operation == Operation::ReadRequest);
            match reth {
                Some(reth) => self.read_responses(request.psn, &reth, &mut frames),
                None if request.ack_req => {
                    let spec = self.spec(Opcode::RC_ACKNOWLEDGE, request.psn, 0, false);
                    frames.push(self.frame(&self.address(), &spec, reth_of_nothing(), ACK, FIRST));
                }
                None => {}
            }
        }
        self.unanswered = 0;
        frames
    }

    fn read_responses(&self, psn: Psn, reth: &Reth, frames: &mut Vec<Vec<u8>>) {
        let packets = reth.len_bytes.div_ceil(self.mtu_bytes).max(1);
        for index in 0..packets.min(RESPONSES_MAX) {
            let opcode = Opcode::new(match (index == 0, index + 1 == packets) {
                (true, true) => 0x10,
                (true, false) => 0x0D,
                (false, true) => 0x0F,
                (false, false) => 0x0E,
            });
            let payload_len = (reth.len_bytes - index * self.mtu_bytes).min(self.mtu_bytes) as usize;
            let spec = self.spec(opcode, psn.plus(index), payload_len, false);
            frames.push(self.frame(&self.address(), &spec, *reth, ACK, FIRST));
        }
    }
}

const ACK: Aeth = Aeth { syndrome: Syndrome::Ack { credits: Syndrome::CREDITS_UNLIMITED }, msn: Msn::new(1) };

const FIRST: RecvEth = RecvEth { recv_seq: 0, packet: 0 };

fn reth_of_nothing() -> Reth {
    Reth { va: 0, rkey: roce::id::RKey(0), len_bytes: 0 }
}

/// Returns the number of PSNs of a request packet: for a READ, the number of responses, else 1.
fn span(opcode: Opcode, reth: &Reth, mtu_bytes: u32) -> u32 {
    if opcode == Opcode::RC_RDMA_READ_REQUEST { reth.len_bytes.div_ceil(mtu_bytes).max(1) } else { 1 }
}

fn damage(frame: &mut Vec<u8>, damage: Damage, bth: usize) {
    match damage {
        Damage::Pad(pad) => {
            frame[bth + 1] = frame[bth + 1] & !0x30 | pad << 4;
            reseal(frame);
        }
        Damage::Byte { at, xor } => {
            let at = ETH_LEN + usize::from(at) % (frame.len() - ETH_LEN - ICRC_LEN);
            frame[at] ^= xor;
            reseal(frame);
        }
        Damage::Corrupt { at, xor } => {
            let at = usize::from(at) % frame.len();
            frame[at] ^= xor;
        }
        Damage::Truncate(len) => frame.truncate(usize::from(len) % frame.len()),
        Damage::Extend(by) => frame.resize((frame.len() + usize::from(by)).min(MTU_BYTES), 0x80),
        _ => {}
    }
}

/// Recomputes the ICRC of a frame.
pub(crate) fn reseal(frame: &mut [u8]) {
    let (covered, icrc) = frame.split_last_chunk_mut::<ICRC_LEN>().unwrap();
    if let Some(value) = icrc::compute(&covered[ETH_LEN..]) {
        *icrc = value.to_le_bytes();
    }
}
