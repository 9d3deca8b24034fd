//! The options of `roce ping`.

use clap::Args;
use verbs::{PathMtu, RecoveryScheme};

use crate::device::{DeviceArgs, parse_path_mtu};
use crate::exchange::ExchangeArgs;

/// Bounce a message between two ends, as ibv_rc_pingpong does.
///
/// Without HOST this is the server, which waits for a client; with HOST it is the client, which sends
/// first. The two find each other over TCP with the exchange of rdma-core's ibv_rc_pingpong, so either end
/// may be that program on an RDMA NIC or on Linux's soft-RoCE. Give it a GID with -g there.
///
/// Prints both addresses, the throughput of both directions together, and the time of one exchange,
/// which is two messages.
#[derive(Args)]
#[command(after_help = "\
Examples:
  Two processes on this machine, no privileges, no set-up:
      roce ping --port memif:wire &
      roce ping --port memif:wire localhost

  Against Linux's soft-RoCE on the host 10.0.0.1 (there: ibv_rc_pingpong -d rxe0 -g 1):
      roce ping --port af_packet:eth1 10.0.0.1

  With 5 % of the packets lost, contents compared, and a capture of it all:
      roce ping --port memif:wire -s 65536 -c --drop-chance 0.05 --pcap /tmp/ping.pcap localhost

  The same with only lost packets retransmitted, at both ends:
      roce ping --port memif:wire -s 65536 --recovery selective-repeat --drop-chance 0.05 &
      roce ping --port memif:wire -s 65536 --recovery selective-repeat --drop-chance 0.05 localhost

Exit status: 0 when all exchanges were made, 1 on failure, 2 on wrong usage.")]
pub(crate) struct PingArgs {
    /// The server's name or address for the TCP exchange; without it, this is the server.
    #[arg(value_name = "HOST")]
    pub(super) host: Option<String>,

    #[command(flatten)]
    pub(super) device: DeviceArgs,

    /// TCP port of the exchange.
    #[arg(short = 'p', long, value_name = "PORT", default_value_t = 18515)]
    pub(super) tcp_port: u16,

    /// Message size.
    #[arg(short, long, value_name = "BYTES", default_value_t = 4096, value_parser = clap::value_parser!(u32).range(..=1 << 30))]
    pub(super) size: u32,

    /// Path MTU: 256, 512, 1024, 2048 or 4096. Both ends take the same.
    #[arg(short, long, value_name = "BYTES", default_value = "1024", value_parser = parse_path_mtu)]
    pub(super) mtu: PathMtu,

    /// Receives posted at a time.
    #[arg(short, long, value_name = "COUNT", default_value_t = 500, value_parser = clap::value_parser!(u32).range(1..))]
    pub(super) rx_depth: u32,

    /// Number of exchanges.
    #[arg(short = 'n', long, value_name = "COUNT", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..))]
    pub(super) iters: u32,

    /// Service level, put into the precedence bits of the traffic class (DSCP CS0 to CS7).
    #[arg(short = 'l', long, value_name = "0..7", default_value_t = 0, value_parser = clap::value_parser!(u8).range(..=7))]
    pub(super) sl: u8,

    /// How losses are repaired: go-back-n as in the standard, improved-go-back-n, or, where both ends ask for
    /// the same, selective-repeat or selective-repeat:WINDOW, where so many packets are kept out of order, 64
    /// to 4096 [default: improved-go-back-n]
    #[arg(long, value_name = "SCHEME")]
    pub(super) recovery: Option<RecoveryScheme>,

    /// Sleep on completion events instead of polling (ibv_rc_pingpong's --events, which is a file here).
    #[arg(short = 'e', long = "cq-events")]
    pub(super) cq_events: bool,

    /// Index of this end's GID (see `roce devinfo`); by default the server takes one in reach of its client,
    /// and the client its first IPv4 address or else its link-local one.
    #[arg(short, long, value_name = "INDEX")]
    pub(super) gid_idx: Option<u8>,

    /// Compare the contents at the end; the client must have it too.
    #[arg(short, long)]
    pub(super) chk: bool,

    /// Print one JSON object instead of text.
    #[arg(long)]
    pub(super) json: bool,

    #[command(flatten)]
    pub(super) exchange: ExchangeArgs,
}
