//! Fuzzes the rings of a memif port: the peer writes any bytes into the shared memory.
#![no_main]

use libfuzzer_sys::fuzz_target;

#[allow(dead_code)]
#[path = "../../dpdk-ffi/src/memif/ring.rs"]
mod ring;

#[path = "../../dpdk-ffi/tests/oracle/mod.rs"]
mod oracle;

fuzz_target!(|script: &[u8]| {
    oracle::run(script);
});
