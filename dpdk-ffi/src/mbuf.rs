//! Packet buffers.

use std::fmt;
use std::marker::PhantomData;
use std::ptr::NonNull;

use dpdk_sys::rte_mbuf;

use crate::mempool::Mempool;
use crate::process;

/// A frame: one packet buffer, or a chain of them. Drop returns it to its pool, from any thread.
///
/// [`Mbuf::free_bulk`] frees many with one access to the pool.
#[repr(transparent)]
pub struct Mbuf(NonNull<rte_mbuf>);

// SAFETY: an mbuf has no tie to a thread, and its pool takes it back from any.
unsafe impl Send for Mbuf {}
// SAFETY: through a shared reference it is only read.
unsafe impl Sync for Mbuf {}

/// Reason why a frame could not be extended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AppendError {
    /// More segments than an mbuf counts.
    #[error("a chain has at most {} segments", dpdk_sys::SHIM_MBUF_MAX_NB_SEGS)]
    TooManySegments,
    /// Too little room behind the data of the last buffer.
    #[error(
        "{needed} bytes do not fit into the {room} bytes behind the data; use a pool with a larger data room"
    )]
    NoRoom {
        /// Bytes requested.
        needed: usize,
        /// Bytes available.
        room: usize,
    },
}

/// Access to one field of an mbuf's header, at the offset that the C headers gave it.
macro_rules! field {
    ($get:ident: $ty:ty, $offset:ident) => {
        #[inline]
        pub(crate) fn $get(self) -> $ty {
            // SAFETY: the offset is that of an initialised field of this type.
            unsafe { self.0.as_ptr().byte_add(dpdk_sys::$offset as usize).cast::<$ty>().read() }
        }
    };
    ($get:ident, $set:ident: $ty:ty, $offset:ident) => {
        field!($get: $ty, $offset);

        #[inline]
        fn $set(self, value: $ty) {
            // SAFETY: the offset is that of a field of this type; the maker of a `Header` owns the mbuf.
            unsafe { self.0.as_ptr().byte_add(dpdk_sys::$offset as usize).cast::<$ty>().write(value) }
        }
    };
}

/// The header of one buffer. Made only by the buffer's owner, while it owns the buffer.
#[derive(Clone, Copy)]
pub(crate) struct Header(NonNull<rte_mbuf>);

impl Header {
    field!(buf_addr: *mut u8, SHIM_MBUF_BUF_ADDR);
    field!(data_off: u16, SHIM_MBUF_DATA_OFF);
    field!(buf_len: u16, SHIM_MBUF_BUF_LEN);
    field!(nb_segs: u16, SHIM_MBUF_NB_SEGS);
    field!(next: *mut rte_mbuf, SHIM_MBUF_NEXT);
    field!(data_len, set_data_len: u16, SHIM_MBUF_DATA_LEN);
    field!(pkt_len, set_pkt_len: u32, SHIM_MBUF_PKT_LEN);

    /// # Safety
    /// `raw` is an mbuf which the caller owns while it uses the header.
    #[inline]
    pub(crate) unsafe fn new(raw: NonNull<rte_mbuf>) -> Self {
        Self(raw)
    }

    #[inline]
    fn data_ptr(self) -> *mut u8 {
        // SAFETY: the data begins within the buffer.
        unsafe { self.buf_addr().add(usize::from(self.data_off())) }
    }

    /// Returns the bytes of this buffer.
    ///
    /// # Safety
    /// The caller owns the mbuf for `'a`, and writes to it meanwhile through this header only.
    #[inline]
    pub(crate) unsafe fn bytes<'a>(self) -> &'a [u8] {
        // SAFETY: the header describes initialised memory of the pool, which is the caller's for `'a`.
        unsafe { std::slice::from_raw_parts(self.data_ptr(), usize::from(self.data_len())) }
    }

    fn tailroom(self) -> usize {
        usize::from(self.buf_len())
            .saturating_sub(usize::from(self.data_off()))
            .saturating_sub(usize::from(self.data_len()))
    }

