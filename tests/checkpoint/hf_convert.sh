#!/bin/bash
# hf_convert.sh LLAMESH: converts checkpoints to Hugging Face folders and back, alone and under
# mpirun, to the bit; starts runs from such a folder; checks refusals. Runs in the folder that has
# inputs/ and tests/.
llamesh=$1
mpirun="$(dirname "$0")/../mpirun.sh"
golden="$(dirname "$0")/../model/golden/hf"
folder=$(mktemp -d) || exit 1
trap 'rm -rf "$folder"' EXIT
give_up() { echo "$1"; cat "$folder/log"; exit 1; }
# run RANKS ARGUMENT...: runs llamesh; a failure ends the test
run() {
  local ranks=$1; shift
  "$mpirun" "$ranks" "$llamesh" "$@" > "$folder/log" 2>&1 || give_up "$ranks ranks: llamesh $*: failed"
}
same() { diff -r "$1" "$2" > "$folder/log" 2>&1 || give_up "$1 is not $2"; }
refused() {
  local text=$1; shift
  "$llamesh" "$@" > "$folder/log" 2>&1
  local code=$?
  [[ $code == 78 ]] && grep -q -- "$text" "$folder/log" || give_up "llamesh $*: exit $code, without '$text'"
}

# round_trips MODEL RANKS...: converts transformers' files to a checkpoint and back, unchanged; bf16
# loses bits once and never again; fp32 is read back from several files, bf16 from one
round_trips() {
  local model=$1 ranks at
  shift
  for ranks in "$@"; do
    at=$folder/$model.$ranks
    run $ranks convert --from "hf:$golden/$model" --to "$at.checkpoint"
    run 1 verify "$at.checkpoint"
    run $ranks convert --from "$at.checkpoint" --to "hf:$at.fp32" --max-shard-size 20KB
    run 1 diff "$at.fp32" "hf:$golden/$model"
    run $ranks convert --from "hf:$at.fp32" --to "$at.parts.checkpoint"
    run 1 diff "$at.parts.checkpoint" "hf:$golden/$model"
    run $ranks convert --from "$at.checkpoint" --to "hf:$at.bf16" --dtype bf16
    run $ranks convert --from "hf:$at.bf16" --to "$at.bf16.checkpoint"
    run $ranks convert --from "$at.bf16.checkpoint" --to "hf:$at.bf16.again" --dtype bf16
    same "$at.bf16" "$at.bf16.again"
    run 1 diff "$at.bf16.checkpoint" "$at.bf16"
    "$llamesh" diff "$at.bf16" "$at.fp32" > "$folder/log" 2>&1 && give_up "diff calls fp32 and bf16 equal"
    run $ranks convert --from "$at.checkpoint" --to "hf:$at.fp16" --dtype fp16 --max-shard-size 5000000000
  done
  [[ -e $at.fp32/model.safetensors.index.json ]] || give_up "no index in $at.fp32"
  [[ -e $at.bf16/model.safetensors ]] || give_up "$at.bf16 is not one file"
  [[ -e $at.bf16/generation_config.json ]] || give_up "no generation_config.json in $at.bf16"
}
round_trips gqa_8_2 1
round_trips tied_6_3 2
grep -q "hidden_size 20 is not a multiple of num_attention_heads 6: transformers refuses" "$folder/log" ||
  give_up "the export does not say that transformers refuses it"
round_trips tied_4_2 2
grep -q "transformers refuses" "$folder/log" && give_up "the export warns of a shape that transformers takes"
round_trips llama3_rope 1 2
round_trips gpt2 2   # renamed, transposed and fused
round_trips qwen2 1
round_trips qwen3 1
round_trips mistral 1
for name in olmo2 gemma3 olmo3 exaone4 smollm3 ministral seed_oss phi3 hunyuan ernie glm4 granite arcee gemma nemotron starcoder2 apertus qwen2_moe olmoe glm4_moe minimax_m2 glm gemma2 cohere cohere2 longrope shortrope ministral3 granite4 deepseek_v2 deepseek_v3 glm4_moe_lite gpt_oss internlm3 mimo internlm2 ling2 helium dots1; do
  at=$folder/$name.2
  run 2 convert --from "hf:$golden/$name" --to "$at.checkpoint"
  run 2 convert --from "$at.checkpoint" --to "hf:$at.bf16" --dtype bf16 --max-shard-size 20KB
  run 2 convert --from "hf:$at.bf16" --to "$at.bf16.checkpoint"
  run 1 diff "$at.bf16.checkpoint" "$at.bf16"
  run 2 convert --from "$at.checkpoint" --to "hf:$at.fp32"
  run 1 diff "$at.fp32" "hf:$golden/$name"
done
# A router's bias stays fp32, and layers that predict further tokens are left out.
bias='"model.layers.1.mlp.gate.e_score_correction_bias":{"dtype":"F32"'
cat "$folder/glm4_moe.2.bf16/"*.safetensors | grep -aqF "$bias" || give_up "no fp32 bias beside bf16"
run 1 convert --from "hf:$golden/mimo_mtp" --to "$folder/mimo_mtp.checkpoint"
grep -q "1 tensors behind layer 1, which predict further tokens, are left out" "$folder/log" ||
  give_up "nothing said of MiMo's layers that are left out"
