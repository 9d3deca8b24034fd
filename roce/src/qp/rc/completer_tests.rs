//! Table tests of the completer: each row has a response, and the event that the completer returns. In each row the
//! following requests were sent (index: PSN - `FIRST_PSN`), and the requests below the una of the row are acknowledged:
//!
//! ```text
//!   index   0      1  2  3   4      5  6    7        8
//!           SEND | READ    | SEND | WRITE | READ   | never sent
//! ```

use super::completer::Completer;
use super::events::ResponseEvent;
use super::harness::{FIRST_PSN, MTU_BYTES, Pkt, counted, psn};
use crate::counters::QpCounters;
use crate::id::{LKey, RKey};
use crate::mem::{Access, Memory, MemoryTable, MemoryView, PdId};
use crate::qp::outstanding::{Kind, Outstanding};
use crate::queue::{
    Doorbells, Posting, SendData, SendFlags, SendOp, SendQueueSize, SendRequest, Sge, WcStatus, send_queue,
};
use crate::random::Random;
use crate::recovery::go_back_n::Acknowledgement;
use crate::recovery::sent_log::SentLog;
use crate::recovery::{AckEvent, AckTime, GoBackN, Nak, PsnSpan, Recovery, SelectiveRepeat};
use crate::time::Instant;
use crate::wire::{NakCode, Opcode, Packet, SackEth, Syndrome};
use std::sync::Arc;

const PD: PdId = PdId(1);
const SENT_PKTS: u32 = 8;
/// Length of the READ from PSN `FIRST_PSN` + 1 on, in bytes; the payload of its last response has 100 bytes.
const READ_BYTES: u32 = 2 * MTU_BYTES + 100;
const SHORT_READ_BYTES: u32 = 8;
const MEMORY_BYTES: usize = 8192;
/// Offset in the memory region, in bytes, at which the response to the READ with PSN `FIRST_PSN` + 7 is placed.
const SHORT_READ_AT: u64 = 4096;

struct Bench {
    outstanding: Outstanding,
    memory: MemoryView,
    bytes: Memory,
    counters: QpCounters,
}

impl Bench {
    fn new(access: Access) -> Self {
        let (mut memory, bytes) = (MemoryView::alone(1), Memory::alloc(MEMORY_BYTES));
        let mut random = Random::new([3; 32]);
        let register = |table: &MemoryTable| table.register(|| random.bits(), PD, bytes.clone(), 0, access);
        let (lkey, _) = memory.with_table(register).expect("there is room");
        let size = SendQueueSize { depth: 8, max_sges: 1, max_inline_bytes: 0 };
        let (mut poster, queue) = send_queue(size, true, Arc::new(Doorbells::new(1)), 0);
        queue.set_posting(Posting::Queued);
        let mut outstanding = Outstanding::new(queue, FIRST_PSN);
        let (remote_addr, rkey) = (0, RKey(1));
        let (read, write) = (SendOp::Read { remote_addr, rkey }, SendOp::Write { remote_addr, rkey });
        let requests = [
            (SendOp::Send, 1, 0),
            (read, READ_BYTES, 0),
            (SendOp::Send, 1, 0),
            (write, 2 * MTU_BYTES, 0),
            (read, SHORT_READ_BYTES, SHORT_READ_AT),
        ];
        for (op, len_bytes, addr) in requests {
            let sge = Sge { addr, len_bytes, lkey: LKey(lkey.0) };
            let data = SendData::Sges(&[sge]);
            let request = SendRequest { wr_id: 0, op, flags: SendFlags::default(), data };
            poster.post(&request).expect("there is room");
            let is_read = matches!(op, SendOp::Read { .. });
            let kind = Kind { is_read, takes_receive: op == SendOp::Send };
            assert!(outstanding.next_unassigned().is_some());
            outstanding.assign(len_bytes, kind, 0, MTU_BYTES).expect("few PSNs");
        }
        assert_eq!(outstanding.end(), psn(SENT_PKTS as i32));
        Bench { outstanding, memory, bytes, counters: QpCounters::default() }
    }

