//! Test of the history of READs: 2^24 PSNs after a READ, an ACK may have the PSN that the READ had.

use super::{Responder, ResponderConfig};
use crate::id::{Msn, RKey};
use crate::port::Payload;
use crate::psn::Psn;
use crate::qp::ConnAttr;
use crate::qp::rc::read_queue::ReadRequest;
use crate::qp::rc::reorder_buffer::ReorderStore;
use crate::wire::Reth;

/// A READ has PSN `first`. Then 2^24 further PSNs, none of a READ, are executed in four quarters. The ACK after each
/// quarter has the PSN executed last; after the last quarter this PSN is `first`. If `forget_stale` did not remove the
/// READ from the history, the last ACK would have PSN `first - 1`.
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
