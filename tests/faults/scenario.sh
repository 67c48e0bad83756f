#!/usr/bin/env bash
# scenario.sh PROGRAM SCENARIO: one fault of the program as its user meets it. The scenarios are the
# functions below; CMakeLists.txt names them.
# shellcheck disable=SC2034  # used by faults.sh
sources=$(cd "$(dirname "$0")/../.." && pwd -P)
program=$(readlink -f "$1")
source "$(dirname "$0")/faults.sh"

# --- the inputs

tiny=inputs/tiny.yaml
# own_inputs: a.yaml is a copy of it, to be changed.
own_inputs() { sed "s|file: models|file: inputs/models|" $tiny >a.yaml; }

unknown_key() {
  own_inputs
  sed -i '/^train:/a\  stesp: 3' a.yaml
  local line
  line=$(grep -n stesp a.yaml | cut -d: -f1)
  refused 3 "a.yaml:$line: unknown key 'train.stesp'" "did you mean 'train.steps'" -- a.yaml
}
unknown_key_on_command_line() {
  refused 3 "unknown key 'train.micro_bach'" "did you mean 'train.micro_batch'" -- $tiny train.micro_bach=2
}
duplicate_key() {
  own_inputs
  echo 'run: {name: again}' >>a.yaml
  refused 3 "a.yaml:$(wc -l <a.yaml): duplicate key 'run'" "already at a.yaml:$(grep -n '^run:' a.yaml | head -n 1 | cut -d: -f1)" -- a.yaml
}
wrong_type() { refused 3 "train.steps: expected an integer or auto, got 'many'" -- $tiny train.steps=many; }
not_yaml() {
  printf 'run: {name: x\ndata: [\n' >a.yaml
  refused 3 "a.yaml:" "not valid YAML" -- a.yaml
}
missing_inputs() {
  refused 3 "nowhere.yaml" "No such file" -- nowhere.yaml
  refused 3 "did you mean 'inputs/tiny.yaml'?" -- input/tiny.yaml
}
global_batch_not_divisible() {
  refused 4 "train.global_batch 10" "4 ranks" "train.micro_batch 1 = 4" -- $tiny train.global_batch=10
}

# --- the data

missing_data() { refused 3 "data.train: 'no-such.txt'" "No such file" -- $tiny data.train=no-such.txt; }
wrong_format() {
  echo '[{"text": "a"}]' >a.json
  printf '\377\000\001\002' >my.bin
  refused 3 "command line: data.train: 'a.json'" "named as JSON records" -- $tiny data.train=a.json data.format=text
  refused 3 "command line: data.train: 'my.bin'" "is not UTF-8 text" "data.token_dtype" -- $tiny data.train=my.bin
}
empty_data() {
  : >empty.txt
  refused 3 "'empty.txt' is empty" -- $tiny data.train=empty.txt
}
short_text() {
  head -c 64 /dev/zero | tr '\0' a >short.txt
  refused 3 "'short.txt' has 64 tokens" "one sequence" "needs 65" -- $tiny data.train=short.txt
}
small_vocabulary() {
  refused 3 "ids 0 to 255" "model.vocab_size is 255" -- $tiny model.vocab_size=255
}

# token_file FILE NUMBER ID BAD-ID POSITION...: NUMBER ids of 2 bytes, another one at some positions.
token_file() {
  local file=$1 number=$2 id bad_id position
  id=$(printf '\\x%02x\\x%02x' $(($3 % 256)) $(($3 / 256)))
  bad_id=$(printf '\\x%02x\\x%02x' $(($4 % 256)) $(($4 / 256)))
  shift 4
  # shellcheck disable=SC2059
  for ((position = 0; position < number; ++position)); do printf "$id"; done >"$file"
  # shellcheck disable=SC2059
  for position in "$@"; do
    printf "$bad_id" | dd of="$file" bs=2 seek="$position" conv=notrunc status=none
  done
}
token_outside_vocabulary() {
  # In the second step of whichever rank has sequence 13, and of no other.
  token_file ids.bin 6401 97 300 $((13 * 64 + 5))
  launch 3 train $tiny data.train=ids.bin data.format=tokens data.token_dtype=uint16 data.order=sequential
  expect_end 78
  expect_line "token $((13 * 64 + 5)) of 'ids.bin'" "id 300" "model.vocab_size is 259"
}
all_tokens_outside_vocabulary() {
  token_file ids.bin 6401 300 300
  launch 4 train $tiny data.train=ids.bin data.format=tokens data.token_dtype=uint16
  expect_end 78
  expect_line "of 'ids.bin'" "id 300" "model.vocab_size is 259"
}

# Somebody cuts off what a run reads, while it reads it.
truncated_data() {
  head -c 4000000 /dev/zero | tr '\0' a >text.txt
  (launch 3 train $tiny data.train=text.txt train.steps=1000000 log.every_steps=1000000; exit "$code") &
  local job=$!
  trains 2
  truncate -s 1000 text.txt
  wait $job
  code=$?
  expect_end 78
  expect_line "'text.txt' was truncated" "had 4000000 bytes and has 1000 now"
  expect_state failed 78 "data file 'text.txt' was truncated"
}

# The system starts no more threads for one rank. OpenMP would end it with exit code 1.
no_more_threads() {
  through 1 "export LD_PRELOAD=$FEW_THREADS"
  refused 2 "rank 1 on" "the system starts no more threads for this process; raise its limit (ulimit -u" -- \
    $tiny train.threads=64
}

