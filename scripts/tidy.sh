#!/usr/bin/env bash
# Runs clang-tidy-16 with the checks of .clang-tidy on the .cpp files of src/ and tests/ that have
# changed since BASE (the merge base with origin/main; on main its last commit),
# committed or not; needs no build. A file takes about ten seconds, so only the first --files N (10)
# are checked, and the number of the others is reported; --all checks every file. A file without a
# finding is not checked again until it, a header of its or .clang-tidy changes (~/.cache/llamesh/tidy).
#   scripts/tidy.sh [--files N] [BASE | --all]
set -euo pipefail
cd "$(dirname "$0")/.."

most=10 base=
while [[ $# -gt 0 ]]; do
  case $1 in
    --files) most=$2; shift 2 ;;
    --all) most=1000000 base=--all; shift ;;
    -h | --help) sed -n '2,7s/^# \{0,1\}//p' "$0"; exit 0 ;;
    *) base=$1; shift ;;
  esac
done
if [[ -z $base ]]; then
  base=$(git merge-base HEAD origin/main 2>/dev/null || true)
  if [[ -z $base || $base == "$(git rev-parse HEAD)" ]]; then base=$(git rev-parse -q --verify HEAD~1 || echo --all); fi
fi
if [[ $base == --all ]]; then list=(git ls-files); else list=(git diff --name-only --diff-filter=d "$base"); fi
# Left out: the GPU backend and tests/fuzz, which build/ci does not build; the emulator, which computes
# with int as device code does; what includes omp.h (random_tensor.hpp does), which is g++'s and clang
# does not find; attention_tile.hpp, which uses a builtin of g++.
mapfile -t files < <("${list[@]}" -- 'src/*.cpp' 'tests/*.cpp' |
  grep -v -E '^src/.*/(cuda|nccl)/|^tests/(cuda_fake|cuda_emulator|fuzz)/' | xargs -r grep -L -e '<omp.h>' -e 'random_tensor.hpp' -e 'attention_tile.hpp' || true)
if [[ ${#files[@]} == 0 ]]; then echo "clang-tidy: no file has changed"; exit 0; fi

# Checks each source separately, so that a source that relies on its neighbors' headers in a unity
# build fails here.
cmake --preset ci -B build/tidy -DCMAKE_UNITY_BUILD=OFF --log-level=WARNING >/dev/null
left_out=$((${#files[@]} > most ? ${#files[@]} - most : 0))
files=("${files[@]:0:most}")

# Each file's text with its headers, comments (NOLINT) included; what clang-tidy has found clean is known by its hash.
preprocessed() {
  python3 -c 'import json, shlex, subprocess, sys
entry = next(e for e in json.load(open("build/tidy/compile_commands.json")) if e["file"].endswith("/" + sys.argv[1]))
words = shlex.split(entry["command"])
del words[words.index("-o") : words.index("-o") + 2]
sys.exit(subprocess.call(words + ["-E", "-P", "-C"], cwd=entry["directory"]))' "$1"
}

# OpenMP off: clang 16 refuses structured bindings in what it thinks runs in another thread.
tidy() {
  local known
  known=$clean/$({ preprocessed "$1" && cat .clang-tidy "$(command -v clang-tidy-16)"; } | sha256sum | cut -d' ' -f1)
  if [[ -e $known ]]; then return 0; fi
  clang-tidy-16 -p build/tidy --quiet --extra-arg=-fno-openmp --extra-arg=-Wno-everything "$1" 2>/dev/null || {
    echo "clang-tidy: findings in $1" >&2
    return 1
  }
  touch "$known"
}
export clean=${XDG_CACHE_HOME:-$HOME/.cache}/llamesh/tidy
mkdir -p "$clean"
export -f tidy preprocessed
printf '%s\n' "${files[@]}" | xargs -P "${LLAMESH_JOBS:-$(nproc)}" -I{} bash -c 'tidy {}' || exit 1
echo "clang-tidy: ${#files[@]} files without a finding, $left_out not looked at"
