//! State shared by all objects of a device: the engine with its lock and clock, and the bells by which other threads
//! wake the server of the port.

use std::io;
use std::net::IpAddr;
use std::ops::Deref;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use dpdk_ffi::{NoCancel, OfProcess};
use roce::counters::QpCounters;
use roce::engine::limits::DeviceLimits;
use roce::engine::{DestroyError, Engine, Event, Progress, SharedObjects};
use roce::id::{Gid, Mac, Qpn};
use roce::neighbour::{Mode, Resolution};
use roce::port::events::Events;
use roce::port::fault::Fault;
use roce::port::{Port, PortCaps};
use roce::qp::ServiceType;
use roce::queue::SrqId;

use crate::drive::{Activity, Drive, DriveGuard, DriveLock};
use crate::error::Error;
use crate::fatal::Fatal;
use crate::kernel::{Interface, KernelError, KernelNeighbours, Lease};
use crate::listeners::Listeners;
use crate::lock::{relax, spin};
use crate::options::ProgressPolicy;
use crate::port::config::{interface_mtu_bytes, interface_neighbour};
use crate::port::{DpdkPort, PortControl, PortKind, PortSpec, SharedInterface, Wire};
use crate::sleep::{NAP_MAX, NAP_MIN, Sleep};
use crate::stat::{self, Answer, DeviceCounters};
use crate::wake_set::WakeSet;
use crate::watch::Watch;

pub(crate) type LivePort = Events<Fault<Wire>>;

/// The clock of an engine: nanoseconds since the device was opened.
#[derive(Clone)]
pub(crate) struct EngineClock {
    clock: quanta::Clock,
    /// Raw reading of `clock` when the device was opened.
    origin: u64,
}

impl EngineClock {
    pub(crate) fn new() -> Self {
        let clock = quanta::Clock::new();
        EngineClock { origin: clock.raw(), clock }
    }

    #[inline]
    fn now(&self) -> roce::time::Instant {
        roce::time::Instant::from_nanos(self.clock.delta_as_nanos(self.origin, self.clock.raw()))
    }
}

/// State of a device, protected by the [`DriveLock`].
pub(crate) struct DeviceCore {
    pub(crate) engine: Engine<LivePort>,
    fatal: Arc<Fatal>,
    clock: EngineClock,
    listeners: Arc<Listeners>,
    sleep: Arc<Sleep>,
    /// Name of a thread that panics at its next poll of the engine, for tests.
    #[cfg(test)]
    pub(crate) panics_in: Option<String>,
}

/// The state of a device. In a process forked from the process that opened the device, the state is never used and
/// never dropped, because the port is the parent's, and a thread of the parent may have held a lock at the fork.
pub(crate) struct Shared(OfProcess<SharedState>);

impl Deref for Shared {
    type Target = SharedState;

    #[inline]
    fn deref(&self) -> &SharedState {
        &self.0
    }
}

/// The fields of [`Shared`].
pub(crate) struct SharedState {
    driven: DriveLock<DeviceCore>,
    /// Link, statistics and restart of the port. Has a lock of its own: with the engine locked, a query of the NIC or a
    /// system call would delay the threads that drive the engine. Lock order: this lock before the engine.
    control: Mutex<PortControl>,
    /// The kernel's routes and neighbours; `None` if the port is dedicated. Locked before the engine. No system call is
    /// made with the engine locked, otherwise the call would delay the threads that drive the engine.
    kernel: Option<Mutex<SharedInterface>>,
    fatal: Arc<Fatal>,
    clock: EngineClock,
    /// Protection domains, memory regions and completion queues. Their use does not need the engine's lock.
    pub(crate) objects: Arc<SharedObjects>,
    pub(crate) listeners: Arc<Listeners>,
    pub(crate) port: PortSpec,
    /// MAC and MTU when the port was opened.
    pub(crate) caps: PortCaps,
    pub(crate) limits: DeviceLimits,
    pub(crate) activity: Activity,
    pub(crate) stopping: AtomicBool,
    pub(crate) sleep: Arc<Sleep>,
    /// The wake sources of the port; `None` if the port has none.
    pub(crate) wakes: Option<WakeSet>,
    pub(crate) policy: ProgressPolicy,
    /// Time for which a thread in `CompChannel::wait` polls before it sleeps.
    pub(crate) linger_nanos: AtomicU64,
    /// A descriptor that is readable while reports of changed routes or neighbours are unread: a duplicate of the
    /// descriptor of the `KernelNeighbours` in the field `kernel`, so that the background thread can sleep on the
    /// duplicate without the lock of `kernel`. `None` if the port is dedicated.
    kernel_changes: Option<OwnedFd>,
    /// Dropped after `driven`: the port in `driven` receives packets to the leased QPNs until the port is dropped.
    _lease: Option<Lease>,
    /// Dropped last, and therefore exists until the port is closed: `registry` has a weak reference, by which `open`
    /// recognises that the port is closed.
    pub(crate) alive: Arc<()>,
}

