//! Registered memory that is unmapped, protected or truncated while READs, WRITEs and SENDs of a connection use the
//! memory. The connection fails with the statuses of the standard at both ends; other connections continue.

use std::time::{Duration, Instant};

use verbs::{
    Access, ConnAttr, ConnectOptions, Context, Cq, Event, Mr, Pd, Qp, QpOptions, QpState, RecoveryScheme,
    RecvRequest, SendData, SendFlags, SendOp, SendRequest, ServiceType, WcStatus,
};

use crate::context;
use crate::pages::{LOSSES, Loss, PAGE_BYTES, Pages};

const PAGES: usize = 16;
const BYTES: u32 = (PAGES * PAGE_BYTES) as u32;
/// Index of the page that is lost (unmapped, protected or truncated), so that a message of all pages fails between its
/// first packet and its last.
const LOST: usize = 9;
const TIMEOUT: Duration = Duration::from_secs(20);

/// One end of a connection. `region` is the memory of `pages`, of which a page may be lost; `intact` is other memory.
pub(crate) struct End {
    qp: Qp,
    cq: Cq,
    pub(crate) pages: Pages,
    pub(crate) region: Mr,
    pub(crate) intact: Mr,
}

impl End {
    fn new(context: &Context, service: ServiceType) -> Self {
        let (pd, cq) = (context.alloc_pd().unwrap(), context.create_cq(16, None).unwrap());
        let options =
            QpOptions { service, max_send_sge: 2, max_recv_sge: 2, signal_all: true, ..QpOptions::new(&cq) };
        let qp = pd.create_qp(&options).unwrap();
        let pages = Pages::new(PAGES);
        let region = pages.register(&pd);
        let intact = intact(&pd);
        End { qp, cq, pages, region, intact }
    }

    pub(crate) fn post_send(&self, wr_id: u64, op: SendOp, from: &Mr) {
        let data = SendData::Sges(&[from.sge(0, BYTES)]);
        self.qp.post_send(&SendRequest { wr_id, op, flags: SendFlags::default(), data }).unwrap();
    }

    fn post_recv(&self, wr_id: u64, into: &Mr) {
        self.qp.post_recv(&RecvRequest { wr_id, sges: &[into.sge(0, BYTES)] }).unwrap();
    }

    /// Waits for the next completion.
    fn completion(&self) -> (u64, WcStatus) {
        let start = Instant::now();
        loop {
            if let Some(cqe) = self.cq.poll_one().unwrap() {
                return (cqe.wr_id, cqe.status);
            }
            assert!(start.elapsed() < TIMEOUT, "no completion");
        }
    }

    pub(crate) fn state(&self) -> QpState {
        self.qp.query().unwrap().0
    }

    fn wait_for(&self, state: QpState) {
        let start = Instant::now();
        while self.state() != state {
            let _ = self.cq.poll_one().unwrap();
            assert!(start.elapsed() < TIMEOUT, "the queue pair is in {:?}", self.state());
        }
    }
}

fn intact(pd: &Pd) -> Mr {
    pd.alloc(BYTES as usize, Access::ALL).unwrap()
}

pub(crate) fn write_to(region: &Mr) -> SendOp {
    SendOp::Write { remote_addr: region.addr(), rkey: region.rkey() }
}

fn read_from(region: &Mr) -> SendOp {
    SendOp::Read { remote_addr: region.addr(), rkey: region.rkey() }
}

/// Returns a context, and two connected ends.
fn pair(service: ServiceType, recovery: RecoveryScheme) -> (Context, End, End) {
    let context = context();
    let (near, far) = (End::new(&context, service), End::new(&context, service));
    let conn = ConnAttr { recovery, access: Access::ALL, ..ConnAttr::default() };
    let options = ConnectOptions { gid_index: 1, conn, ..ConnectOptions::default() };
    far.qp.connect(&near.qp.endpoint(1), &options).unwrap();
    near.qp.connect(&far.qp.endpoint(1), &options).unwrap();
    (context, near, far)
}

