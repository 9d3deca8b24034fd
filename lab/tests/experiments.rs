//! Experiments from their document to their report.

use std::num::NonZero;
use std::path::PathBuf;

use lab::experiment::results::{self, Figure, FlowResult};
use lab::experiment::{Experiment, Options, Outcome, SHIPPED, run};
use lab::report;

/// A stream of a few messages under two schemes and three losses.
const TINY: &str = r#"
name = "tiny"
title = "A <tiny> experiment"
description = "For tests."

[fabric]
kind = "pair"

[workload]
kind = "stream"
message_bytes = 20000
messages = 40

[[variant]]
name = "go-back-N"
transport.recovery = "go-back-n"

[[variant]]
name = "selective repeat"
transport.recovery = "selective-repeat"

[[sweep]]
key = "loss.chance"
label = "loss"
values = [0, "1/256", "2 %"]

[[compare]]
variant = "selective repeat"
against = "go-back-N"
figures = ["goodput_gbit_per_sec"]

[quick.workload]
messages = 4
"#;

fn run_with(text: &str, quick: bool, seeds: u32, jobs: usize) -> Outcome {
    let experiment = Experiment::parse(text, quick).unwrap();
    let options = Options {
        seeds: Some(seeds),
        jobs: NonZero::new(jobs),
        program: PathBuf::from("no-program"),
        command: "roce lab run tiny.toml".to_owned(),
    };
    run(&experiment, &options, &|_, _| {}).unwrap()
}

/// What is said of `text` with `from` replaced by `to`.
fn refusal(from: &str, to: &str) -> String {
    assert!(TINY.contains(from), "{from}");
    let text = TINY.replacen(from, to, 1);
    Experiment::parse(&text, false).map(|_| ()).expect_err(to).to_string()
}

#[test]
fn a_document_that_is_wrong_is_told_what_is_needed() {
    for (from, to, said) in [
        ("kind = \"pair\"", "kind = \"torus\"", "unknown variant `torus`, expected"),
        ("kind = \"pair\"", "kind = \"pair\"\nhosts = 3", "unknown field `hosts`"),
        ("messages = 40", "mesages = 40", "unknown field `mesages`, expected one of"),
        ("messages = 40", "messages = 0", "workload.messages = 0: needed a number from 1"),
        ("messages = 40", "messages = -1", "invalid value: integer `-1`"),
        ("message_bytes = 20000\n", "", "missing field `message_bytes`"),
        ("[workload]", "[work]", "unknown field `work`"),
        ("\"go-back-n\"", "\"go-back-2\"", "`go-back-2`: needed go-back-n, improved-go-back-n"),
        ("\"go-back-n\"", "\"go-back-2\"", "variant `go-back-N`, loss.chance = 0"),
        ("transport.recovery", "transport.recover", "unknown field `recover`, expected one of"),
        ("\"2 %\"", "\"200 %\"", "`200 %` is no probability: needed a number from 0 (never) to 1 (always)"),
        ("\"2 %\"", "true", "`true` is no probability: needed a number"),
        ("\"2 %\"", "0.7", "loss.chance = 0.7: needed a number from 0 to 0.5"),
        ("[quick.workload]\nmessages", "[quick.workload]\nmesages", "unknown field `mesages`"),
        (
            "kind = \"pair\"",
            "kind = \"fat-tree\"\nk = 5",
            "fabric.k = 5: needed switches with an even number",
        ),
        (
            "kind = \"pair\"",
            "kind = \"fat-tree\"\nk = 50",
            "number of hosts = 31250: needed a number from 2 to",
        ),
        (
            "kind = \"pair\"",
            "kind = \"star\"\nhosts = 4",
            "\"stream\" and \"reaction\": needed fabric.kind = \"pair\"",
        ),
        (
            "\"go-back-n\"",
            "\"go-back-n\"\ntransport.peer_recovery = \"selective-repeat\"",
            "needs both ends to have it",
        ),
        (
            "\"go-back-n\"",
            "\"go-back-n\"\ntransport.congestion = \"cubic\"",
            "there is no congestion control `cubic`",
        ),
        ("name = \"go-back-N\"", "", "[[variant]]: needed name"),
        ("against = \"go-back-N\"", "against = \"TCP\"", "no variant is called `TCP`"),
        ("values = [0, \"1/256\", \"2 %\"]", "values = []", "0 points: needed 1 to"),
        ("figures = [\"goodput", "figures = [\"badput", "no figure is called `badput"),
        ("name = \"tiny\"", "name = ", "TOML parse error at line 2"),
    ] {
        let error = refusal(from, to);
        assert!(error.contains(said), "{to}: {error}");
    }
}

