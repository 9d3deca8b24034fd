//! Copies between frames and scatter/gather lists. `scatter` checks the whole range before it copies, so that an
//! error leaves memory unchanged.

use super::ring::Consumer;
use super::wqe::{SgList, Sge};
use crate::mem::{Access, MemoryError, MemoryTable, PdId, Span};

/// Access to the memory of one queue's scatter/gather lists.
pub(crate) struct Lists<'a> {
    /// All memory regions of the device.
    pub memory: &'a MemoryTable,
    /// The queue pair's protection domain.
    pub pd: PdId,
    /// Ring of the scatter/gather entries after the first of each list, of all work requests of the queue.
    pub rest: &'a mut Consumer<Sge>,
}

impl<'a> Lists<'a> {
    /// Returns bytes `offset..offset+len_bytes` of a list of at most one entry; `None` if the list has more entries or
    /// the range exceeds the list. Most lists have one entry, and need no iteration.
    #[inline]
    pub(crate) fn open_one(
        &self,
        list: &SgList,
        offset: u32,
        len_bytes: u32,
        access: Access,
    ) -> Option<Result<Span<'a>, MemoryError>> {
        let piece = list.one_piece(offset, len_bytes)?;
        Some(self.memory.open_local(self.pd, piece.lkey, piece.addr, piece.len_bytes, access))
    }

    /// Checks that the region of every byte of `offset..offset+len_bytes` of `list` grants `access`.
    #[inline]
    pub(crate) fn check(
        &mut self,
        list: &SgList,
        offset: u32,
        len_bytes: u32,
        access: Access,
    ) -> Result<(), MemoryError> {
        let (memory, pd) = (self.memory, self.pd);
        list.pieces(self.rest, offset, len_bytes, |piece| {
            memory.open_local(pd, piece.lkey, piece.addr, piece.len_bytes, access).map(drop)
        })
    }

    /// Copies from memory to `out`, starting at `offset` of `list`, until `out` is full.
    #[inline]
    pub(crate) fn gather(
        &mut self,
        list: &SgList,
        offset: u32,
        mut out: &mut [u8],
    ) -> Result<(), MemoryError> {
        let (memory, pd) = (self.memory, self.pd);
        list.pieces(self.rest, offset, out.len() as u32, |piece| {
            let span = memory.open_local(pd, piece.lkey, piece.addr, piece.len_bytes, Access::NONE)?;
            if let Some((part, rest)) = std::mem::take(&mut out).split_at_mut_checked(span.len_bytes()) {
                span.copy_to(part);
                out = rest;
            }
            Ok(())
        })
    }

    /// Copies `bytes` to memory, starting at `offset` of `list`: all bytes, or no byte after an error.
    #[inline]
    pub(crate) fn scatter(
        &mut self,
        list: &SgList,
        offset: u32,
        mut bytes: &[u8],
    ) -> Result<(), MemoryError> {
        if let Some(opened) = self.open_one(list, offset, bytes.len() as u32, Access::LOCAL_WRITE) {
            return opened.map(|span| span.copy_from(bytes));
        }
        self.check(list, offset, bytes.len() as u32, Access::LOCAL_WRITE)?;
        let (memory, pd) = (self.memory, self.pd);
        list.pieces(self.rest, offset, bytes.len() as u32, |piece| {
            let span = memory.open_local(pd, piece.lkey, piece.addr, piece.len_bytes, Access::LOCAL_WRITE)?;
            if let Some((part, rest)) = bytes.split_at_checked(span.len_bytes()) {
                span.copy_from(part);
                bytes = rest;
            }
            Ok(())
        })
    }
}