pub(crate) fn rc() -> (Context, End, End) {
    pair(ServiceType::Rc, RecoveryScheme::default())
}

/// Returns the asynchronous events of `context` up to and including the event `last`.
fn wait_for_event(context: &Context, last: Event) -> Vec<Event> {
    let (start, mut events) = (Instant::now(), Vec::new());
    while events.last() != Some(&last) {
        events.extend(context.poll_async_event());
        context.progress().unwrap();
        assert!(start.elapsed() < TIMEOUT, "{last:?} is not among {events:?}");
    }
    events
}

/// A WRITE and a READ between the intact regions of another connection of the same device.
fn check_others() {
    let (_context, near, far) = rc();
    near.post_send(1, write_to(&far.region), &near.region);
    near.post_send(2, read_from(&far.region), &near.region);
    assert_eq!([near.completion(), near.completion()], [(1, WcStatus::Success), (2, WcStatus::Success)]);
}

#[test]
fn a_write_to_lost_memory_is_a_remote_operational_error_and_fatal_to_the_responder() {
    for loss in LOSSES {
        let (context, near, far) = rc();
        far.post_recv(7, &far.intact);
        far.pages.lose(LOST, loss);
        near.post_send(1, write_to(&far.intact), &near.intact);
        near.post_send(2, write_to(&far.region), &near.intact);
        assert_eq!(near.completion(), (1, WcStatus::Success), "{loss:?}");
        assert_eq!(near.completion(), (2, WcStatus::RemOpErr), "{loss:?}");
        wait_for_event(&context, Event::QpFatal(far.qp.qpn()));
        assert_eq!(far.completion(), (7, WcStatus::WrFlushErr), "{loss:?}");
        assert_eq!((near.state(), far.state()), (QpState::Err, QpState::Err), "{loss:?}");
        assert_eq!(far.qp.counters().resp_remote_operation_errors, 1, "{loss:?}");
        check_others();
    }
}

#[test]
fn a_read_of_lost_memory_is_a_remote_operational_error_and_fatal_to_the_responder() {
    for loss in LOSSES.into_iter().filter(|loss| *loss != Loss::ReadOnly) {
        for recovery in [RecoveryScheme::default(), RecoveryScheme::GoBackN] {
            let (context, near, far) = pair(ServiceType::Rc, recovery);
            far.pages.lose(LOST, loss);
            near.post_send(1, read_from(&far.region), &near.intact);
            assert_eq!(near.completion(), (1, WcStatus::RemOpErr), "{loss:?}");
            wait_for_event(&context, Event::QpFatal(far.qp.qpn()));
            assert_eq!((near.state(), far.state()), (QpState::Err, QpState::Err), "{loss:?}");
            assert_eq!(far.qp.counters().resp_remote_operation_errors, 1, "{loss:?}");
            assert_eq!(near.qp.counters().req_remote_operation_errors, 1, "{loss:?}");
            check_others();
        }
    }
}

#[test]
fn memory_that_became_read_only_is_still_read() {
    let (_context, near, far) = rc();
    far.pages.lose(LOST, Loss::ReadOnly);
    near.post_send(1, read_from(&far.region), &near.intact);
    assert_eq!(near.completion(), (1, WcStatus::Success));
}

#[test]
fn a_send_to_a_lost_receive_is_a_protection_error_at_the_responder() {
    for loss in LOSSES {
        let (context, near, far) = rc();
        far.post_recv(7, &far.region);
        far.post_recv(8, &far.intact);
        far.pages.lose(LOST, loss);
        near.post_send(1, SendOp::Send, &near.intact);
        assert_eq!(near.completion(), (1, WcStatus::RemOpErr), "{loss:?}");
        assert_eq!(far.completion(), (7, WcStatus::LocProtErr), "{loss:?}");
        assert_eq!(far.completion(), (8, WcStatus::WrFlushErr), "{loss:?}");
        wait_for_event(&context, Event::QpFatal(far.qp.qpn()));
        assert_eq!((near.state(), far.state()), (QpState::Err, QpState::Err), "{loss:?}");
        check_others();
    }
}

