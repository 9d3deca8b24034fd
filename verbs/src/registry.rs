//! The open devices of this process, at most one for each port.

use std::fs::File;
use std::io::BufWriter;
use std::mem;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use dpdk_ffi::{ExitAction, NoCancel, PerProcess};
use roce::engine::{Engine, EngineConfig};
use roce::port::events::Events;
use roce::port::fault::Fault;
use roce::port::pcap::Pcap;

use crate::background::BackgroundServer;
use crate::device::{EngineClock, Shared};
use crate::error::OpenError;
use crate::limits::{DESCRIPTORS_PER_DEVICE, TooFewDescriptors};
use crate::link::LinkWatch;
use crate::options::DeviceOptions;
use crate::port::{self, PortSpec, Wire};
use crate::progress::{self, Membership};
use crate::stat::StatSocket;

/// An open device, shared by its contexts. The drop of the device ends its background server.
pub(crate) struct Device {
    pub(crate) shared: Arc<Shared>,
    pub(crate) options: DeviceOptions,
    pub(crate) membership: Membership,
    _at_exit: ExitAction,
}

impl Drop for Device {
    fn drop(&mut self) {
        if !self.shared.is_of_this_process() {
            return;
        }
        let _no_cancel = NoCancel::new();
        self.shared.stopping.store(true, Ordering::Relaxed);
        self.shared.sleep.wake_background();
        self.membership.leave();
    }
}

/// An open port, and its device. A queue or completion channel that still exists when the device is closed keeps the
/// port open.
struct Entry {
    port: PortSpec,
    device: Weak<Device>,
    /// Weak reference to `SharedState::alive`, which exists until the port is closed.
    alive: Weak<()>,
}

static DEVICES: PerProcess<Mutex<Vec<Entry>>> = PerProcess::new();

/// Longest time for which `open` waits until another thread has closed the port.
const CLOSE_MAX: Duration = Duration::from_secs(1);
const CLOSE_POLL: Duration = Duration::from_millis(1);

/// Returns the device of the port `spec`. If this process does not have the port open, opens the port first.
pub(crate) fn open(spec: &PortSpec, options: &DeviceOptions) -> Result<Arc<Device>, OpenError> {
    let end = Instant::now() + CLOSE_MAX;
    loop {
        // `DEVICES` is locked while a port is opened, otherwise two threads could open the same port.
        let mut devices = DEVICES.get().lock().unwrap_or_else(PoisonError::into_inner);
        devices.retain(|entry| entry.alive.strong_count() > 0);
        let is_same = |open: &PortSpec| (open.kind, &open.target) == (spec.kind, &spec.target);
        let Some(entry) = devices.iter().find(|entry| is_same(&entry.port)) else {
            let device = open_device(spec, options)?;
            let alive = Arc::downgrade(&device.shared.alive);
            devices.push(Entry { port: spec.clone(), device: Arc::downgrade(&device), alive });
            return Ok(device);
        };
        let device = entry.device.upgrade();
        // `DEVICES` is unlocked first, because a drop of `device` takes long.
        drop(devices);
        if let Some(device) = device {
            return check(&device, spec, options).map(|()| device);
        }
        if Instant::now() >= end {
            let reason = "its queues or completion channels are still in use: drop them first".to_owned();
            return Err(OpenError::Open { port: spec.to_string(), reason });
        }
        // Another thread is closing the port, or a queue or completion channel keeps the port open.
        thread::sleep(CLOSE_POLL);
    }
}

/// Checks that `device` can be shared by a context that is opened with `spec` and `options`.
fn check(device: &Device, spec: &PortSpec, options: &DeviceOptions) -> Result<(), OpenError> {
    let is_default = options.difference(&DeviceOptions::default()).is_none();
    let reason = if device.shared.check().is_err() {
        "the device is in a fatal error: drop its contexts and objects first".to_owned()
    } else if device.shared.port != *spec {
        "it was opened with other keys (ip=, vlan= ..): give the same name".to_owned()
    } else {
        match options.difference(&device.options).filter(|_| !is_default) {
            None => return Ok(()),
            Some(option) => format!("it was opened with other `{option}`: give the same options, or none"),
        }
    };
    Err(OpenError::Open { port: spec.to_string(), reason })
}

