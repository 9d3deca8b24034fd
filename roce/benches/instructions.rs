//! Instruction counts of each processing step of a packet, by callgrind. Unlike times, counts are equal in every run.
//! `cargo xtask instructions` runs this bench and compares the counts with `instructions.txt`.
//!
//! Flows are boxed, otherwise the moves of an engine into and out of a benchmark would be counted.

#![allow(missing_docs)] // of items that the macros generate

mod flow;

use flow::flood::{Flood, LinkJunk};
use flow::lossy::Lossy;
use flow::many::Many;
use flow::{BATCH_PKTS, Case, Flow, Junk, Least};
use gungraun::{Callgrind, LibraryBenchmarkConfig, library_benchmark, library_benchmark_group, main};
use roce::id::RKey;
use roce::qp::{PathMtu, segment};
use roce::queue::SendOp;
use roce::wire::{Packet, icrc};
use std::hint::black_box;

// Every function repeats its work `BATCH_PKTS` times, so that the cost of the call is negligible.

#[library_benchmark]
#[bench::bytes_64(flow::frame(64))]
#[bench::bytes_4k(flow::frame(4096))]
#[bench::ipv6_64(flow::ipv6_frame(64))]
fn parse(frame: Vec<u8>) -> Vec<u8> {
    for _ in 0..BATCH_PKTS {
        black_box(Packet::parse(black_box(&frame)).is_ok());
    }
    frame
}

#[library_benchmark]
#[bench::bytes_64(flow::frame(64))]
#[bench::bytes_4k(flow::frame(4096))]
#[bench::ipv6_64(flow::ipv6_frame(64))]
fn check_icrc(frame: Vec<u8>) -> Vec<u8> {
    for _ in 0..BATCH_PKTS {
        black_box(icrc::compute(black_box(&frame[14..frame.len() - 4])));
    }
    frame
}

#[library_benchmark]
#[bench::write_64k(SendOp::Write { remote_addr: 0x1000, rkey: RKey(7) })]
fn segment_message(op: SendOp) -> SendOp {
    for index in 0..BATCH_PKTS {
        black_box(segment(black_box(&op), black_box(128 << 10), index, black_box(4096), false));
    }
    op
}

#[library_benchmark]
#[bench::bytes_64(Least::new(Case::Send64))]
#[bench::bytes_4k(Least::new(Case::Send4K))]
fn copy_and_icrc(mut least: Least) -> Least {
    least.send();
    least
}

#[library_benchmark]
#[bench::one_qp(Flow::new(Case::Send64))]
#[bench::qps_in_error(Flow::beside_errors())]
fn idle_poll(mut flow: Box<Flow>) -> Box<Flow> {
    (0..BATCH_PKTS).for_each(|_| flow.idle_poll());
    flow
}

#[library_benchmark]
#[bench::send_64(Flow::new(Case::Send64))]
#[bench::send_4k(Flow::new(Case::Send4K))]
#[bench::write_64k(Flow::new(Case::Write64K))]
#[bench::read_64k(Flow::new(Case::Read64K))]
fn requester_post_to_wire(mut flow: Box<Flow>) -> Box<Flow> {
    flow.post_to_wire();
    flow
}

fn posted(case: Case) -> Box<Flow> {
    let mut flow = Flow::new(case);
    flow.post_to_wire();
    flow
}

#[library_benchmark]
#[bench::send_64(posted(Case::Send64))]
#[bench::send_4k(posted(Case::Send4K))]
#[bench::write_64k(posted(Case::Write64K))]
#[bench::read_64k(posted(Case::Read64K))]
fn responder_wire_to_completion(mut flow: Box<Flow>) -> Box<Flow> {
    flow.wire_to_completion();
    flow
}

fn lost(mut flow: Box<Flow>) -> Box<Flow> {
    flow.post_behind_a_loss();
    flow
}

