//! DPDK's log, held in memory so that error values can quote it.

use std::collections::VecDeque;
use std::ffi::{c_char, c_void};
use std::fmt;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Lines held; beyond this the oldest is dropped.
const LINES_MAX: usize = 64;

/// Messages of DPDK's log that reach standard error.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum LogLevel {
    /// None, because error values quote the log.
    #[default]
    Quiet,
    /// Errors.
    Error,
    /// Errors and warnings.
    Warning,
    /// Errors, warnings and reports of normal operation.
    Info,
    /// All messages.
    Debug,
}

impl LogLevel {
    fn threshold(self) -> u32 {
        match self {
            Self::Quiet => 0,
            Self::Error => dpdk_sys::RTE_LOG_ERR,
            Self::Warning => dpdk_sys::RTE_LOG_WARNING,
            Self::Info => dpdk_sys::RTE_LOG_INFO,
            Self::Debug => dpdk_sys::RTE_LOG_DEBUG,
        }
    }

    /// Returns the level for EAL: at least warnings, because error values quote them.
    pub(crate) fn eal_level(self) -> u32 {
        self.threshold().max(dpdk_sys::RTE_LOG_WARNING)
    }
}

/// Lines that DPDK logged during an operation; displayed indented, one per line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogLines(Vec<String>);

impl LogLines {
    /// Returns the lines, oldest first.
    pub fn lines(&self) -> &[String] {
        &self.0
    }
}

impl fmt::Display for LogLines {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|line| write!(f, "\n  DPDK: {line}"))
    }
}

struct Capture {
    lines: VecDeque<String>,
    /// Lines captured so far: the number of the next one.
    total: u64,
}

static CAPTURE: Mutex<Capture> = Mutex::new(Capture { lines: VecDeque::new(), total: 0 });
static ECHO_THRESHOLD: AtomicU32 = AtomicU32::new(0);

fn capture() -> MutexGuard<'static, Capture> {
    CAPTURE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Redirects DPDK's log to `write`. Called before `rte_eal_init`, so that its messages are captured.
pub(crate) fn install(level: LogLevel) -> bool {
    ECHO_THRESHOLD.store(level.threshold(), Ordering::Relaxed);
    // SAFETY: `write` has the signature asked for and lives forever.
    unsafe { dpdk_sys::shim_log_to(Some(write)) == 0 }
}

/// Returns the current position in the log, for `since`.
pub(crate) fn mark() -> u64 {
    capture().total
}

/// Returns the lines logged after `mark`, as far as they are held.
pub(crate) fn since(mark: u64) -> LogLines {
    let capture = capture();
    let fresh = usize::try_from(capture.total - mark).unwrap_or(usize::MAX).min(capture.lines.len());
    LogLines(capture.lines.iter().skip(capture.lines.len() - fresh).cloned().collect())
}

/// Receives whole messages, because DPDK flushes its stream after each one.
unsafe extern "C" fn write(_cookie: *mut c_void, text: *const c_char, len: usize) -> isize {
    // SAFETY: stdio hands over `len` readable bytes.
    let bytes = unsafe { std::slice::from_raw_parts(text.cast::<u8>(), len) };
    let text = String::from_utf8_lossy(bytes);
    // SAFETY: reads a thread-local variable.
    let level = unsafe { dpdk_sys::rte_log_cur_msg_loglevel() };
    if u32::try_from(level).is_ok_and(|level| level <= ECHO_THRESHOLD.load(Ordering::Relaxed)) {
        eprint!("{text}");
    }
    let mut capture = capture();
    for line in text.lines().filter(|line| !line.is_empty()) {
        if capture.lines.len() == LINES_MAX {
            capture.lines.pop_front();
        }
        capture.lines.push_back(line.to_owned());
        capture.total += 1;
    }
    isize::try_from(len).unwrap_or(isize::MAX)
}
