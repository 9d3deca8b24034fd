//! Plays a scenario on a simulated network and compares every step with what must happen.
//!
//! The applications' bytes are mirrored: a copy of each memory is changed by the rules of the
//! operations, and a completion is the moment at which memory must equal its copy. After that the
//! application uses the bytes for something else (they are scribbled over, in memory and in the
//! copy), so that whatever the engines do to them later shows.

use lab::rng::SplitMix;
use roce::counters::QpCounters;
use roce::id::{LKey, Qpn, RKey};
use roce::mem::Memory;
use roce::queue::{
    Cqe, RecvPoster, RecvRequest, SendData, SendFlags, SendOp, SendPoster, SendRequest, WcOpcode, WcStatus,
};

use super::plan::{Plan, Range, sges};
use super::scenario::{Kind, OpPlan, Place};

/// Returns a message where something is not as it must be.
macro_rules! ensure {
    ($condition:expr, $($message:tt)+) => {
        if !$condition {
            return Err(format!($($message)+));
        }
    };
}
pub(crate) use ensure;

/// What went against the rules.
pub(crate) type Verdict<T = ()> = Result<T, String>;

/// A registered memory and its copy.
pub(crate) struct Mirror {
    pub(crate) memory: Memory,
    pub(crate) copy: Vec<u8>,
    /// Address of its first byte, as registered.
    pub(crate) base: u64,
    pub(crate) lkey: LKey,
    pub(crate) rkey: RKey,
}

impl Mirror {
    fn bytes(&self, range: Range) -> Vec<u8> {
        let mut bytes = vec![0; range.len];
        self.memory.read(range.offset, &mut bytes).expect("ranges lie inside the memory");
        bytes
    }

    fn set_copy(&mut self, list: &[Range], mut content: &[u8]) {
        for range in list {
            let (now, rest) = content.split_at(range.len.min(content.len()));
            range.first(now.len()).of_mut(&mut self.copy).copy_from_slice(now);
            content = rest;
        }
    }

    fn compare(&self, list: &[Range], what: impl Fn() -> String) -> Verdict {
        for range in list {
            self.compare_one(*range, &what)?;
        }
        Ok(())
    }

    fn compare_one(&self, range: Range, what: &impl Fn() -> String) -> Verdict {
        let is = self.bytes(range);
        let wanted = range.of(&self.copy);
        if is == wanted {
            return Ok(());
        }
        let at = is.iter().zip(wanted).position(|(is, wanted)| is != wanted).unwrap_or(0);
        let wrong = is.iter().zip(wanted).filter(|(is, wanted)| is != wanted).count();
        Err(format!(
            "{}: byte {at} of {} is wrong, and {wrong} in all (memory offset {})",
            what(),
            range.len,
            range.offset + at
        ))
    }

    fn scribble(&mut self, list: &[Range], rng: &mut SplitMix) {
        for range in list {
            let bytes = rng.bytes(range.len);
            range.of_mut(&mut self.copy).copy_from_slice(&bytes);
            self.memory.write(range.offset, &bytes).expect("ranges lie inside the memory");
        }
    }

    fn compare_all(&self, what: &str) -> Verdict {
        self.compare_one(Range { offset: 0, len: self.copy.len() }, &|| what.to_owned())
    }
}

/// The memories of a host.
pub(crate) struct Mirrors {
    pub(crate) local: Mirror,
    pub(crate) remote: Mirror,
}

/// The application's handles of one end.
pub(crate) struct Handles {
    pub(crate) qpn: Qpn,
    pub(crate) send: SendPoster,
    pub(crate) recv: RecvPoster,
}

/// How far one end has come.
struct Progress {
    posted: usize,
    retired: usize,
    /// When the next work request may be posted.
    ready_nanos: u64,
    /// Whether the peer's receive of each work request has completed.
    received: Vec<bool>,
    posted_recvs: usize,
    /// When each completed receive completed.
    recv_done_nanos: Vec<u64>,
}

/// The applications of a run.
pub(crate) struct Apps {
    plan: Plan,
    handles: Vec<Handles>,
    progress: Vec<Progress>,
    mirrors: Vec<Mirrors>,
    rng: SplitMix,
    /// Work requests whose completions were checked.
    pub(crate) completed: u64,
    /// A work request ran out of retries; nothing is checked after that.
    pub(crate) is_exhausted: bool,
}

/// Whether a work request number is that of a receive.
const RECV_BIT: u64 = 1 << 63;

