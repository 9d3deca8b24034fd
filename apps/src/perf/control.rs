//! The out-of-band channel: one TCP connection, one JSON value a line.

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream, ToSocketAddrs};
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, anyhow, bail};
use serde::{Deserialize, Serialize};

use super::params::Offer;
use super::report::Row;

/// Changes when a peer of another version could not follow.
const PROTOCOL: u32 = 1;
/// How long a client tries to reach its server, which may be starting just now.
const CONNECT_PATIENCE: Duration = Duration::from_secs(5);
const CONNECT_INTERVAL: Duration = Duration::from_millis(50);
/// The longest line: endpoints of thousands of queue pairs.
const LINE_BYTES_MAX: u64 = 4 << 20;

/// What one end tells the other.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Message {
    /// Opens the conversation, both ways.
    Hello(Box<Hello>),
    /// The limit program's opening.
    RawHello(RawHello),
    /// Its queue pairs, in order.
    Ends(Vec<End>),
    /// At the barrier before a run.
    Ready,
    /// It has sent all it will in this run: how many messages, and what it measured.
    Done {
        /// Messages sent, by queue pair.
        sent: Vec<u64>,
        /// Its figures.
        row: Row,
    },
    /// It gives up, and why.
    Failed(String),
}

/// Who is there, and what it wants.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Hello {
    pub(super) protocol: u32,
    pub(super) version: String,
    pub(super) offer: Offer,
    pub(super) tx_depth: u32,
    pub(super) rx_depth: u32,
    /// GIDs with their indices.
    pub(super) gids: Vec<(u8, String)>,
    /// The index that its user chose.
    pub(super) gid_index: Option<u8>,
}

/// The same of the limit program.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct RawHello {
    pub(super) protocol: u32,
    pub(super) mac: String,
    /// What must be the same at both ends: payload, mode, count.
    pub(super) job: String,
}

/// A queue pair and its memory.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct End {
    /// `LID:QPN:PSN:GID`, as ibv_rc_pingpong writes it.
    pub(super) endpoint: String,
    /// Address of the area that a peer may write.
    pub(super) rx_addr: u64,
    /// Address of the area that a peer may read.
    pub(super) tx_addr: u64,
    pub(super) rkey: u32,
}

impl Hello {
    pub(super) fn new(offer: Offer, depths: (u32, u32), gids: Vec<(u8, String)>, index: Option<u8>) -> Self {
        let version = env!("CARGO_PKG_VERSION").to_owned();
        let (tx_depth, rx_depth) = depths;
        Hello { protocol: PROTOCOL, version, offer, tx_depth, rx_depth, gids, gid_index: index }
    }
}

impl RawHello {
    pub(super) fn new(mac: String, job: String) -> Self {
        RawHello { protocol: PROTOCOL, mac, job }
    }
}

/// The connection. A thread of its own reads it, so that a measuring loop can look without a system call.
pub(super) struct Control {
    stream: TcpStream,
    lines: Receiver<Result<Message, String>>,
}

impl Control {
    /// Connects to the server, or waits for the client where `host` is `None`; `waiting` is called
    /// when clients can come.
    pub(super) fn open(host: Option<&str>, port: u16, waiting: impl FnOnce()) -> anyhow::Result<Self> {
        let stream = match host {
            Some(host) => connect(host, port)?,
            None => {
                let listener = TcpListener::bind(("::", port))
                    .or_else(|_| TcpListener::bind(("0.0.0.0", port)))
                    .with_context(|| format!("cannot listen on TCP port {port}; choose another with -p"))?;
                waiting();
                listener.accept().context("no client")?.0
            }
        };
        // Lines are small and each is waited for.
        stream.set_nodelay(true)?;
        let (sender, lines) = channel();
        let mut reader = BufReader::new(stream.try_clone()?);
        thread::Builder::new().name("perf-control".into()).spawn(move || {
            loop {
                let message = read_line(&mut reader);
                let is_last = message.is_err();
                if sender.send(message).is_err() || is_last {
                    return;
                }
            }
        })?;
        Ok(Control { stream, lines })
    }

    /// Tells the peer.
    pub(super) fn send(&mut self, message: &Message) -> anyhow::Result<()> {
        let mut line = serde_json::to_vec(message)?;
        line.push(b'\n');
        self.stream.write_all(&line).context("the peer is gone")
    }

    /// What the peer says next.
    pub(super) fn recv(&mut self) -> anyhow::Result<Message> {
        let message = self.lines.recv().map_err(|_| anyhow!("the peer has closed the connection"))?;
        understand(message)
    }

    /// What the peer has said, if anything. Cheap, and does not block.
    pub(super) fn try_recv(&mut self) -> anyhow::Result<Option<Message>> {
        match self.lines.try_recv() {
            Ok(message) => understand(message).map(Some),
            Err(TryRecvError::Empty) => Ok(None),
            Err(TryRecvError::Disconnected) => bail!("the peer has closed the connection"),
        }
    }

    /// Waits until both ends are here.
    pub(super) fn barrier(&mut self) -> anyhow::Result<()> {
        self.send(&Message::Ready)?;
        match self.recv()? {
            Message::Ready => Ok(()),
            other => Err(unexpected(&other)),
        }
    }
}

/// An answer out of turn.
pub(super) fn unexpected(message: &Message) -> anyhow::Error {
    anyhow!("the peer said `{message:?}` out of turn: is it of the same version?")
}

fn understand(message: Result<Message, String>) -> anyhow::Result<Message> {
    match message {
        Ok(Message::Failed(reason)) => bail!("the peer gave up: {reason}"),
        Ok(Message::Hello(hello)) if hello.protocol != PROTOCOL => bail!(
            "the peer (version {}) speaks protocol {} and this program {PROTOCOL}: use the same version at both ends",
            hello.version,
            hello.protocol
        ),
        Ok(message) => Ok(message),
        Err(reason) => bail!(reason),
    }
}

fn read_line(reader: &mut impl BufRead) -> Result<Message, String> {
    let mut line = Vec::new();
    match std::io::Read::take(&mut *reader, LINE_BYTES_MAX).read_until(b'\n', &mut line) {
        Ok(0) => Err("the peer has closed the connection".to_owned()),
        Ok(_) => serde_json::from_slice(&line).map_err(|_| {
            "the peer does not speak the language of `roce perf`: is it another program (perftest's own \
             tools cannot be the peer), or of another version?"
                .to_owned()
        }),
        Err(error) => Err(format!("the peer is gone: {error}")),
    }
}

fn connect(host: &str, port: u16) -> anyhow::Result<TcpStream> {
    let addresses: Vec<_> =
        (host, port).to_socket_addrs().with_context(|| format!("{host} has no address"))?.collect();
    let start = Instant::now();
    loop {
        match TcpStream::connect(&addresses[..]) {
            Ok(stream) => return Ok(stream),
            Err(error) if start.elapsed() >= CONNECT_PATIENCE => {
                return Err(error).with_context(|| {
                    format!(
                        "no server at {host}, TCP port {port}: start the same command there without a host"
                    )
                });
            }
            Err(_) => thread::sleep(CONNECT_INTERVAL),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_read_and_strangers_are_told_apart() {
        let mut text = &b"\"ready\"\n{\"ends\":[]}\n0000:stranger\n"[..];
        assert!(matches!(read_line(&mut text), Ok(Message::Ready)));
        assert!(matches!(read_line(&mut text), Ok(Message::Ends(ends)) if ends.is_empty()));
        assert!(read_line(&mut text).unwrap_err().contains("language"));
        assert!(read_line(&mut text).unwrap_err().contains("closed"));
    }
}
