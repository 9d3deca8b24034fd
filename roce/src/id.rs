//! Numbers and addresses on the wire and in the verbs interface. Each kind has a type of its own, so that the compiler
//! rejects, for example, an L_Key passed as an R_Key.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

const MASK_24: u32 = 0x00FF_FFFF;

/// Queue pair number (QPN), 24 bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Qpn(u32);

impl Qpn {
    /// Returns the QPN in the low 24 bits of `value`.
    pub const fn new(value: u32) -> Self {
        Qpn(value & MASK_24)
    }

    /// Returns the QPN as an integer, 0 to 2^24 - 1.
    pub const fn value(self) -> u32 {
        self.0
    }
}

impl fmt::Display for Qpn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "0x{:06x}", self.0)
    }
}

/// Message sequence number (MSN), 24 bits: the number of requests that the responder has completed, modulo 2^24;
/// initially 0 (IBA 9.7.7.1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Msn(u32);

impl Msn {
    /// Returns the MSN in the low 24 bits of `value`.
    pub const fn new(value: u32) -> Self {
        Msn(value & MASK_24)
    }

    /// Returns the MSN as an integer, 0 to 2^24 - 1.
    pub const fn value(self) -> u32 {
        self.0
    }

    /// Returns the MSN after this MSN, modulo 2^24.
    pub const fn next(self) -> Self {
        self.plus(1)
    }

    /// Returns the MSN `messages` after this MSN, modulo 2^24.
    pub const fn plus(self, messages: u32) -> Self {
        Msn(self.0.wrapping_add(messages) & MASK_24)
    }
}

/// L_Key of a memory region: identifies the region in the scatter/gather entries of local work requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub struct LKey(pub u32);

/// R_Key of a memory region: identifies the region in a peer's RDMA requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct RKey(pub u32);

/// Q_Key of a queue pair of UD, 32 bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct QKey(pub u32);

impl QKey {
    /// Bit that is set in a controlled Q_Key. If a work request gives a Q_Key with this bit, the packet has the Q_Key
    /// of the queue pair that sends the packet (IBA 10.2.5).
    pub(crate) const CONTROLLED: u32 = 1 << 31;
}

/// Random number that identifies, in its engine, an address handle that an application created; never sent on the wire.
/// No address handle has the number 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct AhId(pub u32);

/// P_Key, 16 bits: bit 15 is set for full membership, the low 15 bits are the partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PKey(pub u16);

impl PKey {
    /// P_Key of the default partition with full membership: the only entry of a RoCE P_Key table.
    pub const DEFAULT: PKey = PKey(0xFFFF);

    /// Returns whether a queue pair with this P_Key may receive a packet with the P_Key `other`: both P_Keys are of the
    /// same partition, and at least one of them has the bit for full membership (IBA 10.9.3).
    pub(crate) const fn accepts(self, other: PKey) -> bool {
        (self.0 & 0x7FFF) == (other.0 & 0x7FFF) && ((self.0 | other.0) & 0x8000) != 0
    }
}

/// Ethernet (MAC) address, in the byte order of the wire.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Mac(pub [u8; 6]);

impl Mac {
    /// The Ethernet broadcast address.
    pub const BROADCAST: Mac = Mac([0xFF; 6]);

    /// Returns whether this MAC is a group address (multicast or broadcast).
    pub const fn is_group(self) -> bool {
        self.0[0] & 1 != 0
    }

    /// Returns the IPv6 link-local address that RoCE derives from this MAC (modified EUI-64, RFC 4291).
    pub const fn link_local(self) -> Ipv6Addr {
        let m = self.0;
        Ipv6Addr::from_octets([
            0xFE,
            0x80,
            0,
            0,
            0,
            0,
            0,
            0,
            m[0] ^ 0x02,
            m[1],
            m[2],
            0xFF,
            0xFE,
            m[3],
            m[4],
            m[5],
        ])
    }
}

impl fmt::Display for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

/// Error of parsing a [`Mac`]: the text is not six hexadecimal bytes separated by colons.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not an Ethernet address; write six hexadecimal bytes, as in 02:00:00:00:00:01")]
pub struct ParseMacError(String);

impl std::str::FromStr for Mac {
    type Err = ParseMacError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let wrong = || ParseMacError(text.to_owned());
        let mut bytes = [0u8; 6];
        let mut parts = text.split(':');
        for byte in &mut bytes {
            let part = parts.next().ok_or_else(wrong)?;
            if part.is_empty() || part.len() > 2 || !part.bytes().all(|c| c.is_ascii_hexdigit()) {
                return Err(wrong());
            }
            *byte = u8::from_str_radix(part, 16).map_err(|_| wrong())?;
        }
        if parts.next().is_some() {
            return Err(wrong());
        }
        Ok(Mac(bytes))
    }
}

