//! Options that every command with a port has.

use std::path::PathBuf;

use anyhow::Context as _;
use clap::Args;
use roce::port::fault::{FaultConfig, FaultDirection};
use roce::port::probability::Probability;
use verbs::{Context, DeviceOptions, PathMtu, PortSpec, ProgressPolicy};

use crate::events;

/// The port, and impairments of its frames.
#[derive(Args, Clone, Debug)]
pub(crate) struct DeviceArgs {
    /// The port to use: KIND:TARGET[,key=value...], for example memif:wire or af_packet:eth1.
    #[arg(long, value_name = "PORT")]
    pub(crate) port: PortSpec,

    /// Which threads receive and retransmit while the command waits: adaptive (the command, and a background thread that
    /// sleeps until a frame arrives), busy (a background thread that polls without pause, too), app (the command alone)
    #[arg(long, value_name = "POLICY", default_value = "adaptive", value_parser = parse_progress)]
    pub(crate) progress: ProgressPolicy,

    /// Capture the frames of the wire in this file, for tcpdump and Wireshark.
    #[arg(long, value_name = "FILE", help_heading = "Faults and capture")]
    pub(crate) pcap: Option<PathBuf>,

    /// Lose frames sent, with this probability.
    #[arg(long, value_name = "0..1", default_value = "0", help_heading = "Faults and capture")]
    pub(crate) drop_chance: Probability,

    /// Hold frames sent back behind later ones, with this probability.
    #[arg(long, value_name = "0..1", default_value = "0", help_heading = "Faults and capture")]
    pub(crate) reorder_chance: Probability,

    /// Flip a bit of frames sent, with this probability.
    #[arg(long, value_name = "0..1", default_value = "0", help_heading = "Faults and capture")]
    pub(crate) corrupt_chance: Probability,

    /// Impair single packets sent: a TOML file of events, each with qpn, psn, iter and action.
    #[arg(long, value_name = "FILE", help_heading = "Faults and capture")]
    pub(crate) events: Option<PathBuf>,

    /// Seed of the faults: the same seed over the same frames does the same.
    #[arg(long, default_value_t = 1, help_heading = "Faults and capture")]
    pub(crate) seed: u64,
}

impl DeviceArgs {
    /// Returns the impairments that the options request.
    pub(crate) fn faults(&self) -> FaultConfig {
        FaultConfig {
            drop_probability: self.drop_chance,
            reorder_probability: self.reorder_chance,
            corrupt_probability: self.corrupt_chance,
            duplicate_probability: Probability::NEVER,
            seed: self.seed,
            direction: FaultDirection::Tx,
        }
    }

    /// Opens the device.
    pub(crate) fn open(&self) -> anyhow::Result<Context> {
        self.open_with(self.faults())
    }

    /// Opens the device with other impairments.
    pub(crate) fn open_with(&self, faults: FaultConfig) -> anyhow::Result<Context> {
        let events = self.events.as_deref().map(events::read).transpose()?.unwrap_or_default();
        let options = DeviceOptions {
            faults,
            events,
            pcap: self.pcap.clone(),
            progress: self.progress,
            ..DeviceOptions::default()
        };
        Context::open(&self.port, &options).with_context(|| format!("cannot open port {}", self.port))
    }
}

/// Reads a progress policy from the command line.
fn parse_progress(text: &str) -> Result<ProgressPolicy, String> {
    match text {
        "adaptive" => Ok(ProgressPolicy::Adaptive),
        "busy" => Ok(ProgressPolicy::Busy),
        "app" => Ok(ProgressPolicy::Application),
        _ => Err("a policy is adaptive, busy or app".to_owned()),
    }
}

/// Reads a path MTU in bytes from the command line.
pub(crate) fn parse_path_mtu(text: &str) -> Result<PathMtu, String> {
    let mtu = text.parse().ok().and_then(PathMtu::from_bytes);
    mtu.ok_or_else(|| "a path MTU is 256, 512, 1024, 2048 or 4096 bytes".to_owned())
}
