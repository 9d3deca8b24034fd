//! Messages between the two ends of `roce perf`, one JSON value per line, and their validation. Pure: a
//! fuzzer feeds it bytes.

use std::net::IpAddr;

use roce::id::{Gid, Mac};
use roce::qp::Endpoint;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::params::Offer;
use crate::exchange::limits::{DEPTH, GIDS_MAX, ITERS, QPS, QUOTED_CHARS_MAX, quote};

/// Version of the protocol. Changes if a peer of the old version could not follow.
const PROTOCOL: u32 = 3;

/// A message of one end; `R` are the figures of a run.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Message<R> {
    /// First message of either end.
    Hello(Box<Hello>),
    /// First message of the limit program's ends.
    RawHello(RawHello),
    /// Queue pairs of the sender, in order.
    Ends(Vec<End>),
    /// The sender has reached the barrier before a run.
    Ready,
    /// The sender has sent all its messages of this run: their numbers, and the figures.
    Done {
        /// Messages sent, per queue pair.
        sent: Vec<u64>,
        /// Figures of the sender.
        row: R,
    },
    /// The sender gives up, for this reason.
    Failed(String),
}

/// Version, offer and addresses of an end.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Hello {
    protocol: u32,
    version: String,
    pub(super) offer: Offer,
    pub(super) tx_depth: u32,
    pub(super) rx_depth: u32,
    /// GIDs with their indices.
    gids: Vec<(u8, String)>,
    /// GID index that the user chose.
    pub(super) gid_index: Option<u8>,
}

/// The hello of the limit program.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RawHello {
    protocol: u32,
    mac: String,
    /// Values that must be equal at both ends: payload, mode, count.
    pub(super) job: String,
}

/// A queue pair and its memory.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct End {
    /// `LID:QPN:PSN:GID`, as ibv_rc_pingpong writes it.
    pub(super) endpoint: String,
    /// Address of the area that a peer may write.
    pub(super) rx_addr: u64,
    /// Address of the area that a peer may read.
    pub(super) tx_addr: u64,
    pub(super) rkey: u32,
}

/// Reason why a message of the peer is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum MessageError {
    /// Not a message.
    #[error(
        "the peer does not speak the language of `roce perf`: is it another program, or of another version? A server of \
         perftest needs --peer perftest at this end"
    )]
    Language,
    /// A hello of another version.
    #[error(
        "the peer (version {version}) speaks protocol {protocol} and this program {PROTOCOL}: use the same version at \
         both ends"
    )]
    Protocol {
        /// Program version of the peer, for display.
        version: String,
        /// Protocol version of the peer.
        protocol: u32,
    },
    /// A value that the command line would refuse too, or that no end of this project sends.
    #[error("the peer's hello is refused: {0}")]
    Value(String),
    /// More entries than a test can have.
    #[error("the peer's message is refused: {0}")]
    Count(&'static str),
}

impl<R: DeserializeOwned> Message<R> {
    /// Parses a line, with or without its end. The result is within the limits.
    pub(crate) fn parse(line: &[u8]) -> Result<Self, MessageError> {
        let mut message: Self = serde_json::from_slice(line).map_err(|_| MessageError::Language)?;
        match &mut message {
            Message::Hello(hello) => hello.check()?,
            Message::RawHello(hello) => hello.check()?,
            Message::Ends(ends) if ends.len() > *QPS.end() as usize => {
                return Err(MessageError::Count("it has more queue pairs than a test can have"));
            }
            Message::Done { sent, .. } => {
                if sent.len() > *QPS.end() as usize || sent.iter().any(|count| count > ITERS.end()) {
                    return Err(MessageError::Count("it counts more than a test can have sent"));
                }
            }
            Message::Failed(reason) => *reason = quote(reason),
            Message::Ends(_) | Message::Ready => {}
        }
        Ok(message)
    }
}

impl<R> Message<R> {
    /// Returns the kind of the message.
    pub(super) fn name(&self) -> &'static str {
        match self {
            Message::Hello(_) => "hello",
            Message::RawHello(_) => "raw hello",
            Message::Ends(_) => "ends",
            Message::Ready => "ready",
            Message::Done { .. } => "done",
            Message::Failed(_) => "failed",
        }
    }
}

