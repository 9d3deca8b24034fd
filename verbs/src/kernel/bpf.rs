//! System call bpf(2): programs at the ingress hook tcx of a network interface (Linux 6.6 or later), and the encoding of
//! their instructions (RFC 9669).
#![allow(unsafe_code)]

use std::ffi::c_long;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

// Commands, types and values of linux/bpf.h.
const BPF_PROG_LOAD: c_long = 5;
const BPF_LINK_CREATE: c_long = 28;
const BPF_LINK_UPDATE: c_long = 29;
const BPF_PROG_TYPE_SCHED_CLS: u32 = 3;
const BPF_TCX_INGRESS: u32 = 46;

/// An instruction, in the layout of a little-endian machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub(super) struct Instruction {
    pub(super) opcode: u8,
    /// Destination register in the low half, source register in the high half.
    pub(super) registers: u8,
    /// Offset in bytes of an access to memory, or, of a jump, number of instructions skipped.
    pub(super) offset: i16,
    pub(super) immediate: i32,
}

/// Arguments of `BPF_PROG_LOAD`, up to the last one used.
#[repr(C)]
struct ProgLoad {
    prog_type: u32,
    insn_cnt: u32,
    insns: u64,
    license: u64,
    log_level: u32,
    log_size: u32,
    log_buf: u64,
    kern_version: u32,
    prog_flags: u32,
    prog_name: [u8; 16],
    prog_ifindex: u32,
    expected_attach_type: u32,
}

/// Arguments of `BPF_LINK_CREATE`.
#[repr(C)]
struct LinkCreate {
    prog_fd: u32,
    target_ifindex: u32,
    attach_type: u32,
    flags: u32,
}

/// Arguments of `BPF_LINK_UPDATE`.
#[repr(C)]
struct LinkUpdate {
    link_fd: u32,
    new_prog_fd: u32,
    flags: u32,
    old_prog_fd: u32,
}

/// Calls bpf(2).
///
/// # Safety
/// `T` is the type of the arguments of `command`, and each address in `arguments` is that of a value of the length that
/// `arguments` states.
unsafe fn bpf<T>(command: c_long, arguments: &T) -> io::Result<libc::c_int> {
    let place = std::ptr::from_ref(arguments);
    // SAFETY: the caller's promise; the kernel only reads the `size_of::<T>()` bytes.
    let ret = unsafe { libc::syscall(libc::SYS_bpf, command, place, size_of::<T>()) };
    if ret < 0 { Err(io::Error::last_os_error()) } else { Ok(ret as libc::c_int) }
}

fn number(fd: BorrowedFd<'_>) -> u32 {
    fd.as_raw_fd().cast_unsigned()
}

/// Loads a program for the hook tcx ingress. `name` is what `bpftool` prints, at most 15 bytes.
///
/// # Errors
/// EPERM without CAP_BPF and CAP_NET_ADMIN in the initial user namespace; EINVAL or EACCES if the kernel rejects the
/// program, or has no tcx.
pub(super) fn load(name: &str, program: &[Instruction]) -> io::Result<OwnedFd> {
    let mut prog_name = [0; 16];
    prog_name.iter_mut().zip(name.bytes().take(15)).for_each(|(place, byte)| *place = byte);
    let arguments = ProgLoad {
        prog_type: BPF_PROG_TYPE_SCHED_CLS,
        insn_cnt: program.len() as u32,
        insns: program.as_ptr() as u64,
        license: c"MIT".as_ptr() as u64,
        log_level: 0,
        log_size: 0,
        log_buf: 0,
        kern_version: 0,
        prog_flags: 0,
        prog_name,
        prog_ifindex: 0,
        expected_attach_type: BPF_TCX_INGRESS,
    };
    // SAFETY: the arguments of the command; the program has `insn_cnt` instructions, the license is a C string.
    let fd = unsafe { bpf(BPF_PROG_LOAD, &arguments) }?;
    // SAFETY: just created, with no other owner. The kernel has set close-on-exec.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Attaches a program to the interface `index`, behind the programs that are attached already. The program is detached
/// when the returned link is closed, at the latest when the process ends.
///
/// # Errors
/// EINVAL if the kernel has no tcx, ENODEV without such an interface.
pub(super) fn attach(program: BorrowedFd<'_>, index: u32) -> io::Result<OwnedFd> {
    let arguments = LinkCreate {
        prog_fd: number(program),
        target_ifindex: index,
        attach_type: BPF_TCX_INGRESS,
        flags: 0,
    };
    // SAFETY: the arguments of the command, which have no address.
    let fd = unsafe { bpf(BPF_LINK_CREATE, &arguments) }?;
    // SAFETY: just created, with no other owner. The kernel has set close-on-exec.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Replaces the program of a link.
pub(super) fn replace(link: BorrowedFd<'_>, program: BorrowedFd<'_>) -> io::Result<()> {
    let arguments =
        LinkUpdate { link_fd: number(link), new_prog_fd: number(program), flags: 0, old_prog_fd: 0 };
    // SAFETY: the arguments of the command, which have no address.
    unsafe { bpf(BPF_LINK_UPDATE, &arguments) }.map(drop)
}
