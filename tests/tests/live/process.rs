//! Processes that a test starts: they end with it, and what they print is kept for its messages.

use std::fs::Permissions;
use std::io::{BufRead as _, BufReader, Read};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tempfile::TempDir;

/// How often a process is asked whether it has ended.
const ASK_INTERVAL: Duration = Duration::from_millis(10);

/// How long a process may take to end when its stdin does.
const FAREWELL: Duration = Duration::from_secs(2);

/// Arguments of setpriv(1), before a program that runs as the user `nobody`.
pub(super) const WITHOUT_PRIVILEGE: [&str; 5] =
    ["--reuid=65534", "--regid=65534", "--clear-groups", "--bounding-set=-all", "--"];

/// How a process ended, and what it printed.
#[derive(Debug)]
pub(crate) struct Output {
    pub(crate) status: ExitStatus,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Output {
    /// Panics unless the process succeeded.
    pub(crate) fn expect_success(self, what: &str) -> Output {
        assert!(self.status.success(), "{what}: {}\n{}{}", self.status, self.stdout, self.stderr);
        self
    }
}

/// A process. When dropped it loses its stdin, and is killed where it does not end by that.
pub(crate) struct Process {
    name: String,
    child: Child,
    pub(crate) stdin: Option<ChildStdin>,
    lines: Receiver<String>,
    stderr: Arc<Mutex<String>>,
    readers: Vec<JoinHandle<()>>,
}

impl Process {
    /// Starts `command`, all of its streams piped.
    pub(crate) fn start(command: &mut Command) -> Process {
        let name = format!("{command:?}").replace('"', "");
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| {
                panic!("cannot run {name}: {error}; scripts/check.sh installs what the tests need")
            });
        let (sender, lines) = channel();
        let stdout = child.stdout.take().expect("piped");
        let stderr_pipe = child.stderr.take().expect("piped");
        let stderr = Arc::new(Mutex::new(String::new()));
        let kept = stderr.clone();
        let readers = vec![
            std::thread::spawn(move || send_lines(stdout, &sender)),
            std::thread::spawn(move || keep(stderr_pipe, &kept)),
        ];
        Process { name, stdin: child.stdin.take(), child, lines, stderr, readers }
    }

    /// The next line of stdout.
    pub(crate) fn line(&mut self, timeout: Duration) -> String {
        match self.lines.recv_timeout(timeout) {
            Ok(line) => line,
            Err(RecvTimeoutError::Timeout) => {
                panic!("{}: no line within {timeout:?}; on stderr:\n{}", self.name, self.stderr())
            }
            Err(RecvTimeoutError::Disconnected) => {
                let status = self.child.wait().expect("a child can be waited for");
                let stderr = self.all_stderr();
                panic!("{}: ended ({status}); on stderr:\n{stderr}", self.name)
            }
        }
    }

    /// Its process number.
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// What it has printed on stderr so far.
    pub(crate) fn stderr(&self) -> String {
        self.stderr.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn all_stderr(&mut self) -> String {
        for reader in self.readers.drain(..) {
            reader.join().expect("a reader does not panic");
        }
        self.stderr()
    }

    /// Waits for it to end.
    pub(crate) fn finish(mut self, timeout: Duration) -> Output {
        drop(self.stdin.take());
        let end = Instant::now() + timeout;
        let status = loop {
            if let Some(status) = self.child.try_wait().expect("a child can be waited for") {
                break status;
            }
            if Instant::now() > end {
                // What it says when it is asked to end helps to see where it was.
                let _ = Command::new("kill").arg(self.child.id().to_string()).status();
                std::thread::sleep(Duration::from_millis(500));
                let stdout: String = self.lines.try_iter().map(|line| line + "\n").collect();
                panic!("{}: not done within {timeout:?}\n{stdout}{}", self.name, self.stderr());
            }
            std::thread::sleep(ASK_INTERVAL);
        };
        let stderr = self.all_stderr();
        let stdout = self.lines.iter().map(|line| line + "\n").collect();
        Output { status, stdout, stderr }
    }
}

impl Process {
    /// Takes its stdin, by which it ends, and kills it where it does not.
    pub(crate) fn end(&mut self) {
        drop(self.stdin.take());
        let end = Instant::now() + FAREWELL;
        while Instant::now() < end {
            // An error means that there is nobody to wait for.
            if !matches!(self.child.try_wait(), Ok(None)) {
                return;
            }
            std::thread::sleep(ASK_INTERVAL);
        }
        self.kill();
    }

