//! Functions that create and destroy the objects of a context. Numbers and keys identify the objects. The types
//! [`crate::Pd`], [`crate::Mr`], [`crate::Ah`], [`crate::Cq`], [`crate::Srq`] and [`crate::Qp`] call these functions.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use roce::engine::{Attributes, CreateError, DestroyError, SharedObjects};
use roce::id::{AhId, LKey, Qpn, RKey};
use roce::mem::{Access, Memory, PdId};
use roce::qp::{AddressVector, ModifyError, QpAttr, QpInit, QpState};
use roce::queue::{CqId, SrqAttr, SrqId};

use crate::channel::CompChannel;
use crate::device::Shared;
use crate::drive::Drive;
use crate::error::Error;
use crate::inbox::Inbox;
use crate::listeners::{AsyncEvent, Listener};
use crate::memory;
use crate::object::Object;
use crate::queues::{CqQueue, QpQueues, SrqQueue};
use crate::registry::Device;

/// Longest time for which [`ContextObjects::modify_qp`] and [`ContextObjects::create_ah`] wait for the MAC of the
/// destination of an address vector.
const RESOLVE_TIMEOUT: Duration = Duration::from_secs(3);

/// The objects of a context, by number and key ([`crate::Context::objects`]). The types [`crate::Pd`], [`crate::Mr`],
/// [`crate::Ah`], [`crate::Cq`], [`crate::Srq`] and [`crate::Qp`] call the functions of this type. Several threads may
/// call the functions at the same time.
///
/// # Lifetime of objects
/// If an object uses another object, the destruction of the used object fails with [`DestroyError::Busy`] (`EBUSY` in
/// C). A memory region, address handle, shared receive queue or queue pair uses a protection domain. A queue pair also
/// uses completion queues, and may use a shared receive queue. A memory region can be deregistered, and an address
/// handle destroyed, at any time; work requests that name this object and are not yet sent fail.
///
/// An object belongs to the context that created the object. In calls on another context, even on one of the same
/// device, the object is unknown, as a destroyed object is: [`CreateError::Unknown`], [`DestroyError::Unknown`] or
/// [`ModifyError::UnknownQp`] (`EINVAL` in C). The number of a destroyed object is in quarantine, so a second
/// destruction of the object fails, and destroys no other object.
///
/// The context is closed (`ibv_close_device`) when every clone of the [`crate::Context`], and every `Pd`, `Mr`, `Ah`,
/// `Cq`, `Srq` and `Qp` of this context, is dropped. Objects that were created through `ContextObjects`, and not
/// destroyed, are then destroyed, queue pairs first and protection domains last. The kernel does the same when a
/// program closes a device of libibverbs. At the end of the process the kernel releases the port and the memory, so a
/// program may exit without destroying its objects. While a [`QpQueues`], [`SrqQueue`], [`CqQueue`] or [`CompChannel`]
/// of a closed device exists, the port stays open, and [`crate::Context::open`] of this port fails.
///
/// # Cookies
/// A queue pair, completion queue or shared receive queue has a cookie, given at its creation: in C the pointer
/// `qp_context`, `cq_context` or `srq_context`. Each event of the object contains the cookie. The destruction of an
/// object removes its pending events, so a call that begins after the destruction returns no cookie of the object.
///
/// # Errors
/// All functions that return [`Error`] fail with [`Error::DeviceFatal`] after a fatal error, and with
/// [`Error::Forked`] in a process forked from the process that opened the device. In such a process
/// [`ContextObjects::query_qp`], [`ContextObjects::query_srq`] and [`ContextObjects::poll_async_event`] return `None`.
pub struct ContextObjects {
    device: Arc<Device>,
    events: Arc<Inbox<AsyncEvent>>,
    /// The objects that this context has created and not destroyed.
    owned: Mutex<HashSet<Object>>,
}

