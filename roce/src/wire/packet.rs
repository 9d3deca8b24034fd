use super::atomiceth::{AtomicAckEth, AtomicEth};
use super::bth::PrecedingReads;
use super::eth::{
    ETHERTYPE_IPV4, ETHERTYPE_IPV6, ETHERTYPE_QINQ, ETHERTYPE_VLAN, EthHeader, VLAN_ID_MASK, VlanTag,
};
use super::icrc::{self, ICRC_LEN, RetransmitFields};
use super::ipv4::{self, FRAGMENT_BITS, Ipv4Header, PROTOCOL_UDP, VERSION_IHL};
use super::ipv6::{self, Ipv6Header};
use super::opcode::{ExtHeader, Opcode, OpcodeInfo};
use super::udp::{ROCE_PORT, UdpHeader};
use super::{
    aeth::Aeth, bth, bth::Bth, deth::Deth, feth::Feth, ieth::Ieth, immdt::ImmDt, recveth::RecvEth,
    reth::Reth, sacketh::SackEth, xrceth::XrcEth,
};
use crate::id::{Gid, Mac, Qpn};

/// Reason why a frame is not a valid RoCE v2 packet; [`ParseError::index`] selects the counter of the reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum ParseError {
    /// Not malformed: the protocol of the frame is not UDP (for example ARP or ICMP), or the UDP destination port is
    /// not [`ROCE_PORT`].
    #[error("not a RoCE v2 packet")]
    NotRoce,
    /// The frame is shorter than its headers, or than the length in its IP header.
    #[error("truncated")]
    Truncated,
    /// The frame has more than one VLAN tag, or an 802.1ad tag.
    #[error("stacked VLAN tags")]
    StackedVlan,
    /// The IP version does not match the EtherType.
    #[error("bad IP version")]
    BadIpVersion,
    /// The IPv4 header has options.
    #[error("IPv4 options")]
    Ipv4Options,
    /// The frame is a fragment of an IP datagram.
    #[error("IP fragment")]
    Fragment,
    /// The IPv4 header checksum is wrong.
    #[error("bad IPv4 header checksum")]
    BadIpChecksum,
    /// The UDP length is not the length of the IP payload.
    #[error("UDP and IP lengths differ")]
    LengthMismatch,
    /// The transport header version (TVer) is not 0.
    #[error("unknown transport header version")]
    BadTver,
    /// The opcode table does not list the opcode.
    #[error("unknown opcode")]
    UnknownOpcode,
    /// The pad count exceeds the number of bytes between extension headers and ICRC, or this number is not a multiple
    /// of 4.
    #[error("bad pad count")]
    BadPad,
    /// The packet has payload or pad, but its opcode permits no payload.
    #[error("unexpected payload")]
    UnexpectedPayload,
}

impl ParseError {
    /// All variants of [`ParseError`], in the order of [`ParseError::index`].
    pub const ALL: [ParseError; 12] = [
        ParseError::NotRoce,
        ParseError::Truncated,
        ParseError::StackedVlan,
        ParseError::BadIpVersion,
        ParseError::Ipv4Options,
        ParseError::Fragment,
        ParseError::BadIpChecksum,
        ParseError::LengthMismatch,
        ParseError::BadTver,
        ParseError::UnknownOpcode,
        ParseError::BadPad,
        ParseError::UnexpectedPayload,
    ];

    /// Number of variants of [`ParseError`].
    pub const COUNT: usize = Self::ALL.len();

    /// Returns the index of this reason in an array of [`ParseError::COUNT`] counters.
    pub const fn index(self) -> usize {
        self as usize
    }
}

/// Fields of an IP header, without the addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IpInfo {
    /// True for IPv6, false for IPv4.
    pub is_ipv6: bool,
    /// Traffic class (IPv4: type of service): DSCP (6 bits) and ECN (2 bits).
    pub tclass: u8,
    /// Hop limit (IPv4: time to live).
    pub ttl: u8,
    /// Flow label, 20 bits; 0 in IPv4.
    pub flow_label: u32,
}

