//! Bits that an attacker must guess: compares the engine with docs/THREATS.md.

use crate::common::{pair, pair_of};
use roce::engine::limits::{
    DEFAULT_WINDOW_PKTS, QUARANTINE_NUMBERS, RETRANSMIT_PKTS_MIN, RETRANSMIT_PKTS_PER_SEC,
    RETRANSMITS_PER_READ, STALE_PSNS,
};
use roce::id::Qpn;
use roce::mem::Access;
use roce::psn::Psn;
use roce::qp::PathMtu;
use roce::random::Random;
use roce::recovery::RecoveryScheme;
use roce::wire::{flow_label_from_qpns, udp_source_port};
use std::collections::HashSet;

/// Counts the random bits: those that are 1 in a third to two thirds of `numbers`.
fn random_bits(numbers: &[u32]) -> u32 {
    let ones = |bit: u32| numbers.iter().filter(|number| *number >> bit & 1 == 1).count();
    let is_random = |bit: &u32| (numbers.len() / 3..=numbers.len() * 2 / 3).contains(&ones(*bit));
    (0..32).filter(is_random).count() as u32
}

/// Returns the number of random bits of a QPN, and of an R_Key.
fn number_bits() -> (u32, u32) {
    let (mut end, _) = pair(PathMtu::Mtu1024, 4096, true);
    let (mut qpns, mut keys) = (Vec::new(), Vec::new());
    for _ in 0..120 {
        qpns.push(end.create_idle_qp().value());
        let (_, rkey) =
            end.engine.objects().register(end.pd, end.memory.clone(), 0, Access::REMOTE_READ).unwrap();
        keys.push(rkey.0);
    }
    (random_bits(&qpns), random_bits(&keys))
}

#[test]
fn every_bit_of_a_queue_pair_number_and_of_a_key_is_random() {
    assert_eq!(number_bits(), (24, 32), "random bits of QPN and rkey");
}

/// Estimates the number of random bits of a UDP source port derived from two random QPNs: draws ports, and counts the
/// pairs of equal ports. The result is rounded, because the sample is random.
fn port_bits() -> u32 {
    const DRAWN: u64 = 1 << 18;
    let mut random = Random::new([9; 32]);
    let mut counts = vec![0u64; 1 << 16];
    for _ in 0..DRAWN {
        let [local, remote] = [(); 2].map(|()| Qpn::new(random.bits()));
        counts[usize::from(udp_source_port(flow_label_from_qpns(local, remote)))] += 1;
    }
    let equal_pairs: u64 = counts.iter().map(|count| count * count.saturating_sub(1)).sum();
    ((DRAWN * (DRAWN - 1)) as f64 / equal_pairs as f64).log2().round() as u32
}

/// Returns the number of PSN bits to guess, if `accepted` of all PSNs are accepted.
fn psn_bits(accepted: u32) -> u32 {
    (Psn::COUNT / accepted).ilog2()
}

/// Numbers of bits that an attacker must guess: of the QPN, UDP source port, PSN and key. `None`: the attack needs no
/// guess of this field.
type Guess = [Option<u32>; 4];

/// Formats a row of the table in docs/THREATS.md.
fn row(attack: &str, guess: Guess) -> String {
    let cells = guess.map(|bits| bits.map_or("-".to_owned(), |bits| bits.to_string())).join(" | ");
    let sum: u32 = guess.into_iter().flatten().sum();
    format!("| {attack} | {cells} | {sum} | 2^{} |", sum - 1)
}

