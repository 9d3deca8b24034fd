//! Table tests of the responder's checks of a request (IBA 9.7.4.1): access rights, memory, receives, and order and
//! length of the packets of a message.

use super::ResponderAction;
use crate::id::RKey;
use crate::mem::Access;
use crate::qp::Placement;
use crate::qp::rc::harness::{
    ALL, Bench, FIRST_PSN, GBN, IMPROVED, LOCAL_READ, MTU_BYTES, OTHER_PD, Pkt, READABLE, REGION_BYTES,
    SELECTIVE, UNKNOWN, VA, WRITABLE, counted,
};
use crate::queue::wqe::MAX_MESSAGE_BYTES;
use crate::queue::{WcOpcode, WcStatus};
use crate::recovery::RecoveryScheme;
use crate::wire::{NakCode, Opcode};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    /// Executed: the expected PSN advances.
    Executed,
    /// A NAK is sent, and the queue pair changes to ERR.
    Nak(NakCode),
    NotReady,
    /// Not executed, and no response is sent.
    Dropped,
}

use NakCode::{InvalidRequest, RemoteAccessError, RemoteOperationalError};
use Outcome::{Dropped, Executed, Nak, NotReady};

const OK: Outcome = Executed;
const INVALID: Outcome = Nak(InvalidRequest);

/// Receives `request`, sends the responses, returns the outcome. Asserts that action, response and expected PSN agree.
fn outcome_of(bench: &mut Bench, request: &Pkt) -> Outcome {
    let before = bench.responder.expected_psn();
    let action = bench.receive(request);
    let sent = bench.transmit_all();
    let advanced = bench.responder.expected_psn() != before;
    let at = request.at;
    match (action, sent.last().map(String::as_str), advanced) {
        (ResponderAction::Fatal(code), Some(nak), false) => {
            let letter = match code {
                InvalidRequest => 'I',
                RemoteAccessError => 'X',
                RemoteOperationalError => 'O',
                _ => '?',
            };
            assert_eq!(nak, format!("{letter}{at}"), "the NAK that is sent");
            Nak(code)
        }
        (ResponderAction::Answer, Some(rnr), false) if rnr == format!("R{at}") => NotReady,
        (ResponderAction::Nothing, None, false) => Dropped,
        (_, _, true) => Executed,
        other => panic!("the action, the response and the advance contradict each other: {other:?}"),
    }
}

fn bench(recovery: RecoveryScheme) -> Bench {
    Bench::new(recovery, Placement::InOrder, 2)
}

const RC_SENDS: [Opcode; 4] =
    [Opcode::RC_SEND_FIRST, Opcode::RC_SEND_MIDDLE, Opcode::RC_SEND_LAST, Opcode::RC_SEND_ONLY];
const RC_WRITES: [Opcode; 4] = [
    Opcode::RC_RDMA_WRITE_FIRST,
    Opcode::RC_RDMA_WRITE_MIDDLE,
    Opcode::RC_RDMA_WRITE_LAST,
    Opcode::RC_RDMA_WRITE_ONLY,
];

