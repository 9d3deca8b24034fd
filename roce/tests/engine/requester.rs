//! Packets that a requester sends before any response, by posted work requests and by attributes of the connection.

use crate::common::{End, conn, first_psn, pair_over, ports, ports_of, put, settle, statuses, take};
use roce::congestion::CongestionScheme;
use roce::engine::limits::TX_QUANTUM_PKTS;
use roce::port::loopback::LoopbackPort;
use roce::qp::{ConnAttr, PathMtu};
use roce::queue::{SendData, SendFlags, SendOp, SendRequest, WcStatus};
use roce::recovery::RecoveryScheme;
use roce::start;
use roce::wire::{Opcode, Packet};

const SCHEMES: [RecoveryScheme; 3] = [
    RecoveryScheme::GoBackN,
    RecoveryScheme::ImprovedGoBackN,
    RecoveryScheme::SelectiveRepeat { window_pkts: 64 },
];

const MTU_BYTES: u32 = 256;

/// A work request, and its number of packets (READ: of response packets).
#[derive(Clone, Copy, Debug)]
enum Post {
    Write(u32),
    Read(u32),
    /// A WRITE with the fence flag.
    FencedWrite(u32),
}
use Post::{FencedWrite, Read, Write};

/// A packet: opcode, PSN minus [`first_psn`], AckReq.
type Sent = (Opcode, u32, bool);

const FIRST: Opcode = Opcode::RC_RDMA_WRITE_FIRST;
const MIDDLE: Opcode = Opcode::RC_RDMA_WRITE_MIDDLE;
const LAST: Opcode = Opcode::RC_RDMA_WRITE_LAST;
const ONLY: Opcode = Opcode::RC_RDMA_WRITE_ONLY;
const REQUEST: Opcode = Opcode::RC_RDMA_READ_REQUEST;

