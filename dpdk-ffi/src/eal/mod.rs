//! DPDK's environment abstraction layer (EAL): memory, log and buses. Once per process.

mod args;
mod error;

use std::ffi::{CStr, CString, c_char, c_int};
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::{env, fs, io};

use crate::errno::Errno;
use crate::log::{self, LogLevel};
use crate::process::{self, PerProcess};
use crate::runtime_dir::{private_dir, stand_in_runtime_dir};
use args::Checked;
pub use error::EalError;

/// Source of DPDK's memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Memory {
    /// Hugepages if the process is root and [`Memory::HUGEPAGES_WANTED_BYTES`] of them are free, otherwise
    /// ordinary pages of [`Memory::NO_HUGE_MIB`].
    #[default]
    Auto,
    /// Hugepages, allocated as needed, and without files in hugetlbfs.
    HugePages,
    /// Ordinary pages, without privilege. The address space is reserved at the start, and pages are allocated
    /// on first use.
    NoHuge {
        /// Size, in MiB.
        mebibytes: u32,
    },
}

impl Memory {
    /// Free hugepages, in bytes, that [`Memory::Auto`] requires to use them.
    pub const HUGEPAGES_WANTED_BYTES: u64 = 256 << 20;
    /// Memory that [`Memory::Auto`] reserves without hugepages, in MiB.
    pub const NO_HUGE_MIB: u32 = 512;
}

/// Configuration of EAL. The default suits a program that opens its ports by [`Eal::attach_vdev`] and
/// [`Eal::attach_pci`].
#[derive(Clone, Debug, Default)]
pub struct EalConfig {
    /// Source of memory. Ignored if `extra_args` set it.
    pub memory: Memory,
    /// Messages of DPDK's log that reach standard error.
    pub log_level: LogLevel,
    /// Further arguments of `rte_eal_init`, which replace arguments chosen here that contradict them.
    pub extra_args: Vec<String>,
}

/// Proof that EAL runs in this process.
///
/// EAL runs until the process ends and has no owner to drop, because any thread may still return buffers to
/// its memory. With the arguments chosen here EAL leaves no files behind.
#[derive(Clone, Copy, Debug)]
pub struct Eal(());

/// Whether EAL runs. The lock also serialises initialisations.
static RUNNING: PerProcess<Mutex<bool>> = PerProcess::new();

impl Eal {
    /// Starts EAL with arguments for the machine and the user: hugepages if available, no file that outlives
    /// the process, no PCI device before it is attached, the calling thread's CPU affinity unchanged, no
    /// further lcores.
    ///
    /// The calling thread becomes EAL's main lcore. SIGPIPE is ignored from here on unless the program
    /// handles it, because virtio-user writes to sockets whose peer may have closed.
    ///
    /// Sets the environment variable `XDG_RUNTIME_DIR` if it is missing and the process is not root. A
    /// program whose other threads read the environment through C must set it beforehand.
    ///
    /// EAL's memory is not part of processes forked from now on (MADV_DONTFORK), because the process and
    /// its child would both write to it.
    ///
    /// # Errors
    /// All of [`EalError`]. After any but `AlreadyInitialized` and `Forked` another call is possible, though EAL may
    /// refuse it.
    pub fn init(config: &EalConfig) -> Result<Self, EalError> {
        let mut running = RUNNING.get().lock().unwrap_or_else(PoisonError::into_inner);
        if *running {
            return Err(EalError::AlreadyInitialized);
        }
        if let Some(pid) = process::inherited_eal() {
            return Err(EalError::Forked { pid });
        }
        let arguments = arguments(config)?;
        process::start_eal();
        if !is_root() {
            ensure_runtime_dir()?;
        }
        ignore_sigpipe();
        if !log::install(config.log_level) {
            return Err(EalError::System {
                what: "cannot redirect DPDK's log",
                error: io::Error::last_os_error(),
            });
        }
        rte_eal_init(&arguments)?;
        // SAFETY: EAL runs, and no other thread allocates its memory before the lock is released.
        let kept = unsafe { dpdk_sys::shim_keep_memory_from_forks() };
        if kept < 0 {
            let error = io::Error::from_raw_os_error(-kept);
            return Err(EalError::System { what: "cannot keep DPDK's memory from forked processes", error });
        }
        *running = true;
        Ok(Self(()))
    }

    /// Returns EAL if it runs in this process; `None` in a process forked from one in which it runs.
    pub fn get() -> Option<Self> {
        RUNNING.get().lock().unwrap_or_else(PoisonError::into_inner).then_some(Self(()))
    }

