//! Table tests of relaxed placement (RFC 5041 section 5): whether the address of an out-of-order payload is known, how
//! placed packets are recorded, and whether a responder places or buffers a packet.

use super::harness::{
    ALL, Bench, IMPROVED, LOCAL_READ, MTU_BYTES, Pkt, READABLE, REGION_BYTES, SELECTIVE, UNKNOWN, VA, psn,
};
use super::placing::{Placing, SlotState, Target};
use super::responder::ResponderAction;
use crate::id::RKey;
use crate::qp::Placement;
use crate::qp::request::{Request, RqOffset};
use crate::recovery::RecoveryScheme;
use crate::wire::{NakCode, Opcode, Packet, Reth};

const WINDOW_PKTS: u32 = 64;

const fn packet(opcode: Opcode, at: i32, len_bytes: u32) -> Pkt {
    Pkt::new(opcode, at, len_bytes)
}

const fn first(at: i32, va: u64, len_bytes: u32) -> Pkt {
    packet(Opcode::RC_RDMA_WRITE_FIRST, at, MTU_BYTES).remote(ALL, va, len_bytes)
}

const fn middle(at: i32) -> Pkt {
    packet(Opcode::RC_RDMA_WRITE_MIDDLE, at, MTU_BYTES)
}

const fn last(at: i32, len_bytes: u32) -> Pkt {
    packet(Opcode::RC_RDMA_WRITE_LAST, at, len_bytes)
}

const fn only(at: i32, len_bytes: u32) -> Pkt {
    packet(Opcode::RC_RDMA_WRITE_ONLY, at, len_bytes)
}

#[derive(Clone, Copy)]
enum Step {
    /// A WRITE packet is received. `Some`: address of its message, and index of the packet in the message. `None`: the
    /// address is unknown, and the packet is not placed.
    Write(Pkt, Option<(u64, u32)>),
    /// This number of packets, from the expected PSN on, is executed.
    Pass(u32),
    /// All out-of-order packets are dropped.
    Clear,
}
use Step::{Clear, Pass, Write};

/// Columns: name; rest of the WRITE in progress (address, length in bytes); steps. PSNs are relative to the expected
/// PSN before the first step.
type Row = (&'static str, Option<(u64, u32)>, &'static [Step]);

const FULL: u32 = MTU_BYTES;

