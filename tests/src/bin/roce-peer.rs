//! One end of a connection over this project's verbs, driven by a test: commands come as lines of
//! JSON on stdin, answers leave on stdout (see `tests::protocol`).
//!
//!     roce-peer PORT [drop=CHANCE] [reorder=CHANCE] [corrupt=CHANCE] [seed=N] [pcap=FILE]
//!     roce-peer relay HOST:PORT
//!
//! The second form only carries lines to a peer elsewhere, from within a network namespace that the
//! test itself is not in.

use std::collections::BTreeMap;
use std::error::Error;
use std::io::{self, BufRead, Write};
use std::net::{Ipv6Addr, TcpStream};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use lab::rng::SplitMix;
use roce::port::fault::{FaultConfig, FaultDirection};
use serde::Serialize;
use tests::protocol::{
    Bytes, Command, Completion, Completions, Connect, Done, Load, MrReply, Op, Piece, QpReply, Reply, State,
    Tally, from_hex, to_hex,
};
use verbs::{
    Access, ConnectOptions, Context, Cq, Cqe, DeviceOptions, Endpoint, Gid, Mr, Pd, Psn, Qp, QpOptions, Qpn,
    RecvRequest, SendData, SendFlags, SendOp, SendRequest, Sge, WcOpcode,
};

/// How long the other end of a memif or vhost socket may take to come up.
const LINK_TIMEOUT: Duration = Duration::from_secs(60);
/// Completions that [`Peer::load`] takes from a completion queue at a time.
const LOAD_COMPLETIONS: usize = 64;

type Failure = Box<dyn Error>;

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("roce-peer: {failure}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), Failure> {
    let warnings = tracing_subscriber::fmt().with_ansi(false).with_writer(io::stderr);
    warnings.with_max_level(tracing_subscriber::filter::LevelFilter::WARN).init();
    let args: Vec<String> = std::env::args().skip(1).collect();
    match args.as_slice() {
        [relay, address] if relay == "relay" => carry(address),
        [port, keys @ ..] => serve(port, keys),
        [] => Err("usage: roce-peer PORT [KEY=VALUE]... | roce-peer relay HOST:PORT".into()),
    }
}

fn carry(address: &str) -> Result<(), Failure> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_nodelay(true)?;
    let mut back = stream.try_clone()?;
    std::thread::spawn(move || {
        // Whoever listens sees the end of the stream; there is nothing to add.
        let _ = io::copy(&mut back, &mut io::stdout());
        std::process::exit(0);
    });
    io::copy(&mut io::stdin().lock(), &mut stream)?;
    Ok(())
}

fn device_options(keys: &[String]) -> Result<DeviceOptions, Failure> {
    let mut options = DeviceOptions {
        faults: FaultConfig { direction: FaultDirection::Tx, ..FaultConfig::default() },
        ..DeviceOptions::default()
    };
    for key in keys {
        match key.split_once('=').ok_or_else(|| format!("`{key}` is not KEY=VALUE"))? {
            ("drop", value) => options.faults.drop_probability = value.parse()?,
            ("reorder", value) => options.faults.reorder_probability = value.parse()?,
            ("corrupt", value) => options.faults.corrupt_probability = value.parse()?,
            ("seed", value) => options.faults.seed = value.parse()?,
            ("pcap", value) => options.pcap = Some(value.into()),
            (unknown, _) => return Err(format!("unknown key `{unknown}`").into()),
        }
    }
    Ok(options)
}

fn serve(port: &str, keys: &[String]) -> Result<(), Failure> {
    let context = Context::open(&port.parse()?, &device_options(keys)?)?;
    let pd = context.alloc_pd()?;
    let mut peer = Peer { qps: Vec::new(), mrs: Vec::new(), pd, context };
    let mut out = io::stdout().lock();
    for line in io::stdin().lock().lines() {
        let answer = match serde_json::from_str(&line?) {
            Ok(command) => peer.obey(command),
            Err(error) => Err(error.into()),
        };
        let answer =
            answer.unwrap_or_else(|error| serde_json::json!(Reply::<Done>::Error(error.to_string())));
        writeln!(out, "{answer}")?;
        out.flush()?;
    }
    Ok(())
}

struct Connection {
    qp: Qp,
    cq: Cq,
}

/// Dropped in this order, because a queue pair without its memory would refuse requests of the other peer.
struct Peer {
    /// A destroyed one leaves its place empty.
    qps: Vec<Option<Connection>>,
    mrs: Vec<Mr>,
    pd: Pd,
    context: Context,
}

