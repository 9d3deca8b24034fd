#!/usr/bin/env bash
# Installs what is missing, then checks everything. CI runs this and nothing else.
#
#   scripts/check.sh          format, lints, all tests, the soft-RoCE guest, instruction counts
#   scripts/check.sh quick    the inner loop: format, lints, tests of the engine, fewer fault tapes
#   scripts/check.sh deny     licences and duplicate dependencies, by cargo-deny
#   scripts/check.sh STEP...  one or more of: packages image format lint docs build test wrap guest
#                             instructions fuzz deny
#
# The steps packages and image install whatever the others need, with apt-get, by sudo where the caller
# is not root; everything else runs as an ordinary user, and nothing that a test starts installs
# anything. Nothing is left running, and nothing outside target/ and ~/.cache is written.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=scripts/install.sh
. scripts/install.sh

QUICK_TAPES=2000
FUZZ_SECONDS=60

step() { printf '\n== %s (%s s so far)\n' "$1" "$SECONDS"; }

packages() {
    step "packages"
    need_packages "to build against DPDK" build-essential pkg-config libdpdk-dev dpdk libclang-dev
    need_packages "to make network namespaces in tests" iproute2 util-linux procps python3
    need_packages "to dissect captures in tests" tshark
    need_packages "to count instructions" valgrind
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

lint() {
    step "lints"
    cargo clippy --workspace --all-targets --locked -- -D warnings
}

docs() {
    step "documentation"
    RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --locked --quiet
}

# The tests of live ports run the programs.
build() {
    step "build"
    cargo build --workspace --bins --locked
}

tests() {
    step "tests, without the guest"
    ROCE_NO_INSTALL=1 cargo test --workspace --locked -- --skip guest:: --skip ports::
    # Apart from the simulation, which takes every core: real processes answer in real time.
    step "tests of live ports"
    ROCE_NO_INSTALL=1 cargo test --workspace --locked --test main -- ports::
}

# The same tests with every counter a few steps before its wrap; roce/src/start.rs says which and how far.
wrap() {
    step "tests near the wraps of all counters, $QUICK_TAPES fault tapes"
    SIM_TAPES=$QUICK_TAPES cargo test --package roce --package netsim --package lab --package tests \
        --features roce/near-wrap --locked -- --skip guest:: --skip ports::
}

guest() {
    image
    step "tests against the guest"
    # The same selection of packages as above, or cargo would build all of them anew.
    ROCE_NO_INSTALL=1 cargo test --workspace --locked --test main -- guest::
}

instructions() {
    step "instruction counts"
    scripts/instructions.sh
}

fuzz() {
    step "fuzz targets, $FUZZ_SECONDS s each"
    scripts/fuzz.sh --seconds "$FUZZ_SECONDS"
}

deny() {
    step "licences and duplicates"
    if ! command -v cargo-deny >/dev/null; then
        echo "Installing cargo-deny with cargo (some minutes)"
        cargo install --locked --quiet cargo-deny
    fi
    cargo deny --all-features check licenses bans sources
}

quick() {
    packages
    format
    step "lints of the engine"
    cargo clippy --package roce --package netsim --package lab --package verbs --package apps --all-targets --locked -- -D warnings
    step "tests of the engine, $QUICK_TAPES fault tapes"
    cargo test --package roce --package netsim --package lab --package verbs --package apps --locked
    SIM_TAPES=$QUICK_TAPES cargo test --package tests --locked -- sim::
}

all() {
    packages
    image
    format
    lint
    docs
    build
    tests
    wrap
    guest
    instructions
    fuzz
}

[ $# -gt 0 ] || set -- all
for name in "$@"; do
    case $name in
        all | quick | packages | image | format | lint | docs | build | wrap | guest | instructions | fuzz | deny) "$name" ;;
        test) tests ;;
        -h | --help) sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//;p}' "$0" ;;
        *)
            echo "check.sh: there is no step '$name'; see scripts/check.sh --help" >&2
            exit 2
            ;;
    esac
done
printf '\n== all well after %s s\n' "$SECONDS"
