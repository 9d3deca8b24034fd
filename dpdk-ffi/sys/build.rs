//! Finds DPDK, generates bindings to an allow-list of it, and decides how it is linked.
//!
//! Linking is static by default. With shared libraries EAL would load every installed driver, which takes
//! most of a second and brings libibverbs into a process that may provide the ibv_* symbols itself.
//! `DPDK_SYS_LINK=shared` selects shared libraries nevertheless; they are also used if the distribution has
//! no static ones. Then the redirection of the drivers' calls is missing, with these effects:
//!
//! * guard.c, memif.c: any user may be the peer of a memif port, and a process may crash when its peer
//!   disconnects or is hostile;
//! * vhost.c: a vhost port does not wake a thread that sleeps, which therefore polls at intervals;
//! * virtio.c: a process may end when it closes a virtio-user port that was never started;
//! * interface.c: opening a port on a kernel interface flushes the interface's neighbours;
//! * cloexec.c: programs that the process starts inherit DPDK's file descriptors.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, panic};

const INSTALL: &str = "\
dpdk-sys needs DPDK 22.11 or later, pkg-config, a C compiler and libclang to build. Install them:
  Debian, Ubuntu:  apt-get install libdpdk-dev pkg-config gcc libclang-dev
  Fedora:          dnf install dpdk-devel pkgconf gcc clang-devel
DPDK outside the default path is found through PKG_CONFIG_PATH, libclang through LIBCLANG_PATH.";

/// Libraries that every build links; those that a release does not have are skipped.
const LIBRARIES: &[&str] = &[
    "log",
    "kvargs",
    "argparse",
    "telemetry",
    "eal",
    "ring",
    "rcu",
    "mempool",
    "mbuf",
    "net",
    "meter",
    "ethdev",
    "pci",
    "bus_pci",
    "bus_vdev",
    "mempool_ring",
    "hash",
    "timer",
    "gso",
    "cryptodev",
    "security",
    "dmadev",
    "vhost",
];

/// The drivers of a static build: ports between processes and to the kernel, and common NICs of virtual
/// machines and of Intel.
const DRIVERS: &[&str] = &[
    "net_memif",
    "net_ring",
    "net_null",
    "net_vhost",
    "net_virtio",
    "net_af_packet",
    "net_af_xdp",
    "net_tap",
    "net_e1000",
    "net_igc",
    "net_ixgbe",
    "net_i40e",
    "common_iavf",
    "net_iavf",
    "net_ice",
    "net_ena",
    "net_vmxnet3",
];

/// Libraries that create file descriptors.
const CREATORS: &[&str] =
    &["eal", "bus_pci", "vhost", "net_memif", "net_virtio", "net_af_packet", "net_af_xdp", "net_tap"];

/// Calls that create file descriptors, which a static build redirects in `CREATORS`, unless `REDIRECTED` does;
/// cloexec.c says why.
const CREATIONS: &[(&str, &str)] = &[
    ("open", "shim_cloexec_open"),
    ("open64", "shim_cloexec_open64"),
    ("socket", "shim_cloexec_socket"),
    ("accept", "shim_cloexec_accept"),
    ("recvmsg", "shim_cloexec_recvmsg"),
    ("pipe", "shim_cloexec_pipe"),
    ("dup", "shim_cloexec_dup"),
    ("eventfd", "shim_cloexec_eventfd"),
    ("epoll_create", "shim_cloexec_epoll_create"),
    ("timerfd_create", "shim_cloexec_timerfd_create"),
    ("memfd_create", "shim_cloexec_memfd_create"),
];

/// Libraries whose calls a static build redirects to functions of this crate; guard.c, memif.c, vhost.c, virtio.c,
/// interface.c and cloexec.c say why.
const REDIRECTED: &[(&str, &[(&str, &str)])] = &[
    (
        "net_memif",
        &[
            ("rte_intr_callback_register", "shim_intr_callback_register"),
            ("rte_intr_callback_unregister", "shim_intr_callback_unregister"),
            ("rte_intr_callback_unregister_pending", "shim_intr_callback_unregister_pending"),
            ("rte_intr_instance_free", "shim_intr_instance_free"),
            ("rte_log", "shim_memif_log"),
            ("bind", "shim_socket_bind"),
            ("listen", "shim_memif_listen"),
            ("accept", "shim_memif_accept"),
            ("connect", "shim_memif_connect"),
            ("recvmsg", "shim_memif_recvmsg"),
            ("sendmsg", "shim_memif_sendmsg"),
            ("mmap", "shim_memif_mmap"),
            ("mmap64", "shim_memif_mmap64"),
            ("munmap", "shim_memif_munmap"),
            ("close", "shim_memif_close"),
        ],
    ),
    ("net_vhost", &[("rte_vhost_dequeue_burst", "shim_vhost_dequeue_burst")]),
    ("net_virtio", &[("rte_intr_instance_free", "shim_virtio_instance_free")]),
    // Sockets of vhost ports are to be accessible to their owner only.
    ("vhost", &[("bind", "shim_socket_bind")]),
    ("net_af_packet", &[("ioctl", "shim_interface_ioctl"), ("setsockopt", "shim_interface_setsockopt")]),
    (
        "net_af_xdp",
        &[
            ("ioctl", "shim_interface_ioctl"),
            ("xsk_umem__create", "shim_cloexec_umem_create"),
            ("xsk_socket__create", "shim_cloexec_xsk_create"),
        ],
    ),
];

