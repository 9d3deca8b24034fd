//! `roce dump`: captures, packet by packet.

mod capture;
mod content;
mod line;
mod sections;
mod summary;
#[cfg(test)]
mod tests;

use std::fs::File;
use std::io::{self, BufWriter, IsTerminal, LineWriter, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context as _;
use clap::Args;
use serde_json::json;
use verbs::Qpn;

use crate::progress::Progress;
use capture::{Capture, Frame};
use content::Content;
use summary::Summary;

/// Decode the RoCE v2 packets of a capture file.
///
/// Reads pcap (microseconds or nanoseconds) and pcapng, of Ethernet. Every packet is decoded from
/// Ethernet to ICRC, which is computed anew; frames of other protocols are named. Times are seconds
/// since the first frame.
#[derive(Args)]
#[command(after_help = "\
Examples:
  A capture made with --pcap or tcpdump, a line per packet:
      roce dump ping.pcap

  Only the negative acknowledgements, with every field:
      roce dump -v --opcode acknowledge ping.pcap

  Straight from an interface:
      tcpdump -i eth1 -w - udp port 4791 | roce dump -

  With jq, the PSNs of one queue pair:
      roce dump --json --qpn 0x11 ping.pcap | jq .bth.psn

Exit status: 0 when every RoCE packet shown is whole and has a right ICRC, 1 when one has not or the file
cannot be read to its end, 2 on wrong usage.")]
pub(crate) struct DumpArgs {
    /// The capture, or - for standard input.
    #[arg(value_name = "FILE")]
    file: PathBuf,

    /// Every field of every header, a line per header.
    #[arg(short, long)]
    verbose: bool,

    /// A JSON object per line: each frame, and at last the summary.
    #[arg(long, conflicts_with = "verbose")]
    json: bool,

    /// Only packets to this queue pair (or from it, where a datagram says so): 17 or 0x11.
    #[arg(long, value_name = "QPN", value_parser = parse_qpn, help_heading = "Filters")]
    qpn: Option<Qpn>,

    /// Only packets whose opcode's name holds this text: `write only`, `READ_RESPONSE`.
    #[arg(long, value_name = "TEXT", help_heading = "Filters")]
    opcode: Option<String>,

    /// Only malformed packets and those with a wrong ICRC.
    #[arg(long, help_heading = "Filters")]
    bad_only: bool,
}

fn parse_qpn(text: &str) -> Result<Qpn, String> {
    let number = match text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        Some(hex) => u32::from_str_radix(hex, 16).ok(),
        None => text.parse().ok(),
    };
    let number = number.filter(|number| *number < 1 << 24);
    number.map(Qpn::new).ok_or_else(|| "a queue pair number is below 2^24: 17 or 0x11".to_owned())
}

impl DumpArgs {
    fn wants(&self, content: &Content<'_>) -> bool {
        if self.bad_only && !content.is_bad() {
            return false;
        }
        let Content::Roce(packet) = content else { return self.qpn.is_none() && self.opcode.is_none() };
        let qpn_fits = self.qpn.is_none_or(|qpn| {
            packet.bth.dest_qp == qpn || packet.deth().is_some_and(|deth| deth.src_qp == qpn)
        });
        let opcode_fits = self
            .opcode
            .as_ref()
            .is_none_or(|text| packet.info.name.contains(&text.to_uppercase().replace(['_', '-'], " ")));
        qpn_fits && opcode_fits
    }
}

/// Prints the capture.
pub(crate) fn run(args: &DumpArgs) -> anyhow::Result<ExitCode> {
    let name = args.file.display();
    let is_stdin = args.file.as_os_str() == "-";
    let (input, len_bytes): (Box<dyn io::Read>, u64) = if is_stdin {
        (Box::new(io::stdin().lock()), 0)
    } else {
        let file = File::open(&args.file).with_context(|| format!("cannot open {name}"))?;
        let len_bytes = file.metadata().map_or(0, |metadata| metadata.len());
        (Box::new(file), len_bytes)
    };
    let stdout = io::stdout().lock();
    let is_live = is_stdin || stdout.is_terminal();
    let mut out: Box<dyn Write> =
        if is_live { Box::new(LineWriter::new(stdout)) } else { Box::new(BufWriter::new(stdout)) };
    // Because on a terminal the lines themselves show the progress.
    let progress = (!is_live).then(|| Progress::of(len_bytes, "decoding bytes"));
    let mut capture = Capture::open(input).with_context(|| name.to_string())?;
    match print(args, &mut capture, &mut out, progress) {
        Ok(code) => Ok(code),
        // Because the reader may close the pipe: `roce dump FILE | head`.
        Err(error) if is_broken_pipe(&error) => Ok(ExitCode::SUCCESS),
        Err(error) => Err(error.context(name.to_string())),
    }
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}

