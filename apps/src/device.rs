//! Options of commands with a port.

use std::path::PathBuf;

use anyhow::Context as _;
use clap::Args;
use roce::port::fault::{FaultConfig, FaultDirection};
use roce::port::probability::Probability;
use verbs::{CongestionScheme, Context, DeviceOptions, PathMtu, PortSpec, ProgressPolicy, RecoveryScheme};

use crate::events;

/// The port, and how the device is opened.
#[derive(Args, Clone, Debug)]
pub(crate) struct DeviceArgs {
    /// The port to use: KIND:TARGET[,key=value...], for example memif:wire or af_packet:eth1.
    #[arg(long, value_name = "PORT")]
    pub(crate) port: PortSpec,

    #[command(flatten)]
    pub(crate) options: OptionArgs,
}

/// Options of a device: its threads, a capture, and impairments of its frames. `None` where the command line has none.
#[derive(Args, Clone, Debug)]
pub(crate) struct OptionArgs {
    /// Which threads receive and retransmit while the command waits: adaptive (the command, and a background thread that
    /// sleeps until a frame arrives), busy (a background thread that polls without pause, too), app (the command alone)
    /// [default: adaptive]
    #[arg(long, value_name = "POLICY")]
    pub(crate) progress: Option<ProgressPolicy>,

    /// Capture the frames of the wire in this file, for tcpdump and Wireshark.
    #[arg(long, value_name = "FILE", help_heading = "Faults and capture")]
    pub(crate) pcap: Option<PathBuf>,

    /// Lose frames sent, with this probability [default: 0]
    #[arg(long, value_name = "0..1", help_heading = "Faults and capture")]
    pub(crate) drop_chance: Option<Probability>,

    /// Hold frames sent back behind later ones, with this probability [default: 0]
    #[arg(long, value_name = "0..1", help_heading = "Faults and capture")]
    pub(crate) reorder_chance: Option<Probability>,

    /// Flip a bit of frames sent, with this probability [default: 0]
    #[arg(long, value_name = "0..1", help_heading = "Faults and capture")]
    pub(crate) corrupt_chance: Option<Probability>,

    /// Impair single packets sent: a TOML file of events, each with qpn, psn, iter and action.
    #[arg(long, value_name = "FILE", help_heading = "Faults and capture")]
    pub(crate) events: Option<PathBuf>,

    /// Seed of the faults: the same seed over the same frames does the same [default: 1]
    #[arg(long, value_name = "SEED", help_heading = "Faults and capture")]
    pub(crate) seed: Option<u64>,
}

/// Schemes of the connections.
#[derive(Args, Clone, Debug)]
pub(crate) struct SchemeArgs {
    /// How losses are repaired: go-back-n as in the standard, improved-go-back-n, or between two of ours
    /// selective-repeat or selective-repeat:WINDOW, where so many packets are kept out of order, 64 to 4096
    /// [default: improved-go-back-n]
    #[arg(long, value_name = "SCHEME")]
    pub(crate) recovery: Option<RecoveryScheme>,

    /// How what this end sends is kept from congesting the network: none, window or window:PKTS, where at most
    /// so many packets are in flight, dcqcn, swift or timely, with parameters as in
    /// dcqcn:window_pkts=128,rpg_ai_rate=10 [default: window:256]
    #[arg(long, value_name = "SCHEME")]
    pub(crate) congestion: Option<CongestionScheme>,
}

impl OptionArgs {
    /// Returns the impairments that the options request.
    fn faults(&self) -> FaultConfig {
        FaultConfig {
            drop_probability: self.drop_chance.unwrap_or_default(),
            reorder_probability: self.reorder_chance.unwrap_or_default(),
            corrupt_probability: self.corrupt_chance.unwrap_or_default(),
            duplicate_probability: Probability::NEVER,
            seed: self.seed.unwrap_or(1),
            direction: FaultDirection::Tx,
        }
    }

    /// Returns whether the options request a capture or impairments.
    pub(crate) fn touch_frames(&self) -> bool {
        let chances = [self.drop_chance, self.reorder_chance, self.corrupt_chance];
        let impair = chances.iter().flatten().any(|chance| *chance != Probability::NEVER);
        impair || self.pcap.is_some() || self.events.is_some()
    }
}

impl DeviceArgs {
    /// Returns the impairments that the options request.
    pub(crate) fn faults(&self) -> FaultConfig {
        self.options.faults()
    }

    /// Opens the device.
    pub(crate) fn open(&self) -> anyhow::Result<Context> {
        self.open_with(self.faults())
    }

    /// Opens the device with other impairments.
    pub(crate) fn open_with(&self, faults: FaultConfig) -> anyhow::Result<Context> {
        let OptionArgs { progress, pcap, events, .. } = &self.options;
        let events = events.as_deref().map(events::read).transpose()?.unwrap_or_default().plan().clone();
        let options = DeviceOptions {
            faults,
            events,
            pcap: pcap.clone(),
            progress: progress.unwrap_or_default(),
            ..DeviceOptions::default()
        };
        Context::open(&self.port, &options).with_context(|| format!("cannot open port {}", self.port))
    }
}

/// Reads a path MTU in bytes from the command line.
pub(crate) fn parse_path_mtu(text: &str) -> Result<PathMtu, String> {
    let mtu = text.parse().ok().and_then(PathMtu::from_bytes);
    mtu.ok_or_else(|| "a path MTU is 256, 512, 1024, 2048 or 4096 bytes".to_owned())
}