# More threads than the rank has cores: a forgotten --cpus-per-task.
more_threads_than_cores() {
  # shellcheck disable=SC2016
  through 0 'taskset -cp "$(taskset -cp $$ | sed "s/.*: //; s/[-,].*//")" $$ >/dev/null'
  launch 2 train $tiny train.steps=1 train.threads=2
  [[ $code == 0 ]] || bad "the run failed"
  [[ $(grep -c 'train.threads is 2, but rank 0 may use 1 core: ' err) == 1 ]] || bad "it does not warn, or not once"
}

# A rank may map too little: oneDNN, Open MPI and OpenMP would end it by a signal or their own exit codes.
little_address_space() {
  through 1 "ulimit -v 460000"
  refused 2 "the limit on this process's address space, 449 MiB (ulimit -v or -d), does not leave" -- $tiny
  # Enough for the libraries, and not for the model beside them.
  through 1 "ulimit -v 819200"
  refused 2 "address space, 800 MiB" -- $tiny model.num_hidden_layers=10 model.hidden_size=504 model.intermediate_size=1408
}

# A rank's stack is small. Flight records, of 250 kB, are not on it.
small_stack() {
  through 0 'ulimit -s 512'
  launch 2 train $tiny train.steps=2
  [[ $code == 0 ]] || bad "the run failed"
}

# What would make MPI_Init end a process with a page of its own.
process_limits() {
  through '""' 'umask 777'
  refused 1 "the umask is 777" "umask 022" -- $tiny
  through '""' 'ulimit -n 16'
  refused 1 "may open 16 files (ulimit -n)" "raise the limit" -- $tiny
  : >file
  through '""' 'export TMPDIR=$PWD/file/in'
  refused 1 "TMPDIR is $work/file/in, where this process cannot make the folder that Open MPI needs" -- $tiny
}

# The folder of the memory that ranks share is not there, as it may be in a container.
no_shared_memory() {
  LLAMESH_STARTED_FILE=$work/started OMPI_MCA_osc_sm_backing_directory=$work/absent launch 2 train $tiny
  expect_end 78
  expect_line "MPI keeps the memory that the ranks of a node share in $work/absent, which cannot be written"
  # For llamesh supervise.
  [[ $(<started) == "unfit $(hostname) MPI keeps the memory"* ]] || bad "it announces '$(<started)'"
}

# It has room, but no inode for another file; HDF5 would fail to open a checkpoint, and not say why.
no_inodes() {
  mkdir full
  mount -t tmpfs -o nr_inodes=1 tmpfs full 2>/dev/null || { echo "SKIPPED: no right to mount"; exit 77; }
  OMPI_MCA_osc_sm_backing_directory=$work/full launch 1 train $tiny
  umount full
  expect_end 78
  expect_line "in $work/full, where all 1 inodes are taken"
}

# Somebody edits what a run reads between its stop and its next launch, by a byte: the cursor would mean something else.
changed_data() {
  local ranks steps
  head -c 20000 /dev/zero | tr '\0' a >text.txt
  for ranks in 1 2; do
    rm -rf runs
    launch $ranks train $tiny data.train=text.txt train.steps=2
    [[ $code == 0 ]] || bad "the run failed"
    printf b | dd of=text.txt bs=1 seek=$((9000 + ranks)) conv=notrunc status=none
    launch $ranks train $tiny data.train=text.txt train.steps=3
    expect_end 78
    expect_line "the training data have changed since step 2: 'text.txt' has 20000 tokens" \
      "checkpoint.resume=runs/tiny/checkpoints/step_00000002"
    [[ ! -e runs/tiny/checkpoints/step_00000003 ]] || bad "the run went on"
    expect_state done 0 ""  # the start was refused before it changed the run
    grep -q '^  steps: 2$' runs/tiny/config.yaml || bad "config.yaml is that of the start that was refused"
  done
  # As the line says; and from then on the new data are those of the run.
  for steps in 3 4; do
    launch 2 train $tiny run.name=on data.train=text.txt train.steps=$steps \
      checkpoint.resume=runs/tiny/checkpoints/step_00000002
    [[ $code == 0 && -e runs/on/checkpoints/step_0000000$steps ]] || bad "the run does not go on under another name"
    [[ $(grep -c 'the training data differ from those' err) == $((4 - steps)) ]] || bad "warned at the wrong time"
  done
}

# --- the mesh

mesh_not_the_world() {
  refused 4 "replicate=3" "shard=2" "6 ranks" "there are 4" -- $tiny mesh.axes.replicate=3 mesh.axes.shard=2
}
shard_across_nodes() {
  refused 4 "hybrid_shard" "shard axis of 4 ranks would cross nodes" "4 ranks on 2 nodes" -- \
    $tiny mesh.ranks_per_node=2 mesh.axes.replicate=1 mesh.axes.shard=4
}
ranks_per_node_not_dividing() {
  refused 4 "4 ranks" "nodes of 3" "mesh.ranks_per_node" -- $tiny mesh.ranks_per_node=3
}
slurm_started_one_by_one() {
  SLURM_NTASKS=4 refused 1 "SLURM_NTASKS is 4 but MPI sees 1 rank" "srun --mpi=pmix" "mpirun -n 1" -- $tiny
  SLURM_NTASKS=4 refused 1 "SLURM_NTASKS is 4 but MPI sees 1 rank" -- $tiny --check
}

