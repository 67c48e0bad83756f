#!/bin/bash
# random_kills.sh LLAMESH [N] [SEED]: kills whole runs N times (default 20). A run on 4 ranks saves
# after every step, every second run asynchronously; it loses a random rank to SIGKILL at a random
# instant and is started again. It must end like an undisturbed run: the same loss and gradient norm
# in each step, digit by digit, and a last checkpoint that is equal to the bit. A run that does not
# end is shown with its ranks' stacks and fails the test. Runs in the folder that has inputs/.
llamesh=$1 n=${2:-20} seed=${3:-$RANDOM}
RANDOM=$seed
mpirun="$(dirname "$0")/../mpirun.sh"
source "$(dirname "$0")/../patience.sh"
source "$(dirname "$0")/../forget_runs.sh"
steps=10
limit=60  # seconds per run, stretched; it takes some 2, and 15 on a busy machine
folder=$(mktemp -d) || exit 1
timer=
trap 'kill $timer 2>/dev/null; forget_runs "$folder"; rm -rf "$folder"' EXIT
exec {never}<> <(:)  # nothing is ever written to it
killed=0 training=0 tries=0 stuck=0
cycle() { echo "kill $killed, try $tries, async: ${async:-false}, after ${instant:-no kill}, seed $seed"; }
give_up() { echo "$1 ($(cycle))"; tail -30 "$folder/log"; exit 1; }

micros() { echo "${EPOCHREALTIME/./}"; }
# pause MICROSECONDS: sleeps without starting a process
pause() { read -rt "$(($1 / 1000000)).$(printf %06d $(($1 % 1000000)))" -u $never; }