    /// Makes this single, empty buffer a frame of `len` bytes and returns their address.
    ///
    /// # Safety
    /// `len` bytes fit behind the headroom.
    #[inline]
    pub(crate) unsafe fn set_frame_len(self, len: u16) -> *mut u8 {
        self.set_data_len(len);
        self.set_pkt_len(u32::from(len));
        self.data_ptr()
    }
}

/// Frees all of `mbufs`, which the caller owns.
pub(crate) fn free(mbufs: &mut [*mut rte_mbuf]) {
    if !mbufs.is_empty() {
        // SAFETY: owned mbufs, given up.
        unsafe { dpdk_sys::rte_pktmbuf_free_bulk(mbufs.as_mut_ptr(), mbufs.len() as u32) };
    }
}

impl Mbuf {
    /// # Safety
    /// `raw` is a valid mbuf, alone or the head of a chain, and owned by the caller.
    #[inline]
    pub(crate) unsafe fn from_raw(raw: NonNull<rte_mbuf>) -> Self {
        Self(raw)
    }

    /// Gives up ownership.
    #[inline]
    pub(crate) fn into_raw(self) -> NonNull<rte_mbuf> {
        let raw = self.0;
        std::mem::forget(self);
        raw
    }

    #[inline]
    fn header(&self) -> Header {
        Header(self.0)
    }

    /// Returns the length of the whole frame, in bytes.
    #[inline]
    pub fn frame_len(&self) -> usize {
        self.header().pkt_len() as usize
    }

    /// Whether [`Mbuf::data`] is the whole frame.
    #[inline]
    pub fn is_contiguous(&self) -> bool {
        self.header().nb_segs() == 1
    }

    /// Returns the bytes of the first segment.
    #[inline]
    pub fn data(&self) -> &[u8] {
        // SAFETY: the mbuf is owned through `self`.
        unsafe { self.header().bytes() }
    }

    /// Returns the bytes of the first segment, to write.
    #[inline]
    pub fn data_mut(&mut self) -> &mut [u8] {
        let header = self.header();
        // SAFETY: as in `data`, and `self` is borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(header.data_ptr(), usize::from(header.data_len())) }
    }

