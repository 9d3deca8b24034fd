//! `--events FILE`: impairments of single packets, and the report of their outcomes.

use std::path::Path;

use anyhow::Context as _;
use roce::port::events::EventOutcome;
use serde_json::{Value, json};
use verbs::packet_events::{EventList, EventText, describe_outcome};

/// Reads the events of the file `path`.
///
/// # Errors
/// The file cannot be read, or is invalid.
pub(crate) fn read(path: &Path) -> anyhow::Result<EventList> {
    let text = std::fs::read_to_string(path).with_context(|| {
        format!("--events: cannot read {} (to sleep until completions come is -e)", path.display())
    })?;
    EventList::parse(&text).map_err(|reason| anyhow::anyhow!("--events {}: {reason}", path.display()))
}

/// Reports the outcomes of the events: those that fired on standard output, unless that is for JSON, and the
/// others on standard error.
pub(crate) fn tell(outcomes: &[EventOutcome], json: bool) {
    for (at, outcome) in outcomes.iter().enumerate() {
        let text = describe_outcome(outcome);
        match outcome.fired {
            Some(_) if !json => println!(" event {}: {text}", at + 1),
            Some(_) => {}
            None => eprintln!("roce: event {}: {text}", at + 1),
        }
    }
}

/// The same for JSON.
pub(crate) fn report(outcomes: &[EventOutcome]) -> Value {
    let micros = |nanos: u64| nanos as f64 / 1e3;
    let entry = |outcome: &EventOutcome| {
        let (event, fired) = (EventText(&outcome.event), outcome.fired);
        json!({
            "action": event.action(),
            "qpn": event.qpn(),
            "psn": event.psn(),
            "iter": outcome.event.pass,
            "direction": event.direction(),
            "passes_seen": outcome.passes,
            "fired": fired.map(|fired| json!({
                "at_usec": micros(fired.after_nanos),
                "dest_qpn": fired.dest_qpn.value(),
                "psn": fired.psn.value(),
                "opcode": fired.opcode.to_string(),
                "retransmitted_after_usec": fired.retransmitted_after_nanos.map(micros),
            })),
        })
    };
    outcomes.iter().map(entry).collect()
}

#[cfg(test)]
mod tests {
    use roce::id::Qpn;
    use roce::port::events::{EventPsn, EventQp, Firing, PacketEvent};
    use roce::port::impairment::Impairment;
    use roce::psn::{Psn, PsnSpace};
    use roce::wire::Opcode;

    use super::*;

    #[test]
    fn the_report_has_what_happened() {
        let (qp, psn) = (EventQp::Number(1), EventPsn::Relative(5));
        let event = PacketEvent {
            qp,
            space: PsnSpace::Request,
            psn,
            opcode: None,
            pass: 2,
            impairment: Impairment::Drop,
        };
        let firing = Firing {
            after_nanos: 12_340,
            dest_qpn: Qpn::new(0x11),
            psn: Psn::new(0xABC),
            opcode: Opcode::RC_SEND_MIDDLE,
            retransmitted_after_nanos: Some(45_600),
        };
        let outcome = |passes, fired| EventOutcome { event, passes, fired };
        let json = report(&[outcome(2, Some(firing)), outcome(0, None)]);
        assert_eq!(json[0]["fired"]["retransmitted_after_usec"], 45.6);
        assert_eq!(json[0]["psn"], "5");
        assert_eq!((&json[1]["fired"], &json[1]["passes_seen"]), (&Value::Null, &json!(0)));
    }
}
