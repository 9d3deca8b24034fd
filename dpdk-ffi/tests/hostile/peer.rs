//! A memif peer by hand: the control protocol over a socket, the rings and buffers in shared memory. Checks
//! and the order of messages are left to the caller.

use std::io;
use std::mem::{size_of, zeroed};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant};

/// How long a peer waits for the victim. Long enough for any machine; only a failing test ever reaches it.
pub(super) const PATIENCE: Duration = Duration::from_secs(10);

pub(super) const MESSAGE_BYTES: usize = 128;
pub(super) type Message = [u8; MESSAGE_BYTES];

pub(super) const ACK: u16 = 1;
pub(super) const HELLO: u16 = 2;
pub(super) const INIT: u16 = 3;
pub(super) const ADD_REGION: u16 = 4;
pub(super) const ADD_RING: u16 = 5;
pub(super) const CONNECT: u16 = 6;
pub(super) const CONNECTED: u16 = 7;
pub(super) const DISCONNECT: u16 = 8;

/// Slots of the rings, as a power of two.
pub(super) const LOG2_SLOTS: u8 = 4;
pub(super) const SLOTS: usize = 1 << LOG2_SLOTS;
pub(super) const BUFFER_BYTES: usize = 2048;
/// Bytes of a ring: header and descriptors.
pub(super) const RING_BYTES: usize = 128 + 16 * SLOTS;
/// Where the buffers begin.
pub(super) const BUFFERS_AT: usize = 4096;
pub(super) const REGION_BYTES: usize = BUFFERS_AT + 2 * SLOTS * BUFFER_BYTES;
const COOKIE: u32 = 0x3E3_1F20;
pub(super) const NEXT: u16 = 1;

/// A message: its type and the fields behind it.
pub(super) fn message(kind: u16, fields: &[&[u8]]) -> Message {
    let mut message = [0; MESSAGE_BYTES];
    let bytes = [&kind.to_ne_bytes(), fields.concat().as_slice()].concat();
    message[..bytes.len()].copy_from_slice(&bytes);
    message
}

pub(super) fn hello() -> Message {
    let limits = [0x200_u16, 0x200, 255, 254, 254].map(u16::to_ne_bytes).concat();
    message(HELLO, &[&[b'x'; 32], &limits, &[14]])
}

pub(super) fn init(secret: &str) -> Message {
    let mut padded = [0; 24];
    padded[..secret.len()].copy_from_slice(secret.as_bytes());
    message(INIT, &[&0x200_u16.to_ne_bytes(), &0_u32.to_ne_bytes(), &[0], &padded, &[b'x'; 32]])
}

pub(super) fn add_region(index: u16, len_bytes: u64) -> Message {
    message(ADD_REGION, &[&index.to_ne_bytes(), &len_bytes.to_ne_bytes()])
}

/// A ring as its message has it.
#[derive(Clone, Copy)]
pub(super) struct RingSpec {
    pub(super) to_server: bool,
    pub(super) index: u16,
    pub(super) region: u16,
    pub(super) offset: u32,
    pub(super) log2_slots: u8,
}

impl RingSpec {
    pub(super) fn message(self) -> Message {
        let fields = [u16::from(self.to_server), self.index, self.region].map(u16::to_ne_bytes).concat();
        message(ADD_RING, &[&fields, &self.offset.to_ne_bytes(), &[self.log2_slots], &[0; 2]])
    }

    /// The ring that an ADD_RING message names.
    pub(super) fn parse(message: &Message) -> Self {
        let field = |at: usize| u16::from_ne_bytes([message[at], message[at + 1]]);
        Self {
            to_server: field(2) & 1 != 0,
            index: field(4),
            region: field(6),
            offset: u32::from(field(8)) | u32::from(field(10)) << 16,
            log2_slots: message[12],
        }
    }
}

fn check(ret: isize) -> io::Result<usize> {
    usize::try_from(ret).map_err(|_| io::Error::last_os_error())
}

