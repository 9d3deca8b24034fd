//! A packet as headers with named fields: what `-v` and `--json` print.

use std::fmt;

use roce::wire::{Aeth, ExtHeader, NakCode, Packet, Syndrome, icrc, rnr_timer_nanos};
use serde::ser::{Serialize, SerializeMap, Serializer};

/// The value of a field.
pub(super) enum Value {
    /// A number.
    Number(u64),
    /// A number of 24 bits, also shown in hexadecimal: a QPN, a PSN.
    Id(u32),
    /// A number shown in hexadecimal only: an address, a key.
    Hex(u64, usize),
    /// A bit.
    Flag(bool),
    /// Any other value.
    Text(String),
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::Number(number) => write!(f, "{number}"),
            Value::Id(id) => write!(f, "0x{id:06x}"),
            Value::Hex(number, digits) => write!(f, "0x{number:0digits$x}"),
            Value::Flag(flag) => write!(f, "{}", u8::from(*flag)),
            Value::Text(text) => f.write_str(text),
        }
    }
}

impl Serialize for Value {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Value::Number(number) => serializer.serialize_u64(*number),
            Value::Id(id) => serializer.serialize_u32(*id),
            Value::Hex(..) => serializer.collect_str(self),
            Value::Flag(flag) => serializer.serialize_bool(*flag),
            Value::Text(text) => serializer.serialize_str(text),
        }
    }
}

/// A header: its name and its fields in the order of the wire.
pub(super) struct Section {
    pub(super) name: &'static str,
    pub(super) fields: Vec<(&'static str, Value)>,
}

impl Serialize for Section {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.fields.len()))?;
        for (name, value) in &self.fields {
            map.serialize_entry(name, value)?;
        }
        map.end()
    }
}

/// Returns all headers of a packet, from Ethernet to ICRC.
pub(super) fn sections(packet: &Packet<'_>) -> Vec<Section> {
    let mut sections = lower(packet);
    sections.push(bth(packet));
    sections.extend(packet.info.headers.iter().filter_map(|header| extension(packet, *header)));
    if packet.info.has_payload {
        let fields = vec![("len_bytes", Value::Number(packet.payload.len() as u64))];
        sections.push(Section { name: "payload", fields });
    }
    let mut tail = vec![("value", Value::Hex(packet.icrc().into(), 8))];
    match icrc::compute(packet.l3()) {
        Some(computed) if computed != packet.icrc() => {
            tail.push(("verdict", Value::Text("wrong".into())));
            tail.push(("computed", Value::Hex(computed.into(), 8)));
        }
        _ => tail.push(("verdict", Value::Text("ok".into()))),
    }
    sections.push(Section { name: "icrc", fields: tail });
    sections
}

/// Ethernet, IP and UDP.
fn lower(packet: &Packet<'_>) -> Vec<Section> {
    let text = |value: &dyn fmt::Display| Value::Text(value.to_string());
    let mut eth = vec![("src", text(&packet.src_mac())), ("dst", text(&packet.dst_mac()))];
    if let Some(tci) = packet.vlan {
        eth.push(("vlan", Value::Number((tci & 0xFFF).into())));
        eth.push(("priority", Value::Number((tci >> 13).into())));
    }
    let ip = packet.ip();
    let mut fields = vec![
        ("src", text(&packet.src_gid().ip())),
        ("dst", text(&packet.dst_gid().ip())),
        ("dscp", Value::Number((ip.tclass >> 2).into())),
        ("ecn", Value::Text(ecn_name(ip.tclass).into())),
    ];
    let name = if ip.is_ipv6 {
        fields.push(("hop_limit", Value::Number(ip.ttl.into())));
        fields.push(("flow_label", Value::Hex(ip.flow_label.into(), 5)));
        "ipv6"
    } else {
        fields.push(("ttl", Value::Number(ip.ttl.into())));
        "ipv4"
    };
    let udp = vec![
        ("src_port", Value::Number(packet.udp_source_port.into())),
        ("dst_port", Value::Number(roce::wire::udp::ROCE_PORT.into())),
    ];
    vec![Section { name: "eth", fields: eth }, Section { name, fields }, Section { name: "udp", fields: udp }]
}

/// The codepoints of explicit congestion notification (RFC 3168).
fn ecn_name(tclass: u8) -> &'static str {
    match tclass & 3 {
        0 => "not-ECT",
        1 => "ECT(1)",
        2 => "ECT(0)",
        _ => "CE",
    }
}

fn bth(packet: &Packet<'_>) -> Section {
    let bth = packet.bth;
    let mut fields = vec![
        ("opcode", Value::Hex(bth.opcode.value().into(), 2)),
        ("name", Value::Text(packet.info.name.into())),
        ("se", Value::Flag(bth.solicited)),
        ("mig_req", Value::Flag(bth.mig_req)),
        ("pad", Value::Number(bth.pad_bytes.into())),
        ("tver", Value::Number(bth.tver.into())),
        ("pkey", Value::Hex(bth.pkey.0.into(), 4)),
        ("fecn", Value::Flag(bth.fecn)),
        ("becn", Value::Flag(bth.becn)),
        ("dest_qp", Value::Id(bth.dest_qp.value())),
        ("ack_req", Value::Flag(bth.ack_req)),
        ("psn", Value::Id(bth.psn.value())),
    ];
    if packet.preceding_reads().pkts() > 0 {
        fields.push(("preceding_reads", Value::Number(packet.preceding_reads().pkts().into())));
    }
    Section { name: "bth", fields }
}

