#!/usr/bin/env bash
# Measures this stack beside what the port under it can carry, and prints both and their ratios.
#
#   scripts/bench.sh [--runs N] [--seconds S] [--port memif|veth|loss|all] [--json]
#
#   bare port      frames between two processes, by dpdk-testpmd and by `roce perf raw --bare`
#   limit program  `roce perf raw`: the same frames with the payload copied from and to application
#                  memory, the ICRC made and checked, and no transport
#   roce perf      64 KiB WRITE, 64 B SEND, 64 B send latency: one queue pair, path MTU 4096
#   loss           64 KiB messages over a memif port by selective repeat, when frames are lost both ways: how
#                  much is left of what was carried without loss, counting what was lost as lost. The chances
#                  of loss take turns within a run, and the ratio is the median of neighbouring turns. And how
#                  many packets are retransmitted for each that was lost
#
# Each measurement is two processes on a core each, which change places from run to run. Figures are
# medians of N runs (3). Machines are noisy and differ: what counts is the ratios, whose two sides are
# measured in the same minute. Packages are installed with apt-get, by sudo where the caller is not
# root; the rest needs no privileges (veth pairs are made in namespaces of their own).
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=scripts/install.sh
. scripts/install.sh

RUNS=3
SECONDS_EACH=2
PORTS=all
JSON=
# Seconds that a process may take before it is taken for stuck.
PATIENCE=60
# Ethernet, IPv6, UDP, BTH and ICRC around a payload.
HEADERS_BYTES=78

while [ $# -gt 0 ]; do
    case $1 in
        --runs | --seconds | --port)
            [ $# -ge 2 ] || { echo "bench.sh: $1 needs a value" >&2; exit 2; }
            case $1 in
                --runs) RUNS=$2 ;;
                --seconds) SECONDS_EACH=$2 ;;
                --port) PORTS=$2 ;;
            esac
            shift 2
            ;;
        --json) JSON=1; shift ;;
        -h | --help) sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//;p}' "$0"; exit 0 ;;
        *) echo "bench.sh: there is no option '$1'; see scripts/bench.sh --help" >&2; exit 2 ;;
    esac
done
[[ $RUNS =~ ^[1-9][0-9]*$ && $SECONDS_EACH =~ ^[1-9][0-9]*$ ]] || {
    echo "bench.sh: --runs and --seconds take a number above 0" >&2
    exit 2
}
[[ $PORTS =~ ^(memif|veth|loss|all)$ ]] || { echo "bench.sh: --port takes memif, veth, loss or all" >&2; exit 2; }

# --- Inside the veth pair's namespace this script is run again; the first time it prepares.
if [ -z "${BENCH_ROCE:-}" ]; then
    need_packages "to build against DPDK, and for its testpmd" \
        build-essential pkg-config libdpdk-dev dpdk libclang-dev >&2
    need_packages "to pin processes and make network namespaces" util-linux iproute2 >&2
    command -v cargo >/dev/null || {
        echo "bench.sh: there is no cargo; install Rust 1.91 or newer (https://rustup.rs)" >&2
        exit 1
    }
    [ "$(nproc)" -ge 2 ] || { echo "bench.sh: two processes need two cores; this machine has one" >&2; exit 1; }
    echo "Building (some minutes the first time)" >&2
    cargo build --release --locked --quiet --package apps
    BENCH_ROCE=${CARGO_TARGET_DIR:-target}/release/roce
    BENCH_WORK=$(mktemp -d "${TMPDIR:-/tmp}/roce-bench.XXXXXX")
    export BENCH_ROCE BENCH_WORK
    trap 'kill $(jobs -p) 2>/dev/null || true; rm -rf "$BENCH_WORK"' EXIT
fi
WORK=$BENCH_WORK
say() { echo "$*" >&2; }

# Two cores that this process may use.
mapfile -t CORES < <(taskset -cp $$ | sed 's/.*: //' | tr ',' '\n' | while IFS=- read -r first last; do
    seq "$first" "${last:-$first}"
done | head -n 2)

# Runs a command in a session of its own with the scheduler's favour, where that is permitted: its
# groups are by session, so that `nice` alone would do nothing against other sessions.
favoured() {
    timeout "$PATIENCE" setsid --wait bash -c \
        '{ echo -20 >/proc/self/autogroup; } 2>/dev/null || true; exec "$@"' bench "$@"
}

# FILE KEY: the numbers under a key in pretty-printed JSON, a line each.
fields() { sed -n "s/^ *\"$2\": \([0-9.e+-]*\),\{0,1\}\$/\1/p" "$1"; }
field() { fields "$1" "$2" | head -n 1; }

tcp_port=$((20000 + RANDOM % 20000))

