//! The ping-pong itself: queue pair, buffer, and the exchange of messages.

use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use verbs::{
    Access, CompChannel, Context, Cq, Cqe, Mr, Notify, Qp, QpOptions, RecvRequest, SendData, SendFlags,
    SendOp, SendRequest, WcStatus,
};

use super::args::PingArgs;
use crate::progress::Progress;

/// IDs of the work requests, and bits of those pending.
const RECV: u64 = 1;
const SEND: u64 = 2;

/// Contents of the buffer, and of the start of each page if contents are compared: the values of
/// ibv_rc_pingpong.
const FILL: u8 = 0x7B;
const PAGE_MARK: u8 = 0;
const PAGE_BYTES: usize = 4096;

/// Polls without a completion between two reads of the clock.
const POLLS_PER_LOOK: u32 = 4096;
/// Exchanges between two reports of progress.
const ITERS_PER_REPORT: u32 = 64;

/// An end of the ping-pong.
pub(super) struct Game {
    // Dropped in this order.
    qp: Qp,
    mr: Mr,
    cq: Cq,
    channel: Option<CompChannel>,
    size_bytes: u32,
    rx_depth: u32,
    receives_posted: u32,
    /// Time without a completion after which the peer is taken for dead.
    stall_timeout: Duration,
}

/// State of the exchange.
#[derive(Default)]
struct Score {
    sent: u32,
    received: u32,
    /// [`RECV`] and [`SEND`] bits of the current exchange that are pending.
    pending: u64,
}

impl Game {
    /// Creates the queue pair and the buffer.
    pub(super) fn set_up(context: &Context, args: &PingArgs) -> anyhow::Result<Self> {
        let channel = args.cq_events.then(|| context.create_comp_channel()).transpose()?;
        let pd = context.alloc_pd()?;
        let size = usize::try_from(args.size)?;
        let mr = pd.alloc(size.max(1), Access::LOCAL_WRITE)?;
        fill(&mr, size, args.chk && args.host.is_some())?;
        let cq = context.create_cq(args.rx_depth.saturating_add(1), channel.as_ref())?;
        if channel.is_some() {
            // Armed before a peer knows of the queue pair, otherwise its first message would give no event.
            cq.request_notify(Notify::Any)?;
        }
        let options = QpOptions {
            max_send_wr: 1,
            max_recv_wr: args.rx_depth,
            max_inline_bytes: 0,
            ..QpOptions::new(&cq)
        };
        let qp = pd.create_qp(&options)?;
        Ok(Game {
            qp,
            mr,
            cq,
            channel,
            size_bytes: args.size,
            rx_depth: args.rx_depth,
            receives_posted: 0,
            stall_timeout: args.exchange.peer_timeout(),
        })
    }

    /// Returns the queue pair.
    pub(super) fn qp(&self) -> &Qp {
        &self.qp
    }

    /// Fills the receive queue up to its depth.
    pub(super) fn post_receives(&mut self) -> anyhow::Result<()> {
        let sge = [self.mr.sge(0, self.size_bytes)];
        while self.receives_posted < self.rx_depth {
            self.qp.post_recv(&RecvRequest { wr_id: RECV, sges: &sge }).context("cannot post a receive")?;
            self.receives_posted += 1;
        }
        Ok(())
    }

    fn post_send(&self) -> anyhow::Result<()> {
        let sge = [self.mr.sge(0, self.size_bytes)];
        let flags = SendFlags { signaled: true, ..SendFlags::default() };
        let request = SendRequest { wr_id: SEND, op: SendOp::Send, flags, data: SendData::Sges(&sge) };
        self.qp.post_send(&request).context("cannot post a send")
    }

    /// Exchanges `iters` messages each way; the end with `starts` sends first. Returns the time taken.
    pub(super) fn play(&mut self, starts: bool, iters: u32) -> anyhow::Result<Duration> {
        let mut progress = Progress::of(u64::from(iters), "exchanging messages");
        let mut score = Score { pending: RECV, ..Score::default() };
        let start = Instant::now();
        if starts {
            self.post_send()?;
            score.pending |= SEND;
        }
        let mut completions = Vec::with_capacity(2);
        while score.received < iters || score.sent < iters {
            self.wait(&mut completions, &score)?;
            for cqe in completions.drain(..) {
                self.on_completion(&cqe, iters, &mut score)?;
            }
            if score.received.is_multiple_of(ITERS_PER_REPORT) {
                progress.set(u64::from(score.received));
            }
        }
        Ok(start.elapsed())
    }

