//! An exchange in lockstep: the server answers each record of the client with a record of the same length. Records have
//! no names, because both ends know their order.

use std::collections::VecDeque;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, anyhow, bail};

use super::limits::QUEUED_MESSAGES_MAX;
use super::stream;

const CHUNK_BYTES: usize = 4096;

/// The connection. A thread of its own reads it, so that a measuring loop checks for records without a system call.
pub(crate) struct Lockstep {
    stream: TcpStream,
    is_client: bool,
    timeout: Duration,
    /// Chunks of bytes in order of arrival; an empty chunk at the end of the stream.
    chunks: Receiver<Result<Vec<u8>, String>>,
    /// Bytes that arrived and were not taken yet.
    received: Vec<u8>,
    is_closed: bool,
    /// Own records whose counterparts have not been taken. A client has sent the first of them, a server none.
    own: VecDeque<Vec<u8>>,
}

impl Lockstep {
    /// Begins an exchange over `stream`, from which `received` was read before.
    pub(crate) fn new(
        stream: TcpStream,
        is_client: bool,
        received: Vec<u8>,
        timeout: Duration,
    ) -> anyhow::Result<Self> {
        stream::guard(&stream, timeout)?;
        let (sender, chunks) = sync_channel(QUEUED_MESSAGES_MAX);
        let mut reader = stream.try_clone()?;
        thread::Builder::new().name("perf-lockstep".into()).spawn(move || {
            let mut buffer = [0; CHUNK_BYTES];
            loop {
                let chunk = match reader.read(&mut buffer) {
                    Ok(count) => Ok(buffer.get(..count).unwrap_or_default().to_vec()),
                    Err(error) => Err(stream::explain(&error, timeout)),
                };
                let is_last = !matches!(&chunk, Ok(bytes) if !bytes.is_empty());
                if sender.send(chunk).is_err() || is_last {
                    return;
                }
            }
        })?;
        let own = VecDeque::new();
        Ok(Lockstep { stream, is_client, timeout, chunks, received, is_closed: false, own })
    }

    /// Time limit for a peer that sends nothing.
    pub(crate) fn timeout(&self) -> Duration {
        self.timeout
    }

    /// As [`stream::initial_rtt_nanos`].
    pub(crate) fn initial_rtt_nanos(&self) -> u32 {
        stream::initial_rtt_nanos(&self.stream)
    }

    /// Queues a record of this end. A client sends it at once if no record was queued.
    pub(crate) fn push(&mut self, record: &[u8]) -> anyhow::Result<()> {
        if self.is_client && self.own.is_empty() {
            self.write(record)?;
        }
        self.own.push_back(record.to_vec());
        Ok(())
    }

    /// Returns whether the counterpart of each record of this end was taken.
    pub(crate) fn is_idle(&self) -> bool {
        self.own.is_empty()
    }

    /// Returns the counterpart of the oldest record of this end, if it has arrived. Fails if the peer has closed the
    /// connection, even if no record is due.
    pub(crate) fn try_take(&mut self) -> anyhow::Result<Option<Vec<u8>>> {
        let due = self.own.front().map_or(1, Vec::len);
        if !self.poll_for(due)? {
            return if self.is_closed { Err(closed()) } else { Ok(None) };
        }
        // The client may have sent a record before this server has queued the counterpart.
        if self.own.is_empty() && !self.is_client { Ok(None) } else { self.advance() }
    }

    /// Returns the counterpart of the oldest record of this end, if it arrives within the time limit.
    pub(crate) fn take(&mut self) -> anyhow::Result<Vec<u8>> {
        let due = self.own.front().map_or(0, Vec::len);
        self.wait_for(due)?;
        self.advance()?.ok_or_else(|| anyhow!("no record is due"))
    }

    /// Returns the next bytes of the peer within the time limit, without taking them.
    pub(crate) fn preview(&mut self, len: usize) -> anyhow::Result<&[u8]> {
        self.wait_for(len)?;
        Ok(self.received.get(..len).unwrap_or_default())
    }

    /// Whether the peer has closed the connection after its last record.
    pub(crate) fn has_ended(&mut self) -> anyhow::Result<bool> {
        if self.poll_for(1)? { Err(out_of_turn()) } else { Ok(self.is_closed) }
    }

