#!/usr/bin/env bash
# run.sh LLAMESH [SCENARIO...]: what becomes of jobs on a real Slurm of four nodes (cluster.sh), a line for each scenario;
# all of scenarios.sh, or those that are named. Ends with 1 when one has failed, and with 77 where no cluster can be
# made. Within `cluster.sh run 4 bash` it takes that cluster.
set -uo pipefail
program=$(readlink -f "$1") || exit 2
here=$(cd "$(dirname "$0")" && pwd -P)
sources=$(cd "$here/../.." && pwd -P)
if [[ -z ${LLAMESH_CLUSTER:-} ]]; then
  reason=$("$here/cluster.sh" possible) || { printf 'cluster: Skipped\n%s\n' "$reason"; exit 77; }
  # Of a Slurm around the tests nothing may be seen.
  for variable in $(compgen -e SLURM_) $(compgen -e SBATCH_); do unset "$variable"; done
  LLAMESH_CLUSTER_SHARED=$(dirname "$program") exec "$here/cluster.sh" run 4 "$0" "$@"
fi
source "$here/jobs.sh"
source "$here/scenarios.sh"

wanted=("${@:2}")
if [[ ${#wanted[@]} == 0 ]]; then wanted=("${all_scenarios[@]}"); fi
for scenario in "${wanted[@]}"; do
  if [[ $(type -t "$scenario") != function ]]; then echo "run.sh: no scenario named $scenario" >&2; exit 2; fi
done

work=$LLAMESH_CLUSTER/work
mkdir -p "$work/bin"
ln -sfn "$sources/inputs" "$work/inputs"
ln -sfn "$program" "$work/bin/llamesh"
export PATH=$work/bin:$PATH
cd "$work" || exit 1

failed=()
begin=$SECONDS
for scenario in "${wanted[@]}"; do
  rm -f told
  started=$SECONDS
  if ("$scenario" && nothing_left) >"$scenario.out" 2>&1; then verdict=ok; else verdict=FAILED; fi
  printf '%-24s %-6s %4d s  %s\n' "$scenario" "$verdict" $((SECONDS - started)) "$(cat told 2>/dev/null)"
  if [[ $verdict == FAILED ]]; then
    failed+=("$scenario")
    sed 's/^/    /' "$scenario.out"
  fi
  sed -n 's/^table: /    /p' "$scenario.out"
  clean_up
done
echo "$((${#wanted[@]} - ${#failed[@]})) passed, ${#failed[@]} failed in $((SECONDS - begin)) s${failed[*]:+: ${failed[*]}}"
[[ ${#failed[@]} == 0 ]]