# perf KEY SERVER_PORT CLIENT_PORT SERVER_CORE CLIENT_CORE HOST ARGS...: one measurement; prints KEY. What the
# client alone is told is in CLIENT_ARGS.
perf() {
    local key=$1 server_port=$2 client_port=$3 server_core=$4 client_core=$5 host=$6
    shift 6
    tcp_port=$((tcp_port + 1))
    local server
    favoured ${SERVER_NETNS:+nsenter -t "$SERVER_NETNS" -n} \
        "$BENCH_ROCE" perf "$@" --port "$server_port" -p "$tcp_port" --cpu "$server_core" --json \
        >"$WORK/server.json" 2>"$WORK/server.err" &
    server=$!
    if ! favoured "$BENCH_ROCE" perf "$@" --port "$client_port" -p "$tcp_port" --cpu "$client_core" --json \
        ${CLIENT_ARGS:+"${CLIENT_ARGS[@]}"} "$host" \
        >"$WORK/client.json" 2>"$WORK/client.err" || ! wait "$server"; then
        say "bench.sh: roce perf $* failed:"
        cat "$WORK/server.err" "$WORK/client.err" >&2
        return 1
    fi
    field "$WORK/client.json" "$key"
}

# testpmd FRAME_BYTES RX_CORE TX_CORE: frames a second, in millions, over a memif port.
testpmd() {
    local frame_bytes=$1 rx_core=$2 tx_core=$3 name="roce-bench-$$-$RANDOM"
    local eal=(--no-huge -m 256 --no-shconf --no-pci --no-telemetry)
    local app=(-i --nb-cores=1 --total-num-mbufs=4095 --mbuf-size=8320 --no-mlockall)
    local memif="socket=@$name,bsize=8192"
    export XDG_RUNTIME_DIR=${XDG_RUNTIME_DIR:-$WORK}
    mkfifo "$WORK/$name.rx" "$WORK/$name.tx"
    favoured dpdk-testpmd --lcores "0@$rx_core,1@$rx_core" "${eal[@]}" --file-prefix="$name-rx" \
        --vdev "net_memif0,role=server,$memif" -- "${app[@]}" --forward-mode=rxonly \
        <"$WORK/$name.rx" >"$WORK/$name.rx.log" 2>&1 &
    exec 8>"$WORK/$name.rx"
    await "$WORK/$name.rx.log" 'testpmd>'
    favoured dpdk-testpmd --lcores "0@$tx_core,1@$tx_core" "${eal[@]}" --file-prefix="$name-tx" \
        --vdev "net_memif0,role=client,$memif" -- "${app[@]}" --forward-mode=txonly --txpkts="$frame_bytes" \
        <"$WORK/$name.tx" >"$WORK/$name.tx.log" 2>&1 &
    exec 9>"$WORK/$name.tx"
    await "$WORK/$name.tx.log" 'testpmd>'
    echo start >&8
    echo start >&9
    sleep 0.5
    echo "show port stats 0" >&8
    sleep "$SECONDS_EACH"
    echo "show port stats 0" >&8
    sleep 0.2
    echo quit >&9
    echo quit >&8
    exec 8>&- 9>&-
    wait
    # testpmd reckons the rate between the two looks.
    sed -n 's/.*Rx-pps: *\([0-9]*\).*/\1/p' "$WORK/$name.rx.log" | tail -n 1 | awk '{ print $1 / 1e6 }'
}

# await FILE TEXT
await() {
    local i
    for i in $(seq 200); do
        grep -q "$2" "$1" 2>/dev/null && return
        sleep 0.05
    done
    say "bench.sh: testpmd does not start ($i tries):"
    cat "$1" >&2
    return 1
}

# note NAME VALUE: keeps a value of this run.
note() {
    say "  $1: $2"
    [ -n "$2" ] || { say "bench.sh: no figure for $1"; exit 1; }
    echo "$2" >>"$WORK/value.$1"
}

median() { sort -g "$WORK/value.$1" | awk '{ v[NR] = $1 } END { print NR % 2 ? v[(NR + 1) / 2] : (v[NR / 2] + v[NR / 2 + 1]) / 2 }'; }

