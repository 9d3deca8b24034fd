//! Congestion control with its defaults: flows through one bottleneck share its link equally and fill it.

use std::num::NonZero;
use std::path::PathBuf;

use lab::experiment::results::{JAIN, LINK_SHARE, QUEUE_99, RETRANSMITTED};
use lab::experiment::{Experiment, Options, Outcome, PointResult, run, shipped};

/// Smallest share of the largest goodput, and smallest Jain index.
const LEAST: f64 = 0.95;
/// Largest 99th percentile of the bottleneck's queue under congestion control: a third of `output_kbytes`, which a
/// window of 256 packets fills with 8 flows.
const QUEUE_KBYTES_MAX: f64 = 650.0;

/// Seeds of a run that is judged, as the experiment has: with one, who starts first may decide.
const SEEDS: u32 = 3;
/// Seeds of a run with so many losses that three seeds may all be good ones.
const LOSSY_SEEDS: u32 = 10;

fn run_text(text: &str, seeds: u32) -> Outcome {
    let experiment = Experiment::parse(text, false).unwrap();
    let options = Options {
        seeds: Some(seeds),
        jobs: NonZero::new(2),
        program: PathBuf::from("no-program"),
        command: String::new(),
    };
    run(&experiment, &options, &|_, _| {}).unwrap()
}

/// Runs `variants` of the shipped experiment with these numbers of flows and one operation.
fn run_variants(variants: &[&str], flows: &[i64], op: &str, seeds: u32) -> Outcome {
    run_with("selective-repeat", variants, flows, op, seeds)
}

fn run_with(recovery: &str, variants: &[&str], flows: &[i64], op: &str, seeds: u32) -> Outcome {
    let mut document: toml::Table = shipped("congestion").unwrap().parse().unwrap();
    document["transport"]["recovery"] = recovery.into();
    let toml::Value::Array(all) = &mut document["variant"] else { panic!("variants") };
    all.retain(|variant| variants.contains(&variant["name"].as_str().unwrap()));
    assert_eq!(all.len(), variants.len(), "{variants:?}");
    document["sweep"][0]["values"] = flows.to_vec().into();
    document["sweep"][1]["values"] = vec![op].into();
    let outcome = run_text(&document.to_string(), seeds);
    assert_eq!(outcome.points.len(), variants.len() * flows.len() * seeds as usize);
    outcome
}

