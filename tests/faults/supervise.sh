#!/usr/bin/env bash
# supervise.sh LLAMESH CASE: what `llamesh supervise` does after launches that fail, and when it is asked to stop. Slurm's
# programs are stand-ins for a job of three nodes: srun does what the function `launch` of the case says, and the rest note
# that they were called. The cases are the functions below; CMakeLists.txt names them.
# shellcheck disable=SC2016,SC2015  # what the stand-ins expand themselves
set -uo pipefail
export program
program=$(readlink -f "$1")
source "$(dirname "$0")/../patience.sh"
work=$(mktemp -d "${TMPDIR:-/tmp}/llamesh-supervise.XXXXXX")
trap 'rm -rf "$work"' EXIT
cd "$work" || exit 1
mkdir bin run
for variable in $(compgen -e SLURM_); do unset "$variable"; done
export SLURM_JOB_ID=7 SLURM_JOB_NODELIST='node[1-3]' SLURM_NTASKS_PER_NODE=2

stand_in() { printf '#!/bin/bash\n%s\n' "$2" >"bin/$1"; chmod +x "bin/$1"; }
stand_in squeue 'case "$*" in *%N*) cat job_nodes ;; *-s*) echo "7.0 llamesh" ;; esac'
stand_in sinfo 'cat node_states 2>/dev/null'
stand_in scancel 'echo "scancel $*" >>ended'
stand_in scontrol 'case "$1 $2" in
  ping*) echo "is UP" ;;
  "show hostnames") if [[ $3 == "node[1-3]" ]]; then printf "node1\nnode2\nnode3\n"; else tr , "\n" <<<"$3"; fi ;;
  "-o show") echo "JobId=7 JobState=$(cat job_state) Restarts=$(cat restarts) ExcNodeList=(null) Features=(null)" ;;
  requeue*) echo "$*" >>asked; echo PENDING >job_state ;;
  update*) echo "$*" >>asked ;;
esac'
# A launch of the ranks is `launch N NODES`, the N-th; one to try a node is `try_node NODE`.
stand_in srun 'source ./case
echo "$*" >>calls
nodes=$*; nodes=${nodes#*--nodelist=}; nodes=${nodes%% *}
case "$*" in
  *llamesh-guard*) echo "$nodes" >>guards; exec sleep 3600 ;;
  *"echo launched"*) try_node "$nodes"; exit ;;
  *"sh -c for mark in /dev/shm/llamesh-memory-$UID-"*) echo "$nodes" >>cleaned; clean "${@: -5}"; exit ;;
esac
[[ $* == *"--ntasks=$((2 * ($(tr -cd , <<<"$nodes" | wc -c) + 1))) "* ]] || exit 99
echo "$nodes" >>launches
launch "$(wc -l <launches)" "$nodes"'
export PATH=$work/bin:$PATH

bad() {
  echo "FAILED: $1"
  head -n 50 launches asked ended run/bad_nodes.json log 2>/dev/null
  exit 1
}

# given: the functions of standard input are the case's.
# ends STATE CODE STEP REASON [HOST]: writes what llamesh leaves behind; a HOST is blamed.
given() {
  cat >case <<'CASE'
try_node() { echo launched; }
clean() { :; }
ends() {
  local hosts=${5:+\"$5\"}
  printf '{"state": "%s", "exit_code": %d, "step": %d, "reason": "%s", "first_step": 0, "starts_here": 1, "starts": %d,
    "culprit_ranks": [%s], "culprit_hosts": [%s]}' "$1" "$2" "$3" "$4" "$(wc -l <launches)" "${5:+2}" "$hosts" >run/state.json
  [[ $1 == done ]] || printf '{"kind": "lost", "detail": "%s", "host": "%s", "step": %d}' "$4" "${5:-}" "$3" >run/failure.json
  exit "$2"
}
killed() {
  printf '{"state": "running", "exit_code": 0, "step": 5, "reason": "", "first_step": 0, "starts_here": 1, "starts": %d}' \
    "$(wc -l <launches)" >run/state.json
  exit 137
}
finishes() { ends done 0 100 ""; }
asked_to_stop() { (ends stopped 75 10 SIGUSR2); rm run/failure.json; exit 75; }
CASE
  cat >>case
}

