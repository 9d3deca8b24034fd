//! The TCP exchange of `roce perf` and `roce ping`, with strangers at its port.

use std::time::Duration;

use super::network::{Network, Ports};
use crate::live::{Process, roce, turn};

/// How long one command may take on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(120);
const TCP_PORT: u16 = 18620;

/// What strangers do, each on a connection of its own: a line on stdout when it is done; it stays until it ends.
const STRANGERS: &str = "
import socket, sys
def connection():
    return socket.create_connection(('10.0.0.2', int(sys.argv[1])))
connection().close()                        # a port scan
scan = connection(); scan.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b'\\1\\0\\0\\0\\0\\0\\0\\0'); scan.close()
silent = connection()                       # opened, and nothing said
endless = connection()                      # a line without end
endless.settimeout(1)
try:
    for _ in range(64): endless.sendall(b'a' * (1 << 20))
except OSError:
    pass
junk = connection(); junk.sendall(b'GET / HTTP/1.1\\r\\n\\r\\n')
print('done', flush=True)
sys.stdin.read()
";

/// Runs `args` at host b while strangers come, and then as the client at host a.
fn strangers_are_sent_away(args: &str) {
    let _turn = turn();
    let network = Network::new(Ports::Kernel);
    let port = TCP_PORT.to_string();
    let command = |number: usize, host: &[&str]| {
        let mut command = network.hosts[number].command(roce());
        command.args(args.split_whitespace()).args(["--port", &format!("af_packet:h{number}"), "-p", &port]);
        command.args(host);
        command
    };
    let server = Process::start(&mut command(1, &[]));
    network.hosts[1].wait_listen(TCP_PORT);
    let mut strangers = network.attacker_command("python3");
    let mut strangers = Process::start(strangers.args(["-c", STRANGERS, &port]));
    assert_eq!(strangers.line(TIMEOUT), "done");
    let client = Process::start(&mut command(0, &["10.0.0.2"]));
    let outputs = [client.finish(TIMEOUT), server.finish(TIMEOUT)];
    assert!(outputs.iter().all(|output| output.status.success()), "{args}: {outputs:?}");
}

#[test]
fn strangers_do_not_keep_a_client_from_perf() {
    strangers_are_sent_away("perf write-bw --verify -n 100 -s 4096");
}

#[test]
fn strangers_do_not_keep_a_client_from_ping() {
    strangers_are_sent_away("ping -n 100 -c");
}
