#!/usr/bin/env bash
# Counts the instructions of each piece of a packet's way under callgrind, and compares them with
# roce/benches/instructions.txt: times are noise on a shared machine, these repeat.
#
#   scripts/instructions.sh            fails where a count has moved
#   BLESS=1 scripts/instructions.sh    writes the counts of today into the file
#
# Counts are those of the compiler that the file names, on a CPU with AVX2 (valgrind hides AVX-512).
# With that compiler a count may move by 2 %, for the C library's memcpy differs between machines;
# with another compiler by 9 %.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=scripts/install.sh
. scripts/install.sh

PINNED=roce/benches/instructions.txt
PKTS=32 # BATCH_PKTS of roce/benches/flow/mod.rs

command -v valgrind >/dev/null || {
    echo "instructions.sh: there is no valgrind; install it: apt-get install valgrind" >&2
    exit 1
}

# The runner must be of the library's version.
version=$(sed -n '/^name = "gungraun"$/{n;s/^version = "\(.*\)"$/\1/p}' Cargo.lock)
if [ "$("${GUNGRAUN_RUNNER:-false}" --version 2>/dev/null)" != "gungraun-runner $version" ]; then
    need_tool gungraun-runner "$version" gungraun-runner
    GUNGRAUN_RUNNER=$(command -v gungraun-runner)
fi
export GUNGRAUN_RUNNER

compiler=$(rustc --version | cut -d' ' -f1,2)
output=$(mktemp)
trap 'rm -f "$output" "$output.now"' EXIT
NO_COLOR=1 cargo bench --locked --package roce --bench instructions >"$output" || {
    cat "$output" >&2
    echo "instructions.sh: the benchmark failed" >&2
    exit 1
}
awk -v pkts=$PKTS '
    /^instructions::/ { sub(/.*::/, "", $1); sub(/:.*/, "", $2); name = $1 " " $2 }
    $1 == "Instructions:" { printf "%-40s %8.1f\n", name, $2 / pkts }
' "$output" >"$output.now"
[ -s "$output.now" ] || {
    cat "$output" >&2
    echo "instructions.sh: the benchmark printed no counts" >&2
    exit 1
}

if [ -n "${BLESS:-}" ]; then
    {
        echo "# Instructions per packet, $compiler; scripts/instructions.sh checks them, BLESS=1 renews them."
        cat "$output.now"
    } >"$PINNED"
    echo "wrote $PINNED"
fi

tolerance=2
if ! grep -q "^#.* $compiler;" "$PINNED"; then
    tolerance=9
    echo "$PINNED was made with another compiler than $compiler: $tolerance % are let pass"
fi
awk -v tolerance=$tolerance '
    FNR == NR { if (!/^#/) pinned[$1 " " $2] = $3; next }
    {
        name = $1 " " $2
        now[name] = $3
        was = name in pinned ? pinned[name] : 0
        change = was > 0 ? 100 * ($3 / was - 1) : 100
        moved = change > tolerance || change < -tolerance
        bad += moved
        printf "%-40s %8.1f, pinned %8.1f  %+6.1f %%%s\n", name, $3, was, change, moved ? "  <-- moved" : ""
    }
    END {
        for (name in pinned) if (!(name in now)) { print name " is pinned, but no longer counted"; bad++ }
        least["send_64"] = now["copy_and_icrc bytes_64"]
        split("send_64 send_4k write_64k read_64k", cases)
        print "\nbeyond copy and ICRC, per data packet:"
        for (i = 1; i in cases; i++) {
            c = cases[i]
            l = c in least ? least[c] : now["copy_and_icrc bytes_4k"]
            a = now["requester_post_to_wire " c] + now["requester_completion " c] - l
            b = now["responder_wire_to_completion " c] - l
            printf "%-12s requester %7.1f, responder %7.1f instructions\n", c, a, b
        }
        if (bad) {
            print "\n" bad " counts moved by more than " tolerance " %. If that is meant, renew them:"
            print "BLESS=1 scripts/instructions.sh"
            exit 1
        }
    }
' "$PINNED" "$output.now"
