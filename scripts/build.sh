#!/usr/bin/env bash
# Configures and builds one preset of CMakePresets.json into build/PRESET; builds again only what
# changed.
#   scripts/build.sh PRESET [TARGET...]
set -euo pipefail
cd "$(dirname "$0")/.."

preset=$1
shift
echo "-- building build/$preset"
cmake --preset "$preset" --log-level=WARNING
ninja -C "build/$preset" -j "${LLAMESH_JOBS:-$(nproc)}" "$@"
