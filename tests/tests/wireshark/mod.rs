//! docs/wireshark/roce-selective.lua, run by tshark over packets whose fields are known.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::Path;
use std::process::Command;

use netsim::LinkId;
use roce::id::{Gid, Mac, Msn, PKey, Qpn, RKey};
use roce::psn::Psn;
use roce::wire::{
    Aeth, Feth, FrameParts, HeaderSpec, HeaderTemplate, Opcode, PacketSpec, PrecedingReads, RecvEth, Reth,
    SackEth, Syndrome,
};
use tests::record::{self, Seen};

use crate::live::run;

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/wireshark/roce-selective.lua");
const SACK: Opcode = Opcode::RC_SELECTIVE_ACKNOWLEDGE;

/// A frame to an IPv4 or IPv6 address, whose extension headers and payload `fill` may write.
pub(crate) fn frame(
    is_ipv6: bool,
    spec: PacketSpec,
    fill: impl FnOnce(&mut FrameParts<'_>) -> Option<()>,
) -> Vec<u8> {
    let ip = |last| match is_ipv6 {
        true => IpAddr::V6(Ipv6Addr::new(0xFD00, 0, 0, 0, 0, 0, 0, last)),
        false => IpAddr::V4(Ipv4Addr::new(10, 0, 0, last as u8)),
    };
    let template = HeaderTemplate::new(&HeaderSpec {
        src_mac: Mac([2, 0, 0, 0, 0, 1]),
        dst_mac: Mac([2, 0, 0, 0, 0, 2]),
        vlan: None,
        src: Gid::from(ip(1)),
        dst: Gid::from(ip(2)),
        tclass: 0,
        ttl: 64,
        flow_label: 0,
        udp_source_port: 0xC000,
        pkey: PKey::DEFAULT,
        dest_qp: Qpn::new(0x123456),
    })
    .expect("one family");
    let ext_len = spec.opcode.info().expect("known").ext_len_bytes;
    let mut bytes = vec![0; template.frame_len(ext_len, spec.payload_len)];
    template.write(&mut bytes, &spec).and_then(|mut parts| fill(&mut parts)).expect("it fits");
    template.seal(&mut bytes).expect("it is whole");
    bytes
}

pub(crate) fn spec(opcode: Opcode, psn: u32, payload_len: usize) -> PacketSpec {
    PacketSpec {
        opcode,
        solicited: false,
        ack_req: false,
        preceding_reads: PrecedingReads::NONE,
        fecn: false,
        becn: false,
        psn: Psn::new(psn),
        ip_id: 0,
        payload_len,
    }
}

/// A selective acknowledge that `sacketh` triggered.
fn sack(is_ipv6: bool, psn: u32, sacketh: SackEth, bitmap: &[u32]) -> Vec<u8> {
    frame(is_ipv6, spec(SACK, psn, 4 * bitmap.len()), |parts| {
        let syndrome = Syndrome::Ack { credits: Syndrome::CREDITS_UNLIMITED };
        parts.set_aeth(Aeth { syndrome, msn: Msn::new(7) })?;
        parts.set_sacketh(sacketh)?;
        let bytes: Vec<u8> = bitmap.iter().flat_map(|word| word.to_be_bytes()).collect();
        parts.payload.copy_from_slice(&bytes);
        Some(())
    })
}

fn header(trigger: u32, duplicate: bool) -> SackEth {
    SackEth { version: SackEth::VERSION, duplicate, no_room: false, trigger: Psn::new(trigger) }
}

/// What tshark with the script says of `frames`: the given fields of each, separated by `|`, where a field
/// comes more than once by `,`.
fn dissect(name: &str, frames: Vec<Vec<u8>>, fields: &[&str]) -> Vec<String> {
    let count = frames.len();
    let seen = frames.into_iter().map(|frame| Seen { nanos: 0, link: LinkId(0), number: 0, frame });
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let capture = record::write(&seen.collect::<Vec<_>>(), directory, name).expect("it can be written");
    let mut command = Command::new("tshark");
    command.arg("-X").arg(format!("lua_script:{SCRIPT}")).arg("-r").arg(capture);
    command.args(["-T", "fields", "-E", "separator=|"]);
    for field in fields {
        command.args(["-e", field]);
    }
    let lines: Vec<String> = run(&mut command)
        .lines()
        // Newer versions write booleans as words.
        .map(|line| line.replace("True", "1").replace("False", "0"))
        .collect();
    assert_eq!(lines.len(), count, "a line for each frame: {lines:?}");
    lines
}

#[test]
fn selective_acknowledges_are_dissected_to_the_last_field() {
    let newer = SackEth { version: 2, ..header(0x21, false) };
    let mut cut = frame(false, spec(Opcode::RC_ACKNOWLEDGE, 0x20, 0), |_| Some(()));
    let bth_at = cut.len() - 4 - 4 - 12;
    cut[bth_at] = SACK.value();
    let lines = dissect(
        "wireshark-sack",
        vec![
            sack(false, 0x10, header(0x15, false), &[0b10011, 1]),
            sack(true, 0xFF_FFFE, header(0, true), &[0b11]),
            sack(false, 0x20, SackEth { no_room: true, ..header(0x1F, true) }, &[]),
            sack(false, 0x20, header(0x1021, false), &{
                let mut longest = [0; 128];
                longest[127] = 1 << 31;
                longest
            }),
            sack(false, 0x20, newer, &[1]),
            sack(false, 0x20, header(0x21, false), &[1; 129]),
            cut,
        ],
        &[
            "rocex.sack.psn",
            "rocex.sack.syndrome",
            "rocex.sack.msn",
            "rocex.sack.version",
            "rocex.sack.duplicate",
            "rocex.sack.no_room",
            "rocex.sack.trigger",
            "rocex.sack.received",
            "rocex.sack.missing",
            "rocex.sack.first",
            "rocex.sack.last",
            "rocex.sack.other_version",
            "rocex.sack.bad_bitmap",
            "rocex.too_short",
        ],
    );
    let said = |line: &str| line.trim_end_matches('|').to_owned();
    let expected = [
        "0x000010|0x1f|7|1|0|0|0x000015|4|30|0x000011,0x000015,0x000031|0x000012,0x000015,0x000031",
        "0xfffffe|0x1f|7|1|1|0|0x000000|2|1|0xffffff|0x000000",
        "0x000020|0x1f|7|1|1|1|0x00001f|0|1",
        "0x000020|0x1f|7|1|0|0|0x001021|1|4096|0x001020|0x001020",
    ];
    for (line, expected) in lines.iter().zip(expected) {
        assert_eq!(said(line), expected);
    }
    // A version that the script does not know, a bitmap too long, headers cut short.
    assert_eq!(
        lines[4..],
        [
            "0x000020|0x1f|7|2|0|0|0x000021|||||1||",
            "0x000020|0x1f|7|1|0|0|0x000021||||||1|",
            "0x000020|||||||||||||1",
        ]
    );
}

#[test]
fn numbered_sends_are_dissected() {
    let send = |opcode, recveth, payload: &'static [u8]| {
        frame(false, spec(opcode, 1, payload.len()), |parts| {
            parts.set_recveth(recveth)?;
            let _ = parts.set_immdt(0x0102_0304);
            parts.payload.copy_from_slice(payload);
            Some(())
        })
    };
    let mut cut = frame(false, spec(Opcode::RC_ACKNOWLEDGE, 1, 0), |_| Some(()));
    let bth_at = cut.len() - 4 - 4 - 12;
    cut[bth_at] = Opcode::RC_NUMBERED_SEND_ONLY.value();
    let (first, later) = (RecvEth { recv_seq: 0, packet: 0 }, RecvEth { recv_seq: 1 << 31, packet: 77 });
    let lines = dissect(
        "wireshark-sends",
        vec![
            send(Opcode::RC_NUMBERED_SEND_FIRST, first, &[1, 2, 3, 4]),
            send(Opcode::RC_NUMBERED_SEND_MIDDLE, later, &[5, 6, 7, 8]),
            send(Opcode::RC_NUMBERED_SEND_LAST, later, &[9]),
            send(Opcode::RC_NUMBERED_SEND_LAST_WITH_IMMEDIATE, later, &[1, 2, 3, 4]),
            send(Opcode::RC_NUMBERED_SEND_ONLY, first, &[]),
            send(Opcode::RC_NUMBERED_SEND_ONLY_WITH_IMMEDIATE, first, &[]),
            cut,
        ],
        &[
            "rocex.opcode",
            "rocex.send.receive",
            "rocex.send.packet",
            "rocex.send.immediate",
            "rocex.send.payload",
            "rocex.too_short",
        ],
    );
    assert_eq!(
        lines,
        [
            "0xe0|0|0||01020304|",
            "0xe1|2147483648|77||05060708|",
            "0xe2|2147483648|77||09000000|",
            "0xe3|2147483648|77|0x01020304|01020304|",
            "0xe4|0|0|||",
            "0xe5|0|0|0x01020304||",
            "0xe4|||||1",
        ]
    );
}