# --- the command line

unknown_subcommand() {
  launch 3 trian $tiny
  expect_end 78
  expect_line "no command 'trian'" "did you mean 'train'"
}
no_subcommand() {
  launch 3
  expect_end 78
  expect_line "no command given" "llamesh --help"
}
unknown_option() { refused 3 --fast -- $tiny --fast; }

# --- while it runs

run_folder_in_the_way() {
  : >occupied
  refused 3 "run.folder: 'occupied' is not a folder" -- $tiny run.folder=occupied/run
}
# A file larger than the user may write is a failed write, and not the end by a signal. The limit is of the rank alone,
# since MPI makes files, too.
file_size_limit() {
  through 0 'ulimit -f 500'
  LLAMESH_TEST_MPIRUN=1 launch 1 train $tiny train.steps=2
  expect_end 74
  expect_line "File too large"
  expect_state failed 74 ""
}
control_characters() {
  refused 3 "run.name" "control character" -- $tiny $'run.name="a\\nb"'
  refused 3 "run.folder" "control character" -- $tiny $'run.folder="a\\e[2Jb"'
}
not_utf8() {
  refused 3 "command line: log.openmetrics: '" "is not UTF-8 (byte 3)" -- $tiny $'log.openmetrics=caf\xe9.prom'
  refused 3 "command line: run.folder: '" "is not UTF-8 (byte 6)" -- $tiny $'run.folder=w/a/ca\xff'
}
run_folder_is_a_file() {
  : >occupied
  refused 3 "run.folder: 'occupied' is not a folder" -- $tiny run.folder=occupied
}
openmetrics_in_no_folder() {
  refused 3 "log.openmetrics: 'nowhere/x.prom' cannot be written: No such file" -- $tiny log.openmetrics=nowhere/x.prom
  refused 3 "log.openmetrics: 'nowhere/x.prom' cannot be written: No such file" -- --check $tiny log.openmetrics=nowhere/x.prom
  mkdir d.prom
  refused 3 "log.openmetrics: 'd.prom' is a folder" -- $tiny log.openmetrics=d.prom
}
divergence() {
  launch 4 train $tiny optimizer.lr=1e6 schedule.warmup_steps=0
  expect_end 93
  expect_line "step " "diverged" "optimizer.lr" "is not finite on"
}
# The first update makes weights that are not finite: they are not saved, and a start with another rate is a fresh one.
diverged_weights() {
  launch 4 train $tiny optimizer.lr=1e300 schedule.warmup_steps=0 checkpoint.every_steps=1
  expect_end 93
  expect_line "step 1 is not saved" "not finite" "optimizer.lr"
  expect_state failed 93 "step 1 is not saved"
  [[ -z $(ls runs/tiny/checkpoints) ]] || bad "there is a checkpoint: $(ls runs/tiny/checkpoints)"
  launch 4 train $tiny train.steps=1
  [[ $code == 0 && -e runs/tiny/checkpoints/step_00000001 ]] || bad "it does not train afterwards"
}
# The first update makes the weights so large that no later step is finite.
skipped_steps() {
  launch 4 train $tiny optimizer.lr=1e30 schedule.warmup_steps=0 train.on_nonfinite=skip
  expect_end 93
  expect_line "step 11:" "the last 10 steps made no update" "diverged"
  expect_state failed 93 "step 11: loss "
  local skipped nulls
  skipped=$(grep -c '"event":"skipped","step":[0-9]*,"detail":"step [0-9]*: loss ' runs/tiny/metrics.jsonl)
  nulls=$(grep -c '^{"step":[0-9]*,.*"grad_norm":null' runs/tiny/metrics.jsonl)
  [ "$skipped $nulls" = "9 9" ] || bad "$skipped events of skipped steps, and $nulls steps with a norm of null, not 9 and 9"
}

# Keys of a run whose ranks exchange tokens in every layer.
experts=(model.family=mixtral model.num_experts=4 model.num_experts_per_tok=2 sharding.strategy=full_shard mesh.axes.expert=4)

# kill_rank RANK KEY=VALUE...: a rank that is killed in the middle of the training takes the whole job with it.
kill_rank() {
  hold "$1" 3
  (launch 4 train $tiny log.every_steps=1000000 "${@:2}"; exit "$code") &
  local job=$!
  held
  kill -KILL "$(a_rank "$1")" || bad "rank $1 is gone"
  wait $job
  code=$?
  expect_end 137
  let_go
  [[ -n $(left_by runs/tiny) ]] || bad "no flight record where tests look for them (forget_runs.sh)"
  # Nobody was left to say so but the records of the ranks.
  launch 4 train $tiny train.steps=2 "${@:2}"
  [[ $code == 0 ]] || bad "exit code $code instead of 0"
  grep -q "by its flight records: rank $1 on $(hostname) was killed while training step 3" err || bad "the next launch does not name rank $1"
  expect_failure killed "$1"
  [[ ! -e runs/tiny/flight && -e runs/tiny/flight.1/rank-00003 ]] || bad "the records are not put aside"
}
# expect_failure KIND RANK: failure.json says so.
expect_failure() {
  for part in "\"kind\": \"$1\"" "\"rank\": $2," "\"host\": \"$(hostname)\"" '"phase": "training"' '"waiting": ['; do
    grep -qF "$part" runs/tiny/failure.json || bad "failure.json does not say $part: $(cat runs/tiny/failure.json)"
  done
}
killed_rank_0() { kill_rank 0; }
killed_rank_2() { kill_rank 2; }
killed_rank_with_experts() { kill_rank 1 "${experts[@]}"; }
killed_rank_in_a_stage() { kill_rank 2 mesh.axes.pipeline=2; }
int8=(mesh.ranks_per_node=2 sharding.strategy=full_shard sharding.gather=int8 sharding.reduce_dtype=int8)
killed_rank_with_int8() { kill_rank 2 "${int8[@]}"; }
apart=(mesh.ranks_per_node=2 optimizer.outer.every_steps=2 optimizer.outer.delay_steps=1)
killed_replica() { kill_rank 2 "${apart[@]}"; }
killed_rank_with_context() { kill_rank 1 sharding.strategy=full_shard mesh.axes.context=4; }

