//! A kernel interface: both ends of a veth pair in a network name space of this process alone.

use std::process::Command;

use dpdk_ffi::{Eal, Mbuf, PortBuilder, WakeKind};

use super::{Open, eal, pattern, pool, receive, receive_asleep, send, wait_until};

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

/// Bursts of a packet socket in place of the driver's.
pub(super) fn packet_socket() {
    ip("link add dpdkffi0 type veth peer name dpdkffi1");
    for interface in ["dpdkffi0", "dpdkffi1"] {
        // Without a link-local address the kernel sends no packets of IPv6, which `tx_packets` would count.
        ip(&format!("link set {interface} mtu 4200 addrgenmode none up"));
    }
    let eal = eal();
    let [mut near, mut far] =
        [(0, 8192), (1, 4200)].map(|(end, room_bytes)| open_packet(eal, end, room_bytes, &[]));
    assert_eq!(near.queue.wake_kind(), Some(WakeKind::Socket));
    // (frames of a flow, bytes of UDP payload of all but the last, and of the last, packets that the interface sends)
    let flows = [(1, 60, 60, 1), (2, 100, 100, 1), (64, 100, 40, 1), (15, 4124, 16, 1), (32, 4124, 4124, 3)];
    for (count, payload_bytes, last_bytes, datagrams) in flows {
        let frames = flow(count, payload_bytes, last_bytes);
        transfer_as(&mut near, &mut far, &frames, datagrams);
    }
    let frames = flow(20, 1000, 1000);
    received_piecemeal(&mut near, &mut far, &frames);
    tags_and_lengths(&mut near, &mut far);
    overrun(&mut near, &mut far, &frames);
    for (mtu_bytes, packets) in [(1027, 20), (1028, 1)] {
        near.queue.set_mtu_bytes(mtu_bytes);
        transfer_as(&mut near, &mut far, &frames, packets);
    }
    peer_goes_down(&mut near, &mut far, &frames);
    // The kernel divides the datagram, as for a device without UDP segmentation offload, and no longer bypasses the
    // queueing discipline.
    ip("link set dpdkffi0 gso_max_size 2000");
    for _ in 0..3 {
        transfer_as(&mut near, &mut far, &frames, 20);
    }
    link_goes_down(&mut near, &mut far, &frames);
    drop(near);
    let mut near = open_packet(eal, 0, 8192, &["qdisc_bypass=0".to_owned()]);
    for (max_bytes, packets) in [(2000, 20), (65536, 1)] {
        ip(&format!("link set dpdkffi0 gso_max_size {max_bytes}"));
        transfer_as(&mut near, &mut far, &frames, packets);
    }
}

fn open_packet(eal: Eal, end: usize, room_bytes: u16, args: &[String]) -> Open {
    // The program of a socket that receives every frame: return the greatest length.
    const ALL: libc::sock_filter = libc::sock_filter { code: 0x06, jt: 0, jf: 0, k: u32::MAX };
    let name = format!("net_af_packet{end}");
    let device = eal.attach_packet(&name, &format!("dpdkffi{end}"), args, 8192, &[ALL]);
    let device = device.unwrap_or_else(|error| panic!("{error}"));
    let opened = PortBuilder::new(pool(eal, 255, room_bytes)).open(device);
    let mut open = Open::from(opened.unwrap_or_else(|error| panic!("{error}")));
    open.queue.set_mtu_bytes(4200);
    open
}

