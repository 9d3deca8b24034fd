//! Limits of a process that are too low for its port. The limit of open files: `verbs/tests/limits.rs`.

use std::path::Path;

use super::links::veth;
use crate::live::{Process, TIMEOUT, roce};

#[test]
fn an_xdp_port_names_the_limit_of_locked_memory() {
    const LOCKED_MAX: &str = "--memlock=65536";
    const WITHOUT_IPC_LOCK: [&str; 3] = ["setpriv", "--bounding-set=-ipc_lock", "--inh-caps=-ipc_lock"];
    let [side, _far] = veth("af_xdp", 1500);
    let mut command = side.command(Path::new("prlimit"));
    command.arg(LOCKED_MAX).args(WITHOUT_IPC_LOCK).arg(roce()).args(["devinfo", "--port", &side.port]);
    let output = Process::start(&mut command).finish(TIMEOUT);
    assert!(!output.status.success(), "{output:?}");
    for part in ["may lock 64 KiB here", "ulimit -l", "LimitMEMLOCK=", "--ulimit memlock="] {
        assert!(output.stderr.contains(part), "{part}: {output:?}");
    }
}
