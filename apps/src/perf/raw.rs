//! The limit program: the rate of a port if the payload is copied from and to application memory and the ICRC
//! is computed and checked, but without a transport; or, bare, the rate of the port alone.

use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, anyhow, bail};
use roce::id::{Gid, Mac, PKey, Qpn};
use roce::mem::Memory;
use roce::port::Port;
use roce::psn::Psn;
use roce::wire::{HeaderSpec, HeaderTemplate, Opcode, Packet, PacketSpec, PrecedingReads};
use serde_json::json;
use verbs::port::{DpdkPort, Opened};
use verbs::{DeviceOptions, QpnPrefix};

use super::affinity::pin;
use super::args::{RawArgs, USAGE};
use super::control::{Control, Message, unexpected};
use super::message::RawHello;
use super::params::{Extent, Measure};
use super::report::{LINE, LatRow, RawRow, Row};
use crate::exchange::Stall;
use crate::exchange::limits::quote;

/// Frames of a burst, sent or received.
const BURST_FRAMES: usize = 32;
/// Bursts between two looks at the clock.
const CLOCK_INTERVAL: u32 = 64;
/// The application's buffer: that of a 64 KiB message.
const MEMORY_BYTES: usize = 65_536;
/// Time limit of the link, and of a frame to return.
const PATIENCE: Duration = Duration::from_secs(10);
const FRAME_PATIENCE: Duration = Duration::from_secs(1);
/// Polls of the port between two reads of the clock, while a frame is waited for.
const LOOKS_PER_CLOCK: u32 = 4096;
/// Destination of the frames, which is no queue pair. Has the QPN prefix 0 of 6 bits, with which the port is opened.
const DEST_QP: Qpn = Qpn::new(0x11);
const UDP_SOURCE_PORT: u16 = 0xC000;

type Frames = Vec<<DpdkPort as Port>::Frame>;

/// An end of the limit program.
struct Raw<'a> {
    args: &'a RawArgs,
    opened: Opened,
    control: Control,
    template: HeaderTemplate,
    memory: Memory,
    frames: Frames,
    psn: Psn,
    frame_bytes: usize,
}

/// Runs one end.
pub(super) fn run(args: &RawArgs) -> anyhow::Result<ExitCode> {
    if args.device.options.touch_frames() {
        eprintln!(
            "roce perf raw: the limit program takes no faults, no --events and no --pcap: it is for speed alone"
        );
        return Ok(ExitCode::from(USAGE));
    }
    let mut raw = Raw::open(args)?;
    let result = raw.measure();
    let row = result.map_err(|error| raw.control.give_up(error))?;
    raw.control.barrier()?;
    raw.print(&row)?;
    Ok(ExitCode::SUCCESS)
}

impl<'a> Raw<'a> {
    fn open(args: &'a RawArgs) -> anyhow::Result<Self> {
        let port = &args.device.port;
        let prefix = QpnPrefix::new(0, 6).context("a prefix of 6 bits")?;
        let mut opened = verbs::port::open(port, &DeviceOptions::default().eal, prefix)
            .with_context(|| format!("cannot open port {port}"))?;
        if let Some(cpu) = args.peer.cpu {
            pin(cpu)?;
        }
        let caps = opened.port.caps();
        let waiting = || {
            if !args.peer.json {
                println!("Waiting for client to connect...");
            }
        };
        let own = RawHello::new(caps.mac, job(args));
        let hello = Message::RawHello(own.clone());
        let (control, peer) = Control::open(&args.peer, &hello, waiting, |message, _| settle(&own, message))?;
        let template = HeaderTemplate::new(&HeaderSpec {
            src_mac: caps.mac,
            dst_mac: peer,
            vlan: None,
            src: Gid::from(caps.mac.link_local()),
            dst: Gid::from(peer.link_local()),
            tclass: 0,
            ttl: 64,
            flow_label: 0,
            udp_source_port: UDP_SOURCE_PORT,
            pkey: PKey::DEFAULT,
            dest_qp: DEST_QP,
        })?;
        let frame_bytes = template.frame_len(0, args.size as usize);
        if frame_bytes > caps.frame_bytes_max() {
            bail!(
                "-s {}: the port's MTU of {} bytes leaves no room for so long a payload",
                args.size,
                caps.mtu_bytes
            );
        }
        wait_link(&mut opened)?;
        let memory = Memory::alloc(MEMORY_BYTES);
        let frames = Vec::with_capacity(BURST_FRAMES);
        Ok(Raw { args, opened, control, template, memory, frames, psn: Psn::new(0), frame_bytes })
    }

