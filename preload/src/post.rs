//! Posts of work requests as linked lists (`ibv_post_send`, `ibv_post_recv`).

use std::{ptr, slice};

use libc::c_int;
use verbs::{Error, LKey, MAX_INLINE_BYTES, MAX_SGE, RKey, RecvRequest, SendData, SendOp, SendRequest, Sge};
use verbs_sys::{
    IBV_SEND_INLINE, IBV_WR_LOCAL_INV, IBV_WR_RDMA_READ, IBV_WR_RDMA_WRITE, IBV_WR_RDMA_WRITE_WITH_IMM,
    IBV_WR_SEND, IBV_WR_SEND_WITH_IMM, ibv_qp, ibv_recv_wr, ibv_send_wr, ibv_sge, ibv_srq,
};

use crate::boundary::{Errno, INVALID, UNSUPPORTED, status};
use crate::builder::flags_of;
use crate::qp::QpHandle;
use crate::srq::SrqHandle;

// `sges_of` reads the program's entries as those of `verbs`.
const _: () = {
    assert!(size_of::<Sge>() == size_of::<ibv_sge>() && align_of::<Sge>() == align_of::<ibv_sge>());
    assert!(std::mem::offset_of!(Sge, addr) == std::mem::offset_of!(ibv_sge, addr));
    assert!(std::mem::offset_of!(Sge, len_bytes) == std::mem::offset_of!(ibv_sge, length));
    assert!(std::mem::offset_of!(Sge, lkey) == std::mem::offset_of!(ibv_sge, lkey));
    assert!(size_of::<LKey>() == 4);
};

/// Returns the scatter/gather list of a work request.
///
/// # Safety
/// `list` points to `count` entries.
unsafe fn sges_of<'a>(list: *mut ibv_sge, count: c_int) -> Result<&'a [Sge], Errno> {
    match usize::try_from(count) {
        Ok(0) => Ok(&[]),
        // SAFETY: `Sge` has the layout of `ibv_sge`; the caller passes `count` entries.
        Ok(count) if count <= MAX_SGE as usize => Ok(unsafe { slice::from_raw_parts(list.cast(), count) }),
        _ => Err(INVALID),
    }
}

/// Bytes of an inline work request with several entries.
struct Gathered([u8; MAX_INLINE_BYTES as usize]);

impl Gathered {
    /// Copies the bytes of the entries together.
    ///
    /// # Safety
    /// Each entry is readable memory of the program.
    unsafe fn gather(&mut self, sges: &[Sge]) -> Result<&[u8], Errno> {
        let mut len = 0;
        for sge in sges {
            let end = len + sge.len_bytes as usize;
            let place = self.0.get_mut(len..end).ok_or(INVALID)?;
            let bytes = ptr::with_exposed_provenance::<u8>(sge.addr as usize);
            // SAFETY: the caller passes readable entries, and `place` has their length.
            unsafe { ptr::copy_nonoverlapping(bytes, place.as_mut_ptr(), place.len()) };
            len = end;
        }
        Ok(&self.0[..len])
    }
}

/// Returns the operation of a work request.
fn op_of(wr: &ibv_send_wr) -> Result<SendOp, Errno> {
    // SAFETY: the fields of the unions are numbers, of which every value is valid.
    let (imm, rdma, invalidated) = unsafe {
        let word = wr.__bindgen_anon_1;
        (u32::from_be(word.imm_data), wr.wr.rdma, word.invalidate_rkey)
    };
    let (remote_addr, rkey) = (rdma.remote_addr, RKey(rdma.rkey));
    Ok(match wr.opcode {
        IBV_WR_SEND => SendOp::Send,
        IBV_WR_SEND_WITH_IMM => SendOp::SendWithImm { imm },
        IBV_WR_RDMA_WRITE => SendOp::Write { remote_addr, rkey },
        IBV_WR_RDMA_WRITE_WITH_IMM => SendOp::WriteWithImm { remote_addr, rkey, imm },
        IBV_WR_RDMA_READ => SendOp::Read { remote_addr, rkey },
        IBV_WR_LOCAL_INV => SendOp::LocalInvalidate { rkey: RKey(invalidated) },
        _ => return Err(UNSUPPORTED),
    })
}

