//! Ports of two queues: each queue on a thread of its own, and control beside them.

use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use dpdk_ffi::{DeviceError, Eal, EthPort, EthQueue, Mbuf, Mempool, PortBuilder, PortError, QueueSet};

use super::{eal, is_pattern, pattern, pool, wait_until};

/// Mbufs of the pools.
const MBUFS: u32 = 1023;

/// Two implementations for a type that is `Sync`, so that `checked` of such a type is ambiguous.
trait IsNotSync<A> {
    fn checked() {}
}
impl<T> IsNotSync<()> for T {}
impl<T: Sync> IsNotSync<u8> for T {}

const fn is_send<T: Send>() {}
const _: () = (is_send::<EthPort>(), is_send::<EthQueue>()).0;
const _: [fn(); 2] = [<EthPort as IsNotSync<_>>::checked, <EthQueue as IsNotSync<_>>::checked];

fn open(eal: Eal, pool: &Mempool, device: &str, args: &str) -> (EthPort, QueueSet) {
    let device = eal.attach_vdev(device, args).unwrap_or_else(|error| panic!("{error}"));
    let builder = PortBuilder::new(pool.clone()).queues(2);
    builder.open(device).unwrap_or_else(|error| panic!("{error}"))
}

fn two_queues(queues: QueueSet) -> [EthQueue; 2] {
    queues.into_queues().try_into().expect("two queues")
}

/// Sends frame `seed` on `from` and returns whether it is the next frame that `to` receives; `None`: `from` itself.
fn passes(seed: usize, from: &mut EthQueue, mut to: Option<&mut EthQueue>) -> bool {
    let len = 60 + seed % 1400;
    from.tx_reserve(len).expect("room to send").copy_from_slice(&pattern(seed, len));
    let mut frames = Vec::new();
    wait_until("a frame", || {
        from.tx_flush();
        // Also before the frame has left: a memif client offers buffers to its server when it receives.
        to.as_deref_mut().unwrap_or(from).rx_burst(&mut frames, 1) == 1
    });
    frames[0].data() == pattern(seed, len)
}

/// Each queue of a ring port receives the frames that it sends, and no others.
pub(super) fn threads() {
    const ROUNDS: usize = 5000;
    let eal = eal();
    let pool = pool(eal, MBUFS, 2048);
    let (port, queues) = open(eal, &pool, "net_ring0", "");
    let [mut here, mut there] = two_queues(queues);
    assert_eq!((here.number(), there.number()), (0, 1));
    let begin = Barrier::new(2);
    let run = |queue: &mut EthQueue| {
        begin.wait();
        for round in 0..ROUNDS {
            let seed = usize::from(queue.number()) * ROUNDS + round;
            assert!(passes(seed, queue, None), "queue {} in round {round}", queue.number());
        }
    };
    let ended = AtomicBool::new(false);
    thread::scope(|scope| {
        let other = scope.spawn(|| {
            run(&mut there);
            there
        });
        // Control on a third thread.
        let watch = scope.spawn(|| {
            let mut frames = 0;
            while !ended.load(Ordering::Relaxed) {
                assert!(port.link().is_up);
                let now = port.stats().unwrap().rx_frames;
                assert!(now >= frames, "the count went from {frames} to {now}");
                frames = now;
            }
            port
        });
        run(&mut here);
        drop(other.join().unwrap());
        ended.store(true, Ordering::Relaxed);
        let port = watch.join().unwrap();
        let stats = port.stats().unwrap();
        assert_eq!((stats.rx_frames, stats.tx_frames), (2 * ROUNDS as u64, 2 * ROUNDS as u64));
    });
    drop(here);
    assert_eq!(pool.available(), MBUFS, "every mbuf came back");
}

/// A set of queues that all have more frames than are wanted.
pub(super) fn in_turn() {
    let eal = eal();
    let pool = pool(eal, MBUFS, 2048);
    let (mut port, mut queues) = open(eal, &pool, "net_null0", "size=100");
    let mut frames = Vec::new();
    for _ in 0..6 {
        assert_eq!(queues.rx_burst(&mut frames, 8), 8);
    }
    assert_eq!(queues.first_mut().tx_reserve(60).unwrap().len(), 60);
    assert_eq!(queues.first_mut().tx_flush(), 1);
    let count = |port: &EthPort, name: &str| {
        port.xstats().iter().find(|(own, _)| own == name).map(|(_, value)| *value)
    };
    let counts = ["rx_q0_packets", "rx_q1_packets", "tx_q0_packets", "tx_q1_packets"];
    assert_eq!(counts.map(|name| count(&port, name)), [Some(24), Some(24), Some(1), Some(0)]);

    port.stop(queues.iter_mut()).unwrap();
    assert_eq!(queues.rx_burst(&mut frames, 8), 0, "a stopped port receives nothing");
    port.start(queues.iter_mut()).unwrap();
    assert_eq!(queues.rx_burst(&mut frames, 8), 8);
    Mbuf::free_bulk(&mut frames);
}

