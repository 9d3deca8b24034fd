//! Table tests of the responder's responses: when an ACK, NAK, RNR NAK or SACK is sent, and in which order.
//!
//! A row is a script of packets received and of the responses that each poll sends. The test runs the script, replaces
//! the responses in the script by the responses sent, and compares the result with the row.
//!
//! ```text
//!   0 7      WRITE ONLY at PSN 0, at PSN 7        f0 m1 l2   FIRST, MIDDLE, LAST of a WRITE of three packets
//!   s3       SEND ONLY at PSN 3                   r4x3       READ of three responses, PSN 4 to 6
//!   x3       WRITE ONLY to an unknown R_Key       3? 3~      PSN 3 with AckReq; PSN 3 with the reorder buffer full
//!   p        posts a receive                      lost5      buffered PSN 5 expires
//!   0..14    WRITE ONLYs at PSN 0 to 14           room2      limits the reorder buffer to two cells
//!   r4x3^2   the READ, with 2 PSNs of READs directly below it (`PrecedingReads`)
//!   /        poll; the responses that it sends follow, as `text_of` of the harness writes them
//!   /2 /p1   poll with a budget of two packets; with one transmit buffer
//! ```

use crate::psn::Psn;
use crate::qp::Placement;
use crate::qp::rc::harness::{
    ALL, Bench, GBN, IMPROVED, MTU_BYTES, Pkt, SELECTIVE, UNKNOWN, VA, counted, index_of, psn,
};
use crate::recovery::RecoveryScheme;
use crate::wire::{Opcode, PrecedingReads};

/// Columns: name; clause of the IBA, or empty; script; counters incremented, except those of packets sent and requests
/// executed.
type Row = (&'static str, &'static str, &'static str, &'static str);

fn packet_of(token: &str) -> Pkt {
    let (token, has_ack_req) = token.strip_suffix('?').map_or((token, false), |token| (token, true));
    let number = |text: &str| text.parse::<i32>().unwrap_or_else(|_| panic!("`{token}` is no packet"));
    let kind = if token.starts_with(|c: char| c.is_ascii_digit() || c == '-') { "" } else { &token[..1] };
    let (at, count) = token[kind.len()..].split_once('x').unwrap_or((&token[kind.len()..], "1"));
    let (count, preceding_reads) = count.split_once('^').unwrap_or((count, "0"));
    let (at, count) = (number(at), number(count) as u32);
    let preceding_reads = PrecedingReads::from_pkts(number(preceding_reads) as u32);
    let packet = match kind {
        "" => Pkt::new(Opcode::RC_RDMA_WRITE_ONLY, at, 16),
        "x" => Pkt::new(Opcode::RC_RDMA_WRITE_ONLY, at, 16).remote(UNKNOWN, VA, 16),
        "s" => Pkt::new(Opcode::RC_SEND_ONLY, at, 16),
        "f" => Pkt::new(Opcode::RC_RDMA_WRITE_FIRST, at, MTU_BYTES).remote(ALL, VA, 2 * MTU_BYTES + 1),
        "m" => Pkt::new(Opcode::RC_RDMA_WRITE_MIDDLE, at, MTU_BYTES),
        "l" => Pkt::new(Opcode::RC_RDMA_WRITE_LAST, at, 1),
        "r" => {
            // The address grows with the PSN, so that a request for a part of a READ has the address of that part.
            let offset = u64::from(MTU_BYTES) * (64 + at.unsigned_abs()) as u64;
            Pkt::new(Opcode::RC_RDMA_READ_REQUEST, at, 0).remote(ALL, VA + offset, count * MTU_BYTES)
        }
        _ => panic!("`{token}` is no packet"),
    };
    Pkt { ack_req: has_ack_req, preceding_reads, ..packet }
}

