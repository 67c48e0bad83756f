# shellcheck shell=bash disable=SC2154,SC2034,SC2015
# Sourced by run.sh: the scenarios. Each is a function, built from those in jobs.sh.

# Scenarios on different nodes run in parallel: they mostly wait. Those that use or disturb the
# whole cluster come first and last.
at_first=(startup templates multi_node fewer_nodes)
on_nodes_1_2=(
  config_error no_room_in_memory own_folders without_pmix no_program halted_before rank_killed_in_step rank_killed_in_save
  never_in_mpi_init killed_in_mpi_init stopped_before_main signal_usr2 signal_term second_term halt_file preflight
  requeue_template second_try array_task_requeued scontrol_requeue cancelled job_chain slurmd_killed documentation
)
on_nodes_3_4=(link_cut rank_stopped no_progress slurmstepd_killed)
on_node_5=(walltime single_node evaluated sweep)
on_nodes_6_7_8=(node_killed node_range bad_node stale_step)
on_nodes_9_10_11=(handed_down spare_after_node_killed all_spares_bad killed_again_at_once relaunch_told)
on_nodes_12_13_14=(spare_after_rank_stopped batch_node_killed shrunk_after_node_killed shrunk_to_fewer_stages requeued_after_node_killed)
at_last=(slow_node_left_out pair_cut pair_cut_at_ends pair_cut_in_save node_cut node_cut_of_two site_requeues slurmctld_stopped slurmctld_away_at_the_end preflight_bad_node traffic)

# What only a real Slurm shows. The others have stand-ins in tests/faults and tests/checkpoint, or resemble one of these.
essential=(
  templates multi_node no_room_in_memory own_folders without_pmix requeue_template array_task_requeued scontrol_requeue
  cancelled job_chain handed_down
  documentation link_cut slurmstepd_killed single_node evaluated sweep node_killed spare_after_node_killed batch_node_killed
  shrunk_after_node_killed pair_cut node_cut slurmctld_away_at_the_end preflight_bad_node traffic
)

# --- what works when nothing is wrong

# Time from srun to the first step, on 4 nodes with 1 and 4 ranks each: the best of three.
startup() {
  local ranks try folder begin took best times=
  for ranks in 1 4; do
    best=999999
    for try in 1 2 3; do
      folder=startup$ranks-$try
      begin=$(date +%s%3N)
      srun --mpi=pmix -N4 --ntasks-per-node=$ranks llamesh train inputs/tiny.yaml "run.folder=$folder" train.steps=5 \
        train.global_batch=16 2>"$scenario.$folder.log" &
      within 20 past "$folder" 1 || bad "the run does not train"
      took=$(($(date +%s%3N) - begin))
      wait || bad "the run failed"
      best=$((took < best ? took : best))
    done
    times+="${times:+, }$best ms with $ranks a node"
    # 1.2 and 2 s on idle cores. A launch that waits for somebody's time-out takes 30 s and more.
    ((best <= 1000 * $(stretched 15))) || bad "first step $best ms after srun with $ranks ranks a node"
  done
  report_line "first step after srun, on 4 nodes: $times"
}

templates() {
  local template number=0
  for template in "$sources"/slurm/*.sbatch; do
    bash -n "$template" && sbatch --test-only "$template" || bad "sbatch --test-only refuses $template"
    grep '^#SBATCH' "$template" | grep -qv '#.*# ' && bad "a directive of $template has no comment"
    number=$((number + 1))
  done
  # The example names a partition and node types that this cluster does not have. Overrides these
  # and its size.
  for template in "$sources"/slurm/sites/*.sbatch; do
    bash -n "$template" && sbatch --test-only --partition=main --constraint= --nodes=2 --ntasks-per-node=2 \
      --cpus-per-task=1 --gpus-per-node=0 "$template" || bad "sbatch --test-only refuses $template"
    number=$((number + 1))
  done
  ((number == 9)) || bad "$number templates, not 9"
  report_line "$number templates pass sbatch --test-only"
}

single_node() {
  submit single-node single -- train.steps=10
  ended 40 COMPLETED 0
  [[ $(step_of single) == 10 ]] || bad "step $(step_of single), not 10"
  report_line "1 node x 2 ranks, 10 steps"
}

# A dependent job exports the best checkpoint. lm-eval is not installed here: the log has its command.
evaluated() {
  local training name
  submit single-node evaluated -- train.steps=10 evaluate.every_steps=5 evaluate.batches=1 checkpoint.keep_best=1 \
    data.validation=inputs/text/tiny.txt
  training=$job
  job=$(sbatch --parsable --dependency=afterok:"$training" --ntasks-per-node=2 --cpus-per-task=1 \
    --output="$scenario.%j.log" "$(other_nodes)" "$sources/slurm/evaluate.sbatch" evaluated best) ||
    bad "sbatch refused evaluate.sbatch"
  echo "$job" >>"$scenario.jobs"
  ended 60 COMPLETED 0
  name=$(cat evaluated/checkpoints/BEST)
  has_to_log "exported $name of evaluated to evaluated/hf/$name"
  has_to_log "lm_eval --model hf --model_args pretrained=evaluated/hf/$name,dtype=auto"
  llamesh verify "evaluated/hf/$name" || bad "the exported folder is not good"
  job=$(sbatch --parsable --ntasks-per-node=2 --cpus-per-task=1 --output="$scenario.%j.log" "$(other_nodes)" \
    "$sources/slurm/evaluate.sbatch" single best)
  echo "$job" >>"$scenario.jobs"
  ended 30 FAILED 78
  has_to_log "has no file BEST: train with checkpoint.keep_best=1"
  report_line "$name exported after job $training"
}

multi_node() {
  rm -rf unbroken
  unbroken
  log_of_job | grep -q 'mesh replicate=2 x shard=2' 2>/dev/null ||
    grep -q 'replicate=2 x shard=2' "$(last_of unbroken)/manifest.json" || bad "not a mesh of 2 x 2"
  llamesh verify "$(last_of unbroken)" || bad "its last checkpoint is not good"
  report_line "2 nodes x 2 ranks, hybrid_shard, $steps steps"
}

sweep() {
  submit sweep sweep -- train.steps=5
  within 60 no_jobs || bad "the array has not ended"
  local value
  for value in 3e-3 1e-3 3e-4 1e-4; do
    [[ $(step_of "sweep/optimizer.lr=$value") == 5 ]] || bad "the task of $value has not trained"
    # Slurm gives an array's id to one of its tasks, too: squeue then prints a line for each.
    grep -q 's of walltime left' "sweep/optimizer.lr=$value/log.txt" || bad "the task of $value does not know its walltime"
  done
  [[ $(cat sweep/*/metrics.jsonl | sed -n 's/^{"step":5,"loss":\([^,]*\).*/\1/p' | sort -u | wc -l) == 4 ]] || bad "the losses do not differ"
  report_line "4 tasks, 4 losses"
}

