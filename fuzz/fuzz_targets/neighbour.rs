//! Fuzzes one engine with live connections, on a link with honest stations and a stranger.
#![no_main]

use libfuzzer_sys::fuzz_target;

#[path = "../../roce/tests/stations/mod.rs"]
mod stations;

fuzz_target!(|script: &[u8]| {
    stations::run(script);
});
