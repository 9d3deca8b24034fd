# shellcheck shell=bash
# The recipe of the guest's image. Sourced by scripts/guest; its hash, with
# that of guest.d/initramfs-init, names the image in the cache.
#
# Packages are fetched with this machine's own apt (its sources, mirror, proxy
# and keys) into a directory of our own, and are unpacked but not configured:
# no maintainer script runs, so nothing here needs root, a chroot or a
# namespace. What the scripts would have done and the guest needs is in
# configure_root.

# The suite that the kernel is taken from, of the same archive as the release's packages, for example
# bookworm-backports; empty: the suite of the other packages.
GUEST_KERNEL_SUITE=${GUEST_KERNEL_SUITE:-}

# What the guest is made of: a shell and tools, the verbs programs, DPDK.
GUEST_PACKAGES=(
    base-files base-passwd bash coreutils dash debianutils findutils grep gzip hostname libc-bin
    mawk mount procps sed util-linux kmod busybox-static "linux-image-amd64${GUEST_KERNEL_SUITE:+/$GUEST_KERNEL_SUITE}"
    ibverbs-utils ibverbs-providers perftest rdmacm-utils rdma-core python3-pyverbs
    iproute2 nftables tcpdump iputils-ping ethtool strace
    dpdk dpdk-dev
)
# Loaded by the initramfs, to reach the root file system and the shares.
INITRAMFS_MODULES=(virtio_pci virtio_blk ext4 overlay 9p 9pnet_virtio)
# Of no use in the guest; without them the image is a third of the size.
UNWANTED_FILES=(
    './usr/include' './usr/share/doc' './usr/share/man' './usr/share/locale' './usr/share/perl*'
    './usr/lib/*/perl*' './usr/lib/*/*.a' './usr/share/dpdk' './boot/System.map*'
    './lib/modules/*/kernel/sound' './lib/modules/*/kernel/arch/x86/kvm'
    './lib/modules/*/kernel/net/'{bluetooth,mac80211,wireless,ceph,sunrpc,batman-adv,dccp,tipc}
    './lib/modules/*/kernel/fs/'{btrfs,ceph,cifs,f2fs,gfs2,jfs,nfs,nfsd,ocfs2,reiserfs,smb,ubifs,xfs}
    './lib/modules/*/kernel/drivers/'{ata,bluetooth,comedi,edac,firewire,gpu,hid,hwmon,iio,input}
    './lib/modules/*/kernel/drivers/'{isdn,leds,md,media,mfd,mmc,mtd,nvme,platform,power,scsi}
    './lib/modules/*/kernel/drivers/'{staging,target,thunderbolt,tty,usb,video,w1,watchdog}
    './lib/modules/*/kernel/drivers/net/'{wireless,usb,wwan,can,hamradio,fddi,dsa,phy}
)
ROOT_MIB=1024

# Both files make the image, so both name it; and so do the release and the kernel's suite.
image_directory() {
    local hash
    hash=$({
        cat "$GUEST_LIB/build.sh" "$GUEST_LIB/initramfs-init" /etc/debian_version
        printf %s "$GUEST_KERNEL_SUITE"
    } | sha256sum)
    echo "$GUEST_CACHE/${hash:0:16}"
}

image_present() {
    [ -e "$(image_directory)/complete" ]
}

# Installs what building and booting take, and builds the image unless the cache has it. A second
# caller waits for the first.
build_image() {
    local image build started=$SECONDS
    image=$(image_directory)
    need_packages "to boot the soft-RoCE guest" qemu-system-x86 || exit 1
    image_present && return 0
    [ "$(uname -m)" = x86_64 ] || die "the guest is built for x86_64 only, this machine is $(uname -m)"
    need_packages "to build the soft-RoCE guest" e2fsprogs cpio kmod xz-utils || exit 1
    mkdir -p "$GUEST_CACHE"
    exec 8>"$GUEST_CACHE/lock"
    flock -n 8 || { say "another build is under way, waiting for it" && flock 8; }
    if ! image_present; then
        build=$image.partial
        rm -rf "$build"
        mkdir -p "$build/root"
        say "building the guest's image in $image"
        fetch_packages
        unpack_packages "$build/root"
        configure_root "$build/root"
        make_initramfs "$build/root" "$build/initrd"
        take_kernel "$build/root" "$build/kernel"
        make_disk "$build/root" "$build/root.ext4"
        rm -rf "$build/root"
        touch "$build/complete"
        rm -rf "$image"
        mv "$build" "$image"
        # Those of earlier recipes.
        find "$GUEST_CACHE" -mindepth 2 -maxdepth 2 -name complete -mtime +0 ! -path "$image/*" \
            -printf '%h\0' | xargs -r0 rm -rf
        say "image built in $((SECONDS - started)) s, $(du -sh "$image" | cut -f1)"
    fi
    exec 8>&-
}

