//! `roce devinfo`: attributes of a port as an RDMA device.

use std::process::ExitCode;

use anyhow::Context as _;
use clap::Args;
use serde::Serialize;
use verbs::{Context, DeviceDescription, DeviceOptions, Mac, PathMtu, PortSpec};

use crate::doctor::system::System;
use crate::output;

/// Tell what a port is as an RDMA device, as ibv_devinfo does.
///
/// Opens the port and prints its state, its path MTU and its GID table, each GID with its index, which is what -g
/// of `roce ping` and -x of `roce perf` take. With --describe it prints what is known without opening the port.
/// Without --port it lists the ports that this machine offers.
#[derive(Args)]
#[command(after_help = "\
Examples:
  What there is to choose from:
      roce devinfo

  A port with an IPv4 and an IPv6 address:
      roce devinfo --port memif:wire,ip=10.0.0.1/24,ip=fd00::1/64

  The limits too, and as JSON:
      roce devinfo -v --port af_packet:eth1
      roce devinfo --json --port af_packet:eth1

  Without opening the port, which needs no privilege:
      roce devinfo --describe --port af_packet:eth1

Exit status: 0 on success, 1 when the port cannot be opened or described, 2 on wrong usage.")]
pub(crate) struct DevinfoArgs {
    /// The port to ask: KIND:TARGET[,key=value...], for example memif:wire or af_packet:eth1.
    #[arg(long, value_name = "PORT")]
    port: Option<PortSpec>,

    /// Do not open the port: print what its name and the kernel say of it. Other values are unknown.
    #[arg(long, requires = "port")]
    describe: bool,

    /// Print the limits too.
    #[arg(short, long)]
    verbose: bool,

    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

/// A GID, as `--json` prints it.
#[derive(Serialize)]
struct GidReport {
    index: usize,
    gid: Option<String>,
    #[serde(rename = "type")]
    kind: &'static str,
    reaches: &'static str,
}

/// The device, as `--json` prints it. `None`, which is printed as null: known only after the port is opened.
#[derive(Serialize)]
struct Report {
    port: String,
    driver: Option<String>,
    node_guid: Option<String>,
    mac: Option<String>,
    state: Option<&'static str>,
    wakes_by: Option<String>,
    mtu_bytes: Option<usize>,
    max_path_mtu_bytes: u32,
    active_path_mtu_bytes: Option<u32>,
    link_layer: &'static str,
    gids: Vec<GidReport>,
    limits: Limits,
}

#[derive(Serialize)]
struct Limits {
    max_qp: usize,
    max_qp_wr: u32,
    max_sge: u32,
    max_inline_bytes: u32,
    max_cq: usize,
    max_cqe: u32,
    max_srq: usize,
    max_srq_wr: u32,
    max_mr: usize,
    max_pd: usize,
    max_qp_rd_atom: u8,
    max_msg_bytes: u32,
}

impl Report {
    fn new(device: DeviceDescription) -> Self {
        let gids = device.gids.iter().map(|&(index, gid)| GidReport {
            index,
            gid: gid.map(|gid| gid.to_string()),
            kind: "RoCE v2",
            reaches: match gid {
                Some(gid) if gid.is_ipv4() => "IPv4 peers",
                Some(gid) if !gid.is_link_local() => "IPv6 peers",
                // An unknown GID is GID 0, which is link-local.
                _ => "link-local IPv6 peers",
            },
        });
        let caps = device.caps;
        Report {
            port: device.port,
            driver: device.driver,
            node_guid: device.mac.map(node_guid),
            mac: device.mac.map(|mac| mac.to_string()),
            state: device.is_up.map(|is_up| if is_up { "PORT_ACTIVE" } else { "PORT_DOWN" }),
            wakes_by: device.wakes_by,
            mtu_bytes: device.mtu_bytes,
            max_path_mtu_bytes: PathMtu::Mtu4096.bytes(),
            active_path_mtu_bytes: device.mtu_bytes.and_then(PathMtu::largest_for).map(PathMtu::bytes),
            link_layer: "Ethernet",
            gids: gids.collect(),
            limits: Limits {
                max_qp: caps.limits.max_qps,
                max_qp_wr: caps.max_qp_wr,
                max_sge: caps.max_sge,
                max_inline_bytes: caps.max_inline_bytes,
                max_cq: caps.limits.max_cqs,
                max_cqe: caps.max_cqe,
                max_srq: caps.limits.max_srqs,
                max_srq_wr: caps.max_qp_wr,
                max_mr: caps.limits.max_mrs,
                max_pd: caps.limits.max_pds,
                max_qp_rd_atom: caps.max_rd_atomic,
                max_msg_bytes: roce::queue::MAX_MESSAGE_BYTES,
            },
        }
    }

