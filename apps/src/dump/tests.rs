//! Output of `roce dump` for captures of Linux's soft-RoCE.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use clap::Parser;
use pcap_file::DataLink;
use pcap_file::pcapng::PcapNgWriter;
use pcap_file::pcapng::blocks::enhanced_packet::EnhancedPacketBlock;
use pcap_file::pcapng::blocks::interface_description::{
    InterfaceDescriptionBlock, InterfaceDescriptionOption,
};

use super::*;

#[derive(Parser)]
struct Cli {
    #[command(flatten)]
    dump: DumpArgs,
}

fn pcap_dir() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../roce/tests/pcap")
}

/// Returns the output of `roce dump ARGS...` for `input`, and its exit status.
fn dump_input(args: &[&str], input: Vec<u8>) -> (String, ExitCode) {
    let args = Cli::try_parse_from(["dump", "-"].iter().chain(args)).unwrap().dump;
    let mut capture = Capture::open(Box::new(io::Cursor::new(input))).unwrap();
    let mut out = Vec::new();
    let code = print(&args, &mut capture, &mut out, None).unwrap();
    (String::from_utf8(out).unwrap(), code)
}

fn dump(args: &[&str], file: &str) -> (String, ExitCode) {
    dump_input(args, fs::read(pcap_dir().join(file)).unwrap())
}

/// A line's opcode, PSN and syndrome in the words of SUMMARY.txt.
fn in_summary_words(json: &serde_json::Value) -> String {
    let bth = &json["bth"];
    let name = bth["name"].as_str().unwrap().replace("RDMA ", "").replace("WITH IMMEDIATE", "IMM");
    let name = [
        ("ATOMIC ACKNOWLEDGE", "ATOMIC_ACK"),
        ("ACKNOWLEDGE", "ACK"),
        ("READ RESPONSE", "RD_RESP"),
        ("READ REQUEST", "RD_REQ"),
        ("RD_RESP MIDDLE", "RD_RESP MID"),
        ("WRITE", "WR"),
        ("COMPARE SWAP", "CMP_SWAP"),
    ]
    .iter()
    .fold(name, |name, (long, short)| name.replace(long, short));
    let name = name.replacen(' ', ".", 1).replace(' ', "_");
    let mut words = format!("{name} psn={:06x}", bth["psn"].as_u64().unwrap());
    if name.ends_with("ACK") {
        let syndrome = json["aeth"]["syndrome"].as_str().unwrap();
        let kind = json["aeth"]["meaning"].as_str().unwrap().split(' ').next().unwrap().to_owned();
        words.push_str(&format!(" {kind}:{syndrome}"));
    }
    words
}

#[test]
fn all_captures_decode_to_what_their_summary_says() {
    let told = fs::read_to_string(pcap_dir().join("SUMMARY.txt")).unwrap();
    let lines: Vec<&str> = told.lines().collect();
    let mut packets = 0;
    for pair in lines.chunks_exact(2) {
        let file = pair[0].split_whitespace().next().unwrap();
        let (text, code) = dump(&["--json"], file);
        assert_eq!(code, ExitCode::SUCCESS, "{file}");
        let objects: Vec<serde_json::Value> =
            text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let (summary, frames) = objects.split_last().unwrap();
        assert_eq!(summary["summary"]["icrc_wrong"], 0, "{file}");
        assert_eq!(summary["summary"]["roce_packets"], frames.len(), "{file}");
        let found: Vec<String> = frames.iter().map(in_summary_words).collect();
        let expected: Vec<&str> = pair[1].trim().split("; ").collect();
        assert!(found.len() >= expected.len(), "{file}");
        assert_eq!(found[..expected.len()], expected, "{file}");
        packets += frames.len();
    }
    assert_eq!(packets, 396);
}

/// To accept what is printed now: UPDATE_SNAPSHOTS=1 cargo test -p apps
fn assert_snapshot(name: &str, text: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/dump/snapshots").join(name);
    if std::env::var_os("UPDATE_SNAPSHOTS").is_some() {
        fs::write(&path, text).unwrap();
    }
    let expected = fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(text, expected, "differs from {}", path.display());
}

#[test]
fn lines_are_as_pinned() {
    let mut text = String::new();
    for file in [
        "rc_send_pad_v4.pcap",
        "rc_send_imm_v4.pcap",
        "rc_write_imm_multi_v4.pcap",
        "rc_read_small_v4.pcap",
        "rc_nak_access_read_v4.pcap",
        "rc_rnr_nak_v4.pcap",
        "rc_loss_mid_write_v6.pcap",
        "rc_fetch_add_v6.pcap",
        "rc_cmp_swap_v4.pcap",
        "ud_send_imm_v4.pcap",
    ] {
        text.push_str(&format!("== {file}\n{}", dump(&[], file).0));
    }
    assert_snapshot("lines.txt", &text);
}

#[test]
fn headers_and_json_are_as_pinned() {
    let mut text = String::new();
    for file in ["rc_write_imm_v4.pcap", "rc_fetch_add_v6.pcap", "ud_send_v4.pcap"] {
        text.push_str(&dump(&["-v"], file).0);
        text.push_str(&dump(&["--json"], file).0);
    }
    assert_snapshot("headers.txt", &text);
}

