//! Fuzzes `Experiment::parse` with any text, and computes the points of the experiment.
#![no_main]

use libfuzzer_sys::fuzz_target;

#[path = "../oracle/lab_toml.rs"]
mod oracle;

fuzz_target!(|text: &str| {
    oracle::check(text);
});