fn own(fd: RawFd) -> io::Result<OwnedFd> {
    check(fd as isize)?;
    // SAFETY: a descriptor made just now, owned by nobody else.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// An abstract address as the driver spells it.
fn address(name: &str) -> (libc::sockaddr_un, libc::socklen_t) {
    // SAFETY: plain numbers.
    let mut address: libc::sockaddr_un = unsafe { zeroed() };
    address.sun_family = libc::AF_UNIX as libc::sa_family_t;
    for (place, byte) in address.sun_path.iter_mut().skip(1).zip(name.bytes()) {
        *place = byte as libc::c_char;
    }
    (address, (size_of::<libc::sa_family_t>() + 1 + name.len()) as libc::socklen_t)
}

fn socket() -> io::Result<OwnedFd> {
    // SAFETY: plain numbers.
    let socket = own(unsafe { libc::socket(libc::AF_UNIX, libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC, 0) })?;
    set_patience(&socket)?;
    Ok(socket)
}

fn set_patience(socket: &OwnedFd) -> io::Result<()> {
    let patience = libc::timeval { tv_sec: PATIENCE.as_secs() as libc::time_t, tv_usec: 0 };
    // SAFETY: the option's value is a timeval.
    let ret = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_RCVTIMEO,
            (&raw const patience).cast(),
            size_of::<libc::timeval>() as libc::socklen_t,
        )
    };
    check(ret as isize).map(drop)
}

/// Listens under `name`, as a server does.
pub(super) fn listen(name: &str) -> OwnedFd {
    let socket = socket().unwrap();
    let (address, len) = address(name);
    // SAFETY: an address of the length given.
    let ret = unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), len) };
    check(ret as isize).unwrap();
    // SAFETY: a bound socket.
    check(unsafe { libc::listen(socket.as_raw_fd(), 4) } as isize).unwrap();
    socket
}

/// A control connection.
pub(super) struct Channel(OwnedFd);

