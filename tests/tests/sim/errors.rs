//! Connections that fail: each work request completes once and in order, and both ends say why.

use lab::world::Step;
use netsim::{Impairment, LinkId, Tape, TapeEntry};
use roce::congestion::CongestionScheme;
use roce::engine::Event;
use roce::id::{LKey, RKey};
use roce::mem::Access;
use roce::qp::{ConnAttr, PathMtu, QpState};
use roce::queue::{Cqe, PostError, SendData, SendFlags, SendOp, SendRequest, Sge, WcStatus};
use roce::recovery::RecoveryScheme;
use tests::pair::{BASE, Op, Pair, PairConfig, conn};

const TIMEOUT: u8 = 8;
const RTO_NANOS: u64 = 4_096 << TIMEOUT;

fn statuses(completions: &[Cqe]) -> Vec<(u64, WcStatus)> {
    completions.iter().map(|cqe| (cqe.wr_id, cqe.status)).collect()
}

/// One `status` and then flushes, `count` in all, numbered from `first`.
fn failed(first: u64, status: WcStatus, count: u64) -> Vec<(u64, WcStatus)> {
    let of = |n| (first + n, if n == 0 { status } else { WcStatus::WrFlushErr });
    (0..count).map(of).collect()
}

fn succeeded(count: u64) -> Vec<(u64, WcStatus)> {
    (0..count).map(|n| (n, WcStatus::Success)).collect()
}

/// Five requests posted at `start_nanos` to a mute peer fail after `tries` local ACK timeouts, each counted.
fn use_up_the_retries(pair: &mut Pair, tries: u64, start_nanos: u64) {
    pair.run_until_completions(0, 1);
    let waited_nanos = pair.world.now_nanos() - start_nanos;
    let range = tries * RTO_NANOS..tries * RTO_NANOS + 20_000 * tries;
    assert!(range.contains(&waited_nanos), "{tries} tries took {waited_nanos} ns");
    pair.settle();
    assert_eq!(statuses(&pair.ends[0].sent), failed(0, WcStatus::RetryExcErr, 5));
    let counters = pair.counters(0);
    assert_eq!((counters.local_ack_timeout_err, counters.retry_exceeded_err), (tries, 1));
}

#[test]
fn a_mute_peer_exhausts_the_retries_and_the_rest_is_flushed_in_order() {
    for (link, retry_count) in [(0, 0), (0, 1), (0, 7), (1, 3)] {
        let mut pair = Pair::new(&PairConfig::of(ConnAttr { retry_count, timeout: TIMEOUT, ..conn() }));
        pair.cut(link);
        let start_nanos = pair.world.now_nanos();
        (0..5).for_each(|n| pair.post_send(0, n, Op::Write, 3_000));
        pair.post_recv(0, 90, 10);
        pair.post_recv(0, 91, 10);
        let tries = u64::from(retry_count) + 1;
        use_up_the_retries(&mut pair, tries, start_nanos);
        let flushed = [(90, WcStatus::WrFlushErr), (91, WcStatus::WrFlushErr)];
        assert_eq!(statuses(&pair.ends[0].received), flushed);
        assert_eq!(pair.left(0), 15 * tries, "five messages of three packets each time");
        assert_eq!((pair.state(0), pair.state(1)), (Some(QpState::Err), Some(QpState::Rts)));
    }
}

#[test]
fn a_mute_peer_exhausts_the_retries_of_adaptive_recovery_too() {
    let selective = RecoveryScheme::SelectiveRepeat { window_pkts: 64 };
    let cases = [(0, 0), (0, 7), (1, 3)].map(|case| (selective, case));
    let improved = cases.map(|(_, case)| (RecoveryScheme::ImprovedGoBackN, case));
    for (recovery, (link, retry_count)) in cases.into_iter().chain(improved) {
        let config = PairConfig::of(ConnAttr { recovery, retry_count, timeout: TIMEOUT, ..conn() });
        let mut pair = Pair::new(&config);
        pair.cut(link);
        let start_nanos = pair.world.now_nanos();
        (0..5).for_each(|n| pair.post_send(0, n, Op::Write, 3_000));
        let tries = u64::from(retry_count) + 1;
        use_up_the_retries(&mut pair, tries, start_nanos);
    }
}