# --- runs that are asked to stop, and go on

whole="$tiny mesh.ranks_per_node=2"  # 20 steps

# trains N: waits until metrics.jsonl of the run of this folder has N lines.
trains() { within 120 has_lines "$1" || bad "the run does not train"; }
has_lines() { [[ -n $(sed -n "$1p" runs/tiny/metrics.jsonl 2>/dev/null) ]]; }

# expect_state WORD CODE REASON: state.json says so.
expect_state() {
  local text
  text=$(cat runs/tiny/state.json)
  for part in "\"state\": \"$1\"" "\"exit_code\": $2" "\"reason\": \"$3"; do
    [[ $text == *"$part"* ]] || bad "state.json does not say $part: $text"
  done
}

# stopped_and_resumed REASON COMMAND...: the run is asked to stop by the command, does so with a checkpoint and
# exit code 75, and started again ends with the weights of a run that nobody stopped.
stopped_and_resumed() {
  local reason=$1 job last
  shift
  # shellcheck disable=SC2086
  launch 4 train $whole run.folder=unbroken
  [[ $code == 0 ]] || bad "the unbroken run failed"
  hold 2 4
  # shellcheck disable=SC2086
  (launch 4 train $whole; exit "$code") &
  job=$!
  held
  "$@"
  let_go
  wait $job
  code=$?
  expect_end 75
  expect_state stopped 75 "$reason"
  last=$(basename "$(echo runs/tiny/checkpoints/step_*)")
  [[ $(cat runs/tiny/checkpoints/LATEST) == "$last" && $last < step_00000020 ]] || bad "stopped at $last"
  rm -f runs/tiny/halt
  # shellcheck disable=SC2086
  launch 4 train $whole
  [[ $code == 0 ]] || bad "the run does not go on"
  grep -q "resumed after step $((10#${last#step_}))," err || bad "it did not go on from $last"
  expect_state "done" 0 ""
  "$program" diff unbroken/checkpoints/step_00000020 runs/tiny/checkpoints/step_00000020 >out 2>err ||
    bad "other weights than those of the unbroken run"
}
stopped_by_usr1() { stopped_and_resumed SIGUSR1 eval 'kill -USR1 "$(a_rank 1)"'; }
stopped_by_usr2() { stopped_and_resumed SIGUSR2 eval 'kill -USR2 "$(a_rank 3)"'; }
stopped_by_two_terms() { stopped_and_resumed SIGTERM terminate_twice; }
terminate_twice() {
  local ranks
  ranks="$(a_rank 0) $(a_rank 1)"
  # shellcheck disable=SC2086
  kill -TERM $ranks
  # shellcheck disable=SC2086
  kill -TERM $ranks
}
# Somebody edits the model, so that the same weights would be read as another function, or do not fit.
changed_model() {
  local ranks
  launch 2 train $tiny train.steps=2
  [[ $code == 0 ]] || bad "the run failed"
  for ranks in 1 2; do
    launch $ranks train $tiny train.steps=3 model.num_attention_heads=3 model.num_key_value_heads=1 model.head_dim=16
    expect_end 78
    expect_line "the model has changed since step 2: model.num_attention_heads is 3 (it was 6)" \
      "checkpoint.resume=runs/tiny/checkpoints/step_00000002"
    launch $ranks train $tiny train.steps=3 model.num_hidden_layers=2
    expect_end 78
    expect_line "the model has changed since step 2: model.num_hidden_layers is 2" "set another run.name"
    expect_state done 0 ""  # the starts were refused before they changed the run
  done
  launch 2 train $tiny train.steps=3 model.rope_theta=5e5
  [[ $code == 0 && -e runs/tiny/checkpoints/step_00000003 ]] || bad "another rope_theta is refused"
  grep -q 'changed since step 2: model.rope_theta 10000 -> 500000' err || bad "it does not say that rope_theta has changed"
}

