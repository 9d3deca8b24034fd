//! Control connections: admission of peers, and checks of their messages. build.rs redirects the driver's
//! system calls to the functions at the end of this file. They run on EAL's interrupt thread or in a control
//! operation, both under the lock of guard.c, while no burst of the port runs.

use std::cell::UnsafeCell;
use std::collections::BTreeMap;
use std::ffi::{CString, c_int, c_void};
use std::mem::zeroed;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Once, PoisonError};
use std::{io, ptr};

use super::event;
use super::message::{self, Handshake, MESSAGE_BYTES, Message, Role, kind};
use super::ring::{Map, Pieces, Region, RxRing, TxRing, Unread};
use crate::eventfd::{Event, RingWake, Watched};
use crate::guard;
use crate::port_id::PortId;

/// Connections of one listening socket that have not finished the handshake, at most. A further one is
/// closed.
const PENDING_MAX: usize = 8;

/// Users who may be the peer of a memif port, besides the user of this process and root.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemifAccess {
    /// User IDs.
    pub uids: Vec<u32>,
}

impl MemifAccess {
    fn allows(&self, uid: u32, own: u32) -> bool {
        uid == own || uid == 0 || self.uids.contains(&uid)
    }
}

/// A connection that carries frames. Shared by the bursts of its port's queues; made and dropped while no burst runs.
pub(super) struct Live {
    /// Control connection. A burst that finds a violation shuts it down, which makes the driver end the
    /// connection.
    pub(super) fd: RawFd,
    pub(super) map: Map,
    /// By number of the queue. Accessed by bursts of this queue only.
    pub(super) rings: Vec<UnsafeCell<Rings>>,
    /// One view of each transmit ring. Read under the lock of guard.c; bursts may run at the same time.
    pub(super) unread: Vec<Unread>,
    /// Set after a violation by the peer: no later burst accesses its memory.
    pub(super) broken: AtomicBool,
}

/// The rings of a queue, each `None` if the peer has agreed to fewer rings.
pub(super) struct Rings {
    pub(super) rx: Option<RxRing>,
    pub(super) tx: Option<TxRing>,
    /// By which the peer wakes this process; `None` if `rx` has no eventfd, or the queue no `RingWake`.
    pub(super) rx_event: Option<Watched>,
    /// By which this process wakes the peer.
    pub(super) tx_event: Option<Arc<Event>>,
    /// Buffers of one frame, as copied from its descriptors.
    pub(super) pieces: Pieces,
}

/// The live connection of each port that has one.
static LIVE: [AtomicPtr<Live>; dpdk_sys::SHIM_MAX_ETHPORTS as usize] =
    [const { AtomicPtr::new(ptr::null_mut()) }; dpdk_sys::SHIM_MAX_ETHPORTS as usize];

/// Returns the live connection of a port; null if it has none.
#[inline]
pub(super) fn live(port: PortId) -> *mut Live {
    LIVE.get(usize::from(port)).map_or(ptr::null_mut(), |live| live.load(Ordering::Acquire))
}

/// Returns whether the peer of `port` has frames to receive; if `port` is `None`, whether the peer of any port has.
/// Also returns true if the lock of guard.c is not free, because the connections may be changing.
pub(super) fn has_unread(port: Option<PortId>) -> bool {
    // While this thread holds the lock, no handler and no control operation unmaps a ring. This thread does not wait
    // for the lock: it may have called `exit` while it held the lock, or while the holder of the lock waits for this
    // thread.
    let Some(_lock) = guard::try_lock() else { return true };
    let connections = LIVE.iter().zip(0..).filter(|(_, number)| port.is_none_or(|port| port == *number));
    connections.into_iter().any(|(live, _)| {
        // SAFETY: dropped by handlers and control operations only, and none of those runs under the lock.
        let live = unsafe { live.load(Ordering::Acquire).as_ref() };
        live.is_some_and(|live| !live.broken.load(Ordering::Relaxed) && live.unread.iter().any(Unread::any))
    })
}