fn ok<T: Serialize>(reply: T) -> Result<serde_json::Value, Failure> {
    Ok(serde_json::to_value(Reply::Ok(reply))?)
}

impl Peer {
    fn obey(&mut self, command: Command) -> Result<serde_json::Value, Failure> {
        match command {
            Command::Mr { len_bytes, access } => {
                let mr = self.pd.alloc(len_bytes, Access(access))?;
                let reply = MrReply { mr: self.mrs.len(), addr: mr.addr(), rkey: mr.rkey().0 };
                self.mrs.push(mr);
                ok(reply)
            }
            Command::Qp { gid_index, depth } => ok(self.create(gid_index, depth)?),
            Command::Connect(connect) => ok(self.connect(&connect)?),
            Command::Write { mr, offset, hex } => {
                self.mr(mr)?.write(offset, &from_hex(&hex).ok_or("no hexadecimal digits")?)?;
                ok(Done {})
            }
            Command::Read { mr, offset, len_bytes } => {
                let mut bytes = vec![0; len_bytes];
                self.mr(mr)?.read(offset, &mut bytes)?;
                ok(Bytes { hex: to_hex(&bytes) })
            }
            Command::PostRecv { qp, wrs } => {
                for wr in wrs {
                    let sges = self.sges(&wr.pieces)?;
                    self.connection(qp)?.qp.post_recv(&RecvRequest { wr_id: wr.wr_id, sges: &sges })?;
                }
                ok(Done {})
            }
            Command::PostSend { qp, wrs } => {
                for wr in wrs {
                    self.post_send(qp, &wr)?;
                }
                ok(Done {})
            }
            Command::Poll { qp, count, timeout_millis } => {
                ok(self.poll(qp, count, Duration::from_millis(timeout_millis))?)
            }
            Command::Load(load) => ok(self.load(&load)?),
            Command::State { qp } => {
                let (state, _) = self.connection(qp)?.qp.query().ok_or("the queue pair is gone")?;
                ok(State { state: state as u32 })
            }
            Command::Destroy { qp } => {
                self.qps.get_mut(qp).and_then(Option::take).ok_or("no such queue pair")?;
                ok(Done {})
            }
            Command::Counters => {
                let (counters, drops) = self.context.counters();
                ok(counters.iter().chain(drops.iter()).collect::<BTreeMap<&str, u64>>())
            }
        }
    }

    fn mr(&self, mr: usize) -> Result<&Mr, Failure> {
        Ok(self.mrs.get(mr).ok_or("no such memory")?)
    }

    fn connection(&self, qp: usize) -> Result<&Connection, Failure> {
        Ok(self.qps.get(qp).and_then(Option::as_ref).ok_or("no such queue pair")?)
    }

    fn sges(&self, pieces: &[Piece]) -> Result<Vec<Sge>, Failure> {
        pieces.iter().map(|piece| Ok(self.mr(piece.mr)?.sge(piece.offset, piece.len_bytes))).collect()
    }

    fn create(&mut self, gid_index: u8, depth: u32) -> Result<QpReply, Failure> {
        let cq = self.context.create_cq(2 * depth, None)?;
        let qp = self.pd.create_qp(&QpOptions {
            max_send_wr: depth,
            max_recv_wr: depth,
            max_send_sge: 4,
            max_recv_sge: 4,
            ..QpOptions::new(&cq)
        })?;
        let end = qp.endpoint(gid_index);
        let number = self.qps.len();
        self.qps.push(Some(Connection { qp, cq }));
        Ok(QpReply { qp: number, qpn: end.qpn.value(), psn: end.psn.value(), gid: Ipv6Addr::from(end.gid.0) })
    }

    fn connect(&self, connect: &Connect) -> Result<Done, Failure> {
        self.context.wait_link(LINK_TIMEOUT)?;
        let peer = Endpoint {
            lid: 0,
            qpn: Qpn::new(connect.peer.qpn),
            psn: Psn::new(connect.peer.psn),
            gid: Gid::from(connect.peer.gid),
        };
        let conn = connect.conn().ok_or("no path MTU")?;
        let options = ConnectOptions { gid_index: connect.gid_index, conn, ..ConnectOptions::default() };
        self.connection(connect.qp)?.qp.connect(&peer, &options)?;
        Ok(Done {})
    }

