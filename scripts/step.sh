# Sourced by the install scripts. `log` is where a step's own words go.

step() { # sentence, command...
    printf '%s ...' "$1"
    shift
    started=$(date +%s)
    if "$@" >>"$log" 2>&1; then
        echo " $(($(date +%s) - started)) s"
    else
        printf ' failed\n\n'
        tail -n 60 "$log" >&2
        echo "failed: $* (log: $log)" >&2
        exit 1
    fi
}
