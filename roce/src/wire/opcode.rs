//! The opcode table (IBA 9.2.1 table 38, annexes A14, A16, A17, A19). Other modules use the constants and fields of
//! the table; no other module compares numeric opcodes.

use std::fmt;

/// Transport service of a packet. The engine drops packets of `Rd` and `Xrc`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Transport {
    /// Reliable connection.
    Rc,
    /// Unreliable connection.
    Uc,
    /// Reliable datagram.
    Rd,
    /// Unreliable datagram.
    Ud,
    /// Extended reliable connection.
    Xrc,
    /// Congestion notification packet, which belongs to no transport service.
    Cnp,
    /// Manufacturer-specific opcodes, 0xC0 to 0xFF (IBA 9.2.1); sent only by queue pairs that use selective repeat.
    Manufacturer,
}

/// Operation of a request packet, or type of a response packet or CNP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Operation {
    /// SEND; consumes a receive at the responder.
    Send,
    /// RDMA WRITE.
    Write,
    /// RDMA READ request.
    ReadRequest,
    /// RDMA READ response; also the response to FLUSH and ATOMIC WRITE.
    ReadResponse,
    /// ACK, NAK or RNR NAK.
    Acknowledge,
    /// Selective acknowledge: ACK with a bitmap of out-of-order PSNs; not of the standard (docs/WIRE.md).
    SelectiveAcknowledge,
    /// Response to COMPARE SWAP and FETCH ADD, with the original 8 bytes.
    AtomicAcknowledge,
    /// COMPARE SWAP: replaces 8 bytes if they equal a given value.
    CompareSwap,
    /// FETCH ADD: adds a given value to 8 bytes.
    FetchAdd,
    /// FLUSH: makes earlier WRITEs globally visible or persistent.
    Flush,
    /// ATOMIC WRITE: writes 8 bytes atomically.
    AtomicWrite,
    /// RESYNC: resynchronises the PSNs of reliable datagrams.
    Resync,
    /// CNP: sent by a notification point to a reaction point.
    CongestionNotification,
}

/// Position of a packet in its message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Position {
    /// First packet of a message of several packets.
    First,
    /// Packet between the first and the last packet of a message.
    Middle,
    /// Last packet of a message of several packets.
    Last,
    /// The only packet of its message.
    Only,
}

/// An extension header: a header between the base transport header and the payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum ExtHeader {
    /// RDMA extended transport header: virtual address, R_Key, DMA length.
    Reth,
    /// Acknowledge extended transport header: syndrome, message sequence number.
    Aeth,
    /// Atomic extended transport header: virtual address, R_Key, operands.
    AtomicEth,
    /// Atomic acknowledge extended transport header: the original 8 bytes.
    AtomicAckEth,
    /// Immediate data, 4 bytes.
    ImmDt,
    /// Invalidate extended transport header: R_Key.
    Ieth,
    /// Datagram extended transport header: Q_Key, source queue pair.
    Deth,
    /// Reliable datagram extended transport header: end-to-end context.
    Rdeth,
    /// XRC extended transport header: number of the shared receive queue.
    XrcEth,
    /// Flush extended transport header: placement type, selectivity level.
    Feth,
    /// Selective acknowledge extended transport header: version, flags, PSN of the packet that triggered the SACK.
    SackEth,
    /// Receive extended transport header: recv WQE sequence number, packet index in the message.
    RecvEth,
    /// The 16 reserved bytes of a congestion notification packet.
    CnpReserved,
}

impl ExtHeader {
    const COUNT: usize = 13;

