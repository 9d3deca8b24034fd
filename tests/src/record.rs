//! What a failing run leaves behind: a capture, and a line of text for each frame.

use std::cell::RefCell;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;
use std::{fs, io};

use netsim::{LinkId, Network};
use pcap_file::pcap::{PcapHeader, PcapPacket, PcapWriter};
use pcap_file::{DataLink, TsResolution};
use roce::wire::Packet;

/// A frame as it left a sender.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    /// When, in nanoseconds of virtual time.
    pub nanos: u64,
    /// On which link.
    pub link: LinkId,
    /// Its number on the link since the tape was put in.
    pub number: u64,
    /// The frame.
    pub frame: Vec<u8>,
}

/// All frames of a run, in order.
pub type Trace = Rc<RefCell<Vec<Seen>>>;

/// Records every frame of `network` from now on in `trace`.
pub fn record(network: &mut Network, trace: &Trace) {
    let record = trace.clone();
    network.set_recorder(move |seen| {
        record.borrow_mut().push(Seen {
            nanos: seen.nanos,
            link: seen.link,
            number: seen.number,
            frame: seen.frame.to_vec(),
        });
    });
}

/// Writes `name.pcap` and `name.txt` (the tape's frame numbers beside what each frame was) into
/// `directory`; returns the path of the capture.
pub fn write(trace: &[Seen], directory: &Path, name: &str) -> io::Result<PathBuf> {
    fs::create_dir_all(directory)?;
    let path = directory.join(format!("{name}.pcap"));
    let header = PcapHeader {
        datalink: DataLink::ETHERNET,
        ts_resolution: TsResolution::NanoSecond,
        ..PcapHeader::default()
    };
    let mut writer = PcapWriter::with_header(fs::File::create(&path)?, header).map_err(io::Error::other)?;
    let mut lines = String::new();
    for seen in trace {
        let timestamp = Duration::from_nanos(seen.nanos);
        let packet = PcapPacket::new(timestamp, seen.frame.len() as u32, &seen.frame);
        writer.write_packet(&packet).map_err(io::Error::other)?;
        let _ = writeln!(lines, "{}", line(seen)); // a String takes any text
    }
    fs::write(directory.join(format!("{name}.txt")), lines)?;
    Ok(path)
}

/// One frame in words.
pub fn line(seen: &Seen) -> String {
    let head = format!("{:>12} ns  link {} frame {:<4}", seen.nanos, seen.link.0, seen.number);
    match Packet::parse(&seen.frame) {
        Ok(packet) => format!(
            "{head} qp {} psn {} {}{} {} B{}",
            packet.bth.dest_qp,
            packet.bth.psn,
            packet.info.name,
            if packet.bth.ack_req { " AckReq" } else { "" },
            packet.payload.len(),
            packet.aeth().map(|aeth| format!(" {aeth:?}")).unwrap_or_default(),
        ),
        Err(error) => format!("{head} {} B ({error})", seen.frame.len()),
    }
}