/// Calls `post` with the request of a work request.
///
/// # Safety
/// The work request and its list are the program's; inline data is readable.
unsafe fn with_request<T>(
    wr: &ibv_send_wr,
    post: impl FnOnce(&SendRequest<'_>) -> Result<T, Errno>,
) -> Result<T, Errno> {
    // SAFETY: as the caller states.
    let sges = unsafe { sges_of(wr.sg_list, wr.num_sge) }?;
    let (op, flags) = (op_of(wr)?, flags_of(wr.send_flags));
    let request = |data| SendRequest { wr_id: wr.wr_id, op, flags, data };
    if wr.send_flags & IBV_SEND_INLINE == 0 {
        return post(&request(SendData::Sges(sges)));
    }
    if let [sge] = sges
        && sge.len_bytes > 0
    {
        let bytes = ptr::with_exposed_provenance::<u8>(sge.addr as usize);
        // SAFETY: as the caller states; `post` copies the bytes.
        let bytes = unsafe { slice::from_raw_parts(bytes, sge.len_bytes as usize) };
        return post(&request(SendData::Inline(bytes)));
    }
    let mut gathered = Gathered([0; MAX_INLINE_BYTES as usize]);
    // SAFETY: as the caller states.
    post(&request(SendData::Inline(unsafe { gathered.gather(sges) }?)))
}

pub(crate) unsafe extern "C" fn post_send(
    qp: *mut ibv_qp,
    wr: *mut ibv_send_wr,
    bad_wr: *mut *mut ibv_send_wr,
) -> c_int {
    let mut next = wr;
    let posted = status(|| {
        // SAFETY: the function is in the tables of our contexts only, so the queue pair is ours.
        let mut batch = unsafe { (*qp.cast::<QpHandle>()).queues.send_batch() }?;
        // SAFETY: the program passes a list of work requests that ends with null.
        while let Some(wr) = unsafe { next.as_ref() } {
            // SAFETY: as above.
            unsafe { with_request(wr, |request| Ok(batch.post(request)?)) }?;
            next = wr.next;
        }
        Ok(())
    });
    if posted != 0 {
        // SAFETY: the program passes room for the pointer.
        unsafe { bad_wr.write(next) };
    }
    posted
}

/// Posts a list of receives by `post`.
///
/// # Safety
/// `wr` is a list of receives that ends with null, and `bad_wr` has room for a pointer.
unsafe fn post_receives(
    wr: *mut ibv_recv_wr,
    bad_wr: *mut *mut ibv_recv_wr,
    post: impl Fn(&RecvRequest<'_>) -> Result<(), Error>,
) -> c_int {
    let mut next = wr;
    let posted = status(|| {
        // SAFETY: as the caller states.
        while let Some(wr) = unsafe { next.as_ref() } {
            // SAFETY: as the caller states.
            let sges = unsafe { sges_of(wr.sg_list, wr.num_sge) }?;
            post(&RecvRequest { wr_id: wr.wr_id, sges })?;
            next = wr.next;
        }
        Ok(())
    });
    if posted != 0 {
        // SAFETY: as the caller states.
        unsafe { bad_wr.write(next) };
    }
    posted
}

pub(crate) unsafe extern "C" fn post_recv(
    qp: *mut ibv_qp,
    wr: *mut ibv_recv_wr,
    bad_wr: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: as for `post_send`.
    unsafe {
        let queues = &(*qp.cast::<QpHandle>()).queues;
        post_receives(wr, bad_wr, |receive| queues.post_recv(receive))
    }
}

pub(crate) unsafe extern "C" fn post_srq_recv(
    srq: *mut ibv_srq,
    wr: *mut ibv_recv_wr,
    bad_wr: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: the function is in the tables of our contexts only, so the queue is ours; the program passes a list.
    unsafe {
        let queue = &(*srq.cast::<SrqHandle>()).queue;
        post_receives(wr, bad_wr, |receive| queue.post_recv(receive))
    }
}
