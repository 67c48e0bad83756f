#!/bin/bash
# failing_calls.sh LLAMESH SHIM [SAMPLE [SEED [CALLS]]]: a run of 2 ranks goes on from a checkpoint and saves twice; one
# call of one rank fails (fail_shim.cpp), of each kind and in each way SAMPLE times at random, or with `all` each one
# in turn. What has to be tried again (EINTR, a short write, an fsync that takes long) must not be noticed. Else the
# run goes on, or ends with its exit code and one line that names the file; the newest checkpoint verifies, and a
# second start ends with the weights of the unbroken run. None may hang. Prints how many ended in which way.
# CALLS ("fsync pwrite") names those to be tried. Runs in the folder that has inputs/.
llamesh=$1 shim=$2 sample=${3:-1} seed=${4:-$RANDOM} only=$5
RANDOM=$seed
mpirun="$(dirname "$0")/../mpirun.sh"
source "$(dirname "$0")/../patience.sh"
source "$(dirname "$0")/../forget_runs.sh"
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
export OMPI_MCA_ess_singleton_isolated=1  # no helper process of MPI's for one rank
export OMPI_MCA_sharedfp_lockedfile_priority=50  # as MPI-IO chooses between nodes
workers=3                                 # a start mostly waits for MPI
slow=8                                    # more seconds than any patience with a file that there is
[ "$sample" = all ] && slow=20
[ -w /dev/shm ] && export TMPDIR=/dev/shm
folder=$(cd "$(mktemp -d)" && pwd -P) || exit 1
trap 'forget_runs "$folder"; rm -rf "$folder"' EXIT
give_up() { echo "$1 (seed $seed)"; cat "$2"; exit 1; }

# train DISK STEPS [VARIABLE=VALUE ...]
train() {
  local disk=$1 steps=$2; shift 2
  timeout -k 10 "$(stretched 300)" "$mpirun" 2 env "$@" "$llamesh" train inputs/tiny.yaml "run.folder=$disk/run" "train.steps=$steps" \
    "data.train=$disk/tiny.txt" schedule.name=constant checkpoint.every_steps=1 checkpoint.keep=1 log.every_steps=1 \
    data.sequence_length=16 train.global_batch=2 model.hidden_size=8 model.num_attention_heads=2 \
    model.num_key_value_heads=1 model.intermediate_size=16 model.num_hidden_layers=1 > "$disk.log" 2>&1
}

# try RANK CALL K HOW DISK: prints how the run ended, or what is wrong, and fails.
try() {
  local rank=$1 call=$2 k=$3 how=$4 disk=$5 code line
  rm -rf "$disk"; cp -r "$folder/start" "$disk"
  train "$disk" 3 "LD_PRELOAD=$shim" "LLAMESH_FAIL=$call $k $how" "LLAMESH_FAIL_RANK=$rank" "LLAMESH_FAIL_BELOW=$disk/"
  code=$?
  wrong() { echo "WRONG: rank $rank, $call $k, $how: $1 (exit code $code)"; cat "$disk.log"; }
  case $call:$how:$code in
    *:0) ;;
    ftruncate:EINTR:74)  # HDF5 does not try it again
      grep -q '^llamesh: .*HDF5 failed to close .*state.h5' "$disk.log" || { wrong "it has to be tried again"; return 1; } ;;
    *:EINTR:* | *:short:* | *:[0-9]*:*) wrong "it has to be tried again"; return 1 ;;
    mmap:*:78 | new:*:78) ;;
    *:74 | open:*:78)  # 78: the only checkpoint cannot be read
      line=$(grep '^llamesh: ' "$disk.log")
      [[ $line == *"$disk/"* ]] || { wrong "no line that names the file"; return 1; } ;;
    *) wrong "not one of its exit codes"; return 1 ;;
  esac
  [ "$(grep -c '^llamesh: ' "$disk.log")" = $((code > 0)) ] || { wrong "not one line that says why"; return 1; }
  "$llamesh" verify "$disk/run" >> "$disk.log" 2>&1 || { wrong "the newest checkpoint is damaged"; return 1; }
  [ $code = 0 ] || train "$disk" 3 || { wrong "the second start failed"; return 1; }
  "$llamesh" diff {"$folder/unbroken","$disk"}/run/checkpoints/step_00000003 >> "$disk.log" 2>&1 ||
    { wrong "other weights in the end"; return 1; }
  echo "$call $how: $([ $code = 0 ] && echo "goes on" || echo "ends with $code")"
}

