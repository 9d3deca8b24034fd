//! Pages that tests map, protect, unmap and truncate.
#![allow(unsafe_code)]

use std::fs::File;
use std::os::fd::{AsRawFd, FromRawFd};
use std::sync::atomic::{AtomicUsize, Ordering};

use verbs::{Access, Memory, Mr, Pd};

pub(crate) const PAGE_BYTES: usize = 4096;
pub(crate) const READ_WRITE: libc::c_int = libc::PROT_READ | libc::PROT_WRITE;

/// Loss of pages after their registration: a change by which accesses to the pages fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Loss {
    Unmapped,
    NoAccess,
    ReadOnly,
    /// The file is truncated, so that it ends before the pages.
    Truncated,
}

pub(crate) const LOSSES: [Loss; 4] = [Loss::Unmapped, Loss::NoAccess, Loss::ReadOnly, Loss::Truncated];

/// Readable and writable pages of a file in memory. The addresses are far from those that the kernel chooses, so that
/// no other thread maps memory where the test has unmapped some.
pub(crate) struct Pages {
    file: File,
    base: *mut u8,
    count: usize,
}

impl Pages {
    pub(crate) fn new(count: usize) -> Self {
        static NEXT: AtomicUsize = AtomicUsize::new(0x2000_0000_0000);
        let len_bytes = count * PAGE_BYTES;
        let wanted = NEXT.fetch_add(len_bytes + 16 * PAGE_BYTES, Ordering::Relaxed);
        // The name is not UTF-8, as the names of files in /proc/self/maps need not be.
        // SAFETY: creates a file in memory; the name is a C string.
        let fd = unsafe { libc::memfd_create(c"pages \xFF".as_ptr(), libc::MFD_CLOEXEC) };
        assert!(fd >= 0);
        // SAFETY: only this value owns the descriptor.
        let file = unsafe { File::from_raw_fd(fd) };
        file.set_len(len_bytes as u64).unwrap();
        let flags = libc::MAP_SHARED | libc::MAP_FIXED_NOREPLACE;
        // SAFETY: `MAP_FIXED_NOREPLACE` replaces no mapping.
        let base = unsafe { libc::mmap(wanted as *mut _, len_bytes, READ_WRITE, flags, file.as_raw_fd(), 0) };
        assert_eq!(base as usize, wanted);
        Pages { file, base: base.cast(), count }
    }

    pub(crate) fn addr(&self) -> usize {
        self.base as usize
    }

    /// Returns `len_bytes` bytes from byte `offset` on, which may be more than the pages have.
    pub(crate) fn memory(&self, offset: usize, len_bytes: usize) -> Memory {
        // SAFETY: no other object has these addresses, also after the pages were unmapped.
        unsafe { Memory::from_raw(self.base.wrapping_add(offset), len_bytes) }.unwrap()
    }

    /// Registers all pages with all rights.
    pub(crate) fn register(&self, pd: &Pd) -> Mr {
        pd.register(self.memory(0, self.count * PAGE_BYTES), Access::ALL).unwrap()
    }

    pub(crate) fn protect(&self, page: usize, protection: libc::c_int) {
        let at = self.base.wrapping_add(page * PAGE_BYTES);
        // SAFETY: the page is one of this value, and no reference leads to its bytes.
        assert_eq!(unsafe { libc::mprotect(at.cast(), PAGE_BYTES, protection) }, 0);
    }

    /// Applies `loss` to page `page`; a truncation also applies to all later pages.
    pub(crate) fn lose(&self, page: usize, loss: Loss) {
        match loss {
            Loss::NoAccess => self.protect(page, libc::PROT_NONE),
            Loss::ReadOnly => self.protect(page, libc::PROT_READ),
            Loss::Truncated => self.file.set_len((page * PAGE_BYTES) as u64).unwrap(),
            Loss::Unmapped => {
                let at = self.base.wrapping_add(page * PAGE_BYTES);
                // SAFETY: the page is one of this value, and no reference leads to its bytes.
                assert_eq!(unsafe { libc::munmap(at.cast(), PAGE_BYTES) }, 0);
            }
        }
    }

    /// Returns whether page `page` is present.
    pub(crate) fn is_present(&self, page: usize) -> bool {
        let mut present = 0;
        let at = self.base.wrapping_add(page * PAGE_BYTES);
        // SAFETY: `mincore` writes one byte for each page, here one.
        assert_eq!(unsafe { libc::mincore(at.cast(), PAGE_BYTES, &mut present) }, 0);
        present & 1 == 1
    }

    /// Reads a byte by code that belongs to no engine.
    pub(crate) fn touch(&self, offset: usize) -> u8 {
        // SAFETY: none. The test expects that this access faults and ends the process.
        unsafe { self.base.wrapping_add(offset).read_volatile() }
    }

    /// Returns bytes of the pages, of which some may be lost.
    pub(crate) fn slice(&mut self, offset: usize, len_bytes: usize) -> &mut [u8] {
        // SAFETY: none. The test expects that an access to the slice faults and ends the process.
        unsafe { std::slice::from_raw_parts_mut(self.base.wrapping_add(offset), len_bytes) }
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: the addresses belong to this value, mapped or not.
        unsafe { libc::munmap(self.base.cast(), self.count * PAGE_BYTES) };
    }
}
