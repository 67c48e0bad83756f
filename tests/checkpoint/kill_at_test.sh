#!/bin/bash
# kill_at_test.sh VICTIM SHIM [FIRST]: kills the save of step 3 at each call that changes the disk (from the
# FIRST-th on). After each, the run must resume from step 2 or 3 with the right state and reach step 4.
victim=$1 shim=$2 first=${3:-1}
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
export OMPI_MCA_ess_singleton_isolated=1  # no helper process of MPI's for one rank
workers=3                                 # they mostly wait for the disk
folder=$(mktemp -d) || exit 1
trap 'rm -rf "$folder"' EXIT
"$victim" "$folder/start" 2 >/dev/null 2>&1 || { echo "the first run failed"; exit 1; }
cp -r "$folder/start" "$folder/count"
points=$(LLAMESH_KILL_AT=0 LD_PRELOAD=$shim "$victim" "$folder/count" 3 2>/dev/null |
         sed -n 's/^kill points: //p' | sort -n | tail -1)
[ "${points:-0}" -ge 10 ] || { echo "only ${points:-0} kill points: the shim does not work"; exit 1; }

# try POINT FOLDER: prints the step from which the run resumed, or says what is wrong and fails.
try() {
  local k=$1 run=$2 said
  rm -rf "$run"; cp -r "$folder/start" "$run"
  { LLAMESH_KILL_AT=$k LD_PRELOAD=$shim "$victim" "$run" 3; } >/dev/null 2>&1
  [ $? = 137 ] || { echo "point $k of $points: the victim was not killed"; return 1; }
  "$victim" "$run" 4 >"$run.log" 2>&1
  said=$?:$(grep '^resumed' "$run.log")
  case $said in
    "0:resumed 2" | "0:resumed 3") echo "${said#0:}" ;;
    *) echo "point $k of $points: resumed wrongly ($said)"; cat "$run.log"; ls -la "$run"; return 1 ;;
  esac
}

# worker N: every workers-th point.
worker() {
  export TMPDIR=$folder/tmp$1  # for MPI's own files: lone processes call theirs the same
  mkdir "$TMPDIR"
  for k in $(seq $((first + $1)) $workers "$points"); do
    try "$k" "$folder/run$1" >> "$folder/said$1" || return 1
  done
}

jobs=()
for n in $(seq 0 $((workers - 1))); do worker "$n" & jobs+=($!); done
for job in "${jobs[@]}"; do wait "$job" || failed=1; done
[ -z "$failed" ] || { grep -hv '^resumed' "$folder"/said*; exit 1; }
new=$(cat "$folder"/said* | grep -c 'resumed 3')
[ "$new" -ge 1 ] || { echo "none of $points points saw the new checkpoint"; exit 1; }
echo "$((points - first + 1)) points, all survived ($new of them after the commit)"
