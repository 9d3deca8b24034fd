//! Bandwidth: time for messages that are posted without a pause.

use std::time::{Duration, Instant};

use anyhow::bail;
use verbs::{Cqe, SendData, SendFlags, SendOp, SendRequest, Sge};

use super::params::{Connection, Extent, Verb};
use super::pattern;
use super::report::{BwRow, MEASURING, Row, peak_nanos_per_message};
use super::session::Done;
use super::setup::{Area, Bench, PerfQp, check, send_id, split_id};
use super::turns::Turns;
use crate::exchange::Stall;
use crate::progress::Progress;

/// Completions polled at a time.
const CQE_BATCH: usize = 32;
/// Work requests built at a time, of a longer post list.
const POST_BATCH: usize = 32;
/// Polls of the queues between two checks for a message of the peer.
const CONTROL_INTERVAL: u32 = 64;
/// Time without a message after which those of an unreliable connection that have not arrived are lost. On a busy
/// machine, a thread that drives the device may not run for some 100 ms.
const UC_GRACE: Duration = Duration::from_secs(1);
/// Batches of completions between two updates of the progress bar.
const PROGRESS_INTERVAL: u64 = 64;

/// Runs one size: sends, receives, and serves until both ends are done. Returns the figures of this end's
/// requests or of the peer's, or their sum if both sent.
pub(super) fn run(bench: &mut Bench, size: u32) -> anyhow::Result<Option<Row>> {
    let mut receiver = Receiver::prepare(bench, size)?;
    let mut sender = bench.initiates().then(|| Sender::new(bench, size));
    prepare_reads(bench, size)?;
    let mut progress = progress_of(bench);
    bench.begin_run()?;
    let mut own: Option<BwRow> = None;
    let mut peer: Option<Done> = None;
    let mut looks = 0_u32;
    if let Some(sender) = &mut sender {
        sender.start(bench);
    }
    loop {
        let mut worked = false;
        match &mut sender {
            Some(sender) if own.is_none() => {
                worked |= sender.step(bench, &mut progress)?;
                if sender.is_done() {
                    let row = sender.row();
                    bench.turns = sender.turns.as_ref().map_or_else(Vec::new, Turns::rows);
                    own = Some(row);
                    bench.session.end_own(&sender.posted, Row::Bw(row))?;
                }
            }
            // Because the receiving end drives the device by polling its completion queue.
            _ if receiver.is_some() => {}
            _ => bench.context.progress()?,
        }
        if let Some(receiver) = &mut receiver {
            worked |= receiver.step(bench)?;
        }
        let sent_all = sender.is_none() || own.is_some();
        let got_all = match &peer {
            None => !bench.peer_initiates(),
            Some(done) => receiver.as_mut().is_none_or(|r| r.has_all(bench, done, worked)),
        };
        if sent_all && got_all {
            break;
        }
        looks = looks.wrapping_add(1);
        if looks.is_multiple_of(CONTROL_INTERVAL) {
            match &peer {
                None => peer = bench.poll_done()?,
                // A message of the peer belongs to the next run now.
                Some(_) => bench.check_stall()?,
            }
        }
        if !worked {
            bench.idle()?;
        }
    }
    drop(progress);
    if let Some(Done { sent: Some(sent), .. }) = &peer {
        verify_written(bench, size, sent)?;
        bench.lost_messages += receiver.as_ref().map_or(0, |receiver| receiver.lost(sent));
    }
    let received = receiver.map(|receiver| receiver.row());
    let row = match (own, peer.and_then(|peer| peer.row).or(received.map(Row::Bw))) {
        (Some(own), Some(Row::Bw(peer))) => own.plus(peer),
        (Some(own), None) => own,
        (None, Some(Row::Bw(peer))) => peer,
        _ => bail!("the peer measured something else"),
    };
    Ok(Some(Row::Bw(row)))
}

/// Returns the progress bar of a run: in messages, or in milliseconds.
fn progress_of(bench: &Bench) -> Progress {
    let goal = match bench.params.extent {
        Extent::Iters(iters) => iters * u64::from(bench.params.qps),
        Extent::Secs(secs) => u64::from(secs) * 1000,
    };
    Progress::of(goal, MEASURING)
}

