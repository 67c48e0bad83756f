#!/bin/bash
# tensor_parallel.sh LLAMESH: `evaluate` and `generate` with a model divided among ranks give one
# rank's results, from a checkpoint and from a Hugging Face folder; an impossible division is
# refused with one line. Runs in the folder that has inputs/.
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
# refused RANKS TEXT ARGUMENT...: one rank must print one line with this text, and all end with 78
refused() {
  local ranks=$1 text=$2 code; shift 2
  "$mpirun" "$ranks" "$llamesh" "$@" > "$folder/log" 2>&1; code=$?
  [[ $code == 78 && $(grep -c '^llamesh: ' "$folder/log") == 1 ]] && grep -q -- "$text" "$folder/log" ||
    give_up "$ranks ranks, llamesh $*: exit code $code, not one line with '$text'"
}

# Grouped-query attention that 2 ranks can divide; with 4, two ranks share a kv head. Neither divides the 259 ids.
model=(inputs/tiny.yaml "run.folder=$folder/run" model.hidden_size=64 model.num_attention_heads=8
  model.num_key_value_heads=2)
get 1 train "${model[@]}" train.steps=60
get 2 train "${model[@]}" train.steps=61 mesh.axes.tensor=2  # so that the checkpoint's matrices are split
get 1 convert --from "$folder/run" --to "hf:$folder/exported"
head -c 3000 inputs/text/tiny.txt > "$folder/text"

# --- the loss; 63 tokens cannot be divided by rows
loss() { # RANKS MODEL ARGUMENT...
  local ranks=$1 model=$2; shift 2
  get "$ranks" evaluate "$model" "$folder/text" --tokenizer byte --json "$@"
  [[ $(wc -l <<< "$got") == 1 ]] || give_up "more than one line of JSON: $got"
  told=$(sed 's/.*"loss":\([0-9.]*\).*/\1/' <<< "$got") counted=$(sed 's/.*"tokens":\([0-9]*\).*/\1/' <<< "$got")
}
for length in 64 63; do
  loss 1 "$folder/run" --sequence-length $length; expected=$told tokens=$counted
  for how in "2 $folder/run 2" "4 $folder/run 4" "4 $folder/run 2" "4 $folder/run 1" "2 hf:$folder/exported 2"; do
    read -r ranks model size <<< "$how"
    loss "$ranks" "$model" --sequence-length $length --tensor-parallel-size "$size"
    awk -v a="$told" -v b="$expected" 'BEGIN { exit !(b > 1 && a - b < 1e-6 * b && b - a < 1e-6 * b) }' ||
      give_up "$how: the loss is $told and $expected on one rank"
    [[ $counted == "$tokens" ]] || give_up "$how: $counted tokens and $tokens on one rank"
  done
done
loss 2 "$folder/run" --sequence-length 64 --tensor-parallel-size 2 --dtype bf16
awk -v a="$told" -v b="$expected" 'BEGIN { exit !(a - b < 1e-2 * b && b - a < 1e-2 * b) }' || give_up "bf16: the loss is $told"

# --- the text, greedy and sampled; one rank prints it
prompt=$(head -c 600 "$folder/text")  # more than one forward pass takes
for options in "--temperature 0" "--temperature 1 --top-k 20 --seed 3"; do
  write() { # RANKS MODEL
    # shellcheck disable=SC2086
    get "$1" generate "$2" --tokenizer byte --prompt "$prompt" --max-tokens 24 $options
  }
  write 1 "$folder/run"; text=$got
  [[ $text == "$prompt"* && ${#text} -gt ${#prompt} ]] || give_up "it wrote '$text'"
  for how in "2 $folder/run" "4 $folder/run" "4 hf:$folder/exported"; do
    read -r ranks model <<< "$how"
    write "$ranks" "$model"
    [[ $got == "$text" ]] || give_up "$how, $options: '$got' instead of '$text'"
  done
done
printf 'In the' > "$folder/prompt"
get 2 generate "$folder/run" --prompt-file "$folder/prompt" --max-tokens 4 --tensor-parallel-size 2 --dtype bf16
[[ $got == "In the"* ]] || give_up "it wrote '$got'"
LLAMESH_TEST_MPIRUN=1 get 1 generate "$folder/run" --prompt "In the" --max-tokens 4
[[ $got == "In the"* ]] || give_up "it wrote '$got'"

# A shell in an allocation with several tasks is a single process.
SLURM_NTASKS=4 get 1 generate "$folder/run" --prompt "In the" --max-tokens 4
[[ $got == "In the"* ]] || give_up "in an allocation it wrote '$got'"
SLURM_NTASKS=4 get 1 evaluate "$folder/run" "$folder/text" --tokenizer byte --sequence-length 64
SLURM_NTASKS=4 get 1 convert --from "$folder/run" --to "hf:$folder/from-shell"
SLURM_NTASKS=4 get 1 train inputs/tiny.yaml --print-units

# --- impossible divisions
evaluate=(evaluate "$folder/run" "$folder/text")
refused 4 "tensor-parallel-size is 3, which does not divide the 4 ranks" "${evaluate[@]}" --tensor-parallel-size 3
refused 1 "tensor-parallel-size is 2, which does not divide the 1 rank" "${evaluate[@]}" --tensor-parallel-size 2
refused 3 "num_attention_heads 8 cannot be divided among 3 ranks (.*--tensor-parallel-size); 2 or 4 would do" \
  "${evaluate[@]}" --tensor-parallel-size 3
refused 4 "tensor-parallel-size is 2 but 4 ranks were started.*mpirun -n 2" generate "$folder/run" --prompt a \
  --tensor-parallel-size 2
refused 1 "tensor-parallel-size is 2 but 1 rank was started.*mpirun -n 2" generate "$folder/run" --prompt a \
  --tensor-parallel-size 2
refused 2 "temperature is -1" generate "$folder/run" --prompt a --temperature -1
refused 2 "does not exist" generate "$folder/nowhere" --prompt a
refused 2 "tensor-parallel-size" generate "$folder/run" --prompt a --tensor-parallel-size 0
state=$folder/run/checkpoints/step_00000061/state.h5
at=$(grep -o '"offset": *[0-9]*' "${state%/*}/manifest.json" | head -n 1 | grep -o '[0-9]*$')
printf '\x55' | dd of="$state" bs=1 seek=$((at + 2)) conv=notrunc status=none
"$mpirun" 2 "$llamesh" generate "${state%/*}" --prompt a > "$folder/log" 2>&1; code=$?
[[ $code == 74 && $(grep -c 'is damaged' "$folder/log") == 1 ]] || give_up "damage: exit code $code, or not one line"
echo "divided among ranks, a model says the same"
