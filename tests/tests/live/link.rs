//! Two peers, connected.

use std::time::Duration;

use roce::qp::{ConnAttr, PathMtu};
use tests::protocol::{Command, Completion, Connect, Done, MrReply, Op, Piece, QpReply, Recv, Send};

use super::peer::Peer;

/// Bytes of memory at each end: the first half is sent from, the second filled.
pub(crate) const MR_BYTES: usize = 4 << 20;
/// First byte of the half that is filled.
pub(crate) const TARGET: usize = MR_BYTES / 2;
/// Local write, remote write, remote read.
const ACCESS: u32 = 1 | 2 | 4;

/// How a connection is made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Settings {
    pub(crate) depth: u32,
    pub(crate) conn: ConnAttr,
}

impl Default for Settings {
    /// What ibv_rc_pingpong takes, at a path MTU of 1024; but a peer may be away for longer, as
    /// these run on a busy machine with fewer processors than programs that poll: 4 seconds in all.
    fn default() -> Self {
        Settings { depth: 128, conn: ConnAttr { timeout: 17, ..ConnAttr::default() } }
    }
}

impl Settings {
    /// The defaults at another path MTU.
    pub(crate) fn at(path_mtu: PathMtu) -> Self {
        let settings = Settings::default();
        Settings { conn: ConnAttr { path_mtu, ..settings.conn }, ..settings }
    }
}

/// One end of a connection.
pub(crate) struct End {
    pub(crate) peer: Peer,
    pub(crate) mr: MrReply,
    gid_index: u8,
    qp: Option<QpReply>,
}

impl End {
    /// An end with memory, not yet connected.
    pub(crate) fn new(mut peer: Peer, gid_index: u8) -> End {
        let mr = peer.tell(&Command::Mr { len_bytes: MR_BYTES, access: ACCESS });
        End { peer, mr, gid_index, qp: None }
    }

    /// Its queue pair.
    pub(crate) fn qp_reply(&self) -> &QpReply {
        self.qp.as_ref().expect("connected")
    }

    fn qp(&self) -> usize {
        self.qp_reply().qp
    }

    /// A stretch of its memory.
    pub(crate) fn piece(&self, offset: usize, len_bytes: usize) -> Piece {
        Piece { mr: self.mr.mr, offset, len_bytes: len_bytes as u32 }
    }

    /// Posts a receive.
    pub(crate) fn post_recv(&mut self, wr_id: u64, offset: usize, len_bytes: usize) {
        let pieces = if len_bytes == 0 { Vec::new() } else { vec![self.piece(offset, len_bytes)] };
        self.peer.post_recv(self.qp(), vec![Recv { wr_id, pieces }]);
    }

    /// Posts sends.
    pub(crate) fn post_send(&mut self, wrs: Vec<Send>) {
        self.peer.post_send(self.qp(), wrs);
    }

    /// Waits for `count` completions.
    pub(crate) fn poll(&mut self, count: usize) -> Vec<Completion> {
        self.peer.poll(self.qp(), count)
    }

    /// Waits for one completion.
    pub(crate) fn poll_one(&mut self) -> Completion {
        self.poll(1)[0]
    }

    /// Sees to it that no completion comes for a while.
    pub(crate) fn expect_quiet(&mut self, time: Duration) {
        let early = self.peer.poll_for(self.qp(), 1, time);
        assert!(early.is_empty(), "nothing should have completed: {early:?}");
    }

    /// Its queue pair's state.
    pub(crate) fn state(&mut self) -> u32 {
        self.peer.state(self.qp())
    }

    /// Puts bytes into its memory.
    pub(crate) fn write(&mut self, offset: usize, bytes: &[u8]) {
        self.peer.write(self.mr.mr, offset, bytes);
    }

    /// Looks into its memory.
    pub(crate) fn read(&mut self, offset: usize, len_bytes: usize) -> Vec<u8> {
        self.peer.read(self.mr.mr, offset, len_bytes)
    }

    /// A send work request from its own `local` offset, to or from `remote` at the other end.
    pub(crate) fn request(
        &self,
        wr_id: u64,
        op: Op,
        local: usize,
        len_bytes: usize,
        other: &End,
        remote: usize,
    ) -> Send {
        let pieces = if len_bytes == 0 { Vec::new() } else { vec![self.piece(local, len_bytes)] };
        let imm = 0xC0DE_0000 | wr_id as u32;
        Send { wr_id, op, imm, remote_addr: other.mr.addr + remote as u64, rkey: other.mr.rkey, pieces }
    }
}

/// Gives `a` and `b` a new queue pair each, instead of the one they had, and connects these.
pub(crate) fn connect(a: &mut End, b: &mut End, settings: &Settings) {
    for end in [&mut *a, &mut *b] {
        if let Some(old) = end.qp.take() {
            let Done {} = end.peer.tell(&Command::Destroy { qp: old.qp });
        }
        end.qp = Some(end.peer.tell(&Command::Qp { gid_index: end.gid_index, depth: settings.depth }));
    }
    let (a_qp, b_qp) = (a.qp.clone().expect("made"), b.qp.clone().expect("made"));
    connect_one(a, &b_qp, settings);
    connect_one(b, &a_qp, settings);
}

fn connect_one(end: &mut End, other: &QpReply, settings: &Settings) {
    let connect = Connect::new(end.qp(), other.clone(), end.gid_index, &settings.conn);
    let Done {} = end.peer.tell(&Command::Connect(connect));
}
