//! Bounds on a peer's messages over TCP, with their units.

use std::ops::RangeInclusive;
use std::time::Duration;

/// The longest hello of `roce perf`: options, and a GID table of 128 entries.
pub(crate) const HELLO_BYTES_MAX: usize = 16 << 10;
/// The longest other message: the ends of the largest number of [`QPS`].
pub(crate) const MESSAGE_BYTES_MAX: usize = 1 << 20;
/// The longest text of an end in such a message, in decimal and with its names.
pub(crate) const END_BYTES_MAX: usize = 192;
/// Messages received and not yet taken by the measuring thread.
pub(crate) const QUEUED_MESSAGES_MAX: usize = 8;
/// GIDs of a hello: the size of a GID table.
pub(crate) const GIDS_MAX: usize = 128;
/// Characters of a peer's text shown, at most.
pub(crate) const QUOTED_CHARS_MAX: usize = 300;

/// Connections in the lobby at a time; a further one closes the oldest.
pub(crate) const CANDIDATES_MAX: usize = 64;
/// Time limit of a connection's hello.
pub(crate) const HELLO_TIMEOUT: Duration = Duration::from_secs(5);
/// Time limit for a client that is perftest, between two records of its greeting, and between greeting and first line:
/// before that line it allocates its memory and creates its queue pairs.
pub(crate) const ALLOCATION_TIMEOUT: Duration = Duration::from_secs(60);
/// Interval of lines on standard error about closed connections.
pub(crate) const NOTE_INTERVAL: Duration = Duration::from_secs(1);
/// The longest `--peer-timeout`: an hour.
pub(crate) const PEER_TIMEOUT_SECS_MAX: i64 = 3600;

/// Queue pairs of a test.
pub(crate) const QPS: RangeInclusive<u32> = 1..=4096;
/// Work requests of a queue.
pub(crate) const DEPTH: RangeInclusive<u32> = 1..=32_768;
/// Messages of a queue pair: 48 bits, because the ID of a work request also has the number of the queue pair.
pub(crate) const ITERS: RangeInclusive<u64> = 1..=(1 << 48) - 1;
/// Round trips of a latency test, whose times are all stored.
pub(crate) const LAT_ITERS_MAX: u64 = 20_000_000;
/// Seconds of a test.
pub(crate) const SECS: RangeInclusive<u32> = 1..=u32::MAX;
/// READs outstanding per queue pair.
pub(crate) const OUTS: RangeInclusive<u8> = 1..=128;
/// The longest message of a test, in bytes; `-a` ends at 2^23.
pub(crate) const SIZE_BYTES_MAX: u32 = 1 << 30;
/// Registered memory, in bytes, that a peer's choices may cost this end, unless its own choices cost as much.
pub(crate) const PEER_MEMORY_BYTES_MAX: u64 = 1 << 30;

const _: () = assert!(*QPS.end() as usize * END_BYTES_MAX < MESSAGE_BYTES_MAX);
// The sum over all queue pairs is counted in a u64.
const _: () = assert!(*ITERS.end() < u64::MAX / *QPS.end() as u64);

/// Returns a peer's text for display: truncated, without control characters.
pub(crate) fn quote(text: &str) -> String {
    let mut shown: String = text.escape_debug().take(QUOTED_CHARS_MAX).collect();
    if text.chars().nth(QUOTED_CHARS_MAX).is_some() {
        shown.push_str("...");
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_peer_says_is_shown_in_part_and_cannot_control_the_terminal() {
        assert_eq!(quote("-s 64"), "-s 64");
        let shown = quote(&format!("\u{1b}[2J\r\n{}", "x".repeat(1 << 20)));
        assert!(shown.starts_with("\\u{1b}[2J\\r\\nxx") && shown.ends_with("x..."), "{shown}");
        assert!(shown.len() < 400);
    }
}
