//! The effective configuration: the file or the environment, and the options of the command line over it.

use std::fs;

use anyhow::{Context as _, anyhow};
use verbs::config::ProcessConfig;

use super::args::RunArgs;
use crate::events;

/// Returns the configuration that the options, the file and the environment give, in this order of precedence.
pub(super) fn effective(args: &RunArgs) -> anyhow::Result<ProcessConfig> {
    let environment = ProcessConfig::from_environment()?;
    let mut config = match &args.config {
        None => environment.clone(),
        Some(path) => {
            let name = path.display().to_string();
            let text = fs::read_to_string(path).with_context(|| format!("--config: cannot read {name}"))?;
            ProcessConfig::parse(&text, &name)?
        }
    };
    if !args.ports.is_empty() {
        config.ports.clone_from(&args.ports);
    } else if config.ports.is_empty() {
        config.ports = environment.ports;
    }
    if config.ports.is_empty() {
        return Err(anyhow!(
            "no port, and a device needs one: give --port PORT, for example --port memif:wire, or set ROCE_PORT"
        ));
    }
    let options = &args.options;
    set(&mut config.recovery, args.schemes.recovery);
    set(&mut config.congestion, args.schemes.congestion);
    set(&mut config.progress, options.progress);
    set(&mut config.drop_chance, options.drop_chance);
    set(&mut config.reorder_chance, options.reorder_chance);
    set(&mut config.corrupt_chance, options.corrupt_chance);
    set(&mut config.seed, options.seed);
    set(&mut config.events, options.events.as_deref().map(events::read).transpose()?);
    set(&mut config.pcap, options.pcap.clone().map(Some));
    config.eal.extend(args.eal.iter().cloned());
    Ok(config)
}

fn set<T>(setting: &mut T, option: Option<T>) {
    if let Some(value) = option {
        *setting = value;
    }
}