#[test]
fn every_size_of_a_document_has_a_bound_that_is_told() {
    const PAIR: &str = "kind = \"pair\"";
    const STREAM: &str = "kind = \"stream\"\nmessage_bytes = 20000\nmessages = 40";
    let leaf_spine = |leaves: u64, spines: u64| {
        format!("kind = \"leaf-spine\"\nhosts_per_leaf = 1\nleaves = {leaves}\nspines = {spines}")
    };
    let flows = |sizes| format!("kind = \"flows\"\nsizes = \"{sizes}\"\nload = 1\nflows = 1");
    let sweeps = "[[sweep]]\nkey = \"link.propagation_us\"\nlabel = \"\"\nvalues = [1, 2]\n".repeat(8);
    let comparisons =
        "[[compare]]\nvariant = \"go-back-N\"\nagainst = \"go-back-N\"\nfigures = []\n".repeat(64);
    for (from, to, said) in [
        (PAIR, leaf_spine(2, 1 << 40), "fabric.spines = 1099511627776: needed a number from 0 to 1024"),
        (
            PAIR,
            leaf_spine(1000, 1000),
            "1000 leaves and 1000 spines make 1000000 cables: needed at most 65536, take fewer",
        ),
        (
            PAIR,
            format!("kind = \"ports\"\nport = \"{:300}\"", 'x'),
            "fabric.port has 300 bytes: needed at most 256",
        ),
        (
            PAIR,
            format!("kind = \"ports\"\nhost = \"{:300}\"", 'x'),
            "fabric.host has 300 bytes: needed at most 256",
        ),
        (STREAM, flows(0), "a number of bytes as text, 1 to 1000000000"),
        (STREAM, flows(1_000_000_001u32), "a number of bytes as text, 1 to 1000000000"),
        (
            "\"loss.chance\"",
            "\"loss.chance.of.all\"".to_owned(),
            "4 names: needed at most 3, as `switch.ecn.pmax`",
        ),
        ("[fabric]", "seeds = 4294967295\n[fabric]".to_owned(), "25769803770 points: needed 1 to 10000"),
        ("[[sweep]]", format!("{sweeps}[[sweep]]"), "9 [[sweep]] tables: needed at most 8"),
        ("[[compare]]", format!("{comparisons}[[compare]]"), "65 [[compare]] tables: needed at most 64"),
        ("For tests.", "x".repeat(1 << 16), "bytes: needed a document of at most 65536"),
    ] {
        let error = refusal(from, &to);
        assert!(error.contains(said), "{to:.200}: {error}");
    }
}

#[test]
fn the_same_document_and_seeds_give_the_same_results_on_one_thread_and_on_two() {
    let tables: Vec<String> =
        [1, 1, 2].map(|jobs| report::csv(&run_with(TINY, false, 2, jobs)).unwrap()).into();
    assert_eq!(tables[0], tables[1], "twice");
    assert_eq!(tables[0], tables[2], "on two threads");
    let lines: Vec<&str> = tables[0].lines().collect();
    assert_eq!(lines.len(), 1 + 2 * 3 * 2, "variants x values x seeds:\n{}", tables[0]);
    assert!(lines[0].starts_with("variant,loss.chance,seed,goodput_gbit_per_sec,"), "{}", lines[0]);
    assert_ne!(lines[5].split_once(",1,"), lines[6].split_once(",2,"), "seeds lose different packets");
}

