//! Queries: attributes of devices and ports, GIDs and P_Keys.

use std::mem::zeroed;
use std::ptr;

use libc::{c_int, c_uint};
use verbs::{DeviceCaps, Gid, LinkRate, MAX_MESSAGE_BYTES, PathMtu};
use verbs_sys::{
    _compat_ibv_port_attr, IBV_ATOMIC_NONE, IBV_DEVICE_RC_RNR_NAK_GEN, IBV_DEVICE_SYS_IMAGE_GUID,
    IBV_GID_TYPE_ROCE_V2, IBV_LINK_LAYER_ETHERNET, IBV_PORT_ACTIVE, IBV_PORT_DOWN, IBV_PORT_IP_BASED_GIDS,
    ibv_context, ibv_device_attr, ibv_device_attr_ex, ibv_gid, ibv_gid_entry, ibv_port_attr,
    ibv_query_device_ex_input,
};

use crate::boundary::{Errno, INVALID, number, status};
use crate::clock::CORE_CLOCK_KHZ;
use crate::context::{ContextHandle, ours, own};
use crate::device::has_link;
use crate::next::next;

/// Number of the only port.
const PORT: u8 = 1;
/// The only P_Key: the default partition, with full membership (IBA 10.9.1.2).
const PKEY: u16 = 0xffff;
/// `phys_state` (IBA 14.2.5.6).
const PHYS_STATE_DISABLED: u8 = 3;
const PHYS_STATE_LINK_UP: u8 = 5;

pub(crate) fn check_port(port_num: u8) -> Result<(), Errno> {
    if port_num == PORT { Ok(()) } else { Err(INVALID) }
}

/// Returns `enum ibv_mtu`.
pub(crate) fn mtu_code(mtu: PathMtu) -> u32 {
    mtu as u32 + 1
}

fn caps(context: &ContextHandle) -> Result<DeviceCaps, Errno> {
    match &context.device.description {
        Some(description) => Ok(description.caps),
        None => context.attr().map(|attr| attr.caps),
    }
}

fn to_c_int(value: usize) -> c_int {
    c_int::try_from(value).unwrap_or(c_int::MAX)
}

fn device_attr(context: &ContextHandle) -> Result<ibv_device_attr, Errno> {
    let caps = caps(context)?;
    let guid = u64::from_ne_bytes(context.device.guid);
    // SAFETY: zeros are a value of each field.
    let mut attr: ibv_device_attr = unsafe { zeroed() };
    let version = env!("CARGO_PKG_VERSION").bytes().zip(&mut attr.fw_ver);
    version.for_each(|(byte, to)| *to = byte.cast_signed());
    (attr.node_guid, attr.sys_image_guid) = (guid, guid);
    attr.max_mr_size = u64::MAX;
    attr.page_size_cap = !0xfff;
    attr.max_qp = to_c_int(caps.limits.max_qps);
    attr.max_qp_wr = caps.max_qp_wr.cast_signed();
    attr.device_cap_flags = IBV_DEVICE_RC_RNR_NAK_GEN | IBV_DEVICE_SYS_IMAGE_GUID;
    (attr.max_sge, attr.max_sge_rd) = (caps.max_sge.cast_signed(), caps.max_sge.cast_signed());
    attr.max_cq = to_c_int(caps.limits.max_cqs);
    attr.max_cqe = caps.max_cqe.cast_signed();
    attr.max_mr = to_c_int(caps.limits.max_mrs);
    attr.max_ah = to_c_int(caps.limits.max_ahs);
    attr.max_pd = to_c_int(caps.limits.max_pds);
    (attr.max_qp_rd_atom, attr.max_qp_init_rd_atom) = (caps.max_rd_atomic.into(), caps.max_rd_atomic.into());
    attr.max_res_rd_atom = attr.max_qp_rd_atom.saturating_mul(attr.max_qp);
    attr.atomic_cap = IBV_ATOMIC_NONE;
    attr.max_srq = to_c_int(caps.limits.max_srqs);
    (attr.max_srq_wr, attr.max_srq_sge) = (caps.max_qp_wr.cast_signed(), caps.max_sge.cast_signed());
    attr.max_pkeys = 1;
    attr.phys_port_cnt = 1;
    Ok(attr)
}

