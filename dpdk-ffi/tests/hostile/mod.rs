//! Hostile peers of a memif port, which send false regions, rings and descriptors. The port's process must
//! survive, end the connection on a violation, and serve the next peer.

mod peer;

use std::io::{BufRead, BufReader};
use std::os::fd::{AsFd, FromRawFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::{Child, Command};

use super::{finish, memif, socket, start};
use peer::{
    ACK, ADD_RING, BUFFER_BYTES, CONNECT, CONNECTED, Channel, Client, DISCONNECT, Desc, HELLO, NEXT,
    REGION_BYTES, SLOTS, Server, add_region, buffer, event, hello, init, listen, memory_file, message,
    ring_specs, truncate, wait,
};

/// Name of an attack, and the attack: on the port of a name, or on the next client of a listening socket.
type Attack<To> = (&'static str, fn(&To));

fn connect(name: &str) -> Client {
    Client::open(name, memory_file(REGION_BYTES, true), event().as_fd())
}

/// Sends `desc` as a frame; the port must end the connection.
fn send_desc(name: &str, desc: Desc) {
    let client = connect(name);
    client.echo(0);
    client.to_server.set_desc(1, desc);
    client.to_server.set_head(2);
    client.channel.expect_end();
}

/// Offers `desc` as the buffer of the next frame, and requests a frame.
fn offer_desc(name: &str, desc: Desc) {
    let client = connect(name);
    client.echo(0);
    (0..SLOTS).for_each(|slot| client.to_client.set_desc(slot, desc));
    client.to_server.set_desc(1, Desc { length: 100, offset: buffer(1), ..Desc::default() });
    client.to_server.set_head(2);
    client.channel.expect_end();
}

/// Adds rings changed by `change`; the port must not connect.
fn add_rings(name: &str, change: fn(&mut peer::RingSpec)) {
    let client = Client::prepare(name, memory_file(REGION_BYTES, true));
    client.ask(&add_region(0, REGION_BYTES as u64), Some(client.file.as_fd()));
    for mut ring in ring_specs() {
        change(&mut ring);
        client.channel.send(&ring.message(), Some(event().as_fd()));
    }
    client.channel.send(&message(CONNECT, &[&[b'x'; 32]]), None);
    expect_no_connection(&client.channel);
}

fn expect_no_connection(channel: &Channel) {
    while let Some((message, _)) = channel.receive() {
        assert_ne!(u16::from(message[0]), CONNECTED, "the port connected all the same");
    }
}

/// Adds region 0 of `file` with a length of `len_bytes`; the port must refuse it.
fn offer_region(name: &str, file: OwnedFd, len_bytes: usize) {
    let client = Client::prepare(name, memory_file(REGION_BYTES, true));
    client.channel.send(&add_region(0, len_bytes as u64), Some(file.as_fd()));
    client.channel.expect_end();
}

/// Attacks of a client on its server.
const TO_SERVER: &[Attack<str>] = &[
    ("a frame far behind the region", |name| {
        send_desc(name, Desc { length: 64, offset: 0xffff_0000, ..Desc::default() });
    }),
    ("a frame of another region", |name| {
        send_desc(name, Desc { region: 255, length: 64, offset: buffer(1), ..Desc::default() });
    }),
    ("a frame of a region that no array has", |name| {
        send_desc(name, Desc { region: 0xffff, length: 64, offset: buffer(1), ..Desc::default() });
    }),
    ("a frame that ends behind the region", |name| {
        send_desc(name, Desc { length: 32768, offset: REGION_BYTES as u32 - 64, ..Desc::default() });
    }),
    ("a frame whose end wraps", |name| {
        send_desc(name, Desc { length: u32::MAX - 63, offset: 64, ..Desc::default() });
    }),
    ("more frames than the ring has slots", |name| {
        let client = connect(name);
        client.echo(0);
        client.to_server.set_head(1 + SLOTS as u16 + 1);
        client.channel.expect_end();
    }),
    ("a chain without an end", |name| {
        let client = connect(name);
        client.echo(0);
        for slot in 0..SLOTS {
            let desc = Desc { flags: NEXT, length: 64, offset: buffer(slot), ..Desc::default() };
            client.to_server.set_desc(slot, desc);
        }
        client.to_server.set_head(1 + SLOTS as u16);
        // All its buffers are inside the memory: the chain is dropped, and the next frame is served.
        wait("the chain to be dropped", || client.to_server.tail() == 1 + SLOTS as u16);
        client.echo(1);
    }),
    ("a buffer far behind the region", |name| {
        offer_desc(name, Desc { length: BUFFER_BYTES as u32, offset: 0xffff_0000, ..Desc::default() });
    }),
    ("a buffer of another region", |name| {
        offer_desc(name, Desc { region: 200, length: BUFFER_BYTES as u32, ..Desc::default() });
    }),
    ("more buffers than the ring has slots", |name| {
        let client = connect(name);
        client.echo(0);
        client.to_client.set_head(0x8000);
        client.to_server.set_desc(1, Desc { length: 100, offset: buffer(1), ..Desc::default() });
        client.to_server.set_head(2);
        client.channel.expect_end();
    }),
    ("buffers of no bytes", |name| {
        let client = connect(name);
        client.echo(0);
        for slot in 0..SLOTS {
            client.to_client.set_desc(slot, Desc { offset: buffer(SLOTS + slot), ..Desc::default() });
        }
        client.to_server.set_desc(1, Desc { length: 100, offset: buffer(1), ..Desc::default() });
        client.to_server.set_head(2);
        wait("the frame to be taken", || client.to_server.tail() == 2);
    }),
    ("a ring in another region", |name| add_rings(name, |ring| ring.region = 300)),
    ("a ring behind the region", |name| add_rings(name, |ring| ring.offset = 0x7fff_0000)),
    ("a ring that ends behind the region", |name| {
        add_rings(name, |ring| ring.offset = (REGION_BYTES - 256) as u32);
    }),
    ("a ring between two places", |name| add_rings(name, |ring| ring.offset += 1)),
    ("a ring larger than any", |name| add_rings(name, |ring| ring.log2_slots = 31)),
    ("the same ring again and again", |name| {
        let client = Client::prepare(name, memory_file(REGION_BYTES, true));
        client.ask(&add_region(0, REGION_BYTES as u64), Some(client.file.as_fd()));
        for _ in 0..200 {
            client.channel.send(&ring_specs()[0].message(), Some(event().as_fd()));
        }
        client.channel.send(&message(CONNECT, &[&[b'x'; 32]]), None);
        expect_no_connection(&client.channel);
    }),
    ("a region that can be cut off", |name| {
        let file = memory_file(REGION_BYTES, false);
        let client = Client::prepare(name, file);
        client.channel.send(&add_region(0, REGION_BYTES as u64), Some(client.file.as_fd()));
        if client.channel.receive().is_none_or(|(message, _)| u16::from(message[0]) != peer::ACK) {
            return;
        }
        for ring in ring_specs() {
            client.ask(&ring.message(), Some(event().as_fd()));
        }
        client.channel.send(&message(CONNECT, &[&[b'x'; 32]]), None);
        client.channel.expect(CONNECTED);
        truncate(&client.file, 0);
        client.channel.expect_end();
    }),
    ("a region longer than its file", |name| offer_region(name, memory_file(4096, true), REGION_BYTES)),
    ("a region of a terabyte", |name| offer_region(name, memory_file(1 << 40, true), 1 << 40)),
    ("a region that is no memory", |name| {
        offer_region(name, std::fs::File::open("/dev/zero").unwrap().into(), REGION_BYTES);
    }),
    ("interrupts that block", |name| {
        let mut pipe = [0; 2];
        // SAFETY: a place for two descriptors, which nobody else owns.
        let [reader, _writer] = unsafe {
            assert_eq!(libc::pipe(pipe.as_mut_ptr()), 0);
            pipe.map(|fd| OwnedFd::from_raw_fd(fd))
        };
        let client = Client::open(name, memory_file(REGION_BYTES, true), reader.as_fd());
        client.to_server.set_flags(0);
        client.to_client.set_flags(0);
        (0..4).for_each(|slot| client.echo(slot));
    }),
    ("a greeting of the server's own", |name| {
        let client = Client::prepare(name, memory_file(REGION_BYTES, true));
        client.channel.send(&hello(), None);
        client.channel.expect_end();
    }),
    ("a greeting in place of an introduction", |name| {
        let channel = Channel::connect(name);
        channel.expect(HELLO);
        channel.send(&hello(), None);
        channel.expect_end();
    }),
    ("an introduction again and again", |name| {
        let client = Client::prepare(name, memory_file(REGION_BYTES, true));
        client.channel.send(&init(""), None);
        client.channel.expect_end();
    }),
    ("rings once more when connected", |name| {
        let client = connect(name);
        client.echo(0);
        client.channel.send(&ring_specs()[0].message(), Some(event().as_fd()));
        client.channel.expect_end();
    }),
    ("a connection that closes at once", |name| {
        (0..50).for_each(|_| drop(Channel::connect(name)));
    }),
];

/// Connects to the next client, and has it serve `desc` as a frame.
fn deliver(listener: &OwnedFd, desc: Desc) {
    let server = Server::open(listener);
    server.connected();
    server.to_client.set_desc(0, desc);
    server.to_client.set_tail(1);
    server.channel.expect_end();
}

/// Connects to the next client, and has it send into `desc`.
fn collect(listener: &OwnedFd, desc: Desc) {
    let server = Server::open(listener);
    server.connected();
    (0..1024).for_each(|slot| server.to_server.set_desc(slot, desc));
    let taken = std::cell::Cell::new(0);
    // Room, so that the client goes on sending; it stops where it closed the connection.
    wait("the client to send and to stop", || {
        server.to_server.set_tail(server.to_server.head());
        taken.set(taken.get() + 1);
        taken.get() > 100
    });
    server.channel.expect_end();
}

/// Sends `messages` to the next client, instead of those that it expects.
fn mislead(listener: &OwnedFd, messages: &[peer::Message]) {
    let channel = Channel::accept(listener);
    for message in messages {
        channel.send(message, Some(event().as_fd()));
    }
    channel.expect_end();
}

/// Attacks of a listening server on its client.
const TO_CLIENT: &[Attack<OwnedFd>] = &[
    ("a frame far behind the region", |listener| {
        deliver(listener, Desc { length: 64, offset: 0xffff_0000, ..Desc::default() });
    }),
    ("a frame of another region", |listener| {
        deliver(listener, Desc { region: 255, length: 64, ..Desc::default() });
    }),
    ("a frame whose end wraps", |listener| {
        deliver(listener, Desc { length: u32::MAX - 63, offset: 64, ..Desc::default() });
    }),
    ("more frames than the ring has slots", |listener| {
        let server = Server::open(listener);
        server.connected();
        server.to_client.set_tail(0x8000);
        server.channel.expect_end();
    }),
    ("a buffer far behind the region", |listener| {
        collect(listener, Desc { length: 2048, offset: 0xffff_0000, ..Desc::default() });
    }),
    ("a buffer of another region", |listener| {
        collect(listener, Desc { region: 200, length: 2048, ..Desc::default() });
    }),
    ("more room than the ring has slots", |listener| {
        let server = Server::open(listener);
        server.connected();
        server.to_server.set_tail(0x8000);
        server.channel.expect_end();
    }),
    ("connected before anything was said", |listener| {
        mislead(listener, &[message(CONNECTED, &[&[b'x'; 32]])]);
    }),
    ("two greetings", |listener| mislead(listener, &[hello(), hello()])),
    ("a ring of the server's", |listener| mislead(listener, &[ring_specs()[0].message()])),
    ("a region of the server's", |listener| mislead(listener, &[add_region(0, 1 << 20)])),
    ("an unknown message", |listener| mislead(listener, &[message(77, &[])])),
    ("a message of no kind", |listener| mislead(listener, &[message(0, &[])])),
    ("a ring before the greeting's end", |listener| mislead(listener, &[message(ADD_RING, &[]), hello()])),
];

/// Returns how a victim ended after an attack; `None` if it runs.
fn fate(victim: &mut Child) -> Option<String> {
    // The end of its process follows the end of its connections.
    for _ in 0..20 {
        if let Some(status) = victim.try_wait().expect("the child can be waited for") {
            return Some(format!("the victim ended: {status}"));
        }
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    None
}

fn what(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().cloned();
    text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned())).unwrap_or_default()
}

/// Runs every attack, all on one victim as long as it runs; returns the victim, to serve a well-behaved peer.
#[track_caller]
fn attack_all<A: Copy>(test: &str, victim: &str, attacks: &[(&str, A)], run: impl Fn(A)) -> Child {
    let victim = || start(memif(test, victim));
    let mut alive = victim();
    let mut failures = Vec::new();
    for (name, attack) in attacks {
        let outcome = catch_unwind(AssertUnwindSafe(|| run(*attack)));
        let failed = outcome.err().map(|panic| what(panic.as_ref()));
        let died = fate(&mut alive);
        if let Some(how) = died.or(failed) {
            failures.push(format!("{name}: {how}"));
            // Whatever state it is in, the next attack finds a fresh one.
            end(alive);
            alive = victim();
        }
    }
    if !failures.is_empty() {
        end(alive);
        panic!("{} of {} attacks succeeded:\n  {}", failures.len(), attacks.len(), failures.join("\n  "));
    }
    alive
}

/// Ends a process that may have ended.
fn end(mut victim: Child) {
    let _ended = victim.kill();
    victim.wait().expect("the child can be waited for");
}

#[test]
fn a_memif_server_survives_hostile_clients() {
    const TEST: &str = "hostile-clients";
    let name = socket(TEST);
    let victim = attack_all(TEST, "memif_attacked_server", TO_SERVER, |attack| attack(&name));
    finish([victim, start(memif(TEST, "memif_small_frames"))]);
}

#[test]
fn a_memif_client_survives_hostile_servers() {
    const TEST: &str = "hostile-servers";
    let listener = listen(&socket(TEST));
    let victim = attack_all(TEST, "memif_attacked_client", TO_CLIENT, |attack| attack(&listener));
    drop(listener);
    finish([victim, start(memif(TEST, "memif_small_echo"))]);
}

/// A process of another user, where this one may make some.
fn as_nobody(mut command: Command) -> Command {
    use std::os::unix::process::CommandExt;
    command.uid(NOBODY).gid(NOBODY).current_dir("/").env_remove("XDG_RUNTIME_DIR");
    command
}

const NOBODY: u32 = 65534;

fn is_root() -> bool {
    // SAFETY: always succeeds.
    unsafe { libc::geteuid() == 0 }
}

fn memif_socket() -> String {
    std::env::var("MEMIF_SOCKET").expect("the tests set it")
}

/// Connects, and must not receive HELLO.
pub(crate) fn stranger() {
    for _ in 0..20 {
        assert!(Channel::connect(&memif_socket()).receive().is_none(), "a stranger was let in");
    }
}

/// Listens under a name that another user's client connects to; the client must not send a message.
pub(crate) fn false_server() {
    let listener = listen(&memif_socket());
    println!("{}", super::FLOWING);
    let channel = Channel::accept(&listener);
    channel.send(&hello(), None);
    assert!(channel.receive().is_none(), "a client offered its memory to a stranger");
}

/// Root runs all of it. An ordinary user has no second one, and sees only that the own user is let in.
#[test]
fn only_the_own_user_and_root_are_let_in() {
    const TEST: &str = "strangers";
    let victim = start(memif(TEST, "memif_small_echo"));
    if is_root() {
        println!("as two users");
        finish([start(as_nobody(memif(TEST, "memif_stranger")))]);
    } else {
        println!("as one user");
    }
    Channel::connect(&socket(TEST)).expect(HELLO);
    finish([victim, start(memif(TEST, "memif_small_frames"))]);
}

/// As above.
#[test]
fn a_client_offers_nothing_to_another_users_server() {
    const TEST: &str = "false-server";
    let command = memif(TEST, "memif_false_server");
    let mut server = start(if is_root() { as_nobody(command) } else { command });
    let stdout = server.stdout.take().expect("its output is a pipe");
    let mut lines = BufReader::new(stdout).lines().map_while(Result::ok);
    assert!(lines.any(|line| line.contains(super::FLOWING)), "the server listens");
    let client = start(memif(TEST, "memif_attacked_client"));
    let output: Vec<String> = lines.collect();
    let status = server.wait().expect("the child can be waited for");
    assert_eq!(
        status.success(),
        is_root(),
        "the own user's server is told what a client offers: {status} {output:?}"
    );
    finish([client, start(memif(TEST, "memif_small_echo"))]);
}

/// Both ends name the other's user; what root may do anyway is distinguished by the first of the two tests above.
#[test]
fn users_that_are_named_are_let_in() {
    const TEST: &str = "named-users";
    let mut server = memif(TEST, "memif_small_echo");
    server.env("MEMIF_UIDS", NOBODY.to_string());
    let client = memif(TEST, "memif_small_frames");
    finish([start(server), start(if is_root() { as_nobody(client) } else { client })]);
}

#[test]
fn a_client_must_know_the_secret() {
    const TEST: &str = "secret";
    let with_secret = |part: &str| {
        let mut command = memif(TEST, part);
        command.env("MEMIF_ARGS", ",secret=the-right-one");
        start(command)
    };
    let victim = with_secret("memif_small_echo");
    let answer_to = |secret: &str| {
        let channel = Channel::connect(&socket(TEST));
        channel.expect(HELLO);
        channel.send(&init(secret), None);
        channel.receive().map(|(message, _)| u16::from_ne_bytes([message[0], message[1]]))
    };
    // A server that is not started yet turns the right one away too.
    wait("the server to start", || answer_to("the-right-one") == Some(ACK));
    for secret in ["", "the-right-on", "the-right-one2", "the-wrong-one"] {
        assert_eq!(answer_to(secret), Some(DISCONNECT), "{secret:?}");
    }
    finish([victim, with_secret("memif_small_frames")]);
}
