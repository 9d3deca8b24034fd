//! The out-of-band channel: one TCP connection, one message per line.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{IpAddr, TcpStream};
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError, sync_channel};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, anyhow, bail};

use super::args::PeerArgs;
use super::message;
use super::report::Row;
use crate::exchange::limits::{HELLO_BYTES_MAX, ITERS, MESSAGE_BYTES_MAX, QPS, QUEUED_MESSAGES_MAX};
use crate::exchange::{self, Framing, Refusal};

/// A message between the two ends, with rows of a report as figures.
pub(super) type Message = message::Message<Row>;

/// The connection. A thread of its own reads it, so that a measuring loop checks for messages without a
/// system call.
pub(super) struct Control {
    stream: TcpStream,
    lines: Receiver<Result<Message, String>>,
    timeout: Duration,
}

impl Control {
    /// Connects to the server, or waits for a client if there is no host; `waiting` is called once clients
    /// can connect. `own` is this end's hello; `settle` judges the peer's, given the peer's TCP address.
    pub(super) fn open<T>(
        peer: &PeerArgs,
        own: &Message,
        waiting: impl FnOnce(),
        settle: impl Fn(Message, IpAddr) -> anyhow::Result<T>,
    ) -> anyhow::Result<(Self, T)> {
        let timeout = peer.exchange.peer_timeout();
        let Some(host) = &peer.host else {
            let listener = exchange::listen(peer.tcp_port)?;
            waiting();
            let framing = Framing::Line(HELLO_BYTES_MAX);
            let (stream, settled) =
                exchange::accept(&listener, framing, |line, ip| judge(line, ip, &settle))?;
            return Ok((Control::answer(stream, timeout, own)?, settled));
        };
        let stream = exchange::connect(host, peer.tcp_port, "the same command", timeout)?;
        let ip = stream.peer_addr()?.ip();
        let mut control = Control::over(stream, timeout)?;
        control.send(own)?;
        let settled = control.recv().and_then(|message| settle(message, ip));
        let settled = settled.map_err(|error| control.give_up(error))?;
        Ok((control, settled))
    }

    /// Answers the hello of a client, which was accepted.
    pub(super) fn answer(stream: TcpStream, timeout: Duration, own: &Message) -> anyhow::Result<Self> {
        let mut control = Control::over(stream, timeout)?;
        control.send(own)?;
        Ok(control)
    }

    fn over(stream: TcpStream, timeout: Duration) -> anyhow::Result<Self> {
        exchange::guard(&stream, timeout)?;
        let (sender, lines) = sync_channel(QUEUED_MESSAGES_MAX);
        let mut reader = BufReader::new(stream.try_clone()?);
        thread::Builder::new().name("perf-control".into()).spawn(move || {
            loop {
                let message = read_message(&mut reader, timeout);
                let is_last = message.is_err();
                if sender.send(message).is_err() || is_last {
                    return;
                }
            }
        })?;
        Ok(Control { stream, lines, timeout })
    }

    /// Time limit for a peer that sends nothing.
    pub(super) fn timeout(&self) -> Duration {
        self.timeout
    }

    /// As [`exchange::initial_rtt_nanos`].
    pub(super) fn initial_rtt_nanos(&self) -> u32 {
        exchange::initial_rtt_nanos(&self.stream)
    }

    /// Sends a message to the peer.
    pub(super) fn send(&mut self, message: &Message) -> anyhow::Result<()> {
        self.stream.write_all(&line_of(message)?).context("the peer is gone")
    }

    /// Sends the peer the reason why this end gives up.
    pub(super) fn give_up(&mut self, error: anyhow::Error) -> anyhow::Error {
        // Ignored, because the peer's end may be the reason.
        let _ = self.send(&failed(&error));
        error
    }

    /// Returns the peer's next message, if it arrives within the time limit.
    pub(super) fn recv(&mut self) -> anyhow::Result<Message> {
        match self.lines.recv_timeout(self.timeout) {
            Ok(message) => understand(message),
            Err(RecvTimeoutError::Timeout) => bail!(
                "the peer has said nothing for {} s, and it was its turn: is it still running? A slower one needs a longer \
                 --peer-timeout",
                self.timeout.as_secs()
            ),
            Err(RecvTimeoutError::Disconnected) => bail!("the peer has closed the connection"),
        }
    }

    /// Returns a message of the peer that has arrived, if any. Cheap, and does not block.
    pub(super) fn try_recv(&mut self) -> anyhow::Result<Option<Message>> {
        match self.lines.try_recv() {
            Ok(message) => understand(message).map(Some),
            Err(TryRecvError::Empty) => Ok(None),
            Err(TryRecvError::Disconnected) => bail!("the peer has closed the connection"),
        }
    }

