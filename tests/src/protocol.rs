//! What a test says to a peer program, and what the program answers: one JSON object per line.
//!
//! Two programs speak it: `roce-peer` (this project's verbs) and `tests/guest/peer.py` (pyverbs on
//! Linux's soft-RoCE). A test that is written against this protocol therefore runs with either of
//! them at either end. Numbers of rights, completion statuses and opcodes are libibverbs'.

use std::collections::BTreeMap;

use roce::qp::{ConnAttr, PathMtu};
use roce::queue::WcStatus;
use serde::{Deserialize, Serialize};

/// `IBV_WC_RECV`.
pub const WC_RECV: u32 = 128;
/// `IBV_WC_RECV_RDMA_WITH_IMM`.
pub const WC_RECV_RDMA_WITH_IMM: u32 = 129;

/// A command to a peer.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "snake_case")]
pub enum Command {
    /// Register zeroed memory; answered by [`MrReply`].
    Mr {
        /// Its length in bytes.
        len_bytes: usize,
        /// Rights, as bits of `enum ibv_access_flags`.
        access: u32,
    },
    /// Create a queue pair with a completion queue of its own; answered by [`QpReply`].
    Qp {
        /// Index of the GID it will send from.
        gid_index: u8,
        /// Work requests of each queue.
        depth: u32,
    },
    /// Bring a queue pair to RTS; answered by [`Done`].
    Connect(Connect),
    /// Put bytes into memory; answered by [`Done`].
    Write {
        /// Which memory.
        mr: usize,
        /// Where.
        offset: usize,
        /// What, as hexadecimal digits.
        hex: String,
    },
    /// Look into memory; answered by [`Bytes`].
    Read {
        /// Which memory.
        mr: usize,
        /// Where.
        offset: usize,
        /// How many bytes.
        len_bytes: usize,
    },
    /// Post receives; answered by [`Done`].
    PostRecv {
        /// Which queue pair.
        qp: usize,
        /// The receives, in order.
        wrs: Vec<Recv>,
    },
    /// Post sends; answered by [`Done`].
    PostSend {
        /// Which queue pair.
        qp: usize,
        /// The sends, in order. All are signaled.
        wrs: Vec<Send>,
    },
    /// Wait for completions; answered by [`Completions`], which may be fewer when the time is up.
    Poll {
        /// Which queue pair's.
        qp: usize,
        /// How many.
        count: usize,
        /// For how long.
        timeout_millis: u64,
    },
    /// Keep the send queues of connected queue pairs full, and wait for the completions; answered by [`Vec<Tally>`].
    Load(Load),
    /// Ask for a queue pair's state; answered by [`State`].
    State {
        /// Which queue pair.
        qp: usize,
    },
    /// Destroy a queue pair; answered by [`Done`].
    Destroy {
        /// Which queue pair.
        qp: usize,
    },
    /// Ask for counters; answered by a map of names to numbers.
    Counters,
}

/// How a queue pair connects.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Connect {
    /// Which queue pair.
    pub qp: usize,
    /// The other end.
    pub peer: QpReply,
    /// Index of this end's GID.
    pub gid_index: u8,
    /// Path MTU in bytes.
    pub path_mtu_bytes: u32,
    /// Local ACK timeout code.
    pub timeout: u8,
    /// Retries.
    pub retry_count: u8,
    /// Retries after receiver-not-ready; 7: for ever.
    pub rnr_retry: u8,
    /// RNR timer code.
    pub min_rnr_timer: u8,
    /// READs outstanding, at both ends.
    pub rd_atomic: u8,
    /// Recovery scheme, as its `Display` shows it; absent: the default. Only peers of this project's verbs know it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recovery: Option<String>,
}

