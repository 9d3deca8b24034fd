//! Many connected queue pairs between two engines. The queue pairs send in round-robin order; at most `ACTIVE_QPS`
//! SENDs are in flight at a time.
#![allow(dead_code)] // each bench uses a part

use super::common::{End, pair_of_over, ports_of, post_recv, post_send};
use roce::engine::EngineConfig;
use roce::id::Qpn;
use roce::mem::{Access, Memory};
use roce::port::loopback::LoopbackPort;
use roce::qp::{AddressVector, ConnAttr, PathMtu, QpInit};
use roce::queue::{CqPoller, RecvPoster, SendOp, SendPoster, Sge};
use roce::start;

/// Largest number of SENDs in flight.
pub(crate) const ACTIVE_QPS: usize = 128;
/// Number of frame buffers of each port, so small that the headers in the buffers stay in the cache.
const PORT_FRAMES: usize = 2 * ACTIVE_QPS;
const MESSAGE_BYTES: u32 = 64;
/// Depth of each send and receive queue, in work requests: the default of the verbs API.
const DEPTH: u32 = 128;
/// Advance of the clock per poll, in nanoseconds.
const POLL_NANOS: u64 = 100;

pub(crate) struct Queues {
    pub(crate) qpn: Qpn,
    send: SendPoster,
    recv: RecvPoster,
}

pub(crate) struct Host {
    pub(crate) end: End<LoopbackPort>,
    poller: CqPoller,
    pub(crate) qps: Vec<Queues>,
    sge: Sge,
}

impl Host {
    fn new(mut end: End<LoopbackPort>, count: usize) -> Self {
        let (cq, poller) = end.engine.objects().create_cq(4 * ACTIVE_QPS as u32).expect("a completion queue");
        let init = QpInit {
            send_cq: cq,
            recv_cq: cq,
            max_send_wr: DEPTH,
            max_recv_wr: DEPTH,
            signal_all: true,
            ..end.small_qp()
        };
        let memory = Memory::alloc(4096);
        let (lkey, _) = end
            .engine
            .objects()
            .register(end.pd, memory.clone(), memory.addr(), Access::LOCAL_WRITE)
            .expect("a memory region");
        let sge = Sge { addr: memory.addr(), len_bytes: MESSAGE_BYTES, lkey };
        let create = |_| {
            let handles = end.engine.create_qp(&init).expect("a queue pair");
            Queues { qpn: handles.qpn, send: handles.send, recv: handles.recv.expect("no SRQ") }
        };
        let qps = (0..count).map(create).collect();
        Host { end, poller, qps, sge }
    }

    fn connect(&mut self, peer: &Host, conn: &ConnAttr) {
        let path = AddressVector::new(peer.end.gid, 1);
        for (own, peer) in self.qps.iter().zip(&peer.qps) {
            for attr in
                [conn.to_init(), conn.to_rtr(path, peer.qpn, start::psn(7)), conn.to_rts(start::psn(7))]
            {
                self.end.engine.modify_qp(own.qpn, &attr).expect("a transition");
            }
        }
    }
}

/// Two hosts; queue pair i of `a` is connected to queue pair i of `b`.
pub(crate) struct Many {
    pub(crate) a: Host,
    pub(crate) b: Host,
    /// Index of the queue pair of the next SEND.
    next: usize,
    pub(crate) nanos: u64,
}

impl Many {
    pub(crate) fn new(count: usize, conn: &ConnAttr) -> Box<Self> {
        let change = |config: &mut EngineConfig| config.limits.max_qps = count + 1;
        let (a, b) = pair_of_over(ports_of(PORT_FRAMES), PathMtu::Mtu4096, 4096, change);
        let (mut a, mut b) = (Host::new(a, count), Host::new(b, count));
        a.connect(&b, conn);
        b.connect(&a, conn);
        let mut many = Box::new(Many { a, b, next: 0, nanos: 0 });
        // Each queue pair sends a message first, otherwise the measured messages would allocate memory.
        (0..count.div_ceil(ACTIVE_QPS)).for_each(|_| many.round(ACTIVE_QPS));
        // `set_neighbour` has changed the neighbour cache, so the next polls compare all address handles with the
        // cache.
        while many.poll() {}
        many
    }

    /// Runs one SEND on each of the next `active` queue pairs, from post to completion.
    pub(crate) fn round(&mut self, active: usize) {
        for _ in 0..active {
            let index = self.next;
            self.next = (index + 1) % self.a.qps.len();
            let wr_id = index as u64;
            post_recv(&mut self.b.qps[index].recv, wr_id, self.b.sge);
            post_send(&mut self.a.qps[index].send, wr_id, SendOp::Send, self.a.sge);
        }
        let mut left = [active; 2];
        while left != [0; 2] {
            self.poll();
            for (host, left) in [&mut self.a, &mut self.b].into_iter().zip(&mut left) {
                while host.poller.pop().is_some() {
                    *left -= 1;
                }
            }
        }
    }

    /// Polls both ends. Returns whether work is left.
    pub(crate) fn poll(&mut self) -> bool {
        self.nanos += POLL_NANOS;
        self.a.end.poll(self.nanos).more | self.b.end.poll(self.nanos).more
    }
}