/// Runs one token that is not a response. For a poll, returns the token and the responses sent; otherwise the token.
fn run_token(bench: &mut Bench, token: &str) -> String {
    if let Some(poll) = token.strip_prefix('/') {
        let limit = poll.trim_start_matches('p').parse().unwrap_or(64);
        let (budget, room) = if poll.starts_with('p') { (64, limit as usize) } else { (limit, 64) };
        let sent = bench.transmit(budget, room);
        return std::iter::once(token.to_owned()).chain(sent).collect::<Vec<_>>().join(" ");
    }
    if token == "p" {
        bench.post(ALL, 0, 64);
    } else if let Some(index) = token.strip_prefix("lost") {
        bench.responder.on_expired(psn(index.parse().expect("an index")));
    } else if let Some(cells) = token.strip_prefix("room") {
        bench.limit_room(cells.parse().expect("a number"));
    } else if let Some((first, last)) = token.split_once("..") {
        let number = |text: &str| text.parse::<i32>().expect("an index");
        (number(first)..=number(last)).for_each(|at| _ = bench.receive(&packet_of(&at.to_string())));
    } else {
        let packet = token.strip_suffix('~');
        bench.has_room = packet.is_none();
        bench.receive(&packet_of(packet.unwrap_or(token)));
    }
    token.to_owned()
}

/// Runs `script` without the responses in `script`. Returns the script with the responses that were sent, and the
/// counters.
fn run(script: &str, recovery: RecoveryScheme) -> (String, String) {
    let mut bench = Bench::new(recovery, Placement::InOrder, 4);
    let is_response = |token: &&str| token.starts_with(|c: char| c.is_ascii_uppercase());
    let stimuli = script.split_whitespace().filter(|token| !is_response(token));
    let ran: Vec<String> = stimuli.map(|token| run_token(&mut bench, token)).collect();
    let counters = counted(&bench.counters);
    let requests = ["rx_write_requests", "rx_read_requests", "rdma_recvs", "sacks_sent"];
    let special =
        counters.split(", ").filter(|counter| !requests.iter().any(|name| counter.starts_with(name)));
    (ran.join(" "), sorted(&special.collect::<Vec<_>>().join(", ")))
}

fn sorted(counters: &str) -> String {
    let mut counters: Vec<&str> = counters.split(", ").collect();
    counters.sort_unstable();
    counters.join(", ")
}

fn check(rows: &[Row], recovery: RecoveryScheme) {
    let mut failed = Vec::new();
    for (name, rule, script, counters) in rows {
        let ran = run(script, recovery);
        let wanted = (script.split_whitespace().collect::<Vec<_>>().join(" "), sorted(counters));
        if ran != wanted {
            failed.push(format!("{name} (IBA {rule})\n    is     {ran:?}\n    wanted {wanted:?}"));
        }
    }
    assert!(failed.is_empty(), "{} rows under {recovery}:\n  {}", failed.len(), failed.join("\n  "));
}

