use super::atomiceth::{AtomicAckEth, AtomicEth};
use super::bth::{self, Bth, PrecedingReads};
use super::eth::{ETHERTYPE_IPV4, ETHERTYPE_IPV6, ETHERTYPE_VLAN, EthHeader, VlanTag};
use super::icrc::{self, ICRC_LEN};
use super::ipv4::{self, DONT_FRAGMENT, Ipv4Header, PROTOCOL_UDP, VERSION_IHL};
use super::opcode::{ExtHeader, Opcode, OpcodeInfo};
use super::udp::{ROCE_PORT, UdpHeader};
use super::{
    aeth::Aeth, deth::Deth, feth::Feth, ieth::Ieth, immdt::ImmDt, ipv6::Ipv6Header, recveth::RecvEth,
    reth::Reth, sacketh::SackEth, xrceth::XrcEth,
};
use crate::id::{Gid, Mac, PKey, Qpn};
use crate::psn::Psn;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

const V4_LEN: usize = Ipv4Header::LEN + UdpHeader::LEN + Bth::LEN;
const V6_LEN: usize = Ipv6Header::LEN + UdpHeader::LEN + Bth::LEN;
const ETH_LEN: usize = EthHeader::LEN;
const VLAN_LEN: usize = EthHeader::LEN + VlanTag::LEN;

/// Distances in bytes back from the end of the base transport header: to the start of the UDP header, and to byte 4 of
/// the base transport header.
const UDP_FROM_END: usize = UdpHeader::LEN + Bth::LEN;
const ECN_AND_QP_FROM_END: usize = Bth::LEN - 4;

/// Header fields that are the same in all packets from one queue pair to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeaderSpec {
    /// Ethernet source address.
    pub src_mac: Mac,
    /// Ethernet destination address.
    pub dst_mac: Mac,
    /// Tag control information of the VLAN tag; `None` for untagged frames.
    pub vlan: Option<u16>,
    /// Source IP address.
    pub src: Gid,
    /// Destination IP address, of the same IP family as `src`.
    pub dst: Gid,
    /// Traffic class (IPv4: type of service): DSCP (6 bits) and ECN (2 bits).
    pub tclass: u8,
    /// Hop limit (IPv4: time to live).
    pub ttl: u8,
    /// IPv6 flow label, 20 bits; ignored for IPv4.
    pub flow_label: u32,
    /// UDP source port.
    pub udp_source_port: u16,
    /// Partition key.
    pub pkey: PKey,
    /// Destination queue pair.
    pub dest_qp: Qpn,
}

impl HeaderSpec {
    pub(super) fn address(&self) -> AddressSpec {
        let HeaderSpec { src_mac, dst_mac, vlan, src, dst, tclass, ttl, flow_label, pkey, .. } = *self;
        AddressSpec { src_mac, dst_mac, vlan, src, dst, tclass, ttl, flow_label, pkey }
    }
}

/// Fields of a [`HeaderSpec`] without those that differ between the queue pairs of one address handle.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AddressSpec {
    pub src_mac: Mac,
    pub dst_mac: Mac,
    pub vlan: Option<u16>,
    pub src: Gid,
    pub dst: Gid,
    pub tclass: u8,
    pub ttl: u8,
    pub flow_label: u32,
    pub pkey: PKey,
}

impl AddressSpec {
    /// Returns the IPv4 header; `fill_v4` later sets length, identification and checksum, which differ per packet.
    fn ipv4(&self, src: Ipv4Addr, dst: Ipv4Addr) -> Ipv4Header {
        Ipv4Header {
            version_ihl: VERSION_IHL,
            tos: self.tclass,
            total_len_bytes: 0,
            id: 0,
            flags_fragment: DONT_FRAGMENT,
            ttl: self.ttl,
            protocol: PROTOCOL_UDP,
            checksum: 0,
            src: src.octets(),
            dst: dst.octets(),
        }
    }