impl Channel {
    /// To the server that listens under `name`, as soon as there is one.
    pub(super) fn connect(name: &str) -> Self {
        let (address, len) = address(name);
        let patience = Instant::now() + PATIENCE;
        loop {
            let socket = socket().unwrap();
            // SAFETY: an address of the length given.
            let ret = unsafe { libc::connect(socket.as_raw_fd(), (&raw const address).cast(), len) };
            match check(ret as isize) {
                Ok(_) => return Self(socket),
                Err(error) => assert!(Instant::now() < patience, "no server under {name}: {error}"),
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// The next client of a listening socket.
    pub(super) fn accept(listener: &OwnedFd) -> Self {
        // SAFETY: no address is asked for.
        let accepted =
            unsafe { libc::accept(listener.as_raw_fd(), std::ptr::null_mut(), std::ptr::null_mut()) };
        let accepted = own(accepted).expect("a client connects");
        set_patience(&accepted).unwrap();
        Self(accepted)
    }

    /// Sends a message with or without a descriptor. A closed connection is found by the next receive.
    pub(super) fn send(&self, message: &Message, fd: Option<BorrowedFd<'_>>) {
        let mut iov = libc::iovec { iov_base: message.as_ptr().cast_mut().cast(), iov_len: MESSAGE_BYTES };
        let mut control = [0_u64; 3];
        // SAFETY: plain numbers and pointers.
        let mut header: libc::msghdr = unsafe { zeroed() };
        header.msg_iov = &raw mut iov;
        header.msg_iovlen = 1;
        if let Some(fd) = fd {
            header.msg_control = control.as_mut_ptr().cast();
            header.msg_controllen = size_of_val(&control);
            // SAFETY: the control buffer has room for a header and one descriptor.
            unsafe {
                let first = libc::CMSG_FIRSTHDR(&raw const header);
                (*first).cmsg_level = libc::SOL_SOCKET;
                (*first).cmsg_type = libc::SCM_RIGHTS;
                (*first).cmsg_len = libc::CMSG_LEN(size_of::<RawFd>() as u32) as usize;
                libc::CMSG_DATA(first).cast::<RawFd>().write_unaligned(fd.as_raw_fd());
            }
        }
        // SAFETY: a header whose buffers live until the call returns.
        unsafe { libc::sendmsg(self.0.as_raw_fd(), &raw const header, libc::MSG_NOSIGNAL) };
    }

    /// Returns the next message; `None` if the peer closed the connection.
    pub(super) fn receive(&self) -> Option<(Message, Option<OwnedFd>)> {
        let mut message = [0; MESSAGE_BYTES];
        let mut iov = libc::iovec { iov_base: message.as_mut_ptr().cast(), iov_len: MESSAGE_BYTES };
        let mut control = [0_u64; 16];
        // SAFETY: plain numbers and pointers.
        let mut header: libc::msghdr = unsafe { zeroed() };
        header.msg_iov = &raw mut iov;
        header.msg_iovlen = 1;
        header.msg_control = control.as_mut_ptr().cast();
        header.msg_controllen = size_of_val(&control);
        // SAFETY: a header whose buffers live until the call returns.
        let received = check(unsafe { libc::recvmsg(self.0.as_raw_fd(), &raw mut header, 0) });
        match received {
            Ok(0) => return None,
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => return None,
            received => assert_eq!(received.expect("the victim answers"), MESSAGE_BYTES),
        }
        // SAFETY: the kernel wrote the control buffer.
        let fd = unsafe {
            let first = libc::CMSG_FIRSTHDR(&raw const header);
            (!first.is_null() && (*first).cmsg_type == libc::SCM_RIGHTS)
                .then(|| OwnedFd::from_raw_fd(libc::CMSG_DATA(first).cast::<RawFd>().read_unaligned()))
        };
        Some((message, fd))
    }

    /// Returns the next message, which must be of this kind.
    #[track_caller]
    pub(super) fn expect(&self, kind: u16) -> (Message, Option<OwnedFd>) {
        let received = self.receive().unwrap_or_else(|| panic!("closed instead of message {kind}"));
        assert_eq!(u16::from_ne_bytes([received.0[0], received.0[1]]), kind);
        received
    }

    /// Waits until the peer closes the connection.
    pub(super) fn expect_end(&self) {
        while let Some((message, _)) = self.receive() {
            if message[0] == DISCONNECT as u8 {
                return;
            }
        }
    }
}

/// A file in memory, as long as asked for; sealed against shrinking as drivers do.
pub(super) fn memory_file(len_bytes: usize, sealed: bool) -> OwnedFd {
    // SAFETY: a C string and a flag.
    let fd = own(unsafe { libc::memfd_create(c"hostile".as_ptr(), libc::MFD_ALLOW_SEALING) }).unwrap();
    truncate(&fd, len_bytes);
    if sealed {
        // SAFETY: a descriptor of memfd_create's.
        let ret = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_ADD_SEALS, libc::F_SEAL_SHRINK) };
        check(ret as isize).unwrap();
    }
    fd
}

pub(super) fn truncate(fd: &OwnedFd, len_bytes: usize) {
    // SAFETY: plain numbers.
    let ret = unsafe { libc::ftruncate(fd.as_raw_fd(), len_bytes as libc::off_t) };
    check(ret as isize).unwrap();
}

/// A descriptor for the interrupts of a ring.
pub(super) fn event() -> OwnedFd {
    // SAFETY: plain numbers.
    own(unsafe { libc::eventfd(0, libc::EFD_NONBLOCK) }).unwrap()
}

/// Shared memory, mapped; stays mapped as long as the test runs.
#[derive(Clone, Copy)]
pub(super) struct Memory {
    base: *mut u8,
    len_bytes: usize,
}

impl Memory {
    pub(super) fn map(fd: BorrowedFd<'_>, len_bytes: usize) -> Self {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping.
        let base = unsafe {
            libc::mmap(std::ptr::null_mut(), len_bytes, access, libc::MAP_SHARED, fd.as_raw_fd(), 0)
        };
        assert_ne!(base, libc::MAP_FAILED);
        Self { base: base.cast(), len_bytes }
    }

    pub(super) fn write(self, at: usize, bytes: &[u8]) {
        assert!(at + bytes.len() <= self.len_bytes);
        // SAFETY: within the mapping (checked above).
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.base.add(at), bytes.len()) };
    }

    pub(super) fn read(self, at: usize, len_bytes: usize) -> Vec<u8> {
        assert!(at + len_bytes <= self.len_bytes);
        let mut bytes = vec![0; len_bytes];
        // SAFETY: within the mapping (checked above).
        unsafe { std::ptr::copy_nonoverlapping(self.base.add(at), bytes.as_mut_ptr(), len_bytes) };
        bytes
    }

    fn index(self, at: usize) -> &'static AtomicU16 {
        assert!(at + 2 <= self.len_bytes && at.is_multiple_of(2));
        // SAFETY: within the mapping (checked above), aligned, and mapped for good.
        unsafe { AtomicU16::from_ptr(self.base.add(at).cast()) }
    }
}