const MLX5_DRIVERS: &[&str] = &["bus_auxiliary", "common_mlx5", "net_mlx5"];

/// Functions and types bound to directly; inline functions are in shim.c.
const ALLOWED_FUNCTIONS: &[&str] = &[
    "shim_.*",
    "rte_version",
    "rte_strerror",
    "rte_eal_(init|hotplug_add|hotplug_remove|alarm_set)",
    "rte_log_cur_msg_loglevel",
    "rte_thread_(register|unregister)",
    "rte_socket_id",
    "rte_pktmbuf_(pool_create|free_bulk)",
    "rte_mempool_(free|avail_count|walk)",
    "rte_eth_dev_(configure|start|stop|close|info_get|get_mtu|set_mtu|socket_id|get_port_by_name)",
    "rte_eth_dev_(adjust_nb_rx_tx_desc|rx_intr_enable|rx_intr_disable|rx_intr_ctl_q_get_fd)",
    "rte_eth_(rx|tx)_queue_setup",
    "rte_eth_promiscuous_(enable|disable)",
    "rte_eth_(macaddr_get|stats_get|stats_reset|xstats_get|xstats_get_names)",
];
const ALLOWED_TYPES: &[&str] =
    &["shim_.*", "rte_eth_(conf|dev_info|stats|xstat|xstat_name)", "rte_ether_addr"];
const ALLOWED_VARS: &[&str] = &["SHIM_.*", "RTE_LOG_[A-Z]+"];

/// The error is the whole text for the user.
type Result<T> = std::result::Result<T, String>;

fn main() {
    println!("cargo:rerun-if-changed=guard.c");
    println!("cargo:rerun-if-changed=memif.c");
    println!("cargo:rerun-if-changed=vhost.c");
    println!("cargo:rerun-if-changed=virtio.c");
    println!("cargo:rerun-if-changed=interface.c");
    println!("cargo:rerun-if-changed=cloexec.c");
    println!("cargo:rerun-if-changed=shim.c");
    println!("cargo:rerun-if-changed=shim.h");
    println!("cargo:rerun-if-env-changed=DPDK_SYS_LINK");
    println!("cargo:rustc-check-cfg=cfg(dpdk_static)");
    if let Err(reason) = build() {
        eprintln!("error: {reason}");
        std::process::exit(1);
    }
}

fn build() -> Result<()> {
    let library = pkg_config::Config::new()
        .atleast_version("22.11")
        .cargo_metadata(false)
        .env_metadata(true)
        .probe("libdpdk")
        .map_err(|error| format!("{INSTALL}\n\npkg-config said: {error}"))?;
    let flags = compiler_flags()?;
    bind(&flags)?;
    compile(&flags)?;
    link(&library)
}

/// Returns the C flags as pkg-config prints them, because the crate `pkg_config` drops `-include
/// rte_config.h` and `-march`, and DPDK's headers need both.
fn compiler_flags() -> Result<Vec<String>> {
    let program = env::var_os("PKG_CONFIG").unwrap_or_else(|| "pkg-config".into());
    let output = Command::new(program)
        .args(["--cflags", "libdpdk"])
        .output()
        .map_err(|error| format!("{INSTALL}\n\ncannot run pkg-config: {error}"))?;
    if !output.status.success() {
        return Err(format!("{INSTALL}\n\npkg-config said: {}", String::from_utf8_lossy(&output.stderr)));
    }
    Ok(String::from_utf8_lossy(&output.stdout).split_whitespace().map(str::to_owned).collect())
}

fn out_dir() -> PathBuf {
    PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"))
}

fn bind(flags: &[String]) -> Result<()> {
    let mut builder = bindgen::Builder::default()
        .header("shim.h")
        .clang_args(flags)
        // Vector types that DPDK's headers touch on x86 and bindgen cannot express.
        .blocklist_type("__tile1024i.*")
        // Used through pointers only; their layouts differ between releases.
        .opaque_type("rte_mempool")
        .opaque_type("rte_mbuf")
        .derive_debug(false)
        .default_enum_style(bindgen::EnumVariation::Consts)
        .prepend_enum_name(false)
        .layout_tests(false)
        .generate_comments(false);
    for pattern in ALLOWED_FUNCTIONS {
        builder = builder.allowlist_function(pattern);
    }
    for pattern in ALLOWED_TYPES {
        builder = builder.allowlist_type(pattern);
    }
    for pattern in ALLOWED_VARS {
        builder = builder.allowlist_var(pattern);
    }
    // bindgen panics if libclang cannot be loaded, with a text that does not say what to install.
    let generated = panic::catch_unwind(panic::AssertUnwindSafe(|| builder.generate()))
        .map_err(|_| format!("{INSTALL}\n\nlibclang could not be loaded (see above)"))?
        .map_err(|error| format!("{INSTALL}\n\nbindgen: {error}"))?;
    let path = out_dir().join("bindings.rs");
    generated.write_to_file(&path).map_err(|error| format!("cannot write {}: {error}", path.display()))
}