#[test]
fn what_is_posted_in_error_is_flushed_too_however_much() {
    let mut pair = Pair::new(&PairConfig { depth: 200, cq_depth: 400, ..PairConfig::default() });
    (0..100).for_each(|n| pair.post_recv(0, n, 10));
    pair.cut(0);
    (0..150).for_each(|n| pair.post_send(0, n, Op::Write, 10));
    pair.run_until_completions(0, 150);
    assert_eq!(statuses(&pair.ends[0].sent), failed(0, WcStatus::RetryExcErr, 150));
    (150..300).for_each(|n| pair.post_send(0, n, Op::Write, 10));
    (100..200).for_each(|n| pair.post_recv(0, n, 10));
    pair.settle();
    let flushes = |from, to| (from..to).map(|n| (n, WcStatus::WrFlushErr)).collect::<Vec<_>>();
    assert_eq!(statuses(&pair.ends[0].sent)[150..], flushes(150, 300));
    assert_eq!(statuses(&pair.ends[0].received), flushes(0, 200));
}

#[test]
fn receivers_that_are_never_ready_exhaust_the_rnr_retries() {
    for rnr_retry in [0, 1, 6] {
        let mut pair = Pair::new(&PairConfig::of(ConnAttr { rnr_retry, min_rnr_timer: 12, ..conn() }));
        pair.post_send(0, 0, Op::Write, 100);
        pair.post_send(0, 1, Op::Send, 3_000);
        pair.post_send(0, 2, Op::Write, 100);
        let start_nanos = pair.world.now_nanos();
        pair.run_until_completions(0, 3);
        let waited_nanos = pair.world.now_nanos() - start_nanos;
        // Code 12 is 0.64 ms.
        let waits = u64::from(rnr_retry);
        let range = waits * 640_000..waits * 660_000 + 20_000;
        assert!(range.contains(&waited_nanos), "{waits} waits took {waited_nanos} ns");
        let mut expected = succeeded(1);
        expected.extend(failed(1, WcStatus::RnrRetryExcErr, 2));
        assert_eq!(statuses(&pair.ends[0].sent), expected);
        let counters = pair.counters(0);
        assert_eq!((counters.rcvd_rnr_err, counters.retry_rnr_exceeded_err), (waits + 1, 1));
        assert_eq!(pair.counters(1).out_of_buffer, waits + 1);
    }
}

#[test]
fn seven_rnr_retries_are_for_ever() {
    let mut pair = Pair::new(&PairConfig::of(ConnAttr { rnr_retry: 7, min_rnr_timer: 1, ..conn() }));
    pair.post_send(0, 0, Op::Send, 3_000);
    let until_nanos = pair.world.now_nanos() + 10_000_000;
    while pair.world.now_nanos() < until_nanos {
        pair.world.step(Some(until_nanos));
    }
    assert!(pair.counters(0).rcvd_rnr_err > 100);
    pair.post_recv(1, 7, 3_000);
    pair.run_until_completions(0, 1);
    assert_eq!(statuses(&pair.ends[0].sent), succeeded(1));
    assert_eq!(statuses(&pair.ends[1].received), [(7, WcStatus::Success)]);
    assert_eq!(pair.counters(0).local_ack_timeout_err, 0);
}

#[test]
fn progress_refills_the_retries() {
    for (op, link) in [(Op::Write, 0), (Op::Read, 1)] {
        let congestion = Some(CongestionScheme::Window { window_pkts: 1 });
        let mut pair = Pair::new(&PairConfig::of(ConnAttr { retry_count: 1, congestion, ..conn() }));
        // Each packet is lost once and arrives the second time.
        let lost =
            (0..20).map(|n| TapeEntry { link: LinkId(link), frame: 2 * n, impairment: Impairment::Drop });
        pair.set_tape(&Tape(lost.collect()));
        (0..10).for_each(|n| pair.post_send(0, n, op, 10));
        pair.run_until_completions(0, 10);
        assert_eq!(statuses(&pair.ends[0].sent), succeeded(10));
        assert_eq!(pair.counters(0).local_ack_timeout_err, 10);
    }
}

#[test]
fn progress_refills_the_rnr_retries() {
    let mut pair = Pair::new(&PairConfig::of(ConnAttr { rnr_retry: 1, min_rnr_timer: 12, ..conn() }));
    (0..5).for_each(|n| pair.post_send(0, n, Op::Send, 3_000));
    for n in 0..5 {
        while pair.counters(1).out_of_buffer <= n {
            pair.world.step(None);
        }
        pair.post_recv(1, n, 3_000);
    }
    pair.run_until_completions(0, 5);
    assert_eq!(statuses(&pair.ends[0].sent), succeeded(5));
}