# Runs the commands in docs/first-run.md as written, but for those that need a model and data of the
# user's own, like a user who waits between them.
documentation() {
  local command all=()
  mkdir -p user installed/share/llamesh
  ln -sfn "$sources/inputs" installed/share/llamesh/inputs
  ln -sfn "$sources/slurm" installed/share/llamesh/slurm
  # Does what the modulefile does, which has its own tests.
  module() { [[ $* == "load llamesh" ]] && LLAMESH_ROOT=$work/installed; }
  sbatch() { job=$(command sbatch --parsable "$(other_nodes)" "$@") && echo "$job" >>"$work/$scenario.jobs"; }
  cd user || exit 1
  mapfile -t all < <(sed -n '/^\*\*8\./q; s/^    //p' "$sources/docs/first-run.md")
  ((${#all[@]} == 9)) || bad "${#all[@]} commands, not 9"
  for command in "${all[@]}"; do
    case $command in
      *requeue.sbatch*) (cd .. && within 30 no_jobs); [[ $(exit_code) == 0 ]] || bad "the preflight failed" ;;
      squeue*) trains_past runs/first 110 ;;
      touch*) within 40 goes_on_again || bad "it was not resumed" ;;
    esac
    echo "$command"
    eval "$command" || bad "$command"
    case $command in
      touch*) within 20 stopped_by_halt || bad "it does not stop" ;;
    esac
  done
  report_line "${#all[@]} commands of docs/first-run.md: resumed after step $(resumed runs/first)"
  cd ..
}
goes_on_again() { [[ -n $(resumed runs/first) ]]; }
stopped_by_halt() { [[ $(state_of runs/first reason) == *halt* ]]; }

# Runs docs/cluster.md's command for a range of nodes as written, on four nodes.
fewer_nodes() {
  local command
  command=$(sed -n '/^## Fewer nodes/,/^## How/s/^    \(sbatch .*\)/\1/p' "$sources/docs/cluster.md")
  sbatch() {
    job=$(command sbatch --parsable --output="$work/$scenario.%j.log" "$@") && echo "$job" >>"$work/$scenario.jobs"
  }
  mkdir -p range
  cd range || exit 1
  ln -sfn "$sources/inputs" inputs
  ln -sfn "$sources/slurm" slurm
  hold 5 0
  eval "$command" || bad "$command"
  await_held runs/range
  touch runs/range/halt
  release
  cd ..
  ended 40 FAILED 75
  has_to_log "mesh replicate=4 x shard=2"
  report_line "4 nodes x 2 ranks: stopped after step $(step_of range/runs/range)"
}

# --- mistakes

config_error() {
  submit requeue wrong -- train.stesp=3
  ended 30 FAILED 78
  has_to_log "did you mean 'train.steps'"
  [[ $(field Restarts) == 0 ]] || bad "it was requeued"
  report_line "exit code 78, not requeued"
}

# One node has too little memory for memory checkpoints.
no_room_in_memory() {
  cluster on 2 mount -o remount,size=64m /dev/shm
  submit requeue no-room -- checkpoint.memory.every_steps=4 model.hidden_size=768 model.intermediate_size=2048
  ended 30 FAILED 78
  cluster on 2 mount -o remount,size=50% /dev/shm
  [[ $(log_of_job | grep -c '^llamesh: ') == 1 ]] || bad "not one line"
  has_to_log "memory checkpoints need [0-9]* bytes on node2, .* but /dev/shm has [0-9]* there"
  [[ ! -e no-room/metrics.jsonl ]] || bad "it has trained"
  report_line "exit code 78, one line"
}

# Each node has its own /tmp.
own_folders() {
  local host
  submit multi-node /tmp/own-run
  ended 40 FAILED 78
  for host in "/tmp/own-run on node2" "the one on node1"; do has_to_log "$host"; done
  has_to_log "a file system that all of them mount"
  cluster on 1 test -e /tmp/own-run/metrics.jsonl && bad "it has trained"
  report_line "$(log_of_job | sed -n 's/^llamesh: .*run.folder: //p' | cut -c 1-60)"
}

without_pmix() {
  local code=0
  srun "$(other_nodes)" -N2 -n2 --mpi=none llamesh train inputs/tiny.yaml run.folder=lone 2>"$scenario.0.log" >&2 || code=$?
  [[ $code == 78 ]] || bad "exit code $code, not 78"
  [[ $(grep -c '^llamesh: ' "$scenario.0.log") == 1 ]] || bad "not one line that says why"
  [[ ! -e lone ]] || bad "a run folder was made"
  report_line "$(sed -n 's/^llamesh: //p' "$scenario.0.log" | cut -c 1-80)"
}

# llamesh is neither on the PATH nor in a module, for every template.
no_program() {
  local template options
  for template in single-node multi-node requeue resilient chain sweep preflight; do
    case $template in
      sweep) options=--array=0 ;;
      resilient) options=--nodes=2 ;;  # a third one may belong to another scenario, and be down
      *) options= ;;
    esac
    PATH=${PATH#"$work/bin:"} submit $template no-program --job-name=lost $options
    ended 20 FAILED 78
    [[ $(field Restarts) == 0 ]] || bad "$template: it was requeued"
    [[ $(tail -n 1 "$scenario.$job"*.log) == "llamesh is not found:"* ]] || bad "$template: the last line does not say why"
  done
  report_line "exit code 78 of 7 templates, not requeued"
}

# Nothing is launched if the run folder has a halt file.
halted_before() {
  mkdir -p halted-before
  touch halted-before/halt
  submit requeue halted-before
  ended 20 FAILED 78
  [[ $(log_of_job) == "halted-before/halt exists: "* && $(log_of_job | wc -l) == 1 ]] || bad "not one line that says why"
  [[ ! -e halted-before/state.json ]] || bad "it was launched"
  report_line "78: $(log_of_job)"
}

# --- a rank dies

# goes_on RUN: submits the run again; it must end with the unbroken run's weights.
goes_on() {
  submit multi-node "$1"
  ended 60 COMPLETED 0
  same_weights "$1"
}

