//! Numbers as text.

/// Formats a number with about four significant digits. Only a number below 0.001 has an exponent.
pub(super) fn number(value: f64) -> String {
    let size = value.abs();
    match value {
        _ if value == value.trunc() && size < 1e15 => format!("{value}"),
        _ if size >= 1000.0 => format!("{value:.0}"),
        _ if size >= 100.0 => format!("{value:.1}"),
        _ if size >= 10.0 => format!("{value:.2}"),
        _ if size >= 0.001 => format!("{value:.3}"),
        _ => format!("{value:.2e}"),
    }
}
