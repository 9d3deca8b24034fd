//! Recovery at the responder: decides whether an out-of-order request may be buffered or placed, and which response
//! each duplicate or out-of-order request elicits.

use super::RecoveryScheme;
use crate::psn::Psn;
use crate::wire::{OpcodeInfo, Operation, Transport};

/// Maximum number of duplicate READ requests (for whole READs or parts) queued under selective repeat.
pub(crate) const DUPLICATE_READS_MAX: usize = 512;

/// Limits of the READ requests of a selective-repeat peer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SelectiveReads {
    /// Maximum number of duplicate READ requests queued.
    pub duplicates_max: usize,
    /// The agreed window in packets: the maximum number of READs served at once, and the number of PSNs, up to the
    /// highest PSN executed, of which the peer may request READ responses again.
    pub window_pkts: u32,
}

/// Response of a responder to a request that is executed, is a duplicate or is out of order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reply {
    Ack,
    /// NAK (PSN sequence error).
    Nak,
    Sack,
}

/// An out-of-order request that the responder reports to the recovery scheme.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OutOfOrderRequest {
    pub psn: Psn,
    pub ack_req: bool,
    /// Since the last advance of the expected PSN, no other out-of-order request was received, and no RNR NAK was due
    /// ([`crate::recovery::Verdict::OutOfOrder`]).
    pub first: bool,
    /// The request is newly buffered or placed.
    pub is_kept: bool,
}

/// Recovery scheme of a responder, fixed at the transition to RTR.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ResponderRecovery {
    GoBackN(GapNaks),
    SelectiveRepeat { window_pkts: u32 },
}

/// State from which go-back-N or improved go-back-N decides whether an out-of-order packet elicits a NAK.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GapNaks {
    is_improved: bool,
    /// Whether `nak_cause` is valid: false initially and after an RNR NAK.
    has_nak_cause: bool,
    /// PSN of the out-of-order packet that elicited the last NAK.
    nak_cause: Psn,
}

impl ResponderRecovery {
    pub(crate) fn new(scheme: RecoveryScheme) -> Self {
        let is_improved = scheme == RecoveryScheme::ImprovedGoBackN;
        match scheme {
            RecoveryScheme::GoBackN | RecoveryScheme::ImprovedGoBackN => {
                ResponderRecovery::GoBackN(GapNaks {
                    is_improved,
                    has_nak_cause: false,
                    nak_cause: Psn::default(),
                })
            }
            RecoveryScheme::SelectiveRepeat { window_pkts } => {
                ResponderRecovery::SelectiveRepeat { window_pkts }
            }
        }
    }

    /// Returns the limits of READ requests; `None` under both kinds of go-back-N, where
    /// `max_dest_rd_atomic` is the limit.
    pub(crate) fn selective_reads(&self) -> Option<SelectiveReads> {
        match *self {
            ResponderRecovery::GoBackN(_) => None,
            ResponderRecovery::SelectiveRepeat { window_pkts } => {
                Some(SelectiveReads { duplicates_max: DUPLICATE_READS_MAX, window_pkts })
            }
        }
    }

    #[inline]
    pub(crate) fn accepts_numbered_sends(&self) -> bool {
        matches!(self, ResponderRecovery::SelectiveRepeat { .. })
    }

    /// Returns whether an out-of-order request with the opcode of `info` may be buffered or placed. Under go-back-N
    /// and improved go-back-N, no READ request may be buffered: the peer would retransmit the READ request after the
    /// NAK, and receive all responses twice.
    pub(crate) fn keeps(&self, info: &OpcodeInfo) -> bool {
        match self {
            ResponderRecovery::GoBackN(_) => {
                info.operation != Operation::ReadRequest && info.transport != Transport::Manufacturer
            }
            ResponderRecovery::SelectiveRepeat { .. } => true,
        }
    }

    /// Returns whether a READ request above a gap of READ requests is executed as an early READ.
    pub(crate) fn executes_early_reads(&self) -> bool {
        matches!(self, ResponderRecovery::SelectiveRepeat { .. })
    }

    /// Returns whether a SACK is due for an executed request. `has_gap` returns whether requests above the new expected
    /// PSN are buffered or placed.
    #[inline]
    pub(crate) fn reports_gap(&self, has_gap: impl FnOnce() -> bool) -> bool {
        match self {
            ResponderRecovery::GoBackN(_) => false,
            ResponderRecovery::SelectiveRepeat { .. } => has_gap(),
        }
    }

    /// Returns whether a duplicate of the request elicits no response: under selective repeat, a duplicate READ request
    /// without AckReq is the second packet of a doubled READ request. A retransmitted READ request has AckReq.
    pub(crate) fn is_doubled(&self, info: &OpcodeInfo, ack_req: bool) -> bool {
        let is_selective = matches!(self, ResponderRecovery::SelectiveRepeat { .. });
        is_selective && info.operation == Operation::ReadRequest && !ack_req
    }

    /// Returns the response to a duplicate SEND or WRITE.
    #[inline]
    pub(crate) fn on_duplicate(&self) -> Reply {
        match self {
            ResponderRecovery::GoBackN(_) => Reply::Ack,
            ResponderRecovery::SelectiveRepeat { .. } => Reply::Sack,
        }
    }

