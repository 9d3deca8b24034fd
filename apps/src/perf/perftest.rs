//! The exchange with perftest's own programs: `ib_write_bw` and its siblings.
//!
//! perftest exchanges no options, so both ends need the same. As a barrier both ends repeat the line of their first
//! queue pair ("first"). They exchange reports if only the sender of requests can measure, or if both send (`-b`).
//!
//! ```text
//!                 before connecting   after it      each run    after own requests     at the end
//!   write, read   lines               lines, first  -           -                      first, report, first, "done"
//!     with -b     lines               lines, first  first       (-a: first), report    first, "done"
//!   send          lines               first, lines  first       (-b: report)           (-a: first), first, "done"
//!   write-lat     first, lines        lines, first  -           -                      -
//!   read-lat      first, lines        lines, first  -           -                      first, "done"
//!   send-lat      lines               first, lines  first       -                      first, "done"
//! ```

use std::time::Duration;

use anyhow::{anyhow, bail};
use roce::id::Gid;
use roce::qp::{Endpoint, PathMtu};

use super::message::End;
use super::params::{Choices, Extent, Measure, Offer, Params, Test, Verb};
use super::report::{BwRow, Row};
use super::session::{Done, LatRole, PeerEnds, Session};
use crate::exchange::Lockstep;
use crate::exchange::perftest::{
    CYCLE_BYTES, DONE, GREETING_BYTES, GREETING_ENDS, LINE_BYTES, Line, REPORT_RECORDS, RecordError, Report,
    SHORT_LINE_BYTES, check_has_gid, check_start, parse_greeting,
};

/// Default number of messages of each queue pair in perftest; in `ib_write_bw` it is 5000, as in `roce perf`.
const DEFAULT_ITERS: u64 = 1000;
/// Ends each error, because its cause is often an option that perftest does not exchange.
const SAME_OPTIONS: &str = "perftest exchanges no options: give both ends the same test, -s or -a, -n or -D, -q and \
                            -b, and leave out its -c, -R, -z, -O, --reversed, --data_validation and \
                            --dont_xchg_versions";

pub(super) struct Greeting {
    mtu: PathMtu,
    /// Bytes of memory in which the small messages of both ends cycle.
    pub(super) cycle_bytes: u32,
    /// On a server: GID of the client's first line, so that the server can choose a GID of the same family.
    pub(super) gid: Option<Gid>,
}

impl Greeting {
    /// Parses the greeting of a client and its first line, or the greeting of a server.
    pub(super) fn parse(bytes: &[u8]) -> Result<Greeting, RecordError> {
        let (cycle_bytes, mtu) = parse_greeting(bytes)?;
        let line = bytes.get(GREETING_BYTES..).filter(|line| !line.is_empty());
        let gid = line.map(Line::parse).transpose()?.map(|line| line.endpoint.gid);
        Ok(Greeting { mtu, cycle_bytes: cycle_bytes.max(CYCLE_BYTES), gid })
    }

    /// Sends the greeting of a client, and returns the server's.
    pub(super) fn swap(lockstep: &mut Lockstep, own: &[u8; GREETING_BYTES]) -> anyhow::Result<Greeting> {
        let mut taken = Vec::new();
        for end in GREETING_ENDS {
            lockstep.push(own.get(taken.len()..end).unwrap_or_default())?;
            taken.extend(lockstep.take()?);
            check_start(&taken)?;
        }
        Ok(Greeting::parse(&taken)?)
    }

    /// Returns the choices of the peer's user, as far as they are known: the path MTU that the peer sent, and
    /// perftest's default number of messages if this end's user has given neither a number nor a duration.
    pub(super) fn offer(&self, test: Test, own: &Choices) -> Offer {
        let is_default = own.iters.is_none() && own.duration_secs.is_none() && test != WRITE_BW;
        let iters = is_default.then_some(DEFAULT_ITERS);
        Offer { test, choices: Choices { iters, ..Choices::default() }, active_mtu_bytes: self.mtu.bytes() }
    }
}

/// Appends the options that both ends need.
pub(super) fn with_options(error: &anyhow::Error) -> anyhow::Error {
    anyhow!("{error:#}. {SAME_OPTIONS}")
}

const WRITE_BW: Test = Test { verb: Verb::Write, measure: Measure::Bw };

