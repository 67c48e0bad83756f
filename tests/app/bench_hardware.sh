#!/bin/bash
# bench_hardware.sh LLAMESH: `bench hardware` on two ranks writes a file that `plan` takes. Runs in
# the folder that has inputs/.
llamesh=$1
mpirun="$(dirname "$0")/../mpirun.sh"
folder=$(mktemp -d) || exit 1
trap 'rm -rf "$folder"' EXIT
give_up() { echo "FAILED: $1"; cat "$folder/log"; exit 1; }

"$mpirun" 2 "$llamesh" bench hardware --seconds 1 --output "$folder/node.yaml" > "$folder/log" 2>&1 || give_up "measuring"
[[ $(ls -A "$folder") == $'log\nnode.yaml' ]] || give_up "files are left: $(ls -A "$folder")"
for key in 'ranks: 2' disk linear attention adamw all-gather reduce-scatter all-reduce; do
  grep -q "$key" "$folder/node.yaml" || give_up "the file has no $key"
done
plan() { "$llamesh" plan inputs/tiny.yaml --hardware "$folder/node.yaml" "$@" > "$folder/log" 2>&1; }
for ranks in 2 4; do
  plan --ranks $ranks --ranks-per-node 2 || give_up "a plan for $ranks ranks"
  grep -q 'tokens/s' "$folder/log" || give_up "no speed for $ranks ranks"
done
plan --ranks 2 --ranks-per-node 1; code=$?
[[ $code == 78 ]] && grep -q 'was measured with 2 ranks per node, but the plan has 1' "$folder/log" || give_up "another number of ranks: $code"

# An existing file stays.
"$mpirun" 2 "$llamesh" bench hardware --seconds 1 --output "$folder/node.yaml" > "$folder/log" 2>&1; code=$?
[[ $code == 78 && $(grep -c 'llamesh: ' "$folder/log") == 1 ]] || give_up "an existing file: exit code $code"
exit 0
