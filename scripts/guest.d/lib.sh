# shellcheck shell=bash
# Functions for jobs in the guest; every bash there has them.

# rxe_up NIC [IPV4/LENGTH|-] [IPV6/LENGTH|-] [MTU]: brings NIC up with these
# addresses, puts a soft-RoCE device on it, waits for its GIDs (0 link-local,
# then IPv4, then IPv6) and prints its name, rxe0 for the first.
rxe_up() {
    local nic=$1 ipv4=${2:--} ipv6=${3:--} mtu=${4:-1500} gids=1 device index=0 family
    modprobe -a rdma_rxe ib_uverbs rdma_ucm ib_umad || return
    ip link set dev "$nic" mtu "$mtu" up || return
    # ibv_modify_qp fails if the kernel has not resolved the peer's MAC after 1 s. By default the kernel queries
    # a neighbour once per second, so one query lost (for example, just after the link came up) is enough.
    for family in ipv4 ipv6; do
        sysctl -qw "net.$family.neigh.$nic.retrans_time_ms=100" "net.$family.neigh.$nic.mcast_solicit=9" || return
    done
    if [ "$ipv4" != - ]; then
        ip address replace "$ipv4" dev "$nic" || return
        gids=$((gids + 1))
    fi
    if [ "$ipv6" != - ]; then
        ip -6 address replace "$ipv6" dev "$nic" nodad || return
        gids=$((gids + 1))
    fi
    while [ -e "/sys/class/infiniband/rxe$index" ]; do
        index=$((index + 1))
    done
    device=rxe$index
    rdma link add "$device" type rxe netdev "$nic" || return
    local tries
    for ((tries = 0; tries < 200; tries++)); do
        if [ "$(rxe_gids "$device" | wc -l)" -ge "$gids" ]; then
            echo "$device"
            return 0
        fi
        sleep 0.05
    done
    echo "$device has not got its $gids GIDs: $(rxe_gids "$device" | tr '\n' ' ')" >&2
    return 1
}

# rxe_pair IPV4 IPV4 [MTU]: a veth pair, va and vb, with a soft-RoCE device on either end. They talk over
# the pair, not over loopback: what one address sends to the other is routed to its device, and what
# arrives for it is local.
rxe_pair() {
    local a=$1 b=$2 mtu=${3:-1500} name
    ip link add va type veth peer name vb || return
    for name in rp_filter=0 accept_local=1 arp_ignore=1 arp_announce=2; do
        sysctl -qw "net.ipv4.conf.all.$name" "net.ipv4.conf.va.$name" "net.ipv4.conf.vb.$name" || return
    done
    rxe_up va "$a/32" - "$mtu" && rxe_up vb "$b/32" - "$mtu" || return
    ip rule add pref 10 iif lo from "$a" to "$b" lookup 101
    ip rule add pref 11 iif lo from "$b" to "$a" lookup 102
    ip route add "$b" dev va src "$a" table 101
    ip route add "$a" dev vb src "$b" table 102
    ip rule add pref 1000 lookup local
    ip rule del pref 0
}

# rxe_gids DEVICE: one line per GID, "INDEX GID".
rxe_gids() {
    local file
    for file in "/sys/class/infiniband/$1/ports/1/gids"/?; do
        echo "${file##*/} $(<"$file")"
    done 2>/dev/null | grep -v ' 0000:0000:0000:0000:0000:0000:0000:0000$'
}

# rxe_counter DEVICE NAME: one of rxe's hw_counters.
rxe_counter() {
    cat "/sys/class/infiniband/$1/ports/1/hw_counters/$2"
}

# netem_loss NIC PERCENT: loses that share of everything the guest sends,
# RoCE or not. netem_clear NIC undoes it.
netem_loss() {
    tc qdisc replace dev "$1" root netem limit 10000 loss "$2%"
}
netem_clear() {
    tc qdisc del dev "$1" root
}