    /// Returns DPDK's name and version.
    pub fn version(self) -> String {
        // SAFETY: returns a string constant.
        unsafe { CStr::from_ptr(dpdk_sys::rte_version()) }.to_string_lossy().into_owned()
    }
}

fn rte_eal_init(arguments: &[String]) -> Result<(), EalError> {
    // Leaked, because EAL keeps pointers into its arguments and permutes the array.
    let mut argv: Vec<*mut c_char> = arguments
        .iter()
        .map(|argument| CString::new(argument.as_str()).map(CString::into_raw))
        .collect::<Result<_, _>>()
        .map_err(|error| EalError::InvalidArgument {
            argument: arguments.join(" "),
            reason: error.to_string(),
        })?;
    let argc = c_int::try_from(argv.len()).expect("a handful of arguments");
    argv.push(std::ptr::null_mut());
    let mark = log::mark();
    // SAFETY: `argv` is a null-terminated array of `argc` C strings that are never freed. EAL is called by one
    // thread at a time (the lock in `init`).
    let ret = unsafe { dpdk_sys::rte_eal_init(argc, argv.leak().as_mut_ptr()) };
    if ret < 0 {
        let arguments = arguments.get(1..).unwrap_or_default().join(" ");
        return Err(EalError::Init { arguments, errno: Errno::last(), log: log::since(mark) });
    }
    Ok(())
}

/// Returns the command line, program name first.
fn arguments(config: &EalConfig) -> Result<Vec<String>, EalError> {
    const MEMORY: &[&str] = &[
        "no-huge",
        "in-memory",
        "m",
        "socket-mem",
        "huge-dir",
        "legacy-mem",
        "huge-unlink",
        "file-prefix",
        "proc-type",
    ];
    let given = Checked::new(&config.extra_args)?;
    let mut arguments = vec!["dpdk-ffi".to_owned()];
    if !given.has_any(MEMORY) {
        arguments.extend(memory_arguments(config.memory, free_hugepages_bytes())?);
    }
    if !given.has_any(&["c", "l", "lcores", "s", "S"]) {
        // One lcore on the CPUs that the thread may run on, because EAL sets the affinity to those of its
        // lcore.
        arguments.push(format!("--lcores=0@({})", affinity_cpus()?));
    }
    if !given.has_any(&["a", "allow", "b", "block", "no-pci"]) {
        // An allow-list with an address that no machine has: EAL takes no PCI device at the start, but
        // devices can be attached later. After --no-pci they could not.
        arguments.push("--allow=ffff:ff:1f.7".to_owned());
    }
    if !given.has_any(&["telemetry", "no-telemetry"]) {
        arguments.push("--no-telemetry".to_owned());
    }
    if !given.has_any(&["log-level"]) {
        arguments.push(format!("--log-level={}", config.log_level.eal_level()));
    }
    arguments.extend(config.extra_args.iter().cloned());
    Ok(arguments)
}

fn memory_arguments(memory: Memory, free_bytes: u64) -> Result<Vec<String>, EalError> {
    let mebibytes = match memory {
        Memory::NoHuge { mebibytes } => mebibytes,
        Memory::Auto if !is_root() || free_bytes < Memory::HUGEPAGES_WANTED_BYTES => Memory::NO_HUGE_MIB,
        Memory::HugePages if free_bytes == 0 => return Err(EalError::NoHugePages),
        // A single file, because virtio-user cannot pass the descriptors of one file per page to its peer.
        Memory::Auto | Memory::HugePages => {
            return Ok(["--in-memory", "--iova-mode=va", "--single-file-segments"]
                .map(str::to_owned)
                .to_vec());
        }
    };
    Ok(vec!["--no-huge".to_owned(), "-m".to_owned(), mebibytes.to_string(), "--no-shconf".to_owned()])
}

/// Returns the free hugepages of all sizes, in bytes; 0 if the kernel has no hugepages.
fn free_hugepages_bytes() -> u64 {
    let Ok(sizes) = fs::read_dir("/sys/kernel/mm/hugepages") else { return 0 };
    sizes
        .flatten()
        .filter_map(|size| {
            let name = size.file_name().into_string().ok()?;
            let kibibytes: u64 = name.strip_prefix("hugepages-")?.strip_suffix("kB")?.parse().ok()?;
            let free: u64 =
                fs::read_to_string(size.path().join("free_hugepages")).ok()?.trim().parse().ok()?;
            Some(kibibytes.saturating_mul(1024).saturating_mul(free))
        })
        .sum()
}

