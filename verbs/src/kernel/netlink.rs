//! Requests to the kernel over a routing socket (rtnetlink), and the kernel's answers.

use std::os::fd::{AsFd, BorrowedFd};

use netlink_packet_core::{
    NLM_F_ACK, NLM_F_DUMP, NLM_F_REQUEST, NetlinkHeader, NetlinkMessage, NetlinkPayload,
};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_ROUTE};

use super::KernelError;

/// Multicast groups of the kernel's notifications (linux/rtnetlink.h): about links, and about neighbours.
pub(super) const RTNLGRP_LINK: u32 = 1;
pub(super) const RTNLGRP_NEIGH: u32 = 3;
/// Multicast groups about addresses and routes: `RTNLGRP_IPV4_IFADDR`, `RTNLGRP_IPV4_ROUTE`, `RTNLGRP_IPV6_IFADDR` and
/// `RTNLGRP_IPV6_ROUTE`.
const ADDRESS_AND_ROUTE_GROUPS: [u32; 4] = [5, 7, 9, 11];

/// The objects that the kernel returns for a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scope {
    /// Only the object that the request names: an interface, route or neighbour.
    One,
    /// All objects of the kind that the request names, such as all addresses or all routes.
    All,
}

/// A socket for requests to the kernel or for its notifications (`NETLINK_ROUTE`).
pub(super) struct Netlink {
    socket: Socket,
    sequence: u32,
}

impl Netlink {
    pub(super) fn open() -> Result<Self, KernelError> {
        let failed = KernelError::system("open a routing socket to the kernel");
        let mut socket = Socket::new(NETLINK_ROUTE).map_err(&failed)?;
        socket.bind_auto().map_err(&failed)?;
        socket.connect(&SocketAddr::new(0, 0)).map_err(&failed)?;
        Ok(Netlink { socket, sequence: 0 })
    }

    /// Opens a socket that receives the kernel's notifications about addresses and routes, and those of `group`.
    pub(super) fn subscribe(group: u32) -> Result<Self, KernelError> {
        let failed = KernelError::system("follow changes in the kernel");
        let netlink = Netlink::open()?;
        let mut groups = ADDRESS_AND_ROUTE_GROUPS.into_iter().chain([group]);
        groups.try_for_each(|group| netlink.socket.add_membership(group)).map_err(&failed)?;
        netlink.socket.set_non_blocking(true).map_err(&failed)?;
        Ok(netlink)
    }

    /// Returns a file descriptor that is readable while a notification is pending.
    pub(super) fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Returns the kernel's notifications since the last call, from at most `datagrams_max` netlink datagrams. `None`
    /// if the kernel dropped notifications, or a notification could not be parsed.
    pub(super) fn changes(
        &mut self,
        datagrams_max: usize,
    ) -> Result<Option<Vec<RouteNetlinkMessage>>, KernelError> {
        let doing = "follow changes in the kernel";
        let mut changes = Vec::new();
        for _ in 0..datagrams_max {
            match self.socket.recv_from_full() {
                // `None`: any sequence number is valid, because a notification has the sequence number of the request
                // that caused the change.
                Ok((datagram, _)) => match take(doing, &datagram, None, &mut changes) {
                    Ok(_) => {}
                    Err(_) => return Ok(None),
                },
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => break,
                Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => return Ok(None),
                Err(error) => return Err(KernelError::system(doing)(error)),
            }
        }
        Ok(Some(changes))
    }

    /// Sends the request `question` and returns the kernel's answers. Fails if the kernel answers with an error.
    pub(super) fn ask(
        &mut self,
        doing: &'static str,
        question: RouteNetlinkMessage,
        scope: Scope,
    ) -> Result<Vec<RouteNetlinkMessage>, KernelError> {
        self.sequence = self.sequence.wrapping_add(1);
        let mut message = NetlinkMessage::new(NetlinkHeader::default(), NetlinkPayload::from(question));
        message.header.flags = NLM_F_REQUEST
            | match scope {
                // `NLM_F_ACK` requests a netlink acknowledgement, which marks the end of the kernel's answer.
                Scope::One => NLM_F_ACK,
                Scope::All => NLM_F_DUMP,
            };
        message.header.sequence_number = self.sequence;
        message.finalize();
        let mut bytes = vec![0; message.buffer_len()];
        message.serialize(&mut bytes);
        self.socket.send(&bytes, 0).map_err(KernelError::system(doing))?;

        let mut answers = Vec::new();
        loop {
            let (datagram, _) = self.socket.recv_from_full().map_err(KernelError::system(doing))?;
            if take(doing, &datagram, Some(self.sequence), &mut answers)? {
                return Ok(answers);
            }
        }
    }
}

/// Appends the messages of `datagram` to `answers`. If `sequence` is given, skips messages with other sequence numbers.
/// Returns whether a message marked the end of the answer.
fn take(
    doing: &'static str,
    datagram: &[u8],
    sequence: Option<u32>,
    answers: &mut Vec<RouteNetlinkMessage>,
) -> Result<bool, KernelError> {
    let mut rest = datagram;
    while !rest.is_empty() {
        let message = NetlinkMessage::<RouteNetlinkMessage>::deserialize(rest)
            .map_err(|error| KernelError::Answer { doing, detail: error.to_string() })?;
        // The next message starts at a multiple of four bytes (`NLMSG_ALIGNTO`).
        let len_bytes = usize::try_from(message.header.length).unwrap_or(usize::MAX);
        rest = rest.get(len_bytes.saturating_add(3) & !3..).unwrap_or_default();
        if sequence.is_some_and(|sequence| message.header.sequence_number != sequence) {
            continue; // rest of the answer to an earlier request, whose `ask` returned an error
        }
        match message.payload {
            NetlinkPayload::InnerMessage(answer) => answers.push(answer),
            NetlinkPayload::Done(_) => return Ok(true),
            NetlinkPayload::Error(error) if error.code.is_none() => return Ok(true),
            NetlinkPayload::Error(error) => return Err(KernelError::system(doing)(error.to_io())),
            _ => {}
        }
    }
    Ok(false)
}
