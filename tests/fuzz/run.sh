#!/usr/bin/env bash
# Runs libFuzzer on the parsers: every target in tests/fuzz, or the named ones, for this many
# seconds each, on all cores. Prints a line per target; fails on a finding and prints the input's
# path. New inputs are kept below build/fuzz/corpus, where the next run starts.
#   tests/fuzz/run.sh SECONDS [TARGET...]
#   tests/fuzz/run.sh --minutes N [TARGET...]   for a night: minimizes the corpus at the end
# To reproduce a finding:  build/fuzz/fuzz_TARGET FILE, or with g++ and its backtraces in the preset
# asan
# build/asan/tests/fuzz_TARGET 0 0 FILE
set -euo pipefail
cd "$(dirname "$0")/../.."

usage="usage: tests/fuzz/run.sh SECONDS|--minutes N [TARGET...]"
seconds=${1:?"$usage"} night=no
shift
if [[ $seconds == --minutes ]]; then
  seconds=$((60 * ${1:?"$usage"})) night=yes
  shift
fi
targets=("$@")
if [[ $# == 0 ]]; then
  targets=(safetensors hf_json tokenizer_json sentencepiece_model json_records inputs manifest token_files run_files)
fi
build=build/fuzz

scripts/build.sh fuzz "${targets[@]/#/fuzz_}"
source scripts/sanitizer_options.sh
mkdir -p $build/findings

# Limits per input: a minute for a hang, 2 GiB, and 512 MiB per allocation.
source tests/patience.sh
limits="-timeout=$(stretched 60) -rss_limit_mb=2048 -malloc_limit_mb=512"

# minimize TARGET: keeps the part of its corpus that adds coverage
minimize() {
  local corpus=$build/corpus/$1
  rm -rf "$corpus.minimal"
  mkdir "$corpus.minimal"
  # shellcheck disable=SC2086
  "$build/fuzz_$1" -merge=1 $limits "$corpus.minimal" "$corpus" "$build/seeds/$1" &&
    rm -rf "$corpus" && mv "$corpus.minimal" "$corpus"
}

fuzz() {
  local name=$1 log=$build/$1.log found status=0 begin=$SECONDS
  mkdir -p "$build/corpus/$name"
  rm -f "$build/findings/$name"-*
  # shellcheck disable=SC2086
  "$build/fuzz_$name" -max_total_time="$seconds" $limits -print_final_stats=1 \
    -artifact_prefix="$build/findings/$name-" "$build/corpus/$name" "$build/seeds/$name" >"$log" 2>&1 || status=$?
  local runs edges
  runs=$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")
  edges=$(sed -n 's/.* cov: \([0-9]*\) .*/\1/p' "$log" | tail -n 1)
  found=$(find $build/findings -name "$name-*" | tr '\n' ' ')
  if [[ $night == yes && $status == 0 ]]; then minimize "$name" >>"$log" 2>&1; fi
  printf '%-20s %9s runs, %5s edges in %3d s: ' "$name" "${runs:-no}" "${edges:-no}" $((SECONDS - begin))
  if [[ $status == 0 && -z $found ]]; then echo "no finding"; return; fi
  echo "FINDING (exit $status) ${found:-}see $log"
  grep -m 1 -B 3 -A 12 -E 'ERROR: |runtime error: |^broken: ' "$log" || tail -n 5 "$log"
  return 1
}
export -f fuzz minimize
export build seconds limits night

printf '%s\n' "${targets[@]}" | xargs -P "$(nproc)" -I{} bash -c 'fuzz {}' || {
  echo "fuzz: there are findings" >&2
  exit 1
}