#[test]
fn filters_keep_what_they_say() {
    let file = "rc_loss_mid_write_v6.pcap";
    let count = |args: &[&str]| dump(args, file).0.lines().take_while(|line| !line.is_empty()).count();
    assert_eq!(count(&[]), 14);
    assert_eq!(count(&["--opcode", "acknowledge"]), 2);
    assert_eq!(count(&["--opcode", "write_middle"]), 10);
    assert_eq!(count(&["--bad-only"]), 0);
    assert_eq!(count(&["--qpn", "53"]), 14);
    assert_eq!(count(&["--qpn", "0x34"]), 0);
    assert!(dump(&["--qpn", "1"], "cm_rping_v4.pcap").0.contains("29 frames, 5 shown"));
}

#[test]
fn damage_is_found_and_changes_the_exit_status() {
    let mut bytes = fs::read(pcap_dir().join("rc_send_pad_v4.pcap")).unwrap();
    // File header 24, packet header 16, Ethernet 14, IPv4 20, UDP 8, BTH 12: the first payload byte.
    bytes[24 + 16 + 14 + 20 + 8 + 12] ^= 1;
    let (text, code) = dump_input(&["--bad-only"], bytes.clone());
    assert_eq!(code, ExitCode::FAILURE);
    assert!(text.contains("ICRC WRONG") && text.contains("2 frames, 1 shown"), "{text}");
    let (text, _) = dump_input(&["-v"], bytes.clone());
    assert!(text.contains("verdict wrong, computed 0x"), "{text}");
    // The BTH's transport version.
    bytes[24 + 16 + 14 + 20 + 8 + 1] |= 1;
    let (text, code) = dump_input(&[], bytes);
    assert_eq!(code, ExitCode::FAILURE);
    assert!(text.contains("MALFORMED: unknown transport header version"), "{text}");
}

#[test]
fn other_frames_take_a_line_each() {
    for (tail, told) in [
        (vec![0x08, 0x06, 0, 1], "not RoCE v2: ARP"),
        (vec![0x81, 0x00, 0, 5, 0x88, 0xCC], "not RoCE v2: LLDP"),
        (vec![0x86, 0xDD, 0x60, 0, 0, 0, 0, 0, 58, 255], "not RoCE v2: IPv6 ICMPv6"),
        (vec![0x88], "without a whole Ethernet header"),
    ] {
        let frame = [vec![2; 12], tail].concat();
        assert!(line::describe_other(&frame).contains(told), "{told}");
    }
}

/// A pcapng file of two frames, one cut, in time units of 2^-`exponent` seconds or 10^-`exponent`.
fn pcapng(resolution: u8, units: [u64; 2]) -> Vec<u8> {
    let file = File::open(pcap_dir().join("rc_send_small_v4.pcap")).unwrap();
    let mut capture = Capture::open(Box::new(file)).unwrap();
    let mut writer = PcapNgWriter::new(Vec::new()).unwrap();
    let mut interface = InterfaceDescriptionBlock::new(DataLink::ETHERNET, 0);
    interface.options.push(InterfaceDescriptionOption::IfTsResol(resolution));
    writer.write_pcapng_block(interface).unwrap();
    for (unit, cut) in units.into_iter().zip([0, 20]) {
        let frame = capture.next().unwrap().unwrap();
        let kept = frame.data.len() - cut;
        writer
            .write_pcapng_block(EnhancedPacketBlock {
                interface_id: 0,
                timestamp: std::time::Duration::from_nanos(unit),
                original_len: frame.wire_len_bytes,
                data: frame.data[..kept].to_vec().into(),
                options: vec![],
            })
            .unwrap();
    }
    writer.into_inner()
}

#[test]
fn pcapng_is_read_with_the_time_units_of_its_interface() {
    for (resolution, units, told) in [
        (6, [5_000_000, 6_500_000], "1.500000000"),
        (9, [5_000_000_000, 6_500_000_000], "1.500000000"),
        (0x81, [10, 13], "1.500000000"),
    ] {
        let (text, code) = dump_input(&[], pcapng(resolution, units));
        assert_eq!(code, ExitCode::SUCCESS);
        assert!(text.contains(told) && text.contains("cut short by the capture"), "{text}");
    }
}

#[test]
fn a_file_that_ends_early_is_an_error_after_what_was_whole() {
    let bytes = fs::read(pcap_dir().join("rc_send_small_v4.pcap")).unwrap();
    let args = Cli::try_parse_from(["dump", "-"]).unwrap().dump;
    let mut capture = Capture::open(Box::new(io::Cursor::new(bytes[..bytes.len() - 7].to_vec()))).unwrap();
    let mut out = Vec::new();
    let error = print(&args, &mut capture, &mut out, None).unwrap_err();
    assert!(error.to_string().contains("ends in the middle of a packet"), "{error}");
    assert!(String::from_utf8(out).unwrap().contains("1 frames"));
    for junk in [b"".to_vec(), b"hello, world, this is no capture".to_vec()] {
        assert!(Capture::open(Box::new(io::Cursor::new(junk))).is_err());
    }
}

#[test]
fn wrong_usage_is_told() {
    let said = |args: &[&str]| match Cli::try_parse_from(["dump"].iter().chain(args)) {
        Ok(_) => panic!("{args:?} was accepted"),
        Err(error) => error.to_string(),
    };
    assert!(said(&[]).contains("<FILE>"));
    assert!(said(&["f", "--qpn", "0x1000000"]).contains("below 2^24"));
    assert!(said(&["f", "--json", "-v"]).contains("cannot be used with"));
}
