//! Counters, named as in the `hw_counters` of rxe and mlx5 where the meaning is the same.

/// Declares a struct of counters: fields with their documentation, and an iterator over names and values.
macro_rules! counters {
    ($(#[$meta:meta])* $name:ident { $($(#[doc = $doc:literal])* $field:ident,)* }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct $name {
            $($(#[doc = $doc])* pub $field: u64,)*
        }

        impl $name {
            /// Returns names and values, in the order of the fields.
            pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> + use<> {
                [$((stringify!($field), self.$field)),*].into_iter()
            }

            /// Adds the counts of `other`, field by field.
            pub fn add(&mut self, other: &Self) {
                $(self.$field += other.$field;)*
            }
        }
    };
}
pub(crate) use counters;

counters! {
    /// Counters of one queue pair. The counters of a device are the sums over all its queue pairs, also destroyed ones.
    QpCounters {
        /// Packets sent: requests, READ responses, ACKs, NAKs, SACKs and CNPs, retransmissions included.
        sent_pkts,
        /// Packets received that passed the header checks of the queue pair and the ICRC check. A stale response counts
        /// too; its ICRC may be wrong.
        rcvd_pkts,
        /// Payload bytes of requests and READ responses sent, retransmissions included.
        sent_bytes,
        /// Payload bytes of requests executed and of READ responses placed; duplicates are not counted.
        rcvd_bytes,
        /// SEND and RDMA WRITE work requests completed with success as requester, signaled or not.
        rdma_sends,
        /// Receive work requests completed with success: by a SEND, or by an RDMA WRITE with immediate.
        rdma_recvs,
        /// RDMA WRITEs executed as responder, counted at their last packet.
        rx_write_requests,
        /// RDMA READs executed as responder; duplicates are not counted.
        rx_read_requests,
        /// Duplicate request packets received: PSN below the expected PSN.
        duplicate_request,
        /// Out-of-order request packets received: PSN above the expected PSN.
        out_of_seq_request,
        /// Packets of `out_of_seq_request` that are SENDs or WRITEs with a payload placed on arrival (relaxed
        /// placement).
        placed_out_of_order,
        /// Out-of-order packets dropped because the reorder buffer of the device, or the queue pair's share of that
        /// buffer, was full: the packet received or, to make room for the packet received, a buffered packet with a
        /// higher PSN.
        reorder_no_room,
        /// Buffered packets dropped because the gap below them was not closed within one second.
        reorder_expired,
        /// Conflicts: out-of-order packets received whose content differs from the buffered or placed packet of the
        /// same PSN. The packet received replaces the earlier packet. Either of the two was forged, or the peer changed
        /// its memory between two transmissions.
        reorder_conflicts,
        /// Request packets that found no receive posted; an RNR NAK is due for each (IBA 9.7.5.2.8).
        out_of_buffer,
        /// RNR NAKs received for a PSN in flight. NAKs that imply the loss of an earlier READ response are not
        /// counted.
        rcvd_rnr_err,
        /// PSN sequence error NAKs that became due; 0 under selective repeat, which sends SACKs instead.
        send_seq_err,
        /// PSN sequence error NAKs received for a PSN in flight; not counted under selective repeat.
        packet_seq_err,
        /// Responses that imply the loss of an earlier READ response (implied NAK, IBA 9.7.6).
        implied_nak_seq_err,
        /// Local ACK timeouts: `4.096 us * 2^timeout` without progress (IBA 9.7.6.1.3).
        local_ack_timeout_err,
        /// SACKs sent (selective repeat).
        sacks_sent,
        /// SACKs received (selective repeat), also SACKs that acknowledge no further PSN.
        sacks_received,
        /// Spurious retransmissions (selective repeat), detected by a SACK for a duplicate request or by a duplicate
        /// READ response; tail loss probes are not counted.
        spurious_retransmits,
        /// Probe timeouts (RFC 8985 section 7); each sends one tail loss probe.
        tail_probes,
        /// Retransmission timeouts that follow the round trip (RFC 6298); each counts as congestion.
        roce_adp_retrans_to,
        /// Request packets retransmitted, tail loss probes included; retransmitted READ responses are not counted.
        retransmitted_pkts,
        /// Work requests that failed because the retry count was exceeded.
        retry_exceeded_err,
        /// Work requests that failed because the RNR retry count was exceeded.
        retry_rnr_exceeded_err,
        /// Stale responses: a PSN that is not in flight or was acknowledged already, or a READ response with the PSN of
        /// a request other than a READ. Most are dropped before their ICRC is computed.
        stale_responses,
        /// READ responses whose length or position (FIRST, MIDDLE, LAST, ONLY) does not fit the index of their PSN
        /// in the READ.
        bad_resp_err,
        /// Requests answered by a NAK with the code invalid request.
        resp_invalid_request,
        /// Requests answered by a NAK with the code remote access error, also READs whose memory region was
        /// deregistered.
        resp_remote_access_errors,
        /// Requests answered by a NAK with the code remote operational error.
        resp_remote_operation_errors,
        /// NAKs received with the code invalid request.
        req_remote_invalid_request,
        /// NAKs received with the code remote access error.
        req_remote_access_errors,
        /// NAKs received with the code remote operational error.
        req_remote_operation_errors,
        /// Duplicate READs dropped because the responder resources remember no READ that contains them.
        duplicate_read_dropped,
        /// Duplicate READs dropped because too many responses of the same READ were retransmitted.
        duplicate_read_limited,
        /// Responses dropped because of an opcode that a reliable connection does not use, or a reserved AETH syndrome
        /// or NAK code.
        bad_opcode_dropped,
        /// READs dropped because the responder's queue of READs was full; the peer has to retransmit the READ.
        read_deferred,
        /// Packets received with a CE mark (RFC 3168) and a PSN near those in flight (`MARKED_PSNS`).
        np_ecn_marked_roce_packets,
        /// CNPs sent (IBA A17.9).
        np_cnp_sent,
        /// CNPs received that the congestion control processed.
        rp_cnp_handled,
        /// CNPs received without the BECN bit, or under a congestion control scheme that does not use CNPs.
        rp_cnp_ignored,
        /// Work requests that failed because an L_Key does not permit the access (`WcStatus::LocProtErr`).
        local_protection_err,
        /// Work requests completed with a flush error, sends and receives.
        cqe_flush_err,
    }
}

counters! {
    /// Frames dropped before they reached a queue pair, by reason, and frames that are not RoCE.
    DropCounters {
        /// Frames of protocols other than RoCEv2. Not drops: the neighbour code may process ARP, neighbour discovery
        /// and echo.
        not_roce,
        /// Frames to a unicast MAC that is not the port's, and RoCE or malformed packets to a multicast or broadcast
        /// MAC.
        wrong_mac,
        /// VLAN other than that of the queue pair's source GID.
        wrong_vlan,
        /// Frames shorter than their headers, or than a length stated in their headers.
        truncated,
        /// Frames with more than one VLAN tag.
        stacked_vlan,
        /// IP version other than that of the EtherType.
        bad_ip_version,
        /// IPv4 packets with options.
        ipv4_options,
        /// Fragments of IP packets.
        fragment,
        /// IPv4 packets with a wrong header checksum.
        bad_ip_checksum,
        /// UDP length other than the length of the IP payload.
        length_mismatch,
        /// BTH transport header version (TVer) other than 0.
        bad_tver,
        /// BTH opcode unknown.
        unknown_opcode,
        /// BTH pad count larger than the payload, or payload and pad not a multiple of 4 bytes.
        bad_pad,
        /// Payload in a packet whose opcode has no payload.
        unexpected_payload,
        /// Wrong ICRC in packets that passed all header checks; the ICRC is computed last.
        rx_icrc_errors,
        /// Destination queue pair unknown.
        unknown_qp,
        /// Queue pair in a state other than RTR, RTS and SQD.
        qp_state,
        /// Opcode of a transport other than reliable connection; CNPs are not dropped.
        wrong_transport,
        /// P_Key of another partition.
        wrong_pkey,
        /// Source IP address other than the peer's.
        wrong_source,
        /// Source MAC other than the peer's; checked if the peer is on the link.
        wrong_source_mac,
        /// UDP source port other than that of the first in-order packet of the same direction (requests, or responses).
        wrong_source_port,
        /// Destination IP address other than the queue pair's source GID.
        wrong_destination,
    }
}

impl DropCounters {
    /// Returns the number of frames dropped: the sum of all counters but `not_roce`.
    pub fn total(&self) -> u64 {
        self.iter().map(|(_, count)| count).sum::<u64>() - self.not_roce
    }
}