/// Rows: opcode of a packet (IBA 9.7.4.1), and its outcome with no message, a SEND, or a WRITE in progress.
#[rustfmt::skip]
const ORDER: &[(Opcode, [Outcome; 3])] = &[
    //                                              no message  in a SEND  in a WRITE
    (Opcode::RC_SEND_FIRST,                         [OK,        INVALID,   INVALID]),
    (Opcode::RC_SEND_MIDDLE,                        [INVALID,   OK,        INVALID]),
    (Opcode::RC_SEND_LAST,                          [INVALID,   OK,        INVALID]),
    (Opcode::RC_SEND_LAST_WITH_IMMEDIATE,           [INVALID,   OK,        INVALID]),
    (Opcode::RC_SEND_ONLY,                          [OK,        INVALID,   INVALID]),
    (Opcode::RC_SEND_ONLY_WITH_IMMEDIATE,           [OK,        INVALID,   INVALID]),
    (Opcode::RC_RDMA_WRITE_FIRST,                   [OK,        INVALID,   INVALID]),
    (Opcode::RC_RDMA_WRITE_MIDDLE,                  [INVALID,   INVALID,   OK]),
    (Opcode::RC_RDMA_WRITE_LAST,                    [INVALID,   INVALID,   OK]),
    (Opcode::RC_RDMA_WRITE_LAST_WITH_IMMEDIATE,     [INVALID,   INVALID,   OK]),
    (Opcode::RC_RDMA_WRITE_ONLY,                    [OK,        INVALID,   INVALID]),
    (Opcode::RC_RDMA_WRITE_ONLY_WITH_IMMEDIATE,     [OK,        INVALID,   INVALID]),
    (Opcode::RC_RDMA_READ_REQUEST,                  [OK,        INVALID,   INVALID]),
    // Operations that are not implemented.
    (Opcode::RC_COMPARE_SWAP,                       [INVALID,   INVALID,   INVALID]),
    (Opcode::RC_FETCH_ADD,                          [INVALID,   INVALID,   INVALID]),
    (Opcode::RC_SEND_LAST_WITH_INVALIDATE,          [INVALID,   INVALID,   INVALID]),
    (Opcode::RC_SEND_ONLY_WITH_INVALIDATE,          [INVALID,   INVALID,   INVALID]),
    (Opcode::RC_FLUSH,                              [INVALID,   INVALID,   INVALID]),
    (Opcode::RC_ATOMIC_WRITE,                       [INVALID,   INVALID,   INVALID]),
    // Numbered SENDs are accepted only under selective repeat; see `SENDS`.
    (Opcode::RC_NUMBERED_SEND_FIRST,                [INVALID,   INVALID,   INVALID]),
    (Opcode::RC_NUMBERED_SEND_MIDDLE,               [INVALID,   INVALID,   INVALID]),
    (Opcode::RC_NUMBERED_SEND_LAST,                 [INVALID,   INVALID,   INVALID]),
    (Opcode::RC_NUMBERED_SEND_ONLY,                 [INVALID,   INVALID,   INVALID]),
];

#[test]
fn packets_of_a_message_arrive_in_their_order() {
    for (opcode, wanted) in ORDER {
        let info = opcode.info().expect("an opcode of the table");
        let len = |is_whole| {
            if !info.has_payload {
                0
            } else if is_whole {
                MTU_BYTES
            } else {
                16
            }
        };
        let len_bytes = len(!info.ends_message());
        // `left`: bytes that the FIRST of the WRITE in progress leaves to later packets. `own`: length in the RETH of
        // `request`. With these lengths a payload of `len_bytes` is valid.
        let left = if info.ends_message() { len_bytes.max(1) } else { 2 * MTU_BYTES };
        let own = if info.position == crate::wire::Position::First { 2 * MTU_BYTES } else { len_bytes };
        for (state, wanted) in [None, Some(RC_SENDS[0]), Some(RC_WRITES[0])].into_iter().zip(wanted) {
            let mut bench = bench(GBN);
            bench.post(ALL, 0, 4 * MTU_BYTES);
            bench.post(ALL, 0, 4 * MTU_BYTES);
            if let Some(first) = state {
                let first = Pkt::new(first, 0, MTU_BYTES).remote(ALL, VA, MTU_BYTES + left);
                assert_eq!(outcome_of(&mut bench, &first), Executed);
            }
            let request = Pkt::new(*opcode, i32::from(state.is_some()), len_bytes).remote(ALL, VA, own);
            assert_eq!(outcome_of(&mut bench, &request), *wanted, "{opcode} after {state:?}");
        }
    }
}

/// Rows: position (0 FIRST, 1 MIDDLE, 2 LAST, 3 ONLY), and outcome by length in bytes, at a path MTU of 256 bytes (IBA
/// 9.7.4.1.6): FIRST and MIDDLE must have 256 bytes, LAST 1 to 256, ONLY 0 to 256.
const LENGTHS: &[(usize, &[(u32, Outcome)])] = &[
    (0, &[(0, INVALID), (16, INVALID), (255, INVALID), (256, OK), (257, INVALID)]),
    (1, &[(0, INVALID), (16, INVALID), (255, INVALID), (256, OK), (257, INVALID)]),
    (2, &[(0, INVALID), (1, OK), (255, OK), (256, OK), (257, INVALID)]),
    (3, &[(0, OK), (1, OK), (255, OK), (256, OK), (257, INVALID)]),
];

