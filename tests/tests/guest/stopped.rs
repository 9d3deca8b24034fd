//! Detection of an rxe requester that has stopped within a message.
//!
//! Before Linux 6.10, rxe runs requester and completer as two tasks. A requester with 128 packets outstanding sets
//! `wait_psn` and returns; a completer that processes an ACK starts the requester again if `wait_psn` is set
//! (drivers/infiniband/sw/rxe/rxe_req.c and rxe_comp.c). Nothing starts it again if the completer processes the last ACK
//! after the requester has compared the PSNs and before it sets `wait_psn`; no packet is outstanding, so no timer runs
//! either. The guest's emulated processors make this interval longer.
//!
//! The evidence of such a stop does not depend on what this side receives:
//!
//! * the last request packet of the guest is the first or a middle packet of its message, and this side's last ACK
//!   acknowledges it, so that the guest has more packets to send and may send them;
//! * the guest transmits no RoCE packet for several of its local ACK timeouts. It would retransmit if this side had not
//!   received its packets.

use std::fs::File;
use std::path::Path;
use std::time::Duration;

use pcap_file::pcap::{PcapPacket, PcapReader, PcapWriter};
use roce::id::Mac;
use roce::wire::eth::{ETHERTYPE_IPV6, EthHeader};
use roce::wire::ipv4::Ipv4Header;
use roce::wire::ipv6::Ipv6Header;
use roce::wire::udp::UdpHeader;

use super::boot::{Guest, Wire};

/// Longer than four local ACK timeouts of 1 s.
const OBSERVATION: Duration = Duration::from_secs(5);

/// Opcodes of RC packets (IBA 9.2.1, table 38): first and middle packets of a SEND or WRITE; the last of these opcodes;
/// Acknowledge.
const FIRST_OR_MIDDLE: [u8; 4] = [0x00, 0x01, 0x06, 0x07];
const SEND_OR_WRITE_MAX: u8 = 0x0B;
const ACKNOWLEDGE: u8 = 0x11;

/// Returns whether the requester of the guest has stopped within a message, of which `capture` has the packets. Call this
/// while the program in the guest is still running.
pub(super) fn has_stopped(guest: &Guest, wire: Wire, capture: &Path) -> bool {
    let sent = || guest.machine.run(&format!("rxe_counter {} sent_pkts", wire.device()));
    let before = sent();
    std::thread::sleep(OBSERVATION);
    sent() == before && Last::of(capture, guest.mac(wire)).is_acknowledged_within_message()
}

/// The last packets of a capture.
#[derive(Default)]
struct Last {
    /// Opcode and PSN of the guest's SEND or WRITE packet.
    request: Option<(u8, [u8; 3])>,
    /// PSN and syndrome of this side's Acknowledge.
    ack: Option<([u8; 3], u8)>,
}

impl Last {
    fn of(capture: &Path, guest: Mac) -> Self {
        let mut last = Last::default();
        let reader = File::open(capture).ok().and_then(|file| PcapReader::new(file).ok());
        // The last record may be cut off.
        let packets = reader.into_iter().flat_map(|mut reader| {
            std::iter::from_fn(move || Some(reader.next_packet()?.ok()?.data.into_owned()))
        });
        packets.for_each(|frame| last.take(&frame, guest).unwrap_or_default());
        last
    }

    /// Takes the next frame; `None` if the frame is too short for a RoCE packet.
    fn take(&mut self, frame: &[u8], guest: Mac) -> Option<()> {
        let eth = EthHeader::parse(frame.first_chunk()?);
        let ip_bytes = if eth.ethertype == ETHERTYPE_IPV6 { Ipv6Header::LEN } else { Ipv4Header::LEN };
        let bth_at = EthHeader::LEN + ip_bytes + UdpHeader::LEN;
        let [opcode, .., a, b, c] = *frame.get(bth_at..)?.first_chunk::<12>()?;
        let psn = [a, b, c];
        match (opcode, eth.src == guest) {
            (..=SEND_OR_WRITE_MAX, true) => self.request = Some((opcode, psn)),
            (ACKNOWLEDGE, false) => self.ack = Some((psn, *frame.get(bth_at + 12)?)),
            _ => {}
        }
        Some(())
    }

    fn is_acknowledged_within_message(&self) -> bool {
        let (Some((opcode, psn)), Some((acknowledged, syndrome))) = (self.request, self.ack) else {
            return false;
        };
        // The high 3 bits of the syndrome of a positive acknowledgement are 0 (IBA table 44).
        FIRST_OR_MIDDLE.contains(&opcode) && acknowledged == psn && syndrome < 0x20
    }
}

#[test]
fn a_requester_has_stopped_if_its_unfinished_message_is_acknowledged() {
    const GUEST: Mac = Mac([2, 0, 0, 0, 0, 1]);
    const OURS: Mac = Mac([2, 0, 0, 0, 0, 2]);
    // Source, opcode, PSN, syndrome.
    let has_stopped = |packets: &[(Mac, u8, u8, u8)]| {
        let file = tempfile::NamedTempFile::new().unwrap();
        let mut writer = PcapWriter::new(file.reopen().unwrap()).unwrap();
        for (source, opcode, psn, syndrome) in packets {
            let bth = [*opcode, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, *psn];
            let frame =
                [&[0; 6][..], &source.0, &[0x08, 0x00], &[0; 28], &bth, &[*syndrome, 0, 0, 0]].concat();
            writer.write_packet(&PcapPacket::new(Duration::ZERO, frame.len() as u32, &frame)).unwrap();
        }
        drop(writer);
        Last::of(file.path(), GUEST).is_acknowledged_within_message()
    };
    let (first, middle, last) = ((GUEST, 0x06, 1, 0), (GUEST, 0x07, 2, 0), (GUEST, 0x08, 3, 0));
    let ack = |psn| (OURS, ACKNOWLEDGE, psn, 0x1F);
    assert!(has_stopped(&[first, ack(1)]));
    assert!(has_stopped(&[first, middle, ack(1), ack(2), (OURS, 0x06, 7, 0), (GUEST, ACKNOWLEDGE, 7, 0)]));
    assert!(!has_stopped(&[]));
    assert!(!has_stopped(&[first, middle]), "this side has not answered");
    assert!(!has_stopped(&[first, middle, ack(1)]), "a packet is outstanding");
    assert!(!has_stopped(&[first, middle, last, ack(3)]), "the message is complete");
    assert!(!has_stopped(&[first, (OURS, ACKNOWLEDGE, 1, 0x62)]), "this side has refused the message");
    assert!(!has_stopped(&[(GUEST, 0x0C, 1, 0), ack(1)]), "a READ");
}
