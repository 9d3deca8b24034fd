//! The file system of counters, as the FUSE protocol queries it: a directory for each device, with the directories
//! `counters` and `hw_counters`. The file of a counter has the value at the time of the read.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fmt;
use std::io;
use std::str::FromStr;
use std::sync::Mutex;
use std::time::{Duration, UNIX_EPOCH};

use anyhow::Context as _;
use fuser::{
    Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo, LockOwner, OpenFlags,
    ReplyAttr, ReplyData, ReplyDirectory, ReplyEmpty, ReplyEntry, ReplyOpen, Request,
};
use verbs::stat::DeviceCounters;

use super::values::{Counter, directories};

/// Size of the files in bytes: as of files of sysfs, whose content is shorter.
const SIZE_BYTES: u64 = 4096;
/// Time for which the kernel may keep attributes and names.
const TTL: Duration = Duration::ZERO;

/// A device whose counters are shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CountedDevice {
    /// roce0, roce1 and so on.
    pub(crate) name: String,
    /// The port's name, `KIND:TARGET`.
    pub(crate) port: String,
}

impl fmt::Display for CountedDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", self.name, self.port)
    }
}

impl FromStr for CountedDevice {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> anyhow::Result<Self> {
        let (name, port) = text.split_once('=').context("a device is NAME=PORT")?;
        Ok(CountedDevice { name: name.to_owned(), port: port.to_owned() })
    }
}

/// Reads the counters of the open devices of a port.
type Reader = dyn Fn(&str) -> io::Result<Vec<DeviceCounters>> + Send + Sync;

/// A file or directory. Its inode number is its index in [`CounterFiles::nodes`] plus 1.
struct Node {
    name: String,
    /// Inode number of the directory; of the root, that of the root.
    parent: u64,
    content: Content,
}

enum Content {
    Directory,
    File { counter: Counter, port: String },
}

impl Content {
    fn kind(&self) -> FileType {
        match self {
            Content::Directory => FileType::Directory,
            Content::File { .. } => FileType::RegularFile,
        }
    }
}

/// The contents of open files, by handle: those of the latest read from the beginning of the file.
#[derive(Default)]
struct OpenFiles {
    next: u64,
    contents: BTreeMap<u64, Vec<u8>>,
}

/// The file system.
pub(super) struct CounterFiles {
    nodes: Vec<Node>,
    reader: Box<Reader>,
    open: Mutex<OpenFiles>,
    uid: u32,
    gid: u32,
}

impl CounterFiles {
    /// Makes the files of `devices`, which belong to the user `uid` and the group `gid`. `reader` is called when a
    /// program reads a file.
    pub(super) fn new(devices: &[CountedDevice], reader: Box<Reader>, uid: u32, gid: u32) -> Self {
        let mut nodes = Vec::new();
        let mut add = |name: &str, parent: u64, content| {
            nodes.push(Node { name: name.to_owned(), parent, content });
            nodes.len() as u64
        };
        let root = add("", INodeNo::ROOT.0, Content::Directory);
        for device in devices {
            let of_device = add(&device.name, root, Content::Directory);
            for (name, counters) in directories() {
                let directory = add(name, of_device, Content::Directory);
                for counter in counters {
                    let name = counter.name;
                    add(name, directory, Content::File { counter, port: device.port.clone() });
                }
            }
        }
        CounterFiles { nodes, reader, open: Mutex::default(), uid, gid }
    }

    fn node(&self, ino: u64) -> Option<&Node> {
        self.nodes.get(usize::try_from(ino.checked_sub(1)?).ok()?)
    }

    /// Returns inode numbers and nodes of the entries of a directory.
    fn children(&self, directory: u64) -> impl Iterator<Item = (u64, &Node)> {
        (1..).zip(&self.nodes).skip(1).filter(move |(_, node)| node.parent == directory)
    }

    fn find(&self, directory: u64, name: &OsStr) -> Option<u64> {
        self.children(directory).find(|(_, node)| name == OsStr::new(&node.name)).map(|(ino, _)| ino)
    }

    /// Returns inode number, kind and name of all entries of a directory, including the directory itself and its parent.
    fn list(&self, directory: u64) -> Option<Vec<(u64, FileType, &str)>> {
        let node = self.node(directory).filter(|node| node.content.kind() == FileType::Directory)?;
        let mut entries =
            vec![(directory, FileType::Directory, "."), (node.parent, FileType::Directory, "..")];
        entries.extend(
            self.children(directory).map(|(ino, node)| (ino, node.content.kind(), node.name.as_str())),
        );
        Some(entries)
    }

