//! Our stack with Linux's own soft-RoCE in a QEMU guest: `cargo test -p tests guest`.

mod boot;
mod loss;
mod machine;
mod ops;
mod perftest;
mod pingpong;
mod preload;
mod stopped;
mod vfio;
