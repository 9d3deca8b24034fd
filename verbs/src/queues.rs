//! Types through which application threads post work requests, and poll and arm completion queues, without the engine's
//! lock. Each queue has a lock of its own for its posts or polls.

use std::sync::Arc;

use roce::queue::{
    CqNotifier, CqPoller, Cqe, Destination, Notify, PostError, RecvPoster, RecvRequest, SendData, SendPoster,
    SendRequest,
};

use crate::device::Shared;
use crate::error::Error;
use crate::lock::{Lock, LockGuard, relax};

/// Object through which the application posts to the send queue and the receive queue of a queue pair. The queues have
/// a lock each, so threads may post sends and receives at the same time. After the queue pair is destroyed, further
/// posts have no effect.
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
        Ok(self.lock_sends())
    }

    /// Locks the send queue as [`QpQueues::send_batch`] does, but does not fail after a fatal error (`ibv_wr_start`).
    #[inline]
    pub fn lock_sends(&self) -> SendBatch<'_> {
        let end = BatchEnd { queues: self, posted: 0 };
        SendBatch { send: self.send.lock(), end }
    }

    /// Makes the engine send the posted send work requests, if a server of the port sleeps, or if
    /// `Activity::count_posts` demands a push. Otherwise the next push or poll sends these work requests.
    #[inline]
    fn after_posts(&self, count: u32) {
        if self.shared.activity.count_posts(count) || self.shared.sleep.is_server_asleep() {
            self.push();
        }
    }

    #[inline(never)] // If inlined, `push` would take registers of the functions that post.
    fn push(&self) {
        self.shared.push();
        self.shared.activity.end_push();
    }

    /// Posts a receive work request (`ibv_post_recv`).
    ///
    /// # Errors
    /// [`Error::Post`] if the work request is refused, or if the queue pair uses a shared receive queue;
    /// [`Error::DeviceFatal`] after a fatal error. A failed call does not change the receive queue.
    #[inline]
    pub fn post_recv(&self, request: &RecvRequest<'_>) -> Result<(), Error> {
        self.shared.check()?;
        let mut recv = self.recv.as_ref().ok_or(PostError::Shared)?.lock();
        recv.post(request)?;
        let is_flushed = recv.is_flushed();
        drop(recv);
        if is_flushed && self.shared.sleep.is_server_asleep() {
            // In state ERR a poll must flush the receive. The push makes the engine read the doorbell of the queue
            // pair, and wakes the sleeping server of the port, which polls.
            self.push();
        }
        Ok(())
    }
}

/// A batch of posted send work requests. The drop of the batch makes the work requests visible to the engine, and locks
/// the engine at most once.
pub struct SendBatch<'a> {
    // Dropped first, so that the send queue is already unlocked if the drop of `end` locks the engine.
    send: LockGuard<'a, SendPoster>,
    end: BatchEnd<'a>,
}

struct BatchEnd<'a> {
    queues: &'a QpQueues,
    posted: u32,
}

impl SendBatch<'_> {
    /// Posts a send work request. A failed call changes nothing.
    #[inline(always)] // See `SendPoster::stage`.
    pub fn post(&mut self, request: &SendRequest<'_>) -> Result<(), PostError> {
        self.send.stage(request)?;
        self.end.posted += 1;
        Ok(())
    }

    /// Replaces the payload, or the scatter list of a READ, of the work request posted last (`ibv_wr_set_sge`). After
    /// an error the scatter/gather list of the work request is empty.
    #[inline(always)] // See `SendPoster::stage`.
    pub fn set_data(&mut self, data: SendData<'_>) -> Result<(), PostError> {
        self.send.set_data(data)
    }

    /// Sets the destination of the work request posted last, a datagram (`ibv_wr_set_ud_addr`).
    #[inline]
    pub fn set_destination(&mut self, destination: Destination) -> Result<(), PostError> {
        self.send.set_destination(destination)
    }

    /// Returns the number of work requests posted.
    pub fn posted(&self) -> usize {
        self.end.posted as usize
    }

    /// Ends the batch (`ibv_wr_complete`).
    ///
    /// # Errors
    /// [`Error::DeviceFatal`] after a fatal error; no work request of the batch is then posted.
    #[inline]
    pub fn complete(self) -> Result<(), Error> {
        match self.end.queues.shared.check() {
            Ok(()) => Ok(()),
            Err(error) => {
                self.abort();
                Err(error)
            }
        }
    }

    /// Ends the batch without a post (`ibv_wr_abort`).
    pub fn abort(mut self) {
        self.send.unstage();
        self.end.posted = 0;
    }
}

