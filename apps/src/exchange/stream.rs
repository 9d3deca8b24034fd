//! A TCP connection to a peer that may stop answering at any time.

use std::io::{ErrorKind, Read};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

use anyhow::{Context as _, anyhow};
use nix::libc;
use nix::sys::socket::getsockopt;
use nix::sys::socket::sockopt::GetStruct;
use socket2::{SockRef, TcpKeepalive};
use verbs::ConnAttr;

/// Time in which a client tries to connect to a server that may be starting.
const CONNECT_PATIENCE: Duration = Duration::from_secs(5);
const CONNECT_INTERVAL: Duration = Duration::from_millis(50);
/// Keep-alive probes without an answer before a host is taken for dead.
const KEEPALIVE_PROBES: u32 = 3;

/// Connects to the server `host`, which may still be starting; the error names `command`.
pub(crate) fn connect(
    host: &str,
    tcp_port: u16,
    command: &str,
    timeout: Duration,
) -> anyhow::Result<TcpStream> {
    let what = || {
        format!(
            "cannot connect to {host}, TCP port {tcp_port}: is {command} running there as the server, without a host?"
        )
    };
    let start = Instant::now();
    let addresses: Vec<_> = (host, tcp_port).to_socket_addrs().with_context(what)?.collect();
    loop {
        let mut failed = anyhow!("the name has no address");
        for address in &addresses {
            match TcpStream::connect_timeout(address, timeout) {
                Ok(stream) => return Ok(stream),
                // The server does not listen yet; other errors do not pass.
                Err(error) if error.kind() == ErrorKind::ConnectionRefused => failed = error.into(),
                Err(error) => return Err(error).with_context(what),
            }
        }
        if start.elapsed() >= CONNECT_PATIENCE {
            return Err(failed).with_context(what);
        }
        std::thread::sleep(CONNECT_INTERVAL);
    }
}

/// Bounds the time until a dead peer is detected: by keep-alive probes, and because sent bytes must be
/// acknowledged within `timeout`.
pub(crate) fn guard(stream: &TcpStream, timeout: Duration) -> anyhow::Result<()> {
    // Without delay, because messages are small, and the peer waits for each.
    stream.set_nodelay(true)?;
    stream.set_write_timeout(Some(timeout))?;
    // The first probe after half of the time, the others in the rest; in seconds, the kernel's unit.
    let second = Duration::from_secs(1);
    let keepalive = TcpKeepalive::new()
        .with_time((timeout / 2).max(second))
        .with_interval((timeout / (2 * KEEPALIVE_PROBES)).max(second))
        .with_retries(KEEPALIVE_PROBES);
    let socket = SockRef::from(stream);
    socket.set_tcp_keepalive(&keepalive).context("cannot turn TCP keep-alive on")?;
    socket.set_tcp_user_timeout(Some(timeout)).context("cannot bound the time without a TCP acknowledgement")
}

/// Indices of two fields of `struct tcp_info`, in words of 4 bytes.
const RTT: usize = std::mem::offset_of!(libc::tcp_info, tcpi_rtt) / size_of::<u32>();
const RTT_VAR: usize = std::mem::offset_of!(libc::tcp_info, tcpi_rttvar) / size_of::<u32>();

/// Socket option TCP_INFO, tcp(7): `struct tcp_info` up to and with `tcpi_rttvar`. Each kernel returns as many bytes,
/// but not as many as the whole `libc::tcp_info` has, and `GetStruct` panics if fewer bytes are returned.
#[derive(Clone, Copy, Debug)]
struct TcpInfo;
type TcpInfoWords = [u32; RTT_VAR + 1];
nix::getsockopt_impl!(TcpInfo, libc::IPPROTO_TCP, libc::TCP_INFO, TcpInfoWords, GetStruct<TcpInfoWords>);

/// Returns the round trip to the peer that the kernel measured on this connection, in nanoseconds, at most 4.3 s; 0 if
/// unknown. If the round trips of the connection vary, returns the single round trip that leads to the same RTO of
/// three round trips, SRTT + 4 RTTVAR (RFC 6298 section 2).
fn round_trip_nanos(stream: &TcpStream) -> u32 {
    let Ok(info) = getsockopt(stream, TcpInfo) else { return 0 };
    let (rtt_micros, rtt_var_micros) = (info[RTT], info[RTT_VAR]);
    let of_rto_micros = rtt_var_micros.saturating_mul(4).saturating_add(rtt_micros) / 3;
    rtt_micros.max(of_rto_micros).saturating_mul(1000)
}

