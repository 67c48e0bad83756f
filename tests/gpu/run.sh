#!/usr/bin/env bash
# Runs every test that needs a GPU and prints a table: each kernel against the CPU's, training on the GPU against
# training on the CPU, both again with each attention implementation that the build and the GPU have, every strategy
# with several NCCL ranks on one GPU against one rank, and a checkpoint from the GPU to the CPU. Exits with 0 only if
# everything passed.
#   tests/gpu/run.sh [--programs FOLDER] [--launch COMMAND] [--python PROGRAM] [PART...]
#     --programs  folder with llamesh and gpu_ops, made by tests/gpu/bundle.sh, for a machine without a
#                 compiler, MPI and HDF5. Default: builds the preset cuda.
#     --launch    starts ranks: COMMAND N PROGRAM [ARGUMENTS] (default: the bundle's own, or tests/mpirun.sh)
#     --python    its NVIDIA packages may hold cuBLASLt, NCCL and cuDNN (python3)
#     PART        kernels, training, attention, ranks, sanitizers (default: all)
set -uo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
programs='' launch='' python=python3 parts=()
while (($#)); do
  case $1 in
    --programs) programs=$(cd "$2" && pwd); shift 2 ;;
    --launch) launch=$2; shift 2 ;;
    --python) python=$2; shift 2 ;;
    kernels | training | attention | ranks | sanitizers) parts+=("$1"); shift ;;
    *) sed -n '2,12s/^# \{0,1\}//p' "$0"; exit 2 ;;
  esac
