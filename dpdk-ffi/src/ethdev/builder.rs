//! Opening the port of a device.

use std::ptr;
use std::sync::Arc;

use super::counters::QueueCounters;
use super::error::{Context, PortError};
use super::info::{self, PortInfo};
use super::open_port::OpenPort;
use super::port::EthPort;
use super::queue::EthQueue;
use super::queue_set::QueueSet;
use super::vhost::{VHOST, VhostWake};
use super::wake::{Wake, WakeSource};
use crate::device::Device;
use crate::mempool::Mempool;
use crate::port_id::PortId;
use crate::sockets::new_sockets;

/// Default number of descriptors per queue.
pub const DEFAULT_DESCRIPTORS: u16 = 1024;

/// Configuration of a port. The default is one receive queue and one transmit queue of [`DEFAULT_DESCRIPTORS`], the
/// device's own MTU, chained frames if the device can send them, no promiscuous mode, no interrupts.
#[derive(Clone, Debug)]
pub struct PortBuilder {
    pool: Mempool,
    linear_pool: Option<Mempool>,
    queues: u16,
    rx_descriptors: u16,
    tx_descriptors: u16,
    mtu_bytes: Option<u16>,
    multi_segs: bool,
    promiscuous: bool,
    rx_interrupts: bool,
}

impl PortBuilder {
    /// A port that receives into mbufs of `pool`, and sends from them.
    pub fn new(pool: Mempool) -> Self {
        Self {
            pool,
            linear_pool: None,
            queues: 1,
            rx_descriptors: DEFAULT_DESCRIPTORS,
            tx_descriptors: DEFAULT_DESCRIPTORS,
            mtu_bytes: None,
            multi_segs: true,
            promiscuous: false,
            rx_interrupts: false,
        }
    }

    /// Copies received chains into single mbufs of `pool`, so that every received frame is contiguous. A
    /// chain for which `pool` has no mbuf, or none large enough, is dropped and counted.
    pub fn linear_pool(mut self, pool: Mempool) -> Self {
        self.linear_pool = Some(pool);
        self
    }

    /// Sets the number of receive queues, which is also the number of transmit queues: see [`EthQueue`].
    pub fn queues(mut self, queues: u16) -> Self {
        self.queues = queues;
        self
    }

    /// Sets the descriptors per queue, which the driver rounds to its limits. Most virtual devices have sizes
    /// of their own and ignore these.
    pub fn descriptors(mut self, rx_descriptors: u16, tx_descriptors: u16) -> Self {
        (self.rx_descriptors, self.tx_descriptors) = (rx_descriptors, tx_descriptors);
        self
    }

    /// Sets the MTU: the largest IP packet, in bytes. Must stay unset on af_packet, whatever the interface's
    /// MTU is.
    pub fn mtu_bytes(mut self, mtu_bytes: u16) -> Self {
        self.mtu_bytes = Some(mtu_bytes);
        self
    }

    /// Whether frames may be sent as chains, if the device can. See [`PortInfo::can_send_chains`].
    pub fn multi_segs(mut self, multi_segs: bool) -> Self {
        self.multi_segs = multi_segs;
        self
    }

    /// Whether to receive frames for other MACs too. No error if the device has no such mode.
    pub fn promiscuous(mut self, promiscuous: bool) -> Self {
        self.promiscuous = promiscuous;
        self
    }

    /// Whether to enable receive interrupts, if the driver has any, for threads that sleep until a frame arrives: see
    /// [`EthQueue::arm`].
    pub fn rx_interrupts(mut self, rx_interrupts: bool) -> Self {
        self.rx_interrupts = rx_interrupts;
        self
    }

    /// Configures and starts the port of `device`. Returns its control and its queues.
    ///
    /// # Errors
    /// [`PortError`]; the device is detached then.
    pub fn open(self, device: Device) -> Result<(EthPort, QueueSet), PortError> {
        let (mut port, mut queues) = self.open_stopped(device)?;
        port.start(queues.iter_mut())?;
        Ok((port, queues))
    }

