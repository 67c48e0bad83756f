#!/usr/bin/env bash
# All that needs a GPU, with one command and a table at the end: every kernel against the CPU's, training on the GPU
# against training on the CPU, both again with each attention that the build and the GPU have, every strategy with
# several NCCL ranks on one GPU against one rank, and a checkpoint from the GPU to the CPU. Exit 0 only if all of it
# passed.
#   tests/gpu/run.sh [--programs FOLDER] [--launch COMMAND]
#     --programs  where llamesh and gpu_ops_* are: a folder made by tests/gpu/bundle.sh, for a machine without a
#                 compiler, MPI and HDF5. Left out, the preset cuda is built.
#     --launch    starts ranks: COMMAND N PROGRAM [ARGUMENTS] (left out: the bundle's own, or tests/mpirun.sh)
set -uo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
programs='' launch=''
while (($#)); do
  case $1 in
    --programs) programs=$(cd "$2" && pwd); shift 2 ;;
    --launch) launch=$2; shift 2 ;;
    *) sed -n '2,10s/^# \{0,1\}//p' "$0"; exit 2 ;;
  esac
done
if [[ -z $programs ]]; then
  "$root/scripts/build.sh" cuda llamesh gpu_ops_{attention,elementwise,layers,tokens} || exit 1
  programs=$root/build/cuda
  llamesh=$programs/src/llamesh tests=$programs/tests
else
  llamesh=$programs/bin/llamesh tests=$programs/bin
  launch=${launch:-$programs/run.sh}
fi
launch=${launch:-$root/tests/mpirun.sh}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$root" || exit 1

