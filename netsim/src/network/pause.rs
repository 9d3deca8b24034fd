//! Priority flow control: buffer accounting of input ports, PAUSE and RESUME.
//!
//! ```text
//!   sender                         switch
//!     |------------ link ----------->|  input bytes > xoff: send PAUSE
//!     |<-- frame on the wire, PAUSE -|
//!     |  ends its frame, then stops  |
//!     |<----------- RESUME ----------|  input bytes <= xon
//! ```

use super::{Event, Network};
use crate::frame::NONE;
use crate::id::{LinkId, Node, SwitchId};
use crate::link::Queued;
use crate::switch::PAUSE_BYTES;

impl Network {
    /// Releases the switch memory of a frame that has left on link `id`.
    #[inline]
    pub(super) fn release(&mut self, id: LinkId, queued: Queued) {
        let Node::Switch(switch) = self.links[id.0].from else { return };
        let input = queued.input;
        if input == NONE {
            return;
        }
        let len_bytes = queued.len_bytes as usize;
        self.links[input as usize].input_bytes -= len_bytes;
        self.switches[switch.0].shared_bytes -= len_bytes;
        self.ask_to_resume(switch, LinkId(input as usize));
    }

    /// Sends PAUSE to the sender of `into` if more than xoff bytes received on `into` are buffered.
    pub(super) fn ask_for_pause(&mut self, id: SwitchId, into: LinkId) {
        let Some(pfc) = self.switches[id.0].config.pfc else { return };
        let link = &mut self.links[into.0];
        if link.input_bytes > pfc.xoff_bytes && !link.asked_to_pause {
            link.asked_to_pause = true;
            self.send_pause(into, true);
        }
    }

    #[inline]
    fn ask_to_resume(&mut self, id: SwitchId, into: LinkId) {
        let link = &mut self.links[into.0];
        if !link.asked_to_pause {
            return;
        }
        if let Some(pfc) = self.switches[id.0].config.pfc
            && link.input_bytes <= pfc.xon_bytes
        {
            link.asked_to_pause = false;
            self.send_pause(into, false);
        }
    }

    /// Sends PAUSE or RESUME on the reverse link of `into`, after the frame that is on the reverse wire.
    fn send_pause(&mut self, into: LinkId, on: bool) {
        // The two directions of a cable have the numbers 2n and 2n + 1.
        let back = &self.links[into.0 ^ 1];
        let wire_free_nanos = if back.busy { back.busy_until_nanos } else { self.now_nanos };
        let nanos = back.config.wire_nanos(PAUSE_BYTES).saturating_add(back.config.propagation_nanos);
        self.events.schedule(wire_free_nanos.saturating_add(nanos), Event::Pause { link: into.0 as u32, on });
    }

    /// Processes PAUSE or RESUME at the sender of a link. A frame on the wire is still sent to its end.
    pub(super) fn paused(&mut self, id: LinkId, on: bool) {
        let link = &mut self.links[id.0];
        if on {
            link.counters.pauses += 1;
            link.paused_since_nanos = Some(self.now_nanos);
        } else if let Some(since_nanos) = link.paused_since_nanos.take() {
            link.counters.paused_nanos += self.now_nanos - since_nanos;
            self.transmit(id);
        }
    }
}
