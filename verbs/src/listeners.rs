//! Delivery of asynchronous events. An event of an object is appended to the queue of the context that created the
//! object. An event of the device is appended to the queues of all contexts of the device.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use roce::engine::Event;
use roce::id::Qpn;
use roce::queue::{CqId, SrqId};

use crate::inbox::Inbox;

/// Largest number of pending asynchronous events of a context; a further event replaces the oldest.
const ASYNC_EVENTS_MAX: usize = 1024;

/// An object that has asynchronous events.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Object {
    Qp(Qpn),
    Cq(CqId),
    Srq(SrqId),
}

/// The contexts of a device, and the context of each object.
#[derive(Debug, Default)]
pub(crate) struct Listeners {
    contexts: Vec<Weak<Inbox<Event>>>,
    objects: HashMap<Object, Arc<Inbox<Event>>>,
}

impl Listeners {
    pub(crate) fn add_context(&mut self, events: &Arc<Inbox<Event>>) {
        self.contexts.retain(|context| context.strong_count() > 0);
        self.contexts.push(Arc::downgrade(events));
    }

    pub(crate) fn add(&mut self, object: Object, events: &Arc<Inbox<Event>>) {
        self.objects.insert(object, events.clone());
    }

    pub(crate) fn remove(&mut self, object: Object) {
        self.objects.remove(&object);
    }

    /// Appends an event to the queue of its object's context, and a fatal error to the queues of all contexts.
    pub(crate) fn deliver(&self, event: Event) {
        let object = match event {
            Event::DeviceFatal => {
                let contexts = self.contexts.iter().filter_map(Weak::upgrade);
                return contexts.for_each(|events| events.put_within(event, ASYNC_EVENTS_MAX));
            }
            Event::Completion(cq) | Event::CqError(cq) => Object::Cq(cq),
            Event::SrqLimitReached(srq) => Object::Srq(srq),
            Event::QpFatal(qpn)
            | Event::QpRequestError(qpn)
            | Event::QpAccessError(qpn)
            | Event::CommunicationEstablished(qpn)
            | Event::SendQueueDrained(qpn)
            | Event::LastWqeReached(qpn) => Object::Qp(qpn),
        };
        if let Some(events) = self.objects.get(&object) {
            events.put_within(event, ASYNC_EVENTS_MAX);
        }
    }
}
