//! Standard output that may be closed early: `roce doctor | head`.

use std::io::{self, ErrorKind, Write};

/// Prints `text`. A closed pipe is no error.
pub(crate) fn print(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        result => result,
    }
}

/// Prints `report` as a line of JSON.
pub(crate) fn print_json(report: &impl serde::Serialize) -> anyhow::Result<()> {
    Ok(print(&(serde_json::to_string(report)? + "\n"))?)
}