/// A RoCE v2 packet in a received frame, with consistent lengths and an opcode that the opcode table lists.
/// [`Packet::parse`] does not check the ICRC; [`Packet::icrc_ok`] does.
#[derive(Clone, Copy, Debug)]
pub struct Packet<'a> {
    /// Tag control information of the VLAN tag; `None` in an untagged frame.
    pub vlan: Option<u16>,
    /// UDP source port.
    pub udp_source_port: u16,
    /// Base transport header.
    pub bth: Bth,
    /// Properties of the packet's opcode: its row of the opcode table.
    pub info: &'static OpcodeInfo,
    /// Payload without pad.
    pub payload: &'a [u8],
    is_ipv6: bool,
    tclass: u8,
    eth: &'a EthBytes,
    ext: &'a [u8],
    /// The bytes from the IP header to the pad, from which the ICRC is computed.
    l3: &'a [u8],
    icrc: u32,
}

/// Source and destination IP address of all packets that a connection accepts. [`Packet::is_between`] returns whether a
/// packet has these addresses.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AddressPair {
    is_ipv6: bool,
    /// Source address, then destination address, as in an IP header; a pair of IPv4 addresses uses the first 8 bytes.
    bytes: [u8; 32],
}

impl AddressPair {
    /// Returns the address pair of packets from `src` to `dst`. Both addresses must be of the same IP family.
    pub(crate) fn new(src: Gid, dst: Gid) -> Self {
        let is_ipv6 = !src.is_ipv4();
        let mut bytes = [0; 32];
        if is_ipv6 {
            bytes[..16].copy_from_slice(&src.0);
            bytes[16..].copy_from_slice(&dst.0);
        } else {
            bytes[..4].copy_from_slice(&src.0[12..]);
            bytes[4..8].copy_from_slice(&dst.0[12..]);
        }
        AddressPair { is_ipv6, bytes }
    }
}

/// The ICRC of a packet, and the fields that the ICRC covers and that may differ in a retransmission.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Fingerprint {
    icrc: u32,
    fields: RetransmitFields,
}

impl<'a> Packet<'a> {
    /// Parses a frame that starts with its Ethernet header. Ignores bytes after the IP packet, because they are
    /// Ethernet padding. Does not check the ICRC.
    pub fn parse(frame: &'a [u8]) -> Result<Self, ParseError> {
        if frame.len() < SHORTEST_FRAME { parse_short_frame(frame) } else { parse_frame(frame) }
    }

    /// Returns whether the received ICRC equals the ICRC computed from the packet.
    pub fn icrc_ok(&self) -> bool {
        icrc::compute(self.l3) == Some(self.icrc)
    }

    /// Returns the same result as [`Packet::icrc_ok`], for packets to queue pairs of UD. With a second caller,
    /// [`Packet::icrc_ok`] would not be inlined in the receive path of connections, which costs 20 instructions per
    /// packet.
    pub(crate) fn icrc_ok_rare(&self) -> bool {
        self.has_fingerprint(&self.fingerprint())
    }

    /// Returns the Ethernet destination address.
    pub fn dst_mac(&self) -> Mac {
        EthHeader::parse(self.eth).dst
    }

    /// Returns the Ethernet source address.
    #[inline]
    pub fn src_mac(&self) -> Mac {
        EthHeader::parse(self.eth).src
    }

    /// Returns the fields of the IP header, without the addresses.
    pub fn ip(&self) -> IpInfo {
        let v4: Option<&[u8; Ipv4Header::LEN]> = self.l3.first_chunk();
        let v6: Option<&[u8; Ipv6Header::LEN]> = self.l3.first_chunk();
        let (ttl, flow_label) = if self.is_ipv6 {
            v6.map(Ipv6Header::parse).map_or((0, 0), |header| (header.hop_limit, header.flow_label))
        } else {
            v4.map(Ipv4Header::parse).map_or((0, 0), |header| (header.ttl, 0))
        };
        IpInfo { is_ipv6: self.is_ipv6, tclass: self.tclass, ttl, flow_label }
    }

    /// Returns whether the packet has a CE mark (RFC 3168).
    #[inline]
    pub const fn congestion_experienced(&self) -> bool {
        self.tclass & 3 == 3
    }

    /// Returns whether the packet has the VLAN identifier `vlan`; 0 means untagged (IEEE 802.1Q 9.6).
    #[inline]
    pub(crate) fn is_of_vlan(&self, vlan: u16) -> bool {
        self.vlan.map_or(0, |tci| tci & VLAN_ID_MASK) == vlan
    }

    /// Returns the ICRC as received, without a check.
    pub const fn icrc(&self) -> u32 {
        self.icrc
    }

