//! A running port: bursts received and sent.

use std::collections::VecDeque;
use std::fmt;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;

use dpdk_sys::rte_mbuf;

use super::error::{Context, PortError};
use super::info::{self, Link, PortInfo, PortStats};
use super::interrupt;
use crate::device::Device;
use crate::guard;
use crate::mbuf::{Header, Mbuf};
use crate::memif;
use crate::mempool::Mempool;
use crate::port_id::PortId;

/// Frames queued for a flush, at most.
pub const TX_QUEUE_FRAMES: usize = 64;
/// Mbufs allocated at a time for frames to send.
const TX_SPARES: usize = 32;
/// Mbufs that a port holds besides its driver, at most: queued frames, and spares for further ones.
pub const HELD_MBUFS: usize = TX_QUEUE_FRAMES + TX_SPARES;
/// Calls per flush in which a driver takes no frame, at most. A full ring does not drain within a few of
/// these; the frames stay queued for the next flush.
const FLUSH_STALLS_MAX: usize = 3;

/// Counters of the port itself, besides the driver's [`PortStats`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PortCounters {
    /// Queued frames discarded unsent: by [`Port::tx_discard`], or because the port was stopped.
    pub tx_discarded: u64,
    /// Times that the pool had no mbuf for a frame to send.
    pub tx_no_mbuf: u64,
    /// Flushes that left frames queued.
    pub tx_stalled: u64,
    /// Received chains dropped because the linear pool had no mbuf, or none large enough.
    pub rx_not_linear: u64,
}

impl PortCounters {
    /// Returns names and values, in the order of the fields.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> + use<> {
        let Self { tx_discarded, tx_no_mbuf, tx_stalled, rx_not_linear } = *self;
        [
            ("tx_discarded", tx_discarded),
            ("tx_no_mbuf", tx_no_mbuf),
            ("tx_stalled", tx_stalled),
            ("rx_not_linear", rx_not_linear),
        ]
        .into_iter()
    }
}

/// An Ethernet port of this process. Drop discards the queued frames, stops and closes the port and detaches
/// its device. Mbufs received from it stay valid.
pub struct Port {
    pool: Mempool,
    linear_pool: Option<Mempool>,
    info: PortInfo,
    counters: PortCounters,
    started: bool,
    /// Counters of a memif port's bursts, which replace the driver's: see `memif`.
    memif: Option<memif::Counts>,
    rx_queues: u16,
    next_rx_queue: u16,
    spares: MbufArray<TX_SPARES>,
    queued: MbufArray<TX_QUEUE_FRAMES>,
    // Dropped last, because the port must be closed before its device is detached.
    device: Device,
}

/// Owned mbufs, as the array of pointers that DPDK takes.
struct MbufArray<const N: usize> {
    mbufs: [*mut rte_mbuf; N],
    len: usize,
}

// SAFETY: the mbufs are owned, and owned mbufs may change threads.
unsafe impl<const N: usize> Send for MbufArray<N> {}

impl<const N: usize> MbufArray<N> {
    const fn new() -> Self {
        Self { mbufs: [std::ptr::null_mut(); N], len: 0 }
    }

    #[inline]
    fn is_full(&self) -> bool {
        self.len == N
    }

    #[inline]
    fn push(&mut self, raw: NonNull<rte_mbuf>) {
        if let Some(place) = self.mbufs.get_mut(self.len) {
            *place = raw.as_ptr();
            self.len += 1;
        }
    }

    #[inline]
    fn pop(&mut self) -> Option<NonNull<rte_mbuf>> {
        let last = self.len.checked_sub(1)?;
        self.len = last;
        NonNull::new(*self.mbufs.get(last)?)
    }

    /// Frees all mbufs and returns their number.
    fn free(&mut self) -> usize {
        let freed = std::mem::take(&mut self.len);
        // SAFETY: the first `freed` pointers are owned mbufs, and given up.
        unsafe { dpdk_sys::rte_pktmbuf_free_bulk(self.mbufs.as_mut_ptr(), freed as u32) };
        freed
    }
}

