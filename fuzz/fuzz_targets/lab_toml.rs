//! Any text into `Experiment::parse`, and its points.
#![no_main]

use libfuzzer_sys::fuzz_target;

#[path = "../oracle/lab_toml.rs"]
mod oracle;

fuzz_target!(|text: &str| {
    oracle::check(text);
});
