//! Changes of the network interface under two processes that send: its link, its MTU, its removal.

use std::path::Path;
use std::time::Duration;

use super::links::{Side, veth};
use crate::live::{Output, Process, roce, run, turn};

const TIMEOUT: Duration = Duration::from_secs(120);
const TCP_PORT: u16 = 18640;

/// Runs `roce perf write-bw` for some seconds at both ends of a veth pair. While messages are sent, `change` is called
/// with the client's end.
fn perf_during(change: impl Fn(&Side)) -> [Output; 2] {
    let sides = veth("af_packet", 4200);
    let command = |side: &Side| {
        let mut command = side.command(&roce());
        let args = ["perf", "write-bw", "-D", "3", "-m", "4096", "-p", &TCP_PORT.to_string()];
        command.args(args).args(["--port", &side.port]);
        command
    };
    let server = Process::start(&mut command(&sides[1]));
    sides[1].wait_listen(TCP_PORT);
    let mut client = Process::start(command(&sides[0]).arg("10.0.0.2"));
    while !client.line(TIMEOUT).contains("#bytes") {}
    std::thread::sleep(Duration::from_millis(500));
    change(&sides[0]);
    [client.finish(TIMEOUT), server.finish(TIMEOUT)]
}

fn ip(side: &Side, args: &str) {
    run(side.command(Path::new("ip")).args(args.split_whitespace()));
}

#[test]
fn a_connection_survives_a_link_that_is_down_for_a_moment() {
    let _turn = turn();
    let outputs = perf_during(|near| {
        ip(near, "link set v0 down");
        std::thread::sleep(Duration::from_millis(100));
        ip(near, "link set v0 up");
    });
    for output in outputs {
        output.expect_success("the link was down for 100 ms");
    }
}

#[test]
fn a_connection_fails_if_its_packets_no_longer_fit() {
    let _turn = turn();
    let outputs = perf_during(|near| ip(near, "link set v0 mtu 1500"));
    for output in outputs {
        let said = output.stderr.contains("transport retry counter exceeded");
        assert!(!output.status.success() && said, "{output:?}");
    }
}

#[test]
fn both_ends_fail_if_their_interface_is_removed() {
    let _turn = turn();
    for (output, name) in perf_during(|near| ip(near, "link delete v0")).iter().zip(["v0", "v1"]) {
        let said = output.stderr.contains(&format!("the network interface {name} was removed"));
        assert!(!output.status.success() && said, "{output:?}");
    }
}
