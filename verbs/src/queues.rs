//! The application's ends of the queues of an object, which threads use without the engine's lock. Each end has a lock
//! of its own.

use std::cell::Cell;
use std::sync::Arc;

use roce::queue::{
    CqNotifier, CqPoller, Cqe, Notify, PostError, RecvPoster, RecvRequest, SendPoster, SendRequest,
};

use crate::device::Shared;
use crate::error::Error;
use crate::lock::{Lock, LockGuard, relax};

/// Number of send work requests, posted since the last push, at which `QpQueues::after_posts` makes the engine send
/// them.
const POSTS_PER_PUSH: u32 = 16;

/// Send work requests of one thread that are posted and not yet pushed.
#[derive(Clone, Copy)]
struct Posts {
    /// Address of the [`Shared`] of the device to which the thread posted last; 0 before the first post.
    device: usize,
    /// Number of work requests posted to queue pairs of this device since the thread's last call of `Shared::push`.
    waiting: u32,
    /// Value of [`crate::drive::Activity::polls`] after the thread's last call of `Shared::push`.
    polls_seen: u64,
}

impl Posts {
    /// Adds `count` posts to queue pairs of `device`. `polls`: value of [`crate::drive::Activity::polls`] of this
    /// device. Returns whether the thread must push: at `POSTS_PER_PUSH` posts since its last push, at the first post
    /// after a poll or push by any application thread, and at the first post to another device.
    #[inline]
    fn is_push_due(&mut self, device: usize, polls: u64, count: u32) -> bool {
        self.waiting += count;
        (self.device, self.polls_seen) != (device, polls) || self.waiting >= POSTS_PER_PUSH
    }
}

thread_local! {
    /// Posts are counted per thread, not per queue pair: otherwise a thread that posts to several queue pairs in turn
    /// would push at each post, because the push for one queue pair counts as a poll for the others.
    static POSTS: Cell<Posts> = const { Cell::new(Posts { device: 0, waiting: 0, polls_seen: 0 }) };
}

/// The ends at which the application posts to the send queue and the receive queue of a queue pair. The queues have a
/// lock each, so threads may post sends and receives at the same time. After the queue pair is destroyed, posted work
/// requests have no effect.
pub struct QpQueues {
    shared: Arc<Shared>,
    send: Lock<SendPoster>,
    /// `None` if the queue pair uses a shared receive queue.
    recv: Option<Lock<RecvPoster>>,
}

impl QpQueues {
    pub(crate) fn new(shared: Arc<Shared>, send: SendPoster, recv: Option<RecvPoster>) -> Self {
        QpQueues { shared, send: Lock::new(send), recv: recv.map(Lock::new) }
    }

    /// Posts a send work request (`ibv_post_send`).
    ///
    /// # Errors
    /// [`Error::Post`] if the work request is refused; [`Error::DeviceFatal`] after a fatal error. A failed call does
    /// not change the send queue.
    #[inline]
    pub fn post_send(&self, request: &SendRequest<'_>) -> Result<(), Error> {
        self.shared.check()?;
        self.send.lock().post(request)?;
        self.after_posts(1);
        Ok(())
    }

    /// Posts the send work requests `requests` in order, and stops at the first refused work request. Returns the
    /// number of work requests posted, and the error of the refused work request. Locks the engine at most once.
    pub fn post_sends(&self, requests: &[SendRequest<'_>]) -> (usize, Result<(), Error>) {
        let mut batch = match self.send_batch() {
            Ok(batch) => batch,
            Err(error) => return (0, Err(error)),
        };
        let refused = requests.iter().try_for_each(|request| batch.post(request));
        (batch.posted(), refused.map_err(Error::from))
    }

    /// Locks the send queue for several posts. For example, one call of a C interface posts a linked list of work
    /// requests.
    ///
    /// # Errors
    /// [`Error::DeviceFatal`] after a fatal error.
    #[inline]
    pub fn send_batch(&self) -> Result<SendBatch<'_>, Error> {
        self.shared.check()?;
        let end = BatchEnd { queues: self, posted: 0 };
        Ok(SendBatch { send: self.send.lock(), end })
    }

    /// Pushes the posted send work requests (makes the engine send them) if a push is due. Otherwise the next push or
    /// poll sends them.
    #[inline]
    fn after_posts(&self, count: u32) {
        let device = Arc::as_ptr(&self.shared).addr();
        let mut posts = POSTS.get();
        let is_due = posts.is_push_due(device, self.shared.activity.polls(), count);
        if is_due || self.shared.sleep.is_server_asleep() {
            self.shared.push();
            posts = Posts { device, waiting: 0, polls_seen: self.shared.activity.polls() };
        }
        POSTS.set(posts);
    }