rank_killed_in_step() {
  held_past 25 3 submit multi-node rank-killed
  local node
  node=$(node_of_process "$held")
  kill -KILL "$held"
  ended 15 FAILED 75 137  # from the ranks that noticed, or from SIGKILL
  nothing_left
  diagnosis_is rank-killed "rank 3 on node$node has sent no heartbeat" 3 "\"node$node\""
  local code
  code=$(exit_code)
  goes_on rank-killed
  report_line "exit code $code, submitted again: resumed after step $(resumed rank-killed), same weights"
}

rank_killed_in_save() {
  local try victim
  for try in 1 2 3; do
    rm -rf save-killed
    submit multi-node save-killed -- checkpoint.every_steps=1
    trains_past save-killed 10
    victim=$(rank 1 save-killed)
    until held_in_save save-killed "$victim" || [[ ! -d /proc/$victim ]]; do sleep 0.01; done
    kill -KILL "$victim" 2>/dev/null
    within 15 no_jobs || bad "the job has not ended"
    saving save-killed && break
  done
  saving save-killed || bad "no save was hit in $try tries"
  nothing_left
  goes_on save-killed
  report_line "in try $try, submitted again: resumed after step $(resumed save-killed), same weights"
}

# A rank never reaches MPI_Init. Any other rank may report it, and srun returns 75 or a signal's
# code.
never_in_mpi_init() {
  mkdir -p late
  printf '#!/bin/bash\n[[ $SLURM_PROCID != 2 ]] || exec sleep 1000\nexec %q "$@"\n' "$work/bin/llamesh" >late/llamesh
  chmod +x late/llamesh
  PATH=$work/late:$PATH LLAMESH_MPI_TIMEOUT=3 submit multi-node never-there --no-requeue
  ended 40 FAILED 75 137 143
  nothing_left
  has_to_log "in MPI_Init for 3 s: another rank has not arrived"
  local code
  code=$(exit_code)
  goes_on never-there
  report_line "exit code $code after 3 s in MPI_Init, submitted again: same weights"
}

# A rank dies before MPI_Init, where the others wait for it. srun tells them to end, and Slurm's
# KillWait is 30 s.
killed_in_mpi_init() {
  mkdir -p killed-early
  printf '#!/bin/bash\n[[ $SLURM_PROCID != 2 ]] || { sleep 3; touch killed-early/now; kill -KILL $$; }\nexec %q "$@"\n' \
    "$work/bin/llamesh" >killed-early/llamesh
  chmod +x killed-early/llamesh
  PATH=$work/killed-early:$PATH submit multi-node killed-early --no-requeue
  within 30 test -e killed-early/now || bad "it is not launched"
  local begin=$SECONDS
  ended 20 FAILED 75 137
  nothing_left
  report_line "exit code $(exit_code), $((SECONDS - begin)) s after the rank was killed"
}

# --- the run is asked to stop

# The signal kills ranks that have not reached main. The job script remembers it, and does not
# launch them again.
stopped_before_main() {
  mkdir -p before-main
  printf '#!/bin/bash\n[[ -n ${SLURM_RESTART_COUNT:-} ]] || { touch before-main/now; sleep 30; }\nexec %q "$@"\n' \
    "$work/bin/llamesh" >before-main/llamesh
  chmod +x before-main/llamesh
  PATH=$work/before-main:$PATH submit requeue before-main
  within 30 test -e before-main/now || bad "it is not launched"
  scancel --signal=USR2 "$job"
  ended 90 COMPLETED 0
  [[ $(field Restarts) == 1 ]] || bad "$(field Restarts) restarts, not 1"
  logged "retrying in" && bad "it was launched again at once"
  same_weights before-main
  report_line "$(log_of_job | sed -n 's/.*\(stopped early .*\): job.*/\1/p'), requeued, same weights"
}

# stopped_early RUN: checks that the job ended with 75 and a checkpoint of its last step.
stopped_early() {
  ended "${2:-30}" FAILED 75
  nothing_left
  [[ $(state_of "$1" state) == stopped ]] || bad "state.json says $(state_of "$1" state), not stopped"
  [[ $(state_of "$1" exit_code) == 75 ]] || bad "state.json says exit code $(state_of "$1" exit_code)"
  local step
  step=$(step_of "$1")
  [[ $(state_of "$1" step) == "$step" ]] || bad "state.json says step $(state_of "$1" step), the metrics $step"
  ((step < steps)) || bad "it was over before it was stopped"
  llamesh verify "$1/checkpoints/step_$(printf %08d "$step")" || bad "no checkpoint of step $step"
  reason=$(state_of "$1" reason)
  goes_on "$1"
  [[ $(resumed "$1") == "$step" ]] || bad "resumed after step $(resumed "$1"), not $step"
  [[ $(state_of "$1" state) == done ]] || bad "state.json says $(state_of "$1" state), not done"
  report_line "75, $reason; submitted again: resumed after step $step, same weights"
}

signalled() {
  held_past 12 0 submit multi-node "signal-$1" --no-requeue
  scancel --signal="$1" "$job"
  release
  stopped_early "signal-$1"
}
signal_usr2() { signalled USR2; }
signal_term() { signalled TERM; }

# A second SIGTERM during a save leaves the earlier checkpoints intact, and the run continues from
# them.
second_term() {
  held_past 12 0 submit multi-node second-term --no-requeue
  scancel --signal=TERM "$job"
  release
  until saving second-term || no_jobs; do :; done
  scancel --signal=TERM "$job"
  within 20 no_jobs || bad "the job has not ended"
  nothing_left
  local code checkpoint
  for checkpoint in second-term/checkpoints/step_????????; do
    llamesh verify "$checkpoint" || bad "$checkpoint is damaged, or there is none"
  done
  code=$(exit_code)
  goes_on second-term
  report_line "exit code $code, submitted again: resumed after step $(resumed second-term), same weights"
}

halt_file() {
  held_past 12 0 submit requeue halted
  touch halted/halt
  release
  within 30 no_jobs || bad "the run does not stop"
  [[ $(field Restarts) == 0 ]] || bad "it was requeued"
  rm -f halted/halt
  stopped_early halted
}

# --- the job is requeued

# ended_after_restarts RUN N: checks that the job restarted N times, and ended with the unbroken run's weights.
ended_after_restarts() {
  ended 180 COMPLETED 0
  [[ $(field Restarts) == "$2" ]] || bad "$(field Restarts) restarts, not $2"
  same_weights "$1"
  report_line "requeued, resumed after step $(resumed "$1"), same weights"
}

requeue_template() {
  held_past 12 0 submit requeue requeued
  scancel --signal=USR2 "$job"
  release
  ended_after_restarts requeued 1
  has_to_log "is requeued"
}