    pub(crate) fn fingerprint(&self) -> Fingerprint {
        Fingerprint { icrc: self.icrc, fields: RetransmitFields::of(self.l3).unwrap_or_default() }
    }

    /// Returns whether the ICRC of this packet, after the retransmit fields (IP identification, AckReq and the reserved
    /// bits after AckReq) are replaced by those of `other`, is the ICRC of `other`. Equal ICRCs do not prove equal
    /// packets, because an attacker can forge a packet with a given ICRC.
    pub(crate) fn has_fingerprint(&self, other: &Fingerprint) -> bool {
        icrc::compute_with(self.l3, other.fields) == Some(other.icrc)
    }

    /// Returns the value of the reserved bits after AckReq.
    pub fn preceding_reads(&self) -> PrecedingReads {
        RetransmitFields::of(self.l3).map_or(PrecedingReads::NONE, |fields| fields.preceding_reads())
    }

    /// Returns the bytes from the IP header to the pad, from which the ICRC is computed.
    pub const fn l3(&self) -> &'a [u8] {
        self.l3
    }

    /// Returns the GRH area of a receive of UD: the IPv6 header, or 20 bytes of value 0 and the IPv4 header (IBA
    /// A17.4).
    pub(crate) fn grh_area(&self) -> [u8; GRH_BYTES as usize] {
        let mut area = [0; GRH_BYTES as usize];
        if let Some(header) = self.l3.first_chunk::<{ Ipv6Header::LEN }>().filter(|_| self.is_ipv6) {
            area = *header;
        } else if let Some(header) = self.l3.first_chunk::<{ Ipv4Header::LEN }>()
            && let Some(room) = area.last_chunk_mut()
        {
            *room = *header;
        }
        area
    }

    /// Returns the source IP address; an IPv4 address is mapped (`::ffff:a.b.c.d`).
    pub fn src_gid(&self) -> Gid {
        self.gid(12, 8)
    }

    /// Returns the destination IP address; an IPv4 address is mapped (`::ffff:a.b.c.d`).
    pub fn dst_gid(&self) -> Gid {
        self.gid(16, 24)
    }

    #[inline]
    pub(crate) fn is_between(&self, pair: &AddressPair) -> bool {
        // Source and destination address are adjacent in the IP header, so a single comparison covers both addresses.
        if self.is_ipv6 {
            pair.is_ipv6 && self.l3.get(8..40) == Some(&pair.bytes)
        } else {
            let v4: Option<&[u8; 8]> = self.l3.get(12..20).and_then(|b| b.first_chunk());
            !pair.is_ipv6 && v4 == pair.bytes.first_chunk()
        }
    }

    #[inline]
    pub(crate) fn is_from(&self, gid: &Gid) -> bool {
        self.has_address(gid, 12, 8)
    }

    /// Returns whether the destination IP address is `gid`.
    #[inline]
    pub fn is_to(&self, gid: &Gid) -> bool {
        self.has_address(gid, 16, 24)
    }

    /// Returns whether the address at offset `v4_at` (IPv4) or `v6_at` (IPv6) of the IP header is `gid`. Compares `gid`
    /// with the bytes in the packet. If the address were first decoded to a [`Gid`], the stores of its parts and the
    /// load of the whole GID would cause a store-forwarding stall.
    #[inline]
    fn has_address(&self, gid: &Gid, v4_at: usize, v6_at: usize) -> bool {
        if self.is_ipv6 {
            !gid.is_ipv4() && self.l3.get(v6_at..).and_then(|b| b.first_chunk()) == Some(&gid.0)
        } else {
            let v4: Option<&[u8; 4]> = self.l3.get(v4_at..).and_then(|b| b.first_chunk());
            gid.is_ipv4() && v4 == gid.0.last_chunk()
        }
    }

    fn gid(&self, v4_at: usize, v6_at: usize) -> Gid {
        if self.is_ipv6 {
            self.l3.get(v6_at..).and_then(|b| b.first_chunk()).map_or(Gid::ZERO, |ip| Gid(*ip))
        } else {
            let v4: Option<&[u8; 4]> = self.l3.get(v4_at..).and_then(|b| b.first_chunk());
            v4.map_or(Gid::ZERO, |ip| Gid::from(std::net::Ipv4Addr::from(*ip)))
        }
    }

    fn ext<const N: usize>(&self, header: ExtHeader) -> Option<&'a [u8; N]> {
        self.info.find(self.ext, header)
    }

    /// Returns the extension headers and the payload, which are adjacent.
    pub(crate) fn body(&self) -> &'a [u8] {
        let len_bytes = self.ext.len() + self.payload.len();
        let padded_bytes = len_bytes + usize::from(self.bth.pad_bytes);
        let start = self.l3.len().saturating_sub(padded_bytes);
        self.l3.get(start..start + len_bytes).unwrap_or_default()
    }

    /// Returns the RETH; `None` if the opcode has no such header.
    pub fn reth(&self) -> Option<Reth> {
        self.ext(ExtHeader::Reth).map(Reth::parse)
    }

    /// Returns the AETH; `None` if the opcode has no such header.
    pub fn aeth(&self) -> Option<Aeth> {
        self.ext(ExtHeader::Aeth).map(Aeth::parse)
    }

    /// Returns the AtomicETH; `None` if the opcode has no such header.
    pub fn atomiceth(&self) -> Option<AtomicEth> {
        self.ext(ExtHeader::AtomicEth).map(AtomicEth::parse)
    }

    /// Returns the AtomicAckETH; `None` if the opcode has no such header.
    pub fn atomicacketh(&self) -> Option<AtomicAckEth> {
        self.ext(ExtHeader::AtomicAckEth).map(AtomicAckEth::parse)
    }

    /// Returns the immediate data, read as big-endian; `None` if the opcode has no immediate data.
    pub fn immdt(&self) -> Option<u32> {
        self.ext(ExtHeader::ImmDt).map(|bytes| ImmDt::parse(bytes).imm)
    }

    /// Returns the IETH; `None` if the opcode has no such header.
    pub fn ieth(&self) -> Option<Ieth> {
        self.ext(ExtHeader::Ieth).map(Ieth::parse)
    }

    /// Returns the DETH; `None` if the opcode has no such header.
    pub fn deth(&self) -> Option<Deth> {
        self.ext(ExtHeader::Deth).map(Deth::parse)
    }

    /// Returns the XRC extended transport header; `None` if the opcode has no such header.
    pub fn xrceth(&self) -> Option<XrcEth> {
        self.ext(ExtHeader::XrcEth).map(XrcEth::parse)
    }

    /// Returns the selective acknowledge extended transport header; `None` if the opcode has no such header.
    pub fn sacketh(&self) -> Option<SackEth> {
        self.ext(ExtHeader::SackEth).map(SackEth::parse)
    }

    /// Returns the receive extended transport header; `None` if the opcode has no such header.
    #[inline]
    pub fn recveth(&self) -> Option<RecvEth> {
        self.ext(ExtHeader::RecvEth).map(RecvEth::parse)
    }

    /// Returns the flush extended transport header; `None` if the opcode has no such header.
    pub fn feth(&self) -> Option<Feth> {
        self.ext(ExtHeader::Feth).map(Feth::parse)
    }
}

