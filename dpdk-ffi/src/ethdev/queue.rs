//! The data path of a port: bursts received and sent.

use std::collections::VecDeque;
use std::fmt;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use dpdk_sys::rte_mbuf;

use super::counters::QueueCounters;
use super::open_port::{OpenPort, Replaced};
use super::wake::{Wake, WakeKind};
use crate::mbuf::{Header, Mbuf};
use crate::memif;
use crate::mempool::Mempool;
use crate::packet;
use crate::port_id::PortId;
use crate::process;
use crate::sockets::exchange_sent;

/// Frames that a queue holds for a flush, at most.
pub const TX_QUEUE_FRAMES: usize = 64;
/// Mbufs allocated at a time for frames to send.
const TX_SPARES: usize = 32;
/// Mbufs that a queue holds besides its driver, at most: queued frames, and spares for further ones.
pub const HELD_MBUFS: usize = TX_QUEUE_FRAMES + TX_SPARES;
/// Calls per flush in which a driver takes no frame, at most. A full ring does not drain within a few of
/// these; the frames stay queued for the next flush.
const FLUSH_STALLS_MAX: usize = 3;
const _: () = assert!(TX_QUEUE_FRAMES <= packet::BURST_FRAMES_MAX);
/// Frames that a queue receives and discards at a time before its drop.
const DISCARDED_FRAMES: usize = 32;
/// Time without a sent frame after which the receiver of the frames counts as stopped. Longer than a process waits for a
/// processor as a rule, also under a CPU quota of the kernel's default period (100 ms).
const STALL_MAX: Duration = Duration::from_millis(100);

/// A receive queue and a transmit queue of an open port, of the same number. Drop discards the queued frames. On a memif
/// drop first sends them, and waits until the peer has received all frames sent, at most 50 ms, because the peer loses
/// the others when the port is closed.
///
/// One thread at a time may use a queue, which `&mut` ensures; different queues of a port may be used by different
/// threads at the same time. A queue may move between threads (`Send`, not `Sync`). While the port is stopped, bursts
/// receive and send nothing.
pub struct EthQueue {
    port_id: PortId,
    number: u16,
    /// Changed by [`super::EthPort::start`] and [`super::EthPort::stop`], which therefore take all queues as `&mut`.
    started: bool,
    can_send_chains: bool,
    pool: Mempool,
    linear_pool: Option<Mempool>,
    bursts: Bursts,
    /// Of a port other than a memif. Of a packet socket: the socket.
    wake: Wake,
    spares: MbufArray<TX_SPARES>,
    queued: MbufArray<TX_QUEUE_FRAMES>,
    /// Time of the first flush since which the driver has taken no frame; `None` if the last flush sent a frame.
    stalled_since: Option<Instant>,
    counters: Arc<QueueCounters>,
    // Dropped last, because this may close the port.
    open: Arc<OpenPort>,
}

/// How a queue receives and sends.
enum Bursts {
    /// By its driver.
    Driver,
    Memif(memif::Queue),
    Packet(packet::Queue),
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
        if process::owns_eal() {
            self.free();
        }
    }
}

impl EthQueue {
    /// The queue `number` of a stopped port. The caller makes each queue once.
    pub(super) fn new(
        open: Arc<OpenPort>,
        number: u16,
        linear_pool: Option<Mempool>,
        counters: Arc<QueueCounters>,
        wake: Wake,
        packet: Option<packet::Queue>,
    ) -> Self {
        open.add_queue();
        let bursts = match (packet, open.bursts()) {
            (Some(packet), _) => Bursts::Packet(packet),
            (None, Replaced::Memif) => Bursts::Memif(memif::Queue::new(open.id(), number)),
            (None, _) => Bursts::Driver,
        };
        Self {
            port_id: open.id(),
            number,
            started: false,
            can_send_chains: open.info.can_send_chains,
            pool: open.pool.clone(),
            linear_pool,
            bursts,
            wake,
            spares: MbufArray::new(),
            queued: MbufArray::new(),
            stalled_since: None,
            counters,
            open,
        }
    }

    /// Returns whether the queue sends and receives by a packet socket in place of its driver, with segmentation offload
    /// ([`crate::Eal::attach_packet`]).
    pub fn is_packet_socket(&self) -> bool {
        matches!(self.bursts, Bursts::Packet(_))
    }

    /// On a packet socket ([`EthQueue::is_packet_socket`]), sets the MTU of its interface in bytes: frames that are longer
    /// than the MTU and an Ethernet header are sent by themselves, and refused by the kernel. Until the MTU is set, each
    /// frame is sent by itself. On other ports this has no effect.
    pub fn set_mtu_bytes(&mut self, mtu_bytes: usize) {
        if let Bursts::Packet(packet) = &mut self.bursts {
            packet.set_mtu_bytes(mtu_bytes);
        }
    }

    /// Returns the number of the receive queue and of the transmit queue.
    pub fn number(&self) -> u16 {
        self.number
    }

    /// Returns the pool that the queue receives into and sends from.
    pub fn pool(&self) -> &Mempool {
        &self.pool
    }

