//! The device: an engine over a live port, and the threads that drive it.

use std::collections::{HashMap, VecDeque};
use std::fs::File;
use std::io::BufWriter;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use dpdk_ffi::EalConfig;
use roce::congestion::{CongestionScheme, NotificationConfig};
use roce::counters::{DropCounters, QpCounters};
use roce::engine::limits::{DeviceLimits, MAX_CQE, MAX_INLINE_BYTES, MAX_QP_WR, MAX_RD_ATOMIC, MAX_SGE};
use roce::engine::{Engine, EngineConfig, Event, Progress};
use roce::id::{Gid, Mac};
use roce::neighbour::Resolution;
use roce::port::Port;
use roce::port::events::{EventOutcome, EventPlan, Events};
use roce::port::fault::{Fault, FaultConfig, FaultCounters, Probability};
use roce::port::pcap::Pcap;
use roce::qp::PathMtu;
use roce::queue::CqId;

use crate::channel::{CompChannel, Inbox};
use crate::cq::Cq;
use crate::drive::{Activity, Drive, DriveGuard, DriveLock};
use crate::error::{Error, OpenError};
use crate::fatal::Fatal;
use crate::kernel::KernelError;
use crate::mr::Pd;
use crate::port::{self, PortKind, PortSpec, SharedInterface, Wire};
use crate::progress::Background;
use crate::stat::{self, Answer, DeviceCounters, StatSocket};
use crate::watch::Watch;

/// Options of a device besides its port.
#[derive(Clone, Debug, Default)]
pub struct DeviceOptions {
    /// Impairments of frames, each with a probability.
    pub faults: FaultConfig,
    /// Impairments of single packets sent, applied before `faults`.
    pub events: EventPlan,
    /// Capture file (pcap) of all frames as they are on the wire.
    pub pcap: Option<PathBuf>,
    /// Configuration of DPDK; ignored if this process has started DPDK already.
    pub eal: EalConfig,
    /// Congestion control of queue pairs that name none.
    pub congestion: CongestionScheme,
    /// The notification point: CNPs sent for CE marks.
    pub notification: NotificationConfig,
    /// Numbers of objects that the device has room for.
    pub limits: DeviceLimits,
}

/// Attributes of a device and its port (`ibv_device_attr`, `ibv_port_attr`).
#[derive(Clone, Debug)]
pub struct DeviceAttr {
    /// The port's name, `KIND:TARGET`.
    pub port: String,
    /// Name of the DPDK driver.
    pub driver: String,
    /// MAC of the port.
    pub mac: Mac,
    /// Largest IP packet, in bytes.
    pub mtu_bytes: usize,
    /// Largest path MTU that fits `mtu_bytes`; `None`: even the smallest does not.
    pub active_mtu: Option<PathMtu>,
    /// Whether the link is up.
    pub is_up: bool,
    /// Index and GID of each entry of the GID table.
    pub gids: Vec<(usize, Gid)>,
    /// Numbers of objects that the device has room for.
    pub limits: DeviceLimits,
    /// Work requests per queue, at most.
    pub max_qp_wr: u32,
    /// Scatter/gather entries per work request, at most.
    pub max_sge: u32,
    /// Inline bytes per send, at most.
    pub max_inline_bytes: u32,
    /// Completions per queue, at most.
    pub max_cqe: u32,
    /// READs outstanding per queue pair, and its responder resources, at most.
    pub max_rd_atomic: u8,
}

pub(crate) type LivePort = Events<Fault<Wire>>;

/// The engine's clock: nanoseconds since the device was opened.
#[derive(Clone)]
struct EngineClock {
    clock: quanta::Clock,
    /// Reading of `clock` at the origin.
    origin: u64,
}

impl EngineClock {
    fn new() -> Self {
        let clock = quanta::Clock::new();
        EngineClock { origin: clock.raw(), clock }
    }

