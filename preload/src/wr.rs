//! The builder interface of work requests (`ibv_wr_start` to `ibv_wr_complete`).
//!
//! ```text
//!   wr_start -> (wr_id, wr_flags are set; wr_send ..; wr_set_sge or wr_set_inline_data ..)* -> wr_complete | wr_abort
//! ```
//!
//! The work requests are written to the send queue, where the engine finds them after `wr_complete`. The send queue is
//! locked meanwhile: other threads wait in `wr_start` and `ibv_post_send`.

use std::slice;

use libc::{c_int, c_void};
use verbs::{
    Destination, LKey, MAX_INLINE_BYTES, PostError, RKey, SendBatch, SendData, SendOp, SendRequest, Sge,
};
use verbs_sys::{ibv_ah, ibv_data_buf, ibv_qp_ex, ibv_sge};

use crate::boundary::{INVALID, status};
use crate::builder::{Builder, flags_of};
use crate::gather::Gathered;
use crate::post::{destination_of, sges_at};
use crate::qp::QpHandle;

/// Sets the functions of a queue pair of UD.
pub(crate) fn fill_datagrams(c: &mut ibv_qp_ex) {
    c.wr_start = Some(wr_start);
    c.wr_complete = Some(wr_complete);
    c.wr_abort = Some(wr_abort);
    c.wr_send = Some(wr_send_datagram);
    c.wr_send_imm = Some(wr_send_datagram_imm);
    c.wr_set_ud_addr = Some(wr_set_ud_addr);
    c.wr_set_sge = Some(wr_set_sge);
    c.wr_set_sge_list = Some(wr_set_sge_list);
    c.wr_set_inline_data = Some(wr_set_inline_data);
    c.wr_set_inline_data_list = Some(wr_set_inline_data_list);
}

/// Sets the functions of a queue pair of RC or UC.
pub(crate) fn fill(c: &mut ibv_qp_ex) {
    c.wr_start = Some(wr_start);
    c.wr_complete = Some(wr_complete);
    c.wr_abort = Some(wr_abort);
    c.wr_send = Some(wr_send);
    c.wr_send_imm = Some(wr_send_imm);
    c.wr_rdma_write = Some(wr_rdma_write);
    c.wr_rdma_write_imm = Some(wr_rdma_write_imm);
    c.wr_rdma_read = Some(wr_rdma_read);
    c.wr_local_inv = Some(wr_local_inv);
    c.wr_set_sge = Some(wr_set_sge);
    c.wr_set_sge_list = Some(wr_set_sge_list);
    c.wr_set_inline_data = Some(wr_set_inline_data);
    c.wr_set_inline_data_list = Some(wr_set_inline_data_list);
}

/// Returns the builder; `None` outside of `wr_start` to `wr_complete` or `wr_abort`.
///
/// # Safety
/// `qp` has the functions of `fill`, so that it is ours and has a builder, and the thread has called `wr_start`.
#[inline]
unsafe fn builder<'a>(qp: *mut ibv_qp_ex) -> Option<&'a mut Option<Builder>> {
    // SAFETY: as the caller states; the batch of `wr_start` has locked the send queue.
    unsafe { Some((*qp.cast::<QpHandle>()).building.as_ref()?.builder()) }
}

unsafe extern "C" fn wr_start(qp: *mut ibv_qp_ex) {
    // SAFETY: the function is in queue pairs of ours only. A queue pair outlives its builder.
    let handle: &'static QpHandle = unsafe { &*qp.cast::<QpHandle>() };
    let batch = handle.queues.lock_sends();
    // SAFETY: the batch has locked the send queue.
    if let Some(builder) = unsafe { builder(qp) } {
        *builder = Some(Builder { batch, built: Ok(()) });
    }
}

/// Ends the critical region of `wr_start`.
///
/// # Safety
/// As for `builder`.
#[inline]
unsafe fn take(qp: *mut ibv_qp_ex) -> Option<Builder> {
    // SAFETY: as the caller states.
    unsafe { builder(qp) }?.take()
}

unsafe extern "C" fn wr_complete(qp: *mut ibv_qp_ex) -> c_int {
    // SAFETY: the program has called `wr_start`.
    status(|| unsafe { take(qp) }.ok_or(INVALID)?.complete())
}

unsafe extern "C" fn wr_abort(qp: *mut ibv_qp_ex) {
    // SAFETY: the program has called `wr_start`.
    if let Some(builder) = unsafe { take(qp) } {
        builder.batch.abort();
    }
}

