//! Fuzzes the parsers of the messages that `roce perf` and `roce ping` receive over TCP.
#![no_main]
// Items that only the socket code and the command line use are dead code here.
#![allow(dead_code)]

use libfuzzer_sys::fuzz_target;

#[path = "../modules/exchange.rs"]
mod exchange;
#[path = "../modules/perf.rs"]
mod perf;

/// Measured values of a run, reduced to one field.
#[derive(serde::Deserialize)]
struct Row {
    #[serde(rename = "iterations")]
    _iterations: u64,
}

/// Returns the bound on allocations, in bytes: a JSON number of two bytes takes eight bytes of memory, and a growing
/// vector doubles. Errors and compared values need further memory.
fn bytes_max(message_bytes: usize) -> u64 {
    64 * message_bytes as u64 + (64 << 10)
}

fuzz_target!(|bytes: &[u8]| {
    let allocated = allocation_counter::measure(|| {
        let _ = perf::oracle::check::<Row>(bytes);
    });
    assert!(allocated.bytes_total <= bytes_max(bytes.len()), "{} bytes took {allocated:?}", bytes.len());
});
