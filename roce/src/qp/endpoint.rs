//! Connection parameters that two peers exchange out of band: the text line of ibv_rc_pingpong.

use std::fmt;
use std::ops::RangeInclusive;
use std::str::FromStr;

use crate::id::{Gid, Qpn};
use crate::psn::Psn;

/// Parameters of a queue pair that its peer must know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// Local identifier (LID), 16 bits. RoCE has no LIDs: the field is 0 or data of the application.
    pub lid: u16,
    /// Number of the queue pair.
    pub qpn: Qpn,
    /// PSN of the first request that the queue pair sends.
    pub psn: Psn,
    /// GID of the queue pair's port.
    pub gid: Gid,
}

/// Maximum length of the excerpt of a malformed line in an error message, in characters.
const QUOTED_CHARS_MAX: usize = 64;

/// Reason for refusing a line of text as an [`Endpoint`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EndpointError {
    /// The line is not of the form `LID:QPN:PSN:GID`.
    #[error(
        "`{0}` is no LID:QPN:PSN:GID line of hexadecimal numbers: is the peer of the same program and version?"
    )]
    Format(String),
    /// The QPN is reserved: 0 and 1 for management, 2^24 - 1 for multicast (IBA 3.2.5).
    #[error("queue pair number {0} is reserved, and no connection can lead there")]
    ReservedQpn(Qpn),
}

impl fmt::Display for Endpoint {
    /// Writes `LID:QPN:PSN:GID`, the format of rdma-core's pingpong examples.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:04x}:{:06x}:{:06x}:", self.lid, self.qpn.value(), self.psn.value())?;
        self.gid.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl FromStr for Endpoint {
    type Err = EndpointError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let wrong = || EndpointError::Format(text.escape_debug().take(QUOTED_CHARS_MAX).collect::<String>());
        let fields: Vec<&str> = text.trim_end_matches(['\0', '\n']).splitn(5, ':').collect();
        let &[lid, qpn, psn, gid] = fields.as_slice() else { return Err(wrong()) };
        let lid = hex(lid, 1..=4).and_then(|lid| u16::try_from(lid).ok()).ok_or_else(wrong)?;
        // QPN and PSN have 24 bits: at most six hexadecimal digits.
        let number = |field| hex(field, 1..=6).and_then(|number| u32::try_from(number).ok());
        let (qpn, psn) = (number(qpn).ok_or_else(wrong)?, number(psn).ok_or_else(wrong)?);
        let gid = hex(gid, 32..=32).ok_or_else(wrong)?;
        if RESERVED_QPNS.contains(&qpn) {
            return Err(EndpointError::ReservedQpn(Qpn::new(qpn)));
        }
        Ok(Endpoint { lid, qpn: Qpn::new(qpn), psn: Psn::new(psn), gid: Gid(gid.to_be_bytes()) })
    }
}

const RESERVED_QPNS: [u32; 3] = [0, 1, 0xFF_FFFF];

/// Parses a hexadecimal number whose count of digits is in `digits`; `from_str_radix` alone would accept a sign.
fn hex(field: &str, digits: RangeInclusive<usize>) -> Option<u128> {
    let is_hex = digits.contains(&field.len()) && field.bytes().all(|byte| byte.is_ascii_hexdigit());
    u128::from_str_radix(field, 16).ok().filter(|_| is_hex)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_of_ibv_rc_pingpong_is_read_and_written() {
        let line = "0000:000011:9c2d3f:00000000000000000000ffff0a000001";
        let endpoint: Endpoint = line.parse().unwrap();
        assert_eq!((endpoint.lid, endpoint.qpn), (0, Qpn::new(0x11)));
        assert_eq!(endpoint.gid.to_string(), "::ffff:10.0.0.1");
        assert_eq!(endpoint.to_string(), line);
        assert_eq!(format!("{line}\0").parse::<Endpoint>().unwrap(), endpoint);
        let lid = line.replacen("0000", "531a", 1);
        assert_eq!(lid.parse(), Ok(Endpoint { lid: 0x531A, ..endpoint }));
        assert_eq!(lid.parse::<Endpoint>().unwrap().to_string(), lid);
        for wrong in [
            line.replacen('0', "1", 1).replacen(':', "0:", 1).as_str(),
            "",
            "1:2:3",
            "0:1:2:00",
            "x:1:2:zz000000000000000000ffff0a000001",
            &line.replacen("9c2d3f", "19c2d3f", 1),
            &line.replacen("000011", "+00011", 1),
            &format!("{line}:"),
        ] {
            assert!(wrong.parse::<Endpoint>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn no_connection_leads_to_a_reserved_queue_pair() {
        for qpn in ["000000", "000001", "ffffff"] {
            let line = format!("0000:{qpn}:000005:00000000000000000000ffff0a000001");
            assert!(matches!(line.parse::<Endpoint>(), Err(EndpointError::ReservedQpn(_))), "{qpn}");
        }
    }

    #[test]
    fn a_wrong_line_is_repeated_in_part_and_without_control_characters() {
        let error = format!("\u{1b}[2J{}", "x".repeat(1 << 20)).parse::<Endpoint>().unwrap_err().to_string();
        assert!(error.len() < 300 && !error.contains('\u{1b}'), "{error}");
    }
}
