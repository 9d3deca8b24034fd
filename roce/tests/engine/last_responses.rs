//! Responses that are due when the application destroys a queue pair, or changes its state to ERR or RESET.

use crate::common::{self, End, pair, pair_over, ports_of};
use roce::engine::Progress;
use roce::engine::limits::{TX_BUDGET_PKTS, TX_QUANTUM_PKTS};
use roce::port::Port;
use roce::qp::{PathMtu, QpAttr, QpState};
use roce::queue::{SendOp, WcStatus};

/// Ways in which an application ends the use of a queue pair.
#[derive(Clone, Copy, Debug)]
enum Ending {
    Destroy,
    Modify(QpState),
}

const ENDS: [Ending; 3] = [Ending::Destroy, Ending::Modify(QpState::Err), Ending::Modify(QpState::Reset)];

impl Ending {
    fn of<P: Port>(self, end: &mut End<P>) {
        match self {
            Ending::Destroy => end.engine.destroy_qp(end.qpn).unwrap(),
            Ending::Modify(state) => {
                end.engine.modify_qp(end.qpn, &QpAttr { state: Some(state), ..QpAttr::default() }).unwrap();
            }
        }
    }
}

/// Polls 100 times. Returns the number of packets sent by these polls.
fn sent_later<P: Port>(end: &mut End<P>) -> u32 {
    let polls = (0..100).map(|nanos| end.poll(nanos)).collect::<Vec<Progress>>();
    polls.iter().map(|progress| progress.tx_pkts).sum()
}

fn statuses(end: &mut End) -> Vec<WcStatus> {
    end.completions().iter().map(|cqe| cqe.status).collect()
}

#[test]
fn a_delayed_ack_is_sent_before_the_queue_pair_ends() {
    for ending in ENDS {
        let (mut a, mut b) = pair(PathMtu::Mtu1024, 4096, true);
        b.post_recv(1, b.sge(0, 8));
        a.post(2, SendOp::Send, a.sge(0, 8));
        a.poll(0);
        b.poll(0);
        assert_eq!(statuses(&mut b), [WcStatus::Success]);
        ending.of(&mut b);
        a.poll(1);
        assert_eq!(statuses(&mut a), [WcStatus::Success], "{ending:?}");
        assert_eq!(sent_later(&mut b), 0, "{ending:?}");
        assert_eq!(b.engine.counters().sent_pkts, 1, "{ending:?}: one ACK");
    }
}

#[test]
fn an_rnr_nak_is_sent_before_the_queue_pair_ends() {
    for ending in ENDS {
        // Until `a` receives the WRITE, the port of `b` has no room for the RNR NAK.
        let (port_a, port_b) = ports_of(1);
        let (mut a, mut b) = pair_over(port_a, port_b, 4096, true, &common::conn(PathMtu::Mtu1024));
        let (remote_addr, rkey) = (a.memory.addr(), a.rkey);
        b.post(1, SendOp::Write { remote_addr, rkey }, b.sge(0, 8));
        b.poll(0);
        a.post(2, SendOp::Send, a.sge(0, 8));
        a.engine.push(roce::start::instant());
        b.poll(0);
        a.poll(1);
        ending.of(&mut b);
        a.poll(2);
        assert_eq!(b.engine.counters().sent_pkts, 2, "{ending:?}: the WRITE and the RNR NAK");
        assert_eq!(sent_later(&mut b), 0, "{ending:?}");
    }
}

#[test]
fn read_responses_are_sent_up_to_a_bound_before_the_queue_pair_ends() {
    const RESPONSES: u32 = 200;
    for ending in ENDS {
        let (mut a, mut b) = pair(PathMtu::Mtu256, 256 * RESPONSES as usize, true);
        let (remote_addr, rkey) = (b.memory.addr(), b.rkey);
        a.post(1, SendOp::Read { remote_addr, rkey }, a.sge(0, 256 * RESPONSES));
        a.poll(0);
        assert_eq!(b.poll(0).tx_pkts, TX_BUDGET_PKTS);
        ending.of(&mut b);
        assert_eq!(sent_later(&mut b), 0, "{ending:?}");
        let sent = b.engine.counters().sent_pkts;
        assert_eq!(sent, u64::from(TX_BUDGET_PKTS + TX_QUANTUM_PKTS), "{ending:?}");
    }
}

#[test]
fn a_full_port_does_not_delay_the_end_of_a_queue_pair() {
    for ending in ENDS {
        let (port_a, port_b) = ports_of(4);
        let (mut a, mut b) = pair_over(port_a, port_b, 4096, true, &common::conn(PathMtu::Mtu256));
        let (remote_addr, rkey) = (b.memory.addr(), b.rkey);
        a.post(1, SendOp::Read { remote_addr, rkey }, a.sge(0, 4096));
        a.poll(0);
        b.poll(0);
        ending.of(&mut b);
        a.poll(1);
        assert_eq!(sent_later(&mut b), 0, "{ending:?}");
        assert_eq!(b.engine.counters().sent_pkts, 4, "{ending:?}");
    }
}
