#!/usr/bin/env bash
# Installs what is missing, then checks everything. CI runs this and nothing else.
#
#   scripts/check.sh          all steps, cheap ones first
#   scripts/check.sh quick    the inner loop: format, scripts, commits, lints, tests of the engine, fewer fault tapes
#   scripts/check.sh STEP...  one or more of:
#
#   packages             installs what the others need, with apt-get
#   format, shellcheck   rustfmt and conflict markers; shell scripts
#   commits              subjects of new commits (scripts/commits.sh)
#   deny                 licences, duplicates and sources of dependencies, by cargo-deny
#   image                the image of the soft-RoCE guest
#   lint, docs           clippy and rustdoc, without warnings
#   msrv                 cargo check with the rust-version of Cargo.toml, where rustup has or can install it
#   build, test          programs; all tests but the guest's
#   package              the Debian package, built and tested (scripts/package.sh --test)
#   wrap                 tests with every counter near its wrap
#   guest                tests against soft-RoCE in the guest
#   instructions         instruction counts, against those pinned
#   loom                 models of threads, in every interleaving
#   asan, tsan           tests, and C programs over the C interface, under AddressSanitizer (C code too) and
#                        ThreadSanitizer (where rustup has or can install a nightly toolchain)
#   miri                 tests under Miri, where rustup has or can install a nightly toolchain with it
#   fuzz                 each fuzz target for half a minute
#
# The last lines name the steps that could not run. Among all steps, image, instructions, package, miri and fuzz, and the
# released part of test, run beside other steps, because each of them uses one core for most of its time; their output
# follows that of these other steps.
#
# packages and image use sudo where the caller is not root; all other steps run as an ordinary user, and no test
# installs anything. No process is left running; only target/, ~/.cache and (msrv) rustup's toolchains are written.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=scripts/install.sh
. scripts/install.sh

not_run=()
QUICK_TAPES=2000
FUZZ_SECONDS=30
CARGO_DENY_VERSION=0.20.2
MIRI_TOOLCHAIN=nightly-2026-10-15
# A download that stalls ends after this.
RUSTUP_SECONDS_MAX=300

step() { printf '\n== %s (%s s so far)\n' "$1" "$SECONDS"; }

beside_pid='' beside_output=''

# beside STEP: runs STEP in a process group of its own, while the next steps run, until join_beside.
beside() {
    beside_output=$(mktemp)
    set -m
    "$1" >"$beside_output" 2>&1 </dev/null &
    beside_pid=$!
    set +m
}

# Gives this process, and those that it will start, processors only while no other process needs them (SCHED_IDLE).
yield_processors() {
    chrt --idle --pid 0 "$BASHPID"
}

# Ends yield_processors for the step beside the others and the processes that it has started, where the rights suffice.
share_processors() {
    local pid
    for pid in $(pgrep --pgroup "$beside_pid"); do
        chrt --all-tasks --other --pid 0 "$pid" 2>/dev/null || true
    done
}

# Waits for the step beside the others, prints its output, and fails if the step failed. The step is a process of its
# own, so that what it could not run is read from its output.
join_beside() {
    local status=0 name
    wait "$beside_pid" || status=$?
    beside_pid=''
    cat "$beside_output"
    while read -r name; do
        not_run+=("$name")
    done < <(sed -n 's/^NOT RUN: //p' "$beside_output")
    rm "$beside_output"
    [ "$status" = 0 ] || exit "$status"
}

# The step beside the others ends with this script.
end_beside() {
    [ -z "$beside_pid" ] || kill -- "-$beside_pid" 2>/dev/null || true
    [ -z "$beside_output" ] || rm -f "$beside_output"
}
trap end_beside EXIT
trap 'exit 130' INT TERM

