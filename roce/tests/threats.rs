//! What a stranger must guess, measured on the engine.

mod common;

use common::{pair, pair_of};
use roce::mem::Access;
use roce::qp::{PathMtu, QpAttr};
use std::collections::HashSet;

/// How many of the low 32 bits are 1 in a third to two thirds of `numbers`: a bit that can be foretold is not.
fn random_bits(numbers: &[u32]) -> u32 {
    let ones = |bit: u32| numbers.iter().filter(|number| *number >> bit & 1 == 1).count();
    let is_random = |bit: &u32| (numbers.len() / 3..=numbers.len() * 2 / 3).contains(&ones(*bit));
    (0..32).filter(is_random).count() as u32
}

/// Random bits of queue pair numbers and of keys.
fn number_bits() -> (u32, u32) {
    let (mut end, _) = pair(PathMtu::Mtu1024, 4096, true);
    let (mut qpns, mut keys) = (Vec::new(), Vec::new());
    for _ in 0..120 {
        qpns.push(end.create_idle_qp().value());
        let (_, rkey) = end.engine.register(end.pd, end.memory.clone(), 0, Access::REMOTE_READ).unwrap();
        keys.push(rkey.0);
    }
    (random_bits(&qpns), random_bits(&keys))
}

#[test]
fn every_bit_of_a_queue_pair_number_and_of_a_key_is_random() {
    assert_eq!(number_bits(), (24, 32), "random bits of QPN and rkey");
}

#[test]
fn a_freed_number_is_not_given_again_soon() {
    let (mut end, _) = pair(PathMtu::Mtu1024, 4096, true);
    let (mut qpns, mut keys) = (HashSet::new(), HashSet::new());
    for round in 0..4096 {
        let qpn = end.create_idle_qp();
        end.engine.destroy_qp(qpn).unwrap();
        assert!(qpns.insert(qpn), "QPN {qpn} is given again after {round} others");
        let (lkey, _) = end.engine.register(end.pd, end.memory.clone(), 0, Access::REMOTE_READ).unwrap();
        end.engine.deregister(lkey).unwrap();
        assert!(keys.insert(lkey), "key {lkey:?} is given again after {round} others");
    }
}

#[test]
fn a_device_takes_as_many_queue_pairs_as_it_was_opened_for() {
    const QPS: usize = 20_000;
    let (mut end, _) =
        pair_of(PathMtu::Mtu1024, 4096, &QpAttr::default(), |config| config.limits.max_qps = QPS);
    // With the one that is connected.
    let qpns: HashSet<_> = (1..QPS).map(|_| end.create_idle_qp()).collect();
    assert_eq!(qpns.len(), QPS - 1);
}