/// Checks that the bottleneck is full, that the goodputs are equal, and that the queue is short, as means of the seeds.
fn assert_fair(outcome: &Outcome) {
    let mut wrong = Vec::new();
    let is_same_place = |a: &PointResult, b: &PointResult| {
        (a.point.variant, &a.point.values) == (b.point.variant, &b.point.values)
    };
    for runs in outcome.points.chunk_by(is_same_place) {
        let place = outcome.experiment.place(runs[0].point.variant, &runs[0].point.values);
        let [share, jain, queue] = [LINK_SHARE, JAIN, QUEUE_99]
            .map(|figure| runs.iter().map(|run| run.get(figure).unwrap()).sum::<f64>() / runs.len() as f64);
        println!("{place}: {share:.3} of the link, Jain {jain:.3}, queue {queue:.0} kB");
        if share < LEAST || jain < LEAST || queue > QUEUE_KBYTES_MAX {
            wrong.push(place);
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn writes_fill_the_bottleneck_in_equal_parts() {
    assert_fair(&run_variants(&["DCQCN", "Swift", "Swift, 1 % loss"], &[2, 8, 16, 64], "write", SEEDS));
}

#[test]
fn reads_fill_the_bottleneck_in_equal_parts() {
    assert_fair(&run_variants(&["DCQCN", "Swift"], &[8], "read", SEEDS));
    assert_fair(&run_variants(&["DCQCN", "Swift"], &[64], "read", LOSSY_SEEDS));
}

/// All flows start at the rate of the link, so most of their first packets are lost.
#[test]
fn go_back_n_recovers_from_64_flows_that_start_at_full_rate() {
    for op in ["write", "read"] {
        assert_fair(&run_with("improved-go-back-n", &["DCQCN"], &[64], op, LOSSY_SEEDS));
    }
}

#[test]
fn each_long_flow_is_listed_and_their_sum_is_the_goodput() {
    let text = r#"
name = "two-long-flows"
title = "Two long flows"
description = "For tests."

[fabric]
kind = "star"
hosts = 3

[workload]
kind = "long-flows"
flows = 4
message_bytes = 16384
warm_up_ms = 1
measured_ms = 20

[transport]
recovery = "selective-repeat"

[[sweep]]
key = "workload.op"
label = "operation"
values = ["write", "read"]
"#;
    let outcome = run_text(text, 1);
    for run in &outcome.points {
        let sources: Vec<usize> = run.rates.iter().map(|rate| rate.from).collect();
        assert_eq!(sources, [1, 2, 1, 2], "hosts in turn");
        let sum: f64 = run.rates.iter().map(|rate| rate.goodput_gbits).sum();
        assert!((run.get(lab::experiment::results::GOODPUT_ALL).unwrap() - sum).abs() < 1e-9);
        assert!(run.rates.iter().all(|rate| rate.goodput_gbits > 1.0), "{:?}", run.rates);
        assert!(run.get(LINK_SHARE).is_some_and(|share| (0.9..1.01).contains(&share)), "{:?}", run.figures);
    }
    let rows = lab::report::rates_csv(&outcome).unwrap().unwrap();
    assert_eq!(rows.lines().count(), 1 + 2 * 4, "{rows}");
    for (from, to, said) in [
        ("flows = 4", "flows = 0", "workload.flows = 0: needed a number from 1 to 1024"),
        ("flows = 4", "flows = 1025", "workload.flows = 1025: needed a number from 1 to 1024"),
        ("flows = 4", "flows = 4\nop = \"send\"", "workload.op = \"send\": needed \"write\" or \"read\""),
        (
            "flows = 4",
            "flows = 4\nmax_rd_atomic = 0",
            "workload.max_rd_atomic = 0: needed a number from 1 to 128",
        ),
        ("measured_ms = 20", "measured_ms = 0", "workload.measured_ms = 0: needed a number from 1 to"),
        ("kind = \"star\"\nhosts = 3", "kind = \"ports\"", "needed workload.kind = \"stream\""),
    ] {
        let text = text.replacen(from, to, 1);
        let text = if to.contains("op =") {
            text.replace("workload.op", "workload.depth").replace("\"write\", \"read\"", "1")
        } else {
            text
        };
        let error = Experiment::parse(&text, false).map(|_| ()).expect_err(to).to_string();
        assert!(error.contains(said), "{to}: {error}");
    }
}

/// The port of a host has room for few frames, so the queue pairs of the host wait for their turns. A PTO that ran from
/// the first packet of a message, not from its packet with AckReq, would expire meanwhile.
#[test]
fn flows_of_one_host_share_its_port_without_a_retransmission() {
    let text = r#"
name = "one-host"
title = "Flows of one host"
description = "For tests."

[fabric]
kind = "star"
hosts = 2

[link]
queue_kbytes = 10

[workload]
kind = "long-flows"
flows = 64
message_bytes = 65536
warm_up_ms = 1
measured_ms = 20

[transport]
path_mtu_bytes = 4096

[[sweep]]
key = "transport.recovery"
label = "recovery"
values = ["go-back-n", "improved-go-back-n", "selective-repeat"]
"#;
    for run in &run_text(text, 1).points {
        let figures = [JAIN, LINK_SHARE, RETRANSMITTED].map(|figure| run.get(figure).unwrap());
        assert!(figures[0] > 0.999 && figures[1] > 0.98 && figures[2] == 0.0, "{figures:?}");
    }
}

/// Without congestion control the same flows fill the switch's memory, so the bounds above are not met by themselves.
#[test]
fn a_fixed_window_fills_the_queue() {
    let outcome = run_variants(&["window of 256"], &[8], "write", 1);
    assert!(outcome.points[0].get(QUEUE_99).is_some_and(|queue| queue > QUEUE_KBYTES_MAX));
}
