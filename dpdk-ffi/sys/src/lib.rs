//! Declarations of the DPDK functions and types that `dpdk-ffi` uses, generated from the installed headers,
//! and `shim_*` functions for parts that the headers offer only inline. None of them is safe to call by
//! itself: the owners in `dpdk-ffi` state the rules.
#![allow(unsafe_code)]

#[allow(missing_docs, non_camel_case_types, non_snake_case, non_upper_case_globals, unsafe_op_in_unsafe_fn)]
#[allow(unreachable_pub, clippy::all, clippy::undocumented_unsafe_blocks)]
mod bindings {
    include!(concat!(env!("OUT_DIR"), "/bindings.rs"));
}

pub use bindings::*;

/// Whether DPDK is linked statically, with only the drivers that build.rs names, or as shared libraries,
/// with every driver that is installed.
pub const STATIC: bool = cfg!(dpdk_static);

/// Whether the mlx5 driver may be there: with the feature `mlx5`, or with every installed driver.
pub const MAY_HAVE_MLX5: bool = !STATIC || cfg!(feature = "mlx5");
