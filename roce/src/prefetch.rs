//! Prefetch of state that a later packet needs.
#![allow(unsafe_code)]

use std::ops::Range;

pub(crate) const CACHE_LINE_BYTES: usize = 64;

/// Rounds the start of `range` down to a multiple of 64 bytes. `range` contains offsets in an object that is aligned to
/// 64 bytes. [`prefetch`] advances in steps of 64 bytes from the start of its range. If the range started inside a
/// cache line, `prefetch` could omit the last cache line.
pub(crate) const fn whole_lines(range: Range<usize>) -> Range<usize> {
    range.start - range.start % CACHE_LINE_BYTES..range.end
}

/// Starts to load the cache lines of the bytes `range` of `value`, and does not wait for them. No effect on other CPUs
/// than x86-64.
#[inline]
#[cfg(all(target_arch = "x86_64", not(miri)))]
pub(crate) fn prefetch<T>(value: &T, range: Range<usize>) {
    use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
    let start = std::ptr::from_ref(value).cast::<i8>();
    for offset in range.step_by(CACHE_LINE_BYTES) {
        // SAFETY: a prefetch reads no value and cannot fault, whatever the address.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(start.wrapping_add(offset)) };
    }
}

#[cfg(not(all(target_arch = "x86_64", not(miri))))]
pub(crate) fn prefetch<T>(_: &T, _: Range<usize>) {}
