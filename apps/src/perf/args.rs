//! The options of `roce perf`, under perftest's letters.

use std::ops::RangeInclusive;
use std::time::Duration;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, ValueEnum};
use verbs::{CongestionScheme, PathMtu, Placement};

use super::params::{Choices, Connection, Measure, Recovery, Test, Verb};
use super::turns::LossTurns;
use crate::device::{DeviceArgs, SchemeArgs, parse_path_mtu};
use crate::exchange::ExchangeArgs;
use crate::exchange::limits::{DEPTH, ITERS, OUTS, QPS};

/// Options of every test between queue pairs.
#[derive(Args, Clone, Debug)]
pub(crate) struct TestArgs {
    #[command(flatten)]
    pub(super) device: DeviceArgs,

    #[command(flatten)]
    pub(super) peer: PeerArgs,

    /// Size of a message [default: 65536 for bandwidth, 2 for latency]
    #[arg(short, long, value_name = "BYTES")]
    size: Option<u32>,

    /// Number of messages of each queue pair [default: 5000 for bandwidth, 1000 for latency]
    #[arg(short = 'n', long, value_name = "COUNT", value_parser = clap::value_parser!(u64).range(ITERS))]
    iters: Option<u64>,

    /// Run for so long instead of a number of messages
    #[arg(short = 'D', long, value_name = "SECONDS", conflicts_with_all = ["iters", "all"], value_parser = clap::value_parser!(u32).range(1..))]
    duration: Option<u32>,

    /// Run all sizes from 2 to 2^23 bytes
    #[arg(short, long, conflicts_with = "size")]
    all: bool,

    /// Path MTU in bytes [default: the largest that both ports carry]
    #[arg(short, long, value_name = "BYTES", value_parser = parse_path_mtu)]
    mtu: Option<PathMtu>,

    /// Send queue depth [default: 128 for bandwidth, 1 for latency]
    #[arg(short, long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(depth_range()))]
    tx_depth: Option<u32>,

    /// Receive queue depth
    #[arg(short, long, value_name = "COUNT", default_value_t = 512, value_parser = clap::value_parser!(u32).range(depth_range()))]
    pub(super) rx_depth: u32,

    /// Index of the GID to use [default: one of a family that both ends have]
    #[arg(short = 'x', long, value_name = "INDEX")]
    pub(super) gid_index: Option<u8>,

    /// Messages up to this size are copied when they are posted [default: 0 for bandwidth, 220 for
    /// latency]
    #[arg(short = 'I', long = "inline_size", value_name = "BYTES")]
    inline_size: Option<u32>,

    /// Local ACK timeout: 4.096 us * 2^TIMEOUT
    #[arg(short = 'u', long, value_name = "TIMEOUT", default_value_t = 14, value_parser = clap::value_parser!(u8).range(0..=31))]
    pub(super) qp_timeout: u8,

    /// READs outstanding [default: the most that both ends take]
    #[arg(short, long, value_name = "COUNT", value_parser = clap::value_parser!(u8).range(i64::from(*OUTS.start())..=i64::from(*OUTS.end())))]
    outs: Option<u8>,

    #[command(flatten)]
    schemes: SchemeArgs,

    /// Sleep until a completion comes, instead of polling (perftest's --events, which is a file here)
    #[arg(short = 'e', long = "cq-events")]
    pub(super) cq_events: bool,

    /// With -e: sleep in poll(2) on the file descriptor of the completion channel, as programs with a loop of their own
    /// do
    #[arg(long, requires = "cq_events")]
    poll_fd: bool,

    /// In a latency test, let the client pause before each message, in microseconds
    #[arg(long, value_name = "USEC", default_value_t = 0)]
    pause: u32,

    /// Compare what arrives with what was sent
    #[arg(long)]
    verify: bool,

    /// Accepted for perftest's sake: there is no CPU frequency to be warned of
    #[arg(short = 'F', long = "CPU-freq")]
    _cpu_freq: bool,