    pub(super) fn is_of(&self, port: &Arc<OpenPort>) -> bool {
        Arc::ptr_eq(&self.open, port)
    }

    pub(super) fn set_started(&mut self, started: bool) {
        self.started = started;
        self.wake.set_started(started, self.port_id, self.number);
    }

    /// Returns how the queue wakes a thread that sleeps until frames arrive; `None` if it cannot. On a port with
    /// receive interrupts also `None` until the port is started.
    pub fn wake_kind(&self) -> Option<WakeKind> {
        match &self.bursts {
            Bursts::Memif(memif) => memif.wake_fd().map(|_| WakeKind::Eventfd),
            _ => self.wake.kind(),
        }
    }

    /// Returns a descriptor that becomes readable when frames arrive while the queue is armed. It may be readable at
    /// other times too. The caller must not read from it. `None` as for [`EthQueue::wake_kind`].
    pub fn wake_fd(&self) -> Option<BorrowedFd<'_>> {
        match &self.bursts {
            Bursts::Memif(memif) => memif.wake_fd(),
            _ => self.wake.fd(),
        }
    }

    /// Makes [`EthQueue::wake_fd`] readable when the next frame arrives, and unreadable until then, if that is needed.
    /// Before the caller sleeps, it must receive once more, because frames that arrived earlier wake nobody. Arming
    /// holds until [`EthQueue::disarm`], but a thread that was woken must arm anew before it sleeps again. Returns
    /// false if the queue cannot be armed at present; the caller must then not sleep long.
    pub fn arm(&mut self) -> bool {
        match &mut self.bursts {
            // Until the port is started, no frame arrives.
            _ if !self.started => true,
            Bursts::Memif(memif) => memif.arm(),
            _ => self.wake.arm(self.port_id, self.number),
        }
    }

    /// Ends the effect of [`EthQueue::arm`], to spare the peer or the device the wake-ups.
    pub fn disarm(&mut self) {
        match &mut self.bursts {
            _ if !self.started => {}
            Bursts::Memif(memif) => memif.disarm(),
            _ => self.wake.disarm(self.port_id, self.number),
        }
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
        let count = u16::try_from(max).unwrap_or(u16::MAX);
        frames.reserve(usize::from(count));
        let room = frames.spare_capacity_mut().as_mut_ptr().cast::<*mut rte_mbuf>();
        // SAFETY: the port is started and has this queue; `room` takes `count` pointers, and `Mbuf` is one. The
        // burst hands over ownership of the `received` mbufs it writes.
        unsafe {
            let received = match &mut self.bursts {
                Bursts::Memif(memif) => {
                    std::ptr::write_bytes(room, 0, usize::from(count));
                    let room = std::slice::from_raw_parts_mut(room, usize::from(count));
                    memif.rx(&self.pool, room, &self.counters.bursts)
                }
                Bursts::Packet(packet) if packet.has_received() => {
                    std::ptr::write_bytes(room, 0, usize::from(count));
                    let room = std::slice::from_raw_parts_mut(room, usize::from(count));
                    packet.rx(&self.pool, room, &self.counters.bursts)
                }
                Bursts::Packet(_) => 0,
                Bursts::Driver => {
                    usize::from(dpdk_sys::shim_rx_burst(self.port_id, self.number, room, count))
                }
            };
            frames.set_len(before + received);
        }
        if self.linear_pool.is_some() {
            self.linearize(frames, before);
        }
        frames.len() - before
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
        let counters = &self.counters;
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
                    counters.rx_not_linear.add(1);
                    false
                }
            }
        });
    }

    /// Returns the longest frame that [`EthQueue::tx_reserve`] accepts, in bytes.
    #[inline]
    pub fn tx_frame_max_bytes(&self) -> usize {
        usize::from(self.pool.config().data_room_bytes)
    }

    /// Queues a frame of `len_bytes` bytes and returns them, to be filled before the next [`EthQueue::tx_flush`];
    /// their content is unspecified. `None` if [`TX_QUEUE_FRAMES`] frames are queued, the pool is exhausted
    /// (both end after flushes), or the frame is longer than [`EthQueue::tx_frame_max_bytes`].
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
        self.counters.tx_no_mbuf.add(u64::from(last.is_none()));
        last
    }

    /// Frees the frame that was queued last, so that no flush sends the frame.
    pub fn tx_cancel(&mut self) {
        if let Some(raw) = self.queued.pop() {
            // SAFETY: an owned mbuf, which `queued` no longer counts.
            drop(unsafe { Mbuf::from_raw(raw) });
        }
    }

    /// Queues an existing frame, such as a received one. Returns it if [`TX_QUEUE_FRAMES`] are queued, or if
    /// it is a chain and [`super::PortInfo::can_send_chains`] is false.
    #[inline]
    pub fn tx_enqueue(&mut self, frame: Mbuf) -> Result<(), Mbuf> {
        if self.queued.is_full() || !(frame.is_contiguous() || self.can_send_chains) {
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

    /// Returns whether queued frames wait for room in the transmit ring. No wake source reports that the ring has
    /// room. Returns false on a memif without a connection, because a wake source reports the begin of a connection
    /// ([`EthQueue::arm`]).
    pub fn is_tx_stalled(&self) -> bool {
        self.queued.len > 0
            && self.started
            && match &self.bursts {
                Bursts::Memif(memif) => memif.is_connected(),
                _ => true,
            }
    }

    /// On a port of the af_packet driver, makes the queue receive frames that other packet sockets send through the
    /// interface, as far as the filter of [`crate::Eal::attach_packet`] accepts them, and these sockets receive the
    /// frames that the queue sends. Until then, neither is received, which saves the kernel a copy of each sent frame
    /// for each socket. On other ports this has no effect.
    pub fn exchange_sent(&self) {
        if let Some(socket) = self.wake.fd() {
            exchange_sent(socket);
        }
    }

    /// Moves the queued frames for which `is_taken` returns true to `taken`, in order. The others stay queued, in order.
    pub fn tx_take(&mut self, is_taken: impl Fn(&[u8]) -> bool, taken: &mut VecDeque<Mbuf>) {
        let count = std::mem::take(&mut self.queued.len);
        for index in 0..count {
            let Some(raw) = self.queued.mbufs.get(index).copied().and_then(NonNull::new) else { continue };
            // SAFETY: the first `count` entries were owned mbufs, and `queued.len` no longer counts this one.
            let frame = unsafe { Mbuf::from_raw(raw) };
            if is_taken(frame.data()) {
                taken.push_back(frame);
            } else {
                // Written to this entry or an earlier one.
                self.queued.push(frame.into_raw());
            }
        }
    }

    /// Sends the queued frames and returns how many the driver took. The others stay queued, in order, for
    /// the next flush. If the port is stopped or the link is down ([`super::EthPort::link`]), discards and counts
    /// the others, as a NIC without a carrier does, and likewise if the driver has taken no frame for 100 ms, because
    /// the process at the other end is stopped. Otherwise the others would fill the queue, and a sender that waits for
    /// room would never start the timer by which it finds that its peer is gone.
    #[inline]
    pub fn tx_flush(&mut self) -> usize {
        if self.queued.len == 0 {
            return 0;
        }
        if !self.started {
            self.tx_discard();
            return 0;
        }
        let (mut sent, mut stalls) = (0, 0);
        while sent < self.queued.len && stalls < FLUSH_STALLS_MAX {
            let rest = self.queued.mbufs.get_mut(sent..self.queued.len).unwrap_or_default();
            let taken = match &mut self.bursts {
                Bursts::Memif(memif) => memif.tx(rest, &self.counters.bursts),
                Bursts::Packet(packet) => packet.tx(rest, &self.counters.bursts),
                // SAFETY: the port is started, `rest` holds owned mbufs; the driver takes over those it counts.
                Bursts::Driver => usize::from(unsafe {
                    dpdk_sys::shim_tx_burst(self.port_id, self.number, rest.as_mut_ptr(), rest.len() as u16)
                }),
            };
            sent += taken;
            stalls += usize::from(taken == 0);
        }
        if sent < self.queued.len {
            self.queued.mbufs.copy_within(sent..self.queued.len, 0);
            self.counters.tx_stalled.add(1);
        }
        self.queued.len -= sent;
        if sent > 0 {
            self.stalled_since = None;
        }
        if self.queued.len > 0 && (self.open.link_is_down.load(Ordering::Relaxed) || self.is_stopped(sent)) {
            self.tx_discard();
        }
        sent
    }

    /// Returns whether the driver has taken no frame for [`STALL_MAX`]. `sent`: frames taken by the present flush.
    #[cold]
    fn is_stopped(&mut self, sent: usize) -> bool {
        sent == 0 && self.stalled_since.get_or_insert_with(Instant::now).elapsed() >= STALL_MAX
    }

    /// Discards and counts the queued frames, and returns their number.
    pub fn tx_discard(&mut self) -> usize {
        let discarded = self.queued.free();
        self.counters.tx_discarded.add(discarded as u64);
        discarded
    }
}

impl EthQueue {
    /// On a memif, sends the queued frames and waits until the peer has received all frames. Received frames are
    /// discarded, so that the peer does not wait if it closes its port at the same time.
    fn settle(&mut self) {
        if !matches!(self.bursts, Bursts::Memif(_)) || !self.started {
            return;
        }
        let mut received = Vec::new();
        memif::wait_received(self.port_id, || {
            self.tx_flush();
            self.rx_burst(&mut received, DISCARDED_FRAMES);
            received.clear();
        });
    }
}

impl Drop for EthQueue {
    fn drop(&mut self) {
        if process::owns_eal() {
            self.settle();
            self.tx_discard();
            self.open.remove_queue();
        }
    }
}

impl fmt::Debug for EthQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EthQueue")
            .field("port", &self.open.name())
            .field("number", &self.number)
            .field("started", &self.started)
            .field("tx_queued", &self.tx_queued())
            .finish_non_exhaustive()
    }
}