#[test]
fn packets_of_a_message_have_their_length() {
    for opcodes in [RC_SENDS, RC_WRITES] {
        for (position, lengths) in LENGTHS {
            for (len_bytes, wanted) in *lengths {
                let (opcode, mut bench) = (opcodes[*position], bench(GBN));
                bench.post(ALL, 0, 4 * MTU_BYTES);
                let info = opcode.info().expect("an opcode of the table");
                let total = len_bytes + if info.ends_message() { 0 } else { MTU_BYTES };
                if !info.starts_message() {
                    let first = Pkt::new(opcodes[0], 0, MTU_BYTES).remote(ALL, VA, MTU_BYTES + total.max(1));
                    assert_eq!(outcome_of(&mut bench, &first), Executed);
                }
                let at = i32::from(!info.starts_message());
                let request = Pkt::new(opcode, at, *len_bytes).remote(ALL, VA, total);
                assert_eq!(outcome_of(&mut bench, &request), *wanted, "{opcode} of {len_bytes} bytes");
            }
        }
    }
}

#[derive(Clone, Copy)]
struct Row {
    name: &'static str,
    /// Clause of the IBA; empty if the result is a choice of this stack, or if no clause is known with certainty.
    rule: &'static str,
    recovery: RecoveryScheme,
    access: Access,
    /// Memory region and length in bytes of the receive that is posted.
    receive: Option<(RKey, u32)>,
    /// Packets received before the request; all are executed.
    before: &'static [Pkt],
    /// Memory region that is deregistered directly before `request` is received; `None`: no memory region.
    deregistered: Option<RKey>,
    request: Pkt,
    outcome: Outcome,
    /// Status of the completion of the receive; `None` if the receive does not complete.
    completes: Option<WcStatus>,
}

const SEND: Pkt = Pkt::new(Opcode::RC_SEND_ONLY, 0, 16);
const SEND_FIRST: Pkt = Pkt::new(Opcode::RC_SEND_FIRST, 0, MTU_BYTES);
const WRITE: Pkt = Pkt::new(Opcode::RC_RDMA_WRITE_ONLY, 0, 16);
const WRITE_IMM: Pkt = Pkt::new(Opcode::RC_RDMA_WRITE_ONLY_WITH_IMMEDIATE, 0, 16);
const READ: Pkt = Pkt::new(Opcode::RC_RDMA_READ_REQUEST, 0, 0).remote(ALL, VA, 600);
const SUCCESS: Option<WcStatus> = Some(WcStatus::Success);

const fn write_first(len_bytes: u32) -> Pkt {
    Pkt::new(Opcode::RC_RDMA_WRITE_FIRST, 0, MTU_BYTES).remote(ALL, VA, len_bytes)
}

const fn at(at: i32, packet: Pkt) -> Pkt {
    Pkt { at, ..packet }
}

/// Defaults of the rows: a queue pair with all rights, a receive of `REGION_BYTES`, no earlier packets.
const ROW: Row = Row {
    name: "",
    rule: "",
    recovery: GBN,
    access: Access::ALL,
    receive: Some((ALL, REGION_BYTES)),
    before: &[],
    deregistered: None,
    request: SEND,
    outcome: Executed,
    completes: None,
};

const NO_WRITES: Access = Access(Access::ALL.0 & !Access::REMOTE_WRITE.0);
const NO_READS: Access = Access(Access::ALL.0 & !Access::REMOTE_READ.0);
const RNR: &str = "9.7.5.2.8";
const LENGTH: &str = "9.7.4.1.6";
const NO_BYTES: &str = "C9-88";

