//! Calls of `verbs`, with the functions that the C interface uses.

use std::hint::black_box;
use std::slice;

use verbs::{
    Access, AddressVector, Context, CqQueue, DeviceOptions, LKey, Memory, PathMtu, ProgressPolicy, Psn,
    QpAttr, QpInit, QpQueues, QpState, RecvRequest, SendData, SendFlags, SendOp, SendRequest, ServiceType,
    Sge,
};

use super::{Calls, DEPTH, GID_INDEX, MESSAGE_BYTES, PORT, TIMEOUT};

pub(crate) struct RustCalls {
    queues: QpQueues,
    send_cq: CqQueue,
    recv_cq: CqQueue,
    sge: Sge,
    _context: Context,
}

impl Calls for RustCalls {
    fn open() -> Self {
        let spec = PORT.parse().expect("a port");
        let options = DeviceOptions { progress: ProgressPolicy::Application, ..DeviceOptions::default() };
        let context = Context::open(&spec, &options).expect("the port opens");
        let objects = context.objects();
        let pd = objects.alloc_pd().expect("a protection domain");
        let memory = Memory::alloc(MESSAGE_BYTES as usize);
        let addr = memory.addr();
        let (lkey, _) = objects.register(pd, memory, addr, Access::LOCAL_WRITE).expect("a region");
        let (send, send_cq) = objects.create_cq(DEPTH, None, 0).expect("a completion queue");
        let (recv, recv_cq) = objects.create_cq(DEPTH, None, 0).expect("a completion queue");
        let init = QpInit {
            service: ServiceType::Rc,
            pd,
            send_cq: send,
            recv_cq: recv,
            srq: None,
            max_send_wr: DEPTH,
            max_recv_wr: DEPTH,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_bytes: 0,
            signal_all: false,
        };
        let (qpn, queues) = objects.create_qp(&init, 0).expect("a queue pair");
        let path = AddressVector {
            dgid: context.gid(GID_INDEX.into()).expect("a GID"),
            sgid_index: GID_INDEX,
            flow_label: 0,
            hop_limit: 64,
            traffic_class: 0,
        };
        let to_init = QpAttr {
            state: Some(QpState::Init),
            pkey_index: Some(0),
            port_num: Some(1),
            access: Some(Access(0)),
            ..QpAttr::default()
        };
        let to_rtr = QpAttr {
            state: Some(QpState::Rtr),
            path: Some(path),
            path_mtu: Some(PathMtu::Mtu1024),
            dest_qpn: Some(qpn),
            rq_psn: Some(Psn::new(5)),
            max_dest_rd_atomic: Some(1),
            min_rnr_timer: Some(1),
            ..QpAttr::default()
        };
        let to_rts = QpAttr {
            state: Some(QpState::Rts),
            sq_psn: Some(Psn::new(5)),
            timeout: Some(TIMEOUT),
            retry_count: Some(7),
            rnr_retry: Some(7),
            max_rd_atomic: Some(1),
            ..QpAttr::default()
        };
        for attr in [to_init, to_rtr, to_rts] {
            objects.modify_qp(qpn, &attr).expect("the queue pair is connected");
        }
        let sge = Sge { addr, len_bytes: MESSAGE_BYTES, lkey: LKey(lkey.0) };
        RustCalls { queues, send_cq, recv_cq, sge, _context: context }
    }

    fn post_send(&mut self) {
        let data = SendData::Sges(slice::from_ref(&self.sge));
        let flags = SendFlags { signaled: true, ..SendFlags::default() };
        let request = SendRequest { wr_id: 7, op: SendOp::Send, flags, data };
        let mut batch = self.queues.send_batch().expect("the device works");
        batch.post(black_box(&request)).expect("the queue has room");
    }

    fn build_send(&mut self) {
        let flags = SendFlags { signaled: true, ..SendFlags::default() };
        let request = SendRequest { wr_id: 7, op: SendOp::Send, flags, data: SendData::Sges(&[]) };
        let mut batch = self.queues.lock_sends();
        batch.post(black_box(&request)).expect("the queue has room");
        batch.set_data(SendData::Sges(slice::from_ref(black_box(&self.sge)))).expect("the list is short");
        batch.complete().expect("the device works");
    }

    fn post_recv(&mut self) {
        let request = RecvRequest { wr_id: 8, sges: slice::from_ref(&self.sge) };
        self.queues.post_recv(black_box(&request)).expect("the queue has room");
    }

    fn poll_send_cq(&mut self) -> bool {
        poll(&self.send_cq)
    }

    fn poll_recv_cq(&mut self) -> bool {
        poll(&self.recv_cq)
    }
}

fn poll(cq: &CqQueue) -> bool {
    let taken = cq.poll_each(black_box(1), |_, cqe| {
        black_box(cqe);
    });
    taken.expect("the device works") == 1
}
