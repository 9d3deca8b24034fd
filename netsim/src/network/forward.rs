//! Forwarding of frames by switches.

use roce::port::impairment::mark_ce;

use super::Network;
use crate::frame::{FrameId, NONE, ecn_bits};
use crate::id::{LinkId, SwitchId};
use crate::link::Queued;
use crate::route::Routes;

impl Network {
    /// Returns the shortest paths between all hosts, by which all switches except learning switches forward.
    pub fn routes(&mut self) -> &Routes {
        let (links, switches, hosts) = (&self.links, self.switches.len(), self.hosts.len());
        let ends = || links.iter().map(|link| [link.from, link.to]).collect::<Vec<_>>();
        self.routes.get_or_insert_with(|| Routes::new(&ends(), switches, hosts))
    }

    pub(super) fn forward_routed(&mut self, id: SwitchId, from: LinkId, frame: FrameId) {
        if self.routes.is_none() {
            self.routes();
        }
        let in_transit = self.frames.get(frame);
        let ways = match &self.routes {
            Some(routes) if in_transit.to != NONE => routes.ways(id, in_transit.to as usize),
            _ => &[],
        };
        let out = match ways {
            [] => {
                self.unroutable += 1;
                return self.frames.discard(frame);
            }
            ways => ways[self.switches[id.0].choose(ways.len(), in_transit.flow_hash)],
        };
        let out = LinkId(out as usize);
        self.pass_on(id, from, out, frame);
    }

    pub(super) fn forward_learned(&mut self, id: SwitchId, from: LinkId, frame: FrameId) {
        let switch = &mut self.switches[id.0];
        let bytes = &self.frames.get(frame).frame;
        let (Some(destination), Some(source)) = (bytes.address(0), bytes.address(6)) else {
            return self.frames.discard(frame);
        };
        let is_group = |address: [u8; 6]| address[0] & 1 != 0;
        let back = switch.ports.iter().find(|(_, into)| *into == from).map(|(out, _)| *out);
        if let Some(back) = back
            && !is_group(source)
        {
            switch.learned.insert(source, back);
        }
        match switch.learned.get(&destination).copied() {
            Some(out) if !is_group(destination) && Some(out) == back => self.frames.discard(frame),
            Some(out) if !is_group(destination) => self.pass_on(id, from, out, frame),
            _ => self.flood(id, from, frame),
        }
    }

    fn flood(&mut self, id: SwitchId, from: LinkId, frame: FrameId) {
        for at in 0..self.switches[id.0].ports.len() {
            let (out, into) = self.switches[id.0].ports[at];
            if into != from {
                let copy = self.frames.duplicate(frame);
                self.pass_on(id, from, out, copy);
            }
        }
        self.frames.discard(frame);
    }

    /// Appends a frame that was received on `from` to the queue of `out`. If the switch or the queue has no room, drops
    /// the frame.
    fn pass_on(&mut self, id: SwitchId, from: LinkId, out: LinkId, frame: FrameId) {
        let len_bytes = self.frames.get(frame).frame.len_bytes();
        let switch = &mut self.switches[id.0];
        let fits_input = self.links[from.0].input_bytes + len_bytes <= switch.config.input_bytes_max;
        let fits_switch = switch.shared_bytes + len_bytes <= switch.config.shared_bytes_max;
        let output = &mut self.links[out.0];
        output.counters.offered += 1;
        if !(fits_input && fits_switch && output.has_room(len_bytes)) {
            output.counters.overrun += 1;
            return self.frames.discard(frame);
        }
        if switch.draws_mark(output.queued_bytes) {
            let bytes = &mut self.frames.get_mut(frame).frame.bytes;
            if matches!(ecn_bits(bytes), 1 | 2) {
                mark_ce(bytes);
                output.counters.marked += 1;
            }
        }
        // Neither frame lengths nor link numbers reach 2^32.
        output.enqueue(Queued { frame, len_bytes: len_bytes as u32, input: from.0 as u32 });
        switch.shared_bytes += len_bytes;
        let pauses = switch.config.pfc.is_some();
        let input = &mut self.links[from.0];
        input.input_bytes += len_bytes;
        input.counters.input_bytes_peak = input.counters.input_bytes_peak.max(input.input_bytes as u64);
        if pauses {
            self.ask_for_pause(id, from);
        }
        self.transmit(out);
    }
}