#[rustfmt::skip]
const SENDS: &[Row] = &[
    Row { name: "SEND", request: SEND, completes: SUCCESS, ..ROW },
    Row { name: "SEND that fills its receive", receive: Some((ALL, 16)), completes: SUCCESS, ..ROW },
    Row { name: "SEND without a receive", rule: RNR, receive: None, outcome: NotReady, ..ROW },
    Row { name: "SEND FIRST without a receive", rule: RNR, receive: None, request: SEND_FIRST, outcome: NotReady,
          ..ROW },
    Row { name: "SEND longer than its receive", rule: LENGTH, receive: Some((ALL, 15)), outcome: INVALID,
          completes: Some(WcStatus::LocLenErr), ..ROW },
    Row { name: "SEND FIRST longer than its receive", rule: LENGTH, receive: Some((ALL, 255)), request: SEND_FIRST,
          outcome: INVALID, completes: Some(WcStatus::LocLenErr), ..ROW },
    Row { name: "SEND MIDDLE beyond the receive", rule: LENGTH, receive: Some((ALL, 511)), before: &[SEND_FIRST],
          request: Pkt::new(Opcode::RC_SEND_MIDDLE, 1, MTU_BYTES), outcome: INVALID,
          completes: Some(WcStatus::LocLenErr), ..ROW },
    Row { name: "SEND LAST beyond the receive", rule: LENGTH, receive: Some((ALL, 256)), before: &[SEND_FIRST],
          request: Pkt::new(Opcode::RC_SEND_LAST, 1, 1), outcome: INVALID,
          completes: Some(WcStatus::LocLenErr), ..ROW },
    Row { name: "SEND LAST that fills the receive", receive: Some((ALL, 257)), before: &[SEND_FIRST],
          request: Pkt::new(Opcode::RC_SEND_LAST, 1, 1), completes: SUCCESS, ..ROW },
    Row { name: "SEND of no bytes to a receive of none", receive: Some((ALL, 0)),
          request: Pkt::new(Opcode::RC_SEND_ONLY, 0, 0),
          completes: SUCCESS, ..ROW },
    Row { name: "receive with an unknown L_Key", receive: Some((UNKNOWN, 64)), outcome: Nak(RemoteOperationalError),
          completes: Some(WcStatus::LocProtErr), ..ROW },
    Row { name: "receive of another protection domain", receive: Some((OTHER_PD, 64)),
          outcome: Nak(RemoteOperationalError), completes: Some(WcStatus::LocProtErr), ..ROW },
    Row { name: "receive in memory without local write", receive: Some((LOCAL_READ, 64)),
          outcome: Nak(RemoteOperationalError), completes: Some(WcStatus::LocProtErr), ..ROW },
    Row { name: "receive whose region is gone", before: &[SEND_FIRST], deregistered: Some(ALL),
          request: Pkt::new(Opcode::RC_SEND_LAST, 1, 16), outcome: Nak(RemoteOperationalError),
          completes: Some(WcStatus::LocProtErr), ..ROW },
    Row { name: "SEND of no bytes to an unknown L_Key", receive: Some((UNKNOWN, 64)),
          request: Pkt::new(Opcode::RC_SEND_ONLY, 0, 0), completes: SUCCESS, ..ROW },
    Row { name: "SEND without remote rights of the queue pair", access: Access::NONE, completes: SUCCESS, ..ROW },
    Row { name: "SEND WITH INVALIDATE", request: Pkt::new(Opcode::RC_SEND_ONLY_WITH_INVALIDATE, 0, 16),
          outcome: INVALID, ..ROW },
    Row { name: "SEND WITH INVALIDATE without a receive", rule: RNR, receive: None,
          request: Pkt::new(Opcode::RC_SEND_ONLY_WITH_INVALIDATE, 0, 16), outcome: NotReady, ..ROW },
    Row { name: "numbered SEND under go-back-N", request: Pkt::new(Opcode::RC_NUMBERED_SEND_ONLY, 0, 16),
          outcome: INVALID, ..ROW },
    Row { name: "numbered SEND under improved go-back-N", recovery: IMPROVED,
          request: Pkt::new(Opcode::RC_NUMBERED_SEND_ONLY, 0, 16), outcome: INVALID, ..ROW },
    Row { name: "numbered SEND under selective repeat", recovery: SELECTIVE,
          request: Pkt::new(Opcode::RC_NUMBERED_SEND_ONLY, 0, 16), completes: SUCCESS, ..ROW },
    Row { name: "SEND without a number under selective repeat", recovery: SELECTIVE, completes: SUCCESS, ..ROW },
];

