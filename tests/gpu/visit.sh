#!/usr/bin/env bash
# Runs all tests and measurements for a short visit to a machine with a GPU, the most valuable first. Each step has a
# time limit and writes to FOLDER at once: summary.md, for docs/gpu-results.md, and a log per part.
#   tests/gpu/visit.sh --programs FOLDER --out FOLDER [--python PROGRAM] [PART...]
#     --programs  a folder made by tests/gpu/bundle.sh
#     --python    has torch and yaml (python3)
#     PART        tests (5 minutes), benches (5), steps4096 (7), steps8192 (7), sanitizers (at most 10); default: all
set -uo pipefail
cd "$(dirname "$0")/../.." || exit 1
programs='' out='' python=python3 parts=()
while (($#)); do
  case $1 in
    --programs) programs=$(cd "$2" && pwd); shift 2 ;;
    --out) mkdir -p "$2" && out=$(cd "$2" && pwd); shift 2 ;;
    --python) python=$2; shift 2 ;;
    tests | benches | steps4096 | steps8192 | sanitizers) parts+=("$1"); shift ;;
    *) programs='' && break ;;
  esac
done
[[ -n $programs && -n $out ]] || { sed -n '2,7s/^# \{0,1\}//p' "$0"; exit 2; }
((${#parts[@]})) || parts=(tests benches steps4096 steps8192 sanitizers)
llamesh=$programs/bin/llamesh summary=$out/summary.md failures=0
# Falls back to the CUDA libraries in Python packages if the bundle has no path to them.
LD_LIBRARY_PATH=$("$python" -c 'import nvidia; print(*(f"{p}/{n}/lib" for p in nvidia.__path__ for n in
    ("cu13", "cudnn", "nccl")), sep=":")' 2>/dev/null)${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
export LD_LIBRARY_PATH PATH=$PATH:/usr/local/cuda/bin

say() { printf '%s\n' "$@" | tee -a "$summary"; }
# A hanging rank ignores the time limit's signal, may have lost its mpirun, and would block the GPU for the next step.
kill_what_is_left() {
  local process
  grep -lzxF "LLAMESH_VISIT=$$" /proc/[0-9]*/environ 2>/dev/null | cut -d / -f 3 | while read -r process; do
    echo "killed, since it was left: $(tr '\0' ' ' <"/proc/$process/cmdline")" >>"$log"
    kill -KILL "$process"
  done
}
# step PART SECONDS COMMAND...: writes all output to the part's log, and its table (or its end) to the summary
step() {
  local log=$out/$1.log seconds=$2 status=0 start=$SECONDS first
  shift 2
  say "" "\`${*//$programs\/bin\//}\`" ""
  echo "\$ $*" >>"$log"
  first=$(($(wc -l <"$log") + 1))
  LLAMESH_VISIT=$$ timeout -k 15 "$seconds" "$@" >>"$log" 2>&1 </dev/null || status=$?
  kill_what_is_left
  say '```'
  tail -n "+$first" "$log" | awk '/^(test  |model  )/ { n = 0 } { line[n++] = $0 }
    END { for (i = n > 60 ? n - 60 : 0; i < n; ++i) print line[i] }' | tee -a "$summary"
  say '```' "Exit $status after $((SECONDS - start)) s$([[ $status != 124 ]] || echo ", stopped")."
  [[ $status == 0 ]] || failures=$((failures + 1))
}
run() { step "$1" "$2" tests/gpu/run.sh --programs "$programs" "$3"; }
bench() { step benches "$1" "${@:3}" "$llamesh" bench "$2" --device cuda; }
steps() { step "steps$2" "$3" tests/bench/gpu_steps.sh --programs "$programs" --python "$python" --only "$1/$2"; }

gpu=$(nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader 2>&1)
say "## $(date -u '+%Y-%m-%d %H:%M') UTC, ${parts[*]}" "" '```' "$gpu" "$("$llamesh" --version 2>&1)" '```'
for part in "${parts[@]}"; do
  say "" "### $part"
  case $part in
    tests) run tests 290 kernels; run tests 290 training; run tests 400 attention; run tests 300 ranks ;;
    benches)
      bench 150 gemm
      for attention in cudnn cudnn/builtin builtin mma; do bench 75 ops env LLAMESH_ATTENTION=$attention; done
      bench 60 decode ;;
    steps*) steps 1b "${part#steps}" 260; steps 8b "${part#steps}" 420 ;;
    sanitizers) run sanitizers 570 sanitizers ;;
  esac
done
[[ $failures == 0 ]]