    /// The server's program: this one, or perftest's `ib_write_bw` and its siblings. A server recognises its client by
    /// itself. perftest exchanges no options: give both ends the same -s or -a, -n or -D, -q, and -b
    #[arg(long = "peer", value_name = "PROGRAM", value_enum, default_value_t = Program::Roce, requires = "host")]
    program: Program,

    /// Not supported: connections are made over TCP
    #[arg(short = 'R', long = "rdma_cm")]
    rdma_cm: bool,

    /// Connection type: RC, or UC, which acknowledges and retransmits nothing, and has no READ [default: RC]
    #[arg(short = 'c', long, value_name = "TYPE", value_parser = connection_parser())]
    connection: Option<Connection>,

    /// Take the receives of all queue pairs from one shared receive queue, of -r receives. An option of the end that
    /// receives
    #[arg(long = "use-srq", visible_alias = "use_srq")]
    use_srq: bool,
}

/// Parses the name of a connection type. Not clap's derive on the type, because its file is fuzzed without clap.
fn connection_parser() -> impl TypedValueParser<Value = Connection> {
    let names = Connection::ALL.map(|connection| connection.service().name());
    PossibleValuesParser::new(names).try_map(|name| {
        Connection::ALL
            .into_iter()
            .find(|connection| connection.service().name() == name)
            .ok_or("no connection type")
    })
}

/// Options of bandwidth tests alone.
#[derive(Args, Clone, Debug)]
pub(crate) struct BwArgs {
    #[command(flatten)]
    pub(super) test: TestArgs,

    /// Number of queue pairs
    #[arg(short, long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(i64::from(*QPS.start())..=i64::from(*QPS.end())))]
    qp: Option<u32>,

    /// Both ends send at once
    #[arg(short, long)]
    bidirectional: bool,

    /// Do not look for the best rate between any two messages
    #[arg(short = 'N', long = "noPeak")]
    no_peak: bool,

    /// Messages to one completion [default: 100, or 1 where messages are longer than 8192 bytes]
    #[arg(short = 'Q', long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..))]
    cq_mod: Option<u32>,

    /// Messages to one post
    #[arg(short = 'l', long = "post_list", value_name = "COUNT", default_value_t = 1, value_parser = clap::value_parser!(u32).range(depth_range()))]
    post_list: u32,

    /// Place what the peer sends or writes as it comes, where packets before it are missing, and not in order:
    /// cheaper under loss, for memory that nobody polls. An option of the end that receives
    #[arg(long = "relaxed_placement")]
    relaxed_placement: bool,

    /// Lose frames both ways with each of these probabilities in turn, at least 25 ms each, and compare what is
    /// carried in the last 20 of them: of the first, times (1 - loss). An option of the client, with -D
    #[arg(
        long = "loss-turns", value_name = "0..1,0..1,...", help_heading = "Faults and capture",
        requires_all = ["duration", "host"], conflicts_with_all = ["drop_chance", "bidirectional"]
    )]
    loss_turns: Option<LossTurns>,

    /// Report in Gb/sec instead of MiB/sec
    #[arg(long = "report_gbits")]
    pub(super) report_gbits: bool,
}

/// The peer's address, and the form of the report.
#[derive(Args, Clone, Debug)]
pub(crate) struct PeerArgs {
    /// The server to connect to; without it this side is the server
    #[arg(value_name = "HOST")]
    pub(super) host: Option<String>,

    /// TCP port by which the two ends find each other
    #[arg(short = 'p', long, value_name = "PORT", default_value_t = 18515)]
    pub(super) tcp_port: u16,

    /// Print the results as JSON
    #[arg(long)]
    pub(super) json: bool,

    /// Run the measuring thread on this CPU
    #[arg(long, value_name = "CPU")]
    pub(super) cpu: Option<usize>,

    #[command(flatten)]
    pub(super) exchange: ExchangeArgs,
}

/// Program of the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Program {
    /// This one
    Roce,
    /// perftest
    Perftest,
}