    /// Returns the length of the header on the wire in bytes, a multiple of 4.
    pub const fn len_bytes(self) -> usize {
        match self {
            ExtHeader::Reth => super::reth::Reth::LEN,
            ExtHeader::Aeth => super::aeth::Aeth::LEN,
            ExtHeader::AtomicEth => super::atomiceth::AtomicEth::LEN,
            ExtHeader::AtomicAckEth => super::atomiceth::AtomicAckEth::LEN,
            ExtHeader::ImmDt => super::immdt::ImmDt::LEN,
            ExtHeader::Ieth => super::ieth::Ieth::LEN,
            ExtHeader::Deth => super::deth::Deth::LEN,
            ExtHeader::Rdeth => 4,
            ExtHeader::XrcEth => super::xrceth::XrcEth::LEN,
            ExtHeader::Feth => super::feth::Feth::LEN,
            ExtHeader::SackEth => super::sacketh::SackEth::LEN,
            ExtHeader::RecvEth => super::recveth::RecvEth::LEN,
            ExtHeader::CnpReserved => 16,
        }
    }
}

/// Column `payload` of the opcode table: `Data` if packets of the opcode may have a payload.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Payload {
    None,
    Data,
}

/// Properties of the packets with a given opcode: a row of the opcode table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpcodeInfo {
    /// Opcode of the packets that this row describes.
    pub opcode: Opcode,
    /// Transport service and name as in IBA: "RC SEND ONLY".
    pub name: &'static str,
    /// Transport service of the packets.
    pub transport: Transport,
    /// Operation if the packet is a request; type of the packet if it is a response or CNP.
    pub operation: Operation,
    /// Position of the packet in its message.
    pub position: Position,
    /// Extension headers, in wire order.
    pub headers: &'static [ExtHeader],
    /// Length of all extension headers in bytes.
    pub ext_len_bytes: usize,
    /// True if the packet may have a payload.
    pub has_payload: bool,
    /// True if the packet has immediate data.
    pub has_immediate: bool,
    /// True if a requester sends the packet to a responder; false for a CNP.
    pub is_request: bool,
    /// True if a responder sends the packet to a requester; false for a CNP.
    pub is_response: bool,
    starts_message: bool,
    ends_message: bool,
    /// Offset of each [`ExtHeader`] in bytes from the end of the base transport header; `ABSENT` for missing headers.
    offsets: [u8; ExtHeader::COUNT],
    /// Upper bound of payload plus pad in bytes: 65,535, or 0 if the opcode permits no payload.
    pub(super) padded_max_bytes: u16,
}

const ABSENT: u8 = u8::MAX;

impl OpcodeInfo {
    #[expect(
        clippy::indexing_slicing,
        clippy::cast_possible_truncation,
        reason = "evaluated for `TABLE` only: a value out of bounds fails the build"
    )]
    const fn new(
        opcode: Opcode,
        name: &'static str,
        transport: Transport,
        operation: Operation,
        position: Position,
        headers: &'static [ExtHeader],
        payload: Payload,
    ) -> Self {
        use Operation::*;
        let mut offsets = [ABSENT; ExtHeader::COUNT];
        let mut ext_len_bytes = 0;
        let mut i = 0;
        while i < headers.len() {
            offsets[headers[i] as usize] = ext_len_bytes as u8;
            ext_len_bytes += headers[i].len_bytes();
            assert!(ext_len_bytes < ABSENT as usize, "the extension headers are too long");
            i += 1;
        }
        let is_response =
            matches!(operation, ReadResponse | Acknowledge | AtomicAcknowledge | SelectiveAcknowledge);
        OpcodeInfo {
            opcode,
            name,
            transport,
            operation,
            position,
            headers,
            ext_len_bytes,
            has_payload: matches!(payload, Payload::Data),
            has_immediate: offsets[ExtHeader::ImmDt as usize] != ABSENT,
            is_request: !is_response && !matches!(operation, CongestionNotification),
            is_response,
            starts_message: matches!(position, Position::First | Position::Only),
            ends_message: matches!(position, Position::Last | Position::Only),
            offsets,
            padded_max_bytes: if matches!(payload, Payload::Data) { u16::MAX } else { 0 },
        }
    }

    /// Returns the offset of `header` in bytes from the end of the base transport header; `None` if absent.
    #[inline]
    pub(crate) fn offset_of(&self, header: ExtHeader) -> Option<usize> {
        match self.offsets.get(header as usize) {
            None | Some(&ABSENT) => None,
            Some(&offset) => Some(usize::from(offset)),
        }
    }

    /// Returns the bytes of `header` in `ext`, the extension headers of a packet; `None` if `header` is absent.
    #[inline]
    pub(crate) fn find<'a, const N: usize>(&self, ext: &'a [u8], header: ExtHeader) -> Option<&'a [u8; N]> {
        ext.get(self.offset_of(header)?..)?.first_chunk()
    }

    #[inline]
    pub(crate) const fn starts_message(&self) -> bool {
        self.starts_message
    }

    #[inline]
    pub(crate) const fn ends_message(&self) -> bool {
        self.ends_message
    }
}

