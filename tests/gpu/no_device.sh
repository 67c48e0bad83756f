#!/usr/bin/env bash
# Checks the program's messages on a machine without a GPU, in builds with and without the GPU backend.
#   no_device.sh LLAMESH on|off    (is the GPU backend built in?)
set -euo pipefail
llamesh=$1 backend=$2
here=$(cd "$(dirname "$0")" && pwd)
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
fail() { echo "FAILED: $*"; exit 1; }

if [[ $backend == off ]] && ldd "$llamesh" | grep -iE 'cuda|cublas|cudnn|nccl'; then
  fail "a build without the GPU backend links what is above"
fi
if [[ $backend == on ]]; then
  "$llamesh" --version | grep -qE '^CUDA: built in, NCCL [0-9]+\.' || fail "--version does not tell of NCCL"
  if "$llamesh" --version | grep -qE '^CUDA: .* [0-9]+ devices?$'; then
    echo "SKIPPED: this machine has a GPU"
    exit 77
  fi
fi

seq 2000 >"$folder/numbers.txt"
train() {
  "$here/../mpirun.sh" 2 "$llamesh" train "$here/../../inputs/tiny.yaml" "run.folder=$folder/run" train.steps=2 \
    "data.train=[$folder/numbers.txt]" "$@"
}
code=0
train --device cuda >"$folder/log" 2>&1 || code=$?
[[ $code == 78 ]] || fail "--device cuda ended with $code, not 78: $(cat "$folder/log")"
[[ $(grep -c 'no GPU: .*--device cpu' "$folder/log") == 1 ]] || fail "not one line that tells: $(cat "$folder/log")"
[[ ! -e $folder/run ]] || fail "a run folder was made before the device was looked at"

code=0
train --device gpu >"$folder/log" 2>&1 || code=$?
[[ $code == 78 ]] || fail "--device gpu ended with $code, not 78"

train --device auto >"$folder/log" 2>&1 || fail "--device auto does not train on the CPU: $(cat "$folder/log")"
[[ $(wc -l <"$folder/run/metrics.jsonl") -ge 2 ]] || fail "no steps were recorded"
train --device cpu train.steps=3 >"$folder/log" 2>&1 || fail "--device cpu does not go on: $(cat "$folder/log")"
train --device cpu train.steps=4 train.gemm_table=none.json >"$folder/log" 2>&1 ||
  fail "train.gemm_table stops a run on the CPU: $(cat "$folder/log")"
grep -q 'train.gemm_table is for GPUs' "$folder/log" || fail "nothing says that train.gemm_table is not used"

code=0
"$llamesh" bench step "$here/../../inputs/tiny.yaml" "data.train=[$folder/numbers.txt]" --device cpu \
  --tune-gemms "$folder/gemms.json" >"$folder/log" 2>&1 || code=$?
[[ $code == 78 ]] || fail "--tune-gemms ended with $code on the CPU, not 78"
grep -q -e '--tune-gemms is for GPUs' "$folder/log" || fail "--tune-gemms does not say that it is for GPUs"
echo "no device: refused, ignored and reported as expected"
