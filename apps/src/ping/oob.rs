//! How two ends of a ping-pong find each other: the TCP exchange of ibv_rc_pingpong.
//!
//! ```text
//!   client                          server
//!     |---- connect, TCP 18515 ------->|
//!     |---- line of the client ------->|  connects its queue pair
//!     |<--- line of the server --------|
//!     |---- "done" ------------------->|
//! ```
//! A line is `LID:QPN:PSN:GID` in hexadecimal, of fixed length, with the NUL of a C string behind it. RoCE
//! has no LIDs: see `agree` for what stands there instead.

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Ipv6Addr, TcpListener, TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use verbs::Endpoint;

/// Bytes of a line: `sizeof "0000:000000:000000:00000000000000000000000000000000"`.
const LINE_BYTES: usize = 52;
/// The client's last word: `sizeof "done"`.
const DONE: &[u8; 5] = b"done\0";
/// How long a peer may take over a line; finding a neighbour is part of it.
const PEER_TIMEOUT: Duration = Duration::from_secs(30);
/// How long a client waits for its server to start listening.
const SERVER_START_TIMEOUT: Duration = Duration::from_secs(3);
const CONNECT_RETRY_INTERVAL: Duration = Duration::from_millis(50);

/// Waits for a client on `tcp_port`.
pub(super) fn accept(tcp_port: u16) -> anyhow::Result<TcpStream> {
    // A socket on [::] takes IPv4 too; a machine without IPv6 has the other.
    let listener = TcpListener::bind((Ipv6Addr::UNSPECIFIED, tcp_port))
        .or_else(|error| match error.kind() {
            ErrorKind::AddrInUse | ErrorKind::PermissionDenied => Err(error),
            _ => TcpListener::bind((Ipv4Addr::UNSPECIFIED, tcp_port)),
        })
        .with_context(|| {
            format!("cannot listen on TCP port {tcp_port}; another one can be chosen with -p on both sides")
        })?;
    let (stream, _) = listener.accept().context("cannot accept the client")?;
    prepare(stream)
}

/// Connects to the server `host`, which may still be starting.
pub(super) fn connect(host: &str, tcp_port: u16) -> anyhow::Result<TcpStream> {
    let what = || {
        format!(
            "cannot connect to {host}, TCP port {tcp_port}: is `roce ping` or `ibv_rc_pingpong` running there as the server?"
        )
    };
    let start = Instant::now();
    let addresses: Vec<_> = (host, tcp_port).to_socket_addrs().with_context(what)?.collect();
    loop {
        match TcpStream::connect(addresses.as_slice()) {
            Ok(stream) => return prepare(stream),
            Err(error)
                if error.kind() == ErrorKind::ConnectionRefused && start.elapsed() < SERVER_START_TIMEOUT =>
            {
                std::thread::sleep(CONNECT_RETRY_INTERVAL);
            }
            Err(error) => return Err(error).with_context(what),
        }
    }
}

fn prepare(stream: TcpStream) -> anyhow::Result<TcpStream> {
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(PEER_TIMEOUT))?;
    Ok(stream)
}

/// Sends this end's line.
pub(super) fn send_line(stream: &mut impl Write, own: &Endpoint) -> anyhow::Result<()> {
    let mut line = own.to_string().into_bytes();
    line.resize(LINE_BYTES, 0);
    stream.write_all(&line).context("cannot send this end's address to the peer")
}

/// Receives the peer's line.
pub(super) fn receive_line(stream: &mut impl Read) -> anyhow::Result<Endpoint> {
    let mut line = [0; LINE_BYTES];
    stream.read_exact(&mut line).map_err(|error| match error.kind() {
        ErrorKind::UnexpectedEof => {
            anyhow::anyhow!("the peer hung up before it sent its address; its own message says why")
        }
        ErrorKind::WouldBlock => {
            anyhow::anyhow!("the peer sent no address within {} s", PEER_TIMEOUT.as_secs())
        }
        _ => anyhow::Error::new(error).context("cannot receive the peer's address"),
    })?;
    let peer: Endpoint = String::from_utf8_lossy(&line).parse()?;
    if peer.gid == verbs::Gid([0; 16]) {
        bail!(
            "the peer sent no GID, and RoCE cannot do without: start it with -g INDEX \
             (`show_gids` or `ibv_devinfo -v` lists them; on rxe 1 is the IPv4 address)"
        );
    }
    Ok(peer)
}

/// Sends the client's last word.
pub(super) fn send_done(stream: &mut impl Write) -> anyhow::Result<()> {
    stream.write_all(DONE).context("cannot tell the server that the client is ready")
}

/// Waits for the client's last word.
pub(super) fn receive_done(stream: &mut impl Read) -> anyhow::Result<()> {
    let mut word = [0; DONE.len()];
    stream
        .read_exact(&mut word)
        .context("the client hung up before it was connected; its own message says why")
}

/// Waits until the peer closes the connection, which one of ours does when it needs no more answers
/// (and rdma-core's at once), but at most for `timeout`.
pub(super) fn wait_for_hang_up(stream: &mut TcpStream, timeout: Duration) {
    if stream.shutdown(std::net::Shutdown::Write).is_ok() && stream.set_read_timeout(Some(timeout)).is_ok() {
        // An error is as good a sign as an end of file that the peer is gone.
        let _ = stream.read(&mut [0; 1]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use verbs::{Gid, Psn, Qpn};

    fn endpoint() -> Endpoint {
        let gid = Gid::from(Ipv4Addr::new(10, 0, 0, 1));
        Endpoint { lid: 0, qpn: Qpn::new(0x11), psn: Psn::new(0x9c2d3f), gid }
    }

    #[test]
    fn a_line_is_the_c_string_of_ibv_rc_pingpong_with_its_nul() {
        let mut sent = Vec::new();
        send_line(&mut sent, &endpoint()).unwrap();
        assert_eq!(sent, b"0000:000011:9c2d3f:00000000000000000000ffff0a000001\0");
        assert_eq!(receive_line(&mut sent.as_slice()).unwrap(), endpoint());
        sent.clear();
        send_line(&mut sent, &Endpoint { lid: 0x531A, ..endpoint() }).unwrap();
        assert_eq!(sent, b"531a:000011:9c2d3f:00000000000000000000ffff0a000001\0");
        sent.clear();
        send_done(&mut sent).unwrap();
        assert_eq!(sent, b"done\0");
        receive_done(&mut sent.as_slice()).unwrap();
    }

    #[test]
    fn a_peer_without_a_gid_or_without_a_line_is_told_apart() {
        let no_gid = b"0000:000011:9c2d3f:00000000000000000000000000000000\0";
        let said = |bytes: &[u8]| format!("{:#}", receive_line(&mut { bytes }).unwrap_err());
        assert!(said(no_gid).contains("-g INDEX"));
        assert!(said(&no_gid[..20]).contains("hung up"));
        assert!(said(&[b'x'; LINE_BYTES]).contains("is no LID:QPN:PSN:GID line"));
        assert!(receive_done(&mut b"do".as_slice()).is_err());
    }
}