stopped_by_halt_file() { stopped_and_resumed "the file runs/tiny/halt" make_halt_file; }
# A run looks for it once a second at most, at the end of a step: held for longer than that, it looks after this one.
make_halt_file() {
  touch runs/tiny/halt
  sleep 1.5
}
# Somebody renames the folder of a run that trains: it says so at once, makes no other one, and ends without a save.
renamed_run_folder() {
  hold 0 3
  (launch 2 train $tiny; exit "$code") &
  local job=$!
  held
  mv runs/tiny runs/other
  within 120 grep -q "runs/tiny/checkpoints was removed or renamed while this run writes into it: put it back" err || bad "it does not say so"
  let_go
  wait $job
  code=$?
  expect_end 74
  expect_line "runs/tiny/checkpoints was removed or renamed" "nothing more is saved" "start the run again"
  [[ ! -e runs/tiny ]] || bad "the run folder was made anew"
  mv runs/other runs/tiny
  launch 2 train $tiny
  [[ $code == 0 ]] || bad "the run does not go on"
}
halt_file_stays() {
  mkdir -p runs/tiny
  touch runs/tiny/halt
  launch 3 train $tiny
  expect_end 78
  expect_line "runs/tiny/halt" "remove it"
  ln -sf nowhere runs/tiny/halt
  launch 3 train $tiny
  expect_end 78
  expect_line "runs/tiny/halt" "remove it"
}

