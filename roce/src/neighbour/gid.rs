//! The GID table of a RoCE v2 port: its IP addresses, by index.
//!
//! ```text
//!   index 0      fe80::... from the Ethernet address; always present
//!   index 1 ...  IPv4 (as ::ffff:a.b.c.d) and IPv6 addresses, in the order added
//! ```
//!
//! The index of an address does not change until the address is removed, because queue pairs refer to an address by its
//! index. The next address added gets the lowest index that a removed address has left empty.

use std::net::{IpAddr, Ipv6Addr};

use crate::id::{Gid, Mac};

/// Largest number of entries of a GID table. This constant must not exceed 256, because the source GID index of verbs
/// (`sgid_index`) has 8 bits.
pub const GIDS_MAX: usize = 128;

pub(crate) const LINK_LOCAL_INDEX: usize = 0;

/// The highest VLAN identifier; 802.1Q reserves 4095.
const VLAN_MAX: u16 = 4094;

/// An IP address of the port, with its subnet and VLAN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GidEntry {
    /// The IP address.
    pub gid: Gid,
    /// Prefix length of the subnet in bits: at most 32 for IPv4, 128 for IPv6.
    pub prefix_bits: u8,
    /// VLAN of the address, 1 to 4094; `None` for untagged frames.
    pub vlan: Option<u16>,
    /// Set to true when `take_unannounced` returns this address, and to false by `announce_again`. While true,
    /// `take_unannounced` does not return this address.
    pub(super) announced: bool,
}

impl GidEntry {
    /// Returns the IP address; a mapped GID (`::ffff:a.b.c.d`) becomes an IPv4 address.
    pub fn ip(&self) -> IpAddr {
        self.gid.ip()
    }

    /// Returns whether `ip` is in the subnet of this address.
    pub fn is_on_link(&self, ip: IpAddr) -> bool {
        match (self.ip(), ip) {
            (IpAddr::V4(own), IpAddr::V4(other)) => {
                (own.to_bits() ^ other.to_bits()).leading_zeros() >= u32::from(self.prefix_bits)
            }
            (IpAddr::V6(own), IpAddr::V6(other)) => {
                (own.to_bits() ^ other.to_bits()).leading_zeros() >= u32::from(self.prefix_bits)
            }
            _ => false,
        }
    }
}

/// Reason why an address cannot be added to, or removed from, the GID table.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GidError {
    /// The address to be added is not a unicast address.
    #[error("{0} is not an address of one interface; give a unicast address such as 10.0.0.1/24")]
    NotUnicast(IpAddr),
    /// The prefix of the address to be added is longer than the address.
    #[error("{ip}/{prefix_bits}: the prefix of this address has at most {max_bits} bits")]
    Prefix {
        /// The address to be added.
        ip: IpAddr,
        /// The prefix length given, in bits.
        prefix_bits: u8,
        /// The longest prefix of the address's IP family, in bits: 32 or 128.
        max_bits: u8,
    },
    /// The VLAN identifier given is out of the range 1 to 4094.
    #[error("VLAN {0} does not exist; give a number from 1 to 4094")]
    Vlan(u16),
    /// The GID table has the address already, with another prefix or VLAN.
    #[error("{ip} is GID {index} already, with another prefix or VLAN; remove it first")]
    Present {
        /// The address to be added.
        ip: IpAddr,
        /// GID index of the address.
        index: usize,
    },
    /// All [`GIDS_MAX`] entries of the GID table are used.
    #[error("no room for {0}: the GID table holds {GIDS_MAX} addresses; remove one first")]
    Full(IpAddr),
    /// The address to be removed is the link-local GID, which is always present.
    #[error("GID 0 is made from the Ethernet address and cannot be removed")]
    LinkLocal,
    /// The address to be removed is not in the GID table.
    #[error("{0} is not an address of this port")]
    Absent(IpAddr),
}

/// The addresses of a port, by GID index.
#[derive(Clone, Debug)]
pub struct GidTable {
    entries: Vec<Option<GidEntry>>,
    generation: u64,
}

impl GidTable {
    /// Creates the table of a port with Ethernet address `mac`. The only entry is the link-local GID, untagged.
    pub fn new(mac: Mac) -> Self {
        let link_local =
            GidEntry { gid: mac.link_local().into(), prefix_bits: 64, vlan: None, announced: false };
        GidTable { entries: vec![Some(link_local)], generation: 0 }
    }

    pub(super) fn on_vlan(mac: Mac, vlan: Option<u16>) -> Result<Self, GidError> {
        let mut table = GidTable::new(mac);
        check_vlan(vlan)?;
        table.entries.iter_mut().flatten().for_each(|entry| entry.vlan = vlan);
        Ok(table)
    }