/// Rows that hold under each recovery scheme.
#[rustfmt::skip]
const IN_ORDER: &[Row] = &[
    ("no AckReq, no ACK", "", "0 1 / / /", ""),
    ("an ACK is delayed by one poll", "9.7.5.1", "0? / / A0 /", ""),
    ("an ACK of 15 packets is delayed", "", "0..13 14? / / A14", ""),
    ("an ACK of 16 packets is not delayed", "", "0..14 15? / A15 /", ""),
    ("a coalesced ACK", "9.7.5.1", "0? 1? 2? / / A2 /", ""),
    ("a coalesced ACK of packets of two polls", "9.7.5.1", "0? / 1? / A1 /", ""),
    ("an ACK acknowledges packets without AckReq, too", "9.7.5.1", "0? 1 / / A1 /", ""),
    ("the delay counts from the last ACK", "", "0..14 15? / A15 16? / / A16", ""),
    ("AckReq inside a message", "", "f0? / / A0 m1 l2? / / A2", ""),
    ("READ responses acknowledge the READ", "9.7.5.1.2", "r0x3 / D0f D1m D2l /", ""),
    ("a READ of one response", "9.7.5.1.2", "r0x1 / D0o /", ""),
    ("READ responses acknowledge requests before the READ", "9.7.5.1.2", "0? r1x2 / D1f D2l / /", ""),
    ("an ACK follows the READ responses before it", "", "r0x2 2? / D0f D1l / A2 /", ""),
    ("an ACK between two READs is left to the second", "", "r0x1 1? r2x1 / D0o D2o / /", ""),
    ("READs are answered in PSN order", "9.7.5.1.2", "r0x2 r2x1 / D0f D1l D2o", ""),
    ("a budget of two packets", "", "r0x3 3? /2 D0f D1m /2 D2l / A3 /", ""),
    ("no transmit buffer: the ACK stays due", "", "0? / /p0 / A0 /", ""),
    ("no transmit buffer: the READ response stays due", "", "r0x2 /p1 D0f / D1l /", ""),
    ("no budget: the ACK stays due", "", "0? / /0 / A0", ""),
    ("no receive: an RNR NAK at once", "9.7.5.2.8", "0 s1 / R1 /", "out_of_buffer"),
    ("no receive: an RNR NAK for each attempt", "9.7.5.2.8", "s0 / R0 s0 / R0 p s0? / / A0", "out_of_buffer 2"),
    ("an RNR NAK takes the place of an ACK that is due", "9.7.5.2.8", "0? s1 / R1 /", "out_of_buffer"),
    ("an RNR NAK follows the READ responses before it", "9.7.5.2.8", "r0x2 s2 / D0f D1l R2 /", "out_of_buffer"),
    ("an RNR NAK that is due is replaced by the ACK", "", "s0 p s0 / A0 /", "out_of_buffer"),
    ("a NAK remote access error at once", "9.7.5.2", "0 x1 / X1 /", "resp_remote_access_errors"),
    ("a NAK invalid request at once", "9.7.5.2", "0 m1 / I1 /", "resp_invalid_request"),
    ("a NAK follows the READ responses before it", "9.7.5.2", "r0x1 x1 / D0o X1 /", "resp_remote_access_errors"),
    ("a NAK takes the place of an ACK that is due", "9.7.5.2", "0? x1 / X1 /", "resp_remote_access_errors"),
    ("a duplicate READ: its responses again", "9.7.5.1.3", "r0x2 / D0f D1l r0x2? / D0f D1l /", "duplicate_request"),
    ("the rest of a READ: a READ of its own", "", "r0x3 / D0f D1m D2l r1x2? / D1f D2l /", "duplicate_request"),
    ("a part of a READ: a READ of its own", "", "r0x4 / D0f D1m D2m D3l r1x2? / D1f D2l /", "duplicate_request"),
    ("a duplicate READ whose responses are still due", "", "r0x2 r0x2? / D0f D1l /", "duplicate_request"),
    ("a READ that is not remembered", "9.7.5.1.3", "0 r0x1? / /", "duplicate_request, duplicate_read_dropped"),
];

#[test]
fn in_order_packets_and_refusals() {
    [GBN, IMPROVED, SELECTIVE].iter().for_each(|recovery| check(IN_ORDER, *recovery));
}

/// Rows that hold under go-back-N and under improved go-back-N.
#[rustfmt::skip]
const ANY_GO_BACK_N: &[Row] = &[
    ("the fifth READ displaces the first of four", "9.7.5.1.2",
     "r0x1 / D0o r1x1 / D1o r2x1 / D2o r3x1 / D3o r4x1 / D4o r0x1? / r1x1? / D1o",
     "duplicate_request 2, duplicate_read_dropped"),
    ("a duplicate READ longer than the READ", "", "r0x2 / D0f D1l r0x3? / /",
     "duplicate_request, duplicate_read_dropped"),
    ("a duplicate, then a duplicate READ: no ACK", "9.7.5.1.3", "0 r1x2 / D1f D2l 0 r1x2? / D1f D2l / /",
     "duplicate_request 2"),
    ("a duplicate for the rest of a READ, then a duplicate: no ACK", "9.7.5.1.3",
     "0 r1x3 / D1f D2m D3l r2x2? 0 / D2f D3l / /", "duplicate_request 2"),
    ("a duplicate for the last response of a READ, then a duplicate: no ACK", "9.7.5.1.3",
     "0 r1x3 / D1f D2m D3l r3x1? 0 / D3o / /", "duplicate_request 2"),
    ("a duplicate, then two duplicate READs: no ACK", "9.7.5.1.3",
     "0 r1x1 2 r3x2 / D1o D3f D4l 0 r1x1? 2 r3x2? / D1o D3f D4l / /", "duplicate_request 4"),
    ("a duplicate, then a duplicate READ before the last request: an ACK", "9.7.5.1.3",
     "0 r1x2 3 / D1f D2l 0 r1x2? / D1f D2l A3 /", "duplicate_request 2"),
    ("a duplicate, then a duplicate READ before the last but one: an ACK", "9.7.5.1.3",
     "0 r1x2 3 r4x2 / D1f D2l D4f D5l 0 r1x2? / D1f D2l A3 /", "duplicate_request 2"),
    ("a duplicate for the rest of a READ, after an ACK below the READ", "",
     "0 r1x3 / D1f D2m D3l 0 / A0 r2x2? / D2f D3l / /", "duplicate_request 2"),
    ("a READ is rewound: a READ of its own", "", "r0x4 /3 D0f D1m D2m r1x3? / D1f D2m D3l /", "duplicate_request"),
    ("a READ above a missing READ is not executed", "9.7.4.1.2", "0? / / A0 r2x1^1? / N1 r1x1? / D1o",
     "out_of_seq_request, send_seq_err"),
];

