#!/bin/bash
# specs.sh LLAMESH: --print-spec for strategies and for inputs/specs, launched and planned; all
# ranks refuse an impossible spec with one line; a run with a spec. Runs in the folder that has
# inputs/.
llamesh=$1
mpirun="$(dirname "$0")/../mpirun.sh"
folder=$(mktemp -d) || exit 1
trap 'rm -rf "$folder"' EXIT
give_up() { echo "FAILED: $1"; cat "$folder/log"; exit 1; }
# prints TEXT ARGUMENT...: checks that the planned spec of inputs/tiny.yaml has a line that matches
# this text
prints() {
  local text=$1; shift
  "$llamesh" train inputs/tiny.yaml --print-spec "$@" > "$folder/log" 2>&1 || give_up "--print-spec $*"
  grep -qE -- "$text" "$folder/log" || give_up "--print-spec $*: no '$text'"
}
# refused TEXT ARGUMENT...: 2 ranks must print one line with this text and end with 78, before there
# is a run folder
refused() {
  local text=$1 code; shift
  "$mpirun" 2 "$llamesh" train inputs/tiny.yaml "run.folder=$folder/refused" "$@" > "$folder/log" 2>&1; code=$?
  [[ $code == 78 && $(grep -c '^llamesh: ' "$folder/log") == 1 ]] && grep -qE -- "$text" "$folder/log" ||
    give_up "train $*: exit code $code instead of 78, or without '$text' in one line"
  [[ ! -e $folder/refused ]] || give_up "train $*: a run folder was made"
}

# --- strategies are built-in specs
for strategy in full_shard shard_grad_op hybrid_shard hybrid_shard_zero2; do
  prints "^spec $strategy \(built in\), mesh replicate=[12] x shard=[24]" --ranks 4 --ranks-per-node 2 \
    sharding.strategy=$strategy
  prints '^model.layers.0..2.self_attn.q_proj.weight +48 x 48 +48 x 48  flat over shard +3 x' --ranks 4 --ranks-per-node 2 \
    sharding.strategy=$strategy
done
prints '^lm_head.weight +259 x 48 +259 x 48  whole +49728$' --ranks 4 sharding.strategy=no_shard
prints '^model.layers.2.self_attn.q_proj.weight ' --all --ranks 4

# --- specs from files, launched and planned
"$mpirun" 4 "$llamesh" train inputs/tiny.yaml --print-spec mesh.ranks_per_node=2 sharding.spec=inputs/specs/hybrid.yaml \
  > "$folder/launched" 2> "$folder/log" || give_up "no spec"
prints '^spec of the inputs, meshed as hybrid_shard, mesh replicate=2 x shard=2' --ranks 4 --ranks-per-node 2 \
  sharding.spec=inputs/specs/hybrid.yaml
diff "$folder/launched" "$folder/log" || give_up "another spec when planned"
prints '^the spec leaves 7 of 30 weights whole on every rank, 1344 bytes of them' --ranks 4 --ranks-per-node 2 \
  sharding.spec=inputs/specs/hybrid.yaml
prints '^lm_head.weight .* flat over replicate x shard ' --ranks 4 --ranks-per-node 2 \
  sharding.spec=inputs/specs/fsdp.yaml 'sharding.spec.lm_head.weight=[[fsdp, data], null]'

prints '^model.embed_tokens.weight +259 x 48 +136 x 48  \[tensor, null\], flat over shard +13056$' --ranks 4 mesh.axes.tensor=2
tensor=(mesh.axes.tensor=2 model.vocab_size=260)
prints '^model.layers.0..2.self_attn.o_proj.weight +48 x 48 +48 x 24  \[null, tensor\], flat over shard +3 x 2304$' --ranks 4 \
  "${tensor[@]}"
prints 'mesh replicate=1 x shard=2 x tensor=2, residual stream divided by columns \(hidden\)$' --ranks 4 "${tensor[@]}" \
  sharding.spec=inputs/specs/fsdp-tensor-hidden.yaml