/// Times of messages, for the peak rate.
struct Times {
    posted: Vec<u64>,
    completed: Vec<(usize, u64)>,
}

/// Returns the payload in bytes that may be outstanding: the work requests of the send queues, as far as their packets
/// fit in the window of congestion control, or in that of the responder, above a lost packet.
fn outstanding_bytes(bench: &Bench, size: u32) -> u64 {
    let (params, local) = (&bench.params, &bench.local);
    let window_pkts = local.congestion.unwrap_or_default().window_pkts();
    let window_pkts = window_pkts.max(params.recovery.buffered_pkts_max().unwrap_or(0));
    let window_bytes = u64::from(window_pkts) * params.mtu.bytes() as u64;
    let queued_bytes = u64::from(local.tx_depth) * u64::from(size);
    queued_bytes.min(window_bytes) * u64::from(params.qps)
}

/// Returns the payload in bytes of the requests of this end that were sent for the first time, or of the READ responses
/// placed. Each retransmitted packet counts as a message's payload divided by its number of packets.
fn carried_bytes(bench: &Bench, verb: Verb, size: u32) -> u64 {
    let (counters, _) = bench.context.counters();
    if verb == Verb::Read {
        return counters.rcvd_bytes;
    }
    let message_pkts = u64::from(size).div_ceil(bench.params.mtu.bytes() as u64).max(1);
    let repeated_bytes = counters.retransmitted_pkts * u64::from(size) / message_pkts;
    counters.sent_bytes.saturating_sub(repeated_bytes)
}

/// The end that posts requests.
struct Sender {
    size: u32,
    verb: Verb,
    cq_mod: u64,
    depth: u64,
    batch: u64,
    inline: bool,
    verify: bool,
    posted: Vec<u64>,
    completed: Vec<u64>,
    /// Messages per queue pair; `None`: until the time is over.
    count: Option<u64>,
    duration: Option<Duration>,
    /// Set when the time is over: messages completed by then, and the time taken.
    ended: Option<(u64, Duration)>,
    start: Instant,
    last: Duration,
    times: Option<Times>,
    turns: Option<Turns>,
    scratch: Vec<u8>,
    cqes: Vec<Cqe>,
    /// Batches of completions polled.
    batches: u64,
}

impl Sender {
    fn new(bench: &Bench, size: u32) -> Self {
        let (params, local) = (&bench.params, &bench.local);
        let lanes = bench.lanes.len();
        let (count, duration) = match params.extent {
            Extent::Iters(iters) => (Some(iters), None),
            Extent::Secs(secs) => (None, Some(Duration::from_secs(secs.into()))),
        };
        let total = params.total();
        let times = local.peak_of(total).then(|| {
            let capacity = total.unwrap_or(0) as usize;
            Times { posted: Vec::with_capacity(capacity), completed: Vec::with_capacity(capacity) }
        });
        Sender {
            size,
            verb: params.test.verb,
            cq_mod: u64::from(local.cq_mod(size)),
            depth: u64::from(local.tx_depth),
            // Each verified message has contents of its own, written just before it is posted.
            batch: if params.verify { 1 } else { u64::from(local.post_list) },
            inline: size <= local.inline_bytes && params.test.verb != Verb::Read,
            verify: params.verify,
            posted: vec![0; lanes],
            completed: vec![0; lanes],
            count,
            duration,
            ended: None,
            start: Instant::now(),
            last: Duration::ZERO,
            times,
            turns: local.loss_turns.as_ref().map(|turns| Turns::new(turns, outstanding_bytes(bench, size))),
            scratch: vec![0; size as usize],
            cqes: Vec::with_capacity(CQE_BATCH),
            batches: 0,
        }
    }

    fn start(&mut self, bench: &Bench) {
        if let Some(turns) = &self.turns {
            bench.context.set_drop_probability(turns.chance());
        }
        self.start = Instant::now();
    }

