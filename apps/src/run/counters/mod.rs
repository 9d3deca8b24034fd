//! The counters of the devices of `roce run` in /sys/class/infiniband: files of a FUSE file system, whose values are
//! those at the time of the read.
//!
//! ```text
//!   roce run                                           roce run-counters (server.rs)
//!   start: socket pair ------------------------------> process in a session of its own, no child of roce run
//!   mount namespace, user namespace                         |
//!   open /dev/fuse, mount --- device, namespace -----> FUSE session: names and attributes (files.rs)
//!   wait  <------------------------------- ready ------     |
//!   bind the directories of each device                     |
//!   exec of the program                                     |
//!   program: read(port_xmit_data) --- FUSE ----------> statistics sockets of the processes in the mount namespace
//!   program: value  <----------------------------------- sums (values.rs)
//!   end of the last process: the namespace and its mounts end, read of the device: ENODEV -> the server ends
//! ```

mod files;
mod server;
mod values;

use std::fs::{self, File, OpenOptions};
use std::io::{IoSlice, Read as _};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, anyhow};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::unistd::{getegid, geteuid};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

use super::detached;
use super::namespace::bind;
pub(super) use files::CountedDevice;
pub(crate) use server::{ServerArgs, run as serve};

/// The device by which the kernel passes queries of a FUSE file system to a process.
const FUSE: &str = "/dev/fuse";
/// Mount point of the whole file system among the devices, until the directories of each device are bound.
const STAGING: &str = ".roce-counters";
/// Longest wait for the server to answer the first query of the kernel. The server needs some milliseconds on an idle
/// machine.
const READY_TIMEOUT: Duration = Duration::from_secs(10);

/// A server that waits for its FUSE device. If the value is dropped before, the server ends.
pub(super) struct CounterServer {
    socket: UnixStream,
    devices: Vec<CountedDevice>,
}

impl CounterServer {
    /// Starts the server. To be called outside of the mount namespace of the program ([`server`]).
    pub(super) fn start(devices: Vec<CountedDevice>) -> anyhow::Result<Self> {
        if !Path::new(FUSE).exists() {
            return Err(anyhow!("{FUSE} is missing: the kernel's module fuse is needed"));
        }
        if detached::adopts() {
            return Err(anyhow!(
                "the program is the first process of its PID namespace: run an init process before it"
            ));
        }
        let (socket, of_server) = UnixStream::pair()?;
        server::start(&devices, of_server.into()).context("cannot start the server of counters")?;
        Ok(CounterServer { socket, devices })
    }

    /// Adds the directories of counters to the devices in `tree`, /sys/class/infiniband of this mount namespace. After
    /// an error, `tree` is as before.
    pub(super) fn show(mut self, tree: &Path) -> anyhow::Result<()> {
        let staging = tree.join(STAGING);
        fs::create_dir(&staging)?;
        let result = mount_files(&staging).and_then(|device| {
            let shown = self.hand_over(device).and_then(|()| bind_all(&self.devices, &staging, tree));
            // The directories that are bound stay.
            let _ = umount2(&staging, MntFlags::MNT_DETACH);
            shown
        });
        let _ = fs::remove_dir(&staging);
        result
    }

    /// Sends the device to the server, and waits until the server answers queries.
    fn hand_over(&mut self, device: File) -> anyhow::Result<()> {
        let namespace = fs::read_link("/proc/self/ns/mnt")?;
        let devices = [device.as_fd()];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        ancillary.push(SendAncillaryMessage::ScmRights(&devices));
        let parts = [IoSlice::new(namespace.as_os_str().as_bytes())];
        sendmsg(&self.socket, &parts, &mut ancillary, SendFlags::NOSIGNAL)?;
        self.socket.set_read_timeout(Some(READY_TIMEOUT))?;
        self.socket.read_exact(&mut [0]).context("the server of counters does not answer")
    }
}

/// Mounts the file system on `at`. The kernel demands that the device is opened in the user namespace of the mount.
fn mount_files(at: &Path) -> anyhow::Result<File> {
    let device = OpenOptions::new().read(true).write(true).open(FUSE).context(FUSE)?;
    let options = format!(
        "fd={},rootmode=40555,user_id={},group_id={},allow_other,default_permissions",
        device.as_raw_fd(),
        geteuid(),
        getegid()
    );
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC | MsFlags::MS_RDONLY;
    mount(Some("roce"), at, Some("fuse"), flags, Some(options.as_str()))
        .context("cannot mount a FUSE file system")?;
    Ok(device)
}

/// Makes the directories of each device visible in `tree`; after an error, none of them.
fn bind_all(devices: &[CountedDevice], staging: &Path, tree: &Path) -> anyhow::Result<()> {
    let mut made: Vec<PathBuf> = Vec::new();
    let result = devices.iter().try_for_each(|device| {
        for (directory, _) in values::directories() {
            let at = tree.join(&device.name).join("ports/1").join(directory);
            fs::create_dir(&at)?;
            made.push(at.clone());
            bind(&staging.join(&device.name).join(directory), &at)?;
        }
        Ok(())
    });
    if result.is_err() {
        for at in &made {
            // The last one may be no mount point yet.
            let _ = umount2(at, MntFlags::MNT_DETACH);
            let _ = fs::remove_dir(at);
        }
    }
    result
}
