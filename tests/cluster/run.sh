#!/usr/bin/env bash
# run.sh LLAMESH [SCENARIO...]: runs all scenarios of scenarios.sh, or those named, on a real Slurm
# with 14 nodes (cluster.sh), and prints a line for each. Exits with 1 if one has failed, and with
# 77 if no cluster can be created. Within `cluster.sh run 14 bash` it uses that cluster.
# shellcheck disable=SC2034,SC2154,SC1091  # jobs.sh and scenarios.sh use and make them
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd -P)
source "$here/jobs.sh"
source "$here/scenarios.sh"
on_cluster 14 "$0" "$@"
begin=$SECONDS

# run_scenarios NODES SCENARIO...: runs them one after the other on these nodes.
run_scenarios() {
  local nodes=$1 scenario verdict started
  shift
  for scenario in "$@"; do
    started=$SECONDS
    if ("$scenario" && nothing_left) >"$scenario.out" 2>&1; then verdict=ok; else verdict=FAILED; fi
    printf '%-22s %-6s %4d s  %s\n' "$scenario" $verdict $((SECONDS - started)) "$(told)"
    sed -n 's/^table: /    /p' "$scenario.out"
    echo "$scenario" >>"$verdict.list"
    clean_up
  done
}

if [[ $# -gt 1 ]]; then
  for scenario in "${@:2}"; do
    if [[ $(type -t "$scenario") != function ]]; then echo "run.sh: no scenario named $scenario" >&2; exit 2; fi
  done
  run_scenarios "$(seq -s' ' 14)" "${@:2}"
else
  run_scenarios "1 2 3 4 5" "${at_first[@]}"
  run_scenarios "1 2" "${on_nodes_1_2[@]}" &
  run_scenarios "3 4" "${on_nodes_3_4[@]}" &
  run_scenarios "5" "${on_node_5[@]}" &
  run_scenarios "6 7 8" "${on_nodes_6_7_8[@]}" &
  run_scenarios "9 10 11" "${on_nodes_9_10_11[@]}" &
  run_scenarios "12 13 14" "${on_nodes_12_13_14[@]}" &
  wait
  run_scenarios "1 2 3 4 5" "${at_last[@]}"
fi
touch ok.list FAILED.list
while read -r scenario; do
  echo "--- $scenario"
  cat "$scenario.out"
done <FAILED.list
echo "$(wc -l <ok.list) passed, $(wc -l <FAILED.list) failed in $((SECONDS - begin)) s: $(paste -sd' ' FAILED.list)"
[[ ! -s FAILED.list ]]
