//! Counters, named as rxe's and mlx5's `hw_counters` where they mean the same.

/// Declares a struct of counters once: its fields with their documentation, and their names and values.
macro_rules! counters {
    ($(#[$meta:meta])* $name:ident { $($(#[doc = $doc:literal])* $field:ident,)* }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct $name {
            $($(#[doc = $doc])* pub $field: u64,)*
        }

        impl $name {
            /// Names and values, in the order of the fields.
            pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> + use<> {
                [$((stringify!($field), self.$field)),*].into_iter()
            }

            /// Adds another's counts to these.
            pub fn add(&mut self, other: &Self) {
                $(self.$field += other.$field;)*
            }
        }
    };
}
pub(crate) use counters;

counters! {
    /// What one queue pair did. A device's are the sums, over queue pairs destroyed too.
    QpCounters {
        /// Packets sent.
        sent_pkts,
        /// Packets received that reached the queue pair.
        rcvd_pkts,
        /// Payload bytes sent.
        sent_bytes,
        /// Payload bytes received.
        rcvd_bytes,
        /// SENDs and RDMA WRITEs completed as requester.
        rdma_sends,
        /// Messages received into a receive work request.
        rdma_recvs,
        /// RDMA WRITEs served.
        rx_write_requests,
        /// RDMA READs served.
        rx_read_requests,
        /// Request packets received before.
        duplicate_request,
        /// Request packets ahead of the one expected.
        out_of_seq_request,
        /// Of these, SENDs and WRITEs whose payload was put in its place at once.
        placed_out_of_order,
        /// Packets ahead of the one expected that were dropped because the device, or this queue pair's share of
        /// it, had no room to keep them, or that made room for one less far ahead.
        reorder_no_room,
        /// Packets that were kept for too long and dropped: what is missing before them never came.
        reorder_expired,
        /// Packets ahead that came again as another version of themselves: the later one is kept. One of the two
        /// was forged, or the peer's memory changed between them.
        reorder_conflicts,
        /// Requests that found no receive work request (RNR NAKs sent).
        out_of_buffer,
        /// RNR NAKs received.
        rcvd_rnr_err,
        /// PSN sequence error NAKs sent.
        send_seq_err,
        /// PSN sequence error NAKs received.
        packet_seq_err,
        /// READ responses found missing by a later response or acknowledgement.
        implied_nak_seq_err,
        /// Expiries of the local ACK timeout.
        local_ack_timeout_err,
        /// Selective acknowledges sent.
        sacks_sent,
        /// Selective acknowledges received.
        sacks_received,
        /// Packets sent again that had arrived the first time.
        spurious_retransmits,
        /// Silences in which a packet was sent again, to hear what became of the others.
        tail_probes,
        /// Silences as long as the timeout that follows the round trip, in which a packet was sent again.
        roce_adp_retrans_to,
        /// Packets sent again.
        retransmitted_pkts,
        /// Work requests that failed for want of an answer.
        retry_exceeded_err,
        /// Work requests that failed for want of a receive at the peer.
        retry_rnr_exceeded_err,
        /// Answers to packets not in flight (stale, duplicated or invented). The ICRC of most was not computed.
        stale_responses,
        /// READ responses of a wrong length or position.
        bad_resp_err,
        /// Requests refused as invalid.
        resp_invalid_request,
        /// Requests refused access to memory.
        resp_remote_access_errors,
        /// Requests that failed on this side.
        resp_remote_operation_errors,
        /// This side's requests that the peer refused as invalid.
        req_remote_invalid_request,
        /// This side's requests that the peer refused access.
        req_remote_access_errors,
        /// This side's requests that failed at the peer.
        req_remote_operation_errors,
        /// Duplicate READs that lie in no READ served before.
        duplicate_read_dropped,
        /// Duplicate READs of which nothing, or a part only, was served: they had been served too often.
        duplicate_read_limited,
        /// Packets of a kind that a reliable connection does not take, and responses with a reserved code.
        bad_opcode_dropped,
        /// READs set aside until the peer asks again, because responses still wait.
        read_deferred,
        /// Packets received that were marked "congestion experienced".
        np_ecn_marked_roce_packets,
        /// Congestion notifications sent.
        np_cnp_sent,
        /// Congestion notifications received that slowed the queue pair down.
        rp_cnp_handled,
        /// Congestion notifications received that its congestion control does not listen to.
        rp_cnp_ignored,
        /// Work requests that failed because a local key is unknown or gives not the right (lkey).
        local_protection_err,
        /// Work requests flushed.
        cqe_flush_err,
    }
}

counters! {
    /// Frames that the device dropped, by reason, before any queue pair saw them, and frames that
    /// are not RoCE.
    DropCounters {
        /// Frames of other protocols (for the neighbour code).
        not_roce,
        /// Frames to another station, and RoCE packets to a group.
        wrong_mac,
        /// Another VLAN than that of the queue pair's own address.
        wrong_vlan,
        /// Frames shorter than their headers say.
        truncated,
        /// More than one VLAN tag.
        stacked_vlan,
        /// IP version and EtherType differ.
        bad_ip_version,
        /// IPv4 options.
        ipv4_options,
        /// IP fragments.
        fragment,
        /// Wrong IPv4 header checksum.
        bad_ip_checksum,
        /// UDP and IP lengths differ.
        length_mismatch,
        /// Transport header version not 0.
        bad_tver,
        /// Opcode not in the table.
        unknown_opcode,
        /// Pad count impossible.
        bad_pad,
        /// Payload where the opcode has none.
        unexpected_payload,
        /// Wrong invariant CRC, of packets that are right by their headers: it is computed last.
        rx_icrc_errors,
        /// No queue pair of that number.
        unknown_qp,
        /// The queue pair does not receive in its state.
        qp_state,
        /// The opcode belongs to another transport than the queue pair's.
        wrong_transport,
        /// Another partition.
        wrong_pkey,
        /// Not from the peer of the connection.
        wrong_source,
        /// With the peer's IP address, but not its Ethernet address, though it is on the link.
        wrong_source_mac,
        /// Not from the UDP source port of the peer's first packet in order.
        wrong_source_port,
        /// Not to the queue pair's own address.
        wrong_destination,
    }
}

impl DropCounters {
    /// All frames dropped (those of other protocols are not).
    pub fn total(&self) -> u64 {
        self.iter().map(|(_, count)| count).sum::<u64>() - self.not_roce
    }
}
