//! Property test of the outstanding work requests against a model: a list of work requests of 0 PSNs (local
//! operations), 1 PSN and many PSNs.

use super::completions::SendCompletions;
use super::outstanding::{Kind, Outstanding};
use crate::counters::QpCounters;
use crate::id::{LKey, Qpn, RKey};
use crate::psn::Psn;
use crate::queue::{
    CqId, CqTable, Doorbells, Posting, SendData, SendFlags, SendOp, SendPoster, SendQueueSize, SendRequest,
    Sge, SharedCq, WcOpcode, send_queue,
};
use crate::recovery::Requests;
use crate::wire::PrecedingReads;
use proptest::prelude::*;
use std::collections::VecDeque;
use std::sync::Arc;

const MTU_BYTES: u32 = 256;
const DEPTH: u32 = 24;
/// First PSN, a few PSNs before the wrap.
const FIRST: Psn = Psn::new(0xFF_FFF0);

#[derive(Clone, Copy, Debug)]
struct Wr {
    wr_id: u64,
    packets: u32,
    is_read: bool,
    /// Number of PSNs assigned to earlier work requests; `None` until PSNs are assigned to this work request.
    first: Option<u32>,
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Post {
        packets: u32,
        is_read: bool,
    },
    Assign,
    /// Acknowledges the fraction `.0` / 256 of the unacknowledged PSNs.
    Ack(u32),
    /// Looks up the PSN at the fraction `.0` / 256 of the assigned PSNs. Also looks up the first PSN of each work
    /// request with assigned PSNs, and the PSN after the last PSN of this work request.
    Find(u32),
}

fn steps() -> impl Strategy<Value = Step> {
    let packets = prop_oneof![4 => Just(0), 3 => Just(1), 2 => 2u32..6, 1 => 100u32..300];
    prop_oneof![
        4 => (packets, any::<bool>()).prop_map(|(packets, is_read)| Step::Post { packets, is_read }),
        4 => Just(Step::Assign),
        3 => prop_oneof![Just(0), Just(256), 0u32..=256].prop_map(Step::Ack),
        3 => (0u32..=256).prop_map(Step::Find),
    ]
}

fn post(poster: &mut SendPoster, wr: &Wr) {
    let (remote_addr, rkey) = (0, RKey(1));
    let (op, len_bytes) = match wr {
        Wr { packets: 0, .. } => (SendOp::LocalInvalidate { rkey }, 0),
        Wr { is_read: true, packets, .. } => (SendOp::Read { remote_addr, rkey }, packets * MTU_BYTES),
        Wr { packets, .. } => (SendOp::Send, packets * MTU_BYTES),
    };
    let sges = [Sge { addr: 0, len_bytes, lkey: LKey(1) }];
    let data = SendData::Sges(if wr.packets == 0 { &[] } else { &sges });
    let request = SendRequest { wr_id: wr.wr_id, op, flags: SendFlags::default(), data };
    poster.post(&request).expect("the model has room");
}

/// The work requests not completed, oldest first. `una`: una, and `end`: the first PSN that is assigned to no
/// work request yet, both as numbers of PSNs since [`FIRST`].
#[derive(Debug, Default)]
struct Model {
    wrs: VecDeque<Wr>,
    una: u32,
    end: u32,
    /// For each PSN from [`FIRST`] to below `end`: whether the PSN belongs to a READ.
    reads: Vec<bool>,
}

impl Model {
    fn assigned(&self) -> impl Iterator<Item = (u32, Wr, u32)> + '_ {
        let spans = (0..).zip(&self.wrs);
        spans.map_while(|(index, wr)| Some((index, *wr, wr.first?)))
    }

    /// Finds the PSN at a distance of `at` from the first PSN. Returns the index of its work request, and the index of
    /// the PSN in this work request.
    fn find(&self, at: u32) -> Option<(u32, u32)> {
        let (index, _, first) =
            self.assigned().find(|(_, wr, first)| (*first..first + wr.packets).contains(&at))?;
        Some((index, at - first))
    }

    /// Returns the number of consecutive PSNs of READs directly below `at`, from `from` on.
    fn reads_below(&self, at: u32, from: u32) -> u32 {
        let below = self.reads[from as usize..at as usize].iter().rev();
        below.take_while(|is_read| **is_read).count() as u32
    }

    fn first_read(&self) -> Option<u32> {
        let (_, _, first) = self.assigned().find(|(_, wr, _)| wr.is_read)?;
        Some(first.max(self.una)).filter(|first| *first < self.end)
    }

    /// Removes and returns the work requests that are acknowledged.
    fn complete(&mut self) -> Vec<Wr> {
        let count = self.assigned().take_while(|(_, wr, first)| first + wr.packets <= self.una).count();
        self.wrs.drain(..count).collect()
    }
}