    fn attr(&self, ino: u64) -> Option<FileAttr> {
        let kind = self.node(ino)?.content.kind();
        let (perm, size) = if kind == FileType::Directory { (0o555, 0) } else { (0o444, SIZE_BYTES) };
        Some(FileAttr {
            ino: INodeNo(ino),
            size,
            blocks: 0,
            atime: UNIX_EPOCH,
            mtime: UNIX_EPOCH,
            ctime: UNIX_EPOCH,
            crtime: UNIX_EPOCH,
            kind,
            perm,
            nlink: 1,
            uid: self.uid,
            gid: self.gid,
            rdev: 0,
            blksize: 4096,
            flags: 0,
        })
    }

    /// Returns the content of the file `ino` now.
    fn content(&self, ino: u64) -> Result<Vec<u8>, Errno> {
        let Some(Node { content: Content::File { counter, port }, .. }) = self.node(ino) else {
            return Err(Errno::EISDIR);
        };
        let devices = (self.reader)(port).map_err(|_| Errno::EIO)?;
        let value = counter.value(&devices).ok_or(Errno::ENODATA)?;
        Ok(format!("{value}\n").into_bytes())
    }

    fn open_file(&self) -> u64 {
        let mut open = self.open.lock().expect("no panic while locked");
        let handle = open.next;
        open.next += 1;
        open.contents.insert(handle, Vec::new());
        handle
    }

    fn close_file(&self, handle: u64) {
        self.open.lock().expect("no panic while locked").contents.remove(&handle);
    }

    /// Returns at most `size` bytes of the file from `offset`. A read from the beginning asks for the value of now. A
    /// read from a later offset continues the content of the read before, so that a value that is read in parts is one
    /// value.
    fn read_file(&self, ino: u64, handle: u64, offset: u64, size: u32) -> Result<Vec<u8>, Errno> {
        let now = if offset == 0 { Some(self.content(ino)?) } else { None };
        let mut open = self.open.lock().expect("no panic while locked");
        let content = open.contents.get_mut(&handle).ok_or(Errno::EBADF)?;
        if let Some(now) = now {
            *content = now;
        }
        let offset = usize::try_from(offset).unwrap_or(usize::MAX);
        let rest = content.get(offset..).unwrap_or_default();
        let size = usize::try_from(size).unwrap_or(usize::MAX);
        Ok(rest.get(..size).unwrap_or(rest).to_vec())
    }
}

/// Queries without a function here are refused with ENOSYS.
impl Filesystem for CounterFiles {
    fn lookup(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        match self.find(parent.0, name).and_then(|ino| self.attr(ino)) {
            Some(attr) => reply.entry(&TTL, &attr, Generation(0)),
            None => reply.error(Errno::ENOENT),
        }
    }

    fn getattr(&self, _: &Request, ino: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        match self.attr(ino.0) {
            Some(attr) => reply.attr(&TTL, &attr),
            None => reply.error(Errno::ENOENT),
        }
    }

    fn readdir(&self, _: &Request, ino: INodeNo, _: FileHandle, offset: u64, mut reply: ReplyDirectory) {
        let Some(entries) = self.list(ino.0) else { return reply.error(Errno::ENOTDIR) };
        // The offset of an entry is that of the entry after it.
        for (next, (ino, kind, name)) in
            (1..).zip(entries).skip(usize::try_from(offset).unwrap_or(usize::MAX))
        {
            if reply.add(INodeNo(ino), next, kind, name) {
                break;
            }
        }
        reply.ok();
    }

    fn open(&self, _: &Request, _: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        // Without DIRECT_IO the kernel reads into the page cache, and may answer later reads from there.
        reply.opened(FileHandle(self.open_file()), FopenFlags::FOPEN_DIRECT_IO | FopenFlags::FOPEN_NOFLUSH);
    }

    fn read(
        &self,
        _: &Request,
        ino: INodeNo,
        handle: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        match self.read_file(ino.0, handle.0, offset, size) {
            Ok(bytes) => reply.data(&bytes),
            Err(error) => reply.error(error),
        }
    }

