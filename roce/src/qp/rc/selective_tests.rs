//! Tests of a requester under selective repeat: READ responses, reneging, the loss timer and the loss window.

use super::events::ResponseEvent;
use super::requester::{Requester, RequesterConfig};
use crate::congestion::{CongestionScheme, SwiftParameters};
use crate::counters::QpCounters;
use crate::psn::Psn;
use crate::qp::outstanding::{Kind, Outstanding};
use crate::qp::{ConnAttr, PathMtu};
use crate::queue::{Doorbells, SendQueueSize, send_queue};
use crate::recovery::{AckEvent, PsnSpan, RecoveryScheme, SentRequest};
use crate::time::Instant;
use crate::wire::SackEth;
use std::sync::Arc;

const PATH_MTU: PathMtu = PathMtu::Mtu1024;
const MTU_BYTES: u32 = PATH_MTU.bytes();
const READ_PKTS: u32 = 3;
const SELECTIVE: RecoveryScheme = RecoveryScheme::SelectiveRepeat { window_pkts: 64 };

/// A requester without a port: READs of [`READ_PKTS`] responses each, and SENDs, are recorded as sent, but not sent.
struct Reader {
    requester: Requester,
    outstanding: Outstanding,
    counters: QpCounters,
    now: Instant,
}

impl Reader {
    const FIRST_PSN: Psn = Psn::new(7);

    fn new() -> Self {
        Self::with(CongestionScheme::Window { window_pkts: 64 }, SELECTIVE)
    }

    fn with(congestion: CongestionScheme, recovery: RecoveryScheme) -> Self {
        let conn = ConnAttr {
            path_mtu: PATH_MTU,
            max_rd_atomic: 4,
            congestion: Some(congestion),
            recovery,
            ..ConnAttr::default()
        };
        let config = RequesterConfig::new(&conn, Self::FIRST_PSN, 100_000_000_000);
        let requester = Requester::new(config);
        let size = SendQueueSize { depth: 8, max_sges: 1, max_inline_bytes: 0 };
        let (_, queue) = send_queue(size, true, Arc::new(Doorbells::new(1)), 0);
        let outstanding = Outstanding::new(queue, Self::FIRST_PSN);
        Reader { requester, outstanding, counters: QpCounters::default(), now: Instant::ZERO }
    }

    fn psn(index: u32) -> Psn {
        Self::FIRST_PSN.plus(index)
    }

    fn read(&mut self) {
        let kind = Kind { is_read: true, takes_receive: false };
        let (sent, bytes) = (self.requester.recovery.sent(), READ_PKTS * MTU_BYTES);
        let place = self.outstanding.assign(bytes, kind, sent, MTU_BYTES).expect("there is room");
        self.requester.recovery.on_sent(READ_PKTS, self.now);
        self.outstanding.on_read_sent();
        self.on_packet_sent(place.span.first, READ_PKTS);
    }

    fn send(&mut self) {
        let kind = Kind { is_read: false, takes_receive: true };
        let sent = self.requester.recovery.sent();
        let place = self.outstanding.assign(1, kind, sent, MTU_BYTES).expect("there is room");
        self.requester.recovery.on_sent(1, self.now);
        self.on_packet_sent(place.span.first, 1);
    }

    /// As a retransmission, so that the round trip is not measured.
    fn on_packet_sent(&mut self, psn: Psn, psn_span: u32) {
        let sent = SentRequest { psn, psn_span, has_ack_req: true, is_retransmission: true };
        self.requester.on_packet_sent(sent, self.now);
    }

    fn event(&mut self, event: AckEvent<'_>) {
        self.respond(ResponseEvent::Ack(event));
    }

    /// Passes to the requester a SACK with expected PSN `FIRST_PSN + next`, elicited by the packet with PSN
    /// `FIRST_PSN + trigger`.
    fn sack(&mut self, next: u32, trigger: u32, no_room: bool, bitmap: &[u8]) {
        let (next, trigger) = (Self::psn(next), Self::psn(trigger));
        let header = SackEth { version: SackEth::VERSION, duplicate: false, no_room, trigger };
        self.event(AckEvent::Sack { next, header, bitmap });
    }

    fn respond(&mut self, outcome: ResponseEvent<'_>) {
        let failed =
            self.requester.on_response_event(self.now, outcome, &mut self.outstanding, &mut self.counters);
        assert_eq!(failed, None);
    }