    fn post_send(&self, qp: usize, wr: &tests::protocol::Send) -> Result<(), Failure> {
        let sges = self.sges(&wr.pieces)?;
        let (remote_addr, rkey, imm) = (wr.remote_addr, verbs::RKey(wr.rkey), wr.imm);
        let op = match wr.op {
            Op::Send => SendOp::Send,
            Op::SendWithImm => SendOp::SendWithImm { imm },
            Op::Write => SendOp::Write { remote_addr, rkey },
            Op::WriteWithImm => SendOp::WriteWithImm { remote_addr, rkey, imm },
            Op::Read => SendOp::Read { remote_addr, rkey },
        };
        let flags = SendFlags { signaled: true, ..SendFlags::default() };
        let request = SendRequest { wr_id: wr.wr_id, op, flags, data: SendData::Sges(&sges) };
        Ok(self.connection(qp)?.qp.post_send(&request)?)
    }

    fn load(&self, load: &Load) -> Result<Vec<Tally>, Failure> {
        let post_end = Instant::now() + Duration::from_millis(load.post_millis);
        let wait_end = post_end + Duration::from_millis(load.wait_millis);
        let mut rng = SplitMix::new(load.seed);
        let mut tallies = vec![Tally::default(); load.qps.len()];
        let mut cqes = Vec::new();
        loop {
            let now = Instant::now();
            let mut is_done = true;
            for (qp, tally) in load.qps.iter().zip(&mut tallies) {
                let is_posting = now < post_end && !tally.has_failed();
                if is_posting {
                    self.fill(*qp, load, tally, &mut rng)?;
                }
                self.connection(*qp)?.cq.poll(&mut cqes, LOAD_COMPLETIONS)?;
                for cqe in cqes.drain(..) {
                    let ended =
                        if is_send(cqe.wr_id) { &mut tally.sends_ended } else { &mut tally.recvs_ended };
                    *ended.entry(cqe.status as u32).or_default() += 1;
                }
                let are_recvs_done = !tally.has_failed() || tally.recvs_outstanding() == 0;
                is_done &= !is_posting && tally.sends_outstanding() == 0 && are_recvs_done;
            }
            if is_done || now > wait_end {
                return Ok(tallies);
            }
        }
    }

    /// Posts sends and receives until as many are outstanding as `load` demands. `wr_id`: even of sends, odd of
    /// receives.
    fn fill(&self, qp: usize, load: &Load, tally: &mut Tally, rng: &mut SplitMix) -> Result<(), Failure> {
        let piece = |len_bytes| Piece { mr: load.mr, offset: 0, len_bytes };
        while tally.recvs_outstanding() < load.outstanding {
            let sges = self.sges(&[piece(load.len_bytes)])?;
            self.connection(qp)?.qp.post_recv(&RecvRequest { wr_id: 2 * tally.recvs + 1, sges: &sges })?;
            tally.recvs += 1;
        }
        while tally.sends_outstanding() < load.outstanding {
            let op = *load.ops.get(rng.up_to(load.ops.len() - 1)).ok_or("a load without operations")?;
            let pieces = vec![piece(rng.up_to(load.len_bytes as usize) as u32)];
            let (remote_addr, rkey, imm) = (load.remote_addr, load.rkey, 0);
            let wr_id = 2 * tally.sends;
            self.post_send(qp, &tests::protocol::Send { wr_id, op, imm, remote_addr, rkey, pieces })?;
            tally.sends += 1;
        }
        Ok(())
    }

    fn poll(&self, qp: usize, count: usize, timeout: Duration) -> Result<Completions, Failure> {
        let cq = &self.connection(qp)?.cq;
        let start = Instant::now();
        let mut cqes = Vec::new();
        while cqes.len() < count && start.elapsed() < timeout {
            let missing = count - cqes.len();
            cq.poll(&mut cqes, missing)?;
        }
        Ok(Completions { completions: cqes.iter().map(completion).collect() })
    }
}

/// Whether `wr_id` is of a send of [`Peer::fill`].
fn is_send(wr_id: u64) -> bool {
    wr_id.is_multiple_of(2)
}

fn completion(cqe: &Cqe) -> Completion {
    let opcode = match cqe.opcode {
        WcOpcode::Send => 0,
        WcOpcode::RdmaWrite => 1,
        WcOpcode::RdmaRead => 2,
        WcOpcode::LocalInvalidate => 6,
        WcOpcode::Recv => tests::protocol::WC_RECV,
        WcOpcode::RecvRdmaWithImm => tests::protocol::WC_RECV_RDMA_WITH_IMM,
    };
    Completion { wr_id: cqe.wr_id, status: cqe.status as u32, opcode, len_bytes: cqe.len_bytes, imm: cqe.imm }
}
