//! The context: an open device, with its attributes, counters and asynchronous events.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use dpdk_ffi::NoCancel;
use roce::counters::{DropCounters, QpCounters};
use roce::engine::Event;
use roce::id::{Gid, Mac};
use roce::port::Port as _;
use roce::port::events::EventOutcome;
use roce::port::fault::FaultCounters;
use roce::port::probability::Probability;
use roce::qp::PathMtu;

use crate::attr::{DeviceAttr, DeviceCaps};
use crate::channel::CompChannel;
use crate::cq::Cq;
use crate::device::Shared;
use crate::error::{Error, OpenError};
use crate::inbox::Inbox;
use crate::limits::TooFewDescriptors;
use crate::mr::Pd;
use crate::objects::ContextObjects;
use crate::options::DeviceOptions;
use crate::port::{PortSpec, Wire};
use crate::registry;
use crate::stat::DeviceCounters;
use crate::wake_set::WakeSet;

/// An open device, with the objects that this context created and their asynchronous events (`ibv_context`). A device
/// may have several contexts. The device is closed when all its contexts, their clones and their objects (except
/// completion channels) are dropped.
///
/// # Forks
/// A process forked from the process that opened a device cannot use the device. In the forked process all functions
/// that return [`Error`] fail with [`Error::Forked`]; queries return `None`, zeros or no elements; a drop closes and
/// destroys nothing, and leaks memory. The device of the process that opened it is not affected.
///
/// DPDK cannot be started a second time in a forked process. Therefore a child process that is to use RDMA must be
/// forked before its parent opens the first device; otherwise [`Context::open`] fails in the child process.
/// `posix_spawn`, [`std::process::Command`], and `fork` with a subsequent `exec`, work at any time, from any thread;
/// the new program inherits no file descriptor of the device.
///
/// `ibv_fork_init` of libibverbs has no equivalent. A NIC accesses pages by their physical addresses, so after a fork
/// a write of the parent (copy-on-write) separates the parent from the pages that the NIC accesses. Here the engine
/// accesses registered memory by its virtual addresses, as the program does. After a fork, parent and child each have
/// their own copy of private registered memory, and the engine accesses the parent's.
///
/// # Example
/// A connection between two queue pairs of one device. The port `net_ring0` receives every frame that it sends:
///
/// ```
/// use verbs::{ConnectOptions, Context, DeviceOptions, QpOptions, QpState};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let context = Context::open(&"eal:net_ring0,ip=10.0.0.1/24".parse()?, &DeviceOptions::default())?;
/// let (pd, cq) = (context.alloc_pd()?, context.create_cq(16, None)?);
/// let (qp, peer) = (pd.create_qp(&QpOptions::new(&cq))?, pd.create_qp(&QpOptions::new(&cq))?);
/// // GID 0 is the link-local address of the port, GID 1 the first `ip` of the port's name.
/// let options = ConnectOptions { gid_index: 1, ..ConnectOptions::default() };
/// peer.connect(&qp.endpoint(1), &options)?;
/// qp.connect(&peer.endpoint(1), &options)?;
/// assert_eq!(qp.query().map(|(state, _)| state), Some(QpState::Rts));
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Context {
    objects: Arc<ContextObjects>,
}

impl Context {
    /// Opens the port `spec` as an RDMA device. If this process has the port open already, returns a further context of
    /// the open device; `options` must then be the default options or those of the device. All contexts of a device
    /// have the same MAC and GIDs. Queue pairs of different contexts can be connected to each other.
    ///
    /// # Errors
    /// [`OpenError`] states the failure and the remedy. [`OpenError::Open`] in three cases: this process has opened the
    /// port by a name with other keys (`ip=`, `vlan=` and so on), or with other options; the device is in a fatal
    /// error; the device is closed, but one of its completion channels still exists, or a `QpQueues`, `SrqQueue` or
    /// `CqQueue` that [`ContextObjects`] returned.
    pub fn open(spec: &PortSpec, options: &DeviceOptions) -> Result<Context, OpenError> {
        let _no_cancel = NoCancel::new();
        let device = registry::open(spec, options)?;
        let failed = |error| match TooFewDescriptors::of("a context", error) {
            Ok(limited) => limited.into(),
            Err(error) => OpenError::System { what: "cannot make an event file descriptor", error },
        };
        let events = Arc::new(Inbox::with_fd().map_err(failed)?);
        Ok(Context { objects: Arc::new(ContextObjects::new(device, events)) })
    }

