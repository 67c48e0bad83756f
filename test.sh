#!/usr/bin/env bash
# Builds llamesh and runs its tests. A test that fails is repeated once, alone, at the end.
#   ./test.sh [--no-install] [--sanitizers] [--deep] [--ci] [CTEST-OPTION...]
#     --no-install   install no packages, only say which are missing
#     --sanitizers   also the unit tests under AddressSanitizer + UBSan and under ThreadSanitizer
#     --deep         also the tests that .ci/run leaves to .ci/deep: more rank counts, all jobs on Slurm, the campaign
#     --ci           warnings are errors; .ci/run itself repeats the failed tests and reports the result
# Anything else goes to ctest, e.g.  ./test.sh -R sharding
set -euo pipefail
cd "$(dirname "$0")"

setup=(--tests) presets=(cpu) ctest_options=(-LE deep)
for option in "$@"; do
  case $option in
    --no-install) setup+=(--no-install) ;;
    --ci) setup+=(--ci); presets[0]=ci ;;
    --sanitizers) presets+=(asan tsan) ;;
    --deep) ctest_options=("${ctest_options[@]:2}") ;;
    -h | --help) sed -n '2,9s/^# \{0,1\}//p' "$0"; exit 0 ;;
    -LE) ctest_options=("${ctest_options[@]:2}" -LE) ;;
    *) ctest_options+=("$option") ;;
  esac
done
scripts/setup.sh "${setup[@]}"

runs=()
for preset in "${presets[@]}"; do
  runs+=("$preset/tests")
  scripts/test_preset.sh "$preset" "${ctest_options[@]}" || (($? == 8))
done
if [[ ${presets[0]} == ci ]]; then exit; fi
scripts/test_again.sh "${runs[@]}"
scripts/test_results.sh "${runs[@]}"