    /// Waits until the peer has closed the connection, within the time limit.
    pub(crate) fn wait_end(&mut self) -> anyhow::Result<()> {
        match self.wait_for(1) {
            Ok(()) => Err(out_of_turn()),
            Err(_) if self.is_closed => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Sends the last bytes, which have no counterpart.
    pub(crate) fn finish(&mut self, bytes: &[u8]) {
        // An error is ignored, because the peer may have closed the connection after its last bytes.
        let _ = self.stream.write_all(bytes);
    }

    fn poll_for(&mut self, len: usize) -> anyhow::Result<bool> {
        while !self.is_closed && self.received.len() < len {
            match self.chunks.try_recv() {
                Ok(chunk) => self.append(chunk)?,
                Err(TryRecvError::Empty) => return Ok(false),
                Err(TryRecvError::Disconnected) => self.is_closed = true,
            }
        }
        Ok(self.received.len() >= len)
    }

    fn wait_for(&mut self, len: usize) -> anyhow::Result<()> {
        let end = Instant::now() + self.timeout;
        while self.received.len() < len {
            match self.chunks.recv_timeout(end.saturating_duration_since(Instant::now())) {
                Ok(chunk) => self.append(chunk)?,
                Err(RecvTimeoutError::Disconnected) => self.is_closed = true,
                Err(RecvTimeoutError::Timeout) => bail!(
                    "the peer has sent nothing for {} s, and it was its turn: does it run the same test with the same \
                     options? A slower one needs a longer --peer-timeout",
                    self.timeout.as_secs()
                ),
            }
            if self.is_closed && self.received.len() < len {
                return Err(closed());
            }
        }
        Ok(())
    }

    fn append(&mut self, chunk: Result<Vec<u8>, String>) -> anyhow::Result<()> {
        let bytes = chunk.map_err(anyhow::Error::msg)?;
        self.is_closed |= bytes.is_empty();
        self.received.extend(bytes);
        Ok(())
    }

    /// Takes the counterpart of the oldest record, which has arrived: a server sends that record, a client the next.
    fn advance(&mut self) -> anyhow::Result<Option<Vec<u8>>> {
        let Some(record) = self.own.pop_front() else { return Err(out_of_turn()) };
        let taken = self.received.drain(..record.len()).collect();
        let next = if self.is_client { self.own.front().cloned() } else { Some(record) };
        if let Some(next) = next {
            self.write(&next)?;
        }
        Ok(Some(taken))
    }

    fn write(&mut self, record: &[u8]) -> anyhow::Result<()> {
        self.stream.write_all(record).context("the peer is gone")
    }
}

impl Drop for Lockstep {
    fn drop(&mut self) {
        // Otherwise the stream would remain open as long as the thread reads it. An error is ignored, because the
        // stream may be closed already.
        let _ = self.stream.shutdown(Shutdown::Both);
    }
}

fn closed() -> anyhow::Error {
    anyhow!("the peer has closed the connection; its own message says why")
}

fn out_of_turn() -> anyhow::Error {
    anyhow!("the peer has sent a record out of turn: does it run the same test with the same options?")
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, TcpListener};

    use super::*;

    fn ends(timeout: Duration) -> (Lockstep, TcpStream) {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let far = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let near = listener.accept().unwrap().0;
        (Lockstep::new(near, false, b"ab".to_vec(), timeout).unwrap(), far)
    }

    fn take(end: &mut Lockstep) -> Vec<u8> {
        loop {
            match end.try_take().unwrap() {
                Some(record) => return record,
                None => std::thread::yield_now(),
            }
        }
    }

    fn read(stream: &mut TcpStream, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        stream.read_exact(&mut bytes).unwrap();
        bytes
    }

    #[test]
    fn a_server_answers_each_record_and_not_before() {
        let (mut server, mut client) = ends(Duration::from_secs(60));
        for own in [&b"123"[..], b"4", b"5"] {
            server.push(own).unwrap();
        }
        assert_eq!(server.try_take().unwrap(), None);
        client.write_all(b"cde").unwrap();
        assert_eq!((take(&mut server), take(&mut server)), (b"abc".to_vec(), b"d".to_vec()));
        assert_eq!(read(&mut client, 4), b"1234");
        assert_eq!((server.take().unwrap(), server.is_idle()), (b"e".to_vec(), true));
        assert_eq!(read(&mut client, 1), b"5");
        assert!(!server.has_ended().unwrap());
        client.write_all(b"f").unwrap();
        assert_eq!(server.preview(1).unwrap(), b"f");
        assert_eq!(server.try_take().unwrap(), None, "a client may be ahead");
        assert!(server.has_ended().is_err() && server.wait_end().is_err());
    }

    #[test]
    fn a_client_sends_a_record_after_the_answer_to_the_one_before() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let mut client = Lockstep::new(stream, true, Vec::new(), Duration::from_secs(60)).unwrap();
        let mut server = listener.accept().unwrap().0;
        client.push(b"12").unwrap();
        client.push(b"3").unwrap();
        assert_eq!(read(&mut server, 2), b"12");
        server.set_nonblocking(true).unwrap();
        assert!(server.read(&mut [0]).is_err(), "nothing more before the answer");
        server.set_nonblocking(false).unwrap();
        server.write_all(b"abc").unwrap();
        assert_eq!((client.take().unwrap(), client.take().unwrap()), (b"ab".to_vec(), b"c".to_vec()));
        assert_eq!(read(&mut server, 1), b"3");
        server.write_all(b"x").unwrap();
        assert_eq!(client.preview(1).unwrap(), b"x");
        assert!(client.try_take().is_err(), "a server is never ahead");
        client.received.clear();
        drop(server);
        client.wait_end().unwrap();
        assert!(client.has_ended().unwrap());
        assert!(client.try_take().unwrap_err().to_string().contains("closed"));
    }

    #[test]
    fn a_silent_or_absent_peer_is_an_error() {
        let (mut server, client) = ends(Duration::from_secs(1));
        server.push(b"long").unwrap();
        assert!(server.take().unwrap_err().to_string().contains("nothing for 1 s"));
        drop(client);
        assert!(server.take().unwrap_err().to_string().contains("closed"));
    }

    #[test]
    fn a_peer_that_floods_costs_no_memory() {
        let (mut server, mut client) = ends(Duration::from_secs(60));
        client.set_write_timeout(Some(Duration::from_millis(200))).unwrap();
        let flood = std::thread::spawn(move || while client.write_all(&[b'x'; CHUNK_BYTES]).is_ok() {});
        server.push(&[0; 100]).unwrap();
        assert_eq!(take(&mut server).len(), 100);
        flood.join().unwrap();
        assert!(server.received.len() <= CHUNK_BYTES);
    }
}
