//! The engine's port on a simulated network.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use netsim::{HostId, Network};
use roce::port::{Port, PortCaps};

/// A network that several ports of one thread share.
pub type SharedNetwork = Rc<RefCell<Network>>;

/// A frame taken from the network; its buffer goes back there.
pub struct SimFrame {
    bytes: Vec<u8>,
    network: SharedNetwork,
}

impl AsRef<[u8]> for SimFrame {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for SimFrame {
    fn drop(&mut self) {
        // A frame that is dropped while a failing test unwinds may find the network in use.
        if let Ok(mut network) = self.network.try_borrow_mut() {
            network.recycle(std::mem::take(&mut self.bytes));
        }
    }
}

/// The port of one host. It is full when the queue of the host's link is, as a NIC's ring is.
pub struct SimPort {
    network: SharedNetwork,
    host: HostId,
    caps: PortCaps,
    reserved: Vec<Vec<u8>>,
    reserved_bytes: usize,
    refused: Rc<Cell<bool>>,
}

impl SimPort {
    /// The port of `host`, and a flag that is set when a frame was refused for want of room.
    pub fn new(network: SharedNetwork, host: HostId, caps: PortCaps) -> (Self, Rc<Cell<bool>>) {
        let refused = Rc::new(Cell::new(false));
        let port = SimPort {
            network,
            host,
            caps,
            reserved: Vec::new(),
            reserved_bytes: 0,
            refused: refused.clone(),
        };
        (port, refused)
    }
}

impl Port for SimPort {
    type Frame = SimFrame;

    fn caps(&self) -> PortCaps {
        self.caps
    }

    fn rx_burst(&mut self, frames: &mut Vec<SimFrame>, max: usize) -> usize {
        let mut network = self.network.borrow_mut();
        let before = frames.len();
        let arrived = std::iter::from_fn(|| network.receive(self.host)).take(max);
        frames.extend(arrived.map(|bytes| SimFrame { bytes, network: self.network.clone() }));
        frames.len() - before
    }

    fn tx_reserve(&mut self, len_bytes: usize) -> Option<&mut [u8]> {
        assert!(len_bytes <= self.caps.frame_bytes_max(), "{len_bytes} bytes exceed the port's MTU");
        let mut network = self.network.borrow_mut();
        if !network.has_room(self.host, self.reserved_bytes + len_bytes) {
            self.refused.set(true);
            return None;
        }
        self.reserved_bytes += len_bytes;
        self.reserved.push(network.buffer(len_bytes));
        self.reserved.last_mut().map(Vec::as_mut_slice)
    }

    fn tx_flush(&mut self) {
        self.reserved_bytes = 0;
        let mut network = self.network.borrow_mut();
        for frame in self.reserved.drain(..) {
            network.send(self.host, frame);
        }
    }
}
