//! Agreement of the two ends of a ping-pong on selective repeat, in the field of ibv_rc_pingpong's line that
//! RoCE does not use (docs/WIRE.md).
//!
//! ```text
//!   LID, 16 bits   | magic 0x53 (8) | version 1 (4) | log2 of the window in packets, 6 to 12 (4) |
//! ```
//!
//! An end without this scheme sends a LID of 0, as ibv_rc_pingpong does on RoCE. ibv_rc_pingpong passes a
//! received LID to the kernel, which ignores it in a RoCE address. If both ends send the same offer it is
//! agreed; otherwise recovery is a scheme that needs no agreement.

use verbs::RecoveryScheme;

const MAGIC: u16 = 0x53;
const VERSION: u16 = 1;

/// Returns the LID that offers this scheme.
pub(super) fn offer(asked: Option<RecoveryScheme>) -> u16 {
    match asked {
        None | Some(RecoveryScheme::GoBackN | RecoveryScheme::ImprovedGoBackN) => 0,
        // A window is a power of two up to 2^12, so its logarithm has four bits.
        Some(RecoveryScheme::SelectiveRepeat { window_pkts }) => {
            MAGIC << 8 | VERSION << 4 | window_pkts.ilog2() as u16
        }
    }
}

/// Returns the scheme that a LID offers.
fn read(lid: u16) -> Option<RecoveryScheme> {
    let scheme = RecoveryScheme::SelectiveRepeat { window_pkts: 1 << (lid & 0xF) };
    (lid >> 4 == MAGIC << 4 | VERSION && scheme.is_valid()).then_some(scheme)
}

/// Returns the recovery scheme of this end, given the peer's LID.
pub(super) fn agree(asked: Option<RecoveryScheme>, peer: u16) -> RecoveryScheme {
    match asked {
        Some(RecoveryScheme::SelectiveRepeat { .. }) if offer(asked) != peer => {
            RecoveryScheme::ImprovedGoBackN
        }
        asked => asked.unwrap_or(RecoveryScheme::ImprovedGoBackN),
    }
}

/// Returns the message to the user if this end's offer was not agreed.
pub(super) fn note(own: u16, peer: u16) -> Option<String> {
    let asked = read(own).filter(|_| own != peer)?;
    let offered = match read(peer) {
        Some(other) => format!("offers {other}"),
        None => "does not offer it".to_owned(),
    };
    Some(format!(
        "--recovery {asked}: the peer {offered}, so recovery is improved-go-back-n; both ends must be `roce ping` with the same --recovery"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scheme(name: &str) -> Option<RecoveryScheme> {
        Some(name.parse().unwrap())
    }

    #[test]
    fn the_same_offer_of_both_ends_is_agreed() {
        assert_eq!(offer(scheme("selective-repeat")), 0x531A);
        for (window, lid) in [(64, 0x5316), (4096, 0x531C)] {
            let asked = RecoveryScheme::SelectiveRepeat { window_pkts: window };
            assert_eq!(offer(Some(asked)), lid);
            assert_eq!(agree(Some(asked), lid), asked);
            assert_eq!(note(lid, lid), None);
        }
    }

    #[test]
    fn anything_else_is_what_an_end_does_by_itself() {
        for asked in [None, scheme("go-back-n"), scheme("improved-go-back-n")] {
            assert_eq!(offer(asked), 0);
            for peer in [0, 0x531A] {
                assert_eq!(agree(asked, peer), asked.unwrap_or(RecoveryScheme::ImprovedGoBackN));
            }
        }
        // No offer, another window, another version, an InfiniBand LID; and no offer at either end.
        for (own, peer) in
            [(0x531A, 0), (0, 0x531A), (0x531A, 0x5316), (0x531A, 0x532A), (0x531A, 0x001A), (0, 0)]
        {
            assert_eq!(agree(read(own), peer), RecoveryScheme::ImprovedGoBackN, "{own:04x} {peer:04x}");
            assert_eq!(note(own, peer).is_some(), own != 0, "{own:04x} {peer:04x}");
        }
        for lid in [0x5315, 0x531D, 0x531F, 0x530A, 0x532A, 0x541A, 0xFFFF] {
            assert_eq!(read(lid), None, "{lid:04x}");
        }
        let other = note(0x531A, 0x5316).unwrap();
        assert!(other.contains("selective-repeat:1024: the peer offers selective-repeat:64"), "{other}");
    }
}
