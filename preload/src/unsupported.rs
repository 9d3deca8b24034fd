//! Functions whose objects the devices of this process do not have: EOPNOTSUPP for our contexts. An object of these kinds
//! is therefore always another library's.

use std::ptr;

use libc::{c_int, c_void};
use verbs_sys::{
    ibv_ah_attr, ibv_context, ibv_dm, ibv_ece, ibv_gid, ibv_mr, ibv_mw, ibv_mw_bind, ibv_mw_type, ibv_pd,
    ibv_qp, ibv_wr_opcode,
};

use crate::boundary::{UNSUPPORTED, object, status};
use crate::context::ours;
use crate::mr::pd_of;
use crate::next::next;
use crate::qp::qp_of;

pub(crate) unsafe extern "C" fn alloc_mw(_: *mut ibv_pd, _: ibv_mw_type) -> *mut ibv_mw {
    object(|| Err(UNSUPPORTED))
}

pub(crate) unsafe extern "C" fn bind_mw(_: *mut ibv_qp, _: *mut ibv_mw, _: *mut ibv_mw_bind) -> c_int {
    status(|| Err(UNSUPPORTED))
}

pub(crate) unsafe extern "C" fn dealloc_mw(_: *mut ibv_mw) -> c_int {
    status(|| Err(UNSUPPORTED))
}

/// Defines functions that fail with EOPNOTSUPP if `$ours` finds that the object is ours, and call the next library
/// otherwise.
macro_rules! unsupported {
    ($($name:ident($($arg:ident: $type:ty),*) -> $ret:ty, $ours:expr, $fail:expr, $missing:expr;)*) => {$(
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name($($arg: $type),*) -> $ret {
            // SAFETY: the program passes an object of any library.
            if unsafe { $ours } { $fail } else { next!($name($($arg: $type),*) -> $ret, $missing) }
        }
    )*};
}

unsupported! {
    ibv_attach_mcast(qp: *mut ibv_qp, gid: *const ibv_gid, lid: u16) -> c_int,
        qp_of(qp).is_some(), status(|| Err(UNSUPPORTED)), libc::ENOSYS;
    ibv_detach_mcast(qp: *mut ibv_qp, gid: *const ibv_gid, lid: u16) -> c_int,
        qp_of(qp).is_some(), status(|| Err(UNSUPPORTED)), libc::ENOSYS;
    ibv_import_pd(context: *mut ibv_context, handle: u32) -> *mut ibv_pd,
        ours(context).is_some(), object(|| Err(UNSUPPORTED)), ptr::null_mut();
    ibv_import_mr(pd: *mut ibv_pd, handle: u32) -> *mut ibv_mr,
        pd_of(pd).is_some(), object(|| Err(UNSUPPORTED)), ptr::null_mut();
    ibv_import_dm(context: *mut ibv_context, handle: u32) -> *mut ibv_dm,
        ours(context).is_some(), object(|| Err(UNSUPPORTED)), ptr::null_mut();
    ibv_query_ece(qp: *mut ibv_qp, ece: *mut ibv_ece) -> c_int,
        qp_of(qp).is_some(), status(|| Err(UNSUPPORTED)), libc::ENOSYS;
    ibv_set_ece(qp: *mut ibv_qp, ece: *mut ibv_ece) -> c_int,
        qp_of(qp).is_some(), status(|| Err(UNSUPPORTED)), libc::ENOSYS;
    // 0: the order in which the bytes of a message are placed is not guaranteed.
    ibv_query_qp_data_in_order(qp: *mut ibv_qp, op: ibv_wr_opcode, flags: u32) -> c_int,
        qp_of(qp).is_some(), 0, 0;
    ibv_resolve_eth_l2_from_gid(context: *mut ibv_context, attr: *mut ibv_ah_attr, mac: *mut u8, vid: *mut u16)
        -> c_int,
        ours(context).is_some(), status(|| Err(UNSUPPORTED)), libc::ENOSYS;
    // Later than rdma-core 44, whose headers do not have their types: versions 1.15 to 1.18 of the interface.
    ibv_alloc_dmah(context: *mut ibv_context, attr: *mut c_void) -> *mut c_void,
        ours(context).is_some(), object(|| Err(UNSUPPORTED)), ptr::null_mut();
    ibv_reg_mr_ex(pd: *mut ibv_pd, attr: *mut c_void) -> *mut ibv_mr,
        pd_of(pd).is_some(), object(|| Err(UNSUPPORTED)), ptr::null_mut();
    ibv_alloc_buf(pd: *mut ibv_pd, size: usize, buf: *mut *mut c_void) -> *mut c_void,
        pd_of(pd).is_some(), object(|| Err(UNSUPPORTED)), ptr::null_mut();
    ibv_reg_buf_mr(pd: *mut ibv_pd, buf: *mut c_void, addr: *mut c_void, length: usize, access: c_int) -> *mut ibv_mr,
        pd_of(pd).is_some(), object(|| Err(UNSUPPORTED)), ptr::null_mut();
    _ibv_query_comp_cntr_caps(context: *mut ibv_context, caps: *mut c_void, caps_size: usize) -> c_int,
        ours(context).is_some(), status(|| Err(UNSUPPORTED)), libc::ENOSYS;
    ibv_qp_attach_comp_cntr(qp: *mut ibv_qp, counter: *mut c_void, attr: *mut c_void) -> c_int,
        qp_of(qp).is_some(), status(|| Err(UNSUPPORTED)), libc::ENOSYS;
    ibv_create_comp_cntr(context: *mut ibv_context, attr: *mut c_void) -> *mut c_void,
        ours(context).is_some(), object(|| Err(UNSUPPORTED)), ptr::null_mut();
}