/// A port lives until its control and all its queues are dropped, and is stopped only with all queues at hand.
pub(super) fn owners() {
    let eal = eal();
    let pool = pool(eal, MBUFS, 2048);
    let is_open = || matches!(eal.attach_vdev("net_ring0", ""), Err(DeviceError::AlreadyAttached { .. }));

    // Control first.
    let (port, queues) = open(eal, &pool, "net_ring0", "");
    let [here, mut there] = two_queues(queues);
    drop(port);
    drop(here);
    let last = thread::spawn(move || {
        assert!(passes(1, &mut there, None), "without control");
        there
    });
    let there = last.join().unwrap();
    assert!(is_open());
    thread::spawn(move || drop(there)).join().unwrap();
    assert!(!is_open());

    // Control last.
    let (mut port, queues) = open(eal, &pool, "net_ring0", "");
    let (foreign_port, mut foreign) = open(eal, &pool, "net_ring1", "");
    let [mut here, mut there] = two_queues(queues);
    let refused = port.stop([&mut here]).unwrap_err();
    assert!(matches!(refused, PortError::QueuesInUse { missing: 1, .. }), "{refused}");
    let refused = port.restart(std::iter::once(&mut here).chain(foreign.iter_mut())).unwrap_err();
    assert!(matches!(refused, PortError::QueuesInUse { missing: 1, .. }), "{refused}");
    assert!(port.is_started() && passes(2, &mut here, None) && passes(3, &mut there, None));
    port.restart([&mut there, &mut here]).unwrap();
    assert!(passes(4, &mut here, None) && passes(5, &mut there, None));
    here.tx_reserve(60).unwrap();
    drop(here);
    assert_eq!(port.counters().tx_discarded, 1, "what a queue counted stays");
    port.restart([&mut there]).unwrap();
    assert!(passes(6, &mut there, None));
    drop(there);
    port.stop([]).unwrap();
    assert!(is_open() && !port.is_started());
    drop(port);
    assert!(!is_open());
    drop((foreign, foreign_port));
    assert_eq!(pool.available(), MBUFS, "every mbuf came back");
}

/// Restarts a client until it is connected: a server that has not yet handled the end of the last connection refuses
/// it.
fn reconnect(client: &mut EthPort, queues: &mut [EthQueue]) {
    const HANDSHAKE: Duration = Duration::from_millis(500);
    wait_until("the server", || {
        client.restart(queues.iter_mut()).unwrap();
        let patience = Instant::now() + HANDSHAKE;
        while !client.link().is_up && Instant::now() < patience {
            thread::sleep(Duration::from_millis(1));
        }
        client.link().is_up
    });
}

/// A memif with two rings each way, each pair of rings with a thread of its own.
pub(super) fn memif() {
    const ROUNDS: usize = 2000;
    const LIVES: usize = 30;
    let eal = eal();
    let pool = pool(eal, 4 * MBUFS, 2048);
    let args = |role| format!("role={role},socket=@dpdk-ffi-queues-{},bsize=2048", std::process::id());
    let (server, server_queues) = open(eal, &pool, "net_memif0", &args("server"));
    let (mut client, client_queues) = open(eal, &pool, "net_memif1", &args("client"));
    wait_until("the link", || server.link().is_up && client.link().is_up);
    let (mut server_queues, mut client_queues) = (two_queues(server_queues), two_queues(client_queues));
    thread::scope(|scope| {
        for (near, far) in client_queues.iter_mut().zip(&mut server_queues) {
            scope.spawn(move || {
                for round in 0..ROUNDS {
                    let seed = usize::from(near.number()) * ROUNDS + round;
                    assert!(passes(seed, near, Some(far)), "to the server: round {round}");
                    assert!(passes(seed, far, Some(near)), "to the client: round {round}");
                }
            });
        }
    });
    let stats = [&server, &client].map(|port| port.stats().unwrap());
    assert!(
        stats.iter().all(|stats| stats.rx_frames == 2 * ROUNDS as u64),
        "sums over the queues: {stats:?}"
    );
    let xstats = server.xstats();
    assert!(xstats.contains(&("tx_good_packets".to_owned(), 2 * ROUNDS as u64)), "{xstats:?}");

    // The server's bursts go on while the client disconnects, and the driver's thread unmaps the memory.
    let ended = AtomicBool::new(false);
    thread::scope(|scope| {
        for queue in &mut server_queues {
            let ended = &ended;
            scope.spawn(move || {
                let mut frames = Vec::new();
                while !ended.load(Ordering::Relaxed) {
                    while queue
                        .tx_reserve(1500)
                        .map(|frame| frame.copy_from_slice(&pattern(7, 1500)))
                        .is_some()
                    {}
                    queue.tx_flush();
                    queue.rx_burst(&mut frames, 32);
                    Mbuf::free_bulk(&mut frames);
                }
            });
        }
        for life in 0..LIVES {
            let mut received = [0; 2];
            let mut frames = Vec::new();
            wait_until("frames on both queues", || {
                for (queue, received) in client_queues.iter_mut().zip(&mut received) {
                    *received += queue.rx_burst(&mut frames, 32);
                    assert!(frames.iter().all(|frame: &Mbuf| is_pattern(frame.data())), "in life {life}");
                    Mbuf::free_bulk(&mut frames);
                }
                received.iter().all(|count| *count > 500)
            });
            reconnect(&mut client, &mut client_queues);
        }
        ended.store(true, Ordering::Relaxed);
    });
    let violations = server.xstats().into_iter().find(|(name, _)| name == "peer_violations");
    assert_eq!(violations, Some(("peer_violations".to_owned(), 0)));
    drop((client, client_queues, server, server_queues));
    assert_eq!(pool.available(), 4 * MBUFS, "every mbuf came back");
}
