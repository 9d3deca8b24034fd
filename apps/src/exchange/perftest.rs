//! The records of perftest's TCP exchange (versions 5.70 and later), of which each end sends the same number in
//! lockstep, the client first.
//!
//! ```text
//!   version, 16 bytes: "6.06" and NULs             line, 108 bytes: LID:READS:QPN:PSN:RKEY:ADDRESS:GID:SRQN: and NUL,
//!   cycle buffer, 4 bytes, big-endian                hexadecimal of fixed width, the GID as 16 fields of one byte
//!   cache line, 4 bytes, big-endian                report, five records of 8 bytes, big-endian: size, iterations,
//!   path MTU, 2 bytes: enum ibv_mtu as text          and as floats peak, average, messages per microsecond
//! ```

use roce::qp::{Endpoint, EndpointError, PathMtu};

use super::limits::{ITERS, OUTS, QPS, SIZE_BYTES_MAX, quote};

const VERSION_BYTES: usize = 16;
/// Ends of the records of a greeting: version, cycle buffer, cache line and path MTU.
pub(crate) const GREETING_ENDS: [usize; 4] = [VERSION_BYTES, 20, 24, GREETING_BYTES];
pub(crate) const GREETING_BYTES: usize = 26;
pub(crate) const LINE_BYTES: usize = 108;
/// Bytes of the line of an end that uses no GID, as on InfiniBand.
pub(crate) const SHORT_LINE_BYTES: usize = 59;
/// Bytes of memory in which small messages cycle: a page.
pub(crate) const CYCLE_BYTES: u32 = 4096;
/// The least distance of messages in this memory.
const CACHE_LINE_BYTES: u32 = 64;
pub(crate) const REPORT_RECORDS: usize = 5;
/// Last bytes of either end, which the peer does not answer.
pub(crate) const DONE: [u8; 5] = *b"done\0";

/// The version that this end sends. Later versions exchange the same records with a peer of this version.
const OWN_VERSION: &[u8; 4] = b"6.06";
/// The oldest version that sends the same records.
const OLDEST_VERSION: f64 = 5.70;
/// Hexadecimal digits of the fields of a line.
const WIDTHS: [usize; 23] = [4, 4, 6, 6, 8, 16, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 8];

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum RecordError {
    #[error("the peer's version `{0}` is none of perftest from {OLDEST_VERSION:.2} on: use a later perftest")]
    Version(String),
    #[error(
        "the peer's cycle buffer has {0} bytes: leave out its --cycle_buffer, or give it 1 to {SIZE_BYTES_MAX}"
    )]
    CycleBuffer(i32),
    #[error("the peer's path MTU `{0}` is not 1 to 5, for 256 to 4096 bytes")]
    Mtu(String),
    #[error("`{0}` is no line of perftest: is the peer of another version?")]
    Line(String),
    /// A line of [`SHORT_LINE_BYTES`].
    #[error(
        "the peer's line has no GID, and RoCE cannot do without: start perftest with -x INDEX (`show_gids` or \
         `ibv_devinfo -v` lists them; on rxe 1 is the IPv4 address)"
    )]
    NoGid,
    #[error("a queue pair of the peer: {0}")]
    Endpoint(#[from] EndpointError),
    /// A shared receive queue is the destination.
    #[error("the peer's connection type is XRC or DC, and only RC and UC are supported: leave out its -c")]
    Srq,
    #[error(
        "the peer's report counts {iterations} messages of {size_bytes} bytes, more than a test can have"
    )]
    Report {
        /// Bytes of a message.
        size_bytes: u64,
        /// Messages.
        iterations: u64,
    },
}

/// Returns whether a first message that begins with these bytes is perftest's: the first message of `roce perf` begins
/// with punctuation.
pub(crate) fn is_version(bytes: &[u8]) -> bool {
    bytes.first().is_some_and(u8::is_ascii_digit)
}

