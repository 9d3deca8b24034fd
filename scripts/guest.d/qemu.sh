# shellcheck shell=bash disable=SC2054,SC2154 # QEMU's options hold commas; opt... are of scripts/guest
# Boots and ends QEMU. Sourced by scripts/guest; uses its `opt`, `nics`, `shares`.
#
# The directory of a guest: pid, console (the serial log), qemu (its messages),
# doorbell.in and doorbell.out (the pipes behind a virtio-serial port), share/
# (the guest's /share).

# The first NIC's PCI slot; the n-th is at 0000:00:(10+n).0, hexadecimal.
FIRST_NIC_SLOT=16

guest_runs() {
    local pid
    pid=$(cat "$1/pid" 2>/dev/null) && [ -n "$pid" ] && kill -0 "$pid" 2>/dev/null
}

# boot_guest DIRECTORY IMAGE: returns when the guest takes jobs.
boot_guest() {
    local directory=$1 image=$2 qemu=() started=${EPOCHREALTIME/./}
    guest_runs "$directory" && die "a guest ${opt[name]} runs already; stop it first"
    rm -rf "$directory"
    [ -d "$GUEST_STATE" ] || mkdir -m 700 "$GUEST_STATE"
    [ -O "$GUEST_STATE" ] || die "$GUEST_STATE is not ours; set XDG_RUNTIME_DIR"
    mkdir -p "$directory/share/jobs"
    cp "$GUEST_LIB/agent" "$GUEST_LIB/lib.sh" "$directory/share/"
    : >"$directory/share/nics"
    : >"$directory/share/shares"
    mkfifo "$directory/doorbell.in" "$directory/doorbell.out"
    qemu_machine "$image"
    qemu_shares
    qemu_nics
    # Of no stream of ours: the caller may wait for the end of its pipes.
    setsid bash "$GUEST_LIB/supervise" "$directory/pid" "${opt[timeout]}" "${opt[with_pid]}" \
        "${qemu[@]}" </dev/null >"$directory/qemu" 2>&1 &
    wait_ready "$directory"
    say "${opt[name]} is up after $(((${EPOCHREALTIME/./} - started) / 1000)) ms"
}

qemu_machine() {
    local image=$1 mem=${opt[mem]} kernel
    # Emulated processors share the host's TSC; any other clock leaves the
    # emulation each time that it is read.
    kernel="console=ttyS0 quiet loglevel=4 panic=-1 net.ifnames=0 tsc=reliable mitigations=off"
    kernel+=" nowatchdog audit=0 apparmor=0 cryptomgr.notests no_timer_check rcupdate.rcu_expedited=1"
    if [ -n "${opt[vfio]}" ]; then
        [ "${opt[hugepages]}" != 0 ] || opt[hugepages]=256
        kernel+=" intel_iommu=on iommu=nopt"
    fi
    if [ "${opt[hugepages]}" != 0 ]; then
        kernel+=" hugepages=${opt[hugepages]}"
        mem=${mem:-$((1024 + 2 * opt[hugepages]))}
    fi
    mem=${mem:-1024}
    # vhost-user wants memory that another process can map.
    qemu=(qemu-system-x86_64 -nodefaults -no-user-config -display none -no-reboot
        -machine q35,hpet=off,sata=off,smbus=off,memory-backend=ram -cpu max -smp "${opt[smp]}" -m "$mem"
        -object "memory-backend-memfd,id=ram,size=${mem}M,share=on")
    case ${opt[accel]} in
        tcg) qemu+=(-accel tcg,thread=multi) ;;
        kvm) qemu+=(-accel kvm) ;;
        *) die "--accel is tcg or kvm, not ${opt[accel]}" ;;
    esac
    [ -z "${opt[vfio]}" ] || qemu+=(-device intel-iommu,intremap=on)
    qemu+=(-kernel "$image/kernel" -initrd "$image/initrd" -append "$kernel"
        -serial "file:$directory/console"
        -drive "if=none,id=root,format=raw,readonly=on,file=$image/root.ext4"
        -device virtio-blk-pci,drive=root
        -device virtio-rng-pci
        -chardev "pipe,id=doorbell,path=$directory/doorbell"
        -device virtio-serial-pci -device virtserialport,chardev=doorbell,name=doorbell)
}

# A comma in a value is written twice.
qemu_quote() {
    echo "${1//,/,,}"
}

qemu_share() {
    qemu+=(-fsdev "local,id=$1,security_model=none,multidevs=remap,path=$(qemu_quote "$2")$3"
        -device "virtio-9p-pci,fsdev=$1,mount_tag=$1")
}

qemu_shares() {
    local index mode path
    qemu_share share "$directory/share" ""
    for index in "${!shares[@]}"; do
        IFS=$'\t' read -r mode path <<<"${shares[index]}"
        # What the host changes shall be seen, but a program is to be mapped.
        if [ "$mode" = ro ]; then
            qemu_share "share$index" "$path" ",readonly=on"
        else
            qemu_share "share$index" "$path" ""
        fi
        printf 'share%d\t%s,cache=mmap\t%s\n' "$index" "$mode" "$path" >>"$directory/share/shares"
    done
}