fn publish(port: PortId, live: *mut Live) {
    let Some(place) = LIVE.get(usize::from(port)) else { return };
    let before = place.swap(live, Ordering::AcqRel);
    // Dropped while no burst runs.
    if !before.is_null() {
        // SAFETY: made by Box::into_raw, taken out of the one place that named it, while no burst runs.
        drop(unsafe { Box::from_raw(before) });
    }
}

struct Listener {
    fd: RawFd,
    /// `None` while its device is being attached.
    port: Option<PortId>,
}

struct Peer {
    fd: RawFd,
    port: PortId,
    handshake: Handshake,
}

struct Mapping {
    fd: RawFd,
    region: Region,
}

// SAFETY: an address and numbers; what the region's memory is used for has rules of its own.
unsafe impl Send for Mapping {}

#[derive(Default)]
struct PortState {
    access: MemifAccess,
    refused: u64,
    /// By number of the queue.
    wakes: Vec<Option<Arc<RingWake>>>,
}

impl PortState {
    fn on_link_change(&self) {
        self.wakes.iter().flatten().for_each(|wake| wake.on_link_change());
    }
}

struct Table {
    ports: BTreeMap<PortId, PortState>,
    listeners: Vec<Listener>,
    peers: Vec<Peer>,
    mappings: Vec<Mapping>,
    /// Port that a control operation is starting.
    starting: Option<PortId>,
}

static TABLE: Mutex<Table> = Mutex::new(Table {
    ports: BTreeMap::new(),
    listeners: Vec::new(),
    peers: Vec::new(),
    mappings: Vec::new(),
    starting: None,
});

fn table() -> MutexGuard<'static, Table> {
    TABLE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Redirects the driver's system calls to this file. Called before the first device is attached.
pub(crate) fn install() {
    static INSTALLED: Once = Once::new();
    INSTALLED.call_once(|| {
        event::register();
        let hooks = dpdk_sys::shim_memif_hooks {
            listen: Some(on_listen),
            accept: Some(on_accept),
            connect: Some(on_connect),
            recvmsg: Some(on_recvmsg),
            sendmsg: Some(on_sendmsg),
            mmap: Some(on_mmap),
            munmap: Some(on_munmap),
            close: Some(on_close),
        };
        // SAFETY: the functions have the signatures asked for and live forever; the structure is copied.
        unsafe { dpdk_sys::shim_memif_install(&hooks) };
    });
}

/// Enters the device attached as `port`; `listens`: it is a server. Returns false for a server without a
/// socket of its own.
pub(crate) fn attached(port: PortId, access: MemifAccess, listens: bool) -> bool {
    let mut table = table();
    table.ports.insert(port, PortState { access, ..PortState::default() });
    let mut has_listener = false;
    for listener in table.listeners.iter_mut().filter(|listener| listener.port.is_none()) {
        listener.port = Some(port);
        has_listener = true;
    }
    has_listener || !listens
}

/// Enters the `RingWake` of queue `number` of `port`.
pub(super) fn add_wake(port: PortId, number: u16, wake: Arc<RingWake>) {
    let mut table = table();
    let wakes = &mut table.ports.entry(port).or_default().wakes;
    let number = usize::from(number);
    wakes.resize(wakes.len().max(number + 1), None);
    wakes[number] = Some(wake);
}

/// Removes the device of `port`.
pub(crate) fn detached(port: PortId) {
    table().ports.remove(&port);
}

/// Records the port that a control operation is starting; `None`: the operation has ended.
pub(crate) fn starting(port: Option<PortId>) {
    table().starting = port;
}

/// Returns the number of peers that `port` has refused.
pub(crate) fn refused(port: PortId) -> u64 {
    table().ports.get(&port).map_or(0, |state| state.refused)
}

impl Table {
    fn peer(&mut self, fd: RawFd) -> Option<&mut Peer> {
        self.peers.iter_mut().find(|peer| peer.fd == fd)
    }

