#!/bin/bash
# random_kills.sh LLAMESH [N] [SEED]: N times (default 20) a whole run of 4 ranks that saves after every step,
# every second time asynchronously, loses a random rank to SIGKILL at a random instant and is started
# again. It must end as the run that nothing disturbed did: the same loss and gradient norm of each step, digit by
# digit, and a last checkpoint that is equal to the bit. Runs in the folder that has inputs/.
llamesh=$1 n=${2:-20} seed=${3:-$RANDOM}
RANDOM=$seed
mpirun="$(dirname "$0")/../mpirun.sh"
steps=10
folder=$(mktemp -d) || exit 1
trap 'rm -rf "$folder"' EXIT
give_up() { echo "$1 (seed $seed)"; tail -30 "$folder/log"; exit 1; }

# train RUN ASYNC: becomes mpirun, so that its children are the ranks.
train() {
  exec "$mpirun" 4 "$llamesh" train inputs/tiny.yaml train.steps=$steps train.global_batch=4 mesh.ranks_per_node=2 log.every_steps=1 \
       checkpoint.every_steps=1 "checkpoint.async=$2" "run.folder=$folder/$1" >> "$folder/log" 2>&1
}
# losses RUN: what was told last about each step.
losses() {
  sed -n 's/^{\("step":[0-9]*\),\("loss":[^,]*,"grad_norm":[^,]*\),.*/\1 \2/p' "$folder/$1/metrics.jsonl" |
    awk '{ told[$1] = $2 } END { for (step in told) print step, told[step] }' | sort
}

# trains RUN JOB: waits until the first step is done; false when the job ended before.
trains() {
  until [ -s "$folder/$1/metrics.jsonl" ]; do
    kill -0 "$2" 2>/dev/null || return 1
    sleep 0.02
  done
}
# pause MICROSECONDS
pause() { sleep "$(($1 / 1000000)).$(printf %06d $(($1 % 1000000)))"; }

: > "$folder/log"
start=${EPOCHREALTIME/./}
train unbroken false & job=$!
trains unbroken $job || give_up "the unbroken run failed"
first_step=${EPOCHREALTIME/./}
wait $job || give_up "the unbroken run failed"
start_micros=$((first_step - start)) train_micros=$((${EPOCHREALTIME/./} - first_step))
losses unbroken > "$folder/expected"
[ "$(wc -l < "$folder/expected")" = $steps ] || give_up "the unbroken run did not tell $steps steps"

killed=0 training=0 tries=0
while [ $killed -lt "$n" ]; do
  tries=$((tries + 1))
  [ $tries -le $((3 * n + 10)) ] || give_up "only $killed of $((tries - 1)) runs could be killed"
  async=$([ $((killed % 2)) = 1 ] && echo true || echo false)
  : > "$folder/log"
  rm -rf "$folder/run"
  train run $async & job=$!
  # At a random instant: every fifth time of the start, else of the training.
  if [ $((killed % 5)) = 4 ]; then
    pause $((start_micros * (RANDOM % 1000) / 1000))
  else
    trains run $job && pause $((train_micros * (RANDOM % 1000) / 1000))
  fi
  ranks=()
  { read -ra ranks < "/proc/$job/task/$job/children"; } 2>/dev/null
  [ ${#ranks[@]} -gt 0 ] && kill -KILL "${ranks[RANDOM % ${#ranks[@]}]}" 2>/dev/null
  wait $job && continue  # it was over, or had not begun
  killed=$((killed + 1))
  [ -s "$folder/run/metrics.jsonl" ] && training=$((training + 1))
  echo "-- killed; started again" >> "$folder/log"
  (train run $async) || give_up "kill $killed (async: $async): the run did not go on"
  losses run | cmp -s - "$folder/expected" || give_up "kill $killed (async: $async): other losses"
  "$llamesh" diff "$folder/unbroken/checkpoints/step_000000$steps" "$folder/run/checkpoints/step_000000$steps" \
    >> "$folder/log" 2>&1 || give_up "kill $killed (async: $async): another last state"
done
[ $training -ge $((n / 2)) ] || give_up "only $training of $n kills hit a run that was training"
echo "$n kills ($training of them during training), all resumed and ended like the unbroken run"
