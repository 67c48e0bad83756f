#!/usr/bin/env bash
# run.sh LLAMESH [--all | SCENARIO...]: runs the essential scenarios of scenarios.sh, all of them, or
# those named, on a real Slurm with 14 nodes (cluster.sh), and prints a line for each. A scenario that
# fails is repeated once when nothing else runs; if it then passes, it is called FLAKY. Exits with 1 if
# one has failed twice, and with 77 if no cluster can be created. LLAMESH is faulty_llamesh, which can
# hold a run at a step. Within `cluster.sh run 14 bash` it uses that cluster.
# shellcheck disable=SC2034,SC2154,SC1091  # jobs.sh and scenarios.sh use and make them
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd -P)
source "$here/jobs.sh"
source "$here/scenarios.sh"
on_cluster 14 "$0" "$@"
begin=$SECONDS
export LLAMESH_SILENCE=10  # seconds until a rank counts as lost, 30 by default
export LLAMESH_MPI_TIMEOUT=240  # on a busy machine ranks may come to MPI_Init late
# The nodes are one machine, whose processors belong to ranks that compute, not to those that wait.
export OMPI_MCA_mpi_yield_when_idle=1

# run_scenarios NODES SCENARIO...: runs them one after the other on these nodes.
run_scenarios() {
  local nodes=$1 scenario result started
  shift
  for scenario in "$@"; do
    started=$SECONDS
    if ("$scenario" && nothing_left) >"$scenario.out" 2>&1; then result=ok; else result=FAILED; fi
    printf '%-22s %-6s %4d s  %s\n' "$scenario" $result $((SECONDS - started)) "$(reported_line)"
    sed -n 's/^table: /    /p' "$scenario.out"
    echo "$scenario" >>"$result.list"
    clean_up
  done
}

# chosen SCENARIO...: prints those that are to run.
chosen() {
  local scenario
  for scenario in "$@"; do if [[ ${asked:-} == --all || " ${essential[*]} " == *" $scenario "* ]]; then echo "$scenario"; fi; done
}

asked=${2:-}
# shellcheck disable=SC2046  # names of scenarios
if [[ -n $asked && $asked != --all ]]; then
  for scenario in "${@:2}"; do
    if [[ $(type -t "$scenario") != function ]]; then echo "run.sh: no scenario named $scenario" >&2; exit 2; fi
  done
  run_scenarios "$(seq -s' ' 14)" "${@:2}"
else
  run_scenarios "1 2 3 4 5" $(chosen "${at_first[@]}")
  run_scenarios "1 2" $(chosen "${on_nodes_1_2[@]}") &
  run_scenarios "3 4" $(chosen "${on_nodes_3_4[@]}") &
  run_scenarios "5" $(chosen "${on_node_5[@]}") &
  run_scenarios "6 7 8" $(chosen "${on_nodes_6_7_8[@]}") &
  run_scenarios "9 10 11" $(chosen "${on_nodes_9_10_11[@]}") &
  run_scenarios "12 13 14" $(chosen "${on_nodes_12_13_14[@]}") &
  wait
  run_scenarios "1 2 3 4 5" $(chosen "${at_last[@]}")
fi
touch ok.list FAILED.list
mv FAILED.list failed_first.list
touch FAILED.list
while read -r scenario; do
  echo "--- $scenario"
  cat "$scenario.out"
done <failed_first.list
if [[ -s failed_first.list ]]; then
  lists=$PWD
  work_in "$work/again"
  # shellcheck disable=SC2046
  run_scenarios "$(seq -s' ' 14)" $(<"$lists/failed_first.list")
  touch ok.list FAILED.list
  while read -r scenario; do
    echo "--- $scenario, repeated"
    cat "$scenario.out"
  done <FAILED.list
  sed 's/.*/FLAKY: cluster, &: passed when it was repeated alone/' ok.list
  cat "$lists/ok.list" >>ok.list
fi
echo "$(wc -l <ok.list) passed, $(wc -l <FAILED.list) failed in $((SECONDS - begin)) s: $(paste -sd' ' FAILED.list)"
[[ ! -s FAILED.list ]]
