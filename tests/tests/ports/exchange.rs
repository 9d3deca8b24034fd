//! The TCP exchanges of `roce perf`, `roce ping` and `kv_get` with peers that are none, or die.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use super::links::{Side, memif, veth, vhost};
use crate::live::{Process, roce, run, turn};

/// How long one command may take on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(120);
/// What a stranger sends where it never ends a line.
const ENDLESS_BYTES: usize = 64 << 20;
/// The most resident memory of a server whatever a peer says: a small part of what a stranger sends.
const SERVER_KIB_MAX: u64 = 160 << 10;
/// A server that waits for a peer no longer than this many seconds.
const IMPATIENT: &str = "--peer-timeout 2";

/// What comes before the client: it returns the connections that are to stay open.
type Strangers = fn(u16) -> Vec<TcpStream>;

fn connection(tcp_port: u16) -> TcpStream {
    let stream = TcpStream::connect(("localhost", tcp_port)).expect("the server still listens");
    stream.set_read_timeout(Some(TIMEOUT)).expect("a socket");
    stream
}

/// A stranger that says this, and what it is answered before the server closes the connection.
fn answer(tcp_port: u16, said: &[u8]) -> String {
    let mut stream = connection(tcp_port);
    // The server may have closed it in the middle.
    let _ = stream.write_all(said);
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    String::from_utf8_lossy(&answer).into_owned()
}

fn command(side: &Side, tcp_port: u16, args: &str) -> Command {
    let mut command = side.command(&roce());
    command.args(args.split_whitespace()).args(["--port", &side.port, "-p", &tcp_port.to_string()]);
    command
}

fn peak_resident_kib(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("the server still runs");
    let line = status.lines().find(|line| line.starts_with("VmHWM")).expect("Linux has it");
    line.split_whitespace().nth(1).expect("a number").parse().expect("a number")
}

/// A server of each command serves its client in spite of the strangers before it, and says of them what `said` is.
fn serves_in_spite_of(name: &str, tcp_port: u16, commands: &[&str], strangers: Strangers, said: &str) {
    let _turn = turn();
    for (number, args) in commands.iter().enumerate() {
        let sides = memif(&format!("{name}{number}"));
        let server = Process::start(&mut command(&sides[0], tcp_port, args));
        sides[0].wait_listen(tcp_port);
        let still_open = strangers(tcp_port);
        let kib = peak_resident_kib(server.id());
        assert!(kib < SERVER_KIB_MAX, "{args}: the strangers took {kib} KiB");
        let client = Process::start(command(&sides[1], tcp_port, args).arg("localhost"));
        let outputs = [server.finish(TIMEOUT), client.finish(TIMEOUT)];
        drop(still_open);
        assert!(outputs.iter().all(|output| output.status.success()), "{args}: {outputs:?}");
        let notes: Vec<_> = outputs[0].stderr.lines().collect();
        assert!(outputs[0].stderr.contains(said), "{args}: {outputs:?}");
        // A line a second at most, and one at the end.
        assert!(notes.len() <= 10, "{args}: {outputs:?}");
    }
}

const BOTH: &[&str] = &["perf send-bw -n 100", "ping -n 100"];

#[test]
fn a_port_scan_does_not_end_a_server() {
    let scan: Strangers = |tcp_port| {
        (0..20).for_each(|_| drop(connection(tcp_port)));
        Vec::new()
    };
    let commands = ["perf send-bw -n 100", "perf raw -D 0.1", "ping -n 100"];
    serves_in_spite_of("scan", 18630, &commands, scan, "closed a connection from ");
}

#[test]
fn silent_connections_do_not_hold_a_server() {
    let silent: Strangers = |tcp_port| {
        let mut open: Vec<_> = (0..20).map(|_| connection(tcp_port)).collect();
        for stream in open.iter_mut().step_by(2) {
            stream.write_all(b"{\"hello\":").expect("it is open");
        }
        open
    };
    serves_in_spite_of("silent", 18631, BOTH, silent, "");
}

