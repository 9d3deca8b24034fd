//! Forged packets: whoever is not the peer is dropped for a counted reason and changes nothing.
//!
//! ```text
//!   a <---- connected ----> b      a stranger sends to b from a's port, and to a from b's
//! ```

mod common;

use common::forge::Forged;
use common::{pair, settle};
use roce::psn::Psn;
use roce::qp::PathMtu;
use roce::queue::SendOp;
use roce::wire::Opcode;

const MTU: PathMtu = PathMtu::Mtu1024;

/// The first PSN of both directions.
const FIRST: Psn = Psn::new(0xFF_FF00);

#[test]
fn duplicates_of_a_read_cost_a_bounded_number_of_responses() {
    const READ_BYTES: u32 = 64 << 10;
    let (mut a, mut b) = pair(MTU, READ_BYTES as usize, true);
    let (remote_addr, rkey) = (b.memory.addr(), b.rkey);
    a.post(1, SendOp::Read { remote_addr, rkey }, a.sge(0, READ_BYTES));
    settle(&mut a, &mut b);
    let before = b.engine.counters().sent_pkts;
    let mut request = Forged::to(&b, &a, Opcode::RC_RDMA_READ_REQUEST, FIRST);
    request.reth.len_bytes = READ_BYTES;
    for n in 0..2000 {
        request.send_from(&mut a);
        // Until all that it asks for is sent; the link takes far longer than that.
        while b.poll(100_000 + n).more {}
        while a.poll(100_000 + n).rx_frames > 0 {}
    }
    let sent = b.engine.counters().sent_pkts - before;
    let read_pkts = u64::from(READ_BYTES / 1024);
    assert!(sent >= read_pkts, "the first duplicate is served: {sent}");
    assert!(sent <= 20 * read_pkts, "2,000 duplicates of a READ of {read_pkts} packets had {sent} sent");
}
