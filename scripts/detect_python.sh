#!/bin/sh
# Finds the Python that .venv is built with.
#
#   detect_python.sh           says which and why, or what is missing and the cure (exit 1)
#   detect_python.sh --path    prints its path alone; the complaint, if any, goes to stderr
#   detect_python.sh --oldest  prints the path of a Python of the oldest version that pyproject.toml
#                              claims, for .ci/run
#   detect_python.sh --newest  the same for the newest version
#
# Looks through PATH for python3, then python3.11 and newer; takes the first that is new enough
# and can make a virtual environment; for a version of its own also through pyenv's. PYTHON=/path/to/python takes that one or fails.
# Only shell built-ins are used: nothing but a Python needs to be on PATH.
set -eu

MIN_MINOR=11
MAX_MINOR=13
NAMES='python3 python3.11 python3.12 python3.13 python3.14'
HERE=$(cd "${0%/*}/.." && pwd -P)

# Runs in Python 2.7 as well, to be able to say "too old".
PROBE='
import sys
lacks = []
for name in ("venv", "ensurepip", "ssl"):
    try:
        __import__(name)
    except ImportError:
        lacks.append(name)
print("%d.%d.%d %s" % (tuple(sys.version_info[:3]) + (" ".join(lacks),)))
'

candidates() {
    if [ -n "${PYTHON:-}" ]; then
        command -v "$PYTHON" || echo "$PYTHON"
        return
    fi
    for name in $NAMES; do
        IFS=:
        for directory in $PATH; do
            # Our own .venv may be active, and about to be made anew.
            case $directory in "$HERE"/.venv*/bin) continue ;; esac
            [ -x "$directory/$name" ] && echo "$directory/$name"
        done
        unset IFS
    done
    [ -n "$only" ] || return 0
    for path in "${PYENV_ROOT:-${HOME:-}/.pyenv}/versions/3.$only".*/bin/python3; do
        [ -x "$path" ] && echo "$path"
    done
    return 0
}

new_enough() {
    major=${1%%.*}
    minor=${1#*.}
    minor=${minor%%.*}
    [ "$major" -gt 3 ] || { [ "$major" -eq 3 ] && [ "$minor" -ge "$MIN_MINOR" ]; }
}

is_wanted() {
    [ -z "$only" ] || case $1 in "3.$only".*) ;; *) return 1 ;; esac
}

found() {
    if [ -n "$mode" ]; then
        echo "$1"
    else
        echo "$1 (Python $2): the first on PATH that is 3.$MIN_MINOR or newer and has venv"
        [ -z "$passed_over" ] || echo "passed over:$passed_over"
    fi
}

complain() {
    if [ -n "$only" ]; then
        echo "no Python 3.$only that can make a virtual environment, which pyproject.toml claims: looked for" \
            "python3.$only and python3 on PATH, and for pyenv's"
        echo "cure: apt-get install python3.$only python3.$only-venv where Debian has it, or pyenv install 3.$only"
        return
    fi
    echo "no Python 3.$MIN_MINOR or newer that can make a virtual environment"
    [ -z "${PYTHON:-}" ] || echo "PYTHON=$PYTHON was asked for, so no other was tried"
    [ -z "$passed_over" ] || echo "passed over:$passed_over"
    [ -z "$silent" ] || echo "did not run:$silent (a pyenv shim? choose a version: pyenv global VERSION)"
    echo "cure, Debian or Ubuntu: apt-get install ${without_venv:-python3 python3-venv}"
    echo "cure, elsewhere: install Python 3.$MIN_MINOR or newer, or name one: make PYTHON=/path/to/python3"
}

mode=${1:-}
only='' # the minor version that is wanted, and no other
case $mode in
    --oldest) only=$MIN_MINOR ;;
    --newest) only=$MAX_MINOR ;;
esac
[ -z "$only" ] || NAMES="python3.$only python3" PYTHON=
passed_over='' # ran, and why not
silent=''      # did not run: a pyenv shim without a version behind it, mostly
without_venv=''

while IFS= read -r path; do
    if ! facts=$("$path" -c "$PROBE" 2>/dev/null </dev/null); then
        silent="$silent ${path:-none}"
        continue
    fi
    version=${facts%% *}
    lacks=${facts#"$version"}
    lacks=${lacks# }
    if ! new_enough "$version"; then
        passed_over="$passed_over
  $path: $version is older than 3.$MIN_MINOR"
    elif ! is_wanted "$version"; then
        passed_over="$passed_over
  $path: $version is not 3.$only"
    elif [ -n "$lacks" ]; then
        passed_over="$passed_over
  $path: $version lacks $lacks"
        : "${without_venv:=${path##*/}-venv}"
    else
        found "$path" "$version"
        exit 0
    fi
done <<CANDIDATES
$(candidates)
CANDIDATES

if [ -n "$mode" ]; then
    complain >&2
else
    complain
fi
exit 1