fn port_attr(context: &ContextHandle) -> Result<ibv_port_attr, Errno> {
    let device = context.attr()?;
    // SAFETY: zeros are a value of each field.
    let mut attr: ibv_port_attr = unsafe { zeroed() };
    let is_active = device.is_up || !has_link(device.kind);
    attr.state = if is_active { IBV_PORT_ACTIVE } else { IBV_PORT_DOWN };
    attr.max_mtu = mtu_code(PathMtu::Mtu4096);
    attr.active_mtu = device.active_mtu.map_or(0, mtu_code);
    attr.gid_tbl_len = to_c_int(device.gids.iter().map(|(index, _)| index + 1).max().unwrap_or(0));
    attr.port_cap_flags = IBV_PORT_IP_BASED_GIDS;
    attr.max_msg_sz = MAX_MESSAGE_BYTES;
    attr.pkey_tbl_len = 1;
    // `active_speed_ex` of later headers stays 0, because every rate has a code in `active_speed`.
    let rate = LinkRate::of_ethernet(device.speed_mbps);
    (attr.active_width, attr.active_speed) = (rate.width_code(), rate.speed_code());
    attr.phys_state = if is_active { PHYS_STATE_LINK_UP } else { PHYS_STATE_DISABLED };
    attr.link_layer = IBV_LINK_LAYER_ETHERNET as u8;
    Ok(attr)
}

fn gid(context: &ContextHandle, index: usize) -> Result<Gid, Errno> {
    context.opened()?.gid(index).ok_or(INVALID)
}

/// Copies the first `len` bytes of `value` to `out`, because older and newer programs have other sizes; the rest of
/// `out` becomes 0.
///
/// # Safety
/// `out` has room for `len` bytes.
unsafe fn write_prefix<T>(value: &T, out: *mut T, len: usize) {
    let copied = len.min(size_of::<T>());
    // SAFETY: `out` has room for `len` bytes, and `value` has at least `copied`.
    unsafe {
        ptr::copy_nonoverlapping(ptr::from_ref(value).cast::<u8>(), out.cast(), copied);
        ptr::write_bytes(out.cast::<u8>().add(copied), 0, len - copied);
    }
}

pub(crate) unsafe extern "C" fn compat_query_device(
    context: *mut ibv_context,
    attr: *mut ibv_device_attr,
) -> c_int {
    status(|| {
        // SAFETY: the context's table of functions was used, and the program passes room for the attributes.
        unsafe { attr.write(device_attr(own(context)?)?) };
        Ok(())
    })
}

pub(crate) unsafe extern "C" fn query_port(
    context: *mut ibv_context,
    port_num: u8,
    attr: *mut ibv_port_attr,
    attr_len: usize,
) -> c_int {
    status(|| {
        check_port(port_num)?;
        // SAFETY: the context's table of functions was used, and the program passes room for `attr_len` bytes.
        unsafe { write_prefix(&port_attr(own(context)?)?, attr, attr_len) };
        Ok(())
    })
}

/// Writes the attributes that programs before `verbs_context::query_port` know: 48 bytes.
pub(crate) unsafe extern "C" fn compat_query_port(
    context: *mut ibv_context,
    port_num: u8,
    attr: *mut _compat_ibv_port_attr,
) -> c_int {
    const COMPAT_BYTES: usize = std::mem::offset_of!(ibv_port_attr, port_cap_flags2);
    // SAFETY: as for `query_port`.
    unsafe { query_port(context, port_num, attr.cast(), COMPAT_BYTES) }
}