impl Hello {
    pub(super) fn new(offer: Offer, depths: (u32, u32), gids: &[(u8, Gid)], index: Option<u8>) -> Self {
        let version = env!("CARGO_PKG_VERSION").to_owned();
        let gids = gids.iter().map(|(index, gid)| (*index, gid.ip().to_string())).collect();
        let (tx_depth, rx_depth) = depths;
        Hello { protocol: PROTOCOL, version, offer, tx_depth, rx_depth, gids, gid_index: index }
    }

    /// Returns the GIDs with their indices: those that can be parsed, which after [`Message::parse`] are all.
    pub(super) fn gids(&self) -> Vec<(u8, Gid)> {
        self.gids.iter().filter_map(|(index, text)| Some((*index, parse_gid(text)?))).collect()
    }

    fn check(&self) -> Result<(), MessageError> {
        if self.protocol != PROTOCOL {
            return Err(MessageError::Protocol { version: quote(&self.version), protocol: self.protocol });
        }
        let refused = |reason: String| Err(MessageError::Value(reason));
        self.offer.check().or_else(refused)?;
        for (what, depth) in [("-t", self.tx_depth), ("-r", self.rx_depth)] {
            if !DEPTH.contains(&depth) {
                return refused(format!(
                    "{what} {depth}: a queue holds {} to {}",
                    DEPTH.start(),
                    DEPTH.end()
                ));
            }
        }
        if self.gids.is_empty() || self.gids.len() > GIDS_MAX {
            return refused(format!(
                "it has {} GIDs, of at least one and at most {GIDS_MAX}",
                self.gids.len()
            ));
        }
        match self.gids.iter().find(|(_, text)| parse_gid(text).is_none()) {
            Some((_, text)) => refused(format!("`{}` is not the address of one interface", quote(text))),
            None => Ok(()),
        }
    }
}

fn parse_gid(text: &str) -> Option<Gid> {
    text.parse::<IpAddr>().ok().map(Gid::from).filter(|gid| gid.is_unicast())
}

impl RawHello {
    pub(super) fn new(mac: Mac, job: String) -> Self {
        RawHello { protocol: PROTOCOL, mac: mac.to_string(), job }
    }

    /// Returns the MAC of the sender; after [`Message::parse`] there is one.
    pub(super) fn mac(&self) -> Option<Mac> {
        self.mac.parse().ok().filter(|mac: &Mac| !mac.is_group() && *mac != Mac::default())
    }

    fn check(&self) -> Result<(), MessageError> {
        if self.protocol != PROTOCOL {
            return Err(MessageError::Protocol { version: "unknown".to_owned(), protocol: self.protocol });
        }
        if self.mac().is_none() {
            let mac = quote(&self.mac);
            return Err(MessageError::Value(format!("`{mac}` is not the Ethernet address of one interface")));
        }
        if self.job.len() > QUOTED_CHARS_MAX {
            return Err(MessageError::Value("its options are too long".to_owned()));
        }
        Ok(())
    }
}

impl End {
    pub(super) fn new(endpoint: &Endpoint, rx_addr: u64, tx_addr: u64, rkey: u32) -> Self {
        End { endpoint: endpoint.to_string(), rx_addr, tx_addr, rkey }
    }
}