#[test]
fn what_the_dissector_of_4_0_lacks_is_shown_and_nothing_else() {
    let reth = Reth { va: 0x1122_3344_5566_7788, rkey: RKey(0xAABB_CCDD), len_bytes: 9 };
    let cnp = PacketSpec { becn: true, ..spec(Opcode::CNP, 0, 0) };
    let following = PacketSpec {
        preceding_reads: PrecedingReads::from_pkts(130),
        ..spec(Opcode::RC_RDMA_READ_REQUEST, 1, 0)
    };
    let marked = PacketSpec { fecn: true, ..spec(Opcode::RC_SEND_ONLY, 1, 4) };
    let frames = vec![
        frame(false, cnp, |_| Some(())),
        frame(true, spec(Opcode::RC_FLUSH, 1, 0), |parts| {
            parts.set_feth(Feth { placement: 2, selectivity: 1 })?;
            parts.set_reth(reth)
        }),
        frame(false, spec(Opcode::RC_ATOMIC_WRITE, 1, 8), |parts| {
            parts.set_reth(reth)?;
            parts.payload.copy_from_slice(&[1, 2, 3, 4, 5, 6, 7, 8]);
            Some(())
        }),
        frame(false, marked, |_| Some(())),
        frame(false, spec(Opcode::RC_SEND_ONLY, 1, 4), |_| Some(())),
        frame(false, spec(Opcode::RC_RDMA_READ_REQUEST, 1, 0), |parts| parts.set_reth(reth)),
        frame(false, following, |parts| parts.set_reth(reth)),
    ];
    let icrcs: Vec<String> = frames
        .iter()
        .map(|frame| format!("0x{:08x}", roce::wire::Packet::parse(frame).expect("a packet").icrc()))
        .collect();
    let lines = dissect(
        "wireshark-others",
        frames,
        &[
            "rocex.opcode",
            "rocex.icrc",
            "rocex.fecn",
            "rocex.becn",
            "rocex.cnp.reserved",
            "rocex.flush.global_visibility",
            "rocex.flush.persistence",
            "rocex.flush.selectivity",
            "rocex.reth.va",
            "rocex.reth.rkey",
            "rocex.reth.len",
            "rocex.atomic_write.value",
            "rocex.read.preceding_reads",
        ],
    );
    let reth = "0x1122334455667788|0xaabbccdd|9";
    assert_eq!(
        lines,
        [
            format!("0x81|{}|0|1|{}||||||||", icrcs[0], "00".repeat(16)),
            format!("0x1c|{}|0|0||0|1|1|{reth}||", icrcs[1]),
            format!("0x1d|{}|0|0|||||{reth}|0x0102030405060708|", icrcs[2]),
            format!("0x04|{}|1|0|||||||||", icrcs[3]),
            "|".repeat(12),
            "|".repeat(12),
            format!("0x0c|{}|0|0|||||||||128", icrcs[6]),
        ]
    );
}
