//! Completion queues.

use std::mem::zeroed;
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};

use libc::{c_int, c_uint, c_void};
use verbs::{CqId, CqQueue, Cqe, NetworkHeader, Notify, WcOpcode, WcStatus};
use verbs_sys::{
    IBV_WC_GRH, IBV_WC_LOCAL_INV, IBV_WC_RDMA_READ, IBV_WC_RDMA_WRITE, IBV_WC_RECV,
    IBV_WC_RECV_RDMA_WITH_IMM, IBV_WC_SEND, IBV_WC_WITH_IMM, ibv_comp_channel, ibv_context, ibv_cq,
    ibv_cq_ex, ibv_wc,
};

use crate::boundary::{Errno, INVALID, UNSUPPORTED, number, object, status};
use crate::channel::{ChannelHandle, channel_of};
use crate::clock::Timestamps;
use crate::context::{ContextHandle, ours};
use crate::events::Unacknowledged;
use crate::handle::Place;
use crate::next::next;

/// A completion queue. C code has pointers to `c`, the first field, whose begin has the layout of `ibv_cq`.
#[repr(C)]
pub(crate) struct CqHandle {
    pub(crate) c: ibv_cq_ex,
    pub(crate) queue: CqQueue,
    pub(crate) id: CqId,
    pub(crate) comp_events: Unacknowledged,
    pub(crate) async_events: Unacknowledged,
    channel: Option<&'static ChannelHandle>,
    /// Whether a thread is between `start_poll` and `end_poll`.
    pub(crate) is_polled: AtomicBool,
    /// Completion that the functions of `ibv_cq_ex` read.
    pub(crate) current: Option<Cqe>,
    /// Times at which the program polled this completion; zeros if the program requested no timestamps.
    pub(crate) polled_at: Timestamps,
}

/// Attributes of a new completion queue.
pub(crate) struct CqInit {
    pub(crate) depth: u32,
    pub(crate) cq_context: *mut c_void,
    pub(crate) channel: *mut ibv_comp_channel,
    pub(crate) comp_vector: u32,
}

impl CqHandle {
    /// Returns the values of `ibv_get_cq_event`.
    pub(crate) fn for_event(&self) -> (*mut ibv_cq, *mut c_void) {
        (ptr::from_ref(&self.c).cast_mut().cast(), self.c.cq_context)
    }

    pub(crate) fn create(
        context: *mut ibv_context,
        handle: &ContextHandle,
        init: &CqInit,
    ) -> Result<*mut CqHandle, Errno> {
        // SAFETY: the program passes null or a channel.
        let channel = unsafe { channel_of(init.channel) };
        if init.comp_vector > 0 || (channel.is_none() && !init.channel.is_null()) {
            return Err(INVALID);
        }
        let place = Place::new();
        let events = channel.map(|channel| &channel.channel);
        let (id, queue) = handle.objects()?.create_cq(init.depth, events, place.cookie())?;
        // SAFETY: zeros are a value of each field: null pointers, no functions, an unlocked mutex.
        let mut c: ibv_cq_ex = unsafe { zeroed() };
        (c.context, c.channel, c.cq_context) = (context, init.channel, init.cq_context);
        c.cqe = init.depth.cast_signed();
        if let Some(channel) = channel {
            channel.cqs.fetch_add(1, Ordering::AcqRel);
        }
        let handle = CqHandle {
            c,
            queue,
            id,
            comp_events: Unacknowledged::default(),
            async_events: Unacknowledged::default(),
            channel,
            is_polled: AtomicBool::new(false),
            current: None,
            polled_at: Timestamps::default(),
        };
        Ok(place.fill(handle))
    }
}

