//! The network: two hosts and an attacker on one switch.
//!
//! ```text
//!   kernel hosts                                  dedicated ports
//!
//!   host a    h0 ---- s0 \                        tap rdma0 \
//!   host b    h1 ---- s1 -- br0                   tap rdma1 -- br0
//!   attacker  h2 ---- s2 /                        h2 -- s2  /
//! ```
//! A dedicated port is a tap in the switch's namespace; the stack alone answers for its address.

use std::io::Write as _;
use std::net::Ipv4Addr;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use roce::id::{Gid, Mac};
use roce::qp::PathMtu;
use roce::queue::WcStatus;
use tests::protocol::{Op, from_hex, to_hex};

use crate::live::{End, Namespace, Peer, Process, Settings, TARGET, capture_file, connect, run};

/// How long the attacker may take to send what it is given.
const TIMEOUT: Duration = Duration::from_secs(60);
/// The attacker's Ethernet address.
pub(super) const ATTACKER_MAC: Mac = Mac([2, 0, 0, 0, 0, 0x66]);
/// Addresses of the hosts.
const IPS: [Ipv4Addr; 2] = [Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(10, 0, 0, 2)];
/// Bytes of an honest message: one packet.
pub(super) const MESSAGE_BYTES: usize = 512;

const PATH_MTU: PathMtu = PathMtu::Mtu1024;

/// What kind of port both hosts have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ports {
    /// `af_packet` on an interface of the kernel's.
    Kernel,
    /// A tap, whose address is the stack's alone.
    Dedicated,
}

impl Ports {
    pub(super) const ALL: [Ports; 2] = [Ports::Kernel, Ports::Dedicated];
}

/// The switch, and a host's end of it in each of three namespaces.
pub(super) struct Network {
    switch: Namespace,
    /// The namespaces of hosts a and b.
    pub(super) hosts: [Namespace; 2],
    attacker: Namespace,
}

impl Network {
    pub(super) fn new(ports: Ports) -> Network {
        let switch = Namespace::new();
        switch.ip("link add br0 type bridge mcast_snooping 0");
        switch.ip("link set br0 up");
        let host = |number: u8, mac: Mac| {
            let namespace = switch.beside();
            let (near, far) = (format!("h{number}"), format!("s{number}"));
            namespace.link(&near, &switch, &far, 1500);
            namespace.ip(&format!("link set {near} address {mac}"));
            // Of dedicated ports the kernel has no address: it would answer for it too.
            if ports == Ports::Kernel || number == 2 {
                namespace.ip(&format!("address add 10.0.0.{}/24 dev {near}", number + 1));
            }
            switch.ip(&format!("link set {far} master br0"));
            namespace.wait_up(&near);
            namespace
        };
        let hosts = [0, 1].map(|number| host(number, host_mac(number)));
        let attacker = host(2, ATTACKER_MAC);
        Network { switch, hosts, attacker }
    }

    /// A peer at host `number`.
    pub(super) fn peer(&self, ports: Ports, number: usize) -> End {
        let capture = format!("pcap={}", capture_file(["a", "b"][number]).display());
        let program = Path::new(Peer::program());
        let end = |namespace: &Namespace, port: &str| {
            let peer = Peer::start(namespace.command(program).args([port, &capture]));
            End::new(peer, 1)
        };
        match ports {
            Ports::Kernel => end(&self.hosts[number], &format!("af_packet:h{number}")),
            Ports::Dedicated => {
                let end = end(&self.switch, &format!("tap:rdma{number},ip={}/24", IPS[number]));
                self.switch.ip(&format!("link set rdma{number} master br0 up"));
                end
            }
        }
    }

    /// A command at the attacker's host.
    pub(super) fn attacker_command(&self, program: &str) -> Command {
        self.attacker.command(program)
    }

    /// Gives host `number`'s port another address, for the program that opens it next.
    fn change_mac(&self, ports: Ports, number: usize) {
        if ports == Ports::Kernel {
            self.hosts[number].ip(&format!("link set h{number} address 02:00:00:00:01:0{number}"));
        }
        // A tap's is made up at random each time.
    }

    /// The address of host `number`'s port.
    fn mac(&self, ports: Ports, number: usize) -> Mac {
        let (namespace, interface) = match ports {
            Ports::Kernel => (&self.hosts[number], format!("h{number}")),
            Ports::Dedicated => (&self.switch, format!("rdma{number}")),
        };
        let link = run(namespace.command("ip").args(["-o", "link", "show", &interface]));
        let text = link.split_whitespace().skip_while(|word| *word != "link/ether").nth(1);
        let Mac([a, b, c, d, e, last]) = text.and_then(|text| text.parse().ok()).expect("an Ethernet device");
        // Of a tap this is the kernel's end; the stack's differs in the last bit.
        Mac([a, b, c, d, e, last ^ u8::from(ports == Ports::Dedicated)])
    }
}

fn host_mac(number: u8) -> Mac {
    Mac([2, 0, 0, 0, 0, 0x0A + number])
}

