#!/usr/bin/env bash
# Goodput against Linux's soft-RoCE where packets are lost, beside soft-RoCE against itself in the same guest.
#
#   scripts/bench-rxe.sh [--runs N] [--loss PERCENT] [--mtu BYTES] [--size BYTES] [--iters N]
#
#   rxe  - rxe    ibv_rc_pingpong at both ends, over a veth pair in the guest
#   ours - rxe    `roce ping` here, ibv_rc_pingpong in the guest, over a tap; with each --recovery that
#                 needs nothing of the peer
#
# Each direction of each link loses that share of its RoCE packets. The pairs alternate; figures are medians of N
# runs (3) and their ratios. Stalls of 50 ms and more in the capture of our runs are counted: soft-RoCE's
# retransmission timer is 67 ms. Everything runs in a network namespace of its own; the guest is emulated, so
# figures are small, and only their ratios mean something.
set -euo pipefail
cd "$(dirname "$0")/.."

RUNS=3 LOSS=1 MTU=1024 SIZE=1048576 ITERS=8
while [ $# -gt 0 ]; do
    case $1 in
        --runs | --loss | --mtu | --size | --iters)
            [[ ${2:-} =~ ^[1-9][0-9]*$ ]] || { echo "bench-rxe.sh: $1 needs a whole number above 0" >&2; exit 2; }
            name=${1#--}
            declare "${name^^}=$2"
            shift 2
            ;;
        --inside) break ;;
        -h | --help) sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//;p}' "$0"; exit 0 ;;
        *) echo "bench-rxe.sh: there is no option '$1'; see scripts/bench-rxe.sh --help" >&2; exit 2 ;;
    esac
done

GUEST=bench-rxe.$$
ROCE=$PWD/target/release/roce

# Builds what the namespace has no way to, and goes there.
if [ "${1:-}" != --inside ]; then
    # shellcheck source=scripts/install.sh
    . scripts/install.sh
    need_packages "to build against DPDK" build-essential pkg-config libdpdk-dev dpdk libclang-dev
    need_packages "to count stalls in captures" python3 iproute2 util-linux
    cargo build --release --locked --quiet --package apps
    scripts/guest build >/dev/null
    user=()
    [ "$(id -u)" = 0 ] || user=(--user --map-current-user --keep-caps)
    exec unshare "${user[@]}" --net "$0" --runs "$RUNS" --loss "$LOSS" --mtu "$MTU" --size "$SIZE" \
        --iters "$ITERS" --inside
fi

work=$(mktemp -d /tmp/roce-bench-rxe.XXXXXX)
cleanup() {
    scripts/guest stop --name "$GUEST" >/dev/null 2>&1 || true
    rm -rf "$work"
}
trap cleanup EXIT

inside() {
    scripts/guest exec --name "$GUEST" --timeout 100 -- bash -c "$1"
}

pingpong="ibv_rc_pingpong -g 1 -m $MTU -s $SIZE -n $ITERS -e"

# Mbit/s of a game, from the line that both programs print.
mbits() {
    sed -n 's/.* = \([0-9.]*\) Mbit\/sec.*/\1/p' "$1"
}

rxe_rxe() {
    inside "$pingpong -d rxe1 >/dev/null & wait_listen 18515 && $pingpong -d rxe2 localhost && wait" >"$work/out"
    mbits "$work/out"
}

# ours_rxe RECOVERY: prints Mbit/s, packets retransmitted by this end, stalls.
ours_rxe() {
    inside "$pingpong -d rxe0" >/dev/null &
    local server=$!
    inside "wait_listen 18515"
    "$ROCE" ping --port af_packet:gtap -g 1 -m "$MTU" -s "$SIZE" -n "$ITERS" -e --recovery "$1" --json \
        --pcap "$work/pcap" 10.77.0.2 >"$work/out"
    wait "$server"
    "$ROCE" dump --json "$work/pcap" | python3 -c '
import json, sys
report = json.load(open(sys.argv[1]))
nanos = [int(r["unix_nanos"]) for r in map(json.loads, sys.stdin) if "bth" in r]
stalls = sum(b - a >= 50_000_000 for a, b in zip(nanos, nanos[1:]))
print(round(report["mbit_per_sec"], 2), report["retransmitted_pkts"], stalls)' "$work/out"
}

median() {
    sort -g | awk '{ v[NR] = $1 } END { print v[int((NR + 1) / 2)] }'
}

echo "Booting the guest" >&2
ip link set lo up
ip tuntap add dev gtap mode tap
ip link set gtap mtu 9000 up
ip address add 10.77.0.1/24 dev gtap
scripts/guest start --name "$GUEST" --with-pid $$ --nic tap:gtap
inside "rxe_up nic0 10.77.0.2/24 - 9000 && rxe_pair 10.81.0.1 10.81.0.2 9000" >/dev/null

# measure TITLE: the three pairs in turn, RUNS times; a table of medians.
measure() {
    local schemes=(go-back-n improved-go-back-n) run scheme
    rm -f "$work"/row.*
    for ((run = 1; run <= RUNS; run++)); do
        echo "$1: run $run of $RUNS" >&2
        rxe_rxe >>"$work/row.rxe"
        for scheme in "${schemes[@]}"; do
            ours_rxe "$scheme" >>"$work/row.$scheme"
        done
    done
    local base
    base=$(median <"$work/row.rxe")
    printf '\n%s, %s B messages both ways, path MTU %s, medians of %s\n' "$1" "$SIZE" "$MTU" "$RUNS"
    printf '%-28s %10s %8s %14s %10s\n' "" "Mbit/s" "ratio" "pkts again" "stalls"
    printf '%-28s %10s %8s\n' "rxe - rxe" "$base" 1.00
    for scheme in "${schemes[@]}"; do
        local file=$work/row.$scheme
        printf '%-28s %10s %8s %14s %10s\n' "$scheme - rxe" "$(median <"$file")" \
            "$(awk -v a="$(median <"$file")" -v b="$base" 'BEGIN { printf "%.2f", a / b }')" \
            "$(cut -d' ' -f2 "$file" | median)" "$(cut -d' ' -f3 "$file" | median)"
    done
}

measure "without loss"
for nic in va vb nic0; do
    inside "loss_random $nic in $LOSS"
done
inside "loss_random nic0 out $LOSS"
measure "$LOSS % of the packets lost each way"
