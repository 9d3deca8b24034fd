#!/bin/bash
# shellcheck source-path=SCRIPTDIR disable=SC2015,SC2016,SC2317 # checks are called by name, with jobs for the guest
# scripts/guest selftest [CHECK]...: proves that the guest does here what the
# tests rely on. Each check boots a guest of its own; all of them take a
# minute or two. Exit status 0 when all pass.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
guest=$here/guest
name=selftest.$$
checks=(run jobs rxe user dgram vhost_user vfio)

fail() {
    echo "FAIL $check: $*" >&2
    exit 1
}

# expect WHAT WANTED GOT
expect() {
    [ "$2" = "$3" ] || fail "$1: expected '$2', got '$3'"
}

boot() {
    "$guest" start --name "$name" --with-pid $$ --timeout 300 "$@"
}

inside() {
    "$guest" exec --name "$name" --timeout 60 -- "$@"
}

# status_of COMMAND...: prints its exit status alone.
status_of() {
    local status=0
    "$@" >/dev/null 2>&1 || status=$?
    echo "$status"
}

# make_tap IFNAME ADDRESS...
make_tap() {
    local tap=$1 address
    shift
    ip tuntap add dev "$tap" mode tap
    ip link set dev "$tap" mtu 9000 up
    for address in "$@"; do
        ip address add "$address" dev "$tap" nodad 2>/dev/null || ip address add "$address" dev "$tap"
    done
}

# Pings ADDRESS until it answers, as the peer may still be starting, then
# wants all of ten answers.
ping_from_guest() {
    inside wait_for 20 ping -c 1 -W 1 -q "$1" || fail "$1 does not answer"
    inside ping -c 10 -i 0.05 -q "$@" >/dev/null || fail "$1 does not answer each time"
}

check_run() {
    cat >"$work/job" <<'END'
#!/bin/bash
echo "got $*"
echo problem >&2
exit 9
END
    expect "status of a script" 9 "$(status_of "$guest" run -- "$work/job" a "b c")"
    chmod +x "$work/job"
    expect "output of a directory's job" "got a b c" "$("$guest" run -- "$work" a "b c" 2>/dev/null || true)"
    expect "guests left behind" "" "$("$guest" list | grep run || true)"
}

check_jobs() {
    boot --share "$here"
    expect "stdout" "a  b *" "$(inside echo 'a  b *')"
    expect "stderr" "two" "$(inside bash -c 'echo one; echo two >&2' 2>&1 >/dev/null)"
    expect "exit status" 7 "$(status_of inside bash -c 'exit 7')"
    expect "stdin" "4" "$(echo -n 1234 | "$guest" exec --name "$name" --stdin -- wc -c)"
    inside test -x "$here/guest" || fail "the shared directory is not there"
    expect "status at the time limit" 124 \
        "$(status_of "$guest" exec --name "$name" --timeout 1 -- sleep 1000)"
    inside pgrep -fx 'sleep 1000' && fail "the time limit did not end the command"
    # Two at a time: each waits for the other.
    inside bash -c 'touch /tmp/one; wait_for 20 test -e /tmp/two' &
    inside bash -c 'touch /tmp/two; wait_for 20 test -e /tmp/one' || fail "commands do not run side by side"
    wait $! || fail "commands do not run side by side"
    # A caller that dies takes its command along.
    "$guest" exec --name "$name" -- sleep 1001 &
    local caller=$!
    inside wait_for 20 pgrep -fx 'sleep 1001'
    kill -KILL "$caller"
    inside bash -c 'wait_for 20 bash -c "! pgrep -fx \"sleep 1001\""' || fail "the command outlived its caller"
}

check_rxe() {
    make_tap gst-tap 10.77.0.1/24 fd77::1/64
    boot --nic tap:gst-tap
    expect "first device" rxe0 "$(inside rxe_up nic0 10.77.0.2/24 fd77::2/64 9000)"
    expect "GIDs" 3 "$(inside rxe_gids rxe0 | wc -l)"
    ping_from_guest 10.77.0.1 -s 8900
    ping_from_guest fd77::1
    pingpong 4096
    inside loss_random nic0 out 50
    inside bash -c 'for i in {1..100}; do echo x >/dev/udp/10.77.0.1/4791; done'
    local lost
    lost=$(inside loss_count nic0)
    [ "$lost" -gt 20 ] && [ "$lost" -lt 80 ] || fail "lost $lost of 100 packets at 50 %"
    inside loss_clear nic0
    # A BTH as far as its PSN, twice; the first of them is to be lost.
    inside loss_psn nic0 out 0x123456
    inside loss_opcode nic0 out 0x17 5
    inside bash -c 'for opcode in 04 04 17; do
        printf "\x$opcode\0\0\0\0\0\0\0\0\x12\x34\x56" >/dev/udp/10.77.0.1/4791; done'
    expect "packets lost by PSN and opcode" 2 "$(inside loss_count nic0)"
    inside loss_clear nic0
    # The other direction: the host sends, the guest loses.
    inside loss_random nic0 in 100
    local datagram
    for datagram in {1..5}; do
        echo "$datagram" >/dev/udp/10.77.0.2/4791
    done
    inside wait_for 10 bash -c '[ "$(loss_count nic0)" = 5 ]' || fail "lost $(inside loss_count nic0) of 5 packets to the guest"
    inside loss_clear nic0
    inside netem_loss nic0 100
    inside ping -c 1 -W 1 -q 10.77.0.1 >/dev/null && fail "an answer in spite of netem's 100 % loss"
    inside netem_clear nic0
    ping_from_guest 10.77.0.1
}