#[rustfmt::skip]
const WRITES: &[Row] = &[
    Row { name: "WRITE", receive: None, request: WRITE, ..ROW },
    Row { name: "WRITE, no right of the queue pair", access: NO_WRITES, request: WRITE, outcome: INVALID, ..ROW },
    Row { name: "WRITE, no right of the region", request: WRITE.remote(READABLE, VA, 16),
          outcome: Nak(RemoteAccessError), ..ROW },
    Row { name: "WRITE, unknown R_Key", request: WRITE.remote(UNKNOWN, VA, 16), outcome: Nak(RemoteAccessError),
          ..ROW },
    Row { name: "WRITE, other protection domain", request: WRITE.remote(OTHER_PD, VA, 16),
          outcome: Nak(RemoteAccessError), ..ROW },
    Row { name: "WRITE to the last bytes of the region", request: WRITE.remote(ALL, VA + REGION_BYTES as u64 - 16,
          16), ..ROW },
    Row { name: "WRITE one byte beyond the region", request: WRITE.remote(ALL, VA + REGION_BYTES as u64 - 15, 16),
          outcome: Nak(RemoteAccessError), ..ROW },
    Row { name: "WRITE one byte before the region", request: WRITE.remote(ALL, VA - 1, 16),
          outcome: Nak(RemoteAccessError), ..ROW },
    Row { name: "WRITE across the end of the address space", request: WRITE.remote(ALL, u64::MAX - 7, 16),
          outcome: Nak(RemoteAccessError), ..ROW },
    Row { name: "WRITE of no bytes, unknown R_Key", rule: NO_BYTES,
          request: Pkt::new(Opcode::RC_RDMA_WRITE_ONLY, 0, 0).remote(UNKNOWN, 0, 0), ..ROW },
    Row { name: "WRITE of no bytes, no right of the queue pair", access: NO_WRITES,
          request: Pkt::new(Opcode::RC_RDMA_WRITE_ONLY, 0, 0).remote(UNKNOWN, 0, 0), outcome: INVALID, ..ROW },
    Row { name: "WRITE ONLY shorter than its DMA length", rule: LENGTH, request: WRITE.remote(ALL, VA, 17),
          outcome: INVALID, ..ROW },
    Row { name: "WRITE ONLY longer than its DMA length", rule: LENGTH, request: WRITE.remote(ALL, VA, 15),
          outcome: INVALID, ..ROW },
    Row { name: "WRITE FIRST of a message of one packet", rule: LENGTH, request: write_first(256), outcome: INVALID,
          ..ROW },
    Row { name: "WRITE FIRST longer than its DMA length", rule: LENGTH, request: write_first(255), outcome: INVALID,
          ..ROW },
    Row { name: "WRITE FIRST of a message that leaves the region", request: write_first(REGION_BYTES + 1),
          outcome: Nak(RemoteAccessError), ..ROW },
    Row { name: "WRITE FIRST of the longest message", rule: LENGTH, request: write_first(MAX_MESSAGE_BYTES),
          outcome: Nak(RemoteAccessError), ..ROW },
    Row { name: "WRITE FIRST of more than the longest message", rule: LENGTH,
          request: write_first(MAX_MESSAGE_BYTES + 1),
          outcome: INVALID, ..ROW },
    Row { name: "WRITE MIDDLE to the end of the message", rule: LENGTH, before: &[write_first(512)],
          request: Pkt::new(Opcode::RC_RDMA_WRITE_MIDDLE, 1, MTU_BYTES), outcome: INVALID, ..ROW },
    Row { name: "WRITE LAST before the end of the message", rule: LENGTH, before: &[write_first(257)],
          request: Pkt::new(Opcode::RC_RDMA_WRITE_LAST, 1, 2), outcome: INVALID, ..ROW },
    Row { name: "WRITE LAST that leaves a byte", rule: LENGTH, before: &[write_first(259)],
          request: Pkt::new(Opcode::RC_RDMA_WRITE_LAST, 1, 2), outcome: INVALID, ..ROW },
    Row { name: "WRITE LAST, region gone", before: &[write_first(258)], deregistered: Some(ALL),
          request: Pkt::new(Opcode::RC_RDMA_WRITE_LAST, 1, 2), outcome: Nak(RemoteAccessError), ..ROW },
    Row { name: "WRITE WITH IMMEDIATE", request: WRITE_IMM, completes: SUCCESS, ..ROW },
    Row { name: "WRITE WITH IMMEDIATE to a receive of no bytes", receive: Some((ALL, 0)), request: WRITE_IMM,
          completes: SUCCESS, ..ROW },
    Row { name: "WRITE WITH IMMEDIATE, receive with an unknown L_Key", receive: Some((UNKNOWN, 4)),
          request: WRITE_IMM, completes: SUCCESS, ..ROW },
    Row { name: "WRITE WITH IMMEDIATE without a receive", rule: RNR, receive: None, request: WRITE_IMM,
          outcome: NotReady, ..ROW },
    Row { name: "WRITE LAST WITH IMMEDIATE without a receive", rule: RNR, receive: None, before: &[write_first(258)],
          request: Pkt::new(Opcode::RC_RDMA_WRITE_LAST_WITH_IMMEDIATE, 1, 2), outcome: NotReady, ..ROW },
    Row { name: "WRITE WITH IMMEDIATE, no receive, unknown R_Key", receive: None,
          request: WRITE_IMM.remote(UNKNOWN, VA, 16),
          outcome: NotReady, ..ROW },
    Row { name: "WRITE WITH IMMEDIATE, no receive, no right of the queue pair", access: NO_WRITES, receive: None,
          request: WRITE_IMM, outcome: INVALID, ..ROW },
];

