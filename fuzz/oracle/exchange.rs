//! Invariants of the parsers of bytes that a peer sends over TCP before the RDMA traffic. Shared by the fuzz target and
//! the replay of its corpus. Both include this file as a module of `perf`, next to module `exchange`.

use std::net::{IpAddr, Ipv4Addr};

use roce::id::Gid;
use roce::qp::PathMtu;

use super::message::{self, Message};
use super::params::{Choices, Extent, Measure, Offer, Params, Test, Verb};
use crate::exchange::framing::Framing;
use crate::exchange::gid::{self, Reach};
use crate::exchange::limits::{
    GIDS_MAX, HELLO_BYTES_MAX, ITERS, LAT_ITERS_MAX, OUTS, QPS, QUOTED_CHARS_MAX, SECS, SIZE_BYTES_MAX,
};
use crate::exchange::{perftest, pingpong};

/// Result of parsing the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Taken {
    /// No parser accepts the bytes.
    Junk,
    /// A line of ibv_rc_pingpong.
    PingPong,
    /// A line of perftest.
    Perftest,
    /// A message of `roce perf`.
    Message,
    /// A hello whose offer leads to a test.
    Agreed,
}

/// A port with addresses of its own, unknown to the kernel: 10.0.0.1, and the subnets 10.0.0.0/8 and fe80::/16 on the
/// link.
struct Port;

impl Reach for Port {
    fn has_kernel_addresses(&self) -> bool {
        false
    }
    fn is_own(&self, gid: Gid) -> bool {
        gid == Gid::from(Ipv4Addr::new(10, 0, 0, 1))
    }
    fn is_on_link(&self, gid: Gid) -> bool {
        match gid.ip() {
            IpAddr::V4(ip) => ip.octets()[0] == 10,
            IpAddr::V6(ip) => ip.segments()[0] == 0xFE80,
        }
    }
    fn is_of_this_host(&self, _: IpAddr) -> bool {
        false
    }
    fn is_same_station(&self, _: Gid, _: Gid) -> bool {
        false
    }
}

/// Parses `bytes`. Panics if the parser accepts values beyond the limits. `R` is the type of the results of a run.
pub(crate) fn check<R: serde::de::DeserializeOwned>(bytes: &[u8]) -> Taken {
    let framings = [
        Framing::Line(HELLO_BYTES_MAX),
        Framing::Record(pingpong::LINE_BYTES),
        Framing::PerftestOrLine { own: perftest::greeting(PathMtu::Mtu1024), line_bytes: HELLO_BYTES_MAX },
    ];
    for framing in framings {
        if let Ok(Some(message)) = framing.message(bytes) {
            assert!(message.len() <= framing.bytes_max() && message.len() <= bytes.len());
            assert!(framing.due(bytes).len() <= perftest::GREETING_BYTES);
        }
        let half = bytes.get(..bytes.len() / 2).unwrap_or_default();
        assert!(!matches!(framing.message(half), Ok(Some(early)) if early.len() > half.len()));
    }
    if let Ok(end) = pingpong::parse(bytes) {
        check_gid(end.gid);
        assert!(end.qpn.value() > 1, "a management queue pair");
        assert_eq!(
            pingpong::parse(&pingpong::line(&end)),
            Ok(end),
            "the line of what was read is read alike"
        );
        return Taken::PingPong;
    }
    if check_perftest(bytes) {
        return Taken::Perftest;
    }
    match Message::<R>::parse(bytes) {
        Ok(Message::Hello(hello)) => {
            let gids = hello.gids();
            assert!((1..=GIDS_MAX).contains(&gids.len()));
            gids.iter().for_each(|(_, gid)| assert!(gid.is_unicast()));
            gids.iter().for_each(|(_, gid)| check_gid(*gid));
            if check_offer(&hello.offer) { Taken::Agreed } else { Taken::Message }
        }
        Ok(Message::Ends(ends)) => {
            let (count, gid) = (ends.len(), Gid::from(Ipv4Addr::new(10, 0, 0, 2)));
            assert!(count <= *QPS.end() as usize);
            for (end, _) in message::check_ends(ends, count, gid).unwrap_or_default() {
                assert_eq!(end.gid, gid);
            }
            Taken::Message
        }
        Ok(Message::Done { sent, .. }) => {
            // Sums the counts of all queue pairs; an overflow would panic.
            assert!(sent.iter().sum::<u64>() <= ITERS.end() * u64::from(*QPS.end()));
            Taken::Message
        }
        Ok(Message::Failed(reason)) => {
            assert!(
                reason.chars().all(|c| !c.is_control()) && reason.chars().count() <= QUOTED_CHARS_MAX + 3
            );
            Taken::Message
        }
        Ok(Message::RawHello(_) | Message::Ready) => Taken::Message,
        Err(error) => {
            assert!(error.to_string().chars().all(|c| !c.is_control()));
            Taken::Junk
        }
    }
}

/// Returns whether `bytes` are a line of perftest. Panics if an accepted value is beyond the limits.
fn check_perftest(bytes: &[u8]) -> bool {
    if let Ok((cycle_bytes, _)) = perftest::parse_greeting(bytes) {
        assert!(
            perftest::is_version(bytes) && perftest::check_start(&bytes[..perftest::GREETING_BYTES]).is_ok()
        );
        assert!((1..=SIZE_BYTES_MAX).contains(&cycle_bytes));
    }
    let (chunks, _) = bytes.as_chunks();
    if let Some(Ok(report)) = chunks.first_chunk().map(|records| perftest::Report::parse(*records)) {
        assert!(report.size_bytes <= SIZE_BYTES_MAX);
        assert!([report.peak, report.average, report.rate].iter().all(|figure| *figure >= 0.0));
    }
    let Ok(line) = perftest::Line::parse(bytes) else { return false };
    check_gid(line.endpoint.gid);
    assert!(line.endpoint.qpn.value() > 1, "a management queue pair");
    assert!(OUTS.contains(&line.reads));
    assert_eq!(perftest::Line::parse(&line.record()), Ok(line), "the record of what was read is read alike");
    true
}

/// Asserts that an accepted GID is unicast, not of this port, and on the link unless `any_gid`.
fn check_gid(gid: Gid) {
    for any_gid in [false, true] {
        if gid::check(gid, IpAddr::from(Ipv4Addr::LOCALHOST), any_gid, &Port).is_ok() {
            assert!(gid.is_unicast() && !Port.is_own(gid) && (any_gid || Port.is_on_link(gid)));
        }
    }
}

/// Returns whether `offer` leads to a test with an end that chooses no options. Panics if a parameter of the test is
/// beyond the limits.
fn check_offer(offer: &Offer) -> bool {
    let own = Offer { test: offer.test, choices: Choices::default(), active_mtu_bytes: 4096 };
    let Ok(params) = Params::agree(&own, offer) else { return false };
    assert!(
        QPS.contains(&params.qps) && OUTS.contains(&params.outs) && params.recovery.is_valid(),
        "{params:?}"
    );
    assert!((1..=SIZE_BYTES_MAX).contains(&params.size_max()) || params.sizes == [0], "{params:?}");
    assert!(params.size_max() > 0 || params.test != Test { verb: Verb::Write, measure: Measure::Lat });
    match params.extent {
        Extent::Iters(iters) if params.test.measure == Measure::Lat => {
            assert!((1..=LAT_ITERS_MAX).contains(&iters))
        }
        Extent::Iters(iters) => assert!(ITERS.contains(&iters)),
        Extent::Secs(secs) => assert!(SECS.contains(&secs)),
    }
    // `total` panics on an overflow.
    params.total();
    true
}