    fn response(&mut self, index: u32) {
        let first = Self::psn(index / READ_PKTS * READ_PKTS);
        let request = PsnSpan { first, packets: READ_PKTS, is_read: true };
        let (psn, ends_message) = (Self::psn(index), index % READ_PKTS == READ_PKTS - 1);
        self.event(AckEvent::ReadResponse { psn, request, ends_message });
    }

    /// Calls `Requester::on_time` at `Requester::deadline`. Returns whether a packet is to be retransmitted.
    fn expire(&mut self) -> bool {
        self.now = self.requester.deadline().expect("it runs");
        let failed = self.requester.on_time(self.now, &mut self.outstanding, &mut self.counters);
        assert_eq!(failed, None);
        self.requester.recovery.is_retransmission()
    }
}

#[test]
fn an_acknowledgement_of_requests_says_nothing_of_responses_asked_for_again() {
    let mut reader = Reader::new();
    reader.read();
    reader.response(1);
    assert_eq!(reader.requester.recovery.next_psn(), Reader::psn(0), "overtaken by its next");
    reader.requester.recovery.on_sent(1, reader.now);
    // The requester sends two SENDs; the SACK reports the first SEND as missing.
    (0..2).for_each(|_| reader.send());
    reader.sack(READ_PKTS, READ_PKTS + 1, false, &1u32.to_be_bytes());
    let recovery = &mut reader.requester.recovery;
    assert_eq!(recovery.next_psn(), Reader::psn(READ_PKTS));
    recovery.on_sent(1, reader.now);
    assert!(!recovery.is_retransmission(), "what was lost of the first READ is under way");
}

#[test]
fn what_the_peer_reneged_on_is_retransmitted() {
    let mut reader = Reader::new();
    (0..6).for_each(|_| reader.send());
    reader.sack(0, 5, false, &0b1_1111u32.to_be_bytes());
    assert_eq!(reader.requester.recovery.next_psn(), Reader::psn(0));
    reader.requester.recovery.on_sent(1, reader.now);
    assert!(!reader.requester.recovery.is_retransmission(), "the others had arrived");
    // Packet 0 is executed. Packets 3 and 5 are still buffered; packets 1, 2 and 4 were dropped (reneging).
    reader.sack(1, 5, false, &0b1010u32.to_be_bytes());
    let mut again = Vec::new();
    while reader.requester.recovery.is_retransmission() {
        again.push(reader.requester.recovery.next_psn());
        reader.requester.recovery.on_sent(1, reader.now);
    }
    assert_eq!(again, [1, 2, 4].map(Reader::psn));
    reader.event(AckEvent::Ack { next: Reader::psn(6) });
    assert_eq!(reader.requester.recovery.unacked(), 0);
}

#[test]
fn a_timer_learns_when_it_expires_of_what_came_and_stops_where_nothing_is_waited_for() {
    let mut reader = Reader::new();
    reader.read();
    let wait_nanos = reader.requester.deadline().expect("it runs").nanos_since(reader.now);
    reader.response(0);
    for index in 1..READ_PKTS {
        reader.now = reader.now.plus_nanos(wait_nanos / 2);
        let deadline = reader.requester.deadline();
        reader.response(index);
        let is_last = index + 1 == READ_PKTS;
        assert_eq!(reader.requester.deadline(), deadline.filter(|_| !is_last), "response {index}");
    }
    reader.read();
    reader.response(READ_PKTS);
    reader.now = reader.now.plus_nanos(wait_nanos / 2);
    reader.response(READ_PKTS + 1);
    let last_rx_at = reader.now;
    assert!(!reader.expire(), "it was put off");
    assert_eq!(reader.requester.deadline(), Some(last_rx_at.plus_nanos(wait_nanos)));
    assert!(reader.expire(), "nothing came since");
}

#[test]
fn want_of_room_reduces_the_packets_in_flight_once_in_a_window() {
    let mut reader = Reader::new();
    (0..60).for_each(|_| reader.send());
    reader.event(AckEvent::Ack { next: Reader::psn(60) });
    (0..40).for_each(|_| reader.send());
    let on_no_room = |reader: &mut Reader, next: u32, trigger: u32| {
        reader.sack(next, trigger, true, &1u32.to_be_bytes());
        reader.requester.in_flight_pkts_max(&mut reader.outstanding)
    };
    assert_eq!(on_no_room(&mut reader, 60, 62), 60 / 3);
    for (next, trigger) in [(60, 63), (79, 81)] {
        assert_eq!(on_no_room(&mut reader, next, trigger), 60 / 3, "PSNs of the same window");
    }
    reader.event(AckEvent::Ack { next: Reader::psn(100) });
    (0..40).for_each(|_| reader.send());
    assert_eq!(on_no_room(&mut reader, 101, 103), 17, "a rise by an eighth, then three quarters");
}

