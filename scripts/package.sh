#!/usr/bin/env bash
# Builds a Debian package of the command, its library, manual pages and completions, for the release of this machine.
# The last line, the only one on standard output, is the path of the package:
#
#   sudo apt-get install "$(scripts/package.sh)"
#
#   scripts/package.sh          builds it
#   scripts/package.sh --test   builds it, and tests it: contents, dependencies, lintian, and the unpacked programs
#
# The maintainer is that of Cargo.toml, or "$DEBFULLNAME <$DEBEMAIL>". An installation on a bare Debian, which takes
# root, several GB and some minutes:
#
#   scripts/fresh.sh 'sudo apt-get install -y "$(scripts/package.sh)" && roce doctor'
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=scripts/install.sh
. scripts/install.sh

CARGO_DEB_VERSION=3.8.0
# The package closes no bug of Debian.
LINTIAN_SUPPRESSED=initial-upload-closes-no-bugs

die() {
    echo "package.sh: $*" >&2
    exit 1
}

# Files of the package that cargo does not build, in the place where the table package.metadata.deb of apps/Cargo.toml
# has them.
stage() {
    local built=$1 staged=$1/package date dpdk=/usr/share/doc/libdpdk-dev/copyright
    rm -rf "$staged"
    mkdir -p "$staged"
    "$built/roce" man-pages "$staged/man"
    gzip --best --no-name "$staged"/man/*
    for shell in bash zsh fish; do
        "$built/roce" completions "$shell" >"$staged/roce.$shell"
    done
    date=$(git log -1 --format=%aD 2>/dev/null || date -R -r CHANGELOG.md)
    gzip --best --no-name >"$staged/changelog.Debian.gz" <<EOF
roce ($version-1) unstable; urgency=medium

  * Built by scripts/package.sh; changelog.gz lists the changes.

 -- $maintainer  $date
EOF
    gzip --best --no-name --stdout CHANGELOG.md >"$staged/changelog.gz"
    {
        printf 'roce is licensed under Apache-2.0 or MIT, at your option.\nCopyright: the contributors to roce\n\n'
        printf 'Apache-2.0: see /usr/share/common-licenses/Apache-2.0\n\nMIT:\n\n'
        cat LICENSE-MIT
        # DPDK is linked statically (dpdk-ffi/sys/build.rs).
        [ ! -e "$dpdk" ] || { printf '\nThe programs contain DPDK, whose copyright file is:\n\n' && cat "$dpdk"; }
    } >"$staged/copyright"
}

build() {
    local built=${CARGO_TARGET_DIR:-$PWD/target}/release
    version=$(sed -n 's/^version = "\(.*\)"$/\1/p' Cargo.toml)
    maintainer=$(sed -n 's/^maintainer = "\(.*\)"$/\1/p' apps/Cargo.toml)
    [ -z "${DEBEMAIL:-}" ] || maintainer="${DEBFULLNAME:-$DEBEMAIL} <$DEBEMAIL>"
    need_packages "to build against DPDK" build-essential pkg-config libdpdk-dev dpdk libclang-dev
    need_packages "to build the C interface of libibverbs" libibverbs-dev
    need_packages "to find the dependencies of a Debian package" dpkg-dev
    command -v cargo >/dev/null || die "there is no cargo; install Rust 1.91 or newer (https://rustup.rs)"
    need_tool cargo-deb "$CARGO_DEB_VERSION" cargo-deb
    cargo build --release --locked --package apps --package preload
    stage "$built"
    package=${CARGO_TARGET_DIR:-$PWD/target}/debian/roce_$version-1_$(dpkg --print-architecture).deb
    cargo-deb --quiet --no-build --locked --strip --package apps --maintainer "$maintainer" --output "$package"
}

# contains FILE...: fails unless the unpacked package has each file.
contains() {
    local file
    for file in "$@"; do
        [ -e "$unpacked/$file" ] || die "the package has no file $file"
    done
}

# Runs a command of the unpacked package without the build directory and without this project's variables.
unpacked_roce() {
    env -i PATH="$unpacked/usr/bin:/usr/bin:/bin" HOME=/nonexistent roce "$@"
}

test_package() {
    local page depends output
    need_packages "to test the package" lintian ibverbs-utils
    unpacked=$(mktemp -d)
    trap 'rm -rf "$unpacked"' EXIT
    dpkg -x "$package" "$unpacked"
    contains usr/bin/roce usr/lib/roce/libroce_verbs.so usr/share/doc/roce/{copyright,changelog.gz,user/run.md} \
        usr/share/bash-completion/completions/roce usr/share/zsh/vendor-completions/_roce \
        usr/share/fish/vendor_completions.d/roce.fish
    for page in roce roce-ping roce-perf-write-bw roce-run; do
        contains "usr/share/man/man1/$page.1.gz"
    done
    depends=$(dpkg-deb --field "$package" Depends)
    [[ $depends == *"libc6 (>= "* && $depends == *libnuma1* ]] || die "dependencies are missing: $depends"
    [[ $depends != *librte* ]] || echo "package.sh: DPDK is a dependency, as this release has no static DPDK: $depends"
    [[ $(unpacked_roce --version) == "roce $version" ]] || die "roce --version is not $version"
    output=$(unpacked_roce run --port memif:@package --print-config)
    [[ $output == *'ports = ["memif:@package"]'* ]] || die "roce run --print-config: $output"
    # The library is found beside the command, and gives the device its GUID.
    output=$(unpacked_roce run --verbose --port memif:@package -- ibv_devices 2>&1)
    [[ $output == *"$unpacked/usr/lib/roce/libroce_verbs.so"* && $output == *roce0* ]] || die "ibv_devices: $output"
    lintian --allow-root --fail-on error,warning --suppress-tags "$LINTIAN_SUPPRESSED" "$package"
    echo "package.sh: $package is well"
}

case ${1:-} in
    '' | --test) ;;
    -h | --help)
        sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//;p}' "$0"
        exit 0
        ;;
    *) die "there is no option '$1'; see scripts/package.sh --help" ;;
esac
{
    build
    [ "${1:-}" != --test ] || test_package
} >&2
echo "$package"
