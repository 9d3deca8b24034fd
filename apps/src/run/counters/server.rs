//! `roce run-counters`: the process that serves the files of counters of one `roce run`. This process is in the mount
//! namespace of the machine, because a process in the mount namespace of the program would keep that namespace alive
//! after the program has ended.

use std::ffi::{CStr, OsStr, OsString};
use std::fs;
use std::io::{self, ErrorKind, IoSliceMut, Write as _};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::UnixStream;
use std::process::{ExitCode, Stdio};

use anyhow::Context as _;
use clap::Args;
use fuser::{Config, Session, SessionACL};
use nix::unistd::{getegid, geteuid};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use verbs::stat::{DeviceCounters, read_selected};

use super::files::{CountedDevice, CounterFiles};
use crate::run::detached;

/// Name of this subcommand.
const SUBCOMMAND: &str = "run-counters";
/// Name of the process.
const PROCESS_NAME: &CStr = c"roce-counters";
/// Bytes for the name of a mount namespace, `mnt:[NUMBER]`.
const NAMESPACE_BYTES: usize = 64;
/// Readings of the counters for one read of a file, if devices are closed meanwhile.
const READINGS: usize = 3;

/// Serve the counters of devices of `roce run`, which starts this command.
#[derive(Args)]
#[command(name = SUBCOMMAND, hide = true)]
pub(crate) struct ServerArgs {
    /// The devices: NAME=PORT.
    #[arg(value_name = "NAME=PORT")]
    devices: Vec<CountedDevice>,
}

/// Starts a server. The server receives the FUSE device over `socket` ([`receive`]), and ends if the other end of the
/// socket is closed before.
pub(super) fn start(devices: &[CountedDevice], socket: OwnedFd) -> anyhow::Result<()> {
    let devices = devices.iter().map(|device| device.to_string().into());
    let args: Vec<OsString> = [SUBCOMMAND.into()].into_iter().chain(devices).collect();
    detached::start(&args, socket.into(), Stdio::null())
}

/// Serves the files until the file system is no longer mounted in any namespace.
pub(crate) fn run(args: &ServerArgs) -> anyhow::Result<ExitCode> {
    rustix::thread::set_name(PROCESS_NAME)?;
    let mut socket = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    let Some((device, namespace)) = receive(&socket)? else { return Ok(ExitCode::SUCCESS) };
    let reader = move |port: &str| read(&namespace, port);
    let (uid, gid) = (geteuid().as_raw(), getegid().as_raw());
    let files = CounterFiles::new(&args.devices, Box::new(reader), uid, gid);
    let session = Session::from_fd(files, device, SessionACL::All, Config::default())?;
    socket.write_all(b"1").context("roce run has ended")?;
    session.run()?;
    Ok(ExitCode::SUCCESS)
}

/// Receives the FUSE device, and the name of the mount namespace of the program. `None` if the other end of the socket
/// was closed, because there is no such namespace, or because the device could not be mounted.
fn receive(socket: &UnixStream) -> io::Result<Option<(OwnedFd, Vec<u8>)>> {
    let mut namespace = [0; NAMESPACE_BYTES];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut parts = [IoSliceMut::new(&mut namespace)];
    let received = recvmsg(socket, &mut parts, &mut ancillary, RecvFlags::CMSG_CLOEXEC)?;
    let device = ancillary.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    });
    let namespace = namespace.get(..received.bytes).unwrap_or_default().to_vec();
    Ok(device.map(|device| (device, namespace)))
}

/// Reads the counters of the devices that processes in the mount namespace `namespace` have open on `port`.
fn read(namespace: &[u8], port: &str) -> io::Result<Vec<DeviceCounters>> {
    let is_of_run = |pid: u32| {
        let link = fs::read_link(format!("/proc/{pid}/ns/mnt"));
        link.is_ok_and(|link| link.as_os_str() == OsStr::from_bytes(namespace))
    };
    let mut result = Ok(Vec::new());
    for _ in 0..READINGS {
        let found = read_selected(is_of_run);
        let Some((_, error)) = found.failed.into_iter().next() else {
            let devices = found.devices.into_iter().filter(|device| device.port == port);
            return Ok(devices.map(|device| device.counters).collect());
        };
        // A process that does not answer is not asked again. Otherwise the device was closed before its process
        // answered, and is not found again.
        let is_silent = matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut);
        result = Err(error);
        if is_silent {
            break;
        }
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_passed_as_arguments() {
        let device: CountedDevice = "roce0=eal:net_null0,copy=1".parse().expect("a device");
        assert_eq!((device.name.as_str(), device.port.as_str()), ("roce0", "eal:net_null0,copy=1"));
        assert_eq!(device.to_string(), "roce0=eal:net_null0,copy=1");
        assert!("roce0".parse::<CountedDevice>().is_err());
    }

    #[test]
    fn a_socket_that_is_closed_brings_no_device() {
        let (near, far) = UnixStream::pair().expect("a pair");
        drop(far);
        assert!(receive(&near).expect("the end of the stream").is_none());
    }
}
