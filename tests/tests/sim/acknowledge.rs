//! What acknowledgements go up to.

use netsim::{Impairment, LinkId, Tape, TapeEntry};
use roce::qp::ConnAttr;
use roce::recovery::RecoveryScheme;
use roce::wire::{Aeth, Opcode, Packet, Syndrome};
use tests::pair::{Op, Pair, PairConfig, conn};
use tests::record::{self, Trace};

const MESSAGES: [(Op, u32); 6] =
    [(Op::Send, 1), (Op::Read, 2_000), (Op::Write, 1_500), (Op::Read, 3_000), (Op::Read, 1), (Op::Send, 1)];
/// Frames of either direction that are lost or not, in every combination.
const FRAMES: u64 = 6;

/// Posts the messages one by one, each when the one before has left, and loses the frames of `lost`: a bit for
/// each of the first of either direction.
fn run(recovery: RecoveryScheme, lost: u64) -> Trace {
    let mut pair = Pair::new(&PairConfig::of(ConnAttr { recovery, timeout: 8, ..conn() }));
    let trace = Trace::default();
    record::record(&mut pair.world.network.borrow_mut(), &trace);
    let entry =
        |bit| TapeEntry { link: LinkId((bit % 2) as usize), frame: bit / 2, impairment: Impairment::Drop };
    pair.set_tape(&Tape((0..2 * FRAMES).filter(|bit| lost >> bit & 1 == 1).map(entry).collect()));
    for (n, (op, len_bytes)) in (0..).zip(MESSAGES) {
        if op == Op::Send {
            pair.post_recv(1, n, len_bytes);
        }
        pair.post_send(0, n, op, len_bytes);
    }
    pair.run_until_completions(0, MESSAGES.len());
    pair.settle();
    trace
}

/// Acknowledgements that go up to a PSN which is a READ's, of `trace`; and all others.
fn of_reads(trace: &Trace) -> (u64, u64) {
    let mtu_bytes = conn().path_mtu.bytes();
    let (mut reads, mut of_reads, mut others) = (Vec::new(), 0, 0);
    for seen in trace.borrow().iter() {
        let Ok(packet) = Packet::parse(&seen.frame) else { continue };
        if let (Opcode::RC_RDMA_READ_REQUEST, Some(reth)) = (packet.bth.opcode, packet.reth()) {
            reads.push((packet.bth.psn, reth.len_bytes.div_ceil(mtu_bytes)));
        }
        let is_ack = |aeth: Aeth| aeth.syndrome == Syndrome::ACK;
        if packet.bth.opcode == Opcode::RC_ACKNOWLEDGE && packet.aeth().is_some_and(is_ack) {
            let is_of_read =
                reads.iter().any(|(first, span)| packet.bth.psn.index_in(*first, *span).is_some());
            *(if is_of_read { &mut of_reads } else { &mut others }) += 1;
        }
    }
    (of_reads, others)
}

#[test]
fn an_acknowledgement_never_goes_up_to_a_read() {
    // Linux's rxe ends a connection when one comes in the place of a response that was lost.
    for recovery in [RecoveryScheme::GoBackN, RecoveryScheme::ImprovedGoBackN] {
        let mut seen = 0;
        for lost in 0..1 << (2 * FRAMES) {
            let (of_reads, others) = of_reads(&run(recovery, lost));
            assert_eq!(of_reads, 0, "{recovery:?}, lost {lost:#b}");
            seen += others;
        }
        assert!(seen > 1 << (2 * FRAMES), "only {seen} acknowledgements");
    }
}