    /// Returns the [`ContextObjects`], whose functions identify the objects of this context by number or key. These
    /// functions are for callers that cannot use the types [`Pd`], [`Mr`](crate::Mr), [`Cq`], [`Srq`](crate::Srq) and
    /// [`Qp`](crate::Qp), for example a C interface.
    pub fn objects(&self) -> &ContextObjects {
        &self.objects
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        self.objects.shared()
    }

    /// Waits until the port's link is up. A memif or vhost link is up while this process and another process are
    /// connected through the socket of the port.
    ///
    /// # Errors
    /// [`Error::LinkDown`] if the link is not up within `timeout`; [`Error::DeviceFatal`] after a fatal error.
    pub fn wait_link(&self, timeout: Duration) -> Result<(), Error> {
        const POLL_INTERVAL: Duration = Duration::from_millis(20);
        let _no_cancel = NoCancel::new();
        let start = Instant::now();
        let shared = self.shared();
        loop {
            let mut driven = shared.lock()?;
            driven.log_conflict();
            driven.poll(shared.now());
            drop(driven);
            if shared.poll_link() {
                return Ok(());
            }
            shared.follow_kernel();
            if start.elapsed() >= timeout {
                let waited_millis = timeout.as_millis() as u64;
                return Err(Error::LinkDown { port: shared.port.to_string(), waited_millis });
            }
            std::thread::sleep(POLL_INTERVAL);
        }
    }

    /// Returns the device's attributes, also after a fatal error. In a forked process the attributes report the link as
    /// down, and contain no driver and no GIDs.
    pub fn attr(&self) -> DeviceAttr {
        let shared = self.shared();
        let (driver, is_up, speed_mbps) = if shared.is_of_this_process() {
            let speed_mbps = shared.speed_mbps();
            let control = shared.control();
            (control.driver().to_owned(), control.is_up(), speed_mbps)
        } else {
            (String::new(), false, None)
        };
        let driven = shared.try_inspect();
        // The MTU of a network interface of the kernel can change after the port was opened. Therefore `caps`
        // is read from the engine's port; `shared.caps` contains the MTU at the time of opening.
        let caps = driven.as_ref().map_or(shared.caps, |driven| driven.engine.port().caps());
        let gids = driven.iter().flat_map(|driven| driven.engine.neighbour().gids().iter());
        DeviceAttr {
            port: shared.port.to_string(),
            kind: shared.port.kind,
            driver,
            mac: caps.mac,
            mtu_bytes: caps.mtu_bytes,
            active_mtu: PathMtu::largest_for(caps.mtu_bytes),
            is_up,
            speed_mbps,
            wakes_by: shared.wakes.as_ref().map(WakeSet::kind),
            gids: gids.map(|(index, entry)| (index, entry.gid)).collect(),
            caps: DeviceCaps::new(shared.limits),
        }
    }

    /// Returns the GID of index `index`; `None` if the GID table has no entry of this index.
    pub fn gid(&self, index: usize) -> Option<Gid> {
        self.shared().gid(index)
    }

    /// Returns the index of the local GID that is the source of packets to `dgid`. The local GID has the address family
    /// and, if possible, the subnet of `dgid`.
    ///
    /// # Errors
    /// [`Error::NoGid`] if no local GID is a valid source of packets to `dgid`; [`Error::Forked`] in a forked process.
    pub fn gid_index_for(&self, dgid: Gid) -> Result<u8, Error> {
        self.shared().check_process()?;
        let driven = self.shared().inspect();
        let table = driven.engine.neighbour().gids();
        let index = table.select_for(dgid.ip()).and_then(|index| u8::try_from(index).ok());
        index.ok_or_else(|| {
            let gids: Vec<String> = table.iter().map(|(_, entry)| entry.gid.to_string()).collect();
            Error::NoGid { dgid, gids: gids.join(", ") }
        })
    }

    /// Returns whether `gid` is in the subnet of an address of this device.
    pub fn is_on_link(&self, gid: Gid) -> bool {
        self.shared().try_inspect().is_some_and(|driven| driven.engine.neighbour().is_on_link(gid.ip()))
    }

