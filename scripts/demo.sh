#!/usr/bin/env bash
# Two processes, one shared-memory port between them, no RDMA NIC, no kernel module, no hugepages, no
# privileges: installs what is missing, builds, and moves real data by SEND, WRITE and READ.
#
#   scripts/demo.sh
#
# Packages are installed with apt-get, by sudo where the caller is not root. The measured processes
# run as an ordinary user: as the caller, or as nobody where the caller is root.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=scripts/install.sh
. scripts/install.sh

SECONDS_EACH=2
TCP_PORT=18600

need_packages "to build against DPDK" build-essential pkg-config libdpdk-dev dpdk libclang-dev
need_packages "to run as an ordinary user on two cores" util-linux
command -v cargo >/dev/null || {
    echo "demo.sh: there is no cargo; install Rust 1.91 or newer (https://rustup.rs)" >&2
    exit 1
}

echo "Building (some minutes the first time)"
cargo build --release --locked --quiet --package apps

work=$(mktemp -d /tmp/roce-demo.XXXXXX)
chmod 755 "$work"
install -m 755 target/release/roce "$work/roce"
server=
cleanup() {
    [ -z "$server" ] || kill "$server" 2>/dev/null || true
    rm -rf "$work"
}
trap cleanup EXIT

# Runs a command as an ordinary user, on the core given.
as_user() {
    local core=$1
    shift
    local pin=()
    [ "$(nproc)" -lt 2 ] || pin=(taskset -c "$core")
    if [ "$(id -u)" = 0 ]; then
        env -u XDG_RUNTIME_DIR HOME=/nonexistent "${pin[@]}" \
            setpriv --reuid=65534 --regid=65534 --clear-groups --no-new-privs --bounding-set=-all "$@"
    else
        "${pin[@]}" "$@"
    fi
}

# Runs both ends of one measurement; prints the client's report and keeps its last row in `row`.
measure() {
    local title=$1
    shift
    local port="memif:demo-$$-$TCP_PORT"
    printf '\n--- %s\n    roce perf %s\n' "$title" "$*"
    as_user 0 "$work/roce" perf "$@" --port "$port" --tcp-port "$TCP_PORT" >"$work/server.log" 2>&1 &
    server=$!
    if ! as_user 1 "$work/roce" perf "$@" --port "$port" --tcp-port "$TCP_PORT" localhost | tee "$work/report"; then
        echo "demo.sh: the measurement failed; its server said:" >&2
        cat "$work/server.log" >&2
        exit 1
    fi
    wait "$server" || {
        echo "demo.sh: the server failed:" >&2
        cat "$work/server.log" >&2
        exit 1
    }
    server=
    TCP_PORT=$((TCP_PORT + 1))
    read -r -a row < <(grep -E '^ *[0-9]' "$work/report" | tail -n 1)
}

user=$(id -un)
[ "$user" != root ] || user=nobody
echo "As $user, without hugepages, between two processes:"
for operation in send write read; do
    measure "$operation: 64 KiB messages, every byte compared" \
        "$operation-bw" -m 4096 -s 65536 -n 2000 --report_gbits --verify
done
measure "write: 64 KiB messages" write-bw -m 4096 -s 65536 -D "$SECONDS_EACH" --report_gbits
write_gbps=${row[3]}
measure "send: 64 B messages" send-bw -m 4096 -s 64 -D "$SECONDS_EACH" --report_gbits
send_mpps=${row[4]}
measure "send: half round trip of 64 B" send-lat -m 4096 -s 64 -n 100000
latency_usec=${row[4]}
measure "what copying and the ICRC alone allow on this port: 4 KiB payloads, no transport" \
    raw -s 4096 -D "$SECONDS_EACH"
limit_gbps=${row[3]}
measure "what the bare port carries: 4 KiB payloads, nothing copied or checked" \
    raw --bare -s 4096 -D "$SECONDS_EACH"
bare_gbps=${row[3]}

cat <<END

Payload, Gbit/s:   RDMA WRITE of 64 KiB $write_gbps   copy and ICRC alone $limit_gbps   bare port $bare_gbps
SEND of 64 B:      $send_mpps million messages/s, half a round trip in $latency_usec us (typical)
END