    #[inline]
    fn now(&self) -> roce::time::Instant {
        roce::time::Instant::from_nanos(self.clock.delta_as_nanos(self.origin, self.clock.raw()))
    }
}

/// The state that only the holder of the [`DriveLock`] may touch.
pub(crate) struct DeviceCore {
    pub(crate) engine: Engine<LivePort>,
    fatal: Arc<Fatal>,
    clock: EngineClock,
    shared_interface: Option<SharedInterface>,
    channels: HashMap<CqId, Arc<Inbox>>,
    async_events: VecDeque<Event>,
    watch: Watch,
    /// Name of the thread that panics at its next poll, as after a fault of the engine.
    #[cfg(test)]
    pub(crate) panics_in: Option<String>,
}

/// State shared by all objects of a device.
pub(crate) struct Shared {
    driven: DriveLock<DeviceCore>,
    pub(crate) fatal: Arc<Fatal>,
    clock: EngineClock,
    pub(crate) port: PortSpec,
    limits: DeviceLimits,
    pub(crate) activity: Activity,
    pub(crate) stopping: AtomicBool,
    pub(crate) background: Background,
}

/// An open device (`ibv_context`). Clones are the same device, which closes when its last object is dropped.
#[derive(Clone)]
pub struct Context {
    inner: Arc<Owner>,
}

/// Ends the background thread when the last context is dropped.
struct Owner {
    shared: Arc<Shared>,
}

impl Drop for Owner {
    fn drop(&mut self) {
        self.shared.stopping.store(true, Ordering::Relaxed);
        self.shared.background.join();
    }
}

/// Asynchronous events queued for the application; beyond this the oldest is dropped.
const ASYNC_EVENTS_MAX: usize = 1024;

/// Unresolved neighbours that one call of `follow_kernel` asks the kernel for, besides those to be rechecked.
const WANTED_PER_TURN: usize = 32;

impl Drive for DeviceCore {
    #[inline]
    fn send_posted(&mut self) {
        // Because `DriveLock::answer` does not check, and a fatal engine must not be driven.
        if self.fatal.reason().is_some() {
            return;
        }
        self.engine.push(self.clock.now());
        while let Some(event) = self.engine.poll_event() {
            self.on_event(event);
        }
    }

    #[cold]
    fn on_panic(&mut self) {
        let name = std::thread::current().name().unwrap_or("without a name").to_owned();
        let fatal = self.fatal.clone();
        fatal.raise(self, format!("thread {name} panicked while it drove the engine"));
    }
}

impl DeviceCore {
    /// Polls the engine once and delivers its events.
    #[inline]
    pub(crate) fn poll(&mut self, now: roce::time::Instant) -> Progress {
        #[cfg(test)]
        if self.panics_in.is_some() && self.panics_in.as_deref() == std::thread::current().name() {
            self.panics_in = None;
            panic!("a fault of the engine, asked for by a test");
        }
        let progress = self.engine.poll(now);
        while let Some(event) = self.engine.poll_event() {
            self.on_event(event);
        }
        progress
    }

    fn wire(&self) -> &Wire {
        self.engine.port().inner().inner()
    }

    /// Sets the engine's link speed from that of the driver, on PCI ports only, because the drivers of
    /// virtual devices report an invented one.
    pub(crate) fn learn_link_speed(&mut self, kind: PortKind) {
        let mbps = self.wire().dpdk().inner().link().speed_mbps;
        if kind == PortKind::Pci && mbps != 0 && mbps != u32::MAX {
            self.engine.set_link_bits_per_sec(u64::from(mbps) * 1_000_000);
        }
    }

    fn on_event(&mut self, event: Event) {
        if let Event::Completion(cq) = event {
            if let Some(inbox) = self.channels.get(&cq) {
                inbox.put(cq);
            }
            return;
        }
        tracing::debug!(?event, "asynchronous event");
        if self.async_events.len() == ASYNC_EVENTS_MAX {
            self.async_events.pop_front();
        }
        self.async_events.push_back(event);
    }

