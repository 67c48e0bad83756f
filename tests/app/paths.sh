#!/bin/bash
# paths.sh LLAMESH: every command and the inputs accept a run folder, a checkpoint and a Hugging
# Face folder; anything else is refused; no command hides lost output. Runs in the folder that has
# inputs/.
llamesh=$1
mpirun="$(dirname "$0")/../mpirun.sh"
folder=$(mktemp -d) || exit 1
trap 'rm -rf "$folder"' EXIT
give_up() { echo "FAILED: $1"; cat "$folder/log"; exit 1; }
# ends CODE TEXT ARGUMENT...: checks that llamesh, run alone, ends with this code and prints this
# text on either stream
ends() {
  local wanted=$1 text=$2 code; shift 2
  "$llamesh" "$@" > "$folder/log" 2>&1; code=$?
  [[ $code == "$wanted" ]] && grep -q -- "$text" "$folder/log" ||
    give_up "llamesh $*: exit code $code instead of $wanted, or without '$text'"
}
refused() { ends 78 "^llamesh: .*$1" "${@:2}"; }

run=$folder/run newest=$folder/run/checkpoints/step_00000004 older=$folder/run/checkpoints/step_00000002
text=$folder/text
head -c 3000 inputs/text/tiny.txt > "$text"
ends 0 "startup" train inputs/tiny.yaml "run.folder=$run" train.steps=4 checkpoint.every_steps=2
ends 0 "tokenizer is byte, which has no file: llamesh generate hf:$folder/exported --tokenizer byte" \
  convert --from "$run" --to "hf:$folder/exported"
file=$folder/exported/model.safetensors

# --- each command, from each place
for place in "$run" "$run/checkpoints" "$newest" "hf:$folder/exported" "$folder/exported"; do
  ends 0 "all good" verify "$place"
  ends 0 "" inspect "$place"
  ends 0 "equal: " diff "$place" "$file"
  ends 0 "perplexity" evaluate "$place" "$text" --sequence-length 64 --tokenizer byte
  ends 0 "In the" generate "$place" --prompt "In the" --max-tokens 2 --tokenizer byte
done
ends 0 "all good" verify "$file"
ends 0 " tensors, " inspect "$file"
ends 0 "^checkpoint $newest" inspect "$newest"
ends 0 "2 checkpoints, newest first" inspect "$run"
ends 0 "->" convert --from "$folder/exported" --to "$folder/imported"
ends 0 "->" convert --from "$folder/imported" --to "$folder/exported-again"
ends 0 "equal: " diff "$folder/exported-again" "$file"
ends 0 "resuming from $newest" train inputs/tiny.yaml "run.folder=$folder/from-run" train.steps=4 checkpoint.resume="$run"
ends 0 "equal: " diff "$folder/from-run" "$run"
cat > "$folder/hf.yaml" <<END
run: {folder: $folder/from-hf}
model: {hf: "hf:exported"}
data: {train: "$text", sequence_length: 32}
train: {steps: 0, threads: 1}
END
ends 0 "loaded the weights of $folder/exported" train "$folder/hf.yaml"

# --- control characters in names are shown
odd=$folder/$'a\e[2J\rb'
cp -r "$run" "$odd"
for command in inspect verify; do
  ends 0 'a\\x1b\[2J\\x0db' $command "$odd/checkpoints/step_00000004"
  ! grep -q $'[\e\r]' "$folder/log" || give_up "$command prints the name of a path raw"
done

# --- none of these
mkdir "$folder/empty"
echo "some text" > "$folder/note"
for command in verify inspect "diff $run" "generate --prompt a" "evaluate --tokenizer byte"; do
  files=(); [[ $command == evaluate* ]] && files=("$text")
  # shellcheck disable=SC2086
  refused "$folder/none does not exist" $command "$folder/none" "${files[@]}"
  # shellcheck disable=SC2086
  refused "$folder/empty is neither a run folder nor a checkpoint" $command "$folder/empty" "${files[@]}"
  # shellcheck disable=SC2086
  refused "$folder/note is neither" $command "$folder/note" "${files[@]}"
done
refused "checkpoint.resume: $folder/none does not exist" train inputs/tiny.yaml "run.folder=$folder/x" checkpoint.resume="$folder/none"
refused "$folder/empty is neither" train inputs/tiny.yaml "run.folder=$folder/x" checkpoint.resume="$folder/empty"
refused "which has no optimizer state; .* model.hf=$folder/exported" train inputs/tiny.yaml "run.folder=$folder/x" \
  checkpoint.resume="hf:$folder/exported"
refused "model.hf: $run is not a Hugging Face folder but a run or a checkpoint; .*checkpoint.resume=$run" \
  train "$folder/hf.yaml" "run.folder=$folder/x" model.hf="$run"
refused "holds neither tokenizer.json nor tokenizer.model; .*--tokenizer" generate "$folder/exported" --prompt a
refused "holds neither tokenizer.json nor tokenizer.model; .*--tokenizer" evaluate "$folder/exported" "$text"
[[ ! -e $folder/x ]] || give_up "a run folder was made"