/// Returns [`DEPTH`] in the type that clap takes.
fn depth_range() -> RangeInclusive<i64> {
    i64::from(*DEPTH.start())..=i64::from(*DEPTH.end())
}

/// Exit status for an invalid command line.
pub(super) const USAGE: u8 = 2;
/// The most inline bytes.
const MAX_INLINE_BYTES: u32 = 1024;
/// Messages longer than this complete one by one unless asked otherwise.
const CQ_MOD_SIZE_MAX_BYTES: u32 = 8192;
/// Messages up to which perftest looks for a peak by default.
const PEAK_ITERS_MAX: u64 = 20_000;
/// Messages per completion of a latency test, at most; `Local::cq_mod` limits the number by the depth of the send queue.
const LAT_CQ_MOD: u32 = 64;

/// Settings of one end that do not depend on the peer's.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Local {
    pub(super) tx_depth: u32,
    pub(super) rx_depth: u32,
    pub(super) inline_bytes: u32,
    pub(super) cq_mod: Option<u32>,
    pub(super) post_list: u32,
    pub(super) qp_timeout: u8,
    pub(super) gid_index: Option<u8>,
    pub(super) congestion: Option<CongestionScheme>,
    pub(super) placement: Placement,
    pub(super) program: Program,
    pub(super) cq_events: bool,
    pub(super) poll_fd: bool,
    pub(super) pause: Duration,
    pub(super) use_srq: bool,
    pub(super) wants_peak: bool,
    pub(super) report_gbits: bool,
    pub(super) loss_turns: Option<LossTurns>,
}

impl Local {
    /// Returns the messages per completion, for messages of `size` bytes.
    pub(super) fn cq_mod(&self, size: u32) -> u32 {
        let default = if size > CQ_MOD_SIZE_MAX_BYTES { 1 } else { 100 };
        self.cq_mod.unwrap_or(default).min(self.tx_depth)
    }

    /// Whether the peak of so many messages is looked for.
    pub(super) fn peak_of(&self, count: Option<u64>) -> bool {
        self.wants_peak && count.is_some_and(|count| count <= PEAK_ITERS_MAX)
    }
}

impl TestArgs {
    /// Checks the options together, beyond the range of each.
    pub(super) fn check(&self, test: Test) -> Result<(), String> {
        if self.rdma_cm {
            return Err(
                "-R (connect by the RDMA connection manager) is not supported: leave it out, and the \
                 queue pairs are connected by what the two ends tell each other over TCP"
                    .to_owned(),
            );
        }
        self.choices().check(test)?;
        if self.inline_size.is_some_and(|bytes| bytes > MAX_INLINE_BYTES) {
            return Err(format!("-I: at most {MAX_INLINE_BYTES} bytes can be inline"));
        }
        if self.inline_size.is_some_and(|bytes| bytes > 0) && test.verb == Verb::Read {
            return Err("-I: an RDMA READ carries no data that could be inline".to_owned());
        }
        if self.use_srq && test.verb != Verb::Send {
            return Err("--use-srq: only send-bw and send-lat take receives".to_owned());
        }
        if self.cq_events && test.measure == Measure::Lat && test.verb == Verb::Write {
            return Err("-e: a WRITE completes nothing at the peer that it could sleep for".to_owned());
        }
        Ok(())
    }

    fn choices(&self) -> Choices {
        Choices {
            size: self.size,
            iters: self.iters,
            duration_secs: self.duration,
            all: self.all,
            qps: None,
            mtu_bytes: self.mtu.map(PathMtu::bytes),
            outs: self.outs,
            recovery: self.schemes.recovery.map(Recovery),
            connection: self.connection,
            bidirectional: false,
            verify: self.verify,
        }
    }