impl ContextObjects {
    pub(crate) fn new(device: Arc<Device>, events: Arc<Inbox<AsyncEvent>>) -> Self {
        device.shared.listeners.add_context(&events);
        ContextObjects { device, events, owned: Mutex::default() }
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.device.shared
    }

    pub(crate) fn ignore_link_events(&self) {
        self.device.shared.listeners.ignore_link(&self.events);
    }

    pub(crate) fn events(&self) -> &Inbox<AsyncEvent> {
        &self.events
    }

    /// Returns the protection domains, memory regions and completion queues of the device. The functions of
    /// [`SharedObjects`] do not need the engine's lock. Fails after a fatal error.
    fn shared_objects(&self) -> Result<&SharedObjects, Error> {
        self.shared().check()?;
        Ok(&self.shared().objects)
    }

    fn owned(&self) -> MutexGuard<'_, HashSet<Object>> {
        self.owned.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn owns(&self, object: Object) -> bool {
        self.owned().contains(&object)
    }

    /// Fails after a fatal error, or if `object`, which a new object is to use, does not belong to this context.
    fn usable(&self, object: Object) -> Result<(), Error> {
        self.shared().check()?;
        if self.owns(object) { Ok(()) } else { Err(CreateError::Unknown(object.kind()).into()) }
    }

    /// Fails if `object` does not belong to this context, or after a fatal error.
    fn known(&self, object: Object) -> Result<(), Error> {
        self.shared().check()?;
        if self.owns(object) { Ok(()) } else { Err(DestroyError::Unknown(object.kind()).into()) }
    }

    fn add_listener(&self, object: Object, channel: Option<&CompChannel>, cookie: u64) {
        let channel = channel.map(|channel| channel.inbox.clone());
        let listener = Listener { events: self.events.clone(), channel, cookie };
        self.shared().listeners.add(object, listener);
    }

    /// Destroys `object`. If two threads destroy the same object at the same time, one of the two calls fails. No
    /// thread removes a new object of the same number from `owned` (objects of this context), because the number is in
    /// quarantine.
    fn destroy(&self, object: Object) -> Result<(), Error> {
        self.known(object)?;
        let shared = self.shared();
        match object {
            Object::Qp(qpn) => shared.lock()?.engine.destroy_qp(qpn)?,
            Object::Srq(srq) => shared.lock()?.engine.destroy_srq(srq)?,
            Object::Cq(cq) => self.shared_objects()?.destroy_cq(cq)?,
            Object::Mr(lkey) => self.shared_objects()?.deregister(lkey)?,
            Object::Ah(ah) => {
                let mut driven = shared.lock()?;
                // RDMA NICs copy the address vector when a datagram is posted, so a program may destroy the address
                // handle before the datagram completes. Without this call, a posted datagram might fail.
                driven.send_posted();
                driven.engine.destroy_ah(ah)?;
            }
            Object::Pd(pd) => self.shared_objects()?.dealloc_pd(pd)?,
        }
        self.owned().remove(&object);
        shared.listeners.remove(object);
        Ok(())
    }

    /// Allocates a protection domain (`ibv_alloc_pd`).
    pub fn alloc_pd(&self) -> Result<PdId, Error> {
        let pd = self.shared_objects()?.alloc_pd()?;
        self.owned().insert(Object::Pd(pd));
        Ok(pd)
    }

    /// Deallocates a protection domain (`ibv_dealloc_pd`).
    pub fn dealloc_pd(&self, pd: PdId) -> Result<(), Error> {
        self.destroy(Object::Pd(pd))
    }

    /// Registers `memory` with the access rights `access`, so that work requests address the first byte of `memory` by
    /// `addr` (`ibv_reg_mr_iova`).
    ///
    /// # Errors
    /// [`Error::UnusableMemory`] if memory of the application is not mapped, or not accessible as `access` demands.
    pub fn register(
        &self,
        pd: PdId,
        memory: Memory,
        addr: u64,
        access: Access,
    ) -> Result<(LKey, RKey), Error> {
        self.usable(Object::Pd(pd))?;
        memory::prepare(&memory, access)?;
        let (lkey, rkey) = self.shared_objects()?.register(pd, memory, addr, access)?;
        self.owned().insert(Object::Mr(lkey));
        Ok((lkey, rkey))
    }