# The loss_ functions touch RoCE alone (UDP port 4791). DIRECTION is `in` (what
# the guest receives) or `out` (what it sends).
#
# loss_random NIC DIRECTION PERCENT: a whole number, 100 loses all.
loss_random() {
    if [ "$3" = 100 ]; then
        _loss_rule "$1" "$2"
    else
        _loss_rule "$1" "$2" numgen random mod 100 '<' "$3"
    fi
}

# loss_psn NIC DIRECTION PSN [COUNT]: loses the first COUNT (1) packets with this PSN.
loss_psn() {
    _loss_rule "$1" "$2" @th,136,24 "$3" limit rate 1/day burst "${4:-1}" packets
}

# loss_opcode NIC DIRECTION OPCODE [COUNT]: loses the first COUNT (1) packets with this BTH opcode.
loss_opcode() {
    _loss_rule "$1" "$2" @th,64,8 "$3" limit rate 1/day burst "${4:-1}" packets
}

# loss_count NIC: how many packets the loss_ functions have lost there.
loss_count() {
    nft list table netdev "loss_$1" | awk '{ for (i = 1; i < NF; i++) if ($i == "packets") n += $(i + 1) } END { print n + 0 }'
}

# loss_clear NIC: removes all loss_ rules, and their counts.
loss_clear() {
    nft delete table netdev "loss_$1"
}

_loss_rule() {
    local nic=$1 table=loss_$1 direction=$2 hook
    shift 2
    case $direction in
        in) hook=ingress ;;
        out) hook=egress ;;
        *) echo "a direction is in or out, not $direction" >&2 && return 2 ;;
    esac
    nft -f - <<END
add table netdev $table
add chain netdev $table $direction { type filter hook $hook device $nic priority 0; }
add rule netdev $table $direction udp dport 4791 $* counter drop
END
}

# vfio_bind NIC|PCI-ADDRESS: takes the device from its kernel driver, gives it
# to vfio-pci and prints its PCI address, for `dpdk-testpmd -a`.
vfio_bind() {
    local address=$1 device
    if [ -e "/sys/class/net/$1/device" ]; then
        address=$(_pci_address "$1")
    fi
    device=/sys/bus/pci/devices/$address
    [ -e "$device" ] || { echo "no NIC or PCI device $1" >&2 && return 1; }
    [ -e "$device/iommu_group" ] || { echo "no IOMMU: start the guest with --vfio" >&2 && return 1; }
    modprobe vfio-pci || return
    echo vfio-pci >"$device/driver_override"
    [ ! -e "$device/driver" ] || echo "$address" >"$device/driver/unbind"
    echo "$address" >/sys/bus/pci/drivers_probe
    [ "$(basename "$(readlink "$device/driver")")" = vfio-pci ] ||
        { echo "$address is not bound to vfio-pci, see dmesg" >&2 && return 1; }
    echo "$address"
}

# vfio_unbind PCI-ADDRESS: back to the kernel's own driver.
vfio_unbind() {
    local device=/sys/bus/pci/devices/$1
    echo "$1" >"$device/driver/unbind"
    echo >"$device/driver_override"
    echo "$1" >/sys/bus/pci/drivers_probe
}

# A virtio NIC's own device lies below its PCI function.
_pci_address() {
    local path
    path=$(readlink -f "/sys/class/net/$1/device")
    case $path in
        */virtio*) path=${path%/virtio*} ;;
    esac
    basename "$path"
}

# wait_for SECONDS COMMAND...: repeats COMMAND until it succeeds.
wait_for() {
    local end=$((SECONDS + $1))
    shift
    until "$@" >/dev/null 2>&1; do
        [ "$SECONDS" -lt "$end" ] || { echo "not within the time: $*" >&2 && return 1; }
        sleep 0.05
    done
}

# wait_listen PORT: waits until something listens on this TCP port.
wait_listen() {
    wait_for 30 grep -qi "$(printf ':%04X 0*:0000 0A' "$1")" /proc/net/tcp /proc/net/tcp6
}
