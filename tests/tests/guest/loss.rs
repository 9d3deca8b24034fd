//! 5 % of the packets lost on the way to soft-RoCE, on the way from it, and both: nothing is lost or
//! doubled for all that.

use roce::qp::ConnAttr;

use super::boot::{Guest, Wire, guest};
use super::ops::{IPV4, ends};
use crate::live::{End, Settings, scenarios};

/// What makes packets get lost in the guest, and how many it has lost.
struct Loss {
    start: &'static str,
    count: &'static str,
    stop: &'static str,
}

/// Of what the guest sends, TCP and ARP too.
const FROM_GUEST: Loss = Loss {
    start: "netem_loss nic0 5",
    count: "tc -s qdisc show dev nic0 | grep -o 'dropped [0-9]*' | head -1 | cut -d' ' -f2",
    stop: "netem_clear nic0",
};
/// Of the RoCE packets that the guest receives: netem works on what is sent alone.
const TO_GUEST: Loss =
    Loss { start: "loss_random nic0 in 5", count: "loss_count nic0", stop: "loss_clear nic0" };

/// An ACK timeout of 268 ms: a lost packet should not hold the test up for long.
fn settings() -> Settings {
    Settings { depth: 128, conn: ConnAttr { timeout: 16, min_rnr_timer: 1, ..ConnAttr::default() } }
}

fn a_mix_with(guest: &Guest, losses: &[Loss], requester: &mut End, responder: &mut End) {
    for loss in losses {
        guest.machine.run(loss.start);
    }
    scenarios::a_mix(requester, responder, &settings());
    for loss in losses {
        let lost: u64 = guest.machine.run(loss.count).trim().parse().expect("a number of packets");
        assert!(lost > 0, "{}: nothing was lost, so nothing was tested", loss.start);
        guest.machine.run(loss.stop);
    }
}

fn both_ways(losses: &[Loss]) {
    let guest = guest();
    guest.clear_losses();
    let (mut ours, mut rxe) = ends(&guest, Wire::Tap, IPV4);
    a_mix_with(&guest, losses, &mut ours, &mut rxe);
    a_mix_with(&guest, losses, &mut rxe, &mut ours);
}

#[test]
fn what_the_guest_sends_is_lost() {
    both_ways(&[FROM_GUEST]);
}

#[test]
fn what_the_guest_should_receive_is_lost() {
    both_ways(&[TO_GUEST]);
}

#[test]
fn packets_are_lost_in_both_directions() {
    both_ways(&[FROM_GUEST, TO_GUEST]);
}