#[test]
fn an_rnr_nak_that_comes_twice_counts_once() {
    let mut pair = Pair::new(&PairConfig::of(ConnAttr { rnr_retry: 1, min_rnr_timer: 12, ..conn() }));
    pair.set_tape(&Tape(vec![TapeEntry { link: LinkId(1), frame: 0, impairment: Impairment::Duplicate }]));
    pair.post_send(0, 0, Op::Send, 3_000);
    while pair.counters(0).rcvd_rnr_err < 2 {
        pair.world.step(None);
    }
    pair.post_recv(1, 0, 3_000);
    pair.run_until_completions(0, 1);
    assert_eq!(statuses(&pair.ends[0].sent), succeeded(1));
}

/// A request that the peer must refuse, and how.
struct Refused {
    what: &'static str,
    qp_access: Access,
    memory_access: Access,
    op: fn(u64, RKey) -> SendOp,
    status: WcStatus,
}

#[test]
fn requests_without_a_right_are_refused_and_touch_nothing() {
    let (no_write, no_read) =
        (Access::LOCAL_WRITE | Access::REMOTE_READ, Access::LOCAL_WRITE | Access::REMOTE_WRITE);
    let write = |remote_addr, rkey| SendOp::Write { remote_addr, rkey };
    let read = |remote_addr, rkey| SendOp::Read { remote_addr, rkey };
    let all = Access::ALL;
    let cases = [
        Refused {
            what: "a WRITE with a wrong key",
            qp_access: all,
            memory_access: all,
            op: |remote_addr, rkey| SendOp::Write { remote_addr, rkey: RKey(rkey.0 ^ 0x8000_0000) },
            status: WcStatus::RemAccessErr,
        },
        Refused {
            what: "a READ with a wrong key",
            qp_access: all,
            memory_access: all,
            op: |remote_addr, rkey| SendOp::Read { remote_addr, rkey: RKey(rkey.0 ^ 1) },
            status: WcStatus::RemAccessErr,
        },
        Refused {
            what: "a WRITE that ends one byte after the region",
            qp_access: all,
            memory_access: all,
            op: |remote_addr, rkey| SendOp::Write { remote_addr: remote_addr + 1, rkey },
            status: WcStatus::RemAccessErr,
        },
        Refused {
            what: "a READ that begins one byte before the region",
            qp_access: all,
            memory_access: all,
            op: |remote_addr, rkey| SendOp::Read { remote_addr: remote_addr - 1, rkey },
            status: WcStatus::RemAccessErr,
        },
        Refused {
            what: "a WRITE to a region that is read only",
            qp_access: all,
            memory_access: no_write,
            op: write,
            status: WcStatus::RemAccessErr,
        },
        Refused {
            what: "a READ of a region that is write only",
            qp_access: all,
            memory_access: no_read,
            op: read,
            status: WcStatus::RemAccessErr,
        },
        Refused {
            what: "a WRITE to a queue pair that takes none",
            qp_access: no_write,
            memory_access: all,
            op: write,
            status: WcStatus::RemInvReqErr,
        },
        Refused {
            what: "a READ from a queue pair that serves none",
            qp_access: no_read,
            memory_access: all,
            op: read,
            status: WcStatus::RemInvReqErr,
        },
    ];
    for case in cases {
        check_refused(&case);
    }
}

fn check_refused(case: &Refused) {
    let what = case.what;
    let mut pair = Pair::new(&PairConfig {
        memory_access: case.memory_access,
        memory_bytes: 4_000,
        ..PairConfig::of(ConnAttr { access: case.qp_access, ..conn() })
    });
    let before = [pair.bytes(0), pair.bytes(1)];
    pair.post_recv(1, 50, 10);
    let rkey = pair.ends[1].rkey;
    pair.post(0, 0, (case.op)(BASE, rkey), 4_000).expect("it can be posted");
    (1..4).for_each(|n| pair.post_send(0, n, Op::Send, 10));
    pair.run_until_completions(0, 4);
    pair.settle();
    assert_eq!(statuses(&pair.ends[0].sent), failed(0, case.status, 4), "{what}");
    assert_eq!(statuses(&pair.ends[1].received), [(50, WcStatus::WrFlushErr)], "{what}");
    assert_eq!([pair.bytes(0), pair.bytes(1)], before, "{what}");
    assert_eq!((pair.state(0), pair.state(1)), (Some(QpState::Err), Some(QpState::Err)), "{what}");
    let qpn = pair.ends[1].qp.qpn;
    let event = match case.status {
        WcStatus::RemAccessErr => Event::QpAccessError(qpn),
        _ => Event::QpRequestError(qpn),
    };
    assert_eq!(pair.events(1), [event], "{what}");
    let counters = [pair.counters(0), pair.counters(1)];
    let told = match case.status {
        WcStatus::RemAccessErr => {
            (counters[0].req_remote_access_errors, counters[1].resp_remote_access_errors)
        }
        _ => (counters[0].req_remote_invalid_request, counters[1].resp_invalid_request),
    };
    assert_eq!(told, (1, 1), "{what}");
    assert_eq!(counters[0].local_ack_timeout_err, 0, "{what}: the refusal itself must arrive");
}