#[test]
fn selective_repeat_retransmits_what_was_lost_and_go_back_n_more() {
    let outcome = run_with(TINY, false, 1, 1);
    let get = |variant: usize, value: usize, figure: Figure| {
        let run =
            outcome.points.iter().find(|run| run.point.variant == variant && run.point.values == [value]);
        run.and_then(|run| run.get(figure)).unwrap()
    };
    assert!(get(0, 2, results::LOST) > 0.0);
    assert!(get(0, 2, results::NEEDLESS) > 0.0);
    let (lost, again) = (get(1, 2, results::LOST), get(1, 2, results::RETRANSMITTED));
    assert!(lost > 0.0 && again >= lost, "{lost} lost, {again} retransmitted");
    assert!(get(0, 2, results::KEPT) < get(1, 2, results::KEPT));
    assert_eq!(get(0, 0, results::KEPT), 1.0);
}

#[test]
fn a_mean_has_the_confidence_interval_of_three_seeds_and_none_of_one() {
    let outcome = run_with(TINY, false, 3, 2);
    let group = &outcome.groups()[1];
    let values: Vec<f64> = group.runs.iter().filter_map(|run| run.get(results::GOODPUT)).collect();
    let [a, b, c] = values[..] else { panic!("three seeds: {values:?}") };
    let mean = (a + b + c) / 3.0;
    let deviation = (((a - mean).powi(2) + (b - mean).powi(2) + (c - mean).powi(2)) / 2.0).sqrt();
    let interval = group.interval(results::GOODPUT).unwrap();
    // 4.303: the 97.5 % quantile of Student's t with two degrees of freedom.
    assert!(interval > 0.0 && (interval - 4.303 * deviation / 3f64.sqrt()).abs() < 1e-9, "{interval}");
    assert!(report::table(&outcome).contains(" +-"));
    let json = report::json(&outcome);
    assert_eq!(json["means"][1]["figures"]["goodput_gbit_per_sec"]["ci95"], interval);
    let outcome = run_with(TINY, false, 1, 1);
    assert_eq!(outcome.groups()[1].interval(results::GOODPUT), None);
    assert!(!report::table(&outcome).contains("+-"));
}

#[test]
fn a_report_stands_alone_and_escapes_what_it_is_told() {
    let page = report::html(&run_with(TINY, true, 1, 1)).unwrap();
    for outside in ["http:", "https:", "src=", "href=", "@import", "url("] {
        assert!(!page.contains(outside), "{outside}");
    }
    for part in [
        "A &lt;tiny&gt; experiment",
        "roce lab run tiny.toml",
        "<svg",
        "goodput, Gbit",
        "--quick",
        "[quick.workload]",
    ] {
        assert!(page.contains(part), "{part}");
    }
    assert!(!page.contains("<tiny>"));
}

#[test]
fn a_report_is_written_as_three_files() {
    let dir = std::env::temp_dir().join(format!("roce-lab-test-{}", std::process::id()));
    let files = report::write(&run_with(TINY, true, 1, 1), &dir).unwrap();
    let names: Vec<_> = files.iter().filter_map(|file| file.file_name()?.to_str()).collect();
    assert_eq!(names, ["points.csv", "results.json", "report.html"]);
    let json: serde_json::Value = serde_json::from_slice(&std::fs::read(&files[1]).unwrap()).unwrap();
    assert_eq!(json["points"].as_array().map(Vec::len), Some(6));
    assert_eq!(json["points"][0]["figures"]["completed_messages"], 4.0);
    std::fs::remove_dir_all(dir).unwrap();
    let error = report::write(&run_with(TINY, true, 1, 1), &PathBuf::from("/dev/null/x")).unwrap_err();
    assert!(error.to_string().contains("cannot write /dev/null/x"), "{error}");
}

#[test]
fn shipped_experiments_make_sense() {
    for (name, text) in SHIPPED {
        for quick in [false, true] {
            let experiment = Experiment::parse(text, quick).unwrap_or_else(|error| panic!("{name}: {error}"));
            assert_eq!(experiment.name, *name);
            assert!(experiment.description.contains("Takes "), "{name} says how long it takes");
        }
    }
}

