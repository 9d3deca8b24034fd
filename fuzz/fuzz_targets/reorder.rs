//! Fuzzes the reorder buffer of one engine: several queue pairs fill the buffer, and are destroyed in any order.
#![no_main]

use libfuzzer_sys::fuzz_target;

#[path = "../../roce/tests/engine/hostile/mod.rs"]
mod hostile;
#[path = "../../roce/tests/engine/wire_port.rs"]
mod wire_port;

fuzz_target!(|script: &[u8]| {
    hostile::crowd::run(script);
});