    /// Deregisters a memory region (`ibv_dereg_mr`). After this call the engine does not access the memory of the
    /// region.
    pub fn deregister(&self, lkey: LKey) -> Result<(), Error> {
        self.destroy(Object::Mr(lkey))
    }

    /// Creates a completion queue of at most `depth` entries (`ibv_create_cq`). Completion events of the queue are
    /// appended to `channel`, which must be a channel of the same device; if `channel` is `None`, the queue has no
    /// completion events.
    pub fn create_cq(
        &self,
        depth: u32,
        channel: Option<&CompChannel>,
        cookie: u64,
    ) -> Result<(CqId, CqQueue), Error> {
        let objects = self.shared_objects()?;
        if channel.is_some_and(|channel| !channel.is_of(self.shared())) {
            return Err(CreateError::Unknown("completion channel").into());
        }
        let (cq, poller) = objects.create_cq(depth)?;
        self.add_listener(Object::Cq(cq), channel, cookie);
        self.owned().insert(Object::Cq(cq));
        Ok((cq, CqQueue::new(self.shared().clone(), poller)))
    }

    /// Destroys a completion queue (`ibv_destroy_cq`), and removes its pending events.
    pub fn destroy_cq(&self, cq: CqId) -> Result<(), Error> {
        self.destroy(Object::Cq(cq))
    }

    /// Creates a shared receive queue (`ibv_create_srq`).
    pub fn create_srq(&self, attr: &SrqAttr, cookie: u64) -> Result<(SrqId, SrqQueue), Error> {
        self.usable(Object::Pd(attr.pd))?;
        let (srq, recv) = self.shared().lock()?.engine.create_srq(attr)?;
        self.add_listener(Object::Srq(srq), None, cookie);
        self.owned().insert(Object::Srq(srq));
        Ok((srq, SrqQueue::new(self.shared().clone(), recv)))
    }

    /// Sets the limit of a shared receive queue (`ibv_modify_srq` with `IBV_SRQ_LIMIT`), as [`crate::Srq::set_limit`]
    /// does.
    pub fn set_srq_limit(&self, srq: SrqId, limit: u32) -> Result<(), Error> {
        self.known(Object::Srq(srq))?;
        Ok(self.shared().lock()?.set_srq_limit(srq, limit)?)
    }

    /// Returns the attributes of a shared receive queue (`ibv_query_srq`), also after a fatal error; `None` if the
    /// context has no such queue.
    pub fn query_srq(&self, srq: SrqId) -> Option<SrqAttr> {
        self.shared().check_process().ok()?;
        self.owns(Object::Srq(srq)).then(|| self.shared().inspect().engine.query_srq(srq)).flatten()
    }

    /// Destroys a shared receive queue (`ibv_destroy_srq`), and removes its pending events. Its receives are discarded.
    pub fn destroy_srq(&self, srq: SrqId) -> Result<(), Error> {
        self.destroy(Object::Srq(srq))
    }

    /// Creates a queue pair in state RESET (`ibv_create_qp`).
    pub fn create_qp(&self, init: &QpInit, cookie: u64) -> Result<(Qpn, QpQueues), Error> {
        self.usable(Object::Pd(init.pd))?;
        self.usable(Object::Cq(init.send_cq))?;
        self.usable(Object::Cq(init.recv_cq))?;
        init.srq.map_or(Ok(()), |srq| self.usable(Object::Srq(srq)))?;
        let handles = self.shared().lock()?.engine.create_qp(init)?;
        let qp = Object::Qp(handles.qpn);
        self.add_listener(qp, None, cookie);
        self.owned().insert(qp);
        Ok((handles.qpn, QpQueues::new(self.shared().clone(), handles.send, handles.recv)))
    }

