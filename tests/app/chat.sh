#!/bin/bash
# chat.sh LLAMESH: conversations with a trained model, by `chat` and `generate --chat`, and answers to
# the records of a file. Runs in the folder that has inputs/.
llamesh=$1
mpirun="$(dirname "$0")/../mpirun.sh"
source "$(dirname "$0")/../patience.sh"
folder=$(mktemp -d) || exit 1
trap 'kill "$talker" 2>/dev/null; rm -rf "$folder"' EXIT
give_up() { echo "FAILED: $1"; cat "$folder/log"; exit 1; }
# get RANKS ARGUMENT...: runs llamesh with this script's standard input; its output is in $got
get() {
  local ranks=$1; shift
  got=$("$mpirun" "$ranks" "$llamesh" "$@" 2> "$folder/log") || give_up "llamesh $*: exit code $?"
}
expect() { [[ $got == "$1" ]] || give_up "got '$got', not '$1'"; }
refused() {
  local text=$1 code; shift
  "$llamesh" "$@" > /dev/null 2> "$folder/log"; code=$?
  [[ $code == 78 && $(grep -c '^llamesh: ' "$folder/log") == 1 ]] && grep -q -- "$text" "$folder/log" ||
    give_up "llamesh $*: exit code $code, not one line with '$text'"
}

chat='{"messages": [{"role": "user", "content": "Who?"}, {"role": "assistant", "content": "God."},
  {"role": "user", "content": "What?"}, {"role": "assistant", "content": "Heaven and earth."}]}'
for _ in {1..20}; do echo "${chat//$'\n'/}"; done > "$folder/chats.jsonl"
get 1 train inputs/tiny.yaml "run.folder=$folder/run" "data.train=$folder/chats.jsonl" train.steps=60 optimizer.lr=1e-2 \
  data.tokenizer=tests/tokenizer/golden/qwen.json data.chat_template=chatml model.vocab_size=608 data.sequence_length=64 \
  data.packing=best_fit data.document_mask=true
grep -qF "chats.jsonl', line 1, what is learned in {+ +}: <|im_start|>user\nWho?<|im_end|>\n<|im_start|>assistant\n{+God.<|im_end|>+}\n" \
  "$folder/log" || give_up "the log shows no conversation"
get 1 convert --from "$folder/run" --to "hf:$folder/hf"

# A conversation has a memory, until it is reset. Empty lines say nothing.
printf 'Who?\n\nWhat?\n/reset\nWho?\n' > "$folder/lines"
answers=$'God.\nHeaven and earth.\nGod.'
get 1 chat "$folder/run" < "$folder/lines"; expect "$answers"
get 1 chat "$folder/run" --dtype bf16 < "$folder/lines"; expect "$answers"
get 2 chat "$folder/run" < "$folder/lines"; expect "$answers"
get 1 generate "$folder/run" --chat < "$folder/lines"; expect "$answers"
get 1 generate "$folder/run" --chat --prompt 'Who?'; expect "God."
get 1 chat "$folder/run" --max-tokens 1 < "$folder/lines"
[[ $(wc -l <<< "$got") == 3 && God. == "${got%%$'\n'*}"* ]] || give_up "one token is '$got'"
get 1 chat "$folder/run" --context 26 < "$folder/lines"
grep -q 'the conversation would have [0-9]* tokens, and there is room for 26; /reset' "$folder/log" ||
  give_up "no line about room"
expect $'God.\nGod.'

# The answers of a file. An interrupted command goes on behind the last whole line.
printf '%s\n' '{"id": 7, "prompt": "Who?"}' \
  '{"messages": [{"role": "user", "content": "Who?"}, {"role": "assistant", "content": "God."}, {"role": "user", "content": "What?"}]}' \
  '{"prompt": "Who?", "tags": ["a", "b"]}' > "$folder/prompts.jsonl"
answer() { get "$1" generate "$folder/run" --chat --input "$folder/prompts.jsonl" --output "$2" "${@:3}"; }
answer 1 "$folder/all"
[[ $(sed -n 1p "$folder/all") == '{"id":7,"prompt":"Who?","answer":"God."}' &&
  $(sed -n 2p "$folder/all") == *',"answer":"Heaven and earth."}' && $(wc -l < "$folder/all") == 3 ]] ||
  give_up "answers: $(< "$folder/all")"
