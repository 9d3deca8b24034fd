//! Every operation with soft-RoCE, each way: we ask it, it asks us.

use roce::qp::PathMtu;
use roce::queue::WcStatus;

use super::boot::{Guest, Wire, guest};
use crate::live::{End, Settings, scenarios};

/// GIDs on both sides: 0 link-local, 1 IPv4, 2 IPv6.
pub(super) const IPV4: u8 = 1;
const IPV6: u8 = 2;

type Scenario = fn(&mut End, &mut End, &Settings);

/// Two ends, ours first, not yet connected.
pub(super) fn ends(guest: &Guest, wire: Wire, gid_index: u8) -> (End, End) {
    (End::new(guest.ours(wire), gid_index), End::new(guest.rxe(wire), gid_index))
}

fn both_ways(wire: Wire, gid_index: u8, path_mtu: PathMtu, scenario: Scenario) {
    let guest = guest();
    let settings = Settings::at(path_mtu);
    let (mut ours, mut rxe) = ends(&guest, wire, gid_index);
    scenario(&mut ours, &mut rxe, &settings);
    scenario(&mut rxe, &mut ours, &settings);
}

#[test]
fn every_op_and_len_over_ipv4() {
    both_ways(Wire::Tap, IPV4, PathMtu::Mtu1024, scenarios::every_op_and_len);
}

#[test]
fn every_op_and_len_over_ipv6_in_large_packets() {
    both_ways(Wire::Tap, IPV6, PathMtu::Mtu4096, scenarios::every_op_and_len);
}

#[test]
fn a_wrong_rkey_is_refused() {
    both_ways(Wire::Tap, IPV4, PathMtu::Mtu1024, scenarios::wrong_rkey);
}

#[test]
fn sends_wait_for_late_receives() {
    both_ways(Wire::Tap, IPV4, PathMtu::Mtu1024, scenarios::late_receive);
}

#[test]
fn a_send_without_receive_fails_at_last() {
    both_ways(Wire::Tap, IPV4, PathMtu::Mtu1024, scenarios::no_receive);
}

#[test]
fn a_receive_that_is_too_short_fails_both_ends() {
    let guest = guest();
    let settings = Settings::default();
    let (mut ours, mut rxe) = ends(&guest, Wire::Tap, IPV4);
    // rxe takes it for a malformed receive instead of the invalid request that it is (IBA 9.9.6.3).
    let rxe_says = [WcStatus::RemOpErr, WcStatus::LocQpOpErr];
    scenarios::short_receive(&mut ours, &mut rxe, &settings, rxe_says);
    let standard = [WcStatus::RemInvReqErr, WcStatus::LocLenErr];
    scenarios::short_receive(&mut rxe, &mut ours, &settings, standard);
}

#[test]
fn a_mix_of_messages_in_flight() {
    both_ways(Wire::Tap, IPV4, PathMtu::Mtu1024, scenarios::a_mix);
}

#[test]
fn every_op_and_len_over_vhost_user() {
    both_ways(Wire::Vhost, IPV4, PathMtu::Mtu4096, scenarios::every_op_and_len);
}

#[test]
fn a_mix_of_messages_in_flight_over_vhost_user() {
    both_ways(Wire::Vhost, IPV6, PathMtu::Mtu1024, scenarios::a_mix);
}