#[test]
fn a_message_longer_than_its_receive_fails_at_both_ends() {
    let mut pair = Pair::new(&PairConfig::default());
    pair.post_recv(1, 7, 2_999);
    pair.post_recv(1, 8, 5_000);
    pair.post_send(0, 0, Op::Send, 3_000);
    pair.post_send(0, 1, Op::Send, 10);
    pair.run_until_completions(0, 2);
    pair.settle();
    assert_eq!(statuses(&pair.ends[0].sent), failed(0, WcStatus::RemInvReqErr, 2));
    assert_eq!(statuses(&pair.ends[1].received), failed(7, WcStatus::LocLenErr, 2));
}

#[test]
fn a_lost_refusal_is_repeated_until_it_arrives_or_the_retries_end() {
    let mut pair = Pair::new(&PairConfig::default());
    let lost =
        (0..3).map(|frame| TapeEntry { link: LinkId(1), frame, impairment: Impairment::Drop }).collect();
    pair.set_tape(&Tape(lost));
    let rkey = RKey(pair.ends[1].rkey.0 ^ 1);
    pair.post(0, 0, SendOp::Write { remote_addr: BASE, rkey }, 100).expect("it can be posted");
    pair.post_send(0, 1, Op::Write, 100);
    pair.run_until_completions(0, 2);
    pair.settle();
    // The peer is in error after its NAK and may be silent; then only the retries tell.
    let status = pair.ends[0].sent[0].status;
    assert!(matches!(status, WcStatus::RemAccessErr | WcStatus::RetryExcErr), "{status:?}");
    assert_eq!(statuses(&pair.ends[0].sent), failed(0, status, 2));
}

#[test]
fn a_bad_local_key_fails_after_its_predecessors_have_completed() {
    let mut pair = Pair::new(&PairConfig::default());
    let rkey = pair.ends[1].rkey;
    let good = pair.ends[0].lkey;
    for n in 0..5 {
        let lkey = if n == 2 { LKey(good.0 ^ 1) } else { good };
        let sges =
            [Sge { addr: BASE, len_bytes: 100, lkey: good }, Sge { addr: BASE, len_bytes: 3_000, lkey }];
        let request = SendRequest {
            wr_id: n,
            op: SendOp::Write { remote_addr: BASE, rkey },
            flags: SendFlags { signaled: n != 1, ..SendFlags::default() },
            data: SendData::Sges(&sges),
        };
        pair.ends[0].qp.send.post(&request).expect("keys are checked when they are used");
        pair.world.hosts[0].kick();
    }
    pair.settle();
    let mut expected = succeeded(1);
    expected.extend(failed(2, WcStatus::LocProtErr, 3));
    assert_eq!(statuses(&pair.ends[0].sent), expected);
}

#[test]
fn an_overflowing_completion_queue_fails_its_queue_pair() {
    let mut pair = Pair::new(&PairConfig { cq_depth: 4, ..PairConfig::default() });
    (0..8).for_each(|n| pair.post_send(0, n, Op::Write, 10));
    pair.world.settle();
    let qpn = pair.ends[0].qp.qpn;
    let events = pair.events(0);
    assert!(matches!(events[..], [Event::CqError(_), Event::QpFatal(failed)] if failed == qpn), "{events:?}");
    assert_eq!(pair.state(0), Some(QpState::Err));
    pair.take_completions();
    assert_eq!(statuses(&pair.ends[0].sent), succeeded(4), "what was written stays");
}

