//! A scenario laid out: which bytes each work request moves from where to where.

use lab::rng::SplitMix;
use roce::qp::Placement;
use roce::queue::Sge;

use super::scenario::{EndPlan, Kind, OpPlan, Place, Scenario};

/// A run of bytes of a memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Range {
    pub(crate) offset: usize,
    pub(crate) len: usize,
}

impl Range {
    pub(crate) fn of<'a>(&self, bytes: &'a [u8]) -> &'a [u8] {
        &bytes[self.offset..self.offset + self.len]
    }

    pub(crate) fn of_mut<'a>(&self, bytes: &'a mut [u8]) -> &'a mut [u8] {
        &mut bytes[self.offset..self.offset + self.len]
    }

    /// The first `len` bytes.
    pub(crate) fn first(&self, len: usize) -> Range {
        Range { offset: self.offset, len }
    }
}

/// A send work request.
#[derive(Clone, Debug)]
pub(crate) struct Op {
    pub(crate) plan: OpPlan,
    pub(crate) len: usize,
    /// The scatter/gather list, in this host's local memory.
    pub(crate) local: Vec<Range>,
    /// Where it writes or reads in the peer's remote memory.
    pub(crate) remote: Range,
    pub(crate) imm: u32,
    /// What its local bytes (READ: its remote bytes) hold.
    pub(crate) content: Vec<u8>,
    /// Whether the READ before it fills its local bytes.
    pub(crate) relays: bool,
    /// Whether the bytes that it reads are sent on by the next work request.
    pub(crate) is_relayed: bool,
}

/// A receive work request.
#[derive(Clone, Debug)]
pub(crate) struct Recv {
    /// The scatter list, in this host's local memory.
    pub(crate) local: Vec<Range>,
    /// The peer's work request that takes it.
    pub(crate) op: usize,
}

/// One end of a connection, laid out.
#[derive(Clone, Debug)]
pub(crate) struct End {
    pub(crate) plan: EndPlan,
    pub(crate) host: usize,
    pub(crate) ops: Vec<Op>,
    pub(crate) recvs: Vec<Recv>,
    /// The range of the peer's remote memory that this end's hot work requests touch.
    pub(crate) hot: Range,
}

/// The memory of one host as the run begins: what local work requests use, and what peers use.
#[derive(Clone, Debug, Default)]
pub(crate) struct Images {
    pub(crate) local: Vec<u8>,
    pub(crate) remote: Vec<u8>,
}

/// A whole scenario, laid out. Ends `2 i` and `2 i + 1` are connection `i`.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) ends: Vec<End>,
    pub(crate) images: Vec<Images>,
}

/// Entries of a scatter/gather list at most.
pub(crate) const SGES_MAX: usize = 4;
/// Bytes of an inline work request at most.
pub(crate) const INLINE_BYTES_MAX: usize = 64;
/// A gap between ranges of at least one byte shows a write that is one byte too long.
const GAP_BYTES_MAX: usize = 9;
/// The shared range of an end holds this many packets and a bit.
const HOT_PACKETS: usize = 2;

/// Takes `len` bytes after a gap, and says what they and the gap hold.
fn take(image: &mut Vec<u8>, rng: &mut SplitMix, len: usize) -> Range {
    let gap = 1 + rng.up_to(GAP_BYTES_MAX - 1);
    let start = image.len();
    image.resize(start + gap + len, 0);
    rng.fill(&mut image[start..]);
    Range { offset: start + gap, len }
}

/// Cuts `len` bytes into `count` ranges of their own, some of them perhaps empty. No bytes may have
/// no range at all.
fn take_list(image: &mut Vec<u8>, rng: &mut SplitMix, len: usize, count: usize) -> Vec<Range> {
    if count == 0 && len == 0 {
        return Vec::new();
    }
    let mut cuts: Vec<usize> = (1..count).map(|_| rng.up_to(len)).collect();
    cuts.sort_unstable();
    cuts.push(len);
    let mut start = 0;
    let pieces = cuts.into_iter().map(|end| {
        let piece = end - start;
        start = end;
        piece
    });
    pieces.map(|piece| take(image, rng, piece)).collect()
}

pub(crate) fn gather(image: &[u8], list: &[Range]) -> Vec<u8> {
    list.iter().flat_map(|range| range.of(image)).copied().collect()
}

impl Plan {
    pub(crate) fn new(scenario: &Scenario) -> Plan {
        let mut rng = SplitMix::new(scenario.seed);
        let mut images = vec![Images::default(); scenario.hosts];
        let mut ends: Vec<End> = Vec::new();
        for (number, conn) in scenario.conns.iter().enumerate() {
            let hosts = [number % scenario.hosts, (number + 1) % scenario.hosts];
            for side in 0..2 {
                let (host, peer) = (hosts[side], hosts[1 - side]);
                let in_order = conn.placement[1 - side] == Placement::InOrder;
                let mut layout =
                    Layout { scenario, rng: &mut rng, images: &mut images, host, peer, in_order };
                ends.push(layout.end(&conn.ends[side]));
            }
        }
        for end in 0..ends.len() {
            let recvs = recvs_for(&ends[end ^ 1].ops, &mut images[ends[end].host], &mut rng);
            ends[end].recvs = recvs;
        }
        for images in &mut images {
            take(&mut images.local, &mut rng, 0);
            take(&mut images.remote, &mut rng, 0);
        }
        Plan { ends, images }
    }
}

