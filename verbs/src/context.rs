//! The device: an engine over a live port, and whoever drives it.

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

/// How a device is opened, besides its port.
#[derive(Clone, Debug, Default)]
pub struct DeviceOptions {
    /// Faults put on the frames sent.
    pub faults: FaultConfig,
    /// What happens to single packets sent, before the faults.
    pub events: EventPlan,
    /// A file to capture frames in, as they are on the wire.
    pub pcap: Option<PathBuf>,
    /// How DPDK is started, where this process has not yet.
    pub eal: EalConfig,
    /// Congestion control of queue pairs that name none.
    pub congestion: CongestionScheme,
    /// How peers are told of packets that came marked "congestion experienced".
    pub notification: NotificationConfig,
    /// How many objects the device has room for.
    pub limits: DeviceLimits,
}

/// What a device is and can do (`ibv_device_attr` and `ibv_port_attr`).
#[derive(Clone, Debug)]
pub struct DeviceAttr {
    /// Its port's name.
    pub port: String,
    /// The DPDK driver.
    pub driver: String,
    /// Its Ethernet address.
    pub mac: Mac,
    /// The largest IP packet, in bytes.
    pub mtu_bytes: usize,
    /// The largest path MTU.
    pub active_mtu: Option<PathMtu>,
    /// Whether the link is up.
    pub is_up: bool,
    /// GID table: index and GID.
    pub gids: Vec<(usize, Gid)>,
    /// Objects it has room for.
    pub limits: DeviceLimits,
    /// Work requests of a queue.
    pub max_qp_wr: u32,
    /// Scatter/gather entries.
    pub max_sge: u32,
    /// Inline bytes.
    pub max_inline_bytes: u32,
    /// Completions of a queue.
    pub max_cqe: u32,
    /// READs outstanding.
    pub max_rd_atomic: u8,
}

pub(crate) type LivePort = Events<Fault<Wire>>;

/// The engine's time: nanoseconds since the device was opened.
#[derive(Clone)]
struct EngineClock {
    clock: quanta::Clock,
    /// The clock's reading at the origin.
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

/// What one thread at a time may touch.
pub(crate) struct DeviceCore {
    pub(crate) engine: Engine<LivePort>,
    fatal: Arc<Fatal>,
    clock: EngineClock,
    shared_interface: Option<SharedInterface>,
    channels: HashMap<CqId, Arc<Inbox>>,
    async_events: VecDeque<Event>,
    watch: Watch,
    /// The thread of this name panics at its next poll, as by a fault of the engine.
    #[cfg(test)]
    pub(crate) panics_in: Option<String>,
}

/// What all objects of a device share.
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

/// An open device (`ibv_context`). Clones are the same device; it closes with the last object of it.
#[derive(Clone)]
pub struct Context {
    inner: Arc<Owner>,
}

/// Ends the background thread with the last context.
struct Owner {
    shared: Arc<Shared>,
}

impl Drop for Owner {
    fn drop(&mut self) {
        self.shared.stopping.store(true, Ordering::Relaxed);
        self.shared.background.join();
    }
}

/// Asynchronous events kept for the application; older ones give way.
const ASYNC_EVENTS_MAX: usize = 1024;

/// Neighbours that the kernel is asked for in one turn of the chores, besides those whose way may have changed.
const WANTED_PER_TURN: usize = 32;

impl Drive for DeviceCore {
    #[inline]
    fn send_posted(&mut self) {
        // A thread that answers for others has not looked.
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
    /// One poll of the engine, and its events to those who wait for them.
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

    /// Tells the engine how fast the link is, where the port's driver knows: those of virtual devices make a
    /// number up.
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

    /// Slow chores: a link that must be knocked for, neighbours that the kernel knows.
    pub(crate) fn maintain(&mut self, now: roce::time::Instant) {
        if let Err(error) = self.engine.port_mut().inner_mut().inner_mut().dpdk_mut().poll_link() {
            tracing::trace!(%error, "the link is not up yet");
        }
        if let Some(conflict) = self.engine.neighbour_mut().take_conflict() {
            // The counter has its rate-limited warning (watch.rs); this says who.
            tracing::debug!(ip = %conflict.ip, mac = %conflict.mac, "another station uses an address of this port");
        }
        if let Err(error) = self.follow_kernel(now) {
            tracing::warn!(%error, "cannot follow the kernel's neighbours");
        }
    }

    /// Asks the kernel for the neighbours that are waited for, and again for those whose way may have changed.
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
                // What was known stays in use.
                Ok(Resolution::Pending) => {}
                Ok(Resolution::Unreachable) => neighbour.set_unreachable(ip, now),
                // The others are followed all the same.
                Err(error) => result = Err(error),
            }
        }
        result
    }

    /// Refuses a peer that the kernel has no route to over the interface.
    fn require_route(&mut self, dgid: Gid) -> Result<(), KernelError> {
        match &mut self.shared_interface {
            Some(shared) => shared.neighbours.next_hop(dgid.ip()).map(drop),
            None => Ok(()),
        }
    }

    /// What the log should say of counters that have grown.
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

    /// Announces the device's end to the application and to all who wait.
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
    /// The engine, for control operations: waits for whoever drives it just now.
    ///
    /// # Errors
    /// [`Error::DeviceFatal`]
    pub(crate) fn lock(&self) -> Result<DriveGuard<'_, DeviceCore>, Error> {
        let driven = self.inspect();
        // Only now: whoever held it until now may have panicked.
        self.check()?;
        Ok(driven)
    }

    /// The engine, to look at it, in order or not.
    pub(crate) fn inspect(&self) -> DriveGuard<'_, DeviceCore> {
        self.driven.lock()
    }

    /// The engine, if it is in order and nobody drives it just now.
    #[inline]
    pub(crate) fn try_lock(&self) -> Option<DriveGuard<'_, DeviceCore>> {
        let driven = self.driven.try_lock()?;
        self.fatal.reason().is_none().then_some(driven)
    }

    /// Whether the device is in order.
    ///
    /// # Errors
    /// [`Error::DeviceFatal`]
    #[inline]
    pub(crate) fn check(&self) -> Result<(), Error> {
        match self.fatal.reason() {
            None => Ok(()),
            Some(reason) => Err(self.out_of_order(reason)),
        }
    }

    #[cold]
    fn out_of_order(&self, reason: &str) -> Error {
        Error::DeviceFatal { port: self.port.to_string(), reason: reason.to_owned() }
    }

    /// The engine's time.
    #[inline]
    pub(crate) fn now(&self) -> roce::time::Instant {
        self.clock.now()
    }

    /// Drives the engine once on behalf of the application, unless another thread is at it.
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

    /// Sends what was posted, or leaves it to the thread that drives the engine just now.
    #[inline]
    pub(crate) fn push(&self) {
        // Dropping the guard also empties this processor's store buffer, where the frame might linger while the
        // polls that follow read memory of the other's (measured on an EPYC, two cores: 0.3 us of 1.4).
        if let Some(mut driven) = self.driven.try_lock_to_send() {
            self.activity.count_poll();
            driven.send_posted();
        }
    }

    /// What the device says to readers of its statistics.
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

    /// Tells the background thread that the application stops polling for now.
    pub(crate) fn hand_over(&self) {
        self.activity.hand_over();
        self.background.wake();
    }
}