/// Returns the completion queue at `cq` and its context; `None` if they are null or another library's.
///
/// # Safety
/// `cq` is null or points to a completion queue of any library.
pub(crate) unsafe fn cq_of<'a>(cq: *mut ibv_cq) -> Option<(&'a CqHandle, &'a ContextHandle)> {
    // SAFETY: as the caller states; all completion queues of a context of ours are first fields of handles.
    unsafe {
        let context = ours(cq.as_ref()?.context)?;
        Some((&*cq.cast::<CqHandle>(), context))
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_create_cq(
    context: *mut ibv_context,
    cqe: c_int,
    cq_context: *mut c_void,
    channel: *mut ibv_comp_channel,
    comp_vector: c_int,
) -> *mut ibv_cq {
    // SAFETY: the program passes a context.
    match unsafe { ours(context) } {
        Some(handle) => object(|| {
            let depth = u32::try_from(cqe).map_err(|_| INVALID)?;
            let comp_vector = u32::try_from(comp_vector).map_err(|_| INVALID)?;
            let init = CqInit { depth, cq_context, channel, comp_vector };
            Ok(CqHandle::create(context, handle, &init)?.cast())
        }),
        None => next!(
            ibv_create_cq(context: *mut ibv_context, cqe: c_int, cq_context: *mut c_void,
                channel: *mut ibv_comp_channel, comp_vector: c_int) -> *mut ibv_cq,
            ptr::null_mut()
        ),
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_destroy_cq(cq: *mut ibv_cq) -> c_int {
    // SAFETY: the program passes a completion queue.
    match unsafe { cq_of(cq) } {
        Some((handle, context)) => status(|| {
            context.objects()?.destroy_cq(handle.id)?;
            handle.comp_events.wait();
            handle.async_events.wait();
            if let Some(channel) = handle.channel {
                channel.cqs.fetch_sub(1, Ordering::AcqRel);
            }
            // SAFETY: the handle is a box of `create`, and the program does not use it again.
            drop(unsafe { Box::from_raw(cq.cast::<CqHandle>()) });
            Ok(())
        }),
        None => next!(ibv_destroy_cq(cq: *mut ibv_cq) -> c_int, libc::ENOSYS),
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_resize_cq(cq: *mut ibv_cq, cqe: c_int) -> c_int {
    // SAFETY: the program passes a completion queue.
    match unsafe { cq_of(cq) } {
        Some(_) => status(|| Err(UNSUPPORTED)),
        None => next!(ibv_resize_cq(cq: *mut ibv_cq, cqe: c_int) -> c_int, libc::ENOSYS),
    }
}

/// Returns `enum ibv_wc_opcode`.
pub(crate) fn wc_opcode(opcode: WcOpcode) -> c_uint {
    match opcode {
        WcOpcode::Send => IBV_WC_SEND,
        WcOpcode::RdmaWrite => IBV_WC_RDMA_WRITE,
        WcOpcode::RdmaRead => IBV_WC_RDMA_READ,
        WcOpcode::LocalInvalidate => IBV_WC_LOCAL_INV,
        WcOpcode::Recv => IBV_WC_RECV,
        WcOpcode::RecvRdmaWithImm => IBV_WC_RECV_RDMA_WITH_IMM,
    }
}

/// Returns `enum ibv_wc_status`, whose numbers are those of `WcStatus`.
pub(crate) fn wc_status(status: WcStatus) -> c_uint {
    status as c_uint
}

/// Returns the service level in the completion of a datagram: bit 3, and the type of the IP header as drivers of mlx5
/// report it. Programs (UCX) recognise the header in the GRH area by this type.
pub(crate) fn sl_of(header: NetworkHeader) -> u8 {
    match header {
        NetworkHeader::Ipv6 => 0x9,
        NetworkHeader::Ipv4 => 0xA,
    }
}

fn wc(cqe: &Cqe) -> ibv_wc {
    // SAFETY: zeros are a value of each field.
    let mut wc: ibv_wc = unsafe { zeroed() };
    wc.wr_id = cqe.wr_id;
    wc.status = wc_status(cqe.status);
    wc.opcode = wc_opcode(cqe.opcode);
    wc.byte_len = cqe.len_bytes;
    wc.qp_num = cqe.qpn.value();
    wc
}

/// Writes a completion.
///
/// # Safety
/// `out` has room for a completion.
#[inline]
unsafe fn write_wc(out: *mut ibv_wc, cqe: &Cqe) {
    // SAFETY: as the caller states.
    unsafe { out.write(wc(cqe)) };
    if cqe.imm.is_some() || cqe.grh.is_some() {
        // SAFETY: the completion was just written.
        add_received(unsafe { &mut *out }, cqe);
    }
}

/// Adds the fields of a message with immediate data, or of a datagram. Out of line, so that the code for other
/// completions stays short.
#[cold]
#[inline(never)]
fn add_received(wc: &mut ibv_wc, cqe: &Cqe) {
    if let Some(imm) = cqe.imm {
        wc.__bindgen_anon_1.imm_data = imm.to_be();
        wc.wc_flags = IBV_WC_WITH_IMM;
    }
    if let Some(header) = cqe.grh {
        wc.wc_flags |= IBV_WC_GRH;
        (wc.src_qp, wc.sl) = (cqe.src_qpn.value(), sl_of(header));
    }
}

pub(crate) unsafe extern "C" fn poll_cq(cq: *mut ibv_cq, num_entries: c_int, out: *mut ibv_wc) -> c_int {
    number(|| {
        let max = usize::try_from(num_entries).map_err(|_| INVALID)?;
        // SAFETY: the function is in the tables of our contexts only, so the completion queue is ours.
        let queue = unsafe { &(*cq.cast::<CqHandle>()).queue };
        // SAFETY: the program passes room for `num_entries` completions.
        let taken = queue.poll_each(max, |place, cqe| unsafe { write_wc(out.add(place), cqe) })?;
        Ok(taken as c_int)
    })
}

pub(crate) unsafe extern "C" fn req_notify_cq(cq: *mut ibv_cq, solicited_only: c_int) -> c_int {
    status(|| {
        // SAFETY: as for `poll_cq`.
        let queue = unsafe { &(*cq.cast::<CqHandle>()).queue };
        let notify = if solicited_only == 0 { Notify::Any } else { Notify::Solicited };
        Ok(queue.request_notify(notify)?)
    })
}
