//! The fault tape: impairments of simulated links by frame number.

use roce::port::impairment::Impairment;

use crate::id::LinkId;

/// An entry of the tape.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TapeEntry {
    /// The link.
    pub link: LinkId,
    /// The frame's number: frames that left on the link before it, since the tape was set.
    pub frame: u64,
    /// The impairment.
    pub impairment: Impairment,
}

/// The fault tape of a run: its entries, in any order. Several of one frame are combined, as in
/// [`roce::port::impairment::Disposition`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tape(pub Vec<TapeEntry>);

impl Tape {
    /// Longest time in nanoseconds that a reordered frame is held for others to overtake it.
    pub const HOLD_NANOS_MAX: u64 = 50_000;

    /// The entries of one link, sorted by frame.
    pub(crate) fn of_link(&self, link: LinkId) -> Vec<TapeEntry> {
        let mut entries: Vec<TapeEntry> = self.0.iter().copied().filter(|entry| entry.link == link).collect();
        entries.sort_by_key(|entry| entry.frame);
        entries
    }
}