/// Rows for go-back-N: no out-of-order packet is buffered.
#[rustfmt::skip]
const GO_BACK_N: &[Row] = &[
    ("a gap: a NAK at once", "9.7.4.1.2", "0 2 / N1 /", "out_of_seq_request, send_seq_err"),
    ("one NAK for a gap", "9.7.4.1.2", "0 2 3 / N1 2? 4 / /", "out_of_seq_request 4, send_seq_err"),
    ("the missing packet ends the gap", "", "0 2 / N1 1 2? / / A2", "out_of_seq_request, send_seq_err"),
    ("the next gap: a NAK", "9.7.4.1.2", "0 2 / N1 1 3 / N2", "out_of_seq_request 2, send_seq_err 2"),
    ("a NAK takes the place of an ACK that is due", "", "0? 2 / N1 / /", "out_of_seq_request, send_seq_err"),
    ("a NAK that is due is replaced by the ACK", "", "0 2 1 / A1 /", "out_of_seq_request, send_seq_err"),
    ("a READ behind a gap is not executed", "9.7.4.1.2", "0 r2x1 / N1 1 / r2x1 / D2o",
     "out_of_seq_request, send_seq_err"),
    ("a NAK follows the READ responses before it", "", "r0x2 3 / D0f D1l N2", "out_of_seq_request, send_seq_err"),
    ("a duplicate READ without AckReq", "9.7.5.1.3", "r0x2 / D0f D1l r0x2 / D0f D1l /", "duplicate_request"),
    ("no NAK behind an RNR NAK", "9.7.5.2.8", "s0 / R0 1 2 / p s0 3 / N1",
     "out_of_seq_request 3, send_seq_err, out_of_buffer"),
    ("an RNR NAK behind a gap", "9.7.5.2.8", "s1 / N0 s0 / R0 s1 /",
     "out_of_seq_request 2, send_seq_err, out_of_buffer"),
    ("a duplicate: an ACK of the last packet at once", "9.7.5.1.3", "0? 1? / / A1 0 / A1 /", "duplicate_request"),
    ("a duplicate without AckReq", "9.7.5.1.3", "0 1 / 0 / A1 /", "duplicate_request"),
    ("duplicates: one ACK", "9.7.5.1.3", "0 1 2 / 0 1 2 / A2 /", "duplicate_request 3"),
    ("a duplicate leaves a NAK that is due", "", "0 2 0 / N1 /", "out_of_seq_request, send_seq_err, duplicate_request"),
    ("a duplicate leaves an RNR NAK that is due", "", "0 s1 0 / R1 /", "duplicate_request, out_of_buffer"),
    ("a duplicate behind a NAK: an ACK", "", "0 2 / N1 0 / A0 /",
     "out_of_seq_request, send_seq_err, duplicate_request"),
    ("a duplicate leaves the delay of an ACK", "", "0? 0 / / A0 /", "duplicate_request"),
    ("the ACK of a duplicate leaves out a READ at the end", "", "0 r1x2 / D1f D2l 0 / A0 /", "duplicate_request"),
    ("the ACK of a duplicate follows a READ in the middle", "", "0 r1x2 3 / D1f D2l 0 / A3 /", "duplicate_request"),
    ("the ACK of a duplicate, before any request but READs", "", "r0x1 / D0o -1 / A-1", "duplicate_request"),
    ("a duplicate of the packet before the first", "", "-1 / A-1", "duplicate_request"),
    ("half the circle above: out of order, not a duplicate", "9.7.4.1.2", "0 8388609 / N1",
     "out_of_seq_request, send_seq_err"),
    ("the last PSN below half the circle: a duplicate", "9.7.4.1.2", "-8388607 / A-1", "duplicate_request"),
];

