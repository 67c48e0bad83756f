#!/bin/bash
# continue.sh LLAMESH: docs/hugging-face.md's second example at small size. A model trained with a
# SentencePiece vocabulary is exported to a Hugging Face folder, trained further from there on other
# meshes, and exported again; the final folder can generate text. Runs in the folder that has
# inputs/.
llamesh=$1
command -v spm_train > /dev/null || { echo "SKIPPED: no spm_train"; exit 77; }
mpirun="$(dirname "$0")/../mpirun.sh"
text=inputs/text/tiny.txt
folder=$(mktemp -d) || exit 1
trap 'rm -rf "$folder"' EXIT
give_up() { echo "FAILED: $1"; cat "$folder/log"; exit 1; }
# get RANKS ARGUMENT...: runs llamesh; its output is in $got
get() {
  local ranks=$1; shift
  got=$("$mpirun" "$ranks" "$llamesh" "$@" 2> "$folder/log") || give_up "$ranks ranks: llamesh $*: exit code $?"
}
# below A B WHAT: checks that number A is less than number B
below() { awk -v a="$1" -v b="$2" 'BEGIN { exit !(a + 0 > 0 && a + 0 < b + 0) }' || give_up "$3: $1, not below $2"; }
bits_of() { get 1 evaluate "$@" --sequence-length 64; bits=$(sed -n 's/^bits.byte *//p' <<< "$got"); }

spm_train --input=$text --model_prefix="$folder/words" --model_type=bpe --vocab_size=400 --byte_fallback \
  --normalization_rule_name=identity --remove_extra_whitespaces=false --minloglevel=2 2> "$folder/log" || give_up spm_train
get 2 train inputs/tiny.yaml "run.folder=$folder/first" "data.tokenizer=$folder/words.model" model.vocab_size=400 \
  train.steps=100 optimizer.lr=3e-3
get 1 convert --from "$folder/first" --to "hf:$folder/hf" --dtype bf16
cmp "$folder/words.model" "$folder/hf/tokenizer.model" > "$folder/log" || give_up "the run's tokenizer did not come along"
bits_of "hf:$folder/hf" $text; before=$bits
below "$before" 3.2 "bits a byte of the exported model"

get 3 train inputs/continue.yaml "run.folder=$folder/second" "model.hf=$folder/hf" \
  data.train=$text data.sequence_length=64 train.steps=20
# It must start at the other run's last loss, not at log 400 = 6.
below "$(sed -n 's/^{"step":1,"loss":\([0-9.]*\).*/\1/p' "$folder/second/metrics.jsonl")" 4 "first loss"
get 2 convert --from "$folder/second" --to "hf:$folder/again"
cmp "$folder/words.model" "$folder/again/tokenizer.model" > "$folder/log" || give_up "the tokenizer did not come along"
bits_of "hf:$folder/again" $text
below "$bits" "$before" "bits a byte after training on"
get 1 generate "$folder/second" --prompt "And God said unto" --max-tokens 20; from_run=$got
get 1 generate "hf:$folder/again" --prompt "And God said unto" --max-tokens 20
[[ $got == "$from_run" ]] || give_up "the folder wrote '$got', the run '$from_run'"
[[ $got == "And God said unto "* ]] || give_up "it wrote '$got'"  # a new word begins with its space
echo "$before, then $bits bits a byte: $got"