    /// Returns the IPv6 header; `fill_v6` later sets the payload length, which differs per packet.
    fn ipv6(&self, src: Ipv6Addr, dst: Ipv6Addr) -> Ipv6Header {
        Ipv6Header {
            version: 6,
            tclass: self.tclass,
            flow_label: self.flow_label,
            payload_len_bytes: 0,
            next_header: PROTOCOL_UDP,
            hop_limit: self.ttl,
            src: src.octets(),
            dst: dst.octets(),
        }
    }
}

/// Error: source and destination address of a [`HeaderSpec`] are of different IP families.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "source GID {src} and destination GID {dst} are of two IP families; choose a source GID of the destination's family"
)]
pub struct MixedFamilies {
    /// Source IP address.
    pub src: Gid,
    /// Destination IP address.
    pub dst: Gid,
}

/// Header fields that differ from packet to packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PacketSpec {
    /// Opcode; the opcode table must list the opcode.
    pub opcode: Opcode,
    /// Solicited event (SE).
    pub solicited: bool,
    /// AckReq: requests an ACK of this packet.
    pub ack_req: bool,
    /// [`PrecedingReads::NONE`], unless the packet is a READ request under selective repeat.
    pub preceding_reads: PrecedingReads,
    /// Forward explicit congestion notification (FECN).
    pub fecn: bool,
    /// Backward explicit congestion notification (BECN).
    pub becn: bool,
    /// Packet sequence number.
    pub psn: Psn,
    /// IPv4 identification; ignored for IPv6.
    pub ip_id: u16,
    /// Length of the payload in bytes, without pad.
    pub payload_len: usize,
}

/// The parts of a frame that the caller of [`HeaderTemplate::write`] fills, in wire order.
#[derive(Debug)]
pub struct FrameParts<'a> {
    /// Space for the extension headers of the opcode. Not zeroed.
    pub ext: &'a mut [u8],
    /// Space for the payload, without pad. Not zeroed.
    pub payload: &'a mut [u8],
    info: &'static OpcodeInfo,
}

impl FrameParts<'_> {
    fn ext<const N: usize>(&mut self, header: ExtHeader) -> Option<&mut [u8; N]> {
        self.ext.get_mut(self.info.offset_of(header)?..)?.first_chunk_mut()
    }

    /// Writes the RETH; `None` if the opcode has no such header.
    #[must_use]
    pub fn set_reth(&mut self, reth: Reth) -> Option<()> {
        self.ext(ExtHeader::Reth).map(|bytes| reth.write(bytes))
    }

    /// Writes the AETH; `None` if the opcode has no such header.
    #[must_use]
    pub fn set_aeth(&mut self, aeth: Aeth) -> Option<()> {
        self.ext(ExtHeader::Aeth).map(|bytes| aeth.write(bytes))
    }

    /// Writes the immediate data; `None` if the opcode has no immediate data.
    #[must_use]
    pub fn set_immdt(&mut self, imm: u32) -> Option<()> {
        self.ext(ExtHeader::ImmDt).map(|bytes| ImmDt { imm }.write(bytes))
    }

    /// Writes the AtomicETH; `None` if the opcode has no such header.
    #[must_use]
    pub fn set_atomiceth(&mut self, atomiceth: AtomicEth) -> Option<()> {
        self.ext(ExtHeader::AtomicEth).map(|bytes| atomiceth.write(bytes))
    }

    /// Writes the AtomicAckETH; `None` if the opcode has no such header.
    #[must_use]
    pub fn set_atomicacketh(&mut self, atomicacketh: AtomicAckEth) -> Option<()> {
        self.ext(ExtHeader::AtomicAckEth).map(|bytes| atomicacketh.write(bytes))
    }

    /// Writes the IETH; `None` if the opcode has no such header.
    #[must_use]
    pub fn set_ieth(&mut self, ieth: Ieth) -> Option<()> {
        self.ext(ExtHeader::Ieth).map(|bytes| ieth.write(bytes))
    }

    /// Writes the DETH; `None` if the opcode has no such header.
    #[must_use]
    pub fn set_deth(&mut self, deth: Deth) -> Option<()> {
        self.ext(ExtHeader::Deth).map(|bytes| deth.write(bytes))
    }

    /// Writes the XRC extended transport header; `None` if the opcode has no such header.
    #[must_use]
    pub fn set_xrceth(&mut self, xrceth: XrcEth) -> Option<()> {
        self.ext(ExtHeader::XrcEth).map(|bytes| xrceth.write(bytes))
    }

    /// Writes the selective acknowledge extended transport header; `None` if the opcode has no such header.
    #[must_use]
    pub fn set_sacketh(&mut self, sacketh: SackEth) -> Option<()> {
        self.ext(ExtHeader::SackEth).map(|bytes| sacketh.write(bytes))
    }

    /// Writes the receive extended transport header; `None` if the opcode has no such header.
    #[must_use]
    pub fn set_recveth(&mut self, recveth: RecvEth) -> Option<()> {
        self.ext(ExtHeader::RecvEth).map(|bytes| recveth.write(bytes))
    }

    /// Writes the flush extended transport header; `None` if the opcode has no such header.
    #[must_use]
    pub fn set_feth(&mut self, feth: Feth) -> Option<()> {
        self.ext(ExtHeader::Feth).map(|bytes| feth.write(bytes))
    }
}

