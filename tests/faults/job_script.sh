#!/usr/bin/env bash
# job_script.sh SCRIPT CASE: what a job script that queues its job again does after launches that fail, and when it is
# asked to stop. Slurm's programs are stand-ins: srun does what the function `launch` of the case says, and the rest note
# that they were called. The cases are the functions below; CMakeLists.txt names them.
set -uo pipefail
# shellcheck disable=SC2016  # what the stand-ins expand themselves
script=$(readlink -f "$1")
source "$(dirname "$0")/../patience.sh"
work=$(mktemp -d "${TMPDIR:-/tmp}/llamesh-job.XXXXXX")
trap 'rm -rf "$work"' EXIT
cd "$work" || exit 1
mkdir bin run
for variable in $(compgen -e SLURM_); do unset "$variable"; done
export SLURM_JOB_ID=7 SLURM_JOB_NAME=first SLURM_JOB_NUM_NODES=2 SLURM_NTASKS_PER_NODE=1 SLURM_CPUS_PER_TASK=1

stand_in() { printf '#!/bin/bash\n%s\n' "$2" >"bin/$1"; chmod +x "bin/$1"; }
# resilient.sbatch runs `llamesh supervise`: the function `supervise` of the case.
stand_in llamesh 'source ./case; supervise'
stand_in module 'exit 0'
stand_in lfs 'exit 0'
stand_in sleep 'echo "$1" >>pauses'
stand_in squeue 'cat job_state'
stand_in scontrol 'case "$1 $2" in
  ping*) echo "is UP" ;;
  "show hostnames") printf "node1\nnode2\n" ;;
  requeue*) echo "$*" >>asked; echo PENDING >job_state ;;
  update*) echo "$*" >>asked ;;
esac'
# A launch of the ranks is `launch N`, the N-th; one to try a node is `try_node NODE`.
stand_in srun 'source ./case
options=$*
if [[ $* == *"echo launched"* ]]; then node=$*; node=${node#*--nodelist=}; try_node "${node%% *}"; exit; fi
echo launched >>launches
launch "$(wc -l <launches)"'
export PATH=$work/bin:$PATH

bad() {
  echo "FAILED: $1"
  head -n 50 launches pauses asked log 2>/dev/null
  exit 1
}

# given: the functions of standard input are the case's.
given() { { echo 'trains() { echo "$1" >run/state.json; }; try_node() { echo launched; }; supervise() { :; }'; cat; } >case; }

run_script() {
  echo RUNNING >job_state
  touch launches asked pauses
  timeout -k 10 "$(stretched 300)" bash "$script" a.yaml run >log 2>&1
  code=$?
}
# expect CODE LAUNCHES ASKED: how the script ended, how often it launched llamesh, and what it asked Slurm for.
expect() {
  [[ $code == "$1" ]] || bad "exit code $code, not $1"
  [[ $(wc -l <launches) == "$2" ]] || bad "$(wc -l <launches) launches, not $2"
  [[ $(cat asked) == "$3" ]] || bad "asked '$(cat asked)', not '$3'"
}

# What an earlier step has left on a node is in the way for a while, as after a cut that has healed.
stale_step() {
  given <<<'launch() { (($1 < 4)) && exit 1; trains done; }'
  run_script
  expect 0 4 ""
  [[ $(paste -sd' ' pauses) == "0 5 10" ]] || bad "pauses of $(paste -sd' ' pauses) s"
}

node_that_cannot_launch() {
  given <<<'launch() { exit 1; }; try_node() { [[ $1 == node2 ]] || echo launched; }'
  run_script
  expect 1 5 "requeue 7
update JobId=7 ExcNodeList=node2"
}

nobody_to_blame() {
  given <<<'launch() { exit 1; }'
  run_script
  expect 1 5 ""
  grep -q "no node of the job is to blame" log || bad "it does not say so"
}

# The signal that stops a run kills a rank that has not come to main.
stopped_before_main() {
  given <<<'launch() { exit 140; }'
  run_script
  expect 140 1 "requeue 7"
}

# The script alone is asked to stop while the ranks train: srun passes it on to them.
script_told() {
  local signal
  for signal in USR2 TERM; do
    rm -f launches asked pauses run/state.json
    given <<<"launch() { trap 'trains stopped; exit 75' USR2; kill -$signal \$PPID; for _ in {1..6000}; do /bin/sleep 0.1; done; }"
    run_script
    expect 75 1 "requeue 7"
  done
}

# The same, and a rank had not come to main.
script_told_before_main() {
  given <<<'launch() { trap : USR2; kill -TERM $PPID; /bin/sleep 0.2; exit 143; }'
  run_script
  expect 143 1 "requeue 7"
}

# A launch that fails is no request to stop.
not_told() {
  given <<<'launch() { (($1 < 2)) && exit 143; trains failed; exit 74; }'
  run_script
  expect 74 2 ""
}

# The variables of its components have suffixes, and squeue lists all of them.
heterogeneous() {
  export SLURM_NTASKS_PER_NODE_HET_GROUP_0=4 SLURM_CPUS_PER_TASK_HET_GROUP_0=3
  unset SLURM_NTASKS_PER_NODE SLURM_CPUS_PER_TASK
  stand_in squeue 'cat job_state job_state'
  given <<<'check() { [[ $SRUN_CPUS_PER_TASK == 3 && $SLURM_NTASKS_PER_NODE == 4 ]] || exit 99; }
    launch() { check; [[ $options == *" --ntasks=8 "* ]] || exit 98; trains stopped; exit 75; }
    supervise() { check; kill -KILL $$; }'
  run_script
  if [[ $script == */resilient.sbatch ]]; then expect 137 0 "requeue 7"; else expect 75 1 "requeue 7"; fi
}

# --- resilient.sbatch

# It queues the job again itself.
supervise_told() {
  local signal
  for signal in USR2 TERM; do
    given <<<"supervise() { trap 'scontrol requeue 7; exit 75' USR2; kill -$signal \$PPID; for _ in {1..6000}; do /bin/sleep 0.1; done; }"
    run_script
    expect 75 0 "requeue 7"
    rm asked
  done
}

# The system has killed it for lack of memory, for example.
supervise_killed() {
  given <<<'supervise() { kill -KILL $$; }'
  run_script
  expect 137 0 "requeue 7"
  rm asked
  touch run/halt
  run_script
  expect 137 0 ""
}

supervise_gives_up() {
  given <<<'supervise() { exit 1; }'
  run_script
  expect 1 0 ""
}

if [[ $(type -t "$2") != function ]]; then echo "job_script.sh: no case named $2" >&2; exit 2; fi
"$2"
echo "$2: exit code $code after $(wc -l <launches) launches"
