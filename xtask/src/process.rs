//! Child processes: output is captured, time is limited, and each ends when its owner is dropped or this program ends.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::io::Read;
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use rustix::process::{Pid, Signal, kill_process};

/// Interval at which the end of a process is looked for: rare, because measurements use all cores.
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// Time in which a process must end after SIGTERM, or after its peer has failed.
const GRACE: Duration = Duration::from_secs(2);

/// Start of a command line: the program gets SIGTERM when the thread that started it ends. The main thread ends by
/// every signal, too, of which no destructor is run.
pub(crate) fn tied(program: impl AsRef<OsStr>) -> Vec<OsString> {
    let words = ["setpriv", "--pdeathsig", "TERM"].map(OsStr::new);
    [&words[..], &[program.as_ref()]].concat().into_iter().map(OsStr::to_owned).collect()
}

/// Returns a command in a session of its own, to which the scheduler gives the highest share, where that is permitted.
/// Because shares are per session, the nice value alone has no effect against other sessions.
pub(crate) fn favoured(words: &[OsString]) -> Command {
    const SCRIPT: &str = "{ echo -20 >/proc/self/autogroup; } 2>/dev/null || true; exec \"$@\"";
    let mut command = Command::new("setsid");
    command.args(["bash", "-c", SCRIPT, "favoured"]).args(words);
    command
}