impl Connect {
    /// The command that connects queue pair `qp` to `peer` with the attributes `conn`.
    ///
    /// # Panics
    /// If `conn` has a value that the protocol does not carry and that is not the default.
    pub fn new(qp: usize, peer: QpReply, gid_index: u8, conn: &ConnAttr) -> Self {
        let connect = Connect {
            qp,
            peer,
            gid_index,
            path_mtu_bytes: conn.path_mtu.bytes(),
            timeout: conn.timeout,
            retry_count: conn.retry_count,
            rnr_retry: conn.rnr_retry,
            min_rnr_timer: conn.min_rnr_timer,
            rd_atomic: conn.max_rd_atomic,
            recovery: (conn.recovery != ConnAttr::default().recovery).then(|| conn.recovery.to_string()),
        };
        assert_eq!(connect.conn(), Some(*conn), "the protocol lacks an attribute: add it to `Connect`");
        connect
    }

    /// The attributes of the connection; those that the protocol does not carry have their defaults. `None` if no
    /// path MTU has `path_mtu_bytes`, or `recovery` names no recovery scheme.
    pub fn conn(&self) -> Option<ConnAttr> {
        let recovery = match &self.recovery {
            Some(name) => name.parse().ok()?,
            None => ConnAttr::default().recovery,
        };
        Some(ConnAttr {
            recovery,
            path_mtu: PathMtu::from_bytes(self.path_mtu_bytes)?,
            max_rd_atomic: self.rd_atomic,
            max_dest_rd_atomic: self.rd_atomic,
            timeout: self.timeout,
            retry_count: self.retry_count,
            rnr_retry: self.rnr_retry,
            min_rnr_timer: self.min_rnr_timer,
            ..ConnAttr::default()
        })
    }
}

/// Work requests posted on several queue pairs. Sends and receives use one memory region of this
/// peer, and sends access one memory region of the other peer.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Load {
    /// Which queue pairs.
    pub qps: Vec<usize>,
    /// Which memory of this peer.
    pub mr: usize,
    /// Operations of the sends, of which each send has one at random.
    pub ops: Vec<Op>,
    /// Bytes that a work request accesses at most, from the first byte of either memory region on.
    pub len_bytes: u32,
    /// First byte of the memory of the other peer.
    pub remote_addr: u64,
    /// Key of the memory of the other peer.
    pub rkey: u32,
    /// Work requests outstanding in each queue of a queue pair.
    pub outstanding: u64,
    /// Seed of the choice of operations and lengths.
    pub seed: u64,
    /// For how long sends are posted to a queue pair without an error. After an error on a queue pair, nothing more is
    /// posted to this queue pair.
    pub post_millis: u64,
    /// For how long the peer then waits for completions: of all sends, and after an error also of all receives.
    pub wait_millis: u64,
}

/// Work requests of one queue pair under [`Command::Load`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tally {
    /// Sends posted.
    pub sends: u64,
    /// Receives posted.
    pub recvs: u64,
    /// Completions of sends, by `enum ibv_wc_status`.
    pub sends_ended: BTreeMap<u32, u64>,
    /// Completions of receives, by `enum ibv_wc_status`.
    pub recvs_ended: BTreeMap<u32, u64>,
}

impl Tally {
    /// Sends without a completion.
    pub fn sends_outstanding(&self) -> u64 {
        self.sends - self.sends_ended.values().sum::<u64>()
    }

    /// Receives without a completion.
    pub fn recvs_outstanding(&self) -> u64 {
        self.recvs - self.recvs_ended.values().sum::<u64>()
    }

    /// Whether a work request completed in error.
    pub fn has_failed(&self) -> bool {
        let success = WcStatus::Success as u32;
        self.sends_ended.keys().chain(self.recvs_ended.keys()).any(|status| *status != success)
    }

    /// Sends that completed with `status`.
    pub fn sends_with(&self, status: WcStatus) -> u64 {
        self.sends_ended.get(&(status as u32)).copied().unwrap_or_default()
    }
}

/// A stretch of a peer's registered memory.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Piece {
    /// Which memory.
    pub mr: usize,
    /// Where in it.
    pub offset: usize,
    /// How many bytes.
    pub len_bytes: u32,
}

