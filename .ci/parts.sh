# shellcheck shell=bash
# Sourced by .ci/run and .ci/deep: the parts of both, and how they run beside each other.
scripts/setup.sh --tests --ci
export CCACHE_BASEDIR=$PWD CCACHE_NOHASHDIR=1  # builds share objects of the same flags, whatever their folder
export CUDNN_FRONTEND_HOME=${CUDNN_FRONTEND_HOME:-$PWD/build/cudnn_frontend}  # from setup.sh, if it could be had
logs=build/ci-logs
if [[ -z ${goes_on:-} ]]; then rm -rf $logs build/*/runs; fi
mkdir -p $logs

base=     # the commit since which changes count
folders=  # the folders of tests/ that sanitizers, CUDA and fuzzing look at (scripts/affected_tests.sh)
failed=() # parts that failed for another reason than a test
declare -A process

# timed NAME COMMAND...: runs it, and notes the seconds that it took.
timed() {
  local name=$1 code=0 TIMEFORMAT='%R %U %S'
  shift
  { time "$@" 2>&3; } 3>&2 2>"$logs/$name.time" || code=$?
  return $code
}

# beside NAME: runs the part in the background, in a process group of its own.
beside() {
  set -m
  (set -e; timed "$1" "$1") </dev/null >"$logs/$1.log" 2>&1 &
  process[$1]=$!
  set +m
}
# join NAME: waits for it and shows what it said.
join() {
  local code=0
  wait "${process[$1]}" || code=$?
  unset "process[$1]"
  echo "-- what ran beside: $1"
  cat "$logs/$1.log"
  if ((code != 0)); then failed+=("$1"); fi
}
has_ended() { [[ -s $logs/$1.time ]]; }
# end NAME: kills what is still running of it.
end() {
  kill -TERM -- "-${process[$1]}" 2>/dev/null || true
  wait "${process[$1]}" || true
  unset "process[$1]"
}
end_processes() { for name in "${!process[@]}"; do kill -TERM -- "-${process[$name]}" 2>/dev/null || true; done; }
trap end_processes EXIT
trap 'exit 130' INT TERM HUP

# tested ARGUMENT...: scripts/test_preset.sh, for which failed tests are no error: finish repeats them.
build_only=no  # if yes, it runs no test
tested() {
  local code=0
  if [[ $build_only == yes ]]; then scripts/test_preset.sh --only-build "$@"; return; fi
  scripts/test_preset.sh "$@" || code=$?
  ((code == 0 || code == 8))
}
# affects FOLDER...: checks that one of these may behave otherwise than in $base.
affects() {
  local folder
  for folder in "$@"; do if [[ " $folders " == *" $folder "* ]]; then return; fi; done
  echo "SKIPPED: nothing has changed"
  return 1
}

# --- the parts. Commands are joined by &&, since `set -e` has no effect in a function whose code is tested.

style() {
  echo "-- formatting" &&
    find src tests \( -name '*.cpp' -o -name '*.hpp' -o -name '*.cu' -o -name '*.cuh' \) -print0 |
    xargs -0 clang-format --dry-run -Werror &&
    echo "-- English" &&
    scripts/check_english.py &&
    echo "-- order of the layers" &&
    scripts/check_layers.sh
}
build() { scripts/build.sh ci && scripts/check_layers.sh --build build/ci; }
cluster() { tested --as cluster --no-build ci -R '^cluster$'; }
# The emulator has a race detector of its own in plain builds; only .ci/deep also runs it with AddressSanitizer.
asan() {
  local without_emulator
  without_emulator=$(tr ' ' '\n' <<<"$folders" | grep -vxE 'threads/.*|gpu|cuda_.*' | paste -sd' ' || true)
  if [[ -n $without_emulator ]]; then tested --folders "$without_emulator" asan; fi
}
tsan() {
  local layers
  layers=$(tr ' ' '\n' <<<"$folders" | sed -n 's|^threads/||p' | paste -sd' ')
  if [[ -z $layers ]]; then echo "SKIPPED: nothing has changed"; return; fi
  tested --folders "$layers" tsan
}
gpu() {
  if ! affects gpu cuda_emulator cuda_fake; then return; fi
  if ! command -v nvcc >/dev/null; then echo "SKIPPED: no nvcc"; return; fi
  tested ci-cuda
}
fuzz() {
  if ! affects fuzz; then return; fi
  scripts/build.sh fuzz || return
  if [[ $build_only == no ]]; then tests/fuzz/run.sh "${fuzz_seconds:-3}"; fi
}
tidy() { scripts/tidy.sh "$(git rev-parse -q --verify "$base^{commit}" || git rev-parse HEAD~1)"; }

# finish: repeats failed tests, prints the times and the result. Returns 1 if something has failed.
finish() {
  local runs=() run
  for run in build/*/runs/*/; do
    run=${run%/}
    runs+=("$(basename "$(dirname "$(dirname "$run")")")/${run##*/}")
  done
  timed again scripts/test_again.sh "${runs[@]}"
  printf '\n%-14s %14s %20s\n' part "wall minutes" "processor minutes"
  awk '{ name = FILENAME; gsub(/.*\/|\.time$/, "", name); printf "%-14s %14.1f %20.1f\n", name, $1 / 60, ($2 + $3) / 60 }' $logs/*.time
  scripts/test_results.sh "${runs[@]}" || failed+=("tests")
  if ((${#failed[@]} == 0)); then return; fi
  printf 'FAILED: %s\n' "${failed[@]}" >&2
  return 1
}
