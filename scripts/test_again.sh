#!/usr/bin/env bash
# Repeats each failed test of runs of scripts/test_preset.sh once, alone. Those that pass now are flaky:
# their names go to build/PRESET/runs/NAME/flaky, and scripts/test_results.sh does not count them as failed.
#   scripts/test_again.sh PRESET/NAME...
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/sanitizer_options.sh
source scripts/own_tmpdir.sh

for run in "$@"; do
  folder=build/${run%/*}/runs/${run#*/}
  mkdir -p "$folder/again"
  cp "$folder/CTestTestfile.cmake" "$folder/again"
  while IFS= read -r test; do
    echo "-- again, alone: $test of $run"
    if ctest --test-dir "$folder/again" --output-on-failure --timeout 3600 -R "^$test\$" >>"$folder/again/log" 2>&1 </dev/null; then
      echo "$test" >>"$folder/flaky"
    else
      echo "-- it fails again"
    fi
  done < <(cat "$folder/failed" 2>/dev/null)
done
