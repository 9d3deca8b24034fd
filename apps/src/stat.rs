//! `roce stat`: counters of the devices of running processes.

use std::process::ExitCode;

use anyhow::bail;
use clap::Args;
use serde_json::{Value, json};
use verbs::stat::{DeviceStat, Found, read_all};

use crate::output;

/// Show the counters of the devices that processes have open, as `rdma statistic show` and ethtool -S do.
///
/// Every process that opens a port by this library answers, as long as it runs under the same user; root sees all.
/// Prints once, the counters that are not zero, by source: driver (the DPDK driver's), port (frames that this side
/// could not send or keep), drops (frames dropped before any queue pair, by reason), neighbour (ARP and neighbour
/// discovery), queue_pairs (sums over all, past and present), faults (--drop-chance and the like), xstats (whatever
/// else the driver counts). docs/user/troubleshooting.md says what each means and what to do.
#[derive(Args)]
#[command(after_help = "\
Examples:
  All devices:
      roce stat

  Those of one process, or of one port, zeros too:
      roce stat -v 4711
      roce stat -v memif:@wire

  What was dropped, every second:
      watch -n 1 'roce stat | grep -A 20 drops'
      roce stat --json | jq '.[] | {pid, port, drops: .counters.drops}'

Exit status: 0 on success, 1 when no device is there of the process or port named, 2 on wrong usage.")]
pub(crate) struct StatArgs {
    /// A process number, or a port as its process named it; its part before the first comma is enough.
    #[arg(value_name = "PID|PORT")]
    which: Option<String>,

    /// Print counters that are zero too.
    #[arg(short, long)]
    verbose: bool,

    /// Print one JSON array, of an object for each device, with all counters.
    #[arg(long)]
    json: bool,
}

/// Prints the devices.
pub(crate) fn run(args: &StatArgs) -> anyhow::Result<ExitCode> {
    let Found { mut devices, failed } = read_all();
    for (path, error) in failed {
        eprintln!("roce: {} does not answer: {error}", path.display());
    }
    if let Some(which) = &args.which {
        devices.retain(|device| is_meant(device, which));
        if devices.is_empty() {
            bail!(
                "no device of `{which}` is open: `roce stat` lists what there is, of your own processes unless you are root"
            );
        }
    }
    if args.json {
        output::print_json(&devices.iter().map(describe).collect::<Vec<_>>())?;
    } else if devices.is_empty() {
        eprintln!("roce: no process of yours has a device open");
    } else {
        let texts: Vec<String> = devices.iter().map(|device| text(device, args.verbose)).collect();
        output::print(&texts.join("\n"))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn is_meant(device: &DeviceStat, which: &str) -> bool {
    let short = device.port.split(',').next().unwrap_or_default();
    device.pid.to_string() == which || device.port == which || short == which
}

fn state(device: &DeviceStat) -> &'static str {
    match (&device.fatal, device.is_up) {
        (Some(_), _) => "DEVICE_FATAL",
        (None, true) => "PORT_ACTIVE",
        (None, false) => "PORT_DOWN",
    }
}

fn text(device: &DeviceStat, is_verbose: bool) -> String {
    let DeviceStat { pid, uid, command, port, driver, mac, uptime, .. } = device;
    let (state, seconds) = (state(device), uptime.as_secs_f64());
    // Because other users' processes write this too, none of it may control a terminal.
    let plain = |text: &str| text.chars().flat_map(char::escape_debug).collect::<String>();
    let (command, port, driver, mac) = (plain(command), plain(port), plain(driver), plain(mac));
    let mut text = format!(
        "{port}: pid {pid}, uid {uid}, {command}, {driver}, {mac}, {state}, open for {seconds:.1} s\n"
    );
    if let Some(reason) = &device.fatal {
        text.push_str(&format!("    fatal error: {}\n", plain(reason)));
    }
    for (source, counts) in device.counters.groups() {
        let mut shown = counts.iter().filter(|(_, count)| is_verbose || **count > 0).peekable();
        if shown.peek().is_some() {
            text.push_str(&format!("    {source}:\n"));
        }
        for (name, count) in shown {
            text.push_str(&format!("        {:<32} {count}\n", plain(name)));
        }
    }
    text
}

fn describe(device: &DeviceStat) -> Value {
    json!({
        "pid": device.pid,
        "uid": device.uid,
        "command": device.command,
        "port": device.port,
        "driver": device.driver,
        "mac": device.mac,
        "state": state(device),
        "fatal": device.fatal,
        "uptime_sec": device.uptime.as_secs_f64(),
        "counters": device.counters,
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use verbs::stat::DeviceCounters;

    use super::*;

    fn device() -> DeviceStat {
        let drops = [("bad_tver".to_owned(), 0), ("rx_icrc_errors".to_owned(), 12)].into();
        DeviceStat {
            pid: 4711,
            uid: 1000,
            command: "kv\u{1b}[2J".into(),
            port: "memif:@wire,ip=10.0.0.1/24".into(),
            driver: "net_memif".into(),
            mac: "02:00:00:00:00:01".into(),
            is_up: true,
            fatal: None,
            uptime: Duration::from_millis(1500),
            counters: DeviceCounters { drops, ..DeviceCounters::default() },
        }
    }

    #[test]
    fn a_device_is_named_by_its_process_or_its_port() {
        for which in ["4711", "memif:@wire", "memif:@wire,ip=10.0.0.1/24"] {
            assert!(is_meant(&device(), which), "{which}");
        }
        for which in ["471", "memif:@wir", "1000", ""] {
            assert!(!is_meant(&device(), which), "{which}");
        }
    }

    #[test]
    fn zeros_are_for_those_who_ask_and_no_text_steers_the_terminal() {
        let brief = text(&device(), false);
        assert!(brief.contains("    drops:\n        rx_icrc_errors                   12\n"), "{brief}");
        assert!(!brief.contains("bad_tver") && !brief.contains("driver:"), "{brief}");
        assert!(brief.contains("PORT_ACTIVE, open for 1.5 s"), "{brief}");
        assert!(!brief.contains('\u{1b}'), "{brief}");
        assert!(text(&device(), true).contains("bad_tver"));
    }

    #[test]
    fn a_device_out_of_order_says_why() {
        let fatal = Some("a thread panicked".to_owned());
        let device = DeviceStat { fatal, ..device() };
        let text = text(&device, false);
        assert!(text.contains("DEVICE_FATAL") && text.contains("fatal error: a thread panicked"), "{text}");
        assert_eq!(describe(&device)["state"], "DEVICE_FATAL");
        assert_eq!(describe(&device)["counters"]["drops"]["rx_icrc_errors"], 12);
    }
}
