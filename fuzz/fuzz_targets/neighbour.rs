//! Fuzzes one engine with live connections, on a link with honest stations and a stranger.
#![no_main]

use libfuzzer_sys::fuzz_target;

#[path = "../../roce/tests/engine/stations/mod.rs"]
mod stations;
#[path = "../../roce/tests/engine/wire_port.rs"]
mod wire_port;

fuzz_target!(|script: &[u8]| {
    stations::run(script);
});