    /// Returns how many messages a lane that has posted `posted` is still to post. When the time is over: up
    /// to the next signalled one, because those before it have no completion of their own.
    fn wanted(&self, posted: u64) -> u64 {
        match (self.count, self.ended) {
            (Some(count), _) => count.saturating_sub(posted),
            (None, None) => u64::MAX,
            (None, Some(_)) => posted.next_multiple_of(self.cq_mod) - posted,
        }
    }

    /// Whether every message posted has completed, and no more will be posted.
    fn is_done(&self) -> bool {
        let mut lanes = self.posted.iter().zip(&self.completed);
        lanes.all(|(posted, completed)| posted == completed && self.wanted(*posted) == 0)
    }

    /// Fills the send queues and polls completions. Returns whether there was work.
    fn step(&mut self, bench: &Bench, progress: &mut Progress) -> anyhow::Result<bool> {
        let mut worked = false;
        for (index, lane) in bench.lanes.iter().enumerate() {
            loop {
                let posted = self.posted[index];
                let room = self.depth - (posted - self.completed[index]);
                let batch = self.batch.min(room).min(self.wanted(posted));
                if batch == 0 {
                    break;
                }
                self.post(bench, index, lane, batch)?;
                worked = true;
            }
        }
        let mut cqes = std::mem::take(&mut self.cqes);
        cqes.clear();
        if bench.send_cq.poll(&mut cqes, CQE_BATCH)? > 0 {
            worked = true;
            self.last = self.start.elapsed();
            for cqe in &cqes {
                self.complete(bench, cqe)?;
            }
            let completed = self.completed.iter().sum();
            self.watch_time(completed);
            self.batches += 1;
            if self.batches.is_multiple_of(PROGRESS_INTERVAL) {
                let millis = self.last.as_millis() as u64;
                progress.set(if self.duration.is_some() { millis } else { completed });
            }
        }
        self.cqes = cqes;
        if let Some(turns) = &mut self.turns
            && turns.watch(self.start.elapsed(), || carried_bytes(bench, self.verb, self.size))
        {
            bench.context.set_drop_probability(turns.chance());
        }
        Ok(worked)
    }

    fn watch_time(&mut self, completed: u64) {
        if self.ended.is_none() && self.duration.is_some_and(|duration| self.last >= duration) {
            self.ended = Some((completed, self.last));
        }
    }

    fn complete(&mut self, bench: &Bench, cqe: &Cqe) -> anyhow::Result<()> {
        check(cqe)?;
        let (index, number) = split_id(cqe.wr_id);
        let Some(lane) = bench.lanes.get(index) else { bail!("a completion of no queue pair") };
        let before = std::mem::replace(&mut self.completed[index], number + 1);
        if self.verify && self.verb == Verb::Read {
            for n in before..=number {
                let slot = n % bench.layout.slots;
                verify(lane, bench.layout.offset(n), &mut self.scratch, index, slot)?;
            }
        }
        if let Some(times) = &mut self.times {
            let total: u64 = self.completed.iter().sum();
            times.completed.push((total as usize - 1, self.last.as_nanos() as u64));
        }
        Ok(())
    }

