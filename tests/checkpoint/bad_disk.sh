#!/bin/bash
# bad_disk.sh LLAMESH ROOMY: whole runs on a disk that fills up, in a folder that becomes read-only,
# and beside the lease of another job. Each has to end with its exit code and one line that says
# why, with the checkpoints as they were. Runs in the folder that has inputs/; in a mount namespace
# of its own, else it is skipped (77).
if [ "$3" != mounts ]; then
  unshare -m true 2>/dev/null || { echo "SKIPPED: no right to mount"; exit 77; }
  exec unshare -m --propagation private "$0" "$1" "$2" mounts
fi
llamesh=$1 roomy=$2
mpirun="$(dirname "$0")/../mpirun.sh"
source "$(dirname "$0")/../patience.sh"
source "$(dirname "$0")/../forget_runs.sh"
folder=$(mktemp -d) || exit 1
trap 'rm -rf "$folder"' EXIT  # the mounts go with the namespace; see leave()
leave() { forget_runs "$folder"; umount -l "$folder/disk" 2>/dev/null; exit "$1"; }
give_up() { echo "$1"; cat "$folder/log"; leave 1; }

# train STEPS [key=value ...]: sets code.
preload=
train() {
  local steps=$1; shift
  timeout -k 10 "$(stretched 300)" "$mpirun" 2 env "LD_PRELOAD=$preload" "$llamesh" train inputs/tiny.yaml "train.steps=$steps" schedule.name=constant \
    "run.folder=$folder/disk/run" "$@" > "$folder/log" 2>&1
  code=$?
}
checkpoints=$folder/disk/run/checkpoints
step=0
# good STEPS: a run up to there must work, whatever was before.
good() {
  step=$1
  train "$step" || true
  [ $code = 0 ] || give_up "$what: the run to step $step ended with $code"
}
# bad CODE TEXT [key=value ...]: the next run must end so, with one line and the checkpoint of $step
# intact.
bad() {
  local expected=$1 text=$2 newest; shift 2
  newest=$checkpoints/$(printf step_%08d $step)
  train $((step + 2)) "$@"
  [ $code = "$expected" ] || give_up "$what: exit code $code, not $expected"
  [ "$(grep -c '^llamesh: ' "$folder/log")" = 1 ] || give_up "$what: not one line that says why"
  grep '^llamesh: ' "$folder/log" | grep -q "$text" || give_up "$what: the line does not say '$text'"
  "$llamesh" verify "$newest" > "$folder/verified" 2>&1 || give_up "$what: step $step is damaged"
  [ -z "$(find "$checkpoints" -name 'step_*' -maxdepth 1 -newer "$newest/manifest.json" ! -path "$newest")" ] ||
    give_up "$what: something is left of the failed save: $(ls "$checkpoints")"
  echo "$what: $(grep '^llamesh: ' "$folder/log" | sed "s|$folder|...|g")"
}

mkdir "$folder/disk"
# A checkpoint has 1.0 MiB. What is left beside it is for logs, so that only the save finds no room.
mount -t tmpfs -o size=8m tmpfs "$folder/disk" || { echo "SKIPPED: no right to mount"; exit 77; }
what="room for half a checkpoint"
good 2
filler() { head -c "$1" /dev/zero > "$folder/disk/filler"; }
free_kib() { df -k --output=avail "$folder/disk" | tail -1; }
for async in false true; do
  rm -f "$folder/disk/filler"
  filler $((($(free_kib) - 500) * 1024))
  what="room for half a checkpoint, async: $async"
  bad 74 "bytes free, but a checkpoint needs" checkpoint.async=$async
  ! grep -q 'step *4/4' "$folder/log" || give_up "$what: found only when it saved"
  what="a disk that fills up meanwhile, async: $async"
  preload=$roomy bad 74 "No space left on device" checkpoint.async=$async
done

# Nothing can be written, not even why the run ended: the next launch says it, by what the ranks have
# left in /dev/shm.
what="no room for state.json"
rm -rf "$folder/disk/filler" "$folder/disk/run"
trains() { [ -n "$(sed -n 6p "$folder/disk/run/metrics.jsonl")" ]; }
(within 120 trains
  cat /dev/zero > "$folder/disk/filler") 2>/dev/null & filling=$!
train 1000000 log.every_steps=1000000 checkpoint.every_steps=1000000
wait $filling
[ $code = 74 ] || give_up "$what: exit code $code, not 74"
grep -q '"state": "running"' "$folder/disk/run/state.json" || give_up "$what: state.json was written"
said=$(sed -n 's/^llamesh: rank [0-9]* on [^ ]*: //p' "$folder/log")
rm -f "$folder/disk/filler"
"$llamesh" status "$folder/disk/run" > "$folder/log" 2>&1
grep -q ': failed' "$folder/log" && grep -q 'could not write state.json' "$folder/log" || give_up "$what: llamesh status does not say it"
train 20
grep -qF "by its flight records: $said" "$folder/log" || give_up "$what: the next launch does not say '$said'"
echo "$what: $(grep -o 'by its flight records.*' "$folder/log" | sed "s|$folder|...|g")"
rm -rf "$folder/disk/run"
good 4

what="read-only checkpoints"
rm -f "$folder/disk/filler"
mount --bind "$checkpoints" "$checkpoints" && mount -o remount,ro,bind "$checkpoints" || give_up "cannot bind"
bad 74 "Read-only file system"
umount "$checkpoints"
good 4

what="a lease of another host that is kept up"
echo "77 elsewhere 1" > "$checkpoints/.lease"
(while touch "$checkpoints/.lease"; do sleep 0.5; done) 2>/dev/null & toucher=$!
bad 78 "job 77 (host elsewhere, process 1)"
kill $toucher
wait $toucher 2>/dev/null
what="a stale lease"
echo "77 elsewhere 1" > "$checkpoints/.lease"
good 6
grep -q 'taking over' "$folder/log" || give_up "$what: taken over without a word"
echo "$what: $(grep -o 'taking over.*' "$folder/log" | sed "s|$folder|...|g")"
leave 0