/// The headers of all packets from one queue pair to another: Ethernet header, VLAN tag, IP, UDP and base transport
/// header. "Don't fragment" is set in IPv4; the UDP checksum is 0; MigReq is 1 unless [`HeaderTemplate::set_mig_req`]
/// changes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeaderTemplate {
    address: AddressTemplate,
    qp: QpFields,
}

impl HeaderTemplate {
    /// Builds the headers that `spec` describes.
    ///
    /// # Errors
    /// [`MixedFamilies`] if source and destination address are of different IP families.
    pub fn new(spec: &HeaderSpec) -> Result<Self, MixedFamilies> {
        let address = AddressTemplate::new(&spec.address())?;
        Ok(HeaderTemplate { qp: address.qp_fields(spec.dest_qp, spec.udp_source_port), address })
    }

    /// Returns whether the packets are IPv6 packets.
    pub const fn is_ipv6(&self) -> bool {
        self.address.is_ipv6
    }

    /// Returns the length of a frame in bytes, including pad and ICRC. `ext_len`: length of the extension headers in
    /// bytes. `payload_len`: length of the payload in bytes, without pad.
    pub const fn frame_len(&self, ext_len: usize, payload_len: usize) -> usize {
        self.address.frame_len(ext_len, payload_len)
    }

    /// Sets MigReq of the packets written after this call. The initial value is 1; CNPs are sent with 0.
    pub fn set_mig_req(&mut self, mig_req: bool) {
        self.address.set_mig_req(mig_req);
    }

    /// Writes the headers from the Ethernet header to the base transport header inclusive, and the pad. The caller
    /// fills the extension headers and the payload that this function returns, then calls [`HeaderTemplate::seal`].
    ///
    /// `None` if `frame` is not [`HeaderTemplate::frame_len`] bytes long, if the opcode table does not list the opcode,
    /// if the opcode permits no payload but `payload_len` is not 0, or if the length in the IP header would exceed
    /// 65,535 bytes.
    #[must_use]
    pub fn write<'f>(&self, frame: &'f mut [u8], spec: &PacketSpec) -> Option<FrameParts<'f>> {
        self.address.write(frame, &self.qp, spec)
    }

    /// Computes the ICRC of an otherwise complete frame and writes the ICRC to the last 4 bytes of the frame. The
    /// headers must be those written by [`HeaderTemplate::write`] of this template; debug builds assert this. `None` if
    /// `frame` is shorter than headers and ICRC.
    #[must_use]
    pub fn seal(&self, frame: &mut [u8]) -> Option<()> {
        self.address.seal(frame, &self.qp)
    }
}

/// Header fields that differ between the queue pairs of one address handle, and the part of the ICRC that depends on
/// these fields. Destination MAC and traffic class are not covered by the ICRC, so a change of either changes no field
/// here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct QpFields {
    /// ICRC of the headers alone, with zeroes in the fields that differ between packets.
    header_crc: u32,
    /// Bytes 4 to 7 of the base transport header: FECN and BECN (0 here), and the destination QPN.
    ecn_and_qp: [u8; 4],
    udp_source_port: [u8; 2],
}

