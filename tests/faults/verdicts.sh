#!/usr/bin/env bash
# Breaks runs of 4 ranks, each at a time and in a rank that its number draws, and counts how often the verdict is right.
#   tests/faults/verdicts.sh LLAMESH [--tries N (20)] [--at-once N (4)] [KIND...]
# KIND: killed   SIGKILL; the next start gives the verdict by the flight records
#       stopped  SIGSTOP; the others give it
#       slow     stopped for 30 of every 60 ms; log.txt names the straggler
# Takes some minutes. The seconds are from the fault to the end of the run, of a slow rank to the line that names it.
set -uo pipefail
export llamesh sources
llamesh=$(readlink -f "$1")
sources=$(cd "$(dirname "$0")/../.." && pwd -P)
shift
tries=20 at_once=4 kinds=()
while (($#)); do
  case $1 in
    --tries) tries=$2; shift 2 ;;
    --at-once) at_once=$2; shift 2 ;;
    *) kinds+=("$1"); shift ;;
  esac
done
((${#kinds[@]})) || kinds=(killed stopped slow)
export work
work=$(mktemp -d "${TMPDIR:-/tmp}/llamesh-verdicts.XXXXXX")
trap 'rm -rf "$work"' EXIT

# try KIND NUMBER: a line "KIND NUMBER right|wrong SECONDS WHAT".
try() {
  local kind=$1 number=$2 run=$work/$1-$2 verdict=wrong
  RANDOM=$((number * 7919 + ${#kind}))
  local rank=$((RANDOM % 4)) wait=$((500 + RANDOM % 3000)) pid began said
  train() {
    exec "$sources/tests/mpirun.sh" 4 "$llamesh" train "$sources/inputs/tiny.yaml" "run.folder=$run" "data.train=[$sources/inputs/text/tiny.txt]" \
      train.steps=100000 train.global_batch=8 train.threads=1 mesh.ranks_per_node=2 checkpoint.every_steps=200 evaluate.every_steps=0 "$@"
  }
  # Long steps: of short ones a rank that is slow by 20 % is not told from noise.
  local long=()
  [[ $kind == slow ]] && long=(train.global_batch=512)
  (train "${long[@]}") >"$run.log" 2>&1 &
  until [[ $(wc -l 2>/dev/null <"$run/metrics.jsonl") -gt 5 ]]; do sleep 0.1; done
  sleep "$((wait / 1000)).$(printf '%03d' $((wait % 1000)))"
  pid=$(pgrep -f "^$llamesh .*run.folder=$run " | while read -r p; do
    tr '\0' '\n' <"/proc/$p/environ" | grep -qx "OMPI_COMM_WORLD_RANK=$rank" && echo "$p"; done)
  began=$SECONDS
  case $kind in
    killed) kill -KILL "$pid"; wait
      began=$SECONDS
      (train train.steps=1) >"$run.again" 2>&1; wait ;;
    stopped) kill -STOP "$pid"
      while pgrep -f "^$llamesh .*run.folder=$run " | grep -vqx "$pid"; do sleep 0.2; done
      kill -KILL "$pid" 2>/dev/null; wait ;;
    slow)
      while ! grep -q 'is slow: its own work' "$run/log.txt" && ((SECONDS - began < 60)); do
        kill -STOP "$pid"; sleep 0.03; kill -CONT "$pid"; sleep 0.03
      done
      kill -TERM "$pid"; wait ;;
  esac
  if [[ $kind == slow ]]; then
    said=$(grep -m1 'is slow: its own work' "$run/log.txt")
    [[ $said == *"rank $rank on "* ]] && verdict=right
  else
    said=$(tr -d '\n' <"$run/failure.json" 2>/dev/null)
    [[ $said =~ \"rank\":\ *$rank[,}] ]] && verdict=right
  fi
  echo "$kind $number $verdict $((SECONDS - began)) rank $rank: ${said:-nothing is said}"
  rm -rf "$run" "$run".*
}
export -f try

for kind in "${kinds[@]}"; do
  seq "$tries" | xargs -P "$at_once" -I{} bash -c "try $kind {}"
done | tee "$work/all"
awk '{ n[$1]++; if ($3 == "right") right[$1]++; s[$1] += $4; if ($4 > worst[$1]) worst[$1] = $4 }
  END { for (k in n) { printf "%-8s %d of %d right, %.0f s on average, %d at worst\n", k, right[k], n[k], s[k] / n[k], worst[k]; bad += n[k] - right[k] }; exit bad > 0 }' "$work/all"