/// Rows for improved go-back-N: out-of-order packets are buffered, except READs.
#[rustfmt::skip]
const IMPROVED_GO_BACK_N: &[Row] = &[
    ("a gap: a NAK at once, behind the ACK of the packets before", "9.7.4.1.2", "0 2 / A0 N1 /",
     "out_of_seq_request, send_seq_err"),
    ("a gap: a NAK alone, if all before is acknowledged", "", "0? / / A0 2 / N1 /", "out_of_seq_request, send_seq_err"),
    ("a gap behind a READ: a NAK alone, behind the responses", "", "0 r1x2 4 / D1f D2l N3 /",
     "out_of_seq_request, send_seq_err"),
    ("a gap behind a READ, in two polls", "", "0 r1x2 / D1f D2l 4 / N3 /", "out_of_seq_request, send_seq_err"),
    ("a gap behind a READ and a WRITE", "", "0 r1x2 3 5 / D1f D2l A3 N4 /", "out_of_seq_request, send_seq_err"),
    ("a budget of one packet: the ACK, then the NAK", "", "0 2 /1 A0 /1 N1 /", "out_of_seq_request, send_seq_err"),
    ("a gap before the first packet", "", "1 / N0 /", "out_of_seq_request, send_seq_err"),
    ("one NAK for a gap", "9.7.4.1.2", "0 2 3 / A0 N1 4? / /", "out_of_seq_request 3, send_seq_err"),
    ("the missing packet: an ACK of all buffered, not delayed", "", "0 2 3 / A0 N1 1 / A3 /",
     "out_of_seq_request 2, send_seq_err"),
    ("the missing packet with AckReq: an ACK, not delayed", "", "0 2 / A0 N1 1? / A2 /",
     "out_of_seq_request, send_seq_err"),
    ("two gaps: an ACK up to the second", "", "0 2 4 / A0 N1 1 / A2 /", "out_of_seq_request 2, send_seq_err"),
    ("the second gap: a NAK for the next packet behind it", "", "0 2 4 / A0 N1 1 / A2 5 / N3 /",
     "out_of_seq_request 3, send_seq_err 2"),
    ("the retransmission was lost, too: a NAK", "", "0 2 3 / A0 N1 2 / N1 3 / /",
     "out_of_seq_request 4, send_seq_err 2"),
    ("a duplicate of the last buffered packet: a NAK", "", "0 2 / A0 N1 2 / N1",
     "out_of_seq_request 2, send_seq_err 2"),
    ("a late packet into a gap that it leaves open: no NAK", "", "0 4 / A0 N1 2 / 3 / 1 / A4",
     "out_of_seq_request 3, send_seq_err"),
    ("the packet that elicited the NAK, after a late packet: a NAK", "", "0 4 / A0 N1 2 / 4 / N1",
     "out_of_seq_request 3, send_seq_err 2"),
    ("no room: dropped, and the NAK is due", "", "0 2~ / A0 N1 3~ / 1 / 2? / / A2",
     "out_of_seq_request 2, reorder_no_room 2, send_seq_err"),
    ("a READ is not buffered", "", "0 r2x1 / A0 N1 1 / r2x1 / D2o", "out_of_seq_request, send_seq_err"),
    ("beyond the reorder window of 256", "", "0 256 257 / A0 N1 lost256 1 / /", "out_of_seq_request 2, send_seq_err"),
    ("a buffered packet was dropped: not executed", "", "0 2 3 lost2 / A0 N1 1 / A1 2 / A3",
     "out_of_seq_request 2, send_seq_err"),
    ("no NAK behind an RNR NAK; buffered packets are executed", "9.7.5.2.8", "s0 / R0 1 2 / p s0 / A2",
     "out_of_seq_request 2, out_of_buffer"),
    ("behind an RNR NAK the peer goes back: no NAK", "9.7.5.2.8", "s0 / R0 1 1 / /",
     "out_of_seq_request 2, out_of_buffer"),
    ("an RNR NAK for a buffered SEND", "9.7.5.2.8", "0 s2 3 / A0 N1 1 / R2 p s2 / A3",
     "out_of_seq_request 2, send_seq_err, out_of_buffer"),
    ("a NAK for a buffered request", "9.7.5.2", "0 x2 / A0 N1 1 / X2",
     "out_of_seq_request, send_seq_err, resp_remote_access_errors"),
    ("a duplicate: an ACK of the last packet at once", "9.7.5.1.3", "0 1 / 0 / A1 /", "duplicate_request"),
    ("the peer went back: duplicates are acknowledged", "9.7.5.1.3", "0 2 3 / A0 N1 1 / A3 2 3 / A3 /",
     "out_of_seq_request 2, send_seq_err, duplicate_request 2"),
    ("a duplicate behind a gap leaves the NAK", "", "0 2 0 / A0 N1 /",
     "out_of_seq_request, send_seq_err, duplicate_request"),
];