    fn measure(&mut self) -> anyhow::Result<Row> {
        self.control.barrier()?;
        match (self.args.lat, self.args.peer.host.is_some()) {
            (false, true) => self.flood(),
            (false, false) => self.drain(),
            (true, true) => self.ping(),
            (true, false) => self.echo(),
        }
    }

    /// Returns the offset of the next frame's payload: the buffer is used in a cycle.
    fn next_offset(&self, offset: usize) -> usize {
        let next = offset + self.args.size as usize;
        if next + self.args.size as usize > MEMORY_BYTES { 0 } else { next }
    }

    /// Queues one frame with the payload at `offset`. False if the port is full.
    #[inline]
    fn queue_frame(&mut self, offset: usize) -> bool {
        let Some(frame) = self.opened.port.tx_reserve(self.frame_bytes) else { return false };
        let len = self.args.size as usize;
        let spec = PacketSpec {
            opcode: Opcode::RC_SEND_MIDDLE,
            solicited: false,
            ack_req: false,
            preceding_reads: PrecedingReads::NONE,
            fecn: false,
            becn: false,
            psn: self.psn,
            ip_id: 0,
            payload_len: len,
        };
        self.psn = self.psn.plus(1);
        let parts = self.template.write(frame, &spec);
        if self.args.bare {
            return true;
        }
        if let (Some(parts), Some(span)) = (parts, self.memory.span(offset, len)) {
            span.copy_to(parts.payload).expect("memory of this process");
        }
        self.template.seal(frame).is_some()
    }

    /// Receives a burst, checks each frame's ICRC and copies its payload. Returns the number of correct
    /// frames.
    #[inline]
    fn take_frames(&mut self, offset: &mut usize) -> u64 {
        let count = self.opened.port.rx_burst(&mut self.frames, BURST_FRAMES);
        if self.args.bare {
            self.opened.port.free_frames(&mut self.frames);
            return count as u64;
        }
        let mut good = 0;
        let mut at = *offset;
        for frame in &self.frames {
            let Ok(packet) = Packet::parse(frame.as_ref()) else { continue };
            if packet.bth.dest_qp != DEST_QP || !packet.icrc_ok() {
                continue;
            }
            if let Some(span) = self.memory.span(at, packet.payload.len()) {
                span.copy_from(packet.payload).expect("memory of this process");
            }
            at = self.next_offset(at);
            good += 1;
        }
        *offset = at;
        self.opened.port.free_frames(&mut self.frames);
        good
    }

    /// Runs the client: sends as many frames as the port takes.
    fn flood(&mut self) -> anyhow::Result<Row> {
        let start = Instant::now();
        let (mut offset, mut rounds, mut queued) = (0, 0_u32, 0_u64);
        loop {
            for _ in 0..BURST_FRAMES {
                if !self.queue_frame(offset) {
                    break;
                }
                queued += 1;
                offset = self.next_offset(offset);
            }
            self.opened.port.tx_flush();
            rounds = rounds.wrapping_add(1);
            if rounds.is_multiple_of(CLOCK_INTERVAL) && start.elapsed() >= self.args.duration {
                break;
            }
        }
        let row = Row::Raw(RawRow { bytes: self.args.size, frames: queued, ..RawRow::default() });
        self.control.send(&Message::Done { sent: vec![queued], row })?;
        match self.control.recv()? {
            Message::Done { row, .. } => Ok(row),
            other => Err(unexpected(&other)),
        }
    }

    /// Runs the server: counts the frames received, from the first to the last.
    fn drain(&mut self) -> anyhow::Result<Row> {
        let (mut offset, mut frames, mut looks) = (0, 0_u64, 0_u32);
        let mut stall = Stall::new(self.control.timeout(), Instant::now());
        let mut first: Option<Instant> = None;
        let mut last = Instant::now();
        let sent = loop {
            let good = self.take_frames(&mut offset);
            if good > 0 {
                last = Instant::now();
                // Because the first burst has arrived before the time begins.
                if first.is_none() {
                    first = Some(last)
                } else {
                    frames += good
                }
                continue;
            }
            looks = looks.wrapping_add(1);
            if looks.is_multiple_of(CLOCK_INTERVAL) {
                match self.control.try_recv()? {
                    None if stall.is_over(Instant::now(), || frames) => return Err(stall.error()),
                    None => {}
                    Some(Message::Done { sent, .. }) => break sent,
                    Some(other) => return Err(unexpected(&other)),
                }
            }
        };
        let first = first.ok_or_else(|| anyhow!("no frame has come: does the port reach the peer's?"))?;
        let row = Row::Raw(RawRow {
            bytes: self.args.size,
            frame_bytes: self.frame_bytes as u32,
            frames,
            sent: sent.iter().sum(),
            per_sec: frames as f64 / (last - first).as_secs_f64(),
        });
        self.control.send(&Message::Done { sent, row })?;
        Ok(row)
    }

