//! Posts of work requests as linked lists (`ibv_post_send`, `ibv_post_recv`).

use std::{ptr, slice};

use libc::c_int;
use verbs::{
    Destination, Error, LKey, MAX_SGE, PostError, QKey, Qpn, RKey, RecvRequest, SendBatch, SendData,
    SendFlags, SendOp, SendRequest, Sge,
};
use verbs_sys::{
    IBV_SEND_INLINE, IBV_WR_LOCAL_INV, IBV_WR_RDMA_READ, IBV_WR_RDMA_WRITE, IBV_WR_RDMA_WRITE_WITH_IMM,
    IBV_WR_SEND, IBV_WR_SEND_WITH_IMM, ibv_ah, ibv_qp, ibv_recv_wr, ibv_send_wr, ibv_sge, ibv_srq,
};

use crate::ah::ah_of;
use crate::boundary::{Errno, INVALID, UNSUPPORTED, status};
use crate::builder::flags_of;
use crate::gather::Gathered;
use crate::qp::QpHandle;
use crate::srq::SrqHandle;

/// [`MAX_SGE`] as a number of entries.
const MAX_SGES: usize = MAX_SGE as usize;

/// Returns a number of entries; a number above all limits for a negative one.
#[inline]
fn count_of(num_sge: c_int) -> usize {
    num_sge.cast_unsigned() as usize
}

// `sges_at` reads the program's entries as those of `verbs`.
const _: () = {
    assert!(size_of::<Sge>() == size_of::<ibv_sge>() && align_of::<Sge>() == align_of::<ibv_sge>());
    assert!(std::mem::offset_of!(Sge, addr) == std::mem::offset_of!(ibv_sge, addr));
    assert!(std::mem::offset_of!(Sge, len_bytes) == std::mem::offset_of!(ibv_sge, length));
    assert!(std::mem::offset_of!(Sge, lkey) == std::mem::offset_of!(ibv_sge, lkey));
    assert!(size_of::<LKey>() == 4);
};

/// Returns the scatter/gather list at `list`. Refuses a list that is longer than those of any queue pair.
///
/// # Safety
/// `list` points to `count` entries.
#[inline]
pub(crate) unsafe fn sges_at<'a>(list: *const ibv_sge, count: usize) -> Result<&'a [Sge], PostError> {
    match count {
        0 => Ok(&[]),
        // SAFETY: `Sge` has the layout of `ibv_sge`; the caller passes `count` entries.
        1..=MAX_SGES => Ok(unsafe { slice::from_raw_parts(list.cast(), count) }),
        _ => Err(PostError::TooManySges { count, max: MAX_SGE }),
    }
}

/// Returns the destination of a datagram. An address handle of another library becomes the number of none.
///
/// # Safety
/// `ah` is null or points to an address handle of any library.
pub(crate) unsafe fn destination_of(ah: *mut ibv_ah, remote_qpn: u32, remote_qkey: u32) -> Destination {
    // SAFETY: as the caller states.
    let ah = unsafe { ah_of(ah) }.map(|(handle, _)| handle.id).unwrap_or_default();
    Destination { ah, qpn: Qpn::new(remote_qpn), qkey: QKey(remote_qkey) }
}

/// Returns the operation of a work request of a queue pair of UD.
///
/// # Safety
/// The address handle of the work request exists.
#[cold]
#[inline(never)]
unsafe fn datagram_of(wr: &ibv_send_wr) -> Result<SendOp, Errno> {
    // SAFETY: as the caller states; of the numbers in the unions, every value is valid.
    let (imm, to) = unsafe {
        let ud = wr.wr.ud;
        let imm = u32::from_be(wr.__bindgen_anon_1.imm_data);
        (imm, destination_of(ud.ah, ud.remote_qpn, ud.remote_qkey))
    };
    match wr.opcode {
        IBV_WR_SEND => Ok(SendOp::SendTo { to }),
        IBV_WR_SEND_WITH_IMM => Ok(SendOp::SendToWithImm { to, imm }),
        _ => Err(INVALID),
    }
}

/// Returns the operation of a work request of a connection.
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

/// Posts a work request.
///
/// # Safety
/// The work request and its list are the program's; inline data is readable.
#[inline]
unsafe fn post(batch: &mut SendBatch<'_>, wr: &ibv_send_wr, is_ud: bool) -> Result<(), Errno> {
    // SAFETY: as the caller states.
    let sges = unsafe { sges_at(wr.sg_list, count_of(wr.num_sge)) }?;
    // SAFETY: as the caller states.
    let op = if is_ud { unsafe { datagram_of(wr) }? } else { op_of(wr)? };
    let flags = flags_of(wr.send_flags);
    let data = match sges {
        _ if wr.send_flags & IBV_SEND_INLINE == 0 => SendData::Sges(sges),
        [sge] if sge.len_bytes > 0 => {
            // SAFETY: as the caller states; the post copies the bytes.
            SendData::Inline(unsafe { slice::from_raw_parts(address_of(sge), sge.len_bytes as usize) })
        }
        // SAFETY: as the caller states.
        _ => return unsafe { post_gathered(batch, wr.wr_id, op, flags, sges) },
    };
    Ok(batch.post(&SendRequest { wr_id: wr.wr_id, op, flags, data })?)
}

fn address_of(sge: &Sge) -> *const u8 {
    ptr::with_exposed_provenance(sge.addr as usize)
}

/// Posts an inline work request whose list has no entry, an empty entry or several entries.
///
/// # Safety
/// The entries are readable memory.
#[inline(never)]
unsafe fn post_gathered(
    batch: &mut SendBatch<'_>,
    wr_id: u64,
    op: SendOp,
    flags: SendFlags,
    sges: &[Sge],
) -> Result<(), Errno> {
    let mut gathered = Gathered::new();
    let pieces = sges.iter().map(|sge| (address_of(sge), sge.len_bytes as usize));
    // SAFETY: as the caller states.
    let data = SendData::Inline(unsafe { gathered.gather(pieces) }?);
    Ok(batch.post(&SendRequest { wr_id, op, flags, data })?)
}

pub(crate) unsafe extern "C" fn post_send(
    qp: *mut ibv_qp,
    wr: *mut ibv_send_wr,
    bad_wr: *mut *mut ibv_send_wr,
) -> c_int {
    let mut next = wr;
    let posted = status(|| {
        // SAFETY: the function is in the tables of our contexts only, so the queue pair is ours.
        let handle = unsafe { &*qp.cast::<QpHandle>() };
        let mut batch = handle.queues.send_batch()?;
        // SAFETY: the program passes a list of work requests that ends with null.
        while let Some(wr) = unsafe { next.as_ref() } {
            // SAFETY: as above.
            unsafe { post(&mut batch, wr, handle.is_ud) }?;
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
            let sges = unsafe { sges_at(wr.sg_list, count_of(wr.num_sge)) }?;
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
