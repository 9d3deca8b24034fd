//! The receiver of datagrams (IBA 9.8.3.2): each packet is a message, and completes a receive. PSNs have no meaning.

use crate::qp::context::RxContext;
use crate::qp::inbound::Refusal;
use crate::queue::NetworkHeader;
use crate::wire::{GRH_BYTES, Packet};

/// Receives a datagram whose addresses, Q_Key, P_Key and ICRC were checked: places GRH area and payload in the oldest
/// receive, and completes this receive. Drops the datagram if no receive is posted, or if the receive is too short. A
/// receive that is too short stays for the next datagram; a receive that is not writable completes with an error.
pub(crate) fn receive(packet: &Packet<'_>, rx: &mut RxContext<'_>) -> Result<(), Refusal> {
    let placed = place(packet, rx);
    match placed {
        Ok(len_bytes) => {
            rx.counters.rdma_recvs += 1;
            rx.counters.rcvd_bytes += u64::from(len_bytes - GRH_BYTES);
            let src_qpn = packet.deth().map_or(rx.qpn, |deth| deth.src_qp);
            let header = if packet.ip().is_ipv6 { NetworkHeader::Ipv6 } else { NetworkHeader::Ipv4 };
            rx.complete_datagram(len_bytes, packet.immdt(), packet.bth.solicited, (src_qpn, header));
            Ok(())
        }
        Err(refusal) => {
            rx.counters.ud_requests_dropped += 1;
            rx.counters.out_of_buffer += u64::from(matches!(refusal, Refusal::NotReady));
            if matches!(refusal, Refusal::BadReceive) {
                rx.fail_receive();
            }
            Err(refusal)
        }
    }
}

/// Returns the number of bytes placed, including the GRH area.
fn place(packet: &Packet<'_>, rx: &mut RxContext<'_>) -> Result<u32, Refusal> {
    let list = rx.receive().ok_or(Refusal::NotReady)?.list;
    let payload_bytes = u32::try_from(packet.payload.len()).map_err(|_| Refusal::TooLong)?;
    let len_bytes = GRH_BYTES + payload_bytes;
    if len_bytes > list.len_bytes {
        return Err(Refusal::TooLong);
    }
    for (at, bytes) in [(0, &packet.grh_area()[..]), (GRH_BYTES, packet.payload)] {
        let mut lists = rx.receives.lists(rx.memory, rx.pd);
        lists.scatter(&list, at, bytes).map_err(|_| Refusal::BadReceive)?;
    }
    Ok(len_bytes)
}
