//! The C interface of libibverbs, over the devices of [`verbs`]. `roce run` loads this library into an RDMA program with
//! LD_PRELOAD, so that the program's calls of libibverbs reach this library first.
//!
//! ```text
//!   program --ibv_open_device, ibv_reg_mr ..--> this library --object of a device of ours--> verbs
//!      |                                             '--------object of another device-----> next libibverbs
//!      '----ibv_post_send, ibv_poll_cq: ibv_context::ops of the object's own library
//! ```
//!
//! A function that creates or uses an object is defined here (`mr.rs`, `cq.rs`, `qp.rs`, `query.rs` and so on) and passes objects of other
//! devices on to the next library (`next.rs`). Functions without an object, such as `ibv_wc_status_str`, are left to the
//! next library. This library contains no part of the transport: only layouts of C structures, file descriptors and
//! values of errno.
//!
//! The folder `files` defines functions of the C library, by which programs find the devices in the file system.
//!
//! The symbols have no versions. The dynamic linker accepts a symbol without a version for each version that a program
//! asks for, therefore also for the private versions of libibverbs, whose names change from release to release.
#![allow(unsafe_code)]

mod ah;
mod async_event;
mod boundary;
mod builder;
mod channel;
mod clock;
mod config;
mod context;
mod cq;
mod cq_event;
mod cq_ex;
mod device;
mod dynamic;
mod events;
#[cfg(not(sanitizer))]
mod files;
mod gather;
mod handle;
mod interrupt;
mod mr;
mod next;
mod open;
mod post;
mod qp;
mod qp_attr;
mod qp_create;
mod query;
mod srq;
mod unsupported;
mod wr;