    /// Returns the response to an out-of-order request, by this table. `extends_run`: returns whether the PSN just
    /// below the request is buffered or placed, and the PSN just above is not.
    ///
    /// ```text
    ///   go-back-N            NAK for the first packet above a gap
    ///   improved go-back-N   NAK as under go-back-N, and if the packet that elicited the last NAK is received again
    ///   selective repeat     SACK if a gap opens or closes, and for a packet that is a duplicate, is dropped, or has
    ///                        AckReq
    /// ```
    pub(crate) fn on_out_of_order(
        &mut self,
        request: OutOfOrderRequest,
        extends_run: impl FnOnce() -> bool,
    ) -> Option<Reply> {
        match self {
            ResponderRecovery::GoBackN(naks) => naks.on_out_of_order(request).then_some(Reply::Nak),
            ResponderRecovery::SelectiveRepeat { .. } => {
                let is_silent = request.is_kept && !request.ack_req && extends_run();
                (!is_silent).then_some(Reply::Sack)
            }
        }
    }

    /// Records an RNR NAK: until the expected PSN advances, out-of-order packets elicit no NAK (PSN sequence error).
    pub(crate) fn on_not_ready(&mut self) {
        if let ResponderRecovery::GoBackN(naks) = self {
            naks.has_nak_cause = false;
        }
    }
}

impl GapNaks {
    /// Returns whether a NAK is due.
    fn on_out_of_order(&mut self, OutOfOrderRequest { psn, first, .. }: OutOfOrderRequest) -> bool {
        // If the packet that elicited the last NAK is received again, the peer has retransmitted all packets from the
        // expected PSN on, and the retransmission of the expected PSN was lost.
        let lost_again = self.is_improved && self.has_nak_cause && self.nak_cause == psn;
        if first {
            (self.has_nak_cause, self.nak_cause) = (true, psn);
        }
        first || lost_again
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SELECTIVE: RecoveryScheme = RecoveryScheme::SelectiveRepeat { window_pkts: 64 };
    const SCHEMES: [RecoveryScheme; 3] =
        [RecoveryScheme::GoBackN, RecoveryScheme::ImprovedGoBackN, SELECTIVE];

    /// An [`OutOfOrderRequest`]: PSN, and the letters `f` (`first`: no other out-of-order request and no RNR NAK
    /// since the expected PSN advanced), `?` (`ack_req`), `+` (`is_kept`: newly buffered or placed) and `>`
    /// (`extends_run` returns true: the PSN just below is buffered or placed, and the PSN just above is not). Or `rnr`:
    /// a call of `on_not_ready`, which records an RNR NAK.
    type Request = &'static str;

    /// Columns: name; requests; replies of go-back-N, improved go-back-N, selective repeat (N: NAK, S: SACK, .: none).
    #[rustfmt::skip]
    const ROWS: &[(&str, &[Request], [&str; 3])] = &[
        ("the first packet above a gap",            &["5f+"],                       ["N",    "N",    "S"]),
        ("the second packet above a gap",           &["5f+", "6+>"],                ["N.",   "N.",   "S."]),
        ("the second packet above, with AckReq",    &["5f+", "6+>?"],               ["N.",   "N.",   "SS"]),
        ("a second gap",                            &["5f+", "7+"],                 ["N.",   "N.",   "SS"]),
        ("a packet that is dropped",                &["5f+", "6"],                  ["N.",   "N.",   "SS"]),
        ("the same packet twice",                   &["5f+", "5"],                  ["N.",   "NN",   "SS"]),
        ("a packet below the last one",             &["5f+", "6+>", "5"],           ["N..",  "N.N",  "S.S"]),
        ("a packet after the peer went back",       &["5f+", "5", "6"],             ["N..",  "NN.",  "SSS"]),
        ("a late packet",                           &["6f+", "5+"],                 ["N.",   "N.",   "SS"]),
        ("a packet after an RNR NAK",               &["rnr", "5+"],                 [".",    ".",    "S"]),
        ("a lower packet after an RNR NAK",         &["5f+", "rnr", "4+"],          ["N.",   "N.",   "SS"]),
    ];

    #[test]
    fn responses_to_out_of_order_requests() {
        for (name, requests, wanted) in ROWS {
            for (scheme, wanted) in SCHEMES.into_iter().zip(wanted) {
                let mut recovery = ResponderRecovery::new(scheme);
                let mut replies = String::new();
                for request in *requests {
                    if *request == "rnr" {
                        recovery.on_not_ready();
                        continue;
                    }
                    let has = |letter| request.contains(letter);
                    let psn = Psn::new(u32::from(request.as_bytes()[0] - b'0'));
                    let (ack_req, first, is_kept) = (has('?'), has('f'), has('+'));
                    let request = OutOfOrderRequest { psn, ack_req, first, is_kept };
                    replies.push(match recovery.on_out_of_order(request, || has('>')) {
                        None => '.',
                        Some(Reply::Ack) => 'A',
                        Some(Reply::Nak) => 'N',
                        Some(Reply::Sack) => 'S',
                    });
                }
                assert_eq!(replies, **wanted, "{name} under {scheme}");
            }
        }
    }

    #[test]
    fn only_selective_repeat_keeps_reads_and_numbered_sends() {
        use crate::wire::Opcode;
        for (opcode, wanted) in [
            (Opcode::RC_SEND_ONLY, [true; 3]),
            (Opcode::RC_RDMA_WRITE_MIDDLE, [true; 3]),
            (Opcode::RC_RDMA_READ_REQUEST, [false, false, true]),
            (Opcode::RC_NUMBERED_SEND_ONLY, [false, false, true]),
        ] {
            let info = opcode.info().expect("an opcode of the table");
            let keeps = SCHEMES.map(|scheme| ResponderRecovery::new(scheme).keeps(info));
            assert_eq!(keeps, wanted, "{opcode}");
        }
    }
}
