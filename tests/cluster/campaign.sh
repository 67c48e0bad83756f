#!/usr/bin/env bash
# campaign.sh LLAMESH [--seeds N] [--first S] [--seconds LIMIT] [--steps N] [--at-once N] [--relaunch] [--pipeline]
# Starts N runs (20) on a real Slurm, with seeds from S (1) on, and hits each with one fault. A seed draws the mesh, the
# fault, its victim and its time, from the program's start to the end of the run. Every run must end with the weights of
# the undisturbed run on that mesh: by itself, or submitted again if its exit code asks for that (75, 137, or 1 after a
# launch that failed twice). No committed checkpoint may be lost. failure.json must name the rank or host that was hit,
# or both hosts of a cut pair. Prints a line for each seed, the logs of each run that is not clean, and a table of the
# faults. Starts no seed after LIMIT seconds. Runs have 100 steps, and three run at once, unless the options say
# otherwise. Exits with 1 if a run was lost or hung, or ended with other weights or another code, and with 77 if no
# cluster can be created. With --relaunch each job has a spare node, which replaces a bad one within the job
# (slurm/resilient.sbatch), and half of the seeds have memory checkpoints. With --pipeline all meshes have pipeline stages.
# shellcheck disable=SC2016,SC2034,SC2154,SC1091  # jobs.sh uses and makes them
set -uo pipefail
source "$(dirname "$0")/jobs.sh"

seeds=20 first=1 seconds=1000000 steps=100 at_once=3 spares=0 template=requeue
meshes=(  # nodes, ranks on each, strategy, pipeline stages
  "2 1 full_shard" "2 2 hybrid_shard" "3 1 shard_grad_op" "3 2 hybrid_shard_zero2" "4 1 no_shard" "4 2 full_shard"
)
options=("${@:2}")
while ((${#options[@]})); do
  case ${options[0]} in
    --pipeline)
      meshes=("2 1 full_shard 2" "2 2 full_shard 2" "3 1 shard_grad_op 3" "4 1 hybrid_shard 2" "4 1 no_shard 4" "4 2 full_shard 4")
      options=("${options[@]:1}") ;;
    --relaunch) spares=1 template=resilient options=("${options[@]:1}") ;;
    --seeds | --first | --seconds | --steps | --at-once)
      name=${options[0]#--}
      declare "${name/-/_}=${options[1]}"
      options=("${options[@]:2}") ;;
    *) sed -n '2s/^# //p' "$0"; exit 2 ;;
  esac
done
group_size=$((4 + spares))  # nodes of a run, and its spare
on_cluster $((group_size * at_once)) "$0" "$@"

same_run=(train.steps="$steps" train.global_batch=24 checkpoint.every_steps=5 log.every_steps=5)
limit=$((160 + steps / 5))     # seconds from the fault to the end of the run
export LLAMESH_MPI_TIMEOUT=30  # for faults during MPI_Init; 60 s by default
faults=(
  kill-rank stop-rank power-off kill-slurmd kill-slurmstepd stop-slurmctld cut-pair-2s cut-pair-45s cut-pair cut-node
  cut-node-300s SIGUSR2 SIGTERM requeue walltime
)

now() { echo $((${EPOCHREALTIME/[.,]/} / 1000)); }                        # ms
in_seconds() { printf '%d.%d' $(($1 / 1000)) $(($1 % 1000 / 100)); }
# draw WHAT N: prints a number below N, the same for a seed on every machine.
draw() { echo $((0x$(sha1sum <<<"$seed $1" | cut -c 1-8) % $2)); }

# For the walltime of two minutes, of which llamesh reserves the last one: delays the start so that
# the first one ends when the fault is due.
mkdir -p late
printf '#!/bin/bash\n[[ $1 != train || -n ${SLURM_RESTART_COUNT:-} || -z ${LATE:-} ]] || sleep "$LATE"\nexec %q "$@"\n' \
  "$work/bin/llamesh" >late/llamesh
chmod +x late/llamesh

# sbatch: retries for half a minute, since another seed may have stopped slurmctld.
sbatch() {
  local tries
  for tries in {1..30}; do
    command sbatch "$@" 2>"$scenario.sbatch" && return
    grep -qE 'Zero Bytes|Unable to contact|Connection refused' "$scenario.sbatch" || break
    sleep 1
  done
  cat "$scenario.sbatch" >&2
  return 1
}

