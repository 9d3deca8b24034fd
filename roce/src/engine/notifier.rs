use std::collections::VecDeque;

use crate::congestion::notification::{NotificationConfig, NotificationPoint};

pub(super) struct Notifier {
    pub point: NotificationPoint,
    /// Indices of the queue pairs with a CNP due.
    pub due: VecDeque<usize>,
}

impl Notifier {
    pub(super) fn new(config: NotificationConfig, slots: usize) -> Self {
        Notifier { point: NotificationPoint::new(config, slots), due: VecDeque::new() }
    }

    #[inline]
    pub(super) fn is_idle(&self) -> bool {
        self.due.is_empty()
    }

    /// Reserves memory for `qps` queue pairs, so that a CE mark allocates no memory.
    pub(super) fn reserve(&mut self, qps: usize) {
        self.due.reserve(qps);
    }
}
