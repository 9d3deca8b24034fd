//! Address handles, the destinations of datagrams.

use std::net::Ipv4Addr;
use std::{ptr, slice};

use libc::c_int;
use verbs::{AhId, Gid};
use verbs_sys::{
    IBV_WC_GRH, ibv_ah, ibv_ah_attr, ibv_context, ibv_gid, ibv_global_route, ibv_grh, ibv_pd, ibv_wc,
};

use crate::boundary::{Errno, INVALID, explain, number, object, status};
use crate::context::{ContextHandle, ours};
use crate::mr::pd_of;
use crate::next::next;
use crate::qp_attr::path_of;
use crate::query::check_port;

/// An address handle. C code has pointers to `c`, the first field.
#[repr(C)]
pub(crate) struct AhHandle {
    c: ibv_ah,
    pub(crate) id: AhId,
}

/// Returns the address handle at `ah` and its context; `None` if `ah` is null or an address handle of another library.
///
/// # Safety
/// `ah` is null or points to an address handle of any library.
pub(crate) unsafe fn ah_of<'a>(ah: *mut ibv_ah) -> Option<(&'a AhHandle, &'a ContextHandle)> {
    // SAFETY: as the caller states; all address handles of a context of ours are first fields of handles.
    unsafe {
        let context = ours(ah.as_ref()?.context)?;
        Some((&*ah.cast::<AhHandle>(), context))
    }
}

