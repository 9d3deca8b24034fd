//! Properties and statistics of a port.

use std::ffi::CStr;

use crate::port_id::PortId;

/// Bytes of a frame besides its IP packet: Ethernet header, VLAN tag and FCS.
pub(super) const ETHERNET_OVERHEAD_BYTES: usize = 22;

/// The driver of XDP sockets, which needs checks beyond its capabilities.
pub(super) const AF_XDP: &str = "net_af_xdp";

/// Properties of a port, constant while it is open.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PortInfo {
    /// Name of the driver, such as `net_memif`.
    pub driver: String,
    /// MAC address.
    pub mac: [u8; 6],
    /// The kernel's index of the interface behind the port; 0: none.
    pub if_index: u32,
    /// The smallest MTU, in bytes.
    pub min_mtu_bytes: u16,
    /// The largest MTU, in bytes.
    pub max_mtu_bytes: u16,
    /// Receive queues that the device has.
    pub max_rx_queues: u16,
    /// Transmit queues that the device has.
    pub max_tx_queues: u16,
    /// Receive offloads of the device: bits `RTE_ETH_RX_OFFLOAD_*`.
    pub rx_offload_capa: u64,
    /// Transmit offloads of the device: bits `RTE_ETH_TX_OFFLOAD_*`.
    pub tx_offload_capa: u64,
    /// Whether the port sends chained frames: the device can, and the builder allowed it.
    pub can_send_chains: bool,
}

/// State of the link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Link {
    /// Whether the link is up; on memif, whether a peer is connected.
    pub is_up: bool,
    /// Speed, in Mbit/s; 0: none, `u32::MAX`: unknown.
    pub speed_mbps: u32,
}

/// Statistics of the driver, since the port was opened or [`super::EthPort::reset_stats`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PortStats {
    /// Frames received (DPDK's `ipackets`).
    pub rx_frames: u64,
    /// Frames sent (`opackets`).
    pub tx_frames: u64,
    /// Bytes received.
    pub rx_bytes: u64,
    /// Bytes sent.
    pub tx_bytes: u64,
    /// Frames lost because the receive queue was full (`imissed`).
    pub rx_missed: u64,
    /// Frames received in error (`ierrors`).
    pub rx_errors: u64,
    /// Frames that could not be sent (`oerrors`).
    pub tx_errors: u64,
    /// Times that the pool had no mbuf for a frame received (`rx_nombuf`).
    pub rx_no_mbuf: u64,
}

impl PortStats {
    /// Returns names and values, in the order of the fields.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> + use<> {
        let Self { rx_frames, tx_frames, rx_bytes, tx_bytes, rx_missed, rx_errors, tx_errors, rx_no_mbuf } =
            *self;
        [
            ("rx_frames", rx_frames),
            ("tx_frames", tx_frames),
            ("rx_bytes", rx_bytes),
            ("tx_bytes", tx_bytes),
            ("rx_missed", rx_missed),
            ("rx_errors", rx_errors),
            ("tx_errors", tx_errors),
            ("rx_no_mbuf", rx_no_mbuf),
        ]
        .into_iter()
    }
}

impl PortInfo {
    pub(super) fn read(port_id: PortId, multi_segs: bool) -> Self {
        // SAFETY: plain numbers and pointers.
        let mut info: dpdk_sys::rte_eth_dev_info = unsafe { std::mem::zeroed() };
        // SAFETY: as above.
        let mut mac: dpdk_sys::rte_ether_addr = unsafe { std::mem::zeroed() };
        // SAFETY: the port exists, so that both calls fill what they are given; a driver that cannot leaves
        // zeroes.
        unsafe {
            dpdk_sys::rte_eth_dev_info_get(port_id, &mut info);
            dpdk_sys::rte_eth_macaddr_get(port_id, &mut mac);
        }
        let driver = match info.driver_name.is_null() {
            true => String::new(),
            // SAFETY: the driver's constant.
            false => unsafe { CStr::from_ptr(info.driver_name) }.to_string_lossy().into_owned(),
        };
        // af_xdp would send the first segment only, and call the frame sent.
        let can_send_chains = multi_segs
            && info.tx_offload_capa & dpdk_sys::SHIM_TX_OFFLOAD_MULTI_SEGS != 0
            && driver != AF_XDP;
        Self {
            mac: mac.addr_bytes,
            if_index: info.if_index,
            min_mtu_bytes: info.min_mtu,
            max_mtu_bytes: info.max_mtu,
            max_rx_queues: info.max_rx_queues,
            max_tx_queues: info.max_tx_queues,
            rx_offload_capa: info.rx_offload_capa,
            tx_offload_capa: info.tx_offload_capa,
            can_send_chains,
            driver,
        }
    }
}

/// Returns basic statistics; `None` if the driver has none.
pub(super) fn stats(port_id: PortId) -> Option<PortStats> {
    // SAFETY: plain numbers.
    let mut stats: dpdk_sys::rte_eth_stats = unsafe { std::mem::zeroed() };
    // SAFETY: the port exists.
    if unsafe { dpdk_sys::rte_eth_stats_get(port_id, &mut stats) } != 0 {
        return None;
    }
    Some(PortStats {
        rx_frames: stats.ipackets,
        tx_frames: stats.opackets,
        rx_bytes: stats.ibytes,
        tx_bytes: stats.obytes,
        rx_missed: stats.imissed,
        rx_errors: stats.ierrors,
        tx_errors: stats.oerrors,
        rx_no_mbuf: stats.rx_nombuf,
    })
}

/// Returns the extended statistics, by name.
pub(super) fn xstats(port_id: PortId) -> Vec<(String, u64)> {
    // SAFETY: the port exists; with no room the call returns how much is needed.
    let needed = unsafe { dpdk_sys::rte_eth_xstats_get_names(port_id, std::ptr::null_mut(), 0) };
    let Ok(needed) = usize::try_from(needed) else { return Vec::new() };
    // SAFETY: plain numbers and arrays of characters.
    let mut names: Vec<dpdk_sys::rte_eth_xstat_name> = vec![unsafe { std::mem::zeroed() }; needed];
    // SAFETY: plain numbers.
    let mut values: Vec<dpdk_sys::rte_eth_xstat> = vec![unsafe { std::mem::zeroed() }; needed];
    let room = u32::try_from(needed).unwrap_or(0);
    // SAFETY: both arrays have room for `room` entries.
    let filled = unsafe {
        dpdk_sys::rte_eth_xstats_get_names(port_id, names.as_mut_ptr(), room)
            .min(dpdk_sys::rte_eth_xstats_get(port_id, values.as_mut_ptr(), room))
    };
    let filled = usize::try_from(filled).unwrap_or(0).min(needed);
    let name = |value: &dpdk_sys::rte_eth_xstat| {
        let name = names.get(usize::try_from(value.id).ok()?)?;
        // SAFETY: DPDK terminates the names it writes.
        Some(unsafe { CStr::from_ptr(name.name.as_ptr()) }.to_string_lossy().into_owned())
    };
    values.iter().take(filled).filter_map(|value| Some((name(value)?, value.value))).collect()
}
