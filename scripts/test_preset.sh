#!/usr/bin/env bash
# Builds what the tests of one preset need and runs them; what came of it is in
# build/PRESET/runs/NAME.* for scripts/test_verdict.sh, NAME being tests as long as --as says no
# other. Ends with 1 when a test has failed.
#   scripts/test_preset.sh [--build-only] [--as NAME] PRESET [CTEST-OPTION...]
set -euo pipefail
cd "$(dirname "$0")/.."

build_only=no name=tests
while [[ ${1:-} == --* ]]; do
  case $1 in
    --build-only) build_only=yes; shift ;;
    --as) name=$2; shift 2 ;;
    *) sed -n '2,5s/^# \{0,1\}//p' "$0"; exit 2 ;;
  esac
done
preset=${1:?"usage: scripts/test_preset.sh [--build-only] [--as NAME] PRESET [CTEST-OPTION...]"}
shift

runs=build/$preset/runs
mkdir -p "$runs"
rm -f "$runs/$name".*

targets=() selection=()
case $preset in
  # The sanitizers run what they can see into: tests on one and two ranks. ThreadSanitizer does not
  # know libgomp, which runs the kernels' threads, so it runs the tests that start threads of our
  # own. Most whole runs start the same threads: a few of them are enough. Left out are the long
  # comparison of strategies (poison trains with each of them), long plans, and a second pass over
  # the kernels. The longest tests run on two ranks only, which covers what one rank does.
  asan) targets=(tests_unit)
        selection=(-L unit -R '@[12]$' -E '^runs/(strategies|(bf16_weights|changed_data|expert_balance|footprint|frozen|lora|optimizers|poison|replay)@1)|^runs/(resume|trace)@1|^train/run_loop@1|^app/plan@1|_by_mma@1') ;;
  tsan) targets=(tests_{comm,data,tokenizer,device,optim,train,checkpoint,runs})
        selection=(-L unit -R '^(comm|data|tokenizer|device|optim|train|runs/(resume|memory_resume|replay|trace)|checkpoint/store).*@1$' -E '^tokenizer/refusals') ;;
esac
scripts/build.sh "$preset" "${targets[@]}"
if [[ $build_only == yes ]]; then exit 0; fi
if [[ $preset == ?san ]]; then source scripts/sanitizer_options.sh; fi
source scripts/own_tmpdir.sh

# A test of N ranks takes N of the slots, so that ranks of different tests do not crowd each other;
# those that wait more than they compute take one, and there are two slots more than there are
# processors.
code=0
ctest --test-dir "build/$preset" --output-on-failure --no-tests=error \
  --test-output-size-passed 10000000 -j "$(($(nproc) + 2))" "${selection[@]}" "$@" | tee "$runs/$name.summary" || code=1
cp "build/$preset/Testing/Temporary/LastTest.log" "$runs/$name.log"
exit $code
