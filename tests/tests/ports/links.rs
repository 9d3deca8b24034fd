//! The links that the tests run over: each gives two commands that start a program at either end.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::rc::Rc;

use tempfile::TempDir;

use crate::live::{Namespace, ordinary_user, shared_dir, wait_listen};

/// One end: how to start a program there, and its port.
pub(super) struct Side {
    place: Place,
    pub(super) port: String,
    /// Index of the GID to use.
    pub(super) gid_index: u8,
}

enum Place {
    /// As an ordinary user, who finds programs in this directory.
    OrdinaryUser(TempDir),
    /// As the user who runs the tests.
    Here,
    /// In a network namespace.
    Namespace(Rc<Namespace>),
    /// In a network namespace with directories of its own, as an ordinary user.
    OrdinaryUserIn(Rc<Namespace>),
}

impl Side {
    /// A command that runs `program` there.
    pub(super) fn command(&self, program: &Path) -> Command {
        match &self.place {
            Place::OrdinaryUser(directory) => ordinary_user(program, directory),
            Place::Here => Command::new(program),
            Place::Namespace(namespace) => namespace.command(program),
            Place::OrdinaryUserIn(namespace) => namespace.ordinary_user(program),
        }
    }

    /// Another end on the port of this one, which several processes can share.
    pub(super) fn twin(&self) -> Side {
        let Place::Namespace(namespace) = &self.place else { panic!("{} is of one process", self.port) };
        let place = Place::Namespace(namespace.clone());
        Side { place, port: self.port.clone(), gid_index: self.gid_index }
    }

    /// Brings `file` to the directory in which programs there lie, if they lie in one of their own. Returns its path
    /// there.
    pub(super) fn bring(&self, file: &Path) -> PathBuf {
        // A program is brought there when its command is made, and any file is brought alike. An ordinary user's command
        // has the path there as its last argument.
        let command = self.command(file);
        match &self.place {
            Place::Here | Place::Namespace(_) => file.to_owned(),
            Place::OrdinaryUser(_) | Place::OrdinaryUserIn(_) => {
                command.get_args().last().unwrap_or(command.get_program()).into()
            }
        }
    }

    /// Whether a program there may write captures where tests leave them.
    pub(super) fn may_capture(&self) -> bool {
        !matches!(self.place, Place::OrdinaryUser(_) | Place::OrdinaryUserIn(_))
    }

    /// Waits until a program there listens on `tcp_port`.
    pub(super) fn wait_listen(&self, tcp_port: u16) {
        match &self.place {
            Place::OrdinaryUser(_) | Place::Here => wait_listen(|| Command::new("cat"), tcp_port),
            Place::Namespace(namespace) => namespace.wait_listen(tcp_port),
            Place::OrdinaryUserIn(namespace) => namespace.wait_listen(tcp_port),
        }
    }

    /// The directory of the kernel's information about a process there (proc(5)).
    pub(super) fn proc(&self) -> PathBuf {
        match &self.place {
            Place::OrdinaryUser(_) | Place::Here => "/proc/self".into(),
            Place::Namespace(namespace) => namespace.proc(),
            Place::OrdinaryUserIn(namespace) => namespace.proc(),
        }
    }
}

/// A name of this test run's own.
pub(super) fn unique(name: &str) -> String {
    format!("roce-tests-{}-{name}", std::process::id())
}

/// Shared memory between two processes of an ordinary user, without hugepages.
pub(super) fn memif(name: &str) -> [Side; 2] {
    [(); 2].map(|()| Side {
        place: Place::OrdinaryUser(shared_dir()),
        port: format!("memif:@{}", unique(name)),
        gid_index: 0,
    })
}

/// A memif named `target` between two processes of an ordinary user, in a namespace with directories of its own.
pub(super) fn memif_in_own_directories(target: &str) -> [Side; 2] {
    in_own_directories([(); 2].map(|()| format!("memif:{target}")), 0)
}

/// The two ends of a vhost-user socket as of [`vhost`], of an ordinary user, in a namespace with directories of its own.
pub(super) fn vhost_in_own_directories() -> [Side; 2] {
    in_own_directories(
        ["vhost:/tmp/kill.sock,ip=10.0.0.1/24", "virtio-user:/tmp/kill.sock,ip=10.0.0.2/24"],
        1,
    )
}

fn in_own_directories(ports: [impl Into<String>; 2], gid_index: u8) -> [Side; 2] {
    let namespace = Rc::new(Namespace::with_own_directories());
    let place = || Place::OrdinaryUserIn(namespace.clone());
    ports.map(|port| Side { place: place(), port: port.into(), gid_index })
}

/// The two ends of a vhost-user socket; the first makes it.
pub(super) fn vhost(name: &str) -> [Side; 2] {
    let socket = std::env::temp_dir().join(unique(name)).display().to_string();
    let side =
        |kind, ip| Side { place: Place::Here, port: format!("{kind}:{socket},ip={ip}/24"), gid_index: 1 };
    [side("vhost", "10.0.0.1"), side("virtio-user", "10.0.0.2")]
}

/// A veth pair between two network namespaces, with ports of this kind on both ends, and a second pair: the first side is
/// 10.0.0.1 on the first pair and 10.1.0.1 on the second.
pub(super) fn veth(kind: &str, mtu_bytes: usize) -> [Side; 2] {
    veth_from(Namespace::new(), kind, mtu_bytes)
}

/// A veth pair as of [`veth`], between `near` and a namespace beside.
pub(super) fn veth_from(near: Namespace, kind: &str, mtu_bytes: usize) -> [Side; 2] {
    let far = near.beside();
    near.link("v0", &far, "v1", mtu_bytes);
    near.ip("address add 10.0.0.1/24 dev v0");
    far.ip("address add 10.0.0.2/24 dev v1");
    near.wait_up("v0");
    far.wait_up("v1");
    // For TCP, because an XDP port takes all frames from its interface.
    near.link("t0", &far, "t1", 1500);
    near.ip("address add 10.1.0.1/24 dev t0");
    far.ip("address add 10.1.0.2/24 dev t1");
    near.wait_up("t0");
    far.wait_up("t1");
    let side = |namespace, interface| Side {
        place: Place::Namespace(Rc::new(namespace)),
        port: format!("{kind}:{interface}"),
        gid_index: 1,
    };
    [side(near, "v0"), side(far, "v1")]
}
