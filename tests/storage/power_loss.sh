#!/bin/bash
# power_loss.sh LLAMESH SHIM REPLAY [STATES [SEED [SAMPLES]]]: records a run on 2 ranks that saves
# three times, and restarts on STATES disks that a power loss may leave at any instant
# (power_loss.cpp; 0: all with one fault). Most restarts are within one process; SAMPLES of them use
# the program itself, which must reach the unbroken run's weights. Then the replay ignores the fsync
# of each file and folder that a commit needs, and the test must notice. Runs in the folder that has
# inputs/.
llamesh=$1 shim=$2 replay=$3 states=${4:-10000} seed=${5:-1} samples=${6:-12}
mpirun="$(dirname "$0")/../mpirun.sh"
source "$(dirname "$0")/../patience.sh"
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
export OMPI_MCA_ess_singleton_isolated=1  # no MPI helper process for a single rank
[ -w /dev/shm ] && export TMPDIR=/dev/shm  # thousands of small disks are made and thrown away
folder=$(cd "$(mktemp -d)" && pwd -P) || exit 1
trap 'rm -rf "$folder"' EXIT
give_up() { echo "$1 (seed $seed)"; cat "$folder/log"; exit 1; }

# train DISK [VARIABLE=VALUE ...]
train() {
  local disk=$1; shift
  timeout -k 10 "$(stretched 300)" "$mpirun" 2 env "$@" "$llamesh" train inputs/tiny.yaml "run.folder=$disk/runs/tiny" train.steps=3 \
    schedule.name=constant checkpoint.every_steps=1 data.sequence_length=16 train.global_batch=2 model.hidden_size=8 \
    model.num_attention_heads=2 model.num_key_value_heads=1 model.intermediate_size=16 model.num_hidden_layers=1 \
    > "$folder/log" 2>&1
}
try() { "$replay" "$folder/record" "$folder/disk" "$folder/scratch" "$@" > "$folder/log" 2>&1; }

mkdir "$folder/disk"
train "$folder/disk" "LD_PRELOAD=$shim" "LLAMESH_RECORD=$folder/record" "LLAMESH_RECORD_BELOW=$folder/disk" ||
  give_up "the recorded run failed"
try "$states" "seed=$seed" "samples=$folder/samples:$samples" || give_up "there are disks from which no run can start"
tail -n 1 "$folder/log"

for sample in "$folder"/samples/*; do
  train "$sample/disk" || give_up "a start after a power loss ended with $?"
  from=$(sed -n 's/.*resumed after step \([0-9]*\),.*/\1/p' "$folder/log")
  [[ " $(cat "$sample/steps") " == *" ${from:-0} "* ]] || give_up "resumed after step ${from:-0}, not $(cat "$sample/steps")"
  "$llamesh" diff {"$folder","$sample"}/disk/runs/tiny/checkpoints/step_00000003 >> "$folder/log" 2>&1 ||
    give_up "resumed after step ${from:-0}, and came to other weights"
  rm -rf "$sample"
done
echo "$samples of them resumed by the program, all to the weights of the unbroken run"

for name in state.h5 state.h5@1 manifest.json .partial- checkpoints tiny runs; do
  try 1000 "unsynced=$name" || give_up "the test does not notice that $name is not brought to the disk"
  echo "without fsync of $name: $(grep -o 'start from.*' "$folder/log" | tail -n 1)"
done
