//! Any bytes into what `roce perf` and `roce ping` take over TCP.
#![no_main]
// What only sockets and the command line use of these modules.
#![allow(dead_code)]

use libfuzzer_sys::fuzz_target;

#[path = "../modules/exchange.rs"]
mod exchange;
#[path = "../modules/perf.rs"]
mod perf;

/// The figures of a run, as far as they matter here.
#[derive(serde::Deserialize)]
struct Row {
    #[serde(rename = "iterations")]
    _iterations: u64,
}

/// What may be allocated for a message of so many bytes: JSON takes two for a number that takes eight, and a vector
/// doubles as it grows; errors and the values made to compare take some more.
fn bytes_max(message_bytes: usize) -> u64 {
    64 * message_bytes as u64 + (64 << 10)
}

fuzz_target!(|bytes: &[u8]| {
    let allocated = allocation_counter::measure(|| {
        let _ = perf::oracle::check::<Row>(bytes);
    });
    assert!(allocated.bytes_total <= bytes_max(bytes.len()), "{} bytes took {allocated:?}", bytes.len());
});
