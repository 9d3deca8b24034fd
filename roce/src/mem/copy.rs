//! Only this module and `fault`, which contains the copy routines, access registered memory.
//!
//! The application may read and write registered memory while the engine copies, so a Rust slice of registered memory
//! would be unsound. Therefore this module only copies bytes from registered memory to slices of other memory (for
//! example, frames), and from such slices to registered memory.
#![allow(unsafe_code)]

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::fmt;
use std::marker::PhantomData;
use std::ptr::NonNull;
use std::sync::Arc;

use super::fault::{self, MemoryFault};

const ALLOC_ALIGN_BYTES: usize = 4096;

struct Allocation {
    base: NonNull<u8>,
    layout: Layout,
}

// SAFETY: this crate accesses the allocation, plain bytes on the heap, only by the copy functions of this module.
unsafe impl Send for Allocation {}
// SAFETY: this crate accesses the allocation only by the copy functions of this module. Races between two calls of
// these functions, or between a call and an access of the application, are accepted.
unsafe impl Sync for Allocation {}

impl Drop for Allocation {
    fn drop(&mut self) {
        // SAFETY: `base` is from alloc_zeroed with this layout, and only this drop frees the allocation, once.
        unsafe { dealloc(self.base.as_ptr(), self.layout) }
    }
}

/// A contiguous range of bytes that can be registered: allocated by this module (freed with the last clone), owned by
/// the application ([`Memory::from_raw`]), or phantom (a length without bytes). Clones refer to the same bytes.
#[derive(Clone)]
pub struct Memory {
    /// Address of the first byte; `None` for phantom memory, which has no bytes.
    base: Option<NonNull<u8>>,
    len_bytes: usize,
    owner: Option<Arc<Allocation>>,
}

// SAFETY: this crate accesses the memory only by the copy functions of this module, which assume concurrent access.
unsafe impl Send for Memory {}
// SAFETY: this crate accesses the memory only by the copy functions of this module, which assume concurrent access.
unsafe impl Sync for Memory {}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Memory({:#x}, {} B)", self.addr(), self.len_bytes)
    }
}

/// Error of an access: the range is not inside the [`Memory`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("bytes {offset}..+{len_bytes} lie outside a memory of {memory_bytes} bytes")]
pub struct OutOfRange {
    /// Offset, from the start of the [`Memory`], of the first byte of the range.
    pub offset: usize,
    /// Length of the range in bytes.
    pub len_bytes: usize,
    /// Length of the memory in bytes.
    pub memory_bytes: usize,
}

