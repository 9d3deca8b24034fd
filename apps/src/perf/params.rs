//! Parameters that the two ends of a test must agree on.

use std::fmt;
use std::ops::RangeInclusive;

use roce::qp::{PathMtu, ServiceType};
use roce::recovery::{NoRecoveryScheme, RecoveryScheme};
use serde::{Deserialize, Serialize};

use crate::exchange::limits::{ITERS, LAT_ITERS_MAX, OUTS, QPS, SECS, SIZE_BYTES_MAX};

/// The largest size of `-a`, as a power of two.
const ALL_SIZES_LOG2: u32 = 23;
/// Default recovery: the best that needs no agreement with the peer.
pub(super) const DEFAULT_RECOVERY: RecoveryScheme = RecoveryScheme::ImprovedGoBackN;

/// The operation measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Verb {
    Send,
    Write,
    Read,
}

/// Transport service of the queue pairs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub(super) enum Connection {
    Rc,
    Uc,
}

impl Connection {
    pub(super) const ALL: [Connection; 2] = [Connection::Rc, Connection::Uc];

    pub(super) fn service(self) -> ServiceType {
        match self {
            Connection::Rc => ServiceType::Rc,
            Connection::Uc => ServiceType::Uc,
        }
    }
}

impl fmt::Display for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.service().name())
    }
}

/// The quantity measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Measure {
    Bw,
    Lat,
}

/// A test.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Test {
    pub(super) verb: Verb,
    pub(super) measure: Measure,
}

impl fmt::Display for Test {
    /// The subcommand's name.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verb = match self.verb {
            Verb::Send => "send",
            Verb::Write => "write",
            Verb::Read => "read",
        };
        write!(f, "{verb}-{}", if self.measure == Measure::Bw { "bw" } else { "lat" })
    }
}

/// Choices of one end's user; the peer's user may make those that are left open.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Choices {
    pub(super) size: Option<u32>,
    pub(super) iters: Option<u64>,
    pub(super) duration_secs: Option<u32>,
    pub(super) all: bool,
    pub(super) qps: Option<u32>,
    pub(super) mtu_bytes: Option<u32>,
    pub(super) outs: Option<u8>,
    #[serde(default)]
    pub(super) recovery: Option<Recovery>,
    #[serde(default)]
    pub(super) connection: Option<Connection>,
    pub(super) bidirectional: bool,
    pub(super) verify: bool,
}

impl Choices {
    /// Checks the choices, whether they are from the command line or from the peer.
    pub(super) fn check(&self, test: Test) -> Result<(), String> {
        let is_lat = test.measure == Measure::Lat;
        within("-n", self.iters, &ITERS)?;
        within("-D", self.duration_secs, &SECS)?;
        within("-q", self.qps, &QPS)?;
        within("-o", self.outs, &OUTS)?;
        if self.size.is_some_and(|size| size > SIZE_BYTES_MAX) {
            return Err(format!("-s: a message of this test has at most {SIZE_BYTES_MAX} bytes"));
        }
        if self.size == Some(0) && is_lat && test.verb == Verb::Write {
            return Err("-s 0: the peer sees a WRITE by its last byte, so it needs at least one".to_owned());
        }
        if self.size.is_some() && self.all {
            return Err("-a: it runs all sizes, and -s one".to_owned());
        }
        if self.duration_secs.is_some() && (self.iters.is_some() || self.all) {
            return Err("-D: a test ends by time, or by count (-n) or all sizes (-a)".to_owned());
        }
        if self.mtu_bytes.is_some_and(|bytes| PathMtu::from_bytes(bytes).is_none()) {
            return Err("-m: a path MTU is 256, 512, 1024, 2048 or 4096 bytes".to_owned());
        }
        if self.outs.is_some() && test.verb != Verb::Read {
            return Err("-o: only read-bw and read-lat have READs outstanding".to_owned());
        }
        if self.connection == Some(Connection::Uc) {
            self.check_uc(test)?;
        }
        if is_lat && self.iters.is_some_and(|iters| iters > LAT_ITERS_MAX) {
            return Err(format!(
                "-n: a latency test remembers each round trip, {LAT_ITERS_MAX} of them at most"
            ));
        }
        if is_lat && (self.qps.is_some() || self.bidirectional) {
            return Err("-q and -b: a latency test has one queue pair, and one message at a time".to_owned());
        }
        Ok(())
    }