/// The headers of all packets of one address handle, with zeroes in the fields of [`QpFields`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AddressTemplate {
    /// The headers in the first `header_len` bytes; the bytes after the headers are unused.
    bytes: [u8; VLAN_LEN + V6_LEN],
    /// Length of the headers in bytes, from the Ethernet header to the base transport header.
    header_len: usize,
    is_ipv6: bool,
    has_vlan: bool,
    mig_req: bool,
    /// Sum of the 16-bit words of the IPv4 header with length, identification and checksum 0; 0 for IPv6.
    ipv4_sum: u32,
}

impl AddressTemplate {
    /// Builds the headers that `spec` describes; fails with [`MixedFamilies`] if source and destination address are of
    /// different IP families.
    pub(crate) fn new(spec: &AddressSpec) -> Result<Self, MixedFamilies> {
        let mut template = AddressTemplate {
            bytes: [0; VLAN_LEN + V6_LEN],
            header_len: 0,
            is_ipv6: false,
            has_vlan: spec.vlan.is_some(),
            mig_req: true,
            ipv4_sum: 0,
        };
        match (spec.src.ip(), spec.dst.ip()) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => {
                let ip = spec.ipv4(src, dst);
                template.put_headers(spec, ETHERTYPE_IPV4, |b| ip.write(b));
                template.ipv4_sum = template.sum_ipv4();
            }
            (IpAddr::V6(src), IpAddr::V6(dst)) => {
                let ip = spec.ipv6(src, dst);
                template.is_ipv6 = true;
                template.put_headers(spec, ETHERTYPE_IPV6, |b| ip.write(b));
            }
            _ => return Err(MixedFamilies { src: spec.src, dst: spec.dst }),
        }
        Ok(template)
    }

    /// Returns the header fields of a queue pair that sends to the queue pair `dest_qp` from UDP port
    /// `udp_source_port`.
    pub(crate) fn qp_fields(&self, dest_qp: Qpn, udp_source_port: u16) -> QpFields {
        let mut fields = QpFields {
            header_crc: 0,
            ecn_and_qp: dest_qp.value().to_be_bytes(),
            udp_source_port: udp_source_port.to_be_bytes(),
        };
        let mut headers = self.bytes;
        let udp_at = self.header_len - UDP_FROM_END;
        let qp_at = self.header_len - ECN_AND_QP_FROM_END;
        let rooms = [(udp_at, &fields.udp_source_port[..]), (qp_at, &fields.ecn_and_qp[..])];
        for (at, value) in rooms {
            headers.iter_mut().skip(at).zip(value).for_each(|(byte, value)| *byte = *value);
        }
        let l3 = headers.get(self.l3_offset()..self.header_len);
        fields.header_crc = l3.and_then(icrc::compute).unwrap_or_default();
        fields
    }

    fn put_headers<const N: usize>(
        &mut self,
        spec: &AddressSpec,
        ethertype: u16,
        write_ip: impl FnOnce(&mut [u8; N]),
    ) {
        let mut bytes = Writer(&mut self.bytes);
        let outer = if spec.vlan.is_some() { ETHERTYPE_VLAN } else { ethertype };
        let eth = EthHeader { dst: spec.dst_mac, src: spec.src_mac, ethertype: outer };
        bytes.put(|b| eth.write(b));
        if let Some(tci) = spec.vlan {
            bytes.put(|b| VlanTag { tci, ethertype }.write(b));
        }
        bytes.put(write_ip);
        let udp = UdpHeader { source_port: 0, dest_port: ROCE_PORT, len_bytes: 0, checksum: 0 };
        bytes.put(|b| udp.write(b));
        let bth = Bth {
            opcode: Opcode::new(0),
            solicited: false,
            mig_req: false,
            pad_bytes: 0,
            tver: 0,
            pkey: spec.pkey,
            fecn: false,
            becn: false,
            dest_qp: Qpn::default(),
            ack_req: false,
            psn: Psn::new(0),
        };
        bytes.put(|b| bth.write(b));
        let unused = bytes.0.len();
        self.header_len = self.bytes.len() - unused;
    }

    /// Returns the length of a frame in bytes, as [`HeaderTemplate::frame_len`] does.
    #[inline]
    pub(crate) const fn frame_len(&self, ext_len: usize, payload_len: usize) -> usize {
        self.header_len + ext_len + payload_len.next_multiple_of(4) + ICRC_LEN
    }

    /// Sets MigReq of the packets written after this call.
    pub(crate) fn set_mig_req(&mut self, mig_req: bool) {
        self.mig_req = mig_req;
    }

    /// Sets the Ethernet destination address of the packets written after this call.
    pub(crate) fn set_dst_mac(&mut self, dst_mac: Mac) {
        let [d0, d1, d2, d3, d4, d5, ..] = &mut self.bytes;
        [*d0, *d1, *d2, *d3, *d4, *d5] = dst_mac.0;
    }

    pub(crate) fn set_tclass(&mut self, tclass: u8) {
        let at = self.l3_offset();
        if self.is_ipv6 {
            if let Some([b0, b1]) = self.bytes.get_mut(at..).and_then(|b| b.first_chunk_mut()) {
                *b0 = 0x60 | (tclass >> 4);
                *b1 = (tclass << 4) | (*b1 & 0x0F);
            }
        } else if let Some(tos) = self.bytes.get_mut(at + 1) {
            *tos = tclass;
            self.ipv4_sum = self.sum_ipv4();
        }
    }

    /// Writes the headers of a packet as [`HeaderTemplate::write`] does. `qp`: the header fields of the packet's queue
    /// pair.
    #[must_use]
    pub(crate) fn write<'f>(
        &self,
        frame: &'f mut [u8],
        qp: &QpFields,
        spec: &PacketSpec,
    ) -> Option<FrameParts<'f>> {
        let info = spec.opcode.info()?;
        if frame.len() != self.frame_len(info.ext_len_bytes, spec.payload_len)
            || (spec.payload_len != 0 && !info.has_payload)
        {
            return None;
        }
        let body = match (self.is_ipv6, self.has_vlan) {
            (false, false) => self.fill_v4::<ETH_LEN, { ETH_LEN + V4_LEN }>(frame, qp, spec),
            (false, true) => self.fill_v4::<VLAN_LEN, { VLAN_LEN + V4_LEN }>(frame, qp, spec),
            (true, false) => self.fill_v6::<ETH_LEN, { ETH_LEN + V6_LEN }>(frame, qp, spec),
            (true, true) => self.fill_v6::<VLAN_LEN, { VLAN_LEN + V6_LEN }>(frame, qp, spec),
        }?;
        let (ext, rest) = body.split_at_mut_checked(info.ext_len_bytes)?;
        let (payload, rest) = rest.split_at_mut_checked(spec.payload_len)?;
        let (pad, _) = rest.split_at_mut_checked(rest.len().checked_sub(ICRC_LEN)?)?;
        // An empty pad is not filled, because most payloads need no pad, and `fill` calls memset even for 0 bytes.
        if !pad.is_empty() {
            pad.fill(0);
        }
        Some(FrameParts { ext, payload, info })
    }

    /// Writes the ICRC, as [`HeaderTemplate::seal`] does. `qp` must be the value passed to [`AddressTemplate::write`].
    #[must_use]
    pub(crate) fn seal(&self, frame: &mut [u8], qp: &QpFields) -> Option<()> {
        let (covered, icrc) = frame.split_last_chunk_mut::<ICRC_LEN>()?;
        let l3 = covered.get(self.l3_offset()..)?;
        let value = if self.is_ipv6 {
            icrc::extend_v6(qp.header_crc, l3)
        } else {
            icrc::extend_v4(qp.header_crc, l3)
        }?;
        debug_assert_eq!(Some(value), icrc::compute(l3), "the frame was written by another template");
        *icrc = value.to_le_bytes();
        Some(())
    }

    fn sum_ipv4(&self) -> u32 {
        self.bytes.get(self.l3_offset()..).and_then(|b| b.first_chunk()).map_or(0, ipv4::word_sum)
    }

    const fn l3_offset(&self) -> usize {
        if self.has_vlan { VLAN_LEN } else { ETH_LEN }
    }

    /// Writes the headers of an IPv4 frame, and returns the bytes of `frame` after the headers. The headers have `LEN`
    /// bytes; the IP header starts at offset `L3`. `None` if the IP packet would exceed 65,535 bytes.
    fn fill_v4<'f, const L3: usize, const LEN: usize>(
        &self,
        frame: &'f mut [u8],
        qp: &QpFields,
        spec: &PacketSpec,
    ) -> Option<&'f mut [u8]> {
        let total_len = u16::try_from(frame.len() - L3).ok()?;
        let udp_len = total_len - u16::try_from(Ipv4Header::LEN).ok()?;
        let (head, body) = frame.split_first_chunk_mut::<LEN>()?;
        *head = *self.bytes.first_chunk()?;
        let ip: &mut [u8; V4_LEN] = head.last_chunk_mut()?;
        let sum = self.ipv4_sum + u32::from(total_len) + u32::from(spec.ip_id);
        ip[2..4].copy_from_slice(&total_len.to_be_bytes());
        ip[4..6].copy_from_slice(&spec.ip_id.to_be_bytes());
        ip[10..12].copy_from_slice(&(!ipv4::fold(sum)).to_be_bytes());
        ip[20..22].copy_from_slice(&qp.udp_source_port);
        ip[24..26].copy_from_slice(&udp_len.to_be_bytes());
        self.fill_bth(ip.last_chunk_mut()?, qp, spec);
        Some(body)
    }

    fn fill_v6<'f, const L3: usize, const LEN: usize>(
        &self,
        frame: &'f mut [u8],
        qp: &QpFields,
        spec: &PacketSpec,
    ) -> Option<&'f mut [u8]> {
        let payload_len = u16::try_from(frame.len() - L3 - Ipv6Header::LEN).ok()?;
        let (head, body) = frame.split_first_chunk_mut::<LEN>()?;
        *head = *self.bytes.first_chunk()?;
        let ip: &mut [u8; V6_LEN] = head.last_chunk_mut()?;
        ip[4..6].copy_from_slice(&payload_len.to_be_bytes());
        ip[40..42].copy_from_slice(&qp.udp_source_port);
        ip[44..46].copy_from_slice(&payload_len.to_be_bytes());
        self.fill_bth(ip.last_chunk_mut()?, qp, spec);
        Some(body)
    }

    fn fill_bth(&self, bytes: &mut [u8; Bth::LEN], qp: &QpFields, spec: &PacketSpec) {
        let [len_low, ..] = spec.payload_len.to_le_bytes();
        let pad_bytes = len_low.wrapping_neg() & 3;
        let ecn = bth::ecn_byte(spec.fecn, spec.becn);
        let ack = bth::ack_byte(spec.ack_req, spec.preceding_reads);
        let ecn_and_qp = u32::from_ne_bytes(qp.ecn_and_qp) | u32::from_ne_bytes([ecn, 0, 0, 0]);
        let ack_and_psn = spec.psn.value() | u32::from_be_bytes([ack, 0, 0, 0]);
        bytes[0] = spec.opcode.value();
        bytes[1] = bth::flags_byte(spec.solicited, self.mig_req, pad_bytes);
        bytes[4..8].copy_from_slice(&ecn_and_qp.to_ne_bytes());
        bytes[8..].copy_from_slice(&ack_and_psn.to_be_bytes());
    }
}

/// Buffer to which headers are appended. If a header does not fit, neither this header nor a later one is written.
struct Writer<'a>(&'a mut [u8]);

impl Writer<'_> {
    fn put<const N: usize>(&mut self, write: impl FnOnce(&mut [u8; N])) {
        if let Some((bytes, rest)) = std::mem::take(&mut self.0).split_first_chunk_mut() {
            write(bytes);
            self.0 = rest;
        }
    }
}