# supervise [OPTION...]: `launcher` has the words for srun.
launcher=(srun --mpi=pmix)
supervise() {
  echo RUNNING >job_state
  echo "${job_nodes:-node[1-3]}" >job_nodes
  echo 0 >restarts
  touch launches asked ended
  timeout -k 10 "$(stretched 300)" "$program" supervise run "$@" -- "${launcher[@]}" llamesh train a.yaml >log 2>&1
  code=$?
}
# expect CODE LAUNCHES ASKED: how it ended, the nodes of each launch, and what it asked Slurm for.
expect() {
  [[ $code == "$1" ]] || bad "exit code $code, not $1"
  [[ $(paste -sd' ' launches) == "$2" ]] || bad "launched on '$(paste -sd' ' launches)', not '$2'"
  [[ $(paste -sd';' asked) == "$3" ]] || bad "asked '$(paste -sd';' asked)', not '$3'"
}
logs() { grep -q -- "$1" log || bad "it does not say '$1'"; }

spare_takes_over() {
  given <<<'launch() { (($1 > 1)) && finishes; ends stopped 75 12 "rank 2 on node2 is silent" node2; }'
  supervise --spares 1
  expect 0 "node1,node2 node1,node3" ""
  grep -q '"host": "node2"' run/bad_nodes.json && grep -q '"reason": "rank 2 on node2 is silent"' run/bad_nodes.json ||
    bad "bad_nodes.json does not name node2"
}

# Slurm gets no answer from the spare until it is asked again.
waits_for_a_busy_spare() {
  given <<<'launch() {
    (($1 > 1)) && finishes
    echo "node3 allocated*" >node_states
    ends stopped 75 12 "rank 2 on node2 is silent" node2
  }'
  stand_in sinfo 'grep -q "waiting up to" log || cat node_states 2>/dev/null'
  supervise --spares 1
  expect 0 "node1,node2 node1,node3" ""
  logs "waiting up to 15 s for node3"
}

# It never answers, and node2 cannot launch any more.
gives_up_a_silent_spare() {
  given <<<'try_node() { [[ $1 == node2 ]] || echo launched; }
    launch() { (($1 > 1)) && finishes; echo "node3 idle*" >node_states; ends stopped 75 12 "rank 2 on node2 is silent" node2; }'
  supervise --spares 1
  expect 0 "node1,node2 node1" ""
  logs "continues on 1 of 2 nodes"
}

# node3 failed once, node2 twice: node1 is left.
twice_bad_stays_out() {
  given <<<'launch() { case $1 in
    1 | 3) ends stopped 75 $((10 * $1)) "rank 2 on node2 is silent" node2.cluster ;;
    2) ends stopped 75 20 "rank 2 on node3 is silent" node3 ;;
    *) finishes ;;
  esac; }'
  supervise --spares 1
  expect 0 "node1,node2 node1,node3 node1,node2 node1,node3" ""
  logs "node2.cluster is left out for good"
}

# The same, but a program cannot be launched on node3 any more.
shrinks() {
  given <<<'try_node() { [[ $1 == node3 ]] || echo launched; }
    launch() { case $1 in
      1) ends stopped 75 10 "rank 4 on node3 is silent" node3 ;;
      2) exit 78 ;;
      3) finishes ;;
    esac; }'
  supervise
  expect 0 "node1,node2,node3 node1,node2 node1" ""
  logs "continues on 2 of 3 nodes"
}

requeues_without_spares() {
  given <<<'try_node() { [[ $1 == node3 ]] || echo launched; }
    launch() { ends stopped 75 10 "rank 4 on node3 is silent" node3; }'
  supervise --resize requeue
  expect 75 "node1,node2,node3" "requeue 7;update JobId=7 ExcNodeList=node3"
  logs "2 of 3 healthy nodes are left"
}

# Slurm takes a node out of the job, and calls another down; the ranks could not say why they ended.
node_lost_by_slurm() {
  given <<<'launch() { (($1 > 1)) && finishes; echo "node2,node3" >job_nodes; echo "node3 down*" >node_states; killed; }'
  supervise --spares 1
  expect 0 "node1,node2 node2" ""
  logs "node1 is left out: Slurm has lost it"
}

# The third launch finds out what Slurm knew after the first; the second did not start.
one_failure_counts_once() {
  given <<<'launch() { case $1 in
    1) echo "node1,node3" >job_nodes; killed ;;
    2) echo "node[1-3]" >job_nodes; exit 1 ;;
    *) echo "{\"kind\": \"vanished\", \"detail\": \"node2 vanished\", \"host\": \"node2\", \"step\": 5}" >run/failure.json
      finishes ;;
  esac; }'
  supervise --spares 1
  expect 0 "node1,node2 node1,node3 node1,node3" ""
  [[ $(grep -c '"host"' run/bad_nodes.json) == 1 ]] || bad "one failure counts twice"
}