# start RUN [SBATCH-OPTION...]: submits the template on the seed's mesh.
start() {
  within 30 controller_answers
  PATH=$work/late:$PATH LLAMESH_HEALTH=off SPARES=$spares submit $template "$1" --nodes="$((size + spares))" --ntasks-per-node="$per_node" --cpus-per-task=1 \
    --overcommit "${@:2}" -- sharding.strategy="$strategy" ${stages:+mesh.axes.pipeline="$stages" model.num_hidden_layers=4} "${memory[@]}"
}
controller_answers() { scontrol ping 2>/dev/null | grep -q UP; }
has_ended() { state_is COMPLETED FAILED CANCELLED TIMEOUT NODE_FAIL; }
runs_here() { [[ -n $(ranks "$1") ]]; }

# reference: makes the mesh's unbroken run if there is none, and notes how many ms it takes.
reference() {
  unbroken=unbroken-${mesh// /-}
  (
    flock 8
    [[ -e $unbroken.ms ]] && exit
    start "$unbroken"
    within 30 runs_here "$unbroken" || bad "the unbroken run of mesh $mesh does not start"
    begin=$(now)
    within "$limit" no_ranks "$unbroken"
    begin=$(($(now) - begin))
    ended 120 COMPLETED 0  # another seed may have stopped slurmctld
    echo "$begin" >"$unbroken.ms"
  ) 8>"$unbroken.lock" || exit 1
}

# phase: prints what the run is doing, and after which step.
phase() {
  local step
  step=$(step_of "$run")
  if has_ended || ((${step:-0} >= steps)); then echo end
  elif [[ -z $step ]]; then echo start-up
  elif saving "$run"; then echo "save $step"
  else echo "step $step"; fi
}

# due MOMENT: waits until the fault is due, at MOMENT thousandths of the run: a fifth of the seeds
# hit the first second, the others a step. With times alone, most faults would miss a run whose
# speed depends on the machine's other load.
due() {
  if (($1 < 200)); then
    sleep "$(in_seconds $((5 * $1)))"
  else
    within 60 over_or_past $((($1 - 200) * steps / 800))
    sleep "0.0$(($1 % 10))"
  fi
}
over_or_past() { past "$run" "$1" || ! runs_here "$run"; }

# This cluster gives up a node after 10 s and ends its job. Sites wait 300 s, so there the ranks
# must find out who is cut off. The setting applies to the whole cluster, so cut-node-300s runs only
# while no seed needs the 10 s.
agree_on_timeout() {
  case $fault in
    power-off | cut-node) flock -s 7 ;;
    cut-node-300s) flock 7; touch "$scenario.patient"; slurmd_timeout 300 ;;
  esac
}
release_timeout() {
  [[ ! -e $scenario.patient ]] || slurmd_timeout
  flock -u 7
}

# strike: injects the fault. Sets to_blame, a pattern for failure.json (on one line), and faulty, a
# pattern for the logs if the job ends before its ranks give a diagnosis. If two nodes do not hear
# each other, either may be cut off.
strike() {
  local process both="\"detail\": \"[^\"]*(\b$host\b[^\"]*\bnode$peer\b|\bnode$peer\b[^\"]*\b$host\b)"
  local lost="\"kind\": \"(lost|killed|vanished)\".*\"host\": \"$host\""
  case $fault in
    kill-rank) kill -KILL "$(rank "$victim" "$run")"; faulty="rank $victim on $host |$host: task $victim: Killed" ;;
    stop-rank) kill -STOP "$(rank "$victim" "$run")"; faulty="rank $victim on $host " ;;
    power-off) cluster node "$node" off; faulty="rank [0-9]* on $host |Node failure on $host" ;;
    kill-slurmd) cluster slurmd "$node" kill ;;
    kill-slurmstepd) for process in $(slurmstepds "$node" 0); do kill -KILL "$process"; done ;;
    stop-slurmctld) cluster slurmctld stop ;;
    cut-pair*) cluster pair "$node" "$peer" down; faulty="rank [0-9]* on $host and rank [0-9]* on node$peer cannot reach" ;;
    cut-node*) cluster link "$node" down; faulty="rank [0-9]* on $host |Node failure on $host" ;;
    SIGUSR2 | SIGTERM) within 30 controller_answers; scancel --signal="${fault#SIG}" "$job" ;;
    requeue) within 30 controller_answers; scontrol requeue "$job" ;;
    walltime) ;;  # comes by itself
  esac 2>/dev/null
  case $fault in
    kill-rank | stop-rank) to_blame="\"rank\": $victim, +\"host\": \"$host\"" ;;
    cut-pair*) ((size == 2)) && to_blame=$both || to_blame="\"kind\": \"link\".*$both" ;;
    cut-node*) ((size == 2)) && to_blame=$both || to_blame=$lost ;;
    *) to_blame=$lost ;;
  esac
}

