//! `roce ping`: the RC ping-pong of ibv_rc_pingpong, over any port and against the original.

mod agree;
mod args;
mod game;
mod oob;

use std::net::TcpStream;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, bail};
use serde::Serialize;
use verbs::stat::DeviceCounters;
use verbs::{Access, ConnAttr, ConnectOptions, Context, Endpoint};

use crate::exchange::{self, DeviceReach, gid};
use crate::progress::Progress;
use crate::{counters, events};
pub(crate) use args::PingArgs;
use game::Game;

/// Time limit for the peer of a memif or vhost socket to come up.
const LINK_TIMEOUT: Duration = Duration::from_secs(5);
/// Time that a finished end stays, because the peer may still need its ACKs.
const FAREWELL_TIMEOUT: Duration = Duration::from_secs(5);
/// The same after losses, if the peer cannot signal that it is done: four times the peer's local ACK timeout,
/// within which it retransmits.
const LOSSY_FAREWELL: Duration = Duration::from_millis(300);

/// An end, for the report.
#[derive(Serialize)]
struct Address {
    qpn: u32,
    psn: u32,
    gid: String,
}

impl From<&Endpoint> for Address {
    fn from(end: &Endpoint) -> Self {
        Address { qpn: end.qpn.value(), psn: end.psn.value(), gid: end.gid.to_string() }
    }
}

/// The result, as `--json` prints it.
#[derive(Serialize)]
struct Report {
    local: Address,
    remote: Address,
    size_bytes: u32,
    iters: u32,
    bytes: u64,
    seconds: f64,
    mbit_per_sec: f64,
    usec_per_iter: f64,
    contents_checked: bool,
    recovery: String,
    retransmitted_pkts: u64,
    device_counters: DeviceCounters,
    events: serde_json::Value,
}

/// Runs one end.
pub(crate) fn run(args: &PingArgs) -> anyhow::Result<ExitCode> {
    let context = args.device.open()?;
    let attr = context.attr();
    if attr.active_mtu.is_none_or(|active| active < args.mtu) {
        bail!(
            "a path MTU of {} needs an interface MTU of at least {}, but {} has {}: take a smaller -m on both ends, or raise the MTU",
            args.mtu.bytes(),
            args.mtu.bytes() as usize + roce::qp::HEADER_ROOM_BYTES,
            attr.port,
            attr.mtu_bytes
        );
    }
    let mut game = Game::set_up(&context, args)?;
    let (local, remote, mut stream) = match &args.host {
        None => serve(&context, args, &mut game)?,
        Some(host) => join(&context, args, &mut game, host)?,
    };
    let played = game.play(args.host.is_some(), args.iters);
    let elapsed = match played {
        Ok(elapsed) => elapsed,
        Err(error) => {
            // Reported on failure too, because the events may have caused it.
            events::tell(&context.event_outcomes(), args.json);
            return Err(error);
        }
    };
    if args.chk {
        game.check_contents()?;
    }
    let retransmitted_pkts = say_farewell(&game, &mut stream);
    let outcomes = context.event_outcomes();
    let bytes = u64::from(args.size) * u64::from(args.iters) * 2;
    let micros = elapsed.as_secs_f64() * 1e6;
    let report = Report {
        local: (&local).into(),
        remote: (&remote).into(),
        size_bytes: args.size,
        iters: args.iters,
        bytes,
        seconds: elapsed.as_secs_f64(),
        mbit_per_sec: bytes as f64 * 8.0 / micros,
        usec_per_iter: micros / f64::from(args.iters),
        contents_checked: args.chk,
        recovery: agree::agree(args.recovery, remote.lid).to_string(),
        retransmitted_pkts,
        device_counters: context.device_counters(),
        events: events::report(&outcomes),
    };
    if args.json {
        println!("{}", serde_json::to_string(&report)?);
    } else {
        let Report { seconds, mbit_per_sec, iters, usec_per_iter, .. } = report;
        println!("{bytes} bytes in {seconds:.2} seconds = {mbit_per_sec:.2} Mbit/sec");
        println!("{iters} iters in {seconds:.2} seconds = {usec_per_iter:.2} usec/iter");
        counters::summary(&report.device_counters).iter().for_each(|line| println!("{line}"));
    }
    events::tell(&outcomes, args.json);
    Ok(ExitCode::SUCCESS)
}

type Connected = (Endpoint, Endpoint, TcpStream);

/// Runs the server: receives the client's address, connects, answers with its own.
fn serve(context: &Context, args: &PingArgs, game: &mut Game) -> anyhow::Result<Connected> {
    if let Some(index) = args.gid_idx {
        // Checked before a client connects, because no client could correct it.
        local_endpoint(context, args, game, index)?;
    }
    let waiting = Progress::waiting(format!("waiting for a client on TCP port {}", args.tcp_port));
    let reach = DeviceReach::new(context, &args.device.port);
    let judge = |remote: Endpoint, ip| {
        gid::check(remote.gid, ip, args.exchange.any_gid, &reach)?;
        let gid_index = match args.gid_idx {
            Some(index) => index,
            None => context.gid_index_for(remote.gid)?,
        };
        let local = local_endpoint(context, args, game, gid_index)?;
        check_family(&local, &remote, gid_index)?;
        Ok((local, remote, gid_index))
    };
    let (mut stream, (local, remote, gid_index)) = oob::accept(args.tcp_port, &args.exchange, judge)?;
    drop(waiting);
    print_address(args, "  local address: ", &local);
    context.wait_link(LINK_TIMEOUT)?;
    connect(args, game, (&local, &remote), gid_index, &stream)?;
    oob::send_line(&mut stream, &local)?;
    oob::receive_done(&mut stream, args.exchange.peer_timeout())?;
    print_address(args, "  remote address:", &remote);
    Ok((local, remote, stream))
}

