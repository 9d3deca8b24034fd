//! Generates the types and constants of infiniband/verbs.h. Nothing is linked: the functions of libibverbs are looked
//! up when a program runs.

use std::path::PathBuf;
use std::{env, panic};

const INSTALL: &str = "\
verbs-sys needs the headers of libibverbs (rdma-core 44 or later) and libclang to build. Install them:
  Debian, Ubuntu:  apt-get install libibverbs-dev libclang-dev
  Fedora:          dnf install rdma-core-devel clang-devel
libclang outside the default path is found through LIBCLANG_PATH.";

/// Types that no other type names.
const TYPES: &[&str] = &["ibv_.*", "verbs_context", "_compat_ibv_port_attr"];

fn main() {
    println!("cargo:rerun-if-changed=wrapper.h");
    if let Err(reason) = bind() {
        eprintln!("error: {reason}");
        std::process::exit(1);
    }
}

fn bind() -> Result<(), String> {
    let mut builder = bindgen::Builder::default()
        .header("wrapper.h")
        .derive_default(true)
        .derive_debug(false)
        .default_enum_style(bindgen::EnumVariation::Consts)
        .prepend_enum_name(false)
        .layout_tests(true)
        .allowlist_var("IBV_.*")
        .ignore_functions()
        .generate_comments(false);
    for pattern in TYPES {
        builder = builder.allowlist_type(pattern);
    }
    // bindgen panics if libclang cannot be loaded, with a text that does not say what to install.
    let generated = panic::catch_unwind(panic::AssertUnwindSafe(|| builder.generate()))
        .map_err(|_| format!("{INSTALL}\n\nlibclang could not be loaded (see above)"))?
        .map_err(|error| format!("{INSTALL}\n\nbindgen: {error}"))?;
    let path = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR")).join("bindings.rs");
    generated.write_to_file(&path).map_err(|error| format!("cannot write {}: {error}", path.display()))
}