packages() {
    step "packages"
    need_packages "to build against DPDK" build-essential pkg-config libdpdk-dev dpdk libclang-dev
    need_packages "to build the C interface of libibverbs" libibverbs-dev
    need_packages "to make network namespaces in tests" iproute2 util-linux procps python3
    need_packages "to dissect captures in tests" tshark
    need_packages "to run RDMA programs in tests" ibverbs-utils perftest infiniband-diags ucx-utils
    need_packages "to count instructions" valgrind
    need_packages "to check shell scripts" shellcheck
    need_packages "to set manual pages in tests" groff-base
    need_packages "to build and test the Debian package" dpkg-dev lintian
    # The suppressions of sanitizers are names of functions.
    need_packages "to name functions in the reports of sanitizers" llvm
    command -v cargo >/dev/null || {
        echo "check.sh: there is no cargo; install Rust 1.91 or newer (https://rustup.rs)" >&2
        exit 1
    }
}

image() {
    step "the soft-RoCE guest"
    scripts/guest build
}

format() {
    step "format"
    cargo fmt --all --check
    if grep -rnIE '^(<<<<<<<|>>>>>>>) ' --exclude-dir=target --exclude-dir=.git .; then
        echo "check.sh: a merge left its marks in these files; decide between the two sides" >&2
        exit 1
    fi
}

# The shell scripts that git tracks, or, in sources without a history, all of them: known by their first lines.
shell_scripts() {
    { git ls-files -z 2>/dev/null || find . -name target -prune -o -type f -print0; } |
        xargs -0 awk 'FNR == 1 && /^#!.*[ \/](ba|da)?sh( |$)|^# shellcheck shell=/ { print FILENAME } { nextfile }'
}