    /// Returns the MAC of `dgid`, or of the gateway to `dgid`; blocks until this MAC is resolved. `sgid_index` is used
    /// only for the text of [`Error::Unreachable`].
    ///
    /// # Errors
    /// [`Error::Unreachable`] if the MAC is not resolved within `timeout`. If the port is shared and the kernel has no
    /// route to `dgid`, fails with [`KernelError::NoRoute`](crate::kernel::KernelError::NoRoute) without waiting.
    /// [`Error::DeviceFatal`] after a fatal error.
    pub fn resolve(&self, dgid: Gid, sgid_index: u8, timeout: Duration) -> Result<Mac, Error> {
        self.shared().resolve(dgid, sgid_index, timeout)
    }

    /// Allocates a protection domain (`ibv_alloc_pd`).
    pub fn alloc_pd(&self) -> Result<Pd, Error> {
        Pd::new(&self.objects)
    }

    /// Creates a completion queue of at most `depth` entries (`ibv_create_cq`). Completion events of the queue are
    /// appended to `channel`, which must be a channel of the same device; if `channel` is `None`, the queue has no
    /// completion events.
    pub fn create_cq(&self, depth: u32, channel: Option<&CompChannel>) -> Result<Cq, Error> {
        Cq::new(&self.objects, depth, channel)
    }

    /// Creates a completion channel (`ibv_create_comp_channel`).
    pub fn create_comp_channel(&self) -> Result<CompChannel, Error> {
        CompChannel::new(self.shared().clone())
    }

    /// Polls the engine once, unless another thread drives the engine. Threads that wait without polling a completion
    /// queue call this function.
    ///
    /// # Errors
    /// [`Error::DeviceFatal`] after a fatal error.
    pub fn progress(&self) -> Result<(), Error> {
        self.shared().check_process()?;
        self.shared().drive()
    }

    /// Excludes this context from further [`Event::PortActive`] and [`Event::PortError`], and removes pending events of
    /// these two kinds. For callers that report the port as active even while no peer is connected.
    pub fn ignore_link_events(&self) {
        self.objects.ignore_link_events();
    }

    /// Removes and returns the oldest asynchronous event (`ibv_get_async_event`) of the device or of an object that
    /// this context created. Returns `None` if no event is pending; does not wait. At most 1024 events are pending; a
    /// further event replaces the oldest.
    pub fn poll_async_event(&self) -> Option<Event> {
        self.objects.poll_async_event().map(|pending| pending.event)
    }

    /// Returns a file descriptor for `poll` and `epoll`, readable while an asynchronous event is pending (`async_fd` of
    /// `ibv_context`). The caller must not read from the file descriptor.
    pub fn async_event_fd(&self) -> BorrowedFd<'_> {
        self.objects.events().count().as_fd()
    }

    /// Returns two sets of counters: the sums over all queue pairs, including destroyed queue pairs, and the numbers of
    /// frames that were dropped before they reached a queue pair.
    pub fn counters(&self) -> (QpCounters, DropCounters) {
        let driven = self.shared().try_inspect();
        driven.map(|driven| (driven.engine.counters(), driven.engine.drop_counters())).unwrap_or_default()
    }

    /// Returns all counters of the device and its port, by source and name.
    pub fn device_counters(&self) -> DeviceCounters {
        self.shared().counters()
    }

    /// Returns the numbers of frames and of impaired frames, for each direction that [`DeviceOptions::faults`] impairs.
    pub fn fault_counters(&self) -> FaultCounters {
        self.shared().try_inspect().map(|driven| driven.engine.port().inner().counters()).unwrap_or_default()
    }

    /// Sets the probability of loss in the directions that [`DeviceOptions::faults`] impairs. If all probabilities in
    /// `faults` were 0 when the device was opened, this function has no effect.
    pub fn set_drop_probability(&self, probability: Probability) {
        if let Some(mut driven) = self.shared().try_inspect() {
            driven.engine.port_mut().inner_mut().set_drop_probability(probability);
        }
    }

    /// Returns the outcome of each packet event, in the order of [`DeviceOptions::events`]: the packet that the event
    /// has impaired, if any.
    pub fn event_outcomes(&self) -> Vec<EventOutcome> {
        self.shared().try_inspect().map(|driven| driven.engine.port().outcomes()).unwrap_or_default()
    }

    /// Returns the error that ended the capture; `None` if the capture has had no error, or the device has no capture.
    pub fn capture_error(&self) -> Option<String> {
        match self.shared().try_inspect()?.wire() {
            Wire::Bare(_) => None,
            Wire::Captured(capture) => capture.error().map(ToString::to_string),
        }
    }
}

impl Cq {
    /// Returns the context that created the completion queue.
    pub fn context(&self) -> Context {
        Context { objects: self.0.objects.clone() }
    }
}