fn print(
    args: &DumpArgs,
    capture: &mut Capture,
    out: &mut dyn Write,
    mut progress: Option<Progress>,
) -> anyhow::Result<ExitCode> {
    let mut summary = Summary::default();
    let mut first_nanos = None;
    let mut read_bytes = 0;
    let end = loop {
        let frame = match capture.next() {
            Ok(Some(frame)) => frame,
            Ok(None) => break Ok(()),
            // Returned after the summary of the frames before it.
            Err(error) => break Err(error),
        };
        summary.frames += 1;
        let since_nanos = frame.unix_nanos.saturating_sub(*first_nanos.get_or_insert(frame.unix_nanos));
        let content = Content::of(&frame);
        if args.wants(&content) {
            summary.add(&content);
            print_frame(args, out, summary.frames, since_nanos, &frame, &content)?;
        }
        read_bytes += frame.data.len() as u64;
        if let Some(progress) = &mut progress
            && summary.frames.is_multiple_of(1024)
        {
            progress.set(read_bytes);
        }
    };
    if args.json {
        writeln!(out, "{}", serde_json::to_string(&json!({ "summary": summary }))?)?;
    } else {
        write!(out, "{summary}")?;
    }
    out.flush()?;
    end?;
    Ok(if summary.is_bad() { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn print_frame(
    args: &DumpArgs,
    out: &mut dyn Write,
    number: u64,
    since_nanos: u128,
    frame: &Frame,
    content: &Content<'_>,
) -> anyhow::Result<()> {
    if args.json {
        writeln!(out, "{}", json_line(number, frame, content)?)?;
        return Ok(());
    }
    let text = match content {
        Content::Roce(packet) => line::describe(packet),
        Content::Malformed(error) => format!("MALFORMED: {error}"),
        Content::Cut => "cut short by the capture (tcpdump -s 0 keeps whole frames)".to_owned(),
        Content::Other => line::describe_other(&frame.data),
    };
    let (seconds, nanos) = (since_nanos / 1_000_000_000, since_nanos % 1_000_000_000);
    writeln!(out, "{number:>6} {seconds:>4}.{nanos:09} {text} ({} bytes)", frame.wire_len_bytes)?;
    if args.verbose
        && let Content::Roce(packet) = content
    {
        for section in sections::sections(packet) {
            let fields: Vec<String> =
                section.fields.iter().map(|(name, value)| format!("{name} {value}")).collect();
            writeln!(out, "       {:<12} {}", section.name, fields.join(", "))?;
        }
    }
    Ok(())
}

/// Returns a frame as a JSON object with a member per header.
fn json_line(number: u64, frame: &Frame, content: &Content<'_>) -> serde_json::Result<String> {
    use serde::ser::{SerializeMap, Serializer as _};
    let mut bytes = Vec::new();
    let mut serializer = serde_json::Serializer::new(&mut bytes);
    let mut map = serializer.serialize_map(None)?;
    map.serialize_entry("frame", &number)?;
    // As text, because nanoseconds since 1970 need more bits than JSON numbers are sure to have.
    map.serialize_entry("unix_nanos", &frame.unix_nanos.to_string())?;
    map.serialize_entry("wire_len_bytes", &frame.wire_len_bytes)?;
    match content {
        Content::Roce(packet) => {
            for section in sections::sections(packet) {
                map.serialize_entry(section.name, &section)?;
            }
        }
        Content::Malformed(error) => map.serialize_entry("malformed", &error.to_string())?,
        Content::Cut => map.serialize_entry("cut", &true)?,
        Content::Other => map.serialize_entry("other", &line::describe_other(&frame.data))?,
    }
    map.end()?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}
