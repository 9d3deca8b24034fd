//! Batches of frames that a device drops, and of ARP and ICMP frames that neighbours send to a dedicated port.
#![allow(dead_code)] // each bench uses a part

use super::BATCH_PKTS;
use etherparse::{ArpEthIpv4Packet, ArpOperation, ArpPacket, PacketBuilder};
use roce::engine::{Engine, EngineConfig};
use roce::id::Mac;
use roce::neighbour::{Mode, NeighbourConfig};
use roce::port::loopback::{Loopback, LoopbackPort};
use roce::port::{Port, PortCaps};
use roce::time::Instant;

const OWN: Mac = Mac([2, 0, 0, 0, 0, 1]);
const STRANGER: Mac = Mac([2, 0, 0, 0, 0, 9]);
const OWN_IP: [u8; 4] = [10, 0, 0, 1];
const ECHO_BYTES: usize = 1000;

/// Kind of the frames in a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LinkJunk {
    /// A RoCE packet of 4 KiB to the MAC of another station.
    OtherStation,
    /// A RoCE packet of 4 KiB to the broadcast MAC.
    Broadcast,
    /// A broadcast ARP request for an address that is not the port's.
    ArpForOthers,
    /// An ARP request for the port's address, beyond the rate limit of its source.
    ArpForUs,
    /// An echo request of 1,000 bytes, beyond the rate limit of its source.
    Echo,
    /// An unsolicited ARP reply that claims the IP address of a known neighbour.
    Claim,
}

/// A device on a dedicated port, and a batch of frames of one kind in flight to the device.
pub(crate) struct Flood {
    engine: Engine<LoopbackPort>,
    /// The port of the neighbours, which sends the batch to the device.
    wire: LoopbackPort,
}

impl Flood {
    pub(crate) fn new(junk: LinkJunk) -> Box<Self> {
        let caps = |mac| PortCaps { mac, mtu_bytes: 4200 };
        let (port, wire) = Loopback::pair(caps(OWN), caps(STRANGER), 4 * BATCH_PKTS as usize);
        let neighbour = NeighbourConfig {
            mac: OWN,
            mode: Mode::Dedicated,
            gids: vec![(OWN_IP.into(), 24)],
            gateway_v4: None,
            gateway_v6: None,
            vlan: None,
        };
        let mut engine = Engine::new(port, EngineConfig::new([1; 32], neighbour)).expect("an address");
        engine.neighbour_mut().set_neighbour([10, 0, 0, 2].into(), Mac([2, 0, 0, 0, 0, 2]));
        let mut flood = Box::new(Flood { engine, wire });
        for _ in 0..3 {
            flood.put(junk);
            flood.receive();
            // The first poll has received the batch; further polls send the replies.
            (0..BATCH_PKTS).for_each(|_| flood.receive());
            let mut answers = Vec::new();
            while flood.wire.rx_burst(&mut answers, 32) > 0 {}
        }
        flood.put(junk);
        flood
    }

    fn put(&mut self, junk: LinkJunk) {
        let frame = frame(junk);
        for _ in 0..BATCH_PKTS {
            self.wire.tx_reserve(frame.len()).expect("room").copy_from_slice(&frame);
        }
        self.wire.tx_flush();
    }

    /// Polls once, so that the engine receives the batch.
    pub(crate) fn receive(&mut self) {
        self.engine.poll(Instant::from_nanos(1));
    }
}

fn frame(junk: LinkJunk) -> Vec<u8> {
    let arp = |operation, destination: Mac, sender, target| {
        let packet = ArpEthIpv4Packet {
            operation,
            sender_mac: STRANGER.0,
            sender_ipv4: sender,
            target_mac: OWN.0,
            target_ipv4: target,
        };
        let mut frame = Vec::new();
        let builder = PacketBuilder::ethernet2(STRANGER.0, destination.0).arp(ArpPacket::from(packet));
        builder.write_to_vec(&mut frame).expect("a vector takes all");
        frame
    };
    match junk {
        LinkJunk::OtherStation => super::frame(4096),
        LinkJunk::Broadcast => [&Mac::BROADCAST.0, &super::frame(4096)[6..]].concat(),
        LinkJunk::ArpForOthers => arp(ArpOperation::REQUEST, Mac::BROADCAST, [10, 0, 0, 9], [10, 0, 0, 8]),
        LinkJunk::ArpForUs => arp(ArpOperation::REQUEST, Mac::BROADCAST, [10, 0, 0, 9], OWN_IP),
        LinkJunk::Claim => arp(ArpOperation::REPLY, OWN, [10, 0, 0, 2], OWN_IP),
        LinkJunk::Echo => {
            let mut frame = Vec::new();
            PacketBuilder::ethernet2(STRANGER.0, OWN.0)
                .ipv4([10, 0, 0, 9], OWN_IP, 64)
                .icmpv4_echo_request(1, 1)
                .write_to_vec(&mut frame, &[0; ECHO_BYTES])
                .expect("a vector takes all");
            frame
        }
    }
}