    /// Adds the address `ip` with a prefix of `prefix_bits` bits, and returns the GID index of `ip`. If the table
    /// already has an entry with this address, prefix length and VLAN, returns the index of that entry.
    pub fn add(&mut self, ip: IpAddr, prefix_bits: u8, vlan: Option<u16>) -> Result<usize, GidError> {
        let gid = Gid::from(ip);
        let ip = gid.ip();
        let max_bits = if ip.is_ipv4() { 32 } else { 128 };
        if !is_unicast(ip) {
            return Err(GidError::NotUnicast(ip));
        }
        if prefix_bits > max_bits {
            return Err(GidError::Prefix { ip, prefix_bits, max_bits });
        }
        check_vlan(vlan)?;
        if let Some((index, entry)) = self.find(ip) {
            let same = entry.prefix_bits == prefix_bits && entry.vlan == vlan;
            return if same { Ok(index) } else { Err(GidError::Present { ip, index }) };
        }
        let entry = Some(GidEntry { gid, prefix_bits, vlan, announced: false });
        let index = self.entries.iter().position(Option::is_none).unwrap_or(self.entries.len());
        match self.entries.get_mut(index) {
            Some(hole) => *hole = entry,
            None if index < GIDS_MAX => self.entries.push(entry),
            None => return Err(GidError::Full(ip)),
        }
        self.generation += 1;
        Ok(index)
    }

    /// Removes the address `ip`. Its index stays empty until `add` reuses the index.
    pub fn remove(&mut self, ip: IpAddr) -> Result<(), GidError> {
        let (index, _) = self.find(ip).ok_or(GidError::Absent(ip))?;
        if index == LINK_LOCAL_INDEX {
            return Err(GidError::LinkLocal);
        }
        if let Some(entry) = self.entries.get_mut(index) {
            *entry = None;
        }
        self.generation += 1;
        Ok(())
    }

    /// Makes `addresses` (each with its prefix length in bits) the addresses of this table, beside the link-local GID.
    /// All addresses get the VLAN `vlan`. If an entry of the table is equal to one of the new entries (IP address,
    /// prefix length and VLAN), this entry keeps its GID index.
    ///
    /// # Errors
    /// The first error of [`GidTable::add`]. The addresses without an error are in the table nevertheless.
    pub fn replace(&mut self, addresses: &[(IpAddr, u8)], vlan: Option<u16>) -> Result<(), GidError> {
        let first_index = LINK_LOCAL_INDEX + 1;
        for entry in self.entries.iter_mut().skip(first_index) {
            let is_kept = |entry: &GidEntry| {
                addresses.iter().any(|&(ip, prefix_bits)| {
                    Gid::from(ip) == entry.gid && prefix_bits == entry.prefix_bits && vlan == entry.vlan
                })
            };
            if entry.take_if(|entry| !is_kept(entry)).is_some() {
                self.generation += 1;
            }
        }
        let mut result = Ok(());
        for &(ip, prefix_bits) in addresses {
            result = result.and(self.add(ip, prefix_bits, vlan).map(drop));
        }
        result
    }

    /// Returns the entry at GID index `index`; `None` if the index is empty or past the end of the table.
    pub fn get(&self, index: usize) -> Option<&GidEntry> {
        self.entries.get(index)?.as_ref()
    }

    /// Returns the index of `gid`; `None` if `gid` is not in the table.
    pub fn index_of(&self, gid: Gid) -> Option<usize> {
        self.iter().find(|(_, entry)| entry.gid == gid).map(|(index, _)| index)
    }

    /// Returns index and entry of the address `ip`; `None` if `ip` is not in the table.
    pub fn find(&self, ip: IpAddr) -> Option<(usize, &GidEntry)> {
        self.iter().find(|(_, entry)| entry.ip() == ip)
    }

    /// Iterates over the entries with their indices, in ascending order of the indices.
    pub fn iter(&self) -> impl Iterator<Item = (usize, &GidEntry)> {
        self.entries.iter().enumerate().filter_map(|(index, entry)| Some((index, entry.as_ref()?)))
    }