    /// Slow control-plane work: restarts a link that needs its peer, and follows the kernel's neighbours.
    pub(crate) fn maintain(&mut self, now: roce::time::Instant) {
        if let Err(error) = self.engine.port_mut().inner_mut().inner_mut().dpdk_mut().poll_link() {
            tracing::trace!(%error, "the link is not up yet");
        }
        if let Some(conflict) = self.engine.neighbour_mut().take_conflict() {
            // The warning in watch.rs is rate-limited and has the counter only; the addresses are logged
            // here.
            tracing::debug!(ip = %conflict.ip, mac = %conflict.mac, "another station uses an address of this port");
        }
        if let Err(error) = self.follow_kernel(now) {
            tracing::warn!(%error, "cannot follow the kernel's neighbours");
        }
    }

    /// Resolves through the kernel the neighbours that the engine waits for, and those that may have changed.
    fn follow_kernel(&mut self, now: roce::time::Instant) -> Result<(), KernelError> {
        let Some(SharedInterface { neighbours, .. }) = &mut self.shared_interface else { return Ok(()) };
        let mut asked = neighbours.due()?;
        let neighbour = self.engine.neighbour_mut();
        asked.extend(neighbour.wanted().take(WANTED_PER_TURN));
        let mut result = Ok(());
        for ip in asked {
            if !neighbour.is_followed(ip) {
                neighbours.forget(ip);
                continue;
            }
            match neighbours.resolve(ip) {
                Ok(Resolution::Known(mac)) => {
                    neighbour.set_neighbour(ip, mac);
                }
                // A MAC resolved before stays in use.
                Ok(Resolution::Pending) => {}
                Ok(Resolution::Unreachable) => neighbour.set_unreachable(ip, now),
                // The remaining neighbours are resolved all the same.
                Err(error) => result = Err(error),
            }
        }
        result
    }

    /// Fails if the kernel has no route to `dgid` over the interface.
    fn require_route(&mut self, dgid: Gid) -> Result<(), KernelError> {
        match &mut self.shared_interface {
            Some(shared) => shared.neighbours.next_hop(dgid.ip()).map(drop),
            None => Ok(()),
        }
    }

    /// Returns the log lines for counters that have grown.
    pub(crate) fn look_at_counters(&mut self, now: roce::time::Instant) -> Vec<String> {
        if !self.watch.is_due(now) {
            return Vec::new();
        }
        let dpdk = self.wire().dpdk().inner();
        let driver = dpdk.stats().unwrap_or_default();
        let ports = driver.iter().chain(dpdk.counters().iter());
        let (drops, neighbour) = (self.engine.drop_counters(), self.engine.neighbour().counters());
        let engine = drops.iter().chain(neighbour.iter());
        let sums_up = self.watch.sums_up(self.engine.qp_count(), self.engine.qp_errors());
        let queue_pairs = sums_up.then(|| self.engine.counters());
        let queue_pairs = queue_pairs.iter().flat_map(QpCounters::iter);
        self.watch.look(now, ports.chain(engine).chain(queue_pairs))
    }

    fn counters(&self) -> DeviceCounters {
        let dpdk = self.wire().dpdk().inner();
        DeviceCounters {
            driver: dpdk.stats().map(|stats| stat::map(stats.iter())).unwrap_or_default(),
            port: stat::map(dpdk.counters().iter()),
            drops: stat::map(self.engine.drop_counters().iter()),
            neighbour: stat::map(self.engine.neighbour().counters().iter()),
            queue_pairs: stat::map(self.engine.counters().iter()),
            faults: stat::map_faults(&self.engine.port().inner().counters()),
            xstats: dpdk.xstats().into_iter().collect(),
        }
    }

    /// Notifies the application that the device is fatal, and wakes all waiters.
    pub(crate) fn on_fatal(&mut self) {
        self.on_event(Event::DeviceFatal);
        self.channels.values().for_each(|inbox| inbox.close());
    }

