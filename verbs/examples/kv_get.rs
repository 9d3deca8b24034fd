//! A key-value store whose server executes no lookups: clients look up keys in the server's memory by RDMA READ.
//!   cargo run -p verbs --example kv_get -- --port memif:kv                   (the server)
//!   cargo run -p verbs --example kv_get -- --port memif:kv localhost pear    (a client that looks up `pear`)
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

use verbs::{Access, ConnectOptions, Context, Cq, DeviceOptions, Endpoint, Pd, Qp, QpOptions, RKey};
use verbs::{SendData, SendFlags, SendOp, SendRequest, WcStatus};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

const SLOTS: u64 = 1024;
const SLOT_BYTES: usize = 64;
const TCP_PORT: u16 = 18516;
/// Limits on the peer: length of a line in bytes, timeout of a line, and number of clients at a time.
const LINE_BYTES_MAX: u64 = 256;
const PEER_TIMEOUT: Duration = Duration::from_secs(5);
const CLIENTS_MAX: usize = 16;

/// Returns the byte offsets of slots that may contain `key`: first the slot of the hash of `key`, then the following
/// slots. A slot contains `key NUL value NUL`; a free slot begins with NUL.
fn offsets(key: &str) -> impl Iterator<Item = u64> {
    let hash = key.bytes().fold(5381u64, |hash, byte| hash.wrapping_mul(33) ^ u64::from(byte));
    (0..SLOTS).map(move |probe| hash.wrapping_add(probe) % SLOTS * SLOT_BYTES as u64)
}

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let (port, client) = match &args[..] {
        [option, port] if option == "--port" => (port, None),
        [option, port, host, key] if option == "--port" => (port, Some((host, key))),
        _ => return Err("usage: kv_get --port PORT [HOST KEY]".into()),
    };
    let context = Context::open(&port.parse()?, &DeviceOptions::default())?;
    let (pd, cq) = (context.alloc_pd()?, context.create_cq(16, None)?);
    match client {
        None => serve(&context, &pd, &cq),
        Some((host, key)) => get(&context, &pd, &cq, host, key),
    }
}

fn serve(context: &Context, pd: &Pd, cq: &Cq) -> Result<()> {
    let table = pd.alloc(SLOTS as usize * SLOT_BYTES, Access::REMOTE_READ)?;
    for (key, value) in [("apple", "red"), ("pear", "green"), ("plum", "blue")] {
        let mut slot = [1];
        let free = offsets(key).find(|at| table.read(*at as usize, &mut slot).is_ok() && slot == [0]);
        let at = free.ok_or("the table is full")? as usize;
        table.write(at, format!("{key}\0{value}\0").as_bytes())?;
    }
    let listener = TcpListener::bind(("0.0.0.0", TCP_PORT))?;
    let accept = || -> Result<()> {
        let mut stream = limit(listener.accept()?.0)?;
        let qp = pd.create_qp(&QpOptions::new(cq))?;
        connect(context, &qp, &mut stream, &format!("{} {}", table.addr(), table.rkey().0))?;
        // The responder now executes the client's READs. This thread waits until the client disconnects, for at most
        // `PEER_TIMEOUT`.
        read_line(&mut stream).map(drop)
    };
    let worker = || loop {
        accept().unwrap_or_else(|error| eprintln!("kv_get: a client: {error}"));
    };
    std::thread::scope(|scope| (0..CLIENTS_MAX).for_each(|_| drop(scope.spawn(worker))));
    Ok(())
}

fn limit(stream: TcpStream) -> Result<BufReader<TcpStream>> {
    stream.set_read_timeout(Some(PEER_TIMEOUT))?;
    Ok(BufReader::new(stream))
}

/// Returns the peer's next line; an empty line if the peer has disconnected.
fn read_line(stream: &mut BufReader<TcpStream>) -> Result<String> {
    let mut line = String::new();
    if stream.take(LINE_BYTES_MAX).read_line(&mut line)? > 0 && line.pop() != Some('\n') {
        return Err("the peer's line has no end".into());
    }
    Ok(line)
}

/// Exchanges endpoints with the peer over `stream`, and connects `qp`. Sends the text `more`, and returns the text that
/// the peer sent.
fn connect(context: &Context, qp: &Qp, stream: &mut BufReader<TcpStream>, more: &str) -> Result<String> {
    // GID 0 is the port's link-local address. GID 1, if present, is the port's first IP address.
    let gid_index = u8::from(context.gid(1).is_some());
    writeln!(stream.get_mut(), "{} {more}", qp.endpoint(gid_index))?;
    let line = read_line(stream)?;
    let (peer, more) = line.split_once(' ').ok_or("the peer did not say who it is")?;
    qp.connect(&peer.parse::<Endpoint>()?, &ConnectOptions { gid_index, ..ConnectOptions::default() })?;
    // Each peer waits for the line `ready`, so both queue pairs are connected before the client sends a READ.
    writeln!(stream.get_mut(), "ready")?;
    read_line(stream)?;
    Ok(more.to_owned())
}

fn get(context: &Context, pd: &Pd, cq: &Cq, host: &str, key: &str) -> Result<()> {
    let mut stream = limit(TcpStream::connect((host, TCP_PORT))?)?;
    let qp = pd.create_qp(&QpOptions::new(cq))?;
    let table = connect(context, &qp, &mut stream, "")?;
    let (addr, rkey) = table.split_once(' ').ok_or("the server did not say where its table is")?;
    let (addr, rkey): (u64, _) = (addr.parse()?, RKey(rkey.parse()?));
    let local = pd.alloc(SLOT_BYTES, Access::LOCAL_WRITE)?;
    for offset in offsets(key) {
        let op = SendOp::Read { remote_addr: addr.wrapping_add(offset), rkey };
        let data = SendData::Sges(&[local.sge(0, SLOT_BYTES as u32)]);
        let flags = SendFlags { signaled: true, ..SendFlags::default() };
        qp.post_send(&SendRequest { wr_id: offset, op, flags, data })?;
        let done =
            std::iter::repeat_with(|| cq.poll_one()).find_map(|polled| polled.transpose()).transpose()?;
        if done.is_none_or(|done| done.status != WcStatus::Success) {
            return Err(format!("the READ failed: {done:?}").into());
        }
        let mut slot = [0; SLOT_BYTES];
        local.read(0, &mut slot)?;
        match std::str::from_utf8(&slot)?.split('\0').collect::<Vec<_>>()[..] {
            ["", ..] => return Err(format!("there is no key {key}").into()),
            [found, value, ..] if found == key => {
                println!("{key} = {value}");
                return Ok(());
            }
            _ => {} // the slot of another key: read the next slot
        }
    }
    Err("the table is full of other keys".into())
}
