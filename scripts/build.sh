#!/usr/bin/env bash
# Configures and builds one preset of CMakePresets.json into build/PRESET; builds again only what
# changed. Waits while another build of that preset goes on.
#   scripts/build.sh PRESET [TARGET...]
set -euo pipefail
cd "$(dirname "$0")/.."

preset=$1
shift
mkdir -p build
exec {lock}>"build/$preset.lock"
flock $lock
echo "-- building build/$preset"
cmake --preset "$preset" --log-level=WARNING
ninja -C "build/$preset" -j "${LLAMESH_JOBS:-$(nproc)}" "$@"