fn wr_id(end: usize, number: usize) -> u64 {
    (end as u64) << 32 | number as u64
}

impl Apps {
    pub(crate) fn new(plan: Plan, handles: Vec<Handles>, mirrors: Vec<Mirrors>, seed: u64) -> Apps {
        let progress = plan.ends.iter().map(|end| Progress {
            posted: 0,
            retired: 0,
            ready_nanos: end.ops.first().map_or(0, |op| op.plan.pause_nanos),
            received: vec![false; end.ops.len()],
            posted_recvs: 0,
            recv_done_nanos: Vec::new(),
        });
        let progress = progress.collect();
        Apps {
            plan,
            handles,
            progress,
            mirrors,
            rng: SplitMix::new(!seed),
            completed: 0,
            is_exhausted: false,
        }
    }

    /// Whether everything has been posted and has completed.
    pub(crate) fn is_done(&self) -> bool {
        self.plan.ends.iter().zip(&self.progress).all(|(end, progress)| {
            progress.retired == end.ops.len() && progress.recv_done_nanos.len() == end.recvs.len()
        })
    }

    /// What is missing, in words.
    pub(crate) fn missing(&self) -> String {
        let of_end = |(number, (end, progress)): (usize, (&super::plan::End, &Progress))| {
            format!(
                "end {number} (host {}): {} of {} sends posted, {} completed; {} of {} receives posted, {} completed",
                end.host,
                progress.posted,
                end.ops.len(),
                progress.retired,
                progress.posted_recvs,
                end.recvs.len(),
                progress.recv_done_nanos.len()
            )
        };
        let ends = self.plan.ends.iter().zip(&self.progress).enumerate();
        ends.map(of_end).collect::<Vec<_>>().join("\n")
    }

    /// Takes in a completion that host `host` polled.
    pub(crate) fn on_cqe(&mut self, host: usize, cqe: &Cqe, now_nanos: u64) -> Verdict {
        let end = ((cqe.wr_id & !RECV_BIT) >> 32) as usize;
        ensure!(end < self.plan.ends.len(), "a completion of nothing that was posted: {cqe:?}");
        ensure!(self.plan.ends[end].host == host, "end {end} completed on another host's queue: {cqe:?}");
        ensure!(self.handles[end].qpn == cqe.qpn, "a completion names the wrong queue pair: {cqe:?}");
        self.is_exhausted |= cqe.status == WcStatus::RetryExcErr;
        if self.is_exhausted {
            return Ok(());
        }
        ensure!(cqe.status == WcStatus::Success, "end {end}: {cqe:?}");
        self.completed += 1;
        if cqe.wr_id & RECV_BIT != 0 { self.on_received(end, cqe, now_nanos) } else { self.on_sent(end, cqe) }
    }

    fn on_received(&mut self, end: usize, cqe: &Cqe, now_nanos: u64) -> Verdict {
        let number = self.progress[end].recv_done_nanos.len();
        let name = || format!("receive {number} of end {end}");
        ensure!(cqe.wr_id == RECV_BIT | wr_id(end, number), "expected {}, got {cqe:?}", name());
        ensure!(number < self.progress[end].posted_recvs, "{} completed before it was posted", name());
        let host = self.plan.ends[end].host;
        let recv = &self.plan.ends[end].recvs[number];
        let op = &self.plan.ends[end ^ 1].ops[recv.op];
        ensure!(
            recv.op < self.progress[end ^ 1].posted,
            "{} completed before its message was posted",
            name()
        );
        let with_imm = matches!(op.plan.kind, Kind::SendWithImm | Kind::WriteWithImm);
        let is_write = op.plan.kind == Kind::WriteWithImm;
        let opcode = if is_write { WcOpcode::RecvRdmaWithImm } else { WcOpcode::Recv };
        ensure!(cqe.opcode == opcode, "{} is {opcode:?}: {cqe:?}", name());
        ensure!(cqe.len_bytes as usize == op.len, "{} has {} bytes: {cqe:?}", name(), op.len);
        ensure!(cqe.imm == with_imm.then_some(op.imm), "{} has immediate {:#x}: {cqe:?}", name(), op.imm);
        let mirrors = &mut self.mirrors[host];
        if !is_write {
            mirrors.local.set_copy(&recv.local, &op.content);
        } else if op.plan.place != Place::Hot {
            mirrors.remote.set_copy(&[op.remote], &op.content);
            mirrors.remote.compare(&[op.remote], name)?;
            mirrors.remote.scribble(&[op.remote], &mut self.rng);
        }
        mirrors.local.compare(&recv.local, name)?;
        mirrors.local.scribble(&recv.local, &mut self.rng);
        self.progress[end ^ 1].received[recv.op] = true;
        self.progress[end].recv_done_nanos.push(now_nanos);
        Ok(())
    }