# mend: repairs what the fault has left behind.
mend() {
  case $fault in
    power-off) cluster node "$node" on ;;
    kill-slurmd) cluster slurmd "$node" start ;;
    stop-slurmctld) cluster slurmctld start ;;
    cut-pair*) cluster pair "$node" "$peer" up ;;
    cut-node*) cluster link "$node" up ;;
  esac
  mended=yes
}

# lasts: prints how many seconds the fault may stay; most stay until the job has left its nodes.
lasts() {
  case $fault in
    cut-pair-2s) echo 2 ;;
    cut-pair-45s) echo 45 ;;
    stop-slurmctld) echo 10 ;;
    cut-node-300s) if [[ -n $ended_after ]]; then echo 0; else echo 100; fi ;;  # Slurm waits for the node
    *) echo "$limit" ;;
  esac
}

# slurm_alone_waits: succeeds if the run is done or stopped and no rank is left, but the job is not over. Either srun
# waits: over a cut link, slurmstepd gives up after five tries (half a minute here) to tell srun that a task has ended,
# and a job with two `sleep` tasks hangs likewise. Or Slurm has queued the job again and does not start it, as long as
# its first launch has not ended on a node that was cut off.
slurm_alone_waits() {
  [[ $(state_of "$run" state) =~ ^(done|stopped)$ ]] && no_ranks "$run" || return
  logged "srun: First task exited 60s ago" || state_is PENDING
}

# shellcheck disable=SC2086  # several process ids
alive() { kill -0 $hit 2>/dev/null; }

# count_lost: notes what each new launch resumed from, and how many steps it lost. Call it often.
count_lost() {
  local lines line step from
  mapfile -t lines < <(grep -o 'resumed after step .*' "$run/log.txt" 2>/dev/null)
  for line in "${lines[@]:resumes}"; do
    step=${line#resumed after step }
    step=${step%%[ ,]*}
    from=disk
    if [[ $line == *" from memory,"* ]]; then from=memory; fi
    echo "$from $((newest > step ? newest - step : 0))" >>"$scenario.lost"
    newest=$step
  done
  resumes=${#lines[@]}
  step=$(step_of "$run")
  newest=$((${step:-0} > newest ? ${step:-0} : newest))
}

# follow: waits until the run has ended, and submits it again if its exit code asks for that. Sets
# outcome; ended_after, the seconds until the launch that was hit had ended; and said, the seconds until
# failure.json was written. Keeps that file.
follow() {
  local struck=$1 state mended=no code resubmitted=0 newest=0 resumes=0
  outcome='' ended_after='' said=''
  until [[ -n $outcome ]]; do
    sleep 0.2
    count_lost
    state=$(field JobState 2>/dev/null)
    if [[ -z $ended_after ]] && ! alive; then ended_after=$(in_seconds $(($(now) - struck))); fi
    if [[ -z $said && -e $run/failure.json ]]; then said=$(in_seconds $(($(now) - struck))); fi
    if [[ -n $said && -n $ended_after && ! -e $scenario.failure ]]; then cp "$run/failure.json" "$scenario.failure"; fi
    if [[ $mended == no ]] && { [[ -n $state && $state != RUNNING ]] || (($(now) - struck > 1000 * $(lasts))); }; then
      mend
    fi
    if (($(now) - struck > 1000 * limit)); then
      sinfo -N -l
      squeue -t all -o '%i %j %T %r %N %M'
      if ! slurm_alone_waits; then
        outcome=HUNG
      elif [[ $(state_of "$run" state) == "done" ]]; then
        outcome=ended codes+=" Slurm waits"
      else  # as a user would; the job is submitted again
        codes+=" Slurm waits"
        scancel "$job"
        within 60 has_ended
        struck=$(now)
      fi
    fi
    case $state in
      COMPLETED) outcome=ended ;;
      FAILED | TIMEOUT | NODE_FAIL | CANCELLED)
        code=$(exit_code)
        codes+=" $state:$code"
        if [[ $state == FAILED && " 1 75 137 " != *" $code "* ]] || ((++resubmitted > 2)); then outcome="WRONG CODE"; fi
        if [[ -z $outcome ]]; then within 20 no_process; start "$run"; fi ;;
    esac
  done
  if [[ $mended == no ]]; then mend; fi
}

