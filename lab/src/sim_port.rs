//! The engine's port on a simulated network.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use netsim::{Frame, HostId, Network};
use roce::port::{PHANTOM_ICRC, Payload, Port, PortCaps};
use roce::wire::{Bth, ICRC_LEN, Ipv4Header, Ipv6Header, Opcode, Operation, UdpHeader, eth, ipv4, udp};

/// A network that several ports of one thread share.
pub type SharedNetwork = Rc<RefCell<Network>>;

/// Buffers for received frames, shared by the ports of one thread.
pub type Buffers = Rc<RefCell<Vec<Box<Received>>>>;

/// A buffer for a received frame.
pub struct Received {
    /// The first `len_bytes` bytes are the frame.
    bytes: Vec<u8>,
    len_bytes: usize,
    /// The pool to which the buffer returns.
    home: Buffers,
}

/// A received frame; its drop returns the buffer. One pointer in size, because the reorder buffer of each queue
/// pair has a place for each PSN of the window.
pub struct SimFrame(Option<Box<Received>>);

impl AsRef<[u8]> for SimFrame {
    fn as_ref(&self) -> &[u8] {
        self.0.as_ref().map_or(&[], |received| &received.bytes[..received.len_bytes])
    }
}

impl Drop for SimFrame {
    fn drop(&mut self) {
        let Some(received) = self.0.take() else { return };
        let home = received.home.clone();
        home.borrow_mut().push(received);
    }
}

/// The port of one host. The port is full if the queue of the host's link is full.
///
/// With [`Payload::Phantom`], only headers enter the network:
/// ```text
///   engine: | headers | payload | ICRC |  -->  network: | headers | a length |  -->  engine: inflated
/// ```
pub struct SimPort {
    network: SharedNetwork,
    host: HostId,
    caps: PortCaps,
    payload: Payload,
    reserved: Vec<Frame>,
    reserved_bytes: usize,
    refused: Rc<Cell<bool>>,
    /// With phantom payload, the frame that the engine writes. `scratch_bytes`: length of this frame; 0: no frame.
    scratch: Vec<u8>,
    scratch_bytes: usize,
    buffers: Buffers,
}

impl SimPort {
    /// Creates the port of `host`. Also returns a flag that the port sets when it refuses a frame because its queue is
    /// full. All ports of the thread share `buffers`.
    pub fn new(
        network: SharedNetwork,
        host: HostId,
        caps: PortCaps,
        payload: Payload,
        buffers: Buffers,
    ) -> (Self, Rc<Cell<bool>>) {
        let refused = Rc::new(Cell::new(false));
        let scratch = match payload {
            Payload::Carried => Vec::new(),
            Payload::Phantom => vec![0; caps.frame_bytes_max()],
        };
        let port = SimPort {
            network,
            host,
            caps,
            payload,
            reserved: Vec::new(),
            reserved_bytes: 0,
            refused: refused.clone(),
            scratch,
            scratch_bytes: 0,
            buffers,
        };
        (port, refused)
    }

    /// Stores the headers of the frame in `scratch`, which the engine has completed by the next reservation or flush.
    fn keep_headers(&mut self, network: &mut Network) {
        let written = &self.scratch[..std::mem::take(&mut self.scratch_bytes)];
        if written.is_empty() {
            return;
        }
        let carried = &written[..carried_bytes(written)];
        let mut bytes = network.buffer(carried.len());
        bytes.copy_from_slice(carried);
        let phantom_bytes = (written.len() - carried.len()) as u32; // at most a frame
        self.reserved.push(Frame { bytes, phantom_bytes, corrupted: false });
    }

    fn unpack(&self, frame: Frame, network: &mut Network) -> SimFrame {
        let spare = self.buffers.borrow_mut().pop();
        let mut received = spare.unwrap_or_else(|| {
            Box::new(Received { bytes: Vec::new(), len_bytes: 0, home: self.buffers.clone() })
        });
        received.len_bytes = frame.len_bytes();
        match self.payload {
            Payload::Carried => network.recycle(std::mem::replace(&mut received.bytes, frame.bytes)),
            Payload::Phantom => {
                inflate(&mut received, &frame, self.caps.frame_bytes_max());
                network.recycle(frame.bytes);
            }
        }
        SimFrame(Some(received))
    }
}

