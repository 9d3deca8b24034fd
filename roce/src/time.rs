//! Time as the engine sees it: nanoseconds, handed in by the caller of `poll`. No clock is read here.

/// A point in time: nanoseconds since an origin that the caller chose (a boot, a simulation's start).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Instant(u64);

impl Instant {
    /// The origin.
    pub const ZERO: Instant = Instant(0);

    /// The instant `nanos` nanoseconds after the origin.
    pub const fn from_nanos(nanos: u64) -> Self {
        Instant(nanos)
    }

    /// Nanoseconds since the origin.
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// This instant and `nanos` more nanoseconds; stops at the end of time instead of wrapping.
    pub const fn plus_nanos(self, nanos: u64) -> Self {
        Instant(self.0.saturating_add(nanos))
    }

    /// Nanoseconds from `earlier` to here, 0 where `earlier` is later.
    pub const fn nanos_since(self, earlier: Instant) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}