/// Length of the GRH area, the first bytes of each receive of UD.
pub(crate) const GRH_BYTES: u32 = 40;

type EthBytes = [u8; EthHeader::LEN];

fn take<const N: usize>(bytes: &[u8]) -> Result<(&[u8; N], &[u8]), ParseError> {
    bytes.split_first_chunk().ok_or(ParseError::Truncated)
}

const SHORTEST_FRAME: usize = EthHeader::LEN + Ipv4Header::LEN + SHORTEST_UDP;
/// Length in bytes of the shortest IP payload of RoCE v2.
const SHORTEST_UDP: usize = UdpHeader::LEN + Bth::LEN + ICRC_LEN;

/// Returns the destination QPN of `frame` without a check that `frame` is a RoCE v2 packet; `None` if the frame is too
/// short. If `frame` was received, callers must use the unchecked QPN only to prefetch the queue pair and its table
/// entry. If the engine of this process wrote `frame`, callers may use the QPN to select the frames that the port loops
/// back.
pub fn probable_dest_qp(frame: &[u8]) -> Option<Qpn> {
    let (eth, rest) = frame.split_first_chunk()?;
    let (ethertype, rest) = match EthHeader::parse(eth).ethertype {
        ETHERTYPE_VLAN => {
            let (tag, rest) = rest.split_first_chunk()?;
            (VlanTag::parse(tag).ethertype, rest)
        }
        ethertype => (ethertype, rest),
    };
    let ip_len = if ethertype == ETHERTYPE_IPV6 { Ipv6Header::LEN } else { Ipv4Header::LEN };
    let bth = rest.get(ip_len + UdpHeader::LEN..)?.first_chunk()?;
    Some(Bth::parse(bth).dest_qp)
}

