//! Tests of shared ports. Each test has a network namespace of its own, and a namespace `peer` at the other end of a
//! veth pair.

use std::net::{IpAddr, TcpListener, UdpSocket};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use roce::engine::QpnPrefix;
use roce::id::{Gid, Mac};
use roce::neighbour::Resolution;

use super::*;

/// Environment variable that is set in the child process that runs a test inside its namespaces.
const INSIDE: &str = "ROCE_TEST_IN_NAMESPACE";

const OWN_MAC: Mac = Mac([2, 0, 0, 0, 0, 0xA]);
const PEER_MAC: Mac = Mac([2, 0, 0, 0, 0, 0xB]);

/// Creates the veth pair v0 and v1 (v1 in `peer`) with addresses and routes, and the pair d0 and d1, which is down.
const SET_UP: &str = "
    mount -t tmpfs tmpfs /run
    ip netns add peer
    ip link add v0 address 02:00:00:00:00:0a mtu 4200 type veth \
        peer name v1 netns peer address 02:00:00:00:00:0b mtu 4200
    ip link add d0 type veth peer name d1
    ip address add 10.9.0.1/24 dev v0
    ip address add 10.8.0.1/16 dev v0
    ip address add 2001:db8::1/64 dev v0 nodad
    ip link set v0 up
    ip -n peer address add 10.9.0.2/24 dev v1
    ip -n peer address add 2001:db8::2/64 dev v1 nodad
    ip -n peer link set v1 up
    ip -n peer link set lo up
    ip route add default via 10.9.0.200 dev v0 metric 20
    ip route add default via 10.9.0.254 dev v0 metric 10
    ip route add default via 10.9.0.3 dev v0 table 77
";

/// Runs `body`, the code of the test `name`, in a child process of the test program, as root of new namespaces.
fn in_namespace(name: &str, body: impl FnOnce()) {
    in_namespaces(&["--user", "--map-root-user", "--net", "--mount"], name, body);
}

/// As [`in_namespace`], with namespaces that the options `kinds` of unshare name.
fn in_namespaces(kinds: &[&str], name: &str, body: impl FnOnce()) {
    if std::env::var_os(INSIDE).is_some() {
        shell(SET_UP);
        return body();
    }
    let (_, module) = module_path!().split_once("::").unwrap();
    let output = Command::new("unshare")
        .args(kinds)
        .arg("--")
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", &format!("{module}::{name}"), "--nocapture"])
        .env(INSIDE, "1")
        .output()
        .expect("this test needs `unshare` of util-linux");
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && out.contains("1 passed"), "{out}{err}");
}