    /// Makes the connection of `fd` the live one of its port.
    fn go_live(&mut self, fd: RawFd) -> Result<(), &'static str> {
        let peer = self.peers.iter().find(|peer| peer.fd == fd).ok_or("no such connection")?;
        let mapped = |region: &message::RegionSpec| {
            let mapping = self.mappings.iter().find(|mapping| mapping.fd == region.fd)?;
            Some(mapping.region)
        };
        let regions = peer.handshake.regions().iter().map(mapped).collect::<Option<_>>();
        let map = Map::new(regions.ok_or("a region that is not mapped")?);
        let (rx, tx) = peer.handshake.rings(&map).ok_or("rings outside of the memory")?;
        let count = rx.len().max(tx.len());
        let unread = tx.iter().map(TxRing::unread).collect();
        let (mut rx, mut tx) = (rx.into_iter(), tx.into_iter());
        let (rx_events, tx_events) = peer.handshake.events();
        let wakes = self.ports.get(&peer.port).map(|state| state.wakes.clone()).unwrap_or_default();
        let watched = rx_events.into_iter().zip(wakes);
        let mut watched = watched.map(|(event, wake)| Watched::new(event?, wake?));
        let mut tx_events = tx_events.into_iter();
        let rings = std::iter::repeat_with(|| Rings {
            rx: rx.next(),
            tx: tx.next(),
            rx_event: watched.next().flatten(),
            tx_event: tx_events.next().flatten(),
            pieces: Pieces::new(),
        });
        let rings = rings.map(UnsafeCell::new).take(count).collect();
        let live = Live { fd, map, rings, unread, broken: AtomicBool::new(false) };
        publish(peer.port, Box::into_raw(Box::new(live)));
        self.ports.get(&peer.port).into_iter().for_each(PortState::on_link_change);
        Ok(())
    }

    /// Ends the live connections that `of` selects.
    fn end_live(&self, of: impl Fn(&Live) -> bool) {
        for (port, state) in &self.ports {
            let live = live(*port);
            // SAFETY: published, and dropped only by `publish`, whose callers hold the table.
            if !live.is_null() && of(unsafe { &*live }) {
                publish(*port, ptr::null_mut());
                state.on_link_change();
            }
        }
    }

    /// Counts a refused peer. Returns a line to log if the count is a power of two.
    fn refuse(&mut self, port: PortId, why: &str) -> Option<String> {
        let state = self.ports.entry(port).or_default();
        state.refused += 1;
        let times = state.refused;
        times.is_power_of_two().then(|| format!("memif port {port}: {why} ({times} refused so far)"))
    }
}

fn log(line: Option<String>) {
    if let Some(line) = line.and_then(|line| CString::new(line).ok()) {
        // SAFETY: a C string, which is copied.
        unsafe { dpdk_sys::shim_memif_warn(line.as_ptr()) };
    }
}

fn set_errno(number: c_int) {
    // SAFETY: the calling thread's own variable.
    unsafe { *libc::__errno_location() = number };
}

/// Returns the user of the peer process of a connected socket.
fn peer_uid(fd: RawFd) -> Option<u32> {
    // SAFETY: plain numbers.
    let mut peer: libc::ucred = unsafe { zeroed() };
    let mut len = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: a place for the answer and its length.
    let ret = unsafe {
        libc::getsockopt(fd, libc::SOL_SOCKET, libc::SO_PEERCRED, (&raw mut peer).cast(), &raw mut len)
    };
    (ret == 0).then_some(peer.uid)
}

/// Checks the user of the peer process.
fn check_user(fd: RawFd, access: &MemifAccess) -> Result<(), String> {
    // SAFETY: always succeeds.
    let own = unsafe { libc::geteuid() };
    match peer_uid(fd) {
        Some(uid) if access.allows(uid, own) => Ok(()),
        Some(uid) => Err(format!("the other end is user {uid}, and only {own} and root may be")),
        None => Err("the other end has no user".to_owned()),
    }
}

