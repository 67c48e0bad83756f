#!/bin/bash
# use_model.sh LLAMESH: `generate` and `evaluate` with a trained model, from every place that has
# it. Runs in the folder that has inputs/.
llamesh=$1
mpirun="$(dirname "$0")/../mpirun.sh"
folder=$(mktemp -d) || exit 1
trap 'rm -rf "$folder"' EXIT
give_up() { echo "FAILED: $1"; cat "$folder/log"; exit 1; }
# get RANKS ARGUMENT...: runs llamesh; its output is in $got
get() {
  local ranks=$1; shift
  got=$("$mpirun" "$ranks" "$llamesh" "$@" 2> "$folder/log") || give_up "llamesh $*: exit code $?"
}
refused() {
  local text=$1 code; shift
  "$llamesh" "$@" > /dev/null 2> "$folder/log"; code=$?
  [[ $code == 78 && $(grep -c '^llamesh: ' "$folder/log") == 1 ]] && grep -q -- "$text" "$folder/log" ||
    give_up "llamesh $*: exit code $code, not one line with '$text'"
}

get 1 train inputs/tiny.yaml "run.folder=$folder/run" train.steps=60 data.validation=inputs/text/tiny.txt \
  evaluate.every_steps=60
loss=$(sed -n 's/.*"event":"validation".*"loss":\([0-9.]*\).*/\1/p' "$folder/run/metrics.jsonl")
get 1 convert --from "$folder/run" --to "hf:$folder/exported"

