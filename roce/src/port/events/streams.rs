use std::collections::HashMap;

use super::plan::CONNECTIONS_MAX;
use crate::id::{Gid, Qpn};
use crate::psn::{Psn, PsnSpace};

/// Index into `Streams::sent`: a PSN space of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct StreamId(usize);

#[derive(Clone, Copy)]
struct Sent {
    /// The highest PSN sent. `newest_offset` is the offset of this PSN from the first PSN sent, without a wrap at 2^24.
    newest: Psn,
    newest_offset: u64,
    is_watched: bool,
}

pub(super) struct Position {
    pub(super) space: StreamId,
    /// Number of the connection, from 1, in the order of the first packets of the connections.
    pub(super) number: u32,
    /// Offset of the PSN from the first PSN of the PSN space; `None` if the PSN is below the first PSN, or exactly 2^23
    /// PSNs away from the highest PSN sent.
    pub(super) offset: Option<u64>,
    /// Whether the port has sent no earlier packet of the PSN space.
    pub(super) is_new: bool,
}

/// The first [`CONNECTIONS_MAX`] connections on which a port sends; no event impairs packets of later connections.
#[derive(Default)]
pub(super) struct Streams {
    numbers: HashMap<(Gid, Qpn), u32>,
    /// Two entries per connection: requests, responses. `None` before the first packet of the PSN space.
    sent: Vec<Option<Sent>>,
}

impl Streams {
    pub(super) fn new(is_active: bool) -> Self {
        let room = if is_active { CONNECTIONS_MAX as usize } else { 0 };
        Streams { numbers: HashMap::with_capacity(room), sent: Vec::with_capacity(2 * room) }
    }

    /// Returns connection number and PSN space of a packet to `dest`, and the offset of its PSN from the first PSN of
    /// this PSN space. If `dest` is new, adds a connection. `None` if `dest` is new and `self` has [`CONNECTIONS_MAX`]
    /// connections already.
    pub(super) fn locate(&mut self, dest: (Gid, Qpn), space: PsnSpace, psn: Psn) -> Option<Position> {
        let known = self.numbers.len() as u32;
        let number = match self.numbers.get(&dest) {
            Some(&number) => number,
            None if known < CONNECTIONS_MAX => {
                self.numbers.insert(dest, known + 1);
                self.sent.extend([None, None]);
                known + 1
            }
            None => return None,
        };
        let at = 2 * (number as usize - 1) + usize::from(space == PsnSpace::Response);
        let slot = self.sent.get_mut(at)?;
        let is_new = slot.is_none();
        let sent = slot.get_or_insert(Sent { newest: psn, newest_offset: 0, is_watched: false });
        let ahead = psn.offset_from(sent.newest).map(i64::from);
        let offset = ahead.and_then(|ahead| sent.newest_offset.checked_add_signed(ahead));
        if let Some(offset) = offset.filter(|&offset| offset > sent.newest_offset) {
            (sent.newest, sent.newest_offset) = (psn, offset);
        }
        Some(Position { space: StreamId(at), number, offset, is_new })
    }

    pub(super) fn watch(&mut self, space: StreamId) {
        if let Some(Some(sent)) = self.sent.get_mut(space.0) {
            sent.is_watched = true;
        }
    }

    pub(super) fn is_watched(&self, space: StreamId) -> bool {
        self.sent.get(space.0).is_some_and(|sent| sent.is_some_and(|sent| sent.is_watched))
    }
}