/// Expands a frame to its full length, with the ICRC of a good or corrupted packet. Phantom bytes are unspecified.
fn inflate(received: &mut Received, frame: &Frame, frame_bytes_max: usize) {
    let len_bytes = received.len_bytes;
    if received.bytes.len() < len_bytes {
        received.bytes.resize(len_bytes.max(frame_bytes_max), 0);
    }
    let bytes = &mut received.bytes[..len_bytes];
    bytes[..frame.bytes.len()].copy_from_slice(&frame.bytes);
    if (frame.phantom_bytes > 0 || frame.corrupted)
        && let Some(icrc) = bytes.last_chunk_mut::<ICRC_LEN>()
    {
        let value = if frame.corrupted { !PHANTOM_ICRC } else { PHANTOM_ICRC };
        *icrc = value.to_le_bytes();
    }
}

impl Port for SimPort {
    type Frame = SimFrame;

    fn caps(&self) -> PortCaps {
        self.caps
    }

    fn payload(&self) -> Payload {
        self.payload
    }

    fn rx_burst(&mut self, frames: &mut Vec<SimFrame>, max: usize) -> usize {
        let mut network = self.network.borrow_mut();
        let before = frames.len();
        while frames.len() - before < max {
            let Some(frame) = network.receive(self.host) else { break };
            frames.push(self.unpack(frame, &mut network));
        }
        frames.len() - before
    }

    fn tx_reserve(&mut self, len_bytes: usize) -> Option<&mut [u8]> {
        assert!(len_bytes <= self.caps.frame_bytes_max(), "{len_bytes} bytes exceed the port's MTU");
        let network = self.network.clone();
        let mut network = network.borrow_mut();
        if !network.has_room(self.host, self.reserved_bytes + len_bytes) {
            network.want_room(self.host, self.caps.frame_bytes_max());
            self.refused.set(true);
            return None;
        }
        self.reserved_bytes += len_bytes;
        match self.payload {
            Payload::Carried => {
                self.reserved.push(network.buffer(len_bytes).into());
                self.reserved.last_mut().map(|frame| frame.bytes.as_mut_slice())
            }
            Payload::Phantom => {
                self.keep_headers(&mut network);
                self.scratch_bytes = len_bytes;
                self.scratch.get_mut(..len_bytes)
            }
        }
    }

    fn tx_cancel(&mut self) {
        match self.payload {
            Payload::Carried => {
                let Some(frame) = self.reserved.pop() else { return };
                self.reserved_bytes -= frame.bytes.len();
                self.network.borrow_mut().recycle(frame.bytes);
            }
            Payload::Phantom => self.reserved_bytes -= std::mem::take(&mut self.scratch_bytes),
        }
    }

    fn tx_flush(&mut self) {
        if self.reserved_bytes == 0 {
            return;
        }
        self.reserved_bytes = 0;
        let network = self.network.clone();
        let mut network = network.borrow_mut();
        self.keep_headers(&mut network);
        for frame in self.reserved.drain(..) {
            network.send(self.host, frame);
        }
    }
}

/// Bytes of a frame that the network transmits: the headers, if the payload is an application's; otherwise all bytes.
fn carried_bytes(frame: &[u8]) -> usize {
    headers_bytes(frame).unwrap_or(frame.len())
}

/// Header bytes of an untagged packet with an application's payload; `None` for other frames.
fn headers_bytes(frame: &[u8]) -> Option<usize> {
    const ETH: usize = roce::wire::EthHeader::LEN;
    let ethertype = u16::from_be_bytes(*frame.get(ETH - 2..)?.first_chunk()?);
    let (protocol, udp_at) = match ethertype {
        eth::ETHERTYPE_IPV4 => (*frame.get(ETH + 9)?, ETH + Ipv4Header::LEN),
        eth::ETHERTYPE_IPV6 => (*frame.get(ETH + 6)?, ETH + Ipv6Header::LEN),
        _ => return None,
    };
    let port = u16::from_be_bytes(*frame.get(udp_at + 2..)?.first_chunk()?);
    if protocol != ipv4::PROTOCOL_UDP || port != udp::ROCE_PORT {
        return None;
    }
    let bth_at = udp_at + UdpHeader::LEN;
    let info = Opcode::new(*frame.get(bth_at)?).info()?;
    let is_applications = info.has_payload && info.operation != Operation::SelectiveAcknowledge;
    is_applications.then_some(bth_at + Bth::LEN + info.ext_len_bytes).filter(|len| *len <= frame.len())
}
