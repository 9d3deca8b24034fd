//! Two processes at the ends of one link.

use std::env;
use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, Instant};

use dpdk_ffi::{Eal, Mbuf, MemifAccess, PortBuilder, TX_QUEUE_FRAMES, WakeKind};

use super::{
    Open, PATIENCE, eal, is_readable, pattern, pool, receive, receive_asleep, send, wait_until, whole,
};

/// Around the sizes at which something changes: the smallest frame, one buffer of 2,048, the largest packet of
/// path MTU 4,096.
const LENS: [usize; 12] = [60, 61, 64, 1082, 1514, 2047, 2048, 2049, 4095, 4096, 4097, 4154];
/// Length of the frame that makes the echoing process close its port. No other frame has this length.
const END_LEN: usize = 77;
/// Frames of a test in which both ends sleep.
const ROUNDS_ASLEEP: usize = 10_000;

fn memif(role: &str, buffer_bytes: u16) -> Open {
    let eal = eal();
    if env::var_os("EXPECT_ORDINARY_USER").is_some() {
        // SAFETY: always succeeds.
        assert_ne!(unsafe { libc::geteuid() }, 0);
    }
    open_memif(eal, role, buffer_bytes)
}

fn open_memif(eal: Eal, role: &str, buffer_bytes: u16) -> Open {
    let socket = env::var("MEMIF_SOCKET").unwrap();
    let more = env::var("MEMIF_ARGS").unwrap_or_default();
    let uids = env::var("MEMIF_UIDS").ok().map(|uid| uid.parse().unwrap());
    let args = format!("role={role},socket={socket},bsize={buffer_bytes}{more}");
    let access = MemifAccess { uids: uids.into_iter().collect() };
    let device = eal.attach_memif("net_memif0", &args, access).unwrap();
    let mut port = Open::from(PortBuilder::new(pool(eal, 2047, buffer_bytes)).open_stopped(device).unwrap());
    if role == "server" {
        port.start().unwrap();
    } else {
        connect(&mut port);
    }
    port
}

/// Starts a client again and again: while there is no server that fails, and a server that listens already but
/// is not started refuses the connection, which a client does not try again by itself.
fn connect(port: &mut Open) {
    const HANDSHAKE: Duration = Duration::from_millis(500);
    wait_until("the memif server", || {
        if port.restart().is_err() {
            return false;
        }
        let patience = Instant::now() + HANDSHAKE;
        while !port.control.link().is_up && Instant::now() < patience {
            std::thread::sleep(Duration::from_millis(1));
        }
        port.control.link().is_up
    });
}

/// Returns every frame unchanged until the end is announced. The announcement is not returned, because
/// closing the port can overtake it.
fn echo(port: &mut Open) {
    let mut frames: Vec<Mbuf> = Vec::new();
    let mut ended = false;
    wait_until("the end of the test", || {
        port.queue.rx_burst(&mut frames, 32);
        for frame in frames.drain(..) {
            match frame.frame_len() {
                END_LEN => ended = true,
                _ => port.queue.tx_enqueue(frame).expect("32 frames fit"),
            }
        }
        wait_until("the echo to leave", || {
            port.queue.tx_flush();
            port.queue.tx_queued() == 0
        });
        ended
    });
}

/// Sends frames of every length and compares what returns.
fn compare_lens(port: &mut Open, send_any: impl Fn(&mut Open, &[u8]), chained_from: usize) {
    for (seed, len) in LENS.into_iter().enumerate() {
        let bytes = pattern(seed, len);
        send_any(port, &bytes);
        let frame = receive(port);
        assert_eq!(frame.is_contiguous(), len <= chained_from, "{frame:?}");
        assert!(whole(&frame) == bytes, "frame {seed} of {len} bytes changed on its way");
    }
}