fn compile(flags: &[String]) -> Result<()> {
    let mut build = cc::Build::new();
    build
        .files(["shim.c", "guard.c", "memif.c", "vhost.c", "virtio.c", "interface.c", "cloexec.c"])
        .opt_level(3)
        .warnings(false);
    // Otherwise an undeclared function returns an int, even if it should return a pointer.
    build.flag("-Werror=implicit-function-declaration");
    for flag in flags {
        build.flag(flag);
    }
    build.try_compile("dpdk_shim").map_err(|error| format!("{INSTALL}\n\nthe C compiler: {error}"))
}

fn link(library: &pkg_config::Library) -> Result<()> {
    let libdir = pkg_config::get_variable("libdpdk", "libdir")
        .map_err(|error| format!("{INSTALL}\n\npkg-config said: {error}"))?;
    println!("cargo:rustc-link-search=native={libdir}");
    let has_archive = |name: &str| Path::new(&libdir).join(format!("librte_{name}.a")).exists();
    match env::var("DPDK_SYS_LINK").as_deref() {
        Ok("shared") => link_shared(library),
        Ok("static") | Err(_) if has_archive("eal") => link_static(&libdir, &has_archive)?,
        Ok("static") => return Err(format!("DPDK_SYS_LINK=static, but {libdir} has no librte_eal.a")),
        Err(_) => {
            println!("cargo:warning={libdir} has no static DPDK libraries, linking the shared ones");
            link_shared(library);
        }
        Ok(other) => return Err(format!("DPDK_SYS_LINK={other}: it is either \"static\" or \"shared\"")),
    }
    Ok(())
}

fn link_shared(library: &pkg_config::Library) {
    for path in &library.link_paths {
        println!("cargo:rustc-link-search=native={}", path.display());
    }
    for name in ["eal", "ethdev", "mempool", "mbuf", "ring", "log", "bus_vdev", "bus_pci"] {
        if library.libs.iter().any(|lib| lib == &format!("rte_{name}")) {
            println!("cargo:rustc-link-lib=dylib=rte_{name}");
        }
    }
}

fn link_static(libdir: &str, has_archive: &dyn Fn(&str) -> bool) -> Result<()> {
    println!("cargo:rustc-cfg=dpdk_static");
    let mlx5 = env::var_os("CARGO_FEATURE_MLX5").is_some();
    let chosen = LIBRARIES.iter().chain(DRIVERS).chain(if mlx5 { MLX5_DRIVERS } else { &[] });
    // Whole archives, because drivers register themselves in constructors that nothing refers to.
    for name in chosen.filter(|name| has_archive(name)) {
        let calls = redirected(name);
        let archive = if calls.is_empty() { format!("rte_{name}") } else { redirect(libdir, name, &calls)? };
        println!("cargo:rustc-link-lib=static:+whole-archive,-bundle={archive}");
    }
    // The libraries that those archives need, of all that DPDK as a whole needs.
    let mut needed = vec!["numa", "fdt", "bsd", "archive", "xdp", "bpf"];
    needed.extend(if mlx5 { ["mlx5", "ibverbs"].as_slice() } else { &[] });
    let whole = pkg_config::Config::new()
        .cargo_metadata(false)
        .statik(true)
        .probe("libdpdk")
        .map_err(|error| format!("{INSTALL}\n\npkg-config said: {error}"))?;
    for name in needed.iter().filter(|name| whole.libs.iter().any(|lib| lib == *name)) {
        println!("cargo:rustc-link-lib=dylib={name}");
    }
    Ok(())
}

/// Returns the calls of the library `name` to redirect.
fn redirected(name: &str) -> Vec<(&'static str, &'static str)> {
    let own = REDIRECTED.iter().find(|(library, _)| *library == name).map_or(&[][..], |(_, calls)| calls);
    let creations = if CREATORS.contains(&name) { CREATIONS } else { &[] };
    let others = creations.iter().filter(|(from, _)| own.iter().all(|(other, _)| from != other));
    own.iter().chain(others).copied().collect()
}

/// Makes a copy of a library in which `calls` refer to other functions.
fn redirect(libdir: &str, name: &str, calls: &[(&str, &str)]) -> Result<String> {
    let copy = format!("rte_{name}_redirected");
    let target = out_dir().join(format!("lib{copy}.a"));
    let status = Command::new(env::var_os("OBJCOPY").unwrap_or_else(|| "objcopy".into()))
        .args(calls.iter().map(|(from, to)| format!("--redefine-sym={from}={to}")))
        .arg(Path::new(libdir).join(format!("librte_{name}.a")))
        .arg(&target)
        .status()
        .map_err(|error| format!("{INSTALL}\n\ncannot run objcopy (package binutils): {error}"))?;
    if !status.success() {
        return Err(format!("objcopy could not write {}: {status}", target.display()));
    }
    println!("cargo:rustc-link-search=native={}", out_dir().display());
    Ok(copy)
}