#[test]
fn a_line_without_end_takes_no_memory() {
    let endless: Strangers = |tcp_port| {
        let mut stream = connection(tcp_port);
        let junk = vec![b'['; ENDLESS_BYTES];
        assert!(stream.write_all(&junk).is_err(), "the server closes it before the end");
        assert_eq!(
            answer(tcp_port, b"GET / HTTP/1.1\r\nHost: roce\r\n\r\nand something more, as ping has 52 bytes"),
            ""
        );
        Vec::new()
    };
    serves_in_spite_of("endless", 18632, BOTH, endless, "closed a connection from ");
}

/// The hello of an honest client, with one value put in place of another.
fn hello(value: &str, instead: &str) -> Vec<u8> {
    let honest = concat!(
        r#"{"hello":{"protocol":3,"version":"0","offer":{"test":{"verb":"write","measure":"bw"},"choices":{"size":null,"#,
        r#""iters":null,"duration_secs":null,"all":false,"qps":null,"mtu_bytes":null,"outs":null,"recovery":null,"#,
        r#""bidirectional":false,"verify":false},"active_mtu_bytes":4096},"tx_depth":128,"rx_depth":512,"#,
        r#""gids":[[0,"fe80::5"]],"gid_index":null}}"#,
        "\n"
    );
    assert!(honest.contains(value), "{value}");
    honest.replacen(value, instead, 1).into_bytes()
}