/// Sends bursts and compares what returns, and in which order.
fn compare_bursts(port: &mut Open) {
    for round in 0..200 {
        let burst: Vec<Vec<u8>> =
            (0..32).map(|place| pattern(round * 32 + place, 60 + (place * 37 % 1400))).collect();
        for bytes in burst.iter().filter(|bytes| bytes.len() != END_LEN) {
            port.queue.tx_reserve(bytes.len()).expect("32 frames fit").copy_from_slice(bytes);
        }
        wait_until("the burst to leave", || {
            port.queue.tx_flush();
            port.queue.tx_queued() == 0
        });
        for bytes in burst.iter().filter(|bytes| bytes.len() != END_LEN) {
            let frame = receive(port);
            let (expected, got) = (bytes.len(), frame.data().len());
            assert!(
                frame.data() == bytes,
                "round {round}: not the frame of {expected} bytes, but one of {got}"
            );
        }
    }
}

/// Makes the peer close its port, and waits until it has, because it would lose the announcement if this
/// process closed first.
fn end(port: &mut Open) {
    send(port, &pattern(0, END_LEN));
    wait_until("the link to go down", || !port.control.link().is_up);
}

pub(super) fn memif_echo(buffer_bytes: u16) {
    echo(&mut memif("server", buffer_bytes));
}

pub(super) fn memif_frames(buffer_bytes: u16) {
    let mut port = memif("client", buffer_bytes);
    assert_eq!(port.control.info().driver, "net_memif");
    compare_lens(&mut port, send_chained, usize::from(buffer_bytes));
    // Also after frames longer than a buffer: where one was continued, a thousand frames later another is whole.
    compare_bursts(&mut port);
    let stats = port.control.stats().unwrap();
    assert_eq!(stats.rx_frames, stats.tx_frames);
    end(&mut port);
}

/// As one mbuf where it fits, otherwise as a chain.
fn send_chained(port: &mut Open, bytes: &[u8]) {
    let room = port.queue.tx_frame_max_bytes();
    if bytes.len() <= room {
        return send(port, bytes);
    }
    assert!(port.queue.tx_reserve(bytes.len()).is_none());
    let pool = port.queue.pool().clone();
    let mut pieces = bytes.chunks(room).map(|piece| {
        let mut mbuf = pool.alloc().unwrap();
        mbuf.append(piece.len()).unwrap().copy_from_slice(piece);
        mbuf
    });
    let mut head = pieces.next().unwrap();
    pieces.for_each(|piece| head.chain(piece).unwrap());
    port.queue.tx_enqueue(head).unwrap();
    wait_until("the chain to leave", || {
        port.queue.tx_flush();
        port.queue.tx_queued() == 0
    });
}

/// The client of two servers, one after the other.
pub(super) fn memif_client_restarts() {
    let mut port = memif("client", 2048);
    for life in 0..2 {
        send(&mut port, &pattern(life, 500));
        assert_eq!(receive(&mut port).data(), pattern(life, 500));
        end(&mut port);
        if life == 0 {
            // Frames for a peer that is gone are discarded, so there is always room for further frames.
            for _ in 0..=TX_QUEUE_FRAMES {
                port.queue.tx_reserve(100).unwrap().fill(0);
                assert_eq!((port.queue.tx_flush(), port.queue.tx_queued()), (0, 0));
            }
            let discarded = 1 + TX_QUEUE_FRAMES as u64;
            assert_eq!(port.control.counters().tx_discarded, discarded);
            connect(&mut port);
        }
    }
}

/// Lives in which the peer of a survivor is killed.
pub(crate) const KILLS: usize = 5;
/// Output of a survivor when frames flow, each time.
pub(crate) const FLOWING: &str = "frames flow";

/// Sends and receives without pause, while its peers are killed one after the other.
pub(super) fn memif_survivor(role: &str) {
    const FRAMES: usize = 100_000;
    let mut port = memif(role, 2048);
    let mut frames = Vec::new();
    for _kill in 0..KILLS {
        let mut received = 0;
        wait_until("the peer's end", || {
            if received < FRAMES && !port.control.link().is_up && role == "client" {
                connect(&mut port);
            }
            for _ in 0..100 {
                while port.queue.tx_reserve(1500).map(|frame| frame.fill(1)).is_some() {}
                port.queue.tx_flush();
                received += port.queue.rx_burst(&mut frames, 32);
                Mbuf::free_bulk(&mut frames);
            }
            if (FRAMES..usize::MAX / 2).contains(&received) {
                println!("{FLOWING}");
                received = usize::MAX / 2;
            }
            received >= usize::MAX / 2 && !port.control.link().is_up
        });
        port.queue.tx_discard();
    }
}

