//! `cargo xtask bench`: this stack beside what the port under it can carry.

mod cores;
mod figures;
mod loss;
mod memif;
mod perf;
mod report;
mod session;
mod sleep;
mod testpmd;
mod verbs;
mod veth;
mod veth_loss;

use std::io::Write as _;

use anyhow::bail;
use clap::{Args, ValueEnum};

use crate::{install, namespace, workspace};
use cores::Cores;
use figures::Figures;
use loss::{Grid, Op, Placement};
use session::Runs;
use veth_loss::Plan;

const ABOUT: &str = "\
Measures this stack beside what the port under it can carry, and prints both and their ratios

  bare port      frames between two processes, by dpdk-testpmd and by `roce perf raw --bare`
  limit program  `roce perf raw`: the same frames with the payload copied from and to application
                 memory, the ICRC made and checked, and no transport
  roce perf      64 KiB WRITE and READ, 64 B SEND, 64 B send latency: one queue pair, path MTU 4096
  loss           SEND, WRITE and READ over a memif by selective repeat, with frames lost both ways:
                 goodput, divided by goodput without loss and by the share of frames not lost.
                 Probabilities of loss take turns within a run; the ratio is the median of
                 neighbouring turns. Also packets retransmitted for each packet lost
  veth-loss      WRITE and SEND by each recovery, and TCP by BBR and CUBIC (iperf3), over one path of
                 veth pairs and a bridge, in which nftables lose packets both ways: goodput, its
                 share of that without loss, packets retransmitted for each packet lost
  sleep          64 B send latency between ends that sleep in `CompChannel::wait` or poll(2), over a
                 memif and over a veth pair, beside TCP by poll(2) over the same pair
  verbs          programs of perftest under `roce run`, beside `roce perf` with the same operation,
                 size and depth, over a memif

Each measurement is two processes on a core each, which change places from run to run. Figures are
medians of all runs. Machines are noisy and differ: compare ratios, whose two sides are measured in
the same minute. Packages are installed with apt-get, by sudo if the caller is not root; the rest
needs no privileges (veth pairs are made in namespaces of their own).";

const EXAMPLES: &str = "\
Examples:
  cargo xtask bench --port memif --runs 5
  cargo xtask bench --port loss --size 64,4096,65536,1048576,8388608 --qps 1,4,16 --loss 0.001,0.05
  cargo xtask bench --port veth-loss --loss 0.001,0.01,0.1 --op write

Exit status: 0 if all was measured, whether targets are reached or missed; 1 if not; 2 on wrong usage.";

/// Measures this stack beside what the port under it can carry, and prints both and their ratios
#[derive(Args)]
#[command(long_about = ABOUT, after_long_help = EXAMPLES)]
pub(crate) struct BenchArgs {
    /// Number of runs
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    runs: u32,

    /// Seconds of each measurement by time
    #[arg(long, value_name = "S", default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..))]
    seconds: u32,

    /// Port to measure, or the table of losses
    #[arg(long, value_enum, default_value_t = PortArg::All)]
    port: PortArg,

    /// Print a JSON array instead of a table
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    grid: GridArgs,

    /// The network namespace that this program was started from; for itself
    #[arg(long, value_name = "NETNS", hide = true)]
    inside: Option<String>,
}

/// Cells of the tables of losses: every combination is measured. All losses of a combination share a run.
#[derive(Args)]
#[command(next_help_heading = "Tables of losses")]
struct GridArgs {
    /// Operations, between commas [default: send,write,read; of veth-loss: write,send]
    #[arg(long, value_enum, value_name = "OP,...", value_delimiter = ',')]
    op: Vec<Op>,

    /// Message sizes; not of veth-loss [default: 65536]
    #[arg(long, value_name = "BYTES,...", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=1 << 30))]
    size: Vec<u32>,

    /// Numbers of queue pairs; not of veth-loss [default: 1]
    #[arg(long, value_name = "COUNT,...", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=4096))]
    qps: Vec<u32>,

    /// Probabilities that a frame is lost, in each direction [default: 0.01,0.02,0.05; of veth-loss:
    /// 0.001,0.01,0.02,0.05,0.1]
    #[arg(long, value_name = "0..1,...", value_delimiter = ',', value_parser = loss::parse_loss)]
    loss: Vec<f64>,