/// A receive work request.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Recv {
    /// Its number.
    pub wr_id: u64,
    /// Where the message goes.
    pub pieces: Vec<Piece>,
}

/// What a send work request does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Op {
    /// SEND.
    Send,
    /// SEND with immediate.
    SendWithImm,
    /// RDMA WRITE.
    Write,
    /// RDMA WRITE with immediate.
    WriteWithImm,
    /// RDMA READ.
    Read,
}

impl Op {
    /// All of them.
    pub const ALL: [Op; 5] = [Op::Send, Op::SendWithImm, Op::Write, Op::WriteWithImm, Op::Read];

    /// Whether it consumes a receive of the peer.
    pub fn takes_receive(self) -> bool {
        matches!(self, Op::Send | Op::SendWithImm | Op::WriteWithImm)
    }

    /// Whether it carries an immediate.
    pub fn has_imm(self) -> bool {
        matches!(self, Op::SendWithImm | Op::WriteWithImm)
    }
}

/// A send work request.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Send {
    /// Its number.
    pub wr_id: u64,
    /// What it does.
    pub op: Op,
    /// The immediate, in host order.
    pub imm: u32,
    /// First remote address of a WRITE or READ.
    pub remote_addr: u64,
    /// Key of the remote memory.
    pub rkey: u32,
    /// The bytes.
    pub pieces: Vec<Piece>,
}

/// Memory, as its owner and its peer need to know it.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct MrReply {
    /// Its number in commands.
    pub mr: usize,
    /// Address of its first byte.
    pub addr: u64,
    /// Key for the peer.
    pub rkey: u32,
}

/// A queue pair, as its owner and its peer need to know it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct QpReply {
    /// Its number in commands.
    pub qp: usize,
    /// Queue pair number.
    pub qpn: u32,
    /// First PSN that it sends.
    pub psn: u32,
    /// Its GID, as an IPv6 address.
    pub gid: std::net::Ipv6Addr,
}

/// Bytes of memory.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Bytes {
    /// As hexadecimal digits.
    pub hex: String,
}

/// A queue pair's state.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct State {
    /// As libibverbs numbers it.
    pub state: u32,
}

/// Completions, oldest first.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Completions {
    /// At most as many as were asked for.
    pub completions: Vec<Completion>,
}

/// A completion. Where `status` is not 0, only `wr_id` and `status` mean anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Completion {
    /// The work request's number.
    pub wr_id: u64,
    /// `enum ibv_wc_status`.
    pub status: u32,
    /// `enum ibv_wc_opcode`.
    pub opcode: u32,
    /// Bytes received or read.
    pub len_bytes: u32,
    /// The immediate, in host order.
    pub imm: Option<u32>,
}

impl Completion {
    /// Whether it ended with `status`.
    pub fn is(&self, status: WcStatus) -> bool {
        self.status == status as u32
    }
}

/// The answer to a command that has nothing to say.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Done {}

/// The envelope of every answer.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reply<T> {
    /// It was done.
    Ok(T),
    /// It was not, for this reason.
    Error(String),
}

/// Bytes as hexadecimal digits.
pub fn to_hex(bytes: &[u8]) -> String {
    const DIGITS: [char; 16] =
        ['0', '1', '2', '3', '4', '5', '6', '7', '8', '9', 'a', 'b', 'c', 'd', 'e', 'f'];
    bytes.iter().flat_map(|byte| [DIGITS[usize::from(byte >> 4)], DIGITS[usize::from(byte & 15)]]).collect()
}

/// The bytes of hexadecimal digits; `None` where they are none.
pub fn from_hex(hex: &str) -> Option<Vec<u8>> {
    let digit = |byte: u8| char::from(byte).to_digit(16);
    let (pairs, rest) = hex.as_bytes().as_chunks::<2>();
    if !rest.is_empty() {
        return None;
    }
    pairs.iter().map(|[high, low]| u8::try_from(digit(*high)? << 4 | digit(*low)?).ok()).collect()
}