fn create(pd: *mut ibv_pd, attr: &ibv_ah_attr) -> Result<*mut ibv_ah, Errno> {
    // SAFETY: the program passes a protection domain.
    let (pd_handle, context) = unsafe { pd_of(pd) }.ok_or(INVALID)?;
    check_port(attr.port_num)?;
    let path = path_of("ibv_create_ah", attr)?;
    let id = context.objects()?.create_ah(pd_handle.id, &path).map_err(|error| {
        explain("ibv_create_ah", &error);
        Errno::from(error)
    })?;
    // SAFETY: `pd` is a protection domain of ours.
    let c = ibv_ah { context: unsafe { (*pd).context }, pd, handle: 0 };
    Ok(Box::into_raw(Box::new(AhHandle { c, id })).cast())
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_create_ah(pd: *mut ibv_pd, attr: *mut ibv_ah_attr) -> *mut ibv_ah {
    // SAFETY: the program passes a protection domain.
    match unsafe { pd_of(pd) } {
        // SAFETY: the program passes attributes.
        Some(_) => object(|| create(pd, unsafe { &*attr })),
        None => next!(ibv_create_ah(pd: *mut ibv_pd, attr: *mut ibv_ah_attr) -> *mut ibv_ah, ptr::null_mut()),
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_destroy_ah(ah: *mut ibv_ah) -> c_int {
    // SAFETY: the program passes an address handle.
    match unsafe { ah_of(ah) } {
        Some((handle, context)) => status(|| {
            context.objects()?.destroy_ah(handle.id)?;
            // SAFETY: the handle is a box of `create`, and the program does not use it again.
            drop(unsafe { Box::from_raw(ah.cast::<AhHandle>()) });
            Ok(())
        }),
        None => next!(ibv_destroy_ah(ah: *mut ibv_ah) -> c_int, libc::ENOSYS),
    }
}

/// Length of the GRH area, the first bytes of a receive of UD.
const GRH_BYTES: usize = size_of::<ibv_grh>();

/// Offset of an IPv4 header in the GRH area.
const IPV4_AT: usize = 20;

/// Bits of the DSCP in a traffic class. A reply does not copy the ECN field of the received packet (RFC 3168).
const DSCP_MASK: u8 = 0xFC;

/// Addresses and traffic class of a received packet.
struct Received {
    src: Gid,
    dst: Gid,
    flow_label: u32,
    traffic_class: u8,
}

/// Reads the GRH area: an IPv6 header, or 20 bytes of value 0 and an IPv4 header. Returns `None` for another content.
fn received(grh: &[u8; GRH_BYTES]) -> Option<Received> {
    const IPV6: u8 = 6;
    const IPV4: u8 = 4;
    if grh[0] >> 4 == IPV6 {
        let first = u32::from_be_bytes(*grh.first_chunk()?);
        let gid = |at: usize| Some(Gid(*grh.get(at..)?.first_chunk()?));
        let traffic_class = (first >> 20) as u8 & DSCP_MASK;
        return Some(Received { src: gid(8)?, dst: gid(24)?, flow_label: first & 0xF_FFFF, traffic_class });
    }
    let ip = grh.get(IPV4_AT..).filter(|ip| ip[0] >> 4 == IPV4)?;
    let gid = |at: usize| Some(Gid::from(Ipv4Addr::from_octets(*ip.get(at..)?.first_chunk()?)));
    Some(Received { src: gid(12)?, dst: gid(16)?, flow_label: 0, traffic_class: ip[1] & DSCP_MASK })
}

/// Returns the attributes of an address handle for replies to the datagram that completed the receive of `wc`.
fn attr_of(
    context: &ContextHandle,
    port_num: u8,
    wc: &ibv_wc,
    grh: &[u8; GRH_BYTES],
) -> Result<ibv_ah_attr, Errno> {
    check_port(port_num)?;
    if wc.wc_flags & IBV_WC_GRH == 0 {
        return Err(INVALID);
    }
    let Received { src, dst, flow_label, traffic_class } =
        received(grh).ok_or(Errno(libc::EPROTONOSUPPORT))?;
    let gids = context.attr()?.gids;
    let (index, _) = gids.into_iter().find(|(_, gid)| *gid == dst).ok_or(INVALID)?;
    let sgid_index = u8::try_from(index).map_err(|_| INVALID)?;
    let dgid = ibv_gid { raw: src.0 };
    let grh = ibv_global_route { dgid, flow_label, sgid_index, hop_limit: u8::MAX, traffic_class };
    let (dlid, sl, src_path_bits) = (wc.slid, wc.sl, wc.dlid_path_bits);
    Ok(ibv_ah_attr { grh, dlid, sl, src_path_bits, static_rate: 0, is_global: 1, port_num })
}

/// Returns the GRH area at `grh`.
///
/// # Safety
/// `grh` is null or points to the GRH area of a receive.
unsafe fn area_at<'a>(grh: *const ibv_grh) -> Result<&'a [u8; GRH_BYTES], Errno> {
    if grh.is_null() {
        return Err(INVALID);
    }
    // SAFETY: as the caller states.
    unsafe { slice::from_raw_parts(grh.cast::<u8>(), GRH_BYTES) }.first_chunk().ok_or(INVALID)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_init_ah_from_wc(
    context: *mut ibv_context,
    port_num: u8,
    wc: *mut ibv_wc,
    grh: *mut ibv_grh,
    attr: *mut ibv_ah_attr,
) -> c_int {
    // SAFETY: the program passes a context.
    match unsafe { ours(context) } {
        Some(handle) => number(|| {
            // SAFETY: the program passes a completion, the begin of its receive, and room for the attributes.
            unsafe { attr.write(attr_of(handle, port_num, &*wc, area_at(grh)?)?) };
            Ok(0)
        }),
        None => next!(
            ibv_init_ah_from_wc(context: *mut ibv_context, port_num: u8, wc: *mut ibv_wc, grh: *mut ibv_grh,
                attr: *mut ibv_ah_attr) -> c_int,
            -1
        ),
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_create_ah_from_wc(
    pd: *mut ibv_pd,
    wc: *mut ibv_wc,
    grh: *mut ibv_grh,
    port_num: u8,
) -> *mut ibv_ah {
    // SAFETY: the program passes a protection domain.
    match unsafe { pd_of(pd) } {
        Some((_, context)) => object(|| {
            // SAFETY: the program passes a completion and the begin of its receive.
            let attr = unsafe { attr_of(context, port_num, &*wc, area_at(grh)?) }?;
            create(pd, &attr)
        }),
        None => next!(
            ibv_create_ah_from_wc(pd: *mut ibv_pd, wc: *mut ibv_wc, grh: *mut ibv_grh, port_num: u8) -> *mut ibv_ah,
            ptr::null_mut()
        ),
    }
}