/// A ring in shared memory.
#[derive(Clone, Copy)]
pub(super) struct Ring {
    memory: Memory,
    at: usize,
}

/// A descriptor.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Desc {
    pub(super) flags: u16,
    pub(super) region: u16,
    pub(super) length: u32,
    pub(super) offset: u32,
}

impl Ring {
    pub(super) fn new(memory: Memory, at: usize) -> Self {
        Self { memory, at }
    }

    /// Writes the mark by which a ring is known.
    pub(super) fn mark(self) {
        self.memory.write(self.at, &COOKIE.to_ne_bytes());
    }

    pub(super) fn set_flags(self, flags: u16) {
        self.memory.write(self.at + 4, &flags.to_ne_bytes());
    }

    pub(super) fn head(self) -> u16 {
        self.memory.index(self.at + 6).load(Ordering::Acquire)
    }

    pub(super) fn set_head(self, head: u16) {
        self.memory.index(self.at + 6).store(head, Ordering::Release);
    }

    pub(super) fn tail(self) -> u16 {
        self.memory.index(self.at + 64).load(Ordering::Acquire)
    }

    pub(super) fn set_tail(self, tail: u16) {
        self.memory.index(self.at + 64).store(tail, Ordering::Release);
    }

    pub(super) fn set_desc(self, slot: usize, desc: Desc) {
        let halves = [desc.flags, desc.region].map(u16::to_ne_bytes).concat();
        let words = [desc.length, desc.offset, 0].map(u32::to_ne_bytes).concat();
        self.memory.write(self.at + 128 + 16 * slot, &[halves, words].concat());
    }

    pub(super) fn desc(self, slot: usize) -> Desc {
        let bytes = self.memory.read(self.at + 128 + 16 * slot, 16);
        let half = |at: usize| u16::from_ne_bytes([bytes[at], bytes[at + 1]]);
        let word = |at: usize| u32::from(half(at)) | u32::from(half(at + 2)) << 16;
        Desc { flags: half(0), region: half(2), length: word(4), offset: word(8) }
    }
}

/// A client, connected: region 0 with a ring each way and its buffers.
pub(super) struct Client {
    pub(super) channel: Channel,
    pub(super) memory: Memory,
    pub(super) to_server: Ring,
    pub(super) to_client: Ring,
    /// The file behind region 0.
    pub(super) file: OwnedFd,
}

/// The rings of [`Client`], to the server first.
pub(super) fn ring_specs() -> [RingSpec; 2] {
    let ring = |to_server: bool, offset: usize| RingSpec {
        to_server,
        index: 0,
        region: 0,
        offset: offset as u32,
        log2_slots: LOG2_SLOTS,
    };
    [ring(true, 0), ring(false, RING_BYTES)]
}

/// The buffer of a slot; those of the ring to the client follow those of the other.
pub(super) fn buffer(slot: usize) -> u32 {
    (BUFFERS_AT + slot * BUFFER_BYTES) as u32
}

impl Client {
    /// Connects; `file` is region 0, and `interrupt` goes with each ring.
    pub(super) fn open(name: &str, file: OwnedFd, interrupt: BorrowedFd<'_>) -> Self {
        let client = Self::prepare(name, file);
        let region = add_region(0, REGION_BYTES as u64);
        client.ask(&region, Some(client.file.as_fd()));
        for ring in ring_specs() {
            client.ask(&ring.message(), Some(interrupt));
        }
        client.channel.send(&message(CONNECT, &[&[b'x'; 32]]), None);
        client.channel.expect(CONNECTED);
        // Zeroed by the server when it connected.
        for slot in 0..SLOTS {
            let desc = Desc { length: BUFFER_BYTES as u32, offset: buffer(SLOTS + slot), ..Desc::default() };
            client.to_client.set_desc(slot, desc);
        }
        client.to_client.set_head(SLOTS as u16);
        client
    }