#[test]
fn gaps_and_duplicates_under_go_back_n() {
    [GBN, IMPROVED].iter().for_each(|recovery| check(ANY_GO_BACK_N, *recovery));
    check(GO_BACK_N, GBN);
    check(IMPROVED_GO_BACK_N, IMPROVED);
}

/// Rows for selective repeat, which is an extension to the IBA.
#[rustfmt::skip]
const SELECTIVE_REPEAT: &[Row] = &[
    ("a gap opens", "", "0 2 / S1<2[2] /", "out_of_seq_request"),
    ("a gap before the first packet", "", "1 / S0<1[1] /", "out_of_seq_request"),
    ("a packet right above the last one", "", "0 2 / S1<2[2] 3 4 / /", "out_of_seq_request 3"),
    ("a packet right above the last one with AckReq", "", "0 2 / S1<2[2] 3? / S1<3[2,3] /", "out_of_seq_request 2"),
    ("one SACK for several in one poll, by the last that opens a gap", "", "0 2 4 5 / S1<4[2,4,5] /",
     "out_of_seq_request 3"),
    ("a second gap opens", "", "0 2 / S1<2[2] 4 / S1<4[2,4] /", "out_of_seq_request 2"),
    ("a gap is split", "", "0 4 / S1<4[4] 2 / S1<2[2,4]", "out_of_seq_request 2"),
    ("a gap above the lowest closes", "", "0 2 4 / S1<4[2,4] 3 / S1<3[2,3,4]", "out_of_seq_request 3"),
    ("the lowest gap closes: an ACK at once", "", "0 2 3 / S1<2[2,3] 1 / A3 /", "out_of_seq_request 2"),
    ("the lowest gap closes with AckReq: an ACK at once", "", "0 2 / S1<2[2] 1? / A2 /", "out_of_seq_request"),
    ("the lowest of two gaps closes", "", "0 2 4 / S1<4[2,4] 1 / S3<2[4] /", "out_of_seq_request 2"),
    ("in order below a gap without AckReq", "", "0 3 / S1<3[3] 1 / S2<1[3]", "out_of_seq_request"),
    ("a duplicate below the expected PSN", "", "0 1 / 0 / S2<0=[] /", "duplicate_request"),
    ("a duplicate below a gap", "", "0 2 / S1<2[2] 0 / S1<0=[2] /", "out_of_seq_request, duplicate_request"),
    ("a duplicate of a buffered packet", "", "0 2 3 / S1<2[2,3] 2 / S1<2=[2,3] /", "out_of_seq_request 3"),
    ("no room: dropped", "", "0 2~ / S1<2![] /", "out_of_seq_request, reorder_no_room"),
    ("no room for a second packet, in one SACK", "", "0 2 / S1<2[2] 3~ / S1<3![2] 4 / S1<4[2,4] /",
     "out_of_seq_request 3, reorder_no_room"),
    ("a buffered packet dropped for a lower one", "", "room2 0 2 4 / S1<4[2,4] 3? / S1<3![2,3] /",
     "out_of_seq_request 3, reorder_no_room"),
    ("beyond the window of 64", "", "0 65 / S1<65[] 64 / S1<64[64]", "out_of_seq_request 2"),
    ("a buffered packet was dropped, and is received again", "", "0 2 3 lost2 / S1<2[3] 2 / S1<2[2,3]",
     "out_of_seq_request 3"),
    ("a READ is buffered", "", "0 r2x2 / S1<2[2] 1 / D2f D3l", "out_of_seq_request"),
    ("a duplicate READ that begins in a waiting part: its rest is a READ of its own", "",
     "r0x6 / D0f D1m D2m D3m D4m D5l r0x3? /1 D0f r2x4? / D1m D2l D3f D4m D5l", "duplicate_request 2"),
    ("the fifth READ of a window displaces none", "",
     "r0x1 / D0o r1x1 / D1o r2x1 / D2o r3x1 / D3o r4x1 / D4o r0x1? / D0o", "duplicate_request"),
    ("a doubled READ", "", "r0x2 r0x2 / D0f D1l /", ""),
    ("a doubled READ, in two polls", "", "r0x2 / D0f D1l r0x2 / /", ""),
    ("a doubled READ, then a retransmission", "", "r0x2 r0x2 / D0f D1l r0x2? / D0f D1l r1x1? / D1o /",
     "duplicate_request 2"),
    ("a retransmission, then a late doubled READ", "", "r0x2? / D0f D1l r0x2 r0x2 / /", ""),
    ("a doubled READ behind a gap: one SACK", "", "0 r2x2 / S1<2[2] r2x2 / 1 / D2f D3l r2x2 / /",
     "out_of_seq_request 2"),
    ("a retransmission of a buffered doubled READ", "", "0 r2x2 r2x2 / S1<2[2] r2x2? / S1<2=[2] 1 / D2f D3l",
     "out_of_seq_request 3"),
    ("a duplicate READ longer than the READ: the responses of the READ", "", "r0x2 / D0f D1l r0x3? / D0f D1l /",
     "duplicate_request"),
    ("an early READ", "", "0 r2x2^1? / D2f D3l r1x1? / D1o /", "out_of_seq_request"),
    ("responses are sent in PSN order", "", "r1x2^1? r0x1? / D0o D1f D2l /", "out_of_seq_request"),
    ("early READs above two gaps, closed from above", "",
     "r1x1^1? r3x1^3? / D1o D3o r2x1^2? / D2o r0x1? / D0o 4? / / A4",
     "out_of_seq_request 3"),
    ("an ACK that is due, and an early READ", "", "0? r2x1^1? / D2o / A0", "out_of_seq_request"),
    ("as many READs as the gap has PSNs", "", "0 r5x1^4? / D5o", "out_of_seq_request"),
    ("a READ less than the gap has PSNs: buffered", "", "0 r5x1^3? / S1<5[5] 1 / S2<1[5]", "out_of_seq_request"),
    ("above the window of 64: no early READ", "", "r63x1^127? / D63o r64x1^127? / S0<64[63]", "out_of_seq_request 2"),
    ("an early READ, and a WRITE above it", "",
     "r1x1^1? / D1o 2? / S0<2[1,2] r0x1? / D0o A2 /", "out_of_seq_request 2"),
    ("an early READ, and a WRITE above a gap above it", "",
     "r1x1^1? / D1o 3? / S0<3[1,3] r0x1? / S2<1[3] D0o /", "out_of_seq_request 2"),
    ("the second of two missing READs is an early READ", "", "r2x1^2? / D2o r0x1? / D0o r1x1^1? / D1o 3? / / A3",
     "out_of_seq_request"),
    ("a duplicate of an early READ, and of a part", "", "r1x3^1? / D1f D2m D3l r1x3? / D1f D2m D3l r2x1? / D2o",
     "out_of_seq_request 3, duplicate_request 2"),
    ("a doubled early READ", "", "r1x2^1 r1x2^1 / D1f D2l r1x2^1 / / r0x1? / D0o", "out_of_seq_request 3"),
    ("a duplicate of an early READ that counts as executed", "", "r1x1^1? / D1o r0x1? / D0o r1x1? / D1o",
     "out_of_seq_request, duplicate_request"),
    ("two parts of a READ, then the whole", "", "r1x1^1? r2x1^2? / D1o D2o r0x1? / D0o r1x2? / D1o r2x1? / D2o",
     "out_of_seq_request 2, duplicate_request 2"),
    ("the whole READ replaces a part that was an early READ", "",
     "r1x1^1? / D1o r0x3? / D0f D1m D2l r1x2? / D1f D2l 3? / / A3",
     "out_of_seq_request, duplicate_request"),
    ("a part of a READ that overlaps an early READ", "", "r2x3^2? / D2f D3m D4l r0x3? / D0f D1m D2l 5? / / A5",
     "out_of_seq_request"),
    ("two early READs that overlap", "", "r3x3^3? r2x2^2? / D2f D3l D3f D4m D5l r0x2? / D0f D1l 6? / / A6",
     "out_of_seq_request 2"),
    ("another packet with the PSN of an early READ", "", "r1x1^1? / D1o 1? / S0<1=[1] r0x1? / D0o 2? / / A2",
     "out_of_seq_request 2"),
    ("a READ inside a message: no early READ", "", "f0 r2x1^1? / S1<2[2]", "out_of_seq_request"),
    ("a SACK precedes READ responses", "", "r0x2 3 / S2<3[3] D0f D1l /", "out_of_seq_request"),
    ("a READ below a gap: a SACK, then its responses", "", "0 4 / S1<4[4] r1x2 / S3<1[4] D1f D2l /",
     "out_of_seq_request"),
    ("a gap behind an ACK that is due", "", "0? 2 / S1<2[2] / /", "out_of_seq_request"),
    ("an RNR NAK below buffered packets", "9.7.5.2.8", "s0 / R0 1 / S0<1[1] p s0 / A1",
     "out_of_seq_request, out_of_buffer"),
    ("an RNR NAK that is due precedes a SACK", "9.7.5.2.8", "s0 1 2 / R0 / p s0 / A2",
     "out_of_seq_request 2, out_of_buffer"),
    ("a packet right above one that expired", "", "0 2 3 / S1<2[2,3] lost3 4 / S1<4[2,4] /", "out_of_seq_request 3"),
    ("the second packet of a gap of two closes it", "",
     "0 2 5 / S1<5[2,5] 3 / / 4 / S1<4[2,3,4,5] /", "out_of_seq_request 4"),
    ("a gap closes right behind a duplicate", "", "0 2 4 / S1<4[2,4] 2 / S1<2=[2,4] 3 / S1<3[2,3,4] /",
     "out_of_seq_request 4"),
    ("an RNR NAK that is due precedes the SACK of a duplicate", "9.7.5.2.8", "0 s1 0 / R1 /",
     "duplicate_request, out_of_buffer"),
    ("an RNR NAK for a buffered SEND", "9.7.5.2.8", "0 s2 3 / S1<2[2,3] 1 / R2 p s2 / A3",
     "out_of_seq_request 2, out_of_buffer"),
    ("a NAK for a buffered request", "9.7.5.2", "0 x2 / S1<2[2] 1 / X2",
     "out_of_seq_request, resp_remote_access_errors"),
    ("no transmit buffer: the SACK stays due", "", "0 2 /p0 / S1<2[2] /", "out_of_seq_request"),
    ("no budget: the SACK stays due", "", "0 2 /0 / S1<2[2] /", "out_of_seq_request"),
    ("a SACK that is not sent yet is replaced by the ACK", "", "0 2 1 / A2 /", "out_of_seq_request"),
];