    fn on_sent(&mut self, end: usize, cqe: &Cqe) -> Verdict {
        let number = (cqe.wr_id & 0xFFFF_FFFF) as usize;
        let retired = self.progress[end].retired;
        let posted = self.progress[end].posted;
        ensure!((retired..posted).contains(&number), "end {end}: of {retired}..{posted} completed {cqe:?}");
        for before in retired..=number {
            let op = &self.plan.ends[end].ops[before];
            let is_this = before == number;
            ensure!(op.plan.signaled == is_this, "end {end}: send {before} was due before {cqe:?}");
            self.check_done(end, before)?;
        }
        let op = &self.plan.ends[end].ops[number];
        let opcode = match op.plan.kind {
            Kind::Send | Kind::SendWithImm => WcOpcode::Send,
            Kind::Write | Kind::WriteWithImm => WcOpcode::RdmaWrite,
            Kind::Read => WcOpcode::RdmaRead,
        };
        ensure!(cqe.opcode == opcode, "end {end}: send {number} is {opcode:?}: {cqe:?}");
        ensure!(
            op.plan.kind != Kind::Read || cqe.len_bytes as usize == op.len,
            "{} bytes read: {cqe:?}",
            op.len
        );
        self.progress[end].retired = number + 1;
        Ok(())
    }

    /// Checks that work request `number` of `end` has had its effect, now that it has completed.
    fn check_done(&mut self, end: usize, number: usize) -> Verdict {
        let name = || format!("send {number} of end {end}");
        let (host, peer) = (self.plan.ends[end].host, self.plan.ends[end ^ 1].host);
        let op = &self.plan.ends[end].ops[number];
        let is_own = op.plan.place != Place::Hot;
        match op.plan.kind {
            Kind::Send | Kind::SendWithImm | Kind::WriteWithImm => {
                ensure!(self.progress[end].received[number], "{} completed before the peer had it", name());
            }
            Kind::Write if is_own => {
                let remote = &mut self.mirrors[peer].remote;
                remote.set_copy(&[op.remote], &op.content);
                remote.compare(&[op.remote], name)?;
                remote.scribble(&[op.remote], &mut self.rng);
            }
            Kind::Write => {}
            Kind::Read => {
                let local = &mut self.mirrors[host].local;
                local.set_copy(&op.local, &op.content);
                local.compare(&op.local, name)?;
                if is_own {
                    self.mirrors[peer].remote.scribble(&[op.remote], &mut self.rng);
                }
            }
        }
        if !op.is_relayed {
            self.mirrors[host].local.scribble(&op.local, &mut self.rng);
        }
        Ok(())
    }

    /// Posts what can be posted now. Calls `kick` for each host that has news; returns when there
    /// is more to post.
    pub(crate) fn post(&mut self, now_nanos: u64, mut kick: impl FnMut(usize)) -> Verdict<Option<u64>> {
        let mut wake_nanos = None;
        for end in 0..self.plan.ends.len() {
            for due in [self.post_recvs(end, now_nanos)?, self.post_sends(end, now_nanos, &mut kick)?] {
                wake_nanos = [wake_nanos, due].into_iter().flatten().min();
            }
        }
        Ok(wake_nanos)
    }

    fn post_recvs(&mut self, end: usize, now_nanos: u64) -> Verdict<Option<u64>> {
        let (plan, progress) = (&self.plan.ends[end], &mut self.progress[end]);
        let local = &self.mirrors[plan.host].local;
        while progress.posted_recvs < plan.recvs.len() {
            let number = progress.posted_recvs;
            let room_nanos = match number.checked_sub(plan.plan.rq_depth as usize) {
                None => 0,
                Some(before) => match progress.recv_done_nanos.get(before) {
                    Some(nanos) => *nanos,
                    None => return Ok(None),
                },
            };
            let due_nanos = room_nanos + plan.plan.recv_delay_nanos;
            if due_nanos > now_nanos {
                return Ok(Some(due_nanos));
            }
            let sges = sges(&plan.recvs[number].local, local.base, local.lkey);
            let request = RecvRequest { wr_id: RECV_BIT | wr_id(end, number), sges: &sges };
            let posted = self.handles[end].recv.post(&request);
            ensure!(posted.is_ok(), "end {end}: receive {number} was not posted: {posted:?}");
            progress.posted_recvs += 1;
        }
        Ok(None)
    }

