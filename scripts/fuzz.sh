#!/usr/bin/env bash
# Runs each fuzz target for a while under AddressSanitizer, and fails where one finds a fault.
#
#   scripts/fuzz.sh [--seconds N] [TARGET...]     60 s each; all targets of fuzz/Cargo.toml
#
# Starts from the inputs in fuzz/corpus/TARGET and keeps new ones in target/fuzz/corpus/TARGET. An input that
# fails is left in fuzz/artifacts/TARGET; `cargo fuzz run TARGET FILE` plays it alone.
# The sanitizer needs unstable flags of the compiler, which RUSTC_BOOTSTRAP lets any release take.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=scripts/install.sh
. scripts/install.sh

seconds=60
while [ $# -gt 0 ]; do
    case $1 in
        --seconds) [ $# -ge 2 ] || { echo "fuzz.sh: $1 needs a value" >&2; exit 2; }; seconds=$2; shift 2 ;;
        -h | --help) sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//;p}' "$0"; exit 0 ;;
        -*) echo "fuzz.sh: there is no option '$1'; see scripts/fuzz.sh --help" >&2; exit 2 ;;
        *) break ;;
    esac
done
[[ $seconds =~ ^[1-9][0-9]*$ ]] || { echo "fuzz.sh: --seconds takes a number above 0" >&2; exit 2; }

CARGO_FUZZ_VERSION=0.13.2
need_tool cargo-fuzz "$CARGO_FUZZ_VERSION" cargo fuzz
target=${CARGO_TARGET_DIR:-$PWD/target}

export CARGO_TARGET_DIR=$target/fuzz RUSTC_BOOTSTRAP=1
[ $# -gt 0 ] || mapfile -t all < <(cargo fuzz list)
[ $# -gt 0 ] || set -- "${all[@]}"
[ $# -gt 0 ] || { echo "fuzz.sh: there are no targets in fuzz/Cargo.toml" >&2; exit 1; }
cargo fuzz build

log=$(mktemp)
trap 'rm -f "$log"' EXIT
for name in "$@"; do
    found=$target/fuzz/corpus/$name
    seeds=fuzz/corpus/$name
    [ -n "$(ls -A "$seeds" 2>/dev/null)" ] || { echo "fuzz.sh: $seeds has no inputs to start from" >&2; exit 1; }
    mkdir -p "$found"
    cargo fuzz run "$name" "$found" "$seeds" -- \
        -max_total_time="$seconds" -print_final_stats=1 -timeout=120 >"$log" 2>&1 || {
        tail -n 60 "$log" >&2
        echo "fuzz.sh: $name found a fault (see above), or could not run" >&2
        exit 1
    }
    units=$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")
    [ "${units:-0}" -gt 0 ] || { tail -n 60 "$log" >&2; echo "fuzz.sh: $name ran no input" >&2; exit 1; }
    edges=$(sed -nE 's/.* cov: ([0-9]+) .*/\1/p' "$log" | tail -n 1)
    printf '%-20s %12s inputs in %4s s, %6s edges, no fault\n' "$name" "$units" "$seconds" "${edges:-?}"
done
