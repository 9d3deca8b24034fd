//! Latency: one message is exchanged at a time.

use std::time::{Duration, Instant};

use anyhow::bail;
use verbs::{Cqe, SendData, SendFlags, SendOp, SendRequest};

use super::params::{Extent, Verb};
use super::pattern;
use super::report::{LatRow, LatSpanRow, MEASURING, Row};
use super::session::LatRole;
use super::setup::{Area, Bench, check, send_id, split_id};
use crate::progress::Progress;

/// Polls of the queues between two checks for a message of the peer and of the clock.
const CONTROL_INTERVAL: u32 = 256;
/// Round trips between two updates of the progress bar.
const PROGRESS_INTERVAL: u64 = 4096;

/// Runs one size. Returns this end's figures, or the peer's if this end follows and the peer sends any.
pub(super) fn run(bench: &mut Bench, size: u32) -> anyhow::Result<Option<Row>> {
    let mut ball = Ball::prepare(bench, size)?;
    let goal = match bench.params.extent {
        Extent::Iters(iters) => iters,
        Extent::Secs(secs) => u64::from(secs) * 1000,
    };
    let mut progress = Progress::of(goal, MEASURING);
    bench.begin_run()?;
    let role = bench.session.lat_role();
    if role == LatRole::Follow {
        return follow(bench, &mut ball);
    }
    let row = match bench.params.extent {
        Extent::Iters(iters) => count_rounds(bench, &mut ball, &mut progress, iters)?,
        Extent::Secs(secs) => time_rounds(bench, &mut ball, &mut progress, secs)?,
    };
    bench.session.end_own(&[ball.sent], row)?;
    Ok(Some(row))
}

/// Answers until the peer is done.
fn follow(bench: &mut Bench, ball: &mut Ball) -> anyhow::Result<Option<Row>> {
    loop {
        match ball.wait(bench)? {
            Waited::Came if bench.params.test.verb == Verb::Read => {}
            Waited::Came => ball.throw(bench)?,
            Waited::Over(row) => return Ok(row),
        }
    }
}

/// Returns the ways of a round: a READ is a round trip by itself; otherwise both directions are assumed equal.
fn ways(bench: &Bench) -> f64 {
    if bench.params.test.verb == Verb::Read { 1.0 } else { 2.0 }
}

/// Measures each of `iters` rounds. The first of an end that answers has no beginning that is known.
fn count_rounds(
    bench: &mut Bench,
    ball: &mut Ball,
    progress: &mut Progress,
    iters: u64,
) -> anyhow::Result<Row> {
    let mut nanos = Vec::with_capacity(iters as usize);
    let is_first = bench.session.lat_role() == LatRole::Start;
    let mut before = is_first.then(Instant::now);
    for n in 0..iters {
        if is_first && !bench.local.pause.is_zero() {
            std::thread::sleep(bench.local.pause);
            before = Some(Instant::now());
        }
        if !ball.round(bench)? {
            bail!("the peer has ended the test early: give both ends the same -n");
        }
        let now = Instant::now();
        nanos.extend(before.map(|before| (now - before).as_nanos() as u64));
        before = Some(now);
        if n.is_multiple_of(PROGRESS_INTERVAL) {
            progress.set(n);
        }
    }
    let row = LatRow::of(ball.size, &mut nanos, ways(bench)).map(Row::Lat);
    row.ok_or_else(|| anyhow::anyhow!("there is no round trip to measure: -n must be at least 2"))
}

/// Measures the rounds of so many seconds: at an end that answers, until the peer is done.
fn time_rounds(
    bench: &mut Bench,
    ball: &mut Ball,
    progress: &mut Progress,
    secs: u32,
) -> anyhow::Result<Row> {
    let duration = Duration::from_secs(secs.into());
    let answers = bench.session.lat_role() == LatRole::Answer;
    let start = Instant::now();
    while (answers || start.elapsed() < duration) && ball.round(bench)? {
        progress.set(start.elapsed().as_millis() as u64);
    }
    let (elapsed, iterations) = (start.elapsed().as_secs_f64(), ball.received);
    Ok(Row::LatSpan(LatSpanRow {
        bytes: ball.size,
        iterations,
        t_avg_usec: elapsed / iterations.max(1) as f64 * 1e6 / ways(bench),
        tps_average: iterations as f64 / elapsed,
    }))
}

