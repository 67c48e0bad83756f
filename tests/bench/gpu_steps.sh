#!/usr/bin/env bash
# Benchmarks training steps for Llama 3.2 1B and Llama 3 8B at 4096 and 8192 tokens on this
# machine's GPUs: llamesh against PyTorch FSDP2 with torch.compile, with equal batches. Each program
# uses its fastest setting that fits in memory, tried in the order below. The rows "tuned" are
# llamesh with cuBLASLt's fastest algorithm for each product (docs/gpu.md), not its first choice.
# The rows "fp8" are llamesh with precision.linear: fp8; "torchao" and "torchao_tw" are PyTorch with
# torchao's recipes rowwise_with_gw_hp and tensorwise, "plain" is PyTorch without FSDP2 (one GPU).
#   tests/bench/gpu_steps.sh [--programs FOLDER] [--ranks N] [--only TEXT] [--program NAME] [--python PROGRAM]
#     --programs  a folder made by tests/gpu/bundle.sh; default: build/cuda
#     --ranks     number of GPUs (1)
#     --only      only rows whose "model/sequence" contain TEXT, e.g. --only 1b or --only 8b/4096
#     --program   only llamesh, fp8, torch, plain, torchao or torchao_tw
#     --python    a Python with torch and yaml, for two of the rows torchao (python3)
set -uo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
llamesh=$root/build/cuda/src/llamesh launch=$root/tests/mpirun.sh ranks=1 only='' program='' python=python3
while (($#)); do
  case $1 in
    --programs) llamesh=$(cd "$2" && pwd)/bin/llamesh launch=$(cd "$2" && pwd)/run.sh; shift 2 ;;
    --ranks) ranks=$2; shift 2 ;;
    --only) only=$2; shift 2 ;;
    --program) program=$2; shift 2 ;;
    --python) python=$2; shift 2 ;;
    *) sed -n '2,13s/^# \{0,1\}//p' "$0"; exit 2 ;;
  esac
done
# shellcheck source=tests/gpu/cuda_libraries.sh
source "$root/tests/gpu/cuda_libraries.sh"
add_cuda_libraries "$python"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$root" || exit 1

rows=() done_all=true
# row MODEL SEQUENCE PROGRAM SETTING LOG [LINE]: prints a row from the lines "memory" and LINE
# ("median") that both programs print
row() {
  rows+=("$(printf '%-13s %8s  %-10s %-16s' "$1" "$2" "$3" "$4")$(awk -v line="${6:-median}" '
    $1 == line { rate = $3; mfu = $(NF - 1) }
    /^memory/ { sub(".*peak ", ""); peak = $1 / 1024 }
    END { printf "%12s %6s %% %10.1f", rate, mfu, peak }' "$5")")
  echo "${rows[-1]}"
}
# In the foreground, so that a signal to this script's group reaches the programs.
limited() { timeout --foreground -k 10 $((${LLAMESH_VISIT_PATIENCE:-1} * $1)) "${@:2}"; }
# first_that_fits MODEL SEQUENCE PROGRAM SETTING...: runs PROGRAM with the first setting that does
# not run out of memory
first_that_fits() {
  local model=$1 sequence=$2 program=$3 setting status
  shift 3
  for setting in "$@"; do
    status=0
    "$program" "$model" "$sequence" "${setting%/*}" "${setting#*/}" >"$work/log" 2>&1 || status=$?
    printf '\n%s %s %s %s: exit %s\n' "$model" "$sequence" "${program#by_}" "$setting" $status
    tail -n 30 "$work/log"
    if [[ $status == 0 ]]; then
      row "$model" "$sequence" "${program#by_}" "$setting" "$work/log"
      if grep -q ^tuned "$work/log"; then row "$model" "$sequence" tuned "$setting" "$work/log" tuned; fi
      return
    fi
    grep -qiE 'out of memory|cannot allocate|no memory left' "$work/log" || break
  done
  rows+=("$(printf '%-13s %8s  %-10s %s' "$model" "$sequence" "${program#by_}" "none of $*: see above")")
  done_all=false
}
# by_PROGRAM MODEL SEQUENCE MICRO-BATCH CHECKPOINTING: runs it; a step has 262144 (1B) or 65536 (8B)
# tokens per rank. For llamesh, selective+N is selective except for the first N layers, which are
# full.
global_batch() {
  [[ $1 == *8b ]] && echo $((8 * ranks * 8192 / $2)) || echo $((8 * ranks * 32768 / $2))
}
by_llamesh() {
  local full_layers=0
  [[ $4 == *+* ]] && full_layers=${4#*+}
  limited 240 "$launch" "$ranks" "$llamesh" bench step --device cuda "inputs/clusters/$1-1x8.yaml" train.steps=4 \
    sharding.strategy=full_shard data.format=random data.sequence_length="$2" \
    train.micro_batch="$3" train.global_batch="$(global_batch "$1" "$2")" \
    memory.activation_checkpointing="${4%+*}" memory.full_checkpointing_layers="$full_layers" run.folder="$work/run" \
    --tune-gemms "$work/gemms.json" "${@:5}"
}
by_fp8() { by_llamesh "$@" precision.linear=fp8; }
by_torch() {
  local start=()  # one rank needs no rendezvous, and thus no resolvable name for this machine
  ((ranks == 1)) || start=(-m torch.distributed.run --nproc-per-node "$ranks" --master-addr 127.0.0.1)
  PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True limited 240 "$python" "${start[@]}" tests/bench/torch_fsdp2.py \
    --model "inputs/models/$1.yaml" --steps 3 --sequence "$2" --micro-batch "$3" --checkpointing "$4" \
    --global-batch "$(global_batch "$1" "$2")" "${@:5}"
}
by_plain() { by_torch "$@" --plain; }
by_torchao() { by_torch "$@" --linear rowwise_with_gw_hp; }
by_torchao_tw() { by_torch "$@" --linear tensorwise; }
# both MODEL SEQUENCE LLAMESH-SETTINGS TORCH-SETTINGS: benchmarks both, also in FP8; a setting is
# MICRO-BATCH/CHECKPOINTING
both() {
  [[ $1/$2 == *$only* ]] || return 0
  local name
  # shellcheck disable=SC2086
  for name in llamesh fp8; do
    if wanted $name; then first_that_fits "$1" "$2" by_$name $3; fi
  done
  # shellcheck disable=SC2086
  for name in torch plain torchao torchao_tw; do
    [[ $name == plain && $ranks != 1 ]] && continue
    if wanted $name; then first_that_fits "$1" "$2" by_$name $4; fi
  done
}
wanted() { [[ -z $program || $program == "$1" ]]; }

"$llamesh" --version
both llama3.2-1b 4096 "8/none 8/selective" "8/none 8/selective 4/none 4/selective 2/none"
both llama3.2-1b 8192 "4/none 4/selective" "4/none 4/selective 2/none 2/selective 1/none"
# docs/gpu.md has the arithmetic for one GPU; several GPUs hold 8B without full layers.
both llama3-8b 4096 "1/selective 1/selective+8 2/full" "1/none 1/selective 1/full"
both llama3-8b 8192 "1/selective 1/selective+21 1/selective+26 1/full" "1/none 1/selective 1/full"

printf '\n%-13s %8s  %-10s %-16s%12s %8s %10s\n' model sequence program "batch/recompute" tokens/s MFU "peak GiB"
printf '%s\n' "${rows[@]}"
$done_all