/// Runs a short command, and returns its standard output.
pub(crate) fn run(words: &[&str]) -> anyhow::Result<String> {
    let line = words.join(" ");
    let [program, arguments @ ..] = words else { bail!("an empty command") };
    let output = Command::new(program).args(arguments).stdin(Stdio::null()).output();
    let output = output.with_context(|| format!("`{line}` cannot be started"))?;
    if !output.status.success() {
        let stderr = String::from_utf8_lossy(&output.stderr);
        bail!("`{line}` failed ({}):\n{}", output.status, stderr.trim_end());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// An output stream of a process, as far as it has been read.
struct Stream {
    bytes: Arc<Mutex<Vec<u8>>>,
    reader: JoinHandle<()>,
}

impl Stream {
    fn new(mut pipe: impl Read + Send + 'static) -> Stream {
        let bytes = Arc::new(Mutex::new(Vec::new()));
        let kept = Arc::clone(&bytes);
        let reader = thread::spawn(move || {
            let mut buffer = [0; 4096];
            // An error ends the stream as its end does.
            while let Ok(count @ 1..) = pipe.read(&mut buffer) {
                kept.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(&buffer[..count]);
            }
        });
        Stream { bytes, reader }
    }

    fn text(&self) -> String {
        let bytes = self.bytes.lock().unwrap_or_else(PoisonError::into_inner);
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Waits for the end of the stream. A process that has ended may have left it to a child: the wait is limited.
    fn finish(&self) -> String {
        let end = Instant::now() + GRACE;
        while !self.reader.is_finished() && Instant::now() < end {
            thread::sleep(Duration::from_millis(1));
        }
        self.text()
    }
}

/// Output of a process.
#[derive(Debug)]
pub(crate) struct Output {
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl fmt::Display for Output {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str([&*self.stdout, &self.stderr].concat().trim_end())
    }
}

/// A process. When dropped it gets SIGTERM, and SIGKILL if it does not end.
pub(crate) struct Process {
    name: String,
    child: Child,
    pub(crate) stdin: Option<ChildStdin>,
    stdout: Stream,
    stderr: Stream,
}

impl Process {
    /// Starts `command`, whose messages call it `name`. Main thread only: see [`tied`].
    pub(crate) fn start(name: &str, command: &mut Command, stdin: Stdio) -> anyhow::Result<Process> {
        let mut child = command
            .stdin(stdin)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .with_context(|| format!("{name} cannot be started: {command:?}"))?;
        let stdout = Stream::new(child.stdout.take().context("a pipe")?);
        let stderr = Stream::new(child.stderr.take().context("a pipe")?);
        Ok(Process { name: name.to_owned(), stdin: child.stdin.take(), child, stdout, stderr })
    }

    /// Returns the process number.
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Waits until standard output has `text`.
    pub(crate) fn wait_for(&mut self, text: &str, timeout: Duration) -> anyhow::Result<()> {
        let end = Instant::now() + timeout;
        while !self.stdout.text().contains(text) {
            if let Some(status) = self.child.try_wait()? {
                let output = self.output();
                if output.stdout.contains(text) {
                    break;
                }
                bail!("{} ended ({status}) before it printed `{text}`:\n{output}", self.name);
            }
            if Instant::now() >= end {
                bail!("{} has not printed `{text}` within {timeout:?}:\n{}", self.name, self.output_so_far());
            }
            thread::sleep(POLL_INTERVAL);
        }
        Ok(())
    }

    /// Waits for the end of the process, which must be a success.
    pub(crate) fn finish(mut self, timeout: Duration) -> anyhow::Result<Output> {
        drop(self.stdin.take());
        let end = Instant::now() + timeout;
        loop {
            match self.child.try_wait()? {
                Some(status) if status.success() => return Ok(self.output()),
                Some(status) => bail!("{} failed ({status}):\n{}", self.name, self.output()),
                None if Instant::now() >= end => {
                    bail!("{} has not ended within {timeout:?}:\n{}", self.name, self.output_so_far())
                }
                None => thread::sleep(POLL_INTERVAL),
            }
        }
    }

    /// Returns the output of a process that has ended.
    fn output(&self) -> Output {
        Output { stdout: self.stdout.finish(), stderr: self.stderr.finish() }
    }

    /// Returns the output of a process that runs.
    fn output_so_far(&self) -> Output {
        Output { stdout: self.stdout.text(), stderr: self.stderr.text() }
    }

    /// Ends the process if it has not ended.
    fn stop(&mut self) {
        drop(self.stdin.take());
        // A child that has not been waited for keeps its number.
        if matches!(self.child.try_wait(), Ok(None)) {
            let _ = kill_process(Pid::from_child(&self.child), Signal::TERM);
        }
        let end = Instant::now() + GRACE;
        while matches!(self.child.try_wait(), Ok(None)) {
            if Instant::now() >= end {
                let _ = self.child.kill();
                let _ = self.child.wait();
            }
            thread::sleep(POLL_INTERVAL);
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Waits for the ends of a server and its client. An error has the standard error of both.
pub(crate) fn finish_both(
    mut server: Process,
    mut client: Process,
    timeout: Duration,
) -> anyhow::Result<(Output, Output)> {
    let mut end = Instant::now() + timeout;
    let mut has_failed = false;
    loop {
        let ended = [server.child.try_wait()?, client.child.try_wait()?];
        let all_ended = ended.iter().all(Option::is_some);
        if !has_failed && ended.iter().flatten().any(|status| !status.success()) {
            has_failed = true;
            end = end.min(Instant::now() + GRACE);
        }
        if all_ended && !has_failed {
            return Ok((server.output(), client.output()));
        }
        if all_ended || Instant::now() >= end {
            bail!("{}", both_described([&server, &client], ended));
        }
        thread::sleep(POLL_INTERVAL);
    }
}

fn both_described(ends: [&Process; 2], ended: [Option<ExitStatus>; 2]) -> String {
    let described = ends.into_iter().zip(ended).map(|(end, status)| {
        let (status, stderr) = match status {
            Some(status) => (format!("ended ({status})"), end.stderr.finish()),
            None => ("has not ended".to_owned(), end.stderr.text()),
        };
        format!("{} {status}, with this on standard error:\n{}", end.name, stderr.trim_end())
    });
    described.collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(name: &str, script: &str) -> Process {
        let mut command = Command::new("sh");
        Process::start(name, command.args(["-c", script]), Stdio::piped()).unwrap()
    }

    const LONG: Duration = Duration::from_secs(60);
    const SHORT: Duration = Duration::from_millis(100);

    #[test]
    fn a_process_that_succeeds_leaves_its_output() {
        let output = shell("it", "echo out; echo err >&2").finish(LONG).unwrap();
        assert_eq!((&*output.stdout, &*output.stderr), ("out\n", "err\n"));
        let mut asked = shell("it", "echo ready; cat");
        asked.wait_for("ready", LONG).unwrap();
        assert_eq!(asked.finish(LONG).unwrap().stdout, "ready\n");
    }

    #[test]
    fn a_process_that_fails_is_described() {
        let failing = "echo ready; echo why >&2; exit 3";
        let error = shell("it", failing).finish(LONG).unwrap_err();
        assert_eq!(error.to_string(), "it failed (exit status: 3):\nready\nwhy");
        let error = shell("it", failing).wait_for("never", LONG).unwrap_err().to_string();
        assert!(error.starts_with("it ended (exit status: 3) before it printed `never`"), "{error}");
        let mut endless = shell("it", "echo ready; exec sleep 60");
        endless.wait_for("ready", LONG).unwrap();
        let error = endless.wait_for("never", SHORT).unwrap_err();
        assert_eq!(error.to_string(), "it has not printed `never` within 100ms:\nready");
        let error = endless.finish(SHORT).unwrap_err();
        assert_eq!(error.to_string(), "it has not ended within 100ms:\nready");
    }

    #[test]
    fn an_end_that_fails_takes_the_other_with_it() {
        let mut server = shell("server", "echo waiting >&2; echo ready; exec sleep 60");
        server.wait_for("ready", LONG).unwrap();
        let number = server.child.id();
        let error = finish_both(server, shell("client", "echo no server >&2; exit 1"), LONG).unwrap_err();
        assert_eq!(
            error.to_string(),
            "server has not ended, with this on standard error:\nwaiting\n\
             client ended (exit status: 1), with this on standard error:\nno server"
        );
        assert!(!std::path::Path::new(&format!("/proc/{number}")).exists(), "the server was ended");
    }

    #[test]
    fn both_ends_must_be_in_time() {
        let sleepers = [shell("server", "exec sleep 60"), shell("client", "exec sleep 60")];
        let [server, client] = sleepers;
        let error = finish_both(server, client, SHORT).unwrap_err().to_string();
        assert!(error.contains("server has not ended") && error.contains("client has not ended"), "{error}");
        let (server, client) = finish_both(shell("s", "echo 1"), shell("c", "echo 2"), LONG).unwrap();
        assert_eq!((&*server.stdout, &*client.stdout), ("1\n", "2\n"));
    }

    #[test]
    fn a_process_that_ignores_the_request_to_end_is_killed() {
        let mut process = shell("it", "trap '' TERM; echo ready; while :; do sleep 0.1; done");
        process.wait_for("ready", LONG).unwrap();
        process.stop();
        assert!(process.child.try_wait().unwrap().is_some());
    }

    #[test]
    fn a_command_that_fails_is_named() {
        assert_eq!(run(&["echo", "a", "b"]).unwrap(), "a b\n");
        let error = run(&["sh", "-c", "echo why >&2; exit 4"]).unwrap_err().to_string();
        assert_eq!(error, "`sh -c echo why >&2; exit 4` failed (exit status: 4):\nwhy");
    }
}