    /// Returns one more than the highest GID index ever used. Lower indices may be empty.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Returns false, because GID 0 is always present.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Returns the index of the source address for packets to `destination`; `None` if no address qualifies. The source
    /// address has the IP family of `destination`. For a unicast `destination`, in order of preference:
    /// 1. `destination` itself, if `destination` is an address of the port;
    /// 2. of the addresses whose subnet contains `destination`, the address with the longest prefix;
    /// 3. the first address that is not link-local, unless `destination` is an IPv6 link-local address.
    pub fn select_for(&self, destination: IpAddr) -> Option<usize> {
        let destination = Gid::from(destination).ip();
        let rank = |entry: &GidEntry| {
            let own = entry.ip();
            if own.is_ipv4() != destination.is_ipv4() {
                return None;
            }
            if own == destination {
                return Some(u16::MAX);
            }
            // For IPv6 multicast of at most link-local scope, the source is the link-local address. For a wider scope,
            // the source is the first address that is not link-local. For IPv4 multicast, the source is the first IPv4
            // address.
            let local = is_link_scope(destination);
            if destination.is_multicast() {
                return (entry.gid.is_link_local() == local || own.is_ipv4()).then_some(1);
            }
            if entry.is_on_link(destination) {
                return Some(1 + u16::from(entry.prefix_bits));
            }
            (!entry.gid.is_link_local() && !local).then_some(0)
        };
        let ranked = self.iter().filter_map(|(index, entry)| Some((rank(entry)?, index)));
        ranked.max_by_key(|&(rank, index)| (rank, std::cmp::Reverse(index))).map(|(_, index)| index)
    }

    /// Returns a number that increases with each change of the table.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    pub(super) fn announce_again(&mut self) {
        self.entries.iter_mut().flatten().for_each(|entry| entry.announced = false);
    }

    pub(super) fn take_unannounced(&mut self) -> Vec<GidEntry> {
        let fresh = self.entries.iter_mut().flatten().filter(|entry| !entry.announced);
        fresh
            .map(|entry| {
                entry.announced = true;
                *entry
            })
            .collect()
    }
}

fn check_vlan(vlan: Option<u16>) -> Result<(), GidError> {
    match vlan.filter(|vlan| !(1..=VLAN_MAX).contains(vlan)) {
        Some(vlan) => Err(GidError::Vlan(vlan)),
        None => Ok(()),
    }
}

/// Returns whether `ip` can be the address of an interface: not a group, broadcast, loopback or unspecified address.
pub(super) fn is_unicast(ip: IpAddr) -> bool {
    Gid::from(ip).is_unicast()
}

/// Returns whether `ip` is an IPv6 address, unicast or multicast, of at most link-local scope.
fn is_link_scope(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(_) => false,
        IpAddr::V6(ip) => ip.is_unicast_link_local() || is_link_multicast(ip),
    }
}