qemu_nics() {
    local index
    for index in "${!nics[@]}"; do
        qemu_nic "$index" "${nics[index]}"
    done
}

# qemu_nic INDEX KIND:TARGET[,key=value...]
qemu_nic() {
    local index=$1 kind=${2%%:*} target part parts model=virtio mac mtu=9000 netdev extra=""
    [[ $2 == *:* ]] || die "--nic wants KIND:TARGET, not $2"
    IFS=, read -ra parts <<<"${2#*:}"
    target=${parts[0]-}
    mac=$(mac_address "$index")
    netdev=$(netdev_of "$kind" "$target" "${parts[1]-}") || exit 1
    for part in "${parts[@]}"; do
        case $part in
            model=*) model=${part#*=} ;;
            mac=*) mac=${part#*=} ;;
            mtu=*) mtu=${part#*=} ;;
            hostfwd=*) [ "$kind" = user ] && netdev+=",$part" ;;
            *=*) die "no key $part in --nic $2; see --help" ;;
        esac
    done
    [ "$((16#${mac##*:}))" = "$index" ] || die "the last byte of NIC $index's mac= must be $index"
    if [ "$kind" = vhost-user ]; then
        [ "$model" = virtio ] || die "a vhost-user NIC is of model virtio"
        qemu+=(-chardev "socket,id=chr$index,path=$(qemu_quote "$target"),reconnect=1")
        extra=,vectors=0
    elif [ -n "${opt[vfio]}" ]; then
        extra=,disable-legacy=on,iommu_platform=on,ats=on
    fi
    [ "$kind" != user ] || mtu=1500
    qemu+=(-netdev "$netdev,id=net$index")
    local slot device
    slot=$(printf %x $((FIRST_NIC_SLOT + index)))
    device="netdev=net$index,mac=$mac,bus=pcie.0,addr=$slot,romfile="
    case $model in
        virtio) qemu+=(-device "virtio-net-pci,$device,host_mtu=$mtu$extra") ;;
        e1000 | e1000e | igb | vmxnet3) qemu+=(-device "$model,$device") ;;
        *) die "no model $model; there are virtio, e1000, e1000e, igb, vmxnet3" ;;
    esac
    printf '%d\t%s\n' "$index" "$kind" >>"$directory/share/nics"
}

# netdev_of KIND TARGET SECOND
netdev_of() {
    case $1 in
        tap)
            # Not /sys: it may show another network namespace.
            grep -q "^ *$2:" /proc/net/dev ||
                die "no tap interface $2 here; make it: ip tuntap add dev $2 mode tap"
            # Frames as on a wire: no offloads that a program on the tap would not know of.
            echo "tap,ifname=$2,script=no,downscript=no,vnet_hdr=off"
            ;;
        vhost-user) echo "vhost-user,chardev=chr$index" ;;
        dgram)
            [ -n "$3" ] || die "--nic dgram wants two paths: dgram:LOCAL,REMOTE"
            echo "dgram,local.type=unix,local.path=$2,remote.type=unix,remote.path=$3"
            ;;
        hub) echo "hubport,hubid=$2" ;;
        user) echo user ;;
        *) die "no kind of NIC $1; there are tap, vhost-user, dgram, hub, user" ;;
    esac
}

# The name sets guests apart, the last byte the NICs of one.
mac_address() {
    local hash
    hash=$(printf %s "${opt[name]}" | sha256sum)
    printf '52:54:00:%s:%s:%02x' "${hash:0:2}" "${hash:2:2}" "$1"
}

wait_ready() {
    local directory=$1 pid="" limit=$((SECONDS + opt[boot_timeout]))
    until [ -s "$directory/share/ready" ]; do
        pid=$(cat "$directory/pid" 2>/dev/null) || true
        if [ -n "$pid" ] && ! kill -0 "$pid" 2>/dev/null; then
            boot_failure "QEMU ended while booting"
        fi
        [ "$SECONDS" -lt "$limit" ] || boot_failure "not up after ${opt[boot_timeout]} s"
        sleep 0.05
    done
}

boot_failure() {
    tail -n 15 "$directory/console" "$directory/qemu" >&2 || true
    stop_guest "$directory"
    die "${opt[name]}: $1"
}

# stop_guest DIRECTORY: a guest has nothing to lose, so its QEMU is just ended.
stop_guest() {
    local directory=$1 pid tries
    if guest_runs "$directory"; then
        pid=$(cat "$directory/pid")
        kill "$pid" 2>/dev/null || true
        for ((tries = 0; tries < 100; tries++)); do
            kill -0 "$pid" 2>/dev/null || break
            sleep 0.05
        done
        kill -KILL "$pid" 2>/dev/null || true
    fi
    rm -rf "$directory"
}