# A run that has nothing left to do says so and how to go on; one that goes on says which inputs have changed.
resumed_with_changes() {
  launch 2 train $tiny
  [[ $code == 0 ]] || bad "the run failed"
  cp -r runs/tiny before
  launch 2 train $tiny optimizer.lr=5e-4 train.steps=10
  [[ $code == 0 ]] || bad "the finished run failed"
  [[ $(grep -c 'nothing to do: the run has done 20 steps, and train.steps is 10; continue with a larger train.steps, or' err) == 1 ]] ||
    bad "it does not say that there is nothing to do"
  grep -q 'changed since\|next: ' err && bad "it says more than that"
  # state.json tells by its time that llamesh has started.
  diff -r -x log.txt -x state.json -x .lease before runs/tiny >out || bad "it has changed $(cat out)"
  expect_state "done" 0 ""
  grep -q '"steps": 20,' runs/tiny/state.json || bad "steps: $(grep steps runs/tiny/state.json)"
  # Nor does a launch that is refused.
  launch 2 train $tiny run.seed=2 train.steps=40
  expect_end 78
  expect_state "done" 0 ""
  launch 2 train $tiny optimizer.lr=5e-4 train.steps=auto train.epochs=0.3
  [[ $code == 0 && -e runs/tiny/checkpoints/step_00000025 ]] || bad "0.3 epochs of 997 sequences are not 25 steps of 12"
  grep -q 'nothing to do' err && bad "it says that there is nothing to do"
  [[ $(sed -n 's/.*changed since step 20: //p' err) == "optimizer.lr 0.001 -> 0.0005
train.epochs 0 -> 0.3
train.steps 20 -> auto" ]] || bad "it does not name the keys that have changed"
  launch 2 train runs/tiny/config.yaml run.folder=runs/again checkpoint.resume=none
  [[ $code == 0 && -e runs/again/checkpoints/step_00000025 ]] || bad "config.yaml does not give the same run"
}
stopped_by_hup() { stopped_and_resumed SIGHUP eval 'kill -HUP "$(a_rank 2)"'; }
stopped_by_int() { stopped_and_resumed SIGINT eval 'kill -INT "$(a_rank 1)"'; }

# The reader of the output goes away: the run saves, and says nothing more.
stopped_by_closed_pipe() {
  timeout -k 10 "$(stretched 300)" "$program" train $tiny train.steps=1000000 log.every_steps=1 2>&1 </dev/null | head -n 3 >out
  code=${PIPESTATUS[0]}
  expect_end 75
  expect_state stopped 75 SIGPIPE
  [[ -e runs/tiny/checkpoints/$(cat runs/tiny/checkpoints/LATEST)/manifest.json ]] || bad "no checkpoint"
}

# signals_noted PROCESS: it has a handler for SIGUSR2.
signals_noted() { ((0x$(sed -n 's/^SigCgt:[[:space:]]*//p' "/proc/$1/status") >> 11 & 1)); }

# await_rank_0: until it notes signals. Sets first, its process id.
await_rank_0() { within 120 rank_0_notes_signals 2>/dev/null || bad "rank 0 does not note signals"; }
rank_0_notes_signals() {
  first=$(a_rank 0)
  [[ -n $first ]] && signals_noted "$first"
}

# A rank is asked to stop while it waits in MPI_Init for another one, which comes late.
stopped_before_training() {
  local job first
  through 1 'until [[ -e late ]]; do sleep 0.05; done'
  (launch 3 train $tiny; exit "$code") &
  job=$!
  await_rank_0
  kill -USR2 "$first" || bad "rank 0 is gone"
  touch late
  wait $job
  code=$?
  expect_end 75
  expect_state stopped 75 SIGUSR2
  grep -q "SIGUSR2: stopping before the first step" err || bad "it does not say so"
  [[ -z $(ls runs/tiny/checkpoints) ]] || bad "it has saved something"
  program=$llamesh
  launch 3 train $tiny train.steps=2
  [[ $code == 0 ]] || bad "the run does not go on"
}

# A rank that never comes to MPI_Init does not make the others wait for ever; one of them says so.
never_in_mpi_init() {
  local rank
  export LLAMESH_MPI_TIMEOUT=2
  for rank in 0 2; do
    through $rank 'exec sleep 1000'
    launch 3 train $tiny
    expect_end 75
    # The first one of those that wait, which is 2 s before the other if both have started at the same time.
    expect_lines "rank [012] on $(hostname): in MPI_Init for 2 s: another rank has not arrived .*LLAMESH_MPI_TIMEOUT"
    [[ ! -e runs ]] || bad "a run folder was made"
  done
}

# A launcher asks the ranks to end when one of them has died. Those that wait for it in MPI_Init do, although they note
# the signal that would stop a run.
told_to_end_in_mpi_init() {
  local job first
  through 1 'exec sleep 1000'
  (launch 3 train $tiny; exit "$code") &
  job=$!
  await_rank_0
  kill -TERM "$first" || bad "rank 0 is gone"
  wait $job
  code=$?
  expect_end 75
  expect_line "rank 0 on $(hostname): told to end (SIGTERM) while MPI_Init waits for another rank"
  [[ ! -e runs ]] || bad "a run folder was made"
}

# A walltime that is too short for anything is not spent again and again.
short_walltime() {
  export SLURM_JOB_ID=1 SLURM_JOB_END_TIME
  for _ in 1 2; do
    SLURM_JOB_END_TIME=$(($(date +%s) + 50))
    launch 2 train $tiny
    expect_end 75
    expect_state stopped 75 "the end of the walltime"
  done
  SLURM_JOB_END_TIME=$(($(date +%s) + 50))
  launch 2 train $tiny
  expect_end 93
  expect_line "stopping: the last 2 launches gained at most one step each" "from step 0 to 0" "the end of the walltime"
}
# The end of another job's walltime, in a variable that nobody renewed, is not this job's.
stale_end_time() {
  LLAMESH_JOB_END_TIME=1000 refused 2 "LLAMESH_JOB_END_TIME is 1000, a time before this launch; unset or renew it" -- $tiny
  SLURM_JOB_END_TIME=1000 launch 2 train $tiny
  [[ $code == 0 ]] || bad "the run failed"
  [[ $(grep -c "SLURM_JOB_END_TIME is '1000', a time before this launch: it is ignored" err) == 1 ]] || bad "not one warning"
}
# The previous launch's measurements predict it.
walltime_for_one_step() {
  launch 2 train $tiny train.steps=2
  [[ $code == 0 ]] || bad "the run failed"
  sed -i 's/"seconds_needed": [0-9.]*/"seconds_needed": 5000/; s/"state": "done"/"state": "stopped"/' runs/tiny/state.json
  SLURM_JOB_ID=1 SLURM_JOB_END_TIME=$(($(date +%s) + 4000)) launch 2 train $tiny train.steps=4
  [[ $code == 0 ]] || bad "the run failed"
  grep -q "need 5000 s.*give the job more time" err || bad "no warning"
}

# Under a scheduler a run that gains nothing is not started for ever.
no_progress() {
  export SLURM_JOB_ID=1
  for _ in 1 2; do
    hold 1 3
    (launch 2 train $tiny; exit "$code") &
    local job=$!
    held
    kill -KILL "$(a_rank 1)" || bad "rank 1 is gone"
    wait $job
    expect_state running 0 ""
  done
  let_go
  launch 2 train $tiny
  expect_end 93
  expect_line "the last 2 launches gained" "from step 0 to 0" "state.json"
  expect_state failed 93 "stopping: the last 2 launches gained"
}

# freeze_rank KEY=VALUE...: a rank that is frozen is found by another one, which names it and ends the job.
freeze_rank() {
  hold 2 3
  (launch 4 train $tiny log.every_steps=1000000 "$@"; exit "$code") &
  local job=$!
  held
  sleep 3  # several heartbeats, which say what the rank is doing
  kill -STOP "$(a_rank 2)" || bad "rank 2 is gone"
  wait $job
  code=$?
  # mpirun wakes a stopped rank (SIGCONT) before it kills it. As it is still held, it does not go on.
  expect_line "rank 2 on $(hostname)" "no heartbeat" "training step 3"
  expect_end 75
  expect_state stopped 75 "rank 2 on $(hostname)"
  expect_failure lost 2
  # At least of the rank that has reported; the others' may be left in /dev/shm for the next launch.
  compgen -G "runs/tiny/flight/rank-0000[013]" >/dev/null || bad "no rank has left a flight record"
}
frozen_rank() { freeze_rank; }
frozen_rank_in_a_stage() {
  freeze_rank mesh.axes.pipeline=2 sharding.strategy=full_shard train.global_batch=24
  # The others wait for its shards, for its stage, or at the end of a step for its loss.
  grep -qE '"axis": "(pipeline[^"]*|shard|world)"' runs/tiny/failure.json || bad "failure.json does not say where the others wait: $(cat runs/tiny/failure.json)"
}
# Rank 0 has the first stage alone: it waits for what rank 1 would send or take.
frozen_stage() {
  hold 1 3
  (launch 2 train $tiny log.every_steps=1000000 mesh.axes.pipeline=2 train.global_batch=24; exit "$code") &
  local job=$!
  held
  sleep 3
  kill -STOP "$(a_rank 1)" || bad "rank 1 is gone"
  wait $job
  code=$?
  expect_line "rank 1 on $(hostname)" "no heartbeat" "training step 3"
  expect_end 75
  expect_failure lost 1
  grep -qE "\"(activations|gradients) from chunk [01] to [01], micro-batch [0-9]+\"" runs/tiny/failure.json ||
    bad "failure.json does not say for which chunk and micro-batch rank 0 waits: $(cat runs/tiny/failure.json)"
}
frozen_rank_with_int8() {
  freeze_rank "${int8[@]}"
  grep -qE '"axis": "(shard|world)"' runs/tiny/failure.json || bad "failure.json does not say where the others wait: $(cat runs/tiny/failure.json)"
}
frozen_replica() {
  freeze_rank "${apart[@]}"
  grep -qE '"axis": "(replicate|shard|world)"' runs/tiny/failure.json || bad "failure.json does not say where the others wait: $(cat runs/tiny/failure.json)"
}
frozen_rank_with_experts() {
  freeze_rank "${experts[@]}"
  # The others wait for its rows or its weights, or at the end of a step for its loss.
  grep -qE '"axis": "(expert|world)"' runs/tiny/failure.json || bad "failure.json does not say where the others wait: $(cat runs/tiny/failure.json)"
}

# --- wrong without dying: faulty_llamesh, in which rank 2 goes wrong in step 3 (injected_faults.cpp)

# goes_wrong CODE KIND:NUMBER KEY=VALUE...: the run ends with this code, and never with an innocent rank in failure.json.
goes_wrong() {
  local code_then=$1 fault=$2
  shift 2
  LLAMESH_FAULT="${fault%:*} 2 3 ${fault#*:}" launch 4 train $tiny train.global_batch=8 log.every_steps=1000 "$@"
  expect_end "$code_then"
  grep -q '"kind": "error"' runs/tiny/failure.json && grep -q '"step": 3,' runs/tiny/failure.json ||
    bad "failure.json: $(cat runs/tiny/failure.json)"
}
names_rank_2() { grep -q '"rank": 2,' runs/tiny/failure.json || bad "failure.json: $(cat runs/tiny/failure.json)"; }

# undisturbed OPTION...: a run without faults. same_losses RUN: fails if that run's losses are others.
undisturbed() { launch 4 train $tiny run.name=undisturbed "$@"; }
losses_of() { sed -n 's/.*"loss":\([^,]*\),"grad_norm".*/\1/p' "runs/$1/metrics.jsonl"; }
same_losses() {
  [[ -n $(losses_of undisturbed) && $(losses_of "$1") == "$(losses_of undisturbed)" ]] ||
    bad "the losses of $1 are not those of an undisturbed run"
}
# A bit of its weights or moments flips: of four replicas three agree.
flipped_bit() {
  goes_wrong 75 flipped:5 sharding.strategy=no_shard debug.replica_hash_every=1 checkpoint.every_steps=2
  names_rank_2
  expect_line "after step 3: rank 2 on $(hostname) differs in weights or moments from ranks 0, 1, 3" "nothing is saved"
  [[ $(cat runs/tiny/checkpoints/LATEST) == step_00000002 && ! -e runs/tiny/checkpoints/step_00000003 ]] || bad "it has saved"
  # Without the fault: from the checkpoint before it.
  program=${program%/*}/../src/llamesh
  launch 4 train $tiny train.global_batch=8 train.steps=4 sharding.strategy=no_shard debug.replica_hash_every=1
  [[ $code == 0 ]] && grep -q "resumed after step 2," err || bad "the run does not go on from step 2"
}
# The bit makes a NaN: the replicas are compared before the run counts as diverged, and a healed run loses nothing.
flipped_bit_makes_nan() {
  goes_wrong 75 nan:0 sharding.strategy=no_shard debug.replica_hash_every=5
  names_rank_2
  expect_line "after step 2: rank 2 on $(hostname) differs in weights or moments from ranks 0, 1, 3" "nothing is saved"
  local options=(train.global_batch=8 train.steps=4 sharding.strategy=no_shard debug.replica_hash_every=5)
  undisturbed "${options[@]}"
  LLAMESH_FAULT="nan 2 3 0" launch 4 train $tiny run.name=healed debug.on_mismatch=heal "${options[@]}"
  [[ $code == 0 ]] && grep -q "after step 2: rank 2 on .*; step 3, which was not finite, is computed again" err ||
    bad "it is not healed"
  same_losses healed
}
# Of two replicas nobody knows which is right.
flipped_bit_of_two() {
  goes_wrong 75 flipped:11 mesh.ranks_per_node=2 debug.replica_hash_every=1
  expect_line "after step 3: rank 0 on $(hostname), rank 2 on $(hostname) hold the same shards along replicate" "no majority"
}
# A bit flips in moments that no other rank has. The run does not notice, but one rank that trains the
# steps again does, and finds the layer.
flipped_bit_is_found_later() {
  local options=(train.global_batch=8 train.steps=6 sharding.strategy=full_shard checkpoint.every_steps=2 checkpoint.keep=9)
  LLAMESH_FAULT="flipped 2 3 5" launch 4 train $tiny train.reproducible=mesh debug.state_hash_every=1 "${options[@]}"
  [[ $code == 0 ]] || bad "the run does not end"
  program=${program%/*}/../src/llamesh
  launch 1 replay runs/tiny --step 3 --until 6
  expect_end 1
  grep -qE "^step 3 differs: .* not the weights or moments after it in model[a-z_.0-9]+$" out || bad "it says: $(cat out)"
  launch 2 replay runs/tiny --step 5 --until 6  # from a checkpoint after the fault
  expect_end 0
  grep -qx "equal: steps 5 to 6 in loss and gradient norm, 2 of them in the hashes of the state" out || bad "it says: $(cat out)"
}
# A rank computes a wrong gradient for a unit without replicas.
wrong_gradient() {
  local options=(sharding.strategy=full_shard mesh.ranks_per_node=2 debug.replay_every=3)
  goes_wrong 75 wrong:0 checkpoint.every_steps=2 "${options[@]}"
  names_rank_2
  expect_line "in step 3, rank 2 on $(hostname) computed different bits for the same micro-batch, first in the gradient of " \
    "nothing is saved"
  [[ $(cat runs/tiny/checkpoints/LATEST) == step_00000002 && ! -e runs/tiny/checkpoints/step_00000003 ]] || bad "it has saved"
  # Healed, the run loses nothing.
  undisturbed train.global_batch=8 train.steps=4 "${options[@]}"
  LLAMESH_FAULT="wrong 2 3 0" launch 4 train $tiny run.name=healed train.global_batch=8 train.steps=4 debug.on_mismatch=heal \
    "${options[@]}"
  [[ $code == 0 ]] && grep -q "rank 2 on .*; the step's forward and backward passes are computed again" err ||
    bad "it is not healed"
  grep -q '"event":"healed","step":3,' runs/healed/metrics.jsonl || bad "metrics.jsonl has no event: healed"
  same_losses healed
}
# lost_node OPTION...: a run of two nodes loses one at its N-th memory checkpoint, N being $lost_at, in the middle of
# the replicas on other nodes.
lost_node() {
  options=(train.global_batch=8 sharding.strategy=full_shard mesh.ranks_per_node=2 "$@")
  undisturbed "${options[@]}"
  options+=(checkpoint.memory.every_steps=2)
  LLAMESH_FAULT="lost 2 $lost_at 0" launch 4 train $tiny "${options[@]}"
  [[ $code != 0 ]] || bad "it has ended with 0"
}
# continues STEP: it continues after that step, and ends like the undisturbed run.
continues() {
  launch 4 train $tiny "${options[@]}"
  [[ $code == 0 ]] && grep -q "resumed after step $1" err || bad "it does not continue from step $1"
  same_losses tiny
}
# The earlier copies are complete, and are used.
lost_in_remote_replica() {
  lost_at=2 lost_node train.steps=6 checkpoint.every_steps=100
  continues "2 from memory"
}
# The next launch finds the snapshots of step 4, which are gone when it reads them: those on disk are older, and intact.
vanished_in_start() {
  lost_at=3 lost_node train.steps=8 checkpoint.every_steps=3
  LLAMESH_FAULT="vanished 2 1 0" continues "3,"
  grep -q "memory checkpoints are not used: the memory checkpoint of step 4 in .* has disappeared" err ||
    bad "it does not say what has become of step 4"
}
# MPI fails on rank 1, and no rank is found to be lost: the run may be started again.
failing_send() {
  goes_wrong_by_mpi 1
  expect_line "rank 1 on $(hostname): MPI failed in a send on rank 1 ($(hostname)): MPI_ERR_INTERN" "start the run again"
  expect_state stopped 75 "MPI failed in a send on rank 1"
  grep -q '"kind": "error"' runs/tiny/failure.json || bad "failure.json: $(cat runs/tiny/failure.json)"
}
# The same, because rank 3 is gone: the diagnosis names it, and not rank 1.
lost_behind_a_failing_send() {
  goes_wrong_by_mpi 3
  expect_line "rank 3 on $(hostname)" "no heartbeat"
  expect_state stopped 75 "rank 3 on $(hostname)"
  grep -q '"kind": "lost"' runs/tiny/failure.json && grep -q '"rank": 3,' runs/tiny/failure.json ||
    bad "failure.json: $(cat runs/tiny/failure.json)"
}
# goes_wrong_by_mpi RANK: this rank is stopped in step 3, if it is not rank 1, whose sends fail then.
goes_wrong_by_mpi() {
  LLAMESH_FAULT="unsent 1 3 $1" launch 4 train $tiny log.every_steps=1000 sharding.strategy=full_shard mesh.ranks_per_node=1
  expect_end 75
}

# It is asked for another collective, for one more, for one less: within a node and between nodes.
another_collective() {
  local number
  for number in 0 1 2; do
    rm -rf runs
    goes_wrong 70 another:$number sharding.strategy=full_shard mesh.ranks_per_node=$((number < 2 ? 2 : 4)) debug.contract=true
    names_rank_2
    expect_line "rank 2 on $(hostname) is asked for another collective than the others along shard" "ranks 0, 1, 3 for the all-"
    grep -q "^  > [0-9]*: .*: ranks 0, 1, 3$" runs/tiny/log.txt && grep -q "^  > [0-9]*: .*: rank 2$" runs/tiny/log.txt ||
      bad "log.txt does not show both sides"
  done
}
# Of two ranks both are named.
another_collective_of_two() {
  goes_wrong 70 another:0 mesh.ranks_per_node=2
  expect_line "without a majority" "rank 2 for the broadcast"
}

if [[ $(type -t "$2") != function ]]; then echo "scenario.sh: no scenario named $2" >&2; exit 2; fi
"$2"
echo "$2: exit code $code"