    /// Waits until both ends have reached the barrier.
    pub(super) fn barrier(&mut self) -> anyhow::Result<()> {
        self.send(&Message::Ready)?;
        match self.recv()? {
            Message::Ready => Ok(()),
            other => Err(unexpected(&other)),
        }
    }
}

/// Judges the line of a client at this TCP address, whose message `settle` accepts as the hello.
pub(super) fn judge<T>(
    line: &[u8],
    ip: IpAddr,
    settle: impl Fn(Message, IpAddr) -> anyhow::Result<T>,
) -> Result<T, Refusal> {
    let message = Message::parse(line)?;
    settle(message, ip).map_err(|reason| {
        let answer = line_of(&failed(&reason)).ok();
        Refusal { reason, answer }
    })
}

/// Returns the error for an unexpected message.
pub(super) fn unexpected(message: &Message) -> anyhow::Error {
    anyhow!("the peer said `{}` out of turn: is it of the same version?", message.name())
}

fn failed(error: &anyhow::Error) -> Message {
    Message::Failed(format!("{error:#}"))
}

fn line_of(message: &Message) -> anyhow::Result<Vec<u8>> {
    let mut line = serde_json::to_vec(message)?;
    line.push(b'\n');
    Ok(line)
}

fn understand(message: Result<Message, String>) -> anyhow::Result<Message> {
    match message {
        Ok(Message::Failed(reason)) => bail!("the peer gave up: {reason}"),
        Ok(Message::Done { row, .. }) if !is_plausible(&row) => {
            bail!("the peer's figures count more than a test can have sent: is it of the same version?")
        }
        Ok(message) => Ok(message),
        Err(reason) => bail!(reason),
    }
}

/// Whether the counts are so small that the sums of both ends do not overflow.
fn is_plausible(row: &Row) -> bool {
    let counts = match row {
        Row::Bw(row) => [row.iterations, 0],
        Row::Lat(row) => [row.iterations, 0],
        Row::LatSpan(row) => [row.iterations, 0],
        Row::Raw(row) => [row.frames, row.sent],
    };
    counts.iter().all(|count| *count <= ITERS.end() * u64::from(*QPS.end()))
}

/// Returns the next line, or the reason why there is none.
fn read_message(reader: &mut impl BufRead, timeout: Duration) -> Result<Message, String> {
    let mut line = Vec::new();
    match reader.take(MESSAGE_BYTES_MAX as u64).read_until(b'\n', &mut line) {
        Ok(0) => Err("the peer has closed the connection".to_owned()),
        Ok(MESSAGE_BYTES_MAX) if line.last() != Some(&b'\n') => {
            Err(format!("the peer's message is longer than {MESSAGE_BYTES_MAX} bytes, and none is"))
        }
        Ok(_) => Message::parse(&line).map_err(|error| error.to_string()),
        Err(error) => Err(exchange::explain(&error, timeout)),
    }
}

#[cfg(test)]
mod tests {
    use super::super::report::BwRow;
    use super::*;

    fn said(mut text: &[u8]) -> Result<Message, String> {
        read_message(&mut text, Duration::from_secs(1))
    }

    #[test]
    fn lines_are_read_one_by_one_to_the_end() {
        let mut text = &b"\"ready\"\n{\"ends\":[]}\n0000:stranger\n"[..];
        let mut next = || read_message(&mut text, Duration::from_secs(1));
        assert!(matches!(next(), Ok(Message::Ready)));
        assert!(matches!(next(), Ok(Message::Ends(ends)) if ends.is_empty()));
        assert!(next().unwrap_err().contains("language"));
        assert!(next().unwrap_err().contains("closed"));
    }

    #[test]
    fn a_line_without_end_ends_at_the_limit() {
        let error = said(&vec![b'['; MESSAGE_BYTES_MAX + 1]).unwrap_err();
        assert!(error.contains("longer than"), "{error}");
    }

    #[test]
    fn figures_that_would_overflow_are_refused() {
        let row = |iterations| {
            let row = Row::Bw(BwRow { bytes: 1, iterations, peak_per_sec: 0.0, average_per_sec: 0.0 });
            understand(said(&line_of(&Message::Done { sent: Vec::new(), row }).unwrap()))
        };
        assert!(row(5000).is_ok());
        assert!(row(u64::MAX).unwrap_err().to_string().contains("figures"));
    }

    #[test]
    fn what_a_peer_says_out_of_turn_is_named_and_not_repeated() {
        let long = Message::Ends(vec![
            message::End::new(
                &roce::qp::Endpoint {
                    lid: 0,
                    qpn: roce::id::Qpn::new(2),
                    psn: roce::psn::Psn::new(0),
                    gid: roce::id::Gid::ZERO
                },
                0,
                0,
                0
            );
            4096
        ]);
        assert!(unexpected(&long).to_string().len() < 100);
    }
}
