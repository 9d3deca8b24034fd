//! A hostile peer, a bad network and a busy application against one engine.
#![no_main]

use libfuzzer_sys::fuzz_target;

#[path = "../../roce/tests/hostile/mod.rs"]
mod hostile;

fuzz_target!(|script: &[u8]| {
    hostile::run(script);
});