/// Parses a frame shorter than `SHORTEST_FRAME`. The copy of [`parse_frame`] that is inlined in [`Packet::parse`]
/// receives no such frame, and therefore needs no length check per header.
#[cold]
#[inline(never)]
fn parse_short_frame(frame: &[u8]) -> Result<Packet<'_>, ParseError> {
    parse_frame(frame)
}

#[inline(always)]
fn parse_frame(frame: &[u8]) -> Result<Packet<'_>, ParseError> {
    let (eth, rest) = take(frame)?;
    match EthHeader::parse(eth).ethertype {
        ETHERTYPE_IPV4 => parse_ipv4(eth, None, rest),
        ethertype => parse_other(eth, ethertype, rest),
    }
}

/// Parses a frame other than untagged IPv4; `rest` follows the Ethernet header. Not inlined, because otherwise the
/// compiler merges the code of both IP versions and spills header fields to the stack.
#[inline(never)]
fn parse_other<'a>(eth: &'a EthBytes, ethertype: u16, rest: &'a [u8]) -> Result<Packet<'a>, ParseError> {
    match ethertype {
        ETHERTYPE_IPV6 => parse_ipv6(eth, None, rest),
        ETHERTYPE_VLAN => parse_tagged(eth, rest),
        ETHERTYPE_QINQ => Err(ParseError::StackedVlan),
        _ => Err(ParseError::NotRoce),
    }
}

#[inline(never)]
fn parse_tagged<'a>(eth: &'a EthBytes, rest: &'a [u8]) -> Result<Packet<'a>, ParseError> {
    let (tag, l3) = take(rest)?;
    let VlanTag { tci, ethertype } = VlanTag::parse(tag);
    match ethertype {
        ETHERTYPE_IPV4 => parse_ipv4(eth, Some(tci), l3),
        ETHERTYPE_IPV6 => parse_ipv6(eth, Some(tci), l3),
        ETHERTYPE_VLAN | ETHERTYPE_QINQ => Err(ParseError::StackedVlan),
        _ => Err(ParseError::NotRoce),
    }
}

/// Returns whether `rest`, the bytes after an IP header, is a UDP packet to a port other than [`ROCE_PORT`]. Callers
/// check the port before checksum and lengths. Otherwise errors in packets of other protocols would be counted.
fn is_other_udp(rest: &[u8]) -> bool {
    rest.get(2..4).is_some_and(|port| port != ROCE_PORT.to_be_bytes())
}

#[inline(always)]
fn parse_ipv4<'a>(eth: &'a EthBytes, vlan: Option<u16>, l3: &'a [u8]) -> Result<Packet<'a>, ParseError> {
    let (bytes, rest) = take(l3)?;
    let header = Ipv4Header::parse(bytes);
    if header.version_ihl != VERSION_IHL {
        return Err(other_version(l3));
    }
    if header.protocol != PROTOCOL_UDP {
        return Err(ParseError::NotRoce);
    }
    if header.flags_fragment & FRAGMENT_BITS != 0 {
        return Err(ParseError::Fragment);
    }
    if is_other_udp(rest) {
        return Err(ParseError::NotRoce);
    }
    if !ipv4::checksum_ok(bytes) {
        return Err(ParseError::BadIpChecksum);
    }
    let l3 = l3.get(..usize::from(header.total_len_bytes)).ok_or(ParseError::Truncated)?;
    parse_payload::<{ Ipv4Header::LEN }>(eth, vlan, header.tos, l3)
}

/// Returns the error for an IPv4 header with a first byte other than `VERSION_IHL`: wrong version, or options.
#[cold]
#[inline(never)]
fn other_version(l3: &[u8]) -> ParseError {
    match l3 {
        [version_ihl, ..] if version_ihl >> 4 != 4 => ParseError::BadIpVersion,
        [_, _, _, _, _, _, _, _, _, PROTOCOL_UDP, ..] => ParseError::Ipv4Options,
        _ => ParseError::NotRoce,
    }
}

