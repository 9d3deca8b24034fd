//! Progress of operations that take longer than two seconds, on a terminal.

use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// Operations shorter than this show nothing.
const SHOWN_AFTER: Duration = Duration::from_secs(2);
/// Interval of movement of a line without a known end.
const TICK: Duration = Duration::from_millis(200);

/// A line on standard error, if that is a terminal and the operation lasts. Removed when dropped.
pub(crate) struct Progress {
    bar: ProgressBar,
    started: Instant,
    is_shown: bool,
}

impl Progress {
    /// Begins an operation of `total` steps, described by `doing`.
    pub(crate) fn of(total: u64, doing: &'static str) -> Self {
        let style = ProgressStyle::with_template("{msg} [{bar:30}] {human_pos}/{human_len}, {eta} left")
            .unwrap_or_else(|_| ProgressStyle::default_bar());
        Self::start(ProgressBar::with_draw_target(Some(total), ProgressDrawTarget::hidden()), style, doing)
    }

    /// Begins a wait of unknown length, described by `doing`, and shows it at once.
    pub(crate) fn waiting(doing: String) -> Self {
        let style = ProgressStyle::with_template("{spinner} {msg}, {elapsed}")
            .unwrap_or_else(|_| ProgressStyle::default_spinner());
        let mut progress =
            Self::start(ProgressBar::with_draw_target(None, ProgressDrawTarget::hidden()), style, doing);
        progress.show();
        progress.bar.enable_steady_tick(TICK);
        progress
    }

    fn start(
        bar: ProgressBar,
        style: ProgressStyle,
        doing: impl Into<std::borrow::Cow<'static, str>>,
    ) -> Self {
        bar.set_style(style);
        bar.set_message(doing);
        Progress { bar, started: Instant::now(), is_shown: false }
    }

    fn show(&mut self) {
        self.is_shown = true;
        self.bar.set_draw_target(ProgressDrawTarget::stderr());
    }

    /// Records that `done` steps are done. Reads the clock, so it is not for every packet.
    pub(crate) fn set(&mut self, done: u64) {
        if !self.is_shown && self.started.elapsed() >= SHOWN_AFTER {
            self.show();
        }
        if self.is_shown {
            self.bar.set_position(done);
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