# If slurm.conf says RequeueExit=75, any template will do. Slurm then requeues even a job with
# --no-requeue.
site_requeues() {
  echo RequeueExit=75 >>"$SLURM_CONF"
  scontrol reconfigure
  held_past 12 0 submit multi-node site-requeued
  scancel --signal=USR2 "$job"
  release
  ended_after_restarts site-requeued 1
  sed -i /^RequeueExit/d "$SLURM_CONF"
  scontrol reconfigure
}

# A launch that fails after a while is tried once more. The startup time counts from the second
# launch.
second_try() {
  local launch run_time
  mkdir -p fails-once
  printf '#!/bin/bash\nmkdir "fails-once/tried-$SLURM_PROCID" 2>/dev/null && sleep 20 && exit 1\nexec %q "$@"\n' "$work/bin/llamesh" \
    >fails-once/llamesh
  chmod +x fails-once/llamesh
  PATH=$work/fails-once:$PATH submit requeue second-try
  ended 90 COMPLETED 0
  has_to_log "retrying in"
  launch=$(sed -n 's/.* startup: launch \([0-9]*\)\..*/\1/p' second-try/log.txt)
  run_time=$(date -u -d "1970-01-01 $(field RunTime)" +%s)
  ((launch + 20 <= run_time)) || bad "the launch took $launch s in the log, of $run_time s with the first one's 20"
  report_line "the second launch took $launch s"
}

# The last task of an array has the array's id as its own, which to Slurm's commands means all tasks.
array_task_requeued() {
  local task
  sed 's/^folder=.*/folder=array-$SLURM_ARRAY_TASK_ID/' "$sources/slurm/requeue.sbatch" >array.sbatch
  hold 12 0
  job=$(sbatch --parsable --array=0-1 --nodes=1 --output="$scenario.%j.log" "$(other_nodes)" array.sbatch inputs/tiny.yaml - \
    "${same_run[@]}") || bad "sbatch refused the array"
  echo "$job" >>"$scenario.jobs"
  for task in 0 1; do within 60 past "array-$task" 12 || bad "task $task has not reached step 12"; done
  scancel --signal=USR2 "${job}_1"
  rm "$LLAMESH_HOLD"
  within 120 no_jobs || bad "the array has not ended"
  for task in 0 1; do
    [[ $(step_of "array-$task") == "$steps" ]] || bad "task $task has ended at step $(step_of "array-$task")"
    [[ $(job=${job}_$task field Restarts) == "$task" ]] || bad "task $task was requeued $(job=${job}_$task field Restarts) times"
  done
  report_line "one task was requeued, resumed after step $(resumed array-1); the other one went on"
}

# Slurm sends SIGTERM first, and the run saves.
scontrol_requeue() {
  held_past 25 0 submit requeue by-hand
  scontrol requeue "$job"
  release
  ended_after_restarts by-hand 1
}

# scancel sends the same signal, but the job must not be requeued.
cancelled() {
  held_past 12 0 submit requeue cancelled
  scancel "$job"
  release
  within 30 no_jobs || bad "the job is $(field JobState)"
  state_is CANCELLED || bad "the job is $(field JobState), not CANCELLED"
  [[ $(field Restarts) == 0 ]] || bad "it was requeued"
  [[ $(state_of cancelled state) == stopped ]] || bad "state.json says $(state_of cancelled state), not stopped"
  report_line "not requeued; saved step $(state_of cancelled step)"
}

job_chain() {
  local links=() link
  hold 12 0
  for link in 1 2 3; do
    submit chain chained --job-name=my-chain
    links+=("$job")
  done
  await_held chained
  scancel --signal=USR2 "${links[0]}"
  release
  within 60 no_jobs || bad "the chain has not ended"
  job=${links[0]}; ended 1 FAILED 75
  job=${links[1]}; ended 1 COMPLETED 0
  job=${links[2]}; ended 1 COMPLETED 0
  has_to_log "chained is done"
  same_weights chained
  report_line "3 links: stopped, done after resuming at step $(resumed chained), nothing left to do"
}

# llamesh reserves the last of two minutes. The start sleeps through most of the first one, so that
# little is trained. --signal replaces the template's signal, which would come first.
walltime() {
  mkdir -p slow-start
  printf '#!/bin/bash\nsleep 40\nexec %q "$@"\n' "$work/bin/llamesh" >slow-start/llamesh
  chmod +x slow-start/llamesh
  PATH=$work/slow-start:$PATH submit single-node walltime --no-requeue --time=2 --signal=CONT@1 --ntasks-per-node=1 -- train.steps=1000000
  ended 100 FAILED 75
  [[ $(state_of walltime state) == stopped ]] || bad "state.json says $(state_of walltime state), not stopped"
  llamesh verify "walltime/checkpoints/step_$(printf %08d "$(state_of walltime step)")" || bad "no checkpoint of its last step"
  report_line "75, $(state_of walltime reason), after $(field RunTime) of $(field TimeLimit)"
}

# starts_are N RUN: succeeds if the run trains for the N-th time after the same step.
starts_are() { [[ $(state_of "$2" starts_here) == "$1" && $(state_of "$2" state) == running ]]; }

# Each launch ends before it has saved anything. The third one refuses.
no_progress() {
  submit requeue no-progress -- train.steps=1000000 checkpoint.every_steps=1000000
  local start
  for start in 1 2; do
    within 40 starts_are $start no-progress || bad "start $start has not come"
    # shellcheck disable=SC2046
    kill -KILL $(ranks no-progress)
    within 15 restarts_are $start || bad "the job is not requeued"
  done
  within 40 state_is FAILED
  ended 1 FAILED 93
  [[ $(state_of no-progress state) == failed ]] || bad "state.json says $(state_of no-progress state), not failed"
  has_to_log "the previous launch (job $job) was killed, lost its node, or could not write"
  report_line "exit code 93 in restart $(field Restarts), not requeued"
}

# --- the cluster itself

slurmctld_stopped() {
  held_past 12 0 submit multi-node headless
  cluster slurmctld stop
  release
  trains_past headless $((steps - 10))
  cluster slurmctld start
  ended 40 COMPLETED 0
  same_weights headless
  report_line "the run went on, same weights"
}

# The ranks end with 75 while slurmctld is down: the script waits for it to queue the job again.
slurmctld_away_at_the_end() {
  held_past 12 0 submit requeue away
  cluster slurmctld stop
  # shellcheck disable=SC2046  # several process ids
  kill -USR2 $(ranks away)
  release
  within 30 no_ranks away || bad "the ranks have not ended"
  cluster slurmctld start
  ended 60 COMPLETED 0
  same_weights away
  report_line "the run was requeued by a script that had waited for slurmctld, same weights"
}