# scontrol does not list the nodes any more: none of them is lost.
hosts_are_not_listed() {
  given <<<'launch() { (($1 > 1)) && finishes; sed -i "s/hostnames\")/&exit 1;/" bin/scontrol; killed; }'
  supervise --spares 1
  expect 0 "node1,node2 node1,node2" ""
  [[ ! -e run/bad_nodes.json ]] || bad "a node is blamed"
}

# node3, a spare, has too little shared memory, and so has node4.
unfit_spares() {
  given <<<'launch() { case $1 in
    1) ends stopped 75 12 "rank 2 on node2 is silent" node2 ;;
    [23]) echo "unfit ${2#*,}.cluster /dev/shm is full" >>"$LLAMESH_STARTED_FILE"; exit 78 ;;
    *) finishes ;;
  esac; }'
  SLURM_JOB_NODELIST=node1,node2,node3,node4,node5
  job_nodes=$SLURM_JOB_NODELIST supervise --spares 3
  expect 0 "node1,node2 node1,node3 node1,node4 node1,node5" ""
  logs "node3.cluster is left out: /dev/shm is full"
  [[ $(grep -c '"host"' run/bad_nodes.json) == 1 ]] || bad "a node that did not fail is blamed: $(cat run/bad_nodes.json)"
}

# No other node can take its place.
unfit_node_without_a_spare() {
  given <<<'launch() { echo "unfit node3 /dev/shm is full" >>"$LLAMESH_STARTED_FILE"; exit 78; }'
  supervise
  expect 78 "node1,node2,node3" ""
}

# First Slurm does not know the faulty node's name; then node1 reports that another rank is gone.
nobody_to_blame() {
  given <<<'launch() { (($1 > 1)) || ends stopped 75 12 "gpu-02 is silent" gpu-02
    (ends stopped 75 12 "all_gather (another rank is gone) failed in NCCL")
    sed -i "s/lost/error/; s/\"host\": \"\"/\"host\": \"node1\"/" run/failure.json
    exit 75; }'
  supervise --spares 1
  expect 75 "node1,node2 node1,node2" ""
  [[ ! -e run/bad_nodes.json ]] || bad "a node is blamed"
}

# node2 and node3 failed before, and no program can be launched on either: node3 is tried, too.
tries_what_it_chooses_next() {
  echo '{"failures": [{"host": "node2"}, {"host": "node3"}]}' >run/bad_nodes.json
  given <<<'try_node() { [[ $1 == node1 ]] && echo launched; }; launch() { finishes; }'
  supervise --spares 1
  expect 0 "node1" ""
}

# Two guards, one of them on a spare: a node of the launch may be lost together with the batch node.
guards_follow() {
  given <<<'launch() { until [[ $(wc -l <guards) == $((2 * $1)) ]]; do sleep 0.1; done; (($1 > 1)) && finishes
    ends stopped 75 12 "rank 2 on node2 is silent" node2; }'
  touch guards
  SLURM_JOB_NODELIST=node1,node2,node3,node4
  job_nodes=$SLURM_JOB_NODELIST supervise --spares 2
  expect 0 "node1,node2 node1,node3" ""
  guards_are "node2 node3 node3 node4"
}
guards_without_spares() {
  given <<<'launch() { until [[ $(wc -l <guards) == 2 ]]; do sleep 0.1; done; finishes; }'
  touch guards
  supervise
  expect 0 "node1,node2,node3" ""
  guards_are "node2 node3"
}
guards_on_spares_only() {
  given <<<'launch() { until [[ $(wc -l <guards) == 2 ]]; do sleep 0.1; done; finishes; }'
  touch guards
  supervise --spares 2
  expect 0 "node1" ""
  guards_are "node2 node3"
}
guards_are() { [[ $(sort guards | paste -sd' ') == "$1" ]] || bad "the guards are on $(paste -sd' ' guards)"; }

guard_cannot_start() {
  launcher=("$work/bin/srun")
  given <<<'launch() { rm bin/srun; until [[ -e guards ]] || grep -q "no guard for the batch node" log; do sleep 0.1; done; finishes; }'
  supervise --spares 1
  expect 0 "node1,node2" ""
}