#[rustfmt::skip]
const READS: &[Row] = &[
    Row { name: "READ", request: READ, receive: None, ..ROW },
    Row { name: "READ, region without remote write", request: READ.remote(READABLE, VA, 600), ..ROW },
    Row { name: "READ, no right of the queue pair", access: NO_READS, request: READ, outcome: INVALID, ..ROW },
    Row { name: "READ, no right of the region", request: READ.remote(WRITABLE, VA, 600),
          outcome: Nak(RemoteAccessError), ..ROW },
    Row { name: "READ, unknown R_Key", request: READ.remote(UNKNOWN, VA, 600), outcome: Nak(RemoteAccessError), ..ROW },
    Row { name: "READ, other protection domain", request: READ.remote(OTHER_PD, VA, 600),
          outcome: Nak(RemoteAccessError), ..ROW },
    Row { name: "READ beyond the region", request: READ.remote(ALL, VA + 1, REGION_BYTES),
          outcome: Nak(RemoteAccessError), ..ROW },
    Row { name: "READ of no bytes, unknown R_Key", rule: NO_BYTES, request: READ.remote(UNKNOWN, 0, 0), ..ROW },
    Row { name: "READ of the longest message", rule: LENGTH, request: READ.remote(ALL, VA, MAX_MESSAGE_BYTES),
          outcome: Nak(RemoteAccessError), ..ROW },
    Row { name: "READ of more than the longest message", rule: LENGTH,
          request: READ.remote(ALL, VA, MAX_MESSAGE_BYTES + 1),
          outcome: INVALID, ..ROW },
    Row { name: "READ within the responder resources", before: &[READ], request: at(3, READ), ..ROW },
    Row { name: "READ inside a SEND", before: &[SEND_FIRST], request: at(1, READ), outcome: INVALID, ..ROW },
];

#[test]
fn requests_are_authorized() {
    for row in SENDS.iter().chain(WRITES).chain(READS) {
        let mut bench = bench(row.recovery);
        bench.access = row.access;
        if let Some((key, len_bytes)) = row.receive {
            bench.post(key, 0, len_bytes);
        }
        for packet in row.before {
            assert_eq!(outcome_of(&mut bench, packet), Executed, "before: {}", row.name);
        }
        if let Some(key) = row.deregistered {
            bench.deregister(key);
        }
        let outcome = outcome_of(&mut bench, &row.request);
        assert_eq!(outcome, row.outcome, "{} (IBA {})", row.name, row.rule);
        let completions: Vec<WcStatus> = bench.completions().iter().map(|cqe| cqe.status).collect();
        assert_eq!(completions, Vec::from_iter(row.completes), "completion of {}", row.name);
        let counter = match outcome {
            Executed => continue,
            Nak(InvalidRequest) => bench.counters.resp_invalid_request,
            Nak(RemoteAccessError) => bench.counters.resp_remote_access_errors,
            Nak(_) => bench.counters.resp_remote_operation_errors,
            NotReady => bench.counters.out_of_buffer,
            Dropped => bench.counters.read_deferred,
        };
        assert_eq!(counter, 1, "counter of {}", row.name);
    }
}

/// Columns: recovery schemes; `max_dest_rd_atomic` (IBA 9.7.5.1.2); number of queued READs; outcome of one more READ.
/// Under selective repeat with `max_dest_rd_atomic` above 0, the limit is the window, 64 PSNs.
const READ_LIMIT: &[(&[RecoveryScheme], u8, i32, Outcome)] = &[
    (&[GBN, IMPROVED, SELECTIVE], 0, 0, INVALID),
    (&[GBN, IMPROVED, SELECTIVE], 1, 0, OK),
    (&[GBN, IMPROVED], 1, 1, INVALID),
    (&[GBN, IMPROVED], 2, 1, OK),
    (&[GBN, IMPROVED], 2, 2, INVALID),
    (&[SELECTIVE], 1, 63, OK),
    (&[SELECTIVE], 1, 64, INVALID),
];

