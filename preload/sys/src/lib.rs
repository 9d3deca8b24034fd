//! Types and constants of infiniband/verbs.h, generated from the installed headers of rdma-core under their BSD licence.
#![allow(unsafe_code)]

#[allow(missing_docs, non_camel_case_types, non_snake_case, non_upper_case_globals, unsafe_op_in_unsafe_fn)]
#[allow(unreachable_pub, clippy::all, clippy::undocumented_unsafe_blocks, unused_imports)]
mod bindings {
    include!(concat!(env!("OUT_DIR"), "/bindings.rs"));
}

pub use bindings::*;
