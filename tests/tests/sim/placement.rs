//! Out-of-order payload: buffered, or placed on arrival under relaxed placement.

use netsim::{Impairment, LinkConfig, LinkId, Tape, TapeEntry};
use roce::qp::{ConnAttr, PathMtu, Placement};
use roce::recovery::RecoveryScheme;
use tests::pair::{Op, Pair, PairConfig, conn};

const PATH_MTU: PathMtu = PathMtu::Mtu1024;
/// Packets of each of two messages.
const PACKETS: u32 = 16;
const MESSAGE_BYTES: u32 = PACKETS * 1024 - 7;
/// Long enough that all packets are in flight before the first loss is detected.
const LINK: LinkConfig =
    LinkConfig { rate_bits_per_sec: 100_000_000_000, propagation_nanos: 20_000, queue_bytes_max: 1 << 20 };
const KEEPING: [RecoveryScheme; 2] =
    [RecoveryScheme::SelectiveRepeat { window_pkts: 64 }, RecoveryScheme::ImprovedGoBackN];

fn pair(recovery: RecoveryScheme, placement: Placement, lost: &[u64]) -> Pair {
    let conn = ConnAttr { path_mtu: PATH_MTU, recovery, placement, timeout: 14, ..conn() };
    let mut pair = Pair::new(&PairConfig { link: LINK, ..PairConfig::of(conn) });
    let lose = |frame: &u64| TapeEntry { link: LinkId(0), frame: *frame, impairment: Impairment::Drop };
    pair.set_tape(&Tape(lost.iter().map(lose).collect()));
    pair
}

/// Two messages, of which some packets are lost. Returns how many packets came ahead for the first time, and
/// how many of them were placed at once.
fn run(op: Op, recovery: RecoveryScheme, placement: Placement, lost: &[u64]) -> (u64, u64) {
    let mut pair = pair(recovery, placement, lost);
    for n in 0..2 {
        if op == Op::Send {
            pair.post_recv(1, n, MESSAGE_BYTES);
        }
        pair.post_send(0, n, op, MESSAGE_BYTES);
    }
    pair.run_until_completions(0, 2);
    assert_eq!(pair.bytes(1)[..MESSAGE_BYTES as usize], pair.bytes(0)[..MESSAGE_BYTES as usize]);
    let last = u64::from(2 * PACKETS - 1);
    let ahead = last - lost.iter().min().unwrap() - (lost.len() as u64 - 1);
    (ahead, pair.counters(1).placed_out_of_order)
}

#[test]
fn nothing_is_placed_out_of_order_unless_relaxed() {
    for (op, recovery) in [Op::Send, Op::Write].into_iter().flat_map(|op| KEEPING.map(|r| (op, r))) {
        assert_eq!(run(op, recovery, Placement::InOrder, &[3]).1, 0, "{op:?} by {recovery}");
    }
}

#[test]
fn of_one_loss_everything_that_names_its_place_is_placed_at_once() {
    let last = u64::from(PACKETS) - 1;
    for (op, recovery) in [Op::Send, Op::Write].into_iter().flat_map(|op| KEEPING.map(|r| (op, r))) {
        for lost in [0, 1, last / 2, last - 1, last, last + 1, last + 2, 2 * last] {
            let (ahead, placed) = run(op, recovery, Placement::Relaxed, &[lost]);
            // The first of a WRITE names the place of all, and a SEND does by its number, which takes an
            // agreement: without that they are kept.
            let is_first = lost % u64::from(PACKETS) == 0;
            let nameless = match (op, recovery) {
                (Op::Send, RecoveryScheme::ImprovedGoBackN) => ahead,
                (Op::Write, _) if is_first => last,
                _ => 0,
            };
            assert_eq!(placed, ahead - nameless, "{op:?} by {recovery}, frame {lost} lost");
        }
    }
}

#[test]
fn of_losses_in_a_row_what_still_names_its_place_is_placed() {
    let recovery = KEEPING[0];
    for lost in [&[3, 4][..], &[14, 15, 16], &[16, 17]] {
        let (ahead, placed) = run(Op::Send, recovery, Placement::Relaxed, lost);
        assert_eq!(placed, ahead, "{lost:?}");
    }
    let (ahead, placed) = run(Op::Write, recovery, Placement::Relaxed, &[3, 4]);
    assert_eq!(placed, ahead);
    let (ahead, placed) = run(Op::Write, recovery, Placement::Relaxed, &[15, 16]);
    assert_eq!((ahead, placed), (15, 0), "the first of the second message is among them");
}

#[test]
fn a_send_without_a_receive_yet_is_kept() {
    let mut pair = pair(KEEPING[0], Placement::Relaxed, &[3]);
    pair.post_recv(1, 0, MESSAGE_BYTES);
    (0..2).for_each(|n| pair.post_send(0, n, Op::Send, MESSAGE_BYTES));
    while pair.counters(1).out_of_seq_request < 28 {
        pair.world.step(None);
    }
    assert_eq!(pair.counters(1).placed_out_of_order, 12, "those of the message that has a receive");
    pair.post_recv(1, 1, MESSAGE_BYTES);
    pair.run_until_completions(0, 2);
    assert_eq!(pair.ends[1].received.len(), 2);
}

#[test]
fn memory_shows_what_was_placed_and_in_order_nothing() {
    for (placement, is_shown) in [(Placement::InOrder, false), (Placement::Relaxed, true)] {
        let mut pair = pair(KEEPING[0], placement, &[3]);
        let before = pair.bytes(1);
        pair.post_send(0, 0, Op::Write, MESSAGE_BYTES);
        while pair.counters(1).out_of_seq_request < 12 {
            pair.world.step(None);
        }
        let (now, sent) = (pair.bytes(1), pair.bytes(0));
        assert_ne!(before, sent);
        assert_eq!(now[..3 * 1024], sent[..3 * 1024], "in its turn");
        assert_eq!(now[3 * 1024..4 * 1024], before[3 * 1024..4 * 1024], "lost");
        let ahead = 4 * 1024..MESSAGE_BYTES as usize;
        let expected = if is_shown { &sent } else { &before };
        assert_eq!(now[ahead.clone()], expected[ahead], "{placement:?}");
        pair.run_until_completions(0, 1);
    }
}

#[test]
fn a_read_between_takes_as_many_psns_as_it_has_responses() {
    let mut pair = pair(KEEPING[0], Placement::Relaxed, &[3]);
    pair.post_recv(1, 2, MESSAGE_BYTES);
    for (n, op) in [Op::Write, Op::Read, Op::Send].into_iter().enumerate() {
        pair.post_send(0, n as u64, op, MESSAGE_BYTES);
    }
    pair.run_until_completions(0, 3);
    assert_eq!(
        pair.counters(1).placed_out_of_order,
        12 + u64::from(PACKETS),
        "of the WRITE, and all of the SEND"
    );
}
