//! Segmentation: computes the opcode, the headers and the payload range of each packet of a message (IBA 9.7.2) from
//! the work request alone, so that a retransmission needs no stored packet.
//!
//! ```text
//!   packet   0          1                n-1
//!          | FIRST    | MIDDLE ...     | LAST        n > 1
//!          | ONLY                                    n = 1, or a READ request: one packet, one PSN per response
//!   bytes  0          mtu              (n-1)*mtu .. len
//! ```

use crate::queue::SendOp;
use crate::wire::{Opcode, Reth};

/// Returns the number of PSNs of a message of `len_bytes`: at least 1 (IBA 9.7.2).
#[inline]
pub(crate) fn packets_in(len_bytes: u32, mtu_bytes: u32) -> u32 {
    if len_bytes <= mtu_bytes { 1 } else { len_bytes.div_ceil(mtu_bytes) }
}

/// A packet of a request message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Opcode of the BTH.
    pub opcode: Opcode,
    /// Offset of the payload in the message, in bytes.
    pub offset: u32,
    /// Payload bytes, 0 to the path MTU.
    pub payload_len: u32,
    /// Number of PSNs that the packet takes: 1, or for a READ request the number of its responses.
    pub psn_span: u32,
    /// RETH; `None` unless the packet is a READ request, or FIRST or ONLY of a WRITE.
    pub reth: Option<Reth>,
    /// Immediate data; `None` unless the packet is LAST or ONLY with immediate.
    pub imm: Option<u32>,
    /// True for the last packet of a message, and for every READ request.
    pub is_last: bool,
}

impl Segment {
    /// Limits a READ request to its first `psn_span` responses. Leaves other packets unchanged.
    #[inline]
    pub(crate) fn limit_read(&mut self, psn_span: u32, mtu_bytes: u32) {
        if let Some(reth) = self.reth.as_mut().filter(|_| self.psn_span > psn_span) {
            // Only the last response of a READ may be shorter than the path MTU. The limited READ request does not
            // request this last response, so each requested response has the length of the path MTU.
            reth.len_bytes = psn_span * mtu_bytes;
            self.psn_span = psn_span;
        }
    }
}

struct Opcodes {
    first: Opcode,
    middle: Opcode,
    last: Opcode,
    only: Opcode,
}

impl Opcodes {
    const fn at(&self, is_first: bool, is_last: bool) -> Opcode {
        match (is_first, is_last) {
            (true, true) => self.only,
            (true, false) => self.first,
            (false, true) => self.last,
            (false, false) => self.middle,
        }
    }
}

const SEND: Opcodes = Opcodes {
    first: Opcode::RC_SEND_FIRST,
    middle: Opcode::RC_SEND_MIDDLE,
    last: Opcode::RC_SEND_LAST,
    only: Opcode::RC_SEND_ONLY,
};
const SEND_WITH_IMM: Opcodes =
    Opcodes { last: Opcode::RC_SEND_LAST_WITH_IMMEDIATE, only: Opcode::RC_SEND_ONLY_WITH_IMMEDIATE, ..SEND };