/// Checks the file of a region, because an access beyond its end would end this process.
fn check_file(fd: RawFd, len_bytes: u64) -> Result<(), &'static str> {
    // SAFETY: plain numbers.
    let (mut stat, mut system): (libc::stat, libc::statfs) = unsafe { (zeroed(), zeroed()) };
    // SAFETY: places for the answers.
    if unsafe { libc::fstat(fd, &raw mut stat) != 0 || libc::fstatfs(fd, &raw mut system) != 0 } {
        return Err("a region whose file cannot be asked about");
    }
    // Because the kernel allocates pages on first use, and hugepages may be exhausted by then.
    if system.f_type != libc::TMPFS_MAGIC {
        return Err("a region that is no memory file of ordinary pages");
    }
    // SAFETY: plain numbers.
    let seals = unsafe { libc::fcntl(fd, libc::F_GET_SEALS) };
    if seals < 0 || seals & libc::F_SEAL_SHRINK == 0 {
        return Err("a region whose file is not sealed against shrinking");
    }
    if u64::try_from(stat.st_size).unwrap_or(0) < len_bytes {
        return Err("a region longer than its file");
    }
    Ok(())
}

unsafe extern "C" fn on_listen(fd: c_int, backlog: c_int) -> c_int {
    // SAFETY: plain numbers.
    let ret = unsafe { libc::listen(fd, backlog) };
    if ret == 0 {
        table().listeners.push(Listener { fd, port: None });
    }
    ret
}

unsafe extern "C" fn on_accept(fd: c_int) -> c_int {
    // SAFETY: no address is asked for.
    let accepted = unsafe { libc::accept4(fd, ptr::null_mut(), ptr::null_mut(), libc::SOCK_CLOEXEC) };
    if accepted < 0 {
        return accepted;
    }
    let mut table = table();
    let port = table.listeners.iter().find(|listener| listener.fd == fd).and_then(|listener| listener.port);
    let verdict = match port.and_then(|port| table.ports.get(&port)) {
        None => Err("the device is not ready".to_owned()),
        Some(_) if table.pending(port) >= PENDING_MAX => {
            Err(format!("{PENDING_MAX} others are about to connect"))
        }
        Some(state) => check_user(accepted, &state.access),
    };
    match (verdict, port) {
        (Ok(()), Some(port)) => {
            table.peers.push(Peer { fd: accepted, port, handshake: Handshake::new(Role::Server) });
            accepted
        }
        (verdict, port) => {
            let why = verdict.err().unwrap_or_default();
            let line = port.and_then(|port| table.refuse(port, &why));
            drop(table);
            log(line);
            // SAFETY: accepted above, and owned by no other value.
            unsafe { libc::close(accepted) };
            set_errno(libc::EACCES);
            -1
        }
    }
}

impl Table {
    fn pending(&self, port: Option<PortId>) -> usize {
        let of_port = |peer: &&Peer| Some(peer.port) == port && !peer.handshake.is_connected();
        self.peers.iter().filter(of_port).count()
    }
}

unsafe extern "C" fn on_connect(fd: c_int, address: *const c_void, len: u32) -> c_int {
    // SAFETY: the driver's own arguments.
    let ret = unsafe { libc::connect(fd, address.cast(), len) };
    if ret != 0 {
        return ret;
    }
    let mut table = table();
    let port = table.starting;
    let verdict = match port.and_then(|port| table.ports.get(&port)) {
        None => Err("the device is not ready".to_owned()),
        Some(state) => check_user(fd, &state.access),
    };
    match (verdict, port) {
        (Ok(()), Some(port)) => {
            table.peers.push(Peer { fd, port, handshake: Handshake::new(Role::Client) });
            0
        }
        (verdict, port) => {
            let why = verdict.err().unwrap_or_default();
            let line = port.and_then(|port| table.refuse(port, &why));
            drop(table);
            log(line);
            set_errno(libc::EACCES);
            -1
        }
    }
}

/// Takes ownership of the descriptors that a message carried.
fn take_files(header: &libc::msghdr) -> Vec<OwnedFd> {
    let mut files = Vec::new();
    // SAFETY: the kernel wrote `header` and the buffers it names; each descriptor in it is new and has no
    // other owner.
    unsafe {
        let mut next = libc::CMSG_FIRSTHDR(header);
        while let Some(control) = next.as_ref() {
            if (control.cmsg_level, control.cmsg_type) == (libc::SOL_SOCKET, libc::SCM_RIGHTS) {
                let data = libc::CMSG_DATA(next).cast::<RawFd>();
                let bytes = control.cmsg_len.saturating_sub(libc::CMSG_LEN(0) as usize);
                let count = bytes / size_of::<RawFd>();
                files.extend((0..count).map(|at| OwnedFd::from_raw_fd(data.add(at).read_unaligned())));
            }
            next = libc::CMSG_NXTHDR(header, next);
        }
    }
    files
}

