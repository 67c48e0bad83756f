#!/bin/bash
# kill_at_test.sh VICTIM SHIM [RANKS RANK EVERY HOW]: hits the save at step 3 on RANKS ranks at
# every EVERY-th call by which RANK changes the disk. HOW is `kill` (kills the rank), `async` (the
# same for an asynchronous save) or `read-only` (the folder becomes read-only for that rank). After
# each hit, a run must resume from step 2 or 3 with the right state and reach step 4. A save that
# finds the folder read-only must end with exit code 74, unless the checkpoint was already on disk.
victim=$1 shim=$2 ranks=${3:-1} rank=${4:-0} every=${5:-1} how=${6:-kill}
mpirun="$(dirname "$0")/../mpirun.sh"
source "$(dirname "$0")/../patience.sh"
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
export OMPI_MCA_ess_singleton_isolated=1  # no MPI helper process for a single rank
workers=3  # they mostly wait for the disk
folder=$(mktemp -d) || exit 1
trap 'rm -rf "$folder"' EXIT
async=$([ "$how" = async ] && echo async)

# hit POINT FOLDER: runs the save at step 3 and hits it at this point
hit() {
  local variables=("LD_PRELOAD=$shim" "LLAMESH_KILL_AT=$1" "LLAMESH_KILL_RANK=$rank")
  [ "$how" = read-only ] && variables+=("LLAMESH_READ_ONLY=$2")
  timeout -k 10 "$(stretched 300)" "$mpirun" "$ranks" env "${variables[@]}" "$victim" "$2" 3 $async
}

"$mpirun" "$ranks" "$victim" "$folder/start" 2 >/dev/null 2>&1 || { echo "the first run failed"; exit 1; }
cp -r "$folder/start" "$folder/count"
points=$(hit 0 "$folder/count" 2>/dev/null | sed -n 's/^kill points: //p' | sort -n | tail -1)
[ "${points:-0}" -ge 10 ] || { echo "only ${points:-0} kill points: the shim does not work"; exit 1; }

# try POINT FOLDER: prints the step from which the run resumed, or the problem, and then fails
try() {
  local k=$1 run=$2 code said
  rm -rf "$run"; cp -r "$folder/start" "$run"
  { hit "$k" "$run"; } >"$run.log" 2>&1
  code=$?
  "$victim" "$run" 4 >>"$run.log" 2>&1
  said=$code:$?:$(grep '^resumed' "$run.log" | tail -1)
  case $how:$said in
    # 74 and step 3: its name is there, but could not be synced.
    read-only:74:0:"resumed "[23] | read-only:0:0:"resumed 3") echo "${said##*:}" ;;
    kill:137:0:"resumed "[23] | async:137:0:"resumed "[23]) echo "${said##*:}" ;;
    *) echo "point $k of $points: wrong codes or step ($said)"; cat "$run.log"; ls -la "$run"; return 1 ;;
  esac
}

# worker N: tries every workers-th point
worker() {
  export TMPDIR=$folder/tmp$1  # for MPI's own files: lone processes use the same names
  mkdir "$TMPDIR"
  for k in $(seq $((1 + every * $1)) $((every * workers)) "$points"); do
    try "$k" "$folder/run$1" >> "$folder/said$1" || return 1
  done
}

jobs=()
for n in $(seq 0 $((workers - 1))); do worker "$n" & jobs+=($!); done
for job in "${jobs[@]}"; do wait "$job" || failed=1; done
[ -z "$failed" ] || { grep -hv '^resumed' "$folder"/said*; exit 1; }
tried=$(cat "$folder"/said* | grep -c '^resumed')
new=$(cat "$folder"/said* | grep -c 'resumed 3')
[ "$((tried * every))" -ge "$points" ] || { echo "only $tried points were tried"; exit 1; }
[ "$new" -ge 1 ] || [ "$rank" != 0 ] || [ "$every" -gt 1 ] || { echo "none of $points points saw the new checkpoint"; exit 1; }
echo "$how, rank $rank of $ranks: $tried of $points points, all survived ($new of them after the commit)"
