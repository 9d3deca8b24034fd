//! Errors must be returned as values that name the remedy.

use std::collections::BTreeSet;

use dpdk_ffi::{
    Device, DeviceError, Eal, EalConfig, EalError, Mempool, MempoolConfig, MempoolError, PortBuilder,
    PortError,
};

use super::{Open, eal, pool};

fn with(extra: &[&str]) -> Result<Eal, EalError> {
    let extra_args = extra.iter().map(|argument| (*argument).to_owned()).collect();
    Eal::init(&EalConfig { extra_args, ..EalConfig::default() })
}

#[track_caller]
fn assert_says<T: std::fmt::Debug, E: std::fmt::Display>(result: Result<T, E>, wanted: &[&str]) {
    let text = result.expect_err("this must fail").to_string();
    for part in wanted {
        assert!(text.contains(part), "{text:?} does not say {part:?}");
    }
}

pub(super) fn eal_refuses() {
    assert_says(with(&["--no-such-option"]), &["--no-such-option", "no such option"]);
    assert_says(with(&["--help"]), &["--help"]);
    assert_says(with(&["--no-huge", "--in-memory"]), &["--no-huge", "--in-memory"]);
    // Known to the check, and refused by EAL itself: it must come back all the same, with EAL's words.
    let refused = with(&["--no-huge", "--no-shconf", "--iova-mode=sideways"]);
    assert!(matches!(refused, Err(EalError::Init { .. })), "{refused:?}");
    assert_says(refused, &["--iova-mode=sideways", "Invalid argument", "DPDK: EAL: "]);
    assert!(Eal::get().is_none());
}

pub(super) fn mistakes() {
    let eal = eal();
    assert!(eal.version().starts_with("DPDK "), "{}", eal.version());
    assert!(matches!(Eal::init(&EalConfig::default()), Err(EalError::AlreadyInitialized)));

    devices(eal);
    ports(eal);
    pools(eal);
}

fn devices(eal: Eal) {
    let refuse = |name: &str, args: &str| -> Result<Device, DeviceError> { eal.attach_vdev(name, args) };
    assert_says(refuse("net_nosuch0", ""), &["net_nosuch0", "no DPDK driver"]);
    assert_says(refuse("net_null0,x=y", ""), &["net_null0,x=y", "not the name"]);
    assert_says(refuse("", ""), &["not the name"]);
    assert_says(refuse("net_memif0", "role=nonsense"), &["net_memif0", "role=nonsense"]);
    assert_says(refuse("net_af_packet0", "iface=nosuchiface"), &["net_af_packet0", "nosuchiface"]);
    // A device that could not be attached leaves its name free.
    drop(refuse("net_memif0", "role=client,socket=@dpdk-ffi-unused").unwrap());

    let null = refuse("net_null0", "").unwrap();
    assert_eq!(null.name(), "net_null0");
    assert!(matches!(refuse("net_null0", ""), Err(DeviceError::AlreadyAttached { .. })));
    drop(null);
    drop(refuse("net_null0", "").expect("detached when dropped"));

    assert_says(eal.attach_pci("3b:00.0", ""), &["3b:00.0", "PCI address"]);
    assert_says(eal.attach_pci("00fe:3b:00.0", ""), &["no PCI device 00fe:3b:00.0", "on this machine"]);
}

fn ports(eal: Eal) {
    let small = pool(eal, 255, 2048);
    let null = || eal.attach_vdev("net_null0", "").unwrap();
    let too_many = PortBuilder::new(small.clone()).queues(30_000).open(null());
    assert!(matches!(too_many, Err(PortError::OutOfRange { .. })), "{too_many:?}");
    assert_says(too_many, &["net_null0", "receive queues 30000"]);
    let too_large = PortBuilder::new(small.clone()).mtu_bytes(10).open(null());
    assert_says(too_large, &["net_null0", "MTU", "10"]);

    let args = "role=client,socket=@dpdk-ffi-no-server";
    let lonely = eal.attach_vdev("net_memif0", args).unwrap();
    assert_says(PortBuilder::new(small.clone()).open(lonely), &["net_memif0", "cannot start"]);
    let lonely = eal.attach_vdev("net_memif0", args).unwrap();
    let mut stopped = Open::from(PortBuilder::new(small).open_stopped(lonely).unwrap());
    assert!(stopped.start().is_err() && stopped.restart().is_err() && !stopped.control.is_started());
    assert_eq!((stopped.queue.rx_burst(&mut Vec::new(), 32), stopped.queue.tx_flush()), (0, 0));
}

