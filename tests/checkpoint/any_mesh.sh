#!/bin/bash
# any_mesh.sh LLAMESH: whole runs on 1, 2, 3, 4 (each strategy) and 6 ranks load a checkpoint
# written by 4 ranks (hybrid 2x2). They have nothing left to train and save what they loaded; each
# copy must equal the first checkpoint to the bit. Runs in the folder that has inputs/.
llamesh=$1
mpirun="$(dirname "$0")/../mpirun.sh"
folder=$(mktemp -d) || exit 1
trap 'rm -rf "$folder"' EXIT
give_up() { echo "$1"; cat "$folder/log"; exit 1; }

# train RANKS RUN [key=value ...]
train() {
  local ranks=$1 run=$2; shift 2
  "$mpirun" "$ranks" "$llamesh" train inputs/tiny.yaml train.steps=3 "run.folder=$folder/$run" "$@" > "$folder/log" 2>&1
}

# After 3 steps the moments differ from tensor to tensor, so a mix-up cannot pass.
train 4 first sharding.strategy=hybrid_shard mesh.ranks_per_node=2 || give_up "the first run failed"
saved=$folder/first/checkpoints/step_00000003
grep -q 'replicate=2 x shard=2' "$saved/manifest.json" || give_up "the first run was not hybrid 2x2"

meshes=0
# loads RANKS STRATEGY RANKS_PER_NODE
loads() {
  local what="$1 ranks, $2"
  train "$1" copy "sharding.strategy=$2" "mesh.ranks_per_node=$3" "checkpoint.resume=$saved" || give_up "$what: the run failed"
  grep -q 'resumed after step 3' "$folder/log" || give_up "$what: did not resume"
  local copy=$folder/copy/checkpoints/step_00000003
  "$llamesh" diff "$saved" "$copy" > "$folder/log" 2>&1 || give_up "$what: the loaded state differs"
  "$llamesh" verify "$copy" > "$folder/log" 2>&1 || give_up "$what: its copy is not good"
  rm -rf "$folder/copy"
  meshes=$((meshes + 1))
}

loads 1 full_shard auto
loads 2 full_shard auto
loads 3 shard_grad_op auto
for strategy in full_shard shard_grad_op no_shard hybrid_shard hybrid_shard_zero2; do
  loads 4 $strategy 2
done
loads 6 hybrid_shard 2
loads 6 full_shard auto

# The comparison can fail: another seed gives another state.
train 1 other run.seed=2 || give_up "the run with another seed failed"
"$llamesh" diff "$saved" "$folder/other/checkpoints/step_00000003" > "$folder/log" 2>&1 && give_up "diff calls different states equal"
echo "saved on 4 ranks (hybrid 2x2), loaded on $meshes meshes: all equal"