pub(crate) unsafe extern "C" fn query_device_ex(
    context: *mut ibv_context,
    _: *const ibv_query_device_ex_input,
    attr: *mut ibv_device_attr_ex,
    attr_size: usize,
) -> c_int {
    status(|| {
        // SAFETY: zeros are a value of each field.
        let mut attr_ex: ibv_device_attr_ex = unsafe { zeroed() };
        // SAFETY: the context's table of functions was used.
        attr_ex.orig_attr = device_attr(unsafe { own(context) }?)?;
        attr_ex.phys_port_cnt_ex = 1;
        (attr_ex.completion_timestamp_mask, attr_ex.hca_core_clock) = (u64::MAX, CORE_CLOCK_KHZ);
        // SAFETY: the program passes room for `attr_size` bytes.
        unsafe { write_prefix(&attr_ex, attr, attr_size) };
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_device(context: *mut ibv_context, attr: *mut ibv_device_attr) -> c_int {
    // SAFETY: the program passes a context.
    match unsafe { ours(context) } {
        // SAFETY: and room for the attributes.
        Some(_) => unsafe { compat_query_device(context, attr) },
        None => next!(
            ibv_query_device(context: *mut ibv_context, attr: *mut ibv_device_attr) -> c_int,
            libc::ENOSYS
        ),
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_port(
    context: *mut ibv_context,
    port_num: u8,
    attr: *mut _compat_ibv_port_attr,
) -> c_int {
    // SAFETY: the program passes a context.
    match unsafe { ours(context) } {
        // SAFETY: and room for the attributes.
        Some(_) => unsafe { compat_query_port(context, port_num, attr) },
        None => next!(
            ibv_query_port(context: *mut ibv_context, port_num: u8, attr: *mut _compat_ibv_port_attr) -> c_int,
            libc::ENOSYS
        ),
    }
}

/// Of rdma-core 62 and later: the speed of the link, in units of 100 Mbit/s.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_port_speed(
    context: *mut ibv_context,
    port_num: u32,
    speed: *mut u64,
) -> c_int {
    // SAFETY: the program passes a context.
    match unsafe { ours(context) } {
        Some(context) => status(|| {
            check_port(u8::try_from(port_num).map_err(|_| INVALID)?)?;
            let speed_mbps = context.attr()?.speed_mbps;
            let in_hundreds = speed_mbps.map(|mbps| mbps.div_ceil(100));
            let in_hundreds = in_hundreds.unwrap_or_else(|| LinkRate::of_ethernet(None).hundred_mbps());
            // SAFETY: the program passes room for the speed.
            unsafe { speed.write(in_hundreds.into()) };
            Ok(())
        }),
        None => next!(
            ibv_query_port_speed(context: *mut ibv_context, port_num: u32, speed: *mut u64) -> c_int,
            libc::ENOSYS
        ),
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_gid(
    context: *mut ibv_context,
    port_num: u8,
    index: c_int,
    out: *mut ibv_gid,
) -> c_int {
    // SAFETY: the program passes a context.
    match unsafe { ours(context) } {
        Some(context) => number(|| {
            check_port(port_num)?;
            let raw = gid(context, usize::try_from(index).map_err(|_| INVALID)?)?.0;
            // SAFETY: the program passes room for a GID.
            unsafe { out.write(ibv_gid { raw }) };
            Ok(0)
        }),
        None => next!(
            ibv_query_gid(context: *mut ibv_context, port_num: u8, index: c_int, out: *mut ibv_gid) -> c_int,
            -1
        ),
    }
}

fn gid_entry(index: usize, gid: Gid) -> ibv_gid_entry {
    ibv_gid_entry {
        gid: ibv_gid { raw: gid.0 },
        gid_index: u32::try_from(index).unwrap_or(u32::MAX),
        port_num: PORT.into(),
        gid_type: IBV_GID_TYPE_ROCE_V2,
        ndev_ifindex: 0,
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn _ibv_query_gid_ex(
    context: *mut ibv_context,
    port_num: u32,
    index: u32,
    entry: *mut ibv_gid_entry,
    flags: u32,
    entry_size: usize,
) -> c_int {
    // SAFETY: the program passes a context.
    match unsafe { ours(context) } {
        Some(context) => status(|| {
            if flags != 0 || port_num != u32::from(PORT) {
                return Err(INVALID);
            }
            let gid = gid(context, index as usize).map_err(|_| Errno(libc::ENODATA))?;
            // SAFETY: the program passes room for `entry_size` bytes.
            unsafe { write_prefix(&gid_entry(index as usize, gid), entry, entry_size) };
            Ok(())
        }),
        None => next!(
            _ibv_query_gid_ex(context: *mut ibv_context, port_num: u32, index: u32, entry: *mut ibv_gid_entry,
                flags: u32, entry_size: usize) -> c_int,
            libc::ENOSYS
        ),
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn _ibv_query_gid_table(
    context: *mut ibv_context,
    entries: *mut ibv_gid_entry,
    max_entries: usize,
    flags: u32,
    entry_size: usize,
) -> isize {
    // SAFETY: the program passes a context.
    match unsafe { ours(context) } {
        Some(context) => {
            let mut count = 0;
            let failed = status(|| {
                if flags != 0 || entry_size < size_of::<ibv_gid_entry>() {
                    return Err(INVALID);
                }
                for (index, gid) in context.attr()?.gids.into_iter().take(max_entries) {
                    // SAFETY: the program passes room for `max_entries` entries of `entry_size` bytes.
                    unsafe {
                        let entry = entries.byte_add(count * entry_size);
                        write_prefix(&gid_entry(index, gid), entry, entry_size);
                    }
                    count += 1;
                }
                Ok(())
            });
            if failed == 0 { count.cast_signed() } else { -(failed as isize) }
        }
        None => next!(
            _ibv_query_gid_table(context: *mut ibv_context, entries: *mut ibv_gid_entry, max_entries: usize,
                flags: u32, entry_size: usize) -> isize,
            -(libc::ENOSYS as isize)
        ),
    }
}

/// Private to libibverbs, but called by ibv_devinfo. The type of each GID is that of RoCE v2.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_gid_type(
    context: *mut ibv_context,
    port_num: u8,
    index: c_uint,
    kind: *mut c_uint,
) -> c_int {
    /// `IBV_GID_TYPE_SYSFS_ROCE_V2` of libibverbs' driver.h.
    const SYSFS_ROCE_V2: c_uint = 1;
    // SAFETY: the program passes a context.
    match unsafe { ours(context) } {
        Some(context) => number(|| {
            check_port(port_num)?;
            gid(context, index as usize)?;
            // SAFETY: the program passes room for the type.
            unsafe { kind.write(SYSFS_ROCE_V2) };
            Ok(0)
        }),
        None => next!(
            ibv_query_gid_type(context: *mut ibv_context, port_num: u8, index: c_uint, kind: *mut c_uint) -> c_int,
            -1
        ),
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_pkey(
    context: *mut ibv_context,
    port_num: u8,
    index: c_int,
    pkey: *mut u16,
) -> c_int {
    // SAFETY: the program passes a context.
    match unsafe { ours(context) } {
        Some(_) => number(|| {
            check_port(port_num)?;
            if index != 0 {
                return Err(INVALID);
            }
            // SAFETY: the program passes room for the P_Key.
            unsafe { pkey.write(PKEY.to_be()) };
            Ok(0)
        }),
        None => next!(
            ibv_query_pkey(context: *mut ibv_context, port_num: u8, index: c_int, pkey: *mut u16) -> c_int,
            -1
        ),
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_get_pkey_index(context: *mut ibv_context, port_num: u8, pkey: u16) -> c_int {
    // SAFETY: the program passes a context.
    match unsafe { ours(context) } {
        Some(_) => number(|| {
            check_port(port_num)?;
            if pkey == PKEY.to_be() { Ok(0) } else { Err(INVALID) }
        }),
        None => next!(ibv_get_pkey_index(context: *mut ibv_context, port_num: u8, pkey: u16) -> c_int, -1),
    }
}