/// Part of this end in a test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    /// Sends requests, or the first message of a latency test.
    Start,
    /// Sends requests as the peer does (`-b`), or answers the messages of a latency test.
    Both,
    /// Receives SENDs.
    Receive,
    /// Serves WRITEs or READs.
    Serve,
}

impl Role {
    fn of(params: &Params, is_client: bool) -> Role {
        let Test { verb, measure } = params.test;
        match (measure, verb) {
            (Measure::Bw, _) if params.bidirectional => Role::Both,
            (Measure::Bw, Verb::Send) if !is_client => Role::Receive,
            (_, Verb::Read) | (Measure::Bw, _) if !is_client => Role::Serve,
            // The server of ib_write_lat sends first, the one of ib_send_lat second.
            (Measure::Lat, Verb::Write) if is_client => Role::Both,
            (Measure::Lat, Verb::Send) if !is_client => Role::Both,
            _ => Role::Start,
        }
    }
}

/// Records that end the peer's part of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ending {
    /// No record: the peer's part is over when the known number of messages has arrived.
    Count,
    /// The peer's report; with `barrier`, a barrier before it.
    Report { barrier: bool },
    /// The first of the barriers at the end of the test.
    Barrier,
    /// The end of the connection.
    Close,
}

impl Ending {
    fn of(params: &Params) -> Ending {
        let is_single = params.sizes.len() == 1;
        match (params.test.measure, params.test.verb) {
            (Measure::Bw, Verb::Send) => match (params.extent, params.bidirectional) {
                (Extent::Secs(_), _) => Ending::Barrier,
                (Extent::Iters(_), true) => Ending::Report { barrier: false },
                (Extent::Iters(_), false) => Ending::Count,
            },
            (Measure::Bw, _) => Ending::Report { barrier: !(params.bidirectional && is_single) },
            (Measure::Lat, Verb::Write) => Ending::Close,
            (Measure::Lat, _) => Ending::Barrier,
        }
    }
}

pub(super) struct Perftest {
    lockstep: Lockstep,
    test: Test,
    role: Role,
    ending: Ending,
    has_more_sizes: bool,
    iters: Option<u64>,
    runs_left: usize,
    /// The end of the peer's part of this run was returned.
    is_over: bool,
    outs: u8,
    in_gbits: bool,
    /// Lines of both ends.
    own: Vec<[u8; LINE_BYTES]>,
    peer: Vec<[u8; LINE_BYTES]>,
    report: Report,
    /// Records of the ending that were received, once this end has begun the ending.
    taken: Option<Vec<Vec<u8>>>,
}

impl Perftest {
    /// Creates the exchange of a test. `in_gbits`: reports are in Gb/s, otherwise in MiB/s.
    pub(super) fn new(lockstep: Lockstep, params: &mut Params, is_client: bool, in_gbits: bool) -> Perftest {
        let role = Role::of(params, is_client);
        let has_more_sizes = params.sizes.len() > 1;
        if role == Role::Serve {
            // The client does not report the end of a size, so this end serves all sizes in one run of the largest.
            params.sizes = vec![params.size_max()];
        }
        Perftest {
            lockstep,
            test: params.test,
            role,
            ending: Ending::of(params),
            has_more_sizes,
            iters: if let Extent::Iters(iters) = params.extent { Some(iters) } else { None },
            runs_left: params.sizes.len(),
            is_over: false,
            outs: params.outs,
            in_gbits,
            own: Vec::new(),
            peer: Vec::new(),
            report: Report::default(),
            taken: None,
        }
    }

    /// Returns the indices of the queue pairs whose lines are exchanged: before the queue pairs are connected, or, if
    /// `is_connected`, after.
    fn lines(&self, is_connected: bool) -> impl Iterator<Item = usize> + use<> {
        let first_comes_first = match (self.test.measure, self.test.verb) {
            (_, Verb::Send) => is_connected,
            (Measure::Lat, _) => !is_connected,
            (Measure::Bw, _) => false,
        };
        let before = first_comes_first.then_some(0);
        let after = (is_connected && !first_comes_first).then_some(0);
        before.into_iter().chain(0..self.own.len()).chain(after)
    }

