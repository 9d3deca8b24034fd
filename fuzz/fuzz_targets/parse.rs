//! Fuzzes `Packet::parse` with any bytes.
#![no_main]

use libfuzzer_sys::fuzz_target;

#[path = "../oracle/parse.rs"]
mod oracle;

fuzz_target!(|frame: &[u8]| {
    oracle::check(frame);
});