impl<const N: usize> Drop for MbufArray<N> {
    fn drop(&mut self) {
        self.free();
    }
}

impl Port {
    pub(super) fn new(
        device: Device,
        info: PortInfo,
        pool: Mempool,
        linear_pool: Option<Mempool>,
        rx_queues: u16,
    ) -> Self {
        Self {
            memif: (dpdk_sys::STATIC && guard::concerns(device.name())).then(memif::Counts::default),
            pool,
            linear_pool,
            info,
            counters: PortCounters::default(),
            started: false,
            rx_queues,
            next_rx_queue: 0,
            spares: MbufArray::new(),
            queued: MbufArray::new(),
            device,
        }
    }

    /// Returns the port's number in this process.
    pub fn id(&self) -> PortId {
        self.device.port_id()
    }

    /// Returns the name that the device was attached by.
    pub fn name(&self) -> &str {
        self.device.name()
    }

    /// Returns the port's properties.
    pub fn info(&self) -> &PortInfo {
        &self.info
    }

    /// Returns the pool that the port receives into and sends from.
    pub fn pool(&self) -> &Mempool {
        &self.pool
    }

    /// Appends at most `max` received frames to `frames` and returns their number. Does not block.
    ///
    /// Allocates only if `frames` has no room for `max` more.
    #[inline]
    pub fn rx_burst(&mut self, frames: &mut Vec<Mbuf>, max: usize) -> usize {
        if !self.started {
            return 0;
        }
        let before = frames.len();
        for _ in 0..self.rx_queues {
            let queue = self.next_rx_queue;
            self.next_rx_queue = if queue + 1 == self.rx_queues { 0 } else { queue + 1 };
            let wanted = max - (frames.len() - before);
            if wanted == 0 {
                break;
            }
            self.rx_queue_burst(queue, frames, wanted);
        }
        if self.linear_pool.is_some() {
            self.linearize(frames, before);
        }
        frames.len() - before
    }

    #[inline]
    fn rx_queue_burst(&mut self, queue: u16, frames: &mut Vec<Mbuf>, wanted: usize) {
        let count = u16::try_from(wanted).unwrap_or(u16::MAX);
        frames.reserve(usize::from(count));
        let room = frames.spare_capacity_mut().as_mut_ptr().cast::<*mut rte_mbuf>();
        let port_id = self.id();
        // SAFETY: the port is started and has this queue; `room` takes `count` pointers, and `Mbuf` is one. The
        // burst hands over ownership of the `received` mbufs it writes.
        unsafe {
            let received = match &mut self.memif {
                Some(counts) => {
                    std::ptr::write_bytes(room, 0, usize::from(count));
                    let room = std::slice::from_raw_parts_mut(room, usize::from(count));
                    memif::rx(port_id, queue, &self.pool, room, counts)
                }
                None => usize::from(dpdk_sys::shim_rx_burst(port_id, queue, room, count)),
            };
            frames.set_len(frames.len() + received);
        }
    }

    /// Replaces chains from index `first` on by contiguous copies, and drops those that cannot be copied.
    fn linearize(&mut self, frames: &mut Vec<Mbuf>, first: usize) {
        let Some(pool) = &self.linear_pool else { return };
        let fresh = frames.get(first..).unwrap_or_default();
        if fresh.iter().all(Mbuf::is_contiguous) {
            return;
        }
        // `retain_mut` keeps the order of the remaining frames.
        let mut index = 0;
        let counters = &mut self.counters;
        frames.retain_mut(|frame| {
            index += 1;
            if index <= first || frame.is_contiguous() {
                return true;
            }
            match frame.copy_contiguous(pool) {
                Some(copy) => {
                    *frame = copy;
                    true
                }
                None => {
                    counters.rx_not_linear += 1;
                    false
                }
            }
        });
    }

