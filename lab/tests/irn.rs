//! IRN's comparison: the bound of packets in flight reduces the slowdown, whatever the recovery, with and without PFC.

use std::num::NonZero;
use std::path::PathBuf;

use lab::experiment::results::{FLOWS, PAUSES, SLOWDOWN};
use lab::experiment::{Experiment, Options, run, shipped};

/// Flows of the run: half of those of the shipped experiment. With fewer flows, queues and pauses hardly build up.
const COUNT: i64 = 1000;

#[test]
fn a_bound_of_packets_in_flight_reduces_the_slowdown_with_either_recovery() {
    let mut document: toml::Table = shipped("irn").unwrap().parse().unwrap();
    document["workload"]["flows"] = COUNT.into();
    document["sweep"][0]["values"] = vec![0.9].into();
    document["sweep"][1]["values"] = vec!["none"].into();
    let experiment = Experiment::parse(&document.to_string(), false).unwrap();
    let options = Options {
        seeds: Some(1),
        jobs: NonZero::new(2),
        program: PathBuf::from("no-program"),
        command: String::new(),
    };
    let outcome = run(&experiment, &options, &|_, _| {}).unwrap();
    let get = |variant: &str, figure| {
        let is = |run: &&lab::experiment::PointResult| experiment.variants[run.point.variant] == variant;
        outcome.points.iter().find(is).and_then(|run| run.get(figure)).unwrap()
    };
    let bounded = ["IRN", "IRN+PFC", "RoCE+PFC+BDP-FC"];
    let slowdowns = bounded.map(|variant| get(variant, SLOWDOWN));
    let [least, most] = [f64::min, f64::max].map(|of| slowdowns.into_iter().reduce(of).unwrap());
    assert!(most < 1.1 * least, "{bounded:?}: {slowdowns:?}");
    for variant in ["RoCE+PFC", "selective repeat without BDP-FC"] {
        assert!(get(variant, SLOWDOWN) > 1.7 * most, "{variant}: {}", get(variant, SLOWDOWN));
        assert_eq!(get(variant, FLOWS), COUNT as f64, "{variant}");
    }
    assert!(get("RoCE+PFC", PAUSES) > 10.0 * get("RoCE+PFC+BDP-FC", PAUSES));
}
