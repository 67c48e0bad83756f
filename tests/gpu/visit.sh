#!/usr/bin/env bash
# Runs all tests and measurements during visits to a machine with a GPU that is lent for calls of ten minutes. The parts
# run in the order below, the most valuable first. A part begins only if all its time limits end before the deadline, so
# no call is cut off; the next call, with the file OUT/done of the last one, continues with the next part.
#   tests/gpu/visit.sh --programs FOLDER --out OUT [--done FILE] [--seconds N] [--python PROGRAM] [PART...]
#     --programs  a folder made by tests/gpu/bundle.sh
#     --out       gets summary.md, for docs/gpu-results.md, PART.log and done, all written as the parts end
#     --done      parts that earlier calls have done, one per line: skipped
#     --seconds   deadline of this call (540)
#     --python    has torch and yaml, and torchao for some rows (python3)
#     PART        kernels fp8 fp8_8b benches steps1b steps8b training ranks profile steps8192 sanitizers (default: all)
set -uo pipefail
cd "$(dirname "$0")/../.." || exit 1
all=(kernels fp8 fp8_8b benches steps1b steps8b training ranks profile steps8192 sanitizers)
programs='' out='' earlier='' deadline=540 python=python3 parts=()
while (($#)); do
  case $1 in
    --programs) programs=$(cd "$2" && pwd); shift 2 ;;
    --out) mkdir -p "$2" && out=$(cd "$2" && pwd); shift 2 ;;
    --done) earlier=$2; shift 2 ;;
    --seconds) deadline=$2; shift 2 ;;
    --python) python=$2; shift 2 ;;
    *) [[ " ${all[*]} " == *" $1 "* ]] || { programs=''; break; }; parts+=("$1"); shift ;;
  esac
done
[[ -n $programs && -n $out ]] || { sed -n '2,11s/^# \{0,1\}//p' "$0"; exit 2; }
((${#parts[@]})) || parts=("${all[@]}")
llamesh=$programs/bin/llamesh summary=$out/summary.md failures=0
if [[ -n $earlier && ! $earlier -ef $out/done ]]; then cp "$earlier" "$out/done" || exit 2; fi
touch "$out/done"
# shellcheck source=tests/gpu/cuda_libraries.sh
source tests/gpu/cuda_libraries.sh
add_cuda_libraries "$python"

say() { printf '%s\n' "$@" | tee -a "$summary"; }
# A hanging rank ignores the time limit's signal, may have lost its mpirun, and would block the GPU for the next step.
kill_what_is_left() {
  local process
  grep -lzxF "LLAMESH_VISIT=$$" /proc/[0-9]*/environ 2>/dev/null | cut -d / -f 3 | while read -r process; do
    echo "killed, since it was left: $(tr '\0' ' ' <"/proc/$process/cmdline")" >>"$log"
    kill -KILL "$process"
  done
}
# step SECONDS COMMAND...: writes all output to the part's log, and its table (or its end) to the summary. While $budget
# is "ask", it adds SECONDS to $seconds_of_part instead.
grace=10  # seconds from TERM to KILL
patience=${LLAMESH_VISIT_PATIENCE:-1}  # times every limit: a dry run gets the cores that other tests leave
step() {
  local seconds=$1 status=0 start=$SECONDS log=$out/$part.log first
  shift
  if [[ $budget == ask ]]; then seconds_of_part=$((seconds_of_part + seconds + grace)); return; fi
  say "" "\`${*//$programs\/bin\//}\`" ""
  echo "\$ $*" >>"$log"
  first=$(($(wc -l <"$log") + 1))
  LLAMESH_VISIT=$$ timeout -k "$grace" $((patience * seconds)) "$@" >>"$log" 2>&1 </dev/null || status=$?
  kill_what_is_left
  say '```'
  tail -n "+$first" "$log" | awk '/^(test  |model  )/ { n = 0 } { line[n++] = $0 }
    END { for (i = n > 60 ? n - 60 : 0; i < n; ++i) print line[i] }' | tee -a "$summary"
  say '```' "Exit $status after $((SECONDS - start)) s$([[ $status != 124 ]] || echo ", stopped")."
  [[ $status == 0 ]] || failures=$((failures + 1))
}
run() { step "$1" tests/gpu/run.sh --programs "$programs" --python "$python" "${@:2}"; }
bench() { step "$1" "${@:3}" "$llamesh" bench "$2" --device cuda; }
# steps SECONDS MODEL/SEQUENCE PROGRAM...: all in one part, so that one GPU gives their figures
steps() {
  for program in "${@:3}"; do
    step "$1" tests/bench/gpu_steps.sh --programs "$programs" --python "$python" --only "$2" --program "$program"
  done
}
in_fp8=(fp8 torchao torchao_tw)
mib=$(nvidia-smi --query-gpu=memory.total --format=csv,noheader,nounits 2>/dev/null | head -n 1)
# An 8B model's state takes 119.7 GiB on one GPU.
holds_8b() {
  ((${mib:-0} >= 133120)) && return
  [[ $budget == ask ]] || say "" "8B is left out: it needs a GPU with 130 GiB, this one has ${mib:-0} MiB (take an H200)."
  return 1
}
has_cudnn=$("$llamesh" --version 2>/dev/null | grep -q '^CUDA: .*attention by cuDNN' && echo cudnn)
# The most that a part may take is the sum of its limits.
run_part() {
  case $part in
    kernels) run 120 kernels; run 150 attention ;;
    benches)
      bench 60 gemm
      bench 45 ops
      for attention in $has_cudnn builtin; do bench 45 ops env LLAMESH_ATTENTION="$attention"; done
      bench 40 decode ;;
    fp8) steps 110 1b/4096 "${in_fp8[@]}" ;;
    fp8_8b) if holds_8b; then steps 120 8b/4096 "${in_fp8[@]}"; fi ;;
    steps1b) steps 110 1b/4096 llamesh torch plain ;;
    steps8b) if holds_8b; then steps 150 8b/4096 llamesh torch; fi ;;
    training) run 170 training ;;
    ranks) run 240 ranks ;;
    profile)
      step 60 tests/bench/gpu_kernels.sh --programs "$programs" llama3.2-1b 8 none
      step 60 tests/bench/gpu_kernels.sh --programs "$programs" llama3-8b 2 selective ;;
    steps8192) if holds_8b; then steps 150 8b/8192 llamesh torch; else steps 110 1b/8192 llamesh torch; fi ;;
    sanitizers) run 400 sanitizers ;;
  esac
}

gpu=$(nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader 2>&1)
say "## $(date -u '+%Y-%m-%d %H:%M') UTC, $(git describe --always --dirty 2>/dev/null || echo 'commit unknown')" "" '```' "$gpu" \
  "$("$llamesh" --version 2>&1)" '```'
for part in "${parts[@]}"; do
  if grep -qx "$part" "$out/done"; then continue; fi
  budget=ask seconds_of_part=0
  run_part
  if ((SECONDS + seconds_of_part > deadline)); then
    say "" "Left for the next call, from $part on (it may take $seconds_of_part s, $((deadline - SECONDS)) s are left)."
    break
  fi
  budget=run
  say "" "### $part"
  run_part
  echo "$part" >>"$out/done"
done
[[ $failures == 0 ]]
