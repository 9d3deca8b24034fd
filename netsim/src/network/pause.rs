//! Memory that frames give back as they leave a switch, and pauses of the links that fill it.
//!
//! ```text
//!   sender                         switch
//!     |------------ link ----------->|  input bytes > xoff: ask for a pause
//!     |<-- frame on the wire, PAUSE -|
//!     |  ends its frame, then stands |
//!     |<----------- RESUME ----------|  input bytes <= xon
//! ```

use super::{Event, LinkId, Network, Node, SwitchId};
use crate::frame::NONE;
use crate::link::Queued;
use crate::switch::PAUSE_BYTES;

impl Network {
    /// A frame has left by `id`: its switch has its memory back.
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

    /// Asks the sender of `into` to pause, where what came from there takes too much memory.
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

    /// Sends PAUSE or RESUME against the direction of `into`: behind the frame that is on that wire.
    fn send_pause(&mut self, into: LinkId, on: bool) {
        // The two directions of a cable are numbered one after the other.
        let back = &self.links[into.0 ^ 1];
        let wire_free_nanos = if back.busy { back.busy_until_nanos } else { self.now_nanos };
        let nanos = back.config.wire_nanos(PAUSE_BYTES).saturating_add(back.config.propagation_nanos);
        self.events.schedule(wire_free_nanos.saturating_add(nanos), Event::Pause { link: into.0 as u32, on });
    }

    /// PAUSE or RESUME has reached the sender of a link: it ends its frame, and stands or goes on.
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