answer 2 "$folder/by-two"; cmp "$folder/all" "$folder/by-two" || give_up "two ranks answer otherwise"
sampled() { answer 1 "$1" --temperature 2 --max-tokens 8 --seed 5; }
sampled "$folder/sampled"
head -c "$(($(head -n 1 "$folder/sampled" | wc -c) + 9))" "$folder/sampled" > "$folder/cut"
sampled "$folder/cut"; cmp "$folder/sampled" "$folder/cut" || give_up "other answers after an interruption"
grep -q '1 of 3 answered' "$folder/log" && give_up "the first record was answered twice"
sampled "$folder/cut"; cmp "$folder/sampled" "$folder/cut" || give_up "complete answers have changed"
grep -q "3 of 3 answers are in $folder/cut already" "$folder/log" || give_up "no line about the answers that are there"
# Without --chat a prompt is a text.
head -n 1 "$folder/prompts.jsonl" > "$folder/one"
get 1 generate "$folder/run" --input "$folder/one" --output "$folder/text" --max-tokens 3
[[ $(< "$folder/text") == '{"id":7,"prompt":"Who?","answer":"'*'"}' && $(< "$folder/text") != *God* ]] ||
  give_up "a text is continued as $(< "$folder/text")"
echo '{"prompt": "x", "answer": "y"}' > "$folder/other"
refused "line 1 has the answer to another record than '$folder/prompts.jsonl'; name another" \
  generate "$folder/run" --input "$folder/prompts.jsonl" --output "$folder/other"
records() { printf '%s\n' "$1" > "$folder/bad.jsonl"; }
records '{"text": "a"}'
refused "bad.jsonl', line 1: has neither 'messages' nor a text as 'prompt'" \
  generate "$folder/run" --input "$folder/bad.jsonl" --output "$folder/none"
records '{"messages": [{"role": "assistant", "content": "a"}]}'
refused "the last message is the assistant's, so there is nothing to answer" \
  generate "$folder/run" --input "$folder/bad.jsonl" --output "$folder/none"
refused "the prompt has [0-9]* tokens, and with its answer there is room for 8; raise --context" \
  generate "$folder/run" --chat --input "$folder/prompts.jsonl" --output "$folder/none" --context 8
refused "--input and --output belong together" generate "$folder/run" --input "$folder/prompts.jsonl"
refused "--context and --system are for conversations; add --chat" generate "$folder/run" --prompt a --system b
refused "--prompt and --input are both given" generate "$folder/run" --prompt a --input a --output b

# The template that a run was trained with counts, whatever its tokenizer's folder has by then.
mkdir "$folder/house"; cp "$folder/hf"/tokenizer* "$folder/house"
house="$folder/house/chat_template.jinja"
printf '%s' "{% for m in messages %}<|im_start|>{{ m.role | upper }}
{{ m.content }}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>ASSISTANT
{% endif %}" | tee "$house" > "$folder/template"
get 1 train inputs/tiny.yaml "run.folder=$folder/housed" "data.train=$folder/chats.jsonl" train.steps=60 optimizer.lr=1e-2 \
  "data.tokenizer=$folder/house" model.vocab_size=608 data.sequence_length=64 data.packing=best_fit data.document_mask=true
grep -qF "<|im_start|>ASSISTANT\n{+God.<|im_end|>+}" "$folder/log" || give_up "the log shows no conversation by the template"
get 1 chat "$folder/housed" < "$folder/lines"; expect "$answers"
sed -i 's/upper/lower/' "$house"
get 2 chat "$folder/housed" < "$folder/lines"; expect "$answers"
get 1 convert --from "$folder/housed" --to "$folder/housed-hf"
cmp "$folder/template" "$folder/housed-hf/chat_template.jinja" || give_up "the export has another template"
rm "$folder/housed/chat_template.jinja"
refused "that the model was trained with (hash [0-9a-f]*) is neither in .*/housed/chat_template.jinja nor beside" \
  generate "$folder/housed" --chat --prompt 'Who?'
"$llamesh" generate "$folder/run" --chat --prompt 'Who?' --context 3 2> "$folder/log"
[[ $? == 78 ]] && grep -q "tokens, and there is room for 3; --context makes room" "$folder/log" ||
  give_up "no exit code for a message without room"

# SIGINT ends an answer that would not end, and the conversation goes on.
get 1 train inputs/tiny.yaml "run.folder=$folder/endless" train.steps=5
mkfifo "$folder/keyboard"
"$llamesh" chat "$folder/endless" --context 400000 < "$folder/keyboard" > "$folder/screen" 2> "$folder/log" &
talker=$!
exec 3> "$folder/keyboard"
bytes() { stat -c %s "$folder/screen"; }
says_more() { (($(bytes) > before)); }
# The end of an answer is a line end after which nothing more comes.
has_ended() { [[ $(tail -c 1 "$folder/screen" | od -An -tx1) == *0a && $(bytes) == "$(sleep 0.5; bytes)" ]]; }
for message in "Hello" "Again"; do
  before=$(bytes)
  echo "$message" >&3
  within 60 says_more || give_up "no answer to $message"
  kill -INT "$talker"
  within 60 has_ended || give_up "SIGINT has not ended the answer to $message"
done
exec 3>&-
wait "$talker" || give_up "the end of the input is exit code $?"
talker=
echo "chat: all as expected"