    /// Kills it by SIGKILL, and waits until it is gone.
    pub(crate) fn kill(&mut self) {
        // An error means that it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.end();
    }
}

fn send_lines(stdout: impl Read, sender: &Sender<String>) {
    let lines = BufReader::new(stdout).lines().map_while(Result::ok);
    for line in lines {
        if sender.send(line).is_err() {
            return;
        }
    }
}

fn keep(stderr: impl Read, kept: &Mutex<String>) {
    for line in BufReader::new(stderr).lines().map_while(Result::ok) {
        let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.push_str(&line);
        kept.push('\n');
    }
}

/// Runs `command` to its end, which must be a success, and returns its stdout.
pub(crate) fn run(command: &mut Command) -> String {
    const TIMEOUT: Duration = Duration::from_secs(300);
    let name = format!("{command:?}");
    Process::start(command).finish(TIMEOUT).expect_success(&name).stdout
}

/// The directory of the programs that the tests start.
pub(crate) fn programs() -> PathBuf {
    let test = std::env::current_exe().expect("this test has a path");
    // target/debug/deps/main-0123 -> target/debug
    test.ancestors().nth(2).expect("tests lie in target/PROFILE/deps").to_path_buf()
}

/// The `roce` command, built from this workspace.
pub(crate) fn roce() -> PathBuf {
    let path = programs().join("roce");
    assert!(path.exists(), "{} is not there: run `cargo build -p apps` first", path.display());
    path
}

/// The library that `roce run` loads into RDMA programs, built from this workspace.
pub(crate) fn library() -> PathBuf {
    let path = programs().join("libroce_verbs.so");
    assert!(path.exists(), "{} is not there: run `cargo build -p preload` first", path.display());
    path
}

/// Compiles tests/c/NAME.c against the installed headers of libibverbs, and returns the path of the program.
pub(crate) fn compile(name: &str, program: &Path) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("c/{name}.c"));
    let flags = ["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-O1", "-g", "-o"];
    run(Command::new("cc").args(flags).arg(program).arg(&source).args(["-libverbs", "-lpthread"]));
    program.to_owned()
}

/// Copies `program` to `to`, where it may be started at once. A process of its own writes the copy: a file that this
/// process has open for writing is open in each child that another thread starts, until that child executes its
/// program, and a file open for writing cannot be executed ("Text file busy", execve(2)).
pub(crate) fn install(program: &Path, to: &Path) {
    run(Command::new("install").args(["-m", "755"]).args([program, to]));
}

/// Writes `script` to `to`, where it may be started at once, as [`install`].
pub(crate) fn install_script(script: &str, to: &Path) {
    let file = tempfile::NamedTempFile::new().expect("the temporary directory is writable");
    std::fs::write(file.path(), script).expect("the file is ours");
    install(file.path(), to);
}

/// A file for the capture that `whose` end of the test on this thread makes, overwritten each time.
pub(crate) fn capture_file(whose: &str) -> PathBuf {
    let thread = std::thread::current();
    let name = thread.name().unwrap_or("unnamed").replace("::", ".");
    Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}.{whose}.pcap"))
}

/// Whether this is run by root.
pub(crate) fn is_root() -> bool {
    run(Command::new("id").arg("-u")).trim() == "0"
}

/// An empty directory that every user may use, gone with the value.
pub(crate) fn shared_dir() -> TempDir {
    let directory = TempDir::with_prefix("roce-tests-").expect("the temporary directory is writable");
    std::fs::set_permissions(directory.path(), Permissions::from_mode(0o1777)).expect("it is ours");
    directory
}

/// A command that runs `program` as a user without any privilege: as `nobody` where this is root, for
/// whom it is copied into `directory`.
pub(crate) fn ordinary_user(program: &Path, directory: &TempDir) -> Command {
    if !is_root() {
        return Command::new(program);
    }
    let copy = directory.path().join(program.file_name().expect("a program has a name"));
    // It may be running: a second command of the same test.
    if !copy.exists() {
        install(program, &copy);
    }
    let mut command = Command::new("setpriv");
    command.args(WITHOUT_PRIVILEGE);
    command.arg(copy).env_remove("XDG_RUNTIME_DIR").env("HOME", "/nonexistent").current_dir("/");
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_installed_program_starts_while_other_threads_start_processes() {
        const PROGRAMS: usize = 300;
        const OTHERS: usize = 1_000;
        let directory = tempfile::tempdir().expect("the temporary directory is writable");
        let busy = std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    for _ in 0..OTHERS {
                        Command::new("true").status().expect("true(1) is installed");
                    }
                });
            }
            let is_busy = |number: &usize| {
                let copy = directory.path().join(number.to_string());
                install_script("#!/bin/sh\n", &copy);
                Command::new(&copy).status().is_err()
            };
            (0..PROGRAMS).filter(is_busy).count()
        });
        assert_eq!(busy, 0, "of {PROGRAMS} programs");
    }
}