shellcheck() {
    step "shell scripts"
    local scripts
    mapfile -t scripts < <(shell_scripts)
    [ ${#scripts[@]} -gt 0 ] || {
        echo "check.sh: no shell script was found" >&2
        exit 1
    }
    command shellcheck --external-sources "${scripts[@]}"
    echo "${#scripts[@]} scripts checked"
}

commits() {
    step "subjects of commits"
    scripts/commits.sh
}

# Without advisories, whose database every run would fetch anew.
deny() {
    step "licences, duplicates and sources of dependencies"
    need_tool cargo-deny "$CARGO_DENY_VERSION" cargo-deny
    cargo-deny --all-features --locked check licenses bans sources
}

lint() {
    step "lints"
    cargo clippy --workspace --all-targets --locked -- -D warnings
}

docs() {
    step "documentation"
    RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --locked --quiet
}

# need_toolchain STEP TOOLCHAIN PROBE [INSTALL_OPTION...]: fails, and says that STEP was not run, where `cargo +TOOLCHAIN
# PROBE --version` fails and rustup cannot install TOOLCHAIN.
need_toolchain() {
    local name=$1 toolchain=$2 probe=$3
    shift 3
    # shellcheck disable=SC2086 # PROBE may be empty
    ! cargo "+$toolchain" $probe --version >/dev/null 2>&1 || return 0
    local install=(rustup toolchain install "$toolchain" --profile minimal "$@")
    ! timeout "$RUSTUP_SECONDS_MAX" "${install[@]}" --no-self-update || return 0
    not_run+=("$name: no toolchain $toolchain (${install[*]})")
    echo "NOT RUN: ${not_run[-1]}"
    return 1
}

msrv() {
    local version
    version=$(sed -n 's/^rust-version = "\(.*\)"$/\1/p' Cargo.toml)
    step "the oldest Rust that Cargo.toml declares, $version"
    need_toolchain msrv "$version" "" || return 0
    cargo "+$version" check --workspace --locked --target-dir target/msrv
}

# Tests run the programs, and load the library of the C interface into RDMA programs.
build() {
    step "build"
    cargo build --workspace --bins --lib --locked
}

# may_quota: whether a CPU quota can be set here, by version 1 or 2 of cgroups.
may_quota() {
    local root=/sys/fs/cgroup/cpu file=cpu.cfs_quota_us quota=20000 made
    if [ -e /sys/fs/cgroup/cgroup.controllers ]; then
        root=/sys/fs/cgroup file=cpu.max quota="20000 100000"
        echo +cpu 2>/dev/null >"$root/cgroup.subtree_control" || true
    fi
    made=$root/roce-check-$$
    mkdir "$made" 2>/dev/null || return 1
    local result=0
    echo "$quota" 2>/dev/null >"$made/$file" || result=1
    rmdir "$made"
    return "$result"
}

# may_tcx: whether an eBPF program can be attached to the hook tcx of an interface here.
may_tcx() {
    local capabilities ids
    capabilities=$(awk '/^CapEff/ { print $2 }' /proc/self/status)
    ids=$(awk 'END { print $3 }' /proc/self/uid_map)
    # CAP_NET_ADMIN and CAP_BPF, and not only in a user namespace.
    ((0x$capabilities >> 12 & 0x$capabilities >> 39 & 1)) && [ "$ids" = 4294967295 ] &&
        printf '6.6\n%s\n' "$(uname -r)" | sort --version-sort --check=quiet
}

# Sets `skips` to the options that leave out the tests whose rights are missing here, and names these tests, once, as
# not run.
find_skips() {
    ! declare -p skips >/dev/null 2>&1 || return 0
    skips=()
    chrt --fifo 1 true 2>/dev/null || {
        skips+=(--skip a_fifo_thread_that_polls)
        not_run+=("test a_fifo_thread_that_polls..: needs chrt and CAP_SYS_NICE")
    }
    may_quota || {
        skips+=(--skip the_stops_of_a_cpu_quota)
        not_run+=("test ..the_stops_of_a_cpu_quota: needs a writable cgroup controller cpu")
    }
    may_tcx || {
        skips+=(--skip early_drop_takes_roce_packets)
        not_run+=("test early_drop_takes_roce_packets..: needs Linux 6.6, CAP_BPF and CAP_NET_ADMIN")
    }
    [ -c /dev/fuse ] || {
        skips+=(--skip ports::counters::)
        not_run+=("tests ports::counters: need /dev/fuse (the kernel's module fuse)")
    }
}

tests() {
    step "tests, without the guest and live ports"
    run_tests
}

run_tests() {
    find_skips
    # `cargo test` does not build a library that no test is linked with.
    cargo build --workspace --bins --lib --locked
    ROCE_NO_INSTALL=1 cargo test --workspace --locked -- --skip guest:: --skip ports:: --skip attack:: "${skips[@]}"
}

# Tests are built with another profile, whose optimisations differ from those of a release.
released() {
    step "unit tests of the engine, built as released"
    cargo test --release --package roce --lib --locked
}

# Apart from the simulation, which takes every core: real processes answer in real time. Call `tests` before.
live() {
    step "tests of live ports"
    ROCE_NO_INSTALL=1 cargo test --workspace --locked --test main -- ports:: attack:: "${skips[@]}"
}

package() {
    step "the Debian package"
    scripts/package.sh --test
}

# The same tests with every counter a few steps before its wrap; roce/src/start.rs says which and how far.
wrap() {
    step "tests near the wraps of all counters, $QUICK_TAPES fault tapes"
    SIM_TAPES=$QUICK_TAPES ROCE_NEAR_WRAP=1 run_tests
}

guest() {
    image
    step "tests against the guest"
    # The tests run the command `roce`, which `--test main` does not build. The same selection of packages as above, or
    # cargo would build all of them anew.
    cargo build --workspace --locked --bins --lib
    ROCE_NO_INSTALL=1 cargo test --workspace --locked --test main -- guest::
}

instructions() {
    step "instruction counts"
    cargo xtask instructions
}

# Runs a test command of cargo. A filter that names nothing must not pass: each binary has to run a test.
test_some() {
    local output
    output=$(mktemp)
    "$@" 2>&1 | tee "$output"
    if ! grep -q '^test result: ok' "$output" || grep -q '^test result: ok\. 0 passed' "$output"; then
        rm "$output"
        echo "check.sh: '$*' has run no test" >&2
        exit 1
    fi
    rm "$output"
}

# Every interleaving of the models, with up to three switches away from a thread that could go on.
loom() {
    step "models of threads, under loom"
    RUSTFLAGS="--cfg loom" LOOM_MAX_PREEMPTIONS=3 CARGO_PROFILE_DEV_OPT_LEVEL=0 \
        test_some cargo test --package roce --package verbs --lib --locked --target-dir target/loom -- models::
}

# cargo_for_asan COMMAND ARGUMENTS...: a command of cargo under AddressSanitizer. RUSTC_BOOTSTRAP, because the flag is
# unstable; the standard library stays as it is, which the second flag admits. Without frame pointers the stacks of
# reports lack the functions that suppressions name.
cargo_for_asan() {
    local command=$1
    shift
    RUSTC_BOOTSTRAP=1 CARGO_PROFILE_DEV_OPT_LEVEL=0 \
        RUSTFLAGS="--cfg sanitizer -Zsanitizer=address -Cunsafe-allow-abi-mismatch=sanitizer -Cforce-frame-pointers=yes" \
        cargo "$command" --locked --target "$(host)" --target-dir target/address "$@"
}

# cargo_for_tsan COMMAND ARGUMENTS...: a command of cargo under ThreadSanitizer, which cannot follow the locks and fences
# of a standard library that is not instrumented: cargo builds it, too, which only nightly can. It has the crate `test`
# in each build, so that tests and library share their dependencies.
cargo_for_tsan() {
    local command=$1
    shift
    CARGO_PROFILE_DEV_OPT_LEVEL=0 RUSTFLAGS="--cfg sanitizer -Zsanitizer=thread -Cforce-frame-pointers=yes" \
        cargo "+$MIRI_TOOLCHAIN" "$command" -Zbuild-std=std,test --locked --target "$(host)" --target-dir target/thread "$@"
}

host() { rustc -vV | sed -n 's/^host: //p'; }

# run_c_program SANITIZER SYSROOT LIBRARY NAME ARGUMENTS...: compiles tests/c/NAME.c under a sanitizer, and runs it with
# LIBRARY, which is built with that sanitizer. The program has the runtime of the rustc whose directory is SYSROOT, and
# exports it (-rdynamic), because a library of Rust has none.
run_c_program() {
    local sanitizer=$1 sysroot=$2 library=$3 name=$4 directory runtime log
    shift 4
    directory=$(dirname "$library")
    runtime=$(echo "$sysroot/lib/rustlib/$(host)/lib"/librustc-*_rt."${sanitizer:0:1}san.a")
    cc -std=gnu11 -O1 -g -fno-omit-frame-pointer "-fsanitize=$sanitizer" -c -o "$directory/$name.o" "tests/c/$name.c"
    cc -rdynamic -o "$directory/$name" "$directory/$name.o" "$library" -Wl,--whole-archive "$runtime" \
        -Wl,--no-whole-archive "-Wl,-rpath,$PWD/$directory" -libverbs -lpthread -ldl -lrt -lm -lgcc_s
    log=$directory/$name.log
    echo "$name.c $*"
    # The library explains each refused call on standard error.
    if ! ROCE_PORT="eal:net_ring63,ip=10.0.63.1/24" timeout 900 "$directory/$name" "$@" >"$log" 2>&1; then
        grep -v '^roce: ' "$log" >&2 || true
        echo "check.sh: tests/c/$name.c $* has failed under ${sanitizer}: $log" >&2
        exit 1
    fi
}

# CFLAGS instruments the C code of dpdk-sys; gcc's instrumentation works with the runtime of rustc. DPDK's libraries
# stay as they are installed.
asan() {
    local -x CFLAGS="-fsanitize=address -fno-omit-frame-pointer"
    step "tests of memory, queues, headers and recovery, under AddressSanitizer"
    test_some cargo_for_asan test --package roce --lib -- mem:: queue:: wire:: recovery::
    local -x LSAN_OPTIONS="suppressions=$PWD/scripts/lsan.supp print_suppressions=0"
    step "tests of DPDK's owners, under AddressSanitizer"
    ROCE_NO_INSTALL=1 test_some cargo_for_asan test --package dpdk-ffi --lib --tests
    step "C programs over the C interface, under AddressSanitizer"
    cargo_for_asan build --package preload
    local seed sysroot library
    sysroot=$(rustc --print sysroot)
    library=target/address/$(host)/debug/libroce_verbs.so
    run_c_program address "$sysroot" "$library" verbs
    run_c_program address "$sysroot" "$library" threads 1000
    for seed in 1 2 3; do
        run_c_program address "$sysroot" "$library" random "$seed" 8 20000
    done
}

tsan() {
    step "tests of two threads, under ThreadSanitizer"
    need_toolchain tsan "$MIRI_TOOLCHAIN" miri --component miri,rust-src || return 0
    local -x TSAN_OPTIONS="halt_on_error=1"
    test_some cargo_for_tsan test --package roce --package verbs --lib -- two_threads
    step "C programs of eight threads, under ThreadSanitizer"
    cargo_for_tsan build --package preload
    local sysroot library
    sysroot=$(rustc "+$MIRI_TOOLCHAIN" --print sysroot)
    library=target/thread/$(host)/debug/libroce_verbs.so
    run_c_program thread "$sysroot" "$library" threads 1000
    run_c_program thread "$sysroot" "$library" random 1 8 20000
}

miri() {
    step "tests of memory and queues, under Miri"
    need_toolchain miri "$MIRI_TOOLCHAIN" miri --component miri,rust-src || return 0
    # All `unsafe` code of the engine but a prefetch. Tests of properties keep what failed in files.
    MIRIFLAGS=-Zmiri-disable-isolation PROPTEST_CASES=2 \
        test_some cargo "+$MIRI_TOOLCHAIN" miri test --package roce --lib --locked --target-dir target/miri -- \
        mem:: queue::
}

fuzz() {
    step "fuzz targets, $FUZZ_SECONDS s each"
    scripts/fuzz.sh --seconds "$FUZZ_SECONDS"
}

quick() {
    packages
    format
    shellcheck
    commits
    step "lints of the engine"
    cargo clippy --package roce --package benches --package netsim --package lab --package verbs --package apps --package xtask --all-targets --locked -- -D warnings
    step "tests of the engine, $QUICK_TAPES fault tapes"
    find_skips
    cargo test --package roce --package netsim --package lab --package verbs --package apps --package xtask --locked \
        -- "${skips[@]}"
    SIM_TAPES=$QUICK_TAPES cargo test --package tests --locked -- sim::
}

all() {
    # Most of the work is to compile, and each crate is compiled once: what incremental compilation records is no use.
    export CARGO_INCREMENTAL=0
    packages
    beside image
    format
    shellcheck
    commits
    deny
    lint
    docs
    msrv
    build
    join_beside
    tests
    wrap
    # Alone: the kernel of the guest gives up packets and connections that wait for a processor.
    guest
    beside on_idle_cores
    live
    share_processors
    asan
    tsan
    loom
    join_beside
}

# Programs of live ports sleep for half of their time. Miri comes first, so that it has installed its toolchain before
# tsan, which runs beside this, looks for it.
on_idle_cores() {
    yield_processors
    miri
    instructions
    released
    package
    fuzz
}

[ $# -gt 0 ] || set -- all
for name in "$@"; do
    case $name in
        all | quick | packages | format | shellcheck | commits | deny | image | lint | docs | msrv) ;;
        build | test | package | wrap | guest | instructions | loom | asan | tsan | miri | fuzz | -h | --help) ;;
        *)
            echo "check.sh: there is no step '$name'; see scripts/check.sh --help" >&2
            exit 2
            ;;
    esac
done
for name in "$@"; do
    case $name in
        test)
            tests
            released
            live
            ;;
        -h | --help) sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//;p}' "$0" ;;
        *) "$name" ;;
    esac
done
if [ ${#not_run[@]} -gt 0 ]; then
    printf '\n== what ran is well after %s s, but NOT EVERYTHING RAN\n' "$SECONDS"
    printf '== not run: %s\n' "${not_run[@]}"
else
    printf '\n== all well after %s s\n' "$SECONDS"
fi