# cases RANK: "RANK CALL K HOW" for what is to be tried.
cases() {
  local call count how k i
  while read -r call count; do
    [[ -z $only || " $only " == *" $call "* ]] || continue
    for how in ${ways[$call]}; do
      if [ "$sample" = all ]; then
        for ((k = 1; k <= count; ++k)); do echo "$1 $call $k $how"; done
      else
        for ((i = 0; i < (count < sample ? count : sample); ++i)); do
          echo "$1 $call $((1 + (count * i + RANDOM % count) / sample)) $how"
        done
        # Always: the first byte in the run folder, which shows that all nodes have the same one.
        [ "$1 $call $how" != "0 pwrite ENOSPC" ] || echo "0 pwrite 1 ENOSPC"
      fi
    done
  done < "$folder/counts$1"
  # Always: the first lock file of MPI-IO, if there is one. When rank 0 cannot make it, all ranks wait in MPI_File_open.
  [[ $1 == 0 && ( -z $only || " $only " == *" lockfile "* ) ]] && echo "0 lockfile 1 ENOSPC"
}
declare -A ways=([open]="ENOSPC EIO EINTR" [write]="ENOSPC EIO EINTR short" [pwrite]="ENOSPC EIO EINTR short"
                 [fsync]="ENOSPC EIO EINTR $slow" [rename]="ENOSPC EIO" [ftruncate]="EIO EINTR" [mkdir]="ENOSPC EIO"
                 [mmap]="ENOMEM" [new]="ENOMEM")

mkdir "$folder/start"
cp inputs/text/tiny.txt "$folder/start"
train "$folder/start" 1 || give_up "the first run failed" "$folder/start.log"
for rank in 0 1; do
  rm -rf "$folder/unbroken"
  cp -r "$folder/start" "$folder/unbroken"
  train "$folder/unbroken" 3 "LD_PRELOAD=$shim" "LLAMESH_FAIL_RANK=$rank" "LLAMESH_FAIL_BELOW=$folder/unbroken/" \
    "LLAMESH_FAIL_COUNTS=$folder/counts$rank" || give_up "the unbroken run failed" "$folder/unbroken.log"
  cases $rank
done > "$folder/cases"
grep -q '^0 pwrite' "$folder/cases" || [ -n "$only" ] || give_up "nothing was counted: the shim does not work" "$folder/cases"

worker() {
  export TMPDIR=$folder/tmp$1  # for MPI's own files
  mkdir "$TMPDIR"
  awk -v n="$workers" -v me="$1" 'NR % n == me' "$folder/cases" | while read -r rank call k how; do
    try "$rank" "$call" "$k" "$how" "$folder/disk$1" </dev/null >> "$folder/said$1"
  done
}
jobs=()
for ((n = 0; n < workers; ++n)); do worker $n & jobs+=($!); done
wait "${jobs[@]}"
tried=$(wc -l < "$folder/cases")
grep -h ': \(goes on\|ends with [0-9]*\)$' "$folder"/said* | sort | uniq -c | tee "$folder/table"
! grep -h -A 30 '^WRONG' "$folder"/said* || exit 1
[ "$(awk '{ n += $1 } END { print n }' "$folder/table")" = "$tried" ] || give_up "not all of $tried were tried" "$folder/cases"
echo "$tried calls failed, nothing was lost (seed $seed)"
