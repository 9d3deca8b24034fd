//! What two connected peers should be able to do, whoever they are.

use std::time::Duration;

use lab::rng::SplitMix;
use roce::qp::ConnAttr;
use roce::queue::WcStatus;
use tests::protocol::{Completion, Op, WC_RECV, WC_RECV_RDMA_WITH_IMM};

use super::link::{End, Settings, TARGET, connect};

/// Lengths at which something changes: nothing, a byte, a pad, a page, many packets.
const LENS: [usize; 5] = [0, 1, 33, 4096, 1 << 20];
/// Bytes looked at on both sides of what was to be written.
const MARGIN: usize = 64;
/// Where a transfer starts, at neither a page nor a word.
const START: usize = 4096 + 3;
/// `IBV_QPS_ERR`.
const STATE_ERR: u32 = 6;
/// Long enough to see that nothing happens.
const QUIET: Duration = Duration::from_millis(300);

fn expect_done(completion: Completion, wr_id: u64, opcode: u32) {
    assert!(completion.is(WcStatus::Success), "{completion:?}");
    assert_eq!((completion.wr_id, completion.opcode), (wr_id, opcode));
}

fn send_opcode(op: Op) -> u32 {
    match op {
        Op::Send | Op::SendWithImm => 0,
        Op::Write | Op::WriteWithImm => 1,
        Op::Read => 2,
    }
}

/// One message of each operation and length, contents compared; what lies around them stays.
pub(crate) fn every_op_and_len(requester: &mut End, responder: &mut End, settings: &Settings) {
    connect(requester, responder, settings);
    let mut rng = SplitMix::new(1);
    for (number, (op, len)) in Op::ALL.into_iter().flat_map(|op| LENS.map(|len| (op, len))).enumerate() {
        let wr_id = number as u64;
        let sent = rng.bytes(len);
        let around = rng.bytes(MARGIN + len + MARGIN);
        let (from, to) = if op == Op::Read {
            (&mut *responder, &mut *requester)
        } else {
            (&mut *requester, &mut *responder)
        };
        from.write(START, &sent);
        to.write(TARGET + START - MARGIN, &around);
        if op.takes_receive() {
            // A WRITE with immediate consumes a receive and leaves its memory alone.
            responder.post_recv(1000 + wr_id, TARGET + START, len);
        }
        let (local, remote) = if op == Op::Read { (TARGET + START, START) } else { (START, TARGET + START) };
        requester.post_send(vec![requester.request(wr_id, op, local, len, responder, remote)]);
        expect_done(requester.poll_one(), wr_id, send_opcode(op));
        if op.takes_receive() {
            let received = responder.poll_one();
            let opcode = if op == Op::WriteWithImm { WC_RECV_RDMA_WITH_IMM } else { WC_RECV };
            expect_done(received, 1000 + wr_id, opcode);
            assert_eq!(received.len_bytes as usize, len, "{op:?}");
            assert_eq!(received.imm, op.has_imm().then_some(0xC0DE_0000 | wr_id as u32), "{op:?}");
        }
        let to = if op == Op::Read { &mut *requester } else { &mut *responder };
        let mut wanted = around;
        wanted[MARGIN..MARGIN + len].copy_from_slice(&sent);
        compare(&wanted, &to.read(TARGET + START - MARGIN, wanted.len()), &format!("{op:?} of {len} bytes"));
    }
}

fn compare(wanted: &[u8], got: &[u8], what: &str) {
    assert_eq!(wanted.len(), got.len(), "{what}");
    if let Some(first) = wanted.iter().zip(got).position(|(a, b)| a != b) {
        let wrong = wanted.iter().zip(got).filter(|(a, b)| a != b).count();
        panic!("{what}: {wrong} bytes differ, the first of them byte {first} of {}", wanted.len());
    }
}

/// A key that opens nothing: the requester learns of it, both queue pairs are in error, and no byte
/// has moved.
pub(crate) fn wrong_rkey(requester: &mut End, responder: &mut End, settings: &Settings) {
    for op in [Op::Write, Op::WriteWithImm, Op::Read] {
        connect(requester, responder, settings);
        let before = responder.read(TARGET, 8192);
        let untouched = requester.read(TARGET, 8192);
        requester.write(0, &SplitMix::new(2).bytes(8192));
        responder.post_recv(1, TARGET, 8192);
        let local = if op == Op::Read { TARGET } else { 0 };
        let mut wrong = requester.request(1, op, local, 8192, responder, TARGET);
        wrong.rkey ^= 0x0055_5500;
        let after = requester.request(2, Op::Write, 0, 8192, responder, TARGET);
        requester.post_send(vec![wrong, after]);
        let ended = requester.poll(2);
        assert!(ended[0].wr_id == 1 && ended[0].is(WcStatus::RemAccessErr), "{op:?}: {ended:?}");
        assert!(ended[1].wr_id == 2 && ended[1].is(WcStatus::WrFlushErr), "{op:?}: {ended:?}");
        let flushed = responder.poll_one();
        // The receive was either flushed or, where it was already taken for the message, failed.
        assert!(flushed.wr_id == 1 && !flushed.is(WcStatus::Success), "{op:?}: {flushed:?}");
        assert_eq!((requester.state(), responder.state()), (STATE_ERR, STATE_ERR), "{op:?}");
        compare(&before, &responder.read(TARGET, 8192), "memory behind a wrong key");
        compare(&untouched, &requester.read(TARGET, 8192), "memory read into with a wrong key");
    }
}