/// Runs the client: sends its address, receives the server's, connects.
fn join(context: &Context, args: &PingArgs, game: &mut Game, host: &str) -> anyhow::Result<Connected> {
    let gid_index = args.gid_idx.unwrap_or_else(|| default_gid_index(context));
    let local = local_endpoint(context, args, game, gid_index)?;
    print_address(args, "  local address: ", &local);
    let mut stream = oob::connect(host, args.tcp_port, &args.exchange)?;
    // Before the address is sent, because it makes the server connect: without a link, a server of rdma-core
    // resolves no Ethernet address and fails ("Failed to modify QP to RTR").
    context.wait_link(LINK_TIMEOUT)?;
    oob::send_line(&mut stream, &local)?;
    let remote = oob::receive_line(&mut stream, args.exchange.peer_timeout())?;
    let reach = DeviceReach::new(context, &args.device.port);
    gid::check(remote.gid, stream.peer_addr()?.ip(), args.exchange.any_gid, &reach)?;
    check_family(&local, &remote, gid_index)?;
    connect(args, game, (&local, &remote), gid_index, &stream)?;
    oob::send_done(&mut stream)?;
    print_address(args, "  remote address:", &remote);
    Ok((local, remote, stream))
}

/// Returns the first IPv4 address, because most peers have one; otherwise the link-local address.
fn default_gid_index(context: &Context) -> u8 {
    let gids = context.attr().gids;
    let first_v4 = gids.iter().find(|(_, gid)| gid.is_ipv4()).map(|(index, _)| *index);
    first_v4.and_then(|index| u8::try_from(index).ok()).unwrap_or(0)
}

fn local_endpoint(
    context: &Context,
    args: &PingArgs,
    game: &Game,
    gid_index: u8,
) -> anyhow::Result<Endpoint> {
    if context.gid(usize::from(gid_index)).is_none() {
        let gids: Vec<String> =
            context.attr().gids.iter().map(|(index, gid)| format!("{index} = {gid}")).collect();
        bail!("there is no GID of index {gid_index}; there are {}", gids.join(", "));
    }
    Ok(Endpoint { lid: agree::offer(args.recovery), ..game.qp().endpoint(gid_index) })
}

/// Refuses a peer whose GID cannot be reached from this end's.
fn check_family(local: &Endpoint, remote: &Endpoint, gid_index: u8) -> anyhow::Result<()> {
    if local.gid.is_ipv4() != remote.gid.is_ipv4() {
        bail!(
            "this end's GID {} (index {gid_index}) and the peer's {} are of different families: choose with -g on either end",
            local.gid,
            remote.gid
        );
    }
    Ok(())
}

fn connect(
    args: &PingArgs,
    game: &mut Game,
    (local, remote): (&Endpoint, &Endpoint),
    gid_index: u8,
    stream: &TcpStream,
) -> anyhow::Result<()> {
    if let Some(note) = agree::note(local.lid, remote.lid) {
        eprintln!("roce: {note}");
    }
    let options = ConnectOptions {
        gid_index,
        traffic_class: args.sl << 5,
        conn: ConnAttr {
            path_mtu: args.mtu,
            access: Access::LOCAL_WRITE,
            max_rd_atomic: 1,
            max_dest_rd_atomic: 1,
            recovery: agree::agree(args.recovery, remote.lid),
            initial_rtt_nanos: exchange::initial_rtt_nanos(stream),
            ..ConnAttr::default()
        },
    };
    game.qp().connect(remote, &options).context("cannot connect the queue pair")?;
    // Posted before the peer receives this end's address, so that its first message finds a receive.
    game.post_receives()
}

/// Stays until the peer needs no more ACKs. Returns the number of packets that this end retransmitted.
fn say_farewell(game: &Game, stream: &mut TcpStream) -> u64 {
    oob::wait_for_hang_up(stream, FAREWELL_TIMEOUT);
    let counters = game.qp().counters();
    let losses = counters.retransmitted_pkts + counters.duplicate_request + counters.out_of_seq_request;
    if losses > 0 {
        std::thread::sleep(LOSSY_FAREWELL);
    }
    counters.retransmitted_pkts
}

fn print_address(args: &PingArgs, label: &str, end: &Endpoint) {
    if !args.json {
        let (lid, qpn, psn, gid) = (end.lid, end.qpn.value(), end.psn.value(), end.gid);
        println!("{label} LID 0x{lid:04x}, QPN 0x{qpn:06x}, PSN 0x{psn:06x}, GID {gid}");
    }
}