    pub(crate) fn add_channel(&mut self, cq: CqId, inbox: Arc<Inbox>) {
        self.channels.insert(cq, inbox);
    }

    pub(crate) fn remove_channel(&mut self, cq: CqId) {
        self.channels.remove(&cq);
    }
}

impl Shared {
    /// Waits for the engine, for control operations.
    ///
    /// # Errors
    /// [`Error::DeviceFatal`]
    pub(crate) fn lock(&self) -> Result<DriveGuard<'_, DeviceCore>, Error> {
        let driven = self.inspect();
        // Checked under the lock, because the holder before may have panicked.
        self.check()?;
        Ok(driven)
    }

    /// Waits for the engine, to read from it; also from a fatal one.
    pub(crate) fn inspect(&self) -> DriveGuard<'_, DeviceCore> {
        self.driven.lock()
    }

    /// Takes the engine if no thread drives it and it is not fatal.
    #[inline]
    pub(crate) fn try_lock(&self) -> Option<DriveGuard<'_, DeviceCore>> {
        let driven = self.driven.try_lock()?;
        self.fatal.reason().is_none().then_some(driven)
    }

    /// Fails if the device is fatal.
    ///
    /// # Errors
    /// [`Error::DeviceFatal`]
    #[inline]
    pub(crate) fn check(&self) -> Result<(), Error> {
        match self.fatal.reason() {
            None => Ok(()),
            Some(reason) => Err(self.fatal_error(reason)),
        }
    }

    #[cold]
    fn fatal_error(&self, reason: &str) -> Error {
        Error::DeviceFatal { port: self.port.to_string(), reason: reason.to_owned() }
    }

    #[inline]
    pub(crate) fn now(&self) -> roce::time::Instant {
        self.clock.now()
    }

    /// Polls the engine once on behalf of the application, unless another thread drives it.
    ///
    /// # Errors
    /// [`Error::DeviceFatal`]
    #[inline]
    pub(crate) fn drive(&self) -> Result<(), Error> {
        match self.try_lock() {
            Some(mut driven) => {
                self.activity.count_poll();
                driven.poll(self.now());
                Ok(())
            }
            None => self.check(),
        }
    }

    /// Sends what was posted, or leaves it to the thread that drives the engine.
    #[inline]
    pub(crate) fn push(&self) {
        // Dropping the guard executes a locked instruction, which drains this processor's store buffer.
        // Otherwise the frame may stay there while the polls that follow read the peer's memory (0.3 us of
        // 1.4, EPYC, two cores).
        if let Some(mut driven) = self.driven.try_lock_to_send() {
            self.activity.count_poll();
            driven.send_posted();
        }
    }

    /// Describes the device for readers of its statistics.
    pub(crate) fn describe(&self) -> Answer {
        let driven = self.inspect();
        let dpdk = driven.wire().dpdk();
        let program = std::env::args_os().next().map(PathBuf::from).unwrap_or_default();
        Answer {
            pid: std::process::id(),
            command: program.file_name().unwrap_or_default().to_string_lossy().into_owned(),
            port: self.port.to_string(),
            driver: dpdk.inner().info().driver.clone(),
            mac: dpdk.caps().mac.to_string(),
            is_up: dpdk.is_up(),
            fatal: self.fatal.reason().map(str::to_owned),
            uptime_nanos: self.now().as_nanos(),
            counters: driven.counters(),
        }
    }

    /// Announces to the background thread that the application stops polling.
    pub(crate) fn hand_over(&self) {
        self.activity.hand_over();
        self.background.wake();
    }
}

