#!/usr/bin/env bash
# Builds the container image from HEAD with buildah, and tests it: trains on two ranks and verifies
# the checkpoint. Leaves localhost/llamesh; `podman save` or `buildah push` hands it on.
#   packaging/containers/build.sh [--no-registry] [--arch ARCH]
#     --no-registry   makes the base image with mmdebstrap, where docker.io is out of reach
#     --arch ARCH     -march of the machines that will run it (x86-64-v3)
set -euo pipefail
cd "$(dirname "$0")/../.."

base=docker.io/library/debian:12-slim arch=x86-64-v3
while [[ $# -gt 0 ]]; do
  case $1 in
    --no-registry) base=localhost/debian:12 ;;
    --arch) arch=$2; shift ;;
    *) sed -n '2,6s/^# \{0,1\}//p' "$0"; exit 2 ;;
  esac
  shift
done
for program in buildah git; do
  command -v $program >/dev/null || { echo "build.sh: $program is missing" >&2; exit 1; }
done
mkdir -p build
made=$(mktemp -d build/container.XXXXXX)
trap 'rm -rf "$made"' EXIT

# Imports a minimal Debian 12 from deb.debian.org.
make_base() {
  local container
  mmdebstrap --quiet --variant=minbase bookworm "$made/base.tar"
  container=$(buildah from scratch)
  buildah add --quiet "$container" "$made/base.tar" / >/dev/null
  buildah commit --quiet --rm "$container" "$base" >/dev/null
}

if [[ $base == localhost/* ]] && ! buildah images --quiet "$base" >/dev/null 2>&1; then make_base; fi
git archive -o build/llamesh.tar HEAD
buildah build --build-arg BASE="$base" --build-arg ARCH="$arch" -f packaging/containers/Containerfile -t localhost/llamesh .

container=$(buildah from localhost/llamesh)
trap 'buildah rm "$container" >/dev/null; rm -rf "$made"' EXIT
in_image() { buildah run "$container" -- "$@"; }
in_image llamesh --version
in_image sh -c 'cd /opt/llamesh/share/llamesh &&
  mpirun --allow-run-as-root --oversubscribe -n 2 llamesh train inputs/tiny.yaml run.folder=/tmp/run &&
  llamesh verify /tmp/run'
echo "localhost/llamesh is built and tested"