    /// Processes the response of `row` while una is `row.una`, and returns the event. The READ responses `row.acked`
    /// were received before. `row.una` and `row.acked` are distances of PSNs from [`FIRST_PSN`].
    fn event(&mut self, row: &Row, is_selective: bool) -> Event {
        let sent = (SENT_PKTS as i32 - row.una) as u32;
        let mut log = SentLog::new(psn(row.una), 64);
        log.on_sent(psn(row.una), sent, Instant::ZERO);
        let time = AckTime { now: Instant::ZERO, rtt_min_nanos: 0 };
        if sent > 0 {
            log.on_read_executed(psn(row.una), sent, time);
        }
        row.acked.iter().for_each(|index| log.on_response(psn(*index), time));
        let mut scheme = GoBackN::new(psn(row.una), true);
        scheme.on_sent(sent);
        for index in row.acked {
            let request = PsnSpan { first: psn(*index), packets: 1, is_read: true };
            let kept = AckEvent::ReadResponse { psn: psn(*index), request, ends_message: true };
            assert_eq!(scheme.on_event(&kept, &mut self.outstanding).acked_pkts, 0);
        }
        if row.is_sent_twice {
            scheme.on_timeout();
            scheme.on_sent(sent);
            log.retransmit(PsnSpan { first: psn(row.una), packets: sent, is_read: true });
            log.on_sent(psn(row.una), sent, Instant::ZERO);
        }
        let recovery = if is_selective {
            Recovery::SelectiveRepeat(Box::new(SelectiveRepeat::from_log(log)))
        } else {
            Recovery::GoBackN(scheme)
        };
        self.respond(&row.response, row.una, &recovery)
    }

    fn respond(&mut self, response: &Pkt, una: i32, recovery: &Recovery) -> Event {
        // Completes all work requests below una, as the engine does.
        while self.outstanding.oldest().is_some_and(|span| span.end().offset_from(psn(una)) <= Some(0)) {
            self.outstanding.pop();
        }
        let frame = response.frame(&[]);
        let packet = Packet::parse(&frame).expect("responses of the table are well-formed");
        let mut completer = Completer {
            outstanding: &mut self.outstanding,
            una: psn(una),
            sent: (SENT_PKTS as i32 - una) as u32,
            recovery,
            mtu_bytes: MTU_BYTES,
            memory: &self.memory,
            pd: PD,
            counters: &mut self.counters,
        };
        let event = completer.on_response(&packet);
        match (recovery, event) {
            (Recovery::GoBackN(scheme), ResponseEvent::Ack(event)) => {
                // Counts the NAK that go-back-N derives from the event, as the requester does.
                let (acknowledgement, nak) = scheme.interpret(&event, &mut self.outstanding);
                self.counters.implied_nak_seq_err += u64::from(nak == Some(Nak::Implied));
                self.counters.packet_seq_err += u64::from(nak == Some(Nak::SequenceError));
                Event::of_go_back_n(acknowledgement)
            }
            _ => Event::of(event),
        }
    }

    fn byte(&self, offset: usize) -> u8 {
        let mut byte = [0];
        self.bytes.read(offset, &mut byte).expect("a byte of the region");
        byte[0]
    }
}

/// A [`ResponseEvent`] in which a number, the distance of a PSN from [`FIRST_PSN`], replaces the PSN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Event {
    Ignored,
    Stale,
    /// Go-back-N: all packets below PSN `FIRST_PSN + .0` are acknowledged.
    Acked(i32),
    /// Go-back-N: all packets below PSN `FIRST_PSN + .0` are acknowledged, and the packet with this PSN was lost.
    Lost(i32),
    /// Go-back-N: the READ response with PSN `FIRST_PSN + .0` is missing, and the READ response with PSN
    /// `FIRST_PSN + .1` was received.
    Kept(i32, i32),
    /// Selective repeat: an ACK or NAK which shows that all requests below PSN `FIRST_PSN + .0` are executed.
    Executed(i32),
    /// Selective repeat: a SACK with PSN `FIRST_PSN + .0`.
    Sack(i32),
    /// Selective repeat: a READ response with PSN `FIRST_PSN + .0`; `FIRST_PSN + .1` is the PSN after the last response
    /// to its READ request.
    Response(i32, i32),
    /// Selective repeat: a duplicate READ response with PSN `FIRST_PSN + .0`.
    Duplicate(i32),
    /// An RNR NAK with PSN `FIRST_PSN + .0` and an RNR wait of `.1` microseconds.
    Rnr(i32, u64),
    Failed(i32, WcStatus),
}