/// Sends and receives until it is killed.
pub(super) fn memif_victim(role: &str) {
    let mut port = memif(role, 2048);
    let mut frames = Vec::new();
    loop {
        while port.queue.tx_reserve(1500).map(|frame| frame.fill(2)).is_some() {}
        port.queue.tx_flush();
        port.queue.rx_burst(&mut frames, 32);
        Mbuf::free_bulk(&mut frames);
    }
}

/// Frames in the ring of a memif when its connection ends.
const LAST_FRAMES: usize = 30;

/// Receives frames one by one, more slowly than the peer sends them, until the connection ends. Sends frames until the
/// first arrives: the peer waits for one, because a server could not send before this process receives.
pub(super) fn memif_slow(role: &str) {
    let mut port = memif(role, 2048);
    let (mut frames, mut received) = (Vec::new(), 0);
    wait_until("the end of the connection", || {
        if received == 0
            && let Some(frame) = port.queue.tx_reserve(60)
        {
            frame.copy_from_slice(&pattern(0, 60));
        }
        port.queue.tx_flush();
        received += port.queue.rx_burst(&mut frames, 1);
        frames.clear();
        received > 0 && !port.control.link().is_up
    });
    assert_eq!(received, LAST_FRAMES, "the peer ended after so many frames");
}

/// Closes its port when the last frame is in the ring.
pub(super) fn memif_closes(role: &str) {
    let mut port = memif(role, 2048);
    receive(&mut port);
    (0..LAST_FRAMES).for_each(|seed| send(&mut port, &pattern(seed, 100)));
}

/// Exits when the last frame is in the ring, without closing its port.
pub(super) fn memif_exits(role: &str) {
    let mut port = memif(role, 2048);
    receive(&mut port);
    (0..LAST_FRAMES).for_each(|seed| send(&mut port, &pattern(seed, 100)));
    exit();
}

/// Exits as `main` of a program may. The part has succeeded, as far as its process can tell.
fn exit() -> ! {
    println!("1 passed");
    std::process::exit(0);
}

/// Stops itself by SIGSTOP when it is connected, until another process continues it.
pub(super) fn memif_stops() {
    let mut port = memif("server", 2048);
    receive(&mut port);
    // SAFETY: a signal that no handler of this process sees.
    unsafe { libc::raise(libc::SIGSTOP) };
}

/// Fills the ring to a peer that stops, and then closes its port, or exits.
pub(super) fn memif_fills(exits: bool) {
    const STALLS: usize = 100;
    let mut port = memif("client", 2048);
    send(&mut port, &pattern(0, 100));
    let mut stalls = 0;
    wait_until("the ring to be full", || {
        while port.queue.tx_reserve(100).map(|frame| frame.fill(3)).is_some() {}
        stalls = if port.queue.tx_flush() == 0 { stalls + 1 } else { 0 };
        stalls == STALLS
    });
    if exits {
        exit();
    }
}

/// Echoes, whatever peers come, until one of them announces the end.
pub(super) fn memif_attacked_server() {
    let mut port = memif("server", 2048);
    let mut frames: Vec<Mbuf> = Vec::new();
    let mut ended = false;
    wait_until("the end of the attacks", || {
        port.queue.rx_burst(&mut frames, 32);
        for frame in frames.drain(..) {
            ended |= frame.frame_len() == END_LEN;
            // Without room for it the peer has to do without an echo.
            drop(port.queue.tx_enqueue(frame));
        }
        port.queue.tx_flush();
        if !port.control.link().is_up {
            port.queue.tx_discard();
        }
        ended
    });
}

