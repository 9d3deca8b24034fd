//! What two ends tell each other before they are connected: the text line of ibv_rc_pingpong.

use std::fmt;
use std::str::FromStr;

use roce::id::{Gid, Qpn};
use roce::psn::Psn;

/// One end of a connection, as its peer needs to know it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// Local identifier: 0, as RoCE has none. Programs may put something of their own there.
    pub lid: u16,
    /// Queue pair.
    pub qpn: Qpn,
    /// First PSN it sends.
    pub psn: Psn,
    /// Address.
    pub gid: Gid,
}

/// A line that is no endpoint.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` is no LID:QPN:PSN:GID line of hexadecimal numbers: is the peer of the same program and version?"
)]
pub struct EndpointError(String);

impl fmt::Display for Endpoint {
    /// `LID:QPN:PSN:GID`, as rdma-core's pingpong examples write it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:04x}:{:06x}:{:06x}:", self.lid, self.qpn.value(), self.psn.value())?;
        self.gid.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl FromStr for Endpoint {
    type Err = EndpointError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let wrong = || EndpointError(text.to_owned());
        let mut fields = text.trim_end_matches(['\0', '\n']).split(':');
        let mut number = || u32::from_str_radix(fields.next()?, 16).ok();
        let lid = number().and_then(|lid| u16::try_from(lid).ok()).ok_or_else(wrong)?;
        let (qpn, psn) = (number().ok_or_else(wrong)?, number().ok_or_else(wrong)?);
        let hex = fields.next().filter(|hex| hex.len() == 32 && hex.is_ascii()).ok_or_else(wrong)?;
        let gid = u128::from_str_radix(hex, 16).map_err(|_| wrong())?;
        if fields.next().is_some() {
            return Err(wrong());
        }
        Ok(Endpoint { lid, qpn: Qpn::new(qpn), psn: Psn::new(psn), gid: Gid(gid.to_be_bytes()) })
    }
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
        ] {
            assert!(wrong.parse::<Endpoint>().is_err(), "{wrong}");
        }
    }
}