rows=() failures=0
# row NAME RESULT DETAIL: a line of the table
row() {
  rows+=("$(printf '%-44s %-7s %s' "$1" "$2" "$3")")
  echo "${rows[-1]}"
  [[ $2 != FAILED ]] || failures=$((failures + 1))
}
# losses RUN: of each step
losses() { sed -n 's/.*"step":\([0-9]*\),"loss":\([^,}]*\),"grad_norm.*/\1 \2/p' "$work/$1/metrics.jsonl"; }
# close NAME RUN OTHER TOLERANCE: the losses of two runs, relative
close() {
  local worst
  worst=$(paste <(losses "$2") <(losses "$3") | awk '
    NF != 4 || $1 != $3 { print "steps differ"; bad = 1; exit }
    { d = ($2 - $4) / $4; if (d < 0) d = -d; if (d > worst) worst = d; ++n }
    END { if (!bad) print (n ? worst + 0 : "no steps") }')
  if [[ $worst == [0-9]* ]] && awk -v w="$worst" -v t="$4" 'BEGIN { exit !(w <= t) }'; then
    row "$1" passed "losses differ by $worst at most (bound $4)"
  else
    row "$1" FAILED "losses differ by $worst (bound $4); $(tail -n 1 "$work/$2.log")"
  fi
}
# train RUN RANKS DEVICE OVERRIDE...
train() {
  local run=$1 ranks=$2 device=$3
  shift 3
  timeout 300 "$launch" "$ranks" "$root/tests/gpu/one_gpu.sh" "$llamesh" train inputs/tiny.yaml --device "$device" \
    "run.folder=$work/$run" "$@" >"$work/$run.log" 2>&1
}

nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader || { echo "no GPU here"; exit 1; }
"$llamesh" --version | tee "$work/version"
grep -qE '^CUDA: .* [0-9]+ devices?$' "$work/version" || { echo "llamesh sees no GPU"; exit 1; }

for name in elementwise layers tokens attention; do
  log=$work/$name.log
  "$tests/gpu_ops_$name" >"$log" 2>&1 && ! grep -q SKIPPED "$log" && result=passed || result=FAILED
  row "kernels: $name" $result "$(grep -E '^\[  (PASSED|FAILED) ' "$log" | head -n 3 | tr '\n' ' ')"
done

wide="model.hidden_size=256 model.num_attention_heads=4 model.num_key_value_heads=2 model.intermediate_size=704"
for precision in fp32 bf16; do
  bound=1e-4
  [[ $precision == fp32 ]] || bound=2e-2
  # shellcheck disable=SC2086
  { train "cpu-$precision" 1 cpu precision.parameters=$precision $wide
    train "gpu-$precision" 1 cuda precision.parameters=$precision $wide; }
  close "training in $precision, GPU beside CPU" "gpu-$precision" "cpu-$precision" $bound
done
# shellcheck disable=SC2086
train "gpu-again" 1 cuda precision.parameters=bf16 $wide
if [[ -n $(losses gpu-again) ]] && cmp -s <(losses gpu-again) <(losses gpu-bf16); then
  row "training twice on the GPU" passed "the same bits"
else
  row "training twice on the GPU" FAILED "other losses"
fi

# Each attention that this build and GPU have: "cudnn" is an error where it is not taken, "own" means wgmma on Hopper.
attentions="own mma"
if grep -q '^CUDA: .*attention by cuDNN' "$work/version"; then
  attentions="cudnn $attentions"
else
  row "attention by cudnn" skipped "$(grep '^CUDA:' "$work/version")"
fi
for attention in $attentions; do
  export LLAMESH_ATTENTION=$attention
  log=$work/attention-$attention.log
  "$tests/gpu_ops_attention" >"$log" 2>&1 && ! grep -q SKIPPED "$log" && result=passed || result=FAILED
  row "attention by $attention" $result "$(grep -E '^\[  (PASSED|FAILED) ' "$log" | head -n 3 | tr '\n' ' ')"
  # shellcheck disable=SC2086
  train "attention-$attention" 1 cuda precision.parameters=bf16 $wide
  close "training with attention by $attention beside CPU" "attention-$attention" cpu-bf16 2e-2
done
unset LLAMESH_ATTENTION

train one 1 cuda
for strategy in full_shard shard_grad_op no_shard hybrid_shard hybrid_shard_zero2; do
  for ranks in 2 4; do
    train "$strategy-$ranks" $ranks cuda sharding.strategy=$strategy mesh.ranks_per_node=2
    close "$strategy, $ranks NCCL ranks beside one" "$strategy-$ranks" one 1e-5
  done
done

NCCL_CUMEM_ENABLE=1 train windows-2 2 cuda sharding.strategy=full_shard mesh.ranks_per_node=2
close "full_shard, 2 NCCL ranks with windows, beside one" windows-2 one 1e-5

if "$llamesh" verify "$work/hybrid_shard-4/checkpoints/step_00000020" >/dev/null 2>&1 &&
  train hybrid_shard-4 2 cpu train.steps=24 && [[ $(losses hybrid_shard-4 | wc -l) == 24 ]]; then
  row "checkpoint of 4 GPU ranks, on 2 CPU ranks" passed "steps 21 to 24"
else
  row "checkpoint of 4 GPU ranks, on 2 CPU ranks" FAILED "$(tail -n 1 "$work/hybrid_shard-4.log")"
fi

if command -v compute-sanitizer >/dev/null; then
  for tool in memcheck racecheck; do
    for name in elementwise layers tokens attention; do
      log=$work/$tool-$name.log
      # racecheck is for our own kernels, not for cuDNN's.
      choice=()
      [[ $tool == memcheck ]] || choice=(env LLAMESH_ATTENTION=own)
      timeout 600 "${choice[@]}" compute-sanitizer --tool $tool --error-exitcode 9 "$tests/gpu_ops_$name" >"$log" 2>&1 &&
        result=passed || result=FAILED
      row "$tool: $name" $result "$(grep 'SUMMARY' "$log" | tail -n 1)"
    done
  done
else
  row "compute-sanitizer" skipped "not found"
fi

printf '\n%-44s %-7s %s\n' "test" "result" ""
printf '%s\n' "${rows[@]}"
echo "$((${#rows[@]} - failures)) of ${#rows[@]} without failure"
[[ $failures == 0 ]]
