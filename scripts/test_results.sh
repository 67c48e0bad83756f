#!/usr/bin/env bash
# Prints how runs of scripts/test_preset.sh ended: the skipped cases by reason, the cases of
# GoogleTest, the flaky tests (scripts/test_again.sh), the last lines of each failed test, and how many
# tests passed, failed and were skipped. Ends with 1 if a test has failed or a run is missing.
#   scripts/test_results.sh PRESET/NAME...
set -euo pipefail
cd "$(dirname "$0")/.."

passed=0 failed=0 left_out=0
logs=() failures=() flaky=()
for run in "$@"; do
  folder=build/${run%/*}/runs/${run#*/}
  # ctest's own closing line, e.g. "96% tests passed, 2 tests failed out of 50"
  read -r bad all < <(sed -n 's/.*passed, \([0-9]*\) tests failed out of \([0-9]*\)$/\1 \2/p' "$folder/summary" 2>/dev/null) || {
    echo "$run did not finish"
    bad=1 all=1
  }
  out=$(grep -c '\*\*\*Skipped' "$folder/summary" 2>/dev/null || true)  # ctest counts them as passed
  while IFS= read -r test; do
    if grep -qsxF "$test" "$folder/flaky"; then
      flaky+=("$run, $test: passed when it was repeated alone")
      bad=$((bad - 1))
    else
      failures+=("$run $test")
    fi
  done < <(cat "$folder/failed" 2>/dev/null)
  passed=$((passed + all - bad - ${out:-0})) failed=$((failed + bad)) left_out=$((left_out + ${out:-0}))
  logs+=("$folder/Testing/Temporary/LastTest.log")
done

skips=$(cat "${logs[@]}" 2>/dev/null | sed -n '/: Skipped$/{n;p}; s/^SKIPPED: //p' || true)
skipped=0
if [[ -n $skips ]]; then
  skipped=$(wc -l <<<"$skips")
  echo
  echo "Skipped cases within these tests, by reason:"
  sort <<<"$skips" | uniq -c | sort -rn
fi
cases=$({ cat "${logs[@]}" 2>/dev/null || true; } | sed -n 's/^\[  PASSED  \] \([0-9]*\) tests\{0,1\}\.$/\1/p' |
  awk '{ sum += $1 } END { print sum + 0 }')
echo
echo "$cases cases of GoogleTest passed in the ctest runs of: $* ($skipped cases skipped)"
for failure in "${failures[@]}"; do
  run=${failure%% *} name=${failure#* }
  echo
  echo "failed in $run: $name"
  sed -n "\|^[0-9/]* Test: $name\$|,/^<end of output>$/p" "build/${run%/*}/runs/${run#*/}/Testing/Temporary/LastTest.log" | tail -n 40 | sed 's/^/    /'
done
# The cluster's test repeats scenarios by itself.
mapfile -t -O ${#flaky[@]} flaky < <(cat "${logs[@]}" 2>/dev/null | sed -n 's/^FLAKY: //p')
if ((${#flaky[@]})); then printf 'FLAKY: %s\n' "${flaky[@]}"; fi
echo "$passed passed, $failed failed, $left_out skipped"
[[ $failed == 0 ]]
