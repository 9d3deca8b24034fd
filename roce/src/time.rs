//! Time of the engine, in nanoseconds, passed to `poll` by its caller. The engine reads no clock.

/// A point in time: nanoseconds since an origin that the caller chooses (a boot, the start of a simulation).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Instant(u64);

impl Instant {
    /// The origin: 0 ns.
    pub const ZERO: Instant = Instant(0);

    /// Returns the instant `nanos` nanoseconds after [`Instant::ZERO`].
    pub const fn from_nanos(nanos: u64) -> Self {
        Instant(nanos)
    }

    /// Returns the time from [`Instant::ZERO`] to this instant, in nanoseconds.
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// Returns the instant `nanos` nanoseconds after this instant; saturates at 2^64 - 1 ns after [`Instant::ZERO`].
    pub const fn plus_nanos(self, nanos: u64) -> Self {
        Instant(self.0.saturating_add(nanos))
    }

    /// Returns the nanoseconds from `earlier` to this instant; 0 if this instant is before `earlier`.
    pub const fn nanos_since(self, earlier: Instant) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

/// An optional [`Instant`] in 8 bytes; 2^64 - 1 ns stands for `None`. An `Option<Instant>` takes 16 bytes, and would
/// enlarge state that each message accesses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct OptionalInstant(Instant);

impl OptionalInstant {
    pub(crate) const NONE: OptionalInstant = OptionalInstant(Instant(u64::MAX));

    #[inline]
    pub(crate) fn some(at: Instant) -> Self {
        OptionalInstant(at)
    }

    #[inline]
    pub(crate) fn get(self) -> Option<Instant> {
        (self != OptionalInstant::NONE).then_some(self.0)
    }

    #[inline]
    pub(crate) fn is_none(self) -> bool {
        self == OptionalInstant::NONE
    }

    /// Removes and returns the instant.
    #[inline]
    pub(crate) fn take(&mut self) -> Option<Instant> {
        std::mem::replace(self, OptionalInstant::NONE).get()
    }
}

impl Default for OptionalInstant {
    fn default() -> Self {
        OptionalInstant::NONE
    }
}
