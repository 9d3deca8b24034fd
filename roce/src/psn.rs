//! Packet sequence numbers: 24 bits, circular.
//!
//! ```text
//!   half a circle behind            base              half a circle ahead
//!   offset -2^23+1 .. -1             0                 1 .. 2^23-1
//!   ----------------------------------|----------------------------------
//!   (at distance 2^23 exactly a number is neither before nor after: None)
//! ```
//!
//! There is no total order of PSNs, so the type has no `Ord`: "before" and "after" are asked as an
//! offset from a base that the caller names (IBA 9.7.2).

use std::fmt;

/// A sequence of PSNs that one end of a connection sends. The order of one says nothing of the order of the other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PsnSpace {
    /// Of its requester.
    #[default]
    Request,
    /// Of its responder: READ responses and acknowledgements, whose PSNs are those of the requests.
    Response,
}

/// A packet sequence number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Psn(u32);

impl Psn {
    /// How many there are: 2^24.
    pub const COUNT: u32 = 1 << 24;

    /// The PSN in the low 24 bits of `value`.
    pub const fn new(value: u32) -> Self {
        Psn(value & (Self::COUNT - 1))
    }

    /// The number, below 2^24.
    pub const fn value(self) -> u32 {
        self.0
    }

    /// The PSN `n` after this one.
    pub const fn plus(self, n: u32) -> Self {
        Psn::new(self.0.wrapping_add(n))
    }

    /// The PSN `n` before this one.
    pub const fn minus(self, n: u32) -> Self {
        Psn::new(self.0.wrapping_sub(n))
    }

    /// How far this PSN is after `base` (negative: before), or `None` at the one distance, 2^23,
    /// where it is neither.
    pub const fn offset_from(self, base: Psn) -> Option<i32> {
        let ahead = self.distance_from(base);
        if ahead == Self::COUNT / 2 {
            None
        } else {
            // Sign-extend the 24-bit difference; the cast reinterprets bits and loses none.
            Some(((ahead << 8) as i32) >> 8)
        }
    }

    /// How far this PSN is after `base`, all the way round where need be: below 2^24.
    pub const fn distance_from(self, base: Psn) -> u32 {
        self.0.wrapping_sub(base.0) & (Self::COUNT - 1)
    }

    /// How far this PSN is after `base`, where it lies less than `len` after it: "is it in the
    /// window of `len` packets that starts at `base`, and where". `len` is at most 2^23.
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
