//! Packet sequence numbers (PSN): 24 bits, compared on a circle (IBA 9.2.8).
//!
//! ```text
//!   half a circle below             base              half a circle above
//!   offset -2^23+1 .. -1             0                 1 .. 2^23-1
//!   ----------------------------------|----------------------------------
//!   (a PSN at distance 2^23 is neither below nor above the base: no offset)
//! ```
//!
//! PSNs have no total order, so [`Psn`] does not implement `Ord`: a comparison is the sign of the offset from a base
//! PSN that the caller passes (IBA 9.7.2).

use std::fmt;
use std::ops::{Index, IndexMut};

/// PSN space in which a queue pair sends a packet: requests, or responses. Packets of one space are not ordered against
/// packets of the other space.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PsnSpace {
    /// Requests, acknowledged by ACKs and SACKs.
    #[default]
    Request,
    /// Responses: READ responses, ACKs, NAKs and SACKs. The PSN of a READ response is acknowledged when the requester
    /// receives the READ response.
    Response,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PerSpace<T> {
    requests: T,
    responses: T,
}

impl<T: Copy> PerSpace<T> {
    pub(crate) const fn new(value: T) -> Self {
        PerSpace { requests: value, responses: value }
    }

    pub(crate) fn both_mut(&mut self) -> [&mut T; 2] {
        [&mut self.requests, &mut self.responses]
    }
}

impl<T> Index<PsnSpace> for PerSpace<T> {
    type Output = T;

    #[inline]
    fn index(&self, space: PsnSpace) -> &T {
        match space {
            PsnSpace::Request => &self.requests,
            PsnSpace::Response => &self.responses,
        }
    }
}

impl<T> IndexMut<PsnSpace> for PerSpace<T> {
    #[inline]
    fn index_mut(&mut self, space: PsnSpace) -> &mut T {
        match space {
            PsnSpace::Request => &mut self.requests,
            PsnSpace::Response => &mut self.responses,
        }
    }
}

/// A packet sequence number, 0 to 2^24 - 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Psn(u32);

impl Psn {
    /// Number of PSNs: 2^24.
    pub const COUNT: u32 = 1 << 24;

    /// Returns the PSN in the low 24 bits of `value`.
    pub const fn new(value: u32) -> Self {
        Psn(value & (Self::COUNT - 1))
    }

    /// Returns the PSN as an integer, 0 to 2^24 - 1.
    pub const fn value(self) -> u32 {
        self.0
    }

    /// Returns this PSN plus `n`, modulo 2^24.
    pub const fn plus(self, n: u32) -> Self {
        Psn::new(self.0.wrapping_add(n))
    }

    /// Returns this PSN minus `n`, modulo 2^24.
    pub const fn minus(self, n: u32) -> Self {
        Psn::new(self.0.wrapping_sub(n))
    }

    /// Returns the distance of this PSN above `base`, -2^23 + 1 to 2^23 - 1; negative if this PSN is below `base`. At
    /// distance 2^23 a PSN is neither above nor below `base`, and the result is `None`.
    pub const fn offset_from(self, base: Psn) -> Option<i32> {
        let ahead = self.distance_from(base);
        if ahead == Self::COUNT / 2 {
            None
        } else {
            // Sign-extends the 24-bit difference; the cast from `u32` to `i32` loses no bit.
            Some(((ahead << 8) as i32) >> 8)
        }
    }

    /// Returns the distance of this PSN above `base`, counted upwards around the circle: 0 to 2^24 - 1.
    pub(crate) const fn distance_from(self, base: Psn) -> u32 {
        self.0.wrapping_sub(base.0) & (Self::COUNT - 1)
    }

    /// Returns the index of this PSN in the window of `len` PSNs that starts at `base`; `None` if this PSN is not in
    /// the window. `len` is at most 2^23.
    pub const fn index_in(self, base: Psn, len: u32) -> Option<u32> {
        let ahead = self.distance_from(base);
        if ahead < len { Some(ahead) } else { None }
    }
}

impl fmt::Display for Psn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:06x}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offsets_wrap_and_the_antipode_is_neither_side() {
        let base = Psn::new(0xFF_FFFE);
        assert_eq!(base.plus(5).offset_from(base), Some(5));
        assert_eq!((base.plus(5).distance_from(base), base.distance_from(base.plus(5))), (5, Psn::COUNT - 5));
        assert_eq!(base.plus(5), Psn::new(3));
        assert_eq!((base.to_string(), base.plus(5).to_string()), ("fffffe".into(), "000003".into()));
        assert_eq!(base.minus(7).offset_from(base), Some(-7));
        assert_eq!(base.plus(1 << 23).offset_from(base), None);
        assert_eq!(base.plus((1 << 23) - 1).offset_from(base), Some((1 << 23) - 1));
        assert_eq!(base.plus((1 << 23) + 1).offset_from(base), Some(-(1 << 23) + 1));
    }

    #[test]
    fn a_window_holds_exactly_its_length() {
        let base = Psn::new(0xFF_FFFF);
        assert_eq!(base.index_in(base, 0), None);
        assert_eq!(base.index_in(base, 1), Some(0));
        assert_eq!(base.plus(1).index_in(base, 1), None);
        assert_eq!(base.minus(1).index_in(base, 1 << 23), None);
    }
}
