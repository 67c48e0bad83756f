#!/bin/bash
# kill_at_test.sh VICTIM SHIM [FIRST]: kills a save at each call that changes the disk (from the FIRST-th
# on); after each, the run resumes.
victim=$1 shim=$2 first=${3:-1}
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
command -v ssh >/dev/null 2>&1 || export OMPI_MCA_plm=isolated
folder=$(mktemp -d) || exit 1
trap 'rm -rf "$folder"' EXIT
"$victim" "$folder/start" 2 >/dev/null 2>&1 || { echo "the first run failed"; exit 1; }
cp -r "$folder/start" "$folder/count"
points=$(LLAMESH_KILL_AT=0 LD_PRELOAD=$shim "$victim" "$folder/count" 1 2>/dev/null |
         sed -n 's/^kill points: //p' | sort -n | tail -1)  # MPI's own helper process prints 0
[ "${points:-0}" -ge 10 ] || { echo "only ${points:-0} kill points: the shim does not work"; exit 1; }
new=0
for k in $(seq "$first" "$points"); do
  rm -rf "$folder/run"; cp -r "$folder/start" "$folder/run"
  { LLAMESH_KILL_AT=$k LD_PRELOAD=$shim "$victim" "$folder/run" 1; } >/dev/null 2>&1
  [ $? = 137 ] || { echo "point $k of $points: the victim was not killed"; exit 1; }
  said=$("$victim" "$folder/run" 1 2>/dev/null | grep resumed)
  case $said in
    "resumed 2") ;;
    "resumed 3") new=$((new + 1)) ;;
    *) echo "point $k of $points: resumed wrongly ($said)"; ls -la "$folder/run"; exit 1 ;;
  esac
done
[ $new -ge 1 ] || { echo "$new of $points saw the new checkpoint"; exit 1; }
echo "killed at points $first to $points: all resumed, $new of them from the new checkpoint"