/// Returns the CPUs that the calling thread may run on, as a list for `--lcores`.
fn affinity_cpus() -> Result<String, EalError> {
    // SAFETY: an all-zero set is an empty one.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: `set` is writable and of the size given; 0 is the calling thread.
    if unsafe { libc::sched_getaffinity(0, size_of_val(&set), &mut set) } != 0 {
        return Err(EalError::System {
            what: "cannot read the CPU affinity",
            error: io::Error::last_os_error(),
        });
    }
    // SAFETY: the indices stay below the size of the set.
    let allowed = (0..libc::CPU_SETSIZE as usize).filter(|&cpu| unsafe { libc::CPU_ISSET(cpu, &set) });
    Ok(allowed.map(|cpu| cpu.to_string()).collect::<Vec<_>>().join(","))
}

pub(crate) fn is_root() -> bool {
    // SAFETY: always succeeds.
    unsafe { libc::geteuid() == 0 }
}

/// Returns the directory for files that processes of this user share: `XDG_RUNTIME_DIR`, or one below the
/// directory for temporary files. The directory is closed to other users.
///
/// # Errors
/// `RuntimeDir`
pub fn runtime_dir() -> Result<PathBuf, EalError> {
    // SAFETY: always succeeds.
    let uid = unsafe { libc::geteuid() };
    let given = env::var_os("XDG_RUNTIME_DIR").filter(|path| !path.is_empty());
    let path = given.map_or_else(|| stand_in_runtime_dir(uid), PathBuf::from);
    match private_dir(&path, uid) {
        Ok(()) => Ok(path),
        Err(error) => Err(EalError::RuntimeDir { path, reason: error.to_string() }),
    }
}

/// Sets XDG_RUNTIME_DIR if missing, otherwise an ordinary user's EAL would find other users' files in
/// /tmp/dpdk.
fn ensure_runtime_dir() -> Result<(), EalError> {
    if env::var_os("XDG_RUNTIME_DIR").is_some() {
        return Ok(());
    }
    let path = runtime_dir()?;
    // SAFETY: the doc of `Eal::init` makes it the caller's duty that no other thread reads the environment
    // through C meanwhile; Rust's own readers share a lock with this.
    unsafe { env::set_var("XDG_RUNTIME_DIR", &path) };
    Ok(())
}

/// Ignores SIGPIPE, unless the program has a handler.
fn ignore_sigpipe() {
    // SAFETY: sigaction with a null new action only reads; the disposition set is the kernel's own SIG_IGN.
    unsafe {
        let mut current: libc::sigaction = std::mem::zeroed();
        if libc::sigaction(libc::SIGPIPE, std::ptr::null(), &mut current) == 0
            && current.sa_sigaction == libc::SIG_DFL
        {
            libc::signal(libc::SIGPIPE, libc::SIG_IGN);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(config: &EalConfig) -> String {
        arguments(config).unwrap().join(" ")
    }

    #[test]
    fn memory_decides_the_arguments() {
        let no_huge = line(&EalConfig { memory: Memory::NoHuge { mebibytes: 64 }, ..EalConfig::default() });
        assert!(no_huge.contains("--no-huge -m 64 --no-shconf"), "{no_huge}");
        assert!(!no_huge.contains("--in-memory"), "{no_huge}");
        let huge = memory_arguments(Memory::HugePages, 1 << 30).unwrap().join(" ");
        assert_eq!(huge, "--in-memory --iova-mode=va --single-file-segments");
        assert!(matches!(memory_arguments(Memory::HugePages, 0), Err(EalError::NoHugePages)));
        let few = memory_arguments(Memory::Auto, Memory::HUGEPAGES_WANTED_BYTES - 1).unwrap().join(" ");
        assert_eq!(few, "--no-huge -m 512 --no-shconf");
        let enough = memory_arguments(Memory::Auto, Memory::HUGEPAGES_WANTED_BYTES).unwrap().join(" ");
        assert_eq!(enough, if is_root() { huge } else { few });
    }

    #[test]
    fn extra_arguments_replace_what_they_contradict() {
        let extra =
            ["--no-huge", "-m", "32", "-l", "0", "--no-pci", "--log-level=8"].map(str::to_owned).to_vec();
        let line = line(&EalConfig { extra_args: extra, ..EalConfig::default() });
        assert_eq!(line, "dpdk-ffi --no-telemetry --no-huge -m 32 -l 0 --no-pci --log-level=8");
    }
}
