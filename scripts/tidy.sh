#!/usr/bin/env bash
# Runs clang-tidy-16 with the checks of .clang-tidy on the .cpp files of src/ and tests/ that have changed since BASE
# (what this branch left origin/main at; on that itself its last commit), committed or not; needs no build but build/ci
# configured. A file takes some seconds: after --seconds N (120) none is started any more, and the rest is told.
#   scripts/tidy.sh [--seconds N] [BASE | --all]
set -euo pipefail
cd "$(dirname "$0")/.."

seconds=120 base=
while [[ $# -gt 0 ]]; do
  case $1 in
    --seconds) seconds=$2; shift 2 ;;
    -h | --help) sed -n '2,5s/^# \{0,1\}//p' "$0"; exit 0 ;;
    *) base=$1; shift ;;
  esac
done
if [[ -z $base ]]; then
  base=$(git merge-base HEAD origin/main 2>/dev/null || true)
  if [[ -z $base || $base == "$(git rev-parse HEAD)" ]]; then base=$(git rev-parse -q --verify HEAD~1 || echo --all); fi
fi
if [[ $base == --all ]]; then list=(git ls-files); else list=(git diff --name-only --diff-filter=d "$base"); fi
# Files of the GPU backend and of tests/fuzz are none of build/ci's.
mapfile -t files < <("${list[@]}" -- 'src/*.cpp' 'tests/*.cpp' |
  grep -v -E '^src/.*/(cuda|nccl)/|^tests/(fake_cuda|fuzz)/' || true)
if [[ ${#files[@]} == 0 ]]; then echo "clang-tidy: no file has changed"; exit 0; fi

if [[ ! -e build/ci/compile_commands.json ]]; then cmake --preset ci --log-level=WARNING >/dev/null; fi
left_out=$(mktemp)
trap 'rm -f "$left_out"' EXIT
# OpenMP off: clang 16 refuses structured bindings in what it thinks runs in another thread.
tidy() {
  if (($(date +%s) > end)); then echo "$1" >>"$left_out"; return; fi
  clang-tidy-16 -p build/ci --quiet --extra-arg=-fno-openmp --extra-arg=-Wno-everything "$1" 2>/dev/null || {
    echo "clang-tidy: findings in $1" >&2
    return 1
  }
}
export -f tidy
end=$(($(date +%s) + seconds))
export end left_out
printf '%s\n' "${files[@]}" | xargs -P "${LLAMESH_JOBS:-$(nproc)}" -I{} bash -c 'tidy {}' || exit 1
echo "clang-tidy: $((${#files[@]} - $(wc -l <"$left_out"))) files without a finding, $(wc -l <"$left_out") left out for want of time"