    /// Returns the longest frame that [`Port::tx_reserve`] accepts, in bytes.
    #[inline]
    pub fn tx_frame_max_bytes(&self) -> usize {
        usize::from(self.pool.config().data_room_bytes)
    }

    /// Queues a frame of `len_bytes` bytes and returns them, to be filled before the next [`Port::tx_flush`];
    /// their content is unspecified. `None` if [`TX_QUEUE_FRAMES`] frames are queued, the pool is exhausted
    /// (both end after flushes), or the frame is longer than [`Port::tx_frame_max_bytes`].
    #[inline]
    pub fn tx_reserve(&mut self, len_bytes: usize) -> Option<&mut [u8]> {
        let len = u16::try_from(len_bytes).ok()?;
        if self.queued.is_full() || len > self.pool.config().data_room_bytes {
            return None;
        }
        let raw = match self.spares.pop() {
            Some(raw) => raw,
            None => self.refill()?,
        };
        self.queued.push(raw);
        // SAFETY: an empty mbuf of the pool, owned through `queued`, whose data room takes `len` bytes; they were
        // initialised when the pool's memory was mapped, and are borrowed through `self`.
        unsafe {
            let data = Header::new(raw).set_frame_len(len);
            Some(std::slice::from_raw_parts_mut(data, len_bytes))
        }
    }

    /// Allocates spare mbufs and returns one of them.
    #[cold]
    fn refill(&mut self) -> Option<NonNull<rte_mbuf>> {
        if self.pool.alloc_raw(&mut self.spares.mbufs) {
            self.spares.len = TX_SPARES;
            return self.spares.pop();
        }
        // The last few of an exhausted pool, one at a time.
        let last = self.pool.alloc().map(Mbuf::into_raw);
        self.counters.tx_no_mbuf += u64::from(last.is_none());
        last
    }

    /// Queues an existing frame, such as a received one. Returns it if [`TX_QUEUE_FRAMES`] are queued, or if
    /// it is a chain and [`PortInfo::can_send_chains`] is false.
    #[inline]
    pub fn tx_enqueue(&mut self, frame: Mbuf) -> Result<(), Mbuf> {
        if self.queued.is_full() || !(frame.is_contiguous() || self.info.can_send_chains) {
            return Err(frame);
        }
        self.queued.push(frame.into_raw());
        Ok(())
    }

    /// Returns the number of queued frames.
    #[inline]
    pub fn tx_queued(&self) -> usize {
        self.queued.len
    }

    /// Moves the queued frames whose destination is the MAC `mac` to `taken`, in order. The others stay queued, in order.
    pub fn tx_take(&mut self, mac: [u8; 6], taken: &mut VecDeque<Mbuf>) {
        let count = std::mem::take(&mut self.queued.len);
        for index in 0..count {
            let Some(raw) = self.queued.mbufs.get(index).copied().and_then(NonNull::new) else { continue };
            // SAFETY: the first `count` entries were owned mbufs, and `queued.len` no longer counts this one.
            let frame = unsafe { Mbuf::from_raw(raw) };
            if frame.data().first_chunk() == Some(&mac) {
                taken.push_back(frame);
            } else {
                // Written to this entry or an earlier one.
                self.queued.push(frame.into_raw());
            }
        }
    }

    /// Sends the queued frames and returns how many the driver took. The others stay queued, in order, for
    /// the next flush.
    #[inline]
    pub fn tx_flush(&mut self) -> usize {
        if !self.started || self.queued.len == 0 {
            return 0;
        }
        let port_id = self.id();
        let (mut sent, mut stalls) = (0, 0);
        while sent < self.queued.len && stalls < FLUSH_STALLS_MAX {
            let rest = self.queued.mbufs.get_mut(sent..self.queued.len).unwrap_or_default();
            let taken = match &mut self.memif {
                Some(counts) => memif::tx(port_id, 0, rest, counts),
                // SAFETY: the port is started, `rest` holds owned mbufs; the driver takes over those it counts.
                None => usize::from(unsafe {
                    dpdk_sys::shim_tx_burst(port_id, 0, rest.as_mut_ptr(), rest.len() as u16)
                }),
            };
            sent += taken;
            stalls += usize::from(taken == 0);
        }
        if sent < self.queued.len {
            self.queued.mbufs.copy_within(sent..self.queued.len, 0);
            self.counters.tx_stalled += 1;
        }
        self.queued.len -= sent;
        sent
    }

