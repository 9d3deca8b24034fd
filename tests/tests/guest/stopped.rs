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

use netsim::LinkId;
use pcap_file::pcap::PcapReader;
use roce::id::{Mac, Msn};
use roce::psn::Psn;
use roce::wire::{Aeth, NakCode, Opcode, Operation, Packet, Position, Syndrome};
use tests::record::{self, Seen};

use super::boot::{Guest, Wire};
use crate::wireshark::{frame, spec};

/// Longer than four local ACK timeouts of 1 s.
const OBSERVATION: Duration = Duration::from_secs(5);

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
    /// The guest's last SEND or WRITE packet: its position in its message, and its PSN.
    request: Option<(Position, Psn)>,
    /// This side's last Acknowledge: its PSN and syndrome.
    ack: Option<(Psn, Syndrome)>,
}

impl Last {
    fn of(capture: &Path, guest: Mac) -> Self {
        let mut last = Last::default();
        let reader = File::open(capture).ok().and_then(|file| PcapReader::new(file).ok());
        // The last record may be cut off.
        let records = reader.into_iter().flat_map(|mut reader| {
            std::iter::from_fn(move || Some(reader.next_packet()?.ok()?.data.into_owned()))
        });
        records.for_each(|frame| last.take(&frame, guest));
        last
    }

    fn take(&mut self, frame: &[u8], guest: Mac) {
        let Ok(packet) = Packet::parse(frame) else { return };
        let (psn, info) = (packet.bth.psn, packet.info);
        match (packet.src_mac() == guest, info.operation) {
            (true, Operation::Send | Operation::Write) => {
                self.request = Some((info.position, psn));
            }
            (false, Operation::Acknowledge) => self.ack = packet.aeth().map(|aeth| (psn, aeth.syndrome)),
            _ => {}
        }
    }

    fn is_acknowledged_within_message(&self) -> bool {
        let (Some((position, psn)), Some((acknowledged, Syndrome::Ack { .. }))) = (self.request, self.ack)
        else {
            return false;
        };
        matches!(position, Position::First | Position::Middle) && acknowledged == psn
    }
}

#[test]
fn a_requester_has_stopped_if_its_unfinished_message_is_acknowledged() {
    const GUEST: Mac = Mac([2, 0, 0, 0, 0, 1]);
    const OURS: Mac = Mac([2, 0, 0, 0, 0, 2]);
    let packet = |source: Mac, opcode, psn, syndrome| {
        let mut frame = frame(false, spec(opcode, psn, 0), |parts| {
            if opcode == Opcode::RC_ACKNOWLEDGE {
                parts.set_aeth(Aeth { syndrome, msn: Msn::new(0) })?;
            }
            Some(())
        });
        // The ICRC does not cover the Ethernet header.
        frame[6..12].copy_from_slice(&source.0);
        Seen { nanos: 0, link: LinkId(0), number: 0, frame }
    };
    let directory = tempfile::tempdir().unwrap();
    let has_stopped = |packets: &[&Seen]| {
        let packets: Vec<Seen> = packets.iter().copied().cloned().collect();
        let capture = record::write(&packets, directory.path(), "stopped").unwrap();
        Last::of(&capture, GUEST).is_acknowledged_within_message()
    };
    let first = &packet(GUEST, Opcode::RC_RDMA_WRITE_FIRST, 1, Syndrome::ACK);
    let middle = &packet(GUEST, Opcode::RC_RDMA_WRITE_MIDDLE, 2, Syndrome::ACK);
    let last = &packet(GUEST, Opcode::RC_RDMA_WRITE_LAST, 3, Syndrome::ACK);
    let read = &packet(GUEST, Opcode::RC_RDMA_READ_REQUEST, 1, Syndrome::ACK);
    let answer = &packet(GUEST, Opcode::RC_ACKNOWLEDGE, 7, Syndrome::ACK);
    let ours = &packet(OURS, Opcode::RC_RDMA_WRITE_FIRST, 7, Syndrome::ACK);
    let refusal = &packet(OURS, Opcode::RC_ACKNOWLEDGE, 1, Syndrome::Nak(NakCode::RemoteAccessError));
    let [ack_1, ack_2, ack_3] =
        &[1, 2, 3].map(|psn| packet(OURS, Opcode::RC_ACKNOWLEDGE, psn, Syndrome::ACK));
    assert!(has_stopped(&[first, ack_1]));
    assert!(has_stopped(&[first, middle, ack_1, ack_2, ours, answer]));
    assert!(!has_stopped(&[]));
    assert!(!has_stopped(&[first, middle]), "this side has not answered");
    assert!(!has_stopped(&[first, middle, ack_1]), "a packet is outstanding");
    assert!(!has_stopped(&[first, middle, last, ack_3]), "the message is complete");
    assert!(!has_stopped(&[first, refusal]), "this side has refused the message");
    assert!(!has_stopped(&[read, ack_1]), "a READ");
}
