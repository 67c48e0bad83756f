#!/bin/bash
# look_at_runs.sh LLAMESH: the user's view of whole runs: status during and after a run, and after
# it was killed or diverged; the run's report. Runs in the folder that has inputs/.
llamesh=$1
mpirun="$(dirname "$0")/../mpirun.sh"
source "$(dirname "$0")/../patience.sh"
source "$(dirname "$0")/../forget_runs.sh"
folder=$(mktemp -d) || exit 1
trap 'forget_runs "$folder"; rm -rf "$folder"' EXIT
give_up() { echo "FAILED: $1"; cat "$folder/log"; exit 1; }
# train CODE RUN OVERRIDE...: trains on two ranks, which must end with this code
train() {
  local wanted=$1 run=$2 code; shift 2
  "$mpirun" 2 "$llamesh" train inputs/tiny.yaml "run.folder=$folder/$run" "$@" > "$folder/log" 2>&1; code=$?
  [[ $code == "$wanted" ]] || give_up "train $run $*: exit code $code instead of $wanted"
}
# status RUN TEXT: checks that the run's JSON status contains this text
status() {
  "$llamesh" status --json "$folder/$1" > "$folder/log" 2>&1 || give_up "status of $1"
  grep -qF -- "$2" "$folder/log" || give_up "status of $1 without $2"
}

mkdir "$folder/run"
status run '"phase":"not_started"'
train 0 run train.steps=4 checkpoint.every_steps=2
tail -n 1 "$folder/log" | grep -Eq "done: step 4 of 4, final loss [0-9.]+, .* of wall-clock time; report: $folder/run/report.html; next: llamesh generate $folder/run" ||
  give_up "the last line does not say what the run came to"
status run '"phase":"done","step":4,"steps":4,'
status run '"checkpoint":{"step":4,"age_seconds":'
status run '"restarts":0,"kilowatt_hours":null,"goodput":{"productive":'
[[ -s $folder/run/report.html ]] || give_up "no report of a run that is done"
grep -q "MPI_Init" "$folder/run/report.html" || give_up "no start-up in the report"
train 0 run train.steps=6
status run '"phase":"done","step":6,"steps":6,'
status run '"restarts":1'

train 0 quiet train.steps=2 log.report=false
[[ ! -e $folder/quiet/report.html ]] || give_up "a report in spite of log.report=false"

# A report that follows a run ends with it, and no longer loads itself again.
mkdir "$folder/watched"
"$llamesh" report "$folder/watched" --watch=1 > "$folder/watch.log" 2>&1 &
watching=$!
train 0 watched train.steps=4 log.report=false
wait $watching || { cat "$folder/watch.log"; give_up "report --watch"; }
[[ $(tail -n 1 "$folder/watch.log") == "$folder/watched/report.html" ]] || give_up "report --watch named no file"
grep -q '"refresh":0' "$folder/watched/report.html" || give_up "the last report loads itself again"
"$llamesh" report "$folder/watched" --watch --output - > "$folder/log" 2>&1
[[ $? == 78 ]] && grep -q "name a file" "$folder/log" || give_up "--watch to standard output"

train 93 diverged train.steps=50 optimizer.lr=1e30 optimizer.clip_norm=0
grep -q -- '-nan' "$folder/log" && give_up "a NaN with a sign"
status diverged '"phase":"failed"'
status diverged 'diverged'
[[ -s $folder/diverged/report.html ]] || give_up "no report of a run that diverged"

"$llamesh" train inputs/tiny.yaml "run.folder=$folder/killed" train.steps=1000000 > "$folder/log" 2>&1 &
process=$!
trains() { "$llamesh" status --json "$folder/killed" 2> /dev/null | grep -q '"loss":[0-9]'; }
within 120 trains
status killed '"phase":"running"'
grep -q '"eta_seconds":[0-9]' "$folder/log" || give_up "no end in sight"
kill -KILL $process
wait $process 2> /dev/null
touch -d '2 minutes ago' "$folder/killed/checkpoints/.lease"  # emulates a dead run
status killed '"phase":"killed"'
status killed '"eta_seconds":null'

"$llamesh" report "$folder/run" "$folder/killed" --output "$folder/both.html" > "$folder/log" 2>&1 || give_up "report of two runs"
"$llamesh" report "$folder/run" --output "$folder/run/metrics.jsonl" > "$folder/log" 2>&1
[[ $? == 78 ]] && grep -q '"step":1,' "$folder/run/metrics.jsonl" || give_up "a report in the place of the metrics"
grep -qF '{"key":"train.steps","values":["6","1000000"]}' "$folder/both.html" || give_up "no difference of the inputs"
