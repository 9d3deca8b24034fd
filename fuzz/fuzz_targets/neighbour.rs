//! Honest stations and a stranger on one link with an engine that has live connections.
#![no_main]

use libfuzzer_sys::fuzz_target;

#[path = "../../roce/tests/stations/mod.rs"]
mod stations;

fuzz_target!(|script: &[u8]| {
    stations::run(script);
});
