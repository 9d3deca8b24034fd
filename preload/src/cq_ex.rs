//! Completion queues whose completions are read field by field (`struct ibv_cq_ex`).

use std::ptr;
use std::sync::atomic::Ordering;

use libc::{c_int, c_uint};
use verbs::Cqe;
use verbs_sys::{
    IBV_CQ_INIT_ATTR_MASK_FLAGS, IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN, IBV_CREATE_CQ_ATTR_SINGLE_THREADED,
    IBV_WC_EX_WITH_COMPLETION_TIMESTAMP, IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK, IBV_WC_GRH,
    IBV_WC_STANDARD_FLAGS, IBV_WC_WITH_IMM, ibv_context, ibv_cq_ex, ibv_cq_init_attr_ex, ibv_poll_cq_attr,
};

use crate::boundary::{UNSUPPORTED, object, status};
use crate::clock::Timestamps;
use crate::context::own;
use crate::cq::{CqHandle, CqInit, sl_of, wc_opcode, wc_status};

pub(crate) unsafe extern "C" fn create_cq_ex(
    context: *mut ibv_context,
    attr: *mut ibv_cq_init_attr_ex,
) -> *mut ibv_cq_ex {
    object(|| {
        // SAFETY: the context's table of functions was used, and the program passes attributes.
        let (handle, attr) = unsafe { (own(context)?, &*attr) };
        let known_flags = IBV_CREATE_CQ_ATTR_SINGLE_THREADED | IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN;
        let has_flags = attr.comp_mask & IBV_CQ_INIT_ATTR_MASK_FLAGS != 0;
        // A reader of a field that is not known here would be a null pointer, which the program calls.
        let timestamps = IBV_WC_EX_WITH_COMPLETION_TIMESTAMP | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK;
        if attr.wc_flags & !u64::from(IBV_WC_STANDARD_FLAGS | timestamps) != 0
            || attr.comp_mask & !IBV_CQ_INIT_ATTR_MASK_FLAGS != 0
            || (has_flags && attr.flags & !known_flags != 0)
        {
            return Err(UNSUPPORTED);
        }
        let init = CqInit {
            depth: attr.cqe,
            cq_context: attr.cq_context,
            channel: attr.channel,
            comp_vector: attr.comp_vector,
        };
        let cq = CqHandle::create(context, handle, &init)?;
        // SAFETY: the completion queue was just made, and no other thread knows it.
        let c = unsafe { &mut (*cq).c };
        c.start_poll = Some(start_poll);
        c.next_poll = Some(next_poll);
        c.end_poll = Some(end_poll);
        c.read_opcode = Some(read_opcode);
        c.read_vendor_err = Some(read_zero);
        c.read_byte_len = Some(read_byte_len);
        c.read_imm_data = Some(read_imm_data);
        c.read_qp_num = Some(read_qp_num);
        c.read_src_qp = Some(read_src_qp);
        c.read_wc_flags = Some(read_wc_flags);
        c.read_slid = Some(read_zero);
        c.read_sl = Some(read_sl);
        c.read_dlid_path_bits = Some(read_zero_byte);
        if attr.wc_flags & u64::from(timestamps) != 0 {
            c.read_completion_ts = Some(read_completion_ts);
            c.read_completion_wallclock_ns = Some(read_completion_wallclock_ns);
        }
        Ok(ptr::from_mut(c))
    })
}

/// Takes the next completion. Returns ENOENT if there is none.
///
/// # Safety
/// `cq` is a completion queue of ours, and the calling thread is the only one that polls it.
unsafe fn advance(cq: *mut ibv_cq_ex) -> c_int {
    let cq = cq.cast::<CqHandle>();
    // SAFETY: as the caller states.
    let taken = unsafe { (*cq).queue.poll_one() };
    match taken {
        Ok(Some(cqe)) => {
            // SAFETY: as the caller states.
            unsafe {
                (*cq).c.wr_id = cqe.wr_id;
                (*cq).c.status = wc_status(cqe.status);
                (*cq).current = Some(cqe);
                if (*cq).c.read_completion_ts.is_some() {
                    (*cq).polled_at = Timestamps::now();
                }
            }
            0
        }
        Ok(None) => libc::ENOENT,
        Err(error) => status(|| Err(error.into())),
    }
}