fn is_link_multicast(ip: Ipv6Addr) -> bool {
    ip.octets()[0] == 0xFF && ip.octets()[1] & 0x0F <= 2
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn table(addresses: &[(&str, u8)]) -> GidTable {
        let mut table = GidTable::new(Mac([0x52, 0x54, 0, 0x12, 0x34, 0x56]));
        for (n, (address, prefix_bits)) in addresses.iter().enumerate() {
            assert_eq!(table.add(ip(address), *prefix_bits, None), Ok(n + 1));
        }
        table
    }

    #[test]
    fn link_local_comes_first_and_the_others_in_order() {
        let table = table(&[("10.0.0.1", 24), ("2001:db8::1", 64)]);
        let gids: Vec<String> = table.iter().map(|(_, entry)| entry.gid.to_string()).collect();
        assert_eq!(gids, ["fe80::5054:ff:fe12:3456", "::ffff:10.0.0.1", "2001:db8::1"]);
        assert_eq!(table.index_of(Gid::from(ip("10.0.0.1"))), Some(1));
        assert_eq!(table.get(2).unwrap().prefix_bits, 64);
        assert_eq!(table.get(3), None);
    }

    #[test]
    fn a_removed_index_is_a_hole_until_it_is_filled() {
        let mut table = table(&[("10.0.0.1", 24), ("10.0.1.1", 24)]);
        table.remove(ip("10.0.0.1")).unwrap();
        assert_eq!((table.get(1), table.index_of(Gid::from(ip("10.0.1.1")))), (None, Some(2)));
        assert_eq!(table.add(ip("10.0.2.1"), 24, Some(7)), Ok(1));
        assert_eq!(table.get(1).unwrap().vlan, Some(7));
        assert_eq!(table.generation(), 4);
    }

    #[test]
    fn addresses_that_stay_keep_their_index() {
        let mut table = table(&[("10.0.0.1", 24), ("10.0.1.1", 24), ("2001:db8::1", 64)]);
        let before = table.generation();
        let same =
            [("2001:db8::1", 64), ("10.0.0.1", 24), ("10.0.1.1", 24)].map(|(text, bits)| (ip(text), bits));
        assert_eq!(table.replace(&same, None), Ok(()));
        assert_eq!(table.generation(), before);
        // 10.0.0.1 has another prefix, 10.0.1.1 is removed, 224.0.0.1 is refused.
        let other =
            [("224.0.0.1", 4), ("10.0.0.1", 16), ("10.0.2.1", 24), ("2001:db8::1", 64), ("10.0.3.1", 24)];
        let other = other.map(|(text, bits)| (ip(text), bits));
        assert_eq!(table.replace(&other, None), Err(GidError::NotUnicast(ip("224.0.0.1"))));
        let gids = table.iter().skip(1).map(|(index, entry)| (index, entry.ip(), entry.prefix_bits));
        let expected =
            [(1, "10.0.0.1", 16), (2, "10.0.2.1", 24), (3, "2001:db8::1", 64), (4, "10.0.3.1", 24)];
        assert!(gids.eq(expected.map(|(index, text, bits)| (index, ip(text), bits))));
        assert_eq!(table.replace(&[], None), Ok(()));
        assert_eq!(table.iter().count(), 1, "the link-local GID stays");
    }

    #[test]
    fn wrong_entries_are_refused() {
        let mut table = table(&[("10.0.0.1", 24)]);
        for address in ["0.0.0.0", "127.0.0.1", "224.0.0.1", "255.255.255.255", "::", "::1", "ff02::1"] {
            assert_eq!(table.add(ip(address), 8, None), Err(GidError::NotUnicast(ip(address))));
        }
        assert!(matches!(table.add(ip("10.0.0.2"), 33, None), Err(GidError::Prefix { max_bits: 32, .. })));
        assert!(matches!(table.add(ip("2001::1"), 129, None), Err(GidError::Prefix { max_bits: 128, .. })));
        assert_eq!(table.add(ip("10.0.0.2"), 24, Some(4095)), Err(GidError::Vlan(4095)));
        assert_eq!(table.add(ip("10.0.0.2"), 24, Some(0)), Err(GidError::Vlan(0)));
        assert_eq!(table.add(ip("10.0.0.1"), 24, None), Ok(1), "the same again changes nothing");
        assert!(matches!(table.add(ip("10.0.0.1"), 16, None), Err(GidError::Present { index: 1, .. })));
        assert!(matches!(table.add(ip("::ffff:10.0.0.1"), 16, None), Err(GidError::Present { .. })));
        assert_eq!(table.remove(ip("10.9.9.9")), Err(GidError::Absent(ip("10.9.9.9"))));
        let link_local = table.get(0).unwrap().ip();
        assert_eq!(table.remove(link_local), Err(GidError::LinkLocal));
    }

    #[test]
    fn a_full_table_says_so() {
        let mut table = table(&[]);
        for n in 1..GIDS_MAX {
            let address = Ipv4Addr::from_bits(0x0A00_0000 + n as u32);
            table.add(address.into(), 8, None).unwrap();
        }
        assert_eq!(table.add(ip("10.1.0.1"), 8, None), Err(GidError::Full(ip("10.1.0.1"))));
        table.remove(ip("10.0.0.5")).unwrap();
        assert_eq!(table.add(ip("10.1.0.1"), 8, None), Ok(5));
    }

    #[test]
    fn the_source_is_of_the_destinations_family_and_subnet() {
        let all = table(&[
            ("192.168.0.1", 16),
            ("192.168.7.1", 24),
            ("2001:db8::1", 64),
            ("fd00::1", 8),
            ("10.0.0.1", 8),
        ]);
        for (destination, index) in [
            ("192.168.7.9", Some(2)),
            ("192.168.9.9", Some(1)),
            ("192.168.0.1", Some(1)),
            ("10.200.0.1", Some(5)),
            ("::ffff:10.200.0.1", Some(5)),
            ("8.8.8.8", Some(1)),
            ("fe80::9", Some(0)),
            ("2001:db8::9", Some(3)),
            ("fd77::9", Some(4)),
            ("2600::1", Some(3)),
            ("ff02::1", Some(0)),
            ("ff0e::1", Some(3)),
            ("224.0.0.9", Some(1)),
        ] {
            assert_eq!(all.select_for(ip(destination)), index, "{destination}");
        }
        let bare = table(&[]);
        assert_eq!(bare.select_for(ip("10.0.0.1")), None);
        assert_eq!(bare.select_for(ip("2001:db8::9")), None);
        assert_eq!(bare.select_for(ip("fe80::9")), Some(0));
    }
}
