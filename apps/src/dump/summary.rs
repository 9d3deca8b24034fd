//! Counts of the contents of a capture.

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;

use super::content::Content;

/// Counts over the frames of a capture; all but `frames` over those that the filters let pass.
#[derive(Default, Serialize)]
pub(super) struct Summary {
    /// Frames in the file.
    pub(super) frames: u64,
    roce_packets: u64,
    icrc_wrong: u64,
    malformed: u64,
    cut: u64,
    other: u64,
    congestion_experienced: u64,
    opcodes: BTreeMap<&'static str, u64>,
}

impl Summary {
    /// Counts a frame.
    pub(super) fn add(&mut self, content: &Content<'_>) {
        match content {
            Content::Roce(packet) => {
                self.roce_packets += 1;
                self.icrc_wrong += u64::from(!packet.icrc_ok());
                self.congestion_experienced += u64::from(packet.congestion_experienced());
                *self.opcodes.entry(packet.info.name).or_default() += 1;
            }
            Content::Malformed(_) => self.malformed += 1,
            Content::Cut => self.cut += 1,
            Content::Other => self.other += 1,
        }
    }

    /// Whether a packet was damaged.
    pub(super) fn is_bad(&self) -> bool {
        self.icrc_wrong + self.malformed > 0
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = self.roce_packets + self.malformed + self.cut + self.other;
        write!(f, "\n{} frames", self.frames)?;
        if shown != self.frames {
            write!(f, ", {shown} shown")?;
        }
        write!(f, ": {} RoCE v2 packets, ICRC wrong on {}", self.roce_packets, self.icrc_wrong)?;
        for (count, what) in [
            (self.malformed, "malformed"),
            (self.cut, "cut short by the capture"),
            (self.other, "of other protocols"),
            (self.congestion_experienced, "marked congestion experienced"),
        ] {
            if count > 0 {
                write!(f, ", {count} {what}")?;
            }
        }
        writeln!(f)?;
        self.opcodes.iter().try_for_each(|(name, count)| writeln!(f, "{count:>8} {name}"))
    }
}
