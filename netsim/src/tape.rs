//! The fault tape: impairments of simulated links by frame number.

use roce::port::impairment::Impairment;

use crate::id::LinkId;

/// An entry of the tape.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TapeEntry {
    /// The link.
    pub link: LinkId,
    /// Number of the frame: the count of frames that left the link before it since the tape was set.
    pub frame: u64,
    /// The impairment.
    pub impairment: Impairment,
}

/// The fault tape of a run: its entries, in any order. Several entries for one frame are combined, as in
/// [`roce::port::impairment::Disposition`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tape(pub Vec<TapeEntry>);

impl Tape {
    /// Longest time in nanoseconds for which a reordered frame is held.
    pub const HOLD_NANOS_MAX: u64 = 50_000;

    pub(crate) fn of_link(&self, link: LinkId) -> Vec<TapeEntry> {
        let mut entries: Vec<TapeEntry> = self.0.iter().copied().filter(|entry| entry.link == link).collect();
        entries.sort_by_key(|entry| entry.frame);
        entries
    }
}