/// The opcode of a base transport header: any byte, even a byte that the opcode table does not list.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Opcode(u8);

impl Opcode {
    /// Returns the opcode with the value `value` on the wire.
    pub const fn new(value: u8) -> Self {
        Opcode(value)
    }

    /// Returns the value of the opcode on the wire.
    pub const fn value(self) -> u8 {
        self.0
    }

    /// Returns the opcode's row of the opcode table; `None` if the table does not list the opcode.
    #[inline]
    pub fn info(self) -> Option<&'static OpcodeInfo> {
        TABLE.get(usize::from(self.0))?.as_ref()
    }

    /// Returns the standard SEND opcode of a numbered SEND opcode (0xE0 to 0xE5), and any other opcode unchanged.
    pub(crate) const fn unnumbered(self) -> Opcode {
        match self {
            Opcode::RC_NUMBERED_SEND_FIRST => Opcode::RC_SEND_FIRST,
            Opcode::RC_NUMBERED_SEND_MIDDLE => Opcode::RC_SEND_MIDDLE,
            Opcode::RC_NUMBERED_SEND_LAST => Opcode::RC_SEND_LAST,
            Opcode::RC_NUMBERED_SEND_LAST_WITH_IMMEDIATE => Opcode::RC_SEND_LAST_WITH_IMMEDIATE,
            Opcode::RC_NUMBERED_SEND_ONLY => Opcode::RC_SEND_ONLY,
            Opcode::RC_NUMBERED_SEND_ONLY_WITH_IMMEDIATE => Opcode::RC_SEND_ONLY_WITH_IMMEDIATE,
            other => other,
        }
    }

    /// Returns the opcode with its transport, bits 7 to 5 (IBA 9.2.1), replaced by `transport`: `Rc`, `Uc`, `Ud` or
    /// `Xrc`. [`Operation`] and [`Position`] do not change. `self` must be a standard opcode (below 0xC0).
    pub(crate) const fn of(self, transport: Transport) -> Opcode {
        let bits = match transport {
            Transport::Uc => 0x20,
            Transport::Ud => 0x60,
            Transport::Xrc => 0xA0,
            _ => 0x00,
        };
        Opcode(self.0 & 0x1F | bits)
    }

    /// Iterates over the rows of the opcode table in ascending order of opcodes.
    pub fn known() -> impl Iterator<Item = &'static OpcodeInfo> {
        TABLE.iter().flatten()
    }
}

impl fmt::Display for Opcode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.info() {
            Some(info) => f.write_str(info.name),
            None => write!(f, "opcode 0x{:02x}", self.0),
        }
    }
}

impl fmt::Debug for Opcode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Opcode({self})")
    }
}