    fn check_uc(&self, test: Test) -> Result<(), String> {
        let wrong = match () {
            () if test.verb == Verb::Read => "read-bw and read-lat: only RC has READs",
            () if self.recovery.is_some() => "--recovery: UC repairs no loss",
            () if self.verify => "--verify: UC may lose messages, so that the next one cannot be told",
            () => return Ok(()),
        };
        Err(format!("-c UC and {wrong}"))
    }
}

fn within<T: PartialOrd + fmt::Display>(
    letter: &str,
    value: Option<T>,
    range: &RangeInclusive<T>,
) -> Result<(), String> {
    match value {
        Some(value) if !range.contains(&value) => {
            Err(format!("{letter} {value}: it is from {} to {}", range.start(), range.end()))
        }
        _ => Ok(()),
    }
}

/// A recovery scheme, in messages by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub(super) struct Recovery(pub(super) RecoveryScheme);

impl fmt::Display for Recovery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl From<Recovery> for String {
    fn from(recovery: Recovery) -> Self {
        recovery.to_string()
    }
}

impl TryFrom<String> for Recovery {
    type Error = NoRecoveryScheme;

    fn try_from(name: String) -> Result<Self, Self::Error> {
        name.parse().map(Recovery)
    }
}

/// Length of a run, per queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Extent {
    /// Number of messages.
    Iters(u64),
    /// Seconds.
    Secs(u32),
}

/// Parameters of both ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Params {
    pub(super) test: Test,
    /// Message sizes, one run each.
    pub(super) sizes: Vec<u32>,
    pub(super) extent: Extent,
    pub(super) qps: u32,
    pub(super) mtu: PathMtu,
    pub(super) outs: u8,
    pub(super) recovery: RecoveryScheme,
    pub(super) connection: Connection,
    pub(super) bidirectional: bool,
    pub(super) verify: bool,
}

/// Offer of one end to the other.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Offer {
    pub(super) test: Test,
    pub(super) choices: Choices,
    /// The largest path MTU of its port, in bytes.
    pub(super) active_mtu_bytes: u32,
}

impl Offer {
    /// As [`Choices::check`].
    pub(super) fn check(&self) -> Result<(), String> {
        if PathMtu::from_bytes(self.active_mtu_bytes).is_none() {
            return Err(format!("its port's path MTU of {} bytes is none", self.active_mtu_bytes));
        }
        self.choices.check(self.test)
    }
}