/// Returns [`ConnAttr::initial_rtt_nanos`] of queue pairs to the peer: the round trip of this connection, but at least
/// the default, because the kernel's TCP may answer sooner than the peer's first queue pair.
pub(crate) fn initial_rtt_nanos(stream: &TcpStream) -> u32 {
    round_trip_nanos(stream).max(ConnAttr::default().initial_rtt_nanos)
}

pub(crate) fn explain(error: &std::io::Error, timeout: Duration) -> String {
    match error.kind() {
        ErrorKind::TimedOut | ErrorKind::HostUnreachable | ErrorKind::NetworkUnreachable => format!(
            "the peer's host has not answered for {} s ({error}): is it up, and the network to it?",
            timeout.as_secs()
        ),
        _ => format!("the peer is gone: {error}"),
    }
}

/// Reads `bytes` in full within `timeout`, however few arrive at a time. `what` names them in the error.
pub(crate) fn read_record(
    stream: &mut TcpStream,
    bytes: &mut [u8],
    timeout: Duration,
    what: &str,
) -> anyhow::Result<()> {
    let end = Instant::now() + timeout;
    let mut rest = bytes;
    while !rest.is_empty() {
        let left = end.saturating_duration_since(Instant::now());
        let late = || anyhow!("the peer sent no {what} within {} s", timeout.as_secs());
        if left.is_zero() {
            return Err(late());
        }
        stream.set_read_timeout(Some(left))?;
        match stream.read(rest) {
            Ok(0) => {
                return Err(anyhow!("the peer hung up before it sent its {what}; its own message says why"));
            }
            Ok(count) => rest = rest.get_mut(count..).unwrap_or_default(),
            Err(error) => match error.kind() {
                ErrorKind::Interrupted => {}
                ErrorKind::WouldBlock => return Err(late()),
                _ => return Err(anyhow!(explain(&error, timeout))),
            },
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::net::{Ipv4Addr, TcpListener};

    use super::*;

    fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let far = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (listener.accept().unwrap().0, far)
    }

    #[test]
    fn the_kernel_measures_the_round_trip() {
        let (near, far) = pair();
        // The round trip of the handshake: no byte was sent.
        let nanos = [&near, &far].map(round_trip_nanos);
        assert!(nanos.iter().all(|nanos| (1..1_000_000_000).contains(nanos)), "{nanos:?}");
    }

    fn said(near: &mut TcpStream, timeout: Duration) -> String {
        let mut bytes = [0; 4];
        read_record(near, &mut bytes, timeout, "line")
            .map_or_else(|e| e.to_string(), |()| format!("{bytes:?}"))
    }

    #[test]
    fn a_record_comes_in_time_or_not_at_all() {
        let (mut near, mut far) = pair();
        far.write_all(&[1, 2]).unwrap();
        far.write_all(&[3, 4, 5]).unwrap();
        assert_eq!(said(&mut near, Duration::from_secs(60)), "[1, 2, 3, 4]");
        assert!(said(&mut near, Duration::from_millis(20)).contains("no line within"));
        drop(far);
        assert!(said(&mut near, Duration::from_secs(60)).contains("hung up"));
    }

    #[test]
    fn a_peer_that_sends_a_byte_at_a_time_does_not_gain_time_by_it() {
        let (mut near, mut far) = pair();
        let drip = std::thread::spawn(move || {
            while far.write_all(&[0]).is_ok() {
                std::thread::sleep(Duration::from_millis(40));
            }
        });
        let mut bytes = [0; 1 << 20];
        let error = read_record(&mut near, &mut bytes, Duration::from_millis(200), "line").unwrap_err();
        assert!(error.to_string().contains("no line within"), "{error}");
        drop(near);
        drip.join().unwrap();
    }

    #[test]
    fn a_dead_host_is_noticed_by_the_kernel() {
        let (near, _far) = pair();
        guard(&near, Duration::from_secs(12)).unwrap();
        let socket = SockRef::from(&near);
        assert!(socket.keepalive().unwrap());
        assert_eq!(socket.tcp_keepalive_time().unwrap(), Duration::from_secs(6));
        assert_eq!(socket.tcp_keepalive_interval().unwrap(), Duration::from_secs(2));
        assert_eq!(socket.tcp_keepalive_retries().unwrap(), KEEPALIVE_PROBES);
        assert_eq!(socket.tcp_user_timeout().unwrap(), Some(Duration::from_secs(12)));
        assert_eq!(near.write_timeout().unwrap(), Some(Duration::from_secs(12)));
    }
}