/// Number of attempts of `drive_later` to lock the engine before the thread yields the processor.
const LOCK_TRIES: u32 = 64;

/// Number of polls of the engine at the exit of the process. The engine delays an ACK by one poll: the first poll may
/// make an ACK due, the second poll sends this ACK.
const EXIT_POLLS: u32 = 2;

/// Number of attempts to lock the engine at the exit of the process. These attempts take some milliseconds.
const EXIT_LOCK_TRIES: u32 = 16_384;

/// Largest number of unresolved neighbours that one call of `follow_kernel` resolves through the kernel.
const WANTED_PER_TURN: usize = 32;

impl Drive for DeviceCore {
    #[inline]
    fn send_posted(&mut self) {
        // After a fatal error, `DriveLock::answer` still calls this function, but the engine must not be driven.
        if self.fatal.reason().is_some() {
            return;
        }
        self.engine.push(self.clock.now());
        while let Some(event) = self.engine.poll_event() {
            self.on_event(event);
        }
    }

    #[inline]
    fn on_release(&mut self) {
        if self.sleep.is_asleep() {
            let next_deadline = self.next_deadline();
            self.sleep.ring_if_due(next_deadline);
        }
    }

    #[cold]
    fn on_panic(&mut self) {
        self.engine.abandon_poll();
        let name = std::thread::current().name().unwrap_or("without a name").to_owned();
        self.raise_fatal(format!(
            "thread {name} panicked while it drove the engine (the panic is on standard error, please report it)"
        ));
    }
}

impl DeviceCore {
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

    /// Returns the time at which the engine must be polled, even if no frame is received; `None` if no work is pending.
    pub(crate) fn next_deadline(&mut self) -> Option<roce::time::Instant> {
        if self.fatal.reason().is_some() {
            return None;
        }
        self.engine.settle_timers();
        let looped = self.wire().dpdk().has_looped().then(|| self.clock.now());
        [looped, self.engine.next_deadline()].into_iter().flatten().min()
    }

    /// Returns whether frames wait for room in the transmit ring of the port.
    pub(crate) fn is_tx_stalled(&self) -> bool {
        self.wire().dpdk().is_tx_stalled()
    }

    /// Arms the port: the next frame that arrives wakes the server of the port. Returns false if the port cannot be
    /// armed at present.
    pub(crate) fn arm(&mut self) -> bool {
        self.dpdk_mut().arm()
    }

    pub(crate) fn disarm(&mut self) {
        self.dpdk_mut().disarm();
    }

    fn dpdk_mut(&mut self) -> &mut DpdkPort {
        self.engine.port_mut().inner_mut().inner_mut().dpdk_mut()
    }

    /// Returns whether the engine needs the MAC of a neighbour.
    pub(crate) fn has_wanted(&self) -> bool {
        self.engine.neighbour().wanted().next().is_some()
    }

    pub(crate) fn wire(&self) -> &Wire {
        self.engine.port().inner().inner()
    }

    pub(crate) fn set_srq_limit(&mut self, srq: SrqId, limit: u32) -> Result<(), DestroyError> {
        let set = self.engine.set_srq_limit(srq, limit);
        while let Some(event) = self.engine.poll_event() {
            self.on_event(event);
        }
        set
    }

