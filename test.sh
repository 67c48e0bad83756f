#!/usr/bin/env bash
# Builds llamesh and runs its tests.
#   ./test.sh [--no-install] [--sanitizers] [--ci] [CTEST-OPTION...]
#     --no-install   install no packages, only say which are missing
#     --sanitizers   also the unit tests under AddressSanitizer + UBSan and under ThreadSanitizer
#     --ci           warnings are errors
# Anything else goes to ctest, e.g.  ./test.sh -R sharding
set -euo pipefail
cd "$(dirname "$0")"

setup=(--tests) presets=(cpu) ctest_options=()
for option in "$@"; do
  case $option in
    --no-install) setup+=(--no-install) ;;
    --ci) setup+=(--ci); presets[0]=ci ;;
    --sanitizers) presets+=(asan tsan) ;;
    -h | --help) sed -n '2,7s/^# \{0,1\}//p' "$0"; exit 0 ;;
    *) ctest_options+=("$option") ;;
  esac
done
scripts/setup.sh "${setup[@]}"

passed=0 failed=0 left_out=0
logs=()
for preset in "${presets[@]}"; do
  targets=() selection=()
  case $preset in
    # Of the sanitizers what they can see into: one and two processes, and for ThreadSanitizer threads of our own
    # (the kernels' are libgomp's, which it does not know). The long comparison of strategies is left out.
    asan) targets=(tests_unit)
          selection=(-L unit -R '@[12]$' -E '^training/strategies') ;;
    tsan) targets=(tests_{comm,data,tokenizer,device,optim,train} test_checkpoint_store
                   test_training_{changed_data,data,footprint,poison,resume})
          selection=(-L unit -R '^(comm|data|tokenizer|device|optim|train|training|checkpoint/store).*@1$' -E '^training/strategies') ;;
  esac
  scripts/build.sh "$preset" "${targets[@]}"
  if [[ $preset == ?san ]]; then source scripts/sanitizer_options.sh; fi
  # A test of N ranks takes N of the slots, so that ranks of different tests do not crowd each other.
  log=build/$preset/Testing/Temporary/LastTest.log
  summary=build/$preset/ctest-summary.txt
  ctest --test-dir "build/$preset" --output-on-failure --no-tests=error --timeout 300 \
    --test-output-size-passed 10000000 -j "$(nproc)" "${selection[@]}" "${ctest_options[@]}" |
    tee "$summary" || true
  # ctest's own closing line, e.g. "96% tests passed, 2 tests failed out of 50"
  read -r bad all < <(sed -n 's/.*passed, \([0-9]*\) tests failed out of \([0-9]*\)$/\1 \2/p' "$summary") || {
    bad=1 all=1
  }
  out=$(grep -c '\*\*\*Skipped' "$summary" || true)  # ctest counts them as passed
  passed=$((passed + all - bad - out)) failed=$((failed + bad)) left_out=$((left_out + out))
  logs+=("$log")
done

skips=$(cat "${logs[@]}" 2>/dev/null | sed -n '/: Skipped$/{n;p}; s/^SKIPPED: //p' || true)
skipped=0
if [[ -n $skips ]]; then
  skipped=$(wc -l <<<"$skips")
  echo
  echo "Skipped cases within these tests, by reason:"
  sort <<<"$skips" | uniq -c | sort -rn
fi
cases=$(cat "${logs[@]}" 2>/dev/null | sed -n 's/^\[  PASSED  \] \([0-9]*\) tests\{0,1\}\.$/\1/p' |
  awk '{ sum += $1 } END { print sum + 0 }')
echo
echo "$cases cases of GoogleTest passed in the ctest runs of: ${presets[*]} ($skipped cases skipped)"
echo "$passed passed, $failed failed, $left_out skipped"
[[ $failed == 0 ]]
