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

runs=()
for preset in "${presets[@]}"; do
  runs+=("$preset/tests")
  scripts/test_preset.sh "$preset" "${ctest_options[@]}" || [[ -e build/$preset/runs/tests.summary ]]
done
scripts/test_verdict.sh "${runs[@]}"
