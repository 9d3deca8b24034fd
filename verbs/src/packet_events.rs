//! Packet events as text: the TOML form of an [`EventPlan`], and sentences on what the packet events did.

use std::fmt;

use roce::id::Qpn;
use roce::port::events::{EventOutcome, EventPlan, EventPsn, EventQp, Firing, PacketEvent, PlanError};
use roce::port::impairment::Action;
use roce::psn::{Psn, PsnSpace};
use roce::wire::Opcode;
use serde::{Deserialize, Serialize};

use crate::text;

/// A list of packet events, as `[[event]]` tables, and the [`EventPlan`] of these packet events.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(try_from = "Vec<Entry>", into = "Vec<Entry>")]
pub struct EventList {
    entries: Vec<Entry>,
    plan: EventPlan,
}

/// A file of packet events. In place of the keys `event` and `action`, the keys `data-pkt-events` and `type` of Lumina
/// (SIGCOMM 2023) are accepted too.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(alias = "data-pkt-events")]
    event: EventList,
}

/// A packet event with the keys and values of the file.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    qpn: NumberOrText,
    psn: NumberOrText,
    #[serde(alias = "pass", default = "first")]
    iter: u32,
    #[serde(alias = "type", with = "text")]
    action: Action,
    micros: Option<u64>,
    behind: Option<u32>,
    direction: Option<Direction>,
    opcode: Option<String>,
}

fn first() -> u32 {
    1
}

#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(untagged, expecting = "needed a number, or text as \"0x1f\"")]
enum NumberOrText {
    Number(u32),
    Text(String),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
enum Direction {
    Request,
    Response,
}

/// Reason why a list of packet events is refused.
#[derive(Debug, thiserror::Error)]
enum ListError {
    #[error("event {number}: {reason}")]
    Entry { number: usize, reason: String },
    #[error(transparent)]
    Plan(#[from] PlanError),
}

impl TryFrom<Vec<Entry>> for EventList {
    type Error = ListError;

    fn try_from(entries: Vec<Entry>) -> Result<Self, ListError> {
        let event = |(at, entry): (usize, &Entry)| {
            entry.event().map_err(|reason| ListError::Entry { number: at + 1, reason })
        };
        let events = entries.iter().enumerate().map(event).collect::<Result<_, _>>()?;
        Ok(EventList { plan: EventPlan::new(events)?, entries })
    }
}

impl From<EventList> for Vec<Entry> {
    fn from(list: EventList) -> Self {
        list.entries
    }
}

impl EventList {
    /// Parses the text of a file of packet events.
    ///
    /// # Errors
    /// A text that states the error and its place: a line, or the number of a packet event.
    pub fn parse(text: &str) -> Result<Self, String> {
        let file: File = toml::from_str(text).map_err(|error| error.to_string().trim_end().to_owned())?;
        Ok(file.event)
    }

    /// Returns the [`EventPlan`] of the packet events.
    pub fn plan(&self) -> &EventPlan {
        &self.plan
    }

    /// Returns whether the file listed no packet event.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }
}

/// Parses a 24-bit number in hexadecimal.
fn hex(text: &str) -> Option<u32> {
    let number = u32::from_str_radix(text.strip_prefix("0x")?, 16).ok()?;
    (number < Psn::COUNT).then_some(number)
}

/// Returns the opcode with the name `name`, as `roce dump` writes the name; `RC` may be left out.
fn opcode(name: &str) -> Result<Opcode, String> {
    let wanted = name.to_uppercase().replace(['_', '-'], " ");
    let fits = |known: &str| known == wanted || known.strip_prefix("RC ") == Some(wanted.as_str());
    Opcode::known().find(|info| fits(info.name)).map(|info| info.opcode).ok_or_else(|| {
        format!("opcode = \"{name}\": needed a name as `roce dump` writes it, such as \"acknowledge\" or \"rdma write middle\"")
    })
}

impl Entry {
    fn event(&self) -> Result<PacketEvent, String> {
        let qp = match &self.qpn {
            NumberOrText::Number(number) => EventQp::Number(*number),
            NumberOrText::Text(text) => EventQp::Dest(Qpn::new(hex(text).ok_or_else(|| {
                format!(
                    "qpn = \"{text}\": needed the number of a connection, as 1, or the peer's queue pair number, as \"0x00001f\""
                )
            })?)),
        };
        let psn = match &self.psn {
            NumberOrText::Number(number) => EventPsn::Relative(*number),
            NumberOrText::Text(text) if text == "any" => EventPsn::Any,
            NumberOrText::Text(text) => EventPsn::Absolute(Psn::new(hex(text).ok_or_else(|| {
                format!(
                    "psn = \"{text}\": needed a number from 1, which is the first PSN sent, or a PSN as on the wire, as \"0x9c2d3f\", or \"any\""
                )
            })?)),
        };
        let opcode = self.opcode.as_deref().map(opcode).transpose()?;
        let impairment = self.action.impairment(self.micros, self.behind)?;
        Ok(PacketEvent { qp, space: self.space(opcode)?, psn, opcode, pass: self.iter, impairment })
    }