    /// Waits until the MAC of the destination of `path` is resolved.
    fn resolve(&self, path: &AddressVector) -> Result<(), Error> {
        if !path.dgid.is_unicast() {
            return Err(Error::NotUnicast { dgid: path.dgid });
        }
        self.shared().resolve(path.dgid, path.sgid_index, RESOLVE_TIMEOUT).map(drop)
    }

    /// Creates an address handle (`ibv_create_ah`), as [`crate::Pd::create_ah`] does.
    ///
    /// # Errors
    /// The errors of [`crate::Pd::create_ah`].
    pub fn create_ah(&self, pd: PdId, path: &AddressVector) -> Result<AhId, Error> {
        self.usable(Object::Pd(pd))?;
        self.resolve(path)?;
        let mut driven = self.shared().lock()?;
        driven.prepare_path(path.dgid);
        let ah = driven.engine.create_ah(pd, path)?;
        self.owned().insert(Object::Ah(ah));
        Ok(ah)
    }

    /// Destroys an address handle (`ibv_destroy_ah`), after the engine has sent posted datagrams. If a posted
    /// datagram that names the address handle is still not sent, this datagram fails.
    pub fn destroy_ah(&self, ah: AhId) -> Result<(), Error> {
        self.destroy(Object::Ah(ah))
    }

    /// Changes the state and the attributes of a queue pair (`ibv_modify_qp`), as [`crate::Qp::modify`] does.
    ///
    /// # Errors
    /// The errors of [`crate::Qp::modify`].
    pub fn modify_qp(&self, qpn: Qpn, attr: &QpAttr) -> Result<(), Error> {
        let shared = self.shared();
        shared.check()?;
        if !self.owns(Object::Qp(qpn)) {
            return Err(ModifyError::UnknownQp.into());
        }
        if let Some(path) = &attr.path {
            self.resolve(path)?;
        }
        // The link speed is read before the engine is locked, because the read may query the NIC.
        let link_bits_per_sec = attr.path.as_ref().and_then(|_| shared.link_bits_per_sec());
        let mut driven = shared.lock()?;
        if let Some(path) = &attr.path {
            driven.prepare_path(path.dgid);
        }
        if attr.state == Some(QpState::Rtr) {
            driven.prepare_datagrams(qpn);
        }
        if let Some(bits_per_sec) = link_bits_per_sec {
            driven.engine.set_link_bits_per_sec(bits_per_sec);
        }
        Ok(driven.engine.modify_qp(qpn, attr)?)
    }

    /// Returns the state of a queue pair, its attributes, and the values given at its creation (`ibv_query_qp`), also
    /// after a fatal error; `None` if the context has no such queue pair.
    pub fn query_qp(&self, qpn: Qpn) -> Option<(QpState, Attributes, QpInit)> {
        self.shared().check_process().ok()?;
        self.owns(Object::Qp(qpn)).then(|| self.shared().inspect().engine.query_qp(qpn)).flatten()
    }

    /// Destroys a queue pair (`ibv_destroy_qp`), and removes its pending asynchronous events. Outstanding work requests
    /// are discarded without completions.
    pub fn destroy_qp(&self, qpn: Qpn) -> Result<(), Error> {
        self.destroy(Object::Qp(qpn))
    }

    /// Removes and returns the oldest asynchronous event, as [`crate::Context::poll_async_event`] does, with the cookie
    /// of its object.
    pub fn poll_async_event(&self) -> Option<AsyncEvent> {
        self.events.take()
    }

    /// Removes the oldest asynchronous event, calls `on_take` with this event, and returns the event. A call that
    /// destroys the event's object does not return while `on_take` runs, so `on_take` may use the cookie.
    pub fn poll_async_event_with(&self, on_take: impl Fn(&AsyncEvent)) -> Option<AsyncEvent> {
        self.events.take_with(on_take)
    }
}

