#!/usr/bin/env bash
# Installs the programs that tests marked `tools` run: with apt-get as root, else names what is
# missing and fails. Arguments are more such pairs: "command package".
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."

# Debian packages: command that shows one is there, package that brings it.
TOOLS=("wrk wrk" "h2load nghttp2-client" "curl curl" "redis-server redis-server" "promtool prometheus" "systemd-analyze systemd")

missing=()
for pair in "${TOOLS[@]}" "$@"; do
    command -v "${pair% *}" >/dev/null || missing+=("${pair#* }")
done
./scripts/detect_python.sh --path >/dev/null 2>&1 || missing+=(python3 python3-venv)
[ ${#missing[@]} -gt 0 ] || exit 0
# without root the tests unpack this one for themselves: scripts/redis_server.sh
[ "$(id -u)" -eq 0 ] || [ "${missing[*]}" != redis-server ] || exit 0
if [ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null; then
    echo "missing: ${missing[*]}; as root on Debian: apt-get install ${missing[*]}" >&2
    exit 1
fi
apt-get update -qq
DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}"
# Debian starts these at once, on their usual ports; the tests start their own.
for service in redis-server prometheus; do
    case " ${missing[*]} " in
        *" $service "*) systemctl disable --now "$service" >/dev/null 2>&1 || true ;;
    esac
done