prints '^model.embed_tokens.weight +260 x 48 +260 x 24  \[null, tensor\], flat over shard +12480$' --ranks 4 "${tensor[@]}" \
  sharding.spec=inputs/specs/fsdp-tensor-hidden.yaml

# --- experts
experts=(model.file=inputs/models/mixtral-tiny.yaml)
prints '^model.layers.0..2.block_sparse_moe.experts.w2 +8 x 48 x 52 +8 x 48 x 52  flat over shard +3 x 19968$' --ranks 4 \
  "${experts[@]}" sharding.strategy=full_shard
prints '^33 weights +224496 ' --ranks 4 "${experts[@]}" sharding.spec=inputs/specs/mixtral-fsdp.yaml
refused "inputs/specs/mixtral-expert.yaml:[0-9]+: .* has no axis 'expert'; give it 2 or more ranks in mesh.axes.expert" \
  "${experts[@]}" sharding.spec=inputs/specs/mixtral-expert.yaml
refused "experts.w1: \[shard, null\] has 2 dims, but a stack of matrices has 3; the weight is 8 x 52 x 48" \
  "${experts[@]}" sharding.spec=inputs/specs/mixtral-fsdp.yaml \
  'sharding.spec.model.layers.*.block_sparse_moe.experts.w1=[shard, null]'
same_as_strategy() { # SPEC ARGUMENT...: the same weights per rank, by the spec and by the strategy
  local spec=$1; shift
  "$llamesh" train inputs/tiny.yaml "${experts[@]}" --print-spec "$@" > "$folder/built_in" 2> "$folder/log" || give_up "$*"
  "$llamesh" train inputs/tiny.yaml "${experts[@]}" --print-spec "$@" sharding.spec="$spec" > "$folder/log" 2>&1 || give_up "$spec"
  diff <(tail -n +2 "$folder/built_in") <(tail -n +2 "$folder/log") > /dev/null || give_up "$spec is not the strategy's"
}
same_as_strategy inputs/specs/mixtral-fsdp.yaml --ranks 4 sharding.strategy=full_shard
same_as_strategy inputs/specs/mixtral-expert.yaml --ranks 4 sharding.strategy=full_shard mesh.axes.expert=2
same_as_strategy inputs/specs/mixtral-expert.yaml --ranks 8 --ranks-per-node 4 sharding.strategy=hybrid_shard mesh.axes.expert=2 \
  train.global_batch=16
prints '^model.layers.0..2.block_sparse_moe.experts.w2 +8 x 48 x 52 +4 x 48 x 52  \[expert, null, null\], flat over shard +3 x 19968$' \
  --ranks 4 "${experts[@]}" sharding.strategy=full_shard mesh.axes.expert=2
refused "the batch, is divided along expert, and no other dim is" "${experts[@]}" mesh.axes.expert=2 \
  sharding.spec=inputs/specs/mixtral-fsdp.yaml
refused "experts.w1 is whole along the axis expert, .* write \[expert, shard, null\] for it" "${experts[@]}" \
  mesh.axes.expert=2 sharding.spec.lm_head=null 'sharding.spec.model.layers.*[0]=null' sharding.spec=inputs/specs/mixtral-fsdp.yaml

# --- impossible specs
refused "sharding.spec: model.embed_tokens.weight is not cut as Megatron does" "${tensor[@]}" \
  sharding.spec=inputs/specs/fsdp-tensor-sequence.yaml 'sharding.spec.model.embed_tokens.weight=[shard, null]'
refused "model.num_attention_heads 3 cannot be divided among 2 ranks" mesh.axes.tensor=2 model.num_attention_heads=3 \
  model.num_key_value_heads=3
refused "the 63 tokens of a micro-batch cannot be divided among 2 ranks .* or set tensor.residual to hidden or whole" \
  "${tensor[@]}" data.sequence_length=63
refused "model.hidden_size 49 cannot be divided among 2 ranks .* as tensor.residual=hidden does" "${tensor[@]}" \
  model.hidden_size=49 model.head_dim=12 tensor.residual=hidden