    /// Sends the line of queue pair `index`, and returns the peer's.
    fn swap_line(&mut self, index: usize) -> anyhow::Result<[u8; LINE_BYTES]> {
        let Some(own) = self.own.get(index) else { bail!("there is no queue pair {index}") };
        self.lockstep.push(own)?;
        if self.peer.get(index).is_none() {
            check_has_gid(self.lockstep.preview(SHORT_LINE_BYTES)?)?;
        }
        let taken = self.lockstep.take()?;
        let taken =
            <[u8; LINE_BYTES]>::try_from(taken).map_err(|_| anyhow!("the peer's line is not whole"))?;
        self.check_line(index, &taken)?;
        Ok(taken)
    }

    /// Checks that a line repeats an earlier one of the peer for queue pair `index`, if there was one.
    fn check_line(&self, index: usize, taken: &[u8]) -> anyhow::Result<()> {
        if self.peer.get(index).is_none_or(|known| known == taken) {
            return Ok(());
        }
        bail!("the peer's line of queue pair {index} is another one than before")
    }

    /// Whether both ends wait for each other before each run.
    fn has_run_barrier(&self) -> bool {
        self.test.verb == Verb::Send || self.test.measure == Measure::Bw && self.role == Role::Both
    }

    fn begin_ending(&mut self) -> anyhow::Result<()> {
        if self.taken.is_some() {
            return Ok(());
        }
        self.taken = Some(Vec::new());
        let has_barrier = matches!(self.ending, Ending::Barrier | Ending::Report { barrier: true });
        if let Some(line) = self.own.first().filter(|_| has_barrier) {
            self.lockstep.push(line)?;
        }
        if let Ending::Report { .. } = self.ending {
            self.report.records().iter().try_for_each(|record| self.lockstep.push(record))?;
        }
        Ok(())
    }

    fn take_ending(&mut self, record: Vec<u8>) -> anyhow::Result<()> {
        if record.len() == LINE_BYTES {
            self.check_line(0, &record)?;
        }
        self.taken.get_or_insert_default().push(record);
        Ok(())
    }

    fn peer_row(&self) -> anyhow::Result<Option<Row>> {
        let Ending::Report { .. } = self.ending else { return Ok(None) };
        let floats = self.taken.iter().flatten().rev().take(REPORT_RECORDS);
        let mut records: Vec<[u8; 8]> =
            floats.filter_map(|record| record.as_slice().try_into().ok()).collect();
        records.reverse();
        let Ok(records) = <[[u8; 8]; REPORT_RECORDS]>::try_from(records) else {
            bail!("the peer's report is not whole");
        };
        let Report { size_bytes, iterations, peak, average, rate } = Report::parse(records)?;
        let average_per_sec = rate * 1e6;
        // The quotient does not depend on the unit of peak and average.
        let peak_per_sec = if average > 0.0 { peak / average * average_per_sec } else { 0.0 };
        Ok(Some(Row::Bw(BwRow { bytes: size_bytes, iterations, peak_per_sec, average_per_sec })))
    }
}

impl Session for Perftest {
    fn timeout(&self) -> Duration {
        self.lockstep.timeout()
    }

    fn lat_role(&self) -> LatRole {
        match self.role {
            Role::Start => LatRole::Start,
            Role::Both => LatRole::Answer,
            Role::Receive | Role::Serve => LatRole::Follow,
        }
    }

    fn exchange_ends(
        &mut self,
        own: &[(Endpoint, End)],
        check: &dyn Fn(Gid) -> anyhow::Result<()>,
    ) -> anyhow::Result<PeerEnds> {
        let line = |(endpoint, end): &(Endpoint, End)| {
            let (reads, rkey, addr) = (self.outs, end.rkey, end.rx_addr);
            Line { endpoint: *endpoint, reads, rkey, addr }.record()
        };
        self.own = own.iter().map(line).collect();
        let mut ends: Vec<(Endpoint, End)> = Vec::new();
        let mut reads_max = None;
        for index in self.lines(false) {
            let record = self.swap_line(index)?;
            if index < self.peer.len() {
                continue;
            }
            let Line { endpoint, reads, rkey, addr } = Line::parse(&record)?;
            match ends.first() {
                Some((first, _)) if first.gid != endpoint.gid => {
                    bail!("the peer's queue pairs are at the GIDs {} and {}", first.gid, endpoint.gid)
                }
                Some(_) => {}
                None => check(endpoint.gid)?,
            }
            self.peer.push(record);
            ends.push((endpoint, End::new(&endpoint, addr, addr, rkey)));
            reads_max = Some(reads_max.unwrap_or(reads).min(reads));
        }
        Ok(PeerEnds { ends, reads_max, initial_rtt_nanos: self.lockstep.initial_rtt_nanos() })
    }

