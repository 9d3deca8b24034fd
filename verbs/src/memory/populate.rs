//! Check of memory at its registration. The kernel makes all pages of the memory present, as at a registration with an
//! RDMA NIC, and reports memory that cannot be accessed.
#![allow(unsafe_code)]

use std::{fs, io};

use roce::mem::{Access, Memory};

use super::maps::{Obstacle, first_obstacle};

/// Reason why memory of the application cannot be registered.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum UnusableMemory {
    /// A byte of the memory is not mapped (`EFAULT` in C).
    #[error(
        "address {addr:#x} of the {len_bytes} bytes to register at {start:#x} is not mapped: map all bytes before the registration, and keep them mapped until the region is deregistered"
    )]
    NotMapped {
        /// First address that is not mapped.
        addr: u64,
        /// Address of the first byte of the memory.
        start: u64,
        /// Length of the memory in bytes.
        len_bytes: usize,
    },
    /// A page of the memory has no content: it is beyond the end of its file, or the file cannot be read (`EFAULT` in
    /// C).
    #[error(
        "a page of the {len_bytes} bytes to register at {start:#x} is beyond the end of its file, or cannot be read from the file: extend the file before the registration, and do not truncate it until the region is deregistered"
    )]
    NoContent {
        /// Address of the first byte of the memory.
        start: u64,
        /// Length of the memory in bytes.
        len_bytes: usize,
    },
    /// The mapping of a byte does not permit the accesses that the access rights of the region demand (`EACCES` in C).
    #[error(
        "address {addr:#x} of the {len_bytes} bytes to register at {start:#x} cannot be {}: map the memory with {}, or register it {}",
        if *.write { "written" } else { "read" },
        if *.write { "PROT_READ | PROT_WRITE" } else { "PROT_READ" },
        if *.write { "without local write and remote write rights" } else { "after mprotect" }
    )]
    NotPermitted {
        /// First address whose mapping does not permit the read or write that the access rights demand.
        addr: u64,
        /// True if the mapping of `addr` does not permit a write, false if it does not permit a read.
        write: bool,
        /// Address of the first byte of the memory.
        start: u64,
        /// Length of the memory in bytes.
        len_bytes: usize,
    },
    /// The kernel could not make the memory present, for example because of a lack of memory.
    #[error("{what}: {error}")]
    System {
        /// Operation that failed.
        what: &'static str,
        /// Error of the operating system.
        error: io::Error,
    },
}

/// Makes all pages of `memory` present, for writing if `access` has a right to write.
pub(super) fn populate(memory: &Memory, access: Access) -> Result<(), UnusableMemory> {
    let write = access.0 & (Access::LOCAL_WRITE | Access::REMOTE_WRITE).0 != 0;
    let (start, len_bytes) = (memory.addr(), memory.len_bytes());
    let Some(end) = start.checked_add(len_bytes as u64) else {
        return Err(UnusableMemory::NotMapped { addr: start, start, len_bytes });
    };
    let Err(error) = advise(start, end, write) else { return Ok(()) };
    // madvise returns EINVAL if the mapping does not permit the access, or maps a device and therefore has no pages,
    // or if the kernel is older than 5.14; ENOMEM if an address is not mapped, or the system has too little memory. The
    // list of mappings shows whether a mapping is the cause. `from_utf8_lossy`: the names of mapped files need not be
    // UTF-8.
    let maps = fs::read("/proc/self/maps").ok();
    match maps.and_then(|maps| first_obstacle(&String::from_utf8_lossy(&maps), start..end, write)) {
        Some(Obstacle::NotMapped(addr)) => Err(UnusableMemory::NotMapped { addr, start, len_bytes }),
        Some(Obstacle::NotPermitted { addr, write }) => {
            Err(UnusableMemory::NotPermitted { addr, write, start, len_bytes })
        }
        None => match error.raw_os_error() {
            Some(libc::EINVAL | libc::ENOSYS) => Ok(()),
            Some(libc::EFAULT) => Err(UnusableMemory::NoContent { start, len_bytes }),
            _ => Err(UnusableMemory::System {
                what: "make the pages of the memory to register present",
                error,
            }),
        },
    }
}

/// Calls madvise for the pages of the addresses from `start` to `end`.
fn advise(start: u64, end: u64, write: bool) -> io::Result<()> {
    let advice = if write { libc::MADV_POPULATE_WRITE } else { libc::MADV_POPULATE_READ };
    let page = start & !(rustix::param::page_size() as u64 - 1);
    // SAFETY: the advice changes no byte and no mapping, and the kernel checks the addresses.
    let result = unsafe { libc::madvise(page as *mut libc::c_void, (end - page) as usize, advice) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
