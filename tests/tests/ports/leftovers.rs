//! Files and sockets that processes leave behind.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use super::links::Side;
use crate::live::programs;

/// Directories in which a process of this project might create files, besides mounts of hugetlbfs.
const DIRECTORIES: [&str; 3] = ["/tmp", "/run", "/dev/shm"];

/// Returns the files and directories below the directories for run-time files, and the names of UNIX sockets, that a
/// process at either side sees. In the names of statistics sockets, the IDs of the running processes `pids` are
/// replaced by PID, and the leases of QPN prefixes, whose numbers are random, are counted for each side, so that two
/// lists with the same number of running processes are comparable.
pub(super) fn list(sides: &[Side; 2], pids: &[u32]) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for side in sides {
        let proc = side.proc();
        let root = proc.join("root");
        let hugepages = mounts(&proc.join("mounts"), "hugetlbfs");
        for directory in DIRECTORIES.iter().map(PathBuf::from).chain(hugepages) {
            walk(&root, &directory, &mut names);
        }
        let sockets = read(&proc.join("net/unix"));
        // Columns of proc_net_unix: the eighth is the name, if the socket has one.
        let sockets = sockets.lines().skip(1).filter_map(|line| line.split_whitespace().nth(7));
        let (leases, others): (Vec<_>, Vec<_>) = sockets.partition(|name| name.starts_with("@roce-qpn-"));
        names.extend(others.into_iter().map(str::to_owned));
        names.extend((1..=leases.len()).map(|number| format!("lease {number} of {}", side.port)));
    }
    names.into_iter().map(|name| without_pid(&name, pids)).collect()
}

/// Returns those of `names` that name a file or socket, and no directory.
pub(super) fn files(names: &BTreeSet<String>) -> BTreeSet<String> {
    names.iter().filter(|name| !name.ends_with('/')).cloned().collect()
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Returns where file systems of the type `kind` are mounted.
fn mounts(table: &Path, kind: &str) -> Vec<PathBuf> {
    let table = read(table);
    let columns = table.lines().map(|line| line.split(' ').collect::<Vec<_>>());
    columns.filter(|columns| columns.get(2) == Some(&kind)).map(|columns| columns[1].into()).collect()
}

fn walk(root: &Path, directory: &Path, names: &mut BTreeSet<String>) {
    let outside = root.join(directory.strip_prefix("/").expect("absolute"));
    // A directory may be removed while it is read.
    for entry in fs::read_dir(outside).into_iter().flatten().flatten() {
        let path = directory.join(entry.file_name());
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            names.insert(format!("{}/", path.display()));
            // A checkout may be in /tmp; other programs may write to it.
            if path != programs() {
                walk(root, &path, names);
            }
        } else {
            names.insert(path.display().to_string());
        }
    }
}

/// Replaces PID and NUMBER of a statistics socket `stat.PID.NUMBER`, if the process runs. The kernel lists the socket as
/// `new.PID.NUMBER`, the name before the socket was renamed.
fn without_pid(name: &str, pids: &[u32]) -> String {
    let Some((directory, file)) = name.rsplit_once('/') else { return name.to_owned() };
    let mut parts = file.splitn(3, '.');
    match (parts.next(), parts.next().map(str::parse), parts.next()) {
        (Some(prefix @ ("stat" | "new")), Some(Ok(pid)), Some(_)) if pids.contains(&pid) => {
            format!("{directory}/{prefix}.PID")
        }
        _ => name.to_owned(),
    }
}