unsafe extern "C" fn start_poll(cq: *mut ibv_cq_ex, attr: *mut ibv_poll_cq_attr) -> c_int {
    // SAFETY: the function is in completion queues of ours only, and the program passes attributes.
    let (is_polled, comp_mask) = unsafe { (&(*cq.cast::<CqHandle>()).is_polled, (*attr).comp_mask) };
    if comp_mask != 0 {
        return libc::EINVAL;
    }
    // Another thread that polls takes the completions that this thread would take.
    if is_polled.swap(true, Ordering::Acquire) {
        return libc::ENOENT;
    }
    // SAFETY: `is_polled` keeps other threads out until `end_poll`.
    let taken = unsafe { advance(cq) };
    if taken != 0 {
        is_polled.store(false, Ordering::Release);
    }
    taken
}

unsafe extern "C" fn next_poll(cq: *mut ibv_cq_ex) -> c_int {
    // SAFETY: the program calls this function between `start_poll` and `end_poll`.
    unsafe { advance(cq) }
}

unsafe extern "C" fn end_poll(cq: *mut ibv_cq_ex) {
    // SAFETY: as for `next_poll`.
    unsafe { (*cq.cast::<CqHandle>()).is_polled.store(false, Ordering::Release) };
}

/// Returns a field of the current completion, and 0 before the first.
///
/// # Safety
/// `cq` is a completion queue of ours, and the calling thread is between `start_poll` and `end_poll`.
unsafe fn read<T: Default>(cq: *mut ibv_cq_ex, field: impl FnOnce(&Cqe) -> T) -> T {
    // SAFETY: as the caller states.
    unsafe { (*cq.cast::<CqHandle>()).current }.as_ref().map(field).unwrap_or_default()
}

unsafe extern "C" fn read_opcode(cq: *mut ibv_cq_ex) -> c_uint {
    // SAFETY: the program calls the function between `start_poll` and `end_poll`; so it does for all below.
    unsafe { read(cq, |cqe| wc_opcode(cqe.opcode)) }
}

unsafe extern "C" fn read_byte_len(cq: *mut ibv_cq_ex) -> u32 {
    // SAFETY: see `read_opcode`.
    unsafe { read(cq, |cqe| cqe.len_bytes) }
}

unsafe extern "C" fn read_imm_data(cq: *mut ibv_cq_ex) -> u32 {
    // SAFETY: see `read_opcode`.
    unsafe { read(cq, |cqe| cqe.imm.unwrap_or(0).to_be()) }
}

unsafe extern "C" fn read_qp_num(cq: *mut ibv_cq_ex) -> u32 {
    // SAFETY: see `read_opcode`.
    unsafe { read(cq, |cqe| cqe.qpn.value()) }
}

unsafe extern "C" fn read_wc_flags(cq: *mut ibv_cq_ex) -> c_uint {
    // SAFETY: see `read_opcode`.
    unsafe {
        read(cq, |cqe| {
            let imm = if cqe.imm.is_some() { IBV_WC_WITH_IMM } else { 0 };
            imm | if cqe.grh.is_some() { IBV_WC_GRH } else { 0 }
        })
    }
}

unsafe extern "C" fn read_src_qp(cq: *mut ibv_cq_ex) -> u32 {
    // SAFETY: see `read_opcode`.
    unsafe { read(cq, |cqe| cqe.src_qpn.value()) }
}

unsafe extern "C" fn read_sl(cq: *mut ibv_cq_ex) -> u8 {
    // SAFETY: see `read_opcode`.
    unsafe { read(cq, |cqe| cqe.grh.map_or(0, sl_of)) }
}

unsafe extern "C" fn read_completion_ts(cq: *mut ibv_cq_ex) -> u64 {
    // SAFETY: see `read_opcode`.
    unsafe { (*cq.cast::<CqHandle>()).polled_at.monotonic }
}

unsafe extern "C" fn read_completion_wallclock_ns(cq: *mut ibv_cq_ex) -> u64 {
    // SAFETY: see `read_opcode`.
    unsafe { (*cq.cast::<CqHandle>()).polled_at.realtime }
}

unsafe extern "C" fn read_zero(_: *mut ibv_cq_ex) -> u32 {
    0
}

unsafe extern "C" fn read_zero_byte(_: *mut ibv_cq_ex) -> u8 {
    0
}
