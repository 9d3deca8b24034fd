//! Options of a device.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use dpdk_ffi::EalConfig;
use roce::congestion::{CongestionScheme, NotificationConfig};
use roce::engine::QpnPrefix;
use roce::engine::limits::DeviceLimits;
use roce::port::events::EventPlan;
use roce::port::fault::FaultConfig;

/// Which threads poll a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ProgressPolicy {
    /// An application thread that polls drives the engine. While no application thread polls, the background thread
    /// drives the engine, and sleeps until a frame arrives or a timer of the engine expires.
    #[default]
    Adaptive,
    /// The background thread, which polls without pause and occupies a processor, and application threads that poll.
    Busy,
    /// Application threads only: while none polls or waits for a completion event, no frame is received, no packet is
    /// retransmitted, and the peer's READs and WRITEs are not executed.
    Application,
}

/// Policies, each with its name.
const POLICIES: [(ProgressPolicy, &str); 3] = [
    (ProgressPolicy::Adaptive, "adaptive"),
    (ProgressPolicy::Busy, "busy"),
    (ProgressPolicy::Application, "app"),
];

impl fmt::Display for ProgressPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let named = POLICIES.iter().find(|(policy, _)| policy == self);
        f.write_str(named.map_or("", |(_, name)| name))
    }
}

/// Error of parsing a [`ProgressPolicy`]: an unknown name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a policy is adaptive, busy or app")]
pub struct NoProgressPolicy;

impl FromStr for ProgressPolicy {
    type Err = NoProgressPolicy;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        let known = POLICIES.iter().find(|(_, known)| *known == name);
        known.map(|(policy, _)| *policy).ok_or(NoProgressPolicy)
    }
}

/// Options with which [`Context::open`](crate::Context::open) opens a port as a device.
#[derive(Clone, Debug, Default)]
pub struct DeviceOptions {
    /// Impairments that the port applies, each with a probability, to sent frames, received frames or both
    /// ([`FaultConfig::direction`]).
    pub faults: FaultConfig,
    /// Packet events: impairments of single packets that the port sends, applied before the impairments of
    /// `faults`, which have probabilities.
    pub events: EventPlan,
    /// Path of the capture file (pcap) of all frames sent and received, as they are on the wire; `None`: no capture.
    pub pcap: Option<PathBuf>,
    /// Configuration of DPDK; ignored if this process has initialised DPDK already.
    pub eal: EalConfig,
    /// Congestion control of the queue pairs whose `QpAttr::congestion` is not set.
    pub congestion: CongestionScheme,
    /// Configuration of the notification point, which sends CNPs for CE marks.
    pub notification: NotificationConfig,
    /// Limits of the device: number of objects of each kind, and bytes of all reorder buffers together.
    pub limits: DeviceLimits,
    /// High bits of all QPNs of the device. Devices of several processes on one interface need different prefixes. If
    /// this prefix has no bits (the default), an af_packet port leases a free prefix of 6 bits.
    pub qpn_prefix: QpnPrefix,
    /// Which threads poll the device.
    pub progress: ProgressPolicy,
}

impl DeviceOptions {
    /// Returns the name of the first option whose value differs from the value in `other`; `None` if no value differs.
    /// Ignores `eal`, because DPDK is initialised only once.
    pub(crate) fn difference(&self, other: &DeviceOptions) -> Option<&'static str> {
        let DeviceOptions {
            faults,
            events,
            pcap,
            eal: _,
            congestion,
            notification,
            limits,
            qpn_prefix,
            progress,
        } = self;
        let differs = [
            ("faults", *faults != other.faults),
            ("events", *events != other.events),
            ("pcap", *pcap != other.pcap),
            ("congestion", *congestion != other.congestion),
            ("notification", *notification != other.notification),
            ("limits", *limits != other.limits),
            ("qpn_prefix", *qpn_prefix != other.qpn_prefix),
            ("progress", *progress != other.progress),
        ];
        differs.into_iter().find(|(_, differs)| *differs).map(|(name, _)| name)
    }
}