/// Makes a step of a work request.
///
/// # Safety
/// As for `builder`.
#[inline]
unsafe fn step(qp: *mut ibv_qp_ex, step: impl FnOnce(&mut SendBatch<'static>) -> Result<(), PostError>) {
    // SAFETY: as the caller states.
    if let Some(Some(builder)) = unsafe { builder(qp) } {
        builder.step(step);
    }
}

/// Begins a work request with the number and the flags that the program has written to the queue pair.
///
/// # Safety
/// As for `builder`.
#[inline(always)]
unsafe fn begin(qp: *mut ibv_qp_ex, op: SendOp) {
    // SAFETY: as the caller states.
    unsafe {
        let (wr_id, flags) = ((*qp).wr_id, flags_of((*qp).wr_flags));
        // Not by `step`, whose closure would be called, because all operations have this closure in common. A call passes
        // the work request in memory, which takes 40 instructions.
        if let Some(Some(Builder { batch, built })) = builder(qp)
            && built.is_ok()
        {
            *built = batch.post(&SendRequest { wr_id, op, flags, data: SendData::Sges(&[]) });
        }
    }
}

unsafe extern "C" fn wr_send(qp: *mut ibv_qp_ex) {
    // SAFETY: the program has called `wr_start`; so it has for all functions below.
    unsafe { begin(qp, SendOp::Send) };
}

unsafe extern "C" fn wr_send_imm(qp: *mut ibv_qp_ex, imm_data: u32) {
    // SAFETY: see `wr_send`.
    unsafe { begin(qp, SendOp::SendWithImm { imm: u32::from_be(imm_data) }) };
}

/// Begins a datagram, whose destination `wr_set_ud_addr` sets.
unsafe extern "C" fn wr_send_datagram(qp: *mut ibv_qp_ex) {
    // SAFETY: see `wr_send`.
    unsafe { begin(qp, SendOp::SendTo { to: Destination::default() }) };
}

unsafe extern "C" fn wr_send_datagram_imm(qp: *mut ibv_qp_ex, imm_data: u32) {
    let op = SendOp::SendToWithImm { to: Destination::default(), imm: u32::from_be(imm_data) };
    // SAFETY: see `wr_send`.
    unsafe { begin(qp, op) };
}

unsafe extern "C" fn wr_set_ud_addr(qp: *mut ibv_qp_ex, ah: *mut ibv_ah, remote_qpn: u32, remote_qkey: u32) {
    // SAFETY: see `wr_send`; the program passes an address handle.
    unsafe {
        let destination = destination_of(ah, remote_qpn, remote_qkey);
        step(qp, |batch| batch.set_destination(destination));
    }
}

unsafe extern "C" fn wr_rdma_write(qp: *mut ibv_qp_ex, rkey: u32, remote_addr: u64) {
    // SAFETY: see `wr_send`.
    unsafe { begin(qp, SendOp::Write { remote_addr, rkey: RKey(rkey) }) };
}

unsafe extern "C" fn wr_rdma_write_imm(qp: *mut ibv_qp_ex, rkey: u32, remote_addr: u64, imm_data: u32) {
    let op = SendOp::WriteWithImm { remote_addr, rkey: RKey(rkey), imm: u32::from_be(imm_data) };
    // SAFETY: see `wr_send`.
    unsafe { begin(qp, op) };
}

unsafe extern "C" fn wr_rdma_read(qp: *mut ibv_qp_ex, rkey: u32, remote_addr: u64) {
    // SAFETY: see `wr_send`.
    unsafe { begin(qp, SendOp::Read { remote_addr, rkey: RKey(rkey) }) };
}

unsafe extern "C" fn wr_local_inv(qp: *mut ibv_qp_ex, invalidate_rkey: u32) {
    // SAFETY: see `wr_send`.
    unsafe { begin(qp, SendOp::LocalInvalidate { rkey: RKey(invalidate_rkey) }) };
}

unsafe extern "C" fn wr_set_sge(qp: *mut ibv_qp_ex, lkey: u32, addr: u64, length: u32) {
    let sge = Sge { addr, len_bytes: length, lkey: LKey(lkey) };
    // SAFETY: see `wr_send`.
    unsafe { step(qp, |batch| batch.set_data(SendData::Sges(slice::from_ref(&sge)))) };
}

unsafe extern "C" fn wr_set_sge_list(qp: *mut ibv_qp_ex, num_sge: usize, sg_list: *const ibv_sge) {
    // SAFETY: see `wr_send`; the program passes a list of `num_sge` entries.
    unsafe { step(qp, |batch| batch.set_data(SendData::Sges(sges_at(sg_list, num_sge)?))) };
}

/// Returns the bytes at `addr`, which may be null if `length` is 0. Refuses more bytes than any queue pair has room for.
///
/// # Safety
/// The program passes readable memory.
#[inline]
unsafe fn bytes_at<'a>(addr: *const c_void, length: usize) -> Result<&'a [u8], PostError> {
    match length {
        0 => Ok(&[]),
        // SAFETY: as the caller states.
        _ if length <= MAX_INLINE_BYTES as usize => Ok(unsafe { slice::from_raw_parts(addr.cast(), length) }),
        _ => Err(PostError::InlineTooLong { len_bytes: length, max_bytes: MAX_INLINE_BYTES }),
    }
}

unsafe extern "C" fn wr_set_inline_data(qp: *mut ibv_qp_ex, addr: *mut c_void, length: usize) {
    // SAFETY: see `wr_send`; the program passes readable memory.
    unsafe { step(qp, |batch| batch.set_data(SendData::Inline(bytes_at(addr, length)?))) };
}

unsafe extern "C" fn wr_set_inline_data_list(
    qp: *mut ibv_qp_ex,
    num_buf: usize,
    buf_list: *const ibv_data_buf,
) {
    let mut gathered = Gathered::new();
    // SAFETY: see `wr_send`; the program passes a list of `num_buf` pieces of readable memory.
    unsafe {
        let list = if num_buf == 0 { &[] } else { slice::from_raw_parts(buf_list, num_buf) };
        let pieces = list.iter().map(|piece| (piece.addr.cast_const().cast(), piece.length));
        step(qp, |batch| batch.set_data(SendData::Inline(gathered.gather(pieces)?)));
    }
}