fn check_find(outstanding: &mut Outstanding, model: &Model, at: u32) -> Result<(), TestCaseError> {
    let place = outstanding.find(FIRST.plus(at));
    prop_assert_eq!(place.map(|place| (place.index, place.packet)), model.find(at), "PSN {}", at);
    prop_assert_eq!(outstanding.request_at(FIRST.plus(at)), place.map(|place| place.span));
    if place.is_some_and(|place| place.span.is_read) {
        // PSNs of work requests that had completed when the PSNs of the READ were assigned are not counted.
        let oldest = model.assigned().next().map_or(0, |(_, _, first)| first);
        let least = PrecedingReads::from_pkts(model.reads_below(at, oldest)).pkts();
        let pkts = outstanding.preceding_reads(FIRST.plus(at)).pkts();
        prop_assert!((least..=model.reads_below(at, 0)).contains(&pkts), "PSN {}: {}", at, pkts);
    }
    Ok(())
}

proptest! {
    #[test]
    fn work_requests_complete_in_order(steps in proptest::collection::vec(steps(), 1..150)) {
        let size = SendQueueSize { depth: DEPTH, max_sges: 1, max_inline_bytes: 0 };
        let (mut poster, queue) = send_queue(size, true, Arc::new(Doorbells::new(1)), 0);
        queue.set_posting(Posting::Queued);
        let mut outstanding = Outstanding::new(queue, FIRST);
        let (shared_cq, mut poller) = SharedCq::new(CqId(1), DEPTH);
        let mut cqs = CqTable::new();
        let cq = cqs.attach(&shared_cq);
        let (mut counters, mut sends) = (QpCounters::default(), 0);
        let mut model = Model::default();
        for (wr_id, step) in (0..).zip(steps) {
            match step {
                Step::Post { packets, is_read } if (model.wrs.len() as u32) < DEPTH => {
                    let wr = Wr { wr_id, packets, is_read: is_read && packets > 0, first: None };
                    post(&mut poster, &wr);
                    model.wrs.push_back(wr);
                }
                Step::Post { .. } => {}
                Step::Assign => {
                    let Some(wr) = model.wrs.iter_mut().find(|wr| wr.first.is_none()) else { continue };
                    let next = outstanding.next_unassigned().expect("posted");
                    prop_assert_eq!((next.wr_id, next.op.is_local()), (wr.wr_id, wr.packets == 0));
                    let (len_bytes, kind) = (next.list.len_bytes, Kind { is_read: wr.is_read, takes_receive: false });
                    let unacked = model.end - model.una;
                    let place = match wr.packets {
                        0 => outstanding.assign_local(),
                        _ => outstanding.assign(len_bytes, kind, unacked, MTU_BYTES).expect("few PSNs"),
                    };
                    prop_assert_eq!((place.span.first, place.span.packets), (FIRST.plus(model.end), wr.packets));
                    wr.first = Some(model.end);
                    model.end += wr.packets;
                    model.reads.resize(model.end as usize, wr.is_read);
                }
                Step::Ack(part) => {
                    model.una += (model.end - model.una) * part / 256;
                    let mut completions =
                        SendCompletions { cqs: &mut cqs, cq, qpn: Qpn::new(1), counters: &mut counters };
                    completions.complete_before(&mut outstanding, FIRST.plus(model.una));
                    for wr in model.complete() {
                        let opcode = match wr {
                            Wr { packets: 0, .. } => WcOpcode::LocalInvalidate,
                            Wr { is_read: true, .. } => WcOpcode::RdmaRead,
                            _ => WcOpcode::Send,
                        };
                        prop_assert_eq!(poller.pop().map(|cqe| (cqe.wr_id, cqe.opcode)), Some((wr.wr_id, opcode)));
                        sends += u64::from(opcode == WcOpcode::Send);
                    }
                    prop_assert_eq!(poller.pop(), None);
                    prop_assert!(!outstanding.oldest_is_local(), "a local operation waits for earlier PSNs only");
                }
                Step::Find(part) => {
                    let from = model.assigned().next().map_or(model.end, |(_, _, first)| first);
                    check_find(&mut outstanding, &model, from + (model.end - from) * part / 256)?;
                    for (_, wr, first) in model.assigned() {
                        check_find(&mut outstanding, &model, first)?;
                        check_find(&mut outstanding, &model, first + wr.packets)?;
                    }
                }
            }
            let reads = model.assigned().filter(|(_, wr, _)| wr.is_read).count();
            prop_assert_eq!(outstanding.assigned() as usize, model.assigned().count());
            prop_assert_eq!(outstanding.assigned_reads() as usize, reads);
            prop_assert_eq!(outstanding.end(), FIRST.plus(model.end));
            prop_assert_eq!(outstanding.is_idle(), model.wrs.is_empty());
            let (una, end) = (FIRST.plus(model.una), FIRST.plus(model.end));
            prop_assert_eq!(outstanding.first_read_before(una, end), model.first_read().map(|at| FIRST.plus(at)));
        }
        prop_assert_eq!(counters.rdma_sends, sends);
    }
}