    fn release(
        &self,
        _: &Request,
        _: INodeNo,
        handle: FileHandle,
        _: OpenFlags,
        _: Option<LockOwner>,
        _: bool,
        reply: ReplyEmpty,
    ) {
        self.close_file(handle.0);
        reply.ok();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

    use super::*;

    /// Two devices. The counter `sent_pkts` of memif:@a is the number returned with the files; memif:@b does not answer.
    fn files() -> (CounterFiles, Arc<AtomicU64>) {
        let sent_pkts = Arc::new(AtomicU64::new(0));
        let source = sent_pkts.clone();
        let reader = move |port: &str| match port {
            "memif:@a" => {
                let queue_pairs = [("sent_pkts".to_owned(), source.load(Relaxed))].into();
                Ok(vec![DeviceCounters { queue_pairs, ..DeviceCounters::default() }])
            }
            _ => Err(io::ErrorKind::TimedOut.into()),
        };
        let device = |name: &str, port: &str| CountedDevice { name: name.to_owned(), port: port.to_owned() };
        let devices = [device("roce0", "memif:@a"), device("roce1", "memif:@b")];
        (CounterFiles::new(&devices, Box::new(reader), 7, 8), sent_pkts)
    }

    fn path(files: &CounterFiles, path: &str) -> Option<u64> {
        path.split('/').try_fold(INodeNo::ROOT.0, |at, name| files.find(at, OsStr::new(name)))
    }

    #[test]
    fn names_are_those_of_a_port() {
        let (files, _) = files();
        for name in ["roce0/counters/port_xmit_data", "roce1/hw_counters/out_of_buffer"] {
            let attr = files.attr(path(&files, name).expect(name)).expect("attributes");
            assert_eq!((attr.kind, attr.perm, attr.uid, attr.gid), (FileType::RegularFile, 0o444, 7, 8));
        }
        for name in
            ["roce2", "roce0/counters/sent_pkts", "roce0/hw_counters/port_xmit_data", "roce0/counters/"]
        {
            assert_eq!(path(&files, name), None, "{name}");
        }
        let root = files.list(INodeNo::ROOT.0).expect("a directory");
        let names: Vec<&str> = root.iter().map(|(_, _, name)| *name).collect();
        assert_eq!(names, [".", "..", "roce0", "roce1"]);
        let directory = path(&files, "roce1/counters").expect("a directory");
        let entries = files.list(directory).expect("a directory");
        assert_eq!(entries[1].0, path(&files, "roce1").expect("a directory"), "the parent");
        for (ino, kind, name) in &entries[2..] {
            assert_eq!(path(&files, &format!("roce1/counters/{name}")), Some(*ino));
            assert_eq!(*kind, FileType::RegularFile);
        }
        assert!(files.list(entries[2].0).is_none(), "no directory");
        for ino in [0, files.nodes.len() as u64 + 1, u64::MAX] {
            assert!(files.attr(ino).is_none() && files.list(ino).is_none(), "{ino}");
        }
        assert!(files.attr(files.nodes.len() as u64).is_some());
    }

    #[test]
    fn an_open_file_has_the_value_of_each_read() {
        let (files, sent_pkts) = files();
        let ino = path(&files, "roce0/hw_counters/sent_pkts").expect("a file");
        let [handle, other] = [files.open_file(), files.open_file()];
        let read = |handle, offset, size| files.read_file(ino, handle, offset, size);
        assert_eq!(read(handle, 0, 64).as_deref(), Ok(&b"0\n"[..]));
        sent_pkts.store(u64::MAX, Relaxed);
        assert_eq!(read(handle, 0, 64).as_deref(), Ok(&b"18446744073709551615\n"[..]));
        // A value that is read in parts, and changes in between.
        assert_eq!(read(handle, 0, 3).as_deref(), Ok(&b"184"[..]));
        sent_pkts.store(5, Relaxed);
        assert_eq!(read(other, 0, 64).as_deref(), Ok(&b"5\n"[..]));
        assert_eq!(read(handle, 3, 64).as_deref(), Ok(&b"46744073709551615\n"[..]));
        for offset in [21, 22, u64::MAX] {
            assert_eq!(read(handle, offset, 64).as_deref(), Ok(&b""[..]), "{offset}");
        }
        assert_eq!(read(handle, 0, 64).as_deref(), Ok(&b"5\n"[..]));
        files.close_file(handle);
        assert_eq!(read(handle, 0, 64), Err(Errno::EBADF));
        assert_eq!(files.open.lock().expect("no panic").contents.len(), 1);
    }

    #[test]
    fn a_value_that_is_unknown_is_an_error() {
        let (files, _) = files();
        let read = |name| files.read_file(path(&files, name).expect(name), files.open_file(), 0, 64);
        assert_eq!(read("roce1/hw_counters/sent_pkts"), Err(Errno::EIO), "no answer");
        assert_eq!(read("roce0/counters/port_xmit_data"), Err(Errno::ENODATA), "no such counter");
        assert_eq!(read("roce0/counters"), Err(Errno::EISDIR));
    }
}
