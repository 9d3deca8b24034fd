//! The line of ibv_rc_pingpong.
//!
//! A line is `LID:QPN:PSN:GID` in hexadecimal, of fixed length, with the NUL of a C string behind it. RoCE
//! has no LIDs: see `ping/agree` for what stands there instead.

use roce::qp::{Endpoint, EndpointError};

/// Bytes of a line: `sizeof "0000:000000:000000:00000000000000000000000000000000"`.
pub(crate) const LINE_BYTES: usize = 52;
/// Bytes of the client's last message: `sizeof "done"`.
pub(crate) const DONE: [u8; 5] = *b"done\0";

/// Returns the line of `end`.
pub(crate) fn line(end: &Endpoint) -> [u8; LINE_BYTES] {
    let mut line = [0; LINE_BYTES];
    // The text is one byte shorter, so the NUL remains.
    line.iter_mut().zip(end.to_string().bytes()).for_each(|(to, from)| *to = from);
    line
}

/// Parses a line, with its NUL.
pub(crate) fn parse(line: &[u8]) -> Result<Endpoint, EndpointError> {
    String::from_utf8_lossy(line).parse()
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;
    use roce::id::{Gid, Qpn};
    use roce::psn::Psn;

    #[test]
    fn a_line_is_the_c_string_of_ibv_rc_pingpong_with_its_nul() {
        let gid = Gid::from(Ipv4Addr::new(10, 0, 0, 1));
        let end = Endpoint { lid: 0, qpn: Qpn::new(0x11), psn: Psn::new(0x9c2d3f), gid };
        assert_eq!(&line(&end), b"0000:000011:9c2d3f:00000000000000000000ffff0a000001\0");
        assert_eq!(parse(&line(&end)), Ok(end));
        let offer = Endpoint { lid: 0x531A, ..end };
        assert_eq!(&line(&offer), b"531a:000011:9c2d3f:00000000000000000000ffff0a000001\0");
        assert_eq!(parse(&line(&offer)), Ok(offer));
        assert_eq!(&DONE, b"done\0");
    }
}