    /// Returns the PSN space that `direction` in the events file selects; without `direction`, the PSN space of packets
    /// with the opcode `opcode`, or of requests if `opcode` is `None`.
    fn space(&self, opcode: Option<Opcode>) -> Result<PsnSpace, String> {
        let is_response = opcode.and_then(Opcode::info).map(|info| info.is_response);
        match (self.direction, is_response) {
            (Some(Direction::Request), Some(true)) | (Some(Direction::Response), Some(false)) => {
                Err("direction and opcode contradict each other: leave direction out".to_owned())
            }
            (Some(Direction::Response), _) | (None, Some(true)) => Ok(PsnSpace::Response),
            _ => Ok(PsnSpace::Request),
        }
    }
}

/// A packet event; each method returns the value of one key of the events file as text.
pub struct EventText<'a>(pub &'a PacketEvent);

impl EventText<'_> {
    /// Returns the value of `qpn` in the events file: the number of the connection, counted from 1 in the order in
    /// which the port sends the first packets of its connections; or the peer's QPN.
    pub fn qpn(&self) -> String {
        match self.0.qp {
            EventQp::Number(number) => number.to_string(),
            EventQp::Dest(qpn) => qpn.to_string(),
        }
    }

    /// Returns the value of `psn` in the events file: the position of the PSN in its PSN space, where 1 is the first
    /// PSN that the port sends; the PSN itself, in hexadecimal; or "any".
    pub fn psn(&self) -> String {
        match self.0.psn {
            EventPsn::Relative(number) => number.to_string(),
            EventPsn::Absolute(psn) => format!("0x{psn}"),
            EventPsn::Any => "any".to_owned(),
        }
    }

    /// Returns the value of `action` in the events file: the name of the impairment.
    pub fn action(&self) -> String {
        Action::from(self.0.impairment).to_string()
    }

    /// Returns the value of `direction` in the events file: "request" or "response".
    pub fn direction(&self) -> &'static str {
        match self.0.space {
            PsnSpace::Request => "request",
            PsnSpace::Response => "response",
        }
    }
}

impl fmt::Display for EventText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (action, qpn, psn) = (self.action(), self.qpn(), self.psn());
        write!(f, "{action}, qpn {qpn}, {} psn {psn}, iter {}", self.direction(), self.0.pass)
    }
}

/// Returns a line on what an event did: when, to which packet, and when this packet was retransmitted; or why the event
/// did nothing.
pub fn describe_outcome(outcome: &EventOutcome) -> String {
    match &outcome.fired {
        Some(firing) => happened(outcome, firing),
        None => missed(outcome),
    }
}

fn micros(nanos: u64) -> f64 {
    nanos as f64 / 1e3
}

fn happened(outcome: &EventOutcome, firing: &Firing) -> String {
    let again = match firing.retransmitted_after_nanos {
        Some(nanos) => format!("; retransmitted {:.1} us later", micros(nanos)),
        None => String::new(),
    };
    format!(
        "{} at {:.1} us: {}, PSN 0x{}, to queue pair {}{again}",
        EventText(&outcome.event),
        micros(firing.after_nanos),
        firing.opcode,
        firing.psn,
        firing.dest_qpn
    )
}

fn missed(outcome: &EventOutcome) -> String {
    let passes = outcome.passes;
    let why = match passes {
        0 => "this end sent no such packet".to_owned(),
        1 => "its packet was sent only once".to_owned(),
        _ => format!("its packet was sent only {passes} times"),
    };
    format!("{} never happened: {why}", EventText(&outcome.event))
}

#[cfg(test)]
mod tests {
    use roce::port::impairment::Impairment;

    use super::*;

    const PLAIN: &str = "[[event]]\nqpn = 1\npsn = 5\naction = \"drop\"\n";

    fn parse(text: &str) -> Result<EventPlan, String> {
        EventList::parse(text).map(|list| list.plan)
    }

    fn refusal(text: &str) -> String {
        parse(text).unwrap_err()
    }