# kept RUN: succeeds if no start resumed before the newest checkpoint that an earlier one had saved
# (log.txt only grows), and all checkpoints are good.
kept() {
  awk '/ saved .*step_[0-9]+$/ { sub(/.*step_0*/, ""); saved = $0 + 0; next }
    / resumed after step / { sub(/.*resumed after step /, ""); if ($0 + 0 < saved) lost = 1; resumed = 1 }
    / job [0-9]+, restart / { resumed = 0 }
    / startup: / { if (saved && !resumed) lost = 1 }
    END { exit lost }' "$1/log.txt" || return
  local checkpoint
  for checkpoint in "$1"/checkpoints/step_????????; do llamesh verify "$checkpoint" || return; done
}

# mesh_of RUN: prints the mesh of its newest start. Lines that name a checkpoint's mesh do not count.
mesh_of() { grep -o ' parameters in .* mesh [a-z]*=[0-9a-z= ]*' "$1/log.txt" | tail -n 1 | sed 's/.* mesh //'; }

# judge: sets outcome for a run that has ended. If Slurm restarts a job while a node is still cut off, it
# may launch on the other nodes only: on another mesh, where sums have another order.
judge() {
  if [[ $outcome != ended ]]; then return; fi
  outcome="same weights"
  kept "$run" || outcome=LOST
  if [[ $(mesh_of "$run") != "$(mesh_of "$unbroken")" ]]; then
    [[ $outcome == LOST ]] || outcome="other mesh"
  else
    llamesh diff "$(last_of "$unbroken")" "$(last_of "$run")" || outcome="OTHER WEIGHTS"
  fi
}

# named: prints whether failure.json, or Slurm's log if there is none, names the victim. It need not
# if the run was over by then or continued regardless.
named() {
  if [[ -z $faulty || $phase == end ]] || { [[ $(field Restarts) == 0 && -z $codes ]] && ! logged "retrying in\|the run failed in step"; }
  then echo -; return; fi
  if [[ -e $scenario.failure ]] && ! grep -q '"kind": "error"' "$scenario.failure"; then
    tr '\n' ' ' <"$scenario.failure" | grep -qE "$to_blame" && echo named || echo "WRONGLY named"
  else
    grep -qE "$faulty" "$scenario".*.log "$run/log.txt" "$run/state.json" && echo named || echo "not named"
  fi
}

# goodput RUN: prints the goodput in state.json, a part and its seconds per line.
goodput() { tr -d '\n ' <"$1/state.json" | sed -n 's/.*"goodput":{\([^}]*\)}.*/\1/p' | tr ',:' '\n ' | tr -d '"'; }

