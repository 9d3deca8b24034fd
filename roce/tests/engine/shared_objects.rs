//! Protection domains, memory regions and completion queues that several engines of a device use.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use crate::common::{End, conn, connect_qp, pair_of_device, pair_over, ports, post_send, settle};
use roce::engine::limits::DeviceLimits;
use roce::engine::{DestroyError, Event, SharedObjects};
use roce::mem::{Access, Memory};
use roce::port::loopback::{LoopbackFrame, LoopbackPort};
use roce::port::{Port, PortCaps};
use roce::qp::{AddressVector, PathMtu, QpInit};
use roce::queue::{Notify, SendOp, SendPoster, Sge, WcStatus};
use roce::time::Instant;

const BYTES: u32 = 64;

/// Connects a further queue pair of `a`, with the protection domain and the completion queue of `other`, to a further
/// queue pair of `b`.
fn connect_with_objects_of(other: &End, a: &mut End, b: &mut End) -> SendPoster {
    let init = QpInit { signal_all: true, ..other.small_qp() };
    let handles = a.engine.create_qp(&init).unwrap();
    let peer = b.create_idle_qp();
    let conn = conn(PathMtu::Mtu1024);
    connect_qp(&mut a.engine, handles.qpn, peer, AddressVector::new(b.gid, 1), &conn);
    connect_qp(&mut b.engine, peer, handles.qpn, AddressVector::new(a.gid, 1), &conn);
    handles.send
}

fn write_to(peer: &End) -> SendOp {
    SendOp::Write { remote_addr: peer.memory.addr(), rkey: peer.rkey }
}

#[test]
fn two_engines_use_one_completion_queue_and_one_region() {
    let objects = SharedObjects::new([9; 32], &DeviceLimits::default());
    let [(mut a0, mut b0), (mut a1, mut b1)] = [(); 2].map(|()| pair_of_device(&objects, 4096));
    let mut send1 = connect_with_objects_of(&a0, &mut a1, &mut b1);
    a0.memory.write(0, &[7; BYTES as usize]).unwrap();
    let sge = a0.sge(0, BYTES);

    a0.poller.notifier().request(Notify::Any);
    a0.post(10, write_to(&b0), sge);
    post_send(&mut send1, 11, write_to(&b1), sge);
    settle(&mut a1, &mut b1);
    assert_eq!(a1.engine.poll_event(), Some(Event::Completion(a0.cq)));
    settle(&mut a0, &mut b0);
    assert_eq!(a0.engine.poll_event(), None, "one request, one event");
    let mut completions = a0.completions();
    completions.sort_unstable_by_key(|cqe| cqe.wr_id);
    let statuses: Vec<_> = completions.iter().map(|cqe| (cqe.wr_id, cqe.status)).collect();
    assert_eq!(statuses, [(10, WcStatus::Success), (11, WcStatus::Success)]);
    for peer in [&b0, &b1] {
        let mut written = [0; BYTES as usize];
        peer.memory.read(0, &mut written).unwrap();
        assert_eq!(written, [7; BYTES as usize]);
    }
}

#[test]
fn objects_are_busy_while_any_engine_uses_them() {
    let objects = SharedObjects::new([9; 32], &DeviceLimits::default());
    let [(mut a0, _b0), (mut a1, mut b1)] = [(); 2].map(|()| pair_of_device(&objects, 4096));
    connect_with_objects_of(&a0, &mut a1, &mut b1);
    let qpn = a1.engine.create_qp(&a0.small_qp()).unwrap().qpn;
    objects.deregister(a0.lkey).unwrap();
    a0.engine.destroy_qp(a0.qpn).unwrap();
    let is_busy = |result| matches!(result, Err(DestroyError::Busy(_)));
    assert!(is_busy(objects.destroy_cq(a0.cq)) && is_busy(objects.dealloc_pd(a0.pd)));
    a1.engine.destroy_qp(qpn).unwrap();
    assert!(is_busy(objects.destroy_cq(a0.cq)) && is_busy(objects.dealloc_pd(a0.pd)));
    drop(a1);
    assert_eq!((objects.destroy_cq(a0.cq), objects.dealloc_pd(a0.pd)), (Ok(()), Ok(())));
    assert!(objects.deregister(a0.lkey).is_err(), "a key is deregistered once");
}