/// The attacker's packet socket.
pub(super) struct Attacker {
    process: Process,
}

impl Attacker {
    fn new(network: &Network) -> Attacker {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/attack/attacker.py");
        let mut process = Process::start(network.attacker_command("python3").args([script, "h2"]));
        assert_eq!(process.line(TIMEOUT), "ready");
        Attacker { process }
    }

    fn ask(&mut self, command: &str) -> String {
        let stdin = self.process.stdin.as_mut().expect("open while the attacker lives");
        stdin.write_all(format!("{command}\n").as_bytes()).expect("the attacker reads");
        self.process.line(TIMEOUT)
    }

    /// Sends `frames` in order, `times` times over; they have reached the switch's other ports when it returns.
    pub(super) fn send(&mut self, times: usize, frames: &[Vec<u8>]) {
        let hex: Vec<String> = frames.iter().map(|frame| to_hex(frame)).collect();
        let sent = self.ask(&format!("send {times} {}", hex.join(" ")));
        assert_eq!(sent, (times * frames.len()).to_string());
    }

    /// The frames of others that have come in since the last call, once none has come for a while.
    pub(super) fn seen(&mut self) -> Vec<Vec<u8>> {
        self.ask("quiet");
        let frames = self.ask("seen");
        frames.split_whitespace().map(|hex| from_hex(hex).expect("the attacker writes hexadecimal")).collect()
    }
}

/// Hosts a and b with a connection, and the attacker.
pub(super) struct Stage {
    pub(super) ends: [End; 2],
    pub(super) attacker: Attacker,
    pub(super) macs: [Mac; 2],
    /// Packets that each host has sent as requester.
    sent_pkts: [u32; 2],
    pub(super) network: Network,
}

impl Stage {
    /// A connection over which both hosts have written once.
    pub(super) fn new(ports: Ports) -> Stage {
        let network = Network::new(ports);
        let ends = [0, 1].map(|number| network.peer(ports, number));
        let macs = [0, 1].map(|number| network.mac(ports, number));
        let attacker = Attacker::new(&network);
        let mut stage = Stage { ends, attacker, macs, sent_pkts: [0; 2], network };
        stage.connect();
        stage.honest_write(0);
        stage.honest_write(1);
        stage
    }

    /// Host `from` writes one message of one packet to the other, which must arrive and be acknowledged.
    pub(super) fn honest_write(&mut self, from: usize) {
        let [a, b] = &mut self.ends;
        let (requester, responder) = if from == 0 { (a, b) } else { (b, a) };
        let number = self.sent_pkts[from];
        let bytes = vec![number as u8 + 1; MESSAGE_BYTES];
        requester.write(0, &bytes);
        let wr_id = u64::from(number);
        requester.post_send(vec![requester.request(wr_id, Op::Write, 0, MESSAGE_BYTES, responder, TARGET)]);
        let done = requester.poll_one();
        if !done.is(WcStatus::Success) {
            let counters = [requester, responder].map(|end| {
                let mut counters = end.peer.counters();
                counters.retain(|_, count| *count > 0);
                counters
            });
            panic!("{done:?}; counters of the requester and the responder: {counters:?}");
        }
        assert!(responder.read(TARGET, MESSAGE_BYTES) == bytes, "an acknowledged message is not in memory");
        self.sent_pkts[from] += 1;
    }

    /// Host `from` reads `len_bytes` of the other's memory; returns the PSN of the request.
    pub(super) fn honest_read(&mut self, from: usize, len_bytes: u32) -> u32 {
        let psn = self.next_psn(from);
        let [a, b] = &mut self.ends;
        let (requester, responder) = if from == 0 { (a, b) } else { (b, a) };
        let len = len_bytes as usize;
        requester.post_send(vec![requester.request(u64::MAX, Op::Read, TARGET, len, responder, 0)]);
        let done = requester.poll_one();
        assert!(done.is(WcStatus::Success), "{done:?}");
        self.sent_pkts[from] += len_bytes.div_ceil(PATH_MTU.bytes());
        psn
    }

    /// Host `number` goes and comes back with another Ethernet address, and is connected anew.
    pub(super) fn move_host(&mut self, ports: Ports, number: usize) {
        self.ends[number].peer.end();
        self.network.change_mac(ports, number);
        self.ends[number] = self.network.peer(ports, number);
        self.macs[number] = self.network.mac(ports, number);
        self.connect();
    }

    fn connect(&mut self) {
        let [a, b] = &mut self.ends;
        connect(a, b, &Settings::at(PATH_MTU));
        self.sent_pkts = [0; 2];
    }

    /// The PSN of the next packet that host `from` sends as requester.
    pub(super) fn next_psn(&self, from: usize) -> u32 {
        (self.ends[from].qp_reply().psn + self.sent_pkts[from]) & 0xFF_FFFF
    }

    /// The GID of host `number`.
    pub(super) fn gid(&self, number: usize) -> Gid {
        Gid::from(self.ends[number].qp_reply().gid)
    }
}
