//! Several queue pairs that fill one engine's reorder memory, and end in any order.
#![no_main]

use libfuzzer_sys::fuzz_target;

#[path = "../../roce/tests/hostile/mod.rs"]
mod hostile;

fuzz_target!(|script: &[u8]| {
    hostile::crowd::run(script);
});