# --- token files without a header: the text itself, widened
od -An -v -tu1 -w1 "$text" | while read -r byte; do printf "\\x$(printf %02x "$byte")\\0"; done > "$folder/ids"
ends 0 "loss" evaluate "$run" "$text" --sequence-length 64
loss=$(grep '^loss' "$folder/log")
ends 0 "$loss" evaluate "$run" "$folder/ids" --token-dtype uint16 --sequence-length 64
refused "begins with neither llm.c's header nor NumPy's; .*--token-dtype" evaluate "$run" "$folder/ids" --tokens
refused "did you mean --token-dtype uint16" evaluate "$run" "$folder/ids" --dtype uint16
refused "is not UTF-8 text .*--token-dtype" evaluate "$run" "$folder/ids"
for ranks in 1 2; do
  "$mpirun" $ranks "$llamesh" evaluate --json "$run" "$text" --sequence-length 64 > "$folder/log" || give_up "no JSON"
  [[ $(wc -l < "$folder/log") == 1 ]] || give_up "not one line of JSON"
  awk -v json="$(sed 's/.*"loss":\([0-9.]*\).*/\1/' "$folder/log")" -v text="$(awk '{ print $2 }' <<< "$loss")" \
    'BEGIN { exit !(length(json) > 12 && json - text < 1e-6 && text - json < 1e-6) }' ||
    give_up "the JSON does not say what the text says: $loss"
done

# --- a planned launch
"$mpirun" 4 "$llamesh" train inputs/tiny.yaml --print-mesh mesh.ranks_per_node=2 > "$folder/launched" || give_up "no mesh"
"$llamesh" train inputs/tiny.yaml --print-mesh --ranks 4 --ranks-per-node 2 data.train=no-such.txt > "$folder/paper" ||
  give_up "no mesh on paper"
diff <(sed 's/ (.*//' "$folder/launched") <(sed 's/ (.*//' "$folder/paper") > "$folder/log" || give_up "another mesh on paper"
ends 0 "model.layers.0\.\." train inputs/tiny.yaml --print-units --ranks 4
ends 0 "model.layers.1 " train inputs/tiny.yaml --print-units --all --ranks 4
refused "train.global_batch 10 is not a multiple of 4 ranks .*; make it 12, or" train inputs/tiny.yaml --print-mesh --ranks 4 train.global_batch=10
refused "shard axis of 4 ranks would cross nodes" train inputs/tiny.yaml --print-mesh --ranks 4 --ranks-per-node 2 \
  sharding.strategy=hybrid_shard mesh.axes.replicate=1 mesh.axes.shard=4
refused "to train, start the ranks with mpirun -n 4" train inputs/tiny.yaml --ranks 4
"$mpirun" 2 "$llamesh" train inputs/tiny.yaml --print-mesh --ranks 4 > "$folder/log" 2>&1
[[ $? == 78 && $(grep -c "but 2 ranks were launched" "$folder/log") == 1 ]] || give_up "a launch beside the one on paper"

# --- lost output
lost() {
  "$llamesh" "$@" > /dev/full 2> "$folder/log"; local code=$?
  [[ $code == 74 && $(grep -c '^llamesh: ' "$folder/log") == 1 ]] || give_up "llamesh $* > /dev/full: exit code $code"
}
lost --help
lost --version
lost train --help
lost inspect "$run"
lost inspect --json "$newest"
lost verify "$run"
lost diff "$run" "$run"
lost generate "$run" --prompt a --max-tokens 2
lost evaluate "$run" "$text" --sequence-length 64
lost train inputs/tiny.yaml --print-config
lost train inputs/tiny.yaml --print-units --ranks 2

# --- a run's newest good checkpoint
before=$("$llamesh" generate "$older" --prompt "In the" --max-tokens 20 2> "$folder/log")
size=$(stat -c %s "$newest/state.h5")
# A byte in the first tensor: the first offset in the manifest.
at=$(grep -o '"offset": *[0-9]*' "$newest/manifest.json" | head -n 1 | grep -o '[0-9]*$')
[[ -n $at && $at -lt $size ]] || give_up "no offset in the manifest"
printf '\x55' | dd of="$newest/state.h5" bs=1 seek=$((at + 2)) conv=notrunc status=none
ends 74 "" verify "$run"
ends 74 "" verify "$newest"
ends 74 "" generate "$newest" --prompt a
after=$("$llamesh" generate "$run" --prompt "In the" --max-tokens 20 2> "$folder/log")
[[ $after == "$before" && -n $after ]] || give_up "the run wrote '$after', its good checkpoint '$before'"
grep -q "checkpoint $newest is not used: " "$folder/log" || give_up "nothing is said of the damage"
ends 0 "resuming from $older" train inputs/tiny.yaml "run.folder=$folder/fallen" train.steps=4 checkpoint.resume="$run"
rm "$newest/manifest.json"
ends 74 "" verify "$newest"
echo "every command takes what the others take"
