//! The TCP exchange of ibv_rc_pingpong, by which two ends of a ping-pong find each other.
//!
//! ```text
//!   client                          server
//!     |---- connect, TCP 18515 ------->|
//!     |---- line of the client ------->|  connects its queue pair
//!     |<--- line of the server --------|
//!     |---- "done" ------------------->|
//! ```

use std::io::{Read, Write};
use std::net::{IpAddr, TcpStream};
use std::time::Duration;

use anyhow::{Context as _, bail};
use verbs::Endpoint;

use crate::exchange::pingpong::{self, DONE, LINE_BYTES};
use crate::exchange::{self, ExchangeArgs, Framing};

/// Waits on `tcp_port` for a client whose line `judge` accepts.
pub(super) fn accept<T>(
    tcp_port: u16,
    options: &ExchangeArgs,
    judge: impl Fn(Endpoint, IpAddr) -> anyhow::Result<T>,
) -> anyhow::Result<(TcpStream, T)> {
    let listener = exchange::listen(tcp_port)?;
    let (stream, judged) = exchange::accept(&listener, Framing::Record(LINE_BYTES), |line, ip| {
        Ok(judge(pingpong::parse(line)?, ip)?)
    })?;
    exchange::guard(&stream, options.peer_timeout())?;
    Ok((stream, judged))
}

/// Connects to the server `host`, which may still be starting.
pub(super) fn connect(host: &str, tcp_port: u16, options: &ExchangeArgs) -> anyhow::Result<TcpStream> {
    let timeout = options.peer_timeout();
    let stream = exchange::connect(host, tcp_port, "`roce ping` or `ibv_rc_pingpong`", timeout)?;
    exchange::guard(&stream, timeout)?;
    Ok(stream)
}

/// Sends this end's line.
pub(super) fn send_line(stream: &mut impl Write, own: &Endpoint) -> anyhow::Result<()> {
    stream.write_all(&pingpong::line(own)).context("cannot send this end's address to the peer")
}

/// Receives the server's line.
pub(super) fn receive_line(stream: &mut TcpStream, timeout: Duration) -> anyhow::Result<Endpoint> {
    let mut line = [0; LINE_BYTES];
    exchange::read_record(stream, &mut line, timeout, "address")?;
    Ok(pingpong::parse(&line)?)
}

/// Sends the client's last message.
pub(super) fn send_done(stream: &mut impl Write) -> anyhow::Result<()> {
    stream.write_all(&DONE).context("cannot tell the server that the client is ready")
}

/// Waits for the client's last message.
pub(super) fn receive_done(stream: &mut TcpStream, timeout: Duration) -> anyhow::Result<()> {
    let mut word = [0; DONE.len()];
    exchange::read_record(stream, &mut word, timeout, "`done`, by which it says that it is connected")?;
    if word != DONE {
        bail!("the client said something else than `done`: is it `roce ping` or `ibv_rc_pingpong`?");
    }
    Ok(())
}

/// Waits until the peer closes the connection, at most for `timeout`. An end of this project closes it when
/// it needs no more ACKs, rdma-core's at once.
pub(super) fn wait_for_hang_up(stream: &mut TcpStream, timeout: Duration) {
    if stream.shutdown(std::net::Shutdown::Write).is_ok() && stream.set_read_timeout(Some(timeout)).is_ok() {
        // An error, like an end of file, shows that the peer has closed.
        let _ = stream.read(&mut [0; 1]);
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, TcpListener};

    use super::*;
    use verbs::{Gid, Psn, Qpn};

    const TIMEOUT: Duration = Duration::from_secs(60);

    /// Returns the server's end of a connection on which the client sends `said` and closes.
    fn server(said: &[u8]) -> TcpStream {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        client.write_all(said).unwrap();
        listener.accept().unwrap().0
    }

    #[test]
    fn the_exchange_is_that_of_ibv_rc_pingpong() {
        let gid = Gid::from(Ipv4Addr::new(10, 0, 0, 1));
        let end = Endpoint { lid: 0, qpn: Qpn::new(0x11), psn: Psn::new(0x9c2d3f), gid };
        let mut sent = Vec::new();
        send_line(&mut sent, &end).unwrap();
        send_done(&mut sent).unwrap();
        assert_eq!(sent, b"0000:000011:9c2d3f:00000000000000000000ffff0a000001\0done\0");
        let mut stream = server(&sent);
        assert_eq!(receive_line(&mut stream, TIMEOUT).unwrap(), end);
        receive_done(&mut stream, TIMEOUT).unwrap();
    }

    #[test]
    fn a_peer_that_says_something_else_is_told_why() {
        let said = |bytes: &[u8]| format!("{:#}", receive_line(&mut server(bytes), TIMEOUT).unwrap_err());
        assert!(said(&[b'0'; 20]).contains("hung up"));
        assert!(said(&[b'x'; LINE_BYTES]).contains("is no LID:QPN:PSN:GID line"));
        let said = |bytes: &[u8]| format!("{:#}", receive_done(&mut server(bytes), TIMEOUT).unwrap_err());
        assert!(said(b"do").contains("hung up"));
        assert!(said(b"nope\0").contains("something else than `done`"));
    }
}