impl Event {
    fn of_go_back_n(acknowledgement: Acknowledgement) -> Self {
        use super::harness::index_of;
        match acknowledgement {
            Acknowledgement::Cumulative { next, .. } => Event::Acked(index_of(next)),
            Acknowledgement::Lost { next } => Event::Lost(index_of(next)),
            Acknowledgement::Received { next, psn } => Event::Kept(index_of(next), index_of(psn)),
        }
    }

    fn of(event: ResponseEvent<'_>) -> Self {
        use super::harness::index_of;
        match event {
            ResponseEvent::Ignored => Event::Ignored,
            ResponseEvent::Stale => Event::Stale,
            ResponseEvent::Ack(AckEvent::Ack { next } | AckEvent::SequenceError { next }) => {
                Event::Executed(index_of(next))
            }
            ResponseEvent::Ack(AckEvent::Sack { next, .. }) => Event::Sack(index_of(next)),
            ResponseEvent::Ack(AckEvent::ReadResponse { psn, request, .. }) => {
                Event::Response(index_of(psn), index_of(request.end()))
            }
            ResponseEvent::Ack(AckEvent::Duplicate { psn }) => Event::Duplicate(index_of(psn)),
            ResponseEvent::RnrNak { next, wait_nanos } => Event::Rnr(index_of(next), wait_nanos / 1000),
            ResponseEvent::Failed { next, status } => Event::Failed(index_of(next), status),
        }
    }
}

use Event::{Acked, Duplicate, Executed, Failed, Ignored, Kept, Lost, Response, Rnr, Sack, Stale};

