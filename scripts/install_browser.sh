#!/usr/bin/env bash
# Installs what tests marked `browser` drive: Debian's Chromium with apt-get as root (else it names
# what is missing and fails), and playwright, which drives it, from PyPI into .venv. Playwright's own
# browsers are not downloaded.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."

if ! command -v chromium >/dev/null; then
    packages=(chromium fonts-inter fonts-jetbrains-mono) # the fonts for the pictures of the docs
    if [ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null; then
        echo "missing: chromium; as root on Debian: apt-get install ${packages[*]}" >&2
        exit 1
    fi
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${packages[@]}"
fi
.venv/bin/python -c "import playwright" 2>/dev/null ||
    .venv/bin/python -m pip --disable-pip-version-check --quiet install "playwright>=1.50"