    /// Introduces itself, and has offered nothing yet. A server that is not ready yet turns clients away.
    pub(super) fn prepare(name: &str, file: OwnedFd) -> Self {
        let memory = Memory::map(file.as_fd(), REGION_BYTES);
        let [to_server, to_client] = ring_specs().map(|ring| Ring::new(memory, ring.offset as usize));
        to_server.mark();
        to_client.mark();
        let patience = Instant::now() + PATIENCE;
        let channel = loop {
            let channel = Channel::connect(name);
            channel.expect(HELLO);
            channel.send(&init(""), None);
            if channel.receive().is_some_and(|(message, _)| message[0] == ACK as u8) {
                break channel;
            }
            assert!(Instant::now() < patience, "the server turns every client away");
            std::thread::sleep(Duration::from_millis(5));
        };
        Self { channel, memory, to_server, to_client, file }
    }

    /// Sends what the server acknowledges.
    pub(super) fn ask(&self, message: &Message, fd: Option<BorrowedFd<'_>>) {
        self.channel.send(message, fd);
        self.channel.expect(ACK);
    }

    /// Sends one frame and waits for its echo. `slot` is how many went before.
    #[track_caller]
    pub(super) fn echo(&self, slot: usize) {
        let bytes: Vec<u8> = (0..100).map(|at| (at + slot) as u8).collect();
        let place = slot % SLOTS;
        self.memory.write(buffer(place) as usize, &bytes);
        let desc = Desc { length: 100, offset: buffer(place), ..Desc::default() };
        self.to_server.set_desc(place, desc);
        let echoed = self.to_client.tail();
        self.to_server.set_head(self.to_server.tail().wrapping_add(1));
        wait("the echo", || self.to_client.tail() != echoed);
        let desc = self.to_client.desc(usize::from(echoed) % SLOTS);
        assert_eq!(self.memory.read(desc.offset as usize, desc.length as usize), bytes);
    }
}

#[track_caller]
pub(super) fn wait(what: &str, mut ready: impl FnMut() -> bool) {
    let patience = Instant::now() + PATIENCE;
    while !ready() {
        assert!(Instant::now() < patience, "gave up waiting: {what}");
        std::thread::sleep(Duration::from_micros(100));
    }
}

/// A server with one client, connected: the memory is the client's.
pub(super) struct Server {
    pub(super) channel: Channel,
    pub(super) to_server: Ring,
    pub(super) to_client: Ring,
}

impl Server {
    /// Serves the next client of `listener`. The first in the queue may have given up before.
    pub(super) fn open(listener: &OwnedFd) -> Self {
        let mut clients = (0..3).map(|_| Self::serve(Channel::accept(listener)));
        clients.find_map(|client| client).expect("a client introduces itself")
    }

    fn serve(channel: Channel) -> Option<Self> {
        channel.send(&hello(), None);
        let ack = message(ACK, &[]);
        let (mut memory, mut rings) = (None, Vec::new());
        loop {
            let (asked, fd) = channel.receive()?;
            match u16::from(asked[0]) {
                ADD_REGION => {
                    let size = u64::from_ne_bytes(asked[4..12].try_into().unwrap());
                    memory = Some(Memory::map(fd.expect("a region has a file").as_fd(), size as usize));
                }
                ADD_RING => rings.push(RingSpec::parse(&asked)),
                CONNECT => break,
                _ => {}
            }
            channel.send(&ack, None);
        }
        let memory = memory.expect("the client offers a region");
        let ring = |to_server: bool| {
            let spec = rings.iter().find(|ring| ring.to_server == to_server).expect("a ring each way");
            Ring::new(memory, spec.offset as usize)
        };
        Some(Self { to_server: ring(true), to_client: ring(false), channel })
    }

    /// Sends CONNECTED to the client, and waits until frames are exchanged.
    #[track_caller]
    pub(super) fn connected(&self) {
        self.channel.send(&message(CONNECTED, &[&[b'x'; 32]]), None);
        wait("the client's frames", || self.to_server.head() != 0);
        wait("the client's buffers", || self.to_client.head() != 0);
    }
}