/// Returns `count` frames of one UDP flow, which the kernel could make from one datagram.
fn flow(count: u16, payload_bytes: usize, last_bytes: usize) -> Vec<Vec<u8>> {
    let frame = |index: u16| {
        let payload_bytes = if index + 1 == count { last_bytes } else { payload_bytes };
        let mut ip = [0x45, 0, 0, 0, 0xFF, 0xFA, 0x40, 0, 64, 17, 0, 0, 10, 9, 8, 1, 10, 9, 8, 2];
        let udp_len = 8 + payload_bytes as u16;
        ip[2..4].copy_from_slice(&(20 + udp_len).to_be_bytes());
        ip[4..6].copy_from_slice(&0xFFFA_u16.wrapping_add(index).to_be_bytes());
        let sum: u32 = ip.chunks(2).map(|word| u32::from(u16::from_be_bytes([word[0], word[1]]))).sum();
        let sum = (sum >> 16) + (sum & 0xFFFF);
        ip[10..12].copy_from_slice(&(!(((sum >> 16) + sum) as u16)).to_be_bytes());
        let [high, low] = udp_len.to_be_bytes();
        let udp = [0xC1, 0x23, 0x12, 0xB7, high, low, 0, 0];
        let payload = (0..payload_bytes).map(|at| if at < 8 { 7 } else { (at * 31) as u8 ^ index as u8 });
        let addresses = [2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0];
        addresses.into_iter().chain(ip).chain(udp).chain(payload).collect()
    };
    (0..count).map(frame).collect()
}

/// Returns the number of packets that `interface` has sent, a datagram of several frames counted once.
fn tx_packets(interface: &str) -> u64 {
    let all = std::fs::read_to_string("/proc/self/net/dev").expect("the interfaces of this name space");
    let line = all.lines().find(|line| line.trim_start().starts_with(interface)).expect("the interface");
    line.split_whitespace().nth(10).and_then(|count| count.parse().ok()).expect("a number of packets")
}

fn send_all(port: &mut Open, frames: &[Vec<u8>]) {
    for frame in frames {
        port.queue.tx_reserve(frame.len()).expect("room").copy_from_slice(frame);
    }
    assert_eq!(port.queue.tx_flush(), frames.len());
}

/// Receives `count` frames of the flow, at most `burst` at a time.
fn receive_all(port: &mut Open, count: usize, burst: usize) -> Vec<Vec<u8>> {
    let mut all = Vec::new();
    wait_until("all frames", || {
        let mut frames: Vec<Mbuf> = Vec::new();
        assert!(port.queue.rx_burst(&mut frames, burst) <= burst);
        let ours = frames.iter().filter(|frame| frame.data().starts_with(&[2, 0, 0, 0, 0, 2]));
        all.extend(ours.map(|frame| frame.data().to_vec()));
        all.len() >= count
    });
    all
}

/// Sends `frames` in one burst, and checks that they arrive unchanged.
#[track_caller]
fn transfer(near: &mut Open, far: &mut Open, frames: &[Vec<u8>]) {
    send_all(near, frames);
    assert!(receive_all(far, frames.len(), 64) == frames, "the frames changed on their way");
}

/// Sends `frames` as [`transfer`] does, and checks that the interface sends `packets` packets.
#[track_caller]
fn transfer_as(near: &mut Open, far: &mut Open, frames: &[Vec<u8>], packets: u64) {
    let before = tx_packets("dpdkffi0");
    transfer(near, far, frames);
    assert_eq!(tx_packets("dpdkffi0") - before, packets, "{} frames of {}", frames.len(), frames[0].len());
}

/// Receives fewer frames at a time than a datagram has, and while the pool is exhausted.
fn received_piecemeal(near: &mut Open, far: &mut Open, frames: &[Vec<u8>]) {
    send_all(near, frames);
    assert!(receive_all(far, frames.len(), 3) == frames);
    let mut held: Vec<Mbuf> = std::iter::from_fn(|| far.queue.pool().alloc()).collect();
    held.truncate(held.len() - 7);
    send_all(near, frames);
    let mut received: Vec<Mbuf> = Vec::new();
    wait_until("seven frames", || {
        far.queue.rx_burst(&mut received, 64);
        received.len() >= 7
    });
    assert_eq!(far.queue.rx_burst(&mut received, 64), 0, "the pool is exhausted");
    assert!(far.control.stats().unwrap().rx_no_mbuf > 0);
    let first: Vec<Vec<u8>> = received.drain(..).map(|frame| frame.data().to_vec()).collect();
    drop(held);
    let rest = receive_all(far, frames.len() - 7, 64);
    assert!([first, rest].concat() == frames, "no frame is lost, and none arrives twice");
}

