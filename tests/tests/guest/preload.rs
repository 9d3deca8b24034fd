//! The same unmodified programs here, on our library, and in the guest, on soft-RoCE; each as server and as client.

use std::process::Command;
use std::time::Duration;

use super::boot::{Guest, PINGPONG_PORT, Wire, guest};
use crate::live::{Output, Process, library};

/// Time limit of one run on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(120);
/// Runs until perftest has calibrated its clock, which a busy emulated processor disturbs.
const CALIBRATIONS: usize = 5;

/// A program with the same options at both ends.
struct Game {
    wire: Wire,
    /// The program with its options beside device, GID and peer.
    command: &'static str,
    /// Text of both reports.
    result: &'static str,
}

impl Game {
    /// Returns the command for a device: programs of perftest take a GID by `-x`, others by `-g`.
    fn on(&self, device: &str, server: &str) -> String {
        let gid = if self.command.starts_with("ib_") { "-x 1" } else { "-g 1" };
        format!("{} -d {device} {gid} {server}", self.command)
    }

    fn ours(&self, guest: &Guest, server: &str) -> Process {
        let line = self.on("roce0", server);
        let mut words = line.split_whitespace();
        let program = words.next().expect("a command has a program");
        let mut command: Command = guest.namespace.command(program);
        command.args(words).env("LD_PRELOAD", library()).env("ROCE_PORT", Guest::port(self.wire));
        Process::start(&mut command)
    }

    fn guests(&self, guest: &Guest, server: &str) -> Process {
        guest.machine.start(&self.on(self.wire.device(), server))
    }

    fn we_serve(&self, guest: &Guest) -> [Process; 2] {
        let server = self.ours(guest, "");
        guest.namespace.wait_listen(PINGPONG_PORT);
        [server, self.guests(guest, self.wire.host_address())]
    }

    fn we_join(&self, guest: &Guest) -> [Process; 2] {
        let server = self.guests(guest, "");
        guest.machine.run(&format!("wait_listen {PINGPONG_PORT}"));
        let (host, port) = self.wire.guest_address();
        [self.ours(guest, &format!("-p {port} {host}")), server]
    }

    fn play(&self, guest: &Guest, start: impl Fn(&Self, &Guest) -> [Process; 2]) {
        for _ in 0..CALIBRATIONS {
            // Both are waited for before either is judged, as one end's failure is seldom its own fault.
            let [ours, guests] = start(self, guest).map(|end| end.finish(TIMEOUT));
            if [&ours, &guests].iter().any(|end| end.stderr.contains("Can't produce a report")) {
                continue;
            }
            for Output { status, stdout, .. } in [&ours, &guests] {
                let has_result = stdout.contains(self.result);
                assert!(status.success() && has_result, "{}: {ours:?}\n{guests:?}", self.command);
            }
            return;
        }
        panic!("{}: perftest calibrated its clock in none of {CALIBRATIONS} runs", self.command);
    }
}

fn play_all(games: &[(&'static str, &'static str)]) {
    let guest = guest();
    for (command, result) in games {
        let game = Game { wire: Wire::Tap, command, result };
        game.play(&guest, Game::we_serve);
        game.play(&guest, Game::we_join);
    }
}

#[test]
fn pingpong_plays_with_itself() {
    play_all(&[
        ("ibv_rc_pingpong -m 1024 -s 4096 -n 50 -c -e", "50 iters in"),
        ("ibv_rc_pingpong -m 4096 -s 65536 -n 50 -c -e -N", "50 iters in"),
        ("ibv_uc_pingpong -m 1024 -s 4096 -n 50 -e", "50 iters in"),
        ("ibv_ud_pingpong -s 1024 -n 50 -e", "50 iters in"),
        ("ibv_srq_pingpong -m 1024 -s 4096 -n 50 -q 2 -e", "iters in"),
    ]);
}

#[test]
fn perftest_measures_itself() {
    play_all(&[
        ("ib_send_bw -s 65536 -n 100", " 65536 "),
        ("ib_write_bw -s 65536 -n 100 -q 2 -m 1024", " 65536 "),
        ("ib_read_bw -s 65536 -n 100", " 65536 "),
        ("ib_send_bw -s 5000 -n 100 -e", " 5000 "),
        ("ib_send_bw -s 1000 -n 100 -c UC", " 1000 "),
        ("ib_send_bw -s 1000 -n 100 -c UD", " 1000 "),
        ("ib_send_lat -s 64 -n 200 -c UD", " 64 "),
        ("ib_send_bw -s 5000 -n 100 --use-srq -r 64", " 5000 "),
        ("ib_send_lat -s 64 -n 200", " 64 "),
        ("ib_write_lat -s 64 -n 200", " 64 "),
        ("ib_read_lat -s 64 -n 200", "RDMA_Read Latency Test"),
    ]);
}
