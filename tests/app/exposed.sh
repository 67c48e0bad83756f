#!/bin/bash
# exposed.sh LLAMESH: `bench step` and metrics.jsonl report the time in each axis' collectives, and
# its exposed part. Runs in the folder that has inputs/.
llamesh=$1
mpirun="$(dirname "$0")/../mpirun.sh"
folder=$(mktemp -d) || exit 1
trap 'rm -rf "$folder"' EXIT
give_up() { echo "FAILED: $1"; cat "$folder/log"; exit 1; }

"$mpirun" 4 "$llamesh" bench step inputs/tiny.yaml train.steps=3 mesh.axes.tensor=2 mesh.axes.replicate=1 mesh.axes.shard=2 \
  model.hidden_size=64 model.num_attention_heads=8 model.num_key_value_heads=4 model.vocab_size=260 \
  > "$folder/log" 2>&1 || give_up "bench step"
for axis in shard tensor; do
  grep -qE "^axis $axis: [0-9.]+ MiB sent by a rank, [0-9.]+ s in its collectives, [0-9.]+ s exposed$" "$folder/log" ||
    give_up "bench step says nothing of $axis"
done
grep -q "^axis replicate" "$folder/log" && give_up "bench step names an axis that sends nothing"

"$mpirun" 2 "$llamesh" train inputs/tiny.yaml "run.folder=$folder/run" train.steps=2 > "$folder/log" 2>&1 || give_up "train"
grep '"loss"' "$folder/run/metrics.jsonl" > "$folder/log"
[[ $(grep -cE '"seconds_compute":[0-9.e-]+,"exposed":\{"replicate":[0-9.e-]+,"shard":[0-9.e-]+\}' "$folder/log") == 2 ]] ||
  give_up "not in metrics.jsonl"
# With 5 decimals: seconds_compute + exposed <= seconds.
sed -E 's/.*"seconds":([^,]*),.*"seconds_compute":([^,]*),.*"replicate":([^,]*),"shard":([^}]*)\}.*/\1 \2 \3 \4/' "$folder/log" |
  awk '{ if (!($2 > 0 && $2 + $3 + $4 <= $1 * 1.00001)) bad = 1 } END { exit bad || NR != 2 }' || give_up "more than the step"
echo "exposed time is told"