#[library_benchmark]
#[bench::send_64(lost(Flow::selective(Case::Send64)))]
#[bench::send_4k(lost(Flow::selective(Case::Send4K)))]
#[bench::write_64k(lost(Flow::selective(Case::Write64K)))]
#[bench::read_64(lost(Flow::selective(Case::Read64)))]
#[bench::send_64_in_order(lost(Flow::buffering(Case::Send64)))]
#[bench::send_4k_in_order(lost(Flow::buffering(Case::Send4K)))]
fn responder_behind_a_loss(mut flow: Box<Flow>) -> Box<Flow> {
    flow.wire_to_completion();
    flow
}

fn sacked(flow: Box<Flow>) -> Box<Flow> {
    let mut flow = lost(flow);
    flow.wire_to_completion();
    flow
}

#[library_benchmark]
#[bench::send_64(sacked(Flow::selective(Case::Send64)))]
#[bench::send_4k(sacked(Flow::selective(Case::Send4K)))]
#[bench::write_64k(sacked(Flow::selective(Case::Write64K)))]
#[bench::send_64_in_order(sacked(Flow::buffering(Case::Send64)))]
#[bench::send_4k_in_order(sacked(Flow::buffering(Case::Send4K)))]
fn requester_repairs_a_loss(mut flow: Box<Flow>) -> Box<Flow> {
    flow.retransmit();
    flow
}

fn response_lost(case: Case) -> Box<Flow> {
    let mut flow = Flow::selective(case);
    flow.ask_behind_a_loss();
    flow
}

#[library_benchmark]
#[bench::read_64(response_lost(Case::Read64))]
#[bench::read_64k(response_lost(Case::Read64K))]
fn requester_behind_a_loss(mut flow: Box<Flow>) -> Box<Flow> {
    flow.retransmit();
    flow
}

fn repaired(flow: Box<Flow>) -> Box<Flow> {
    let mut flow = sacked(flow);
    flow.retransmit();
    flow
}

#[library_benchmark]
#[bench::send_64(repaired(Flow::selective(Case::Send64)))]
#[bench::send_4k(repaired(Flow::selective(Case::Send4K)))]
#[bench::write_64k(repaired(Flow::selective(Case::Write64K)))]
#[bench::send_64_in_order(repaired(Flow::buffering(Case::Send64)))]
#[bench::send_4k_in_order(repaired(Flow::buffering(Case::Send4K)))]
fn responder_catches_up(mut flow: Box<Flow>) -> Box<Flow> {
    flow.wire_to_completion();
    flow
}

fn answered(mut flow: Box<Flow>) -> Box<Flow> {
    flow.post_to_wire();
    flow.wire_to_completion();
    flow
}

#[library_benchmark]
#[bench::send_64(answered(Flow::new(Case::Send64)))]
#[bench::send_4k(answered(Flow::new(Case::Send4K)))]
#[bench::write_64k(answered(Flow::new(Case::Write64K)))]
#[bench::read_64k(answered(Flow::new(Case::Read64K)))]
#[bench::selective_read_64(answered(Flow::selective(Case::Read64)))]
#[bench::selective_read_64k(answered(Flow::selective(Case::Read64K)))]
fn requester_completion(mut flow: Box<Flow>) -> Box<Flow> {
    flow.completion();
    flow
}

#[library_benchmark]
#[bench::not_roce(Flow::under(Junk::NotRoce))]
#[bench::unknown_qp(Flow::under(Junk::UnknownQp))]
#[bench::qp_state(Flow::under(Junk::QpState))]
#[bench::wrong_pkey(Flow::under(Junk::PKey))]
#[bench::wrong_source(Flow::under(Junk::Source))]
#[bench::wrong_source_mac(Flow::under(Junk::SourceMac))]
#[bench::wrong_source_port(Flow::under(Junk::SourcePort))]
#[bench::stale_response(Flow::under(Junk::StaleResponse))]
#[bench::bad_icrc(Flow::under(Junk::BadIcrc))]
#[bench::out_of_order(Flow::under(Junk::OutOfOrder))]
#[bench::duplicate(Flow::under(Junk::Duplicate))]
#[bench::duplicate_read(Flow::under(Junk::DuplicateRead))]
#[bench::duplicate_read_limited(Flow::under(Junk::DuplicateReadLimited))]
#[bench::cnp(Flow::under(Junk::Cnp))]
fn junk(mut flow: Box<Flow>) -> Box<Flow> {
    flow.wire_to_completion();
    flow
}