#[test]
fn the_page_says_what_an_attack_costs() {
    let (qpn, key) = number_bits();
    let [qpn, port, key] = [qpn, port_bits(), key].map(Some);
    let kept = |scheme: RecoveryScheme| Some(psn_bits(scheme.buffered_pkts_max().unwrap_or(1)));
    let exact = kept(RecoveryScheme::GoBackN);
    let improved = kept(RecoveryScheme::ImprovedGoBackN);
    let selective = kept(RecoveryScheme::SelectiveRepeat { window_pkts: 4096 });
    let in_flight = Some(psn_bits(DEFAULT_WINDOW_PKTS));
    let marked = Some(psn_bits(2 * STALE_PSNS));
    let rows = [
        ("WRITE, executed on arrival", [qpn, port, exact, key]),
        ("WRITE, buffered by improved go-back-N", [qpn, port, improved, key]),
        ("WRITE, buffered by selective repeat with a window of 4,096 PSNs", [qpn, port, selective, key]),
        ("SEND, executed on arrival", [qpn, port, exact, None]),
        ("SEND, buffered by improved go-back-N", [qpn, port, improved, None]),
        ("SEND, buffered by selective repeat with a window of 4,096 PSNs", [qpn, port, selective, None]),
        ("NAK or READ response to 256 packets in flight", [qpn, port, in_flight, None]),
        ("request with any PSN, to elicit a NAK or ACK", [qpn, port, None, None]),
        ("request with a CE mark, to elicit a CNP", [qpn, port, marked, None]),
        ("CNP", [qpn, None, None, None]),
        ("request in order, before a source port is bound", [qpn, None, exact, None]),
        ("SEND, QPN and UDP source port known, go-back-N", [None, None, exact, None]),
        ("SEND, QPN and UDP source port known, improved go-back-N", [None, None, improved, None]),
        (
            "SEND, QPN and UDP source port known, buffered by selective repeat with a window of 4,096 PSNs",
            [None, None, selective, None],
        ),
        ("WRITE by the connected peer, rkey not known", [None, None, None, key]),
    ];
    let page = include_str!("../../../docs/THREATS.md");
    let table =
        page.split("\n\n").find(|part| part.starts_with("| attack |")).expect("the page has the table");
    let written: Vec<&str> = table.lines().skip(2).collect();
    let computed = rows.map(|(attack, guess)| row(attack, guess));
    assert_eq!(written, computed);
    let quarantine = format!("not drawn again until {} more were freed", thousands(QUARANTINE_NUMBERS));
    let marks = format!("within {} PSNs of the expected PSN", thousands(STALE_PSNS as usize));
    let [repeats, rest] = [RETRANSMITS_PER_READ, RETRANSMIT_PKTS_MIN];
    let rate = thousands(RETRANSMIT_PKTS_PER_SEC as usize);
    let reads = format!(
        "{repeats} times, then {rest} further READ responses, then at most {rate} READ responses a second"
    );
    for said in [quarantine, marks, reads] {
        assert!(
            page.split_whitespace().collect::<Vec<_>>().join(" ").contains(&said),
            "the page says: {said}"
        );
    }
}

fn thousands(number: usize) -> String {
    format!("{},{:03}", number / 1000, number % 1000)
}

#[test]
fn a_freed_number_is_not_given_again_soon() {
    let (mut end, _) = pair(PathMtu::Mtu1024, 4096, true);
    let (mut qpns, mut keys) = (HashSet::new(), HashSet::new());
    for round in 0..4096 {
        let qpn = end.create_idle_qp();
        end.engine.destroy_qp(qpn).unwrap();
        assert!(qpns.insert(qpn), "QPN {qpn} is given again after {round} others");
        let (lkey, _) =
            end.engine.objects().register(end.pd, end.memory.clone(), 0, Access::REMOTE_READ).unwrap();
        end.engine.objects().deregister(lkey).unwrap();
        assert!(keys.insert(lkey), "key {lkey:?} is given again after {round} others");
    }
}

#[test]
fn a_device_takes_as_many_queue_pairs_as_it_was_opened_for() {
    const QPS: usize = 20_000;
    let (mut end, _) = pair_of(PathMtu::Mtu1024, 4096, |config| config.limits.max_qps = QPS);
    // `pair_of` has created one of the `QPS` queue pairs already.
    let qpns: HashSet<_> = (1..QPS).map(|_| end.create_idle_qp()).collect();
    assert_eq!(qpns.len(), QPS - 1);
}