    #[test]
    fn a_file_is_read_with_its_defaults_and_luminas_names() {
        let drop = PacketEvent {
            qp: EventQp::Number(1),
            space: PsnSpace::Request,
            psn: EventPsn::Relative(5),
            opcode: None,
            pass: 1,
            impairment: Impairment::Drop,
        };
        let plan = |events: &[PacketEvent]| EventPlan::new(events.to_vec()).unwrap();
        assert_eq!(parse(PLAIN).unwrap(), plan(&[drop]));
        let lumina = "data-pkt-events = [{qpn = 1, psn = 5, type = \"drop\", iter = 1}]";
        assert_eq!(parse(lumina).unwrap(), plan(&[drop]));
        assert!(parse("event = []").unwrap().is_empty());
        let all = r#"
            event = [
                {qpn = "0x00001f", psn = "0x9c2d3f", pass = 2, action = "corrupt", direction = "response"},
                {qpn = 2, psn = "any", iter = 3, action = "ecn", opcode = "acknowledge"},
                {qpn = 2, psn = 1, action = "delay", micros = 50, opcode = "RC_RDMA_WRITE_FIRST"},
                {qpn = 2, psn = 1, action = "reorder", behind = 3},
                {qpn = 2, psn = 1, action = "duplicate"},
                {qpn = 2, psn = 1, action = "mark-ce"},
            ]"#;
        let second = PacketEvent { qp: EventQp::Number(2), psn: EventPsn::Relative(1), ..drop };
        let expected = [
            PacketEvent {
                qp: EventQp::Dest(Qpn::new(0x1F)),
                space: PsnSpace::Response,
                psn: EventPsn::Absolute(Psn::new(0x9C2D3F)),
                pass: 2,
                impairment: Impairment::CORRUPT_ICRC,
                ..drop
            },
            PacketEvent {
                space: PsnSpace::Response,
                psn: EventPsn::Any,
                opcode: Some(Opcode::RC_ACKNOWLEDGE),
                pass: 3,
                impairment: Impairment::MarkCe,
                ..second
            },
            PacketEvent {
                opcode: Some(Opcode::RC_RDMA_WRITE_FIRST),
                impairment: Impairment::Delay { nanos: 50_000 },
                ..second
            },
            PacketEvent { impairment: Impairment::Reorder { behind_pkts: 3 }, ..second },
            PacketEvent { impairment: Impairment::Duplicate, ..second },
            PacketEvent { impairment: Impairment::MarkCe, ..second },
        ];
        assert_eq!(parse(all).unwrap(), plan(&expected));
    }

    #[test]
    fn what_is_wrong_is_said_with_its_place() {
        for (change, said) in [
            (("drop", "explode"), "unknown variant `explode`, expected one of `drop`, `corrupt`, `ecn`"),
            (("psn = 5", "psn = 0"), "event 1: PSNs are counted from 1"),
            (("psn = 5", "psn = -1"), "needed a number"),
            (("psn = 5", "psn = \"9c2d3f\""), "event 1: psn = \"9c2d3f\": needed"),
            (("psn = 5", "psn = \"0x1000000\""), "needed a number from 1"),
            (("psn = 5\n", ""), "missing field `psn`"),
            (("qpn = 1", "qpn = 0"), "event 1: queue pairs are numbered from 1"),
            (("qpn = 1", "qpn = 4097"), "up to 4096"),
            (("qpn = 1", "qpn = \"x\""), "the peer's queue pair number"),
            (("psn = 5", "psn = 5\niter = 0"), "counted from 1"),
            (("psn = 5", "psn = 5\ncolour = 1"), "unknown field `colour`"),
            (("psn = 5", "psn = 5\nmicros = 1"), "micros goes with"),
            (("psn = 5", "psn = 5\nbehind = 1"), "behind goes with"),
            (("drop", "delay"), "needs micros"),
            (("drop", "reorder"), "needs behind"),
            (("psn = 5", "psn = 5\nopcode = \"hello\""), "`roce dump` writes it"),
            (("psn = 5", "psn = 5\nopcode = \"acknowledge\"\ndirection = \"request\""), "contradict"),
            (("[[event]]", "[[events]]"), "unknown field `events`"),
            (("[[event]]", "[[event]"), "line 1"),
        ] {
            let error = refusal(&PLAIN.replacen(change.0, change.1, 1));
            assert!(error.contains(said), "{change:?} says: {error}");
        }
        assert!(refusal(&PLAIN.repeat(257)).contains("257 events are too many"));
        assert!(parse(&PLAIN.repeat(256)).is_ok());
    }

    #[test]
    fn the_report_tells_what_happened_and_why_not() {
        let event = parse_one();
        let outcome = |passes, fired| EventOutcome { event, passes, fired };
        let firing = Firing {
            after_nanos: 12_340,
            dest_qpn: Qpn::new(0x11),
            psn: Psn::new(0xABC),
            opcode: Opcode::RC_SEND_MIDDLE,
            retransmitted_after_nanos: Some(45_600),
        };
        assert_eq!(
            happened(&outcome(2, None), &firing),
            "drop, qpn 1, request psn 5, iter 2 at 12.3 us: RC SEND MIDDLE, PSN 0x000abc, to queue pair \
             0x000011; retransmitted 45.6 us later"
        );
        assert!(missed(&outcome(0, None)).contains("sent no such packet"));
        assert!(missed(&outcome(1, None)).contains("only once"));
    }

    fn parse_one() -> PacketEvent {
        let impairment = Impairment::Drop;
        let (qp, psn) = (EventQp::Number(1), EventPsn::Relative(5));
        PacketEvent { qp, space: PsnSpace::Request, psn, opcode: None, pass: 2, impairment }
    }
}