slurmd_killed() {
  local node
  held_past 12 2 submit multi-node no-slurmd
  node=$(node_of_process "$held")
  cluster slurmd "$node" kill
  release
  trains_past no-slurmd 30
  cluster slurmd "$node" start
  ended 40 COMPLETED 0
  same_weights no-slurmd
  report_line "the run went on, same weights"
}

node_killed() {
  local node
  held_past 25 0 submit requeue node-killed
  node=$(node_of_process "$held")  # the batch shell's, too
  cluster node "$node" off
  within 60 restarts_are 1 || bad "it was not requeued"
  ended_after_restarts node-killed 1
  cluster node "$node" on
}

# A node fails, and no other is free: the user lets the job continue on the remaining nodes. A job
# submitted afterwards starts on these at once.
node_range() {
  local node nodes="6 7 8"
  held_past 25 5 submit requeue node-range --nodes=2-3
  [[ $(field NumNodes) == 3 ]] || bad "it runs on $(field NumNodes) nodes, not 3"
  node=$(node_of_process "$held")
  cluster node "$node" off
  within 60 state_is PENDING || bad "it is not requeued"
  within 20 scontrol update JobId="$job" NumNodes=2-2 NumTasks=4 || bad "scontrol update refuses"
  ended 60 COMPLETED 0
  on_two_nodes
  llamesh verify "$(last_of node-range)" || bad "its last checkpoint is not good"
  submit multi-node node-range-again --nodes=2-3 -- train.steps=5
  ended 40 COMPLETED 0
  on_two_nodes
  cluster node "$node" on
  report_line "3 nodes, then 2 after scontrol update: resumed after step $(resumed node-range)"
}
on_two_nodes() { has_to_log "mesh replicate=2 x shard=2"; }

# Slurm considers a node healthy, but every launch there fails: something is in the place of PMIx's
# socket.
bad_node() {
  local step socket nodes="6 7 8"
  submit requeue bad-node --hold
  socket=$LLAMESH_CLUSTER/spool/node7/stepd.slurm.pmix.$job
  for step in {0..9}; do mkdir "$socket.$step"; done
  scontrol release "$job"
  ended 180 COMPLETED 0
  rmdir "$socket".*
  has_to_log "has not started in five launches .* is requeued without node7$"
  [[ $(field ExcNodeList) == 'node[1-5,9-14],node7' ]] || bad "excluded are $(field ExcNodeList), not node[1-5,9-14],node7"
  same_weights bad-node
  report_line "tried five times, then requeued without node7: same weights"
}

# Leftovers of an earlier start on a node block the first two job steps, as after a network cut that
# has healed.
stale_step() {
  local socket nodes="6 7"
  submit requeue stale-step --hold
  socket=$LLAMESH_CLUSTER/spool/node7/stepd.slurm.pmix.$job
  mkdir "$socket".{0,1}
  scontrol release "$job"
  ended 90 COMPLETED 0
  rmdir "$socket".*
  has_to_log "has not started .* retrying in 5 s"
  [[ $(field Restarts) == 0 ]] || bad "it was requeued"
  same_weights stale-step
  report_line "launched three times, same weights"
}

# The killed slurmstepd leaves its PMIx socket behind. This blocks the step with the same number
# when the job restarts on that node.
slurmstepd_killed() {
  local stepds
  held_past 25 2 submit requeue stepd-killed
  mapfile -t stepds < <(slurmstepds "$(node_of_process "$held")" 0)
  release  # first: a stopped process whose session leader dies gets SIGHUP, and the run would save
  kill -KILL "${stepds[@]}"
  ended_after_restarts stepd-killed 1
  has_to_log "has not started .* retrying in"
}

# --- slurm/resilient.sbatch: relaunched within the job

# Memory checkpoints, and none on disk before the end.
in_memory=(checkpoint.memory.every_steps=4 checkpoint.every_steps=1000)

# fails RUN FAULT...: injects the fault. Sets failed_after, the last step before the next launch.
fails() {
  "${@:2}"
  within 60 logged "the run failed in step" || bad "the run has not failed"
  failed_after=$(step_of "$1")
}
lost_steps() { echo $((failed_after - $(resumed "$1" | sed 's/.*,//'))); }

# continued_from_memory RUN STEPS: checks that it resumed from memory, and lost at most this many steps.
continued_from_memory() {
  grep -q "resumed after step [0-9]* from memory" "$1/log.txt" || bad "it was not resumed from memory"
  (($(lost_steps "$1") <= $2)) || bad "$(lost_steps "$1") steps are lost, more than $2"
}

# resilient RANK RUN NODES SPARES RESIZE [KEY=VALUE...]: submits resilient.sbatch; this rank holds the run past step 25.
resilient() {
  LLAMESH_HEALTH=off SPARES=$4 RESIZE=$5 held_past 25 "$1" submit resilient "$2" --nodes="$3" -- "${@:6}"
}

# relaunched RUN: checks that the run resumed and completed, and that its job was not requeued.
relaunched() {
  ended 180 COMPLETED 0
  [[ $(field Restarts) == 0 ]] || bad "$(field Restarts) restarts, not 0"
  [[ -n $(resumed "$1") ]] || bad "it was not resumed"
}

# blames RUN HOST: checks that the run's list of bad nodes has only this one.
blames() { [[ $(sed -n 's/.*"host": "\(.*\)",/\1/p' "$1/bad_nodes.json" | sort -u) == "$2" ]] || bad "$(cat "$1/bad_nodes.json")"; }

# seconds_to_step RUN: prints the seconds from the diagnosis to the first step after it. If Slurm ended the ranks before
# they gave one, it is supervise's.
seconds_to_step() {
  local diagnosis first
  diagnosis=$(sed -n 's/.*"time": "\(.*\)",/\1/p' "$1/bad_nodes.json" | head -n 1)
  grep -q '"kind": "lost"' "$1/failure.json" && diagnosis=$(sed -n 's/.*"at": "\(.*\)"/\1/p' "$1/failure.json")
  diagnosis=$(date +%s -d "$diagnosis")
  first=$(sed -n '/"event":"resume"/,$s/^{"step":.*"time":\([0-9]*\).*/\1/p' "$1/metrics.jsonl" | head -n 1)
  echo $((first - diagnosis))
}

