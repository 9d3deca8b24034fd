//! Work requests that fail before their first packet is sent; earlier work requests complete.

use crate::common::{End, pair, settle, statuses};
use roce::port::Port;
use roce::qp::{PathMtu, QpAttr, QpState};
use roce::queue::{SendOp, Sge, WcStatus};
use roce::start;

/// Drops all frames in flight to `end`, and returns their number.
fn lose(end: &mut End) -> usize {
    end.engine.port_mut().rx_burst(&mut Vec::new(), usize::MAX)
}

#[test]
fn a_packet_before_a_bad_local_key_is_retransmitted_when_lost() {
    let (mut a, mut b) = pair(PathMtu::Mtu1024, 8192, true);
    let (remote_addr, rkey) = (b.memory.addr(), b.rkey);
    a.memory.write(0, b"kept").unwrap();
    a.post(1, SendOp::Write { remote_addr, rkey }, a.sge(0, 4));
    let bad = Sge { lkey: roce::id::LKey(1), ..a.sge(0, 8) };
    a.post(2, SendOp::Write { remote_addr, rkey }, bad);
    a.poll(0);
    assert_eq!(lose(&mut b), 1);
    a.engine.settle_timers();
    let timeout_nanos = a.engine.next_deadline().unwrap().nanos_since(start::instant());
    a.poll(timeout_nanos);
    b.poll(timeout_nanos);
    // `b` sends the ACK in its second poll, because it delays an ACK by one poll.
    b.poll(timeout_nanos);
    a.poll(timeout_nanos);
    assert_eq!(statuses(&mut a), [(1, WcStatus::Success), (2, WcStatus::LocProtErr)]);
    assert_eq!((a.engine.counters().local_protection_err, a.engine.qp_errors()), (1, 1));
    let mut bytes = [0; 4];
    b.memory.read(0, &mut bytes).unwrap();
    assert_eq!(&bytes, b"kept");
}

#[test]
fn a_read_that_may_never_be_sent_fails_instead_of_waiting() {
    let (mut a, mut b) = pair(PathMtu::Mtu1024, 8192, true);
    let (remote_addr, rkey) = (b.memory.addr(), b.rkey);
    for attr in [
        QpAttr { state: Some(QpState::Sqd), ..QpAttr::default() },
        QpAttr { max_rd_atomic: Some(0), ..QpAttr::default() },
        QpAttr { state: Some(QpState::Rts), ..QpAttr::default() },
    ] {
        a.engine.modify_qp(a.qpn, &attr).unwrap();
    }
    a.post(1, SendOp::Write { remote_addr, rkey }, a.sge(0, 8));
    a.post(2, SendOp::Read { remote_addr, rkey }, a.sge(0, 8));
    a.post(3, SendOp::Write { remote_addr, rkey }, a.sge(0, 8));
    settle(&mut a, &mut b);
    assert_eq!(
        statuses(&mut a),
        [(1, WcStatus::Success), (2, WcStatus::LocQpOpErr), (3, WcStatus::WrFlushErr)]
    );
}
