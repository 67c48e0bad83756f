#!/usr/bin/env bash
# Lists the kernels in two training steps by their time on the GPU, as Nsight Compute measures them one by one. The model
# has two layers: their kernels scale with the number of layers, the embedding's, the head's and the loss's do not.
# Products include those that measure the GEMM peak.
#   tests/bench/gpu_kernels.sh [--programs FOLDER] MODEL MICRO-BATCH RECOMPUTATION
#     --programs     a folder made by tests/gpu/bundle.sh; default: build/cuda
#     MODEL          llama3.2-1b or llama3-8b, at 4096 tokens
#     RECOMPUTATION  none, selective or full
# Needs ncu, and a driver that shows it the GPU's counters. Exits with 77 without ncu.
set -uo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
llamesh=$root/build/cuda/src/llamesh launch=$root/tests/mpirun.sh
if [[ ${1:-} == --programs ]]; then llamesh=$(cd "$2" && pwd)/bin/llamesh launch=$(cd "$2" && pwd)/run.sh; shift 2; fi
(($# == 3)) || { sed -n '2,9s/^# \{0,1\}//p' "$0"; exit 2; }
# shellcheck source=tests/gpu/cuda_libraries.sh
source "$root/tests/gpu/cuda_libraries.sh"
add_cuda_libraries python3
command -v ncu >/dev/null || { echo "SKIPPED: ncu is not found"; exit 77; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$root" || exit 1

"$launch" 1 ncu --clock-control none --metrics gpu__time_duration.sum --csv --log-file "$work/kernels" -c 2000 \
  "$llamesh" bench step --device cuda "inputs/clusters/$1-1x8.yaml" train.steps=2 model.num_hidden_layers=2 \
  sharding.strategy=full_shard data.format=random data.sequence_length=4096 train.micro_batch="$2" \
  train.global_batch=$((2 * $2)) memory.activation_checkpointing="$3" run.folder="$work/run" >"$work/log" 2>&1 ||
  { tail -n 20 "$work/log" "$work/kernels"; exit 1; }
echo "$1, 2 layers, 2 steps of 2 micro-batches of $2 x 4096 tokens, recomputation: $3"
awk -F '","' '
  $1 == "\"ID" { for (i = 1; i <= NF; ++i) { gsub(/"/, "", $i); column[$i] = i }; next }
  !column["Metric Value"] { next }
  { time = $column["Metric Value"]; gsub(/[",]/, "", time)
    unit = $column["Metric Unit"]
    time *= unit ~ /^n/ ? 1e-3 : unit ~ /^m/ ? 1e3 : 1
    name = substr($column["Kernel Name"], 1, 80)
    sum[name] += time; ++count[name]; all += time }
  END {
    printf "%10s %6s %7s  %s\n", "us", "calls", "share", "kernel"
    for (name in sum) printf "%10.0f %6d %5.1f %%  %s\n", sum[name], count[name], 100 * sum[name] / all, name | "sort -rn"
  }' "$work/kernels"