# An apt which knows of no installed package and writes to the cache alone.
# private_apt ARCHIVES ARGUMENT...
private_apt() {
    local archives=$1
    shift
    apt-get -y -q \
        -o Dir::State::status="$GUEST_CACHE/apt/status" \
        -o Dir::State::extended_states="$GUEST_CACHE/apt/extended_states" \
        -o Dir::Cache="$GUEST_CACHE/apt" -o Dir::Cache::archives="$archives" \
        -o Dir::Etc::sourcelist="$GUEST_CACHE/apt/sources.list" -o Debug::NoLocking=1 -o APT::Sandbox::User=root "$@" >"$GUEST_CACHE/apt/log" 2>&1
}

fetch_packages() {
    mkdir -p "$GUEST_CACHE/apt/lists/partial" "$GUEST_CACHE/apt/none/partial" "$GUEST_CACHE/debs/partial"
    : >"$GUEST_CACHE/apt/status"
    write_sources >"$GUEST_CACHE/apt/sources.list"
    download_packages && return 0
    # The machine's lists are absent or out of date. As an ordinary user we
    # cannot renew those, so keep our own; a failing third-party source is
    # no obstacle, only the download tells.
    say "the package lists are absent or out of date, fetching them"
    local lists=(-o "Dir::State::lists=$GUEST_CACHE/apt/lists")
    private_apt "$GUEST_CACHE/debs" "${lists[@]}" update || true
    download_packages "${lists[@]}" && return 0
    tail -n 20 "$GUEST_CACHE/apt/log" >&2
    die "could not fetch the packages (see above). Are Debian's sources in /etc/apt? A network" \
        "namespace has no way out: run scripts/guest build before entering it"
}

# The machine's sources, and the suite of the kernel.
write_sources() {
    local release uri
    if [ -e /etc/apt/sources.list ]; then
        cat /etc/apt/sources.list
    fi
    if [ -n "$GUEST_KERNEL_SUITE" ]; then
        release=$(sed -n 's/^VERSION_CODENAME=//p' /etc/os-release)
        # shellcheck disable=SC2016 # expanded by apt
        uri=$(apt-get indextargets --format '$(CODENAME) $(REPO_URI)' 'Identifier: Packages' |
            awk -v release="$release" '$1 == release { print $2; exit }')
        [ -n "$uri" ] || die "GUEST_KERNEL_SUITE=$GUEST_KERNEL_SUITE needs package lists of the release: run apt-get update"
        echo "deb $uri $GUEST_KERNEL_SUITE main"
    fi
}

# Leaves the names of the files to unpack in apt/files.
download_packages() {
    # With an empty directory of archives apt names every file, not only the new.
    private_apt "$GUEST_CACHE/apt/none" "$@" --print-uris install --no-install-recommends \
        "${GUEST_PACKAGES[@]}" || return 1
    sed -n "s/^'[^']*' \([^ ]*\.deb\) .*/\1/p" "$GUEST_CACHE/apt/log" >"$GUEST_CACHE/apt/files"
    say "fetching $(wc -l <"$GUEST_CACHE/apt/files") packages," \
        "$(awk '/\.deb / { sum += $3 } END { print int(sum / 1e6) }' "$GUEST_CACHE/apt/log") MB"
    private_apt "$GUEST_CACHE/debs" "$@" install --download-only --no-install-recommends \
        "${GUEST_PACKAGES[@]}"
}