#[test]
fn a_peer_that_is_destroyed_is_a_peer_that_does_not_answer() {
    let config = PairConfig::of(ConnAttr { retry_count: 2, path_mtu: PathMtu::Mtu256, ..conn() });
    let mut pair = Pair::new(&config);
    pair.post_send(0, 0, Op::Read, 60_000);
    while pair.left(1) < 10 {
        pair.world.step(None);
    }
    let qpn = pair.ends[1].qp.qpn;
    pair.world.hosts[1].engine.destroy_qp(qpn).expect("nothing depends on it");
    pair.post_send(0, 1, Op::Write, 10);
    pair.run_until_completions(0, 2);
    assert_eq!(statuses(&pair.ends[0].sent), failed(0, WcStatus::RetryExcErr, 2));
    assert!(pair.world.hosts[1].engine.drop_counters().unknown_qp >= 3);
    assert_eq!(pair.state(1), None);
}

#[test]
fn a_region_that_goes_away_under_a_read_ends_the_connection() {
    let mut pair = Pair::new(&PairConfig::of(ConnAttr { path_mtu: PathMtu::Mtu256, ..conn() }));
    pair.post_send(0, 0, Op::Read, 60_000);
    while pair.left(1) < 10 {
        pair.world.step(None);
    }
    let lkey = pair.ends[1].lkey;
    pair.world.hosts[1].engine.objects().deregister(lkey).expect("it is registered");
    pair.run_until_completions(0, 1);
    pair.settle();
    let status = pair.ends[0].sent[0].status;
    assert!(matches!(status, WcStatus::RemOpErr | WcStatus::RemAccessErr), "{status:?}");
    assert_eq!(pair.state(1), Some(QpState::Err));
}

#[test]
fn a_queue_pair_put_into_error_flushes_and_one_that_is_reset_forgets() {
    for (state, expected) in [(QpState::Err, 3), (QpState::Reset, 0)] {
        let mut pair = Pair::new(&PairConfig::default());
        pair.cut(0);
        (0..3).for_each(|n| pair.post_send(0, n, Op::Send, 10));
        (0..3).for_each(|n| pair.post_recv(0, n, 10));
        assert_ne!(pair.world.step(None), Step::Idle);
        pair.set_state(0, state);
        pair.settle();
        let flushed = failed(0, WcStatus::WrFlushErr, expected);
        assert_eq!(statuses(&pair.ends[0].sent), flushed);
        assert_eq!(statuses(&pair.ends[0].received), flushed);
    }
}

#[test]
fn failed_queue_pairs_can_be_connected_anew() {
    let mut pair = Pair::new(&PairConfig::of(ConnAttr { retry_count: 0, ..conn() }));
    pair.cut(1);
    pair.post_recv(1, 0, 10);
    pair.post_send(0, 0, Op::Send, 10);
    pair.run_until_completions(0, 1);
    assert_eq!(statuses(&pair.ends[0].sent), failed(0, WcStatus::RetryExcErr, 1));
    [0, 1].into_iter().for_each(|end| pair.set_state(end, QpState::Reset));
    let rkey = pair.ends[1].rkey;
    let refused = pair.post(0, 9, SendOp::Write { remote_addr: BASE, rkey }, 10);
    assert_eq!(refused, Err(PostError::WrongState));
    pair.set_tape(&Tape::default());
    pair.connect();
    pair.post_recv(1, 1, 3_000);
    pair.post_send(0, 1, Op::Send, 3_000);
    pair.post_send(0, 2, Op::Read, 3_000);
    pair.run_until_completions(0, 3);
    assert_eq!(statuses(&pair.ends[0].sent)[1..], [(1, WcStatus::Success), (2, WcStatus::Success)]);
    assert_eq!(pair.counters(0).local_ack_timeout_err, 1, "the one before");
}

#[test]
fn a_drained_send_queue_finishes_what_it_began_and_no_more() {
    let mut pair = Pair::new(&PairConfig::default());
    pair.post_send(0, 0, Op::Write, 30_000);
    (0..2).for_each(|_| assert_ne!(pair.world.step(None), Step::Idle));
    pair.set_state(0, QpState::Sqd);
    pair.post_send(0, 1, Op::Write, 10);
    pair.settle();
    assert_eq!(statuses(&pair.ends[0].sent), succeeded(1));
    assert_eq!(pair.events(0), [Event::SendQueueDrained(pair.ends[0].qp.qpn)]);
    pair.set_state(0, QpState::Rts);
    pair.settle();
    assert_eq!(statuses(&pair.ends[0].sent), succeeded(2));
}