    /// Discards and counts the queued frames, and returns their number.
    pub fn tx_discard(&mut self) -> usize {
        let discarded = self.queued.free();
        self.counters.tx_discarded += discarded as u64;
        discarded
    }

    /// Stops and starts the port, as a memif client must to connect to a server that was restarted. Queued
    /// frames are discarded.
    ///
    /// # Errors
    /// `Refused`; the port is then stopped, and may be restarted.
    pub fn restart(&mut self) -> Result<(), PortError> {
        self.stop()?;
        self.start()
    }

    /// Starts the port, unless it is started.
    ///
    /// # Errors
    /// `Refused`
    pub fn start(&mut self) -> Result<(), PortError> {
        if !self.started {
            let _guard = guard::lock(self.name());
            memif::starting(Some(self.id()));
            // SAFETY: the port is configured and its queues are set up.
            let started = self.check("cannot start", || unsafe { dpdk_sys::rte_eth_dev_start(self.id()) });
            memif::starting(None);
            started?;
            self.started = true;
        }
        Ok(())
    }

    /// Stops the port, which then neither receives nor sends. Queued frames are discarded.
    ///
    /// # Errors
    /// `Refused`
    pub fn stop(&mut self) -> Result<(), PortError> {
        self.tx_discard();
        if self.started {
            self.started = false;
            let _guard = guard::lock(self.name());
            // SAFETY: the port is started, and no other thread is in a burst: those need `&mut self`.
            self.check("cannot stop", || unsafe { interrupt::stop(self.id(), &self.info.driver) })?;
        }
        Ok(())
    }

    /// Whether the port is started.
    pub fn is_started(&self) -> bool {
        self.started
    }

    /// Returns the driver's MTU: the largest IP packet, in bytes. Drivers without an MTU return 1,500.
    pub fn mtu_bytes(&self) -> u16 {
        let mut mtu_bytes = 0;
        // SAFETY: the port exists.
        unsafe { dpdk_sys::rte_eth_dev_get_mtu(self.id(), &mut mtu_bytes) };
        mtu_bytes
    }

    /// Sets the MTU; on af_packet, that of the kernel's interface.
    ///
    /// # Errors
    /// `OutOfRange`, `Refused`
    pub fn set_mtu_bytes(&mut self, mtu_bytes: u16) -> Result<(), PortError> {
        let (min, max) = (self.info.min_mtu_bytes, self.info.max_mtu_bytes);
        if !(min..=max).contains(&mtu_bytes) {
            return Err(self.context().out_of_range("an MTU in bytes of", mtu_bytes, min, max));
        }
        // SAFETY: the port exists.
        self.check("cannot change the MTU", || unsafe { dpdk_sys::rte_eth_dev_set_mtu(self.id(), mtu_bytes) })
    }

    /// Enables or disables promiscuous mode. No error if the device has no such mode.
    ///
    /// # Errors
    /// `Refused`
    pub fn set_promiscuous(&mut self, promiscuous: bool) -> Result<(), PortError> {
        self.check("cannot change promiscuous mode", || {
            // SAFETY: the port exists.
            let ret = unsafe {
                match promiscuous {
                    true => dpdk_sys::rte_eth_promiscuous_enable(self.id()),
                    false => dpdk_sys::rte_eth_promiscuous_disable(self.id()),
                }
            };
            if ret == -libc::ENOTSUP { 0 } else { ret }
        })
    }