    fn post_sends(
        &mut self,
        end: usize,
        now_nanos: u64,
        kick: &mut impl FnMut(usize),
    ) -> Verdict<Option<u64>> {
        while let Some(op) = self.plan.ends[end].ops.get(self.progress[end].posted) {
            let plan = &self.plan.ends[end];
            if self.progress[end].ready_nanos > now_nanos {
                return Ok(Some(self.progress[end].ready_nanos));
            }
            let number = self.progress[end].posted;
            let (remote, local) =
                (&self.mirrors[self.plan.ends[end ^ 1].host].remote, &self.mirrors[plan.host].local);
            let (remote_addr, rkey, imm) = (remote.base + op.remote.offset as u64, remote.rkey, op.imm);
            let kind = match op.plan.kind {
                Kind::Send => SendOp::Send,
                Kind::SendWithImm => SendOp::SendWithImm { imm },
                Kind::Write => SendOp::Write { remote_addr, rkey },
                Kind::WriteWithImm => SendOp::WriteWithImm { remote_addr, rkey, imm },
                Kind::Read => SendOp::Read { remote_addr, rkey },
            };
            let sges = sges(&op.local, local.base, local.lkey);
            let data = if op.plan.inline { SendData::Inline(&op.content) } else { SendData::Sges(&sges) };
            let OpPlan { signaled, solicited, fence, .. } = op.plan;
            let flags = SendFlags { signaled, solicited, fence };
            let posted = self.handles[end].send.post(&SendRequest {
                wr_id: wr_id(end, number),
                op: kind,
                flags,
                data,
            });
            if posted.is_err() {
                let outstanding = number - self.progress[end].retired;
                let is_full = outstanding >= plan.plan.sq_depth as usize;
                ensure!(
                    is_full,
                    "end {end}: send {number} was not posted, {outstanding} outstanding: {posted:?}"
                );
                return Ok(None);
            }
            if op.plan.inline {
                self.mirrors[plan.host].local.scribble(&op.local, &mut self.rng);
            }
            kick(plan.host);
            self.progress[end].posted += 1;
            let next = self.plan.ends[end].ops.get(number + 1);
            self.progress[end].ready_nanos = now_nanos + next.map_or(0, |op| op.plan.pause_nanos);
        }
        Ok(None)
    }

    /// What the engines' counters must say of messages, over all hosts; `read_requests` is the number of requests by
    /// which an end requests a READ of so many bytes.
    pub(crate) fn expected_counters(&self, read_requests: impl Fn(usize, usize) -> u64) -> QpCounters {
        let mut expected = QpCounters::default();
        let ops = self.plan.ends.iter().enumerate();
        for (end, op) in ops.flat_map(|(number, end)| end.ops.iter().map(move |op| (number, op))) {
            let kind = op.plan.kind;
            let is_read = kind == Kind::Read;
            expected.rdma_sends += u64::from(!is_read);
            expected.rdma_recvs += u64::from(kind.consumes_receive());
            expected.rx_write_requests += u64::from(matches!(kind, Kind::Write | Kind::WriteWithImm));
            expected.rx_read_requests += if is_read { read_requests(end, op.len) } else { 0 };
            expected.rcvd_bytes += op.len as u64;
        }
        expected
    }

    /// Compares every byte of every memory, at the end of a run.
    pub(crate) fn compare_all(&mut self) -> Verdict {
        for (number, end) in self.plan.ends.iter().enumerate() {
            let remote = &mut self.mirrors[self.plan.ends[number ^ 1].host].remote;
            let writes =
                end.ops.iter().filter(|op| op.plan.place == Place::Hot && op.plan.kind != Kind::Read);
            writes.for_each(|op| remote.set_copy(&[op.remote], &op.content));
            remote.compare(&[end.hot], || format!("the shared range of end {number}"))?;
        }
        for (host, mirrors) in self.mirrors.iter().enumerate() {
            mirrors.local.compare_all(&format!("local memory of host {host} at the end"))?;
            mirrors.remote.compare_all(&format!("remote memory of host {host} at the end"))?;
        }
        Ok(())
    }
}
