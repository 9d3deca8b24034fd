//! The reaction of both ends to one event: the impairment of a packet of a message. The time of every packet sent is
//! recorded. The figures are those of Lumina (Yu et al., "Understanding the Micro-Behaviors of Hardware Offloaded Network
//! Stacks with Lumina", SIGCOMM'23).
//!
//! ```text
//!   requester   n      n+1 ...                      n retransmitted
//!               |event  \                    report ^  |
//!   responder   x        '-> arrives, report sent --'  '-> arrives
//!               |--------- retransmission -------------|
//!                        |- generation -|     |reaction|      propagation between them
//! ```
//! READs swap the roles: the responses carry the payload, and the report is the READ request that
//! requests the lost response.

use std::cell::RefCell;
use std::rc::Rc;

use netsim::{Impairment, LinkId, Sighting, Tape, TapeEntry};
use roce::psn::Psn;
use roce::wire::{Opcode, Operation, Packet, Syndrome};

use super::plan::Point;
use super::results::{self, PointResult};
use super::spec::{Op, Workload};
use super::stream::Pair;
use crate::world::Step;

/// Number of messages sent before the message with the event.
const WARM_UP_MESSAGES: u32 = 8;
/// Time limit of one message, retries included.
const LIMIT_NANOS: u64 = 60_000_000_000;
const NANOS_PER_US: f64 = 1e3;

/// A packet that left a host.
#[derive(Clone, Copy, Debug)]
struct Seen {
    nanos: u64,
    link: usize,
    psn: Psn,
    reports_loss: bool,
    is_cnp: bool,
    is_read_request: bool,
}

impl Seen {
    fn of(sighting: &Sighting<'_>) -> Option<Seen> {
        let packet = Packet::parse(sighting.frame).ok()?;
        let is_nak = packet.aeth().is_some_and(|aeth| matches!(aeth.syndrome, Syndrome::Nak(_)));
        Some(Seen {
            nanos: sighting.nanos,
            link: sighting.link.0,
            psn: packet.bth.psn,
            reports_loss: is_nak || packet.bth.opcode == Opcode::RC_SELECTIVE_ACKNOWLEDGE,
            is_cnp: packet.bth.opcode == Opcode::CNP,
            is_read_request: packet.info.operation == Operation::ReadRequest,
        })
    }
}

/// Sends one message without the event, then one message with the event.
pub(super) fn run(point: &Point) -> Result<PointResult, String> {
    let Workload::Reaction { op, action, micros, behind, packet, .. } = point.setup.workload else {
        return Err("a reaction was expected".to_owned());
    };
    let mut result = PointResult::of(point);
    let (clean_nanos, _) = message(point, None, &mut PointResult::of(point))?;
    let data_link = usize::from(op == Op::Read);
    let impairment = action.impairment(micros, behind)?;
    let event = TapeEntry { link: LinkId(data_link), frame: u64::from(packet) - 1, impairment };
    let (nanos, seen) = message(point, Some(event), &mut result)?;
    let micros = |from: u64, to: u64| (to as f64 - from as f64) / NANOS_PER_US;
    result.set(results::COST, micros(clean_nanos, nanos));
    let propagation_nanos = point.setup.link.config().propagation_nanos;
    judge(&mut result, &seen, event, propagation_nanos);
    Ok(result)
}

/// Sets the figures of the report and the retransmission that followed `event`.
fn judge(result: &mut PointResult, seen: &[Seen], event: TapeEntry, propagation_nanos: u64) {
    let micros = |from: u64, to: u64| (to as f64 - from as f64) / NANOS_PER_US;
    let link = event.link.0;
    let frame = usize::try_from(event.frame).unwrap_or(usize::MAX);
    let Some(hit) = seen.iter().filter(|seen| seen.link == link).nth(frame).copied() else { return };
    let is_mark = event.impairment == Impairment::MarkCe;
    let again = seen.iter().find(|seen| seen.link == link && seen.nanos > hit.nanos && seen.psn == hit.psn);
    // The responder detects a loss by the next packet of a higher PSN, and a CE mark by the marked packet itself.
    let newer = |seen: &&Seen| {
        seen.link == link && seen.nanos > hit.nanos && seen.psn.offset_from(hit.psn).is_some_and(|at| at > 0)
    };
    let trigger = if is_mark { Some(&hit) } else { seen.iter().find(newer) };
    let arrived = trigger.map(|trigger| trigger.nanos + propagation_nanos);
    let report = arrived.and_then(|arrived| {
        seen.iter().find(|seen| {
            let says_so =
                if is_mark { seen.is_cnp } else { seen.reports_loss || (link == 1 && seen.is_read_request) };
            seen.link != link && seen.nanos >= arrived && says_so
        })
    });
    let report = report.filter(|report| again.is_none_or(|again| report.nanos < again.nanos));
    if let (Some(arrived), Some(report)) = (arrived, report) {
        result.set(results::NAK_GENERATION, micros(arrived, report.nanos));
        if let Some(again) = again {
            result.set(results::NAK_REACTION, micros(report.nanos + propagation_nanos, again.nanos));
        }
    }
    if let Some(again) = again {
        result.set(results::RETRANSMISSION, micros(hit.nanos, again.nanos));
        result.set(results::BY_TIMEOUT, f64::from(u8::from(report.is_none())));
    }
}

/// Sends the warm-up messages, then one message. Returns the nanoseconds and packets that this message took.
fn message(
    point: &Point,
    event: Option<TapeEntry>,
    result: &mut PointResult,
) -> Result<(u64, Vec<Seen>), String> {
    let Workload::Reaction { op, packets, .. } = point.setup.workload else {
        return Err("a reaction was expected".to_owned());
    };
    let message_bytes = packets * point.setup.transport.path_mtu.bytes();
    let mut pair = Pair::new(&point.setup, op, message_bytes, 1, point.seed);
    // The warm-up messages give the requester samples of the round trip, as in a connection in use.
    for number in 0..WARM_UP_MESSAGES {
        complete(&mut pair, number)?;
    }
    pair.world.settle();
    let mut before = PointResult::of(point);
    pair.recovery_figures(&mut before);
    let seen = Rc::new(RefCell::new(Vec::new()));
    let recorded = seen.clone();
    {
        let mut network = pair.world.network.borrow_mut();
        network.set_tape(&Tape(event.into_iter().collect()));
        network.set_recorder(move |sighting| recorded.borrow_mut().extend(Seen::of(&sighting)));
    }
    let start_nanos = pair.world.now_nanos();
    complete(&mut pair, WARM_UP_MESSAGES)?;
    let nanos = pair.world.now_nanos() - start_nanos;
    pair.recovery_figures(result);
    for ((_, count), (_, warm_up)) in result.figures.iter_mut().zip(&before.figures) {
        *count -= warm_up;
    }
    let seen = seen.take();
    Ok((nanos, seen))
}

fn complete(pair: &mut Pair, number: u32) -> Result<(), String> {
    let limit_nanos = pair.world.now_nanos() + LIMIT_NANOS;
    pair.post(number);
    let mut completed = 0;
    while completed == 0 {
        let step = pair.world.step(Some(limit_nanos));
        completed = pair.completed().map_err(|status| format!("the queue pair failed: {status:?}"))?;
        if completed == 0 && step != Step::Polled {
            return Err("the message never completed".to_owned());
        }
    }
    Ok(())
}
