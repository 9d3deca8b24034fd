//! The parts of the child processes. Each starts its own EAL.

mod device;
mod exit;
mod local;
mod mistakes;
pub(crate) mod pairs;
mod queues;
mod veth;

use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use dpdk_ffi::{
    Eal, EalConfig, EthPort, EthQueue, Mbuf, Memory, Mempool, MempoolConfig, PortError, QueueSet,
};

/// How long a part waits for its peer. Long enough for any machine; only a failing test ever reaches it.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

pub(crate) fn play(part: &str) {
    match part {
        "mistakes" => mistakes::mistakes(),
        "eal_refuses" => mistakes::eal_refuses(),
        "exhaustion" => mistakes::exhaustion(),
        "packed" => mistakes::packed(),
        "null" => local::null(),
        "ring" => local::ring(),
        "stalled" => local::stalled(),
        "reopen" => local::reopen(),
        "hotplug" => local::hotplug(),
        "threads" => local::threads(),
        "queue_threads" => queues::threads(),
        "queues_in_turn" => queues::in_turn(),
        "queue_owners" => queues::owners(),
        "queue_memif" => queues::memif(),
        "memif_echo" => pairs::memif_echo(8192),
        "memif_frames" => pairs::memif_frames(8192),
        "memif_small_echo" => pairs::memif_echo(2048),
        "memif_small_frames" => pairs::memif_frames(2048),
        "memif_asleep_echo" => pairs::memif_asleep_echo(),
        "memif_asleep_frames" => pairs::memif_asleep_frames(),
        "memif_client_restarts" => pairs::memif_client_restarts(),
        "memif_surviving_client" => pairs::memif_survivor("client"),
        "memif_surviving_server" => pairs::memif_survivor("server"),
        "memif_dying_client" => pairs::memif_victim("client"),
        "memif_dying_server" => pairs::memif_victim("server"),
        "exit_actions" => exit::exit_actions(),
        "memif_slow_client" => pairs::memif_slow("client"),
        "memif_slow_server" => pairs::memif_slow("server"),
        "memif_client_closes" => pairs::memif_closes("client"),
        "memif_server_closes" => pairs::memif_closes("server"),
        "memif_client_exits" => pairs::memif_exits("client"),
        "memif_server_exits" => pairs::memif_exits("server"),
        "memif_stops" => pairs::memif_stops(),
        "memif_fills_and_closes" => pairs::memif_fills(false),
        "memif_fills_and_exits" => pairs::memif_fills(true),
        "memif_attacked_client" => pairs::memif_attacked_client(),
        "memif_attacked_server" => pairs::memif_attacked_server(),
        "memif_stranger" => crate::hostile::stranger(),
        "memif_false_server" => crate::hostile::false_server(),
        "vhost_echo" => pairs::vhost_echo(),
        "virtio_user_frames" => pairs::virtio_user_frames(),
        "virtio_user_closes" => device::virtio_user_closes(),
        "af_packet" => veth::af_packet(),
        "packet_socket" => veth::packet_socket(),
        unknown => panic!("there is no part {unknown:?}"),
    }
}

/// EAL as every machine and user can have it.
pub(crate) fn eal() -> Eal {
    let memory = Memory::NoHuge { mebibytes: 128 };
    Eal::init(&EalConfig { memory, ..EalConfig::default() }).unwrap_or_else(|error| panic!("{error}"))
}

pub(crate) fn pool(eal: Eal, mbufs: u32, data_room_bytes: u16) -> Mempool {
    let config = MempoolConfig { mbufs, data_room_bytes, cache_mbufs: 32, packed: false };
    Mempool::new(eal, &config).unwrap_or_else(|error| panic!("{error}"))
}

/// An open port of one queue.
pub(crate) struct Open {
    pub(crate) control: EthPort,
    pub(crate) queue: EthQueue,
}

impl From<(EthPort, QueueSet)> for Open {
    fn from((control, queues): (EthPort, QueueSet)) -> Self {
        let [queue] = <[EthQueue; 1]>::try_from(queues.into_queues()).expect("one queue");
        Self { control, queue }
    }
}

impl Open {
    pub(crate) fn start(&mut self) -> Result<(), PortError> {
        self.control.start([&mut self.queue])
    }

    pub(crate) fn stop(&mut self) -> Result<(), PortError> {
        self.control.stop([&mut self.queue])
    }

    pub(crate) fn restart(&mut self) -> Result<(), PortError> {
        self.control.restart([&mut self.queue])
    }
}

/// The frame number `seed`: addresses and EtherType that nothing else on an interface uses, and then bytes which
/// differ from frame to frame and from place to place.
pub(crate) fn pattern(seed: usize, len: usize) -> Vec<u8> {
    const HEADER: [u8; 14] = [2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 0x88, 0xb5];
    let body = (0..len).map(|place| ((place * 31) ^ (place >> 8) ^ (seed * 101)) as u8);
    HEADER.into_iter().chain(body).take(len).collect()
}

pub(crate) fn is_pattern(frame: &[u8]) -> bool {
    frame.get(12..14) == Some(&[0x88, 0xb5])
}

pub(crate) fn whole(frame: &Mbuf) -> Vec<u8> {
    let mut bytes = vec![0; frame.frame_len()];
    assert_eq!(frame.copy_to(&mut bytes), Some(bytes.len()));
    bytes
}

/// Waits until `ready` says so.
#[track_caller]
pub(crate) fn wait_until(what: &str, mut ready: impl FnMut() -> bool) {
    let patience = Instant::now() + PATIENCE;
    while !ready() {
        assert!(Instant::now() < patience, "gave up waiting: {what}");
        std::thread::sleep(Duration::from_micros(50));
    }
}

/// Queues and flushes one frame, whatever it takes.
#[track_caller]
pub(crate) fn send(port: &mut Open, bytes: &[u8]) {
    wait_until("room to send", || {
        port.queue.tx_reserve(bytes.len()).map(|frame| frame.copy_from_slice(bytes)).is_some()
    });
    wait_until("the frame to leave", || {
        port.queue.tx_flush();
        port.queue.tx_queued() == 0
    });
}

/// The next frame of ours; what the kernel sends by itself on an interface is passed over.
#[track_caller]
pub(crate) fn receive(port: &mut Open) -> Mbuf {
    let mut frames = Vec::new();
    wait_until("a frame", || {
        port.queue.rx_burst(&mut frames, 1);
        frames.retain(|frame: &Mbuf| is_pattern(frame.data()));
        !frames.is_empty()
    });
    frames.remove(0)
}

/// The next frame of ours, waited for asleep.
#[track_caller]
pub(crate) fn receive_asleep(port: &mut Open) -> Mbuf {
    let mut frames = Vec::new();
    loop {
        // While the connection begins, a memif cannot be armed.
        let is_armed = port.queue.arm() || {
            std::thread::sleep(Duration::from_millis(100));
            port.queue.arm()
        };
        port.queue.rx_burst(&mut frames, 1);
        frames.retain(|frame: &Mbuf| is_pattern(frame.data()));
        if let Some(frame) = frames.pop() {
            return frame;
        }
        assert!(is_armed, "the queue can be armed");
        assert!(is_readable(port, PATIENCE), "no frame woke the sleeper");
    }
}

/// Waits until the port's wake source is readable.
pub(crate) fn is_readable(port: &Open, patience: Duration) -> bool {
    let fd = port.queue.wake_fd().expect("the port has a wake source").as_raw_fd();
    let mut poll = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    // SAFETY: one entry, writable.
    unsafe { libc::poll(&mut poll, 1, patience.as_millis() as i32) == 1 }
}