run 1 diff "$folder/mimo_mtp.checkpoint" "hf:$golden/mimo"
cp -r "$golden/glm4_moe" "$folder/predicting"
sed -i 's/"num_hidden_layers": 3/"num_hidden_layers": 2/' "$folder/predicting/config.json"
run 1 convert --from "hf:$folder/predicting" --to "$folder/predicting.checkpoint"
grep -q "tensors behind layer 1, which predict further tokens, are left out" "$folder/log" ||
  give_up "nothing said of layers that are left out"
# Of models that take images, the language model is trained; an export has the other parts, unchanged.
for name in gemma3 ministral3 qwen2 qwen3 gqa_8_2; do
  images=$golden/${name}_images at=$folder/${name}_images
  run 2 convert --from "hf:$images" --to "$at.checkpoint"
  grep -q "tensors of other parts are left out" "$folder/log" || give_up "nothing said of other parts"
  run 1 diff "$at.checkpoint" "hf:$golden/$name"
  run 2 convert --from "$at.checkpoint" --to "hf:$at.again" --max-shard-size 20KB
  run 1 diff "$at.again" "hf:$images"
  grep -aq '"vision_config"' "$at.again/config.json" || give_up "$at.again is of a text model"
  same "$images/preprocessor_config.json" "$at.again/preprocessor_config.json"
  run 1 convert --from "$at.checkpoint" --to "hf:$at.text" --text-only
  grep -q "left out" "$folder/log" && give_up "the export speaks of parts that its folder has"
  run 1 diff "$at.text" "hf:$golden/$name"
  grep -aqE 'vision|visual|multi_modal|mrope' "$at.text/config.json" "$at.text/model.safetensors" && give_up "$at.text has other parts"
done
round_trips mixtral 1   # stacked
round_trips qwen3_moe 2
same "$folder/llama3_rope.1.fp32" "$folder/llama3_rope.2.fp32"
same "$folder/llama3_rope.1.bf16" "$folder/llama3_rope.2.bf16"

# The tokenizer is copied from the folder that supplied the weights.
cp -r "$golden/tied_6_3" "$folder/source"
echo '{"version": "1.0"}' > "$folder/source/tokenizer.json"
run 1 convert --from "hf:$folder/source" --to "$folder/source.checkpoint"
run 1 convert --from "$folder/source.checkpoint" --to "hf:$folder/target"
same "$folder/source/tokenizer.json" "$folder/target/tokenizer.json"
grep -q '"max_position_embeddings": 512' "$folder/target/config.json" || give_up "config.json lost its positions"

# A run with another model makes a folder; runs on any mesh start from it with its weights.
cat > "$folder/run.yaml" <<END
run: {name: hf}
data: {train: $PWD/inputs/text/tiny.txt, sequence_length: 32}
train: {steps: 0, global_batch: 4, threads: 1}
END
run 1 train inputs/tiny.yaml train.steps=2 "run.folder=$folder/first"
run 1 convert --from "$folder/first" --to "$folder/model" --max-shard-size 50KB
for start in "1 each_rank" "2 rank0" "4 each_rank" "4 rank0"; do
  read -r ranks load <<< "$start"
  run "$ranks" train "$folder/run.yaml" model.hf="$folder/model" model.load="$load" run.folder="$folder/second" \
    sharding.strategy=hybrid_shard mesh.ranks_per_node=auto
  grep -q "loaded the weights of $folder/model" "$folder/log" || give_up "no word of the weights"
  run 1 diff "$folder/second" "$folder/model"
  rm -rf "$folder/second"
done
# The run's own checkpoint takes precedence over the folder, even if the folder is gone.
run 1 train "$folder/run.yaml" model.hf="$folder/model" run.folder="$folder/third" train.steps=1
mv "$folder/model" "$folder/moved"
run 1 train "$folder/third/config.yaml" train.steps=2
grep -q "resumed after step 1" "$folder/log" || give_up "did not resume from its own checkpoint"
mv "$folder/moved" "$folder/model"
# Starting from a converted checkpoint: its weights, zero moments, any seed.
run 1 convert --from "hf:$folder/model" --to "$folder/zero.checkpoint"
run 1 train "$folder/run.yaml" model.hf="$folder/model" run.folder="$folder/fourth" train.steps=1 run.seed=7 \
  checkpoint.resume="$folder/zero.checkpoint"
run 1 train "$folder/run.yaml" model.hf="$folder/model" run.folder="$folder/fifth" train.steps=1 run.seed=7
run 1 diff "$folder/fourth" "$folder/fifth"
# Without the weights the start differs.
run 1 train "$folder/run.yaml" model.hf="$folder/model" model.load_weights=false run.folder="$folder/sixth"
"$llamesh" diff "$folder/sixth" "$folder/model" > "$folder/log" 2>&1 && give_up "load_weights=false was passed over"