# train RUN ASYNC: execs mpirun, so that its children are the ranks
train() {
  exec "$mpirun" 4 "$llamesh" train inputs/tiny.yaml train.steps=$steps train.global_batch=4 mesh.ranks_per_node=2 log.every_steps=1 \
       checkpoint.every_steps=1 "checkpoint.async=$2" "run.folder=$folder/$1" >> "$folder/log" 2>&1
}
# begin RUN ASYNC: starts the run as $job, with a time limit
begin() {
  train "$@" & job=$!
  begun=$(micros)
  sleep "$(stretched "$limit")" & timer=$!
}
# ranks: lists the processes of the job's ranks that have not ended
ranks() {
  local children rank state
  { children=$(cat "/proc/$job/task"/*/children); } 2>/dev/null
  for rank in $children; do
    { read -r state < <(sed 's/.*) //' "/proc/$rank/stat"); } 2>/dev/null
    [[ $state == Z* ]] || echo "$rank"
  done
}

# show_stuck: shows where mpirun and its ranks are waiting
show_stuck() {
  local process
  echo "not over in time ($(cycle)); the end of its log:"
  tail -n 30 "$folder/log"
  ps -o pid,ppid,stat,etimes,wchan:24,args -p "$job" --ppid "$job"
  for process in $job $(ranks); do
    echo "-- process $process"
    ps -L -o tid,stat,wchan:24,comm -p "$process"
    timeout 20 gdb -p "$process" -batch -ex 'thread apply all backtrace 20' 2>/dev/null ||
      timeout 20 eu-stack -p "$process" 2>/dev/null || echo "no stack: neither gdb nor eu-stack can tell"
  done
}
# ended: waits for the job and returns its code. A job that does not end is killed and fails the
# test, unless no rank is left: after 5 out of 218 kills within the first 1.5 s, on a busy machine,
# only mpirun did not end, since orte_finalize (Open MPI 4.1.4 with PMIx 4.2.2) waits for a mutex in
# PMIx_server_finalize. That returns 255.
ended() {
  local who code left
  wait -n -p who "$job" "$timer"
  code=$?
  if [ "$who" != "$timer" ]; then kill $timer; wait $timer; return $code; fi 2>/dev/null
  show_stuck
  left=$(ranks)
  # shellcheck disable=SC2086  # processes are words
  kill -KILL $job $left 2>/dev/null
  wait $job 2>/dev/null
  [ -z "$left" ] || exit 1
  stuck=$((stuck + 1))
  [ $stuck -le $(((n + 3) / 4)) ] || give_up "mpirun alone did not end, $stuck times"
  return 255
}

restart() { begin run "$async"; ended; }

# count RUN: sets rows to the number of lines in its metrics.jsonl; a run writes two per step
count() {
  local lines=()
  { mapfile -t lines < "$folder/$1/metrics.jsonl"; } 2>/dev/null
  rows=${#lines[@]}
}
# past RUN ROWS: waits for this many rows; false if the job ended first. Records the time from the
# start to the first row, and between rows.
start_micros=0 row_micros=0
past() {
  local since=$begun before=0 now
  while :; do
    count "$1"
    if [ $rows -gt $before ]; then
      now=$(micros)
      if [ $before = 0 ]; then start_micros=$((now - since)); else row_micros=$(((now - since) / (rows - before))); fi
      since=$now before=$rows
    fi
    [ $rows -lt "$2" ] || return 0
    kill -0 "$job" 2>/dev/null || return 1
    pause 2000
  done
}
# losses RUN: prints the last report about each step
losses() {
  sed -n 's/^{\("step":[0-9]*\),\("loss":[^,]*,"grad_norm":[^,]*\),.*/\1 \2/p' "$folder/$1/metrics.jsonl" |
    awk '{ told[$1] = $2 } END { for (step in told) print step, told[step] }' | sort
}

: > "$folder/log"
begin unbroken false
past unbroken 1000
ended || give_up "the unbroken run failed"
count unbroken
all_rows=$rows
losses unbroken > "$folder/expected"
[ "$(wc -l < "$folder/expected")" = $steps ] || give_up "the unbroken run did not tell $steps steps"

while [ $killed -lt "$n" ]; do
  tries=$((tries + 1))
  # A fast run may end before it is killed. Something is wrong only if nearly all do.
  [ $tries -le $((10 * n + 40)) ] || give_up "only $killed of $((tries - 1)) runs could be killed"
  async=$([ $((killed % 2)) = 1 ] && echo true || echo false)
  : > "$folder/log"
  rm -rf "$folder/run"
  begin run $async
  # At a random instant: every fifth kill is during the start, half of those as soon as there are
  # ranks; all others are between two rows.
  case $((killed % 10)) in
    4) instant="$((RANDOM % 50)) ms of the ranks"
       while [ -z "$(ranks)" ] && kill -0 "$job" 2>/dev/null; do pause 1000; done
       pause $((${instant%% *} * 1000)) ;;
    9) instant="$((start_micros * (RANDOM % 1000) / 1000000)) ms"
       pause $((${instant%% *} * 1000)) ;;
    *) row=$((1 + RANDOM % (all_rows - 1)))
       past run $row
       share=$((RANDOM % 1000))
       instant="row $row and $((row_micros * share / 1000)) us"
       pause $((row_micros * share / 1000)) ;;
  esac
  read -ra alive < <(ranks | tr '\n' ' ')
  [ ${#alive[@]} -gt 0 ] && kill -KILL "${alive[RANDOM % ${#alive[@]}]}" 2>/dev/null
  ended && continue  # it was over, or had not begun
  killed=$((killed + 1))
  [ -s "$folder/run/metrics.jsonl" ] && training=$((training + 1))
  echo "-- killed; started again" >> "$folder/log"
  restart || { [ $? = 255 ] && restart; } || give_up "the run did not go on"
  losses run | cmp -s - "$folder/expected" || give_up "other losses"
  "$llamesh" diff "$folder/unbroken/checkpoints/step_000000$steps" "$folder/run/checkpoints/step_000000$steps" \
    >> "$folder/log" 2>&1 || give_up "another last state"
done
[ $training -ge $((n / 2)) ] || give_up "only $training of $n kills hit a run that was training"
echo "$n kills ($training of them during training), all resumed and ended like the unbroken run"
[ $stuck = 0 ] || echo "mpirun had to be killed $stuck times after all of its ranks had ended"