pub(crate) fn greeting(path_mtu: PathMtu) -> [u8; GREETING_BYTES] {
    let mut version = [0; VERSION_BYTES];
    version.iter_mut().zip(OWN_VERSION).for_each(|(to, from)| *to = *from);
    let (cycle, cache_line, mtu) = (CYCLE_BYTES.to_be_bytes(), CACHE_LINE_BYTES.to_be_bytes(), mtu(path_mtu));
    let records = version.into_iter().chain(cycle).chain(cache_line).chain(mtu);
    let mut greeting = [0; GREETING_BYTES];
    greeting.iter_mut().zip(records).for_each(|(to, from)| *to = from);
    greeting
}

/// Returns the number of bytes of its greeting that a server sends after `received` bytes of the client: each record of
/// the server follows that of the client.
pub(crate) fn greeting_due(received: usize) -> usize {
    GREETING_ENDS.into_iter().take_while(|end| *end <= received).last().unwrap_or(0)
}

/// Checks the beginning of a peer's greeting and line, as far as it has arrived. Otherwise a server would wait for
/// records that a peer of an old version, or without a GID, does not send.
pub(crate) fn check_start(bytes: &[u8]) -> Result<(), RecordError> {
    if let Some((version, _)) = bytes.split_at_checked(VERSION_BYTES) {
        check_version(version)?;
    }
    check_has_gid(bytes.get(GREETING_BYTES..).unwrap_or_default())
}

/// Returns the bytes of the peer's cycle buffer, and its path MTU. `bytes` begin with its greeting.
pub(crate) fn parse_greeting(bytes: &[u8]) -> Result<(u32, PathMtu), RecordError> {
    let wrong = || RecordError::Version(quote(&c_string(bytes)));
    let (version, rest) = bytes.split_at_checked(VERSION_BYTES).ok_or_else(wrong)?;
    check_version(version)?;
    // The cache line is not used, because it does not change the bytes of memory in which messages cycle.
    let Some((cycle, [_, _, _, _, rest @ ..])) = rest.split_first_chunk() else { return Err(wrong()) };
    let mtu = rest.first_chunk().ok_or_else(wrong)?;
    Ok((parse_cycle_buffer(*cycle)?, parse_mtu(*mtu)?))
}

fn check_version(record: &[u8]) -> Result<(), RecordError> {
    let text = c_string(record);
    // `f64` is also parsed from words, such as `inf`.
    let is_number = is_version(record) && text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    match text.parse::<f64>() {
        Ok(number) if is_number && number >= OLDEST_VERSION => Ok(()),
        _ => Err(RecordError::Version(quote(&text))),
    }
}

fn parse_cycle_buffer(record: [u8; 4]) -> Result<u32, RecordError> {
    let bytes = i32::from_be_bytes(record);
    let found = u32::try_from(bytes).ok().filter(|bytes| (1..=SIZE_BYTES_MAX).contains(bytes));
    found.ok_or(RecordError::CycleBuffer(bytes))
}

fn mtu(mtu: PathMtu) -> [u8; 2] {
    // The codes of enum ibv_mtu are 1 to 5, in ascending order.
    let code = PathMtu::ALL.iter().take_while(|other| other.bytes() < mtu.bytes()).count() as u8 + 1;
    [b'0' + code, 0]
}

fn parse_mtu(record: [u8; 2]) -> Result<PathMtu, RecordError> {
    let found = PathMtu::ALL.into_iter().find(|known| mtu(*known) == record);
    found.ok_or_else(|| RecordError::Mtu(quote(&c_string(&record))))
}

/// Refuses a line without a GID, by its first bytes. The line is shorter, so this end would otherwise wait for bytes
/// that the peer does not send.
pub(crate) fn check_has_gid(start: &[u8]) -> Result<(), RecordError> {
    // A short line has its NUL here, a longer one a digit.
    if start.get(SHORT_LINE_BYTES - 1) == Some(&0) { Err(RecordError::NoGid) } else { Ok(()) }
}

/// A queue pair and its memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Line {
    /// Queue pair, first PSN and GID.
    pub(crate) endpoint: Endpoint,
    /// READs that its end serves at once.
    pub(crate) reads: u8,
    pub(crate) rkey: u32,
    pub(crate) addr: u64,
}