    /// If `dgid` is a GID of this device, makes the port receive the frames that the port, or another process on the
    /// same interface, sends to the port's own MAC.
    pub(crate) fn prepare_path(&mut self, dgid: Gid) {
        if self.engine.neighbour().gids().find(dgid.ip()).is_some() {
            self.dpdk_mut().loop_back();
        }
    }

    /// If `qpn` is a queue pair of UD, makes the port receive the frames that another process on the same interface
    /// sends to the port's own MAC: such a process may send datagrams to this queue pair before this process sends any
    /// packet.
    pub(crate) fn prepare_datagrams(&mut self, qpn: Qpn) {
        if self.engine.query_qp(qpn).is_some_and(|(.., init)| init.service == ServiceType::Ud) {
            self.dpdk_mut().loop_back();
        }
    }

    fn on_event(&mut self, event: Event) {
        if !matches!(event, Event::Completion(_)) {
            tracing::debug!(?event, "asynchronous event");
        }
        self.listeners.deliver(event);
    }

    /// Logs address conflicts.
    pub(crate) fn log_conflict(&mut self) {
        if let Some(conflict) = self.engine.neighbour_mut().take_conflict() {
            // The warning of `watch.rs` contains only the number of address conflicts, so the addresses are
            // logged here.
            tracing::debug!(ip = %conflict.ip, mac = %conflict.mac, "another station uses an address of this port");
        }
    }

    /// Queues `Event::DeviceFatal` and wakes the waiters of all completion channels. Only the first call has an effect.
    pub(crate) fn raise_fatal(&mut self, reason: String) {
        if self.fatal.set(reason) {
            self.on_event(Event::DeviceFatal);
        }
    }
}

impl Shared {
    pub(crate) fn new(
        engine: Engine<LivePort>,
        clock: EngineClock,
        (control, shared_interface, lease): (PortControl, Option<SharedInterface>, Option<Lease>),
        port: PortSpec,
        limits: DeviceLimits,
        policy: ProgressPolicy,
    ) -> io::Result<Self> {
        let (fatal, listeners) = (Arc::new(Fatal::default()), Arc::new(Listeners::default()));
        let (objects, caps) = (engine.objects().clone(), engine.port().caps());
        let sleep = Arc::new(Sleep::with_fds()?);
        let mut engine = engine;
        let wakes = WakeSet::new(engine.port_mut().inner_mut().inner_mut().dpdk_mut())?;
        let changes = shared_interface.as_ref().map(|shared| shared.neighbours.changes_fd());
        let kernel_changes = changes.map(|fd| fd.try_clone_to_owned()).transpose()?;
        let driven = DeviceCore {
            engine,
            fatal: fatal.clone(),
            clock: clock.clone(),
            listeners: listeners.clone(),
            sleep: sleep.clone(),
            #[cfg(test)]
            panics_in: None,
        };
        Ok(Shared(OfProcess::new(SharedState {
            driven: DriveLock::new(driven),
            control: Mutex::new(control),
            kernel: shared_interface.map(Mutex::new),
            fatal,
            clock,
            objects,
            listeners,
            port,
            caps,
            limits,
            activity: Activity::default(),
            stopping: AtomicBool::new(false),
            sleep,
            wakes,
            policy,
            linger_nanos: AtomicU64::new(0),
            kernel_changes,
            _lease: lease,
            alive: Arc::new(()),
        })))
    }

    /// Returns the length of the longest nap of the server of the port while the engine has no deadline. If the port
    /// has no wake sources, the length is `NAP_MIN`, because frames are received only at the end of a nap. Otherwise
    /// the length is `NAP_MAX`. Naps in a takeover are at most `NAP_MAX` long on every port, naps of the background
    /// thread on an armed port at most `NAP_STALLED_MAX`.
    pub(crate) fn nap_max(&self) -> Duration {
        if self.wakes.is_none() { NAP_MIN } else { NAP_MAX }
    }

