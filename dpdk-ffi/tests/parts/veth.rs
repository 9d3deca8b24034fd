//! A kernel interface: both ends of a veth pair in a network name space of this process alone.

use std::process::Command;

use dpdk_ffi::{Eal, PortBuilder, WakeKind};

use super::{Open, eal, pattern, pool, receive, receive_asleep, send};

pub(super) fn af_packet() {
    ip("link add dpdkffi0 type veth peer name dpdkffi1");
    for interface in ["dpdkffi0", "dpdkffi1"] {
        ip(&format!("link set {interface} mtu 4200 up"));
    }
    let eal = eal();
    let mut near = open(eal, 0);
    let mut far = open(eal, 1);
    assert_eq!(near.control.info().driver, "net_af_packet");
    assert_ne!(near.control.info().if_index, 0);
    assert_eq!(near.control.info().mac, kernel_mac("dpdkffi0"));
    assert_eq!(far.control.info().mac, kernel_mac("dpdkffi1"));
    for (seed, len) in [60, 64, 1082, 1514, 1515, 4110, 4154].into_iter().enumerate() {
        let bytes = pattern(seed, len);
        send(&mut near, &bytes);
        assert!(receive(&mut far).data() == bytes, "a frame of {len} bytes changed on its way");
        send(&mut far, &bytes);
        assert!(receive(&mut near).data() == bytes, "a frame of {len} bytes changed on its way back");
    }
    for round in 0..50 {
        for place in 0..32 {
            near.queue
                .tx_reserve(200)
                .expect("32 frames fit")
                .copy_from_slice(&pattern(round * 32 + place, 200));
        }
        assert_eq!(near.queue.tx_flush(), 32);
        for place in 0..32 {
            assert_eq!(receive(&mut far).data(), pattern(round * 32 + place, 200));
        }
    }
    assert!(far.control.stats().unwrap().rx_frames >= 50 * 32);
    assert_eq!(near.queue.wake_kind(), Some(WakeKind::Socket));
    for round in 0..1000 {
        send(&mut near, &pattern(round, 100));
        assert_eq!(receive_asleep(&mut far).data(), pattern(round, 100), "round {round}");
    }
}

fn open(eal: Eal, end: usize) -> Open {
    let args = format!("iface=dpdkffi{end},framesz=8192,framecnt=512,blocksz=65536");
    let device =
        eal.attach_vdev(&format!("net_af_packet{end}"), &args).unwrap_or_else(|error| panic!("{error}"));
    let builder = PortBuilder::new(pool(eal, 1023, 8192)).promiscuous(true);
    Open::from(builder.open(device).unwrap_or_else(|error| panic!("{error}")))
}

/// Runs ip and returns its output.
#[track_caller]
fn ip(args: &str) -> String {
    let output =
        Command::new("ip").args(args.split(' ')).output().expect("this test needs the ip command (iproute2)");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success(),
        "ip {args}: {errors}(this test needs root or user name spaces, and veth)"
    );
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn kernel_mac(interface: &str) -> [u8; 6] {
    let text = ip(&format!("-o link show {interface}"));
    let address =
        text.split_whitespace().skip_while(|word| *word != "link/ether").nth(1).expect("an Ethernet address");
    let octets: Vec<u8> = address.split(':').map(|octet| u8::from_str_radix(octet, 16).unwrap()).collect();
    octets.try_into().unwrap()
}
