# shellcheck shell=bash
# Installs missing Debian packages and tools of cargo. To be sourced by the other scripts:
#
#   . "$(dirname "$0")/install.sh"
#   need_packages "to boot the guest" qemu-system-x86 e2fsprogs
#   need_tool cargo-deny 0.20.2 cargo-deny
#
# need_packages says what it will install and what for before it does, uses sudo when the
# caller is not root, and does nothing at all when every package is present.
# With ROCE_NO_INSTALL set it fails instead of installing: check.sh sets it
# around the tests, for which everything has been installed before.

# need_packages PURPOSE PACKAGE... : exit status 0 when all are installed.
need_packages() {
    local purpose=$1 package
    shift
    if ! command -v dpkg-query >/dev/null || ! command -v apt-get >/dev/null; then
        echo "This is not a Debian system; $purpose, install the equivalent of: $*" >&2
        return 1
    fi
    local missing=()
    for package in "$@"; do
        _package_present "$package" || missing+=("$package")
    done
    [ ${#missing[@]} -gt 0 ] || return 0
    if [ -n "${ROCE_NO_INSTALL:-}" ]; then
        echo "Packages are missing $purpose, and this is no time to install them" \
            "(ROCE_NO_INSTALL is set): ${missing[*]}" >&2
        return 1
    fi

    local as_root=()
    if [ "$(id -u)" != 0 ]; then
        as_root=(sudo)
        if ! command -v sudo >/dev/null; then
            echo "Packages are missing $purpose, and there is no sudo. As root run:" >&2
            echo "    apt-get install --no-install-recommends ${missing[*]}" >&2
            return 1
        fi
    fi
    echo "Installing $purpose: ${missing[*]}" >&2
    # The output is only of interest when something goes wrong.
    local log
    log=$(mktemp) || return 1
    if _install_or_refresh "$log" "${missing[@]}"; then
        rm -f "$log"
        return 0
    fi
    tail -n 25 "$log" >&2
    rm -f "$log"
    echo "Could not install (see above). Install by hand: ${missing[*]}" >&2
    return 1
}

_package_present() {
    [ "$(dpkg-query -W -f '${db:Status-Status}' "$1" 2>/dev/null)" = installed ]
}

# Another package manager may be at work: wait for its lock.
_apt() {
    "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -y -o DPkg::Lock::Timeout=300 "$@" \
        </dev/null >>"$log" 2>&1
}

# --no-remove: what the user has installed stays installed.
_install() {
    _apt install --no-install-recommends --no-remove "$@"
}

# _install_or_refresh LOG PACKAGE...
_install_or_refresh() {
    local log=$1
    shift
    _install "$@" && return 0
    # Lists may be absent or out of date. A third party's source which fails
    # must not stop us, so the status of the update itself is of no interest.
    _apt update
    _install "$@" && return 0
    # A qemu-utils newer than the release's own (backports) breaks the
    # release's qemu-system-common: bring it to the release's version.
    [[ " $* " == *" qemu-system-"* ]] && _package_present qemu-utils || return 1
    local version
    version=$(apt-cache madison qemu-system-common | awk 'NR == 1 { print $3 }')
    [ -n "$version" ] || return 1
    echo "Setting qemu-utils to $version, to match the release's qemu-system-common" >&2
    _install --allow-downgrades "$@" "qemu-utils=$version"
}

# need_tool CRATE VERSION COMMAND...: installs VERSION of CRATE into target/tools, which comes first in PATH then, unless
# COMMAND --version is that already. Unoptimised and without debug information: these tools only start others, or read
# one file.
need_tool() {
    local crate=$1 version=$2 tools=${CARGO_TARGET_DIR:-$PWD/target}/tools
    shift 2
    export PATH=$tools/bin:$PATH
    [ "$("$@" --version 2>/dev/null)" != "$crate $version" ] || return 0
    echo "Installing $crate $version into $tools (a minute or two)"
    CARGO_PROFILE_DEV_DEBUG=0 cargo install --quiet --locked --debug --root "$tools" --version "$version" "$crate"
}