# spare_after RUN STRATEGY FAULT LOST: injects a fault on the second node, whose first rank holds the run. The spare
# must take its place, and at most LOST steps may be lost.
spare_after() {
  local node took failed_after run=$1
  resilient 2 "$run" 3 1 shrink sharding.strategy="$2" "${in_memory[@]}"
  node=$(node_of_process "$held")
  fails "$run" "$3"
  relaunched "$run"
  continued_from_memory "$run" "$4"
  blames "$run" "node$node"
  took=$(seconds_to_step "$run")
  report_line "from memory after step $(resumed "$run"), $(lost_steps "$run") steps lost, first step $took s after the diagnosis, same weights"
}

# Each node has all shards.
spare_after_node_killed() {
  spare_after spare-for-node hybrid_shard node_off 5
  same_weights spare-for-node
  cluster node "$(blamed spare-for-node)" on
  nothing_in_memory
}
node_off() { cluster node "$node" off; }
blamed() { sed -n 's/.*"host": "node\(.*\)",/\1/p' "$1/bad_nodes.json" | head -n 1; }
# shellcheck disable=SC2086  # several nodes
nothing_in_memory() { [[ -z $(images $nodes) ]] || bad "memory checkpoints are left on $(images $nodes)"; }

# The other node has replicas; if the newest have not arrived, those of the memory checkpoint before.
spare_after_rank_stopped() {
  spare_after spare-for-rank full_shard rank_off 9
  same_weights spare-for-rank full_shard
  nothing_in_memory
}
rank_off() { :; }  # it is stopped already

# What a shell within a requeued job hands down to the jobs that it submits.
handed_down() {
  export SLURM_DISTRIBUTION=cyclic SLURM_EXPORT_ENV=NONE SLURM_RESTART_COUNT=3 SLURM_LABELIO=1 SLURM_WORKING_DIR=/tmp
  resilient 2 handed-down 2 0 shrink
  fails handed-down kill -KILL "$held"
  relaunched handed-down
  has_to_log "mesh replicate=2 x shard=2"
  same_weights handed-down
  report_line "relaunched, resumed after step $(resumed handed-down), same weights"
}

# The remaining node has all shards.
shrunk_after_node_killed() {
  local node failed_after
  resilient 2 shrunk 2 0 shrink "${in_memory[@]}"
  node=$(node_of_process "$held")
  fails shrunk node_off
  relaunched shrunk
  cluster node "$node" on
  has_to_log "continues on 1 of 2 nodes"
  continued_from_memory shrunk 5
  llamesh verify "$(last_of shrunk)" || bad "its last checkpoint is not good"
  report_line "on 1 node instead of 2: from memory after step $(resumed shrunk), $(lost_steps shrunk) steps lost"
}

# One rank for each of 4 stages; 2 stages fit on the remaining node, from the checkpoint on disk.
shrunk_to_fewer_stages() {
  local node failed_after
  resilient 2 fewer-stages 2 0 shrink model.num_hidden_layers=4 mesh.axes.pipeline=4 train.global_batch=8 checkpoint.every_steps=4
  node=$(node_of_process "$held")
  fails fewer-stages node_off
  relaunched fewer-stages
  cluster node "$node" on
  has_to_log "too few for mesh.axes.pipeline 4: the run goes on with 2"
  (($(lost_steps fewer-stages) <= 5)) || bad "$(lost_steps fewer-stages) steps are lost, more than 5"
  llamesh verify "$(last_of fewer-stages)" || bad "its last checkpoint is not good"
  report_line "2 stages instead of 4: from disk after step $(resumed fewer-stages), $(lost_steps fewer-stages) steps lost"
}

# The job releases the remaining node, with nothing left in its memory.
requeued_after_node_killed() {
  local node
  resilient 2 requeued-small 2 0 requeue checkpoint.memory.every_steps=4
  node=$(node_of_process "$held")
  cluster node "$node" off
  within 60 restarts_are 1 || bad "it was not requeued"
  cluster node "$node" on
  nothing_in_memory
  ended_after_restarts requeued-small 1
}

# Nothing can be launched on the spare, as in bad_node, and the site has cleaned the other node's memory: the run
# continues from disk on that node.
all_spares_bad() {
  local node step socket nodes="9 10 11"
  mkdir -p site
  printf '#!/bin/bash\n[[ ! -e clean ]] || rm -rf /dev/shm/llamesh-memory-*\nexec %q "$@"\n' "$work/bin/llamesh" >site/llamesh
  chmod +x site/llamesh
  hold 25 2
  PATH=$work/site:$PATH LLAMESH_HEALTH=off SPARES=1 RESIZE=shrink submit resilient spares-bad --nodes=3 --hold -- checkpoint.memory.every_steps=4
  socket=$LLAMESH_CLUSTER/spool/node11/stepd.slurm.pmix.$job
  for step in {0..99}; do mkdir "$socket.$step"; done
  scontrol release "$job"
  await_held spares-bad
  node=$(node_of_process "$held")
  touch clean
  cluster node "$node" off
  relaunched spares-bad
  rm clean
  rmdir "$socket".*
  cluster node "$node" on
  has_to_log "node11 is left out: no program can be launched on it"
  has_to_log "continues on 1 of 2 nodes"
  llamesh verify "$(last_of spares-bad)" || bad "its last checkpoint is not good"
  (($(resumed spares-bad) % 10 == 0)) || bad "it was resumed after step $(resumed spares-bad), which is not on disk"
  report_line "on 1 node instead of 2: resumed from disk after step $(resumed spares-bad)"
}

# A rank of the second launch is killed as soon as it appears.
killed_again_at_once() {
  local node failed_after
  resilient 2 killed-again 3 1 shrink "${in_memory[@]}"
  node=$(node_of_process "$held")
  fails killed-again kill -KILL "$held"
  within 30 logged "node$node is left out" || bad "the first failure has not come"
  within 30 rank_is_there 1 killed-again || bad "it is not launched again"
  kill -KILL "$(rank 1 killed-again)"
  relaunched killed-again
  continued_from_memory killed-again 5
  same_weights killed-again
  report_line "resumed after step $(resumed killed-again), same weights"
}
rank_is_there() { [[ -n $(rank "$1" "$2") ]]; }

