//! Fuzzes one engine with a hostile peer, a lossy network and a busy application.
#![no_main]

use libfuzzer_sys::fuzz_target;

#[path = "../../roce/tests/hostile/mod.rs"]
mod hostile;

fuzz_target!(|script: &[u8]| {
    hostile::run(script);
});
