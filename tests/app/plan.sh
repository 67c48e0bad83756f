#!/bin/bash
# plan.sh LLAMESH [DRAWS] [SEED]: a run's predicted memory against its measured memory, also on drawn
# meshes, and a limit that it exceeds. Runs in the folder that has inputs/.
llamesh=$1 draws=${2:-8}
RANDOM=${3:-28}
mpirun="$(dirname "$0")/../mpirun.sh"
folder=$(mktemp -d) || exit 1
trap 'rm -rf "$folder"' EXIT
give_up() { echo "FAILED: $1"; cat "$folder/log"; exit 1; }

# near WHAT A B: checks that they agree within 3 %
near() { (( 100 * ($2 > $3 ? $2 - $3 : $3 - $2) <= 3 * $3 )) || give_up "$1: planned $2, measured $3"; }
field() { sed -n "\$s/.*\"$1\":\([0-9]*\).*/\1/p" "$folder/$2/metrics.jsonl"; }
for dtype in fp32 bf16; do
  for ranks in 1 2; do
    run=$dtype-$ranks
    "$mpirun" "$ranks" "$llamesh" train inputs/tiny.yaml "run.folder=$folder/$run" train.steps=3 checkpoint.every_steps=0 \
      precision.parameters=$dtype > "$folder/log" 2>&1 || give_up "training in $run"
    grep -q 'planned memory per rank: ' "$folder/log" || give_up "$run does not log what is planned"
    sed -i '/"event"/d' "$folder/$run/metrics.jsonl"
    near "valley of $run" "$(field predicted_valley "$run")" "$(field valley "$run")"
    near "peak of $run" "$(field predicted_peak "$run")" "$(field peak "$run")"
  done
done

# exact RANKS ARGUMENT...: trains two steps.
exact() {
  rm -rf "$folder/exact"
  "$mpirun" "$1" "$llamesh" train inputs/tiny.yaml "run.folder=$folder/exact" train.steps=2 checkpoint.every_steps=0 "${@:2}" \
    > "$folder/log" 2>&1 && sed -i '/"event"/d' "$folder/exact/metrics.jsonl" || give_up "training on $*"
}
# as_planned RANKS ARGUMENT...: the plan is exact to the byte with one thread (with several, one may find no task left).
as_planned() {
  local which
  exact "$@" train.threads=1
  for which in valley peak; do
    [[ $(field predicted_$which exact) == "$(field $which exact)" ]] ||
      give_up "$which on $*: planned $(field predicted_$which exact), measured $(field $which exact)"
  done
}
# A chunk of the logits may be a single token, whose products are matrix-vector products.
as_planned 1
as_planned 1 precision.parameters=bf16 memory.loss_chunk=1
as_planned 1 precision.parameters=bf16 memory.loss_chunk=63
# Sums in bf16 between nodes; experts, whose rows are not known.
as_planned 2 precision.parameters=bf16 mesh.axes.context=2 mesh.ranks_per_node=1
as_planned 1 precision.parameters=bf16 model.file=inputs/models/mixtral-tiny.yaml train.micro_batch=4
# draw NAME VALUE...: sets NAME to one of the values.
draw() { local values=("${@:2}"); printf -v "$1" %s "${values[RANDOM % ${#values[@]}]}"; }
for ((i = 0; i < draws; ++i)); do
  draw tensor 1 2 && draw context 1 2 && draw per_node 1 2 && draw model llama mixtral && draw micro_batch 1 2 4 &&
    draw dtype fp32 bf16 bf16 && draw strategy full_shard hybrid_shard no_shard && draw residual sequence whole hidden &&
    draw checkpointing none selective full && draw ranks 2 4
  ((ranks >= tensor * context)) || ranks=4
  as_planned $ranks model.file=inputs/models/$model-tiny.yaml model.vocab_size=260 mesh.axes.tensor=$tensor mesh.axes.context=$context \
    mesh.ranks_per_node=$per_node mesh.allow_tensor_across_nodes=true train.micro_batch=$micro_batch \
    train.global_batch=$((2 * micro_batch * ranks / tensor / context)) precision.parameters=$dtype sharding.strategy=$strategy \
    tensor.residual=$residual memory.activation_checkpointing=$checkpointing
