# shellcheck shell=bash
# Runs commands in a guest. Sourced by scripts/guest; uses its `opt` and `rest`.

# exec_job DIRECTORY: runs `rest` there, returns its exit status, 124 after the
# time limit, 125 when the guest ended before the command.
exec_job() {
    local directory=$1 job id status
    [ ${#rest[@]} -gt 0 ] || die "exec wants a command: exec --name NAME -- COMMAND [ARGUMENT]..."
    job=$(mktemp -d "$directory/share/jobs/XXXXXXXX")
    id=${job##*/}
    : >"$job/stdout"
    : >"$job/stderr"
    [ -z "${opt[stdin]}" ] || cat >"$job/stdin"
    printf '%q ' "${rest[@]}" >"$job/command"
    ring "$directory" "run $id"
    watch_job "$directory" "$job" "$id" $$ &
    local watcher=$!
    tail -s 0.02 -n +1 -f --pid="$watcher" "$job/stdout" &
    local streams=($!)
    tail -s 0.02 -n +1 -f --pid="$watcher" "$job/stderr" >&2 &
    streams+=($!)
    # shellcheck disable=SC2064 # the watcher of now
    trap "kill -USR1 $watcher 2>/dev/null; exit 130" INT TERM
    wait "$watcher" "${streams[@]}"
    status=$(cat "$job/status" 2>/dev/null) || status=125
    rm -rf "$job"
    return "$status"
}

# ring DIRECTORY LINE: a line below PIPE_BUF arrives whole, whoever else rings;
# opened for reading too, as that does not block when QEMU has just ended.
ring() {
    echo "$2" 1<>"$1/doorbell.in"
}

# Returns when the job is over; ends it when its time is up or its caller gone.
watch_job() {
    local directory=$1 job=$2 id=$3 caller=$4 limit=0 ending="" never
    [ -z "${opt[timeout]}" ] || limit=$((SECONDS + opt[timeout]))
    # Reading from a pipe to which nobody writes is a sleep without a process.
    exec {never}<> <(:)
    trap 'ending=130' USR1
    while [ ! -s "$job/status" ]; do
        read -rt 0.02 -u "$never" || true
        guest_runs "$directory" || return 0
        [ "$limit" = 0 ] || [ "$SECONDS" -lt "$limit" ] || ending=124
        kill -0 "$caller" 2>/dev/null || ending=130
        if [ -n "$ending" ]; then
            end_job
            return 0
        fi
    done
}

end_job() {
    ring "$directory" "kill $id"
    [ "$ending" != 124 ] || say "time is up after ${opt[timeout]} s: ${rest[*]}"
    local tries
    for ((tries = 0; tries < 150; tries++)); do
        [ ! -s "$job/status" ] || break
        read -rt 0.02 -u "$never" || true
    done
    echo "$ending" >"$job/status"
    kill -0 "$caller" 2>/dev/null || rm -rf "$job"
}