    /// Configures the port of `device` and leaves it stopped. For a memif client, whose [`EthPort::start`] fails
    /// until its server listens, and may be called again. While the server listens but is not started,
    /// [`EthPort::start`] may succeed and the link stay down, because the server refuses the client:
    /// [`EthPort::restart`] connects anew.
    ///
    /// # Errors
    /// [`PortError`]; the device is detached then.
    pub fn open_stopped(self, mut device: Device) -> Result<(EthPort, QueueSet), PortError> {
        let info = PortInfo::read(device.port_id(), self.multi_segs && device.packet_socket().is_none());
        let context = Context { device: device.name(), driver: &info.driver };
        let promiscuous = self.promiscuous;
        if info.driver == info::AF_XDP && !self.pool.config().packed {
            let (device, driver) = (device.name().to_owned(), info.driver.clone());
            return Err(PortError::PoolNotPacked { device, driver });
        }
        self.check_range(&context, "receive queues", self.queues, (1, info.max_rx_queues))?;
        self.check_range(&context, "transmit queues", self.queues, (1, info.max_tx_queues))?;
        if let Some(mtu_bytes) = self.mtu_bytes {
            let range = (info.min_mtu_bytes, info.max_mtu_bytes);
            self.check_range(&context, "an MTU in bytes of", mtu_bytes, range)?;
        }
        self.configure(&context, device.port_id(), &info)?;
        let set_up = || self.set_up_queues(&context, device.port_id());
        let sockets = match info.driver == info::AF_XDP {
            true => {
                let (set_up, sockets) = new_sockets(libc::AF_XDP, set_up);
                set_up.map(|()| sockets)?
            }
            false => set_up().map(|()| device.sockets())?,
        };
        let is_vhost = info.driver == VHOST;
        let mut packet = device.take_packet_queue();
        let counters: Vec<Arc<QueueCounters>> = (0..self.queues).map(|_| Arc::default()).collect();
        let open = Arc::new(OpenPort::new(device, info, self.pool, counters.clone()));
        // Any socket serves any queue, because a thread that sleeps does so on all queues. Sockets that are not of the
        // queues are of an unknown driver.
        let is_known = sockets.len() == usize::from(self.queues);
        let sources = sockets.into_iter().map(|fd| if is_known { WakeSource::socket(fd) } else { None });
        let sources = sources.chain(std::iter::repeat_with(|| None));
        let queues = (0..self.queues).zip(counters).zip(sources).map(|((number, counters), source)| {
            let kick = if is_vhost { VhostWake::new(open.id(), number).ok().flatten() } else { None };
            let wake = match kick {
                Some(kick) => Wake::Kick(kick),
                None if self.rx_interrupts => Wake::Interrupt(source),
                None => Wake::Constant(source),
            };
            EthQueue::new(open.clone(), number, self.linear_pool.clone(), counters, wake, packet.take())
        });
        let queues = QueueSet::new(queues);
        let mut port = EthPort::new(open);
        if promiscuous {
            port.set_promiscuous(true)?;
        }
        Ok((port, queues))
    }

    fn check_range(
        &self,
        context: &Context<'_>,
        what: &'static str,
        wanted: u16,
        (min, max): (u16, u16),
    ) -> Result<(), PortError> {
        if (min..=max).contains(&wanted) { Ok(()) } else { Err(context.out_of_range(what, wanted, min, max)) }
    }

    fn configure(&self, context: &Context<'_>, port_id: PortId, info: &PortInfo) -> Result<(), PortError> {
        // SAFETY: plain numbers and pointers, for which zero means the default.
        let mut conf: dpdk_sys::rte_eth_conf = unsafe { std::mem::zeroed() };
        conf.rxmode.mtu = self.mtu_bytes.map_or(0, u32::from);
        // Frames longer than an mbuf are received in several, if the device can scatter.
        let needs_scatter =
            usize::from(self.mtu_bytes.unwrap_or(0)) + info::ETHERNET_OVERHEAD_BYTES > self.data_room_bytes();
        if needs_scatter {
            conf.rxmode.offloads = info.rx_offload_capa & dpdk_sys::SHIM_RX_OFFLOAD_SCATTER;
        }
        if info.can_send_chains {
            conf.txmode.offloads = dpdk_sys::SHIM_TX_OFFLOAD_MULTI_SEGS;
        }
        conf.intr_conf.set_rxq(u32::from(self.rx_interrupts));
        let configure = |conf: &dpdk_sys::rte_eth_conf| {
            // SAFETY: the port exists (the device owns it) and is stopped; `conf` is copied.
            unsafe { dpdk_sys::rte_eth_dev_configure(port_id, self.queues, self.queues, conf) }
        };
        if self.rx_interrupts && configure(&conf) == 0 {
            return Ok(());
        }
        conf.intr_conf.set_rxq(0);
        context.check(|| "cannot be configured".to_owned(), || configure(&conf))
    }

    fn data_room_bytes(&self) -> usize {
        usize::from(self.pool.config().data_room_bytes)
    }

    fn set_up_queues(&self, context: &Context<'_>, port_id: PortId) -> Result<(), PortError> {
        let (mut rx, mut tx) = (self.rx_descriptors, self.tx_descriptors);
        // SAFETY: the port exists, and both places are writable.
        let adjust = || unsafe { dpdk_sys::rte_eth_dev_adjust_nb_rx_tx_desc(port_id, &mut rx, &mut tx) };
        context.check(|| "cannot have that many descriptors".to_owned(), adjust)?;
        // SAFETY: the port exists.
        let socket = unsafe { dpdk_sys::rte_eth_dev_socket_id(port_id) };
        // A virtual device is on no NUMA node (-1), which as `u32` means any.
        let socket = u32::try_from(socket).unwrap_or(u32::MAX);
        for queue in 0..self.queues {
            let pool = self.pool.raw();
            // SAFETY: the port is configured with this queue, and the pool lives forever.
            let setup =
                || unsafe { dpdk_sys::rte_eth_rx_queue_setup(port_id, queue, rx, socket, ptr::null(), pool) };
            context.check(|| format!("receive queue {queue} of {rx} descriptors cannot be set up"), setup)?;
        }
        for queue in 0..self.queues {
            // SAFETY: the port is configured with this queue.
            let setup =
                || unsafe { dpdk_sys::rte_eth_tx_queue_setup(port_id, queue, tx, socket, ptr::null()) };
            context
                .check(|| format!("transmit queue {queue} of {tx} descriptors cannot be set up"), setup)?;
        }
        Ok(())
    }
}