measure_memif() {
    local a=$1 b=$2 name="memif:@roce-bench-$$-$RANDOM"
    one() { perf "$1" "$name" "$name" "$a" "$b" localhost "${@:2}"; }
    if command -v dpdk-testpmd >/dev/null; then
        note testpmd_4096 "$(testpmd $((4096 + HEADERS_BYTES)) "$a" "$b")"
        note testpmd_64 "$(testpmd $((64 + HEADERS_BYTES)) "$a" "$b")"
    fi
    note bare_4096 "$(one rate_mpps raw --bare -s 4096 -D "$SECONDS_EACH")"
    note limit_4096 "$(one payload_gbit_per_sec raw -s 4096 -D "$SECONDS_EACH")"
    note write_64k "$(one bw_average_gbit_per_sec write-bw -s 65536 -m 4096 -D "$SECONDS_EACH")"
    note read_64k "$(one bw_average_gbit_per_sec read-bw -s 65536 -m 4096 -D "$SECONDS_EACH")"
    note bare_64 "$(one rate_mpps raw --bare -s 64 -D "$SECONDS_EACH")"
    note limit_64 "$(one rate_mpps raw -s 64 -D "$SECONDS_EACH")"
    note send_64 "$(one msg_rate_mpps send-bw -s 64 -m 4096 -D "$SECONDS_EACH")"
    note bare_lat_64 "$(one t_typical_usec raw --bare --lat -s 64 -n 200000)"
    note limit_lat_64 "$(one t_typical_usec raw --lat -s 64 -n 200000)"
    note send_lat_64 "$(one t_typical_usec send-lat -s 64 -m 4096 -n 200000)"
}

# again OP: packets that the last client retransmitted, for each that it lost: of READs, responses too; an
# acknowledgement that is lost is told by the next.
again() {
    local dropped
    mapfile -t dropped < <(fields "$WORK/client.json" dropped) # received, sent
    awk -v again="$(field "$WORK/client.json" retransmitted_pkts)" -v op="$1" -v received="${dropped[0]}" \
        -v sent="${dropped[1]}" 'BEGIN { print again / (sent + (op == "read" ? received : 0)) }'
}

# In the turns without loss the port draws its lots too, which costs something by itself.
measure_loss() {
    local a=$1 b=$2 name="memif:@roce-bench-$$-$RANDOM" op options loss kept
    local losses=(1e-9 0.01 0.02 0.05)
    local CLIENT_ARGS=(--loss-turns "$(IFS=,; echo "${losses[*]}")")
    for op in send write read; do
        options=(--relaxed_placement)
        [ $op != read ] || options=(-o 64)
        note "${op}_lossless" "$(perf gbit_per_sec "$name" "$name" "$a" "$b" localhost \
            "$op-bw" -s 65536 -m 4096 -D "$SECONDS_EACH" --recovery selective-repeat "${options[@]}")"
        mapfile -t kept < <(fields "$WORK/client.json" kept)
        for loss in 1 2 3; do
            note "${op}_kept_${losses[loss]}" "${kept[loss]:-}"
        done
        note "${op}_again" "$(again $op)"
    done
}

# The server's side of the pair is in a second namespace, whose process SERVER_NETNS keeps it.
measure_veth() {
    local a=$1 b=$2
    one() { perf "$1" af_packet:bench1 af_packet:bench0 "$a" "$b" 10.99.0.2 "${@:2}"; }
    note veth_bare_4096 "$(one rate_mpps raw --bare -s 4096 -D "$SECONDS_EACH")"
    note veth_limit_4096 "$(one payload_gbit_per_sec raw -s 4096 -D "$SECONDS_EACH")"
    note veth_write_64k "$(one bw_average_gbit_per_sec write-bw -s 65536 -m 4096 -D "$SECONDS_EACH")"
    note veth_send_lat_64 "$(one t_typical_usec send-lat -s 64 -m 4096 -n 20000)"
}

make_veth() {
    ip link set lo up
    unshare -n sleep infinity &
    SERVER_NETNS=$!
    local here
    here=$(readlink /proc/self/ns/net)
    until [ "$(readlink "/proc/$SERVER_NETNS/ns/net")" != "$here" ]; do sleep 0.01; done
    ip link add bench0 mtu 4200 type veth peer name bench1 mtu 4200 netns "$SERVER_NETNS"
    ip addr add 10.99.0.1/24 dev bench0
    ip link set bench0 up
    nsenter -t "$SERVER_NETNS" -n ip addr add 10.99.0.2/24 dev bench1
    nsenter -t "$SERVER_NETNS" -n ip link set bench1 up
    nsenter -t "$SERVER_NETNS" -n ip link set lo up
}

all_runs() {
    local run
    for run in $(seq "$RUNS"); do
        say "run $run of $RUNS, $1"
        "measure_$1" "${CORES[run % 2]}" "${CORES[(run + 1) % 2]}"
    done
}

if [ "${BENCH_INSIDE:-}" = veth ]; then
    make_veth
    all_runs veth
    kill "$SERVER_NETNS"
    exit 0
fi