/// Sends to whatever servers come, until one of them echoes.
pub(super) fn memif_attacked_client() {
    let eal = eal();
    let socket = env::var("MEMIF_SOCKET").unwrap();
    let device = eal.attach_vdev("net_memif0", &format!("role=client,socket={socket},bsize=2048")).unwrap();
    let mut port = Open::from(PortBuilder::new(pool(eal, 2047, 2048)).open_stopped(device).unwrap());
    let bytes = pattern(1, 500);
    let mut frames: Vec<Mbuf> = Vec::new();
    let mut knocked: Option<Instant> = None;
    wait_until("an echo", || {
        let due = knocked.is_none_or(|at| at.elapsed() > Duration::from_millis(100));
        if due && !port.control.link().is_up {
            knocked = Some(Instant::now());
            // Fails where there is no server.
            let _next_time = port.restart();
        }
        if let Some(room) = port.queue.tx_reserve(bytes.len()) {
            room.copy_from_slice(&bytes);
        }
        port.queue.tx_flush();
        port.queue.rx_burst(&mut frames, 32);
        let echoed = frames.iter().any(|frame| frame.data() == bytes);
        frames.clear();
        echoed
    });
    port.queue.tx_discard();
    end(&mut port);
}

pub(super) fn vhost_echo() {
    let eal = eal();
    let path = env::var("VHOST_SOCKET").unwrap();
    // The most open mask that a user can have.
    // SAFETY: always succeeds; this process makes no other files.
    unsafe { libc::umask(0) };
    let device = eal.attach_vdev("net_vhost0", &format!("iface={path},queues=1")).unwrap();
    let mut port = Open::from(PortBuilder::new(pool(eal, 2047, 8192)).open(device).unwrap());
    let mode = std::fs::metadata(&path).expect("the socket is there").permissions().mode() & 0o777;
    assert_eq!(mode, 0o600, "others may connect: {mode:o}");
    assert_eq!(port.queue.wake_kind(), Some(WakeKind::Eventfd));
    echo_asleep(&mut port);
}

pub(super) fn virtio_user_frames() {
    let eal = eal();
    let path = env::var("VHOST_SOCKET").unwrap();
    let mut device = None;
    wait_until("the vhost socket", || {
        device = eal.attach_vdev("net_virtio_user0", &format!("path={path},queues=1")).ok();
        device.is_some()
    });
    let device = device.expect("attached just now");
    let builder = PortBuilder::new(pool(eal, 2047, 8192)).rx_interrupts(true);
    let mut port = Open::from(builder.open(device).unwrap_or_else(|error| panic!("{error}")));
    wait_until("the link", || port.control.link().is_up);
    compare_lens(&mut port, send, 8192);
    compare_bursts(&mut port);

    assert_eq!(port.queue.wake_kind(), Some(WakeKind::RxInterrupt));
    assert!(port.queue.arm());
    assert!(!is_readable(&port, Duration::ZERO), "nothing has arrived");
    send(&mut port, &pattern(1, 300));
    assert!(is_readable(&port, PATIENCE), "the echo wakes a sleeper");
    port.queue.disarm();
    assert_eq!(receive(&mut port).data(), pattern(1, 300));
    frames_asleep(&mut port);
    end(&mut port);
}

/// Sends frames one by one and sleeps until each returns.
fn frames_asleep(port: &mut Open) {
    for round in 0..ROUNDS_ASLEEP {
        send(port, &pattern(round, 100));
        assert_eq!(receive_asleep(port).data(), pattern(round, 100), "round {round}");
    }
}

pub(super) fn memif_asleep_frames() {
    let mut port = memif("client", 2048);
    assert_eq!(port.queue.wake_kind(), Some(WakeKind::Eventfd));
    frames_asleep(&mut port);
    end(&mut port);
}

/// Returns every frame, and sleeps in between; from the beginning, before there is a connection.
fn echo_asleep(port: &mut Open) {
    loop {
        let frame = receive_asleep(port);
        if frame.frame_len() == END_LEN {
            return;
        }
        send(port, frame.data());
    }
}

pub(super) fn memif_asleep_echo() {
    echo_asleep(&mut memif("server", 2048));
}