    /// Posts a receive work request (`ibv_post_recv`).
    ///
    /// # Errors
    /// [`Error::Post`] if the work request is refused, or if the queue pair uses a shared receive queue;
    /// [`Error::DeviceFatal`] after a fatal error. A failed call does not change the receive queue.
    #[inline]
    pub fn post_recv(&self, request: &RecvRequest<'_>) -> Result<(), Error> {
        self.shared.check()?;
        let recv = self.recv.as_ref().ok_or(PostError::Shared)?;
        recv.lock().post(request)?;
        if self.shared.sleep.is_server_asleep() {
            // If the queue pair is in state ERR, a poll must flush the receive. The push makes the engine read the
            // doorbell of the receive queue, and wakes the sleeping server, which polls.
            self.shared.push();
        }
        Ok(())
    }
}

/// Posts of several send work requests, which lock the engine at most once, when the batch is dropped.
pub struct SendBatch<'a> {
    // Dropped first: the send queue is unlocked before the engine may be locked.
    send: LockGuard<'a, SendPoster>,
    end: BatchEnd<'a>,
}

struct BatchEnd<'a> {
    queues: &'a QpQueues,
    posted: u32,
}

impl SendBatch<'_> {
    /// Posts a send work request. A failed call does not change the send queue.
    #[inline]
    pub fn post(&mut self, request: &SendRequest<'_>) -> Result<(), PostError> {
        self.send.post(request)?;
        self.end.posted += 1;
        Ok(())
    }

    /// Returns the number of work requests posted.
    pub fn posted(&self) -> usize {
        self.end.posted as usize
    }
}

impl Drop for BatchEnd<'_> {
    #[inline]
    fn drop(&mut self) {
        if self.posted > 0 {
            self.queues.after_posts(self.posted);
        }
    }
}

/// The end at which the application posts to a shared receive queue. After the shared receive queue is destroyed, a
/// posted receive has no effect.
pub struct SrqQueue {
    shared: Arc<Shared>,
    recv: Lock<RecvPoster>,
}

impl SrqQueue {
    pub(crate) fn new(shared: Arc<Shared>, recv: RecvPoster) -> Self {
        SrqQueue { shared, recv: Lock::new(recv) }
    }

    /// Posts a receive (`ibv_post_srq_recv`).
    ///
    /// # Errors
    /// [`Error::Post`] if the receive is refused; [`Error::DeviceFatal`] after a fatal error. A failed call does not
    /// change the queue.
    #[inline]
    pub fn post_recv(&self, request: &RecvRequest<'_>) -> Result<(), Error> {
        self.shared.check()?;
        Ok(self.recv.lock().post(request)?)
    }
}

/// The end at which the application polls a completion queue and requests its notifications. After the completion queue
/// is destroyed, completions that were written before can still be polled, and a request of a notification has no
/// effect.
pub struct CqQueue {
    shared: Arc<Shared>,
    poller: Lock<CqPoller>,
    notifier: CqNotifier,
}

impl CqQueue {
    pub(crate) fn new(shared: Arc<Shared>, poller: CqPoller) -> Self {
        CqQueue { shared, notifier: poller.notifier(), poller: Lock::new(poller) }
    }

    /// Appends at most `max` completions to `out` and returns their number (`ibv_poll_cq`). If the completion queue is
    /// empty, polls the engine once first, unless another thread drives the engine. Does not block: returns 0 while
    /// another thread polls this completion queue.
    ///
    /// # Errors
    /// [`Error::DeviceFatal`] after a fatal error, if the completion queue is empty or another thread polls it;
    /// [`Error::Forked`] in a forked process.
    #[inline]
    pub fn poll(&self, out: &mut Vec<Cqe>, max: usize) -> Result<usize, Error> {
        self.shared.check_process()?;
        let Some(mut poller) = self.try_lock()? else { return Ok(0) };
        let taken = poller.pop_into(out, max);
        if taken > 0 || max == 0 {
            return Ok(taken);
        }
        self.shared.drive()?;
        Ok(poller.pop_into(out, max))
    }

