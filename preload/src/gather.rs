//! Inline data of several pieces.

use std::mem::MaybeUninit;
use std::{ptr, slice};

use verbs::{MAX_INLINE_BYTES, PostError};

/// The bytes of an inline work request with several pieces.
pub(crate) struct Gathered([MaybeUninit<u8>; MAX_INLINE_BYTES as usize]);

impl Gathered {
    #[inline]
    pub(crate) fn new() -> Self {
        Gathered([const { MaybeUninit::uninit() }; _])
    }

    /// Copies the pieces, each an address and a number of bytes, behind one another.
    ///
    /// # Safety
    /// Each piece is readable memory of the program.
    pub(crate) unsafe fn gather(
        &mut self,
        pieces: impl Iterator<Item = (*const u8, usize)>,
    ) -> Result<&[u8], PostError> {
        let mut len = 0_usize;
        for (bytes, count) in pieces {
            let end = len.saturating_add(count);
            let too_long = PostError::InlineTooLong { len_bytes: end, max_bytes: MAX_INLINE_BYTES };
            let place = self.0.get_mut(len..end).ok_or(too_long)?;
            // SAFETY: the caller passes readable pieces, and `place` has the length of this one. Of no bytes, the
            // address may be null.
            unsafe { ptr::copy(bytes, place.as_mut_ptr().cast(), count) };
            len = end;
        }
        // SAFETY: the pieces have filled the first `len` bytes.
        Ok(unsafe { slice::from_raw_parts(self.0.as_ptr().cast(), len) })
    }
}
