//! Capture files: pcap with microseconds or nanoseconds, and pcapng.

use std::io::{ErrorKind, Read};

use anyhow::{Context as _, bail};
use pcap_file::pcap::PcapReader;
use pcap_file::pcapng::blocks::enhanced_packet::EnhancedPacketBlock;
use pcap_file::pcapng::blocks::interface_description::{
    InterfaceDescriptionBlock, InterfaceDescriptionOption,
};
use pcap_file::pcapng::{Block, PcapNgReader};
use pcap_file::{DataLink, PcapError, TsResolution};

/// The first bytes of a pcapng file.
const PCAPNG_MAGIC: [u8; 4] = [0x0A, 0x0D, 0x0D, 0x0A];
const NANOS_PER_SEC: u128 = 1_000_000_000;

/// A captured frame.
pub(super) struct Frame {
    /// Time of capture, in nanoseconds since 1970.
    pub(super) unix_nanos: u128,
    /// Length on the wire, in bytes.
    pub(super) wire_len_bytes: u32,
    /// Bytes captured.
    pub(super) data: Vec<u8>,
}

impl Frame {
    /// Whether less than the whole frame was captured.
    pub(super) fn is_cut(&self) -> bool {
        u64::from(self.wire_len_bytes) > self.data.len() as u64
    }
}

type Input = Box<dyn Read>;

/// A capture being read.
pub(super) enum Capture {
    Pcap(PcapReader<Input>),
    PcapNg(PcapNgReader<Input>),
}

impl Capture {
    /// Begins to read a capture of either format.
    pub(super) fn open(mut input: Input) -> anyhow::Result<Self> {
        let mut magic = [0; 4];
        input.read_exact(&mut magic).map_err(|error| match error.kind() {
            ErrorKind::UnexpectedEof => {
                anyhow::anyhow!("the file is too short to be a capture; pcap and pcapng are read")
            }
            _ => error.into(),
        })?;
        let input: Input = Box::new(std::io::Cursor::new(magic).chain(input));
        if magic == PCAPNG_MAGIC {
            let reader = PcapNgReader::new(input).map_err(|error| explain(&error))?;
            return Ok(Capture::PcapNg(reader));
        }
        let reader =
            PcapReader::new(input).map_err(|error| explain(&error)).context("no pcap or pcapng file")?;
        require_ethernet(reader.header().datalink)?;
        Ok(Capture::Pcap(reader))
    }

    /// Returns the next frame; `None` at the end of the file.
    pub(super) fn next(&mut self) -> anyhow::Result<Option<Frame>> {
        match self {
            Capture::Pcap(reader) => next_of_pcap(reader),
            Capture::PcapNg(reader) => next_of_pcapng(reader),
        }
    }
}

fn require_ethernet(link: DataLink) -> anyhow::Result<()> {
    if link != DataLink::ETHERNET {
        bail!(
            "the capture's link type is {link:?}, and only Ethernet is decoded: capture on one interface, not on `any`"
        );
    }
    Ok(())
}

fn explain(error: &PcapError) -> anyhow::Error {
    match error {
        PcapError::IncompleteBuffer => anyhow::anyhow!("the file ends in the middle of a packet"),
        PcapError::IoError(error) if error.kind() == ErrorKind::UnexpectedEof => {
            anyhow::anyhow!("the file ends in the middle of a packet")
        }
        PcapError::IoError(error) => anyhow::anyhow!("cannot read the file: {error}"),
        other => anyhow::anyhow!("the file is damaged: {other}"),
    }
}

fn next_of_pcap(reader: &mut PcapReader<Input>) -> anyhow::Result<Option<Frame>> {
    let frac_nanos = match reader.header().ts_resolution {
        TsResolution::MicroSecond => 1000,
        TsResolution::NanoSecond => 1,
    };
    // Raw, because the checked reader refuses frames longer than the snap length, which are merely cut.
    let Some(packet) = reader.next_raw_packet() else { return Ok(None) };
    let packet = packet.map_err(|error| explain(&error))?;
    let unix_nanos = u128::from(packet.ts_sec) * NANOS_PER_SEC + u128::from(packet.ts_frac) * frac_nanos;
    let (wire_len_bytes, data) = (packet.orig_len, packet.data.into_owned());
    Ok(Some(Frame { unix_nanos, wire_len_bytes, data }))
}

fn next_of_pcapng(reader: &mut PcapNgReader<Input>) -> anyhow::Result<Option<Frame>> {
    loop {
        let Some(block) = reader.next_block() else { return Ok(None) };
        match block.map_err(|error| explain(&error))?.into_owned() {
            Block::EnhancedPacket(packet) => {
                let interface = reader.packet_interface(&packet).context(
                    "the file is damaged: a packet of an interface that the file does not describe",
                )?;
                require_ethernet(interface.linktype)?;
                let unix_nanos = unix_nanos(&packet, interface);
                let data = packet.data.into_owned();
                return Ok(Some(Frame { unix_nanos, wire_len_bytes: packet.original_len, data }));
            }
            Block::SimplePacket(packet) => {
                let data = packet.data.into_owned();
                return Ok(Some(Frame { unix_nanos: 0, wire_len_bytes: packet.original_len, data }));
            }
            _ => {}
        }
    }
}

/// Returns the time of a packet, in nanoseconds since 1970. The reader passes on units of the interface as if
/// they were nanoseconds.
fn unix_nanos(packet: &EnhancedPacketBlock<'_>, interface: &InterfaceDescriptionBlock<'_>) -> u128 {
    let units = packet.timestamp.as_nanos();
    let resolution = interface.options.iter().find_map(|option| match option {
        InterfaceDescriptionOption::IfTsResol(value) => Some(*value),
        _ => None,
    });
    // Bit 7: a power of two instead of ten. The default is microseconds.
    let (base, exponent): (u128, u32) = match resolution.unwrap_or(6) {
        value if value & 0x80 != 0 => (2, u32::from(value & 0x7F)),
        value => (10, u32::from(value)),
    };
    base.checked_pow(exponent)
        .and_then(|units_per_sec| units.checked_mul(NANOS_PER_SEC).map(|product| product / units_per_sec))
        .unwrap_or(0)
}
