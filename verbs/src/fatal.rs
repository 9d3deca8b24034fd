//! Devices in a fatal error: a thread panicked while it drove the engine, or the network interface of the port was
//! removed.
//!
//! A panic may have left the engine in an inconsistent state, in which the engine might complete work requests that
//! were never executed. The device therefore queues [`Event::DeviceFatal`](roce::engine::Event), and every later verb
//! fails, except verbs that only read attributes, counters, pending events or pending completions.

use std::sync::OnceLock;

/// Reason for the fatal error of a device (`IBV_EVENT_DEVICE_FATAL`); empty while the device works.
#[derive(Default)]
pub(crate) struct Fatal(OnceLock<String>);

impl Fatal {
    #[inline]
    pub(crate) fn reason(&self) -> Option<&str> {
        self.0.get().map(String::as_str)
    }

    pub(crate) fn set(&self, reason: String) -> bool {
        self.0.set(reason).is_ok()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::thread;
    use std::time::{Duration, Instant};

    use crate::{
        Access, Context, Cq, DeviceOptions, Error, Event, Notify, Pd, Qp, QpOptions, RecvRequest, SendData,
        SendFlags, SendOp, SendRequest,
    };

    /// Timeout of the waits in these tests, reached only if a test fails.
    const LONG: Duration = Duration::from_secs(60);

    fn open(device: &str) -> Context {
        let spec = format!("eal:{device},dev.no-rx=1").parse().unwrap();
        Context::open(&spec, &DeviceOptions::default()).unwrap()
    }

    fn is_fatal<T>(result: Result<T, Error>) -> bool {
        matches!(result, Err(Error::DeviceFatal { .. }))
    }

    /// Makes the thread named `thread` panic at its next poll of the engine, and waits for the panic.
    fn panic_in(context: &Context, thread: &str) {
        let shared = context.shared();
        shared.inspect().panics_in = Some(thread.to_owned());
        let end = Instant::now() + LONG;
        while shared.inspect().panics_in.is_some() {
            assert!(Instant::now() < end, "{thread} never polled");
            thread::sleep(Duration::from_millis(1));
        }
    }

    fn assert_fatal(context: &Context, pd: &Pd, cq: &Cq, qp: &Qp) {
        let send = SendRequest {
            wr_id: 1,
            op: SendOp::Send,
            flags: SendFlags::default(),
            data: SendData::Sges(&[]),
        };
        assert!(is_fatal(qp.post_send(&send)), "post_send");
        assert!(is_fatal(qp.post_sends(&[send]).1), "post_sends");
        assert!(is_fatal(qp.post_recv(&RecvRequest { wr_id: 1, sges: &[] })), "post_recv");
        assert!(is_fatal(cq.poll(&mut Vec::new(), 8)), "poll");
        assert!(is_fatal(cq.poll_one()), "poll_one");
        assert!(is_fatal(cq.request_notify(Notify::Any)), "request_notify");
        assert!(is_fatal(context.progress()), "progress");
        assert!(is_fatal(context.wait_link(LONG)), "wait_link");
        assert!(is_fatal(context.alloc_pd()), "alloc_pd");
        assert!(is_fatal(context.create_cq(8, None)), "create_cq");
        assert!(is_fatal(pd.alloc(64, Access::LOCAL_WRITE)), "alloc");
        assert!(is_fatal(pd.create_qp(&QpOptions::new(cq))), "create_qp");
        let text = context.progress().unwrap_err().to_string();
        assert!(
            text.contains("panicked while it drove the engine") && text.contains("open it again"),
            "{text}"
        );
        assert_eq!(context.poll_async_event(), Some(Event::DeviceFatal));
        assert_eq!(context.poll_async_event(), None, "once");
        assert!(!context.attr().port.is_empty(), "what it is can still be asked");
        let found = crate::stat::read_all();
        let is_this = |device: &&crate::stat::DeviceStat| {
            device.pid == std::process::id() && device.port == context.attr().port
        };
        let device = found.devices.iter().find(is_this).expect("`roce stat` lists it");
        assert!(device.fatal.as_ref().is_some_and(|reason| reason.contains("panicked")), "{device:?}");
    }

    #[test]
    fn a_panic_of_the_progress_thread_wakes_waiters_and_fails_every_call() {
        let context = open("net_null71");
        let channel = context.create_comp_channel().unwrap();
        let cq = context.create_cq(8, Some(&channel)).unwrap();
        cq.request_notify(Notify::Any).unwrap();
        let pd = context.alloc_pd().unwrap();
        let qp = pd.create_qp(&QpOptions::new(&cq)).unwrap();
        thread::scope(|scope| {
            let waiter = scope.spawn(|| (channel.wait(LONG), Instant::now()));
            panic_in(&context, crate::progress::THREAD_NAME);
            let panicked = Instant::now();
            let (waited, woken) = waiter.join().unwrap();
            assert!(is_fatal(waited), "a waiter is woken with the error");
            assert!(woken.saturating_duration_since(panicked) < LONG, "and not by its timeout");
        });
        assert!(is_fatal(channel.wait(LONG)));
        assert!(is_fatal(channel.try_wait()));
        assert_fatal(&context, &pd, &cq, &qp);
    }

    #[test]
    fn a_panic_of_an_application_thread_in_a_poll_does_the_same() {
        let context = open("net_null72");
        let cq = context.create_cq(8, None).unwrap();
        let pd = context.alloc_pd().unwrap();
        let qp = pd.create_qp(&QpOptions::new(&cq)).unwrap();
        context.shared().inspect().panics_in = thread::current().name().map(str::to_owned);
        let polled = catch_unwind(AssertUnwindSafe(|| {
            // The loop is needed because `poll_one` does not poll the engine while the background thread drives the
            // engine.
            while context.shared().inspect().panics_in.is_some() {
                cq.poll_one().unwrap();
            }
        }));
        assert!(polled.is_err(), "the panic goes its way through the caller");
        assert_fatal(&context, &pd, &cq, &qp);
    }

    #[test]
    fn a_channel_without_completion_queues_is_woken_too() {
        let context = open("net_null74");
        let channel = context.create_comp_channel().unwrap();
        thread::scope(|scope| {
            let waiter = scope.spawn(|| (channel.wait(Duration::from_secs(10)), Instant::now()));
            context.shared().inspect().raise_fatal("a test".to_owned());
            let raised = Instant::now();
            let (waited, woken) = waiter.join().unwrap();
            assert!(is_fatal(waited), "a waiter is woken with the error");
            assert!(
                woken.saturating_duration_since(raised) < Duration::from_secs(10),
                "and not by its timeout"
            );
        });
        assert!(is_fatal(context.create_comp_channel()), "create_comp_channel");
    }

    #[test]
    fn a_panic_of_the_application_alone_leaves_the_device_in_order() {
        let context = open("net_null73");
        let pd = context.alloc_pd().unwrap();
        let unwound = catch_unwind(AssertUnwindSafe(|| {
            let _region = pd.alloc(64, Access::LOCAL_WRITE).unwrap();
            panic!("the application's own, while a region is to be dropped");
        }));
        assert!(unwound.is_err());
        assert_eq!(context.poll_async_event(), None);
        context.progress().unwrap();
    }
}