    /// Returns this end's offer, and its own settings, in a latency test.
    pub(super) fn resolve_lat(&self, test: Test) -> (Choices, Local) {
        let default_inline = if test.verb == Verb::Read { 0 } else { 220 };
        let local = Local {
            tx_depth: self.tx_depth.unwrap_or(1),
            rx_depth: self.rx_depth,
            inline_bytes: self.inline_size.unwrap_or(default_inline),
            cq_mod: Some(LAT_CQ_MOD),
            post_list: 1,
            qp_timeout: self.qp_timeout,
            gid_index: self.gid_index,
            congestion: self.schemes.congestion,
            // Because latency tests of WRITE poll memory.
            placement: Placement::InOrder,
            program: self.program,
            cq_events: self.cq_events,
            poll_fd: self.poll_fd,
            pause: Duration::from_micros(self.pause.into()),
            use_srq: self.use_srq,
            wants_peak: false,
            report_gbits: false,
            loss_turns: None,
        };
        (self.choices(), local)
    }
}

impl BwArgs {
    /// As [`TestArgs::check`].
    pub(super) fn check(&self, test: Test) -> Result<(), String> {
        let depth = self.tx_depth();
        if self.cq_mod.is_some_and(|cq_mod| cq_mod > depth) {
            return Err(format!("-Q: a completion must come before the send queue (-t {depth}) is full"));
        }
        if self.post_list > depth {
            return Err(format!("-l: a list must fit into the send queue (-t {depth})"));
        }
        let is_uc = self.test.connection == Some(Connection::Uc);
        if is_uc && (self.relaxed_placement || self.loss_turns.is_some()) {
            return Err("--relaxed_placement and --loss-turns: UC repairs no loss".to_owned());
        }
        self.test.check(test)
    }

    fn tx_depth(&self) -> u32 {
        self.test.tx_depth.unwrap_or(128)
    }

    /// As [`TestArgs::resolve_lat`], in a bandwidth test.
    pub(super) fn resolve(&self) -> (Choices, Local) {
        let choices = Choices { qps: self.qp, bidirectional: self.bidirectional, ..self.test.choices() };
        let local = Local {
            tx_depth: self.tx_depth(),
            rx_depth: self.test.rx_depth,
            inline_bytes: self.test.inline_size.unwrap_or(0),
            cq_mod: self.cq_mod,
            post_list: self.post_list,
            qp_timeout: self.test.qp_timeout,
            gid_index: self.test.gid_index,
            congestion: self.test.schemes.congestion,
            placement: if self.relaxed_placement { Placement::Relaxed } else { Placement::InOrder },
            program: self.test.program,
            cq_events: self.test.cq_events,
            poll_fd: self.test.poll_fd,
            pause: Duration::ZERO,
            use_srq: self.test.use_srq,
            wants_peak: !self.no_peak,
            report_gbits: self.report_gbits,
            loss_turns: self.loss_turns.clone(),
        };
        (choices, local)
    }
}

/// Options of the limit program.
#[derive(Args, Clone, Debug)]
pub(crate) struct RawArgs {
    #[command(flatten)]
    pub(super) device: DeviceArgs,

    #[command(flatten)]
    pub(super) peer: PeerArgs,

    /// Payload of a frame
    #[arg(short, long, value_name = "BYTES", default_value_t = 4096, value_parser = clap::value_parser!(u32).range(0..=4096))]
    pub(super) size: u32,

    /// How long frames are sent
    #[arg(short = 'D', long, value_name = "SECONDS", default_value = "2", value_parser = parse_duration)]
    pub(super) duration: Duration,

    /// Neither copy the payload nor make and check the ICRC: what the port alone carries
    #[arg(long)]
    pub(super) bare: bool,

    /// Measure latency: one frame goes back and forth
    #[arg(long)]
    pub(super) lat: bool,

    /// Frames sent back and forth
    #[arg(short = 'n', long, value_name = "COUNT", default_value_t = 100_000, value_parser = clap::value_parser!(u64).range(1..100_000_000))]
    pub(super) iters: u64,
}

fn parse_duration(text: &str) -> Result<Duration, String> {
    let secs: f64 = text.parse().map_err(|_| format!("`{text}` is no number of seconds"))?;
    Duration::try_from_secs_f64(secs)
        .ok()
        .filter(|duration| !duration.is_zero())
        .ok_or_else(|| format!("`{text}` is no time to measure for"))
}
