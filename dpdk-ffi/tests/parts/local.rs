//! Ports that need no peer.

use dpdk_ffi::{AppendError, Mbuf, PortBuilder, TX_QUEUE_FRAMES, ThreadRegistration, is_registered};

use super::{Open, eal, pattern, pool, receive, send, wait_until, whole};

pub(super) fn null() {
    let eal = eal();
    let pool = pool(eal, 1023, 2048);
    let device = eal.attach_vdev("net_null0", "size=100").unwrap();
    let mut port = Open::from(PortBuilder::new(pool).open(device).unwrap());
    assert_eq!(port.control.info().driver, "net_null");
    assert!(port.control.link().is_up && port.control.is_started());
    assert_eq!(port.control.mtu_bytes(), 1500);

    let mut frames = Vec::new();
    assert_eq!(port.queue.rx_burst(&mut frames, 16), 16);
    assert!(frames.iter().all(|frame| frame.data().len() == 100 && frame.is_contiguous()));
    assert_eq!(port.queue.rx_burst(&mut frames, 16), 16, "appends");
    assert_eq!(frames.len(), 32);
    Mbuf::free_bulk(&mut frames);
    assert!(frames.is_empty());

    for _ in 0..TX_QUEUE_FRAMES {
        assert_eq!(port.queue.tx_reserve(60).unwrap().len(), 60);
    }
    assert!(port.queue.tx_reserve(60).is_none(), "the queue is bounded");
    port.queue.tx_cancel();
    assert_eq!(port.queue.tx_queued(), TX_QUEUE_FRAMES - 1);
    port.queue.tx_reserve(60).unwrap();
    assert_eq!((port.queue.tx_flush(), port.queue.tx_queued()), (TX_QUEUE_FRAMES, 0));
    let stats = port.control.stats().unwrap();
    assert_eq!((stats.rx_frames, stats.tx_frames), (32, TX_QUEUE_FRAMES as u64));
    let xstats = port.control.xstats();
    assert!(xstats.contains(&("tx_good_packets".to_owned(), TX_QUEUE_FRAMES as u64)), "{xstats:?}");
    port.control.reset_stats();
    assert_eq!(port.control.stats().unwrap().tx_frames, 0);

    port.queue.tx_reserve(60).unwrap();
    port.stop().unwrap();
    assert_eq!(port.control.counters().tx_discarded, 1);
    assert_eq!(port.queue.rx_burst(&mut frames, 16), 0, "a stopped port receives nothing");
    port.restart().unwrap();
    assert_eq!(port.queue.rx_burst(&mut frames, 16), 16);
    assert!(port.queue.wake_fd().is_none() && !port.queue.arm());
}

/// net_ring hands out the very mbufs that were sent.
pub(super) fn ring() {
    let eal = eal();
    let (small, large) = (pool(eal, 255, 2048), pool(eal, 255, 8192));
    let mut port =
        Open::from(PortBuilder::new(small.clone()).open(eal.attach_vdev("net_ring0", "").unwrap()).unwrap());
    assert!(port.control.info().can_send_chains);
    for (seed, len) in [64, 60, 1500, 2048].into_iter().enumerate() {
        send(&mut port, &pattern(seed, len));
        assert_eq!(whole(&receive(&mut port)), pattern(seed, len));
    }

    let bytes = pattern(9, 4154);
    port.queue.tx_enqueue(chain(&small, &bytes)).unwrap();
    port.queue.tx_flush();
    let mut chained = receive(&mut port);
    assert!(!chained.is_contiguous());
    assert_eq!(chained.segments().map(<[u8]>::len).collect::<Vec<_>>(), [2048, 2048, 58]);
    assert_eq!(chained.segments().collect::<Vec<_>>().concat(), bytes);
    assert_eq!(chained.copy_to(&mut [0; 4153]), None);
    assert!(matches!(chained.linearize(), Err(AppendError::NoRoom { needed: 2106, room: 0 })));
    assert!(chained.copy_contiguous(&small).is_none(), "larger than an mbuf of the pool");
    let copy = chained.copy_contiguous(&large).unwrap();
    assert_eq!(copy.data(), bytes);

    let mut short = small.alloc().unwrap();
    short.append(10).unwrap().fill(1);
    short.chain(chain(&small, &[2; 20])).unwrap();
    assert_eq!(short.frame_len(), 30);
    short.linearize().unwrap();
    assert!(short.is_contiguous());
    assert_eq!(short.data(), [[1; 10].as_slice(), &[2; 20]].concat());
    assert!(matches!(short.append(2019), Err(AppendError::NoRoom { needed: 2019, room: 2018 })));
    drop((chained, copy, short, port));

    // With a linear pool every frame is contiguous; a chain too long for the pool is counted.
    let tiny = pool(eal, 127, 3000);
    let device = eal.attach_vdev("net_ring0", "").unwrap();
    let mut port = Open::from(PortBuilder::new(small.clone()).linear_pool(tiny).open(device).unwrap());
    for bytes in [&bytes[..100], &bytes[..2500], &bytes, &bytes[..2999]] {
        port.queue.tx_enqueue(chain(&small, bytes)).unwrap();
    }
    port.queue.tx_flush();
    let mut frames = Vec::new();
    assert_eq!(port.queue.rx_burst(&mut frames, 32), 3);
    let lens: Vec<usize> = frames.iter().map(|frame| frame.as_ref().len()).collect();
    assert_eq!(lens, [100, 2500, 2999]);
    assert!(frames.iter().all(|frame| frame.data() == &bytes[..frame.data().len()]));
    assert_eq!(port.control.counters().rx_not_linear, 1);

    let device = eal.attach_vdev("net_ring1", "").unwrap();
    let mut plain = Open::from(PortBuilder::new(small.clone()).multi_segs(false).open(device).unwrap());
    plain.queue.tx_enqueue(chain(&small, &bytes)).expect_err("chains were not allowed");
}