/// Sends frames with a VLAN tag, which the kernel takes out of the frame, and frames longer than an mbuf.
fn tags_and_lengths(near: &mut Open, far: &mut Open) {
    let mut tagged = flow(1, 500, 500);
    tagged[0].splice(12..12, [0x81, 0, 0x20, 0]);
    transfer(near, far, &tagged);
    let bad = |far: &Open| far.control.stats().unwrap().rx_errors;
    let before = bad(far);
    let long = flow(1, 4172, 4172);
    send_all(near, &long);
    send_all(near, &tagged);
    assert!(receive_all(far, 1, 64) == tagged, "the longer frame is dropped, and the next one received");
    assert_eq!(bad(far) - before, 1);
}

/// Sends more than the receive ring takes.
fn overrun(near: &mut Open, far: &mut Open, frames: &[Vec<u8>]) {
    let single = &frames[..1];
    let missed = |far: &Open| far.control.stats().unwrap().rx_missed;
    let before = missed(far);
    (0..1000).for_each(|_| send_all(near, single));
    let lost = missed(far) - before;
    assert!((1..1000).contains(&lost), "{lost} of 1000");
    assert_eq!(missed(far) - before, lost, "counted once");
    let received = receive_all(far, 1000 - lost as usize, 64);
    assert!(received.iter().all(|frame| *frame == frames[0]));
    transfer(near, far, frames);
    far.control.reset_stats();
    assert_eq!(missed(far), 0);
}

/// While the peer's interface is down, the kernel refuses datagrams as it refuses those that the device cannot divide.
/// Nevertheless frames still bypass the queueing discipline afterwards, here one that drops all.
fn peer_goes_down(near: &mut Open, far: &mut Open, frames: &[Vec<u8>]) {
    ip("link set dpdkffi1 down");
    for frame in frames {
        near.queue.tx_reserve(frame.len()).expect("room").copy_from_slice(frame);
    }
    wait_until("the frames to be discarded", || {
        assert_eq!(near.queue.tx_flush(), 0);
        near.queue.tx_queued() == 0
    });
    ip("link set dpdkffi1 up");
    run("/sbin/tc qdisc add dev dpdkffi0 root blackhole");
    transfer(near, far, frames);
    run("/sbin/tc qdisc del dev dpdkffi0 root");
}

/// While the interface is down, frames are dropped and counted, and no flush waits.
fn link_goes_down(near: &mut Open, far: &mut Open, frames: &[Vec<u8>]) {
    ip("link set dpdkffi0 down");
    let before = near.control.stats().unwrap().tx_errors;
    wait_until("frames to be dropped", || {
        near.queue.tx_reserve(frames[0].len()).expect("room").copy_from_slice(&frames[0]);
        near.queue.tx_flush();
        assert_eq!(near.queue.tx_queued(), 0);
        near.control.stats().unwrap().tx_errors > before + 2
    });
    ip("link set dpdkffi0 up");
    // The first call reports that the interface was down.
    wait_until("the interface to be up", || {
        near.queue.tx_reserve(frames[0].len()).expect("room").copy_from_slice(&frames[0]);
        near.queue.tx_flush();
        let mut received = Vec::new();
        far.queue.rx_burst(&mut received, 64) > 0
    });
    let mut left = Vec::new();
    while far.queue.rx_burst(&mut left, 64) > 0 {}
    transfer(near, far, frames);
}

/// Runs ip and returns its output.
#[track_caller]
fn ip(args: &str) -> String {
    run(&format!("ip {args}"))
}

/// Runs a command of iproute2 and returns its output.
#[track_caller]
fn run(line: &str) -> String {
    let mut words = line.split(' ');
    let mut command = Command::new(words.next().expect("a program"));
    let output = command.args(words).output().expect("this test needs the commands ip and tc (iproute2)");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{line}: {errors}(this test needs root or user name spaces, and veth)");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn kernel_mac(interface: &str) -> [u8; 6] {
    let text = ip(&format!("-o link show {interface}"));
    let address =
        text.split_whitespace().skip_while(|word| *word != "link/ether").nth(1).expect("an Ethernet address");
    let octets: Vec<u8> = address.split(':').map(|octet| u8::from_str_radix(octet, 16).unwrap()).collect();
    octets.try_into().unwrap()
}
