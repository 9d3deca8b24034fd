//! Calls of libroce_verbs.so, as the inline functions of infiniband/verbs.h make them.

use std::ffi::{CStr, CString};
use std::hint::black_box;
use std::mem::{offset_of, transmute_copy, zeroed};
use std::ptr;

use libc::{c_int, c_void};
use verbs_sys::{
    IBV_ACCESS_LOCAL_WRITE, IBV_MTU_1024, IBV_QP_ACCESS_FLAGS, IBV_QP_AV, IBV_QP_DEST_QPN,
    IBV_QP_EX_WITH_SEND, IBV_QP_INIT_ATTR_PD, IBV_QP_INIT_ATTR_SEND_OPS_FLAGS, IBV_QP_MAX_DEST_RD_ATOMIC,
    IBV_QP_MAX_QP_RD_ATOMIC, IBV_QP_MIN_RNR_TIMER, IBV_QP_PATH_MTU, IBV_QP_PKEY_INDEX, IBV_QP_PORT,
    IBV_QP_RETRY_CNT, IBV_QP_RNR_RETRY, IBV_QP_RQ_PSN, IBV_QP_SQ_PSN, IBV_QP_STATE, IBV_QP_TIMEOUT,
    IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS, IBV_QPT_RC, IBV_SEND_SIGNALED, IBV_WC_SUCCESS, IBV_WR_SEND,
    ibv_comp_channel, ibv_context, ibv_cq, ibv_device, ibv_gid, ibv_mr, ibv_pd, ibv_qp, ibv_qp_attr,
    ibv_qp_cap, ibv_qp_ex, ibv_qp_init_attr_ex, ibv_recv_wr, ibv_send_wr, ibv_sge, ibv_wc, verbs_context,
};

use super::{Calls, DEPTH, GID_INDEX, MESSAGE_BYTES, PORT, TIMEOUT};

type PostSend = unsafe extern "C" fn(*mut ibv_qp, *mut ibv_send_wr, *mut *mut ibv_send_wr) -> c_int;
type PostRecv = unsafe extern "C" fn(*mut ibv_qp, *mut ibv_recv_wr, *mut *mut ibv_recv_wr) -> c_int;
type PollCq = unsafe extern "C" fn(*mut ibv_cq, c_int, *mut ibv_wc) -> c_int;

pub(crate) struct CCalls {
    qp: *mut ibv_qp,
    /// The same queue pair.
    builder: *mut ibv_qp_ex,
    send_cq: *mut ibv_cq,
    recv_cq: *mut ibv_cq,
    sge: ibv_sge,
    post_send: PostSend,
    post_recv: PostRecv,
    poll_cq: PollCq,
}

/// The library, in the directory above that of this benchmark.
struct Library(*mut c_void);

impl Library {
    fn open() -> Self {
        let program = std::env::current_exe().expect("the path of the benchmark");
        let directory =
            program.parent().and_then(|deps| deps.parent()).expect("the directory of the profile");
        let path = directory.join("libroce_verbs.so").into_os_string().into_encoded_bytes();
        let path = CString::new(path).expect("a path");
        // SAFETY: the path ends with a null byte.
        let library = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        assert!(!library.is_null(), "{path:?} cannot be loaded: cargo build --release -p preload");
        Library(library)
    }

    /// # Safety
    /// `F` is the type of the function `name` in infiniband/verbs.h.
    unsafe fn function<F>(&self, name: &CStr) -> F {
        // SAFETY: the name ends with a null byte, and the caller states the type of the function.
        unsafe {
            let address = libc::dlsym(self.0, name.as_ptr());
            assert!(!address.is_null(), "{name:?}");
            transmute_copy(&address)
        }
    }
}

fn some<T>(object: *mut T) -> *mut T {
    assert!(!object.is_null(), "{}", std::io::Error::last_os_error());
    object
}