/// Receives that come late: the sends wait for them, in order.
pub(crate) fn late_receive(requester: &mut End, responder: &mut End, settings: &Settings) {
    connect(requester, responder, settings);
    let sent = SplitMix::new(3).bytes(3 * 10_000);
    requester.write(0, &sent);
    let wrs = (0..3).map(|i| requester.request(i as u64, Op::Send, i * 10_000, 10_000, responder, 0));
    let wrs = wrs.collect();
    requester.post_send(wrs);
    requester.expect_quiet(QUIET);
    for i in 0..3 {
        responder.post_recv(i as u64, TARGET + i * 10_000, 10_000);
        expect_done(responder.poll_one(), i as u64, WC_RECV);
        expect_done(requester.poll_one(), i as u64, 0);
    }
    compare(&sent, &responder.read(TARGET, sent.len()), "messages whose receives came late");
}

/// No receive at all: the requester gives up after as many retries as it was allowed.
pub(crate) fn no_receive(requester: &mut End, responder: &mut End, settings: &Settings) {
    let conn = ConnAttr { rnr_retry: 2, ..settings.conn };
    connect(requester, responder, &Settings { conn, ..*settings });
    requester.post_send(vec![requester.request(1, Op::Send, 0, 100, responder, 0)]);
    let ended = requester.poll_one();
    assert!(ended.is(WcStatus::RnrRetryExcErr), "{ended:?}");
    assert_eq!(requester.state(), STATE_ERR);
}

/// A message longer than its receive: it ends as `refused` at the requester and as `failed` at the
/// responder.
pub(crate) fn short_receive(
    requester: &mut End,
    responder: &mut End,
    settings: &Settings,
    [refused, failed]: [WcStatus; 2],
) {
    connect(requester, responder, settings);
    responder.post_recv(1, TARGET, 1000);
    requester.post_send(vec![requester.request(1, Op::Send, 0, 3000, responder, 0)]);
    let sent = requester.poll_one();
    assert!(sent.is(refused), "{sent:?}");
    let received = responder.poll_one();
    assert!(received.is(failed), "{received:?}");
}

/// How many messages [`a_mix`] moves.
pub(crate) const MIX_MESSAGES: usize = 240;
/// Each message has this much room of its own at both ends.
const MIX_ROOM: usize = 8192;
/// Messages outstanding at once.
const MIX_BATCH: usize = 48;

/// Messages of every operation and many lengths, many at once; each completes exactly once and in
/// order, every receive is filled by its own message, and memory is at the end as it must be.
pub(crate) fn a_mix(requester: &mut End, responder: &mut End, settings: &Settings) {
    connect(requester, responder, settings);
    let mut rng = SplitMix::new(4);
    let area = MIX_MESSAGES * MIX_ROOM;
    let requester_source = rng.bytes(area);
    let responder_source = rng.bytes(area);
    let mut requester_target = rng.bytes(area);
    let mut responder_target = rng.bytes(area);
    requester.write(0, &requester_source);
    requester.write(TARGET, &requester_target);
    responder.write(0, &responder_source);
    responder.write(TARGET, &responder_target);
    let plan: Vec<(Op, usize)> =
        (0..MIX_MESSAGES).map(|i| (Op::ALL[i % Op::ALL.len()], rng.up_to(MIX_ROOM))).collect();
    for (batch, messages) in plan.chunks(MIX_BATCH).enumerate() {
        let (mut sends, mut receives) = (Vec::new(), Vec::new());
        for (place, (op, len)) in messages.iter().copied().enumerate() {
            let number = batch * MIX_BATCH + place;
            let at = number * MIX_ROOM;
            let range = at..at + len;
            if op == Op::Read {
                requester_target[range.clone()].copy_from_slice(&responder_source[range]);
                sends.push(requester.request(number as u64, op, TARGET + at, len, responder, at));
            } else {
                responder_target[range.clone()].copy_from_slice(&requester_source[range]);
                sends.push(requester.request(number as u64, op, at, len, responder, TARGET + at));
            }
            if op.takes_receive() {
                // As long as the room: what is received may be shorter.
                responder.post_recv(number as u64, TARGET + at, MIX_ROOM);
                receives.push((number as u64, op, len));
            }
        }
        requester.post_send(sends);
        for (place, done) in requester.poll(messages.len()).into_iter().enumerate() {
            expect_done(done, (batch * MIX_BATCH + place) as u64, send_opcode(messages[place].0));
        }
        for (done, (wr_id, op, len)) in responder.poll(receives.len()).into_iter().zip(receives) {
            let opcode = if op == Op::WriteWithImm { WC_RECV_RDMA_WITH_IMM } else { WC_RECV };
            expect_done(done, wr_id, opcode);
            assert_eq!(done.len_bytes as usize, len, "{op:?} {wr_id}");
            assert_eq!(done.imm, op.has_imm().then_some(0xC0DE_0000 | wr_id as u32), "{op:?} {wr_id}");
        }
    }
    requester.expect_quiet(QUIET);
    responder.expect_quiet(QUIET);
    compare(&requester_target, &requester.read(TARGET, area), "what was read");
    compare(&responder_target, &responder.read(TARGET, area), "what was sent and written");
    compare(&requester_source, &requester.read(0, area), "what was sent from");
    compare(&responder_source, &responder.read(0, area), "what was read from");
}
