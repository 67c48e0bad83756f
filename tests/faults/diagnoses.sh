#!/usr/bin/env bash
# Breaks runs on 4 ranks, each at a rank and time drawn from its number, and counts how often the
# diagnosis is right: the rank (and its host) in failure.json, in `llamesh status`, and in the log.
#   tests/faults/diagnoses.sh LLAMESH FAULTY [--slurm] [--tries N (20)] [--at-once N (4)] [KIND...]
# FAULTY is build/*/tests/faulty_llamesh. Runs under mpirun on this machine, or with --slurm on
# nodes of a cluster made for it (tests/cluster/cluster.sh), one rank per node. KIND:
#   killed   SIGKILL
#   stopped  SIGSTOP
#   cut      two nodes lose each other's packets (with --slurm)
#   another  the rank calls a different collective, or one more or one less (debug.contract)
#   flipped  a bit in the rank's weights or moments flips, with 4 replicas (debug.replica_hash_every)
#   pair     the same with 2 replicas: both are named
#   slow     stopped for 45 out of every 60 ms, one try at a time
# Times in seconds run from the fault to failure.json; for a slow rank to the line that names it;
# for a rank killed under mpirun, which leaves nobody to report it, from the next launch. Prints a
# line per try, then a table; ends with 1 if a diagnosis was wrong.
# shellcheck disable=SC2034,SC2154,SC1091  # jobs.sh uses and makes them
set -uo pipefail
source "$(dirname "$0")/../cluster/jobs.sh"
source "$(dirname "$0")/../forget_runs.sh"
llamesh=$(readlink -f "$1") faulty=$(readlink -f "$2")
slurm=no tries=20 at_once=4 kinds=()
for ((i = 3; i <= $#; ++i)); do
  case ${!i} in
    --slurm) slurm=yes ;;
    --tries) ((++i)); tries=${!i} ;;
    --at-once) ((++i)); at_once=${!i} ;;
    *) kinds+=("${!i}") ;;
  esac
done
((${#kinds[@]})) || read -ra kinds <<<"killed stopped $([[ $slurm == no ]] || echo cut) another flipped pair slow"
if [[ $slurm == yes ]]; then
  on_cluster $((4 * at_once)) "$0" "$llamesh" "$faulty" "${@:3}"
else
  work=$(mktemp -d "${TMPDIR:-/tmp}/llamesh-diagnoses.XXXXXX")
  trap 'rm -rf "$work"' EXIT
  cd "$work" && ln -s "$sources/inputs" inputs && mkdir bin
fi
mkdir faulty && ln -s "$faulty" faulty/llamesh

now() { echo $((${EPOCHREALTIME/[.,]/} / 1000)); }  # ms
# draw WHAT N: prints a number below N, the same for a try on every machine
draw() { echo $((0x$(sha1sum <<<"$scenario $1" | cut -c 1-8) % $2)); }

# rank N RUN: as in jobs.sh, but also under mpirun
rank() {
  local process
  for process in $(ranks "$2"); do
    grep -qszxE "(SLURM_PROCID|OMPI_COMM_WORLD_RANK)=$1" "/proc/$process/environ" && echo "$process"
  done
}

# start KEY=VALUE...: starts this try's run in the background
same_run=(train.steps=100000 "data.train=[inputs/text/tiny.txt]" train.global_batch=8 checkpoint.every_steps=200)
start() {
  if [[ $slurm == yes ]]; then
    PATH=$(dirname "$on_path"):$PATH submit multi-node "$run" --no-requeue --nodes=$((4 / per_node)) --ntasks-per-node=$per_node \
      --cpus-per-task=1 --overcommit -- sharding.strategy=full_shard "$@"
  else
    "$sources/tests/mpirun.sh" 4 "$program" train inputs/tiny.yaml "run.folder=$run" "${same_run[@]}" \
      mesh.ranks_per_node="$per_node" "$@" >>"$scenario.0.log" 2>&1 &
  fi
}

# host_of RANK: prints its host; a job has all nodes in its group, or the first ones
host_of() { if [[ $slurm == yes ]]; then echo "node$((${nodes%% *} + $1 / per_node))"; else hostname; fi; }

# has_diagnosis: checks for a diagnosis, which may also come from the launch after a kill
has_diagnosis() { [[ -s $run/failure.json ]]; }
over() { no_ranks "$run"; }
over_but() { [[ $(ranks "$run") == "$1" ]] || over; }

# options: prints the kind's options; a slow rank needs much work between two collectives to show
options() {
  case $kind in
    another) echo debug.contract=true sharding.strategy=full_shard ;;
    flipped) echo debug.replica_hash_every=5 sharding.strategy=no_shard ;;
    pair) echo debug.replica_hash_every=5 sharding.strategy=hybrid_shard ;;
    slow) echo train.global_batch=128 train.micro_batch=16 ;;
  esac
}