fn shell(script: &str) {
    let status = Command::new("sh").args(["-ec", script]).status().unwrap();
    assert!(status.success(), "this test needs `ip` of iproute2, and user and network namespaces: {script}");
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn v0() -> Interface {
    Interface::read("v0").unwrap()
}

fn wait_for<T>(what: &str, mut attempt: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + Duration::from_secs(10);
    loop {
        if let Some(result) = attempt() {
            return result;
        }
        assert!(Instant::now() < end, "{what}: not within ten seconds");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn an_interface_is_read_as_it_is_configured() {
    in_namespace("an_interface_is_read_as_it_is_configured", || {
        let interface = v0();
        let expected = Interface {
            name: "v0".to_owned(),
            index: interface.index,
            mac: OWN_MAC,
            mtu_bytes: 4200,
            is_up: true,
            has_carrier: true,
            addresses: vec![
                (ip("10.9.0.1"), 24),
                (ip("10.8.0.1"), 16),
                (ip("2001:db8::1"), 64),
                (OWN_MAC.link_local().into(), 64),
            ],
            gateway_v4: Some("10.9.0.254".parse().unwrap()),
            gateway_v6: None,
        };
        assert_eq!(interface, expected);
        assert!(interface.require_up().is_ok());
        shell("ip -n peer link set v1 down");
        assert!(v0().is_up && !v0().has_carrier);

        shell("ip -6 route add default via fe80::fe dev v0; ip route delete default via 10.9.0.254");
        let interface = v0();
        assert_eq!(interface.gateway_v4, Some("10.9.0.200".parse().unwrap()));
        assert_eq!(interface.gateway_v6, Some("fe80::fe".parse().unwrap()));
    });
}

#[test]
fn ports_are_described_as_they_would_be_opened() {
    in_namespace("ports_are_described_as_they_would_be_opened", || {
        let describe = |name: &str| crate::describe(&name.parse().unwrap());
        let names = [
            "af_packet:v0",
            "memif:@described,ip=10.7.0.1/24,ip=fd00::7/64,mtu=1500",
            "eal:net_null0,mac=2:0:0:0:0:7",
            // The address of `ip=` is that of GID 0. The GID table has a second entry of this address, on VLAN 7.
            "eal:net_null1,mac=2:0:0:0:0:8,vlan=7,ip=fe80::ff:fe00:8/64",
        ];
        let described = names.map(|name| describe(name).unwrap());
        let [shared, memif, eal, _] = &described;
        assert_eq!((&shared.interface, shared.mac, shared.is_up), (&Some(v0()), Some(OWN_MAC), Some(true)));
        let gid = |text: &str| Some(Gid::from(ip(text)));
        assert_eq!(shared.gids[0], (0, Some(OWN_MAC.link_local().into())));
        assert_eq!(shared.gids[1..], [(1, gid("10.9.0.1")), (2, gid("10.8.0.1")), (3, gid("2001:db8::1"))]);
        assert_eq!((memif.mac, memif.is_up, memif.mtu_bytes), (None, None, Some(1500)));
        assert_eq!(memif.gids, [(0, None), (1, gid("10.7.0.1")), (2, gid("fd00::7"))]);
        let own = Mac([2, 0, 0, 0, 0, 7]);
        assert_eq!((eal.mac, eal.is_up, eal.interface.as_ref()), (Some(own), None, None));
        assert_eq!(eal.gids, [(0, Some(own.link_local().into()))]);
        let tap = ["tap:t0", "tap:t0,mtu=4200"].map(|name| describe(name).unwrap().mtu_bytes);
        assert_eq!(tap, [None, Some(4200)], "the MTU of a device is read when it is opened");

        let down = describe("af_packet:d0").unwrap();
        assert_eq!((down.is_up, down.interface.map(|interface| interface.is_up)), (Some(false), Some(false)));
        for name in
            ["af_packet:v0,ip=10.9.0.1/24", "memif:m,mtu=9000", "memif:m,ip=224.0.0.1/4", "af_packet:x7"]
        {
            assert!(describe(name).is_err(), "{name}");
        }
        assert!(dpdk_ffi::Eal::get().is_none(), "DPDK was started");

        for (name, described) in names.into_iter().zip(described) {
            let context = crate::Context::open(&name.parse().unwrap(), &crate::DeviceOptions::default());
            let context = context.unwrap();
            let attr = context.attr();
            assert_eq!((&described.port, described.kind, described.caps), (&attr.port, attr.kind, attr.caps));
            assert!(described.mac.is_none_or(|mac| mac == attr.mac), "{name}");
            assert_eq!(described.mtu_bytes, Some(attr.mtu_bytes), "{name}");
            assert!(described.is_up.is_none_or(|is_up| is_up == attr.is_up), "{name}");
            let known = described.gids.iter().zip(&attr.gids);
            assert_eq!(described.gids.len(), attr.gids.len(), "{name}");
            assert!(known.into_iter().all(|((at, gid), opened)| gid.is_none_or(|gid| (*at, gid) == *opened)));
        }
        assert!(dpdk_ffi::Eal::get().is_some(), "a port was opened");
    });
}

#[test]
fn a_gateway_among_several_hops_is_found() {
    in_namespace("a_gateway_among_several_hops_is_found", || {
        shell(
            "ip address add 10.7.0.1/24 dev d0; ip link set d0 up; ip link set d1 up
             ip route delete default metric 10; ip route delete default metric 20
             ip route add default nexthop via 10.7.0.9 dev d0 nexthop via 10.9.0.9 dev v0",
        );
        assert_eq!(v0().gateway_v4, Some("10.9.0.9".parse().unwrap()));
        assert_eq!(Interface::read("d0").unwrap().gateway_v4, Some("10.7.0.9".parse().unwrap()));
    });
}

#[test]
fn interfaces_that_cannot_serve_are_refused_with_what_to_do() {
    in_namespace("interfaces_that_cannot_serve_are_refused_with_what_to_do", || {
        for name in ["nosuch0", "a-name-longer-than-any", "", "v0/", "a b"] {
            let error = Interface::read(name).unwrap_err();
            assert!(matches!(&error, KernelError::NoInterface(n) if n == name), "{name}: {error:?}");
            assert!(error.to_string().contains("ip link"));
        }
        assert!(matches!(Interface::read("lo"), Err(KernelError::NotEthernet(_))));
        let down = Interface::read("d0").unwrap();
        let error = down.require_up().unwrap_err().to_string();
        assert!(error.contains("ip link set d0 up"), "{error}");
    });
}

#[test]
fn the_kernel_finds_neighbours_when_asked() {
    in_namespace("the_kernel_finds_neighbours_when_asked", || {
        let mut neighbours = KernelNeighbours::open(&v0()).unwrap();
        for address in [ip("10.9.0.2"), ip("2001:db8::2"), PEER_MAC.link_local().into()] {
            let mac = wait_for("a neighbour that is there", || match neighbours.resolve(address).unwrap() {
                Resolution::Known(mac) => Some(mac),
                Resolution::Pending => None,
                // While the link-local address of v0 is tentative, `address` may be unreachable.
                Resolution::Unreachable => None,
            });
            assert_eq!(mac, PEER_MAC, "{address}");
        }
        for _ in 0..3 {
            assert_eq!(neighbours.resolve(ip("10.9.0.77")).unwrap(), Resolution::Pending, "nobody is there");
        }
        assert_eq!(neighbours.resolve(ip("2600::1")).unwrap(), Resolution::Unreachable, "no route");
        shell("ip neighbour add 10.9.0.78 lladdr 02:00:00:00:00:0b dev v0 nud permanent");
        assert_eq!(neighbours.resolve(ip("10.9.0.78")).unwrap(), Resolution::Known(PEER_MAC));
        // The neighbour entry of the interface v0 does not apply to the interface d1.
        let mut others = KernelNeighbours::open(&Interface::read("d1").unwrap()).unwrap();
        assert_ne!(others.resolve(ip("10.9.0.78")).unwrap(), Resolution::Known(PEER_MAC));
    });
}

/// Sends a datagram from `peer` to each of `destinations`, `ADDRESS/PORT`; this is also its text. Returns the texts that
/// `sockets` receive, until the text of the last destination, which must be that of the last socket.
fn received_of(sockets: &[UdpSocket; 2], destinations: &[&str]) -> Vec<String> {
    destinations.iter().for_each(|text| in_peer(&format!("echo -n {text} >/dev/udp/{text}")));
    let mut received = Vec::new();
    while received.last().map(String::as_str) != destinations.last().copied() {
        received.push(wait_for("the datagram sent last", || {
            let mut bytes = [0; 100];
            let len = sockets.iter().find_map(|socket| socket.recv(&mut bytes).ok())?;
            Some(String::from_utf8_lossy(&bytes[..len]).into_owned())
        }));
    }
    received
}

/// Runs a script of bash, whose files /dev/tcp and /dev/udp are sockets, in `peer`.
fn in_peer(script: &str) {
    let status =
        Command::new("ip").args(["netns", "exec", "peer", "timeout", "10", "bash", "-c", script]).status();
    assert!(status.unwrap().success(), "{script}");
}

/// Not in a user namespace: there, the kernel loads no program for tcx.
#[test]
fn early_drop_takes_roce_packets_to_the_interface_only() {
    let name = "early_drop_takes_roce_packets_to_the_interface_only";
    in_namespaces(&["--net", "--mount"], name, || {
        shell(
            "ip link set lo up; ip address add 10.7.0.1/32 dev lo; ip address delete 10.8.0.1/16 dev v0
             ip link add link v0 name m0 address 02:00:00:00:00:0c type macvlan mode bridge; ip link set m0 up
             ip address add 10.8.0.1/32 dev m0; ip -n peer route add default via 10.9.0.1
             for conf in all v0 m0; do echo 0 >/proc/sys/net/ipv4/conf/$conf/rp_filter; done",
        );
        let sockets = [4792, 4791].map(|port| UdpSocket::bind(("::", port)).unwrap());
        sockets.iter().for_each(|socket| socket.set_nonblocking(true).unwrap());
        let early_drop = EarlyDrop::attach(&v0()).expect("Linux 6.6, CAP_BPF and CAP_NET_ADMIN");

        // Dropped: to two addresses of v0. Not dropped: another UDP port, and addresses of other interfaces.
        let received = received_of(
            &sockets,
            &["10.9.0.1/4791", "2001:db8::1/4791", "10.9.0.1/4792", "10.8.0.1/4791", "10.7.0.1/4791"],
        );
        assert_eq!(received, ["10.9.0.1/4792", "10.8.0.1/4791", "10.7.0.1/4791"]);

        // Not dropped: TCP, and fragments.
        let _listener = TcpListener::bind("10.9.0.1:4791").unwrap();
        in_peer("true >/dev/tcp/10.9.0.1/4791");
        in_peer("ip link set v1 mtu 1500; printf %3000s . >/dev/udp/10.9.0.1/4791");
        let len = wait_for("a datagram in fragments", || sockets[1].recv(&mut [0; 4000]).ok());
        assert_eq!(len, 3000);

        // Not dropped: the MAC of another interface.
        shell("ip -n peer neighbour replace 10.9.0.1 lladdr 02:00:00:00:00:0c dev v1 nud permanent");
        assert_eq!(received_of(&sockets, &["10.9.0.1/4791"]), ["10.9.0.1/4791"]);
        shell("ip -n peer neighbour replace 10.9.0.1 lladdr 02:00:00:00:00:0a dev v1 nud permanent");

        shell(
            "ip address add 10.9.0.7/24 dev v0; ip address delete 2001:db8::1/64 dev v0
               ip address add 2001:db8::1/128 dev lo",
        );
        assert_eq!(received_of(&sockets, &["10.9.0.7/4791", "10.7.0.1/4791"]).len(), 2);
        early_drop.set_addresses(&v0()).unwrap();
        let received = received_of(&sockets, &["10.9.0.7/4791", "10.9.0.1/4791", "2001:db8::1/4791"]);
        assert_eq!(received, ["2001:db8::1/4791"]);
        drop(early_drop);
        assert_eq!(received_of(&sockets, &["10.9.0.1/4791"]), ["10.9.0.1/4791"]);
    });
}

/// Returns two sums over IPv4 and IPv6: the number of UDP datagrams that the kernel refused because their UDP port has
/// no socket, and the number of UDP datagrams that a socket dropped.
fn refused_and_dropped() -> (u64, u64) {
    let v6 = std::fs::read_to_string("/proc/net/snmp6").unwrap();
    let v6 = |name: &str| {
        let line = v6.lines().find(|line| line.split_whitespace().next() == Some(name)).unwrap();
        line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap()
    };
    let v4 = std::fs::read_to_string("/proc/net/snmp").unwrap();
    let mut lines = v4.lines().filter(|line| line.starts_with("Udp:"));
    let (names, values) = (lines.next().unwrap(), lines.next().unwrap());
    let v4 = |name: &str| {
        let at = names.split_whitespace().position(|n| n == name).unwrap();
        values.split_whitespace().nth(at).unwrap().parse::<u64>().unwrap()
    };
    (v4("NoPorts") + v6("Udp6NoPorts"), v4("InErrors") + v6("Udp6InErrors"))
}

#[test]
fn the_guard_keeps_the_kernel_from_refusing_roce_packets() {
    in_namespace("the_guard_keeps_the_kernel_from_refusing_roce_packets", || {
        let send_both = || {
            for address in ["10.9.0.1", "2001:db8::1"] {
                shell(&format!("ip netns exec peer bash -c 'echo x > /dev/udp/{address}/4791'"));
            }
        };
        send_both();
        wait_for("the kernel refuses both", || (refused_and_dropped() == (2, 0)).then_some(()));

        let guard = PortGuard::hold(&v0()).unwrap();
        let second = PortGuard::hold(&v0()).expect("guards share the port");
        send_both();
        wait_for("both are dropped", || (refused_and_dropped().1 == 2).then_some(()));
        assert_eq!(refused_and_dropped(), (2, 2));
        drop(guard);
        send_both();
        wait_for("the second guard drops both", || (refused_and_dropped() == (2, 4)).then_some(()));

        drop(second);
        send_both();
        wait_for("the kernel refuses both again", || (refused_and_dropped() == (4, 4)).then_some(()));
    });
}

#[test]
fn a_port_in_other_hands_is_an_error_that_names_soft_roce() {
    in_namespace("a_port_in_other_hands_is_an_error_that_names_soft_roce", || {
        for address in ["0.0.0.0:4791", "[::]:4791"] {
            let other = UdpSocket::bind(address).unwrap();
            let error = PortGuard::hold(&v0()).unwrap_err();
            assert!(matches!(error, KernelError::PortTaken { .. }), "{error:?}");
            assert!(error.to_string().contains("rdma link delete"), "{error}");
            drop(other);
        }
        PortGuard::hold(&v0()).unwrap();
    });
}

/// Returns the configuration of interface v0 and its permanent neighbours, as `ip` prints them.
fn state_of_v0() -> String {
    let commands = ["-d link show dev v0", "address show dev v0", "-4 neighbour show dev v0 nud permanent"];
    let commands = commands.into_iter().chain(["-6 neighbour show dev v0 nud permanent"]);
    commands.map(|args| output(&format!("ip {args}"))).collect::<Vec<_>>().join("\n")
}

fn output(command: &str) -> String {
    let output = Command::new("sh").args(["-ec", command]).output().unwrap();
    assert!(output.status.success(), "{command}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// Opens a port on v0 with the prefix of the QPNs 0x400000 to 0x43FFFF.
fn open_v0() -> crate::port::Opened {
    let prefix = QpnPrefix::new(0x40 >> 2, 6).unwrap();
    crate::port::open(&"af_packet:v0".parse().unwrap(), &dpdk_ffi::EalConfig::default(), prefix).unwrap()
}

#[test]
fn a_port_leaves_the_interface_as_it_was() {
    in_namespace("a_port_leaves_the_interface_as_it_was", || {
        shell(
            "ip link set v0 promisc on
             ip neighbour add 10.9.0.78 lladdr 02:00:00:00:00:78 dev v0 nud permanent
             ip neighbour add 2001:db8::78 lladdr 02:00:00:00:00:78 dev v0 nud permanent",
        );
        // The configuration of v0 is stable only when its link-local address is no longer tentative.
        wait_for("addresses", || (!output("ip address show dev v0").contains("tentative")).then_some(()));
        let before = state_of_v0();
        assert!(before.contains("promiscuity 1") && before.matches("PERMANENT").count() == 2, "{before}");
        let opened = open_v0();
        assert_eq!(state_of_v0(), before, "while it is open");
        drop(opened);
        assert_eq!(state_of_v0(), before, "after it was closed");
    });
}

#[test]
fn only_roce_packets_to_the_interface_reach_the_port() {
    in_namespace("only_roce_packets_to_the_interface_reach_the_port", || {
        // With permanent neighbour entries, no UDP datagram waits for ARP or neighbour discovery.
        shell(
            "ip -n peer neighbour replace 10.9.0.50 lladdr 02:00:00:00:00:99 dev v1 nud permanent
             ip -n peer neighbour replace 10.9.0.1 lladdr 02:00:00:00:00:0a dev v1 nud permanent
             ip neighbour replace 10.9.0.2 lladdr 02:00:00:00:00:0b dev v0 nud permanent
             ip -n peer neighbour replace 2001:db8::1 lladdr 02:00:00:00:00:0a dev v1 nud permanent",
        );
        let mut opened = open_v0();
        // The sixth payload byte of a UDP datagram is the high byte of the destination QPN: `@` is 0x40.
        let send = |address: &str, port: u16| {
            let command = format!("echo QPN: @ {address} > /dev/udp/{address}/{port}");
            shell(&format!("ip netns exec peer bash -c '{command}'"));
        };
        // Frames that the filter drops: UDP datagrams to another UDP port, host or process; ICMP echo; an ARP
        // broadcast; a frame that the kernel sends on `v0`, the interface of the port.
        shell("ip netns exec peer bash -c 'echo QPN: 0 > /dev/udp/10.9.0.1/4791'");
        send("10.9.0.1", 9);
        send("2001:db8::1", 9);
        send("10.9.0.50", 4791);
        shell("ip netns exec peer ping -c 1 -W 1 10.9.0.1 >/dev/null || true");
        shell("ip netns exec peer ping -c 1 -W 1 10.9.0.77 >/dev/null || true");
        shell("bash -c 'echo QPN: @ out > /dev/udp/10.9.0.2/4791'");
        // Frames that the filter accepts, sent last: a RoCE packet over IPv4, and a RoCE packet over IPv6.
        send("10.9.0.1", 4791);
        send("2001:db8::1", 4791);
        let mut frames = Vec::new();
        wait_for("the last frame", || {
            roce::port::Port::rx_burst(&mut opened.port, &mut frames, 32);
            let is_last = |frame: &dpdk_ffi::Mbuf| frame.as_ref().ends_with(b"2001:db8::1\n");
            frames.iter().any(|frame| is_last(frame) && frame.as_ref()[12..14] == [0x86, 0xDD]).then_some(())
        });
        let texts = frames.iter().map(|frame| format!("{:02x?}", frame.as_ref())).collect::<Vec<_>>();
        assert_eq!(frames.len(), 2, "{texts:#?}");
    });
}

/// The packet socket of DPDK's af_packet driver receives the frames of all interfaces until the socket is bound to v0.
/// Therefore this test sends frames over `lo` while the port is opened.
#[test]
fn no_frame_passes_the_filter_while_the_port_is_opened() {
    in_namespace("no_frame_passes_the_filter_while_the_port_is_opened", || {
        shell("ip link set lo up");
        let (socket, is_over) = (UdpSocket::bind("127.0.0.1:0").unwrap(), AtomicBool::new(false));
        std::thread::scope(|scope| {
            let flood = || {
                while !is_over.load(Ordering::Relaxed) {
                    socket.send_to(b"to nobody", "127.0.0.2:9").unwrap();
                }
            };
            scope.spawn(flood);
            let received = || {
                let (mut opened, mut frames) = (open_v0(), Vec::new());
                roce::port::Port::rx_burst(&mut opened.port, &mut frames, 32)
            };
            let received: Vec<usize> = (0..4).map(|_| received()).collect();
            is_over.store(true, Ordering::Relaxed);
            assert_eq!(received, [0; 4]);
        });
    });
}

fn way(context: &crate::Context, address: &str) -> Resolution {
    context.shared().lock().unwrap().engine.resolve(ip(address).into())
}

fn open_device() -> crate::Context {
    crate::Context::open(&"af_packet:v0".parse().unwrap(), &crate::DeviceOptions::default()).unwrap()
}

const LONG: Duration = Duration::from_secs(10);

#[test]
fn a_neighbour_that_moves_is_followed() {
    in_namespace("a_neighbour_that_moves_is_followed", || {
        const MOVED: Mac = Mac([2, 0, 0, 0, 0, 0xC]);
        let device = open_device();
        for address in ["10.9.0.2", "2001:db8::2"] {
            device.resolve(ip(address).into(), 1, LONG).unwrap();
            assert_eq!(way(&device, address), Resolution::Known(PEER_MAC));
        }
        // Changes the neighbour entries as the kernel does when it receives a gratuitous ARP.
        for address in ["10.9.0.2", "2001:db8::2"] {
            shell(&format!("ip neighbour replace {address} lladdr 02:00:00:00:00:0c dev v0 nud reachable"));
            wait_for("the new address", || (way(&device, address) == Resolution::Known(MOVED)).then_some(()));
        }
        // After the deletion of the neighbour entry, the kernel resolves 10.9.0.2 again, to the MAC of v1.
        shell("ip neighbour delete 10.9.0.2 dev v0");
        wait_for("the old address", || {
            (way(&device, "10.9.0.2") == Resolution::Known(PEER_MAC)).then_some(())
        });
    });
}

#[test]
fn the_kernels_routes_say_where_peers_off_the_link_are() {
    in_namespace("the_kernels_routes_say_where_peers_off_the_link_are", || {
        shell(
            "ip route add 10.50.0.0/16 via 10.9.0.2 dev v0
             ip -6 route add 2001:db8:50::/48 via 2001:db8::2 dev v0
             ip neighbour add 10.9.0.78 lladdr 02:00:00:00:00:78 dev v0 nud permanent",
        );
        let device = open_device();
        for address in ["10.50.0.1", "2001:db8:50::1"] {
            device.resolve(ip(address).into(), 1, LONG).unwrap();
            assert_eq!(way(&device, address), Resolution::Known(PEER_MAC), "{address}");
        }
        // The new route has another gateway, so the next hop to 10.50.0.1 changes.
        shell("ip route replace 10.50.0.0/16 via 10.9.0.78 dev v0");
        let moved = Resolution::Known(Mac([2, 0, 0, 0, 0, 0x78]));
        wait_for("the new gateway", || (way(&device, "10.50.0.1") == moved).then_some(()));
    });
}

#[test]
fn a_peer_without_a_route_is_refused_at_once() {
    in_namespace("a_peer_without_a_route_is_refused_at_once", || {
        shell("ip route delete default metric 10; ip route delete default metric 20");
        shell("ip address add 10.7.0.1/24 dev d0; ip link set d0 up; ip link set d1 up");
        let device = open_device();
        for address in ["10.60.0.1", "2600::1", "10.7.0.2"] {
            let error =
                device.resolve(ip(address).into(), 1, Duration::from_secs(60)).unwrap_err().to_string();
            assert!(error.contains("no route") && error.contains("v0"), "{address}: {error}");
        }
    });
}

/// The kernel routes packets to the interface's own addresses over `lo`, so the port itself must deliver these packets.
#[test]
fn two_queue_pairs_of_one_interface_connect() {
    in_namespace("two_queue_pairs_of_one_interface_connect", || {
        let (near, far) = (open_device(), open_device());
        let (cq, peer_cq) = (near.create_cq(8, None).unwrap(), far.create_cq(8, None).unwrap());
        let qp = near.alloc_pd().unwrap().create_qp(&crate::QpOptions::new(&cq)).unwrap();
        let peer = far.alloc_pd().unwrap().create_qp(&crate::QpOptions::new(&peer_cq)).unwrap();
        let options = crate::ConnectOptions { gid_index: 1, ..crate::ConnectOptions::default() };
        peer.connect(&qp.endpoint(1), &options).unwrap();
        qp.connect(&peer.endpoint(1), &options).unwrap();
        peer.post_recv(&crate::RecvRequest { wr_id: 1, sges: &[] }).unwrap();
        let (op, data) = (crate::SendOp::SendWithImm { imm: 7 }, crate::SendData::Sges(&[]));
        let flags = crate::SendFlags::default();
        qp.post_send(&crate::SendRequest { wr_id: 2, op, flags, data }).unwrap();
        let done = wait_for("the immediate", || peer_cq.poll_one().unwrap());
        assert_eq!((done.wr_id, done.imm, done.status), (1, Some(7), crate::WcStatus::Success));
    });
}

/// Waits for the next asynchronous event of `device`.
fn next_event(device: &crate::Context) -> crate::Event {
    wait_for("an event", || device.poll_async_event())
}

#[test]
fn addresses_and_mtu_of_the_interface_are_followed() {
    in_namespace("addresses_and_mtu_of_the_interface_are_followed", || {
        let device = open_device();
        let gids = || device.attr().gids;
        let before = gids();
        shell("ip address add 10.6.0.1/24 dev v0");
        assert_eq!(next_event(&device), crate::Event::GidChange);
        assert_eq!(gids()[..before.len()], before, "the other addresses keep their indices");
        assert_eq!(gids()[before.len()..], [(before.len(), ip("10.6.0.1").into())]);
        shell("ip address delete 10.6.0.1/24 dev v0; ip address add 10.5.0.1/24 dev d0");
        assert_eq!((next_event(&device), gids()), (crate::Event::GidChange, before));

        let has_mtu = |mtu| (device.attr().active_mtu == Some(mtu)).then_some(());
        wait_for("the first MTU", || has_mtu(crate::PathMtu::Mtu4096));
        shell("ip link set v0 mtu 1500");
        wait_for("the smaller MTU", || has_mtu(crate::PathMtu::Mtu1024));
        shell("ip link set v0 mtu 4200");
        wait_for("the first MTU again", || has_mtu(crate::PathMtu::Mtu4096));
        assert_eq!(device.poll_async_event(), None);
    });
}

#[test]
fn a_link_that_goes_down_and_up_is_reported() {
    in_namespace("a_link_that_goes_down_and_up_is_reported", || {
        let device = open_device();
        let other = open_device();
        shell("ip -n peer link set v1 down");
        assert_eq!(
            (next_event(&device), next_event(&other)),
            (crate::Event::PortError, crate::Event::PortError)
        );
        assert!(!device.attr().is_up);
        shell("ip -n peer link set v1 up");
        assert_eq!(next_event(&device), crate::Event::PortActive);
        assert!(device.attr().is_up);
        device.resolve(ip("10.9.0.2").into(), 1, LONG).unwrap();
        // The kernel removes the IPv6 addresses of an interface that is down.
        shell("ip link set v0 down");
        assert_eq!(
            [next_event(&device), next_event(&device)],
            [crate::Event::GidChange, crate::Event::PortError]
        );
        shell("ip link set v0 name w0; ip link set w0 up");
        assert_eq!(next_event(&device), crate::Event::PortActive);
        assert_eq!(device.gid(1), Some(ip("10.9.0.1").into()));
        wait_for("a neighbour on the renamed interface", || {
            device.resolve(ip("10.9.0.2").into(), 1, LONG).ok()
        });
    });
}

#[test]
fn an_interface_that_is_removed_is_a_fatal_error() {
    in_namespace("an_interface_that_is_removed_is_a_fatal_error", || {
        let device = open_device();
        let channel = device.create_comp_channel().unwrap();
        let waiter = std::thread::spawn(move || channel.wait(LONG).err().map(|error| error.to_string()));
        shell("ip link delete v0");
        assert_eq!(next_event(&device), crate::Event::DeviceFatal);
        let error = device.alloc_pd().err().unwrap().to_string();
        assert!(error.contains("v0 was removed. Its queue pairs"), "{error}");
        assert_eq!(waiter.join().unwrap(), Some(error));
        drop(device);
        shell("ip link add v0 type veth peer name v1; ip link set v0 up; ip link set v1 up");
        assert!(open_device().alloc_pd().is_ok(), "the port of the new interface");
    });
}