/// Returns the peer's ends, which must be as many as this end's, and all at the GID that its hello leads to.
pub(crate) fn check_ends(ends: Vec<End>, count: usize, gid: Gid) -> Result<Vec<(Endpoint, End)>, String> {
    if ends.len() != count {
        return Err(format!("the peer has {} queue pairs, and this end {count}", ends.len()));
    }
    let read = |end: End| {
        let endpoint: Endpoint =
            end.endpoint.parse().map_err(|error| format!("a queue pair of the peer: {error}"))?;
        if endpoint.gid != gid {
            return Err(format!(
                "the peer's hello leads to GID {gid}, and its queue pair is at {}",
                endpoint.gid
            ));
        }
        Ok((endpoint, end))
    };
    ends.into_iter().map(read).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::perf::params::{Choices, Measure, Test, Verb};

    type Any = Message<u64>;

    fn hello() -> Hello {
        let test = Test { verb: Verb::Write, measure: Measure::Bw };
        let offer = Offer { test, choices: Choices::default(), active_mtu_bytes: 4096 };
        Hello::new(offer, (128, 512), &[(0, Gid::from("fe80::1".parse::<IpAddr>().unwrap()))], None)
    }

    fn line(message: &Any) -> Vec<u8> {
        serde_json::to_vec(message).unwrap()
    }

    #[test]
    fn lines_are_read_and_strangers_are_told_apart() {
        assert!(matches!(Any::parse(b"\"ready\"\n"), Ok(Message::Ready)));
        assert!(matches!(Any::parse(b"{\"ends\":[]}"), Ok(Message::Ends(ends)) if ends.is_empty()));
        for stranger in [&b"0000:stranger\n"[..], b"", b"\xff", b"GET / HTTP/1.1\r\n", b"{\"ends\":[[[["] {
            assert_eq!(Any::parse(stranger).unwrap_err(), MessageError::Language);
        }
        let message = line(&Message::Hello(Box::new(hello())));
        assert!(matches!(Any::parse(&message), Ok(Message::Hello(read)) if read.gids().len() == 1));
    }

    #[test]
    fn what_a_hello_says_is_within_the_limits() {
        let many = vec![(0, "fe80::1".to_owned()); GIDS_MAX + 1];
        let gid = |text: &str| vec![(0, text.to_owned())];
        let sized = |size| {
            let choices = Choices { size: Some(size), ..Choices::default() };
            Offer { choices, ..hello().offer }
        };
        for (wrong, said) in [
            (Hello { protocol: 1, version: "\u{1b}[2J".to_owned(), ..hello() }, "(version \\u{1b}[2J)"),
            (Hello { tx_depth: 0, ..hello() }, "-t 0"),
            (Hello { rx_depth: 0, ..hello() }, "-r 0"),
            (Hello { rx_depth: u32::MAX, ..hello() }, "-r 4294967295"),
            (Hello { gids: Vec::new(), ..hello() }, "0 GIDs"),
            (Hello { gids: many, ..hello() }, "129 GIDs"),
            (Hello { gids: gid("ff02::1"), ..hello() }, "`ff02::1`"),
            (Hello { gids: gid("0.0.0.0"), ..hello() }, "`0.0.0.0`"),
            (Hello { gids: gid("nowhere"), ..hello() }, "`nowhere`"),
            (Hello { offer: sized(u32::MAX), ..hello() }, "-s"),
            (Hello { offer: Offer { active_mtu_bytes: 0, ..hello().offer }, ..hello() }, "MTU of 0"),
        ] {
            let error = Any::parse(&line(&Message::Hello(Box::new(wrong)))).unwrap_err().to_string();
            assert!(error.contains(said), "{said}: {error}");
        }
        for mac in ["ff:ff:ff:ff:ff:ff", "01:00:5e:00:00:01", "00:00:00:00:00:00", "me"] {
            let raw = RawHello { mac: mac.to_owned(), ..RawHello::new(Mac::default(), String::new()) };
            assert!(Any::parse(&line(&Message::RawHello(raw))).is_err(), "{mac}");
        }
    }

    #[test]
    fn counts_that_would_overflow_are_refused() {
        let done = |sent: Vec<u64>| Any::parse(&line(&Message::Done { sent, row: 1 }));
        assert!(done(vec![*ITERS.end(); 4096]).is_ok());
        assert!(done(vec![u64::MAX, 1]).is_err());
        assert!(done(vec![0; 4097]).is_err());
    }

    #[test]
    fn the_ends_are_those_that_the_hello_leads_to() {
        let gid = hello().gids()[0].1;
        let end = |qpn: &str, gid: &str| End {
            endpoint: format!("0000:{qpn}:000001:{gid}"),
            rx_addr: 0,
            tx_addr: 0,
            rkey: 0,
        };
        let here = end("000011", "fe800000000000000000000000000001");
        assert!(check_ends(vec![here.clone()], 1, gid).is_ok());
        assert!(check_ends(vec![here.clone()], 2, gid).unwrap_err().contains("1 queue pairs"));
        for elsewhere in ["fe800000000000000000000000000002", "ff020000000000000000000000000001"] {
            let error = check_ends(vec![here.clone(), end("000012", elsewhere)], 2, gid).unwrap_err();
            assert!(error.contains("leads to GID fe80::1"), "{error}");
        }
        assert!(check_ends(vec![end("000000", "fe800000000000000000000000000001")], 1, gid).is_err());
    }

    #[test]
    fn the_longest_message_of_ends_fits_a_line() {
        let end = End {
            endpoint: "ffff:fffffe:ffffff:fe800000000000000000000000000001".to_owned(),
            rx_addr: u64::MAX,
            tx_addr: u64::MAX,
            rkey: u32::MAX,
        };
        assert!(serde_json::to_vec(&end).unwrap().len() < crate::exchange::limits::END_BYTES_MAX);
    }
}