    /// Placement of SENDs and WRITEs; not of veth-loss [default: relaxed]
    #[arg(long, value_enum)]
    placement: Option<Placement>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum PortArg {
    /// Shared memory between two processes
    Memif,
    /// A veth pair, by packet sockets
    Veth,
    /// A memif that loses frames
    Loss,
    /// This stack beside TCP, over veth pairs whose bridge loses packets
    VethLoss,
    /// Ends that sleep between messages, beside TCP
    Sleep,
    /// The C interface of libibverbs beside the interface in Rust
    Verbs,
    /// All but veth-loss, sleep and verbs
    All,
}

impl PortArg {
    fn includes(self, port: PortArg) -> bool {
        let is_apart = matches!(port, PortArg::VethLoss | PortArg::Sleep | PortArg::Verbs);
        self == port || self == PortArg::All && !is_apart
    }
}

impl BenchArgs {
    /// Checks the options together. An error is one of usage.
    pub(crate) fn check(&self) -> anyhow::Result<()> {
        let GridArgs { op, size, qps, loss, placement } = &self.grid;
        let has_grid = self.port.includes(PortArg::Loss);
        if !(has_grid || size.is_empty() && qps.is_empty() && placement.is_none()) {
            bail!("--size, --qps and --placement are of the table of losses: give --port loss or all");
        }
        if !(has_grid || self.port == PortArg::VethLoss || op.is_empty() && loss.is_empty()) {
            bail!("--op and --loss are of the tables of losses: give --port loss, veth-loss or all");
        }
        if has_grid { self.grid().map(|_| ()) } else { Ok(()) }
    }

    fn grid(&self) -> anyhow::Result<Grid> {
        let GridArgs { op, size, qps, loss, placement } = &self.grid;
        Grid::new(op, size, qps, loss, placement.unwrap_or_default())
    }

    fn plan(&self) -> Plan {
        Plan::new(&self.grid.op, &self.grid.loss)
    }
}

/// Measures, and prints the report.
pub(crate) fn run(args: &BenchArgs) -> anyhow::Result<()> {
    let runs = Runs { count: args.runs, seconds: args.seconds, cores: Cores::first_two()? };
    let mut figures = Figures::default();
    if let Some(outer) = &args.inside {
        namespace::check_inside(outer)?;
        let measured = match args.port {
            PortArg::VethLoss => args.plan().measure(runs, &mut figures),
            PortArg::Sleep => veth::measure(&sleep::veth_table(), runs, &mut figures),
            _ => veth::measure(&veth::table(), runs, &mut figures),
        };
        print(&serde_json::to_string(&figures)?)?;
        return measured;
    }
    install_missing(args.port)?;
    eprintln!("Building (some minutes the first time)");
    workspace::build_roce()?;
    if args.port == PortArg::Verbs {
        workspace::build_library()?;
    }

    let (measured, report) = if args.port == PortArg::VethLoss {
        let plan = args.plan();
        let measured = plan.start_measuring(runs, &mut figures);
        let entries = report::entries(&plan.rows(), &figures);
        (measured, if args.json { report::json(&entries)? } else { plan.table(&figures, args.runs) })
    } else {
        let grid = args.grid()?;
        let measured = measure(args.port, &grid, runs, &mut figures);
        let tables =
            [memif::table(), veth::table(), sleep::memif_table(), sleep::veth_table(), verbs::table()];
        let rows: Vec<_> = tables.into_iter().flatten().map(|measurement| measurement.row).collect();
        let entries = report::entries(&[rows, grid.rows()].concat(), &figures);
        (measured, if args.json { report::json(&entries)? } else { report::table(&entries, args.runs) })
    };
    // After an error too: figures of a long run are not thrown away.
    print(&report)?;
    measured?;
    let missing = figures.missing_count();
    if missing > 0 {
        bail!("{missing} rows have no figure of a run or of all, see above");
    }
    Ok(())
}

/// Installs the packages that are missing.
fn install_missing(port: PortArg) -> anyhow::Result<()> {
    install::packages("to build against DPDK", workspace::BUILD_PACKAGES)?;
    install::packages("to pin processes and make network namespaces", &["util-linux", "iproute2"])?;
    if port == PortArg::VethLoss {
        install::packages("to measure TCP and to lose packets", veth_loss::PACKAGES)?;
    }
    if port == PortArg::Verbs {
        install::packages("to measure the C interface", &["perftest"])?;
    }
    if port.includes(PortArg::Memif) && !workspace::is_in_path(testpmd::PROGRAM) {
        let installed = install::packages("to measure the bare port", &[testpmd::PACKAGE]);
        // Because not every release of Debian has the program.
        if let Err(error) = installed {
            eprintln!("{error:#}; measuring without {}", testpmd::PROGRAM);
        }
    }
    Ok(())
}

fn measure(port: PortArg, grid: &Grid, runs: Runs, figures: &mut Figures) -> anyhow::Result<()> {
    if port.includes(PortArg::Memif) {
        memif::measure(runs, figures)?;
    }
    if port.includes(PortArg::Loss) {
        grid.measure(runs, figures)?;
    }
    if port.includes(PortArg::Veth) {
        veth::start_measuring(runs, &[], figures)?;
    }
    if port.includes(PortArg::Sleep) {
        sleep::measure_memif(runs, figures)?;
        veth::start_measuring(runs, &["--port", "sleep"], figures)?;
    }
    if port.includes(PortArg::Verbs) {
        verbs::measure(runs, figures)?;
    }
    Ok(())
}

fn print(text: &str) -> anyhow::Result<()> {
    Ok(std::io::stdout().write_all(text.as_bytes())?)
}
