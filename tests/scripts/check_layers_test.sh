#!/usr/bin/env bash
# scripts/check_layers.sh accepts a small source tree and finds each fault that is put into it.
set -euo pipefail
check=$(realpath "$(dirname "$0")/../../scripts/check_layers.sh")
src=$(mktemp -d)
trap 'rm -rf "$src"' EXIT

cat >"$src/CMakeLists.txt" <<'END'
llamesh_layer(low)
llamesh_layer(high USES low PRIVATE fmt::fmt)
llamesh_floors(high cellar  # a comment
               attic)
llamesh_layer(beside USES low)
END

# put FILE INCLUDE...: writes a source with these includes.
put() {
  mkdir -p "$src/${1%/*}"
  printf '#include %s\n' "${@:2}" >"$src/$1"
}
good() {
  rm -rf "$src"/*/
  put low/a.hpp '<vector>'
  put low/room/b.hpp '"low/a.hpp"'  # a layer without floors has its folders in any order
  put high/cellar/c.hpp '"low/a.hpp"'
  put high/cellar/deep/d.hpp '"high/cellar/c.hpp"'
  put high/attic/e.cpp '"high/cellar/deep/d.hpp"' '"high/cellar/c.hpp"'
  put high/f.hpp '"high/attic/e.cpp"' '"low/room/b.hpp"'
  put beside/g.cpp '"low/a.hpp"'
}

# finds FAULT: fails unless the check reports it, and nothing else.
finds() {
  local said
  if said=$("$check" "$src"); then echo "not found: $1"; exit 1; fi
  if [[ $said != src/$1$'\n'"1 faults against"* ]]; then printf 'instead of: %s\n%s\n' "$1" "$said"; exit 1; fi
  good
}

good
"$check" "$src"
put low/a.hpp '"high/f.hpp"'
finds 'low/a.hpp:1: layer low must not use high (includes "high/f.hpp")'
put beside/g.cpp '"high/f.hpp"'
finds 'beside/g.cpp:1: layer beside must not use high (includes "high/f.hpp")'
put low/a.hpp '"b.hpp"'
finds 'low/a.hpp:1: "b.hpp" is no path from src/'
put low/a.hpp '<mpi.h>'
finds 'low/a.hpp:1: <mpi.h> belongs in files matching * only'
put other/h.cpp '<vector>'
finds 'other/h.cpp: no layer named other in src/CMakeLists.txt'
put high/cellar/deep/d.hpp '"high/cellar/c.hpp"' '"high/attic/e.cpp"'
finds 'high/cellar/deep/d.hpp:2: floor high/cellar must not use high/attic (includes "high/attic/e.cpp")'
put high/attic/e.cpp '"high/f.hpp"'
finds 'high/attic/e.cpp:1: floor high/attic must not use high (includes "high/f.hpp")'
put high/shed/i.cpp '"high/cellar/c.hpp"'
finds 'high/shed/i.cpp: no floor named shed in llamesh_floors(high)'