# A run's tokenizer is the one named in its data: a file under its usual name in a folder, with its
# companions.
words=tests/tokenizer/golden
for kind in bpe.model:tokenizer.model gpt2.json:tokenizer.json; do
  file=${kind%:*} name=${kind#*:} at=$folder/${kind%:*}
  mkdir "$at.d"
  cp "$words/$file" "$at.d/"
  echo '{"add_bos_token": true}' > "$at.d/tokenizer_config.json"
  run 1 train inputs/tiny.yaml train.steps=1 model.vocab_size=1000 "run.folder=$at.run" "data.tokenizer=$at.d/$file"
  run 2 convert --from "$at.run" --to "hf:$at.hf"
  same "$words/$file" "$at.hf/$name"
  same "$at.d/tokenizer_config.json" "$at.hf/tokenizer_config.json"
  grep -q "no longer exists" "$folder/log" && give_up "a tokenizer that is there was not found"
  # Continue from that folder, which now has the tokenizer under its own name.
  run 1 train "$folder/run.yaml" model.hf="$at.hf" train.steps=1 "run.folder=$at.on"
  grep -q "^  tokenizer: $at.hf\$" "$at.on/config.yaml" || give_up "the folder's tokenizer is not the default"
  run 1 convert --from "$at.on" --to "hf:$at.again"
  same "$at.hf/$name" "$at.again/$name"
done
# The data's tokenizer takes precedence over the model folder's; if it is gone, nothing replaces it.
run 1 train "$folder/run.yaml" model.hf="$folder/bpe.model.hf" train.steps=1 "run.folder=$folder/other" \
  "data.tokenizer=$folder/gpt2.json.d/gpt2.json"
[[ $(grep -c "gpt2.json, but the model was trained with that of model.hf $folder/bpe.model.hf" "$folder/log") == 1 ]] ||
  give_up "not one line about another tokenizer than the model's"
run 1 convert --from "$folder/other" --to "hf:$folder/other.hf"
same "$words/gpt2.json" "$folder/other.hf/tokenizer.json"
[[ -e $folder/other.hf/tokenizer.model ]] && give_up "a tokenizer came along that the run did not use"
rm -r "$folder/gpt2.json.d"
run 2 convert --from "$folder/other" --to "hf:$folder/gone.hf"
[[ $(grep -c "the tokenizer $folder/gpt2.json.d/gpt2.json no longer exists" "$folder/log") == 1 ]] ||
  give_up "not one line about the tokenizer that is gone"
[[ -z $(find "$folder/gone.hf" -name '*token*') ]] || give_up "tokenizer files came from somewhere"

refused "is there already" convert --from "$folder/first" --to "hf:$folder/model"
[[ $(wc -l < "$folder/log") == 1 ]] || give_up "more is said than that the folder is there"
refused "is a Hugging Face folder, so --to .* must be a new checkpoint" convert --from "$folder/model" --to "hf:$folder/x"
refused "holds adapters only; to merge them .*model.lora.from=$golden/lora_adapter" convert --from "$golden/lora_adapter" --to "$folder/x"
refused "checkpoint.resume: .* holds adapters only; .*model.lora.from=" train "$folder/run.yaml" run.folder="$folder/x" \
  checkpoint.resume="$golden/lora_adapter"
refused "is not a valid size" convert --from "$folder/first" --to "hf:$folder/x" --max-shard-size 5parsec
refused "is not a valid size" convert --from "$folder/first" --to "hf:$folder/x" --max-shard-size 9223372036854775807GB
refused "File name too long" inspect "$(printf 'x%.0s' {1..300})"
"$mpirun" 2 "$llamesh" convert --from hf: --to "$folder/x" > "$folder/log" 2>&1
[[ $(grep -c "does not name a folder" "$folder/log") == 1 ]] || give_up "every rank prints an error common to all"
refused "is unknown" convert --from "$folder/first" --to "hf:$folder/x" --dtype fp8
refused "is not a folder\|does not exist" convert --from "hf:$folder/none" --to "$folder/x"
refused "does not exist" convert --from "$folder/none" --to "hf:$folder/x"
refused "both give the model's shape" train inputs/tiny.yaml model.hf="$folder/model" model.file=inputs/models/llama-tiny.yaml
refused "but model.hf is not set" train inputs/tiny.yaml model.load_weights=true
sed -i 's/"hidden_size": 48/"hidden_size": 54/' "$folder/model/config.json"
refused "has shape" train "$folder/run.yaml" model.hf="$folder/model" run.folder="$folder/seventh"
sed -i 's/"hidden_act": "silu"/"hidden_act": "gelu"/' "$folder/model/config.json"
refused "hidden_act is 'gelu'" train "$folder/run.yaml" model.hf="$folder/model" run.folder="$folder/eighth"
for left in "$folder"/*.partial-*; do [[ -e $left ]] && give_up "$left is left"; done
echo "round trips of each family, alone and on 2 ranks, equal to the bit; runs start from a folder on 4 meshes"
