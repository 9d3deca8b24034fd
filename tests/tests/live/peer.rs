//! A peer program, and the commands that a test gives it.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::process::Command as Program;
use std::time::Duration;

use serde::de::DeserializeOwned;
use tests::protocol::{
    Bytes, Command, Completion, Completions, Done, Recv, Reply, Send, State, from_hex, to_hex,
};

use super::process::Process;

/// How long a command may take that has no time of its own; the machine may be busy.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(120);

/// A program at one end of a connection.
pub(crate) struct Peer {
    process: Process,
}

impl Peer {
    /// The peer of this project's verbs, to be run as `command` (`program` is [`Peer::program`]).
    pub(crate) fn start(command: &mut Program) -> Peer {
        Peer { process: Process::start(command) }
    }

    /// Where the peer program of this project's verbs is.
    pub(crate) fn program() -> &'static str {
        env!("CARGO_BIN_EXE_roce-peer")
    }

    /// What it has printed on stderr so far.
    pub(crate) fn stderr(&self) -> String {
        self.process.stderr()
    }

    /// Kills the program by SIGKILL; no command may follow.
    pub(crate) fn kill(&mut self) {
        self.process.kill();
    }

    /// Closes the stdin of the program, which then ends; no command may follow.
    pub(crate) fn close(&mut self) {
        drop(self.process.stdin.take());
    }

    /// The ID of its process.
    pub(crate) fn id(&self) -> u32 {
        self.process.id()
    }

    /// Ends the program; no command may follow.
    pub(crate) fn end(&mut self) {
        self.process.end();
    }

    /// Gives a command; the answer may be a refusal.
    pub(crate) fn ask<T: DeserializeOwned>(
        &mut self,
        command: &Command,
        timeout: Duration,
    ) -> Result<T, String> {
        self.give(command);
        self.answer(timeout)
    }

    /// Gives a command without waiting for the answer, which [`Peer::answer`] returns. Answers come in the order of
    /// the commands.
    pub(crate) fn give(&mut self, command: &Command) {
        let line = serde_json::to_string(command).expect("commands are plain data") + "\n";
        let stdin = self.process.stdin.as_mut().expect("open while the peer lives");
        // If the program has ended, the read of the answer fails and reports how it ended.
        let _ = stdin.write_all(line.as_bytes());
    }

    /// Waits for the answer of the oldest command without an answer; the answer may be a refusal.
    pub(crate) fn answer<T: DeserializeOwned>(&mut self, timeout: Duration) -> Result<T, String> {
        let answer = self.process.line(timeout);
        match serde_json::from_str(&answer) {
            Ok(Reply::Ok(reply)) => Ok(reply),
            Ok(Reply::Error(reason)) => Err(reason),
            Err(error) => panic!("{error} in `{answer}`"),
        }
    }

    /// Gives a command that must succeed.
    pub(crate) fn tell<T: DeserializeOwned>(&mut self, command: &Command) -> T {
        self.ask(command, TIMEOUT).unwrap_or_else(|reason| {
            let mut command = format!("{command:?}");
            command.truncate(500);
            panic!("{command}: {reason}\n{}", self.process.stderr())
        })
    }

    /// Puts bytes into memory.
    pub(crate) fn write(&mut self, mr: usize, offset: usize, bytes: &[u8]) {
        let Done {} = self.tell(&Command::Write { mr, offset, hex: to_hex(bytes) });
    }

    /// Looks into memory.
    pub(crate) fn read(&mut self, mr: usize, offset: usize, len_bytes: usize) -> Vec<u8> {
        let bytes: Bytes = self.tell(&Command::Read { mr, offset, len_bytes });
        from_hex(&bytes.hex).expect("the peer writes hexadecimal digits")
    }

    /// Posts receives.
    pub(crate) fn post_recv(&mut self, qp: usize, wrs: Vec<Recv>) {
        let Done {} = self.tell(&Command::PostRecv { qp, wrs });
    }

    /// Posts sends.
    pub(crate) fn post_send(&mut self, qp: usize, wrs: Vec<Send>) {
        let Done {} = self.tell(&Command::PostSend { qp, wrs });
    }

    /// Waits for `count` completions, for `timeout` at most.
    pub(crate) fn poll_for(&mut self, qp: usize, count: usize, timeout: Duration) -> Vec<Completion> {
        let timeout_millis = timeout.as_millis() as u64;
        let reply: Result<Completions, _> =
            self.ask(&Command::Poll { qp, count, timeout_millis }, timeout + TIMEOUT);
        reply.unwrap_or_else(|reason| panic!("poll: {reason}")).completions
    }

    /// Waits for exactly `count` completions.
    pub(crate) fn poll(&mut self, qp: usize, count: usize) -> Vec<Completion> {
        let completions = self.poll_for(qp, count, TIMEOUT);
        assert_eq!(
            completions.len(),
            count,
            "completions within {TIMEOUT:?}: {completions:?}\n{}",
            self.process.stderr()
        );
        completions
    }

    /// A queue pair's state, as libibverbs numbers it.
    pub(crate) fn state(&mut self, qp: usize) -> u32 {
        self.tell::<State>(&Command::State { qp }).state
    }

    /// The counters of the device.
    pub(crate) fn counters(&mut self) -> BTreeMap<String, u64> {
        self.tell(&Command::Counters)
    }

    /// A counter of the device, 0 where the peer has none of that name.
    pub(crate) fn counter(&mut self, name: &str) -> u64 {
        self.counters().get(name).copied().unwrap_or_default()
    }
}