/// No packet with a part of the payload is sent: the responder would count such a packet.
#[test]
fn a_payload_in_lost_memory_is_a_local_protection_error() {
    for loss in LOSSES.into_iter().filter(|loss| *loss != Loss::ReadOnly) {
        let (context, near, far) = rc();
        near.pages.lose(LOST, loss);
        near.post_send(1, write_to(&far.intact), &near.intact);
        near.post_send(2, write_to(&far.intact), &near.region);
        near.post_send(3, write_to(&far.intact), &near.intact);
        assert_eq!(near.completion(), (1, WcStatus::Success), "{loss:?}");
        assert_eq!(near.completion(), (2, WcStatus::LocProtErr), "{loss:?}");
        assert_eq!(near.completion(), (3, WcStatus::WrFlushErr), "{loss:?}");
        assert_eq!((near.state(), far.state()), (QpState::Err, QpState::Rts), "{loss:?}");
        assert_eq!(near.qp.counters().local_protection_err, 1, "{loss:?}");
        assert_eq!(context.counters().1.rx_icrc_errors, 0, "{loss:?}");
        check_others();
    }
}

#[test]
fn a_payload_whose_second_part_is_lost_is_a_local_protection_error() {
    let (_context, near, far) = rc();
    near.pages.lose(LOST, Loss::Unmapped);
    let parts = [near.intact.sge(0, 100), near.region.sge(LOST * PAGE_BYTES - 50, 100)];
    let (op, data) = (write_to(&far.intact), SendData::Sges(&parts));
    near.qp.post_send(&SendRequest { wr_id: 1, op, flags: SendFlags::default(), data }).unwrap();
    assert_eq!(near.completion(), (1, WcStatus::LocProtErr));
    check_others();
}

#[test]
fn a_read_into_lost_memory_is_a_local_protection_error() {
    for loss in LOSSES {
        let (_context, near, far) = rc();
        near.pages.lose(LOST, loss);
        near.post_send(1, read_from(&far.intact), &near.region);
        assert_eq!(near.completion(), (1, WcStatus::LocProtErr), "{loss:?}");
        assert_eq!((near.state(), far.state()), (QpState::Err, QpState::Rts), "{loss:?}");
        check_others();
    }
}

#[test]
fn an_unreliable_connection_drops_a_write_to_lost_memory_and_fails_a_lost_receive() {
    for loss in LOSSES {
        let (context, near, far) = pair(ServiceType::Uc, RecoveryScheme::default());
        far.pages.lose(LOST, loss);
        near.post_send(1, write_to(&far.region), &near.intact);
        far.post_recv(7, &far.intact);
        near.post_send(2, SendOp::Send, &near.intact);
        assert_eq!([near.completion(), near.completion()], [(1, WcStatus::Success), (2, WcStatus::Success)]);
        assert_eq!(far.completion(), (7, WcStatus::Success), "{loss:?}: the next message is executed");
        assert!(far.qp.counters().uc_requests_dropped > 0, "{loss:?}");
        far.post_recv(8, &far.region);
        near.post_send(3, SendOp::Send, &near.intact);
        assert_eq!(far.completion(), (8, WcStatus::LocProtErr), "{loss:?}");
        wait_for_event(&context, Event::QpFatal(far.qp.qpn()));
        assert_eq!((near.state(), far.state()), (QpState::Rts, QpState::Err), "{loss:?}");
        check_others();
    }
}

#[test]
fn an_unreliable_connection_with_a_lost_payload_enters_the_send_queue_error() {
    let (_context, near, _far) = pair(ServiceType::Uc, RecoveryScheme::default());
    near.pages.lose(LOST, Loss::Truncated);
    near.post_send(1, SendOp::Send, &near.region);
    assert_eq!(near.completion(), (1, WcStatus::LocProtErr));
    near.wait_for(QpState::Sqe);
    check_others();
}