    /// Posts `count` messages of a lane.
    fn post(&mut self, bench: &Bench, index: usize, lane: &PerfQp, count: u64) -> anyhow::Result<()> {
        if let Some(times) = &mut self.times {
            let now = self.start.elapsed().as_nanos() as u64;
            times.posted.extend(std::iter::repeat_n(now, count as usize));
        }
        let mut left = count;
        while left > 0 {
            let first = self.posted[index];
            let batch = left.min(POST_BATCH as u64);
            if self.verify {
                self.prepare(bench, index, lane, first)?;
            }
            // A single request is the common case, and needs no list.
            if batch == 1 {
                let sges = [self.sge(bench, lane, first)];
                lane.qp.post_send(&self.request(bench, index, lane, first, &sges))?;
            } else {
                let sges: [[Sge; 1]; POST_BATCH] =
                    std::array::from_fn(|i| [self.sge(bench, lane, first + i as u64)]);
                let requests: [SendRequest<'_>; POST_BATCH] =
                    std::array::from_fn(|i| self.request(bench, index, lane, first + i as u64, &sges[i]));
                lane.qp.post_sends(requests.get(..batch as usize).unwrap_or_default()).1?;
            }
            self.posted[index] += batch;
            left -= batch;
        }
        Ok(())
    }

    /// Returns the source of message `n`, or its destination in a READ.
    fn sge(&self, bench: &Bench, lane: &PerfQp, n: u64) -> Sge {
        let area = if self.verb == Verb::Read { Area::Rx } else { Area::Tx };
        lane.sge(area, bench.layout.offset(n), self.size)
    }

    fn request<'a>(
        &'a self,
        bench: &Bench,
        index: usize,
        lane: &PerfQp,
        n: u64,
        sges: &'a [Sge],
    ) -> SendRequest<'a> {
        let offset = bench.layout.offset(n);
        let op = match self.verb {
            Verb::Send => SendOp::Send,
            Verb::Write => {
                let (remote_addr, rkey) = lane.remote(Area::Rx, offset);
                SendOp::Write { remote_addr, rkey }
            }
            Verb::Read => {
                let (remote_addr, rkey) = lane.remote(Area::Tx, offset);
                SendOp::Read { remote_addr, rkey }
            }
        };
        let signaled = self.count == Some(n + 1) || (n + 1).is_multiple_of(self.cq_mod);
        let data = if self.inline { SendData::Inline(&self.scratch) } else { SendData::Sges(sges) };
        let flags = SendFlags { signaled, ..SendFlags::default() };
        SendRequest { wr_id: send_id(index, n), op, flags, data }
    }

    /// Writes the contents of message `n`, or clears the memory that it will be read into.
    fn prepare(&mut self, bench: &Bench, index: usize, lane: &PerfQp, n: u64) -> anyhow::Result<()> {
        let offset = bench.layout.offset(n);
        if self.verb == Verb::Read {
            self.scratch.fill(0);
            return lane.write(Area::Rx, offset, &self.scratch);
        }
        pattern::fill(&mut self.scratch, index, n);
        lane.write(Area::Tx, offset, &self.scratch)
    }

    fn row(&self) -> BwRow {
        let all = (self.completed.iter().sum(), self.last);
        let (iterations, elapsed) = self.ended.unwrap_or(all);
        let peak = self.times.as_ref().and_then(|t| peak_nanos_per_message(&t.posted, &t.completed));
        BwRow {
            bytes: self.size,
            iterations,
            peak_per_sec: peak.map_or(0.0, |nanos| 1e9 / nanos),
            average_per_sec: iterations as f64 / elapsed.as_secs_f64(),
        }
    }
}

/// The end that receives SENDs.
struct Receiver {
    size: u32,
    size_max: u32,
    verify: bool,
    received: Vec<u64>,
    /// Times of the first and of the last completion.
    span: Option<(Instant, Instant)>,
    /// Watches the messages of an unreliable connection, from the end of the peer's part on.
    uc_stall: Option<Stall>,
    scratch: Vec<u8>,
    cqes: Vec<Cqe>,
}

impl Receiver {
    /// Fills the receive queues before the first run, if this end has any.
    fn prepare(bench: &mut Bench, size: u32) -> anyhow::Result<Option<Self>> {
        if bench.params.test.verb != Verb::Send || !bench.peer_initiates() {
            return Ok(None);
        }
        bench.fill_receive_queues()?;
        Ok(Some(Receiver {
            size,
            size_max: bench.params.size_max(),
            verify: bench.params.verify,
            received: vec![0; bench.lanes.len()],
            span: None,
            uc_stall: None,
            scratch: vec![0; size as usize],
            cqes: Vec::with_capacity(CQE_BATCH),
        }))
    }

