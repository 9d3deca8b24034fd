//! The end of a peer's first message.

/// Bound on the first message of a command's exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Framing {
    /// A line, of at most this many bytes with its end.
    Line(usize),
    /// Exactly this many bytes.
    Record(usize),
}

/// Reason why bytes are no first message. Ends a sentence that begins with "it".
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum FramingError {
    /// No end of line within the limit.
    #[error("sent {0} bytes without the end of a line")]
    TooLong(usize),
    /// More bytes than a first message, before the answer.
    #[error("sent more than its first message before the answer")]
    Trailing,
}

impl Framing {
    /// Returns the number of bytes to receive, at most, before [`Framing::message`] decides.
    pub(crate) fn bytes_max(self) -> usize {
        match self {
            Framing::Line(most) | Framing::Record(most) => most,
        }
    }

    /// Returns the message, once `bytes` hold it whole; a line without its end.
    pub(crate) fn message(self, bytes: &[u8]) -> Result<Option<&[u8]>, FramingError> {
        let (message, rest) = match self {
            Framing::Record(len) => match bytes.split_at_checked(len) {
                None => return Ok(None),
                Some(parts) => parts,
            },
            Framing::Line(most) => match bytes.iter().take(most).position(|byte| *byte == b'\n') {
                None if bytes.len() >= most => return Err(FramingError::TooLong(most)),
                None => return Ok(None),
                Some(end) => (&bytes[..end], &bytes[end + 1..]),
            },
        };
        if rest.is_empty() { Ok(Some(message)) } else { Err(FramingError::Trailing) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_bounded() {
        let line = Framing::Line(4);
        assert_eq!(line.message(b"ab"), Ok(None));
        assert_eq!(line.message(b"abc\n"), Ok(Some(&b"abc"[..])));
        assert_eq!(line.message(b"abcd"), Err(FramingError::TooLong(4)));
        assert_eq!(line.message(b"abcd\n"), Err(FramingError::TooLong(4)));
        assert_eq!(line.message(b"a\nb"), Err(FramingError::Trailing));
        let record = Framing::Record(2);
        assert_eq!(record.message(b"a"), Ok(None));
        assert_eq!(record.message(b"ab"), Ok(Some(&b"ab"[..])));
        assert_eq!(record.message(b"abc"), Err(FramingError::Trailing));
        assert_eq!((line.bytes_max(), record.bytes_max()), (4, 2));
    }
}