# unpack_packages ROOT
unpack_packages() {
    local root=$1 directory pattern exclude=()
    say "unpacking"
    # The merged /usr, which dpkg expects to find.
    for directory in bin sbin lib lib64; do
        mkdir -p "$root/usr/$directory"
        ln -s "usr/$directory" "$root/$directory"
    done
    for pattern in "${UNWANTED_FILES[@]}"; do
        exclude+=("--exclude=$pattern")
    done
    (
        cd "$GUEST_CACHE/debs"
        # shellcheck disable=SC2016 # expanded by the inner shell
        xargs -P "$(nproc)" -n 1 bash -o pipefail -c 'dpkg-deb --fsys-tarfile "${!#}" |
            tar -x -C "$0" --keep-directory-symlink "${@:1:$#-1}"' "$root" "${exclude[@]}" \
            <"$GUEST_CACHE/apt/files"
    ) || die "could not unpack the guest's packages"
}

# What the packages' scripts would have done, as far as the guest needs it.
# configure_root ROOT
configure_root() {
    local root=$1
    cp "$root/usr/share/base-passwd/passwd.master" "$root/etc/passwd"
    cp "$root/usr/share/base-passwd/group.master" "$root/etc/group"
    echo 'tcpdump:x:100:65534::/nonexistent:/usr/sbin/nologin' >>"$root/etc/passwd"
    printf '127.0.0.1 localhost\n::1 localhost\n' >"$root/etc/hosts"
    echo guest >"$root/etc/hostname"
    ln -sf mawk "$root/usr/bin/awk"
    ln -sf /proc/mounts "$root/etc/mtab"
    # After a reboot or a panic there is nothing to save: no journal, no swap.
    rm -rf "$root/boot/config"* "$root/var/cache" "$root/var/lib/dpkg"
    mkdir -p "$root/proc" "$root/sys" "$root/dev" "$root/run" "$root/tmp" "$root/root" "$root/share"
    /sbin/ldconfig -r "$root"
    /sbin/depmod -b "$root" "$(kernel_release "$root")"
}

kernel_release() {
    basename "$1"/lib/modules/*
}

# make_initramfs ROOT FILE
make_initramfs() {
    local root=$1 tree module
    say "making the initramfs"
    tree=$(mktemp -d "$GUEST_CACHE/initramfs.XXXXXX")
    mkdir -p "$tree/bin" "$tree/modules" "$tree/dev" "$tree/proc" "$tree/sys" "$tree/root"
    cp "$root/bin/busybox" "$tree/bin/"
    install -m 755 "$GUEST_LIB/initramfs-init" "$tree/init"
    # The order of loading is the order of the list.
    /sbin/modprobe -d "$root" -S "$(kernel_release "$root")" --show-depends -a "${INITRAMFS_MODULES[@]}" |
        awk '$1 == "insmod" && !seen[$2]++ { print $2 }' >"$tree/files"
    while read -r module; do
        cp "$module" "$tree/modules/"
        basename "$module"
    done <"$tree/files" >"$tree/modules/order"
    rm "$tree/files"
    (cd "$tree" && find . | cpio -o -H newc --quiet -R 0:0) >"$2"
    rm -rf "$tree"
}

# Unpacking the kernel takes the emulated processor half of the time of a boot,
# so that is done here. A kernel packed otherwise is used as it is.
# take_kernel ROOT FILE
take_kernel() {
    local packed=("$1"/boot/vmlinuz-*) offset
    offset=$(LC_ALL=C grep -aobPm1 '\xFD7zXZ\x00' "${packed[0]}" | cut -d: -f1 | head -n 1) || true
    if [ -z "$offset" ] || ! xz -dc --single-stream < <(tail -c "+$((offset + 1))" "${packed[0]}") >"$2"; then
        cp "${packed[0]}" "$2"
    fi
    rm "${packed[0]}"
}

# make_disk ROOT FILE
make_disk() {
    say "making the root file system"
    truncate -s "${ROOT_MIB}M" "$2"
    /sbin/mkfs.ext4 -q -F -O ^has_journal -m 0 -E root_owner=0:0 -d "$1" "$2" ||
        die "could not make the root file system in $2"
}