mpi_in_two_words() {
  launcher=(srun --mpi pmix)
  given <<<'launch() { (($1 > 1)) && finishes; exit 1; }'
  supervise --spares 1
  expect 0 "node1,node2 node1,node2" ""
  grep -q '^--mpi pmix --overlap.*echo launched' calls || bad "a node is tried without --mpi pmix"
}

same_step_twice() {
  given <<<'launch() { ends failed 75 12 "a fault in step 12, try $1"; }'
  supervise --spares 1
  expect 75 "node1,node2 node1,node2" ""
  logs "it failed twice in step 12, and no node is to blame"
}

limit_of_relaunches() {
  given <<<'launch() { ends failed 75 "$1" "a fault in step $1"; }'
  supervise
  [[ $code == 75 && $(wc -l <launches) == 11 ]] || bad "exit code $code after $(wc -l <launches) launches"
  logs "it failed 11 times within an hour"
}

final_code() {
  given <<<'launch() { ends failed 93 12 "diverged"; }'
  supervise --spares 1
  expect 93 "node1,node2" ""
}

# srun does not learn that its tasks have ended.
srun_waits() {
  given <<<'launch() { (($1 > 1)) && finishes; (ends stopped 75 12 "rank 2 on node2 is silent" node2); exec sleep 3600; }'
  supervise --spares 1
  expect 0 "node1,node2 node1,node3" ""
  logs "it still waits 8 s after the end of the run"
  grep -q "signal=KILL 7.0" ended || bad "the step was not ended"
}

# A launch has measured its nodes, and node2 is slow. It may leave node2 out while a spare has never failed.
slow_node() {
  given <<<'launch() { echo "$LLAMESH_SPARE_NODES" >>spares; (($1 > 1)) && finishes
    ends stopped 75 0 "links on node2: slow" node2; }'
  supervise --spares 1
  expect 0 "node1,node2 node1,node3" ""
  [[ $(paste -sd' ' spares) == "1 0" ]] || bad "the launches get '$(paste -sd' ' spares)' spares"
  grep -q '"reason": "links on node2: slow"' run/bad_nodes.json || bad "bad_nodes.json does not say why"
}

# Shared nodes always differ, so LLAMESH_HEALTH=off skips the measurement.
health_off() {
  given <<<'launch() { echo "${LLAMESH_SPARE_NODES-nothing}" >>spares; finishes; }'
  LLAMESH_HEALTH=off supervise --spares 1
  expect 0 "node1,node2" ""
  [[ $(<spares) == nothing ]] || bad "the launch gets '$(<spares)' spares"
}

# srun hangs before it starts anything, because of node1. The limit is 5 x LLAMESH_MPI_TIMEOUT, in which the next launch has
# to start also on a slow machine.
never_started() {
  local limit
  limit=$(stretched 1)
  given <<<'try_node() { [[ $1 == node1 ]] || echo launched; }; launch() { (($1 > 1)) && finishes; exec sleep 3600; }'
  LLAMESH_MPI_TIMEOUT=$limit supervise --spares 1
  expect 0 "node1,node2 node2,node3" ""
  logs "did not start llamesh within $((5 * limit)) s"
  logs "node1 is left out: no program can be launched on it"
}