fn pools(eal: Eal) {
    let shape = |mbufs, data_room_bytes, cache_mbufs| MempoolConfig {
        mbufs,
        data_room_bytes,
        cache_mbufs,
        packed: false,
    };
    for (invalid, reason) in [
        (shape(0, 2048, 0), "at least one mbuf"),
        (shape(100, 2048, 99), "one and a half times"),
        (shape(8191, 2048, 4096), "at most 512"),
        (shape(255, u16::MAX, 0), "data room"),
    ] {
        assert_says(Mempool::new(eal, &invalid), &[reason]);
    }
    let huge = Mempool::new(eal, &shape(1 << 20, 8192, 0));
    assert!(matches!(huge, Err(MempoolError::NoMemory { .. })), "{huge:?}");
    assert_says(huge, &["1048576 mbufs", "hugepages"]);
}

/// The mbufs of a packed pool are one distance apart; those of another keep within their pages.
pub(super) fn packed() {
    let eal = eal();
    let strides = |packed| {
        let shape = MempoolConfig { mbufs: 1023, data_room_bytes: 3072, cache_mbufs: 0, packed };
        let pool = Mempool::new(eal, &shape).unwrap_or_else(|error| panic!("{error}"));
        let mut taken: Vec<_> = std::iter::from_fn(|| pool.alloc()).collect();
        assert_eq!(taken.len(), 1023);
        let mut places: Vec<_> =
            taken.iter_mut().map(|mbuf| mbuf.append(1).unwrap().as_ptr() as usize).collect();
        places.sort_unstable();
        places.windows(2).map(|pair| pair[1] - pair[0]).collect::<BTreeSet<_>>()
    };
    let packed = strides(true);
    assert!(packed.len() == 1 && packed.iter().all(|stride| (3072..4096).contains(stride)), "{packed:?}");
    assert_ne!(strides(false), packed, "then nobody would need packed ones");
}

/// A pool of 63 mbufs, a port, and more frames than there are mbufs.
pub(super) fn exhaustion() {
    let eal = eal();
    let pool =
        Mempool::new(eal, &MempoolConfig { mbufs: 63, data_room_bytes: 256, cache_mbufs: 0, packed: false })
            .unwrap();
    let mut taken = Vec::new();
    while let Some(mbuf) = pool.alloc() {
        taken.push(mbuf);
    }
    assert_eq!((taken.len(), pool.available()), (63, 0));

    let mut port =
        Open::from(PortBuilder::new(pool.clone()).open(eal.attach_vdev("net_ring0", "").unwrap()).unwrap());
    assert!(port.queue.tx_reserve(64).is_none());
    assert_eq!(port.control.counters().tx_no_mbuf, 1);
    taken.truncate(60);
    assert_eq!(
        (0..5).filter(|_| port.queue.tx_reserve(64).is_some()).count(),
        3,
        "to the last mbuf, not to the last 32"
    );
    dpdk_ffi::Mbuf::free_bulk(&mut taken);
    assert_eq!(port.queue.tx_discard(), 3);
    assert_eq!(port.control.counters().tx_discarded, 3);
    assert_eq!(pool.available(), 63);

    assert!(port.queue.tx_reserve(256).is_some(), "as long as the data room");
    assert!(port.queue.tx_reserve(257).is_none(), "longer than the data room");
    drop(port);
    assert_eq!(pool.available(), 63, "a port returns its spare mbufs");

    // The last handle gone with an mbuf still out: the mbuf stays valid, and the pool serves again once it is back.
    let mut last = pool.alloc().unwrap();
    drop(pool);
    last.append(100).unwrap().fill(7);
    let shape = MempoolConfig { mbufs: 63, data_room_bytes: 256, cache_mbufs: 0, packed: false };
    let other = Mempool::new(eal, &shape).unwrap();
    assert_eq!(other.available(), 63, "not the pool that waits for its mbuf");
    assert_eq!(last.data(), [7; 100]);
    drop(last);
    assert_eq!(other.available(), 63);
    // Pools are used again, or else opening ports often would use up the memory.
    drop(other);
    for _ in 0..1000 {
        drop(
            Mempool::new(
                eal,
                &MempoolConfig { mbufs: 1023, data_room_bytes: 8192, cache_mbufs: 0, packed: false },
            )
            .unwrap(),
        );
    }
}
