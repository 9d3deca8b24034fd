//! Copies between frames and the registered memory that scatter/gather lists name. Before the first copy, `scatter`
//! checks the access to every byte of its destination, so that the destination is unchanged after an error other than
//! [`MemoryError::Fault`].

use super::ring::Consumer;
use super::wqe::{SgList, Sge};
use crate::mem::{Access, MemoryError, MemoryView, PdId, Span};

/// The entries after the first entry of each scatter/gather list.
pub(crate) enum RestSges<'a> {
    /// Ring with the second and later entries of all work requests of a queue.
    Ring(&'a mut Option<Box<Consumer<Sge>>>),
    /// The second and later entries of the receive that a queue pair has taken from its SRQ.
    Held(&'a [Sge]),
}

impl RestSges<'_> {
    /// Returns the entry at `position`: for `Ring` a ring position, for `Held` (the entries of a receive taken from an
    /// SRQ) an index of the slice.
    pub(super) fn at(&mut self, position: u32) -> Option<Sge> {
        match self {
            RestSges::Ring(ring) => {
                let ring = ring.as_mut()?;
                ring.get(position.wrapping_sub(ring.position())).copied()
            }
            RestSges::Held(sges) => sges.get(position as usize).copied(),
        }
    }
}

/// Access to the registered memory named by the scatter/gather lists of one send queue or one receive queue.
pub(crate) struct Lists<'a> {
    pub memory: &'a MemoryView,
    pub pd: PdId,
    pub rest: RestSges<'a>,
}

/// Returns bytes `offset..offset+len_bytes` of the registered memory that `list` names; `None` if `list` has more than
/// one entry, or names fewer than `offset + len_bytes` bytes. Most scatter/gather lists have one entry, and need no
/// iteration.
#[inline]
pub(crate) fn open_one<'a>(
    memory: &'a MemoryView,
    pd: PdId,
    list: &SgList,
    offset: u32,
    len_bytes: u32,
    access: Access,
) -> Option<Result<Span<'a>, MemoryError>> {
    let piece = list.one_piece(offset, len_bytes)?;
    Some(memory.open_local(pd, piece.lkey, piece.addr, piece.len_bytes, access))
}

impl Lists<'_> {
    /// Checks that the memory regions of bytes `offset..offset+len_bytes`, among the bytes that `list` names, grant
    /// `access`.
    #[inline]
    pub(crate) fn check(
        &mut self,
        list: &SgList,
        offset: u32,
        len_bytes: u32,
        access: Access,
    ) -> Result<(), MemoryError> {
        let (memory, pd) = (self.memory, self.pd);
        list.pieces(
            |position| self.rest.at(position),
            offset,
            len_bytes,
            |piece| memory.open_local(pd, piece.lkey, piece.addr, piece.len_bytes, access).map(drop),
        )
    }

    /// Copies bytes of the registered memory that `list` names, from byte `offset` on, to `out`, until `out` is full.
    #[inline]
    pub(crate) fn gather(
        &mut self,
        list: &SgList,
        offset: u32,
        mut out: &mut [u8],
    ) -> Result<(), MemoryError> {
        let (memory, pd) = (self.memory, self.pd);
        list.pieces(
            |position| self.rest.at(position),
            offset,
            out.len() as u32,
            |piece| {
                let span = memory.open_local(pd, piece.lkey, piece.addr, piece.len_bytes, Access::NONE)?;
                if let Some((part, rest)) = std::mem::take(&mut out).split_at_mut_checked(span.len_bytes()) {
                    span.copy_to(part)?;
                    out = rest;
                }
                Ok(())
            },
        )
    }

    /// Copies `bytes` to the registered memory that `list` names, from byte `offset` of this memory on. After
    /// [`MemoryError::Fault`] a part of `bytes` may have been copied; after another error, no byte.
    #[inline]
    pub(crate) fn scatter(
        &mut self,
        list: &SgList,
        offset: u32,
        mut bytes: &[u8],
    ) -> Result<(), MemoryError> {
        let (memory, pd, len_bytes) = (self.memory, self.pd, bytes.len() as u32);
        if let Some(opened) = open_one(memory, pd, list, offset, len_bytes, Access::LOCAL_WRITE) {
            return Ok(opened?.copy_from(bytes)?);
        }
        self.check(list, offset, len_bytes, Access::LOCAL_WRITE)?;
        list.pieces(
            |position| self.rest.at(position),
            offset,
            len_bytes,
            |piece| {
                let span =
                    memory.open_local(pd, piece.lkey, piece.addr, piece.len_bytes, Access::LOCAL_WRITE)?;
                if let Some((part, rest)) = bytes.split_at_checked(span.len_bytes()) {
                    span.copy_from(part)?;
                    bytes = rest;
                }
                Ok(())
            },
        )
    }
}