    /// Runs the client of the latency test.
    fn ping(&mut self) -> anyhow::Result<Row> {
        let mut nanos = Vec::with_capacity(self.args.iters as usize);
        let mut before = Instant::now();
        for _ in 0..self.args.iters {
            self.queue_frame(0);
            self.opened.port.tx_flush();
            let mut looks = 0_u32;
            while self.take_frames(&mut 0) == 0 {
                looks = looks.wrapping_add(1);
                if looks.is_multiple_of(LOOKS_PER_CLOCK) && before.elapsed() > FRAME_PATIENCE {
                    bail!("a frame did not come back: does the port reach the peer's?");
                }
            }
            let now = Instant::now();
            nanos.push((now - before).as_nanos() as u64);
            before = now;
        }
        let row = LatRow::of(self.args.size, &mut nanos, 2.0).map(Row::Lat);
        let row = row.ok_or_else(|| anyhow!("no round trips"))?;
        self.control.send(&Message::Done { sent: vec![self.args.iters], row })?;
        Ok(row)
    }

    /// Runs the server of the latency test: sends a frame for each one received.
    fn echo(&mut self) -> anyhow::Result<Row> {
        let (mut frames, mut looks) = (0_u64, 0_u32);
        let mut stall = Stall::new(self.control.timeout(), Instant::now());
        loop {
            if self.take_frames(&mut 0) > 0 {
                frames += 1;
                self.queue_frame(0);
                self.opened.port.tx_flush();
                continue;
            }
            looks = looks.wrapping_add(1);
            if looks.is_multiple_of(LOOKS_PER_CLOCK) {
                match self.control.try_recv()? {
                    None if stall.is_over(Instant::now(), || frames) => return Err(stall.error()),
                    None => {}
                    Some(Message::Done { row, .. }) => return Ok(row),
                    Some(other) => return Err(unexpected(&other)),
                }
            }
        }
    }

    fn print(&self, row: &Row) -> anyhow::Result<()> {
        let port = &self.args.device.port;
        if self.args.peer.json {
            let role = if self.args.peer.host.is_some() { "client" } else { "server" };
            let value = json!({
                "test": if self.args.lat { "raw-lat" } else { "raw" },
                "role": role,
                "version": env!("CARGO_PKG_VERSION"),
                "port": port.to_string(),
                "bare": self.args.bare,
                "results": [row.json()],
            });
            println!("{}", serde_json::to_string_pretty(&value)?);
            return Ok(());
        }
        let what = if self.args.bare { "Bare Port" } else { "Copy and ICRC" };
        println!("{LINE}\n                    {what}, {port}\n{LINE}");
        let header = match row {
            Row::Lat(_) => Row::header(Measure::Lat, Extent::Iters(0), true),
            _ => RawRow::HEADER,
        };
        println!("{header}\n{}\n{LINE}", row.line(true));
        Ok(())
    }
}

/// Returns the values that must be equal at both ends.
fn job(args: &RawArgs) -> String {
    let bare = if args.bare { " --bare" } else { "" };
    let lat = if args.lat { " --lat" } else { "" };
    format!("-s {}{bare}{lat}", args.size)
}

/// Returns the MAC of the peer that sent `message`.
fn settle(own: &RawHello, message: Message) -> anyhow::Result<Mac> {
    let peer = match message {
        Message::RawHello(peer) => peer,
        Message::Hello(hello) => bail!("the peer runs `roce perf {}`, and this end raw", hello.offer.test),
        other => return Err(unexpected(&other)),
    };
    if peer.job != own.job {
        let theirs = quote(&peer.job);
        bail!("this end was started with `{}` and the peer with `{theirs}`: give both the same", own.job);
    }
    peer.mac()
        .filter(|mac| Some(*mac) != own.mac())
        .ok_or_else(|| anyhow!("the peer has no Ethernet address of its own"))
}

fn wait_link(opened: &mut Opened) -> anyhow::Result<()> {
    const POLL_INTERVAL: Duration = Duration::from_millis(5);
    let start = Instant::now();
    // A restart may be refused until the peer listens.
    while !opened.control.poll_link(&mut opened.port).unwrap_or(false) {
        if start.elapsed() >= PATIENCE {
            bail!("the link is not up after {} s: is the other end of the port running?", PATIENCE.as_secs());
        }
        thread::sleep(POLL_INTERVAL);
    }
    Ok(())
}