/// Result of a wait.
enum Waited {
    /// The peer's message, or the data of a READ.
    Came,
    /// The peer is done; its figures, if it sends any.
    Over(Option<Row>),
}

/// State of the exchange.
struct Ball {
    size: u32,
    verb: Verb,
    inline: bool,
    verify: bool,
    cq_mod: u64,
    /// Messages sent and received by this end.
    sent: u64,
    received: u64,
    completed: u64,
    /// Offset of the last message received.
    arrived_at: usize,
    scratch: Vec<u8>,
    arrived: Vec<u8>,
}

/// Returns the last byte of message `n`, as `ib_write_lat` writes it. It differs from that of the message before, the
/// first one from fresh memory.
fn mark(n: u64) -> u8 {
    // The low bits of the count.
    n.wrapping_add(1) as u8
}

impl Ball {
    fn prepare(bench: &mut Bench, size: u32) -> anyhow::Result<Self> {
        let verb = bench.params.test.verb;
        let ball = Ball {
            size,
            verb,
            inline: size <= bench.local.inline_bytes && verb != Verb::Read,
            verify: bench.params.verify,
            cq_mod: if verb == Verb::Read { 1 } else { u64::from(bench.local.cq_mod(size)).max(1) },
            sent: 0,
            received: 0,
            completed: 0,
            arrived_at: 0,
            scratch: vec![0; size as usize],
            arrived: vec![0; size as usize],
        };
        if verb == Verb::Send {
            bench.fill_receive_queues()?;
        }
        let Some(lane) = bench.lanes.first() else { bail!("a test needs a queue pair") };
        // The areas are not cleared: without a barrier between sizes the peer's first message may have arrived, and
        // this end's last one be in flight. Because sizes increase, the last byte is 0 and in no earlier message.
        if ball.verify && verb == Verb::Read {
            let mut contents = vec![0; size as usize];
            pattern::fill(&mut contents, 0, 0);
            lane.write(Area::Tx, 0, &contents)?;
        }
        Ok(ball)
    }

    /// Exchanges a message in both directions, or does a READ. Returns false if the peer is done instead.
    fn round(&mut self, bench: &mut Bench) -> anyhow::Result<bool> {
        let starts = bench.session.lat_role() == LatRole::Start;
        if starts {
            self.throw(bench)?;
        }
        if let Waited::Over(_) = self.wait(bench)? {
            return Ok(false);
        }
        if !starts {
            self.throw(bench)?;
        }
        Ok(true)
    }

    /// Sends the next message, or posts the next READ. Waits for the completion if the message is signaled, as perftest
    /// does.
    fn throw(&mut self, bench: &mut Bench) -> anyhow::Result<()> {
        self.post(bench)?;
        let waits = self.verb != Verb::Read && self.sent.is_multiple_of(self.cq_mod);
        while waits && self.completed < self.sent {
            match bench.send_cq.poll_one()? {
                Some(cqe) => self.count(&cqe)?,
                None if bench.local.cq_events => bench.idle()?,
                None => {}
            }
        }
        Ok(())
    }

    /// Counts the messages that the completion of a signaled message completes.
    fn count(&mut self, cqe: &Cqe) -> anyhow::Result<()> {
        check(cqe)?;
        self.completed += self.cq_mod;
        Ok(())
    }

    fn post(&mut self, bench: &Bench) -> anyhow::Result<()> {
        let Some(lane) = bench.lanes.first() else { bail!("a test needs a queue pair") };
        let n = self.sent;
        if self.verb != Verb::Read {
            if self.verify {
                pattern::fill(&mut self.scratch, 0, n);
            }
            self.write_mark(bench, n)?;
        } else if self.verify {
            self.scratch.fill(0);
            lane.write(Area::Rx, 0, &self.scratch)?;
        }
        let area = if self.verb == Verb::Read { Area::Rx } else { Area::Tx };
        let sges = [lane.sge(area, 0, self.size)];
        let op = match self.verb {
            Verb::Send => SendOp::Send,
            Verb::Write => {
                let (remote_addr, rkey) = lane.remote(Area::Rx, 0);
                SendOp::Write { remote_addr, rkey }
            }
            Verb::Read => {
                let (remote_addr, rkey) = lane.remote(Area::Tx, 0);
                SendOp::Read { remote_addr, rkey }
            }
        };
        self.sent += 1;
        let signaled = self.sent.is_multiple_of(self.cq_mod);
        let data = if self.inline { SendData::Inline(&self.scratch) } else { SendData::Sges(&sges) };
        let flags = SendFlags { signaled, ..SendFlags::default() };
        lane.qp.post_send(&SendRequest { wr_id: send_id(0, self.sent), op, flags, data })?;
        Ok(())
    }