#[rustfmt::skip]
const MEMORY: &[Row] = &[
    ("FIRST names its memory", None, &[Write(first(1, 1000, 600), Some((1000, 0)))]),
    ("ONLY names its memory", None, &[Write(only(1, 16), Some((VA, 0)))]),
    ("ONLY of no bytes", None, &[Write(only(1, 0), Some((VA, 0)))]),
    ("ONLY of the path MTU", None, &[Write(only(1, FULL), Some((VA, 0)))]),
    ("the packets behind a FIRST", None,
     &[Write(first(1, 1000, 600), Some((1000, 0))), Write(middle(2), Some((1000, 1))),
       Write(last(3, 88), Some((1000, 2)))]),
    ("a gap inside the message", None, &[Write(first(1, 1000, 600), Some((1000, 0))),
     Write(last(3, 88), Some((1000, 2)))]),
    ("the gap inside the message is closed", None,
     &[Write(first(1, 1000, 600), Some((1000, 0))), Write(last(3, 88), Some((1000, 2))),
       Write(middle(2), Some((1000, 1)))]),
    ("a FIRST behind its MIDDLE comes too late for the MIDDLE", None,
     &[Write(middle(2), None), Write(first(1, 1000, 600), Some((1000, 0))), Write(middle(2), Some((1000, 1)))]),
    ("two messages", None,
     &[Write(first(1, 1000, 300), Some((1000, 0))), Write(last(2, 44), Some((1000, 1))),
       Write(first(3, 5000, 300), Some((5000, 0))), Write(last(4, 44), Some((5000, 1)))]),
    ("the nearest FIRST below counts", None,
     &[Write(first(1, 1000, 300), Some((1000, 0))), Write(first(3, 5000, 300), Some((5000, 0))),
       Write(last(2, 44), Some((1000, 1))), Write(last(4, 44), Some((5000, 1)))]),
    ("a message whose FIRST is missing, behind one that is complete", None,
     &[Write(first(1, 1000, 300), Some((1000, 0))), Write(last(2, 44), Some((1000, 1))), Write(last(4, 44), None)]),
    ("a message whose FIRST is missing, behind an ONLY", None,
     &[Write(only(1, 16), Some((VA, 0))), Write(middle(3), None)]),
    ("no message in progress: unknown", None, &[Write(middle(1), None), Write(last(2, 44), None)]),
    ("the message in progress", Some((3000, 600)), &[Write(middle(1), Some((3000, 1))),
     Write(last(2, 88), Some((3000, 2)))]),
    ("the end of the message in progress", Some((3000, 600)),
     &[Write(last(2, 88), Some((3000, 2))), Write(middle(1), Some((3000, 1)))]),
    ("beyond the message in progress", Some((3000, 600)), &[Write(middle(3), None), Write(last(3, 88), None)]),
    ("LAST before the end of the message", Some((3000, 600)), &[Write(last(1, 88), None), Write(last(1, FULL), None)]),
    ("MIDDLE at the end of the message", Some((3000, 600)), &[Write(middle(2), None)]),
    ("LAST, a byte short or long", Some((3000, 600)), &[Write(last(2, 87), None), Write(last(2, 89), None)]),
    ("MIDDLE that is not full", Some((3000, 600)), &[Write(packet(Opcode::RC_RDMA_WRITE_MIDDLE, 1, 255), None)]),
    ("FIRST that is not full", None, &[Write(packet(Opcode::RC_RDMA_WRITE_FIRST, 1, 255).remote(ALL, 0, 600), None)]),
    ("FIRST of a message of one packet", None, &[Write(first(1, 1000, 256), None)]),
    ("ONLY longer or shorter than its message", None, &[Write(only(1, 16).remote(ALL, 0, 17), None),
     Write(only(1, 16).remote(ALL, 0, 15), None)]),
    ("ONLY of a message of two packets", None, &[Write(only(1, FULL).remote(ALL, 0, 257), None)]),
    ("a FIRST that was executed leaves its message to the responder", None,
     &[Write(first(1, 1000, 900), Some((1000, 0))), Write(middle(2), Some((1000, 1))), Pass(3),
       Write(middle(3), None)]),
    ("a FIRST above those executed stays", None,
     &[Write(first(2, 1000, 900), Some((1000, 0))), Pass(2), Write(middle(4), Some((1000, 2)))]),
    ("all dropped: a FIRST is forgotten", None, &[Write(first(1, 1000, 600), Some((1000, 0))), Clear,
     Write(middle(2), None), Write(last(3, 88), None)]),
    ("one window later", None, &[Write(first(1, 1000, 900), Some((1000, 0))), Pass(64), Write(middle(66), None)]),
];

fn run_writes((name, left, steps): &Row) {
    let mut placing = Placing::new(WINDOW_PKTS);
    let mut expected = psn(0);
    for (number, step) in steps.iter().enumerate() {
        match step {
            Write(packet, wanted) => {
                let frame = packet.frame(&[]);
                let packet = &Packet::parse(&frame).expect("well-formed");
                let left = left.map(|(va, len_bytes)| Reth { va, rkey: ALL, len_bytes });
                let known = placing.remote(packet, packet.reth(), expected, left, MTU_BYTES);
                let known = known.map(|(reth, index)| (reth.va, index));
                assert_eq!(known, *wanted, "{name}, step {number}");
                if known.is_some() {
                    placing.mark_placed(packet, Target::Remote(packet.reth()), 0);
                }
            }
            Pass(count) => {
                placing.pass(expected, *count);
                expected = expected.plus(*count);
            }
            Clear => placing.clear(),
        }
    }
}

