//! The catalogue of figures that a run may measure.

/// A figure: name, label with unit, and definition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Figure {
    /// Name of the figure's column in files.
    pub name: &'static str,
    /// Label in tables and plots, with its unit.
    pub label: &'static str,
    /// Definition, shown in the report.
    pub meaning: &'static str,
}

/// Declares a constant for each figure, and their list in the order of the columns.
macro_rules! figures {
    ($($constant:ident: $name:literal, $label:literal, $meaning:literal;)*) => {
        $(#[doc = $meaning] pub const $constant: Figure = Figure { name: $name, label: $label, meaning: $meaning };)*
        /// All figures, in the order of the columns.
        pub const FIGURES: &[Figure] = &[$($constant),*];
    };
}

figures! {
    GOODPUT: "goodput_gbit_per_sec", "goodput, Gbit/s",
        "Payload of completed messages over the time from the first post to the last completion.";
    KEPT: "kept", "kept",
        "Goodput over (1 - loss) x the goodput of the same variant and seed at the sweep's first value.";
    COMPLETED: "completed_messages", "messages completed",
        "Messages completed with success.";
    FLOWS: "completed_flows", "flows completed",
        "Flows completed with success.";
    SLOWDOWN: "average_slowdown", "average slowdown",
        "Mean over the flows of slowdown: the flow's completion time over what it would be with the path to itself.";
    SLOWDOWN_99: "p99_slowdown", "99th percentile of slowdown",
        "The slowdown that 99 % of the flows do not exceed.";
    FCT: "average_fct_us", "average FCT, us",
        "Mean over the flows of flow completion time: from the post of the message to its completion at the sender. A flow that failed or was unfinished counts with the time until the run ended.";
    FCT_99: "p99_fct_us", "99th percentile of FCT, us",
        "The flow completion time that 99 % of the flows do not exceed.";
    LAST: "last_completion_us", "last completion, us",
        "When the last flow completed, counted from the start of the run; of an incast, its request completion time.";
    GOODPUT_ALL: "fabric_goodput_gbit_per_sec", "goodput of all, Gbit/s",
        "Payload of all completed flows over the time until the last completion; of long flows, payload completed in the measured time over that time.";
    LINK_SHARE: "link_share", "share of the link",
        "Goodput of all flows over the largest goodput of the bottleneck: (1 - loss) x the payload's share of its bit rate.";
    JAIN: "jain_index", "Jain index",
        "Fairness of the flows' goodputs: (sum)^2 / (n x sum of squares). 1: all equal; 1/n: one flow has all.";
    GOODPUT_LEAST: "least_goodput_gbit_per_sec", "least goodput of a flow, Gbit/s",
        "Goodput of the slowest flow.";
    GOODPUT_MOST: "most_goodput_gbit_per_sec", "most goodput of a flow, Gbit/s",
        "Goodput of the fastest flow.";
    QUEUE_50: "queue_median_kbytes", "median queue, kB",
        "Median of the queue of the bottleneck link, in units of 1,000 bytes, sampled every microsecond.";
    QUEUE_99: "queue_p99_kbytes", "99th percentile of queue, kB",
        "Queue of the bottleneck link, in units of 1,000 bytes, that 99 % of the samples do not exceed.";
    RATE: "pacer_gbit_per_sec", "pacer rate, Gbit/s",
        "Mean over flows and samples of the rate to which congestion control paces a flow; without one, the link's.";
    WINDOW: "window_pkts", "window, packets",
        "Mean over flows and samples of the congestion control's window.";
    SENT: "sent_pkts", "packets sent",
        "Packets that the requester (of flows: all hosts) sent, retransmissions included.";
    LOST: "lost_pkts", "packets lost",
        "Packets that the network lost or corrupted: of two hosts, on the link that carries the payload (of READs, requests too); of a fabric, on all links, those included that found no room.";
    RETRANSMITTED: "retransmitted_pkts", "packets retransmitted",
        "Packets that the requester (of READs: either end) retransmitted.";
    NEEDLESS: "needless_pkts", "retransmitted needlessly",
        "Packets retransmitted beyond those that were lost.";
    NAKS: "loss_reports", "loss reports",
        "NAKs, selective acknowledges that report a gap, and responses found missing, at the requester.";
    TIMEOUTS: "timeouts", "timeouts",
        "Expiries of the local ACK timeout and of the adaptive one.";
    PROBES: "tail_probes", "tail probes",
        "Last packets retransmitted early, to hear what became of them.";
    MARKED: "marked_pkts", "packets marked",
        "Packets that switches marked as having met congestion.";
    PAUSES: "pauses", "pauses",
        "Times that a port paused who sends to it (priority flow control).";
    PAUSED: "paused_us", "paused, us",
        "How long links stood paused, summed over all links.";
    QUEUE_PEAK: "queue_peak_kbytes", "longest queue, kB",
        "The most bytes that waited for one link at once, in units of 1,000.";
    HOPS: "packet_hops", "packet-hops",
        "Packets over links: the size of the simulation.";
    NAK_GENERATION: "nak_generation_us", "NAK or CNP generation, us",
        "From the arrival of the packet that shows the event at the responder to the last bit of its report (NAK, selective acknowledge, CNP) leaving.";
    NAK_REACTION: "nak_reaction_us", "NAK reaction, us",
        "From the arrival of that report at the requester to the last bit of the retransmission leaving.";
    RETRANSMISSION: "retransmission_us", "retransmission, us",
        "From the last bit of the packet leaving for the first time to the last bit of its retransmission.";
    COST: "cost_us", "cost, us",
        "How much later the message completed than without the event.";
    BY_TIMEOUT: "by_timeout", "by timeout",
        "1 where the retransmission was not asked for by the responder but came by a timer or a tail probe.";
}

/// Returns the figure `name`; `None` if no figure has this name.
pub fn figure(name: &str) -> Option<Figure> {
    FIGURES.iter().copied().find(|figure| figure.name == name)
}