# The greedy text is the same from the run, its checkpoint and the exported folder, and long enough.
get 1 generate "$folder/run" --prompt "In the" --max-tokens 40; text=$got
[[ $text == "In the"* && ${#text} -ge 40 ]] || give_up "it wrote '$text'"
get 1 generate "$folder/run/checkpoints/step_00000060" --prompt "In the" --max-tokens 40
[[ $got == "$text" ]] || give_up "the checkpoint wrote '$got', the run '$text'"
get 1 generate "hf:$folder/exported" --tokenizer byte --prompt "In the" --max-tokens 40
[[ $got == "$text" ]] || give_up "the exported folder wrote '$got', the run '$text'"
printf 'In the' > "$folder/prompt"
get 1 generate "$folder/run" --prompt-file "$folder/prompt" --max-tokens 40
[[ $got == "$text" ]] || give_up "from a file it wrote '$got', not '$text'"

get 1 generate "$folder/run" --prompt-file - --max-tokens 40 < "$folder/prompt"
[[ $got == "$text" ]] || give_up "from standard input it wrote '$got', not '$text'"

# A model that has learned chats ends its answers by itself, also as a folder: EOS is 0, <|im_end|> is 2.
chat='{"messages": [{"role": "user", "content": "Who?"}, {"role": "assistant", "content": "God."}]}'
for _ in {1..20}; do echo "$chat"; done > "$folder/chats.jsonl"
get 1 train inputs/tiny.yaml "run.folder=$folder/chat" "data.train=$folder/chats.jsonl" train.steps=40 optimizer.lr=1e-2 \
  data.tokenizer=tests/tokenizer/golden/qwen.json data.chat_template=qwen2 model.vocab_size=608 data.sequence_length=48
get 1 convert --from "$folder/chat" --to "hf:$folder/chat-hf"
[[ $(tr -d ' \n' < "$folder/chat-hf/generation_config.json") == *'"eos_token_id":[0,2]'* ]] ||
  give_up "generation_config.json: $(< "$folder/chat-hf/generation_config.json")"
grep -q '"max_position_embeddings": 48' "$folder/chat-hf/config.json" || give_up "config.json has no positions"
prompt=$'<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n<|im_start|>user\nWho?<|im_end|>\n<|im_start|>assistant\n'
for model in "$folder/chat" "$folder/chat-hf"; do
  get 1 generate "$model" --prompt "$prompt" --max-tokens 30
  [[ $got == "${prompt}God." ]] || give_up "$model answered '${got#"$prompt"}'"
done
# A prompt begins as in training: zephyr has no BOS, although the tokenizer puts <s> before texts.
llama2=tests/tokenizer/golden/llama2.json
get 1 train inputs/tiny.yaml "run.folder=$folder/zephyr" "data.train=$folder/chats.jsonl" train.steps=1 \
  data.tokenizer=$llama2 data.chat_template=zephyr model.vocab_size=1000
get 1 tokenize --tokenizer $llama2 --chat-template zephyr --input "$folder/chats.jsonl" --show 1
read -r tokens in_loss < <(sed -n 's/.*: \([0-9]*\) tokens, \([0-9]*\) in the loss/\1 \2/p' <<< "$got")
# begins TOKENS NOTE PROMPT: what `generate` says of a prompt
begins() {
  get 1 generate "$folder/zephyr" --prompt "$3" --max-tokens 2
  grep -q "^$1 prompt tokens" "$folder/log" && [[ $(grep -c 'the prompt ' "$folder/log") == $((${#2} > 0)) ]] &&
    grep -q -- "$2" "$folder/log" || give_up "a prompt that begins '${3:0:9}' has not $1 tokens, or no '$2'"
}
prompt=$'<|user|>\nWho?</s>\n<|assistant|>\n'
begins $((tokens - in_loss - 2)) "zephyr, so it begins without BOS" "$prompt"  # a space and a line end follow the answer
begins 2 "" God
begins 2 "already begins with <s>, so no other" "<s>God"

# A generation_config.json without EOS gets the tokenizer's.
echo '{"eos_token_id": null}' > "$folder/chat-hf/generation_config.json"
get 1 convert --from "hf:$folder/chat-hf" --to "$folder/no-eos"
get 1 convert --from "$folder/no-eos" --to "hf:$folder/exported-again"
[[ $(tr -d ' \n' < "$folder/exported-again/generation_config.json") == '{"eos_token_id":0}' ]] ||
  give_up "generation_config.json: $(< "$folder/exported-again/generation_config.json")"

# The same seed repeats its choices, another seed makes others.
chosen() { get 1 generate "$folder/run" --prompt "In the" --max-tokens 40 --temperature 1 --top-k 20 --top-p 0.95 --seed "$1"; }
chosen 1; first=$got
chosen 1; [[ $got == "$first" ]] || give_up "seed 1 wrote '$got', then '$first'"
chosen 2; [[ $got != "$first" ]] || give_up "seeds 1 and 2 wrote the same"

# evaluate must match the run's validation, on any number of ranks.
mkdir "$folder/corpus"
cp inputs/text/tiny.txt "$folder/corpus"
printf '# the corpus\n%s\n' "$folder/corpus" > "$folder/list"
for how in "1 inputs/text/tiny.txt" "3 @$folder/list"; do
  read -r ranks files <<< "$how"
  get "$ranks" evaluate "$folder/run" "$files"  # in sequences of the run's length
  told=$(sed -n 's/^loss *\([0-9.]*\) .*/\1/p' <<< "$got")
  awk -v a="$told" -v b="$loss" 'BEGIN { exit !(a - b < 2e-5 && b - a < 2e-5 && a > 0) }' ||
    give_up "$ranks ranks: the loss is '$told', in the run it was '$loss'"
  awk -v loss="$told" -v bits="$(sed -n 's/^bits.byte *//p' <<< "$got")" -v bytes="$(wc -c < inputs/text/tiny.txt)" \
    'BEGIN { is = loss * (bytes - 1) / bytes / log(2); exit !(bits - is < 1e-4 && is - bits < 1e-4) }' ||
    give_up "$ranks ranks: bits a byte do not follow from the loss: $got"
done

# A checkpoint converted from a folder works like any other, with the folder's tokenizer (here there
# is none). The folder may be gone.
get 1 convert --from "hf:$folder/exported" --to "$folder/imported"
refused "exported' holds neither" generate "$folder/imported" --prompt "In the"
mv "$folder/exported" "$folder/elsewhere"
get 1 generate "$folder/imported" --tokenizer byte --prompt "In the" --max-tokens 40
[[ $got == "$text" ]] || give_up "the imported checkpoint wrote '$got', the run '$text'"
mv "$folder/elsewhere" "$folder/exported"

# Documents are split like in the model's run.
for ((i = 0; i < 400; ++i)); do echo "{\"text\": \"lamp $((i * i % 97)) of $((i % 7))\"}"; done > "$folder/lamps.jsonl"
for mask in true false; do
  get 1 train inputs/tiny.yaml "run.folder=$folder/mask-$mask" "data.train=$folder/lamps.jsonl" data.format=jsonl \
    data.document_mask=$mask "data.validation=$folder/lamps.jsonl" train.steps=4 evaluate.every_steps=4
  loss=$(sed -n 's/.*"event":"validation".*"loss":\([0-9.]*\).*/\1/p' "$folder/mask-$mask/metrics.jsonl")
  get 2 evaluate "$folder/mask-$mask" "$folder/lamps.jsonl" --sequence-length 64
  [[ $mask == false || $got == *"each from its own document"* ]] || give_up "nothing is said of documents: $got"
  awk -v a="$(sed -n 's/^loss *\([0-9.]*\) .*/\1/p' <<< "$got")" -v b="$loss" \
    'BEGIN { exit !(a - b < 2e-5 && b - a < 2e-5 && a > 0) }' || give_up "document_mask $mask: $got; in the run $loss"
done

# Sequences are no longer than the text: the rest of a million tokens would be padding.
printf 'In the beginning' > "$folder/short.txt"
get 1 evaluate "$folder/run" "$folder/short.txt" --sequence-length 15; loss=$got
for ranks in 1 2; do
  get $ranks evaluate "$folder/run" "$folder/short.txt" --sequence-length 1000000
  [[ $got == "$loss" ]] || give_up "$ranks ranks, sequences of a million tokens: $got, not $loss"
done

# One rank reports an error that all of them find.
printf x > "$folder/one.txt"
"$mpirun" 2 "$llamesh" evaluate "$folder/run" "$folder/one.txt" > /dev/null 2> "$folder/log"; code=$?
[[ $code == 78 && $(grep -c 'has 1 tokens' "$folder/log") == 1 ]] || give_up "exit code $code, or not one line"

# Conversations are read with the run's template and loss, or as asked.
echo '{"messages": [{"role": "user", "content": "Who?"}, {"role": "assistant", "content": "I."},
  {"role": "user", "content": "Why?"}, {"role": "assistant", "content": "So."}]}' | tr -d '\n' > "$folder/chat.jsonl"
for asked in ":7" "--loss-on last_assistant:4" "--loss-on all:62" "--chat-template plain --loss-on assistant:7"; do
  # shellcheck disable=SC2086
  get 1 evaluate "$folder/run" "$folder/chat.jsonl" ${asked%:*}
  [[ $got == *"chat.jsonl': ${asked##*:} tokens predicted"* ]] || give_up "evaluate ${asked%:*}, not ${asked##*:}: $got"
done
refused "needs the special token" evaluate "$folder/run" "$folder/chat.jsonl" --chat-template chatml
refused "tiny.txt' holds no records" evaluate "$folder/run" inputs/text/tiny.txt --loss-on all

# Defaults fit a model with few positions, and what does not fit names its option.
get 1 train inputs/tiny.yaml "run.folder=$folder/gpt2" model.family=gpt2 model.num_key_value_heads=0 \
  model.max_position_embeddings=64 train.steps=1
get 1 convert --from "$folder/gpt2" --to "$folder/gpt2-hf"
gpt2() { get 1 "$1" "$folder/gpt2-hf" --tokenizer byte "${@:2}"; }
gpt2 evaluate inputs/text/tiny.txt --sequence-length 64; loss=$got
gpt2 evaluate inputs/text/tiny.txt; [[ $got == "$loss" ]] || give_up "sequences of 64 are not the default: $got"
gpt2 generate --prompt abc --max-tokens 61; text=$got
gpt2 generate --prompt abc; [[ $got == "$text" ]] || give_up "61 tokens after 3 are not the default: $got"
refused "of 65 tokens .*positions.* 64; lower --sequence-length" evaluate "$folder/gpt2-hf" inputs/text/tiny.txt \
  --tokenizer byte --sequence-length 65
refused "of 65 tokens .*; lower --max-tokens (62), or shorten the prompt (3 tokens)" generate "$folder/gpt2-hf" \
  --tokenizer byte --prompt abc --max-tokens 62
refused "of 65 tokens .*; lower --max-tokens (1), or shorten the prompt (64 tokens)" generate "$folder/gpt2-hf" \
  --tokenizer byte --prompt "$(printf %64s a)"
printf 'abc' > "$folder/odd"
refused "or its dtype (data.token_dtype, --token-dtype) is wrong" evaluate "$folder/run" "$folder/odd" --token-dtype uint16

# Without a token that counts in the loss there is none. A loss that is not finite is printed, and an
# error.
"$llamesh" tokenize --tokenizer byte --input "$folder/lamps.jsonl" --output "$folder/masked.bin" > "$folder/log" ||
  give_up "no token file"
head -c $((($(stat -c %s "$folder/masked.bin") - 1024) / 2)) /dev/zero > "$folder/masked.mask.npy"
cp -r "$folder/exported" "$folder/nan"
printf '\0\0\xc0\x7f' | dd of="$folder/nan/model.safetensors" bs=1 conv=notrunc status=none \
  seek=$(($(stat -c %s "$folder/nan/model.safetensors") - 4))
for ranks in 1 2; do
  "$mpirun" $ranks "$llamesh" evaluate "$folder/run" "$folder/masked.bin" > "$folder/out" 2> "$folder/log"; code=$?
  [[ $code == 78 && ! -s $folder/out && $(grep -c 'no token .*masked.bin. counts in the loss: check' "$folder/log") == 1 ]] ||
    give_up "$ranks ranks, all masked: exit code $code"
  "$mpirun" $ranks "$llamesh" evaluate "$folder/nan" inputs/text/tiny.txt --tokenizer byte > "$folder/out" 2> "$folder/log"
  code=$?
  [[ $code == 93 && $(grep -c "the loss of .* is nan; .*: llamesh verify $folder/nan$" "$folder/log") == 1 ]] &&
    grep -q '^loss  *nan nats' "$folder/out" || give_up "$ranks ranks, a NaN in the weights: exit code $code"
done
"$llamesh" generate "$folder/nan" --tokenizer byte --prompt A > "$folder/out" 2> "$folder/log"; code=$?
[[ $code == 93 && $(cat "$folder/out") == A && $(grep -c "the logits of .* are not finite; .*: llamesh verify $folder/nan$" "$folder/log") == 1 ]] ||
  give_up "generate with a NaN in the weights: exit code $code"

# Nor is a run without one started, and one with few is warned of.
echo '{"messages": [{"role": "user", "content": "'"$(printf %90s q)"'"}, {"role": "assistant", "content": "a"}]}' > "$folder/long.jsonl"
refused "no token of the training data .*data.packing=best_fit" train inputs/tiny.yaml "run.folder=$folder/few" \
  "data.train=$folder/long.jsonl"
[[ ! -e $folder/few ]] || give_up "it started"
for _ in {1..9}; do sed 's/"a"/"a", "train": false/' "$folder/long.jsonl"; done > "$folder/few.jsonl"
refused "no token of the validation data" train inputs/tiny.yaml "run.folder=$folder/few" data.packing=none \
  "data.train=$folder/long.jsonl" "data.validation=$folder/few.jsonl" evaluate.every_steps=1
cat "$folder/long.jsonl" >> "$folder/few.jsonl"
get 1 train inputs/tiny.yaml "run.folder=$folder/few" data.packing=none "data.train=$folder/few.jsonl" train.steps=1
grep -q " data: 95 % of the sequences of .*few.jsonl' have no token" "$folder/few/log.txt" &&
  grep -q "(10 longer than a sequence, 1 cut before their answer)" "$folder/few/log.txt" || {
    cp "$folder/few/log.txt" "$folder/log"; give_up "few targets are not reported"; }

refused "does not exist" generate "$folder/nowhere" --prompt a
refused "neither a run folder nor a checkpoint" generate "$folder" --prompt a
refused "the prompt is empty" generate "$folder/run"
refused "temperature is -1" generate "$folder/run" --prompt a --temperature -1
refused "tokenizer" generate "hf:$folder/exported" --prompt a
refused "dtype 'fp8'" generate "$folder/run" --prompt a --dtype fp8
refused "no-such.txt" evaluate "$folder/run" no-such.txt
refused "sequence-length is 0" evaluate "$folder/run" inputs/text/tiny.txt --sequence-length 0
echo "generate and evaluate agree with the run"