/// Error of [`Memory::read`] and [`Memory::write`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AccessError {
    /// The range is not inside the [`Memory`].
    #[error(transparent)]
    OutOfRange(#[from] OutOfRange),
    /// The bytes could not be accessed. A part of the bytes may have been copied.
    #[error(transparent)]
    Fault(#[from] MemoryFault),
}

impl Memory {
    /// Allocates `len_bytes` bytes of value 0, aligned to 4,096 bytes.
    pub fn alloc(len_bytes: usize) -> Self {
        let layout = Layout::from_size_align(len_bytes.max(1), ALLOC_ALIGN_BYTES)
            .expect("a length below isize::MAX minus a page");
        fault::detect();
        // SAFETY: the size is at least 1.
        let base =
            NonNull::new(unsafe { alloc_zeroed(layout) }).unwrap_or_else(|| handle_alloc_error(layout));
        Memory { base: Some(base), len_bytes, owner: Some(Arc::new(Allocation { base, layout })) }
    }

    /// Creates phantom memory for simulations, with a length but without bytes: a copy to or from phantom memory has no
    /// effect.
    pub fn phantom(len_bytes: usize) -> Self {
        Memory { base: None, len_bytes, owner: None }
    }

    /// Creates a [`Memory`] of bytes that the application owns. `None` if `base` is null and `len_bytes` is not 0.
    ///
    /// # Safety
    /// Until all clones of this value are dropped and all regions registered with a clone are deregistered, the engine
    /// may read and write the addresses `base..base+len_bytes` at any time, so no other object may be allocated there.
    /// The application accepts that its accesses race with those of the engine. No slice passed to [`Memory::read`] or
    /// [`Memory::write`] overlaps these bytes.
    ///
    /// If the memory is not mapped any more, not accessible, or beyond the end of its file, a copy causes a memory
    /// fault. If [`super::CAN_RECOVER`] is true, and the program handles SIGSEGV and SIGBUS as the crate `verbs` does,
    /// this copy fails with [`MemoryFault`]. Otherwise the process ends.
    pub unsafe fn from_raw(base: *mut u8, len_bytes: usize) -> Option<Self> {
        fault::detect();
        match NonNull::new(base) {
            Some(base) => Some(Memory { base: Some(base), len_bytes, owner: None }),
            None if len_bytes == 0 => Some(Memory::phantom(0)),
            None => None,
        }
    }

    /// Returns the address of the first byte of this memory; 0 for phantom memory.
    pub fn addr(&self) -> u64 {
        self.base.map_or(0, |base| base.as_ptr() as u64)
    }

    /// Returns the length of this memory in bytes.
    pub fn len_bytes(&self) -> usize {
        self.len_bytes
    }

    /// Returns the `len_bytes` bytes at `offset`; `None` if the range is not inside the memory.
    #[inline]
    pub fn span(&self, offset: usize, len_bytes: usize) -> Option<Span<'_>> {
        if offset > self.len_bytes || len_bytes > self.len_bytes - offset {
            return None;
        }
        // SAFETY: `offset` is at most `self.len_bytes`, the length of one allocation, so the address is inside this
        // allocation or one past its end.
        let base = self.base.map(|base| unsafe { base.add(offset) });
        Some(Span { base, len_bytes, _memory: PhantomData })
    }

    fn checked(&self, offset: usize, len_bytes: usize) -> Result<Span<'_>, OutOfRange> {
        self.span(offset, len_bytes).ok_or(OutOfRange { offset, len_bytes, memory_bytes: self.len_bytes })
    }

    /// Copies `out.len()` bytes from `offset` of the memory to `out`.
    pub fn read(&self, offset: usize, out: &mut [u8]) -> Result<(), AccessError> {
        Ok(self.checked(offset, out.len())?.copy_to(out)?)
    }

    /// Copies `bytes` to `offset` of the memory.
    pub fn write(&self, offset: usize, bytes: &[u8]) -> Result<(), AccessError> {
        Ok(self.checked(offset, bytes.len())?.copy_from(bytes)?)
    }

    /// Returns whether the application owns the bytes ([`Memory::from_raw`]), and can therefore unmap them.
    pub fn is_lent(&self) -> bool {
        self.base.is_some() && self.owner.is_none()
    }
}

/// A contiguous part of a [`Memory`], as source or destination of copies. The span borrows the memory, so that a region
/// cannot be deregistered while a span of the region exists.
#[derive(Clone, Copy)]
pub struct Span<'a> {
    /// Address of the first byte; `None` for phantom memory and for [`Span::EMPTY`].
    base: Option<NonNull<u8>>,
    len_bytes: usize,
    _memory: PhantomData<&'a Memory>,
}

