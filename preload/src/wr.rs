//! The builder interface of work requests (`ibv_wr_start` to `ibv_wr_complete`).
//!
//! ```text
//!   wr_start -> (wr_id, wr_flags are set; wr_send ..; wr_set_sge or wr_set_inline_data ..)* -> wr_complete | wr_abort
//! ```
//!
//! The work requests are collected, and posted by `wr_complete`. Other threads wait in `wr_start` meanwhile.

use std::sync::atomic::Ordering;
use std::{slice, thread};

use libc::{c_int, c_void};
use verbs::{LKey, RKey, SendOp, Sge};
use verbs_sys::{ibv_data_buf, ibv_qp_ex, ibv_sge};

use crate::boundary::status;
use crate::builder::{Builder, Data, Wr, flags_of};
use crate::qp::QpHandle;

/// Sets the functions of a queue pair.
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

/// Calls `use_builder` with the queue pair and its builder.
///
/// # Safety
/// `qp` has the functions of `fill`, so that it is ours and has a builder, and the thread has called `wr_start`.
unsafe fn with<T>(qp: *mut ibv_qp_ex, use_builder: impl FnOnce(&QpHandle, &mut Builder) -> T) -> Option<T> {
    // SAFETY: as the caller states; `wr_start` keeps other threads out.
    unsafe {
        let handle = &*qp.cast::<QpHandle>();
        let building = handle.building.as_ref()?;
        Some(use_builder(handle, &mut *building.builder.get()))
    }
}

unsafe extern "C" fn wr_start(qp: *mut ibv_qp_ex) {
    // SAFETY: the function is in queue pairs of ours only.
    let handle = unsafe { &*qp.cast::<QpHandle>() };
    let Some(building) = &handle.building else { return };
    while building.is_locked.swap(true, Ordering::Acquire) {
        thread::yield_now();
    }
    // SAFETY: this thread has the lock.
    unsafe { (*building.builder.get()).clear() };
}

fn unlock(handle: &QpHandle) {
    if let Some(building) = &handle.building {
        building.is_locked.store(false, Ordering::Release);
    }
}

unsafe extern "C" fn wr_complete(qp: *mut ibv_qp_ex) -> c_int {
    // SAFETY: the program has called `wr_start`.
    let posted = unsafe {
        with(qp, |handle, builder| {
            let posted = status(|| builder.post(&handle.queues));
            unlock(handle);
            posted
        })
    };
    posted.unwrap_or(libc::EINVAL)
}

unsafe extern "C" fn wr_abort(qp: *mut ibv_qp_ex) {
    // SAFETY: the program has called `wr_start`.
    unsafe { with(qp, |handle, _| unlock(handle)) };
}

/// Begins a work request with the number and the flags that the program has written to the queue pair.
///
/// # Safety
/// As for `with`.
unsafe fn begin(qp: *mut ibv_qp_ex, op: SendOp) {
    // SAFETY: as the caller states.
    unsafe {
        let (wr_id, flags) = ((*qp).wr_id, flags_of((*qp).wr_flags));
        with(qp, |_, builder| builder.wrs.push(Wr { wr_id, flags, op, data: Data::Sges(0..0) }));
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

/// Sets the list of the last work request.
///
/// # Safety
/// As for `with`.
unsafe fn set_sges(qp: *mut ibv_qp_ex, sges: impl Iterator<Item = Sge>) {
    // SAFETY: as the caller states.
    unsafe {
        with(qp, |_, builder| {
            let start = builder.sges.len();
            builder.sges.extend(sges);
            let range = start..builder.sges.len();
            if let Some(last) = builder.wrs.last_mut() {
                last.data = Data::Sges(range);
            }
        })
    };
}

/// Sets the inline data of the last work request.
///
/// # Safety
/// As for `with`.
unsafe fn set_inline<'a>(qp: *mut ibv_qp_ex, pieces: impl Iterator<Item = &'a [u8]>) {
    // SAFETY: as the caller states.
    unsafe {
        with(qp, |_, builder| {
            let start = builder.bytes.len();
            pieces.for_each(|piece| builder.bytes.extend_from_slice(piece));
            let range = start..builder.bytes.len();
            if let Some(last) = builder.wrs.last_mut() {
                last.data = Data::Inline(range);
            }
        })
    };
}

/// Returns the bytes at `addr`; no bytes if `length` is 0, in which case `addr` may be null.
///
/// # Safety
/// The program passes readable memory.
unsafe fn bytes_at<'a>(addr: *const c_void, length: usize) -> &'a [u8] {
    // SAFETY: as the caller states.
    if length == 0 { &[] } else { unsafe { slice::from_raw_parts(addr.cast(), length) } }
}

unsafe extern "C" fn wr_set_sge(qp: *mut ibv_qp_ex, lkey: u32, addr: u64, length: u32) {
    let sge = Sge { addr, len_bytes: length, lkey: LKey(lkey) };
    // SAFETY: see `wr_send`.
    unsafe { set_sges(qp, std::iter::once(sge)) };
}

unsafe extern "C" fn wr_set_sge_list(qp: *mut ibv_qp_ex, num_sge: usize, sg_list: *const ibv_sge) {
    // SAFETY: see `wr_send`; the program passes a list of `num_sge` entries.
    unsafe {
        let list = if num_sge == 0 { &[] } else { slice::from_raw_parts(sg_list, num_sge) };
        let sges = list.iter();
        set_sges(qp, sges.map(|sge| Sge { addr: sge.addr, len_bytes: sge.length, lkey: LKey(sge.lkey) }));
    }
}

unsafe extern "C" fn wr_set_inline_data(qp: *mut ibv_qp_ex, addr: *mut c_void, length: usize) {
    // SAFETY: see `wr_send`; the program passes readable memory.
    unsafe { set_inline(qp, std::iter::once(bytes_at(addr, length))) };
}

unsafe extern "C" fn wr_set_inline_data_list(
    qp: *mut ibv_qp_ex,
    num_buf: usize,
    buf_list: *const ibv_data_buf,
) {
    // SAFETY: see `wr_send`; the program passes a list of `num_buf` pieces of readable memory.
    unsafe {
        let list = if num_buf == 0 { &[] } else { slice::from_raw_parts(buf_list, num_buf) };
        set_inline(qp, list.iter().map(|piece| bytes_at(piece.addr, piece.length)));
    }
}