/// Expands each row to a constant of `Opcode`, and all rows to `TABLE`, which is indexed by opcode value.
macro_rules! opcodes {
    ($($value:literal $constant:ident $name:literal $transport:ident $operation:ident $position:ident
       [$($header:ident)*] $payload:ident)*) => {
        impl Opcode {
            $(#[doc = $name] pub const $constant: Opcode = Opcode($value);)*
        }

        static TABLE: [Option<OpcodeInfo>; 256] = {
            let mut table = [None; 256];
            $(
                assert!(table[$value].is_none(), "two rows for one opcode");
                table[$value] = Some(OpcodeInfo::new(
                    Opcode::$constant,
                    $name,
                    Transport::$transport,
                    Operation::$operation,
                    Position::$position,
                    &[$(ExtHeader::$header),*],
                    Payload::$payload,
                ));
            )*
            table
        };
    };
}

opcodes! {
//  value constant                         name                                     transp. operation    position  extension headers  payload
    0x00 RC_SEND_FIRST                     "RC SEND FIRST"                          Rc  Send              First   []                  Data
    0x01 RC_SEND_MIDDLE                    "RC SEND MIDDLE"                         Rc  Send              Middle  []                  Data
    0x02 RC_SEND_LAST                      "RC SEND LAST"                           Rc  Send              Last    []                  Data
    0x03 RC_SEND_LAST_WITH_IMMEDIATE       "RC SEND LAST WITH IMMEDIATE"            Rc  Send              Last    [ImmDt]             Data
    0x04 RC_SEND_ONLY                      "RC SEND ONLY"                           Rc  Send              Only    []                  Data
    0x05 RC_SEND_ONLY_WITH_IMMEDIATE       "RC SEND ONLY WITH IMMEDIATE"            Rc  Send              Only    [ImmDt]             Data
    0x06 RC_RDMA_WRITE_FIRST               "RC RDMA WRITE FIRST"                    Rc  Write             First   [Reth]              Data
    0x07 RC_RDMA_WRITE_MIDDLE              "RC RDMA WRITE MIDDLE"                   Rc  Write             Middle  []                  Data
    0x08 RC_RDMA_WRITE_LAST                "RC RDMA WRITE LAST"                     Rc  Write             Last    []                  Data
    0x09 RC_RDMA_WRITE_LAST_WITH_IMMEDIATE "RC RDMA WRITE LAST WITH IMMEDIATE"      Rc  Write             Last    [ImmDt]             Data
    0x0A RC_RDMA_WRITE_ONLY                "RC RDMA WRITE ONLY"                     Rc  Write             Only    [Reth]              Data
    0x0B RC_RDMA_WRITE_ONLY_WITH_IMMEDIATE "RC RDMA WRITE ONLY WITH IMMEDIATE"      Rc  Write             Only    [Reth ImmDt]        Data
    0x0C RC_RDMA_READ_REQUEST              "RC RDMA READ REQUEST"                   Rc  ReadRequest       Only    [Reth]              None
    0x0D RC_RDMA_READ_RESPONSE_FIRST       "RC RDMA READ RESPONSE FIRST"            Rc  ReadResponse      First   [Aeth]              Data
    0x0E RC_RDMA_READ_RESPONSE_MIDDLE      "RC RDMA READ RESPONSE MIDDLE"           Rc  ReadResponse      Middle  []                  Data
    0x0F RC_RDMA_READ_RESPONSE_LAST        "RC RDMA READ RESPONSE LAST"             Rc  ReadResponse      Last    [Aeth]              Data
    0x10 RC_RDMA_READ_RESPONSE_ONLY        "RC RDMA READ RESPONSE ONLY"             Rc  ReadResponse      Only    [Aeth]              Data
    0x11 RC_ACKNOWLEDGE                    "RC ACKNOWLEDGE"                         Rc  Acknowledge       Only    [Aeth]              None
    0x12 RC_ATOMIC_ACKNOWLEDGE             "RC ATOMIC ACKNOWLEDGE"                  Rc  AtomicAcknowledge Only    [Aeth AtomicAckEth] None
    0x13 RC_COMPARE_SWAP                   "RC COMPARE SWAP"                        Rc  CompareSwap       Only    [AtomicEth]         None
    0x14 RC_FETCH_ADD                      "RC FETCH ADD"                           Rc  FetchAdd          Only    [AtomicEth]         None
    0x16 RC_SEND_LAST_WITH_INVALIDATE      "RC SEND LAST WITH INVALIDATE"           Rc  Send              Last    [Ieth]              Data
    0x17 RC_SEND_ONLY_WITH_INVALIDATE      "RC SEND ONLY WITH INVALIDATE"           Rc  Send              Only    [Ieth]              Data
    0x1C RC_FLUSH                          "RC FLUSH"                               Rc  Flush             Only    [Feth Reth]         None
    0x1D RC_ATOMIC_WRITE                   "RC ATOMIC WRITE"                        Rc  AtomicWrite       Only    [Reth]              Data

    0x20 UC_SEND_FIRST                     "UC SEND FIRST"                          Uc  Send              First   []                  Data
    0x21 UC_SEND_MIDDLE                    "UC SEND MIDDLE"                         Uc  Send              Middle  []                  Data
    0x22 UC_SEND_LAST                      "UC SEND LAST"                           Uc  Send              Last    []                  Data
    0x23 UC_SEND_LAST_WITH_IMMEDIATE       "UC SEND LAST WITH IMMEDIATE"            Uc  Send              Last    [ImmDt]             Data
    0x24 UC_SEND_ONLY                      "UC SEND ONLY"                           Uc  Send              Only    []                  Data
    0x25 UC_SEND_ONLY_WITH_IMMEDIATE       "UC SEND ONLY WITH IMMEDIATE"            Uc  Send              Only    [ImmDt]             Data
    0x26 UC_RDMA_WRITE_FIRST               "UC RDMA WRITE FIRST"                    Uc  Write             First   [Reth]              Data
    0x27 UC_RDMA_WRITE_MIDDLE              "UC RDMA WRITE MIDDLE"                   Uc  Write             Middle  []                  Data
    0x28 UC_RDMA_WRITE_LAST                "UC RDMA WRITE LAST"                     Uc  Write             Last    []                  Data
    0x29 UC_RDMA_WRITE_LAST_WITH_IMMEDIATE "UC RDMA WRITE LAST WITH IMMEDIATE"      Uc  Write             Last    [ImmDt]             Data
    0x2A UC_RDMA_WRITE_ONLY                "UC RDMA WRITE ONLY"                     Uc  Write             Only    [Reth]              Data
    0x2B UC_RDMA_WRITE_ONLY_WITH_IMMEDIATE "UC RDMA WRITE ONLY WITH IMMEDIATE"      Uc  Write             Only    [Reth ImmDt]        Data

    0x40 RD_SEND_FIRST                     "RD SEND FIRST"                          Rd  Send              First   [Rdeth Deth]        Data
    0x41 RD_SEND_MIDDLE                    "RD SEND MIDDLE"                         Rd  Send              Middle  [Rdeth Deth]        Data
    0x42 RD_SEND_LAST                      "RD SEND LAST"                           Rd  Send              Last    [Rdeth Deth]        Data
    0x43 RD_SEND_LAST_WITH_IMMEDIATE       "RD SEND LAST WITH IMMEDIATE"            Rd  Send              Last    [Rdeth Deth ImmDt]  Data
    0x44 RD_SEND_ONLY                      "RD SEND ONLY"                           Rd  Send              Only    [Rdeth Deth]        Data
    0x45 RD_SEND_ONLY_WITH_IMMEDIATE       "RD SEND ONLY WITH IMMEDIATE"            Rd  Send              Only    [Rdeth Deth ImmDt]  Data
    0x46 RD_RDMA_WRITE_FIRST               "RD RDMA WRITE FIRST"                    Rd  Write             First   [Rdeth Deth Reth]   Data
    0x47 RD_RDMA_WRITE_MIDDLE              "RD RDMA WRITE MIDDLE"                   Rd  Write             Middle  [Rdeth Deth]        Data
    0x48 RD_RDMA_WRITE_LAST                "RD RDMA WRITE LAST"                     Rd  Write             Last    [Rdeth Deth]        Data
    0x49 RD_RDMA_WRITE_LAST_WITH_IMMEDIATE "RD RDMA WRITE LAST WITH IMMEDIATE"      Rd  Write             Last    [Rdeth Deth ImmDt]  Data
    0x4A RD_RDMA_WRITE_ONLY                "RD RDMA WRITE ONLY"                     Rd  Write             Only    [Rdeth Deth Reth]   Data
    0x4B RD_RDMA_WRITE_ONLY_WITH_IMMEDIATE "RD RDMA WRITE ONLY WITH IMMEDIATE"      Rd  Write             Only    [Rdeth Deth Reth ImmDt] Data
    0x4C RD_RDMA_READ_REQUEST              "RD RDMA READ REQUEST"                   Rd  ReadRequest       Only    [Rdeth Deth Reth]   None
    0x4D RD_RDMA_READ_RESPONSE_FIRST       "RD RDMA READ RESPONSE FIRST"            Rd  ReadResponse      First   [Rdeth Aeth]        Data
    0x4E RD_RDMA_READ_RESPONSE_MIDDLE      "RD RDMA READ RESPONSE MIDDLE"           Rd  ReadResponse      Middle  [Rdeth]             Data
    0x4F RD_RDMA_READ_RESPONSE_LAST        "RD RDMA READ RESPONSE LAST"             Rd  ReadResponse      Last    [Rdeth Aeth]        Data
    0x50 RD_RDMA_READ_RESPONSE_ONLY        "RD RDMA READ RESPONSE ONLY"             Rd  ReadResponse      Only    [Rdeth Aeth]        Data
    0x51 RD_ACKNOWLEDGE                    "RD ACKNOWLEDGE"                         Rd  Acknowledge       Only    [Rdeth Aeth]        None
    0x52 RD_ATOMIC_ACKNOWLEDGE             "RD ATOMIC ACKNOWLEDGE"                  Rd  AtomicAcknowledge Only    [Rdeth Aeth AtomicAckEth] None
    0x53 RD_COMPARE_SWAP                   "RD COMPARE SWAP"                        Rd  CompareSwap       Only    [Rdeth Deth AtomicEth] None
    0x54 RD_FETCH_ADD                      "RD FETCH ADD"                           Rd  FetchAdd          Only    [Rdeth Deth AtomicEth] None
    0x55 RD_RESYNC                         "RD RESYNC"                              Rd  Resync            Only    [Rdeth Deth]        None

    0x64 UD_SEND_ONLY                      "UD SEND ONLY"                           Ud  Send              Only    [Deth]              Data
    0x65 UD_SEND_ONLY_WITH_IMMEDIATE       "UD SEND ONLY WITH IMMEDIATE"            Ud  Send              Only    [Deth ImmDt]        Data

    0x81 CNP                               "CNP"                                    Cnp CongestionNotification Only [CnpReserved]     None

    0xA0 XRC_SEND_FIRST                    "XRC SEND FIRST"                         Xrc Send              First   [XrcEth]            Data
    0xA1 XRC_SEND_MIDDLE                   "XRC SEND MIDDLE"                        Xrc Send              Middle  [XrcEth]            Data
    0xA2 XRC_SEND_LAST                     "XRC SEND LAST"                          Xrc Send              Last    [XrcEth]            Data
    0xA3 XRC_SEND_LAST_WITH_IMMEDIATE      "XRC SEND LAST WITH IMMEDIATE"           Xrc Send              Last    [XrcEth ImmDt]      Data
    0xA4 XRC_SEND_ONLY                     "XRC SEND ONLY"                          Xrc Send              Only    [XrcEth]            Data
    0xA5 XRC_SEND_ONLY_WITH_IMMEDIATE      "XRC SEND ONLY WITH IMMEDIATE"           Xrc Send              Only    [XrcEth ImmDt]      Data
    0xA6 XRC_RDMA_WRITE_FIRST              "XRC RDMA WRITE FIRST"                   Xrc Write             First   [XrcEth Reth]       Data
    0xA7 XRC_RDMA_WRITE_MIDDLE             "XRC RDMA WRITE MIDDLE"                  Xrc Write             Middle  [XrcEth]            Data
    0xA8 XRC_RDMA_WRITE_LAST               "XRC RDMA WRITE LAST"                    Xrc Write             Last    [XrcEth]            Data
    0xA9 XRC_RDMA_WRITE_LAST_WITH_IMMEDIATE "XRC RDMA WRITE LAST WITH IMMEDIATE"    Xrc Write             Last    [XrcEth ImmDt]      Data
    0xAA XRC_RDMA_WRITE_ONLY               "XRC RDMA WRITE ONLY"                    Xrc Write             Only    [XrcEth Reth]       Data
    0xAB XRC_RDMA_WRITE_ONLY_WITH_IMMEDIATE "XRC RDMA WRITE ONLY WITH IMMEDIATE"    Xrc Write             Only    [XrcEth Reth ImmDt] Data
    0xAC XRC_RDMA_READ_REQUEST             "XRC RDMA READ REQUEST"                  Xrc ReadRequest       Only    [XrcEth Reth]       None
    0xAD XRC_RDMA_READ_RESPONSE_FIRST      "XRC RDMA READ RESPONSE FIRST"           Xrc ReadResponse      First   [Aeth]              Data
    0xAE XRC_RDMA_READ_RESPONSE_MIDDLE     "XRC RDMA READ RESPONSE MIDDLE"          Xrc ReadResponse      Middle  []                  Data
    0xAF XRC_RDMA_READ_RESPONSE_LAST       "XRC RDMA READ RESPONSE LAST"            Xrc ReadResponse      Last    [Aeth]              Data
    0xB0 XRC_RDMA_READ_RESPONSE_ONLY       "XRC RDMA READ RESPONSE ONLY"            Xrc ReadResponse      Only    [Aeth]              Data
    0xB1 XRC_ACKNOWLEDGE                   "XRC ACKNOWLEDGE"                        Xrc Acknowledge       Only    [Aeth]              None
    0xB2 XRC_ATOMIC_ACKNOWLEDGE            "XRC ATOMIC ACKNOWLEDGE"                 Xrc AtomicAcknowledge Only    [Aeth AtomicAckEth] None
    0xB3 XRC_COMPARE_SWAP                  "XRC COMPARE SWAP"                       Xrc CompareSwap       Only    [XrcEth AtomicEth]  None
    0xB4 XRC_FETCH_ADD                     "XRC FETCH ADD"                          Xrc FetchAdd          Only    [XrcEth AtomicEth]  None
    0xB6 XRC_SEND_LAST_WITH_INVALIDATE     "XRC SEND LAST WITH INVALIDATE"          Xrc Send              Last    [XrcEth Ieth]       Data
    0xB7 XRC_SEND_ONLY_WITH_INVALIDATE     "XRC SEND ONLY WITH INVALIDATE"          Xrc Send              Only    [XrcEth Ieth]       Data

    // Opcodes 0xC0 to 0xFF are manufacturer-specific (IBA 9.2.1). Packets with the opcodes below are sent only by
    // queue pairs that use selective repeat.
    0xC0 RC_SELECTIVE_ACKNOWLEDGE          "RC SELECTIVE ACKNOWLEDGE" Manufacturer SelectiveAcknowledge Only [Aeth SackEth]      Data
    0xE0 RC_NUMBERED_SEND_FIRST            "RC NUMBERED SEND FIRST" Manufacturer Send              First   [RecvEth]           Data
    0xE1 RC_NUMBERED_SEND_MIDDLE           "RC NUMBERED SEND MIDDLE" Manufacturer Send              Middle  [RecvEth]           Data
    0xE2 RC_NUMBERED_SEND_LAST             "RC NUMBERED SEND LAST" Manufacturer Send              Last    [RecvEth]           Data
    0xE3 RC_NUMBERED_SEND_LAST_WITH_IMMEDIATE "RC NUMBERED SEND LAST WITH IMMEDIATE" Manufacturer Send             Last    [RecvEth ImmDt]     Data
    0xE4 RC_NUMBERED_SEND_ONLY             "RC NUMBERED SEND ONLY" Manufacturer Send              Only    [RecvEth]           Data
    0xE5 RC_NUMBERED_SEND_ONLY_WITH_IMMEDIATE "RC NUMBERED SEND ONLY WITH IMMEDIATE" Manufacturer Send             Only    [RecvEth ImmDt]     Data
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_agrees_with_itself() {
        for info in Opcode::known() {
            let name = info.name;
            assert_eq!(info.opcode.info(), Some(info));
            assert_eq!(
                info.headers.iter().map(|h| h.len_bytes()).sum::<usize>(),
                info.ext_len_bytes,
                "{name}"
            );
            assert_eq!(info.has_immediate, name.ends_with("WITH IMMEDIATE"), "{name}");
            assert_eq!(info.headers.contains(&ExtHeader::Ieth), name.ends_with("WITH INVALIDATE"), "{name}");
            let position = match info.position {
                Position::First => " FIRST",
                Position::Middle => " MIDDLE",
                Position::Last => " LAST",
                Position::Only => "",
            };
            assert!(name.contains(position), "{name}");
            let transport = match info.opcode.value() >> 5 {
                0 => Transport::Rc,
                1 => Transport::Uc,
                2 => Transport::Rd,
                3 => Transport::Ud,
                4 => Transport::Cnp,
                5 => Transport::Xrc,
                _ => Transport::Manufacturer,
            };
            assert_eq!(info.transport, transport, "{name}");
            assert!(!(info.is_request && info.is_response), "{name}");
        }
    }

    #[test]
    fn transports_share_their_low_five_bits() {
        for info in Opcode::known().filter(|info| matches!(info.transport, Transport::Uc | Transport::Xrc)) {
            let rc = Opcode::new(info.opcode.value() & 0x1F).info().unwrap();
            assert_eq!(
                (rc.operation, rc.position, rc.has_payload),
                (info.operation, info.position, info.has_payload)
            );
            assert_eq!(rc.name.split_once(' ').unwrap().1, info.name.split_once(' ').unwrap().1);
            let without_xrceth: Vec<_> = info.headers.iter().filter(|h| **h != ExtHeader::XrcEth).collect();
            assert_eq!(rc.headers.iter().collect::<Vec<_>>(), without_xrceth, "{}", info.name);
        }
    }

    #[test]
    fn a_numbered_send_is_a_send_with_a_number() {
        let mut numbered = 0;
        for info in Opcode::known() {
            let plain = info.opcode.unnumbered().info().unwrap();
            let is_numbered = info.headers.first() == Some(&ExtHeader::RecvEth);
            assert_eq!(plain != info, is_numbered, "{}", info.name);
            if is_numbered {
                numbered += 1;
                assert_eq!(info.name.replace("NUMBERED ", ""), plain.name);
                assert_eq!((info.operation, info.position), (plain.operation, plain.position));
                assert_eq!(info.headers[1..], *plain.headers);
            }
        }
        assert_eq!(numbered, 6);
    }

    #[test]
    fn offsets_follow_the_order_of_the_headers() {
        let info = Opcode::XRC_RDMA_WRITE_ONLY_WITH_IMMEDIATE.info().unwrap();
        assert_eq!(info.offset_of(ExtHeader::XrcEth), Some(0));
        assert_eq!(info.offset_of(ExtHeader::Reth), Some(4));
        assert_eq!(info.offset_of(ExtHeader::ImmDt), Some(20));
        assert_eq!(info.offset_of(ExtHeader::Aeth), None);
        assert_eq!(Opcode::new(0x15).info(), None);
        assert_eq!(Opcode::new(0xC1).info(), None);
        assert_eq!(Opcode::new(0xE6).info(), None);
    }
}