    /// Returns a file descriptor that is readable while `follow_kernel` has a change to process; `None` if the port is
    /// dedicated.
    pub(crate) fn kernel_changes(&self) -> Option<BorrowedFd<'_>> {
        self.kernel_changes.as_ref().map(AsFd::as_fd)
    }

    /// Returns whether this process opened the device. In a forked process, returns false; the caller must then take no
    /// lock, and call no function of the engine or the port.
    #[inline]
    pub(crate) fn is_of_this_process(&self) -> bool {
        self.0.process().is_current()
    }

    /// Fails in a process forked from the process that opened the device.
    #[inline]
    pub(crate) fn check_process(&self) -> Result<(), Error> {
        if self.is_of_this_process() { Ok(()) } else { Err(self.forked()) }
    }

    #[cold]
    fn forked(&self) -> Error {
        Error::Forked { port: self.port.to_string(), pid: self.0.process().id() }
    }

    /// Locks the engine; waits while another thread drives the engine. Fails after a fatal error, and in a forked
    /// process.
    pub(crate) fn lock(&self) -> Result<DriveGuard<'_, DeviceCore>, Error> {
        self.check_process()?;
        let driven = self.inspect();
        // The check for a fatal error follows the lock, because the previous holder of the lock may have panicked.
        self.check()?;
        Ok(driven)
    }

    /// Locks the engine to read its state, also after a fatal error; waits while another thread drives the engine.
    /// `None` in a forked process.
    pub(crate) fn try_inspect(&self) -> Option<DriveGuard<'_, DeviceCore>> {
        self.is_of_this_process().then(|| self.inspect())
    }

    /// Locks the engine, also after a fatal error; waits while another thread drives the engine. Called only in the
    /// process that opened the device.
    pub(crate) fn inspect(&self) -> DriveGuard<'_, DeviceCore> {
        self.driven.lock()
    }

    /// Locks the engine; `None` if another thread drives the engine or the device is in a fatal error.
    #[inline]
    pub(crate) fn try_lock(&self) -> Option<DriveGuard<'_, DeviceCore>> {
        let driven = self.driven.try_lock()?;
        self.fatal.reason().is_none().then_some(driven)
    }

    /// Returns whether a thread has locked the engine.
    pub(crate) fn is_locked(&self) -> bool {
        self.driven.is_locked()
    }

    /// Fails if the device is in a fatal error, and in a forked process.
    #[inline]
    pub(crate) fn check(&self) -> Result<(), Error> {
        self.check_process()?;
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

    /// Polls the engine once, unless another thread drives the engine. Fails after a fatal error.
    #[inline]
    pub(crate) fn drive(&self) -> Result<(), Error> {
        match self.try_lock() {
            Some(driven) => self.poll_once(driven),
            None => self.drive_later(),
        }
    }

    #[inline]
    fn poll_once(&self, mut driven: DriveGuard<'_, DeviceCore>) -> Result<(), Error> {
        let now = self.now();
        self.activity.count_poll_at(now);
        driven.poll(now);
        if !self.sleep.is_watching() {
            self.take_over(&mut driven);
        }
        Ok(())
    }

    /// If application threads poll often, takes over the port from the background thread: disarms the port, so that a
    /// frame no longer wakes the background thread, and the peer of a memif needs no system call for each wake-up. The
    /// polling thread disarms the port, because it has the engine's lock, which the background thread rarely finds
    /// free.
    #[cold]
    fn take_over(&self, driven: &mut DriveGuard<'_, DeviceCore>) {
        let is_adaptive = self.policy == ProgressPolicy::Adaptive;
        if !is_adaptive || !self.activity.is_polled() || self.sleep.is_led() {
            return;
        }
        self.wakes.iter().for_each(|wakes| wakes.switch(false));
        driven.disarm();
        self.sleep.wake_up();
        self.sleep.set_background_until(None);
        self.sleep.set_watching(true);
        self.sleep.wake_background();
    }

    /// Called after a failure to lock the engine. If the background thread drives the engine, calls `spin` and returns,
    /// because a later call can lock the engine between two polls of the background thread, and a takeover by
    /// application threads makes the background thread stop. Otherwise tries `LOCK_TRIES` times to lock the engine and
    /// poll. If all tries fail, calls `relax`, because the thread that has the lock may be waiting for a processor.
    ///
    /// Most calls of `spin` return at once, and most calls of `relax` yield the processor; at long intervals a call
    /// sleeps. Without these sleeps, a calling thread with the scheduling policy
    /// SCHED_FIFO would wait for ever if the thread that has the lock is on the same processor.
    #[cold]
    #[inline(never)]
    fn drive_later(&self) -> Result<(), Error> {
        if self.activity.is_background_driving() {
            spin(self.activity.polls());
            return self.check();
        }
        for _ in 0..LOCK_TRIES {
            self.check()?;
            std::hint::spin_loop();
            if let Some(driven) = self.try_lock() {
                return self.poll_once(driven);
            }
        }
        relax();
        Ok(())
    }

    /// Sends the posted work requests. If another thread drives the engine, that thread sends the work requests.
    #[inline]
    pub(crate) fn push(&self) {
        // The drop of `driven` executes an atomic swap, which drains the processor's store buffer. Without the swap,
        // the sent frame could stay in the store buffer while this thread already polls for the response: half a round
        // trip of 64 bytes over memif would take 1.4 us instead of 1.1 us (EPYC, two cores).
        if let Some(mut driven) = self.driven.try_lock_to_send() {
            self.activity.count_poll();
            driven.send_posted();
        }
    }

    /// Called at the exit of the process: sends the due responses of all queue pairs. `Engine::destroy_qp` would send
    /// the responses too, but the exit destroys no queue pair. Gives up after `EXIT_LOCK_TRIES` attempts to lock the
    /// engine, because the holder of the lock may never release the lock. If the holder polls the engine meanwhile,
    /// these polls send the responses.
    pub(crate) fn send_at_exit(&self) {
        for _ in 0..EXIT_LOCK_TRIES {
            if let Some(mut driven) = self.try_lock() {
                for _ in 0..EXIT_POLLS {
                    driven.poll(self.now());
                }
                return;
            }
            if self.fatal.reason().is_some() {
                return;
            }
            relax();
        }
    }

    /// Locks the [`PortControl`]. The caller must not hold the engine's lock.
    pub(crate) fn control(&self) -> MutexGuard<'_, PortControl> {
        // A poisoned lock is used nevertheless. After a panic, the only wrong state is `restarted_at`, which may be the
        // time of a port restart that did not take place.
        self.control.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// If the port is a memif client whose link is down, restarts the port, unless the last restart was less than
    /// `RESTART_INTERVAL` ago. Locks the engine during the restart, because no thread may send or receive a burst
    /// meanwhile. Returns whether the link is up.
    pub(crate) fn poll_link(&self) -> bool {
        let mut control = self.control();
        if control.is_restart_due()
            && let Ok(mut driven) = self.lock()
            && let Err(error) = control.restart(driven.engine.port_mut().inner_mut().inner_mut().dpdk_mut())
        {
            tracing::trace!(%error, "the link is not up yet");
        }
        control.is_up()
    }

    /// Returns the link speed of a PCI port in bit/s, as its driver reports it. `None` on other ports, whose drivers
    /// report an invented speed.
    pub(crate) fn link_bits_per_sec(&self) -> Option<u64> {
        let speed_mbps = (self.port.kind == PortKind::Pci).then(|| self.control().speed_mbps()).flatten();
        speed_mbps.map(|mbps| u64::from(mbps) * 1_000_000)
    }

    /// Returns the link speed in Mbit/s that the NIC or the kernel's network interface reports; `None` if unknown.
    pub(crate) fn speed_mbps(&self) -> Option<u32> {
        match self.port.kind {
            PortKind::Pci => self.control().speed_mbps(),
            _ => self.control().interface_speed_mbps(),
        }
    }

    /// If [`Watch::is_due`] returns true, compares the counters of the device with their values in the last log lines,
    /// and returns the new log lines about counters that should not grow (`watch.rs`). Otherwise returns no log line.
    pub(crate) fn look_at_counters(&self, watch: &mut Watch) -> Vec<String> {
        let now = self.now();
        if !watch.is_due(now) {
            return Vec::new();
        }
        let (driver, port) = self.control().counters();
        let ports = driver.unwrap_or_default().iter().chain(port.iter());
        let driven = self.inspect();
        let engine = &driven.engine;
        let engine_wide = engine.drop_counters().iter().chain(engine.neighbour().counters().iter());
        let queue_pairs = watch.sums_up(engine.qp_count(), engine.qp_errors()).then(|| engine.counters());
        let queue_pairs = queue_pairs.iter().flat_map(QpCounters::iter);
        watch.look(now, ports.chain(engine_wide).chain(queue_pairs))
    }

    /// Returns all counters; in a forked process, empty maps.
    pub(crate) fn counters(&self) -> DeviceCounters {
        if !self.is_of_this_process() {
            return DeviceCounters::default();
        }
        let control = self.control();
        let ((driver, port), xstats) = (control.counters(), control.xstats());
        drop(control);
        let driven = self.inspect();
        let engine = &driven.engine;
        DeviceCounters {
            driver: driver.map(|stats| stat::map(stats.iter())).unwrap_or_default(),
            port: stat::map(port.iter()),
            drops: stat::map(engine.drop_counters().iter()),
            neighbour: stat::map(engine.neighbour().counters().iter()),
            queue_pairs: stat::map(engine.counters().iter()),
            faults: stat::map_faults(&engine.port().inner().counters()),
            xstats: xstats.into_iter().collect(),
        }
    }

    fn kernel(&self) -> Option<MutexGuard<'_, SharedInterface>> {
        // A poisoned lock is used nevertheless, because a panic leaves no inconsistent state in `KernelNeighbours`.
        self.kernel.as_ref().map(|kernel| kernel.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Fails if the port is shared and the kernel has no route to `dgid` over the port's network interface.
    fn require_route(&self, dgid: Gid) -> Result<(), KernelError> {
        match self.kernel() {
            Some(mut kernel) => kernel.neighbours.next_hop(dgid.ip()).map(drop),
            None => Ok(()),
        }
    }

    /// On a shared port, reads the MACs of neighbours from the kernel: of the neighbours that the engine resolves, and
    /// of the neighbours whose MAC may have changed. The caller must not hold the engine's lock.
    pub(crate) fn follow_kernel(&self) {
        let Some(mut kernel) = self.kernel() else { return };
        if let Err(error) = self.ask_kernel(&mut kernel.neighbours) {
            tracing::warn!(%error, "cannot follow the kernel's neighbours");
        }
    }

    fn ask_kernel(&self, neighbours: &mut KernelNeighbours) -> Result<(), KernelError> {
        let mut asked = neighbours.due()?;
        let mut driven = self.inspect();
        let neighbour = driven.engine.neighbour_mut();
        asked.extend(neighbour.wanted().take(WANTED_PER_TURN));
        let asked: Vec<(IpAddr, bool)> =
            asked.into_iter().map(|ip| (ip, neighbour.is_followed(ip))).collect();
        drop(driven);
        let mut answers = Vec::new();
        let mut result = Ok(());
        for (ip, is_followed) in asked {
            if !is_followed {
                neighbours.forget(ip);
                continue;
            }
            match neighbours.resolve(ip) {
                Ok(resolution) => answers.push((ip, resolution)),
                // The error is returned only after the remaining neighbours are resolved.
                Err(error) => result = Err(error),
            }
        }
        if answers.is_empty() {
            return result;
        }
        let mut driven = self.inspect();
        for (ip, resolution) in answers {
            match resolution {
                Resolution::Known(mac) => drop(driven.engine.neighbour_mut().set_neighbour(ip, mac)),
                // If the MAC of this neighbour was resolved before, the engine continues to use that MAC.
                Resolution::Pending => {}
                Resolution::Unreachable => driven.engine.neighbour_mut().set_unreachable(ip, self.now()),
            }
        }
        result
    }

    /// Applies the configuration of the kernel's interface to the port: addresses and MTU, and also the gateways if the
    /// port is dedicated. Queue pairs keep their source addresses and path MTUs.
    pub(crate) fn set_interface(&self, interface: &Interface) {
        let config = interface_neighbour(self.port.kind, interface);
        // `mtu=` in the name of the port can exceed the new MTU; then the new MTU applies.
        let mtu_bytes = interface_mtu_bytes(&self.port, interface).unwrap_or(interface.mtu_bytes);
        self.control().set_interface(interface);
        if let Some(mut kernel) = self.kernel() {
            kernel.set_interface(interface);
        }
        let mut driven = self.inspect();
        let is_other_mac = driven.engine.port().caps().mac != interface.mac;
        driven.engine.port_mut().inner_mut().inner_mut().dpdk_mut().set_mtu_bytes(mtu_bytes);
        let neighbour = driven.engine.neighbour_mut();
        let generation = neighbour.gids().generation();
        let replaced = neighbour.gids_mut().replace(&config.gids, None);
        if config.mode == Mode::Dedicated {
            neighbour.set_gateways(config.gateway_v4, config.gateway_v6);
        }
        if neighbour.gids().generation() != generation {
            driven.on_event(Event::GidChange);
        }
        drop(driven);
        if let Err(error) = replaced {
            tracing::warn!(port = %self.port, %error, "an address of the interface is no GID");
        }
        if is_other_mac {
            tracing::warn!(port = %self.port, mac = %interface.mac, "the interface has another MAC: open the port again");
        }
    }

    /// Puts the device in a fatal error, because the port stays bound to the removed interface, even if an interface of
    /// the same name is created later.
    pub(crate) fn interface_removed(&self, name: &str) {
        tracing::error!(port = %self.port, "the network interface {name} was removed");
        self.inspect().raise_fatal(format!("the network interface {name} was removed"));
    }

    /// Called when the link came up or went down: queues `Event::PortActive` or `Event::PortError` for the application.
    /// If the link is up and the port is dedicated, announces the addresses of the port.
    pub(crate) fn link_changed(&self, is_up: bool) {
        tracing::info!(port = %self.port, "the link is {}", if is_up { "up" } else { "down" });
        let mut driven = self.inspect();
        if is_up {
            driven.engine.neighbour_mut().announce_again();
        }
        driven.on_event(if is_up { Event::PortActive } else { Event::PortError });
    }

    pub(crate) fn gid(&self, index: usize) -> Option<Gid> {
        self.try_inspect()?.engine.neighbour().gids().get(index).map(|entry| entry.gid)
    }

    pub(crate) fn resolve(&self, dgid: Gid, sgid_index: u8, timeout: Duration) -> Result<Mac, Error> {
        const RETRY_INTERVAL: Duration = Duration::from_millis(1);
        let _no_cancel = NoCancel::new();
        let start = Instant::now();
        loop {
            let mut driven = self.lock()?;
            if let Resolution::Known(mac) = driven.engine.resolve(dgid) {
                return Ok(mac);
            }
            driven.log_conflict();
            driven.poll(self.now());
            let own = driven.engine.neighbour().gids().get(usize::from(sgid_index));
            let sgid = own.map_or(Gid::ZERO, |entry| entry.gid);
            drop(driven);
            self.poll_link();
            self.require_route(dgid)?;
            self.follow_kernel();
            if start.elapsed() >= timeout {
                return Err(Error::Unreachable { dgid, sgid, waited_millis: timeout.as_millis() as u64 });
            }
            std::thread::sleep(RETRY_INTERVAL);
        }
    }

    pub(crate) fn describe(&self) -> Answer {
        let (driver, is_up) = {
            let control = self.control();
            (control.driver().to_owned(), control.is_up())
        };
        let mac = self.inspect().engine.port().caps().mac;
        let program = std::env::args_os().next().map(PathBuf::from).unwrap_or_default();
        Answer {
            pid: std::process::id(),
            command: program.file_name().unwrap_or_default().to_string_lossy().into_owned(),
            port: self.port.to_string(),
            driver,
            mac: mac.to_string(),
            is_up,
            fatal: self.fatal.reason().map(str::to_owned),
            uptime_nanos: self.now().as_nanos(),
            counters: self.counters(),
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::process::Command;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::mpsc::channel;
    use std::thread;
    use std::time::Duration;

    use rustix::thread::{CpuSet, gettid, sched_getaffinity, sched_setaffinity};

    use super::Shared;
    use crate::{Context, DeviceOptions};

    /// Timeout of `recv_timeout` in the test of [`Shared::control`], reached only if the test fails.
    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn control_of_the_port_does_not_wait_for_the_engine() {
        let context =
            Context::open(&"eal:net_null85,dev.no-rx=1".parse().unwrap(), &DeviceOptions::default()).unwrap();
        let shared = context.shared();
        let driven = shared.inspect();
        let (sender, receiver) = channel();
        let reader = thread::spawn({
            let shared = context.shared().clone();
            move || {
                let is_up = shared.poll_link() && shared.link_bits_per_sec().is_none();
                let control = shared.control();
                sender.send((is_up, control.driver().to_owned(), control.counters().0.is_some()))
            }
        });
        let answer = receiver.recv_timeout(LONG);
        drop(driven);
        assert_eq!(answer, Ok((true, "net_null".to_owned(), true)));
        reader.join().unwrap().unwrap();
    }

    /// Number of polls of the SCHED_FIFO thread at which the test fails. The thread that has the engine's lock runs
    /// only while the SCHED_FIFO thread sleeps, or after the kernel has stopped the SCHED_FIFO thread because of the
    /// limit of its CPU time (0.95 s).
    const FIFO_POLLS_MAX: u32 = 5_000_000;

    /// Polls, as a thread of the scheduling policy SCHED_FIFO, until another thread has released the engine's lock
    /// (`is_released`), at most `FIFO_POLLS_MAX` times. Returns the number of polls.
    fn poll_with_fifo(shared: &Shared, is_fifo: &AtomicBool, is_released: &AtomicBool) -> u32 {
        let tid = gettid().as_raw_nonzero().to_string();
        let status = Command::new("chrt").args(["--fifo", "--pid", "1", &tid]).status();
        let is_permitted = status.is_ok_and(|status| status.success());
        is_fifo.store(true, Ordering::Relaxed);
        assert!(is_permitted, "this test needs chrt (util-linux) and CAP_SYS_NICE: run it as root");
        let poll = |polls: &u32| {
            shared.drive().unwrap();
            *polls == FIFO_POLLS_MAX || is_released.load(Ordering::Relaxed)
        };
        (1..=FIFO_POLLS_MAX).find(poll).unwrap_or(FIFO_POLLS_MAX)
    }

    /// Both threads run on one processor, so the thread that has the lock runs only while the other thread sleeps.
    #[test]
    fn a_fifo_thread_that_polls_lets_the_thread_run_that_has_the_lock() {
        let context =
            Context::open(&"eal:net_null86,dev.no-rx=1".parse().unwrap(), &DeviceOptions::default()).unwrap();
        let shared = context.shared();
        let permitted = sched_getaffinity(None).unwrap();
        let mut processor = CpuSet::new();
        processor.set((0..CpuSet::MAX_CPU).find(|number| permitted.is_set(*number)).unwrap());
        for is_background in [false, true] {
            let (is_fifo, is_released) = (AtomicBool::new(false), AtomicBool::new(false));
            let polls = thread::scope(|scope| {
                let driven = shared.inspect();
                let background = is_background.then(|| shared.activity.drive_in_background());
                sched_setaffinity(None, &processor).unwrap();
                let poller = scope.spawn(|| poll_with_fifo(shared, &is_fifo, &is_released));
                while !is_fifo.load(Ordering::Relaxed) {
                    thread::yield_now();
                }
                drop((driven, background));
                is_released.store(true, Ordering::Relaxed);
                sched_setaffinity(None, &permitted).unwrap();
                poller.join().unwrap()
            });
            assert!(polls < FIFO_POLLS_MAX, "beside the background thread: {is_background}");
        }
    }
}