    fn connected(&mut self) -> anyhow::Result<()> {
        self.lines(true).try_for_each(|index| self.swap_line(index).map(drop))
    }

    fn begin_run(&mut self) -> anyhow::Result<()> {
        self.is_over = false;
        if self.has_run_barrier() {
            self.swap_line(0)?;
        }
        self.runs_left = self.runs_left.saturating_sub(1);
        let only_waits = match self.role {
            Role::Start => false,
            Role::Both => self.test.measure == Measure::Lat,
            Role::Receive | Role::Serve => true,
        };
        if only_waits && self.runs_left == 0 {
            self.begin_ending()?;
        }
        Ok(())
    }

    fn end_own(&mut self, _sent: &[u64], row: Row) -> anyhow::Result<()> {
        let Row::Bw(row) = row else { return Ok(()) };
        self.report = row.report(self.in_gbits);
        if self.role == Role::Both { self.begin_ending() } else { Ok(()) }
    }

    fn try_done(&mut self) -> anyhow::Result<Option<Done>> {
        if self.is_over {
            // Counted messages may still arrive. The peer closes the connection only after them, so a closed one is an
            // error.
            return if self.ending == Ending::Count {
                self.lockstep.try_take().map(|_| None)
            } else {
                Ok(None)
            };
        }
        if self.ending == Ending::Close {
            self.is_over = self.lockstep.has_ended()?;
            return Ok(self.is_over.then(Done::default));
        }
        // Takes no record after the ending, because the peer's last bytes, which are no record, may follow.
        while self.taken.is_none() || !self.lockstep.is_idle() {
            match self.lockstep.try_take()? {
                Some(record) => self.take_ending(record)?,
                None if self.ending == Ending::Count && self.role == Role::Receive => break,
                None => return Ok(None),
            }
        }
        self.is_over = true;
        let sent = self.iters.map(|iters| vec![iters; self.own.len()]);
        Ok(Some(Done { sent, row: self.peer_row()? }))
    }

    fn end_run(&mut self) -> anyhow::Result<()> {
        let Test { verb, measure } = self.test;
        if self.role == Role::Both && matches!(self.ending, Ending::Report { .. }) {
            self.taken = None;
        }
        if self.has_more_sizes && measure == Measure::Bw && verb == Verb::Send {
            self.swap_line(0)?;
        }
        Ok(())
    }

    fn close(&mut self) -> anyhow::Result<()> {
        if self.ending == Ending::Close {
            return self.lockstep.wait_end();
        }
        if self.role != Role::Both || self.ending == Ending::Barrier {
            self.begin_ending()?;
            while !self.lockstep.is_idle() {
                let record = self.lockstep.take()?;
                self.take_ending(record)?;
            }
        }
        if self.ending != Ending::Barrier {
            self.swap_line(0)?;
        }
        self.lockstep.finish(&DONE);
        Ok(())
    }