impl Line {
    /// Returns the record.
    pub(crate) fn record(&self) -> [u8; LINE_BYTES] {
        let Endpoint { lid, qpn, psn, gid } = self.endpoint;
        let gid: String = gid.0.iter().map(|byte| format!(":{byte:02x}")).collect();
        let (qpn, psn) = (qpn.value(), psn.value());
        let text = format!(
            "{lid:04x}:{:04x}:{qpn:06x}:{psn:06x}:{:08x}:{:016x}{gid}:00000000:",
            self.reads, self.rkey, self.addr
        );
        let mut record = [0; LINE_BYTES];
        record.iter_mut().zip(text.bytes()).for_each(|(to, from)| *to = from);
        record
    }

    /// Parses a record of [`LINE_BYTES`], and clamps its number of READs to [`OUTS`].
    pub(crate) fn parse(record: &[u8]) -> Result<Line, RecordError> {
        check_has_gid(record)?;
        let text = String::from_utf8_lossy(record);
        let wrong = || RecordError::Line(quote(&text));
        let inner = text.strip_suffix(":\0").ok_or_else(wrong)?;
        let fields: Vec<&str> = inner.splitn(WIDTHS.len() + 1, ':').collect();
        let is_hex = |field: &str| field.bytes().all(|byte| byte.is_ascii_hexdigit());
        let widths = fields.iter().map(|field| field.len());
        if !widths.eq(WIDTHS) || !fields.iter().all(|field| is_hex(field)) {
            return Err(wrong());
        }
        let [lid, reads, qpn, psn, rkey, addr, gid @ .., srqn] = &fields[..] else { return Err(wrong()) };
        let number = |field: &str| u64::from_str_radix(field, 16).map_err(|_| wrong());
        if number(srqn)? != 0 {
            return Err(RecordError::Srq);
        }
        let endpoint = format!("{lid}:{qpn}:{psn}:{}", gid.concat()).parse()?;
        // Eight digits have 32 bits.
        let rkey = number(rkey)? as u32;
        let reads = u8::try_from(number(reads)?).unwrap_or(u8::MAX).clamp(*OUTS.start(), *OUTS.end());
        Ok(Line { endpoint, reads, rkey, addr: number(addr)? })
    }
}

/// The figures of an end's requests.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Report {
    pub(crate) size_bytes: u32,
    /// Messages of all queue pairs.
    pub(crate) iterations: u64,
    /// Highest bandwidth between two messages, in the unit of the average.
    pub(crate) peak: f64,
    /// Bandwidth, in MiB/s or Gb/s, by an option of the end that sends it.
    pub(crate) average: f64,
    /// Messages per microsecond.
    pub(crate) rate: f64,
}

impl Report {
    /// Returns the records.
    pub(crate) fn records(&self) -> [[u8; 8]; REPORT_RECORDS] {
        let [peak, average, rate] = [self.peak, self.average, self.rate].map(f64::to_be_bytes);
        [u64::from(self.size_bytes).to_be_bytes(), self.iterations.to_be_bytes(), peak, average, rate]
    }

    /// Parses the records. Figures that are no numbers, or negative, are 0: perftest divides by a time that may be 0.
    pub(crate) fn parse(records: [[u8; 8]; REPORT_RECORDS]) -> Result<Report, RecordError> {
        let [size, iterations, floats @ ..] = records;
        let (size, iterations) = (u64::from_be_bytes(size), u64::from_be_bytes(iterations));
        let known = u32::try_from(size).ok().filter(|size| *size <= SIZE_BYTES_MAX);
        let Some(size_bytes) = known.filter(|_| iterations <= ITERS.end() * u64::from(*QPS.end())) else {
            return Err(RecordError::Report { size_bytes: size, iterations });
        };
        let [peak, average, rate] = floats
            .map(f64::from_be_bytes)
            .map(|figure| if figure.is_finite() { figure.max(0.0) } else { 0.0 });
        Ok(Report { size_bytes, iterations, peak, average, rate })
    }
}

