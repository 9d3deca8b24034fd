//! Fuzzes one engine with a hostile peer, a lossy network and a busy application.
#![no_main]

use libfuzzer_sys::fuzz_target;

#[path = "../../roce/tests/engine/hostile/mod.rs"]
mod hostile;
#[path = "../../roce/tests/engine/wire_port.rs"]
mod wire_port;

fuzz_target!(|script: &[u8]| {
    hostile::run(script);
});
