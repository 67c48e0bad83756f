#!/bin/bash
# tensorboard.sh LLAMESH: reads event files with TensorBoard's Python package, for a run that was
# started three times, once from a checkpoint older than its last step. LLAMESH_PYTHON is a Python
# with tensorboard; skipped without it. Runs in the folder that has inputs/.
llamesh=$1
here=$(dirname "$0")
python=${LLAMESH_PYTHON:-python3}
"$python" -c 'import tensorboard' 2> /dev/null || { echo "SKIPPED: no tensorboard in $python"; exit 77; }
folder=$(mktemp -d) || exit 1
trap 'rm -rf "$folder"' EXIT
give_up() { echo "FAILED: $1"; cat "$folder/log"; exit 1; }
train() {
  "$here/../mpirun.sh" 2 "$llamesh" train inputs/tiny.yaml "run.folder=$folder/run" log.tensorboard=true checkpoint.keep=9 \
    checkpoint.every_steps=3 evaluate.every_steps=2 evaluate.batches=1 data.validation=inputs/text/tiny.txt "$@" > "$folder/log" 2>&1 ||
    give_up "train $*"
}
train train.steps=5
train train.steps=8
rm -r "$folder"/run/checkpoints/step_0000000[568]  # the remaining ones are older than the last step
train train.steps=7
"$python" "$here/check_events.py" "$folder/run" > "$folder/log" 2>&1 || give_up "TensorBoard shows something else"
cat "$folder/log"