/// Columns: name; `max_rd_atomic`; window in packets; posted work requests; packets sent before any response.
type Row = (&'static str, u8, u32, &'static [Post], &'static [Sent]);

#[rustfmt::skip]
const ROWS: &[Row] = &[
    ("one WRITE", 4, 64, &[Write(1)], &[(ONLY, 0, true)]),
    ("AckReq in the last packet", 4, 64, &[Write(4)],
     &[(FIRST, 0, false), (MIDDLE, 1, false), (MIDDLE, 2, false), (LAST, 3, true)]),
    ("AckReq twice in a window, and in its last packet", 4, 5, &[Write(8)],
     &[(FIRST, 0, false), (MIDDLE, 1, true), (MIDDLE, 2, false), (MIDDLE, 3, true), (MIDDLE, 4, true)]),
    ("a READ takes a PSN for each response", 4, 64, &[Read(3), Write(1)], &[(REQUEST, 0, true), (ONLY, 3, true)]),
    ("as many READs as max_rd_atomic", 2, 64, &[Read(1), Read(2), Read(1)], &[(REQUEST, 0, true), (REQUEST, 1, true)]),
    ("a READ above max_rd_atomic blocks what follows", 1, 64, &[Read(2), Write(1), Read(1), Write(1)],
     &[(REQUEST, 0, true), (ONLY, 2, true)]),
    ("a fenced WRITE waits for a READ", 4, 64, &[Read(1), FencedWrite(1), Write(1)], &[(REQUEST, 0, true)]),
    ("a fenced WRITE waits for two READs", 4, 64, &[Read(1), Read(1), FencedWrite(1)],
     &[(REQUEST, 0, true), (REQUEST, 1, true)]),
    ("a fenced WRITE waits for no WRITE", 4, 64, &[Write(1), FencedWrite(1)], &[(ONLY, 0, true), (ONLY, 1, true)]),
];

fn post(a: &mut End, b: &End, wr_id: u64, post: Post) {
    let (remote_addr, rkey) = (b.memory.addr(), b.rkey);
    let (op, packets, fence) = match post {
        Write(packets) => (SendOp::Write { remote_addr, rkey }, packets, false),
        FencedWrite(packets) => (SendOp::Write { remote_addr, rkey }, packets, true),
        Read(packets) => (SendOp::Read { remote_addr, rkey }, packets, false),
    };
    let data = SendData::Sges(&[a.sge(0, packets * MTU_BYTES)]);
    let flags = SendFlags { fence, ..SendFlags::default() };
    a.send.post(&SendRequest { wr_id, op, flags, data }).unwrap();
}

fn connected(recovery: RecoveryScheme, max_rd_atomic: u8, congestion: CongestionScheme) -> (End, End) {
    connected_over(ports(), recovery, max_rd_atomic, congestion)
}

fn connected_over(
    (port_a, port_b): (LoopbackPort, LoopbackPort),
    recovery: RecoveryScheme,
    max_rd_atomic: u8,
    congestion: CongestionScheme,
) -> (End, End) {
    let conn = ConnAttr { recovery, max_rd_atomic, congestion: Some(congestion), ..conn(PathMtu::Mtu256) };
    pair_over(port_a, port_b, 1 << 14, true, &conn)
}

/// Removes the packets in flight to `b`.
fn sent_to(b: &mut End) -> Vec<Sent> {
    let sent = |frame: &Vec<u8>| {
        let Packet { bth, .. } = Packet::parse(frame).unwrap();
        (bth.opcode, bth.psn.index_in(first_psn(), 1 << 16).unwrap(), bth.ack_req)
    };
    take(b.engine.port_mut()).iter().map(sent).collect()
}

#[test]
fn packets_sent_before_any_response() {
    for (name, max_rd_atomic, window_pkts, posts, wanted) in ROWS {
        for recovery in SCHEMES {
            let congestion = CongestionScheme::Window { window_pkts: *window_pkts };
            let connected = || {
                let (mut a, b) = connected(recovery, *max_rd_atomic, congestion);
                (0..).zip(*posts).for_each(|(wr_id, request)| post(&mut a, &b, wr_id, *request));
                (a, b)
            };
            let (mut a, mut b) = connected();
            a.poll(0);
            a.poll(0);
            assert_eq!(sent_to(&mut b), *wanted, "{name}, {recovery}");
            let (mut a, mut b) = connected();
            settle(&mut a, &mut b);
            let completed: Vec<_> = (0..).zip(*posts).map(|(wr_id, _)| (wr_id, WcStatus::Success)).collect();
            assert_eq!(statuses(&mut a), completed, "{name}, {recovery}");
        }
    }
}

/// If the port has no room for a packet with AckReq, the packet has AckReq when it is sent later.
#[test]
fn a_full_port_does_not_clear_ack_req() {
    for recovery in SCHEMES {
        for room_frames in 1..4 {
            let congestion = CongestionScheme::Window { window_pkts: 64 };
            let (mut a, mut b) = connected_over(ports_of(room_frames), recovery, 4, congestion);
            post(&mut a, &b, 0, Write(60));
            let mut with_ack_req = Vec::new();
            for nanos in 0..60 {
                (0..2).for_each(|_| _ = a.poll(nanos));
                with_ack_req.extend(sent_to(&mut b).iter().filter(|sent| sent.2).map(|sent| sent.1));
            }
            assert_eq!(with_ack_req, [31, 59], "{recovery}, room for {room_frames}");
        }
    }
}

/// Under selective repeat, while a loss is recent, a READ request of at least 16 responses is sent twice, if the quantum
/// of the queue pair permits (recovery, `DOUBLED_PKTS_MIN`). The peer does not answer the second packet.
#[test]
fn after_a_loss_a_long_read_is_requested_twice() {
    for (is_lossy, writes, read_pkts, requests) in [
        (false, 0, 16, 1),
        (true, 0, 15, 1),
        (true, 0, 16, 2),
        (true, TX_QUANTUM_PKTS - 2, 16, 2),
        (true, TX_QUANTUM_PKTS - 1, 16, 1),
    ] {
        let name = format!("loss {is_lossy}, {writes} WRITEs, {read_pkts} responses");
        let (mut a, mut b) = connected(SCHEMES[2], 4, CongestionScheme::None);
        (0..2).for_each(|wr_id| post(&mut a, &b, wr_id, Write(1)));
        a.poll(0);
        let frames = take(b.engine.port_mut());
        assert_eq!(frames.len(), 2);
        frames.iter().skip(is_lossy.into()).for_each(|frame| put(a.engine.port_mut(), frame));
        settle(&mut a, &mut b);
        assert_eq!(statuses(&mut a).len(), 2, "{name}");
        let counters = |end: &End| end.engine.counters();
        let (sent_pkts, retransmitted_pkts) = (counters(&a).sent_pkts, counters(&a).retransmitted_pkts);
        assert_eq!((sent_pkts, retransmitted_pkts), (2 + u64::from(is_lossy), u64::from(is_lossy)), "{name}");
        assert_eq!(counters(&a).sent_bytes, sent_pkts * u64::from(MTU_BYTES), "{name}");
        (0..writes).for_each(|wr_id| post(&mut a, &b, wr_id.into(), Write(1)));
        post(&mut a, &b, 99, Read(read_pkts));
        let progress = a.poll(200_000);
        let sent = sent_to(&mut b);
        let read = (REQUEST, 2 + writes, requests == 1);
        assert_eq!(sent.get(writes as usize..), Some(&*vec![read; requests]), "{name}");
        assert_eq!(progress.tx_pkts as usize, sent.len(), "{name}");
        assert_eq!(counters(&a).sent_pkts, sent_pkts + sent.len() as u64, "{name}");
    }
}

/// With `max_rd_atomic` 1, the second READ is sent after the first READ completed, however often the first was sent.
#[test]
fn a_retransmitted_read_counts_once_against_max_rd_atomic() {
    for recovery in SCHEMES {
        let (mut a, mut b) = connected(recovery, 1, CongestionScheme::None);
        (0..2).for_each(|wr_id| post(&mut a, &b, wr_id, Read(1)));
        a.poll(0);
        for _ in 0..2 {
            assert_eq!(sent_to(&mut b), [(REQUEST, 0, true)], "{recovery}");
            a.engine.settle_timers();
            a.poll(a.engine.next_deadline().unwrap().nanos_since(start::instant()));
        }
        settle(&mut a, &mut b);
        assert_eq!(statuses(&mut a), [(0, WcStatus::Success), (1, WcStatus::Success)], "{recovery}");
    }
}

#[test]
fn with_a_pacer_ack_req_is_set_a_shortest_round_trip_after_the_last() {
    const RTT_NANOS: u64 = 10_000;
    for (congestion, is_first_overdue) in [("window:64", false), ("dcqcn", true)] {
        let recovery = RecoveryScheme::ImprovedGoBackN;
        let (mut a, mut b) = connected(recovery, 4, congestion.parse().unwrap());
        post(&mut a, &b, 0, Write(1));
        a.poll(0);
        (1..3).for_each(|nanos| _ = b.poll(nanos));
        a.poll(RTT_NANOS);
        assert_eq!(statuses(&mut a), [(0, WcStatus::Success)]);
        post(&mut a, &b, 1, Write(3));
        (0..3).for_each(|n| _ = a.poll((2 + n) * RTT_NANOS));
        let wanted = [(FIRST, 1, is_first_overdue), (MIDDLE, 2, false), (LAST, 3, true)];
        assert_eq!(sent_to(&mut b), wanted, "{congestion}");
    }
}