#[test]
fn values_that_no_command_line_takes_are_refused_over_tcp() {
    let wrong: Strangers = |tcp_port| {
        for (value, instead, said) in [
            // These took memory, or ended the server by a panic.
            (r#""size":null"#, r#""size":3221225471"#, "-s: "),
            (r#""size":null"#, r#""size":1073741824"#, "-s 1073741824 take"),
            (r#""qps":null"#, r#""qps":4294967295"#, "-q 4294967295"),
            (r#""qps":null"#, r#""qps":0"#, "-q 0"),
            (r#""iters":null"#, r#""iters":18446744073709551615"#, "-n 18446744073709551615"),
            (r#""duration_secs":null"#, r#""duration_secs":0"#, "-D 0"),
            (r#""tx_depth":128"#, r#""tx_depth":0"#, "-t 0"),
            (r#""mtu_bytes":null"#, r#""mtu_bytes":1500"#, "-m"),
            (r#""active_mtu_bytes":4096"#, r#""active_mtu_bytes":1"#, "MTU of 1"),
            (r#""outs":null"#, r#""outs":255"#, "-o"),
            (r#""protocol":3"#, r#""protocol":9"#, "protocol 9"),
            // Agreed with nobody, and served to nobody.
            (r#""measure":"bw""#, r#""measure":"lat""#, "write-lat"),
            ("fe80::5", "ff02::1", "ff02::1"),
            ("fe80::5", "10.0.0.1", "kinds"),
        ] {
            let answered = answer(tcp_port, &hello(value, instead));
            assert!(answered.contains("failed") || answered.is_empty(), "{instead}: {answered}");
            assert!(answered.is_empty() || answered.contains(said), "{instead}: {answered}");
        }
        Vec::new()
    };
    serves_in_spite_of("values", 18633, &["perf write-bw -n 100"], wrong, "closed a connection from ");
    let zero: Strangers = |tcp_port| {
        let hello = String::from_utf8(hello(r#""size":null"#, r#""size":0"#)).expect("text");
        let answered = answer(tcp_port, hello.replace(r#""bw""#, r#""lat""#).as_bytes());
        assert!(answered.contains("-s 0") || answered.is_empty(), "{answered}");
        Vec::new()
    };
    serves_in_spite_of("zero", 18633, &["perf write-lat -n 100"], zero, "-s 0");
}

#[test]
fn a_ping_pong_is_played_with_nobodys_gid() {
    let nobody: Strangers = |tcp_port| {
        for line in [
            "0000:000011:000001:ff020000000000000000000000000001\0",
            "0000:000011:000001:00000000000000000000ffffefffffff\0",
            "0000:000011:000001:00000000000000000000ffff7f000001\0",
            "0000:000011:000001:00000000000000000000000000000000\0",
            "0000:000000:000001:fe800000000000000000000000000005\0",
            "0000:000011:000001:fd000000000000000000000000000005\0",
        ] {
            assert_eq!(answer(tcp_port, line.as_bytes()), "", "{line}");
        }
        Vec::new()
    };
    serves_in_spite_of("nobody", 18634, &["ping -n 100"], nobody, "closed a connection from ");
}

#[test]
fn a_server_that_no_client_could_suit_does_not_wait() {
    for args in ["ping -g 9", "perf write-bw -x 9"] {
        let [side, _] = memif("no-gid");
        let output = Process::start(&mut command(&side, 18642, args)).finish(TIMEOUT);
        assert_eq!(output.status.code(), Some(1), "{args}: {output:?}");
        assert!(output.stderr.contains("there is no"), "{args}: {output:?}");
    }
}

/// Sends what it is given to 10.0.0.1, and prints what comes back.
const STRANGER: &str = "
import socket, sys
stream = socket.create_connection(('10.0.0.1', int(sys.argv[1])))
stream.sendall(sys.argv[2].encode().replace(b'~', b'\\0').replace(b'!', b'\\n'))
stream.settimeout(60)
print(stream.recv(4096))
";

#[test]
fn a_client_without_a_link_does_not_send_its_address() {
    let _turn = turn();
    let [side, _no_peer] = vhost("linkless");
    let server = TcpListener::bind(("localhost", 0)).expect("a free port");
    let tcp_port = server.local_addr().expect("it is bound").port();
    let client = Process::start(command(&side, tcp_port, "ping").arg("localhost"));
    let (mut stream, _) = server.accept().expect("a client");
    let mut said = Vec::new();
    stream.set_read_timeout(Some(TIMEOUT)).expect("a socket");
    stream.read_to_end(&mut said).expect("the client gives up");
    let output = client.finish(TIMEOUT);
    assert!(!output.status.success() && output.stderr.contains("link"), "{output:?}");
    assert_eq!(String::from_utf8_lossy(&said), "");
}

#[test]
fn on_a_kernel_interface_nobody_is_sent_to_at_anothers_word() {
    let _turn = turn();
    let elsewhere = String::from_utf8(hello("fe80::5", "10.0.0.3")).expect("text").replace('\n', "!");
    let line = "0000:000011:000001:00000000000000000000ffff0a000003~".to_owned();
    for (args, said, tcp_port) in [("ping -n 100", line, 18635), ("perf write-bw -n 100", elsewhere, 18636)] {
        let sides = veth("af_packet", 1500);
        let server = Process::start(&mut command(&sides[0], tcp_port, args));
        sides[0].wait_listen(tcp_port);
        let port = tcp_port.to_string();
        let answered = run(sides[1].command(Path::new("python3")).args(["-c", STRANGER, &port, &said]));
        assert!(answered.trim() == "b''" || answered.contains("not the address 10.0.0.2"), "{answered}");
        let client = Process::start(command(&sides[1], tcp_port, args).arg("10.0.0.1"));
        let outputs = [server.finish(TIMEOUT), client.finish(TIMEOUT)];
        assert!(outputs.iter().all(|output| output.status.success()), "{args}: {outputs:?}");
        let note = "10.0.0.3 is not the address 10.0.0.2 by which TCP reaches it";
        assert!(outputs[0].stderr.contains(note), "{args}: {outputs:?}");
    }
}

#[test]
fn a_gid_of_the_same_neighbour_needs_no_other_address() {
    let _turn = turn();
    // The exchange is over IPv4, and the traffic over IPv6.
    for (args, tcp_port) in [("ping -n 100 -g 2", 18637), ("perf write-bw -n 100 -x 2", 18638)] {
        let sides = veth("af_packet", 1500);
        for (side, interface, ip) in [(&sides[0], "v0", "fd00::1/64"), (&sides[1], "v1", "fd00::2/64")] {
            run(side.command(Path::new("ip")).args(["address", "add", ip, "dev", interface, "nodad"]));
        }
        let server = Process::start(&mut command(&sides[0], tcp_port, args));
        sides[0].wait_listen(tcp_port);
        let client = Process::start(command(&sides[1], tcp_port, args).arg("10.0.0.1"));
        let outputs = [server.finish(TIMEOUT), client.finish(TIMEOUT)];
        assert!(outputs.iter().all(|output| output.status.success()), "{args}: {outputs:?}");
    }
}

/// A server whose client `strikes` in the middle of a run, and what the server then says.
fn struck(
    sides: [Side; 2],
    tcp_port: u16,
    args: &str,
    host: &str,
    strike: impl FnOnce(&Process, &Side),
) -> String {
    let _turn = turn();
    let server_args = format!("{args} {IMPATIENT}");
    let mut server = Process::start(&mut command(&sides[0], tcp_port, &server_args));
    sides[0].wait_listen(tcp_port);
    let client = Process::start(command(&sides[1], tcp_port, args).arg(host));
    // The header of the table, or of ping the address of the client: what was agreed is about to run.
    loop {
        let line = server.line(TIMEOUT);
        if line.contains("#bytes") || line.contains("remote address:") {
            break;
        }
    }
    strike(&client, &sides[1]);
    let output = server.finish(TIMEOUT);
    assert_eq!(output.status.code(), Some(1), "{args}: {output:?}");
    // One that was stopped does not end by itself.
    run(Command::new("kill").args(["-KILL", &client.id().to_string()]));
    output.stderr
}

fn signal(signal: &str, process: &Process) {
    run(Command::new("kill").args([signal, &process.id().to_string()]));
}

/// Runs in which a server has nothing to do but wait.
const ENDLESS_RUNS: [&str; 3] = ["perf read-bw -D 3000", "perf send-bw -D 3000", "ping -n 2000000000"];

/// Whether a server says that nothing comes any more, or, where it has something to send, that nobody acknowledges it.
fn gave_up(said: &str) -> bool {
    said.contains(" for 2 s") || said.contains("the peer stopped answering")
}

#[test]
fn a_client_that_falls_silent_in_a_run_does_not_hold_the_server() {
    for (number, args) in ENDLESS_RUNS.into_iter().enumerate() {
        let said = struck(memif(&format!("stop{number}")), 18639, args, "localhost", |client, _| {
            signal("-STOP", client)
        });
        assert!(gave_up(&said), "{args}: {said}");
    }
}

#[test]
fn a_client_that_is_killed_ends_the_run() {
    for (number, args) in ENDLESS_RUNS.into_iter().enumerate() {
        let said = struck(memif(&format!("kill{number}")), 18640, args, "localhost", |client, _| {
            signal("-KILL", client)
        });
        assert!(gave_up(&said) || said.contains("the peer "), "{args}: {said}");
    }
}

#[test]
fn a_client_whose_host_vanishes_does_not_hold_the_server() {
    for args in ENDLESS_RUNS {
        let said = struck(veth("af_packet", 1500), 18641, args, "10.0.0.1", |_, far| {
            run(far.command(Path::new("ip")).args(["link", "set", "v1", "down"]));
        });
        assert!(gave_up(&said), "{args}: {said}");
    }
}

fn kv_get() -> PathBuf {
    let path = roce().with_file_name("examples").join("kv_get");
    assert!(path.exists(), "{} is not there: run `cargo build -p verbs --examples` first", path.display());
    path
}

#[test]
fn the_example_serves_in_spite_of_strangers() {
    let _turn = turn();
    // Its TCP port is fixed, as it is an example.
    const KV_PORT: u16 = 18516;
    let sides = memif("kv");
    let mut command = sides[0].command(&kv_get());
    let server = Process::start(command.args(["--port", &sides[0].port]));
    sides[0].wait_listen(KV_PORT);
    drop(connection(KV_PORT));
    let _silent: Vec<_> = (0..3).map(|_| connection(KV_PORT)).collect();
    let mut endless = connection(KV_PORT);
    assert!(endless.write_all(&vec![b'0'; ENDLESS_BYTES]).is_err(), "the server closes it before the end");
    let multicast = "0000:000011:000001:ff020000000000000000000000000001 \nready\n";
    assert!(!answer(KV_PORT, multicast.as_bytes()).contains("ready"));
    let kib = peak_resident_kib(server.id());
    assert!(kib < SERVER_KIB_MAX, "the strangers took {kib} KiB");
    let mut command = sides[1].command(&kv_get());
    let client = Process::start(command.args(["--port", &sides[1].port, "localhost", "pear"]));
    let output = client.finish(TIMEOUT);
    assert_eq!(output.stdout, "pear = green\n", "{output:?}\n{}", server.stderr());
}