/// An extension header, if it has fields with a meaning.
fn extension(packet: &Packet<'_>, header: ExtHeader) -> Option<Section> {
    let va = |va| ("va", Value::Hex(va, 16));
    let rkey = |rkey: verbs::RKey| ("rkey", Value::Hex(rkey.0.into(), 8));
    let (name, fields) = match header {
        ExtHeader::Reth => {
            let reth = packet.reth()?;
            ("reth", vec![va(reth.va), rkey(reth.rkey), ("len_bytes", Value::Number(reth.len_bytes.into()))])
        }
        ExtHeader::Aeth => ("aeth", aeth(packet.aeth()?)),
        ExtHeader::AtomicEth => {
            let atomic = packet.atomiceth()?;
            let operands = [
                ("swap_or_add", Value::Number(atomic.swap_or_add)),
                ("compare", Value::Number(atomic.compare)),
            ];
            ("atomiceth", [va(atomic.va), rkey(atomic.rkey)].into_iter().chain(operands).collect())
        }
        ExtHeader::AtomicAckEth => {
            ("atomicacketh", vec![("original", Value::Number(packet.atomicacketh()?.original))])
        }
        ExtHeader::ImmDt => ("immdt", vec![("imm", Value::Hex(packet.immdt()?.into(), 8))]),
        ExtHeader::Ieth => ("ieth", vec![rkey(packet.ieth()?.rkey)]),
        ExtHeader::Deth => {
            let deth = packet.deth()?;
            let qkey = ("qkey", Value::Hex(deth.qkey.0.into(), 8));
            ("deth", vec![qkey, ("src_qp", Value::Id(deth.src_qp.value()))])
        }
        ExtHeader::XrcEth => ("xrceth", vec![("srqn", Value::Id(packet.xrceth()?.srqn))]),
        ExtHeader::Feth => {
            let feth = packet.feth()?;
            let placement = ("placement", Value::Number(feth.placement.into()));
            ("feth", vec![placement, ("selectivity", Value::Number(feth.selectivity.into()))])
        }
        ExtHeader::SackEth => {
            let sacketh = packet.sacketh()?;
            let version = ("version", Value::Number(sacketh.version.into()));
            let duplicate = ("duplicate", Value::Number(sacketh.duplicate.into()));
            let no_room = ("no_room", Value::Number(sacketh.no_room.into()));
            ("sacketh", vec![version, duplicate, no_room, ("trigger", Value::Id(sacketh.trigger.value()))])
        }
        ExtHeader::RecvEth => {
            let recveth = packet.recveth()?;
            let receive = ("receive", Value::Number(recveth.recv_seq.into()));
            ("recveth", vec![receive, ("packet", Value::Number(recveth.packet.into()))])
        }
        ExtHeader::Rdeth | ExtHeader::CnpReserved => return None,
    };
    Some(Section { name, fields })
}

fn aeth(aeth: Aeth) -> Vec<(&'static str, Value)> {
    vec![
        ("syndrome", Value::Hex(aeth.syndrome.byte().into(), 2)),
        ("meaning", Value::Text(syndrome_text(aeth.syndrome))),
        ("msn", Value::Number(aeth.msn.value().into())),
    ]
}

/// Returns the meaning of a syndrome (IBA tables 44 to 46).
pub(super) fn syndrome_text(syndrome: Syndrome) -> String {
    match syndrome {
        Syndrome::Ack { credits: Syndrome::CREDITS_UNLIMITED } => "ACK".into(),
        Syndrome::Ack { credits } => format!("ACK, {} credits", credit_count(credits)),
        Syndrome::RnrNak { timer } => {
            let micros = rnr_timer_nanos(timer) / 1000;
            format!("RNR NAK, wait {}.{:02} ms", micros / 1000, micros % 1000 / 10)
        }
        Syndrome::Nak(code) => format!("NAK {}", nak_text(code)),
        Syndrome::Reserved(byte) => format!("reserved syndrome 0x{byte:02x}"),
    }
}

fn nak_text(code: NakCode) -> String {
    match code {
        NakCode::PsnSequenceError => "PSN sequence error".into(),
        NakCode::InvalidRequest => "invalid request".into(),
        NakCode::RemoteAccessError => "remote access error".into(),
        NakCode::RemoteOperationalError => "remote operational error".into(),
        NakCode::InvalidRdRequest => "invalid RD request".into(),
        NakCode::Reserved(code) => format!("of reserved code {code}"),
    }
}

/// Returns the receives that a credit code below 31 stands for: 0 1 2 3 4 6 8 12 16 ... 32768.
fn credit_count(code: u8) -> u32 {
    match code {
        0 => 0,
        odd if odd % 2 == 1 && odd > 1 => 3 << ((odd - 3) / 2),
        code => 1 << (code / 2),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credit_codes_count_in_steps_of_half_a_power() {
        let counts: Vec<u32> = (0..10).map(credit_count).collect();
        assert_eq!(counts, [0, 1, 2, 3, 4, 6, 8, 12, 16, 24]);
        assert_eq!(credit_count(30), 32768);
    }

    #[test]
    fn syndromes_are_told_in_words() {
        for (byte, text) in [
            (0x1F, "ACK"),
            (0x05, "ACK, 6 credits"),
            (0x2C, "RNR NAK, wait 0.64 ms"),
            (0x20, "RNR NAK, wait 655.36 ms"),
            (0x60, "NAK PSN sequence error"),
            (0x62, "NAK remote access error"),
            (0x6A, "NAK of reserved code 10"),
            (0x80, "reserved syndrome 0x80"),
        ] {
            assert_eq!(syndrome_text(Syndrome::from_byte(byte)), text);
        }
    }
}