#[test]
fn the_reaction_to_one_event_is_timed() {
    let text = lab::experiment::shipped("reactions").unwrap();
    let outcome = run_with(text, true, 1, 2);
    let find = |variant: &str, packet: &str, event: &str| {
        let experiment = &outcome.experiment;
        let is = |run: &&results::PointResult| {
            let names: Vec<String> = experiment
                .sweeps
                .iter()
                .zip(&run.point.values)
                .map(|(sweep, at)| sweep.value_name(*at))
                .collect();
            experiment.variants[run.point.variant] == variant && names == [packet, event]
        };
        outcome.points.iter().find(is).unwrap()
    };
    for variant in ["go-back-N", "selective repeat"] {
        for event in ["drop", "corrupt"] {
            let middle = find(variant, "32", event);
            assert_eq!(middle.get(results::BY_TIMEOUT), Some(0.0), "{variant}: {event}");
            // Two propagations, the two times, and the packet that shows the loss.
            let parts = 8.0
                + middle.get(results::NAK_GENERATION).unwrap()
                + middle.get(results::NAK_REACTION).unwrap();
            let whole = middle.get(results::RETRANSMISSION).unwrap();
            assert!(whole > parts && whole < parts + 0.5, "{variant}: {event}: {parts} of {whole} us");
            let last = find(variant, "64", event);
            assert_eq!(last.get(results::BY_TIMEOUT), Some(1.0), "{variant}: {event}");
            assert_eq!(last.get(results::NAK_GENERATION), None);
        }
        let marked = find(variant, "32", "mark-ce");
        assert_eq!(marked.get(results::RETRANSMITTED), Some(0.0), "{variant}");
        assert!(marked.get(results::NAK_GENERATION).is_some(), "{variant}: a mark is told by a CNP");
    }
    assert_eq!(find("go-back-N", "32", "drop").get(results::RETRANSMITTED), Some(33.0));
    assert_eq!(find("selective repeat", "32", "drop").get(results::RETRANSMITTED), Some(1.0));
}

#[test]
fn the_reaction_to_other_impairments_is_timed_too() {
    let text = r#"
name = "late"
title = "Late packets"
description = "For tests."

[fabric]
kind = "pair"

[transport]
recovery = "go-back-n"

[workload]
kind = "reaction"
packets = 32
packet = 8

[[variant]]
name = "duplicate"
workload.action = "duplicate"

[[variant]]
name = "delay"
workload = { action = "delay", micros = 1 }

[[variant]]
name = "reorder"
workload = { action = "reorder", behind = 3 }

[quick.workload]
packets = 16
"#;
    let outcome = run_with(text, true, 1, 1);
    let [duplicate, delay, reorder] = &outcome.points[..] else { panic!("three points") };
    assert_eq!(duplicate.get(results::RETRANSMITTED), Some(0.0));
    assert_eq!(duplicate.get(results::NAK_GENERATION), None);
    for late in [delay, reorder] {
        assert!(late.get(results::NAK_GENERATION).is_some(), "the responder reports a gap");
        assert_eq!(late.get(results::BY_TIMEOUT), Some(0.0));
        assert!(late.get(results::RETRANSMITTED).unwrap() > 0.0);
    }
    for (from, to, said) in [
        (
            "\"duplicate\"\n\n",
            "\"delay\"\n\n",
            "variant `duplicate`: workload: action = \"delay\" needs micros",
        ),
        (", micros = 1", ", micros = 1, behind = 1", "variant `delay`: workload: behind goes with"),
        ("behind = 3", "behind = 1025", "variant `reorder`: workload: a packet goes behind 1 to 1024 others"),
        ("action = \"delay\"", "action = \"explode\"", "unknown variant `explode`, expected one of"),
    ] {
        let error =
            Experiment::parse(&text.replacen(from, to, 1), false).map(|_| ()).expect_err(to).to_string();
        assert!(error.contains(said), "{to}: {error}");
    }
}

/// Flows on a small fabric.
const FLOWS: &str = r#"
name = "few-flows"
title = "A few flows"
description = "For tests."

[fabric]
kind = "leaf-spine"
leaves = 2
spines = 2
hosts_per_leaf = 2