# try_seed: makes one run with one fault.
try_seed() {
  local mesh size per_node strategy stages fault victim node peer host run=run-$seed unbroken job codes='' faulty='' to_blame=''
  local hit moment delay started struck phase outcome ended_after said begin options=() memory=()
  begin=$(now)
  mesh=${meshes[$(draw mesh ${#meshes[@]})]}
  read -r size per_node strategy stages <<<"$mesh"
  fault=${faults[$(draw fault ${#faults[@]})]}
  victim=$(draw victim $((size * per_node)))
  agree_on_timeout
  reference
  if ((spares && $(draw memory 2))); then memory=(checkpoint.memory.every_steps=3 checkpoint.every_steps=25); fi
  moment=$(draw time 1000)
  delay=$(($(cat "$unbroken.ms") * moment / 1000))
  if [[ $fault == walltime ]]; then
    export LATE=$((delay < 58000 ? (58000 - delay) / 1000 : 0))
    options=(--time=2 --signal=CONT@1)
  fi
  start "$run" "${options[@]}"
  within 90 runs_here "$run" || bad "the run does not start"
  started=$(now)
  node=${nodes%% *}
  node=$((node + victim / per_node))
  peer=$((${nodes%% *} + (victim / per_node + 1 + $(draw peer $((size - 1)))) % size))
  host=node$node
  if [[ $fault == walltime ]]; then sleep "$(in_seconds "$delay")"; else due "$moment"; fi
  hit=$(ranks "$run" | paste -sd' ')
  phase=$(phase)
  struck=$(now)
  strike
  follow "$struck"
  judge
  if [[ $fault != walltime ]]; then goodput "$run" >"$scenario.goodput"; fi  # most of that is the test's own delay
  printf '%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n' "$seed" "${size}x$per_node $strategy${stages:+, $stages stages}${memory:+, memory}" "$fault" \
    "$(in_seconds $((struck - started)))" "$phase" "$outcome" "${ended_after:--}" "$(in_seconds $(($(now) - begin)))" "$(named)" \
    "${codes# }" "${said:-$ended_after}" >"$scenario.result"
  [[ $outcome == "same weights" || $outcome == "other mesh" ]]
}

print_result() {
  awk -F'\t' '{ printf "%5d  %-32s %-15s at %4.1f s  %-9s %-13s ended after %5.1f s, all %5.1f s  %-19s %s\n",
    $1, $2, $3, $4, $5, $6, $7, $8, $9 == "-" ? $9 : $9 " " $11 " s", $10 }' "$1"
}

# work_on GROUP: tries this group's share of the seeds, on its own nodes.
work_on() {
  local group=$1 node=$((group_size * ($1 - 1) + 1)) nodes seed scenario log
  nodes=$(seq -s' ' "$node" $((node + group_size - 1)))
  for ((seed = first + group - 1; seed < first + seeds && SECONDS < seconds; seed += at_once)); do
    scenario=seed-$seed
    exec 7>slurmd-timeout.lock
    if ! (try_seed) >"$scenario.out" 2>&1; then
      [[ -s $scenario.result ]] || printf '%s\t-\t-\t0\t-\tFAILED\t-\t0\t-\t\t\n' "$seed" >"$scenario.result"
    fi
    clean_up >>"$scenario.out"
    release_timeout
    {
      flock 9
      print_result "$scenario.result"
      if grep -qE "(not|WRONGLY) named" "$scenario.result"; then
        { grep -hE '^(llamesh|srun|slurmstepd)' "$scenario".*.log; cat "$scenario.failure"; } 2>/dev/null | sed 's/^/    /'
      elif ! grep -q "same weights" "$scenario.result"; then
        for log in "$scenario.out" "$scenario".*.log "run-$seed/log.txt" "run-$seed/state.json"; do
          [[ -e $log ]] && echo "    --- $log" && sed 's/^/    /' "$log"
        done
      fi
    } 9>print.lock
    rm -rf "run-$seed"
  done
}

for ((group = 1; group <= at_once; ++group)); do work_on "$group" & done
wait
awk '$1 != "share" { part[$1] += $2; all += $2 }
  END { printf "\ngoodput %.0f %% of %.0f s", all ? 100 * part["productive"] / all : 0, all
    for (p in part) printf ", %s %.0f s", p, part[p]
    print "" }' seed-*.goodput
cat seed-*.lost 2>/dev/null | awk '{ ++n[$1]; lost[$1] += $2; if ($2 > worst[$1]) worst[$1] = $2 }
  END { for (f in n) printf "%d starts resumed from %s and lost %.1f steps each, %d at most\n", n[f], f, lost[f] / n[f], worst[f] }'
cat seed-*.result | awk -F'\t' '
  { ++n[$3]; ++all; seen[$3] }
  $6 == "same weights" { ++good[$3] }
  $6 == "other mesh" { ++other }
  $6 == "LOST" || $6 == "OTHER WEIGHTS" { ++lost[$3] }
  $6 == "HUNG" { ++hung[$3] }
  $6 == "WRONG CODE" || $6 == "FAILED" { ++wrong[$3] }
  $9 == "named" { ++named[$3]; ++all_named; if ($11 + 0 <= 40) ++in_time }
  $9 != "-" { ++faulty[$3]; ++all_faulty }
  $7 + 0 > worst[$3] { worst[$3] = $7 + 0 }
  END {
    printf "\n%-16s %5s %12s %5s %5s %10s %9s %13s\n",
      "fault", "runs", "same weights", "lost", "hung", "wrong code", "named", "worst, s"
    for (f in seen) {
      printf "%-16s %5d %12d %5d %5d %10d %9s %13.1f\n", f, n[f], good[f], lost[f], hung[f], wrong[f],
        faulty[f] ? named[f] + 0 "/" faulty[f] : "-", worst[f] | "sort"
      ok += good[f]
    }
    close("sort")
    printf "%d of %d runs ended with the weights of the unbroken run, %d on another mesh\n", ok, all, other
    printf "%d of %d faulty ranks were named, %d of them within 40 s\n", all_named, all_faulty, in_time
    exit ok + other != all
  }'