const NUMBERED_SEND: Opcodes = Opcodes {
    first: Opcode::RC_NUMBERED_SEND_FIRST,
    middle: Opcode::RC_NUMBERED_SEND_MIDDLE,
    last: Opcode::RC_NUMBERED_SEND_LAST,
    only: Opcode::RC_NUMBERED_SEND_ONLY,
};
const NUMBERED_SEND_WITH_IMM: Opcodes = Opcodes {
    last: Opcode::RC_NUMBERED_SEND_LAST_WITH_IMMEDIATE,
    only: Opcode::RC_NUMBERED_SEND_ONLY_WITH_IMMEDIATE,
    ..NUMBERED_SEND
};
const WRITE: Opcodes = Opcodes {
    first: Opcode::RC_RDMA_WRITE_FIRST,
    middle: Opcode::RC_RDMA_WRITE_MIDDLE,
    last: Opcode::RC_RDMA_WRITE_LAST,
    only: Opcode::RC_RDMA_WRITE_ONLY,
};
const WRITE_WITH_IMM: Opcodes = Opcodes {
    last: Opcode::RC_RDMA_WRITE_LAST_WITH_IMMEDIATE,
    only: Opcode::RC_RDMA_WRITE_ONLY_WITH_IMMEDIATE,
    ..WRITE
};
const READ_RESPONSE: Opcodes = Opcodes {
    first: Opcode::RC_RDMA_READ_RESPONSE_FIRST,
    middle: Opcode::RC_RDMA_READ_RESPONSE_MIDDLE,
    last: Opcode::RC_RDMA_READ_RESPONSE_LAST,
    only: Opcode::RC_RDMA_READ_RESPONSE_ONLY,
};

/// Returns packet `index` of a message of `len_bytes`; for a READ, the READ request for the responses from `index` on.
/// `index` must be below the number of packets of the message, and `op` must not be a local operation. If
/// `is_numbered` is true, SENDs have a RecvETH.
#[inline]
pub fn segment(op: &SendOp, len_bytes: u32, index: u32, mtu_bytes: u32, is_numbered: bool) -> Segment {
    let offset = index * mtu_bytes;
    let rest_bytes = len_bytes - offset;
    let (is_first, is_last) = (index == 0, rest_bytes <= mtu_bytes);
    let (opcodes, remote, imm) = match *op {
        // Local operations are executed when they start, and are never segmented (module `local`).
        SendOp::LocalInvalidate { .. } => unreachable!("a local operation has no packets"),
        SendOp::Send if is_numbered => (&NUMBERED_SEND, None, None),
        SendOp::SendWithImm { imm } if is_numbered => (&NUMBERED_SEND_WITH_IMM, None, Some(imm)),
        SendOp::Send | SendOp::SendTo { .. } => (&SEND, None, None),
        SendOp::SendWithImm { imm } | SendOp::SendToWithImm { imm, .. } => (&SEND_WITH_IMM, None, Some(imm)),
        SendOp::Write { remote_addr, rkey } => (&WRITE, Some((remote_addr, rkey)), None),
        SendOp::WriteWithImm { remote_addr, rkey, imm } => {
            (&WRITE_WITH_IMM, Some((remote_addr, rkey)), Some(imm))
        }
        SendOp::Read { remote_addr, rkey } => {
            let va = remote_addr.wrapping_add(u64::from(offset));
            return Segment {
                opcode: Opcode::RC_RDMA_READ_REQUEST,
                offset,
                payload_len: 0,
                psn_span: packets_in(rest_bytes, mtu_bytes),
                reth: Some(Reth { va, rkey, len_bytes: rest_bytes }),
                imm: None,
                is_last: true,
            };
        }
    };
    Segment {
        opcode: opcodes.at(is_first, is_last),
        offset,
        payload_len: rest_bytes.min(mtu_bytes),
        psn_span: 1,
        reth: remote.filter(|_| is_first).map(|(va, rkey)| Reth { va, rkey, len_bytes }),
        imm: imm.filter(|_| is_last),
        is_last,
    }
}

