#!/bin/bash
# diagnostics.sh LLAMESH SHIM: a trace, a TensorBoard file or a rank's log that cannot be written
# (fail_shim.cpp). At the start of a run that is an error; once the run trains, it is reported once,
# and the run continues to its end. Runs in the folder that has inputs/.
llamesh=$1 shim=$2
mpirun="$(dirname "$0")/../mpirun.sh"
source "$(dirname "$0")/../patience.sh"
source "$(dirname "$0")/../forget_runs.sh"
folder=$(cd "$(mktemp -d)" && pwd -P) || exit 1
trap 'forget_runs "$folder"; rm -rf "$folder"' EXIT
give_up() { echo "FAILED: $1"; cat "$folder/log"; exit 1; }

# train CODE RANK FOLDER CALL OVERRIDE...: trains on two ranks; this rank's CALL ("write 2 ENOSPC")
# below the run's FOLDER fails, and both must end with this code
train() {
  local wanted=$1 rank=$2 below=$3 call=$4 code; shift 4
  rm -rf "$folder/run"
  timeout -k 10 "$(stretched 300)" "$mpirun" 2 env "LD_PRELOAD=$shim" "LLAMESH_FAIL=$call" "LLAMESH_FAIL_RANK=$rank" \
    "LLAMESH_FAIL_BELOW=$folder/run$below/" "$llamesh" train inputs/tiny.yaml "run.folder=$folder/run" train.steps=4 \
    train.threads=1 log.every_steps=1 checkpoint.every_steps=0 "$@" > "$folder/log" 2>&1; code=$?
  [[ $code == "$wanted" && $(grep -c '^llamesh: ' "$folder/log") == $((code > 0)) ]] ||
    give_up "$call below the run's folder$below: exit code $code instead of $wanted, or not one line"
}
says() { [[ $(grep -c -- "$2" "$folder/log") == "$1" ]] || give_up "not $1 line(s) with '$2'"; }
# goes_on TEXT: checks that this was printed once, and that the run did its 4 steps and saved
goes_on() {
  says 1 "$1"
  [[ $(grep -c '^{"step":' "$folder/run/metrics.jsonl") == 4 && -e $folder/run/checkpoints/step_00000004 ]] ||
    give_up "the run did not go on"
}
refused() {
  says 1 "^llamesh: .*$1"
  says 0 'step 1/4'
}

trace=(profile.steps=2-3)
train 74 1 /trace "write 1 ENOSPC" "${trace[@]}"
refused "$folder/run/trace/rank-00001"
train 0 1 /trace "write 2 ENOSPC" "${trace[@]}"
goes_on "steps 2-3 are not traced: rank 1 on .*rank-00001.*No space left on device; the run goes on"
train 0 0 /trace "fsync 3 EIO" "${trace[@]}"  # for the whole trace, after the probe's and its own part's
goes_on "steps 2-3 are not traced: rank 0 on "
[[ -z $(find "$folder/run/trace" -type f) ]] || give_up "files of a trace are left"

train 0 0 "" "write 0 none" profile.steps=3-9
goes_on "profile.steps is 3-9, but this launch takes steps 1 to 4: only 3-4 are traced"
says 1 "steps 3-4 are traced in "
train 0 0 "" "write 0 none" profile.steps=9
goes_on "profile.steps is 9, but this launch takes steps 1 to 4: nothing is traced"
[[ ! -e $folder/run/trace ]] || give_up "a folder for a trace of nothing"

events=(log.tensorboard=true)
train 74 0 /tensorboard "write 1 ENOSPC" "${events[@]}"
refused "$folder/run/tensorboard/"
train 0 0 /tensorboard "write 4 ENOSPC" "${events[@]}"
goes_on "no more events for TensorBoard: .*No space left on device; the run goes on"

train 0 1 "" "write 2 ENOSPC" log.ranks=true
goes_on "log.rank-00001.txt: No space left on device; nothing more goes into this log"
# Rank 0 is slow to write the report of a run that was asked to stop: the ranks that wait for it must not count as lost.
rm -rf "$folder/run"
timeout -k 10 "$(stretched 300)" "$mpirun" 2 env "LD_PRELOAD=$shim" "LLAMESH_FAIL=rename 1 7" "LLAMESH_FAIL_BELOW=$folder/run/report.html" \
  "$llamesh" train inputs/tiny.yaml "run.folder=$folder/run" train.threads=1 train.steps=1000000 log.every_steps=1000 \
  > "$folder/log" 2>&1 &
job=$!
trains() { [[ -n $(sed -n 3p "$folder/run/metrics.jsonl" 2>/dev/null) ]]; }
within 120 trains || give_up "it does not train"
pkill -TERM -f "^$llamesh train inputs/tiny.yaml run.folder=$folder/run "
wait $job
code=$?
[[ $code == 75 && -e $folder/run/report.html && ! -e $folder/run/failure.json ]] ||
  give_up "a slow report: exit code $code instead of 75, no report, or a failure.json"
grep -q '"reason": "SIGTERM"' "$folder/run/state.json" || give_up "a slow report: $(cat "$folder/run/state.json")"

echo "what only watches ends no run"
