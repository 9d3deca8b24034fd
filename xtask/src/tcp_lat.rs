//! `xtask tcp-lat`: a ping-pong over TCP whose ends sleep in poll(2), beside which `cargo xtask bench --port sleep`
//! measures this stack.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use clap::Args;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::stats::{median, sorted};

/// Bytes of a message.
const MESSAGE_BYTES: usize = 64;
/// Time in which a message must arrive, and a server listen.
const PATIENCE: Timespec = Timespec { tv_sec: 20, tv_nsec: 0 };
const CONNECT_TRIES: u32 = 500;
const CONNECT_INTERVAL: Duration = Duration::from_millis(20);

/// A ping-pong over TCP whose ends sleep in poll(2)
#[derive(Args)]
pub(crate) struct TcpLatArgs {
    /// Address of the server: the client connects to it, the server listens on it
    address: SocketAddr,

    /// Is the server
    #[arg(long)]
    listen: bool,

    /// Number of messages
    #[arg(short = 'n', default_value_t = 1000)]
    iters: u32,

    /// Microseconds that the client pauses before each message
    #[arg(long, default_value_t = 0)]
    pause: u32,
}

/// Plays one end. The client prints the results with the keys of `roce perf --json`.
pub(crate) fn run(args: &TcpLatArgs) -> anyhow::Result<()> {
    let mut stream = if args.listen {
        TcpListener::bind(args.address).context("listen")?.accept().context("accept")?.0
    } else {
        connect(args.address)?
    };
    stream.set_nodelay(true)?;
    stream.set_nonblocking(true)?;
    let mut halves_usec = Vec::new();
    for _ in 0..args.iters {
        if args.listen {
            receive(&mut stream)?;
            stream.write_all(&[0; MESSAGE_BYTES])?;
            continue;
        }
        thread::sleep(Duration::from_micros(args.pause.into()));
        let before = Instant::now();
        stream.write_all(&[0; MESSAGE_BYTES])?;
        receive(&mut stream)?;
        halves_usec.push(before.elapsed().as_nanos() as f64 / 2000.0);
    }
    if let Some(t_typical_usec) = median(&halves_usec) {
        let sorted = sorted(&halves_usec);
        let t_99_usec = sorted.get(sorted.len() * 99 / 100).copied().unwrap_or(t_typical_usec);
        let row = serde_json::json!({ "t_typical_usec": t_typical_usec, "percentile_99_usec": t_99_usec });
        println!("{}", serde_json::json!({ "results": [row] }));
    }
    Ok(())
}

fn connect(address: SocketAddr) -> anyhow::Result<TcpStream> {
    for _ in 0..CONNECT_TRIES {
        match TcpStream::connect(address) {
            Err(error) if error.kind() == ErrorKind::ConnectionRefused => thread::sleep(CONNECT_INTERVAL),
            connected => return connected.context("connect"),
        }
    }
    bail!("no server listens on {address}")
}

/// Sleeps until a whole message has arrived.
fn receive(stream: &mut TcpStream) -> anyhow::Result<()> {
    let mut message = [0; MESSAGE_BYTES];
    let mut received = 0;
    while let Some(room) = message.get_mut(received..).filter(|room| !room.is_empty()) {
        match stream.read(room) {
            Ok(0) => bail!("the other end has closed the connection"),
            Ok(count) => received += count,
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                if poll(&mut [PollFd::new(&*stream, PollFlags::IN)], Some(&PATIENCE))? == 0 {
                    bail!("no message within {} s", PATIENCE.tv_sec);
                }
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}
