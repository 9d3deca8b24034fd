//! Experiments from their document to their report.

use std::num::NonZero;
use std::path::PathBuf;

use lab::experiment::results::{self, Figure};
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
        ("\"go-back-n\"", "\"go-back-2\"", "`go-back-2`: needed go-back-n, selective-repeat"),
        ("\"go-back-n\"", "\"go-back-2\"", "variant `go-back-N`, loss.chance = 0"),
        ("transport.recovery", "transport.recover", "unknown field `recover`, expected one of"),
        ("\"2 %\"", "\"200 %\"", "needed a chance from 0 to 1"),
        ("\"2 %\"", "0.7", "loss.chance = 0.7: needed a number from 0 to 0.5"),
        ("[quick.workload]\nmessages", "[quick.workload]\nmesages", "unknown field `mesages`"),
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
fn selective_repeat_sends_again_what_was_lost_and_go_back_n_more() {
    let outcome = run_with(TINY, false, 1, 1);
    let get = |variant: usize, value: usize, figure: Figure| {
        let run =
            outcome.points.iter().find(|run| run.point.variant == variant && run.point.values == [value]);
        run.and_then(|run| run.get(figure)).unwrap()
    };
    assert!(get(0, 2, results::LOST) > 0.0);
    assert!(get(0, 2, results::NEEDLESS) > 0.0);
    let (lost, again) = (get(1, 2, results::LOST), get(1, 2, results::RESENT));
    assert!(lost > 0.0 && again >= lost, "{lost} lost, {again} sent again");
    assert!(get(0, 2, results::KEPT) < get(1, 2, results::KEPT));
    assert_eq!(get(0, 0, results::KEPT), 1.0);
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
        assert_eq!(find(variant, "32", "mark-ce").get(results::RESENT), Some(0.0), "{variant}");
    }
    assert_eq!(find("go-back-N", "32", "drop").get(results::RESENT), Some(33.0));
    assert_eq!(find("selective repeat", "32", "drop").get(results::RESENT), Some(1.0));
}
