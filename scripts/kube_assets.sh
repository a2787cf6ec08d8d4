#!/bin/sh
# Names what `make kube` lacks. Nothing is installed: kube-apiserver cannot be had from Debian, PyPI
# or npm.
set -eu

missing=
for program in etcd kube-apiserver; do
    [ -x "${KUBE_ASSETS:-/nowhere}/$program" ] || missing="${missing:+$missing and }$program"
done
[ -n "$missing" ] || exit 0
echo "make kube: KUBE_ASSETS=${KUBE_ASSETS:-} must be a directory with the programs etcd and kube-apiserver, as setup-envtest downloads them; missing: $missing" >&2
exit 1
