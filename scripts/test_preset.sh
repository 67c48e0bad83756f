#!/usr/bin/env bash
# Builds what the tests of one preset need and runs them. scripts/test_results.sh reads the outcome from
# the folder build/PRESET/runs/NAME, with the NAME "tests" by default. Ends with 8 if a test has failed.
#   scripts/test_preset.sh [--as NAME] [--folders LIST] [--whole] [--no-build | --only-build] [--list] PRESET [CTEST-OPTION...]
#     --folders   for a sanitizer: only tests from these folders of tests/, e.g. "comm data"
#     --whole     for asan: each test on one and on two ranks
#     --no-build  everything is built
#     --only-build  runs nothing
#     --list      only configures, and prints the names of the tests that would run
set -euo pipefail
cd "$(dirname "$0")/.."

list=no build=yes tests=yes name=tests label=asan
folders=(app checkpoint comm config core cuda_emulator data device fuzz gpu model ops optim plan runs sharding storage tokenizer train)
while [[ ${1:-} == --* ]]; do
  case $1 in
    --as) name=$2; shift 2 ;;
    --folders) read -ra folders <<<"${2//cuda_fake/}"; shift 2 ;;  # that one is for the preset ci-cuda
    --no-build) build=no; shift ;;
    --only-build) tests=no; shift ;;
    --whole) label=unit; shift ;;
    --list) list=yes; shift ;;
    *) sed -n '2,10s/^# \{0,1\}//p' "$0"; exit 2 ;;
  esac
done
preset=${1:?"usage: scripts/test_preset.sh [OPTION...] PRESET [CTEST-OPTION...]"}
shift

# any_of PREFIX...: prints a pattern for the tests whose names begin like this.
any_of() { (IFS='|'; echo "^($*)"); }
targets=() selection=()
case $preset in
  # AddressSanitizer runs each test on one or two ranks, but not long plans.
  asan)
    targets=("${folders[@]/#/tests_}")
    selection=(-L "$label" -R "$(any_of "${folders[@]}")/.*@[12]$" -E '^app/plan@1') ;;
  # ThreadSanitizer does not know libgomp, which runs the kernels' threads. So it runs the tests that start threads of
  # our own. Most whole runs start the same threads: a few of them are enough.
  tsan)
    patterns=()
    for folder in "${folders[@]}"; do
      case $folder in
        comm | data | tokenizer | device | optim | train) patterns+=("$folder/") ;;
        runs) patterns+=('runs/(resume|memory_resume|replay|trace)') ;;
        checkpoint) patterns+=(checkpoint/store) ;;
        *) continue ;;
      esac
      targets+=("tests_$folder")
    done
    if ((${#patterns[@]} == 0)); then exit 0; fi
    selection=(-L unit -R "$(any_of "${patterns[@]}").*@1$" -E '^tokenizer/refusals') ;;
  mpich) targets=(tests_comm tests_runs) ;;
  ci-cuda)
    targets=(llamesh llamesh_fake_cuda gpu_ops test_gpu_cudnn_graphs)
    selection=(-R '^gpu/(fake_cuda|cudnn_graphs@1|no_device|dry_run)$') ;;
esac
if [[ $list == yes ]]; then
  cmake --preset "$preset" --log-level=WARNING >/dev/null
  ctest --test-dir "build/$preset" -N "${selection[@]}" "$@" | sed -n 's/^ *Test *#[0-9]*: //p'
  exit
fi
if [[ $build == yes ]]; then scripts/build.sh "$preset" "${targets[@]}"; fi
if [[ $tests == no ]]; then exit; fi
if [[ $preset == ?san ]]; then source scripts/sanitizer_options.sh; fi
source scripts/own_tmpdir.sh

# Uses a separate folder, where ctest keeps its logs, so that several runs of one preset can go on at the same time.
run=build/$preset/runs/$name
rm -rf "$run"
mkdir -p "$run"
echo "subdirs(\"$PWD/build/$preset/tests\")" >"$run/CTestTestfile.cmake"

# The limit only ends tests that hang: it is far above the time that any test takes on a busy machine.
# A test of N ranks takes N of the slots, so that ranks of different tests do not crowd each other;
# tests that wait more than they compute take one. There are two more slots than processors.
code=0
ctest --test-dir "$run" --output-on-failure --no-tests=error --timeout 3600 \
  --test-output-size-passed 10000000 -j "$(($(nproc) + 2))" "${selection[@]}" "$@" | tee "$run/summary" || code=8
# ctest lists them at the end, e.g. "<tab>  12 - comm/mesh@4 (Failed)"
sed -n 's/^\t *[0-9]* - \(.*[^ ]\) *(.*)$/\1 &/p' "$run/summary" | grep -vF '(Skipped)' | sed 's/ .*//' >"$run/failed" || true
exit $code
