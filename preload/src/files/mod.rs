//! File functions of the C library, by which programs find the devices where `roce run` can make no mount namespace.
//!
//! ```text
//!   open("/sys/class/infiniband/roce0/node_guid")   -> next open("TREE/sys/class/infiniband/roce0/node_guid")
//!   open("/etc/hosts"), open("roce0/node_guid")     -> next open, with the same path
//!   realpath("/sys/class/infiniband/roce0/../..")   -> "/sys/class", not "TREE/sys/class"
//! ```
//!
//! TREE is the directory that `roce run` names in an environment variable (`tree.rs`). Without the variable each function
//! only calls the next function of its name. `path.rs` has the rule by which paths are rewritten, `interpose.rs` the
//! definition of a function that rewrites its path, `functions.rs` the functions that return no path, and `resolve.rs`
//! those that do.
//!
//! The functions may be called before constructors run, by an allocator, and in a signal handler. Therefore they neither
//! allocate, nor lock, nor panic, and change errno only if they fail. Their ABI is C-unwind, because a thread may be
//! cancelled in the next function.
//!
//! Under a sanitizer, whose runtime calls these functions before the runtime is ready, they are not defined.

mod functions;
mod interpose;
mod path;
mod resolve;
mod tree;

/// Called by the dynamic linker before the program's `main`.
extern "C" fn start() {
    tree::read();
    functions::find_all();
    resolve::find_all();
}

#[used]
#[unsafe(link_section = ".init_array")]
static START: extern "C" fn() = start;