/// Receives one message and its descriptors. `Ok(None)` at the end of the connection.
fn receive(fd: RawFd) -> io::Result<Option<(Message, Vec<OwnedFd>)>> {
    let mut message = [0; MESSAGE_BYTES];
    // Room for one descriptor, and for the credentials that the driver requests. The kernel closes further
    // descriptors.
    let mut control = [0_u64; 16];
    let mut iov = libc::iovec { iov_base: message.as_mut_ptr().cast(), iov_len: MESSAGE_BYTES };
    // SAFETY: plain numbers and pointers.
    let mut header: libc::msghdr = unsafe { zeroed() };
    header.msg_iov = &raw mut iov;
    header.msg_iovlen = 1;
    header.msg_control = control.as_mut_ptr().cast();
    header.msg_controllen = size_of_val(&control);
    // SAFETY: buffers of the lengths given, which outlive the call.
    let received = unsafe { libc::recvmsg(fd, &raw mut header, libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC) };
    if received < 0 {
        return Err(io::Error::last_os_error());
    }
    let files = take_files(&header);
    match received {
        0 => Ok(None),
        _ if received as usize == MESSAGE_BYTES => Ok(Some((message, files))),
        _ => Err(io::ErrorKind::InvalidData.into()),
    }
}

/// Checks a message received from the peer; returns the descriptor for the driver.
fn admit(fd: RawFd, message: &Message, files: Vec<OwnedFd>) -> Result<Option<OwnedFd>, &'static str> {
    if files.len() > 1 {
        return Err("a message with several files");
    }
    let file = files.into_iter().next();
    let mut table = table();
    let peer = table.peer(fd).ok_or("no such connection")?;
    peer.handshake.received(message, file.as_ref().map(AsRawFd::as_raw_fd))?;
    if kind_of_region(message)
        && let Some(region) = peer.handshake.regions().last()
    {
        check_file(region.fd, region.len_bytes)?;
    }
    // A client's driver connects when it receives CONNECTED. A server's connects before it sends it: see
    // `on_sendmsg`.
    if peer.handshake.is_connected() && message::kind_of(message) == kind::CONNECTED {
        table.go_live(fd)?;
    }
    Ok(file)
}

fn kind_of_region(message: &Message) -> bool {
    message::kind_of(message) == kind::ADD_REGION
}

unsafe extern "C" fn on_recvmsg(fd: c_int, header: *mut c_void) -> isize {
    let (mut message, files) = match receive(fd) {
        Ok(Some(received)) => received,
        Ok(None) => return 0,
        Err(_) => return -1,
    };
    message::end_texts(&mut message);
    match admit(fd, &message, files) {
        Ok(file) => {
            // SAFETY: the driver's header has one buffer for a whole message, and room for one descriptor.
            unsafe { hand_over(&mut *header.cast(), &message, file) };
            MESSAGE_BYTES as isize
        }
        Err(why) => {
            let mut table = table();
            let port = table.peer(fd).map(|peer| peer.port);
            let line = port.and_then(|port| table.refuse(port, &format!("the peer sent {why}")));
            drop(table);
            log(line);
            set_errno(libc::EPROTO);
            -1
        }
    }
}

/// Passes a message to the driver as recvmsg would.
///
/// # Safety
/// `header` has one buffer of at least [`MESSAGE_BYTES`] bytes, and a control buffer as long as it says.
unsafe fn hand_over(header: &mut libc::msghdr, message: &Message, file: Option<OwnedFd>) {
    // SAFETY: the caller's promise.
    unsafe { ptr::copy_nonoverlapping(message.as_ptr(), (*header.msg_iov).iov_base.cast(), MESSAGE_BYTES) };
    // SAFETY: a number.
    let needed = unsafe { libc::CMSG_SPACE(size_of::<RawFd>() as u32) } as usize;
    let Some(file) = file.filter(|_| header.msg_controllen >= needed) else {
        header.msg_controllen = 0;
        return;
    };
    header.msg_controllen = needed;
    // SAFETY: the control buffer has room for a header and one descriptor (checked above).
    unsafe {
        let first = libc::CMSG_FIRSTHDR(header);
        (*first).cmsg_level = libc::SOL_SOCKET;
        (*first).cmsg_type = libc::SCM_RIGHTS;
        (*first).cmsg_len = libc::CMSG_LEN(size_of::<RawFd>() as u32) as usize;
        libc::CMSG_DATA(first).cast::<RawFd>().write_unaligned(std::os::fd::IntoRawFd::into_raw_fd(file));
    }
}