impl Context {
    /// Opens the port `spec` as an RDMA device.
    ///
    /// # Errors
    /// [`OpenError`] names what is missing and how to provide it.
    pub fn open(spec: &PortSpec, options: &DeviceOptions) -> Result<Context, OpenError> {
        let opened = port::open(spec, &options.eal)?;
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
        let engine =
            Engine::new(Events::new(Fault::new(wire, options.faults), options.events.clone()), config)?;
        let fatal = Arc::new(Fatal::default());
        let driven = DeviceCore {
            engine,
            fatal: fatal.clone(),
            clock: clock.clone(),
            shared_interface: opened.shared,
            channels: HashMap::new(),
            async_events: VecDeque::new(),
            watch: Watch::new(),
            #[cfg(test)]
            panics_in: None,
        };
        let shared = Arc::new(Shared {
            driven: DriveLock::new(driven),
            fatal,
            clock,
            port: spec.clone(),
            limits: options.limits,
            activity: Activity::default(),
            stopping: AtomicBool::new(false),
            background: Background::default(),
        });
        let stat = StatSocket::open();
        if let Err(error) = &stat {
            tracing::debug!(%error, "no socket for `roce stat`: this device will not be listed");
        }
        shared
            .background
            .start(&shared, stat.ok())
            .map_err(|error| OpenError::System { what: "cannot start a thread", error })?;
        Ok(Context { inner: Arc::new(Owner { shared }) })
    }

    pub(crate) fn shared(&self) -> Arc<Shared> {
        self.inner.shared.clone()
    }

    /// Waits until the port's link is up; on memif and vhost, until the peer has connected to the socket.
    ///
    /// # Errors
    /// [`Error::LinkDown`] after `timeout`.
    pub fn wait_link(&self, timeout: Duration) -> Result<(), Error> {
        const KNOCK_INTERVAL: Duration = Duration::from_millis(20);
        let start = Instant::now();
        let shared = &self.inner.shared;
        loop {
            let mut driven = shared.lock()?;
            driven.maintain(shared.now());
            driven.poll(shared.now());
            if driven.wire().dpdk().is_up() {
                return Ok(());
            }
            drop(driven);
            if start.elapsed() >= timeout {
                let waited_millis = timeout.as_millis() as u64;
                return Err(Error::LinkDown { port: shared.port.to_string(), waited_millis });
            }
            std::thread::sleep(KNOCK_INTERVAL);
        }
    }

    /// Returns the device's attributes; also of a fatal device.
    pub fn attr(&self) -> DeviceAttr {
        let shared = &self.inner.shared;
        let driven = shared.inspect();
        let dpdk = driven.wire().dpdk();
        let caps = dpdk.caps();
        DeviceAttr {
            port: shared.port.to_string(),
            driver: dpdk.inner().info().driver.clone(),
            mac: caps.mac,
            mtu_bytes: caps.mtu_bytes,
            active_mtu: PathMtu::largest_for(caps.mtu_bytes),
            is_up: dpdk.is_up(),
            gids: driven.engine.neighbour().gids().iter().map(|(index, entry)| (index, entry.gid)).collect(),
            limits: shared.limits,
            max_qp_wr: MAX_QP_WR,
            max_sge: MAX_SGE,
            max_inline_bytes: MAX_INLINE_BYTES,
            max_cqe: MAX_CQE,
            max_rd_atomic: MAX_RD_ATOMIC,
        }
    }

    /// Returns the GID of index `index`; `None` where the table has no entry.
    pub fn gid(&self, index: usize) -> Option<Gid> {
        self.inner.shared.inspect().engine.neighbour().gids().get(index).map(|entry| entry.gid)
    }

    /// Returns the index of the GID to send from to `dgid`, of the same address family.
    ///
    /// # Errors
    /// [`Error::NoGid`] if no GID suits.
    pub fn gid_index_for(&self, dgid: Gid) -> Result<u8, Error> {
        let driven = self.inner.shared.inspect();
        let table = driven.engine.neighbour().gids();
        let index = table.select_for(dgid.ip()).and_then(|index| u8::try_from(index).ok());
        index.ok_or_else(|| {
            let gids: Vec<String> = table.iter().map(|(_, entry)| entry.gid.to_string()).collect();
            Error::NoGid { dgid, gids: gids.join(", ") }
        })
    }

