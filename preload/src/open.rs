//! `ibv_open_device`, and the table of functions of a context.

use std::ptr;

use verbs_sys::{ibv_context, ibv_device, verbs_context};

use crate::boundary::object;
use crate::context::ContextHandle;
use crate::device::ours;
use crate::next::next;
use crate::{clock, cq, cq_ex, post, qp_create, query, srq, unsupported};

/// Sets the functions that inline functions of verbs.h call.
fn fill(verbs: &mut verbs_context) {
    let ops = &mut verbs.context.ops;
    ops._compat_query_device = Some(query::compat_query_device);
    ops._compat_query_port = Some(query::compat_query_port);
    ops.poll_cq = Some(cq::poll_cq);
    ops.req_notify_cq = Some(cq::req_notify_cq);
    ops.post_send = Some(post::post_send);
    ops.post_recv = Some(post::post_recv);
    ops.post_srq_recv = Some(post::post_srq_recv);
    ops.alloc_mw = Some(unsupported::alloc_mw);
    ops.bind_mw = Some(unsupported::bind_mw);
    ops.dealloc_mw = Some(unsupported::dealloc_mw);
    verbs.query_rt_values = Some(clock::query_rt_values);
    verbs.query_port = Some(query::query_port);
    verbs.query_device_ex = Some(query::query_device_ex);
    verbs.create_cq_ex = Some(cq_ex::create_cq_ex);
    verbs.create_qp_ex = Some(qp_create::create_qp_ex);
    verbs.create_srq_ex = Some(srq::create_srq_ex);
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_open_device(device: *mut ibv_device) -> *mut ibv_context {
    match ours(device) {
        Some(device) => object(|| ContextHandle::open(device, fill)),
        None => next!(ibv_open_device(device: *mut ibv_device) -> *mut ibv_context, ptr::null_mut()),
    }
}
