//! The receiver of an unreliable connection (IBA 9.8.2.2): completes a message only if all its packets arrive in order,
//! and drops any other message without a response.
//!
//! ```text
//!   PSN      4      5       6     7      8       9     10
//!            FIRST  MIDDLE  lost  LAST   FIRST   LAST  LAST
//!            '-- dropped, receive --'    executed      dropped: no message in progress
//!                not completed
//! ```

use crate::psn::Psn;
use crate::qp::context::RxContext;
use crate::qp::inbound::{Inbound, Refusal};
use crate::wire::Packet;

#[derive(Debug)]
pub(crate) struct Receiver {
    expected: Psn,
    inbound: Inbound,
}

/// Action that the engine takes for the queue pair after a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReceiverAction {
    Nothing,
    /// The memory named by the scatter list of a receive cannot be written: the queue pair changes to ERR.
    Fatal,
}

impl Receiver {
    pub(crate) fn new(first: Psn, mtu_bytes: u32) -> Self {
        Receiver { expected: first, inbound: Inbound::new(mtu_bytes, false) }
    }

    pub(crate) fn expected_psn(&self) -> Psn {
        self.expected
    }

    /// Processes a request whose addresses, P_Key and ICRC were checked. A gap, or the start of a message, drops the
    /// message in progress; the next message uses the receive of the dropped message.
    pub(crate) fn on_request(&mut self, packet: &Packet<'_>, rx: &mut RxContext<'_>) -> ReceiverAction {
        let psn = packet.bth.psn;
        let has_gap = psn != self.expected;
        rx.counters.out_of_seq_request += u64::from(has_gap);
        self.expected = psn.plus(1);
        if has_gap || packet.info.starts_message() {
            self.inbound.abort();
        }
        let Err(refusal) = self.execute(packet, rx) else { return ReceiverAction::Nothing };
        self.inbound.abort();
        rx.counters.uc_requests_dropped += 1;
        rx.counters.out_of_buffer += u64::from(matches!(refusal, Refusal::NotReady));
        if matches!(refusal, Refusal::BadReceive) {
            rx.fail_receive();
            return ReceiverAction::Fatal;
        }
        ReceiverAction::Nothing
    }

    fn execute(&mut self, packet: &Packet<'_>, rx: &mut RxContext<'_>) -> Result<(), Refusal> {
        let memory = rx.memory;
        let authorized = self.inbound.check(packet, rx, memory)?;
        self.inbound.execute(packet, &authorized, rx)
    }
}