    /// Calls `take` for at most `max` completions and returns their number, as [`CqQueue::poll`] does, but without a
    /// vector.
    ///
    /// # Errors
    /// The errors of [`CqQueue::poll`].
    #[inline]
    pub fn poll_each(&self, max: usize, mut take: impl FnMut(usize, &Cqe)) -> Result<usize, Error> {
        self.shared.check_process()?;
        let Some(mut poller) = self.try_lock()? else { return Ok(0) };
        let mut taken = 0;
        let mut drain = |poller: &mut CqPoller| {
            while taken < max
                && let Some(cqe) = poller.pop()
            {
                take(taken, &cqe);
                taken += 1;
            }
            taken
        };
        if drain(&mut poller) > 0 || max == 0 {
            return Ok(taken);
        }
        self.shared.drive()?;
        Ok(drain(&mut poller))
    }

    /// Removes and returns the oldest completion. If the completion queue is empty, polls the engine once first.
    /// Returns `None` if the completion queue is empty after this poll, or while another thread polls the completion
    /// queue.
    ///
    /// # Errors
    /// The error of [`CqQueue::poll`].
    #[inline]
    pub fn poll_one(&self) -> Result<Option<Cqe>, Error> {
        self.shared.check_process()?;
        let Some(mut poller) = self.try_lock()? else { return Ok(None) };
        if let Some(cqe) = poller.pop() {
            return Ok(Some(cqe));
        }
        self.shared.drive()?;
        Ok(poller.pop())
    }

    /// Requests one event on the completion channel of the completion queue (`ibv_req_notify_cq`). `notify` selects the
    /// cause: the next completion, or the next completion that is a solicited event or has an error. Takes no lock.
    ///
    /// # Errors
    /// [`Error::DeviceFatal`] after a fatal error.
    pub fn request_notify(&self, notify: Notify) -> Result<(), Error> {
        self.shared.check()?;
        self.notifier.request(notify);
        self.shared.activity.await_polls();
        self.shared.sleep.end_watch();
        Ok(())
    }

    /// Locks the poller of the completion queue. If another thread has the lock, yields the processor, because that
    /// thread may be polling the engine, and returns `None`. Lock order: the poller before the engine.
    #[inline]
    fn try_lock(&self) -> Result<Option<LockGuard<'_, CqPoller>>, Error> {
        let poller = self.poller.try_lock();
        if poller.is_none() {
            relax();
            self.shared.check()?;
        }
        Ok(poller)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::drive::POLLS_MIN;
    use crate::{Context, DeviceOptions};

    #[test]
    fn a_push_is_due_at_the_first_post_after_a_poll_and_at_every_sixteenth() {
        let mut posts = Posts { device: 1, waiting: 0, polls_seen: 7 };
        assert!((1..POSTS_PER_PUSH).all(|_| !posts.is_push_due(1, 7, 1)));
        assert!(posts.is_push_due(1, 7, 1));
        let posts = Posts { device: 1, waiting: 0, polls_seen: 7 };
        assert!(!{ posts }.is_push_due(1, 7, POSTS_PER_PUSH - 1));
        assert!({ posts }.is_push_due(1, 8, 1), "a thread has polled since");
        assert!({ posts }.is_push_due(2, 7, 1), "another device");
    }

    #[test]
    fn a_second_poller_does_not_wait_for_the_first() {
        let port = "eal:net_ring7,ip=10.0.7.1/24".parse().unwrap();
        let context = Context::open(&port, &DeviceOptions::default()).unwrap();
        let (_, queue) = context.objects().create_cq(16, None, 0).unwrap();
        let first = queue.poller.lock();
        assert_eq!((queue.poll(&mut Vec::new(), 1).unwrap(), queue.poll_one().unwrap()), (0, None));
        drop(first);
    }

    #[test]
    fn an_application_that_polls_takes_over_the_port_until_it_requests_a_notification_or_stops() {
        let port = "eal:net_ring8,ip=10.0.8.1/24".parse().unwrap();
        let context = Context::open(&port, &DeviceOptions::default()).unwrap();
        let (_, queue) = context.objects().create_cq(16, None, 0).unwrap();
        let sleep = &queue.shared.sleep;
        for _ in 0..4 {
            queue.request_notify(Notify::Any).unwrap();
            for _ in 1..POLLS_MIN {
                assert_eq!(queue.poll_one().unwrap(), None);
            }
            assert!(!sleep.is_watching(), "an application polls between two requests");
        }
        let poll_until_watching = || {
            while !sleep.is_watching() {
                assert_eq!(queue.poll_one().unwrap(), None);
            }
        };
        poll_until_watching();
        queue.request_notify(Notify::Any).unwrap();
        assert!(!sleep.is_watching());
        poll_until_watching();
        while sleep.is_watching() {
            std::thread::yield_now();
        }
    }
}
