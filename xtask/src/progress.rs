//! Progress of measurements on a terminal.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

/// Interval at which the time left is shown anew.
const TICK: Duration = Duration::from_millis(500);

/// A line at the bottom of standard error, if that is a terminal. Removed when dropped.
pub(crate) struct Progress(ProgressBar);

impl Progress {
    /// Begins an operation of `total` steps, described by `doing`.
    pub(crate) fn of(total: usize, doing: String) -> Self {
        let style = ProgressStyle::with_template("{msg} [{bar:30}] {human_pos}/{human_len}, {eta} left")
            .unwrap_or_else(|_| ProgressStyle::default_bar());
        let bar = ProgressBar::new(total as u64).with_style(style).with_message(doing);
        bar.enable_steady_tick(TICK);
        Progress(bar)
    }

    /// Records that another step is done.
    pub(crate) fn step(&self) {
        self.0.inc(1);
    }

    /// Prints `line` on standard error, also if that is no terminal.
    pub(crate) fn say(&self, line: &str) {
        self.0.suspend(|| eprintln!("{line}"));
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}