# break_it: injects the fault, and keeps it up until there is a diagnosis. Sets struck, and diagnosed_at
# for some.
break_it() {
  local pid
  pid=$(rank "$victim" "$run")
  struck=$(now)
  case $kind in
    killed) kill -KILL "$pid"; within 60 over
      has_diagnosis || { struck=$(now); start train.steps=1; within 60 has_diagnosis; } ;;
    stopped) kill -STOP "$pid"; within 90 over_but "$pid"; kill -KILL "$pid" 2>/dev/null ;;
    cut) cluster pair "${host#node}" "${peer_host#node}" down; within 90 has_diagnosis; within 60 over
      cluster pair "${host#node}" "${peer_host#node}" up ;;
    slow)
      while ! grep -q 'is slow: its own work' "$run/log.txt" && (($(now) - struck < 60000)); do
        kill -STOP "$pid"; sleep 0.045; kill -CONT "$pid"; sleep 0.015
      done
      diagnosed_at=$(now)
      kill -TERM "$pid" ;;
  esac
}

# named: prints the run's diagnosis, and whether it is right
named() {
  local name="rank $victim on $host" status
  case $kind in
    slow) said=$(grep -m1 'is slow: its own work' "$run/log.txt"); [[ $said == *"$name is slow"* ]]; return ;;
    cut)
      if ((victim < peer)); then name+=" and rank $peer on $peer_host"; else name="rank $peer on $peer_host and $name"; fi
      name+=" cannot reach each other" ;;
  esac
  said=$(tr -d '\n' <"$run/failure.json" 2>/dev/null)
  status=$("$llamesh" status "$run" --json 2>/dev/null | tr -d ' \n')
  [[ $said == *"$name"* ]] && grep -qs "$name" "$run/log.txt" "$scenario".*.log || return
  case $kind in
    cut) [[ $status == *'"kind":"link","rank":'"$((victim < peer ? victim : peer))",* ]] ;;
    pair) ;;
    *) [[ $said =~ \"rank\":\ *$victim, && $said =~ \"host\":\ *\"$host\" && $status == *'"rank":'"$victim,\"host\":\"$host\""* ]] ;;
  esac
}

# try KIND NUMBER: prints a line "KIND NUMBER right|wrong SECONDS WHAT"
try() {
  local kind=$1 number=$2 scenario=$1-$2 run=run-$1-$2 result=wrong said='' struck=0 diagnosed_at='' job
  local program=$llamesh on_path=bin/llamesh victim host peer peer_host step per_node=1
  victim=$(draw victim 4) step=$((8 + $(draw step 25)))
  peer=$(((victim + 1 + $(draw peer 3)) % 4))
  if [[ $kind == another || $kind == flipped || $kind == pair ]]; then
    program=$faulty on_path=faulty/llamesh
    LLAMESH_FAULT="${kind/pair/flipped} $victim $step $(draw number 100000)"
    export LLAMESH_FAULT LLAMESH_FAULT_AT=$work/$scenario.at
  fi
  # Under mpirun nodes are logical; on a single node all shards share its memory.
  if [[ $kind == pair ]]; then per_node=2; elif [[ $slurm == no ]]; then per_node=$((number % 2 ? 2 : 4)); fi
  # shellcheck disable=SC2046
  start $(options)
  within 120 past "$run" 5 || echo "$scenario: it does not train"
  host=$(host_of "$victim") peer_host=$(host_of "$peer")
  if [[ $program == "$faulty" ]]; then
    within 180 over || echo "$scenario: it does not end"
    struck=$(($(cat "$LLAMESH_FAULT_AT" || echo 0) / 1000000))
  else
    sleep "$(draw wait 3).$(draw fraction 1000)"
    break_it
    within 60 over
  fi
  : "${diagnosed_at:=$(stat -c %.3Y "$run/failure.json" 2>/dev/null | tr -d .)}"
  named && result=right
  echo "$kind $number $result $((${diagnosed_at:-struck} - struck)) ms rank $victim: ${said:-nothing is said}"
  if [[ $result == wrong && -n ${LLAMESH_KEEP:-} ]]; then cp -r "$run" "$scenario".*log "$LLAMESH_KEEP"; fi
  if [[ $slurm == no ]]; then wait; else clean_up >/dev/null; fi
  forget_runs "$run"
  rm -rf "$run"
}

# work_on GROUP OF: runs every OF-th try, with --slurm on its own nodes
work_on() {
  local group=$1 number node=$((4 * ($1 - 1) + 1)) nodes
  nodes="$node $((node + 1)) $((node + 2)) $((node + 3))"
  for ((number = group; number <= tries; number += $2)); do (try "$kind" "$number") 2>>"errors"; done
}

for kind in "${kinds[@]}"; do
  groups=$([[ $kind == slow ]] && echo 1 || echo "$at_once")
  for ((group = 1; group <= groups; ++group)); do work_on "$group" "$groups" & done
  wait
done | tee all
awk '{ n[$1]++; if ($3 == "right") right[$1]++; s[$1] += $4 / 1000; if ($4 / 1000 > worst[$1]) worst[$1] = $4 / 1000 }
  END { for (k in n) { printf "%-8s %d of %d right, %.1f s on average, %.1f at worst\n", k, right[k], n[k], s[k] / n[k], worst[k]
    bad += n[k] - right[k] }; exit bad > 0 }' all