/// A port that panics when it sends, after `panics` was set.
struct Faulty {
    port: LoopbackPort,
    panics: bool,
}

impl Port for Faulty {
    type Frame = LoopbackFrame;

    fn caps(&self) -> PortCaps {
        self.port.caps()
    }

    fn rx_burst(&mut self, frames: &mut Vec<LoopbackFrame>, max: usize) -> usize {
        self.port.rx_burst(frames, max)
    }

    fn tx_reserve(&mut self, len_bytes: usize) -> Option<&mut [u8]> {
        assert!(!self.panics, "a fault of the port, asked for by the test");
        self.port.tx_reserve(len_bytes)
    }

    fn tx_cancel(&mut self) {
        self.port.tx_cancel();
    }

    fn tx_flush(&mut self) {
        self.port.tx_flush();
    }
}

/// Returns an end whose last poll ended in a panic while the engine used memory regions.
fn end_after_a_panic() -> End<Faulty> {
    let (port_a, port_b) = ports();
    let port_a = Faulty { port: port_a, panics: false };
    let (mut a, b) = pair_over(port_a, port_b, 4096, true, &conn(PathMtu::Mtu1024));
    a.engine.port_mut().panics = true;
    let sge = a.sge(0, BYTES);
    a.post(1, write_to(&b), sge);
    assert!(catch_unwind(AssertUnwindSafe(|| a.engine.poll(Instant::ZERO))).is_err());
    a
}

#[test]
fn a_region_can_be_deregistered_after_a_panic_in_a_poll() {
    let mut a = end_after_a_panic();
    a.engine.abandon_poll();
    a.engine.objects().deregister(a.lkey).unwrap();
}

/// A thread that registers many regions replaces the table of regions. The thread frees the old table only after the
/// engine has left its epoch, in which the engine may use the old table. After a panic, the engine leaves its epoch
/// only when it is dropped.
#[test]
fn an_engine_is_dropped_after_a_panic_in_a_poll_while_a_thread_registers() {
    const REGIONS: u32 = 1000;
    let a = end_after_a_panic();
    let (objects, pd) = (a.engine.objects().clone(), a.pd);
    let (progress, registered) = mpsc::channel();
    let registering = thread::spawn(move || {
        for number in 0..REGIONS {
            objects.register(pd, Memory::phantom(8), 0, Access::NONE).unwrap();
            progress.send(number).unwrap();
        }
    });
    let wait = Duration::from_millis(500);
    while registered.recv_timeout(wait).is_ok() {}
    assert!(!registering.is_finished(), "the thread waits for the engine");
    let (dropped, is_dropped) = mpsc::channel();
    thread::spawn(move || {
        drop(a.engine);
        dropped.send(()).unwrap();
    });
    is_dropped.recv_timeout(Duration::from_secs(60)).expect("the engine is dropped");
    registering.join().unwrap();
}

#[test]
fn a_region_of_another_domain_stays_closed() {
    let objects = SharedObjects::new([9; 32], &DeviceLimits::default());
    let [(mut a0, _b0), (mut a1, mut b1)] = [(); 2].map(|()| pair_of_device(&objects, 4096));
    let mut send = connect_with_objects_of(&a0, &mut a1, &mut b1);
    let memory = Memory::alloc(BYTES as usize);
    let (lkey, _) = objects.register(a1.pd, memory.clone(), memory.addr(), Access::NONE).unwrap();
    post_send(&mut send, 1, write_to(&b1), Sge { addr: memory.addr(), len_bytes: BYTES, lkey });
    settle(&mut a1, &mut b1);
    assert_eq!(a0.completions().first().map(|cqe| cqe.status), Some(WcStatus::LocProtErr));
}