[[ $PORTS =~ ^(memif|all)$ ]] && all_runs memif
[[ $PORTS =~ ^(loss|all)$ ]] && all_runs loss
if [[ $PORTS =~ ^(veth|all)$ ]]; then
    isolate=(unshare -n)
    [ "$(id -u)" = 0 ] || isolate=(unshare -Un --map-current-user --keep-caps)
    BENCH_INSIDE=veth "${isolate[@]}" bash "$PWD/scripts/bench.sh" --runs "$RUNS" --seconds "$SECONDS_EACH"
fi

# --- The report: NAME | TEXT | UNIT | of which NAME | factor to its unit | target
rows() {
    cat <<'ROWS'
testpmd_4096|bare port (testpmd), frames of 4096 B payload|Mpps|||
bare_4096|bare port (roce perf raw --bare), same frames|Mpps|testpmd_4096|1|
limit_4096|limit program (roce perf raw), same frames|Gb/sec|bare_4096|32.768|
write_64k|roce perf write-bw, 64 KiB, path MTU 4096|Gb/sec|limit_4096|1|ratio >= 0.7
read_64k|roce perf read-bw, 64 KiB, path MTU 4096|Gb/sec|limit_4096|1|
testpmd_64|bare port (testpmd), frames of 64 B payload|Mpps|||
bare_64|bare port (roce perf raw --bare), same frames|Mpps|testpmd_64|1|
limit_64|limit program (roce perf raw), same frames|Mpps|bare_64|1|
send_64|roce perf send-bw, 64 B|Mpps|limit_64|1|value >= 4
bare_lat_64|bare port, 64 B, half a round trip|usec|||
limit_lat_64|limit program, 64 B, half a round trip|usec|bare_lat_64|1|
send_lat_64|roce perf send-lat, 64 B, half a round trip|usec|limit_lat_64|1|value <= 1.0
veth_bare_4096|bare af_packet over veth, frames of 4096 B payload|Mpps|||
veth_limit_4096|limit program over it|Gb/sec|veth_bare_4096|32.768|
veth_write_64k|roce perf write-bw over it, 64 KiB, path MTU 4096|Gb/sec|veth_bare_4096|32.768|ratio >= 0.8
veth_send_lat_64|roce perf send-lat over it, 64 B|usec|||
ROWS
    local op
    for op in send write read; do
        cat <<ROWS
${op}_lossless|roce perf $op-bw, selective repeat, no loss|Gb/sec|||
${op}_kept_0.01|  kept of it x 0.99 at 1 % lost each way||||value >= 0.97
${op}_kept_0.02|  kept of it x 0.98 at 2 %||||value >= 0.97
${op}_kept_0.05|  kept of it x 0.95 at 5 %||||value >= 0.9
${op}_again|  packets retransmitted for each lost||||value <= 1.02
ROWS
    done
}

rows | while IFS='|' read -r name text unit of factor target; do
    [ -f "$WORK/value.$name" ] || continue
    value=$(median "$name")
    ratio=
    if [ -n "$of" ] && [ -f "$WORK/value.$of" ]; then
        ratio=$(awk -v v="$value" -v o="$(median "$of")" -v f="$factor" 'BEGIN { printf "%.3f", v / (o * f) }')
    fi
    verdict=
    if [ -n "$target" ]; then
        read -r what relation limit <<<"$target"
        [ "$what" = ratio ] && is=$ratio || is=$value
        verdict=$(awk -v i="$is" -v l="$limit" -v r="$relation" \
            'BEGIN { print (r == ">=" ? i >= l : i <= l) ? "reached" : "missed" }')
    fi
    echo "$name|$text|$unit|$value|$ratio|$of|$target|$verdict|$(sort -g "$WORK/value.$name" | paste -sd ' ')"
done >"$WORK/report"

if [ -n "$JSON" ]; then
    awk -F '|' 'BEGIN { print "[" }
        { printf "%s  {\"name\": \"%s\", \"text\": \"%s\", \"unit\": \"%s\", \"median\": %s, \"runs\": [%s]", \
              sep, $1, $2, $3, $4, listed($9); sep = ",\n"
          if ($5 != "") printf ", \"ratio\": %s, \"ratio_of\": \"%s\"", $5, $6
          if ($7 != "") printf ", \"target\": \"%s\", \"verdict\": \"%s\"", $7, $8
          printf "}" }
        END { print "\n]" }
        function listed(text) { gsub(/ /, ", ", text); return text }' "$WORK/report"
else
    printf '%-52s %9s %-7s %6s  %-16s %s\n' "median of $RUNS" "" "" ratio of target
    awk -F '|' '{ printf "%-52s %9.3f %-7s %6s  %-16s %s\n", $2, $4, $3, $5, $6, $7 == "" ? "" : $7 ", " $8 }' "$WORK/report"
fi
