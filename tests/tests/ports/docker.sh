#!/usr/bin/env bash
# Runs the lines `docker ..` of docs/user/ci.md where there is no Docker: a container is a process in mount, PID and IPC
# namespaces of its own, with an empty /run, and with volumes where --volume says. The root file system and the network
# are those of the caller, names of containers are names of 127.0.0.1, and the image is ignored.
set -euo pipefail
state=/dev/shm/docker
mkdir -p "$state/volumes" "$state/containers"

die() {
    echo "docker.sh: $*" >&2
    exit 125
}

run() {
    local detach='' name='' volumes=()
    while [ $# -gt 0 ]; do
        case $1 in
            --detach) detach=1; shift ;;
            --rm) shift ;;
            --name) name=$2; shift 2 ;;
            --network) [ -e "$state/network-$2" ] || die "no network $2"; shift 2 ;;
            --volume) volumes+=("$2"); shift 2 ;;
            -*) die "no option $1" ;;
            *) break ;;
        esac
    done
    shift # the image
    # shellcheck disable=SC2016 # expanded in the container
    local inside='
        mount -t tmpfs tmpfs /run
        while [ "$1" != -- ]; do mkdir -p "${1#*:}" && mount --bind "$0/volumes/${1%%:*}" "${1#*:}"; shift; done
        { printf "127.0.0.1 localhost"; printf " %s" "$(ls "$0/containers")"; echo; } >"$0/hosts"
        mount --bind "$0/hosts" /etc/hosts
        shift
        exec "$@"'
    local container=(unshare --mount --ipc --pid --fork --mount-proc --kill-child
        sh -ec "$inside" "$state" "${volumes[@]}" -- "$@")
    [ -n "$detach" ] || exec "${container[@]}"
    mkdir "$state/containers/$name"
    {
        status=0
        "${container[@]}" >"$state/containers/$name/log" 2>&1 </dev/null || status=$?
        echo "$status" >"$state/containers/$name/status"
    } >/dev/null 2>&1 &
    echo "$name"
}

case "$1 $2" in
    'network create') touch "$state/network-$3" ;;
    'network rm') rm "$state/network-$3" ;;
    'volume create') mkdir "$state/volumes/$3" ;;
    'volume rm') rm -r "$state/volumes/$3" ;;
    run*) shift && run "$@" ;;
    exec*) shift 2 && exec "$@" ;;
    wait*)
        until [ -s "$state/containers/$2/status" ]; do sleep 0.1; done
        cat "$state/containers/$2/log" >&2
        cat "$state/containers/$2/status"
        ;;
    rm*) rm -r "$state/containers/$2" ;;
    *) die "no command $1" ;;
esac