impl Span<'_> {
    pub(crate) const EMPTY: Span<'static> = Span { base: None, len_bytes: 0, _memory: PhantomData };

    /// Returns the length of this span in bytes.
    pub fn len_bytes(&self) -> usize {
        self.len_bytes
    }

    /// Copies the first n bytes of this span to `out`, where n is the smaller of the two lengths.
    ///
    /// # Errors
    /// After an error, a part of the bytes may have been copied.
    #[inline]
    pub fn copy_to(&self, out: &mut [u8]) -> Result<(), MemoryFault> {
        let Some(base) = self.base else { return Ok(()) };
        let count = self.len_bytes.min(out.len());
        // SAFETY: `count` bytes are inside the memory of this span and inside `out`. The memory and `out` do not
        // overlap: a frame buffer is never registered memory, and the contract of `Memory::from_raw` forbids that
        // another slice overlaps the memory.
        unsafe { fault::load(base.as_ptr(), out.as_mut_ptr(), count) }
    }

    /// Copies the first n bytes of `bytes` to this span, where n is the smaller of the two lengths. The last byte is
    /// stored after all others, because programs poll the last byte of a WRITE (`ib_write_lat`).
    ///
    /// # Errors
    /// After an error, a part of the bytes, but not the last one, may have been copied.
    #[inline]
    pub fn copy_from(&self, bytes: &[u8]) -> Result<(), MemoryFault> {
        let Some(base) = self.base else { return Ok(()) };
        let Some(last) = self.len_bytes.min(bytes.len()).checked_sub(1) else { return Ok(()) };
        // SAFETY: `last + 1` bytes are inside `bytes` and inside the memory of this span. The memory and `bytes` do not
        // overlap: a frame buffer is never registered memory, and the contract of `Memory::from_raw` forbids that
        // another slice overlaps the memory.
        unsafe { fault::store(bytes.as_ptr(), base.as_ptr(), last) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_span_never_leaves_its_memory() {
        let memory = Memory::alloc(10);
        assert!(memory.span(10, 0).is_some());
        assert!(memory.span(11, 0).is_none());
        assert!(memory.span(3, 8).is_none());
        assert!(memory.span(1, usize::MAX).is_none());
        memory.write(2, b"abc").unwrap();
        let mut out = [0; 4];
        memory.read(1, &mut out).unwrap();
        assert_eq!(&out, b"\0abc");
        assert!(memory.read(8, &mut out).is_err());
    }

    /// Checks copies of all lengths below 330 bytes, and of some lengths below 736 bytes, at several distances from
    /// aligned addresses. With 64-byte vector registers, the longest copies run the loop of a copy routine twice.
    fn check_copies() {
        const ROOM_BYTES: usize = 800;
        let lens =
            (0..330).chain((330..ROOM_BYTES - 64).step_by(13)).step_by(if cfg!(miri) { 97 } else { 1 });
        let memory = Memory::alloc(ROOM_BYTES);
        let pattern: [u8; ROOM_BYTES] = std::array::from_fn(|at| at as u8 ^ (at >> 8) as u8);
        for len in lens {
            for (from, to) in [(0, 0), (0, 33), (1, 0), (31, 16), (17, 63), (64, 1)] {
                let mut expected = [0xEE; ROOM_BYTES];
                expected[to..][..len].copy_from_slice(&pattern[from..][..len]);
                memory.write(0, &[0xEE; ROOM_BYTES]).unwrap();
                memory.write(to, &pattern[from..][..len]).unwrap();
                let mut out = [0; ROOM_BYTES];
                memory.read(0, &mut out).unwrap();
                assert_eq!(out, expected, "{len} bytes from {from} to {to} of the memory");
                memory.write(0, &pattern).unwrap();
                let mut out = [0xEE; ROOM_BYTES];
                memory.read(from, &mut out[to..][..len]).unwrap();
                assert_eq!(out, expected, "{len} bytes from {from} of the memory to {to}");
            }
        }
    }

    #[test]
    fn a_copy_changes_its_bytes_and_no_others() {
        check_copies();
        // Repeats the checks without AVX-512, and then without AVX-512 and AVX. Meanwhile tests on other threads also
        // copy without these instructions.
        fault::without_vectors(check_copies);
    }

    #[test]
    fn phantom_memory_has_bounds_and_no_bytes() {
        let memory = Memory::phantom(1 << 40);
        memory.write((1 << 40) - 3, b"abc").unwrap();
        let mut out = *b"xyz";
        memory.read(0, &mut out).unwrap();
        assert_eq!(&out, b"xyz");
        assert!(memory.write((1 << 40) - 2, b"abc").is_err());
        assert_eq!(memory.span(7, 5).unwrap().len_bytes(), 5);
    }

    #[test]
    fn bytes_lent_by_the_caller_are_the_callers() {
        let mut bytes = vec![0u8; 4];
        // SAFETY: `bytes` outlives `memory`.
        let memory = unsafe { Memory::from_raw(bytes.as_mut_ptr(), 4) }.unwrap();
        memory.write(1, &[9]).unwrap();
        assert_eq!(bytes, [0, 9, 0, 0]);
        // SAFETY: the null pointer is refused before any access.
        assert!(unsafe { Memory::from_raw(std::ptr::null_mut(), 1) }.is_none());
    }
}