    /// Whether `gid` lies in the subnet of an address of this device.
    pub fn is_on_link(&self, gid: Gid) -> bool {
        self.inner.shared.inspect().engine.neighbour().is_on_link(gid.ip())
    }

    /// Resolves the MAC of `dgid`, or of the gateway to it. Blocks; `sgid_index` is for the error only.
    ///
    /// # Errors
    /// [`Error::Unreachable`] after `timeout`; [`KernelError::NoRoute`] at once, on a kernel interface.
    pub fn resolve(&self, dgid: Gid, sgid_index: u8, timeout: Duration) -> Result<Mac, Error> {
        const RETRY_INTERVAL: Duration = Duration::from_millis(1);
        let start = Instant::now();
        let shared = &self.inner.shared;
        loop {
            let mut driven = shared.lock()?;
            if let Resolution::Known(mac) = driven.engine.resolve(dgid) {
                return Ok(mac);
            }
            driven.require_route(dgid)?;
            driven.maintain(shared.now());
            driven.poll(shared.now());
            let own = driven.engine.neighbour().gids().get(usize::from(sgid_index));
            let sgid = own.map_or(Gid::ZERO, |entry| entry.gid);
            drop(driven);
            if start.elapsed() >= timeout {
                return Err(Error::Unreachable { dgid, sgid, waited_millis: timeout.as_millis() as u64 });
            }
            std::thread::sleep(RETRY_INTERVAL);
        }
    }

    /// Allocates a protection domain (`ibv_alloc_pd`).
    pub fn alloc_pd(&self) -> Result<Pd, Error> {
        Pd::new(self)
    }

    /// Creates a completion queue of at most `depth` entries (`ibv_create_cq`), which notifies `channel`, if
    /// given.
    pub fn create_cq(&self, depth: u32, channel: Option<&CompChannel>) -> Result<Cq, Error> {
        Cq::new(self, depth, channel)
    }

    /// Creates a completion channel (`ibv_create_comp_channel`).
    pub fn create_comp_channel(&self) -> Result<CompChannel, Error> {
        CompChannel::new(self)
    }

    /// Polls the engine once, for a thread that waits for something other than completions.
    ///
    /// # Errors
    /// [`Error::DeviceFatal`]
    pub fn progress(&self) -> Result<(), Error> {
        self.inner.shared.drive()
    }

    /// Returns the oldest asynchronous event (`ibv_get_async_event`), without waiting. Of more than 1024 the
    /// oldest are dropped.
    pub fn poll_async_event(&self) -> Option<Event> {
        self.inner.shared.inspect().async_events.pop_front()
    }

    /// Returns the sums over all queue pairs, and the counters of frames dropped before any.
    pub fn counters(&self) -> (QpCounters, DropCounters) {
        let driven = self.inner.shared.inspect();
        (driven.engine.counters(), driven.engine.drop_counters())
    }

    /// Returns all counters of the device and its port, by name.
    pub fn device_counters(&self) -> DeviceCounters {
        self.inner.shared.inspect().counters()
    }

    /// Returns the counters of impaired frames.
    pub fn fault_counters(&self) -> FaultCounters {
        self.inner.shared.inspect().engine.port().inner().counters()
    }

    /// Sets the probability of loss in the directions of [`DeviceOptions::faults`]. No effect on a device
    /// that was opened without impairments.
    pub fn set_drop_chance(&self, chance: Probability) {
        self.inner.shared.inspect().engine.port_mut().inner_mut().set_drop_chance(chance);
    }

    /// Returns the outcome of each of [`DeviceOptions::events`], in their order.
    pub fn event_outcomes(&self) -> Vec<EventOutcome> {
        self.inner.shared.inspect().engine.port().outcomes()
    }

    /// Returns the error that ended the capture, if any.
    pub fn capture_error(&self) -> Option<String> {
        match self.inner.shared.inspect().wire() {
            Wire::Bare(_) => None,
            Wire::Captured(capture) => capture.error().map(ToString::to_string),
        }
    }
}