unsafe extern "C" fn on_sendmsg(fd: c_int, header: *const c_void) -> isize {
    // SAFETY: the driver sends one whole message from one buffer, with one descriptor or none.
    let (message, file) = unsafe {
        let header = &*header.cast::<libc::msghdr>();
        let message = (*header.msg_iov).iov_base.cast::<Message>().read_unaligned();
        let control = libc::CMSG_FIRSTHDR(header);
        let file = (!control.is_null()).then(|| libc::CMSG_DATA(control).cast::<RawFd>().read_unaligned());
        (message, file)
    };
    let mut table = table();
    let agreed = match table.peer(fd) {
        None => Ok(()),
        Some(peer) => match peer.handshake.sent(&message, file) {
            Ok(()) if message::kind_of(&message) == kind::CONNECTED => table.go_live(fd),
            agreed => agreed,
        },
    };
    drop(table);
    if agreed.is_err() {
        set_errno(libc::EPROTO);
        return -1;
    }
    // SAFETY: the driver's own arguments.
    let sent = unsafe { libc::sendmsg(fd, header.cast(), libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL) };
    // Reported as sent, because on this error the driver would close a descriptor twice. The next receive
    // finds the end of the connection.
    let gone =
        sent < 0 && matches!(io::Error::last_os_error().raw_os_error(), Some(libc::EPIPE | libc::ECONNRESET));
    if gone { MESSAGE_BYTES as isize } else { sent }
}

unsafe extern "C" fn on_mmap(
    address: *mut c_void,
    len: usize,
    access: c_int,
    flags: c_int,
    fd: c_int,
    offset: i64,
) -> *mut c_void {
    // SAFETY: the driver's own arguments.
    let base = unsafe { libc::mmap(address, len, access, flags, fd, offset) };
    if base != libc::MAP_FAILED {
        // A forked process must not write to the peer's rings. A failure leaves it the memory, which it does not use.
        // SAFETY: mapped above, with this length.
        unsafe { libc::madvise(base, len, libc::MADV_DONTFORK) };
        // SAFETY: mapped above; `on_munmap` ends all use of it before it is unmapped.
        let region = unsafe { Region::new(base.cast(), len as u64) };
        table().mappings.push(Mapping { fd, region });
    }
    base
}

unsafe extern "C" fn on_munmap(address: *mut c_void, len: usize) -> c_int {
    let mut table = table();
    table.end_live(|live| live.map.has(address.cast()));
    table.mappings.retain(|mapping| mapping.region.base() != address.cast());
    drop(table);
    // SAFETY: the driver's own arguments.
    unsafe { libc::munmap(address, len) }
}

unsafe extern "C" fn on_close(fd: c_int) -> c_int {
    let mut table = table();
    table.end_live(|live| live.fd == fd);
    table.peers.retain(|peer| peer.fd != fd);
    table.listeners.retain(|listener| listener.fd != fd);
    drop(table);
    // SAFETY: the driver's own argument.
    unsafe { libc::close(fd) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_own_user_and_root_are_let_in_and_who_is_named() {
        let nobody_else = MemifAccess::default();
        assert!(nobody_else.allows(1000, 1000) && nobody_else.allows(0, 1000));
        assert!(!nobody_else.allows(1001, 1000) && !nobody_else.allows(65534, 0));
        let one_more = MemifAccess { uids: vec![1001] };
        assert!(one_more.allows(1001, 1000) && !one_more.allows(1002, 1000));
    }
}