#[inline(always)]
fn parse_ipv6<'a>(eth: &'a EthBytes, vlan: Option<u16>, l3: &'a [u8]) -> Result<Packet<'a>, ParseError> {
    let (bytes, rest) = take(l3)?;
    let header = Ipv6Header::parse(bytes);
    if header.version != 6 {
        return Err(ParseError::BadIpVersion);
    }
    match header.next_header {
        PROTOCOL_UDP if is_other_udp(rest) => return Err(ParseError::NotRoce),
        PROTOCOL_UDP => {}
        ipv6::NEXT_HEADER_FRAGMENT => return Err(ParseError::Fragment),
        _ => return Err(ParseError::NotRoce),
    }
    let len_bytes = Ipv6Header::LEN + usize::from(header.payload_len_bytes);
    let l3 = l3.get(..len_bytes).ok_or(ParseError::Truncated)?;
    parse_payload::<{ Ipv6Header::LEN }>(eth, vlan, header.tclass, l3)
}

/// Parses the payload of `l3`, an IP packet with a header of `IP_LEN` bytes.
#[inline(always)]
fn parse_payload<'a, const IP_LEN: usize>(
    eth: &'a EthBytes,
    vlan: Option<u16>,
    tclass: u8,
    l3: &'a [u8],
) -> Result<Packet<'a>, ParseError> {
    if l3.len() < IP_LEN + SHORTEST_UDP {
        parse_short_payload::<IP_LEN>(eth, vlan, tclass, l3)
    } else {
        parse_udp::<IP_LEN>(eth, vlan, tclass, l3)
    }
}

/// Parses an IP payload shorter than `SHORTEST_UDP`. The copy of [`parse_udp`] that is inlined in [`parse_payload`]
/// receives no such payload, and therefore needs no length check per header.
#[cold]
#[inline(never)]
fn parse_short_payload<'a, const IP_LEN: usize>(
    eth: &'a EthBytes,
    vlan: Option<u16>,
    tclass: u8,
    l3: &'a [u8],
) -> Result<Packet<'a>, ParseError> {
    parse_udp::<IP_LEN>(eth, vlan, tclass, l3)
}

/// Parses an IP payload. Always inlined, because a result returned through memory causes a store-forwarding stall.
#[inline(always)]
fn parse_udp<'a, const IP_LEN: usize>(
    eth: &'a EthBytes,
    vlan: Option<u16>,
    tclass: u8,
    l3: &'a [u8],
) -> Result<Packet<'a>, ParseError> {
    let l4 = l3.get(IP_LEN..).ok_or(ParseError::LengthMismatch)?;
    let (udp, transport) = take(l4)?;
    if usize::from(UdpHeader::parse(udp).len_bytes) != l4.len() {
        return Err(ParseError::LengthMismatch);
    }
    let (bth, rest) = take::<{ Bth::LEN }>(transport)?;
    let [opcode, flags, ..] = bth;
    if bth::tver(*flags) != 0 {
        return Err(ParseError::BadTver);
    }
    let info = Opcode::new(*opcode).info().ok_or(ParseError::UnknownOpcode)?;
    let (rest, icrc) = rest.split_last_chunk::<ICRC_LEN>().ok_or(ParseError::Truncated)?;
    let (l3, _) = l3.split_last_chunk::<ICRC_LEN>().ok_or(ParseError::Truncated)?;
    let (ext, padded) = rest.split_at_checked(info.ext_len_bytes).ok_or(ParseError::Truncated)?;
    let pad_bytes = usize::from(bth::pad_bytes(*flags));
    let payload_len = padded.len().checked_sub(pad_bytes).ok_or(ParseError::BadPad)?;
    if padded.len() % 4 != 0 {
        return Err(ParseError::BadPad);
    }
    let (payload, _) = padded.split_at_checked(payload_len).ok_or(ParseError::BadPad)?;
    if padded.len() > usize::from(info.padded_max_bytes) {
        return Err(ParseError::UnexpectedPayload);
    }
    // Header fields are decoded after all checks of the packet, because otherwise the compiler spills the decoded
    // fields to the stack.
    Ok(Packet {
        vlan,
        udp_source_port: UdpHeader::parse(udp).source_port,
        bth: Bth::parse(bth),
        info,
        payload,
        is_ipv6: IP_LEN == Ipv6Header::LEN,
        tclass,
        eth,
        ext,
        l3,
        icrc: u32::from_le_bytes(*icrc),
    })
}