# A node with a slow network is left out before the first step: a spare takes its place. Then a job without a spare
# keeps the slow node, and names it.
slow_node_left_out() {
  local rate=100mbit nodes="1 2 3 4"
  trap 'cluster rate 2 full' EXIT
  cluster rate 2 $rate || { report_line "no tc, or no tbf in the kernel"; return; }
  SPARES=1 submit resilient slow-node --nodes=4 --ntasks-per-node=1
  ended 90 COMPLETED 0
  blames slow-node node2
  has_to_log "node2 is left out: links on node2: link .*GB/s, the median is"
  llamesh verify "$(last_of slow-node)" || bad "its last checkpoint is not good"
  rm -r slow-node/bad_nodes.json
  SPARES=0 submit resilient slow-node --nodes=4 --ntasks-per-node=1 -- train.steps=$((steps + 10))
  ended 90 COMPLETED 0
  [[ ! -e slow-node/bad_nodes.json ]] || bad "a node is left out without a spare: $(cat slow-node/bad_nodes.json)"
  grep -q "links on node2: link " slow-node/log.txt || bad "log.txt does not name node2"
  report_line "$(sed -n 's/.*links on node2: link \(.*\)/\1/p' slow-node/log.txt | tail -n 1)"
}

# Slurm does not end a job with --no-kill when its batch node dies: the guard cleans the other nodes' memory and queues
# the job again.
batch_node_killed() {
  local node
  resilient 0 batch-killed 3 1 shrink checkpoint.memory.every_steps=4
  node=$(node_of_process "$held")
  cluster node "$node" off
  within 60 restarts_are 1 || bad "it was not requeued"
  cluster node "$node" on
  nothing_in_memory
  ended_after_restarts batch-killed 1
}

# Only the script's process gets the signal. The ranks stop as well, and the job is requeued.
relaunch_told() {
  resilient 0 relaunch-told 3 1 shrink checkpoint.memory.every_steps=4
  scancel --batch --signal=USR2 "$job"
  release
  within 30 restarts_are 1 || bad "it was not requeued"
  nothing_in_memory
  ended_after_restarts relaunch-told 1
}

# ends_by_itself RUN: checks that a hanging run ends within 60 s on all nodes.
ends_by_itself() {
  local begin=$SECONDS
  within 60 no_ranks "$1" || bad "ranks still hang after $((SECONDS - begin)) s: $(ranks "$1")"
  past "$1" $steps && bad "it was over before anything went wrong"
  report_line "the run ended after $((SECONDS - begin)) s"
}

link_cut() {
  held_past 12 2 submit multi-node link-cut --no-requeue
  local node first
  node=$(node_of_process "$held")
  cluster link "$node" down
  release
  (ends_by_itself link-cut)
  local ended=$?
  cluster link "$node" up
  [[ $ended == 0 ]] || exit 1
  within 60 no_jobs || bad "the job has not ended"
  nothing_left
  first=$(reported_line)
  clean_up
  goes_on link-cut
  report_line "$first; submitted again: resumed after step $(resumed link-cut), same weights"
}

# diagnosis_is RUN TEXT RANKS HOSTS: checks the diagnosis on stderr, in log.txt, in the job's comment and in state.json.
diagnosis_is() {
  has_to_log "^llamesh: $2"
  recorded_is "$@"
}
recorded_is() {
  local state
  state=$(tr -d ' \n' <"$1/state.json")
  grep -q "$2" "$1/log.txt" || bad "log.txt does not say '$2'"
  [[ $(state_of "$1" reason) == "$2"* ]] || bad "state.json has the reason '$(state_of "$1" reason)'"
  [[ $state == *"\"culprit_ranks\":[$3],\"culprit_hosts\":[$4],"* ]] || bad "unexpected faulty ranks in state.json: $state"
  scontrol show job "$job" | grep -q "Comment=$2" || bad "the job's comment is not '$2'"
}

says_why() { [[ -n $(state_of "$1" reason) ]]; }

# cut_pair RUN WHEN RANKS-A-NODE FIRST SECOND KEY=VALUE...: starts a run on four nodes. Once `WHEN RUN
# PROCESS` succeeds, two of them can no longer reach each other, and the run must find that out in time. FIRST
# and SECOND are the first ranks on these nodes. PROCESS is FIRST's and may have been stopped.
cut_pair() {
  local run=$1 when=$2 first=$4 second=$5
  submit multi-node "$run" --no-requeue --nodes=4 --ntasks-per-node="$3" -- sharding.strategy=full_shard train.steps=1000000 "${@:6}"
  trains_past "$run" 2
  local one other process begin said ended
  one=$(node_of "$first" "$run") other=$(node_of "$second" "$run") process=$(rank "$first" "$run")
  until "$when" "$run" "$process"; do sleep 0.01; done
  begin=$SECONDS
  cluster pair "$one" "$other" down
  kill -CONT "$process"
  within 40 says_why "$run" || bad "no diagnosis after $((SECONDS - begin)) s: $(cat "$run/state.json")"
  said=$((SECONDS - begin))
  within 45 no_ranks "$run"
  ended=$?
  cluster pair "$one" "$other" up
  [[ $ended == 0 ]] || bad "the diagnosis came after $said s, and ranks still hang 45 s later: $(ranks "$run")"
  report_line "diagnosis after $said s, ended after $((SECONDS - begin)) s: $(sed -n 's/.*"doing": "\(.*\)",/\1/p' "$run/state.json")"
  within 20 no_jobs || bad "the job has not ended"
  nothing_left
  # srun gets no line from a node that cannot reach the first one.
  ((first == 0)) || has_to_log "^llamesh: rank $first on node$one and rank $second"
  recorded_is "$run" "rank $first on node$one and rank $second on node$other cannot reach each other" "$first,$second" \
    "\"node$one\",\"node$other\""
  grep -q '"kind": "link"' "$run/failure.json" && compgen -G "$run/flight/rank-0000[$first$second]" >/dev/null || bad "no failure.json, or no flight record: $(ls "$run")"
}

# The ring of heartbeats does not pass between the two nodes.
pair_cut() {
  cut_pair pair-cut true 1 1 3 checkpoint.every_steps=1000000
  grep -q '"doing": "training step [0-9]*, in the [a-z-]* of .* along ' pair-cut/state.json || bad "state.json does not name the collective"
}

# The last node's heartbeats go to the first one, and its last rank is not the one that asks the
# others.
pair_cut_at_ends() { cut_pair pair-cut-at-ends true 2 0 6 checkpoint.every_steps=1000000; }

pair_cut_in_save() {
  local try
  for try in 1 2 3; do
    rm -rf pair-cut-in-save
    cut_pair pair-cut-in-save held_in_save 1 1 3 checkpoint.every_steps=1 checkpoint.keep=1 model.hidden_size=384 model.intermediate_size=1024 \
      data.sequence_length=8 train.global_batch=4
    if grep -q '"doing": "saving step [0-9]*, in the [a-z-]* of .* along world' pair-cut-in-save/state.json; then return; fi
  done
  bad "in $try tries the cut has not hit a save, or state.json does not name the collective: $(state_of pair-cut-in-save doing)"
}

