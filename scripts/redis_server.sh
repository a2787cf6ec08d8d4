#!/bin/sh
# Prints where redis-server is. Where none is installed, unpacks Debian's packages into
# ~/.cache/inferway/redis-server first, which needs no root.
set -eu

cache=${XDG_CACHE_HOME:-$HOME/.cache}/inferway/redis-server
command -v redis-server && exit 0
command -v valkey-server && exit 0
if [ -x "$cache/redis-server" ]; then
    echo "$cache/redis-server"
    exit 0
fi
if ! command -v apt-get >/dev/null || ! command -v dpkg >/dev/null; then
    echo "no redis-server here, and no apt-get to fetch it with; install redis or valkey" >&2
    exit 1
fi

mkdir -p "$cache"
work=$(mktemp -d "$cache/unpacking.XXXXXX")
trap 'rm -rf "$work"' EXIT
mkdir -p "$work/lists/partial" "$work/cache/archives/partial" "$work/root"
apt="-qq -o Dir::State::Lists=$work/lists -o Dir::Cache=$work/cache -o APT::Sandbox::User="

{
    apt-get $apt update
    # redis-server is a link into redis-tools; libraries that are there already stay where they are
    missing=$(apt-cache $apt depends redis-tools | sed -n 's/^ *Depends: \([a-z0-9.+-]*\)$/\1/p' |
        while read -r name; do dpkg -s "$name" >/dev/null 2>&1 || echo "$name"; done)
    (cd "$work" && apt-get $apt download redis-server redis-tools $missing)
    for package in "$work"/*.deb; do dpkg -x "$package" "$work/root"; done
} >&2

rm -rf "$cache/root"
mv "$work/root" "$cache/root"
libraries=$(find "$cache/root" -name '*.so.*' -exec dirname {} \; | sort -u | paste -sd:)
cat >"$work/redis-server" <<END
#!/bin/sh
LD_LIBRARY_PATH=$libraries exec $cache/root/usr/bin/redis-server "\$@"
END
chmod +x "$work/redis-server"
mv "$work/redis-server" "$cache/redis-server" # last: who finds it finds it whole
"$cache/redis-server" --version >&2
echo "$cache/redis-server"
