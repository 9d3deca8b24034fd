//! Connections of a server before their hello. Those of port scanners, health checks or hosts that have failed are
//! closed; none of them delays another connection.

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::framing::Framing;
use super::limits::{ALLOCATION_TIMEOUT, CANDIDATES_MAX, HELLO_TIMEOUT, NOTE_INTERVAL};

/// Pause while the system has no room for another connection.
const ACCEPT_RETRY_INTERVAL: Duration = Duration::from_millis(50);

#[derive(Debug)]
pub(crate) struct Refusal {
    pub(crate) reason: anyhow::Error,
    /// Message that reports the refusal to the peer, if its protocol has one.
    pub(crate) answer: Option<Vec<u8>>,
}

impl<E: Into<anyhow::Error>> From<E> for Refusal {
    fn from(error: E) -> Self {
        Refusal { reason: error.into(), answer: None }
    }
}

pub(crate) fn listen(tcp_port: u16) -> anyhow::Result<TcpListener> {
    // A socket on [::] accepts IPv4 too; a machine without IPv6 has 0.0.0.0 only.
    TcpListener::bind((Ipv6Addr::UNSPECIFIED, tcp_port))
        .or_else(|error| match error.kind() {
            ErrorKind::AddrInUse | ErrorKind::PermissionDenied => Err(error),
            _ => TcpListener::bind((Ipv4Addr::UNSPECIFIED, tcp_port)),
        })
        .with_context(|| {
            format!("cannot listen on TCP port {tcp_port}; another one can be chosen with -p on both sides")
        })
}

/// Waits, without a time limit, for a connection whose first message `judge` accepts as the hello. Reports on
/// standard error why other connections were closed.
pub(crate) fn accept<T>(
    listener: &TcpListener,
    framing: Framing,
    mut judge: impl FnMut(&[u8], IpAddr) -> Result<T, Refusal>,
) -> anyhow::Result<(TcpStream, T)> {
    listener.set_nonblocking(true)?;
    let mut notes = Notes::default();
    let mut candidates: Vec<Candidate> = Vec::new();
    loop {
        wait(listener, &candidates)?;
        let now = Instant::now();
        let mut waiting = Vec::with_capacity(candidates.len() + 1);
        for mut candidate in candidates {
            let peer = candidate.peer;
            match candidate.look(framing, now, &mut judge) {
                Ok(None) => waiting.push(candidate),
                Ok(Some(hello)) => {
                    candidate.stream.set_nonblocking(false)?;
                    notes.finish();
                    return Ok((candidate.stream, hello));
                }
                Err(reason) => notes.closed(peer, &reason, now),
            }
        }
        candidates = waiting;
        match listener.accept() {
            Ok((stream, peer)) => {
                if candidates.len() == CANDIDATES_MAX {
                    let oldest = candidates.remove(0);
                    notes.closed(oldest.peer, &anyhow::anyhow!("gave way to the next of too many"), now);
                }
                stream.set_nonblocking(true)?;
                let until = now + HELLO_TIMEOUT;
                candidates.push(Candidate { stream, peer, bytes: Vec::new(), answered: 0, until });
            }
            // No connection was pending, or its peer has closed it.
            Err(error) if is_passing(&error) => {}
            Err(_) => std::thread::sleep(ACCEPT_RETRY_INTERVAL),
        }
    }
}

fn is_passing(error: &std::io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::ConnectionAborted | ErrorKind::Interrupted)
}

/// Waits for another connection, for bytes of one, or for the oldest one's time limit.
fn wait(listener: &TcpListener, candidates: &[Candidate]) -> anyhow::Result<()> {
    let sockets = candidates.iter().map(|candidate| PollFd::new(&candidate.stream, PollFlags::IN));
    let mut fds: Vec<PollFd<'_>> = sockets.chain([PollFd::new(listener, PollFlags::IN)]).collect();
    let left = candidates.iter().map(|candidate| candidate.until).min();
    let left = left.map(|until| until.saturating_duration_since(Instant::now()));
    let timeout = left.and_then(|left| Timespec::try_from(left).ok());
    match poll(&mut fds, timeout.as_ref()) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(error) => Err(error).context("cannot wait for a client"),
    }
}

struct Candidate {
    stream: TcpStream,
    peer: SocketAddr,
    bytes: Vec<u8>,
    /// Number of bytes of [`Framing::due`] sent.
    answered: usize,
    until: Instant,
}

impl Candidate {
    /// Receives pending bytes. Returns the hello, once it is whole and accepted, or the reason to close the
    /// connection.
    fn look<T>(
        &mut self,
        framing: Framing,
        now: Instant,
        judge: &mut impl FnMut(&[u8], IpAddr) -> Result<T, Refusal>,
    ) -> anyhow::Result<Option<T>> {
        self.read(framing)?;
        framing.message(&self.bytes)?;
        self.answer(framing, now)?;
        let Some(message) = framing.message(&self.bytes)? else {
            anyhow::ensure!(now < self.until, "it did not say in time what it wants");
            return Ok(None);
        };
        match judge(message, self.peer.ip().to_canonical()) {
            Ok(hello) => Ok(Some(hello)),
            Err(refusal) => {
                // Does not block, because the socket's buffer has room. An error is ignored, because the peer
                // may have closed.
                let _ = refusal.answer.map(|answer| self.stream.write_all(&answer));
                Err(refusal.reason)
            }
        }
    }