cat > "$folder/bad.yaml" <<END
model.layers.*.mlp.up_proj.weight: [shard, null]
model.layers.*: [[fsdp, data], null, null]
model.layers.*[0]: [[fsdp, data], null, null]
END
refused "$folder/bad.yaml:3: model.layers.\*\[0\] is also given as model.layers.\* at $folder/bad.yaml:2; " \
  "sharding.spec=$folder/bad.yaml"
refused "command line: the model has no weight or module 'model.nrom.weight'; did you mean 'model.norm.weight'" \
  sharding.spec=inputs/specs/fsdp.yaml 'sharding.spec.model.nrom.weight=[shard]'
refused "command line: model.norm.weight: unknown axis 'shrad'; did you mean 'shard'" \
  sharding.spec=inputs/specs/fsdp.yaml 'sharding.spec.model.norm.weight=[shrad]'
refused "inputs/specs/tensor.yaml:[0-9]+: model.embed_tokens.weight: the mesh replicate=1 x shard=2.* has no axis 'tensor'" \
  sharding.spec=inputs/specs/tensor.yaml
refused "the batch, is divided along replicate" mesh.ranks_per_node=1 sharding.spec=inputs/specs/fsdp.yaml \
  'sharding.spec.model.layers.*=[fsdp, null, null]'
refused "model.norm.weight: \[shard, null\] has 2 dims" sharding.spec=inputs/specs/fsdp.yaml \
  'sharding.spec.model.norm.weight=[shard, null]'

# --- a run whose recorded inputs are read again
"$mpirun" 2 "$llamesh" train inputs/tiny.yaml "run.folder=$folder/run" train.steps=2 sharding.spec=inputs/specs/hybrid.yaml \
  > "$folder/log" 2>&1 || give_up "a run with a spec"
grep -q "the spec leaves 7 of 30 weights whole on every rank" "$folder/log" || give_up "nothing is said of whole weights"
"$mpirun" 2 "$llamesh" train "$folder/run/config.yaml" train.steps=3 > "$folder/log" 2>&1 || give_up "its config.yaml"
grep -q "resuming from " "$folder/log" || give_up "the run does not go on"
grep -q "sharding.spec" "$folder/log" && give_up "the same spec counts as changed"
"$llamesh" verify "$folder/run" > "$folder/log" 2>&1 || give_up "its checkpoint"

# --- with the tensor axis
loss_with() { # ARGUMENT...: of step 3
  rm -rf "$folder/loss"
  "$mpirun" 2 "$llamesh" train inputs/tiny.yaml "run.folder=$folder/loss" train.steps=3 "$@" \
    > "$folder/log" 2>&1 || give_up "train $*"
  grep '"loss":' "$folder/loss/metrics.jsonl" | tail -n 1 | sed 's/.*"loss":\([0-9.]*\).*/\1/'
}
expected=$(loss_with)
for spec in fsdp-tensor-sequence fsdp-tensor-hidden tensor; do
  strategy=full_shard; [[ $spec == tensor ]] && strategy=no_shard
  loss=$(loss_with mesh.axes.tensor=2 sharding.strategy=$strategy sharding.spec=inputs/specs/$spec.yaml)
  awk -v a="$loss" -v b="$expected" 'BEGIN { exit !(b > 1 && a - b < 1e-5 * b && b - a < 1e-5 * b) }' ||
    give_up "the loss is $loss with $spec and $expected without"
done

# --- experts: as without a spec
expected=$(loss_with "${experts[@]}")
loss=$(loss_with "${experts[@]}" sharding.spec=inputs/specs/mixtral-fsdp.yaml)
[[ -n $loss && $loss == "$expected" ]] || give_up "the loss is $loss with mixtral-fsdp and $expected without"
loss=$(loss_with "${experts[@]}" mesh.axes.expert=2 sharding.strategy=full_shard sharding.spec=inputs/specs/mixtral-expert.yaml)
awk -v a="$loss" -v b="$expected" 'BEGIN { exit !(b > 1 && a - b < 1e-5 * b && b - a < 1e-5 * b) }' ||
  give_up "the loss is $loss with mixtral-expert and $expected without"
echo "specs print, refuse and train"
