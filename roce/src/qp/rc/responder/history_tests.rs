//! Test of the responder resources: 2^24 PSNs after a READ, PSNs repeat, and the responder must acknowledge a request
//! that has the PSN of the earlier READ.

use super::{Responder, ResponderConfig};
use crate::id::{Msn, RKey};
use crate::port::Payload;
use crate::psn::Psn;
use crate::qp::rc::harness::{ALL, Bench, Pkt, SELECTIVE, VA, psn};
use crate::qp::rc::read_queue::ReadRequest;
use crate::qp::rc::reorder_buffer::ReorderStore;
use crate::qp::{ConnAttr, Placement};
use crate::wire::{Opcode, Reth};

/// A READ has PSN `first`. Then 2^24 further PSNs, none of a READ, are executed in four quarters. The ACK after each
/// quarter has the PSN executed last; after the last quarter this PSN is `first`. If `forget_stale` did not remove the
/// READ from the responder resources, the last ACK would have PSN `first - 1`.
#[test]
fn an_acknowledgement_goes_up_to_a_psn_that_a_read_had_a_round_of_psns_before() {
    let first = Psn::new(0xFF_FF00);
    let conn = ConnAttr { max_dest_rd_atomic: 4, ..ConnAttr::RESET };
    let mtu_bytes = conn.path_mtu.bytes();
    let mut store = ReorderStore::new(0, Payload::Carried);
    let mut responder = Responder::new(ResponderConfig::new(&conn, first));
    let reth = Reth { va: 0, rkey: RKey(1), len_bytes: mtu_bytes };
    responder.queue_read(ReadRequest::new(first, reth, Msn::new(1), mtu_bytes));
    responder.accept(1, &mut store);
    assert_eq!(
        responder.transmitter().last_acknowledged(),
        first.minus(1),
        "its response acknowledges the READ"
    );
    for quarter in 1..=4 {
        responder.accept(Psn::COUNT / 4, &mut store);
        assert_eq!(
            responder.transmitter().last_acknowledged(),
            first.plus(quarter * (Psn::COUNT / 4)),
            "{quarter}"
        );
    }
}

/// The READ has PSN 0. Each third of the PSNs ends with a gap, which elicits a SACK, and no ACK is sent.
#[test]
fn a_sack_removes_a_read_from_the_history_as_an_ack_does() {
    const THIRD: u32 = Psn::COUNT / 3;
    let mut bench = Bench::new(SELECTIVE, Placement::InOrder, 4);
    bench.receive(&Pkt::new(Opcode::RC_RDMA_READ_REQUEST, 0, 0).remote(ALL, VA, 16));
    assert_eq!(bench.transmit_all().len(), 1, "the READ response");
    bench.responder.accept(Psn::COUNT % 3, &mut bench.store);
    for third in 1..=3 {
        bench.responder.accept(THIRD - 2, &mut bench.store);
        let missing = bench.responder.expected_psn().offset_from(psn(0)).unwrap();
        bench.receive(&Pkt::new(Opcode::RC_RDMA_WRITE_ONLY, missing + 1, 16));
        assert_eq!(bench.transmit_all().len(), 1, "{third}: a SACK");
        bench.receive(&Pkt::new(Opcode::RC_RDMA_WRITE_ONLY, missing, 16));
    }
    assert_eq!(bench.counters.sacks_sent, 3);
    assert_eq!(bench.responder.expected_psn(), psn(1));
    assert_eq!(bench.responder.transmitter().last_acknowledged(), psn(0));
}