struct Row {
    name: &'static str,
    /// Clause of the IBA; empty if the result is a choice of this stack, or if no clause is known with certainty.
    rule: &'static str,
    una: i32,
    /// READ responses received above una: the distances of their PSNs from `FIRST_PSN`.
    acked: &'static [i32],
    /// True if all packets from una on were sent twice.
    is_sent_twice: bool,
    response: Pkt,
    go_back_n: Event,
    selective: Event,
    /// Counters that the response increments under go-back-N, and under selective repeat.
    counters: [&'static str; 2],
}

/// Defaults of the rows: an ACK of the SEND with PSN `FIRST_PSN`.
const ROW: Row = Row {
    name: "",
    rule: "",
    una: 0,
    acked: &[],
    is_sent_twice: false,
    response: ack(0),
    go_back_n: Ignored,
    selective: Ignored,
    counters: ["", ""],
};

const fn ack(at: i32) -> Pkt {
    aeth(at, Syndrome::ACK)
}

const fn aeth(at: i32, syndrome: Syndrome) -> Pkt {
    Pkt { syndrome, ..Pkt::new(Opcode::RC_ACKNOWLEDGE, at, 0) }
}

const fn nak(at: i32, code: NakCode) -> Pkt {
    aeth(at, Syndrome::Nak(code))
}

const fn sack(at: i32, version: u8) -> Pkt {
    let packet = Pkt::new(Opcode::RC_SELECTIVE_ACKNOWLEDGE, at, 4);
    Pkt { sacketh: SackEth { version, ..packet.sacketh }, ..packet }
}

const FIRST: Opcode = Opcode::RC_RDMA_READ_RESPONSE_FIRST;
const MIDDLE: Opcode = Opcode::RC_RDMA_READ_RESPONSE_MIDDLE;
const LAST: Opcode = Opcode::RC_RDMA_READ_RESPONSE_LAST;
const ONLY: Opcode = Opcode::RC_RDMA_READ_RESPONSE_ONLY;

const fn first(at: i32) -> Pkt {
    Pkt::new(FIRST, at, MTU_BYTES)
}

const fn middle(at: i32) -> Pkt {
    Pkt::new(MIDDLE, at, MTU_BYTES)
}

const fn last(at: i32, len_bytes: u32) -> Pkt {
    Pkt::new(LAST, at, len_bytes)
}

const IMPLIED: &str = "implied_nak_seq_err";
const STALE: [&str; 2] = ["stale_responses"; 2];
const BAD_OPCODE: [&str; 2] = ["bad_opcode_dropped"; 2];
const BAD_RESPONSE: [&str; 2] = ["bad_resp_err"; 2];
const fn bad_response(at: i32) -> Event {
    Failed(at, WcStatus::BadRespErr)
}
use NakCode::{
    InvalidRdRequest, InvalidRequest, PsnSequenceError, RemoteAccessError, RemoteOperationalError,
};

#[rustfmt::skip]
const ACKS: &[Row] = &[
    Row { name: "ACK", rule: "9.7.7", go_back_n: Acked(1), selective: Executed(1), ..ROW },
    Row { name: "ACK, any credit count", response: aeth(0, Syndrome::Ack { credits: 0 }), go_back_n: Acked(1),
          selective: Executed(1), ..ROW },
    Row { name: "ACK of several requests", rule: "9.7.7", una: 4, response: ack(6), go_back_n: Acked(7),
          selective: Executed(7), ..ROW },
    Row { name: "ACK inside a message", una: 5, response: ack(5), go_back_n: Acked(6), selective: Executed(6), ..ROW },
    Row { name: "ACK behind a READ not answered: the READ was lost", rule: "9.7.6", response: ack(4),
          go_back_n: Lost(1),
          selective: Executed(5), counters: [IMPLIED, ""], ..ROW },
    Row { name: "ACK behind a READ half answered", rule: "9.7.6", una: 3, response: ack(4), go_back_n: Lost(3),
          selective: Executed(5), counters: [IMPLIED, ""], ..ROW },
    Row { name: "ACK behind a READ answered", una: 4, response: ack(4), go_back_n: Acked(5), selective: Executed(5),
          ..ROW },
    Row { name: "ACK of a READ itself completes nothing", una: 1, response: ack(3), go_back_n: Lost(1),
          selective: Executed(4),
          counters: [IMPLIED, ""], ..ROW },
    Row { name: "ACK of the last PSN sent, a READ's", una: 7, response: ack(7), go_back_n: Lost(7),
          selective: Executed(8),
          counters: [IMPLIED, ""], ..ROW },
    Row { name: "stale: below una", rule: "9.7.5.1.7", una: 4, response: ack(3), counters: STALE, go_back_n: Stale, selective: Stale, ..ROW },
    Row { name: "stale: half the circle below una", una: 4, response: ack(4 - (1 << 23) + 1), counters: STALE, go_back_n: Stale, selective: Stale, ..ROW },
    Row { name: "never sent", una: 4, response: ack(8), counters: STALE, ..ROW },
    Row { name: "nothing in flight", una: 8, response: ack(7), counters: STALE, go_back_n: Stale, selective: Stale, ..ROW },
    Row { name: "nothing in flight, the next PSN", una: 8, response: ack(8), counters: STALE, ..ROW },
];

#[rustfmt::skip]
const NAKS: &[Row] = &[
    Row { name: "PSN sequence error", rule: "9.7.5.2", response: nak(0, PsnSequenceError), go_back_n: Lost(0),
          selective: Executed(0), counters: ["packet_seq_err", ""], ..ROW },
    Row { name: "PSN sequence error acknowledges those before", rule: "9.7.5.2", una: 4,
          response: nak(6, PsnSequenceError),
          go_back_n: Lost(6), selective: Executed(6), counters: ["packet_seq_err", ""], ..ROW },
    Row { name: "PSN sequence error at a READ", response: nak(1, PsnSequenceError), go_back_n: Lost(1),
          selective: Executed(1), counters: ["packet_seq_err", ""], ..ROW },
    Row { name: "PSN sequence error behind a READ not answered", rule: "9.7.6", response: nak(4, PsnSequenceError),
          go_back_n: Lost(1),
          selective: Executed(4), counters: [IMPLIED, ""], ..ROW },
    Row { name: "RNR NAK", rule: "9.7.5.2.8", response: aeth(0, Syndrome::RnrNak { timer: 1 }), go_back_n: Rnr(0, 10),
          selective: Rnr(0, 10),
          counters: ["rcvd_rnr_err"; 2], ..ROW },
    Row { name: "RNR NAK, timer code 0", rule: "9.7.5.2.8", response: aeth(0, Syndrome::RnrNak { timer: 0 }),
          go_back_n: Rnr(0, 655_360),
          selective: Rnr(0, 655_360), counters: ["rcvd_rnr_err"; 2], ..ROW },
    Row { name: "RNR NAK behind a READ not answered", rule: "9.7.6", una: 1,
          response: aeth(4, Syndrome::RnrNak { timer: 1 }),
          go_back_n: Lost(1), selective: Executed(4), counters: [IMPLIED, ""], ..ROW },
    Row { name: "invalid request", rule: "9.7.5.2", una: 4, response: nak(5, InvalidRequest),
          go_back_n: Failed(5, WcStatus::RemInvReqErr),
          selective: Failed(5, WcStatus::RemInvReqErr), counters: ["req_remote_invalid_request"; 2], ..ROW },
    Row { name: "remote access error", rule: "9.7.5.2", una: 4, response: nak(5, RemoteAccessError),
          go_back_n: Failed(5, WcStatus::RemAccessErr), selective: Failed(5, WcStatus::RemAccessErr),
          counters: ["req_remote_access_errors"; 2], ..ROW },
    Row { name: "remote operational error", rule: "9.7.5.2", response: nak(0, RemoteOperationalError),
          go_back_n: Failed(0, WcStatus::RemOpErr), selective: Failed(0, WcStatus::RemOpErr),
          counters: ["req_remote_operation_errors"; 2], ..ROW },
    Row { name: "remote access error at a READ half answered", una: 2, response: nak(2, RemoteAccessError),
          go_back_n: Failed(2, WcStatus::RemAccessErr), selective: Failed(2, WcStatus::RemAccessErr),
          counters: ["req_remote_access_errors"; 2], ..ROW },
    Row { name: "a fatal NAK behind a READ not answered", rule: "9.7.6", response: nak(5, RemoteAccessError),
          go_back_n: Lost(1),
          selective: Executed(5), counters: [IMPLIED, ""], ..ROW },
    Row { name: "invalid RD request: of reliable datagrams", response: nak(0, InvalidRdRequest), counters: BAD_OPCODE,
          ..ROW },
    Row { name: "reserved NAK code", response: nak(0, NakCode::Reserved(5)), counters: BAD_OPCODE, ..ROW },
    Row { name: "reserved syndrome", response: aeth(0, Syndrome::Reserved(0x80)), counters: BAD_OPCODE, ..ROW },
    Row { name: "reserved NAK code behind a READ not answered", response: nak(5, NakCode::Reserved(31)),
          counters: BAD_OPCODE, ..ROW },
    Row { name: "stale NAK", rule: "9.7.5.1.7", una: 4, response: nak(3, RemoteAccessError), counters: STALE, go_back_n: Stale, selective: Stale, ..ROW },
    Row { name: "NAK of a PSN never sent", una: 4, response: nak(8, PsnSequenceError), counters: STALE, ..ROW },
    Row { name: "atomic acknowledge: none was sent", response: Pkt::new(Opcode::RC_ATOMIC_ACKNOWLEDGE, 0, 0),
          counters: BAD_OPCODE, ..ROW },
];

#[rustfmt::skip]
const READ_RESPONSES: &[Row] = &[
    Row { name: "FIRST", una: 1, response: first(1), go_back_n: Acked(2), selective: Response(1, 4), ..ROW },
    Row { name: "MIDDLE", una: 2, response: middle(2), go_back_n: Acked(3), selective: Response(2, 4), ..ROW },
    Row { name: "LAST", una: 3, response: last(3, 100), go_back_n: Acked(4), selective: Response(3, 4), ..ROW },
    Row { name: "ONLY", una: 7, response: Pkt::new(ONLY, 7, 8), go_back_n: Acked(8), selective: Response(7, 8), ..ROW },
    Row { name: "a READ response acknowledges requests before", rule: "9.7.5.1.2", response: first(1),
          go_back_n: Acked(2),
          selective: Response(1, 4), ..ROW },
    Row { name: "FIRST where a retransmitted READ continues", una: 2, is_sent_twice: true, response: first(2), go_back_n: Acked(3),
          selective: Response(2, 4), ..ROW },
    Row { name: "ONLY where a retransmitted READ ends", una: 3, is_sent_twice: true, response: Pkt::new(ONLY, 3, 100), go_back_n: Acked(4),
          selective: Response(3, 4), ..ROW },
    Row { name: "a response above a gap", rule: "9.7.6", una: 1, response: middle(2), go_back_n: Kept(1, 2),
          selective: Response(2, 4),
          counters: [IMPLIED, ""], ..ROW },
    Row { name: "a response of the next READ", rule: "9.7.6", una: 2, response: Pkt::new(ONLY, 7, 8),
          go_back_n: Kept(2, 7),
          selective: Response(7, 8), counters: [IMPLIED, ""], ..ROW },
    Row { name: "a response of a READ behind a SEND", una: 0, response: middle(2), go_back_n: Kept(1, 2),
          selective: Response(2, 4), counters: [IMPLIED, ""], ..ROW },
    Row { name: "the response below two received", una: 1, acked: &[2, 3], response: first(1), go_back_n: Acked(4),
          selective: Response(1, 4), ..ROW },
    Row { name: "the response below one received and one missing", una: 1, acked: &[2], response: first(1),
          go_back_n: Acked(3), selective: Response(1, 4), ..ROW },
    Row { name: "the last missing response: messages before a READ received are acknowledged", una: 1,
          acked: &[2, 3, 7], response: first(1), go_back_n: Acked(8), selective: Response(1, 4), ..ROW },
    Row { name: "ACK of a message above a missing response", una: 1, acked: &[2, 3], response: ack(4),
          go_back_n: Lost(1), selective: Executed(5), counters: [IMPLIED, ""], ..ROW },
    Row { name: "a response received before", rule: "9.7.5.1.7", una: 2, response: first(1), counters: STALE, go_back_n: Stale, selective: Stale, ..ROW },
    Row { name: "a response received before, above a gap", una: 1, acked: &[2], response: middle(2),
          go_back_n: Kept(1, 2), selective: Duplicate(2), counters: STALE, ..ROW },
    Row { name: "a response at the PSN of a SEND", una: 4, response: Pkt::new(ONLY, 4, 1), counters: STALE, ..ROW },
    Row { name: "a response to a PSN never sent", una: 4, response: Pkt::new(ONLY, 8, 8), counters: STALE, ..ROW },
    Row { name: "MIDDLE, a byte short", una: 2, response: Pkt::new(MIDDLE, 2, 255), go_back_n: bad_response(2),
          selective: bad_response(2),
          counters: BAD_RESPONSE, ..ROW },
    Row { name: "MIDDLE, a byte long", una: 2, response: Pkt::new(MIDDLE, 2, 257), go_back_n: bad_response(2),
          selective: bad_response(2),
          counters: BAD_RESPONSE, ..ROW },
    Row { name: "LAST, a byte short", una: 3, response: last(3, 99), go_back_n: bad_response(3),
          selective: bad_response(3),
          counters: BAD_RESPONSE, ..ROW },
    Row { name: "LAST, a byte long", una: 3, response: last(3, 101), go_back_n: bad_response(3),
          selective: bad_response(3),
          counters: BAD_RESPONSE, ..ROW },
    Row { name: "LAST of no bytes", una: 3, response: last(3, 0), go_back_n: bad_response(3),
          selective: bad_response(3),
          counters: BAD_RESPONSE, ..ROW },
    Row { name: "MIDDLE at the end of the READ", una: 3, response: Pkt::new(MIDDLE, 3, 100), go_back_n: bad_response(3),
          selective: bad_response(3), counters: BAD_RESPONSE, ..ROW },
    Row { name: "LAST before the end of a READ", una: 2, response: last(2, 256), go_back_n: bad_response(2),
          selective: bad_response(2), counters: BAD_RESPONSE, ..ROW },
    Row { name: "LAST where a retransmitted part ends", una: 2, is_sent_twice: true, response: last(2, 256),
          go_back_n: Acked(3), selective: Response(2, 4), ..ROW },
    Row { name: "FIRST twice", una: 2, response: first(2), go_back_n: bad_response(2), selective: bad_response(2),
          counters: BAD_RESPONSE, ..ROW },
    Row { name: "MIDDLE at the first PSN", una: 1, response: middle(1), go_back_n: bad_response(1),
          selective: bad_response(1), counters: BAD_RESPONSE, ..ROW },
    Row { name: "MIDDLE at the first PSN of a retransmitted READ", una: 1, is_sent_twice: true, response: middle(1),
          go_back_n: bad_response(1), selective: bad_response(1), counters: BAD_RESPONSE, ..ROW },
    Row { name: "ONLY for a READ of several responses", una: 1, response: Pkt::new(ONLY, 1, MTU_BYTES),
          go_back_n: bad_response(1), selective: bad_response(1), counters: BAD_RESPONSE, ..ROW },
    Row { name: "FIRST with a NAK", una: 1,
          response: Pkt { syndrome: Syndrome::Nak(RemoteAccessError), ..first(1) }, go_back_n: bad_response(1),
          selective: bad_response(1), counters: BAD_RESPONSE, ..ROW },
    Row { name: "ONLY with a reserved syndrome", una: 7,
          response: Pkt { syndrome: Syndrome::Reserved(0x80), ..Pkt::new(ONLY, 7, 8) }, go_back_n: bad_response(7),
          selective: bad_response(7), counters: BAD_RESPONSE, ..ROW },
];

#[rustfmt::skip]
const SACKS: &[Row] = &[
    Row { name: "SACK", response: sack(0, 1), selective: Sack(0), counters: ["bad_opcode_dropped", ""], ..ROW },
    Row { name: "SACK above una", response: sack(5, 1), selective: Sack(5), counters: ["bad_opcode_dropped", ""],
          ..ROW },
    Row { name: "SACK of all that was sent: the next PSN is missing", response: sack(8, 1), selective: Sack(8),
          counters: ["stale_responses", ""], ..ROW },
    Row { name: "SACK with nothing in flight", una: 8, response: sack(8, 1), selective: Sack(8),
          counters: ["stale_responses", ""], ..ROW },
    Row { name: "SACK beyond all that was sent", response: sack(9, 1), counters: STALE, ..ROW },
    Row { name: "SACK below una", una: 4, response: sack(3, 1), counters: STALE, go_back_n: Stale, ..ROW },
    Row { name: "SACK of another version", response: sack(0, 2), counters: BAD_OPCODE, ..ROW },
    Row { name: "SACK of another version, all received", response: sack(8, 0),
          counters: ["stale_responses", "bad_opcode_dropped"], ..ROW },
];

#[test]
fn each_response_gives_its_event() {
    let mut failed = Vec::new();
    for row in ACKS.iter().chain(NAKS).chain(READ_RESPONSES).chain(SACKS) {
        for (is_selective, wanted) in [(false, row.go_back_n), (true, row.selective)] {
            let mut bench = Bench::new(Access::LOCAL_WRITE);
            let event = bench.event(row, is_selective);
            let (counters, wanted_counters) =
                (counted(&bench.counters), row.counters[usize::from(is_selective)]);
            if (event, counters.as_str()) != (wanted, wanted_counters) {
                let scheme = if is_selective { "selective repeat" } else { "go-back-N" };
                failed.push(format!(
                    "{} (IBA {}) under {scheme}: {event:?}, counters: {counters}",
                    row.name, row.rule
                ));
            }
        }
    }
    assert!(failed.is_empty(), "{} rows:\n{}", failed.len(), failed.join("\n"));
}

#[test]
fn a_stale_response_to_a_retransmitted_read_is_a_duplicate() {
    let (una, read) = (4, PsnSpan { first: psn(1), packets: 3, is_read: true });
    let mut log = SentLog::new(read.first, 64);
    log.on_sent(read.first, SENT_PKTS - 1, Instant::ZERO);
    log.retransmit(read);
    log.on_sent(read.first, read.packets, Instant::ZERO);
    let time = AckTime { now: Instant::ZERO, rtt_min_nanos: 0 };
    log.on_read_executed(read.first, read.packets, time);
    (1..una).for_each(|index| log.on_response(psn(index), time));
    assert_eq!(log.una(), psn(una));
    let recovery = Recovery::SelectiveRepeat(Box::new(SelectiveRepeat::from_log(log)));
    let rows = [(middle(2), Duplicate(2)), (ack(2), Stale), (ack(0), Stale)];
    for (response, wanted) in rows {
        assert_eq!(Bench::new(Access::LOCAL_WRITE).respond(&response, una, &recovery), wanted);
    }
}

type PlacedRow = (&'static str, i32, Pkt, &'static [(usize, u8)]);

/// Rows: name; una; response; bytes of the memory region, as (offset, value), after the completer processed the
/// response. Before, all bytes are 0.
#[rustfmt::skip]
const PLACED: &[PlacedRow] = &[
    ("FIRST", 1, first(1), &[(0, 0xA5), (255, 0xA5), (256, 0)]),
    ("MIDDLE", 2, middle(2), &[(255, 0), (256, 0xA5), (511, 0xA5), (512, 0)]),
    ("LAST", 3, last(3, 100), &[(511, 0), (512, 0xA5), (611, 0xA5), (612, 0)]),
    ("ONLY of another READ", 7, Pkt::new(ONLY, 7, 8), &[(0, 0), (4096, 0xA5), (4103, 0xA5), (4104, 0)]),
    ("above a gap", 1, middle(2), &[(255, 0), (256, 0xA5), (511, 0xA5), (512, 0)]),
    ("of a wrong length", 2, Pkt::new(MIDDLE, 2, 255), &[(256, 0)]),
    ("stale", 4, middle(2), &[(256, 0)]),
];

#[test]
fn payload_of_read_responses_is_placed() {
    for (name, una, response, bytes) in PLACED {
        for is_selective in [false, true] {
            let mut bench = Bench::new(Access::LOCAL_WRITE);
            bench.event(&Row { una: *una, response: *response, ..ROW }, is_selective);
            for (offset, wanted) in *bytes {
                assert_eq!(bench.byte(*offset), *wanted, "{name}: byte {offset}");
            }
            let placed = (0..MEMORY_BYTES).filter(|offset| bench.byte(*offset) != 0).count();
            assert_eq!(bench.counters.rcvd_bytes, placed as u64, "{name}");
        }
    }
}

#[test]
fn a_read_into_memory_without_local_write_fails() {
    for is_selective in [false, true] {
        let mut bench = Bench::new(Access::NONE);
        let event = bench.event(&Row { una: 1, response: first(1), ..ROW }, is_selective);
        assert_eq!((event, bench.byte(0)), (Failed(1, WcStatus::LocProtErr), 0));
    }
}
