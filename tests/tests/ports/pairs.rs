//! Two processes of this project's verbs, over each kind of port that needs no NIC.

use std::path::Path;

use roce::qp::{ConnAttr, PathMtu};
use roce::queue::WcStatus;

use super::links::{Side, memif, veth, vhost};
use crate::live::{End, Peer, Settings, capture_file, is_root, scenarios, turn};

type Scenario = fn(&mut End, &mut End, &Settings);

/// Frames lost, held back and damaged on the way, in both directions.
pub(super) const FAULTS: &[&str] = &["drop=0.03", "reorder=0.03", "corrupt=0.02"];
/// An ACK timeout of 34 ms, as there are timeouts to be waited for.
pub(super) fn impatient(path_mtu: PathMtu) -> Settings {
    let conn = ConnAttr { path_mtu, timeout: 13, min_rnr_timer: 1, ..ConnAttr::default() };
    Settings { depth: 128, conn }
}

pub(super) fn ends(sides: &[Side; 2], faults: &[&str]) -> [End; 2] {
    [0, 1].map(|number: usize| {
        let side = &sides[number];
        let seed = format!("seed={}", number + 1);
        let mut command = side.command(Path::new(Peer::program()));
        command.arg(&side.port).args(faults).arg(seed);
        if side.may_capture() {
            command.arg(format!("pcap={}", capture_file(["near", "far"][number]).display()));
        }
        End::new(Peer::start(&mut command), side.gid_index)
    })
}

fn play(sides: &[Side; 2], faults: &[&str], settings: &Settings, scenarios: &[Scenario]) {
    let [mut near, mut far] = ends(sides, faults);
    for scenario in scenarios {
        scenario(&mut near, &mut far, settings);
        scenario(&mut far, &mut near, settings);
    }
}

#[test]
fn memif_as_an_ordinary_user() {
    let _turn = turn();
    play(
        &memif("ops"),
        &[],
        &Settings::at(PathMtu::Mtu4096),
        &[scenarios::every_op_and_len, scenarios::a_mix],
    );
}

#[test]
fn memif_with_faults() {
    let _turn = turn();
    play(
        &memif("faults"),
        FAULTS,
        &impatient(PathMtu::Mtu4096),
        &[scenarios::every_op_and_len, scenarios::a_mix],
    );
}

#[test]
fn what_is_wrong_reaches_both_ends() {
    let _turn = turn();
    let settings = Settings::at(PathMtu::Mtu1024);
    let [mut near, mut far] = ends(&memif("wrong"), &[]);
    scenarios::wrong_rkey(&mut near, &mut far, &settings);
    scenarios::late_receive(&mut near, &mut far, &settings);
    scenarios::no_receive(&mut near, &mut far, &settings);
    let ended = [WcStatus::RemInvReqErr, WcStatus::LocLenErr];
    scenarios::short_receive(&mut near, &mut far, &settings, ended);
}

#[test]
fn af_packet_between_two_namespaces() {
    let _turn = turn();
    let sides = veth("af_packet", 4200);
    play(&sides, &[], &Settings::at(PathMtu::Mtu4096), &[scenarios::every_op_and_len, scenarios::a_mix]);
}

#[test]
fn af_packet_with_faults() {
    let _turn = turn();
    play(&veth("af_packet", 1500), FAULTS, &impatient(PathMtu::Mtu1024), &[scenarios::a_mix]);
}

#[test]
fn virtio_user_and_vhost() {
    let _turn = turn();
    play(
        &vhost("ops"),
        &[],
        &Settings::at(PathMtu::Mtu4096),
        &[scenarios::every_op_and_len, scenarios::a_mix],
    );
}

#[test]
fn af_xdp_at_a_path_mtu_of_2048() {
    let _turn = turn();
    let sides = veth("af_xdp", 2200);
    if is_root() {
        play(&sides, &[], &Settings::at(PathMtu::Mtu2048), &[scenarios::every_op_and_len, scenarios::a_mix]);
        return;
    }
    // XDP programs are root's, in whatever namespace: what is left to test is that this is said.
    let mut command = sides[0].command(Path::new(Peer::program()));
    let refused = crate::live::Process::start(command.arg(&sides[0].port)).finish(crate::live::TIMEOUT);
    assert!(!refused.status.success(), "{refused:?}");
    assert!(refused.stderr.contains("af_xdp") && refused.stderr.contains("CAP_"), "{refused:?}");
}
