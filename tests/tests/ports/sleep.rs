//! Ends that sleep between messages: no wake-up is lost, no packet is retransmitted, and an idle device sleeps.

use std::time::Duration;

use serde_json::Value;

use super::command::each;
use super::links::{Side, memif, veth, vhost};
use super::run::launch;
use crate::live::{Process, TIMEOUT, is_root, roce, turn};

/// Messages in each direction between ends that wait for events, and by which wait in poll(2).
const MESSAGES: [(&str, u32); 2] = [("-e", 10_000), ("-e --poll-fd", 2000)];
/// Time in which the wake-ups of an idle device are counted.
const IDLE: Duration = Duration::from_secs(4);
/// Upper bound of the wake-ups of all threads of a process with an idle device in this time: five a second.
const IDLE_WAKE_UPS_MAX: u64 = 20;
/// Packets for which a peer with much to send raises at most one interrupt at a background thread that has much to do.
const PKTS_PER_INTERRUPT_MIN: u64 = 50;

/// Messages to and fro, one at a time. By go-back-N with an ACK timeout of one second, because on a busy machine a peer
/// that is awake may be slower than a probe timeout: a retransmission shows that a wake-up was lost.
fn play(sides: &[Side; 2], host: &str, tcp_port: u16) {
    for (option, messages) in MESSAGES {
        let args =
            format!("perf send-lat {option} --verify -s 64 -m 1024 -u 18 --recovery go-back-n -n {messages}");
        for output in each(sides, host, tcp_port, [&args, &args]) {
            for counter in ["local_ack_timeout_err", "packet_seq_err", "duplicate_request"] {
                assert!(!output.stdout.contains(counter), "{args}: {output:?}");
            }
        }
    }
}

#[test]
fn ends_of_a_memif_sleep_between_messages() {
    let _turn = turn();
    play(&memif("asleep"), "localhost", 18650);
}

#[test]
fn ends_of_a_vhost_socket_sleep_between_messages() {
    let _turn = turn();
    play(&vhost("asleep"), "localhost", 18651);
}

#[test]
fn ends_of_a_veth_pair_sleep_between_messages() {
    let _turn = turn();
    play(&veth("af_packet", 4200), "10.0.0.1", 18652);
    if is_root() {
        play(&veth("af_xdp", 2200), "10.1.0.1", 18653);
    }
}

/// Returns the number of voluntary context switches of all threads of the process `pid`.
fn wake_ups(pid: u32) -> u64 {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).expect("the process runs");
    let statuses = tasks.map(|task| std::fs::read_to_string(task.unwrap().path().join("status")).unwrap());
    let switches = |status: String| {
        let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
        line.expect("Linux has it").trim().parse::<u64>().expect("a number")
    };
    statuses.map(switches).sum()
}

#[test]
fn an_idle_device_sleeps() {
    let _turn = turn();
    for ([side, _], tcp_port) in [(memif("idle"), 18654_u16), (vhost("idle"), 18655)] {
        let mut command = side.command(&roce());
        command.args(["perf", "send-lat", "-p", &tcp_port.to_string(), "--port", &side.port]);
        let server = Process::start(&mut command);
        side.wait_listen(tcp_port);
        std::thread::sleep(Duration::from_secs(1));
        let before = wake_ups(server.id());
        std::thread::sleep(IDLE);
        let count = wake_ups(server.id()) - before;
        assert!(count <= IDLE_WAKE_UPS_MAX, "{}: {count} wake-ups in {IDLE:?}", side.port);
    }
}

/// The server's program waits in a call of its own, so the background thread of the server receives the messages.
#[test]
fn a_background_thread_with_much_to_do_needs_no_interrupts() {
    const TCP_PORT: u16 = 18656;
    let _turn = turn();
    let sides = memif("interrupts");
    let tcp_port = TCP_PORT.to_string();
    let gid = sides[0].gid_index.to_string();
    let size = ["-s", "64", "-n", "1000000", "-p", &tcp_port, "-x", &gid];
    let server = Process::start(&mut launch(&sides[0], "", &[&["ib_write_bw", "-F"][..], &size].concat()));
    sides[0].wait_listen(TCP_PORT);
    let mut client = sides[1].command(&roce());
    client.args(["perf", "write-bw", "--peer", "perftest", "--json", "--port", &sides[1].port]).args(size);
    let outputs = [Process::start(client.arg("localhost")), server].map(|end| end.finish(TIMEOUT));
    assert!(outputs.iter().all(|output| output.status.success()), "{outputs:?}");
    let report: Value = serde_json::from_str(&outputs[0].stdout).expect("JSON");
    let count = |pointer: &str| report.pointer(pointer).and_then(Value::as_u64).expect("a counter");
    let interrupts = count("/device_counters/xstats/tx_interrupts");
    let pkts = count("/device_counters/queue_pairs/sent_pkts");
    assert!(
        interrupts * PKTS_PER_INTERRUPT_MIN <= pkts,
        "{interrupts} interrupts for {pkts} packets: {outputs:?}"
    );
}