    /// Waits for completions, asleep or polling.
    fn wait(&self, completions: &mut Vec<Cqe>, score: &Score) -> anyhow::Result<()> {
        if let Some(channel) = &self.channel {
            if channel.wait(self.stall_timeout)?.is_none() {
                return Err(stalled(score, self.stall_timeout));
            }
            self.cq.request_notify(Notify::Any)?;
            while self.cq.poll(completions, 2)? > 0 {}
            return Ok(());
        }
        let mut idle_since: Option<Instant> = None;
        let mut idle_polls = 0;
        while self.cq.poll(completions, 2)? == 0 {
            idle_polls += 1;
            if idle_polls == POLLS_PER_LOOK {
                idle_polls = 0;
                if idle_since.get_or_insert_with(Instant::now).elapsed() >= self.stall_timeout {
                    return Err(stalled(score, self.stall_timeout));
                }
            }
        }
        Ok(())
    }

    fn on_completion(&mut self, cqe: &Cqe, iters: u32, score: &mut Score) -> anyhow::Result<()> {
        if cqe.status != WcStatus::Success {
            let what = if cqe.wr_id == SEND { "send" } else { "receive" };
            bail!(
                "after {} exchanges a {what} failed: {} (status {}){}",
                score.received,
                cqe.status.text(),
                cqe.status as u8,
                advice(cqe.status)
            );
        }
        if cqe.wr_id == SEND {
            score.sent += 1;
        } else {
            score.received += 1;
            self.receives_posted -= 1;
            if self.receives_posted <= 1 {
                self.post_receives()?;
            }
        }
        score.pending &= !cqe.wr_id;
        if score.sent < iters && score.pending == 0 {
            self.post_send()?;
            score.pending = RECV | SEND;
        }
        Ok(())
    }

    /// Compares the buffer with the contents that the client wrote at the start.
    pub(super) fn check_contents(&self) -> anyhow::Result<()> {
        let size = usize::try_from(self.size_bytes)?;
        let mut page = vec![0; PAGE_BYTES];
        for offset in (0..size).step_by(PAGE_BYTES) {
            let bytes = page.get_mut(..PAGE_BYTES.min(size - offset)).unwrap_or_default();
            self.mr.read(offset, bytes)?;
            let expected = |at: usize| if at == 0 { PAGE_MARK } else { FILL };
            if let Some((at, byte)) = bytes.iter().enumerate().find(|(at, byte)| **byte != expected(*at)) {
                bail!(
                    "invalid data in page {}: byte {} is 0x{byte:02x}, not 0x{:02x}; was the client started with -c too?",
                    offset / PAGE_BYTES,
                    offset + at,
                    expected(at)
                );
            }
        }
        Ok(())
    }
}

/// Returns further information on a failure.
fn advice(status: WcStatus) -> &'static str {
    match status {
        WcStatus::RetryExcErr => {
            ": the peer stopped answering; is it still running, and does -m fit the path between?"
        }
        WcStatus::LocLenErr | WcStatus::RemInvReqErr => ": are -s and -m the same on both ends?",
        _ => "",
    }
}

fn stalled(score: &Score, timeout: Duration) -> anyhow::Error {
    anyhow::anyhow!(
        "after {} exchanges nothing has completed for {} s: is the peer still running, with the same -n?",
        score.received,
        timeout.as_secs()
    )
}

/// Fills the buffer, with a mark at the start of each page if contents will be compared.
fn fill(mr: &Mr, size: usize, marks_pages: bool) -> anyhow::Result<()> {
    let mut page = vec![FILL; PAGE_BYTES];
    if marks_pages && let Some(first) = page.first_mut() {
        *first = PAGE_MARK;
    }
    for offset in (0..size).step_by(PAGE_BYTES) {
        mr.write(offset, page.get(..PAGE_BYTES.min(size - offset)).unwrap_or_default())?;
    }
    Ok(())
}
