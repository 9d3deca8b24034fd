//! Programs under `roce run` where no mount namespace can be created: the library rewrites their paths.

use std::fs;
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use tempfile::TempDir;

use super::links::{Side, memif, veth};
use super::run::{TIMEOUT, launch};
use crate::live::{Output, Process, library, roce, run, shared_dir, turn};

/// Runs its arguments in a user namespace in which no mount namespace can be created (namespaces(7)).
const CONFINED: [&str; 6] = [
    "--user",
    "--map-root-user",
    "sh",
    "-c",
    "echo 0 >/proc/sys/user/max_mnt_namespaces && exec \"$@\"",
    "sh",
];
/// Runs its arguments as the user `nobody` of the user namespace.
const NOBODY: [&str; 5] = ["unshare", "--user", "--map-user=65534", "--map-group=65534", "--"];

/// A command that runs `program` under `roce run` without a mount namespace, with run-time files in `runtime`. The program
/// `wrapper`, with its arguments, executes `roce run`.
fn confined(side: &Side, wrapper: &[&str], runtime: &TempDir, options: &str, program: &[&str]) -> Command {
    unshared(side, &[&CONFINED[..], wrapper].concat(), runtime, options, program)
}

/// A command that runs `program` under `roce run` in namespaces of unshare(1), with run-time files in `runtime`.
/// `namespaces`: the arguments of unshare, whose command executes `roce run`.
fn unshared(side: &Side, namespaces: &[&str], runtime: &TempDir, options: &str, program: &[&str]) -> Command {
    side.bring(&library());
    let roce = side.bring(&roce());
    let mut command = side.command(Path::new("/usr/bin/unshare"));
    command.args(namespaces).arg(roce).args(["run", "--verbose", "--port", &side.port]);
    command.args(options.split_whitespace()).arg("--").args(program);
    command.env("XDG_RUNTIME_DIR", runtime.path());
    command
}

/// Returns the directories of trees.
fn trees(runtime: &TempDir) -> Vec<String> {
    let entries = fs::read_dir(runtime.path().join("roce")).into_iter().flatten().flatten();
    let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
    names.filter(|name| name.starts_with("tree.")).collect()
}