    fn text(&self, is_verbose: bool) -> String {
        const UNKNOWN: &str = "unknown until the port is opened";
        let or_unknown = |value: &Option<String>| value.as_deref().unwrap_or(UNKNOWN).to_owned();
        let mtu = self.mtu_bytes.map_or(UNKNOWN.to_owned(), |mtu_bytes| {
            let path_mtu = self.active_path_mtu_bytes;
            let path_mtu = path_mtu.map_or("none: the MTU is too small".into(), |mtu| mtu.to_string());
            format!("{path_mtu} (the port's own MTU is {mtu_bytes})")
        });
        let state = match self.state {
            Some("PORT_DOWN") => "PORT_DOWN (no link: is the other end there?)",
            state => state.unwrap_or(UNKNOWN),
        };
        let mut text = format!("port: {}\n", self.port);
        for (name, value) in [
            ("transport", "RoCE v2".to_owned()),
            ("driver", or_unknown(&self.driver)),
            ("node_guid", or_unknown(&self.node_guid)),
            ("mac", or_unknown(&self.mac)),
            ("state", state.to_owned()),
            ("wakes_by", or_unknown(&self.wakes_by)),
            ("max_mtu", self.max_path_mtu_bytes.to_string()),
            ("active_mtu", mtu),
            ("link_layer", self.link_layer.to_owned()),
        ] {
            text.push_str(&format!("    {name:<16} {value}\n"));
        }
        for gid in &self.gids {
            let GidReport { index, gid, kind, reaches } = gid;
            let gid = or_unknown(gid);
            text.push_str(&format!("    GID[{index:>3}]         {gid}, {kind}, for {reaches}\n"));
        }
        if is_verbose {
            let limits = &self.limits;
            for (name, value) in [
                ("max_qp", limits.max_qp as u64),
                ("max_qp_wr", limits.max_qp_wr.into()),
                ("max_sge", limits.max_sge.into()),
                ("max_inline", limits.max_inline_bytes.into()),
                ("max_cq", limits.max_cq as u64),
                ("max_cqe", limits.max_cqe.into()),
                ("max_srq", limits.max_srq as u64),
                ("max_srq_wr", limits.max_srq_wr.into()),
                ("max_mr", limits.max_mr as u64),
                ("max_pd", limits.max_pd as u64),
                ("max_qp_rd_atom", limits.max_qp_rd_atom.into()),
                ("max_msg_sz", limits.max_msg_bytes.into()),
            ] {
                text.push_str(&format!("    {name:<16} {value}\n"));
            }
        }
        text
    }
}

fn node_guid(mac: Mac) -> String {
    // Because the last eight bytes of the link-local address are the EUI-64 of the MAC.
    let [.., a, b, c, d, e, f, g, h] = mac.link_local().octets();
    format!("{a:02x}{b:02x}:{c:02x}{d:02x}:{e:02x}{f:02x}:{g:02x}{h:02x}")
}

/// Prints the device, or the ports that could be opened.
pub(crate) fn run(args: &DevinfoArgs) -> anyhow::Result<ExitCode> {
    let Some(port) = &args.port else {
        list(&System::live(), args.json)?;
        return Ok(ExitCode::SUCCESS);
    };
    let description = if args.describe {
        verbs::describe(port).with_context(|| format!("cannot describe port {port}"))?
    } else {
        let context = Context::open(port, &DeviceOptions::default());
        context.with_context(|| format!("cannot open port {port}"))?.attr().into()
    };
    let report = Report::new(description);
    if args.json {
        output::print_json(&report)?;
    } else {
        output::print(&report.text(args.verbose))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// A port that could be opened here.
#[derive(Serialize)]
struct Candidate {
    port: String,
    what: String,
}

fn candidates(system: &System) -> Vec<Candidate> {
    let mut found = vec![Candidate {
        port: "memif:NAME".into(),
        what: "shared memory between two processes, any name".into(),
    }];
    for interface in system.interfaces() {
        let state = if interface.is_up { "up" } else { "down" };
        let what = format!("kernel interface, {state}, MTU {}", interface.mtu_bytes);
        found.push(Candidate { port: format!("af_packet:{}", interface.name), what });
    }
    for nic in system.pci_nics() {
        let what = format!("NIC, driver {}", nic.driver.as_deref().unwrap_or("none"));
        found.push(Candidate { port: format!("pci:{}", nic.address), what });
    }
    found
}

fn list(system: &System, as_json: bool) -> anyhow::Result<()> {
    let found = candidates(system);
    if as_json {
        return output::print_json(&serde_json::json!({ "ports": found }));
    }
    let width = found.iter().map(|candidate| candidate.port.len()).max().unwrap_or(0);
    let mut text: String =
        found.iter().map(|candidate| format!("{:<width$}  {}\n", candidate.port, candidate.what)).collect();
    text.push_str("\n`roce devinfo --port PORT` opens one; `roce doctor --port PORT` says what it needs.\n");
    Ok(output::print(&text)?)
}
