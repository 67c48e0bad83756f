# shellcheck shell=bash disable=SC2154,SC2013,SC2015,SC2119,SC2120
# Sourced by run.sh and campaign.sh: starts llamesh jobs on the cluster and checks them. $program is
# the llamesh under test, $sources the repository, and $work the current folder, which all nodes
# share. $scenario is the running scenario, and $nodes has the numbers of its nodes.
sources=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd -P)
source "$sources/tests/patience.sh"

cluster() { "$sources/tests/cluster/cluster.sh" "$@"; }

# on_cluster N SCRIPT LLAMESH ARGUMENT...: creates a cluster of N nodes and runs SCRIPT again on its
# head. There it changes to $work.
on_cluster() {
  machines=$1
  program=$(readlink -f "$3") || exit 2
  if [[ -z ${LLAMESH_CLUSTER:-} ]]; then
    local reason variable
    reason=$(cluster possible) || { printf 'cluster: Skipped\n%s\n' "$reason"; exit 77; }
    # Hides any Slurm job in which the tests run.
    for variable in $(compgen -e SLURM_) $(compgen -e SBATCH_); do unset "$variable"; done
    LLAMESH_CLUSTER_SHARED=$(dirname "$program") exec "$sources/tests/cluster/cluster.sh" run "$@"
  fi
  work_in "$LLAMESH_CLUSTER/work"
}

# work_in FOLDER: makes this new folder the current one, in which runs and logs are.
work_in() {
  work=$1
  mkdir -p "$work/bin"
  ln -sfn "$sources/inputs" "$work/inputs"
  ln -sfn "$program" "$work/bin/llamesh"
  export PATH=$work/bin:$PATH
  cd "$work" || exit 1
}

# report_line TEXT: sets the text beside the scenario's name in the table.
report_line() { echo "$*" >"$work/$scenario.reported"; }
reported_line() { cat "$work/$scenario.reported" 2>/dev/null; }

# bad TEXT: fails the scenario, and shows Slurm's state and the logs.
bad() {
  report_line "$1"
  echo "FAILED: $1"
  sinfo -N -l
  squeue -t all -o '%i %j %T %r %N %M'
  local log
  for log in "$scenario".*.log; do [[ -e $log ]] && echo "--- $log" && tail -n 30 "$log"; done
  exit 1
}

# --- jobs

# All runs have the same length, mesh and data, so all must end with the same weights.
steps=120
same_run=(train.steps="$steps" train.global_batch=24 checkpoint.every_steps=10 log.every_steps=10)

# other_nodes: prints the option that keeps a job on the scenario's nodes.
other_nodes() {
  local node others=()
  for ((node = 1; node <= machines; ++node)); do [[ " $nodes " == *" $node "* ]] || others+=("node$node"); done
  echo "--exclude=$(IFS=,; echo "${others[*]}")"
}