# The program announces its start within the limit. After that, it may take long to read its data.
slow_start() {
  local limit
  limit=$(stretched 1)
  given <<<"launch() { env -u SLURM_JOB_ID LLAMESH_MPI_TIMEOUT=60 \"\$program\" train absent.yaml; sleep $((5 * limit + 2)); finishes; }"
  LLAMESH_MPI_TIMEOUT=$limit supervise --spares 1
  logs "absent.yaml"
  expect 0 "node1,node2" ""
  [[ ! -e run/.started ]] || bad "the sign of the start is left behind"
  rm -r launches run/*
  given <<<'launch() { sleep 3; finishes; }'  # it looks every second
  LLAMESH_MPI_TIMEOUT=0 supervise --spares 1
  expect 0 "node1,node2" ""
}

cannot_launch() {
  given <<<'try_node() { [[ $1 == node1 ]] || echo launched; }; launch() { (($1 > 1)) && finishes; exit 1; }'
  supervise --spares 1
  expect 0 "node1,node2 node2,node3" ""
}

# srun cannot launch anything anywhere, as with a wrong --mpi: no node is to blame.
launches_nowhere() {
  given <<<'try_node() { :; }; launch() { exit 1; }'
  supervise --spares 1
  expect 1 "node1,node2 node1,node2 node1,node2 node1,node2 node1,node2" ""
  [[ ! -e run/bad_nodes.json ]] || bad "a node is blamed"
  logs "has not started in 5 launches"
}

# The run refuses every number of nodes but the full one, of which one is lost.
needs_all_nodes() {
  given <<<'try_node() { [[ $1 == node3 ]] || echo launched; }
    launch() { (($1 > 1)) && exit 78; ends stopped 75 10 "rank 4 on node3 is silent" node3; }'
  supervise
  expect 75 "node1,node2,node3 node1,node2 node1" "requeue 7;update JobId=7 ExcNodeList=node3"
}

told() {
  local signal
  for signal in USR1 USR2 TERM; do
    rm -f launches asked run/state.json
    given <<<"launch() { trap asked_to_stop USR2; kill -$signal \$PPID; for _ in {1..6000}; do sleep 0.1; done; }"
    supervise --spares 1
    expect 75 "node1,node2" "requeue 7"
  done
}

halted() {
  given <<<'launch() { touch run/halt; asked_to_stop; }'
  supervise --spares 1
  expect 75 "node1,node2" ""
  supervise
  [[ $code == 78 && $(wc -l <launches) == 1 ]] || bad "it starts although there is a halt file"
}

# scancel: the job does not run any more when the ranks have ended.
cancelled() {
  given <<<'launch() { echo COMPLETING >job_state; ends stopped 75 12 "rank 2 on node2 is silent" node2; }'
  supervise --spares 1
  expect 75 "node1,node2" ""
}

# The job was requeued meanwhile, and runs elsewhere: this script's node was cut off.
runs_elsewhere() {
  given <<<'launch() { echo 1 >restarts; ends stopped 75 12 "rank 2 on node2 is silent" node2; }'
  supervise --spares 1
  expect 75 "node1,node2" ""
}

# Memory checkpoints stay between launches, and are removed before the nodes are released.
frees_memory() {
  mkdir -p run/checkpoints
  given <<<'launch() { [[ ! -e cleaned ]] || exit 99; (($1 > 1)) && asked_to_stop; ends stopped 75 12 "rank 2 on node2 is silent" node2; }'
  supervise --spares 1
  expect 75 "node1,node2 node1,node3" "requeue 7"
  [[ ! -e cleaned ]] || bad "a run without memory checkpoints is cleaned up after"
  for case in "75 asked_to_stop" "93 ends failed 93 12 diverged" "0 finishes"; do
    touch run/checkpoints/.run_id
    rm -f launches cleaned asked run/state.json run/bad_nodes.json
    given <<<"launch() { [[ ! -e cleaned ]] || exit 99; ((\$1 > 1)) && ${case#* }; ends stopped 75 12 silent node2; }"
    supervise --spares 1
    [[ $code == "${case%% *}" && $(wc -l <launches) == 2 ]] || bad "exit code $code after $(wc -l <launches) launches"
    [[ $(sort cleaned | paste -sd' ') == "node1 node2 node3" ]] || bad "cleaned up on $(sort cleaned | paste -sd' ')"
  done
}

# The run is another job's by now, and both jobs have node1: the other job's memory checkpoints stay.
keeps_the_memory_of_another_job() {
  mkdir -p run/checkpoints
  touch run/checkpoints/.run_id
  given <<<'launch() { exit 78; }
    clean() {
      [[ $nodes == node1 ]] || return
      local prefix=${3#for mark in }
      prefix=${prefix%%\**}
      mkdir "$prefix"node1.{0,1}
      touch "$prefix"node1.0/job-7.0 "$prefix"node1.1/job-8.0
      "$@"
      ls -d "$prefix"* >left
      rm -r "$prefix"*
    }'
  supervise --spares 1
  expect 78 "node1,node2" ""
  [[ $(<left) == *-node1.1 ]] || bad "these folders are left: $(<left)"
}

# Of 99 nodes, at most 32 are cleaned at the same time.
cleans_many_nodes() {
  mkdir -p run/checkpoints busy
  touch run/checkpoints/.run_id
  given <<<'launch() { (($1 > 1)) && finishes; ends stopped 75 12 "rank 2 on node2 is silent" node2; }'
  sed -i 's|echo "$nodes" >>cleaned; clean.*; exit|mkdir "busy/$nodes"; ls busy \| wc -l >>at_once; sleep 0.1; rmdir "busy/$nodes"; &|' bin/srun
  SLURM_JOB_NODELIST=$(seq -s, -f node%g 99)
  job_nodes=$SLURM_JOB_NODELIST supervise --spares 97
  [[ $code == 0 && $(sort -u cleaned | wc -l) == 99 ]] || bad "exit code $code, cleaned up on $(sort -u cleaned | wc -l) nodes"
  (($(sort -rn at_once | head -n 1) <= 32)) || bad "$(sort -rn at_once | head -n 1) nodes at the same time"
}

# Its list of bad nodes cannot be written, nor the last step be read: the run goes on, and its memory is freed.
run_folder_in_disorder() {
  mkdir -p run/checkpoints run/bad_nodes.json run/metrics.jsonl
  touch run/checkpoints/.run_id
  given <<<'launch() { (($1 > 1)) && finishes; ends stopped 75 12 "rank 2 on node2 is silent" node2; }'
  supervise --spares 1
  expect 0 "node1,node2 node1,node3" ""
  logs "cannot record the failure of node2 for later jobs"
  [[ $(sort cleaned | paste -sd' ') == "node1 node2 node3" ]] || bad "cleaned up on $(sort cleaned | paste -sd' ')"
}

# squeue, a wrapper of the site's, greets first.
squeue_greets() {
  given <<<'launch() { (($1 > 1)) && finishes; ends stopped 75 12 "rank 2 on node2 is silent" node2; }'
  job_nodes="Welcome to the cluster" supervise --spares 1
  expect 0 "node1,node2 node1,node3" ""
}

# The command names another run folder.
ran_elsewhere() {
  given <<<'launch() { echo ended >"$LLAMESH_STARTED_FILE"; }'
  supervise --spares 1
  expect 1 "node1,node2" ""
  logs "wrote no state.json in run"
}

# The job script would take a signal's exit code for the end of supervise by a signal.
same_step_twice_by_a_signal() {
  given <<<'launch() { killed; }'
  supervise --spares 1
  expect 1 "node1,node2 node1,node2" ""
}

# srun returns 0 although the ranks, which had started, were killed.
killed_with_0() {
  given <<<'launch() { (($1 > 1)) && finishes; touch "$LLAMESH_STARTED_FILE"; }'
  supervise --spares 1
  expect 0 "node1,node2 node1,node2" ""
}

strange_tasks_per_node() {
  given <<<'launch() { finishes; }'
  for SLURM_NTASKS_PER_NODE in 0 2x 99999999999 2147483647; do
    supervise
    expect 78 "" ""
    logs "SLURM_NTASKS_PER_NODE is $SLURM_NTASKS_PER_NODE"
  done
}

too_many_spares() {
  given <<<'launch() { finishes; }'
  supervise --spares 3
  expect 78 "" ""
  logs "--spares 3 of 3 nodes leaves none"
}

# What Slurm's variables hold is no command.
id_is_no_command() {
  given <<<'launch() { finishes; }'
  SLURM_JOB_ID='$(touch ran)' supervise
  expect 78 "" ""
  logs "SLURM_JOB_ID is .(touch ran), which is not a job id"
  [[ ! -e ran ]] || bad "the variable was run"
  SLURM_JOB_NODELIST='node1;touch ran' SLURM_JOB_NUM_NODES=2 supervise
  [[ ! -e ran ]] || bad "the variable was run"
}

# The last task of an array has the array's id, which means all of them.
task_of_an_array() {
  export SLURM_ARRAY_JOB_ID=7 SLURM_ARRAY_TASK_ID=2
  given <<<'launch() { ends stopped 75 12 "rank 2 on node2 is silent" node2; }'
  supervise --resize requeue
  expect 75 "node1,node2,node3 node1,node2,node3" "requeue 7_2;update JobId=7_2 ExcNodeList=node2"
}

# The job was submitted from one that had been requeued, whose variables it has.
restart_count_of_another_job() {
  export SLURM_RESTART_COUNT=3
  given <<<'launch() {
    [[ -z ${SLURM_RESTART_COUNT:-} ]] || exit 78
    (($1 > 1)) && finishes; ends stopped 75 12 "rank 2 on node2 is silent" node2
  }'
  supervise --spares 1
  expect 0 "node1,node2 node1,node3" ""
}

outside_slurm() {
  given <<<'launch() { finishes; }'
  unset SLURM_JOB_ID
  supervise
  expect 78 "" ""
  logs "SLURM_JOB_ID is not set"
}

if [[ $(type -t "$2") != function ]]; then echo "supervise.sh: no case named $2" >&2; exit 2; fi
"$2"
echo "$2: exit code $code after $(wc -l <launches) launches"