    /// Writes the mark at the end of message `n` at its source.
    fn write_mark(&mut self, bench: &Bench, n: u64) -> anyhow::Result<()> {
        let Some(lane) = bench.lanes.first() else { return Ok(()) };
        let Some(last) = self.scratch.last_mut().filter(|_| self.verb == Verb::Write) else {
            return if self.verify { lane.write(Area::Tx, 0, &self.scratch) } else { Ok(()) };
        };
        *last = mark(n);
        match (self.inline, self.verify) {
            (true, _) => Ok(()),
            (false, true) => lane.write(Area::Tx, 0, &self.scratch),
            (false, false) => lane.write(Area::Tx, self.size as usize - 1, &[mark(n)]),
        }
    }

    /// Waits for the peer's message, or the data of a READ.
    fn wait(&mut self, bench: &mut Bench) -> anyhow::Result<Waited> {
        let mut looks = 0_u32;
        loop {
            if self.look(bench)? {
                if self.verify {
                    self.compare(bench)?;
                }
                self.received += 1;
                if self.verb == Verb::Send {
                    self.repost(bench)?;
                }
                return Ok(Waited::Came);
            }
            looks = looks.wrapping_add(1);
            if looks.is_multiple_of(CONTROL_INTERVAL) || bench.local.cq_events {
                if let Some(done) = bench.poll_done()? {
                    return Ok(Waited::Over(done.row));
                }
                bench.idle()?;
            }
        }
    }

    /// Polls the device once. Returns whether the message or the data has arrived.
    fn look(&mut self, bench: &Bench) -> anyhow::Result<bool> {
        let Some(lane) = bench.lanes.first() else { return Ok(false) };
        let waits_for_cqe = match self.verb {
            Verb::Send => &bench.recv_cq,
            Verb::Write => &bench.send_cq,
            Verb::Read if bench.is_client => &bench.send_cq,
            Verb::Read => {
                bench.context.progress()?;
                return Ok(false);
            }
        };
        let cqe = waits_for_cqe.poll_one()?;
        match &cqe {
            Some(cqe) if self.verb == Verb::Write => self.count(cqe)?,
            Some(cqe) => check(cqe)?,
            None => {}
        }
        match self.verb {
            Verb::Send => {
                let Some(cqe) = cqe else { return Ok(false) };
                self.arrived_at = split_id(cqe.wr_id).1 as usize;
                Ok(true)
            }
            Verb::Read => Ok(cqe.is_some()),
            Verb::Write => {
                let mut last = [0];
                lane.read(Area::Rx, self.size as usize - 1, &mut last)?;
                Ok(last == [mark(self.received)])
            }
        }
    }

    /// Reposts the receive.
    fn repost(&self, bench: &Bench) -> anyhow::Result<()> {
        let Some(lane) = bench.lanes.first() else { return Ok(()) };
        lane.post_recv(self.arrived_at, bench.params.size_max(), 0)
    }

    /// Compares the message received with the one sent, because the peer has sent as many as this end
    /// received.
    fn compare(&mut self, bench: &Bench) -> anyhow::Result<()> {
        let Some(lane) = bench.lanes.first() else { return Ok(()) };
        lane.read(Area::Rx, self.arrived_at, &mut self.arrived)?;
        let n = if self.verb == Verb::Read { 0 } else { self.received };
        let mut wanted = vec![0; self.arrived.len()];
        pattern::fill(&mut wanted, 0, n);
        if let Some(last) = wanted.last_mut().filter(|_| self.verb == Verb::Write) {
            *last = mark(n);
        }
        if wanted != self.arrived {
            bail!("message {} is not what was sent", self.received);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::mark;

    #[test]
    fn marks_are_those_of_perftest() {
        assert!((0..1000).all(|n| mark(n) != mark(n + 1)));
        assert_eq!((mark(0), mark(254), mark(255), mark(256)), (1, 255, 0, 1));
    }
}
