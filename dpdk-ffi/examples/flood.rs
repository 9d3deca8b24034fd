//! Measures the frames per second that one core sends and another receives, over a port between two
//! processes.
//!
//! `flood [FRAME_BYTES] [SECONDS] [--unregistered]` starts its own receiver and floods it over memif.

use std::error::Error;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use std::{env, io};

use dpdk_ffi::{Eal, EalConfig, EthPort, Mbuf, Mempool, MempoolConfig, PortBuilder, QueueSet};

const BURST: usize = 32;
/// Longest wait of the receiver for the first frame, and for a further one after the last.
const PATIENCE: Duration = Duration::from_secs(5);
const IDLE: Duration = Duration::from_millis(200);

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = env::args().skip(1).collect();
    let frame_bytes: usize = args.first().map_or(Ok(64), |text| text.parse())?;
    let seconds: f64 = args.get(1).map_or(Ok(2.0), |text| text.parse())?;
    let unregistered = args.iter().any(|arg| arg == "--unregistered");
    match env::var("FLOOD_RECEIVE_FROM") {
        Ok(socket) => on_thread(unregistered, move || receive(&socket)),
        Err(_) => {
            let socket = format!("@dpdk-ffi-flood-{}", std::process::id());
            let mut receiver = start_receiver(&socket, &args)?;
            on_thread(unregistered, move || send(&socket, frame_bytes, seconds))?;
            receiver.wait()?;
            Ok(())
        }
    }
}

/// Runs `work` on a thread that DPDK has registered (the one that initialises EAL), or on one that it has
/// not.
fn on_thread(
    unregistered: bool,
    work: impl FnOnce() -> Result<(), Box<dyn Error>> + Send + 'static,
) -> Result<(), Box<dyn Error>> {
    Eal::init(&EalConfig::default())?;
    if !unregistered {
        return work();
    }
    let joined = std::thread::spawn(move || work().map_err(|error| error.to_string())).join();
    joined.map_err(|_| "the thread panicked")?.map_err(Into::into)
}

fn start_receiver(socket: &str, args: &[String]) -> io::Result<Child> {
    let program = env::current_exe()?;
    Command::new("taskset")
        .args(["-c", "1"])
        .arg(program)
        .args(args)
        .env("FLOOD_RECEIVE_FROM", socket)
        .stdin(Stdio::null())
        .spawn()
}

fn open(role: &str, socket: &str) -> Result<(EthPort, QueueSet), Box<dyn Error>> {
    let eal = Eal::get().ok_or("EAL does not run")?;
    let pool = Mempool::new(eal, &MempoolConfig::default())?;
    let device = eal.attach_vdev("net_memif0", &format!("role={role},socket={socket},bsize=8192"))?;
    let (mut port, mut queues) = PortBuilder::new(pool).open_stopped(device)?;
    let patience = Instant::now() + PATIENCE;
    // The client's server may start a moment late.
    while let Err(error) = port.start(queues.iter_mut()) {
        if Instant::now() > patience {
            return Err(error.into());
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok((port, queues))
}

fn send(socket: &str, frame_bytes: usize, seconds: f64) -> Result<(), Box<dyn Error>> {
    let (port, mut queues) = open("client", socket)?;
    let queue = queues.first_mut();
    let patience = Instant::now() + PATIENCE;
    while !port.link().is_up {
        if Instant::now() > patience {
            return Err("no receiver".into());
        }
        std::thread::yield_now();
    }
    let start = Instant::now();
    let (mut sent, mut rounds) = (0_u64, 0_u64);
    loop {
        for _ in 0..BURST {
            let Some(frame) = queue.tx_reserve(frame_bytes) else { break };
            frame
                .first_chunk_mut::<8>()
                .ok_or("frames have at least 8 bytes")?
                .copy_from_slice(&rounds.to_ne_bytes());
        }
        sent += queue.tx_flush() as u64;
        rounds += 1;
        if rounds.is_multiple_of(1024) && start.elapsed().as_secs_f64() >= seconds {
            break;
        }
    }
    report("sent", sent, frame_bytes as u64 * sent, start.elapsed());
    println!("{:?}", port.counters());
    Ok(())
}

fn receive(socket: &str) -> Result<(), Box<dyn Error>> {
    let (_port, mut queues) = open("server", socket)?;
    let queue = queues.first_mut();
    let mut frames: Vec<Mbuf> = Vec::with_capacity(BURST);
    let (mut received, mut bytes) = (0_u64, 0_u64);
    let patience = Instant::now() + PATIENCE;
    let (mut first, mut last) = (None, Instant::now());
    let mut idle_rounds = 0_u64;
    loop {
        let count = queue.rx_burst(&mut frames, BURST);
        if count == 0 {
            idle_rounds += 1;
            let silent = first.is_some() && idle_rounds.is_multiple_of(4096) && last.elapsed() > IDLE;
            if silent || (first.is_none() && Instant::now() > patience) {
                break;
            }
            continue;
        }
        first.get_or_insert_with(Instant::now);
        last = Instant::now();
        received += count as u64;
        bytes += frames.iter().map(|frame| frame.data().len() as u64).sum::<u64>();
        Mbuf::free_bulk(&mut frames);
    }
    report("received", received, bytes, last - first.ok_or("no frame came")?);
    Ok(())
}

fn report(what: &str, frames: u64, bytes: u64, elapsed: Duration) {
    let seconds = elapsed.as_secs_f64();
    let (mpps, gbit) = (frames as f64 / seconds / 1e6, bytes as f64 * 8.0 / seconds / 1e9);
    println!("{what}: {frames} frames in {seconds:.2} s, {mpps:.2} Mpps, {gbit:.1} Gbit/s");
}