impl Drop for ContextObjects {
    fn drop(&mut self) {
        if !self.shared().is_of_this_process() {
            return;
        }
        let mut remaining: Vec<Object> = self.owned().iter().copied().collect();
        remaining.sort_by_key(|object| object.rank());
        for object in remaining {
            // Fails only after a fatal error: all users of an object belong to the same context, and are destroyed
            // before the object.
            let _ = self.destroy(object);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::sync::Barrier;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::thread;
    use std::time::Instant;

    use roce::engine::limits::DeviceLimits;
    use roce::qp::ServiceType;
    use roce::queue::Notify;
    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    use super::*;
    use crate::{CompletionEvent, Context, DeviceOptions, Event, PostError, RecvRequest};

    fn open(device: &str, options: &DeviceOptions) -> Context {
        Context::open(&format!("eal:{device},dev.no-rx=1").parse().unwrap(), options).unwrap()
    }

    fn is_readable(fd: impl AsFd) -> bool {
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut [PollFd::from_borrowed_fd(fd.as_fd(), PollFlags::IN)], Some(&now)).unwrap() > 0
    }

    fn init(pd: PdId, send_cq: CqId, recv_cq: CqId, srq: Option<SrqId>) -> QpInit {
        QpInit {
            service: ServiceType::Rc,
            pd,
            send_cq,
            recv_cq,
            srq,
            max_send_wr: 4,
            max_recv_wr: 4,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_bytes: 0,
            signal_all: false,
        }
    }

    fn srq_attr(pd: PdId) -> SrqAttr {
        SrqAttr { pd, max_wr: 4, max_sge: 1, limit: 0 }
    }

    fn register(objects: &ContextObjects, pd: PdId) -> Result<LKey, Error> {
        let memory = Memory::alloc(64);
        let addr = memory.addr();
        objects.register(pd, memory, addr, Access::NONE).map(|(lkey, _)| lkey)
    }

    fn is_busy(result: Result<(), Error>) -> bool {
        matches!(result, Err(Error::Destroy(DestroyError::Busy(_))))
    }

    fn is_unknown(result: Result<(), Error>) -> bool {
        matches!(
            result,
            Err(Error::Destroy(DestroyError::Unknown(_)) | Error::Create(CreateError::Unknown(_)))
        )
    }

    /// Creates an address handle to the link-local address of the port itself.
    fn create_ah(objects: &ContextObjects, pd: PdId) -> Result<AhId, Error> {
        objects.create_ah(pd, &AddressVector::new(objects.shared().gid(0).unwrap(), 0))
    }

    /// One object of each kind; the queue pair uses all others but the memory region and the address handle.
    struct All {
        pd: PdId,
        mr: LKey,
        ah: AhId,
        cqs: [CqId; 2],
        srq: SrqId,
        qp: Qpn,
    }

    fn create_all(objects: &ContextObjects) -> All {
        let pd = objects.alloc_pd().unwrap();
        let cqs = [0, 1].map(|cookie| objects.create_cq(4, None, cookie).unwrap().0);
        let (srq, _) = objects.create_srq(&srq_attr(pd), 2).unwrap();
        let (qp, _) = objects.create_qp(&init(pd, cqs[0], cqs[1], Some(srq)), 3).unwrap();
        All { pd, mr: register(objects, pd).unwrap(), ah: create_ah(objects, pd).unwrap(), cqs, srq, qp }
    }

    #[test]
    fn an_object_in_use_is_busy_and_a_destroyed_object_unknown() {
        let context = open("net_null91", &DeviceOptions::default());
        let objects = context.objects();
        let All { pd, mr, ah, cqs: [send_cq, recv_cq], srq, qp } = create_all(objects);
        for cq in [send_cq, recv_cq] {
            assert!(is_busy(objects.destroy_cq(cq)), "the queue pair uses it");
        }
        assert!(is_busy(objects.destroy_srq(srq)), "the queue pair uses it");
        assert_eq!(objects.query_qp(qp).map(|(state, ..)| state), Some(QpState::Reset));
        objects.destroy_qp(qp).unwrap();
        assert!(is_busy(objects.dealloc_pd(pd)), "region, address handle and shared receive queue use it");
        objects.deregister(mr).unwrap();
        objects.destroy_ah(ah).unwrap();
        assert!(is_busy(objects.dealloc_pd(pd)), "the shared receive queue uses it");
        objects.destroy_srq(srq).unwrap();
        let (qp, _) = objects.create_qp(&init(pd, send_cq, recv_cq, None), 0).unwrap();
        assert!(is_busy(objects.dealloc_pd(pd)), "the queue pair uses it");
        objects.destroy_qp(qp).unwrap();
        let mr = register(objects, pd).unwrap();
        assert!(is_busy(objects.dealloc_pd(pd)), "the region uses it");
        objects.deregister(mr).unwrap();
        let ah = create_ah(objects, pd).unwrap();
        assert!(is_busy(objects.dealloc_pd(pd)), "the address handle uses it");
        objects.destroy_ah(ah).unwrap();
        objects.dealloc_pd(pd).unwrap();
        [send_cq, recv_cq].into_iter().for_each(|cq| objects.destroy_cq(cq).unwrap());

        assert!(is_unknown(objects.destroy_qp(qp)) && is_unknown(objects.destroy_srq(srq)));
        assert!(is_unknown(objects.destroy_cq(send_cq)) && is_unknown(objects.deregister(mr)));
        assert!(is_unknown(objects.dealloc_pd(pd)));
        assert!(is_unknown(register(objects, pd).map(drop)) && is_unknown(objects.destroy_ah(ah)));
        assert!(is_unknown(create_ah(objects, pd).map(drop)));
        assert!(objects.query_qp(qp).is_none() && objects.query_srq(srq).is_none());
        assert!(objects.owned().is_empty());
    }

    #[test]
    fn objects_of_another_context_are_unknown() {
        let [near, far] = [(), ()].map(|()| open("net_null92", &DeviceOptions::default()));
        let objects = near.objects();
        let All { pd, mr, ah, cqs: [cq, _], srq, qp } = create_all(objects);
        let other = far.objects();
        let (own_pd, (own_cq, _)) = (other.alloc_pd().unwrap(), other.create_cq(4, None, 0).unwrap());
        for init in [
            init(pd, own_cq, own_cq, None),
            init(own_pd, cq, own_cq, None),
            init(own_pd, own_cq, cq, None),
            init(own_pd, own_cq, own_cq, Some(srq)),
        ] {
            assert!(is_unknown(other.create_qp(&init, 0).map(drop)), "{init:?}");
        }
        assert!(is_unknown(other.create_srq(&srq_attr(pd), 0).map(drop)));
        assert!(is_unknown(register(other, pd).map(drop)) && is_unknown(create_ah(other, pd).map(drop)));
        assert!(is_unknown(other.set_srq_limit(srq, 1)));
        let modified = other.modify_qp(qp, &QpAttr::default());
        assert!(matches!(modified, Err(Error::Modify(ModifyError::UnknownQp))), "{modified:?}");
        assert!(other.query_qp(qp).is_none() && other.query_srq(srq).is_none());
        assert!(is_unknown(other.destroy_qp(qp)) && is_unknown(other.destroy_srq(srq)));
        assert!(is_unknown(other.destroy_cq(cq)) && is_unknown(other.deregister(mr)));
        assert!(is_unknown(other.dealloc_pd(pd)) && is_unknown(other.destroy_ah(ah)));
        assert!(objects.query_qp(qp).is_some() && objects.query_srq(srq).is_some(), "all are as before");
    }

    /// A completion queue cannot use the channel of another device. The threads that wait on this channel would drive
    /// the other device, and a fatal error of the completion queue's device would not wake them.
    #[test]
    fn a_completion_channel_of_another_device_is_unknown() {
        let context = open("net_null96", &DeviceOptions::default());
        let other = open("net_null97", &DeviceOptions::default());
        let channel = other.create_comp_channel().unwrap();
        let created = context.objects().create_cq(4, Some(&channel), 0);
        assert!(is_unknown(created.map(drop)));
        assert!(other.objects().create_cq(4, Some(&channel), 0).is_ok());
    }

    /// Causes events of objects of all kinds: a queue pair enters ERR, its flushed receives are more than the
    /// completion queue has room for, and the shared receive queue of a second queue pair is below its limit.
    #[test]
    fn events_contain_the_cookie_of_their_object_until_it_is_destroyed() {
        let context = open("net_null93", &DeviceOptions::default());
        let objects = context.objects();
        let channel = context.create_comp_channel().unwrap();
        let pd = objects.alloc_pd().unwrap();
        let (cq, poller) = objects.create_cq(1, Some(&channel), 11).unwrap();
        let (other_cq, _) = objects.create_cq(1, Some(&channel), 12).unwrap();
        let (srq, receives) = objects.create_srq(&srq_attr(pd), 22).unwrap();
        let (qp, queues) = objects.create_qp(&init(pd, cq, cq, None), 33).unwrap();
        let (srq_qp, no_receives) = objects.create_qp(&init(pd, cq, cq, Some(srq)), 34).unwrap();
        let receive = RecvRequest { wr_id: 1, sges: &[] };
        let shared = no_receives.post_recv(&receive).unwrap_err();
        assert!(matches!(shared, Error::Post(PostError::Shared)), "{shared}");
        receives.post_recv(&receive).unwrap();
        poller.request_notify(Notify::Any).unwrap();
        let to = |state| QpAttr { state: Some(state), ..QpAttr::default() };
        objects.modify_qp(qp, &crate::ConnAttr::default().to_init()).unwrap();
        (0..2).for_each(|_| queues.post_recv(&receive).unwrap());
        [qp, srq_qp].into_iter().for_each(|qpn| objects.modify_qp(qpn, &to(QpState::Err)).unwrap());
        objects.set_srq_limit(srq, 2).unwrap();
        let expected = [
            AsyncEvent { event: Event::LastWqeReached(srq_qp), cookie: 34 },
            AsyncEvent { event: Event::SrqLimitReached(srq), cookie: 22 },
            AsyncEvent { event: Event::CqError(cq), cookie: 11 },
        ];
        let (mut pending, end) = (Vec::new(), Instant::now() + Duration::from_secs(60));
        while !expected.iter().all(|event| pending.contains(event)) {
            assert!(Instant::now() < end, "{pending:?}");
            context.progress().unwrap();
            pending.extend(std::iter::from_fn(|| objects.poll_async_event()));
        }
        assert_eq!(channel.try_wait().unwrap(), Some(CompletionEvent { cq, cookie: 11 }));
        assert_eq!((channel.try_wait().unwrap(), is_readable(&channel)), (None, false));
        assert_eq!(poller.poll(&mut Vec::new(), 4).unwrap(), 1);

        // From here on, the test, not the engine, delivers the events, so that the test knows which are pending.
        let deliver = |event| objects.shared().listeners.deliver(event);
        let ours = [Event::Completion(cq), Event::CqError(cq), Event::QpFatal(qp), Event::QpFatal(srq_qp)];
        let others = [Event::Completion(other_cq), Event::SrqLimitReached(srq)];
        ours.into_iter().chain(others).for_each(deliver);
        [qp, srq_qp].into_iter().for_each(|qpn| objects.destroy_qp(qpn).unwrap());
        objects.destroy_cq(cq).unwrap();
        ours.into_iter().for_each(deliver);
        let event = AsyncEvent { event: Event::SrqLimitReached(srq), cookie: 22 };
        assert_eq!([objects.poll_async_event(), objects.poll_async_event()], [Some(event), None]);
        let event = CompletionEvent { cq: other_cq, cookie: 12 };
        assert_eq!([(); 2].map(|()| channel.try_wait().unwrap()), [Some(event), None]);
        assert!(!is_readable(&channel) && !is_readable(context.async_event_fd()));
        // After the objects are destroyed, `queues` and `poller` can still be called, without an effect.
        queues.post_recv(&receive).unwrap();
        assert_eq!(poller.poll(&mut Vec::new(), 4).unwrap(), 0);
    }

    #[test]
    fn eight_threads_create_and_destroy_at_once() {
        const THREADS: usize = 8;
        const ROUNDS: usize = 100;
        let context = open("net_null94", &DeviceOptions::default());
        let objects = context.objects();
        let common = objects.alloc_pd().unwrap();
        let (barrier, deallocated) = (Barrier::new(THREADS), AtomicUsize::new(0));
        thread::scope(|scope| {
            let work = || {
                barrier.wait();
                for _ in 0..ROUNDS {
                    let All { pd, mr, ah, cqs, srq, qp } = create_all(objects);
                    let region = register(objects, common).unwrap();
                    assert!(is_busy(objects.dealloc_pd(pd)) && is_busy(objects.destroy_srq(srq)));
                    assert!(cqs.into_iter().all(|cq| is_busy(objects.destroy_cq(cq))));
                    assert!(is_busy(objects.dealloc_pd(common)), "the region of this thread uses it");
                    objects.destroy_qp(qp).unwrap();
                    objects.deregister(mr).unwrap();
                    objects.destroy_ah(ah).unwrap();
                    objects.destroy_srq(srq).unwrap();
                    cqs.into_iter().for_each(|cq| objects.destroy_cq(cq).unwrap());
                    objects.dealloc_pd(pd).unwrap();
                    objects.deregister(region).unwrap();
                }
                barrier.wait();
                match objects.dealloc_pd(common) {
                    Ok(()) => drop(deallocated.fetch_add(1, Ordering::Relaxed)),
                    refused => assert!(is_unknown(refused)),
                }
            };
            let threads: Vec<_> = (0..THREADS).map(|_| scope.spawn(work)).collect();
            threads.into_iter().for_each(|thread| thread.join().unwrap());
        });
        assert_eq!(deallocated.into_inner(), 1, "one of the threads deallocated it");
        assert!(objects.owned().is_empty());
        assert_eq!(objects.shared().inspect().engine.qp_count(), 0);
    }

    #[test]
    fn the_last_handle_of_a_context_destroys_its_objects() {
        let limits = DeviceLimits {
            max_pds: 1,
            max_mrs: 1,
            max_cqs: 2,
            max_srqs: 1,
            max_qps: 1,
            max_ahs: 1,
            ..DeviceLimits::default()
        };
        let options = DeviceOptions { limits, ..DeviceOptions::default() };
        let [near, far] = [(), ()].map(|()| open("net_null95", &options));
        create_all(near.objects());
        let handle = near.clone();
        drop(near);
        assert!(matches!(far.objects().alloc_pd(), Err(Error::Create(CreateError::TooMany { .. }))));
        drop(handle);
        let All { qp, .. } = create_all(far.objects());
        far.shared().inspect().raise_fatal("a test".to_owned());
        let destroyed = far.objects().destroy_qp(qp);
        assert!(matches!(destroyed, Err(Error::DeviceFatal { .. })), "{destroyed:?}");
        assert!(far.objects().query_qp(qp).is_some(), "a failed call changes nothing");
        let late = ContextObjects::new(far.objects().device.clone(), Arc::new(Inbox::with_fd().unwrap()));
        assert_eq!(late.poll_async_event().map(|pending| pending.event), Some(Event::DeviceFatal));
        let none = Qpn::new(qp.value() ^ 1);
        let destroyed = far.objects().destroy_qp(none);
        assert!(matches!(destroyed, Err(Error::DeviceFatal { .. })), "an unknown object: {destroyed:?}");
        let modified = far.objects().modify_qp(none, &QpAttr::default());
        assert!(matches!(modified, Err(Error::DeviceFatal { .. })), "an unknown object: {modified:?}");
    }
}
