//! Instruction counts of the calls that an RDMA program makes for each message: of the C interface, and of the functions
//! of `verbs` in which these calls end. `cargo xtask instructions` compares the counts with
//! `roce/benches/instructions.txt`.
//!
//! The C interface is that of libroce_verbs.so as it is released, which the benchmark loads as a program does. Both ends
//! of the connection are one queue pair, on a port that receives the frames that it sends.

#![allow(missing_docs)] // of items that the macros generate
#![allow(unsafe_code)]

mod calls;

use calls::rust::RustCalls;
use calls::{CALLS, Calls, c::CCalls};
use gungraun::{library_benchmark, library_benchmark_group, main};

fn ready<C: Calls>() -> C {
    let mut calls = C::open();
    calls.warm_up();
    calls
}

/// After the first post since a poll, which drives the engine as the posts after it do not.
fn posting<C: Calls>() -> C {
    let mut calls = ready::<C>();
    calls.post_recv();
    calls.post_send();
    calls
}

fn received<C: Calls>() -> C {
    let mut calls = ready::<C>();
    calls.send(CALLS);
    calls
}

// Every function repeats its call `CALLS` times, so that the cost of the function itself is negligible.

#[library_benchmark]
#[bench::c(posting::<CCalls>())]
#[bench::rust(posting::<RustCalls>())]
fn post_send<C: Calls>(mut calls: C) -> C {
    (0..CALLS).for_each(|_| calls.post_send());
    calls
}

#[library_benchmark]
#[bench::c(posting::<CCalls>())]
#[bench::rust(posting::<RustCalls>())]
fn build_send<C: Calls>(mut calls: C) -> C {
    (0..CALLS).for_each(|_| calls.build_send());
    calls
}

#[library_benchmark]
#[bench::c(posting::<CCalls>())]
#[bench::rust(posting::<RustCalls>())]
fn post_recv<C: Calls>(mut calls: C) -> C {
    (0..CALLS).for_each(|_| calls.post_recv());
    calls
}

#[library_benchmark]
#[bench::c(ready::<CCalls>())]
#[bench::rust(ready::<RustCalls>())]
fn poll_empty_cq<C: Calls>(mut calls: C) -> C {
    (0..CALLS).for_each(|_| assert!(!calls.poll_send_cq()));
    calls
}

#[library_benchmark]
#[bench::c(received::<CCalls>())]
#[bench::rust(received::<RustCalls>())]
fn poll_cq<C: Calls>(mut calls: C) -> C {
    (0..CALLS).for_each(|_| assert!(calls.poll_recv_cq()));
    calls
}

library_benchmark_group!(
    name = call,
    benchmarks = [post_send, build_send, post_recv, poll_empty_cq, poll_cq]
);

main!(library_benchmark_groups = call);