    /// Returns the segments of the frame, in order.
    pub fn segments(&self) -> Segments<'_> {
        Segments { next: Some(self.0), frame: PhantomData }
    }

    /// Appends `len` bytes of unspecified content to the last segment and returns them.
    ///
    /// # Errors
    /// `NoRoom`
    pub fn append(&mut self, len: usize) -> Result<&mut [u8], AppendError> {
        let last = self.last();
        let no_room = AppendError::NoRoom { needed: len, room: last.tailroom() };
        if len > last.tailroom() {
            return Err(no_room);
        }
        // Both fit: a buffer is shorter than 64 KiB.
        let added = u16::try_from(len).map_err(|_| no_room)?;
        let old_len = last.data_len();
        last.set_data_len(old_len + added);
        self.header().set_pkt_len(self.header().pkt_len() + u32::from(added));
        // SAFETY: `len` bytes from the old end on are within the buffer (checked above), initialised since the
        // pool's memory was mapped, and borrowed through `self`.
        Ok(unsafe { std::slice::from_raw_parts_mut(last.data_ptr().add(usize::from(old_len)), len) })
    }

    /// Appends the segments of `tail` to this frame.
    ///
    /// # Errors
    /// `TooManySegments`; `tail` is dropped then.
    pub fn chain(&mut self, tail: Mbuf) -> Result<(), AppendError> {
        // SAFETY: two valid chains with one owner each; on success the second one belongs to the first.
        if unsafe { dpdk_sys::shim_pktmbuf_chain(self.0.as_ptr(), tail.0.as_ptr()) } != 0 {
            return Err(AppendError::TooManySegments);
        }
        tail.into_raw();
        Ok(())
    }

    /// Moves all bytes into the first segment and frees the others.
    ///
    /// # Errors
    /// `NoRoom`; the frame is unchanged, and may be copied by [`Mbuf::copy_contiguous`] into a pool of larger
    /// mbufs.
    pub fn linearize(&mut self) -> Result<(), AppendError> {
        // SAFETY: a valid chain with one owner.
        if unsafe { dpdk_sys::shim_pktmbuf_linearize(self.0.as_ptr()) } == 0 {
            return Ok(());
        }
        let header = self.header();
        let needed = self.frame_len() - usize::from(header.data_len());
        Err(AppendError::NoRoom { needed, room: header.tailroom() })
    }

    /// Copies the whole frame to the front of `to` and returns its length; `None` if it does not fit.
    pub fn copy_to(&self, to: &mut [u8]) -> Option<usize> {
        let mut rest = to.get_mut(..self.frame_len())?;
        for segment in self.segments() {
            let (front, back) = rest.split_at_mut_checked(segment.len())?;
            front.copy_from_slice(segment);
            rest = back;
        }
        rest.is_empty().then(|| self.frame_len())
    }

    /// Returns a copy of the frame in one mbuf of `pool`; `None` if the pool is exhausted or its mbufs are
    /// too small.
    pub fn copy_contiguous(&self, pool: &Mempool) -> Option<Mbuf> {
        let mut copy = pool.alloc()?;
        let room = copy.append(self.frame_len()).ok()?;
        self.copy_to(room)?;
        Some(copy)
    }

    /// Frees all of `frames` and keeps its capacity.
    pub fn free_bulk(frames: &mut Vec<Mbuf>) {
        let mut raw = frames.as_mut_ptr().cast::<*mut rte_mbuf>();
        let mut left = frames.len();
        // SAFETY: the mbufs belong to DPDK from here on. Nothing in between can unwind.
        unsafe { frames.set_len(0) };
        while left > 0 {
            let count = u32::try_from(left).unwrap_or(u32::MAX);
            // SAFETY: `Mbuf` is a transparent pointer, so `raw` is an array of at least `count` owned mbufs.
            unsafe {
                dpdk_sys::rte_pktmbuf_free_bulk(raw, count);
                raw = raw.add(count as usize);
            }
            left -= count as usize;
        }
    }

    fn last(&self) -> Header {
        let mut last = self.header();
        while let Some(next) = NonNull::new(last.next()) {
            last = Header(next);
        }
        last
    }
}

impl AsRef<[u8]> for Mbuf {
    /// Returns the first segment, which is the whole frame if [`Mbuf::is_contiguous`]. A port with a linear
    /// pool receives only such frames.
    #[inline]
    fn as_ref(&self) -> &[u8] {
        self.data()
    }
}

impl Drop for Mbuf {
    #[inline]
    fn drop(&mut self) {
        if !process::owns_eal() {
            return;
        }
        // SAFETY: a valid chain with one owner, which gives it up.
        unsafe { dpdk_sys::shim_pktmbuf_free(self.0.as_ptr()) };
    }
}

impl fmt::Debug for Mbuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let segments: Vec<usize> = self.segments().map(<[u8]>::len).collect();
        f.debug_struct("Mbuf").field("frame_len", &self.frame_len()).field("segment_lens", &segments).finish()
    }
}

/// The segments of a frame, in order.
#[derive(Clone)]
pub struct Segments<'a> {
    next: Option<NonNull<rte_mbuf>>,
    frame: PhantomData<&'a Mbuf>,
}

impl Segments<'_> {
    /// # Safety
    /// `head` is a valid mbuf, alone or the head of a chain, and stays so while the segments are used.
    #[inline]
    pub(crate) unsafe fn of(head: NonNull<rte_mbuf>) -> Self {
        Self { next: Some(head), frame: PhantomData }
    }
}

impl<'a> Iterator for Segments<'a> {
    type Item = &'a [u8];

    #[inline]
    fn next(&mut self) -> Option<&'a [u8]> {
        let header = Header(self.next?);
        self.next = NonNull::new(header.next());
        // SAFETY: as in `Mbuf::data`, for each buffer of the chain, which is borrowed for 'a.
        Some(unsafe { std::slice::from_raw_parts(header.data_ptr(), usize::from(header.data_len())) })
    }
}