# cut_node RUN NODES RANK SILENT: starts a run with two ranks per node and cuts off RANK's node.
# Slurm waits for the node, as at sites, and the node still reaches the run folder, as all nodes do
# here. The diagnosis must name rank SILENT.
cut_node() {
  local run=$1 node blamed begin said ended
  slurmd_timeout 300
  submit multi-node "$run" --no-requeue --nodes="$2" --ntasks-per-node=2 -- train.steps=1000000 checkpoint.every_steps=1000000
  trains_past "$run" 2
  node=$(node_of "$3" "$run") blamed=$(node_of "$4" "$run")
  begin=$SECONDS
  cluster link "$node" down
  within 40 says_why "$run"
  said=$((SECONDS - begin))
  within 60 no_ranks "$run"
  ended=$?
  cluster link "$node" up
  within 60 no_jobs || scancel "$job"
  slurmd_timeout
  [[ $ended == 0 ]] || bad "ranks still hang a minute after the diagnosis: $(ranks "$run")"
  nothing_left
  diagnosis_is "$run" "rank $4 on node$blamed has sent no heartbeat" "$4" "\"node$blamed\""
  grep -q '"kind": "lost"' "$run/failure.json" && grep -q "\"host\": \"node$blamed\"" "$run/failure.json" || bad "$(cat "$run/failure.json")"
  report_line "diagnosis after $said s, ended after $((SECONDS - begin)) s: $(state_of "$run" reason | sed 's/.*; //')"
}

# The cut node hears nobody either, and leaves the diagnosis to the others.
node_cut() {
  cut_node node-cut 4 4 5
  grep -q '"reason": ".*; node[0-9]* answers no other host"' node-cut/state.json || bad "$(cat node-cut/state.json)"
}

# With two nodes, either may be cut off: the one with rank 0 gives the diagnosis, and says so.
node_cut_of_two() {
  cut_node node-cut-of-two 2 2 3
  grep -q '"reason": ".* hears from 1 of 2 hosts, its own included: either side may be cut off"' node-cut-of-two/state.json ||
    bad "$(cat node-cut-of-two/state.json)"
}

rank_stopped() {
  held_past 12 2 submit multi-node rank-stopped --no-requeue
  local stopped
  stopped=$(node_of_process "$held")
  ends_by_itself rank-stopped
  within 20 no_jobs || bad "the job has not ended"
  ended 1 FAILED 70 75
  nothing_left
  diagnosis_is rank-stopped "rank 2 on node$stopped has sent no heartbeat" 2 "\"node$stopped\""
  local first
  first="$(reported_line) with $(exit_code)"
  goes_on rank-stopped
  report_line "$first; submitted again: resumed after step $(resumed rank-stopped), same weights"
}

# --- preflight

preflight() {
  submit preflight checked
  ended 40 COMPLETED 0
  [[ ! -e checked/metrics.jsonl ]] || bad "it has trained"
  report_line "0, and not trained"
}

# node1's llamesh differs from that on the two others.
preflight_bad_node() {
  mkdir -p other
  cp "$program" other/llamesh
  printf x >>other/llamesh
  cluster on 1 mount --bind "$work/other/llamesh" "$program"
  submit preflight checked-bad --nodes=3
  within 40 no_jobs
  cluster on 1 umount "$program"
  ended 1 FAILED 1
  has_to_log "exit code 75"
  has_to_log "--exclude=node1$"
  report_line "$(log_of_job | grep -o -- '--exclude=[^ ]*' | head -n 1)"
}

# --- traffic between nodes

# sent: prints the bytes that node1 and node2 have sent so far, in total.
sent() { awk '$1 ~ /^veth[12]:/ { sum += $2 } END { printf "%.0f", sum }' /proc/net/dev; }

# crossed NAME STEPS KEYS...: prints the bytes that a run sends. The model is so large that Slurm's and
# MPI's own traffic is small, and runs of 3 and 13 steps differ by exactly ten steps.
crossed() {
  local name=$1 length=$2 before
  before=$(sent)
  srun --mpi=pmix --nodelist=node[1-2] --ntasks-per-node=2 llamesh train inputs/tiny.yaml "run.folder=traffic-$name-$length" \
    "${@:3}" train.steps="$length" schedule.name=constant train.global_batch=4 precision.parameters=bf16 \
    model.hidden_size=192 model.intermediate_size=512 model.num_hidden_layers=4 2>"$scenario.$name.log" >&2 ||
    bad "the run with $name failed"
  echo $(($(sent) - before))
}
# counted NAME: prints the bytes between the nodes in ten steps, over all four ranks and both axes,
# as the metrics have them.
counted() {
  tail -n 3 "traffic-$1-13/metrics.jsonl" | sed -n 's/.*"traffic_between_nodes":{"replicate":\([0-9]*\),"shard":\([0-9]*\)}.*/\1 \2/p' |
    tail -n 1 | awk '{ print 4 * 10 * ($1 + $2) }'
}

traffic() {
  local name short long counted
  local -a keys
  echo "table: ten steps, 2 nodes x 2 ranks   between the nodes, MB   counted, MB"
  for name in hybrid_shard full_shard quantized; do
    keys=("sharding.strategy=${name/quantized/full_shard}")
    [[ $name != quantized ]] ||
      keys+=(sharding.gather=int8 sharding.reduce_dtype=int8 sharding.reshard_after_forward=2)
    short=$(crossed $name 3 "${keys[@]}")
    long=$(crossed $name 13 "${keys[@]}")
    declare "$name=$((long - short))"
    counted=$(counted $name)
    awk -v name=$name -v seen=$((long - short)) -v counted="$counted" \
      'BEGIN { printf "table: %-35s %23.1f %13.1f\n", name, seen / 1e6, counted / 1e6 }'
    awk -v seen=$((long - short)) -v counted="$counted" 'BEGIN { exit !(seen > 0.95 * counted && seen < 1.05 * counted) }' ||
      bad "$name: $((long - short)) bytes between the nodes, $counted counted"
  done
  ((full_shard > hybrid_shard)) || bad "full_shard sends no more than hybrid_shard"
  awk "BEGIN { exit !($quantized < 0.28 * $full_shard) }" || bad "quantized: more than a quarter of full_shard's bytes"
  report_line "within 5 % of what is counted; full_shard sends $(awk "BEGIN { printf \"%.1f\", $full_shard / $hybrid_shard }") x as much as hybrid_shard, $(awk "BEGIN { printf \"%.1f\", $full_shard / $quantized }") x as much as with int8"
}