fn c_string(record: &[u8]) -> String {
    let text = record.split(|byte| *byte == 0).next().unwrap_or_default();
    String::from_utf8_lossy(text).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use roce::id::{Gid, Qpn};
    use roce::psn::Psn;

    /// From `ib_read_bw -n 100 -x 1` of perftest 6.06 on rxe.
    const RECORDED: &[u8; LINE_BYTES] = b"0000:0080:000019:1e62e5:00000952:00007f9171984000:\
        00:00:00:00:00:00:00:00:00:00:ff:ff:0a:51:00:02:00000000:\0";

    #[test]
    fn a_recorded_line_is_parsed_and_written_alike() {
        let gid = Gid::from(std::net::Ipv4Addr::new(10, 81, 0, 2));
        let endpoint = Endpoint { lid: 0, qpn: Qpn::new(0x19), psn: Psn::new(0x1e_62e5), gid };
        let line = Line { endpoint, reads: 128, rkey: 0x952, addr: 0x7f91_7198_4000 };
        assert_eq!(Line::parse(RECORDED), Ok(line));
        assert_eq!(&line.record(), RECORDED);
    }

    #[test]
    fn lines_that_are_none_are_refused() {
        let with = |at: usize, bytes: &[u8]| {
            let mut record = *RECORDED;
            record[at..at + bytes.len()].copy_from_slice(bytes);
            record
        };
        for record in [
            &RECORDED[..LINE_BYTES - 1],
            &RECORDED[..59],
            &RECORDED[1..],
            b"",
            &[RECORDED, &b"0"[..]].concat(),
            &with(0, b"g"),
            &with(0, b"+"),
            &with(0, b" "),
            &with(0, b"\xff"),
            &with(4, b"0"),
            &with(3, b":"),
            &with(96, b":"),
            &with(LINE_BYTES - 1, b":"),
            &[b'0'; LINE_BYTES],
            &[b':'; LINE_BYTES],
        ] {
            let error = Line::parse(record).unwrap_err();
            assert!(
                matches!(error, RecordError::Line(_)),
                "{}: {error}",
                quote(&String::from_utf8_lossy(record))
            );
        }
        for qpn in ["000000", "000001", "ffffff"] {
            let error = Line::parse(&with(10, qpn.as_bytes())).unwrap_err();
            assert!(matches!(error, RecordError::Endpoint(_)), "{qpn}: {error}");
        }
        assert_eq!(Line::parse(&with(98, b"00000001")), Err(RecordError::Srq));
        assert_eq!(Line::parse(&[0; LINE_BYTES]), Err(RecordError::NoGid));
        let short = b"0001:0010:000019:1e62e5:00000952:00007f9171984000:00000000\0";
        assert_eq!((short.len(), Line::parse(short)), (SHORT_LINE_BYTES, Err(RecordError::NoGid)));
        for (reads, taken) in [(b"0000", 1), (b"0010", 16), (b"0100", 128), (b"ffff", 128)] {
            assert_eq!(Line::parse(&with(5, reads)).map(|line| line.reads), Ok(taken));
        }
    }

    #[test]
    fn versions_are_those_with_the_same_records() {
        assert_eq!(check_version(b"6.06\0\0\0\0\0\0\0\0\0\0\0\0"), Ok(()));
        let own = greeting(PathMtu::Mtu2048);
        assert_eq!(own, *b"6.06\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x10\0\0\0\0\x404\0");
        assert_eq!(parse_greeting(&own), Ok((CYCLE_BYTES, PathMtu::Mtu2048)));
        assert!((0..GREETING_BYTES).all(|len| parse_greeting(&own[..len]).is_err()));
        let due = [0, 15, 16, 19, 20, 24, 25, 26, 134].map(greeting_due);
        assert_eq!(due, [0, 0, 16, 16, 20, 24, 24, 26, 26]);
        assert_eq!((check_start(b""), check_start(b"6"), check_start(&own)), (Ok(()), Ok(()), Ok(())));
        assert!(matches!(check_start(b"5.69\0\0\0\0\0\0\0\0\0\0\0\0"), Err(RecordError::Version(_))));
        let short = [&own[..], &[0; SHORT_LINE_BYTES]].concat();
        assert_eq!(check_start(&short), Err(RecordError::NoGid));
        assert_eq!(check_start(&short[..short.len() - 1]), Ok(()));
        for ok in ["5.70", "5.95", "6.29", "26.04"] {
            assert_eq!(check_version(ok.as_bytes()), Ok(()), "{ok}");
        }
        for wrong in
            ["5.69", "5.5", "4.10", "0", "", "inf", "6.06beta", "6e9", "-7.0", "6.0.6", "0000:000011:32f29"]
        {
            let error = check_version(wrong.as_bytes()).unwrap_err();
            assert_eq!(error, RecordError::Version(wrong.to_owned()));
        }
        assert!(is_version(b"6") && !is_version(b"{") && !is_version(b"\"") && !is_version(b""));
    }

    #[test]
    fn buffers_and_mtus_are_within_the_limits() {
        assert_eq!(parse_cycle_buffer(*b"\0\0\x10\0"), Ok(4096));
        assert_eq!(parse_cycle_buffer([0; 4]), Err(RecordError::CycleBuffer(0)));
        assert_eq!(parse_cycle_buffer([0xFF; 4]), Err(RecordError::CycleBuffer(-1)));
        assert_eq!(parse_cycle_buffer(*b"\x40\0\0\x01"), Err(RecordError::CycleBuffer((1 << 30) + 1)));
        assert_eq!((mtu(PathMtu::Mtu2048), parse_mtu(*b"4\0")), (*b"4\0", Ok(PathMtu::Mtu2048)));
        for known in PathMtu::ALL {
            assert_eq!(parse_mtu(mtu(known)), Ok(known));
        }
        for wrong in [*b"0\0", *b"6\0", *b"44", *b"\0\0", *b"-1", [0xFF; 2]] {
            assert!(matches!(parse_mtu(wrong), Err(RecordError::Mtu(_))), "{wrong:?}");
        }
    }

    #[test]
    fn a_recorded_report_is_parsed_and_written_alike() {
        // From `ib_write_bw -n 100`, whose client printed 48.79 and 45.83 MB/s and 0.000733 Mpps.
        let records = [
            *b"\0\0\0\0\0\x01\0\0",
            *b"\0\0\0\0\0\0\0d",
            *b"@Hd\xa5\xdb\x01n\xde",
            *b"@F\xea*\xe5\x17\x9d\xa5",
            *b"?H\x07\x1f]\x0b\x0c\xb0",
        ];
        let report = Report::parse(records).unwrap();
        assert_eq!((report.size_bytes, report.iterations), (65_536, 100));
        assert_eq!(
            format!("{:.2} {:.2} {:.6}", report.peak, report.average, report.rate),
            "48.79 45.83 0.000733"
        );
        assert_eq!(report.records(), records);
    }

    #[test]
    fn a_report_beyond_the_limits_is_refused() {
        // A server that has measured nothing sends memory that it has not written.
        let garbage = [*b"\0\0\0\0\0\0\0\x06", *b"\0\0\x7f\xfe$\xdcC\0", [0; 8], [0; 8], [0; 8]];
        assert!(Report::parse(garbage).is_ok_and(|report| report.size_bytes == 6));
        for (size_bytes, iterations) in [(u64::MAX, 1), ((1 << 30) + 1, 1), (1, u64::MAX), (1, 1 << 60)] {
            let records = [size_bytes.to_be_bytes(), iterations.to_be_bytes(), [0; 8], [0; 8], [0; 8]];
            assert_eq!(Report::parse(records), Err(RecordError::Report { size_bytes, iterations }));
        }
        let floats = [f64::NAN, f64::INFINITY, -1.0].map(f64::to_be_bytes);
        let report = Report::parse([[0; 8], [0; 8], floats[0], floats[1], floats[2]]).unwrap();
        assert_eq!(report, Report::default());
    }
}