/// Reason why there is no agreement.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Disagreement {
    #[error("the server runs {server} and the client {client}: start both with the same command")]
    Test { server: Test, client: Test },
    #[error(
        "the server was started with {letter} {server} and the client with {letter} {client}: give both the \
         same, or only one of them"
    )]
    Choice { letter: &'static str, server: String, client: String },
    #[error("one end was started with -D and the other with {other}: a test ends by time or by count")]
    Extent { other: &'static str },
    #[error("one end was started with -s and the other with -a: give both the same, or only one of them")]
    Sizes,
    #[error("-m {wanted}: the port of the {side} carries a path MTU of {active} bytes at most")]
    Mtu { wanted: u32, side: &'static str, active: u32 },
}

fn merge<T: Copy + PartialEq + fmt::Display>(
    letter: &'static str,
    server: Option<T>,
    client: Option<T>,
) -> Result<Option<T>, Disagreement> {
    match (server, client) {
        (Some(server), Some(client)) if server != client => {
            Err(Disagreement::Choice { letter, server: server.to_string(), client: client.to_string() })
        }
        (server, client) => Ok(client.or(server)),
    }
}

impl Params {
    /// Returns the parameters that follow from both offers; each end computes the same.
    pub(super) fn agree(server: &Offer, client: &Offer) -> Result<Params, Disagreement> {
        if server.test != client.test {
            return Err(Disagreement::Test { server: server.test, client: client.test });
        }
        let test = client.test;
        let (s, c) = (&server.choices, &client.choices);
        let is_bw = test.measure == Measure::Bw;
        let iters = merge("-n", s.iters, c.iters)?;
        let secs = merge("-D", s.duration_secs, c.duration_secs)?;
        let size = merge("-s", s.size, c.size)?;
        let all = s.all || c.all;
        let extent = match (iters, secs) {
            (Some(_), Some(_)) => return Err(Disagreement::Extent { other: "-n" }),
            (None, Some(_)) if all => return Err(Disagreement::Extent { other: "-a" }),
            (None, Some(secs)) => Extent::Secs(secs),
            (iters, None) => Extent::Iters(iters.unwrap_or(if is_bw { 5000 } else { 1000 })),
        };
        let sizes = match size {
            Some(_) if all => return Err(Disagreement::Sizes),
            None if all => (1..=ALL_SIZES_LOG2).map(|log2| 1 << log2).collect(),
            size => vec![size.unwrap_or(if is_bw { 65_536 } else { 2 })],
        };
        Ok(Params {
            test,
            sizes,
            extent,
            qps: merge("-q", s.qps, c.qps)?.unwrap_or(1),
            mtu: agree_mtu(server, client)?,
            outs: merge("-o", s.outs, c.outs)?.unwrap_or(*OUTS.end()),
            recovery: merge("--recovery", s.recovery, c.recovery)?.map_or(DEFAULT_RECOVERY, |r| r.0),
            connection: merge("-c", s.connection, c.connection)?.unwrap_or(Connection::Rc),
            bidirectional: s.bidirectional || c.bidirectional,
            verify: s.verify || c.verify,
        })
    }

    /// Returns the longest message, in bytes.
    pub(super) fn size_max(&self) -> u32 {
        self.sizes.iter().copied().max().unwrap_or(0)
    }

    /// Returns the number of messages that all queue pairs send together, if it is known.
    pub(super) fn total(&self) -> Option<u64> {
        match self.extent {
            Extent::Iters(iters) => Some(iters * u64::from(self.qps)),
            Extent::Secs(_) => None,
        }
    }
}

fn agree_mtu(server: &Offer, client: &Offer) -> Result<PathMtu, Disagreement> {
    let wanted = merge("-m", server.choices.mtu_bytes, client.choices.mtu_bytes)?;
    let bytes = wanted.unwrap_or(server.active_mtu_bytes.min(client.active_mtu_bytes));
    for (side, offer) in [("server", server), ("client", client)] {
        if bytes > offer.active_mtu_bytes {
            return Err(Disagreement::Mtu { wanted: bytes, side, active: offer.active_mtu_bytes });
        }
    }
    // All three numbers are those of a PathMtu: `Offer::check`.
    Ok(PathMtu::from_bytes(bytes).unwrap_or(PathMtu::Mtu256))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offer(choices: Choices) -> Offer {
        let test = Test { verb: Verb::Write, measure: Measure::Bw };
        Offer { test, choices, active_mtu_bytes: 4096 }
    }

    #[test]
    fn what_one_side_was_told_counts_for_both() {
        let server = offer(Choices { qps: Some(4), ..Choices::default() });
        let client = offer(Choices { size: Some(64), mtu_bytes: Some(1024), ..Choices::default() });
        let params = Params::agree(&server, &client).unwrap();
        assert_eq!((params.qps, &params.sizes[..], params.mtu), (4, &[64][..], PathMtu::Mtu1024));
        assert_eq!(params.extent, Extent::Iters(5000));
        assert_eq!(params.total(), Some(20_000));
        assert_eq!(params.recovery, RecoveryScheme::ImprovedGoBackN);
        let wanted = Recovery(RecoveryScheme::SelectiveRepeat { window_pkts: 64 });
        let server = offer(Choices { recovery: Some(wanted), ..Choices::default() });
        assert_eq!(Params::agree(&server, &client).unwrap().recovery, wanted.0);
    }

    #[test]
    fn defaults_are_those_of_perftest() {
        let params = Params::agree(&offer(Choices::default()), &offer(Choices::default())).unwrap();
        assert_eq!((&params.sizes[..], params.extent), (&[65_536][..], Extent::Iters(5000)));
        let test = Test { verb: Verb::Send, measure: Measure::Lat };
        let lat = Offer { test, ..offer(Choices::default()) };
        let params = Params::agree(&lat, &lat).unwrap();
        assert_eq!((&params.sizes[..], params.extent), (&[2][..], Extent::Iters(1000)));
        let all = offer(Choices { all: true, ..Choices::default() });
        let sizes = Params::agree(&offer(Choices::default()), &all).unwrap().sizes;
        assert_eq!((sizes.len(), sizes[0], sizes[22]), (23, 2, 1 << 23));
    }

    #[test]
    fn values_beyond_their_limits_are_refused_by_their_letters() {
        let none = Choices::default;
        let check = |verb, measure, choices: Choices| choices.check(Test { verb, measure }).err();
        for (letter, choices) in [
            ("-n", Choices { iters: Some(0), ..none() }),
            ("-n", Choices { iters: Some(1 << 48), ..none() }),
            ("-n", Choices { iters: Some(u64::MAX), ..none() }),
            ("-D", Choices { duration_secs: Some(0), ..none() }),
            ("-q", Choices { qps: Some(0), ..none() }),
            ("-q", Choices { qps: Some(4097), ..none() }),
            ("-s", Choices { size: Some((1 << 30) + 1), ..none() }),
            ("-m", Choices { mtu_bytes: Some(0), ..none() }),
            ("-m", Choices { mtu_bytes: Some(1500), ..none() }),
            ("-o", Choices { outs: Some(1), ..none() }),
            ("-a", Choices { size: Some(1), all: true, ..none() }),
            ("-D", Choices { duration_secs: Some(1), all: true, ..none() }),
            ("-D", Choices { duration_secs: Some(1), iters: Some(1), ..none() }),
        ] {
            let said = check(Verb::Write, Measure::Bw, choices.clone());
            assert!(said.as_ref().is_some_and(|said| said.starts_with(letter)), "{choices:?}: {said:?}");
        }
        for (letter, choices) in [
            ("-s 0", Choices { size: Some(0), ..none() }),
            ("-n", Choices { iters: Some(20_000_001), ..none() }),
            ("-q", Choices { qps: Some(2), ..none() }),
            ("-q and -b", Choices { bidirectional: true, ..none() }),
        ] {
            let said = check(Verb::Write, Measure::Lat, choices.clone());
            assert!(said.as_ref().is_some_and(|said| said.starts_with(letter)), "{choices:?}: {said:?}");
        }
        assert!(check(Verb::Read, Measure::Bw, Choices { outs: Some(0), ..none() }).is_some());
        let most = Choices { iters: Some((1 << 48) - 1), qps: Some(4096), size: Some(1 << 30), ..none() };
        assert_eq!(check(Verb::Send, Measure::Bw, most.clone()), None);
        assert_eq!(Params::agree(&offer(none()), &offer(most)).unwrap().total(), Some(((1 << 48) - 1) << 12));
    }

    #[test]
    fn contradictions_are_told_by_their_letters() {
        let said = |server: Choices, client: Choices| {
            Params::agree(&offer(server), &offer(client)).unwrap_err().to_string()
        };
        let none = Choices::default;
        let sizes = said(Choices { size: Some(1), ..none() }, Choices { size: Some(2), ..none() });
        assert!(sizes.contains("-s 1") && sizes.contains("-s 2"), "{sizes}");
        let [one, other] =
            ["go-back-n", "selective-repeat"].map(|name| Some(Recovery(name.parse().unwrap())));
        let recovery = said(Choices { recovery: one, ..none() }, Choices { recovery: other, ..none() });
        assert!(recovery.contains("--recovery selective-repeat:1024"), "{recovery}");
        let extent = said(Choices { iters: Some(1), ..none() }, Choices { duration_secs: Some(2), ..none() });
        assert!(extent.contains("-D") && extent.contains("-n"), "{extent}");
        let all = said(Choices { all: true, ..none() }, Choices { size: Some(2), ..none() });
        assert!(all.contains("-a"), "{all}");
        let small = Offer { active_mtu_bytes: 1024, ..offer(none()) };
        let large = offer(Choices { mtu_bytes: Some(2048), ..none() });
        let mtu = Params::agree(&small, &large).unwrap_err().to_string();
        assert!(
            mtu.contains("-m 2048") && mtu.contains("server carries") | mtu.contains("of the server"),
            "{mtu}"
        );
        assert_eq!(Params::agree(&small, &offer(none())).unwrap().mtu, PathMtu::Mtu1024);
        let other = Offer { test: Test { verb: Verb::Read, measure: Measure::Bw }, ..offer(none()) };
        let test = Params::agree(&offer(none()), &other).unwrap_err().to_string();
        assert!(test.contains("write-bw") && test.contains("read-bw"), "{test}");
    }
}
