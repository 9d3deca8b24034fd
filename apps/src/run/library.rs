//! The library that is loaded into the program.

use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, anyhow};

/// Variable of the dynamic linker: libraries that are loaded before those of the program.
pub(super) const PRELOAD_VARIABLE: &str = "LD_PRELOAD";
/// Variable with the path of the library.
const LIBRARY_VARIABLE: &str = "ROCE_LIBRARY";
const NAME: &str = "libroce_verbs.so";
/// Directories of the library, beneath the directory of this command: where cargo builds both, and where packages
/// install libraries.
const PLACES: [&str; 3] = ["", "../lib/roce", "../lib"];

/// Returns the absolute path of the library.
pub(super) fn find(option: Option<&Path>) -> anyhow::Result<PathBuf> {
    let given = option.map(PathBuf::from).or_else(|| env::var_os(LIBRARY_VARIABLE).map(PathBuf::from));
    if let Some(path) = given {
        return path.canonicalize().with_context(|| format!("cannot use the library {}", path.display()));
    }
    let command = env::current_exe().context("cannot find this command's own directory")?;
    let directory = command.parent().unwrap_or(Path::new("/"));
    let places = PLACES.map(|place| directory.join(place).join(NAME));
    places.iter().find_map(|path| path.canonicalize().ok()).ok_or_else(|| {
        anyhow!(
            "{NAME} is not in {}, ../lib/roce or ../lib: `cargo build --release` builds it beside this command; \
             --library or {LIBRARY_VARIABLE} names another place",
            directory.display()
        )
    })
}

/// Returns the value of [`PRELOAD_VARIABLE`]: the library, and then the libraries that the variable has already.
pub(super) fn preload(library: &Path) -> anyhow::Result<OsString> {
    // The dynamic linker knows no quotes.
    if library.to_string_lossy().contains([' ', ':']) {
        return Err(anyhow!(
            "{}: {PRELOAD_VARIABLE} takes no path with a space or colon: move the library",
            library.display()
        ));
    }
    let mut value = library.as_os_str().to_owned();
    if let Some(others) = env::var_os(PRELOAD_VARIABLE).filter(|others| !others.is_empty()) {
        value.push(":");
        value.push(others);
    }
    Ok(value)
}