# submit TEMPLATE RUN [SBATCH-OPTION...] [-- key=value ...]: submits a template of slurm/ with
# inputs/tiny.yaml and 2 ranks per node. Sets job.
submit() {
  local template=$sources/slurm/$1.sbatch run=$2 options=()
  shift 2
  while [[ $# -gt 0 && $1 != -- ]]; do options+=("$1"); shift; done
  shift $(($# > 0))
  job=$(sbatch --parsable --output="$scenario.%j.log" "$(other_nodes)" "${options[@]}" "$template" inputs/tiny.yaml "$run" \
    "${same_run[@]}" "$@") || bad "sbatch refused $template"
  echo "$job" >>"$scenario.jobs"
}

# field NAME: prints a field of the job from scontrol.
field() { scontrol -o show job "$job" | tr ' ' '\n' | sed -n "s/^$1=//p" | head -n 1; }
state_is() { [[ " $* " == *" $(field JobState) "* ]]; }
exit_code() { field ExitCode | cut -d: -f1; }
restarts_are() { [[ $(field Restarts) -ge $1 ]]; }

# ended SECONDS STATE CODE...: checks that the job ends in this state, with one of these codes.
ended() {
  within "$1" state_is COMPLETED FAILED CANCELLED TIMEOUT NODE_FAIL PREEMPTED BOOT_FAIL ||
    bad "the job has not ended after $1 s and more: $(field JobState)"
  state_is "$2" || bad "the job is $(field JobState), not $2"
  [[ " ${*:3} " == *" $(exit_code) "* ]] || bad "exit code $(exit_code), not ${*:3}"
}

jobs() { paste -sd, "$scenario.jobs" 2>/dev/null; }
no_jobs() { [[ -z $(jobs) || -z $(squeue -h -o %i -j "$(jobs)") ]]; }
log_of_job() { cat "$scenario.$job.log" 2>/dev/null; }
logged() { log_of_job | grep -q -- "$1"; }
has_to_log() { logged "$1" || bad "the log does not say '$1'"; }

# --- runs

# step_of RUN: prints the newest step in the metrics.
step_of() { sed -n 's/^{"step":\([0-9]*\),.*/\1/p' "$1/metrics.jsonl" 2>/dev/null | tail -n 1; }
past() { (($(step_of "$1" || true) + 0 >= $2)) 2>/dev/null; }
trains_past() { within 20 past "$1" "$2" || bad "$1 has not reached step $2"; }

# hold STEP RANK: from the next run on that is submitted, this rank waits once step STEP is done, and the others wait for
# it in their next collective (faulty_llamesh). So a fault hits the run, however fast or slow the machine is.
hold() {
  export LLAMESH_HOLD=$work/$scenario.hold LLAMESH_FAULT="held $2 $(($1 + 2)) 0"
  held_step=$1 held_rank=$2
  touch "$LLAMESH_HOLD"
}

# await_held RUN: waits for that, and stops the rank. Sets held, its process. release: lets it go on.
await_held() {
  within 60 test -e "$LLAMESH_HOLD.reached" || bad "$1 has not reached step $held_step"
  held=$(rank "$held_rank" "$1")
  kill -STOP "$held"
  rm "$LLAMESH_HOLD"  # so that no later launch is held
  within 20 past "$1" "$held_step" || bad "$1 was held at step $(step_of "$1"), not past $held_step"
}
release() { kill -CONT "$held"; }

# held_past STEP RANK submit TEMPLATE RUN...: hold, submit and await_held.
held_past() {
  hold "$1" "$2"
  "${@:3}"
  await_held "$5"
}

# resumed RUN: prints the steps after which it was resumed.
resumed() { sed -n 's/.*"event":"resume","step":\([0-9]*\).*/\1/p' "$1/metrics.jsonl" | grep -vx 0 | paste -sd, ; }

# state_of RUN KEY: prints a value in state.json.
state_of() { tr -d '\n' 2>/dev/null <"$1/state.json" | sed -n 's/.*"'"$2"'": *"\{0,1\}\([^",}]*\).*/\1/p'; }

last_of() { echo "$1/checkpoints/step_$(printf %08d $steps)"; }

# unbroken [STRATEGY]: makes the undisturbed run, unbroken or unbroken-STRATEGY, if there is none.
unbroken() {
  local job run=unbroken${1:+-$1}
  [[ -e $(last_of "$run")/manifest.json ]] && return
  rm -rf "$run"
  submit multi-node "$run" -- ${1:+sharding.strategy="$1"}
  ended 60 COMPLETED 0
}

# same_weights RUN [STRATEGY]: checks that it has ended with the unbroken run's weights.
same_weights() {
  unbroken "${@:2}"
  llamesh diff "$(last_of "unbroken${2:+-$2}")" "$(last_of "$1")" || bad "the weights differ from the unbroken run's"
}

# images NODE...: prints which of these nodes have memory checkpoints.
images() {
  local node
  for node in "$@"; do if cluster on "$node" sh -c 'ls -d /dev/shm/llamesh-memory-*' &>/dev/null; then echo "node$node"; fi; done
}

# --- processes

# ranks [RUN]: prints the head's process ids for the ranks (of a run) on all nodes. Uses one grep
# for all processes, because the run trains on meanwhile.
ranks() {
  local folder argument=${1:+run.folder=$1}
  for folder in $(grep -lsz${1:+x} -- "${argument:-llamesh}" /proc/[0-9]*/cmdline); do
    folder=${folder%/cmdline}
    grep -qszx supervise "$folder/cmdline" && continue
    if [[ $(readlink "$folder/exe") == "$program" ]]; then echo "${folder#/proc/}"; fi
  done 2>/dev/null
}

no_ranks() { [[ -z $(ranks "$1") ]]; }

# rank N RUN: prints the process id of one rank.
rank() {
  local process
  for process in $(ranks "$2"); do
    grep -qszx "SLURM_PROCID=$1" "/proc/$process/environ" && echo "$process"
  done
}

# node_of_process PROCESS: prints the number of a rank's node. node_of N RUN: does so for rank N.
node_of_process() { tr '\0' '\n' <"/proc/$1/environ" | sed -n 's/^SLURMD_NODENAME=node//p'; }
node_of() { node_of_process "$(rank "$1" "$2")"; }

# slurmstepds NODE STEP: prints the process ids of slurmstepd there for the job's step.
slurmstepds() {
  local process
  for process in $(grep -ls "^slurmstepd: \[$job\.$2\]" /proc/[0-9]*/cmdline); do
    process=${process//[!0-9]/}
    [[ $(nsenter -t "$process" -u hostname) == "node$1" ]] && echo "$process"
  done
}

# ranks_here: prints the ranks on the scenario's nodes.
ranks_here() {
  local process node
  for process in $(ranks); do
    for node in $nodes; do grep -qszx "SLURMD_NODENAME=node$node" "/proc/$process/environ" && echo "$process"; done
  done
}
no_rank_here() { [[ -z $(ranks_here) ]]; }

# processes_here: prints these ranks, and slurmstepd's processes for the scenario's jobs.
processes_here() {
  local job
  ranks_here
  for job in $(cat "$scenario.jobs" 2>/dev/null); do grep -ls "^slurmstepd: \[$job\." /proc/[0-9]*/cmdline; done
}
no_process() { [[ -z $(processes_here) ]]; }

# saving RUN: succeeds if a save is in progress or was interrupted.
saving() { compgen -G "$1/checkpoints/*.partial-*" >/dev/null; }

# held_in_save RUN PROCESS: stops this rank if a save has begun; succeeds if the save then waits for it. Without this, a
# save of a tenth of a second would be over before a fault can hit it. A rank that is stopped after its part of the last
# collective holds nothing up: callers try again.
held_in_save() {
  saving "$1" || return
  kill -STOP "$2"
  sleep 0.3
  saving "$1" && return
  kill -CONT "$2"
  return 1
}

# nothing_left: checks that soon no process of any job is left. Ranks end within a minute. Slurm gives up on a step that
# it cannot end after UnkillableStepTimeout, and its own processes may outlive that.
nothing_left() {
  within 60 no_rank_here || bad "ranks are left: $(ranks_here)"
  within 150 no_process || bad "Slurm's processes are left: $(processes_here)"
}

# --- the cluster's settings

# slurmd_timeout [SECONDS]: sets how long slurmctld waits for a node that does not answer before it
# ends its jobs; without an argument, to what it was at first.
slurmd_timeout() {
  [[ -n ${first_slurmd_timeout:-} ]] || first_slurmd_timeout=$(sed -n 's/^SlurmdTimeout=//p' "$SLURM_CONF")
  sed -i "s/^SlurmdTimeout=.*/SlurmdTimeout=${1:-$first_slurmd_timeout}/" "$SLURM_CONF"
  within 60 scontrol reconfigure 2>/dev/null
}

# --- between scenarios

idle() {
  local node
  for node in $nodes; do [[ $(sinfo -h -n "node$node" -o %T 2>/dev/null) == idle ]] || return; done
}

# clean_up: resets the nodes, whatever the scenario has left behind.
clean_up() {
  local node process job
  for job in $(cat "$scenario.jobs" 2>/dev/null); do scancel "$job" 2>/dev/null; done
  within 20 no_jobs
  for process in $(processes_here); do kill -KILL "${process//[!0-9]/}" 2>/dev/null; done
  within 5 idle && return
  for node in $nodes; do scontrol update nodename="node$node" state=resume 2>/dev/null; done
  within 20 idle || echo "    not all nodes came back: $(sinfo -h -N -o '%n %T' | paste -sd' ')"
}