#[test]
fn spurious_retransmissions_and_implied_naks_are_counted() {
    let mut reader = Reader::new();
    (0..2).for_each(|_| reader.send());
    reader.sack(0, 1, false, &1u32.to_be_bytes());
    reader.requester.recovery.on_sent(1, reader.now);
    reader.event(AckEvent::Ack { next: Reader::psn(2) });
    let (next, trigger) = (Reader::psn(2), Reader::psn(0));
    let header = SackEth { version: SackEth::VERSION, duplicate: true, no_room: false, trigger };
    reader.event(AckEvent::Sack { next, header, bitmap: &[] });
    let QpCounters { sacks_received, spurious_retransmits, .. } = reader.counters;
    assert_eq!((sacks_received, spurious_retransmits), (2, 1));
    let mut reader =
        Reader::with(CongestionScheme::Window { window_pkts: 64 }, RecoveryScheme::ImprovedGoBackN);
    reader.read();
    reader.response(1);
    assert_eq!(reader.counters.implied_nak_seq_err, 1);
}

#[test]
fn congestion_control_is_notified_of_detected_losses_and_of_acks_without_a_round_trip() {
    let parameters = SwiftParameters { ai_milli: 10_000, ..SwiftParameters::default() };
    let mut reader = Reader::with(CongestionScheme::Swift(parameters), SELECTIVE);
    let window_pkts = |reader: &Reader| reader.requester.congestion().window_pkts();
    let full_pkts = window_pkts(&reader);
    (0..64).for_each(|_| reader.send());
    reader.sack(0, 63, false, &1u32.to_be_bytes());
    assert_eq!(window_pkts(&reader), full_pkts, "PSN 1 is received, PSN 0 lost: a share below the tolerance");
    let above = [0, 0x4000_0000u32].map(u32::to_be_bytes).concat();
    reader.sack(0, 63, false, &above);
    let reduced_pkts = window_pkts(&reader);
    assert!(reduced_pkts < full_pkts, "PSNs 0 to 62 are lost");
    reader.event(AckEvent::Ack { next: Reader::psn(64) });
    assert!(window_pkts(&reader) > reduced_pkts, "no packet was timed");
}

#[test]
fn an_ack_of_a_stopped_peer_after_a_probe_of_una_shows_no_loss_of_many_packets() {
    for (packets, is_doubtful) in [(16, false), (17, true), (40, true)] {
        let mut reader = Reader::new();
        reader.send();
        let timed =
            SentRequest { psn: Reader::psn(0), psn_span: 1, has_ack_req: true, is_retransmission: false };
        reader.requester.on_packet_sent(timed, reader.now);
        reader.now = reader.now.plus_nanos(10_000);
        reader.event(AckEvent::Ack { next: Reader::psn(1) });
        (0..packets).for_each(|_| reader.send());
        // The peer has stopped. The first probe is the packet sent last, the second probe is una.
        for probe in [packets, 1] {
            assert!(reader.expire());
            assert_eq!(reader.requester.recovery.next_psn(), Reader::psn(probe));
            reader.requester.recovery.on_sent(1, reader.now);
        }
        // The peer continues, and receives the first transmission of una, but no packet above una.
        let sack = |reader: &mut Reader, trigger: u32, bitmap: &[u8]| {
            reader.now = reader.now.plus_nanos(50_000);
            reader.sack(2, trigger, false, bitmap);
            reader.requester.recovery.next_psn() == Reader::psn(2)
        };
        assert_eq!(sack(&mut reader, 1, &[0; 4]), !is_doubtful, "{packets} in flight");
        // The SACK of a packet that was sent after the probes shows the loss of the packets in flight.
        if is_doubtful {
            reader.send();
            let sent_last = packets + 1;
            let mut bitmap = [0; 8];
            let (word, bit) = ((sent_last - 3) / 32, (sent_last - 3) % 32);
            bitmap[4 * word as usize..][..4].copy_from_slice(&(1u32 << bit).to_be_bytes());
            assert!(sack(&mut reader, sent_last, &bitmap), "{packets} in flight");
        }
    }
}