[workload]
kind = "flows"
sizes = "irn"
load = 0.5
flows = 60
limit_ms = 100

[transport]
recovery = "selective-repeat"

[[sweep]]
key = "switch.routing"
label = "routing"
values = ["ecmp", "spray"]

[quick.workload]
sizes = "100000"
load = 0.001
flows = 12
"#;

#[test]
fn flows_are_the_same_on_one_thread_and_on_two_and_all_are_told() {
    let [one, two] = [1, 2].map(|jobs| run_with(FLOWS, false, 2, jobs));
    assert_eq!(report::csv(&one).unwrap(), report::csv(&two).unwrap());
    let flows = report::flows_csv(&one).unwrap().unwrap();
    assert_eq!(flows, report::flows_csv(&two).unwrap().unwrap());
    assert_eq!(flows.lines().count(), 1 + 2 * 2 * 60, "values x seeds x flows");
    assert_eq!(report::samples_csv(&one).unwrap(), report::samples_csv(&two).unwrap());
    assert!(report::samples_csv(&one).unwrap().unwrap().lines().count() > 20);
    for run in &one.points {
        assert_eq!(run.get(results::FLOWS), Some(60.0));
        assert_eq!(run.ended_early, None);
        // Poll times round some flows down by less than a part in a hundred.
        assert!(run.flows.iter().all(|flow| flow.slowdown() > 0.99), "none is faster than alone");
    }
    let page = report::html(&one).unwrap();
    for plot in [
        "Distribution of FCT slowdown",
        "Longest queue of any switch port over time",
        "Received by all hosts",
    ] {
        assert!(page.contains(plot), "{plot}");
    }
}

#[test]
fn a_flow_alone_takes_the_ideal_time() {
    let outcome = run_with(FLOWS, true, 1, 1);
    let flows = &outcome.points[0].flows;
    let overlap = |a: &FlowResult, b: &FlowResult| {
        a.start_nanos < b.start_nanos + b.fct_nanos && b.start_nanos < a.start_nanos + a.fct_nanos
    };
    let alone: Vec<_> =
        flows.iter().filter(|flow| flows.iter().filter(|other| overlap(flow, other)).count() == 1).collect();
    assert!(alone.len() >= 8, "{} of {} are alone", alone.len(), flows.len());
    for flow in alone {
        assert!((0.99..1.02).contains(&flow.slowdown()), "{flow:?}: {}", flow.slowdown());
    }
}

#[test]
fn an_incast_needs_hosts() {
    let text = FLOWS
        .replace(
            "kind = \"flows\"\nsizes = \"irn\"\nload = 0.5\nflows = 60",
            "kind = \"incast\"\nsenders = 4\ntotal_kbytes = 9",
        )
        .replace("[quick.workload]\nsizes = \"100000\"\nload = 0.001\nflows = 12", "");
    let error = Experiment::parse(&text, false).unwrap_err().to_string();
    assert!(error.contains("workload.senders = 4: needed a fabric of more hosts"), "{error}");
    let outcome = run_with(&text.replace("senders = 4", "senders = 3"), false, 1, 1);
    let run = &outcome.points[0];
    assert_eq!(run.get(results::FLOWS), Some(3.0));
    assert!(run.flows.iter().all(|flow| flow.to == run.flows[0].to && flow.bytes == 3000));
}

#[test]
fn a_flow_that_cannot_complete_counts_until_the_end() {
    let text = FLOWS
        .replace("[transport]", "[loss]\nchance = 0.5\n\n[transport]\nretry_count = 1\ntimeout = 1")
        .replace("limit_ms = 100", "limit_ms = 1");
    let outcome = run_with(&text, false, 1, 1);
    let run = &outcome.points[0];
    let unfinished: Vec<_> = run.flows.iter().filter(|flow| !flow.completed).collect();
    assert!(!unfinished.is_empty() && run.flows.len() <= 60);
    assert!(run.ended_early.as_ref().is_some_and(|why| why.contains("of 60 flows unfinished after 1 ms")));
    assert!(unfinished.iter().all(|flow| flow.start_nanos + flow.fct_nanos <= 1_100_000));
}
