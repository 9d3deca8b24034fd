//! Counters of queue pairs and of dropped frames. A counter that rxe or mlx5 also has in its `hw_counters` has the same
//! name here.

macro_rules! counters {
    ($(#[$meta:meta])* $name:ident { $($(#[doc = $doc:literal])* $field:ident,)* }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct $name {
            $($(#[doc = $doc])* pub $field: u64,)*
        }

        impl $name {
            /// Iterates over the names and values of the counters, in the order of the fields.
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
    /// Counters of one queue pair. The counters of a device are the sums over all its queue pairs, including destroyed
    /// queue pairs.
    QpCounters {
        /// Packets sent: requests, READ responses, ACKs, NAKs, SACKs and CNPs, retransmissions included.
        sent_pkts,
        /// Packets received: packets that passed the header checks of the queue pair and the ICRC check, and stale
        /// responses. The ICRC of most stale responses is not checked.
        rcvd_pkts,
        /// Payload bytes of requests and READ responses sent, retransmissions included.
        sent_bytes,
        /// Payload bytes of requests executed and of READ responses placed, without duplicates.
        rcvd_bytes,
        /// SEND and RDMA WRITE work requests that completed with success, signaled or not.
        rdma_sends,
        /// Receive work requests completed with success: by a SEND, or by an RDMA WRITE with immediate.
        rdma_recvs,
        /// RDMA WRITEs executed as responder, counted at their last packet.
        rx_write_requests,
        /// RDMA READs executed as responder; duplicates are not counted.
        rx_read_requests,
        /// Duplicate request packets received: PSN below the expected PSN. The second packet of a doubled READ request
        /// is not counted.
        duplicate_request,
        /// Out-of-order request packets received: PSN above the expected PSN. On an unreliable connection: any PSN
        /// except the expected PSN.
        out_of_seq_request,
        /// Out-of-order SEND and WRITE packets whose payload was placed on arrival (relaxed placement);
        /// `out_of_seq_request` counts these packets, too.
        placed_out_of_order,
        /// Out-of-order packets dropped because the memory of all reorder buffers was full, or because the queue pair
        /// had used its reservation and could take no more of the memory that is not reserved. A dropped packet is the
        /// packet received, or a buffered packet with a higher PSN.
        reorder_no_room,
        /// Buffered packets dropped one second after they were received, because the gap below them was not closed.
        reorder_expired,
        /// Conflicts: out-of-order packets received whose content differs from that of the buffered or placed packet
        /// of the same PSN. The earlier packet is dropped; under relaxed placement, all out-of-order packets of the
        /// queue pair are dropped. Possible causes: one of the two packets was forged, or the peer changed its memory
        /// between two transmissions.
        reorder_conflicts,
        /// Request packets dropped because no receive was posted. On a reliable connection, an RNR NAK becomes due for
        /// each packet (IBA 9.7.5.2.8).
        out_of_buffer,
        /// Request packets that an unreliable connection dropped without a response (IBA 9.8.2.2): an earlier packet of
        /// the message was lost, no receive was posted, the receive is too short or not writable, or the request is
        /// invalid.
        uc_requests_dropped,
        /// Datagrams (UD) dropped because no receive was posted, or because the receive is too short or not writable.
        ud_requests_dropped,
        /// RNR NAKs received, except stale responses and RNR NAKs that imply the loss of an earlier READ response.
        rcvd_rnr_err,
        /// PSN sequence error NAKs that became due; 0 under selective repeat, which sends SACKs instead.
        send_seq_err,
        /// PSN sequence error NAKs received, except stale responses and NAKs that imply the loss of an earlier READ
        /// response; not counted under selective repeat.
        packet_seq_err,
        /// Responses that imply the loss of an earlier READ response (implied NAK, IBA 9.7.6).
        implied_nak_seq_err,
        /// Local ACK timeouts: `4.096 us * 2^timeout` without progress (IBA 9.7.6.1.3).
        local_ack_timeout_err,
        /// SACKs sent (selective repeat).
        sacks_sent,
        /// SACKs received (selective repeat), with or without newly acknowledged PSNs.
        sacks_received,
        /// Spurious retransmissions (selective repeat), detected by a SACK for a duplicate request or by a duplicate
        /// READ response. A duplicate caused by a probe is not counted.
        spurious_retransmits,
        /// Probe timeouts that are the first since a packet was newly acknowledged, or that are shorter than the RTO;
        /// `roce_adp_retrans_to` counts all other probe timeouts. After each probe timeout, a probe is sent (RFC 8985).
        tail_probes,
        /// Probe timeouts that are at least as long as the RTO (RFC 6298), except the first probe timeout since a
        /// packet was newly acknowledged. Each probe timeout counted here is reported to congestion control as a loss.
        roce_adp_retrans_to,
        /// Request packets retransmitted, probes included; retransmitted READ responses are not counted.
        retransmitted_pkts,
        /// Work requests that failed because the retry count was exceeded.
        retry_exceeded_err,
        /// Work requests that failed because the RNR retry count was exceeded.
        retry_rnr_exceeded_err,
        /// Stale responses: responses whose PSN is below una or was never sent, READ responses received already, and
        /// READ responses with the PSN of a request other than a READ. If the PSN is more than 4,096 below una or was
        /// never sent, the response is dropped before its ICRC is computed.
        stale_responses,
        /// READ responses with a payload length or an opcode (FIRST, MIDDLE, LAST, ONLY) that is wrong for their PSN,
        /// or with an AETH that is no ACK.
        bad_resp_err,
        /// Requests answered by a NAK with the code invalid request.
        resp_invalid_request,
        /// Requests answered by a NAK with the code remote access error, including READs whose memory region was
        /// deregistered before all responses were sent.
        resp_remote_access_errors,
        /// Requests answered by a NAK with the code remote operational error: an access to the memory of the R_Key or
        /// of the receive caused a memory fault, or the L_Key of the receive does not permit the access.
        resp_remote_operation_errors,
        /// NAKs received with the code invalid request.
        req_remote_invalid_request,
        /// NAKs received with the code remote access error.
        req_remote_access_errors,
        /// NAKs received with the code remote operational error.
        req_remote_operation_errors,
        /// Duplicate READs dropped because they are not part of a READ in the responder resources.
        duplicate_read_dropped,
        /// Duplicate READs dropped because the responses of the READ were retransmitted up to the limit
        /// (`RETRANSMITS_PER_READ`), and the queue pair had too few tokens to retransmit responses beyond this limit
        /// (`RETRANSMIT_PKTS_PER_SEC`).
        duplicate_read_limited,
        /// Responses dropped because of an opcode that the queue pair does not use, an unknown SACK version, or a NAK
        /// code or AETH syndrome that is reserved or only for reliable datagrams.
        bad_opcode_dropped,
        /// READs dropped because the responder's queue of READs to serve was full; the peer has to retransmit the READ.
        read_deferred,
        /// Packets received with a CE mark (RFC 3168): requests whose PSN is within 4,096 (`STALE_PSNS`) of the
        /// expected PSN, and responses whose PSN is from 4,096 below una to max_sent.
        np_ecn_marked_roce_packets,
        /// CNPs sent (IBA A17.9).
        np_cnp_sent,
        /// CNPs received with the BECN bit, under a congestion control scheme that uses CNPs.
        rp_cnp_handled,
        /// CNPs received without the BECN bit, or under a congestion control scheme that does not use CNPs.
        rp_cnp_ignored,
        /// Work requests that failed because an L_Key does not permit the access, or because the memory named by
        /// their scatter/gather lists could not be accessed (`WcStatus::LocProtErr`).
        local_protection_err,
        /// Send and receive work requests completed with a flush error.
        cqe_flush_err,
    }
}

counters! {
    /// Frames dropped before they reached a queue pair, by reason, and frames that are not RoCE.
    DropCounters {
        /// Frames that are not RoCEv2. These frames are not counted as dropped, because the module `neighbour` may
        /// process them (ARP, neighbour discovery, ICMP echo).
        not_roce,
        /// Frames to a unicast MAC that is not the port's, and RoCE or malformed packets to a multicast or broadcast
        /// MAC.
        wrong_mac,
        /// Packets whose VLAN is not the VLAN of the queue pair's source GID; datagrams (UD) whose VLAN is not that of
        /// their destination GID.
        wrong_vlan,
        /// Frames shorter than their headers, or than a length stated in their headers.
        truncated,
        /// Frames with more than one VLAN tag, or with an 802.1ad tag.
        stacked_vlan,
        /// Packets whose IP version does not match their EtherType.
        bad_ip_version,
        /// IPv4 packets with options.
        ipv4_options,
        /// Fragments of IP packets.
        fragment,
        /// IPv4 packets with a wrong header checksum.
        bad_ip_checksum,
        /// Packets whose UDP length is not the length of the IP payload.
        length_mismatch,
        /// Packets whose BTH transport header version (TVer) is not 0.
        bad_tver,
        /// Packets with an unknown BTH opcode.
        unknown_opcode,
        /// Packets whose BTH pad count exceeds the bytes after the headers, or whose payload plus pad is not a multiple
        /// of 4 bytes.
        bad_pad,
        /// Packets that have payload or pad, although their opcode permits no payload.
        unexpected_payload,
        /// Packets that passed all header checks of the queue pair but have a wrong ICRC.
        rx_icrc_errors,
        /// Packets to a QPN that no queue pair has.
        unknown_qp,
        /// Packets to a QPN without the QPN prefix of this device: packets to another device on the same interface.
        foreign_qp,
        /// Packets to a queue pair in a state other than RTR, RTS, SQD and SQE.
        qp_state,
        /// Packets whose opcode is not of the queue pair's transport service, except CNPs; and packets with an opcode
        /// of selective repeat to a queue pair with another recovery scheme.
        wrong_transport,
        /// Packets whose P_Key is not of the default partition.
        wrong_pkey,
        /// Datagrams (UD) whose Q_Key is not that of the queue pair.
        wrong_qkey,
        /// Packets whose source IP address is not the peer's.
        wrong_source,
        /// If the peer is on the link: packets whose source MAC is not the peer's.
        wrong_source_mac,
        /// Packets whose UDP source port is not the peer's. A queue pair learns the UDP source port of requests from
        /// the first request with the expected PSN, and the UDP source port of responses from the first response whose
        /// PSN is from una to the highest PSN sent.
        wrong_source_port,
        /// Packets whose destination IP address is not the queue pair's source GID; datagrams (UD) whose destination IP
        /// address is no GID of the port.
        wrong_destination,
    }
}

impl DropCounters {
    /// Returns the number of frames dropped: the sum of all counters except `not_roce` and `foreign_qp`.
    pub fn total(&self) -> u64 {
        self.iter().map(|(_, count)| count).sum::<u64>() - self.not_roce - self.foreign_qp
    }
}
