//! A virtio-user port whose peer disconnects while the port closes.

use std::ffi::{c_int, c_void};
use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;
use std::{env, fs};

use dpdk_ffi::{Eal, Mempool, PortBuilder};

use super::{Open, eal, pool, wait_until};

/// Requests of vhost-user that are answered.
const GET_FEATURES: u32 = 1;
const GET_VRING_BASE: u32 = 11;
/// VIRTIO_F_VERSION_1
const FEATURES: u64 = 1 << 32;
/// Version 1, and the mark of a reply.
const REPLY: u32 = 1 | 1 << 2;
/// RTE_ETH_EVENT_INTR_LSC
const LINK_CHANGED: c_int = 1;

type EventCallback = extern "C" fn(u16, c_int, *mut c_void, *mut c_void) -> c_int;

unsafe extern "C" {
    fn rte_eth_dev_callback_register(
        port: u16,
        event: c_int,
        callback: EventCallback,
        arg: *mut c_void,
    ) -> c_int;
}

/// Handlers that have begun.
static HANDLERS: AtomicU32 = AtomicU32::new(0);

/// Called by the driver's handler of interrupts, which therefore runs long enough for a port to close.
extern "C" fn link_changed(_port: u16, _event: c_int, _arg: *mut c_void, _result: *mut c_void) -> c_int {
    HANDLERS.fetch_add(1, Ordering::SeqCst);
    thread::sleep(Duration::from_millis(100));
    0
}

/// A port and its peer, which are connected.
struct Pair {
    port: Open,
    peer: UnixStream,
    answering: JoinHandle<()>,
}

impl Pair {
    fn open(eal: Eal, pool: &Mempool, listener: &UnixListener) -> Self {
        let listener = listener.try_clone().unwrap();
        let accepting = thread::spawn(move || {
            let (stream, _) = listener.accept().unwrap();
            let peer = stream.try_clone().unwrap();
            (peer, thread::spawn(move || answer(stream)))
        });
        let path = env::var("VHOST_SOCKET").unwrap();
        let device = eal.attach_vdev("net_virtio_user0", &format!("path={path}")).unwrap();
        let builder = PortBuilder::new(pool.clone()).rx_interrupts(true);
        let port = Open::from(builder.open_stopped(device).unwrap_or_else(|error| panic!("{error}")));
        let (peer, answering) = accepting.join().unwrap();
        Self { port, peer, answering }
    }

    /// Starts the port, disconnects the peer and returns the port while its handler runs.
    fn start_and_disconnect(mut self) -> Open {
        self.port.start().unwrap();
        assert!(self.port.control.link().is_up);
        // SAFETY: the port exists, and the callback lives forever.
        let ret = unsafe {
            rte_eth_dev_callback_register(
                self.port.control.id(),
                LINK_CHANGED,
                link_changed,
                std::ptr::null_mut(),
            )
        };
        assert_eq!(ret, 0);
        let before = HANDLERS.load(Ordering::SeqCst);
        self.peer.shutdown(Shutdown::Both).unwrap();
        self.answering.join().unwrap();
        wait_until("the handler", || HANDLERS.load(Ordering::SeqCst) > before);
        self.port
    }
}

/// Answers a driver's requests until it is disconnected. The kernel closes the descriptors that come with them.
fn answer(mut stream: UnixStream) {
    let mut header = [0; 12];
    while stream.read_exact(&mut header).is_ok() {
        let [request, len] = [0, 8].map(|at| u32::from_ne_bytes(header[at..at + 4].try_into().unwrap()));
        let mut payload = vec![0; len as usize];
        if stream.read_exact(&mut payload).is_err() {
            return;
        }
        let reply = match request {
            GET_FEATURES => FEATURES.to_ne_bytes().to_vec(),
            GET_VRING_BASE => payload,
            _ => continue,
        };
        let header = [request, REPLY, reply.len() as u32].map(u32::to_ne_bytes).concat();
        if stream.write_all(&[header, reply].concat()).is_err() {
            return;
        }
    }
}

pub(super) fn virtio_user_closes() {
    let eal = eal();
    let pool = pool(eal, 1023, 2048);
    let path = env::var("VHOST_SOCKET").unwrap();
    let listener = UnixListener::bind(&path).unwrap();
    // Without redirection the handler of a port that was never started stays registered.
    if dpdk_sys::STATIC {
        drop(Pair::open(eal, &pool, &listener).port);
    }
    // One of them has the number of the descriptor that was closed, and epoll refuses it.
    let _files = [(); 8].map(|()| fs::File::open("/dev/null").unwrap());
    for stop_first in [false, true, false] {
        let mut port = Pair::open(eal, &pool, &listener).start_and_disconnect();
        if stop_first {
            port.stop().unwrap();
        } else {
            // Sets an alarm.
            assert!(!port.control.link().is_up);
        }
        drop(port);
        // A handler that is still registered would run now.
        thread::sleep(Duration::from_millis(150));
    }
    assert_eq!(pool.available(), 1023, "every mbuf came back");
    fs::remove_file(path).unwrap();
}