#[test]
fn reads_are_limited_by_the_responder_resources() {
    for (schemes, limit, unanswered, wanted) in READ_LIMIT {
        for recovery in *schemes {
            let mut bench = Bench::new(*recovery, Placement::InOrder, *limit);
            (0..*unanswered).for_each(|read| _ = bench.receive(&at(3 * read, READ)));
            let action = bench.receive(&at(3 * unanswered, READ));
            let is_fatal = action == ResponderAction::Fatal(InvalidRequest);
            assert_eq!(is_fatal, *wanted == INVALID, "{unanswered} of {limit} under {recovery}: {action:?}");
        }
    }
}

/// While duplicates fill the queue of READs, a new READ is dropped as if lost. No NAK is sent, because the number of
/// outstanding READs is within the responder resources.
#[test]
fn a_read_is_dropped_while_duplicates_fill_the_queue() {
    let mut bench = Bench::new(GBN, Placement::InOrder, 1);
    let part = |index: u32| at(index as i32, READ.remote(ALL, VA + u64::from(index * MTU_BYTES), MTU_BYTES));
    bench.receive(&READ);
    assert_eq!(bench.transmit_all(), ["D0f", "D1m", "D2l"]);
    [1, 0].iter().for_each(|index| _ = bench.receive(&part(*index)));
    assert_eq!(bench.receive(&at(3, READ)), ResponderAction::Nothing);
    assert_eq!(bench.transmit_all(), ["D0o", "D1o"], "each part is a READ of its own");
    assert_eq!(counted(&bench.counters), "rx_read_requests, duplicate_request 2, read_deferred");
    assert_eq!(outcome_of(&mut bench, &at(3, READ)), Executed, "the retransmitted READ");
}

/// [`READ`] has 600 bytes, so three responses.
#[test]
fn responses_have_the_bytes_of_the_read() {
    let mut bench = bench(GBN);
    let bytes: Vec<u8> = (0..600).map(|index| (index % 251) as u8).collect();
    bench.bytes.write(0, &bytes).expect("bytes of the region");
    bench.receive(&READ);
    assert_eq!(bench.transmit_all(), ["D0f", "D1m", "D2l"]);
    assert_eq!(bench.read_payload, bytes);
}

#[test]
fn a_read_whose_region_is_deregistered_between_two_responses_ends_with_a_nak() {
    let mut bench = bench(GBN);
    bench.receive(&READ);
    assert_eq!(bench.transmit(1, 64), ["D0f"]);
    bench.deregister(ALL);
    assert_eq!(bench.transmit_all(), ["X1"]);
    assert_eq!(counted(&bench.counters), "rx_read_requests, resp_remote_access_errors");
}

