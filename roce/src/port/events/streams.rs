//! The connection and lane of a packet, and the offset of its PSN from the lane's first.

use std::collections::HashMap;

use super::plan::CONNECTIONS_MAX;
use crate::id::{Gid, Qpn};
use crate::psn::{Psn, PsnSpace};

/// Index of a lane of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct StreamId(usize);

/// The highest PSN that the port has sent on a lane.
#[derive(Clone, Copy)]
struct Sent {
    /// The highest PSN, and its offset from the first. Offsets do not wrap at 2^24.
    newest: Psn,
    newest_offset: u64,
    is_watched: bool,
}

/// Connection, lane and offset of a packet.
pub(super) struct Position {
    pub(super) space: StreamId,
    /// The connection's number, from 1, in the order of first packets.
    pub(super) number: u32,
    /// Distance from the lane's first PSN; `None` if the packet's PSN is before that.
    pub(super) offset: Option<u64>,
    /// Whether the packet is the lane's first.
    pub(super) is_new: bool,
}

/// The first [`CONNECTIONS_MAX`] connections on which a port sends; later ones are ignored.
#[derive(Default)]
pub(super) struct Streams {
    numbers: HashMap<(Gid, Qpn), u32>,
    /// Two per connection: requests, responses.
    sent: Vec<Option<Sent>>,
}

impl Streams {
    /// Creates an empty table; if `is_active`, allocates it for [`CONNECTIONS_MAX`] connections.
    pub(super) fn new(is_active: bool) -> Self {
        let room = if is_active { CONNECTIONS_MAX as usize } else { 0 };
        Streams { numbers: HashMap::with_capacity(room), sent: Vec::with_capacity(2 * room) }
    }

    /// Locates a packet to `dest` with this PSN; `None` if the table is full. Adds unknown connections.
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

    /// Marks a lane as one of an event.
    pub(super) fn watch(&mut self, space: StreamId) {
        if let Some(Some(sent)) = self.sent.get_mut(space.0) {
            sent.is_watched = true;
        }
    }

    pub(super) fn is_watched(&self, space: StreamId) -> bool {
        self.sent.get(space.0).is_some_and(|sent| sent.is_some_and(|sent| sent.is_watched))
    }
}