/// Returns opcode and payload length, in bytes, of response `index` of a READ of `len_bytes`. `starts_message`: the
/// response is FIRST or ONLY.
#[inline]
pub(crate) fn response_segment(
    len_bytes: u32,
    index: u32,
    starts_message: bool,
    mtu_bytes: u32,
) -> (Opcode, u32) {
    let packets = packets_in(len_bytes, mtu_bytes);
    let opcode = READ_RESPONSE.at(starts_message, index + 1 >= packets);
    (opcode, (len_bytes - index * mtu_bytes).min(mtu_bytes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::RKey;
    use crate::wire::{Operation, Position};
    use proptest::prelude::*;

    fn ops() -> impl Strategy<Value = SendOp> {
        let (remote_addr, rkey, imm) = (0x1000, RKey(7), 9);
        prop_oneof![
            Just(SendOp::Send),
            Just(SendOp::SendWithImm { imm }),
            Just(SendOp::Write { remote_addr, rkey }),
            Just(SendOp::WriteWithImm { remote_addr, rkey, imm }),
        ]
    }

    fn lengths() -> impl Strategy<Value = u32> {
        prop_oneof![
            0u32..5000,
            (1u32..20, 0usize..3, -1i32..=1)
                .prop_map(|(n, m, d)| (n * [256, 1024, 4096][m]).saturating_add_signed(d))
        ]
    }

    proptest! {
        #[test]
        fn packets_tile_the_message(op in ops(), is_numbered: bool, len in lengths(), mtu in prop::sample::select(vec![256u32, 512, 1024, 2048, 4096])) {
            let packets = packets_in(len, mtu);
            let mut at = 0;
            for index in 0..packets {
                let segment = segment(&op, len, index, mtu, is_numbered);
                let info = segment.opcode.info().unwrap();
                prop_assert_eq!(segment.offset, at);
                at += segment.payload_len;
                prop_assert!(segment.is_last || segment.payload_len == mtu);
                prop_assert_eq!(info.starts_message(), index == 0);
                prop_assert_eq!(info.ends_message(), index + 1 == packets);
                prop_assert_eq!(info.ends_message(), segment.is_last);
                prop_assert_eq!(info.offset_of(crate::wire::ExtHeader::Reth).is_some(), segment.reth.is_some());
                prop_assert_eq!(info.has_immediate, segment.imm.is_some());
                let is_send = matches!(op, SendOp::Send | SendOp::SendWithImm { .. });
                let says_receive = info.offset_of(crate::wire::ExtHeader::RecvEth).is_some();
                prop_assert_eq!(says_receive, is_numbered && is_send);
            }
            prop_assert_eq!(at, len);
        }

        #[test]
        fn a_read_resumed_anywhere_asks_for_the_rest(len in lengths(), mtu in prop::sample::select(vec![256u32, 1024, 4096]), at in 0u32..100) {
            let packets = packets_in(len, mtu);
            let index = at % packets;
            let segment = segment(&SendOp::Read { remote_addr: 1, rkey: RKey(2) }, len, index, mtu, false);
            let reth = segment.reth.unwrap();
            prop_assert_eq!(reth.va, 1 + u64::from(index * mtu));
            prop_assert_eq!(reth.len_bytes, len - index * mtu);
            prop_assert_eq!(packets_in(reth.len_bytes, mtu), segment.psn_span);
            let total: u32 = (index..packets).map(|i| response_segment(len, i, i == index, mtu).1).sum();
            prop_assert_eq!(total, reth.len_bytes);
        }
    }

    #[test]
    fn a_read_response_starts_with_first_or_only() {
        let position = |index, starts| response_segment(1000, index, starts, 256).0.info().unwrap().position;
        assert_eq!([position(0, true), position(2, true)], [Position::First; 2]);
        assert_eq!(position(2, false), Position::Middle);
        assert_eq!(position(3, false), Position::Last);
        assert_eq!(position(3, true), Position::Only);
        assert_eq!(response_segment(0, 0, true, 256), (Opcode::RC_RDMA_READ_RESPONSE_ONLY, 0));
        assert_eq!(Opcode::RC_RDMA_READ_RESPONSE_ONLY.info().unwrap().operation, Operation::ReadResponse);
    }

    #[test]
    fn two_gibibytes_at_the_smallest_mtu_take_half_the_psns() {
        assert_eq!(packets_in(1 << 31, 256), 1 << 23);
        let last = segment(&SendOp::Send, 1 << 31, (1 << 23) - 1, 256, false);
        assert_eq!((last.offset, last.payload_len), ((1 << 31) - 256, 256));
    }
}