type PlacedRow = (&'static str, &'static [Pkt], &'static [(usize, u8)]);

/// Rows: name; packets; bytes of the memory region, as (offset, value), after the responder processed the packets.
/// Before, all bytes are 0.
#[rustfmt::skip]
const PLACED: &[PlacedRow] = &[
    ("SEND ONLY", &[SEND], &[(0, 0xA5), (15, 0xA5), (16, 0)]),
    ("SEND of two packets", &[SEND_FIRST, Pkt { fill: 7, ..Pkt::new(Opcode::RC_SEND_LAST, 1, 1) }],
     &[(255, 0xA5), (256, 7), (257, 0)]),
    ("WRITE ONLY", &[WRITE.remote(ALL, VA + 100, 16)], &[(99, 0), (100, 0xA5), (115, 0xA5), (116, 0)]),
    ("WRITE of two packets",
     &[write_first(258), Pkt { fill: 7, ..Pkt::new(Opcode::RC_RDMA_WRITE_LAST, 1, 2) }],
     &[(255, 0xA5), (257, 7), (258, 0)]),
    ("a message that leaves the region writes nothing", &[write_first(REGION_BYTES + 1)], &[(0, 0)]),
    ("a SEND too long for its receive writes nothing", &[Pkt::new(Opcode::RC_SEND_ONLY, 0, 257)], &[(0, 0)]),
    ("a WRITE of a wrong length writes nothing", &[WRITE.remote(ALL, VA, 15)], &[(0, 0)]),
];

#[test]
fn payload_is_placed_or_memory_unchanged() {
    for (name, packets, bytes) in PLACED {
        let mut bench = bench(GBN);
        bench.post(ALL, 0, 300);
        packets.iter().for_each(|packet| _ = bench.receive(packet));
        for (offset, wanted) in *bytes {
            assert_eq!(bench.byte(*offset), *wanted, "{name}: byte {offset}");
        }
    }
}

/// Completion of a receive: opcode, length in bytes, immediate data.
type Completed = (WcOpcode, u32, Option<u32>);

#[rustfmt::skip]
const COMPLETIONS: &[(&str, &[Pkt], &[Completed])] = &[
    ("SEND", &[SEND], &[(WcOpcode::Recv, 16, None)]),
    ("SEND WITH IMMEDIATE", &[Pkt { imm: 9, ..Pkt::new(Opcode::RC_SEND_ONLY_WITH_IMMEDIATE, 0, 16) }],
     &[(WcOpcode::Recv, 16, Some(9))]),
    ("SEND of two packets", &[SEND_FIRST, Pkt::new(Opcode::RC_SEND_LAST, 1, 1)], &[(WcOpcode::Recv, 257, None)]),
    ("SEND in progress", &[SEND_FIRST], &[]),
    ("WRITE", &[WRITE], &[]),
    ("WRITE WITH IMMEDIATE", &[Pkt { imm: 9, ..WRITE_IMM }], &[(WcOpcode::RecvRdmaWithImm, 16, Some(9))]),
    ("WRITE of two packets WITH IMMEDIATE",
     &[write_first(258), Pkt { imm: 9, ..Pkt::new(Opcode::RC_RDMA_WRITE_LAST_WITH_IMMEDIATE, 1, 2) }],
     &[(WcOpcode::RecvRdmaWithImm, 258, Some(9))]),
    ("READ", &[READ], &[]),
    ("duplicate of a SEND", &[SEND, SEND], &[(WcOpcode::Recv, 16, None)]),
];

#[test]
fn receives_complete_with_their_message() {
    for (name, packets, wanted) in COMPLETIONS {
        let mut bench = bench(GBN);
        (0..2).for_each(|_| bench.post(ALL, 0, 300));
        packets.iter().for_each(|packet| _ = bench.receive(packet));
        let completed: Vec<Completed> =
            bench.completions().iter().map(|cqe| (cqe.opcode, cqe.len_bytes, cqe.imm)).collect();
        assert_eq!(completed, *wanted, "{name}");
    }
}

/// Rows: name, packets, and MSNs in the responses to the last packet, counted from the MSN before the first request
/// (IBA 9.7.7.1).
#[rustfmt::skip]
const MSNS: &[(&str, &[Pkt], &[u32])] = &[
    ("FIRST", &[Pkt { ack_req: true, ..write_first(258) }], &[0]),
    ("LAST", &[write_first(258), Pkt { ack_req: true, ..Pkt::new(Opcode::RC_RDMA_WRITE_LAST, 1, 2) }], &[1]),
    ("ONLY", &[WRITE, Pkt { ack_req: true, ..at(1, WRITE) }], &[2]),
    ("the AETHs of a READ", &[WRITE, at(1, READ)], &[2, 2]),
    ("a second READ", &[READ, at(3, READ)], &[2, 2]),
    ("duplicate of a READ, behind a WRITE", &[READ, at(3, WRITE), READ], &[1, 1]),
    ("NAK", &[WRITE, at(1, WRITE.remote(UNKNOWN, VA, 16))], &[1]),
    ("PSN sequence error", &[WRITE, at(2, WRITE)], &[1]),
];

#[test]
fn responses_carry_the_number_of_completed_requests() {
    assert_eq!(FIRST_PSN.plus(3).value(), 0, "PSNs wrap within the tables");
    for (name, packets, wanted) in MSNS {
        let mut bench = bench(GBN);
        for packet in *packets {
            bench.msns.clear();
            bench.receive(packet);
            bench.transmit_all();
        }
        assert_eq!(bench.msns, *wanted, "{name}");
    }
}
