//! Delivery of events. An asynchronous event of an object is appended to the queue of the context that created the
//! object. An event of the device is appended to the queues of all contexts of the device, except link events that a
//! context ignores. A completion event is appended to the completion channel of its completion queue.

use std::collections::HashMap;
use std::ptr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use roce::engine::Event;
use roce::queue::CqId;

use crate::inbox::Inbox;
use crate::object::Object;

/// Largest number of pending asynchronous events of a context; a further event replaces the oldest.
const ASYNC_EVENTS_MAX: usize = 1024;

/// An asynchronous event (`ibv_async_event`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AsyncEvent {
    /// The event, with the number of its object.
    pub event: Event,
    /// Cookie of the object; 0 for an event of the device or its port.
    pub cookie: u64,
}

/// An event of a completion queue, in its completion channel (`ibv_get_cq_event`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CompletionEvent {
    /// Number of the completion queue.
    pub cq: CqId,
    /// Cookie of the completion queue.
    pub cookie: u64,
}

/// The queues to which the events of an object are appended.
pub(crate) struct Listener {
    /// Queue of asynchronous events of the context that created the object.
    pub(crate) events: Arc<Inbox<AsyncEvent>>,
    /// Completion channel of a completion queue; `None` for other objects, and for a completion queue without channel.
    pub(crate) channel: Option<Arc<Inbox<CompletionEvent>>>,
    pub(crate) cookie: u64,
}

/// A context, to which events of the device are delivered.
struct Subscriber {
    events: Weak<Inbox<AsyncEvent>>,
    ignores_link: bool,
}

#[derive(Default)]
struct Table {
    contexts: Vec<Subscriber>,
    channels: Vec<Weak<Inbox<CompletionEvent>>>,
    objects: HashMap<Object, Listener>,
    /// Whether the event [`Event::DeviceFatal`] was delivered.
    is_fatal: bool,
}

/// The contexts and completion channels of a device, and the listener of each object that has events. Lock order: the
/// engine, then this table, then a queue of events.
#[derive(Default)]
pub(crate) struct Listeners(Mutex<Table>);

impl Listeners {
    fn table(&self) -> MutexGuard<'_, Table> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds the queue of asynchronous events of a new context. After a fatal error, appends [`Event::DeviceFatal`].
    pub(crate) fn add_context(&self, events: &Arc<Inbox<AsyncEvent>>) {
        let mut table = self.table();
        table.contexts.retain(|context| context.events.strong_count() > 0);
        table.contexts.push(Subscriber { events: Arc::downgrade(events), ignores_link: false });
        if table.is_fatal {
            put_device_event(events, Event::DeviceFatal);
        }
    }

    /// Removes the pending events of the link ([`Event::PortActive`], [`Event::PortError`]) from `events`, and delivers
    /// no further event of the link to the context whose queue is `events`.
    pub(crate) fn ignore_link(&self, events: &Inbox<AsyncEvent>) {
        let mut table = self.table();
        let own = table.contexts.iter_mut().filter(|context| ptr::eq(context.events.as_ptr(), events));
        own.for_each(|context| context.ignores_link = true);
        events.discard(|pending| is_of_link(pending.event));
    }

    /// Adds the queue of a new completion channel. After a fatal error, closes the queue, so that no wait blocks.
    pub(crate) fn add_channel(&self, channel: &Arc<Inbox<CompletionEvent>>) {
        let mut table = self.table();
        table.channels.retain(|channel| channel.strong_count() > 0);
        table.channels.push(Arc::downgrade(channel));
        if table.is_fatal {
            channel.close();
        }
    }

    pub(crate) fn add(&self, object: Object, listener: Listener) {
        self.table().objects.insert(object, listener);
    }

    /// Removes the listener of `object` and all pending events of `object`. Otherwise the owner could receive the
    /// cookie of an object that is destroyed, and in C this cookie would be a dangling pointer.
    pub(crate) fn remove(&self, object: Object) {
        let Some(listener) = self.table().objects.remove(&object) else { return };
        listener.events.discard(|pending| Object::of(pending.event) == Some(object));
        if let Some(channel) = listener.channel {
            channel.discard(|pending| Object::Cq(pending.cq) == object);
        }
    }

    /// Appends a completion event to the completion channel of its completion queue, an asynchronous event of an object
    /// to the queue of the object's context, and an event of the device to the queues of all contexts, except link
    /// events that a context ignores. A fatal error also wakes all present and future waiters of the completion
    /// channels.
    pub(crate) fn deliver(&self, event: Event) {
        let mut table = self.table();
        let Some(object) = Object::of(event) else {
            let contexts =
                table.contexts.iter().filter(|context| !(context.ignores_link && is_of_link(event)));
            contexts
                .filter_map(|context| context.events.upgrade())
                .for_each(|events| put_device_event(&events, event));
            if event == Event::DeviceFatal {
                table.is_fatal = true;
                table.channels.iter().filter_map(Weak::upgrade).for_each(|channel| channel.close());
            }
            return;
        };
        let Some(Listener { events, channel, cookie }) = table.objects.get(&object) else { return };
        let cookie = *cookie;
        match event {
            Event::Completion(cq) => {
                if let Some(channel) = channel {
                    channel.put(CompletionEvent { cq, cookie });
                }
            }
            event => events.put_within(AsyncEvent { event, cookie }, ASYNC_EVENTS_MAX),
        }
    }
}

fn put_device_event(events: &Inbox<AsyncEvent>, event: Event) {
    events.put_within(AsyncEvent { event, cookie: 0 }, ASYNC_EVENTS_MAX);
}

fn is_of_link(event: Event) -> bool {
    matches!(event, Event::PortActive | Event::PortError)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_context_that_ignores_the_link_receives_only_the_other_events_of_the_device() {
        let listeners = Listeners::default();
        let [ignoring, other] = [(); 2].map(|()| Arc::new(Inbox::with_fd().unwrap()));
        listeners.add_context(&ignoring);
        listeners.add_context(&other);
        listeners.deliver(Event::PortActive);
        listeners.ignore_link(&ignoring);
        listeners.deliver(Event::PortError);
        listeners.deliver(Event::GidChange);
        let taken = |events: &Inbox<AsyncEvent>| -> Vec<Event> {
            std::iter::from_fn(|| events.take()).map(|pending| pending.event).collect()
        };
        assert_eq!(taken(&ignoring), [Event::GidChange]);
        assert_eq!(taken(&other), [Event::PortActive, Event::PortError, Event::GidChange]);
    }
}