/// Opens the device on `PORT`.
fn open_device(library: &Library) -> *mut ibv_context {
    // SAFETY: this process has one thread yet. The types are those of infiniband/verbs.h.
    unsafe {
        std::env::set_var("ROCE_CONFIG_TEXT", format!("ports = [\"{PORT}\"]\nprogress = \"app\""));
        let list: unsafe extern "C" fn(*mut c_int) -> *mut *mut ibv_device =
            library.function(c"ibv_get_device_list");
        let open: unsafe extern "C" fn(*mut ibv_device) -> *mut ibv_context =
            library.function(c"ibv_open_device");
        let mut count = 0;
        let devices = some(list(&mut count));
        assert!(count > 0);
        some(open(*devices.offset(count as isize - 1)))
    }
}

/// Creates a queue pair with the builder interface.
fn create_qp(
    context: *mut ibv_context,
    pd: *mut ibv_pd,
    send_cq: *mut ibv_cq,
    recv_cq: *mut ibv_cq,
) -> *mut ibv_qp_ex {
    let cap = ibv_qp_cap {
        max_send_wr: DEPTH,
        max_recv_wr: DEPTH,
        max_send_sge: 1,
        max_recv_sge: 1,
        max_inline_data: 0,
    };
    // SAFETY: the context is a field of a `verbs_context`, and the objects are of the library.
    unsafe {
        let mut attr = ibv_qp_init_attr_ex { send_cq, recv_cq, cap, qp_type: IBV_QPT_RC, ..zeroed() };
        attr.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
        (attr.pd, attr.send_ops_flags) = (pd, IBV_QP_EX_WITH_SEND.into());
        let verbs = context.byte_sub(offset_of!(verbs_context, context)).cast::<verbs_context>();
        let create = (*verbs).create_qp_ex.expect("a function");
        some(create(context, &mut attr)).cast()
    }
}

/// Connects the queue pair with itself.
fn connect(library: &Library, context: *mut ibv_context, qp: *mut ibv_qp) {
    // SAFETY: the types are those of infiniband/verbs.h, and the objects are of the library.
    unsafe {
        let query_gid: unsafe extern "C" fn(*mut ibv_context, u8, c_int, *mut ibv_gid) -> c_int =
            library.function(c"ibv_query_gid");
        let modify: unsafe extern "C" fn(*mut ibv_qp, *mut ibv_qp_attr, c_int) -> c_int =
            library.function(c"ibv_modify_qp");
        let mut attr = ibv_qp_attr {
            port_num: 1,
            path_mtu: IBV_MTU_1024,
            dest_qp_num: (*qp).qp_num,
            rq_psn: 5,
            sq_psn: 5,
            max_rd_atomic: 1,
            max_dest_rd_atomic: 1,
            min_rnr_timer: 1,
            timeout: TIMEOUT,
            retry_cnt: 7,
            rnr_retry: 7,
            ..zeroed()
        };
        attr.ah_attr.is_global = 1;
        attr.ah_attr.grh.sgid_index = GID_INDEX;
        attr.ah_attr.grh.hop_limit = 64;
        assert_eq!(query_gid(context, 1, GID_INDEX.into(), &mut attr.ah_attr.grh.dgid), 0);
        let to_init = IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
        let to_rtr = IBV_QP_AV
            | IBV_QP_PATH_MTU
            | IBV_QP_DEST_QPN
            | IBV_QP_RQ_PSN
            | IBV_QP_MAX_DEST_RD_ATOMIC
            | IBV_QP_MIN_RNR_TIMER;
        let to_rts =
            IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
        for (state, mask) in [(IBV_QPS_INIT, to_init), (IBV_QPS_RTR, to_rtr), (IBV_QPS_RTS, to_rts)] {
            attr.qp_state = state;
            assert_eq!(modify(qp, &mut attr, (IBV_QP_STATE | mask).cast_signed()), 0);
        }
    }
}

