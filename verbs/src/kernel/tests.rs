//! Run in a network namespace of their own, with a second one across a veth pair: see `in_namespace`.

use std::net::{IpAddr, UdpSocket};
use std::process::Command;
use std::time::{Duration, Instant};

use roce::id::Mac;
use roce::neighbour::Resolution;

use super::*;

/// Set in the copy of the test that runs inside the namespace.
const INSIDE: &str = "ROCE_TEST_IN_NAMESPACE";

const OWN_MAC: Mac = Mac([2, 0, 0, 0, 0, 0xA]);
const PEER_MAC: Mac = Mac([2, 0, 0, 0, 0, 0xB]);

/// v0 here and v1 in the namespace `peer`; d0 is down.
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

/// Runs `body` as root of fresh namespaces, by running the test `name` once more in there.
fn in_namespace(name: &str, body: impl FnOnce()) {
    if std::env::var_os(INSIDE).is_some() {
        shell(SET_UP);
        return body();
    }
    let (_, module) = module_path!().split_once("::").unwrap();
    let output = Command::new("unshare")
        .args(["--user", "--map-root-user", "--net", "--mount", "--"])
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

/// Repeats `attempt` until it gives something; ten seconds are a hang.
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

        shell("ip -6 route add default via fe80::fe dev v0; ip route delete default via 10.9.0.254");
        let interface = v0();
        assert_eq!(interface.gateway_v4, Some("10.9.0.200".parse().unwrap()));
        assert_eq!(interface.gateway_v6, Some("fe80::fe".parse().unwrap()));
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
                // Its link-local address may not be ready yet.
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
        // A neighbour elsewhere is none here.
        let mut others = KernelNeighbours::open(&Interface::read("d1").unwrap()).unwrap();
        assert_ne!(others.resolve(ip("10.9.0.78")).unwrap(), Resolution::Known(PEER_MAC));
    });
}

/// UDP datagrams that found no socket, and those that a socket refused, over both IP versions.
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

        drop((guard, second));
        send_both();
        wait_for("the kernel refuses both again", || (refused_and_dropped() == (4, 2)).then_some(()));
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