    /// Polls completions and reposts their receives. Returns whether there were any.
    fn step(&mut self, bench: &Bench) -> anyhow::Result<bool> {
        self.cqes.clear();
        if bench.recv_cq.poll(&mut self.cqes, CQE_BATCH)? == 0 {
            return Ok(false);
        }
        let now = Instant::now();
        self.span = Some((self.span.map_or(now, |(first, _)| first), now));
        for cqe in &self.cqes {
            check(cqe)?;
            let (memory, offset) = split_id(cqe.wr_id);
            let (index, offset) = (bench.lane_of(cqe), offset as usize);
            let (Some(lane), Some(received)) = (bench.lanes.get(memory), self.received.get_mut(index)) else {
                bail!("a completion of no queue pair")
            };
            if self.verify {
                if cqe.len_bytes != self.size {
                    bail!("a message of {} bytes came, and {} were sent", cqe.len_bytes, self.size);
                }
                verify(lane, offset, &mut self.scratch, index, *received)?;
            }
            *received += 1;
            lane.post_recv(offset, self.size_max, memory)?;
        }
        Ok(true)
    }

    /// Returns whether no more messages are to be expected of a peer that is done. `worked`: whether the last poll
    /// found a completion.
    fn has_all(&mut self, bench: &Bench, done: &Done, worked: bool) -> bool {
        let is_uc = bench.params.connection == Connection::Uc;
        match &done.sent {
            Some(sent) if self.received == *sent => true,
            _ if is_uc => {
                let now = Instant::now();
                let stall = self.uc_stall.get_or_insert_with(|| Stall::new(UC_GRACE, now));
                stall.is_over(now, || self.received.iter().sum())
            }
            Some(_) => false,
            // The last completion may have arrived since the poll before the peer was done.
            None => !worked,
        }
    }

    /// Returns the number of messages sent that did not arrive.
    fn lost(&self, sent: &[u64]) -> u64 {
        let (sent, received) = (sent.iter().sum::<u64>(), self.received.iter().sum());
        sent.saturating_sub(received)
    }

    /// Returns the figures of the messages received.
    fn row(&self) -> BwRow {
        let iterations = self.received.iter().sum();
        let secs = self.span.map_or(0.0, |(first, last)| (last - first).as_secs_f64());
        let average_per_sec = if secs > 0.0 { iterations as f64 / secs } else { 0.0 };
        BwRow { bytes: self.size, iterations, peak_per_sec: 0.0, average_per_sec }
    }
}

/// Compares the bytes at `offset` with the contents of message `n`.
fn verify(lane: &PerfQp, offset: usize, scratch: &mut [u8], index: usize, n: u64) -> anyhow::Result<()> {
    lane.read(Area::Rx, offset, scratch)?;
    match pattern::first_difference(scratch, index, n) {
        None => Ok(()),
        Some(byte) => {
            bail!("message {n} of queue pair {index} is not what was sent, from byte {byte} on")
        }
    }
}

/// Writes the data that the peer will read, if the peer compares it.
fn prepare_reads(bench: &Bench, size: u32) -> anyhow::Result<()> {
    let params = &bench.params;
    if !params.verify || params.test.verb != Verb::Read || !bench.peer_initiates() {
        return Ok(());
    }
    let mut contents = vec![0; size as usize];
    for (index, lane) in bench.lanes.iter().enumerate() {
        for slot in 0..bench.layout.slots {
            pattern::fill(&mut contents, index, slot);
            lane.write(Area::Tx, bench.layout.offset(slot), &contents)?;
        }
    }
    Ok(())
}

/// Compares the peer's WRITEs: the last message of each slot. An earlier one cannot be missing, because
/// WRITEs are executed in order.
fn verify_written(bench: &Bench, size: u32, sent: &[u64]) -> anyhow::Result<()> {
    if !bench.params.verify || bench.params.test.verb != Verb::Write {
        return Ok(());
    }
    let mut scratch = vec![0; size as usize];
    for (index, (lane, sent)) in bench.lanes.iter().zip(sent).enumerate() {
        for n in sent.saturating_sub(bench.layout.slots)..*sent {
            verify(lane, bench.layout.offset(n), &mut scratch, index, n)?;
        }
    }
    Ok(())
}