    fn give_up(&mut self, error: anyhow::Error) -> anyhow::Error {
        // perftest has no message for an error: the peer sees that the connection is closed.
        with_options(&error)
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{Ipv4Addr, TcpStream};
    use std::thread::JoinHandle;

    use super::*;
    use crate::exchange::perftest::greeting;
    use crate::exchange::{Framing, accept, listen};
    use roce::id::Qpn;
    use roce::psn::Psn;

    const TIMEOUT: Duration = Duration::from_secs(20);

    fn gid(host: u8) -> Gid {
        Gid::from(Ipv4Addr::new(10, 81, 0, host))
    }

    fn line(host: u8, qpn: u32) -> Line {
        let endpoint = Endpoint { lid: 0, qpn: Qpn::new(qpn), psn: Psn::new(7), gid: gid(host) };
        Line { endpoint, reads: 128, rkey: 9, addr: 1 << 40 }
    }

    /// Plays a program of perftest at the other end of the stream: its records have the lengths that were recorded
    /// between two of its programs, client first. Returns the records of this end.
    fn play(mut stream: TcpStream, is_client: bool, script: &str, qpns: &[u32]) -> Vec<Vec<u8>> {
        let mut qpns = qpns.iter();
        let mut taken = Vec::new();
        for len in script.split_whitespace().map(|len| len.parse::<usize>().unwrap()) {
            let own = match len {
                16 => b"6.06\0\0\0\0\0\0\0\0\0\0\0\0".to_vec(),
                4 => vec![0, 0, 0x10, 0],
                2 => b"4\0".to_vec(),
                8 => 100_u64.to_be_bytes().to_vec(),
                SHORT_LINE_BYTES => vec![0; len],
                5 => DONE.to_vec(),
                LINE_BYTES => line(2, *qpns.next().unwrap_or(&0x11)).record().to_vec(),
                _ => panic!("no record has {len} bytes"),
            };
            let mut answer = vec![0; len];
            if is_client {
                stream.write_all(&own).unwrap();
            }
            stream.read_exact(&mut answer).unwrap();
            if !is_client {
                stream.write_all(&own).unwrap();
            }
            taken.push(answer);
        }
        taken
    }

    type Peer = JoinHandle<Vec<Vec<u8>>>;

    /// Exchanges greetings with a peer that follows `script`.
    fn greet(is_client: bool, script: &str, qpns: &'static [u32]) -> (Greeting, Lockstep, Peer) {
        let listener = listen(0).unwrap();
        let port = listener.local_addr().unwrap().port();
        let far = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap();
        let script = script.to_owned();
        let peer = std::thread::spawn(move || play(far, !is_client, &script, qpns));
        let own = greeting(PathMtu::Mtu4096);
        if is_client {
            let mut lockstep =
                Lockstep::new(listener.accept().unwrap().0, true, Vec::new(), TIMEOUT).unwrap();
            return (Greeting::swap(&mut lockstep, &own).unwrap(), lockstep, peer);
        }
        let framing = Framing::PerftestOrLine { own, line_bytes: 16 };
        let judge = |bytes: &[u8], _| Ok((Greeting::parse(bytes)?, bytes[GREETING_BYTES..].to_vec()));
        let (near, (greeting, line)) = accept(&listener, framing, judge).unwrap();
        (greeting, Lockstep::new(near, false, line, TIMEOUT).unwrap(), peer)
    }

    fn params(greeting: &Greeting, test: Test, choices: Choices) -> Params {
        let own = Offer { test, choices: choices.clone(), active_mtu_bytes: 4096 };
        Params::agree(&own, &greeting.offer(test, &choices)).unwrap()
    }

    fn row(size: u32) -> Row {
        let (bytes, iterations) = (size, 100);
        Row::Bw(BwRow { bytes, iterations, peak_per_sec: 2e6, average_per_sec: 1e6 })
    }

    fn wait_done(session: &mut Perftest) -> Done {
        loop {
            if let Some(done) = session.try_done().unwrap() {
                return done;
            }
            std::thread::yield_now();
        }
    }

    /// Runs the exchange of a test without its traffic. Returns the peer's part of each run, and the records that the
    /// peer received.
    fn run(is_client: bool, test: Test, choices: Choices, script: &str) -> (Vec<Done>, Vec<Vec<u8>>) {
        let (greeting, lockstep, peer) = greet(is_client, script, &[]);
        assert_eq!(greeting.gid, (!is_client).then_some(gid(2)));
        let mut params = params(&greeting, test, choices);
        assert_eq!(params.mtu, PathMtu::Mtu2048);
        let mut session = Perftest::new(lockstep, &mut params, is_client, false);
        let own: Vec<(Endpoint, End)> = (0..params.qps)
            .map(|index| line(1, 0x21 + index).endpoint)
            .map(|endpoint| (endpoint, End::new(&endpoint, 5, 6, 7)))
            .collect();
        let ends = session.exchange_ends(&own, &|_| Ok(())).unwrap();
        assert_eq!((ends.ends.len(), ends.reads_max), (params.qps as usize, Some(128)));
        assert_eq!((ends.ends[0].1.rx_addr, ends.ends[0].1.rkey), (1 << 40, 9));
        session.connected().unwrap();
        let mut dones = Vec::new();
        for size in params.sizes {
            session.begin_run().unwrap();
            if matches!(session.role, Role::Start | Role::Both) {
                session.end_own(&[100], row(size)).unwrap();
            }
            let counts_alone = test.measure == Measure::Lat && test.verb != Verb::Read;
            if session.role != Role::Start && !counts_alone {
                dones.push(wait_done(&mut session));
            }
            session.end_run().unwrap();
        }
        if session.ending == Ending::Close {
            // The peer ends when it has played its script.
            assert_eq!(wait_done(&mut session), Done::default());
        }
        session.close().unwrap();
        drop(session);
        (dones, peer.join().unwrap())
    }

    fn iters() -> Choices {
        Choices { iters: Some(100), ..Choices::default() }
    }

    /// Lengths of the client's records, as recorded between two programs of perftest 6.06.
    const SETUP: &str = "16 4 4 2 108 108 108";
    const REPORT: &str = "8 8 8 8 8";

    #[test]
    fn each_test_has_the_records_of_perftest() {
        let test = |verb, measure| Test { verb, measure };
        let both = Choices { bidirectional: true, ..iters() };
        let span = Choices { duration_secs: Some(1), ..Choices::default() };
        let all = Choices { all: true, ..iters() };
        let all_both = Choices { bidirectional: true, ..all.clone() };
        let two = Choices { qps: Some(1), ..iters() };
        let half = format!("{SETUP} 108 {REPORT} 108 5");
        for (verb, measure, choices, script, serves, joins) in [
            (Verb::Write, Measure::Bw, iters(), half.clone(), 1, 0),
            (Verb::Write, Measure::Bw, span.clone(), half.clone(), 1, 0),
            (Verb::Write, Measure::Bw, all.clone(), half.clone(), 1, 0),
            (Verb::Read, Measure::Bw, two, half.clone(), 1, 0),
            (Verb::Write, Measure::Bw, both.clone(), half.clone(), 1, 1),
            (
                Verb::Write,
                Measure::Bw,
                all_both,
                format!("{SETUP} {} 108 5", format!("108 108 {REPORT} ").repeat(23)),
                23,
                23,
            ),
            (Verb::Send, Measure::Bw, iters(), format!("{SETUP} 108 108 5"), 1, 0),
            (Verb::Send, Measure::Bw, span.clone(), format!("{SETUP} 108 108 5"), 1, 0),
            (Verb::Send, Measure::Bw, all.clone(), format!("{SETUP} {} 108 5", "108 108 ".repeat(23)), 23, 0),
            (Verb::Send, Measure::Bw, both, half, 1, 1),
            (Verb::Write, Measure::Lat, iters(), format!("{SETUP} 108"), 0, 0),
            (Verb::Write, Measure::Lat, all.clone(), format!("{SETUP} 108"), 0, 0),
            (Verb::Read, Measure::Lat, iters(), format!("{SETUP} 108 108 5"), 1, 0),
            (Verb::Send, Measure::Lat, iters(), format!("{SETUP} 108 108 5"), 0, 0),
            (Verb::Send, Measure::Lat, all, format!("{SETUP} {} 108 5", "108 ".repeat(23)), 0, 0),
        ] {
            let test = test(verb, measure);
            for (is_client, dones) in [(false, serves), (true, joins)] {
                let (found, records) = run(is_client, test, choices.clone(), &script);
                assert_eq!(found.len(), dones, "{test} {choices:?}");
                assert_eq!(records.len(), script.split_whitespace().count(), "{test} {choices:?}");
            }
        }
    }

    #[test]
    fn reports_cross() {
        let script = format!("{SETUP} 108 {REPORT} 108 5");
        let (dones, _) = run(false, WRITE_BW, iters(), &script);
        assert_eq!(dones[0].sent, Some(vec![100]));
        let Some(Row::Bw(row)) = dones[0].row else { panic!("{dones:?}") };
        assert_eq!((row.bytes, row.iterations), (100, 100));
        let (_, records) = run(true, WRITE_BW, iters(), &script);
        let report: Vec<[u8; 8]> = records.iter().filter_map(|record| record[..].try_into().ok()).collect();
        let report = Report::parse(report.try_into().unwrap()).unwrap();
        assert_eq!((report.size_bytes, report.iterations, report.rate), (65_536, 100, 1.0));
        assert_eq!((report.average, report.peak), (62_500.0, 125_000.0));
    }

    #[test]
    fn defaults_are_those_of_the_peer() {
        let (greeting, lockstep, peer) = greet(false, "16 4 4 2 108", &[]);
        for (verb, measure, iters) in [
            (Verb::Write, Measure::Bw, 5000),
            (Verb::Read, Measure::Bw, 1000),
            (Verb::Send, Measure::Bw, 1000),
            (Verb::Send, Measure::Lat, 1000),
        ] {
            let params = params(&greeting, Test { verb, measure }, Choices::default());
            assert_eq!(params.extent, Extent::Iters(iters));
        }
        drop(lockstep);
        assert!(peer.join().is_err(), "its line has no answer");
    }

    #[test]
    fn a_client_that_is_no_peer_is_closed_and_the_next_is_served() {
        let listener = listen(0).unwrap();
        let port = listener.local_addr().unwrap().port();
        let own = greeting(PathMtu::Mtu4096);
        let server = std::thread::spawn(move || {
            let framing = Framing::PerftestOrLine { own, line_bytes: 16 };
            accept(&listener, framing, |bytes, _| Ok(Greeting::parse(bytes)?)).unwrap().1.gid
        });
        let old = b"5.69\0\0\0\0\0\0\0\0\0\0\0\0".to_vec();
        let short = [&own[..], &[0; SHORT_LINE_BYTES]].concat();
        let junk = [&own[..], &[b'0'; LINE_BYTES]].concat();
        for wrong in [old, short, junk] {
            let mut far = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap();
            far.write_all(&wrong).unwrap();
            far.set_read_timeout(Some(TIMEOUT)).unwrap();
            let mut answer = Vec::new();
            let closed = far.read_to_end(&mut answer).map_err(|error| error.kind());
            assert_ne!(closed, Err(std::io::ErrorKind::WouldBlock));
            assert!(own.starts_with(&answer), "{answer:?}");
        }
        let far = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap();
        let peer = std::thread::spawn(move || play(far, true, "16 4 4 2 108", &[]));
        assert_eq!(server.join().unwrap(), Some(gid(2)));
        assert!(peer.join().is_err(), "its line has no answer");
    }

    #[test]
    fn a_peer_without_a_gid_is_refused_at_once() {
        let said = |error: &anyhow::Error| assert!(error.to_string().contains("-x INDEX"), "{error}");
        let (greeting, lockstep, peer) = greet(true, "16 4 4 2 59", &[]);
        let mut params = params(&greeting, WRITE_BW, iters());
        let mut session = Perftest::new(lockstep, &mut params, true, false);
        let endpoint = line(1, 0x21).endpoint;
        let own = [(endpoint, End::new(&endpoint, 5, 6, 7))];
        said(&session.exchange_ends(&own, &|_| Ok(())).err().unwrap());
        peer.join().unwrap();
    }

    #[test]
    fn a_peer_with_more_queue_pairs_is_refused() {
        let (greeting, lockstep, peer) = greet(false, "16 4 4 2 108 108", &[0x11, 0x12]);
        let mut params = params(&greeting, WRITE_BW, iters());
        let mut session = Perftest::new(lockstep, &mut params, false, false);
        let endpoint = line(1, 0x21).endpoint;
        let own = [(endpoint, End::new(&endpoint, 5, 6, 7))];
        let refuse = |_| bail!("not this one");
        assert_eq!(session.exchange_ends(&own, &|_| Ok(())).unwrap().ends.len(), 1);
        let error = session.connected().unwrap_err();
        let said = format!("{:#}", session.give_up(error));
        assert!(said.contains("another one than before") && said.contains("-q"), "{said}");
        peer.join().unwrap();
        let (_, lockstep, _peer) = greet(false, "16 4 4 2 108", &[]);
        let mut session = Perftest::new(lockstep, &mut params, false, false);
        assert!(session.exchange_ends(&own, &refuse).is_err_and(|error| error.to_string() == "not this one"));
    }
}