// Measures the receive path for frames that the device drops, for ARP and echo requests beyond the rate limit of
// replies, and for claims.
#[library_benchmark]
#[bench::other_station(Flood::new(LinkJunk::OtherStation))]
#[bench::broadcast(Flood::new(LinkJunk::Broadcast))]
#[bench::arp_for_others(Flood::new(LinkJunk::ArpForOthers))]
#[bench::arp_for_us(Flood::new(LinkJunk::ArpForUs))]
#[bench::echo_1000(Flood::new(LinkJunk::Echo))]
#[bench::claim(Flood::new(LinkJunk::Claim))]
fn link_junk(mut flood: Box<Flood>) -> Box<Flood> {
    flood.receive();
    flood
}

library_benchmark_group!(name = link, benchmarks = [link_junk]);

// Measures both ends together, for `PACKETS` data packets from post to completion.
#[library_benchmark]
#[bench::send_64(Lossy::new(Case::Send64, 0))]
#[bench::send_4k(Lossy::new(Case::Send4K, 0))]
#[bench::write_64(Lossy::new(Case::Write64, 0))]
#[bench::write_64k(Lossy::new(Case::Write64K, 0))]
#[bench::read_64(Lossy::new(Case::Read64, 0))]
#[bench::read_64k(Lossy::new(Case::Read64K, 0))]
fn both_without_loss(mut lossy: Box<Lossy>) -> Box<Lossy> {
    lossy.complete_packets();
    lossy
}

#[library_benchmark]
#[bench::send_64(Lossy::new(Case::Send64, 50))]
#[bench::send_4k(Lossy::new(Case::Send4K, 50))]
#[bench::write_64(Lossy::new(Case::Write64, 50))]
#[bench::write_64k(Lossy::new(Case::Write64K, 50))]
#[bench::read_64(Lossy::new(Case::Read64, 50))]
#[bench::read_64k(Lossy::new(Case::Read64K, 50))]
fn both_at_2_percent(mut lossy: Box<Lossy>) -> Box<Lossy> {
    lossy.complete_packets();
    lossy
}

library_benchmark_group!(name = loss, benchmarks = [both_without_loss, both_at_2_percent]);

library_benchmark_group!(
    name = packet,
    benchmarks = [
        parse,
        check_icrc,
        segment_message,
        copy_and_icrc,
        idle_poll,
        requester_post_to_wire,
        responder_wire_to_completion,
        responder_behind_a_loss,
        requester_repairs_a_loss,
        requester_behind_a_loss,
        responder_catches_up,
        requester_completion,
        junk
    ]
);

/// Number of queue pairs, so large that their state together exceeds the simulated last-level cache.
const COLD_QPS: usize = 2048;

// Counts cache lines (64 bytes) that miss all caches, for `BATCH_PKTS` SENDs of 64 B from post to completion at both
// ends. At the start, the state of the queue pairs is in no cache.
#[library_benchmark(config = LibraryBenchmarkConfig::default().tool(Callgrind::with_args(["--cache-sim=yes", "--D1=32768,8,64", "--LL=1048576,16,64"])))]
#[bench::send_64(Many::new(COLD_QPS, &flow::conn(PathMtu::Mtu4096)))]
fn cold_lines(mut many: Box<Many>) -> Box<Many> {
    many.round(BATCH_PKTS as usize);
    many
}

library_benchmark_group!(name = cache, benchmarks = [cold_lines]);

main!(library_benchmark_groups = [packet, link, loss, cache]);
