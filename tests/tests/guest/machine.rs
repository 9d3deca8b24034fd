//! A QEMU guest, booted by scripts/guest.

use std::process::Command;
use std::time::Duration;

use crate::live::{Namespace, Process, run};

/// How long a command in the guest may take, on a busy machine.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(120);

fn script() -> &'static str {
    concat!(env!("CARGO_MANIFEST_DIR"), "/../scripts/guest")
}

/// A guest that runs until this process ends.
pub(crate) struct Machine {
    name: String,
}

impl Machine {
    /// Boots a guest that is called `name` here, with these options of `scripts/guest start`; the
    /// taps among them lie in `namespace`. `scripts/guest build` must have run.
    pub(crate) fn boot(name: &str, namespace: &Namespace, options: &[&str]) -> Machine {
        let pid = std::process::id().to_string();
        let name = format!("{name}.{pid}");
        let mut start = namespace.command(script());
        run(start.args(["start", "--name", &name, "--with-pid", &pid]).args(options));
        Machine { name }
    }

    fn exec(&self, command: &str, timeout: Duration) -> Command {
        let mut exec = Command::new(script());
        let timeout = timeout.as_secs().to_string();
        exec.args(["exec", "--name", &self.name, "--timeout", &timeout, "--", "bash", "-c", command]);
        exec
    }

    /// Runs a shell command, which must succeed.
    pub(crate) fn run(&self, command: &str) -> String {
        run(&mut self.exec(command, COMMAND_TIMEOUT))
    }

    /// Starts a shell command.
    pub(crate) fn start(&self, command: &str) -> Process {
        Process::start(&mut self.exec(command, COMMAND_TIMEOUT))
    }

    /// Starts a shell command that goes on for as long as the guest does.
    pub(crate) fn serve(&self, command: &str) -> Process {
        const FOREVER: Duration = Duration::from_secs(86_400);
        Process::start(&mut self.exec(command, FOREVER))
    }
}