#[test]
fn the_memory_of_a_write_is_known_behind_its_first() {
    MEMORY.iter().for_each(run_writes);
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mark {
    Recorded,
    SendMiddle,
    WriteMiddle,
}

const RECEIVE: Option<RqOffset> = Some(RqOffset { recv_seq: 7, offset_bytes: 512 });

#[rustfmt::skip]
const MARKS: &[(Opcode, Option<RqOffset>, Mark)] = &[
    (Opcode::RC_RDMA_WRITE_FIRST,                   None,    Mark::Recorded),
    (Opcode::RC_RDMA_WRITE_MIDDLE,                  None,    Mark::WriteMiddle),
    (Opcode::RC_RDMA_WRITE_LAST,                    None,    Mark::Recorded),
    (Opcode::RC_RDMA_WRITE_LAST_WITH_IMMEDIATE,     None,    Mark::Recorded),
    (Opcode::RC_RDMA_WRITE_ONLY,                    None,    Mark::Recorded),
    (Opcode::RC_NUMBERED_SEND_FIRST,                RECEIVE, Mark::Recorded),
    (Opcode::RC_NUMBERED_SEND_MIDDLE,               RECEIVE, Mark::SendMiddle),
    (Opcode::RC_NUMBERED_SEND_LAST,                 RECEIVE, Mark::Recorded),
    (Opcode::RC_NUMBERED_SEND_ONLY_WITH_IMMEDIATE,  RECEIVE, Mark::Recorded),
];

#[test]
fn a_placed_packet_is_recorded_or_marked() {
    for ((opcode, rq_offset, wanted), (ack_req, solicited)) in
        MARKS.iter().flat_map(|row| [(true, false), (false, true)].map(|bits| (row, bits)))
    {
        let mut placing = Placing::new(WINDOW_PKTS);
        let pkt = Pkt { ack_req, solicited, imm: 9, ..packet(*opcode, 2, MTU_BYTES) };
        let frame = pkt.frame(&[]);
        let packet = Packet::parse(&frame).expect("well-formed");
        let target = rq_offset.map_or_else(|| Target::Remote(packet.reth()), Target::Receive);
        placing.mark_placed(&packet, target, 0);
        let count = |placing: &Placing, is_write| placing.middles(psn(2), is_write);
        let mark = match (placing.get(psn(2)), count(&placing, false), count(&placing, true)) {
            (Some(_), 0, 0) => Mark::Recorded,
            (None, 1, 0) => Mark::SendMiddle,
            (None, 0, 1) => Mark::WriteMiddle,
            other => panic!("{opcode}: {other:?}"),
        };
        assert_eq!(mark, *wanted, "{opcode}");
        let is_placed = |placing: &Placing, index| placing.slot_state(psn(index)) != SlotState::Empty;
        assert!(is_placed(&placing, 2) && !is_placed(&placing, 1) && !is_placed(&placing, 3));
        if let Some(placed) = placing.get(psn(2)) {
            assert_eq!((placed.psn(), placed.info(), placed.len_bytes()), (psn(2), packet.info, MTU_BYTES));
            assert_eq!((placed.ack_req(), placed.solicited()), (ack_req, solicited), "{opcode}");
            assert_eq!(placed.immdt(), packet.immdt(), "{opcode}");
            assert_eq!((placed.reth(), placed.rq_offset()), (packet.reth(), *rq_offset), "{opcode}");
            assert_eq!((placed.is_numbered(), placed.payload()), (rq_offset.is_some(), None), "{opcode}");
        }
        placing.pass(psn(2), 1);
        assert!(!is_placed(&placing, 2) && placing.get(psn(2)).is_none(), "{opcode} was executed");
    }
}

/// Marks the WRITE packet in `frame` as placed.
fn place(placing: &mut Placing, frame: &[u8]) {
    let packet = Packet::parse(frame).expect("well-formed");
    placing.mark_placed(&packet, Target::Remote(packet.reth()), 0);
}

/// Rows: PSNs of placed WRITE MIDDLEs; PSNs of other placed packets; number of consecutive placed WRITE MIDDLEs from
/// PSN 1 on.
const RUNS: &[(&[i32], &[i32], u32)] = &[
    (&[], &[], 0),
    (&[1], &[], 1),
    (&[1, 2, 3], &[], 3),
    (&[2, 3], &[], 0),
    (&[1, 2, 4], &[], 2),
    (&[1, 2, 4], &[3], 2),
    (&[], &[1], 0),
];

#[test]
fn middles_are_counted_up_to_the_next_other_packet() {
    for (middles, others, wanted) in RUNS {
        let mut placing = Placing::new(WINDOW_PKTS);
        let packets = middles.iter().map(|at| middle(*at)).chain(others.iter().map(|at| only(*at, 16)));
        for packet in packets {
            place(&mut placing, &packet.frame(&[]));
        }
        assert_eq!(placing.middles(psn(1), true), *wanted, "{middles:?} and {others:?}");
        assert_eq!(placing.middles(psn(1), false), 0, "none is of a SEND");
    }
}

/// Rows: name; a second packet with the PSN of a placed packet; whether the two packets have the same content.
#[rustfmt::skip]
const VERSIONS: &[(&str, Pkt, bool)] = &[
    ("the same packet", only(1, 16), true),
    ("another IP identification and AckReq", Pkt { ip_id: 77, ack_req: true, ..only(1, 16) }, true),
    ("another payload", Pkt { fill: 1, ..only(1, 16) }, false),
    ("another length", only(1, 12), false),
    ("another address", only(1, 16).remote(ALL, VA + 1, 16), false),
    ("another R_Key", only(1, 16).remote(READABLE, VA, 16), false),
    ("another opcode", packet(Opcode::RC_SEND_ONLY, 1, 16), false),
    ("another solicited event bit", Pkt { solicited: true, ..only(1, 16) }, false),
];

#[test]
fn a_second_version_is_compared_with_the_placed_one() {
    for (name, second, wanted) in VERSIONS {
        let mut placing = Placing::new(WINDOW_PKTS);
        let (frame, second) = (only(1, 16).frame(&[]), second.frame(&[]));
        place(&mut placing, &frame);
        assert_eq!(placing.is_same(&Packet::parse(&second).expect("well-formed")), *wanted, "{name}");
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Disposition {
    /// The payload is in its destination memory before the packet is executed.
    Placed,
    Buffered,
}
use Disposition::{Buffered, Placed};

/// Columns: name; scheme; receives posted (region, length in bytes); packets executed; the out-of-order packet; whether
/// this packet is placed or buffered; offset from address `VA` of a byte that only placement of this packet changes.
type Arrival =
    (&'static str, RecoveryScheme, &'static [(RKey, u32)], &'static [Pkt], Pkt, Disposition, usize);

const ROOM: &[(RKey, u32)] = &[(ALL, 1024); 3];

const fn send(opcode: Opcode, at: i32, number: u32, index: u32) -> Pkt {
    packet(opcode, at, MTU_BYTES).numbered(number, index)
}

#[rustfmt::skip]
const ARRIVALS: &[Arrival] = &[
    ("WRITE ONLY", IMPROVED, ROOM, &[], only(1, 16), Placed, 0),
    ("WRITE ONLY under selective repeat", SELECTIVE, ROOM, &[], only(1, 16), Placed, 0),
    ("WRITE ONLY, no right of the region", IMPROVED, ROOM, &[], only(1, 16).remote(READABLE, VA, 16), Buffered, 0),
    ("WRITE ONLY, unknown R_Key", IMPROVED, ROOM, &[], only(1, 16).remote(UNKNOWN, VA, 16), Buffered, 0),
    ("WRITE FIRST of a message that leaves the region", IMPROVED, ROOM, &[], first(1, VA, REGION_BYTES + 1), Buffered,
     0),
    ("WRITE MIDDLE without its FIRST", IMPROVED, ROOM, &[], middle(1), Buffered, 0),
    ("WRITE MIDDLE of the message in progress", IMPROVED, ROOM, &[first(0, VA, 1024)], middle(2), Placed, 512),
    ("WRITE LAST of the message in progress", IMPROVED, ROOM, &[first(0, VA, 700)], last(2, 188), Placed, 512),
    ("WRITE MIDDLE, a SEND in progress", IMPROVED, ROOM, &[packet(Opcode::RC_SEND_FIRST, 0, MTU_BYTES)], middle(2),
     Buffered, 512),
    ("SEND under improved go-back-N", IMPROVED, ROOM, &[], packet(Opcode::RC_SEND_ONLY, 1, 16), Buffered, 0),
    ("SEND without a number", SELECTIVE, ROOM, &[], packet(Opcode::RC_SEND_ONLY, 1, 16), Buffered, 0),
    ("numbered SEND to the oldest receive", SELECTIVE, ROOM, &[], send(Opcode::RC_NUMBERED_SEND_MIDDLE, 1, 0, 1),
     Placed, 256),
    ("numbered SEND to the third receive", SELECTIVE, ROOM, &[], send(Opcode::RC_NUMBERED_SEND_ONLY, 1, 2, 0), Placed,
     2048),
    ("numbered SEND, its receive is not posted", SELECTIVE, ROOM, &[], send(Opcode::RC_NUMBERED_SEND_ONLY, 1, 3, 0),
     Buffered, 3072),
    ("numbered SEND to a receive completed before", SELECTIVE, ROOM, &[],
     send(Opcode::RC_NUMBERED_SEND_ONLY, 1, u32::MAX, 0), Buffered, 0),
    ("numbered SEND that fills its receive", SELECTIVE, &[(ALL, 512)], &[],
     send(Opcode::RC_NUMBERED_SEND_LAST, 1, 0, 1), Placed, 256),
    ("numbered SEND beyond its receive", SELECTIVE, &[(ALL, 511)], &[], send(Opcode::RC_NUMBERED_SEND_LAST, 1, 0, 1),
     Buffered, 256),
    ("numbered SEND, an offset beyond 2^32", SELECTIVE, ROOM, &[], send(Opcode::RC_NUMBERED_SEND_LAST, 1, 0, 1 << 24),
     Buffered, 0),
    ("numbered SEND MIDDLE that is not full", SELECTIVE, ROOM, &[],
     packet(Opcode::RC_NUMBERED_SEND_MIDDLE, 1, 255).numbered(0, 1), Buffered, 256),
    ("numbered SEND, receive without local write", SELECTIVE, &[(LOCAL_READ, 512)], &[],
     send(Opcode::RC_NUMBERED_SEND_ONLY, 1, 0, 0), Buffered, 0),
    ("READ", SELECTIVE, ROOM, &[], packet(Opcode::RC_RDMA_READ_REQUEST, 1, 0).remote(ALL, VA, 16), Buffered, 0),
];

fn bench(recovery: RecoveryScheme, receives: &[(RKey, u32)]) -> Bench {
    let mut bench = Bench::new(recovery, Placement::Relaxed, 2);
    for (number, (key, len_bytes)) in receives.iter().enumerate() {
        bench.post(*key, 1024 * number as u64, *len_bytes);
    }
    bench
}

#[test]
fn payload_is_placed_where_its_memory_is_known() {
    for (name, recovery, receives, before, packet, wanted, byte) in ARRIVALS {
        let mut bench = bench(*recovery, receives);
        before.iter().for_each(|packet| _ = bench.receive(packet));
        bench.receive(&Pkt { fill: 0x77, ..*packet });
        let placed = bench.counters.placed_out_of_order;
        let disposition = match (placed, bench.has_buffered()) {
            (1, false) => Placed,
            (0, true) => Buffered,
            other => panic!("{name}: placed and buffered {other:?}"),
        };
        assert_eq!(disposition, *wanted, "{name}");
        assert_eq!(bench.byte(*byte) == 0x77, disposition == Placed, "{name}: byte {byte}");
    }
}

/// Rows: name; scheme; packets received, the last of which closes the gap below the other packets; NAK sent. The
/// responder checks placed packets at execution, after the gap has closed.
#[rustfmt::skip]
const EXECUTIONS: &[(&str, RecoveryScheme, &[Pkt], Option<NakCode>)] = &[
    ("WRITEs", IMPROVED, &[only(1, 16), only(2, 16), only(0, 16)], None),
    ("a WRITE of four packets", IMPROVED, &[middle(1), middle(2), last(3, 1), first(0, VA, 769)], None),
    ("a WRITE of four packets, behind another", IMPROVED, &[first(1, VA, 769), middle(2), middle(3), last(4, 1),
     only(0, 16)], None),
    ("numbered SENDs", SELECTIVE,
     &[send(Opcode::RC_NUMBERED_SEND_ONLY, 1, 1, 0), send(Opcode::RC_NUMBERED_SEND_ONLY, 0, 0, 0)], None),
    ("a numbered SEND of three packets", SELECTIVE,
     &[send(Opcode::RC_NUMBERED_SEND_MIDDLE, 1, 0, 1), send(Opcode::RC_NUMBERED_SEND_LAST, 2, 0, 2),
       send(Opcode::RC_NUMBERED_SEND_FIRST, 0, 0, 0)], None),
    ("a numbered SEND with the number of another receive", SELECTIVE,
     &[send(Opcode::RC_NUMBERED_SEND_ONLY, 1, 2, 0), send(Opcode::RC_NUMBERED_SEND_ONLY, 0, 0, 0)],
     Some(NakCode::InvalidRequest)),
    ("a numbered SEND with another place in its receive", SELECTIVE,
     &[send(Opcode::RC_NUMBERED_SEND_LAST, 1, 0, 2), send(Opcode::RC_NUMBERED_SEND_FIRST, 0, 0, 0)],
     Some(NakCode::InvalidRequest)),
    ("a placed MIDDLE without a message", SELECTIVE,
     &[send(Opcode::RC_NUMBERED_SEND_MIDDLE, 2, 0, 2), only(1, 16), send(Opcode::RC_NUMBERED_SEND_ONLY, 0, 0, 0)],
     Some(NakCode::InvalidRequest)),
    ("a WRITE ONLY within a WRITE", IMPROVED, &[only(1, 16), first(0, VA, 1024)], Some(NakCode::InvalidRequest)),
    ("a numbered SEND ONLY within a SEND", SELECTIVE,
     &[send(Opcode::RC_NUMBERED_SEND_ONLY, 1, 0, 0), send(Opcode::RC_NUMBERED_SEND_FIRST, 0, 0, 0)],
     Some(NakCode::InvalidRequest)),
];

#[test]
fn placed_packets_are_checked_when_they_are_executed() {
    for (name, recovery, packets, wanted) in EXECUTIONS {
        let mut bench = bench(*recovery, &[(ALL, 1024); 4]);
        let actions: Vec<ResponderAction> = packets.iter().map(|packet| bench.receive(packet)).collect();
        let nak = bench.transmit_all().pop().expect("the last packet is acknowledged or refused");
        let (fatal, end) = (nak.starts_with('I').then_some(NakCode::InvalidRequest), packets.len() as i32);
        assert_eq!(fatal, *wanted, "{name}: {actions:?}, {nak}");
        if wanted.is_none() {
            assert_eq!(bench.responder.expected_psn(), psn(end), "{name}");
        }
    }
}

/// Messages of one packet, placed and then executed together, have the effects of messages received in order, whether
/// or not access was revoked somewhere in between.
#[test]
fn placed_messages_of_one_packet_have_the_effects_of_messages_in_order() {
    let with_imm = |packet: Pkt, imm| Pkt { imm, solicited: true, ..packet };
    let messages = [
        only(0, 16),
        only(1, 16),
        only(2, 0),
        send(Opcode::RC_NUMBERED_SEND_ONLY, 3, 0, 0),
        with_imm(packet(Opcode::RC_NUMBERED_SEND_ONLY_WITH_IMMEDIATE, 4, 8).numbered(1, 0), 7),
        with_imm(packet(Opcode::RC_RDMA_WRITE_ONLY_WITH_IMMEDIATE, 5, 12), 8),
        send(Opcode::RC_NUMBERED_SEND_ONLY, 6, 3, 0),
        Pkt { ack_req: true, ..only(7, 32) },
    ];
    let effects = |order: &[usize], revokes: bool| {
        let mut bench = bench(SELECTIVE, &[(ALL, 1024); 4]);
        for (received, at) in order.iter().enumerate() {
            if revokes && received + 1 == order.len() {
                bench.deregister(READABLE);
            }
            bench.receive(&messages[*at]);
        }
        let placed = bench.counters.placed_out_of_order;
        let counts = [bench.counters.rcvd_bytes, bench.counters.rx_write_requests, bench.counters.rdma_recvs];
        let last = bench.transmit_all().pop();
        (placed, (counts, bench.completions(), last, bench.msns.last().copied()))
    };
    let in_order = effects(&[0, 1, 2, 3, 4, 5, 6, 7], false);
    assert_eq!((in_order.0, in_order.1.1.len()), (0, 4));
    for revokes in [false, true] {
        assert_eq!(
            effects(&[3, 1, 2, 6, 5, 4, 7, 0], revokes),
            (7, in_order.1.clone()),
            "revokes: {revokes}"
        );
    }
}

#[test]
fn a_placed_write_whose_region_is_deregistered_before_its_execution_is_refused() {
    let mut bench = bench(SELECTIVE, ROOM);
    bench.receive(&only(1, 16));
    assert_eq!(bench.counters.placed_out_of_order, 1);
    bench.deregister(ALL);
    bench.receive(&only(0, 0));
    assert_eq!(bench.transmit_all(), ["X1"]);
    assert_eq!(bench.counters.resp_remote_access_errors, 1);
}
