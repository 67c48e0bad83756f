#!/usr/bin/env bash
# Trains a small Llama on the King James Bible: 4 MPI ranks as 2 nodes of 2, state sharded within a
# node and replicated across nodes. A few minutes on 2 cores, everything under runs/.
#   ./demo.sh [--no-install]
#     --no-install   install no packages, only say which are missing
set -euo pipefail
cd "$(dirname "$0")"

setup=()
for option in "$@"; do
  case $option in
    --no-install) setup+=(--no-install) ;;
    -h | --help) sed -n '2,5s/^# \{0,1\}//p' "$0"; exit 0 ;;
    *) echo "demo.sh: unknown option $option (see --help)" >&2; exit 2 ;;
  esac
done
scripts/setup.sh "${setup[@]}"
scripts/build.sh cpu llamesh
llamesh=build/cpu/src/llamesh
run=runs/demo
target=1.8  # nats a byte

scripts/demo_corpus.sh runs/data
rm -rf "$run"  # a fresh demo; other runs stay

# mpirun refuses root unless told twice, and asks for an ssh that one machine does not need.
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
command -v ssh >/dev/null || export OMPI_MCA_plm=isolated
mpirun -n 4 --oversubscribe --bind-to none "$llamesh" train inputs/demo.yaml
"$llamesh" report "$run"

loss=$(sed -n 's/.*"event": *"validation".*"loss": *\([-+.0-9eE]*\).*/\1/p' "$run/metrics.jsonl" | tail -n 1)
echo
echo "Run folder: $PWD/$run"
echo "Report:     $PWD/$run/report.html"
if ! awk -v loss="${loss:-nan}" -v target=$target 'BEGIN { exit !(loss + 0 > 0 && loss < target) }'; then
  echo "The demo FAILED: validation loss ${loss:-missing}, not below $target nats a byte." >&2
  exit 1
fi
echo "Validation loss $loss nats a byte (below $target)."
