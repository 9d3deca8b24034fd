//! Captures of Linux soft-RoCE (rdma_rxe 6.1) in pcap/: parsed, rebuilt, and compared with pcap/SUMMARY.txt, the output
//! of an independent decoder.

use pcap_file::pcap::PcapReader;
use roce::wire::{FrameParts, HeaderSpec, HeaderTemplate, NakCode, Packet, PacketSpec, Syndrome};
use std::fs::File;
use std::path::PathBuf;

const PACKETS: usize = 396;
const CAPTURES: usize = 45;
/// Largest number of packets per capture in pcap/SUMMARY.txt, which lists the first packets of each capture.
const LISTED: usize = 40;

/// Words of IBA opcode names and their abbreviations in pcap/SUMMARY.txt, in the order of replacement.
const WORDS: [(&str, &str); 8] = [
    ("RDMA WRITE", "WR"),
    ("RDMA READ REQUEST", "RD_REQ"),
    ("RDMA READ RESPONSE MIDDLE", "RD_RESP_MID"),
    ("RDMA READ RESPONSE", "RD_RESP"),
    ("ACKNOWLEDGE", "ACK"),
    ("COMPARE SWAP", "CMP_SWAP"),
    ("WITH IMMEDIATE", "IMM"),
    (" ", "_"),
];

/// A capture in pcap/SUMMARY.txt.
struct Expected {
    file: String,
    packets: usize,
    lines: Vec<String>,
}

fn pcap_dir() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/pcap")
}

fn summary() -> Vec<Expected> {
    let text = std::fs::read_to_string(pcap_dir().join("SUMMARY.txt")).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    let mut told = Vec::new();
    for pair in lines.chunks(2) {
        let [head, list] = pair else { continue };
        let words: Vec<&str> = head.split_whitespace().collect();
        let good = |word: &str| word.split_once('/').unwrap().0.parse::<usize>().unwrap();
        told.push(Expected {
            file: words[0].to_owned(),
            packets: good(words[3]) + good(words[6]),
            lines: list.trim().split("; ").map(str::to_owned).collect(),
        });
    }
    told
}

fn frames(file: &str) -> Vec<Vec<u8>> {
    let mut reader = PcapReader::new(File::open(pcap_dir().join(file)).unwrap()).unwrap();
    let mut frames = Vec::new();
    while let Some(packet) = reader.next_packet() {
        frames.push(packet.unwrap().data.into_owned());
    }
    frames
}

/// Formats `packet` as an entry of pcap/SUMMARY.txt.
fn tell(packet: &Packet<'_>) -> String {
    let info = packet.info;
    let (transport, name) = info.name.split_once(' ').unwrap();
    let name = WORDS.iter().fold(name.to_owned(), |name, (word, short)| name.replace(word, short));
    let mut line = format!("{transport}.{name} psn={}", packet.bth.psn);
    if info.name.ends_with("ACKNOWLEDGE") {
        let kind = match packet.aeth().unwrap().syndrome {
            Syndrome::Ack { credits } => format!(" ACK:0x{credits:02x}"),
            Syndrome::RnrNak { timer } => format!(" RNR:0x{:02x}", 0x20 | timer),
            Syndrome::Nak(NakCode::PsnSequenceError) => " NAK:0x60".to_owned(),
            Syndrome::Nak(NakCode::RemoteAccessError) => " NAK:0x62".to_owned(),
            other => panic!("no capture has {other:?}"),
        };
        line.push_str(&kind);
    }
    line
}

#[test]
fn every_packet_decodes_to_what_the_summary_says() {
    let told = summary();
    assert_eq!(told.len(), CAPTURES);
    let mut packets = 0;
    for capture in &told {
        let frames = frames(&capture.file);
        assert_eq!(frames.len(), capture.packets, "{}", capture.file);
        assert_eq!(frames.len().min(LISTED), capture.lines.len(), "{}", capture.file);
        for (frame, i) in frames.iter().zip(0..) {
            let packet = Packet::parse(frame).unwrap_or_else(|e| panic!("{} {i}: {e}", capture.file));
            assert!(packet.icrc_ok(), "{} {i}", capture.file);
            if let Some(line) = capture.lines.get(i) {
                assert_eq!(&tell(&packet), line, "{} {i}", capture.file);
            }
        }
        packets += frames.len();
    }
    assert_eq!(packets, PACKETS);
}

#[test]
fn every_packet_encodes_to_the_same_bytes() {
    let mut packets = 0;
    for capture in summary() {
        for (frame, i) in frames(&capture.file).iter().zip(0..) {
            assert_eq!(&encode_again(frame), frame, "{} {i}", capture.file);
            packets += 1;
        }
    }
    assert_eq!(packets, PACKETS);
}

/// Rebuilds a frame from the values parsed from `frame`.
fn encode_again(frame: &[u8]) -> Vec<u8> {
    let packet = Packet::parse(frame).unwrap();
    let mut template = HeaderTemplate::new(&HeaderSpec {
        src_mac: packet.src_mac(),
        dst_mac: packet.dst_mac(),
        vlan: packet.vlan,
        src: packet.src_gid(),
        dst: packet.dst_gid(),
        tclass: packet.ip().tclass,
        ttl: packet.ip().ttl,
        flow_label: packet.ip().flow_label,
        udp_source_port: packet.udp_source_port,
        pkey: packet.bth.pkey,
        dest_qp: packet.bth.dest_qp,
    })
    .unwrap();
    template.set_mig_req(packet.bth.mig_req);
    let spec = PacketSpec {
        opcode: packet.bth.opcode,
        solicited: packet.bth.solicited,
        ack_req: packet.bth.ack_req,
        preceding_reads: packet.preceding_reads(),
        fecn: packet.bth.fecn,
        becn: packet.bth.becn,
        psn: packet.bth.psn,
        ip_id: u16::from_be_bytes([packet.l3()[4], packet.l3()[5]]),
        payload_len: packet.payload.len(),
    };
    let mut again = vec![0xEE; template.frame_len(packet.info.ext_len_bytes, packet.payload.len())];
    let mut parts = template.write(&mut again, &spec).unwrap();
    parts.payload.copy_from_slice(packet.payload);
    copy_ext(&packet, &mut parts);
    template.seal(&mut again).unwrap();
    again
}

fn copy_ext(packet: &Packet<'_>, parts: &mut FrameParts<'_>) {
    let mut copied = 0;
    let mut count = |set: Option<()>| {
        set.unwrap();
        copied += 1;
    };
    packet.reth().into_iter().for_each(|reth| count(parts.set_reth(reth)));
    packet.aeth().into_iter().for_each(|aeth| count(parts.set_aeth(aeth)));
    packet.deth().into_iter().for_each(|deth| count(parts.set_deth(deth)));
    packet.immdt().into_iter().for_each(|imm| count(parts.set_immdt(imm)));
    packet.atomiceth().into_iter().for_each(|atomic| count(parts.set_atomiceth(atomic)));
    packet.atomicacketh().into_iter().for_each(|atomic| count(parts.set_atomicacketh(atomic)));
    assert_eq!(copied, packet.info.headers.len());
}