done
((${#parts[@]})) || parts=(kernels training attention ranks sanitizers)
if [[ -z $programs ]]; then
  "$root/scripts/build.sh" cuda llamesh gpu_ops || exit 1
  programs=$root/build/cuda
  llamesh=$programs/src/llamesh tests=$programs/tests
else
  llamesh=$programs/bin/llamesh tests=$programs/bin
  launch=${launch:-$programs/run.sh}
fi
launch=${launch:-$root/tests/mpirun.sh}
# shellcheck source=tests/gpu/cuda_libraries.sh
source "$root/tests/gpu/cuda_libraries.sh"
add_cuda_libraries "$python"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$root" || exit 1

rows=() failures=0
# row NAME RESULT DETAIL [LOG]: adds a table row; for a failure also prints the end of its log
row() {
  rows+=("$(printf '%-44s %-7s %s' "$1" "$2" "$3")")
  echo "${rows[-1]}"
  [[ $2 == FAILED ]] || return 0
  failures=$((failures + 1))
  grep -E -A 8 -m 4 'Failure$|^=+ (Error|Invalid|Race)' "$4" | head -n 40 | sed 's/^/    /'
  tail -n 15 "$4" | sed 's/^/    /'
}
# Runs in the foreground, so that a signal to this script's group reaches its children.
limited() { timeout --foreground -k 5 $((${LLAMESH_VISIT_PATIENCE:-1} * $1)) "${@:2}"; }
# tested NAME LOG SECONDS COMMAND...: runs a test program, alone or under a sanitizer, as one rank (it initializes MPI)
tested() {
  local name=$1 log=$work/$2.log seconds=$3 status=0 detail
  shift 3
  limited "$seconds" "$launch" 1 "$@" >"$log" 2>&1 || status=$?
  detail=$(grep -E '^\[  (PASSED|FAILED) |SUMMARY' "$log" | head -n 3 | tr '\n' ' ')
  if [[ $status == 0 ]] && ! grep -qE 'SKIPPED|SUMMARY: [1-9]' "$log"; then
    row "$name" passed "$detail"
  elif [[ $status == 124 || $status == 137 ]]; then  # killed by TERM or KILL
    row "$name" FAILED "no end after $seconds s; $(grep -c '^\[       OK' "$log") tests had passed" "$log"
  else
    row "$name" FAILED "exit $status $detail" "$log"
  fi
}
planning=60  # seconds that cuDNN may take to plan a program's shapes
# train RUN RANKS DEVICE OVERRIDE...: trains into $work/RUN and stores the exit status next to it
train() {
  local run=$1 ranks=$2 device=$3 status=0
  shift 3
  limited $((60 + planning)) "$launch" "$ranks" "$root/tests/gpu/one_gpu.sh" "$llamesh" train inputs/tiny.yaml --device "$device" \
    "run.folder=$work/$run" "$@" >"$work/$run.log" 2>&1 || status=$?
  echo $status >"$work/$run.status"
}
# losses RUN: prints the loss per step
losses() { sed -n 's/.*"step":\([0-9]*\),"loss":\([^,}]*\),"grad_norm.*/\1 \2/p' "$work/$1/metrics.jsonl"; }
# ended RUN: succeeds if the run did
ended() { [[ $(<"$work/$1.status") == 0 ]]; }
# close NAME RUN OTHER TOLERANCE: compares two runs' losses, relative
close() {
  local worst=''
  ended "$2" && ended "$3" && worst=$(paste <(losses "$2") <(losses "$3") | awk '
    NF != 4 || $1 != $3 { print "steps differ"; bad = 1; exit }
    { d = ($2 - $4) / $4; if (d < 0) d = -d; if (!(d <= worst)) worst = d; ++n }
    END { if (!bad) print (n ? worst + 0 : "no steps") }')
  if [[ $worst == [0-9]* ]] && awk -v w="$worst" -v t="$4" 'BEGIN { exit !(w <= t) }'; then
    row "$1" passed "losses differ by $worst at most (bound $4)"
  else
    row "$1" FAILED "exit $(<"$work/$2.status") and $(<"$work/$3.status"), losses differ by ${worst:-?} (bound $4)" \
      "$work/$2.log"
  fi
}
wide="model.hidden_size=256 model.num_attention_heads=4 model.num_key_value_heads=2 model.intermediate_size=704"
# wide_runs DEVICE PRECISION RUN...: trains a model with attention shapes as in large models
wide_runs() {
  local device=$1 precision=$2 run
  shift 2
  # shellcheck disable=SC2086
  for run in "$@"; do train "$run" 1 "$device" precision.parameters="$precision" $wide; done
}

run_kernels() {
  for name in elementwise block_codes layers norms tokens experts fp8 attention; do
    tested "kernels: $name" "$name" $((40 + planning)) "$tests/gpu_ops" "gpu/ops_${name}_test.cpp"
  done
}

run_training() {
  for precision in fp32 bf16; do
    bound=1e-4
    [[ $precision == fp32 ]] || bound=2e-2
    wide_runs cpu $precision cpu-$precision
    wide_runs cuda $precision gpu-$precision
    close "training in $precision, GPU beside CPU" gpu-$precision cpu-$precision $bound
  done
  local experts="model.family=mixtral model.num_experts=8 model.num_experts_per_tok=2"
  for device in cpu cuda; do
    # shellcheck disable=SC2086
    train $device-experts 1 $device precision.parameters=bf16 $wide $experts
  done
  close "training of experts in bf16, GPU beside CPU" cuda-experts cpu-experts 2e-2
  for device in cpu cuda; do
    # shellcheck disable=SC2086
    train $device-fp8 1 $device precision.parameters=bf16 precision.linear=fp8 $wide
  done
  close "training in FP8, GPU beside CPU" cuda-fp8 cpu-fp8 2e-2
  wide_runs cuda bf16 gpu-again
  close "training twice on the GPU" gpu-again gpu-bf16 0

  # shellcheck disable=SC2086
  limited $((60 + planning)) "$launch" 1 "$llamesh" bench step inputs/tiny.yaml --device cuda train.steps=2 \
    precision.parameters=bf16 $wide --tune-gemms "$work/gemms.json" >"$work/tuning.log" 2>&1
  local status=$? found
  found=$(sed -n 's/.*gemms.json: //p' "$work/tuning.log")
  if [[ $status == 0 && -n $found ]]; then
    row "a GEMM table" passed "$found"
  else
    row "a GEMM table" FAILED "exit $status" "$work/tuning.log"
  fi
  for run in tuned tuned-again; do
    # shellcheck disable=SC2086
    train $run 1 cuda precision.parameters=bf16 $wide train.gemm_table="$work/gemms.json"
  done
  close "training by a GEMM table beside CPU" tuned cpu-bf16 2e-2
  close "training by it twice" tuned-again tuned 0
}

# Tests each attention that this build and GPU have: "cudnn" fails if it is not used, "builtin" means wgmma on Hopper.
run_attention() {
  local attentions="builtin mma"
  if grep -q '^CUDA: .*attention by cuDNN' "$work/version"; then
    attentions="cudnn cudnn/builtin $attentions"
  else
    row "attention by cudnn" skipped "$(grep '^CUDA:' "$work/version")"
  fi
  wide_runs cpu bf16 cpu-bf16
  for attention in $attentions; do
    export LLAMESH_ATTENTION=$attention
    tested "attention by $attention" "attention-${attention/\//-}" $((40 + planning)) "$tests/gpu_ops" gpu/ops_attention_test.cpp
    wide_runs cuda bf16 "training-${attention/\//-}"
    close "training with attention by $attention beside CPU" "training-${attention/\//-}" cpu-bf16 2e-2
  done
  unset LLAMESH_ATTENTION
}

run_ranks() {
  train one 1 cuda
  for strategy in full_shard shard_grad_op no_shard hybrid_shard hybrid_shard_zero2; do
    for ranks in 2 4; do
      train "$strategy-$ranks" $ranks cuda sharding.strategy=$strategy mesh.ranks_per_node=2
      close "$strategy, $ranks NCCL ranks beside one" "$strategy-$ranks" one 1e-5
    done
  done
  train same-bits 1 cuda train.reproducible=mesh train.global_batch=8
  for ranks in 2 4; do
    train same-bits-$ranks $ranks cuda train.reproducible=mesh train.global_batch=8 sharding.strategy=full_shard
    close "the same bits with $ranks NCCL ranks as with one" same-bits-$ranks same-bits 0
  done
  # shellcheck disable=SC2086
  { train fp8-one 1 cuda precision.parameters=bf16 precision.linear=fp8 $wide
    train fp8-gathered 2 cuda precision.parameters=bf16 precision.linear=fp8 $wide sharding.strategy=full_shard \
      sharding.gather=fp8 sharding.gather_within_node=true; }
  close "weights gathered in FP8, 2 NCCL ranks beside one" fp8-gathered fp8-one 1e-2
  # Each rank is a host of its own to NCCL here, so it uses no symmetric kernels on the windows; that takes two GPUs.
  NCCL_CUMEM_ENABLE=1 train windows-2 2 cuda sharding.strategy=full_shard mesh.ranks_per_node=2
  close "full_shard, 2 NCCL ranks, registered windows" windows-2 one 1e-5

  local log=$work/verify.log
  if "$launch" 1 "$llamesh" verify "$work/hybrid_shard-4/checkpoints/step_00000020" >"$log" 2>&1; then
    log=$work/hybrid_shard-4.log
    train hybrid_shard-4 2 cpu train.steps=24
    if ended hybrid_shard-4 && [[ $(losses hybrid_shard-4 | wc -l) == 24 ]]; then
      row "checkpoint of 4 GPU ranks, on 2 CPU ranks" passed "steps 21 to 24"
      return
    fi
  fi
  row "checkpoint of 4 GPU ranks, on 2 CPU ranks" FAILED "$(tail -n 1 "$log")" "$log"
}

# Checks the built-in kernels, not cuDNN's; those with barriers and asynchronous copies first.
run_sanitizers() {
  if ! command -v compute-sanitizer >/dev/null; then
    row "compute-sanitizer" skipped "not found"
    return
  fi
  for case in builtin/attention mma/attention builtin/layers builtin/norms builtin/tokens builtin/experts builtin/elementwise; do
    for tool in racecheck memcheck; do
      tested "$tool: ${case#*/} (${case%/*})" "$tool-${case/\//-}" 110 env LLAMESH_ATTENTION="${case%/*}" \
        compute-sanitizer --tool $tool --error-exitcode 9 "$tests/gpu_ops" "gpu/ops_${case#*/}_test.cpp"
    done
  done
}

nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader || { echo "no GPU here"; exit 1; }
"$llamesh" --version | tee "$work/version"
grep -qE '^CUDA: .* [0-9]+ devices?$' "$work/version" || { echo "llamesh sees no GPU"; exit 1; }
for part in "${parts[@]}"; do "run_$part"; done

printf '\n%-44s %-7s %s\n' "test" "result" ""
printf '%s\n' "${rows[@]}"
echo "$((${#rows[@]} - failures)) of ${#rows[@]} without failure"
[[ $failures == 0 ]]