    /// Sends the bytes that the client waits for before it continues its first message.
    fn answer(&mut self, framing: Framing, now: Instant) -> anyhow::Result<()> {
        let due = framing.due(&self.bytes);
        let Some(more) = due.get(self.answered..).filter(|more| !more.is_empty()) else { return Ok(()) };
        // Does not block, because the socket's buffer has room.
        self.stream.write_all(more).context("it is gone")?;
        self.answered = due.len();
        self.until = now + ALLOCATION_TIMEOUT;
        Ok(())
    }

    /// Receives at most one byte more than a first message has, by which a longer one is detected.
    fn read(&mut self, framing: Framing) -> anyhow::Result<()> {
        let room = (framing.bytes_max() + 1).saturating_sub(self.bytes.len());
        match (&self.stream).take(room as u64).read_to_end(&mut self.bytes) {
            // The end of the stream, because there was room for more.
            Ok(count) if count < room && framing.message(&self.bytes).is_ok_and(|found| found.is_none()) => {
                anyhow::bail!("it hung up before it said what it wants")
            }
            Ok(_) => Ok(()),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => Ok(()),
            Err(error) => Err(error).context("it is gone"),
        }
    }
}

/// Lines on standard error about closed connections, limited in rate.
#[derive(Default)]
struct Notes {
    last_at: Option<Instant>,
    unsaid: u64,
}

impl Notes {
    fn closed(&mut self, peer: SocketAddr, reason: &anyhow::Error, now: Instant) {
        if self.last_at.is_some_and(|last| now.saturating_duration_since(last) < NOTE_INTERVAL) {
            self.unsaid += 1;
            return;
        }
        self.last_at = Some(now);
        let others = match std::mem::take(&mut self.unsaid) {
            0 => String::new(),
            unsaid => format!(" ({unsaid} others since the last such line)"),
        };
        let ip = peer.ip().to_canonical();
        eprintln!("roce: closed a connection from {ip}, and still waiting for a client: {reason:#}{others}");
    }

    fn finish(&self) {
        if self.unsaid > 0 {
            eprintln!("roce: closed {} other connections before the client's", self.unsaid);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FRAMING: Framing = Framing::Line(8);

    /// Starts a lobby that waits for the hello "right". Its thread returns the address of the client that sent this
    /// hello.
    fn lobby() -> (SocketAddr, std::thread::JoinHandle<(SocketAddr, usize)>) {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let server = std::thread::spawn(move || {
            let mut wrong = 0;
            let (stream, ()) = accept(&listener, FRAMING, |hello, ip| {
                assert_eq!(ip, IpAddr::from(Ipv4Addr::LOCALHOST));
                if hello == b"right" {
                    return Ok(());
                }
                wrong += 1;
                let answer = Some(b"no\n".to_vec());
                Err(Refusal { reason: anyhow::anyhow!("it is another"), answer })
            })
            .unwrap();
            (stream.peer_addr().unwrap(), wrong)
        });
        (address, server)
    }

    fn connection(address: SocketAddr, said: &[u8]) -> TcpStream {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        stream.write_all(said).unwrap();
        stream
    }

    fn is_closed(mut stream: &TcpStream) -> bool {
        // A reset is accepted too, because not all of the bytes sent were read.
        stream.read(&mut [0; 1]).is_ok_and(|count| count == 0) || stream.take_error().is_ok()
    }

    #[test]
    fn junk_is_closed_and_a_silent_connection_holds_up_nobody() {
        let (address, server) = lobby();
        let silent = connection(address, b"");
        let half = connection(address, b"rig");
        drop(connection(address, b""));
        drop(connection(address, b"ri"));
        assert!(is_closed(&connection(address, b"endless, without an end")));
        assert!(is_closed(&connection(address, b"right\nright\n")));
        let mut wrong = connection(address, b"wrong\n");
        let mut answer = String::new();
        wrong.read_to_string(&mut answer).unwrap();
        assert_eq!(answer, "no\n");
        let mut slow = connection(address, b"ri");
        slow.write_all(b"ght\n").unwrap();
        assert_eq!(server.join().unwrap(), (slow.local_addr().unwrap(), 1));
        assert!(is_closed(&silent) && is_closed(&half));
    }

    #[test]
    fn the_oldest_of_too_many_gives_way() {
        let (address, server) = lobby();
        let silent: Vec<_> = (0..CANDIDATES_MAX + 3).map(|_| connection(address, b"")).collect();
        assert!(silent[..3].iter().all(is_closed));
        let right = connection(address, b"right\n");
        assert_eq!(server.join().unwrap(), (right.local_addr().unwrap(), 0));
    }
}