impl Drop for SendBatch<'_> {
    #[inline]
    fn drop(&mut self) {
        if self.end.posted > 0 {
            self.send.publish();
        }
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

/// Object through which the application posts to a shared receive queue. After the shared receive queue is destroyed,
/// a further post has no effect.
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

/// Object through which the application polls a completion queue and requests notifications of this completion queue.
/// After the completion queue is destroyed, completions that were written before can still be polled, and a request of
/// a notification has no effect.
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
        let taken = drain(&mut poller, max, &mut take);
        if taken > 0 || max == 0 {
            return Ok(taken);
        }
        self.shared.drive()?;
        Ok(drain(&mut poller, max, &mut take))
    }

    /// Removes and returns the oldest completion. If the completion queue is empty, polls the engine once first, unless
    /// another thread drives the engine. Returns `None` if the completion queue is still empty, or while another thread
    /// polls the completion queue.
    ///
    /// # Errors
    /// The errors of [`CqQueue::poll`].
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

    /// Locks the poller of the completion queue. If another thread has the lock, yields the processor (that thread may
    /// be polling the engine) and returns `None`. Lock order: the poller before the engine.
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

/// Calls `take` for at most `max` completions and returns their number. Always inlined: if `drain` were a
/// function of its own, a poll of the completion queue would take about 40 instructions more.
#[inline(always)]
fn drain(poller: &mut CqPoller, max: usize, take: &mut impl FnMut(usize, &Cqe)) -> usize {
    let mut taken = 0;
    while taken < max
        && let Some(cqe) = poller.pop()
    {
        take(taken, &cqe);
        taken += 1;
    }
    taken
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::drive::POLLS_MIN;
    use crate::sleep::NAP_MAX;
    use crate::{Context, DeviceOptions};

    /// Opens `port`, and creates a completion queue. The device is closed when the context is dropped.
    fn open(port: &str) -> (Context, CqQueue) {
        let context = Context::open(&port.parse().unwrap(), &DeviceOptions::default()).unwrap();
        let (_, queue) = context.objects().create_cq(16, None, 0).unwrap();
        (context, queue)
    }

    #[test]
    fn a_second_poller_does_not_wait_for_the_first() {
        let (_context, queue) = open("eal:net_ring7,ip=10.0.7.1/24");
        let first = queue.poller.lock();
        assert_eq!((queue.poll(&mut Vec::new(), 1).unwrap(), queue.poll_one().unwrap()), (0, None));
        drop(first);
    }

    #[test]
    fn an_application_that_polls_takes_over_the_port_until_it_requests_a_notification_or_stops() {
        let (_context, queue) = open("eal:net_ring8,ip=10.0.8.1/24");
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

    #[test]
    fn a_long_poll_does_not_end_a_takeover() {
        let (_context, queue) = open("eal:net_ring12,ip=10.0.12.1/24");
        let sleep = &queue.shared.sleep;
        // Eight attempts, because another process may take the processor of this thread between two polls. If
        // `background::is_polled` (whether application threads poll) did not regard a locked engine as polled, an
        // attempt would succeed only while the background thread is busy with another device.
        let survives_long_poll = |_: &u32| {
            // Polls until one takeover (`is_watching`) has lasted `5 * NAP_MAX`.
            let mut start = std::time::Instant::now();
            while start.elapsed() < 5 * NAP_MAX {
                assert_eq!(queue.poll_one().unwrap(), None);
                if !sleep.is_watching() {
                    start = std::time::Instant::now();
                }
            }
            let _poll = queue.shared.inspect();
            std::thread::sleep(20 * NAP_MAX);
            sleep.is_watching()
        };
        let survived = (0..8).filter(survives_long_poll).count();
        assert!(survived >= 3, "{survived} of 8 takeovers survived a long poll");
    }
}