impl Calls for CCalls {
    fn open() -> Self {
        let library = Library::open();
        let context = open_device(&library);
        // SAFETY: the types are those of infiniband/verbs.h, and the objects are of the library. The memory is never
        // freed.
        unsafe {
            let alloc_pd: unsafe extern "C" fn(*mut ibv_context) -> *mut ibv_pd =
                library.function(c"ibv_alloc_pd");
            let reg_mr: unsafe extern "C" fn(*mut ibv_pd, *mut c_void, usize, c_int) -> *mut ibv_mr =
                library.function(c"ibv_reg_mr");
            let create_cq: unsafe extern "C" fn(
                *mut ibv_context,
                c_int,
                *mut c_void,
                *mut ibv_comp_channel,
                c_int,
            ) -> *mut ibv_cq = library.function(c"ibv_create_cq");
            let pd = some(alloc_pd(context));
            let memory = Vec::leak(vec![0_u8; MESSAGE_BYTES as usize]);
            let access = IBV_ACCESS_LOCAL_WRITE.cast_signed();
            let mr = some(reg_mr(pd, memory.as_mut_ptr().cast(), memory.len(), access));
            let [send_cq, recv_cq] = [(); 2]
                .map(|()| some(create_cq(context, DEPTH.cast_signed(), ptr::null_mut(), ptr::null_mut(), 0)));
            let builder = create_qp(context, pd, send_cq, recv_cq);
            let qp = builder.cast();
            connect(&library, context, qp);
            let sge = ibv_sge { addr: (*mr).addr as u64, length: MESSAGE_BYTES, lkey: (*mr).lkey };
            let ops = &(*context).ops;
            CCalls {
                qp,
                builder,
                send_cq,
                recv_cq,
                sge,
                post_send: ops.post_send.expect("a function"),
                post_recv: ops.post_recv.expect("a function"),
                poll_cq: ops.poll_cq.expect("a function"),
            }
        }
    }

    fn post_send(&mut self) {
        // SAFETY: the queue pair is the library's, and the work request outlives the call.
        unsafe {
            let mut wr = ibv_send_wr {
                wr_id: 7,
                sg_list: &mut self.sge,
                num_sge: 1,
                opcode: IBV_WR_SEND,
                send_flags: IBV_SEND_SIGNALED,
                ..zeroed()
            };
            assert_eq!((self.post_send)(self.qp, black_box(&mut wr), &mut ptr::null_mut()), 0);
        }
    }

    fn build_send(&mut self) {
        // SAFETY: the queue pair has the functions of SEND.
        unsafe {
            let qp = black_box(self.builder);
            (*qp).wr_start.expect("a function")(qp);
            ((*qp).wr_id, (*qp).wr_flags) = (7, IBV_SEND_SIGNALED);
            (*qp).wr_send.expect("a function")(qp);
            (*qp).wr_set_sge.expect("a function")(qp, self.sge.lkey, self.sge.addr, self.sge.length);
            assert_eq!((*qp).wr_complete.expect("a function")(qp), 0);
        }
    }

    fn post_recv(&mut self) {
        let mut wr = ibv_recv_wr { wr_id: 8, next: ptr::null_mut(), sg_list: &mut self.sge, num_sge: 1 };
        // SAFETY: as for `post_send`.
        let posted = unsafe { (self.post_recv)(self.qp, black_box(&mut wr), &mut ptr::null_mut()) };
        assert_eq!(posted, 0);
    }

    fn poll_send_cq(&mut self) -> bool {
        self.poll(self.send_cq)
    }

    fn poll_recv_cq(&mut self) -> bool {
        self.poll(self.recv_cq)
    }
}

impl CCalls {
    fn poll(&self, cq: *mut ibv_cq) -> bool {
        // SAFETY: the completion queue is the library's; zeros are a value of each field.
        let (taken, wc) = unsafe {
            let mut wc: ibv_wc = zeroed();
            ((self.poll_cq)(cq, black_box(1), &mut wc), wc)
        };
        assert!(taken >= 0 && (taken == 0 || wc.status == IBV_WC_SUCCESS));
        taken == 1
    }
}
