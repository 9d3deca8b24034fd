//! The unmodified ibv_rc_pingpong in the guest and `roce ping` here, each as server and as client.

use std::process::Command;
use std::time::Duration;

use super::boot::{Guest, PINGPONG_PORT, Wire, guest};
use crate::live::{Output, Process, capture_file, roce};

/// How long one game may take on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(120);
/// Exchanges of one game.
const ITERS: u32 = 50;
/// Message sizes in bytes.
const SIZES: [u32; 4] = [1, 1023, 4096, 65536];

/// One game's parameters, which are the same options for both programs.
struct Game {
    wire: Wire,
    gid_index: u8,
    mtu: u32,
    size: u32,
    /// Asked of `roce ping` alone, which offers it in the LID of its line.
    recovery: Option<&'static str>,
}

impl Game {
    fn options(&self) -> String {
        let Game { gid_index, mtu, size, .. } = self;
        // With -e they sleep. Where both poll and the guest's processors are emulated, this machine
        // may well be too busy for the half second after which ibv_rc_pingpong gives up.
        format!("-g {gid_index} -m {mtu} -s {size} -n {ITERS} -c -e")
    }

    fn guests(&self, guest: &Guest, server: &str) -> Process {
        let (device, options) = (self.wire.device(), self.options());
        guest.machine.start(&format!("ibv_rc_pingpong -d {device} {options} {server}"))
    }

    fn ours(&self, guest: &Guest) -> Command {
        let mut command = guest.namespace.command(roce());
        command.args(["ping", "--port", &Guest::port(self.wire)]);
        command.args(self.options().split_whitespace());
        command.args(self.recovery.iter().flat_map(|scheme| ["--recovery", scheme]));
        command.arg("--pcap").arg(capture_file("ours"));
        command
    }

    fn check(&self, ours: Process, guests: Process) {
        let options = self.options();
        // Both are waited for before either is judged, as one end's failure is seldom its own fault.
        let (ours, guests) = (ours.finish(TIMEOUT), guests.finish(TIMEOUT));
        let said = format!("{options}: ours\n{ours:?}\nthe guest's\n{guests:?}");
        for Output { status, stdout, .. } in [&ours, &guests] {
            assert!(status.success() && stdout.contains(&format!("{ITERS} iters in")), "{said}");
        }
        assert_eq!(
            ours.stderr.contains("so recovery is improved-go-back-n"),
            self.recovery.is_some(),
            "{said}"
        );
    }
}

/// Plays a game of each size.
fn play_all(wire: Wire, gid_index: u8, mtu: u32, play: impl Fn(&Guest, &Game)) {
    let guest = guest();
    for size in SIZES {
        play(&guest, &Game { wire, gid_index, mtu, size, recovery: None });
    }
}

fn we_join(guest: &Guest, game: &Game) {
    let server = game.guests(guest, "");
    guest.machine.run(&format!("wait_listen {PINGPONG_PORT}"));
    let (host, tcp_port) = game.wire.guest_address();
    let client = Process::start(game.ours(guest).args(["-p", &tcp_port.to_string(), host]));
    game.check(client, server);
}

fn we_serve(guest: &Guest, game: &Game) {
    let server = Process::start(&mut game.ours(guest));
    guest.namespace.wait_listen(PINGPONG_PORT);
    let client = game.guests(guest, game.wire.host_address());
    game.check(server, client);
}

#[test]
fn we_join_over_ipv4() {
    play_all(Wire::Tap, 1, 1024, we_join);
}

#[test]
fn we_join_over_ipv4_in_large_packets() {
    play_all(Wire::Tap, 1, 4096, we_join);
}

#[test]
fn we_join_over_ipv6() {
    play_all(Wire::Tap, 2, 1024, we_join);
}

#[test]
fn we_join_over_ipv6_in_large_packets() {
    play_all(Wire::Tap, 2, 4096, we_join);
}

#[test]
fn we_serve_over_ipv4() {
    play_all(Wire::Tap, 1, 1024, we_serve);
}

#[test]
fn we_serve_over_ipv4_in_large_packets() {
    play_all(Wire::Tap, 1, 4096, we_serve);
}

#[test]
fn we_serve_over_ipv6() {
    play_all(Wire::Tap, 2, 1024, we_serve);
}

#[test]
fn we_serve_over_ipv6_in_large_packets() {
    play_all(Wire::Tap, 2, 4096, we_serve);
}

#[test]
fn we_join_over_link_local_addresses() {
    play_all(Wire::Tap, 0, 1024, we_join);
}

#[test]
fn we_join_over_vhost_user() {
    play_all(Wire::Vhost, 1, 4096, we_join);
}

#[test]
fn we_serve_over_vhost_user() {
    play_all(Wire::Vhost, 2, 1024, we_serve);
}

#[test]
fn an_offer_of_selective_repeat_is_passed_over() {
    let guest = guest();
    let recovery = Some("selective-repeat");
    let game = Game { wire: Wire::Tap, gid_index: 1, mtu: 1024, size: 65536, recovery };
    we_join(&guest, &game);
    we_serve(&guest, &game);
}
