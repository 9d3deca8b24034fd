//! Bursts of a port on a packet socket, which replace those of DPDK's driver af_packet. Frames pass between the socket
//! and the kernel with a header of virtio_net in front (`PACKET_VNET_HDR`, packet(7)). With this header the kernel
//! processes consecutive datagrams of one UDP flow as one datagram (UDP segmentation offload), as it processes the
//! segments of TCP:
//!
//! * `offload` selects the frames that are sent as one, and divides a received datagram into frames;
//! * `socket` opens and configures the socket;
//! * `ring` is the receive ring, which the kernel fills;
//! * `batch` has the arguments of `sendmmsg`;
//! * `burst` moves frames between socket and mbufs.
//!
//! The driver keeps the port: its name, its MAC and the state of the link. Its own socket receives nothing.

mod batch;
mod burst;
mod offload;
mod ring;
mod socket;

pub(crate) use batch::BURST_FRAMES_MAX;
pub(crate) use burst::Queue;
pub(crate) use ring::RING_MEBIBYTES;
pub(crate) use socket::Socket;