done
# `plan` with the run's threads, regardless of the hardware's cores; in fp32, since a run measures
# its bf16 method.
for threads in 1 3; do
  exact 1 train.threads=$threads
  for cores in 1 64; do
    sed "s/^cores:.*/cores: $cores/" inputs/hardware/cpu-node.yaml > "$folder/hardware.yaml"
    planned=$("$llamesh" plan inputs/tiny.yaml --ranks 1 --hardware "$folder/hardware.yaml" --json train.threads=$threads |
      sed -n 's/.*"peak_bytes": *\([0-9]*\).*/\1/p')
    [[ $planned == "$(field predicted_peak exact)" ]] ||
      give_up "$threads threads: planned $planned for $cores cores, by the run $(field predicted_peak exact)"
  done
done

# A limit refuses the run with one line and the numbers, before there is a run folder, and so does
# --check.
for how in "" --check; do
  "$mpirun" 2 "$llamesh" train inputs/tiny.yaml "run.folder=$folder/refused" memory.device_limit=1000000 $how \
    > /dev/null 2> "$folder/log"; code=$?
  [[ $code == 78 && $(grep -c 'llamesh: ' "$folder/log") == 1 && ! -e $folder/refused ]] &&
    grep -Eq 'takes [0-9]{7} bytes .*memory.device_limit allows 1000000; use more ranks' "$folder/log" ||
    give_up "a limit: exit code $code"
done
# So does a limit for memory checkpoints. Without replicas on other nodes they are half as large.
limited() { "$mpirun" 2 "$llamesh" train inputs/tiny.yaml "run.folder=$folder/refused" mesh.ranks_per_node=1 sharding.strategy=full_shard \
  checkpoint.memory.every_steps=1 "$@" > "$folder/log" 2>&1; }
limited checkpoint.memory.limit=1000; code=$?
[[ $code == 78 && $(grep -c 'llamesh: ' "$folder/log") == 1 && ! -e $folder/refused ]] &&
  grep -Eq 'memory checkpoints need [0-9]{7} bytes on .*checkpoint.memory.limit is 1000; use more nodes, or ' "$folder/log" ||
  give_up "a limit for memory checkpoints: exit code $code"
needed=$(sed -n 's/.*need \([0-9]*\) bytes.*/\1/p' "$folder/log")
limited checkpoint.memory.limit=$((needed / 2)) --check; code=$?
[[ $code == 78 ]] && grep -q "checkpoint.memory.partner=off needs $((needed / 2)), " "$folder/log" || give_up "half of that limit: exit code $code"
limited checkpoint.memory.limit=$((needed / 2)) checkpoint.memory.partner=off --check || give_up "that limit without replicas on other nodes"
grep -Eq 'node memory +memory checkpoints take [0-9.]+ MiB of [0-9]+ MiB in /dev/shm' "$folder/log" || give_up "--check does not show the memory"
# Only offload meets the same limit for a larger device.
"$mpirun" 2 "$llamesh" train inputs/tiny.yaml "run.folder=$folder/offload" train.steps=2 memory.device_limit=1400000 \
  > /dev/null 2> "$folder/log"; code=$?
[[ $code == 78 ]] && grep -q 'sharding.offload' "$folder/log" || give_up "without offload: exit code $code"
"$mpirun" 2 "$llamesh" train inputs/tiny.yaml "run.folder=$folder/offload" train.steps=2 memory.device_limit=1400000 \
  sharding.offload=optimizer > "$folder/log" 2>&1 || give_up "with offload"
[[ $(field host offload) == "$(field predicted_host offload)" ]] || give_up "the host's memory is not as planned"
# Offload needs host memory: here for 1.1 T parameters.
"$mpirun" 1 "$llamesh" train inputs/tiny.yaml "run.folder=$folder/huge" --check memory.device_limit=10000000000000000 sharding.offload=all \
  model.hidden_size=24576 model.intermediate_size=98304 model.num_hidden_layers=130 > /dev/null 2> "$folder/log"; code=$?
[[ $code == 78 ]] && grep -Eq 'keeps [0-9]{14} bytes in host memory \(sharding.offload\)' "$folder/log" ||
  give_up "without the host's memory: exit code $code"
exit 0