/// A ring that is not emptied, as the ring of a process that is stopped.
pub(super) fn stalled() {
    let eal = eal();
    let device = eal.attach_vdev("net_ring0", "").unwrap();
    let mut port = Open::from(PortBuilder::new(pool(eal, 2047, 2048)).open(device).unwrap());
    let flush = |port: &mut Open| {
        port.queue.tx_reserve(60).unwrap();
        (port.queue.tx_flush(), port.queue.tx_queued())
    };
    while flush(&mut port) == (1, 0) {}
    assert_eq!((port.queue.tx_queued(), port.control.counters().tx_discarded), (1, 0), "the ring is full");
    wait_until("the end of the patience", || (port.queue.tx_flush(), port.queue.tx_queued()) == (0, 0));
    assert_eq!(port.control.counters().tx_discarded, 1);
    assert!(!port.queue.is_tx_stalled());
    assert_eq!(flush(&mut port), (0, 0), "the ring is still full");

    let mut frames = Vec::new();
    assert_eq!(port.queue.rx_burst(&mut frames, 1), 1);
    assert_eq!(flush(&mut port), (1, 0), "the ring has room");
    assert_eq!(flush(&mut port), (0, 1), "the patience begins anew");
}

/// A frame of as many mbufs as it takes.
fn chain(pool: &dpdk_ffi::Mempool, bytes: &[u8]) -> Mbuf {
    let mut pieces = bytes.chunks(usize::from(pool.config().data_room_bytes)).map(|piece| {
        let mut mbuf = pool.alloc().unwrap();
        mbuf.append(piece.len()).unwrap().copy_from_slice(piece);
        mbuf
    });
    let mut head = pieces.next().unwrap();
    pieces.for_each(|piece| head.chain(piece).unwrap());
    head
}

/// Both ends of a memif in one process, opened and closed again and again under one name.
pub(super) fn reopen() {
    let eal = eal();
    let pool = pool(eal, 1023, 2048);
    let args = |role| format!("role={role},socket=@dpdk-ffi-reopen-{},bsize=2048", std::process::id());
    for life in 0..20 {
        let server = eal.attach_vdev("net_memif0", &args("server")).unwrap_or_else(|error| panic!("{error}"));
        let client = eal.attach_vdev("net_memif1", &args("client")).unwrap();
        let mut server = Open::from(PortBuilder::new(pool.clone()).open(server).unwrap());
        let mut client = Open::from(PortBuilder::new(pool.clone()).open(client).unwrap());
        wait_until("the link", || server.control.link().is_up && client.control.link().is_up);
        send(&mut client, &pattern(life, 200));
        assert_eq!(receive(&mut server).data(), pattern(life, 200));
        // In this order: within one process the ends share what the driver knows of the socket, and it closes
        // that only where a server is the last to leave.
        drop(client);
        drop(server);
    }
    assert_eq!(pool.available(), 1023, "every mbuf came back");
    let descriptors = std::fs::read_dir("/proc/self/fd").unwrap().count();
    assert!(descriptors < 40, "{descriptors} files are open: each life leaves some behind");
}

/// Without mutual exclusion, EAL's list of device arguments loses its end within some hundred rounds.
pub(super) fn hotplug() {
    const ROUNDS: usize = 500;
    let eal = eal();
    std::thread::scope(|scope| {
        for number in 0..4 {
            scope.spawn(move || {
                for _ in 0..ROUNDS {
                    drop(eal.attach_vdev(&format!("net_null{number}"), "size=100").unwrap());
                }
            });
        }
    });
}

/// One port, driven by several threads, registered or not, and mbufs freed on other threads.
pub(super) fn threads() {
    const ROUNDS: usize = 2000;
    let eal = eal();
    let pool = pool(eal, 1023, 256);
    let port =
        Open::from(PortBuilder::new(pool.clone()).open(eal.attach_vdev("net_ring0", "").unwrap()).unwrap());
    let port = std::sync::Mutex::new(port);
    let (to_freer, freed) = std::sync::mpsc::channel::<Mbuf>();
    std::thread::scope(|scope| {
        for worker in 0..4 {
            let (port, to_freer) = (&port, to_freer.clone());
            scope.spawn(move || {
                let _registration = (worker % 2 == 0).then(|| ThreadRegistration::new(eal).unwrap());
                assert_eq!(is_registered(), worker % 2 == 0);
                for round in 0..ROUNDS {
                    let mut port = port.lock().unwrap();
                    send(&mut port, &pattern(worker * ROUNDS + round, 100));
                    let frame = receive(&mut port);
                    assert_eq!(frame.data(), pattern(worker * ROUNDS + round, 100));
                    to_freer.send(frame).unwrap();
                }
            });
        }
        drop(to_freer);
        scope.spawn(move || freed.into_iter().for_each(drop));
    });
    drop(port);
    assert_eq!(pool.available(), 1023, "every mbuf came back");

    // The thread that initialised EAL has its id for good.
    assert!(is_registered());
    drop(ThreadRegistration::new(eal).unwrap());
    assert!(is_registered());
    // An id taken twice in one thread is one id.
    std::thread::spawn(move || {
        let outer = ThreadRegistration::new(eal).unwrap();
        drop(ThreadRegistration::new(eal).unwrap());
        assert!(is_registered());
        drop(outer);
        assert!(!is_registered());
    })
    .join()
    .unwrap();
    // Ids are given back: many more threads than ids, one after another.
    for _ in 0..300 {
        std::thread::spawn(move || drop(ThreadRegistration::new(eal).unwrap())).join().unwrap();
    }
}