#[test]
fn gaps_and_duplicates_under_selective_repeat() {
    check(SELECTIVE_REPEAT, SELECTIVE);
}

#[test]
fn indices_wrap_with_their_psns() {
    assert_eq!((psn(2), psn(3), psn(-1)), (Psn::new(Psn::COUNT - 1), Psn::new(0), Psn::new(Psn::COUNT - 4)));
    assert!((-4..=4).all(|index| index_of(psn(index)) == index));
}

/// PSN 1 arrives twice with different contents, while PSN 0 is missing and PSN 2 is buffered. The second packet replaces
/// the first; under relaxed placement, PSN 2 is dropped, too.
#[test]
fn the_later_of_two_conflicting_packets_is_executed() {
    for recovery in [IMPROVED, SELECTIVE] {
        for (placement, executed) in [(Placement::InOrder, 3), (Placement::Relaxed, 2)] {
            let mut bench = Bench::new(recovery, placement, 4);
            let write = |at, fill| {
                let packet = Pkt::new(Opcode::RC_RDMA_WRITE_ONLY, at, 16);
                Pkt { fill, ..packet.remote(ALL, VA + 16 * at.unsigned_abs() as u64, 16) }
            };
            for (at, fill) in [(1, 1), (2, 1), (1, 2), (1, 2)] {
                bench.receive(&write(at, fill));
            }
            assert_eq!(bench.counters.reorder_conflicts, 1, "{recovery}, {placement:?}");
            bench.receive(&write(0, 1));
            assert_eq!(index_of(bench.responder.expected_psn()), executed, "{recovery}, {placement:?}");
            assert_eq!([bench.byte(0), bench.byte(16)], [1, 2], "{recovery}, {placement:?}");
        }
    }
}