/// Waits until the number of directories of trees is `count`.
fn wait_trees(runtime: &TempDir, count: usize) {
    let end = Instant::now() + TIMEOUT;
    while trees(runtime).len() != count {
        assert!(Instant::now() < end, "not {count} trees: {:?}", trees(runtime));
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Runs `program` to its success. No tree remains.
fn finish(side: &Side, wrapper: &[&str], runtime: &TempDir, program: &[&str]) -> Output {
    let output = Process::start(&mut confined(side, wrapper, runtime, "", program)).finish(TIMEOUT);
    assert!(output.stderr.contains("roce run: rewrites paths below /sys/class/infiniband"), "{output:?}");
    wait_trees(runtime, 0);
    output.expect_success(program[0])
}

#[test]
fn programs_find_the_device_as_in_a_mount_namespace() {
    let _turn = turn();
    let [mut side, _] = memif("paths-list");
    // The GUID is derived from the MAC.
    side.port += ",mac=02:00:00:00:00:07";
    let runtime = shared_dir();
    let listing = "import os; \
                   print(os.listdir('/sys/class/infiniband'), [e.name for e in os.scandir('/dev/infiniband')], \
                   os.path.realpath('/sys/class/infiniband_verbs/uverbs_roce0/device'), \
                   open('/sys//class/infiniband/roce0/ports/1/gids/0').read())";
    // The counters are served in a mount namespace only.
    let entries = "cat /sys/class/infiniband/roce0/ports/1/gids/* && test -c /dev/infiniband/uverbs_roce0 && \
                   cat /dev/infiniband/uverbs_roce0 && realpath /sys/class/infiniband/roce0/../.. && \
                   find /sys/class/infiniband -name '*counters' -prune -o -print | sort && cd /sys/class/infiniband/roce0 && cat node_guid && \
                   ls -L /sys/class/infiniband_verbs/uverbs_roce0/device";
    for program in [
        &["ibstat"][..],
        &["ibv_devices"],
        &["ibv_devinfo", "-v"],
        &["/usr/bin/python3", "-c", listing],
        &["sh", "-c", entries],
    ] {
        let wanted =
            Process::start(&mut launch(&side, "", program)).finish(TIMEOUT).expect_success(program[0]);
        assert!(wanted.stdout.contains("roce0"), "{wanted:?}");
        for user in [&[][..], &NOBODY] {
            let output = finish(&side, user, &runtime, program);
            assert_eq!(output.stdout, wanted.stdout, "{user:?}");
        }
    }
    let output = finish(&side, &[], &runtime, &["ucx_info", "-d"]);
    assert!(output.stdout.contains("roce0:1"), "{output:?}");
}

/// A user namespace can be created, and its maps of user and group IDs cannot be written: as where AppArmor restricts user
/// namespaces (Ubuntu 24.04).
#[test]
fn the_user_id_stays_where_its_map_is_refused() {
    let _turn = turn();
    let [side, _] = memif("paths-map");
    let runtime = shared_dir();
    let read_only = "mount --rbind /proc /proc && mount -o remount,bind,ro /proc && \
                     exec setpriv --bounding-set=-all --inh-caps=-all \"$@\"";
    let namespaces = ["--user", "--map-root-user", "--mount", "sh", "-c", read_only, "sh"];
    let program = ["sh", "-c", "id -u && exec ibstat"];
    let output = Process::start(&mut unshared(&side, &namespaces, &runtime, "", &program))
        .finish(TIMEOUT)
        .expect_success("ibstat");
    assert!(output.stderr.contains("cannot write to /proc/self/setgroups"), "{output:?}");
    assert!(output.stdout.starts_with("0\nCA 'roce0'"), "{output:?}");
    wait_trees(&runtime, 0);
}

/// Root without CAP_SYS_ADMIN, as in a container with CAP_NET_ADMIN and CAP_NET_RAW.
#[test]
fn an_interface_is_found_without_the_right_to_mount() {
    let _turn = turn();
    let [near, _far] = veth("af_packet", 1500);
    let runtime = shared_dir();
    let mut command = near.command(Path::new("setpriv"));
    command.arg("--bounding-set=-sys_admin").arg(roce()).args([
        "run",
        "--verbose",
        "--port",
        &near.port,
        "--",
    ]);
    let entries = "cd /sys/class/infiniband/roce0 && cat ports/1/gids/1 ports/1/gid_attrs/ndevs/1 && \
                   readlink device/net/v0 && exec ibstat roce0";
    command.args(["sh", "-c", entries]).env("XDG_RUNTIME_DIR", runtime.path());
    let output = Process::start(&mut command).finish(TIMEOUT).expect_success("ibstat");
    assert!(output.stderr.contains("a mount namespace needs root here"), "{output:?}");
    let wanted = ["0000:0000:0000:0000:0000:ffff:0a00:0001", "v0", "/sys/class/net/v0", "CA 'roce0'"];
    assert_eq!(output.stdout.lines().take(4).collect::<Vec<_>>(), wanted, "{output:?}");
    wait_trees(&runtime, 0);
}

/// The directory belongs to the program, not to its children, and the process that removes the directory is no child of
/// the program.
#[test]
fn the_tree_is_removed_however_the_program_ends() {
    let _turn = turn();
    let [side, _] = memif("paths-end");
    let runtime = shared_dir();
    let children = finish(&side, &[], &runtime, &["cat", "/proc/thread-self/children"]);
    assert_eq!(children.stdout, "", "{children:?}");
    // The reader of a pipe ends when the program closes the pipe.
    let script =
        "cd $XDG_RUNTIME_DIR && mkfifo pipe && { { cat pipe && echo closed; } & } && exec \"$@\" 4>pipe";
    let with_pipe = ["sh", "-c", script, "sh"];
    let closes = ["sh", "-c", "exec 4>&- && exec cat"];
    let mut waiting = Process::start(&mut confined(&side, &with_pipe, &runtime, "", &closes));
    assert_eq!(waiting.line(TIMEOUT), "closed");
    assert_eq!(trees(&runtime).len(), 1, "the program waits");
    waiting.finish(TIMEOUT).expect_success("cat");
    wait_trees(&runtime, 0);
    for signal in ["KILL", "INT"] {
        // A shell in the background ignores SIGINT, and so would the program.
        let program = ["env", "--default-signal=INT", "sh", "-c", "echo $ROCE_TREE && exec cat"];
        let mut waiting = Process::start(&mut confined(&side, &[], &runtime, "", &program));
        let tree = waiting.line(TIMEOUT);
        assert!(Path::new(&tree).join("sys/class/infiniband/roce0").is_dir(), "{tree}");
        run(Command::new("kill").args([format!("-{signal}"), waiting.id().to_string()]));
        assert!(waiting.finish(TIMEOUT).status.signal().is_some());
        wait_trees(&runtime, 0);
    }
    let missing = confined(&side, &[], &runtime, "", &["roce-tests-no-such-program"]);
    let missing = Process::start(&mut { missing }).finish(TIMEOUT);
    assert_eq!(missing.status.code(), Some(127), "{missing:?}");
    wait_trees(&runtime, 0);
}

#[test]
fn paths_are_rewritten_only_without_a_mount_namespace() {
    let _turn = turn();
    let [side, _] = memif("paths-without");
    let runtime = shared_dir();
    let script = ["sh", "-c", "echo tree=$ROCE_TREE"];
    let mut without = confined(&side, &[], &runtime, "--no-sysfs", &script);
    let without = Process::start(without.env("ROCE_TREE", "/tmp")).finish(TIMEOUT).expect_success("sh");
    assert_eq!(without.stdout, "tree=\n", "{without:?}");
    let shown = Process::start(&mut launch(&side, "--verbose", &script)).finish(TIMEOUT).expect_success("sh");
    assert_eq!(shown.stdout, "tree=\n", "{shown:?}");
    assert!(shown.stderr.contains("in a mount namespace"), "{shown:?}");
}