# pingpong MTU: two processes on one rxe device.
pingpong() {
    inside bash -c "ibv_rc_pingpong -d rxe0 -g 1 -m $1 -c -n 100 & wait_listen 18515 &&
        ibv_rc_pingpong -d rxe0 -g 1 -m $1 -c -n 100 localhost && wait" >/dev/null ||
        fail "ibv_rc_pingpong at MTU $1"
}

check_user() {
    local port=$((20000 + $$ % 10000))
    # Its loopback is this namespace's, so the ports are ours alone.
    boot --nic "user:hostfwd=tcp:127.0.0.1:$port-:5000"
    python3 -c 'import http.server as h, sys; h.test(h.SimpleHTTPRequestHandler, port=int(sys.argv[1]), bind="127.0.0.1")' \
        $((port + 1)) >/dev/null 2>&1 &
    helpers+=($!)
    inside wait_for 10 bash -c "</dev/tcp/10.0.2.2/$((port + 1))" || fail "no TCP from guest to host"
    inside python3 -c 'import socket; s = socket.create_server(("", 5000)); c = s.accept()[0]; c.send(b"hello"); c.close()' &
    inside wait_listen 5000
    expect "TCP from host to guest" hello "$(cat <"/dev/tcp/127.0.0.1/$port")"
    wait $!
}

check_dgram() {
    boot --nic "dgram:$work/qemu.sock,$work/peer.sock"
    inside bash -c 'ip address add 10.78.0.2/24 dev nic0; ip link set nic0 mtu 9000 up'
    # By hand: who has 10.78.0.2? The guest's kernel answers.
    python3 - "$work" <<'END' || fail "no answer to an ARP request over datagrams"
import socket, sys
work = sys.argv[1]
peer = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
peer.bind(work + "/peer.sock")
peer.settimeout(1)
mine = bytes.fromhex("020000000001")
request = (b"\xff" * 6 + mine + bytes.fromhex("0806" "0001080006040001") + mine + bytes([10, 78, 0, 1])
           + bytes(6) + bytes([10, 78, 0, 2]))
for _ in range(10):
    peer.sendto(request, work + "/qemu.sock")
    try:
        while True:
            frame = peer.recv(65536)
            if frame[:6] == mine and frame[12:14] == b"\x08\x06" and frame[28:32] == bytes([10, 78, 0, 2]):
                sys.exit(0)
    except TimeoutError:
        pass
sys.exit(1)
END
}

# testpmd answers ARP and echo requests for any address; without a stats
# period it would end with its stdin.
icmpecho=(--auto-start --forward-mode=icmpecho --total-num-mbufs=4096 --stats-period 60)

check_vhost_user() {
    XDG_RUNTIME_DIR=$work dpdk-testpmd -l 0-1 --no-huge -m 256 --no-shconf --no-pci --no-telemetry \
        --vdev "net_vhost0,iface=$work/vhost.sock" -- "${icmpecho[@]}" </dev/null >"$work/testpmd" 2>&1 &
    helpers+=($!)
    boot --nic "vhost-user:$work/vhost.sock"
    inside bash -c 'ip address add 10.79.0.2/24 dev nic0; ip link set nic0 mtu 9000 up'
    ping_from_guest 10.79.0.9 || { tail "$work/testpmd" >&2 && return 1; }
}

check_vfio() {
    boot --vfio --nic hub:0,model=e1000e --nic hub:0 --nic hub:1 --nic hub:1
    expect "address of nic0" 0000:00:10.0 "$(inside vfio_bind nic0)"
    expect "address of nic2" 0000:00:12.0 "$(inside vfio_bind nic2)"
    inside rxe_up nic1 10.80.1.2/24 - 1500 >/dev/null
    inside rxe_up nic3 10.80.3.2/24 - 4200 >/dev/null
    local port
    for port in 0000:00:10.0/10.80.1.9 0000:00:12.0/10.80.3.9; do
        "$guest" exec --name "$name" -- dpdk-testpmd -l 0-1 -a "${port%/*}" --in-memory --no-telemetry -- \
            "${icmpecho[@]}" >"$work/testpmd" 2>&1 &
        ping_from_guest "${port#*/}" || { tail "$work/testpmd" >&2 && return 1; }
        inside pkill testpmd
        wait $! || true
    done
}

finish() {
    "$guest" stop --name "$name"
    [ ${#helpers[@]} = 0 ] || kill "${helpers[@]}" 2>/dev/null || true
    rm -rf "$work"
}

# One check, in this process, in a network namespace of its own.
if [ "${1-}" = --alone ]; then
    check=$2
    helpers=()
    work=$(mktemp -d)
    trap finish EXIT
    ip link set dev lo up
    "check_$check"
    exit 0
fi

# shellcheck source=../install.sh
. "$here/install.sh"
need_packages "to test the soft-RoCE guest" iproute2 dpdk-dev python3
"$guest" build >/dev/null
[ "$(id -u)" = 0 ] && apart=(unshare --net) || apart=(unshare --user --map-current-user --keep-caps --net)
[ $# -gt 0 ] && checks=("$@")
failed=0
for check in "${checks[@]}"; do
    declare -F "check_$check" >/dev/null || { echo "no check $check; there are ${checks[*]}" >&2 && exit 2; }
    started=$SECONDS
    if "${apart[@]}" bash "${BASH_SOURCE[0]}" --alone "$check"; then
        echo "ok   $check, $((SECONDS - started)) s"
    else
        failed=1
    fi
done
exit "$failed"