fn open_device(spec: &PortSpec, options: &DeviceOptions) -> Result<Arc<Device>, OpenError> {
    TooFewDescriptors::check("a device", DESCRIPTORS_PER_DEVICE)?;
    let opened = port::open(spec, &options.eal, options.qpn_prefix)?;
    let qpn_prefix = opened.port.qpn_prefix();
    let clock = EngineClock::new();
    let wire = match &options.pcap {
        None => Wire::Bare(opened.port),
        Some(path) => {
            let failed = |error| OpenError::Capture { path: path.clone(), error };
            let file = File::create(path).map_err(|error| failed(error.into()))?;
            let unix_nanos =
                SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos() as u64;
            let capture = Pcap::new(opened.port, BufWriter::new(file), unix_nanos).map_err(failed)?;
            Wire::Captured(capture)
        }
    };
    let mut seed = [0; 32];
    getrandom::fill(&mut seed).map_err(|error| OpenError::System {
        what: "no random numbers from the operating system",
        error: std::io::Error::other(error.to_string()),
    })?;
    let mut config = EngineConfig::new(seed, opened.neighbour);
    config.limits = options.limits;
    config.congestion = options.congestion;
    config.notification = options.notification;
    config.source_checks = spec.source_checks;
    config.qpn_prefix = qpn_prefix;
    let engine = Engine::new(Events::new(Fault::new(wire, options.faults), options.events.clone()), config)?;
    let control = (opened.control, opened.shared, opened.lease);
    let shared = Shared::new(engine, clock, control, spec.clone(), options.limits, options.progress)
        .map_err(|error| OpenError::System { what: "cannot make file descriptors to sleep on", error })?;
    let shared = Arc::new(shared);
    let stat = StatSocket::open();
    if let Err(error) = &stat {
        tracing::debug!(%error, "no socket for `roce stat`: this device will not be listed");
    }
    let link = LinkWatch::new(&shared, opened.interface);
    let membership = progress::join(BackgroundServer::new(shared.clone(), link, stat.ok()))
        .map_err(|error| OpenError::System { what: "cannot start a thread", error })?;
    let at_exit = Arc::downgrade(&shared);
    let at_exit = ExitAction::new(move || {
        if let Some(shared) = at_exit.upgrade() {
            shared.send_at_exit();
            // If `shared` is the last reference to the device's engine and port, its drop would close the port during
            // the exit of the process.
            mem::forget(shared);
        }
    });
    Ok(Arc::new(Device { shared, options: options.clone(), membership, _at_exit: at_exit }))
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    use super::*;
    use crate::{
        Access, ConnAttr, ConnectOptions, Context, Event, ProgressPolicy, QpAttr, QpOptions, QpState,
        RecoveryScheme, RecvRequest, SendData, SendFlags, SendOp, SendRequest, SrqOptions, WcStatus,
    };

    fn spec(text: &str) -> PortSpec {
        text.parse().unwrap()
    }

    fn open_default(text: &str) -> Context {
        Context::open(&spec(text), &DeviceOptions::default()).unwrap()
    }

    fn has_event(context: &Context) -> bool {
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        let fd = context.async_event_fd();
        poll(&mut [PollFd::from_borrowed_fd(fd.as_fd(), PollFlags::IN)], Some(&now)).unwrap() > 0
    }

    /// The driver of this port drops all sent frames and receives none, so only the loopback of the port delivers
    /// frames.
    #[test]
    fn two_contexts_of_one_port_are_one_device_and_connect() {
        const PORT: &str = "eal:net_null81,dev.no-rx=1,ip=10.0.81.1/24";
        let (near, far) = (open_default(PORT), open_default(PORT));
        let (a, b) = (near.attr(), far.attr());
        assert_eq!((a.mac, a.gids), (b.mac, b.gids));
        let [(near_cq, near_pd), (far_cq, far_pd)] =
            [&near, &far].map(|context| (context.create_cq(256, None).unwrap(), context.alloc_pd().unwrap()));
        let qp = near_pd.create_qp(&QpOptions::new(&near_cq)).unwrap();
        let peer = far_pd.create_qp(&QpOptions::new(&far_cq)).unwrap();
        assert_ne!(qp.qpn(), peer.qpn());
        let options = ConnectOptions { gid_index: 1, ..ConnectOptions::default() };
        peer.connect(&qp.endpoint(1), &options).unwrap();
        qp.connect(&peer.endpoint(1), &options).unwrap();
        let (from, to) = (
            near_pd.alloc(1 << 20, Access::NONE).unwrap(),
            far_pd.alloc(1 << 20, Access::LOCAL_WRITE).unwrap(),
        );
        from.write((1 << 20) - 5, b"whole").unwrap();
        for round in 0..20 {
            peer.post_recv(&RecvRequest { wr_id: round, sges: &[to.sge(0, 1 << 20)] }).unwrap();
            let data = SendData::Sges(&[from.sge(0, 1 << 20)]);
            let flags = SendFlags { signaled: true, ..SendFlags::default() };
            qp.post_send(&SendRequest { wr_id: round, op: SendOp::Send, flags, data }).unwrap();
            for cq in [&near_cq, &far_cq] {
                let done = loop {
                    if let Some(cqe) = cq.poll_one().unwrap() {
                        break cqe;
                    }
                };
                assert_eq!((done.wr_id, done.status), (round, WcStatus::Success));
            }
        }
        let mut bytes = [0; 5];
        to.read((1 << 20) - 5, &mut bytes).unwrap();
        assert_eq!((&bytes, near.counters().0.rdma_sends), (b"whole", 20));
        drop((from, qp, near_pd, near_cq, near));
        assert!(far.progress().is_ok(), "the device is still open");
    }

    /// `send_at_exit` is called directly after the poll that received the last message, while the ACK of this message
    /// is still delayed.
    #[test]
    fn the_delayed_ack_of_the_last_message_is_sent_at_the_exit() {
        // No timer, so that nothing is retransmitted however late this thread polls.
        let conn = ConnAttr { timeout: 0, recovery: RecoveryScheme::GoBackN, ..ConnAttr::default() };
        let options = DeviceOptions { progress: ProgressPolicy::Application, ..DeviceOptions::default() };
        let context = Context::open(&spec("eal:net_null98,dev.no-rx=1,ip=10.0.98.1/24"), &options).unwrap();
        let pd = context.alloc_pd().unwrap();
        let [near_cq, far_cq] = [(), ()].map(|()| context.create_cq(8, None).unwrap());
        let [near, far] = [&near_cq, &far_cq].map(|cq| pd.create_qp(&QpOptions::new(cq)).unwrap());
        let connect = ConnectOptions { gid_index: 1, conn, ..ConnectOptions::default() };
        near.connect(&far.endpoint(1), &connect).unwrap();
        far.connect(&near.endpoint(1), &connect).unwrap();
        let memory = pd.alloc(64, Access::LOCAL_WRITE).unwrap();
        far.post_recv(&RecvRequest { wr_id: 1, sges: &[memory.sge(0, 8)] }).unwrap();
        let (flags, data) = (SendFlags::default(), SendData::Sges(&[memory.sge(8, 8)]));
        near.post_send(&SendRequest { wr_id: 2, op: SendOp::Send, flags, data }).unwrap();
        let received = std::iter::repeat_with(|| far_cq.poll_one().unwrap()).flatten().next();
        assert_eq!(received.map(|cqe| cqe.status), Some(WcStatus::Success));
        assert_eq!(context.counters().0.sent_pkts, 1, "the SEND");
        context.shared().send_at_exit();
        assert_eq!(context.counters().0.sent_pkts, 2, "the SEND and the ACK");
    }

    #[test]
    fn an_event_is_queued_at_the_context_of_its_object() {
        const PORT: &str = "eal:net_null82,dev.no-rx=1,ip=10.0.82.1/24";
        let (near, far) = (open_default(PORT), open_default(PORT));
        let (cq, pd) = (near.create_cq(8, None).unwrap(), near.alloc_pd().unwrap());
        let srq = pd.create_srq(&SrqOptions::default()).unwrap();
        let qp = pd.create_qp(&QpOptions { srq: Some(&srq), ..QpOptions::new(&cq) }).unwrap();
        let err = QpAttr { state: Some(QpState::Err), ..QpAttr::default() };
        qp.modify(&err).unwrap();
        near.progress().unwrap();
        srq.set_limit(1).unwrap();
        assert!(has_event(&near) && !has_event(&far));
        let events = std::iter::from_fn(|| near.poll_async_event()).collect::<Vec<_>>();
        assert_eq!(events.len(), 2, "{events:?}");
        assert!(events.contains(&Event::LastWqeReached(qp.qpn())));
        assert!(events.contains(&Event::SrqLimitReached(srq.id())));
        assert!(!has_event(&near));
        near.shared().inspect().raise_fatal("a test".to_owned());
        assert_eq!([&near, &far].map(Context::poll_async_event), [Some(Event::DeviceFatal); 2]);
    }

    #[test]
    fn a_port_is_not_opened_a_second_time_while_a_queue_keeps_it_open() {
        let name = format!("memif:@verbs-registry-{}", std::process::id());
        let context = open_default(&name);
        let (_, queue) = context.objects().create_cq(4, None, 0).unwrap();
        drop(context);
        let refused =
            Context::open(&spec(&name), &DeviceOptions::default()).err().map(|error| error.to_string());
        assert!(refused.as_ref().is_some_and(|error| error.contains("still in use")), "{refused:?}");
        drop(queue);
        open_default(&name).progress().unwrap();
    }

    #[test]
    fn a_port_that_another_thread_closes_is_opened_again() {
        let name = format!("memif:@verbs-reopened-{}", std::process::id());
        thread::scope(|scope| {
            let reopen = || (0..30).for_each(|_| open_default(&name).progress().unwrap());
            (0..3).for_each(|_| drop(scope.spawn(reopen)));
        });
    }

    #[test]
    fn a_device_is_shared_as_it_is_or_not_at_all() {
        const PORT: &str = "eal:net_null83,dev.no-rx=1,ip=10.0.83.1/24";
        let few = DeviceOptions {
            limits: roce::engine::limits::DeviceLimits { max_qps: 7, ..Default::default() },
            ..DeviceOptions::default()
        };
        let refused = |text: &str, options: &DeviceOptions| {
            Context::open(&spec(text), options).err().map(|error| error.to_string()).unwrap_or_default()
        };
        let first = Context::open(&spec(PORT), &few).unwrap();
        let second = open_default(PORT);
        assert_eq!(second.attr().caps.limits.max_qps, 7);
        assert_eq!(refused(PORT, &few), "");
        let other = DeviceOptions { pcap: Some("/nowhere".into()), ..DeviceOptions::default() };
        assert!(refused(PORT, &other).contains("other `pcap`"), "{}", refused(PORT, &other));
        let keys = refused("eal:net_null83,dev.no-rx=1", &few);
        assert!(keys.contains("eal:net_null83 open") && keys.contains("same name"), "{keys}");
        drop(first);
        second.progress().unwrap();
        drop(second);
        assert_eq!(open_default(PORT).attr().caps.limits.max_qps, 16_384, "opened anew");
    }
}