impl Context {
    /// Opens the port `spec` as an RDMA device.
    ///
    /// # Errors
    /// [`OpenError`]: what is missing and what to do about it.
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

    /// Waits until the port's link is up: until the other end of a memif or vhost socket is there.
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

    /// What the device is and can do.
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

    /// The GID of an index.
    pub fn gid(&self, index: usize) -> Option<Gid> {
        self.inner.shared.inspect().engine.neighbour().gids().get(index).map(|entry| entry.gid)
    }

    /// The index of the GID to reach `dgid` from.
    ///
    /// # Errors
    /// [`Error::NoGid`] where none is of its family.
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

    /// Finds the Ethernet address of `dgid`.
    ///
    /// # Errors
    /// [`Error::Unreachable`] after `timeout`; on a kernel interface [`KernelError::NoRoute`] at once.
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

    /// Allocates a protection domain.
    pub fn alloc_pd(&self) -> Result<Pd, Error> {
        Pd::new(self)
    }

    /// Creates a completion queue of at most `depth` entries; with a channel, its completions can be
    /// waited for.
    pub fn create_cq(&self, depth: u32, channel: Option<&CompChannel>) -> Result<Cq, Error> {
        Cq::new(self, depth, channel)
    }

    /// Creates a completion channel.
    pub fn create_comp_channel(&self) -> Result<CompChannel, Error> {
        CompChannel::new(self)
    }

    /// Drives the device once; for a thread that waits for something other than completions.
    ///
    /// # Errors
    /// [`Error::DeviceFatal`]
    pub fn progress(&self) -> Result<(), Error> {
        self.inner.shared.drive()
    }

    /// The next asynchronous event.
    pub fn poll_async_event(&self) -> Option<Event> {
        self.inner.shared.inspect().async_events.pop_front()
    }

    /// Counters of all queue pairs, and of frames dropped before any.
    pub fn counters(&self) -> (QpCounters, DropCounters) {
        let driven = self.inner.shared.inspect();
        (driven.engine.counters(), driven.engine.drop_counters())
    }

    /// All that the device and its port have counted, by name.
    pub fn device_counters(&self) -> DeviceCounters {
        self.inner.shared.inspect().counters()
    }

    /// What the faults asked for did to frames.
    pub fn fault_counters(&self) -> FaultCounters {
        self.inner.shared.inspect().engine.port().inner().counters()
    }

    /// From now on frames are lost with this chance, the ways that [`DeviceOptions::faults`] says. A device that
    /// was opened without any faults stays without.
    pub fn set_drop_chance(&self, chance: Probability) {
        self.inner.shared.inspect().engine.port_mut().inner_mut().set_drop_chance(chance);
    }

    /// What became of each event asked for, in their order.
    pub fn event_outcomes(&self) -> Vec<EventOutcome> {
        self.inner.shared.inspect().engine.port().outcomes()
    }

    /// Why the capture ended early, if it did.
    pub fn capture_error(&self) -> Option<String> {
        match self.inner.shared.inspect().wire() {
            Wire::Bare(_) => None,
            Wire::Captured(capture) => capture.error().map(ToString::to_string),
        }
    }
}
