//! The end of a peer's first message: the end of a line, or a number of bytes.

use super::perftest;

/// Form of the first message of an exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Framing {
    /// A line, of at most this many bytes with its end.
    Line(usize),
    /// Exactly this many bytes.
    Record(usize),
    /// If the first byte is a digit: greeting and first line of perftest, to whose records this end replies with the
    /// records of `own`. Otherwise a line of at most `line_bytes` bytes with its end.
    PerftestOrLine {
        /// Greeting of this end.
        own: [u8; perftest::GREETING_BYTES],
        line_bytes: usize,
    },
}

/// Reason why bytes are no first message. Ends a sentence that begins with "it".
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum FramingError {
    #[error("sent {0} bytes without the end of a line")]
    TooLong(usize),
    #[error("sent more than its first message before the answer")]
    Trailing,
    /// The client is perftest, with records that this end cannot answer.
    #[error("is perftest: {0}")]
    Perftest(#[from] perftest::RecordError),
}

const PERFTEST_BYTES: usize = perftest::GREETING_BYTES + perftest::LINE_BYTES;

impl Framing {
    /// Returns the number of bytes to receive, at most, before [`Framing::message`] decides.
    pub(crate) fn bytes_max(self) -> usize {
        match self {
            Framing::Line(most) | Framing::Record(most) => most,
            Framing::PerftestOrLine { line_bytes, .. } => line_bytes.max(PERFTEST_BYTES),
        }
    }

    /// Returns the bytes to send to a client after the first `bytes` of its first message: perftest sends the rest only
    /// after it has received them.
    pub(crate) fn due(&self, bytes: &[u8]) -> &[u8] {
        match self {
            Framing::PerftestOrLine { own, .. } if perftest::is_version(bytes) => {
                own.get(..perftest::greeting_due(bytes.len())).unwrap_or_default()
            }
            _ => &[],
        }
    }

    /// Returns the message, if `bytes` contain all of it; a line without its end.
    pub(crate) fn message(self, bytes: &[u8]) -> Result<Option<&[u8]>, FramingError> {
        let (message, rest) = match self {
            Framing::PerftestOrLine { .. } if perftest::is_version(bytes) => {
                perftest::check_start(bytes)?;
                return Framing::Record(PERFTEST_BYTES).message(bytes);
            }
            Framing::PerftestOrLine { line_bytes, .. } => return Framing::Line(line_bytes).message(bytes),
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
        let own = perftest::greeting(roce::qp::PathMtu::Mtu1024);
        let either = Framing::PerftestOrLine { own, line_bytes: 4 };
        assert_eq!(either.message(b"abc\n"), Ok(Some(&b"abc"[..])));
        assert_eq!(either.message(b"abcd"), Err(FramingError::TooLong(4)));
        assert_eq!(either.message(b"6.06\n"), Ok(None));
        let whole = [&own[..], &[b':'; perftest::LINE_BYTES]].concat();
        assert_eq!(either.message(&whole), Ok(Some(&whole[..])));
        assert_eq!(either.message(&whole[..PERFTEST_BYTES - 1]), Ok(None));
        assert!(matches!(either.message(b"5.69\0\0\0\0\0\0\0\0\0\0\0\0"), Err(FramingError::Perftest(_))));
        assert_eq!(either.message(&[&whole[..], b":"].concat()), Err(FramingError::Trailing));
        assert_eq!((either.due(&whole[..15]), either.due(&whole[..22])), (&[][..], &own[..20]));
        assert_eq!((either.due(&whole), either.due(b"{ and more than 16 bytes")), (&own[..], &[][..]));
        assert!(line.due(&whole).is_empty());
        assert_eq!(either.message(b""), Ok(None));
        assert_eq!((either.bytes_max(), PERFTEST_BYTES), (PERFTEST_BYTES, 134));
        assert_eq!(Framing::PerftestOrLine { own, line_bytes: 140 }.bytes_max(), 140);
    }
}