/// The receives that the peer's `ops` take.
fn recvs_for(ops: &[Op], images: &mut Images, rng: &mut SplitMix) -> Vec<Recv> {
    let taken = ops.iter().enumerate().filter(|(_, op)| op.plan.kind.consumes_receive());
    taken
        .map(|(number, op)| {
            let needed = if op.plan.kind == Kind::WriteWithImm { 0 } else { op.len };
            let len = needed + op.plan.recv_slack_bytes as usize;
            Recv { local: take_list(&mut images.local, rng, len, op.plan.recv_sges), op: number }
        })
        .collect()
}

struct Layout<'a> {
    scenario: &'a Scenario,
    rng: &'a mut SplitMix,
    images: &'a mut [Images],
    host: usize,
    peer: usize,
    /// WRITEs reach the peer's memory in order.
    in_order: bool,
}

impl Layout<'_> {
    fn end(&mut self, plan: &EndPlan) -> End {
        let hot_len = HOT_PACKETS * self.scenario.mtu_bytes as usize + 3;
        let hot = take(&mut self.images[self.peer].remote, self.rng, hot_len);
        let mut hot_content = hot.of(&self.images[self.peer].remote).to_vec();
        let mut ops: Vec<Op> = Vec::new();
        let mut hot_reads_unfenced = false;
        for (number, op_plan) in plan.ops.iter().enumerate() {
            let mut op = self.op(*op_plan, ops.last(), hot);
            op.imm = self.rng.bits() as u32;
            if op.relays
                && let Some(read) = ops.last_mut()
            {
                read.is_relayed = true;
            }
            let is_hot = op.plan.place == Place::Hot;
            if op.plan.kind == Kind::Read && is_hot {
                op.content = hot_content[..op.len].to_vec();
            } else if is_hot {
                // A WRITE that may overtake the retransmission of a READ of the same bytes needs a fence.
                op.plan.fence |= hot_reads_unfenced;
                hot_content[..op.len].copy_from_slice(&op.content);
            }
            hot_reads_unfenced =
                (hot_reads_unfenced && !op.plan.fence) || (op.plan.kind == Kind::Read && is_hot);
            // The last one tells that all are done.
            op.plan.signaled |= number + 1 == plan.ops.len();
            ops.push(op);
        }
        End { plan: plan.clone(), host: self.host, ops, recvs: Vec::new(), hot }
    }

    fn op(&mut self, mut plan: OpPlan, before: Option<&Op>, hot: Range) -> Op {
        let mut len = plan.len.bytes(self.scenario.mtu_bytes) as usize;
        let is_send = matches!(plan.kind, Kind::Send | Kind::SendWithImm);
        if plan.place == Place::Hot && (is_send || !self.in_order) {
            plan.place = Place::Own;
        }
        let read = before.filter(|op| op.plan.kind == Kind::Read && plan.kind != Kind::Read);
        let relayed = read.filter(|_| plan.place == Place::Relay);
        if let Some(read) = relayed {
            len = read.len;
            plan.fence = true;
        } else if plan.place == Place::Relay {
            plan.place = Place::Own;
        }
        if plan.place == Place::Hot {
            len = len.min(hot.len);
        }
        plan.inline &= plan.kind != Kind::Read && len <= INLINE_BYTES_MAX && relayed.is_none();
        let local = match relayed {
            Some(read) => read.local.clone(),
            None => take_list(&mut self.images[self.host].local, self.rng, len, plan.sges),
        };
        let has_remote = matches!(plan.kind, Kind::Write | Kind::WriteWithImm | Kind::Read);
        let remote = match plan.place {
            Place::Hot => hot.first(len),
            _ if has_remote => take(&mut self.images[self.peer].remote, self.rng, len),
            _ => Range::default(),
        };
        let content = match (plan.kind, relayed) {
            (Kind::Read, _) => remote.of(&self.images[self.peer].remote).to_vec(),
            (_, Some(read)) => read.content.clone(),
            (_, None) => gather(&self.images[self.host].local, &local),
        };
        Op { plan, len, local, remote, imm: 0, content, relays: relayed.is_some(), is_relayed: false }
    }
}

/// A list as a work request gives it, for a region that begins at address `base`.
pub(crate) fn sges(list: &[Range], base: u64, lkey: roce::id::LKey) -> Vec<Sge> {
    let sge = |range: &Range| Sge { addr: base + range.offset as u64, len_bytes: range.len as u32, lkey };
    list.iter().map(sge).collect()
}