    /// Returns the state of the link. Not for the data path, because some drivers query the device.
    pub fn link(&self) -> Link {
        let (mut speed_mbps, mut up) = (0, 0);
        // SAFETY: the port exists, and both places are writable.
        unsafe { dpdk_sys::shim_link_get(self.id(), &mut speed_mbps, &mut up) };
        Link { is_up: up != 0, speed_mbps }
    }

    /// Returns the driver's statistics; `None` if it has none.
    pub fn stats(&self) -> Option<PortStats> {
        self.memif.as_ref().map(memif::Counts::stats).or_else(|| info::stats(self.id()))
    }

    /// Returns the driver's extended statistics, by name.
    pub fn xstats(&self) -> Vec<(String, u64)> {
        let own = self.memif.as_ref().map(|counts| counts.xstats(memif::refused(self.id())));
        own.unwrap_or_else(|| info::xstats(self.id()))
    }

    /// Sets the driver's statistics to zero, if the driver can.
    pub fn reset_stats(&mut self) {
        self.memif = self.memif.map(|_| memif::Counts::default());
        // SAFETY: the port exists.
        unsafe { dpdk_sys::rte_eth_stats_reset(self.id()) };
    }

    /// Returns the counters of the port itself.
    pub fn counters(&self) -> PortCounters {
        self.counters
    }

    /// Returns a descriptor that becomes readable when frames arrive on receive queue `queue` while its
    /// interrupt is enabled. `None` if the port was opened without interrupts, or the driver has none.
    pub fn rx_interrupt_fd(&self, queue: u16) -> Option<BorrowedFd<'_>> {
        // SAFETY: the port exists; DPDK checks the queue.
        let fd = unsafe { dpdk_sys::rte_eth_dev_rx_intr_ctl_q_get_fd(self.id(), queue) };
        // SAFETY: the driver keeps it open as long as the port is, which the lifetime says.
        (fd >= 0).then(|| unsafe { BorrowedFd::borrow_raw(fd) })
    }

    /// Enables or disables the interrupt of receive queue `queue`. After enabling, poll once more before
    /// sleeping, because frames that arrived in between raise no interrupt.
    ///
    /// # Errors
    /// `Refused`, with ENOTSUP if the driver has no interrupts.
    pub fn set_rx_interrupt(&mut self, queue: u16, enabled: bool) -> Result<(), PortError> {
        // SAFETY: the port exists; DPDK checks the queue.
        self.check("cannot change the receive interrupt", || unsafe {
            match enabled {
                true => dpdk_sys::rte_eth_dev_rx_intr_enable(self.id(), queue),
                false => dpdk_sys::rte_eth_dev_rx_intr_disable(self.id(), queue),
            }
        })
    }

    fn context(&self) -> Context<'_> {
        Context { device: self.device.name(), driver: &self.info.driver }
    }

    fn check(&self, operation: &str, call: impl FnOnce() -> i32) -> Result<(), PortError> {
        self.context().check(|| operation.to_owned(), call)
    }
}

impl Drop for Port {
    fn drop(&mut self) {
        self.tx_discard();
        // Both under one lock, otherwise a stopped memif server would accept the next client before it is
        // closed.
        let _guard = guard::lock(self.name());
        // A driver that cannot stop is closed nevertheless, because drop cannot fail.
        // SAFETY: the port is owned, and not used after this.
        unsafe {
            if self.started {
                interrupt::stop(self.id(), &self.info.driver);
            }
            interrupt::settle(self.id(), &self.info.driver);
            dpdk_sys::rte_eth_dev_close(self.id());
        }
    }
}

impl fmt::Debug for Port {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Port")
            .field("name", &self.name())
            .field("driver", &self.info.driver)
            .field("started", &self.started)
            .field("tx_queued", &self.tx_queued())
            .finish_non_exhaustive()
    }
}
