//! The content of a frame.

use roce::wire::{Packet, ParseError};

use super::capture::Frame;

/// Result of decoding a frame.
pub(super) enum Content<'a> {
    Roce(Packet<'a>),
    /// A RoCE packet that every device drops as malformed.
    Malformed(ParseError),
    /// A RoCE packet of which too little was captured.
    Cut,
    /// A frame of another protocol.
    Other,
}

impl<'a> Content<'a> {
    pub(super) fn of(frame: &'a Frame) -> Self {
        match Packet::parse(&frame.data) {
            Ok(packet) => Content::Roce(packet),
            Err(ParseError::Truncated) if frame.is_cut() => Content::Cut,
            // Found before the UDP port is known, so these are no evidence of RoCE.
            Err(
                ParseError::NotRoce
                | ParseError::StackedVlan
                | ParseError::BadIpVersion
                | ParseError::Ipv4Options
                | ParseError::Fragment,
            ) => Content::Other,
            Err(error) => Content::Malformed(error),
        }
    }

    pub(super) fn is_bad(&self) -> bool {
        match self {
            Content::Roce(packet) => !packet.icrc_ok(),
            Content::Malformed(_) => true,
            Content::Cut | Content::Other => false,
        }
    }
}