/// GID, 128 bits. A GID of RoCEv2 is an IP address: IPv6 unchanged, IPv4 as ::ffff:a.b.c.d.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Gid(pub [u8; 16]);

impl Gid {
    /// The unspecified GID, all zero.
    pub const ZERO: Gid = Gid([0; 16]);

    /// Returns the IP address of this GID.
    pub const fn ip(self) -> IpAddr {
        let v6 = Ipv6Addr::from_octets(self.0);
        match v6.to_ipv4_mapped() {
            Some(v4) => IpAddr::V4(v4),
            None => IpAddr::V6(v6),
        }
    }

    /// Returns whether this GID can be the address of an interface: false for unspecified, loopback, multicast and
    /// broadcast addresses.
    pub const fn is_unicast(self) -> bool {
        match self.ip() {
            IpAddr::V4(ip) => {
                !(ip.is_unspecified() || ip.is_loopback() || ip.is_multicast() || ip.is_broadcast())
            }
            IpAddr::V6(ip) => !(ip.is_unspecified() || ip.is_loopback() || ip.is_multicast()),
        }
    }

    /// Returns whether this GID is an IPv4 address. If so, packets to this GID are IPv4 packets.
    pub const fn is_ipv4(self) -> bool {
        u128::from_be_bytes(self.0) >> 32 == 0xFFFF
    }

    /// Returns whether this GID is an IPv6 link-local address (fe80::/10).
    pub const fn is_link_local(self) -> bool {
        self.0[0] == 0xFE && self.0[1] & 0xC0 == 0x80
    }
}

impl From<Ipv4Addr> for Gid {
    fn from(ip: Ipv4Addr) -> Self {
        Gid(ip.to_ipv6_mapped().octets())
    }
}

impl From<Ipv6Addr> for Gid {
    fn from(ip: Ipv6Addr) -> Self {
        Gid(ip.octets())
    }
}

impl From<IpAddr> for Gid {
    fn from(ip: IpAddr) -> Self {
        match ip {
            IpAddr::V4(ip) => ip.into(),
            IpAddr::V6(ip) => ip.into(),
        }
    }
}

impl fmt::Display for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Ipv6Addr::from_octets(self.0).fmt(f)
    }
}

impl fmt::Debug for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Gid({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gid_of_an_ipv4_address_is_mapped_and_back() {
        let gid = Gid::from(Ipv4Addr::new(10, 0, 0, 1));
        assert_eq!(gid.to_string(), "::ffff:10.0.0.1");
        assert_eq!(gid.ip(), IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1)));
    }

    #[test]
    fn an_interface_has_a_unicast_gid() {
        for (ip, is_unicast) in [
            ("10.0.0.1", true),
            ("fe80::1", true),
            ("fd00::1", true),
            ("0.0.0.0", false),
            ("127.0.0.1", false),
            ("239.1.2.3", false),
            ("255.255.255.255", false),
            ("::", false),
            ("::1", false),
            ("ff02::1", false),
        ] {
            assert_eq!(Gid::from(ip.parse::<IpAddr>().unwrap()).is_unicast(), is_unicast, "{ip}");
        }
    }

    #[test]
    fn link_local_address_is_the_modified_eui_64() {
        let mac: Mac = "52:54:00:12:34:56".parse().unwrap();
        assert_eq!(mac.link_local().to_string(), "fe80::5054:ff:fe12:3456");
        assert!(Gid::from(mac.link_local()).is_link_local());
    }

    #[test]
    fn mac_text_is_refused_unless_six_hex_bytes() {
        for text in [
            "",
            "02:00:00:00:00",
            "02:00:00:00:00:01:02",
            "02:00:00:00:00:+1",
            "g2:00:00:00:00:01",
            "2::0:0:0:1",
        ] {
            assert!(text.parse::<Mac>().is_err(), "{text}");
        }
        assert_eq!("2:0:0:0:0:a".parse::<Mac>().unwrap().to_string(), "02:00:00:00:00:0a");
    }

    #[test]
    fn pkey_needs_the_same_partition_and_one_full_member() {
        assert!(PKey::DEFAULT.accepts(PKey(0x7FFF)));
        assert!(!PKey(0x7FFF).accepts(PKey(0x7FFF)));
        assert!(!PKey::DEFAULT.accepts(PKey(0x8001)));
    }
}
