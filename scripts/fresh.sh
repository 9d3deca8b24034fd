#!/usr/bin/env bash
# Runs both commands of the README as a newcomer would: on a minimal Debian 12 with nothing but git, sudo
# and Rust, in a clone of the last commit, as an ordinary user.
#
#   scripts/fresh.sh [--keep] [--directory DIR] [COMMAND...]
#
#   COMMAND...        what to run instead of "scripts/demo.sh" and "scripts/check.sh", one argument each
#   --directory DIR   where the system is made (a new directory under /var/tmp); takes some 12 GB
#   --keep            leave it there
#
# It needs root, for debootstrap and mounts. The system lies in mount, PID and IPC namespaces of its own
# (pivot_root, because user namespaces cannot be made inside a chroot); all that it starts ends with it. Package sources,
# certificate authorities, proxies and the Rust toolchain are this machine's. What is not committed is not
# tested. The time of each command is printed at the end.
set -euo pipefail
cd "$(dirname "$0")/.."
repository=$PWD
script=$PWD/scripts/fresh.sh
# shellcheck source=scripts/install.sh
. scripts/install.sh

RELEASE=bookworm
# What the README asks for, and what any Debian has that people log in to.
PACKAGES=ca-certificates,git,sudo

die() {
    echo "fresh.sh: $*" >&2
    exit 1
}

# The mirrors of Debian's own archives that this machine uses, as lines of a sources.list.
sources() {
    # shellcheck disable=SC2016 # expanded by apt
    apt-get indextargets --format '$(ORIGIN) $(CODENAME) deb $(REPO_URI) $(RELEASE) $(COMPONENT)' \
        "Identifier: Packages" |
        sed -nE "s/^Debian ${RELEASE}[a-z-]* (deb .*)/\1/p" | sort -u
}

make_system() {
    local root=$1 mirror toolchain
    mirror=$(sources | awk -v release="$RELEASE" '$3 == release { print $2; exit }')
    [ -n "$mirror" ] || die "this machine has no source of Debian $RELEASE; run apt-get update, see /etc/apt"
    debootstrap --variant=minbase --include="$PACKAGES" "$RELEASE" "$root" "$mirror" >"$root.log" 2>&1 || {
        tail -n 20 "$root.log" >&2
        die "debootstrap failed (see above; the whole log is $root.log)"
    }
    rm -f "$root.log"
    sources >"$root/etc/apt/sources.list"
    cp -L /etc/resolv.conf "$root/etc/resolv.conf"
    cp -L /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/certs/ca-certificates.crt"
    echo "127.0.0.1 localhost $(hostname)" >"$root/etc/hosts"
    toolchain=$(rustc --print sysroot)
    cp -a "$toolchain/." "$root/opt/rust"
    chroot "$root" useradd --create-home --shell /bin/bash newcomer
    echo 'newcomer ALL=(ALL) NOPASSWD: ALL' >"$root/etc/sudoers.d/newcomer"
    git clone --quiet "file://$repository" "$root/home/newcomer/roce"
    chroot "$root" chown -R newcomer: /home/newcomer
}

# Runs in namespaces of its own: makes ROOT the root directory, and runs the command as the user.
enter() {
    local root=$1 command=$2 variable variables=()
    mount --make-rprivate /
    mount --bind "$root" "$root"
    mount --rbind /dev "$root/dev"
    mount --rbind /sys "$root/sys"
    mount -t proc proc "$root/proc"
    mount -t tmpfs -o mode=1777 tmpfs "$root/tmp"
    mount -t tmpfs -o mode=755 tmpfs "$root/run"
    mkdir -m 1777 "$root/run/lock"
    mkdir -p "$root/mnt/old"
    cd "$root"
    pivot_root . mnt/old
    umount --lazy /mnt/old
    for variable in http_proxy https_proxy no_proxy HTTP_PROXY HTTPS_PROXY NO_PROXY; do
        [ -z "${!variable:-}" ] || variables+=("$variable=${!variable}")
    done
    [ -z "${CI:-}" ] || variables+=("CI=$CI")
    cd /home/newcomer/roce
    exec setpriv --reuid=newcomer --regid=newcomer --init-groups env -i "${variables[@]}" \
        HOME=/home/newcomer USER=newcomer LOGNAME=newcomer SHELL=/bin/bash LANG=C.UTF-8 \
        PATH=/opt/rust/bin:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin bash -c "$command"
}

if [ "${1:-}" = --enter ]; then
    enter "$2" "$3"
fi

directory='' keep=''
while [ $# -gt 0 ]; do
    case $1 in
        --directory) [ $# -ge 2 ] || die "$1 needs a value"; directory=$2; shift 2 ;;
        --keep) keep=1; shift ;;
        -h | --help) sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//;p}' "$0"; exit 0 ;;
        -*) die "there is no option '$1'; see scripts/fresh.sh --help" ;;
        *) break ;;
    esac
done
[ $# -gt 0 ] || set -- scripts/demo.sh scripts/check.sh
[ "$(id -u)" = 0 ] || die "making a system takes root; run it with sudo"
need_packages "to make a minimal Debian" debootstrap util-linux git
command -v rustc >/dev/null || die "there is no Rust here to copy; install it (https://rustup.rs)"

[ -z "$directory" ] || mkdir -p "$directory"
base=$(mktemp -d "${directory:-/var/tmp}/roce-fresh.XXXXXX")
chmod 755 "$base"
root=$base/root
mkdir "$root"
commit=$(git rev-parse --short HEAD)
inside=
# All that runs inside ends with the namespace's first process, and so do the mounts.
clean_up() {
    [ -z "$inside" ] || { kill "$inside" && wait "$inside"; } 2>/dev/null || true
    [ -n "$keep" ] || rm -rf --one-file-system "$base"
}
trap clean_up EXIT
trap 'exit 130' INT TERM

echo "== a minimal Debian $RELEASE in $root"
make_system "$root"
report=("$(printf '%6d s  making the system' "$SECONDS")")
for command in "$@"; do
    printf '\n== as an ordinary user: %s\n' "$command"
    started=$SECONDS status=0
    unshare --mount --pid --fork --kill-child --ipc --uts bash "$script" --enter "$root" "$command" </dev/null &
    # A signal is answered during wait, not during a command in the foreground.
    inside=$!
    wait "$inside" || status=$?
    inside=
    report+=("$(printf '%6d s  %s' $((SECONDS - started)) "$command")")
    [ "$status" = 0 ] || {
        printf '%s\n' "" "${report[@]}" >&2
        die "'$command' failed with status $status"
    }
done
printf '%s\n' "" "== all well: commit $commit on a minimal Debian" "${report[@]}"
