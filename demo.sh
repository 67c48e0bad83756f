#!/usr/bin/env bash
# Trains a small Llama on the King James Bible, with a vocabulary of 4096 made of its text: 4 MPI ranks as 2 nodes
# of 2, state sharded within a node and replicated across nodes. Twice: once straight through, and once killed with
# SIGKILL in the middle and resumed from its last checkpoint, which has to end with the very same loss. Then the
# model writes a few lines. A few minutes on 2 cores, everything under runs/.
#   ./demo.sh [--no-install]
#     --no-install   install no packages, only say which are missing
set -euo pipefail
cd "$(dirname "$0")"

setup=()
for option in "$@"; do
  case $option in
    --no-install) setup+=(--no-install) ;;
    -h | --help) sed -n '2,7s/^# \{0,1\}//p' "$0"; exit 0 ;;
    *) echo "demo.sh: unknown option $option (see --help)" >&2; exit 2 ;;
  esac
done
scripts/setup.sh "${setup[@]}"
scripts/build.sh cpu llamesh
scripts/demo_corpus.sh runs/data
llamesh=build/cpu/src/llamesh
target=1.9      # bits a byte of text that it was not trained on; before training it is 3.2
kill_after=200  # optimizer steps

# mpirun refuses to run as root unless two variables allow it, and requires an ssh that one machine does not need.
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
command -v ssh >/dev/null || export OMPI_MCA_plm=isolated
train() { mpirun -n 4 --oversubscribe --bind-to none "$llamesh" train inputs/demo.yaml "run.name=$1"; }

# last_loss RUN WORD: the loss in the last line of a run's metrics that has WORD in it.
last_loss() { grep "\"$2\"" "runs/$1/metrics.jsonl" | tail -n 1 | sed 's/.*"loss":\([^,}]*\).*/\1/'; }

# a_rank_of RUN: the process id of one of its ranks.
a_rank_of() {
  local exe process
  for exe in /proc/[0-9]*/exe; do
    process=${exe%/exe}
    [ "$(readlink "$exe")" = "$PWD/$llamesh" ] && grep -qszx "run.name=$1" "$process/cmdline" && echo "${process#/proc/}" && return
  done
}

rm -rf runs/demo runs/demo-unbroken  # a fresh demo; other runs stay
echo "== 1. A run that nothing disturbs"
train demo-unbroken

echo "== 2. The same run, killed with SIGKILL after step $kill_after"
train demo &
job=$!
until grep -qs "\"step\":$kill_after,\"loss\"" runs/demo/metrics.jsonl; do
  kill -0 $job 2>/dev/null || { echo "The demo FAILED: the run ended before it was killed." >&2; exit 1; }
  sleep 0.2
done
kill -KILL "$(a_rank_of demo)"
wait $job && { echo "The demo FAILED: a killed run ended as if all were well." >&2; exit 1; }
echo "== A rank was killed; the job is down. Starting it again."
train demo

"$llamesh" report runs/demo
echo "== 3. What the trained model writes"
export OMP_WAIT_POLICY=passive  # threads that wait leave their core to whoever else needs it
"$llamesh" generate runs/demo --prompt "And the LORD said unto" --max-tokens 120 --temperature 0.7 --seed 1
echo "== 4. How well it knows text that it has not seen"
result=$("$llamesh" evaluate runs/demo runs/data/bible-validation.txt --sequence-length 128)
echo "$result"
bits=$(sed -n 's/^bits.byte *//p' <<<"$result")
echo "Run folder: $PWD/runs/demo"
echo "Report:     $PWD/runs/demo/report.html"
for word in grad_norm validation; do  # training, validation
  [ "$(last_loss demo $word)" = "$(last_loss demo-unbroken $word)" ] && continue
  echo "The demo FAILED: resumed it ended with loss $(last_loss demo $word), unbroken with $(last_loss demo-unbroken $word)." >&2
  exit 1
done
if ! awk -v bits="${bits:-nan}" -v target=$target 'BEGIN { exit !(bits + 0 > 0 && bits < target) }'; then
  echo "The demo FAILED: ${bits:-no} bits a byte, not below $target." >&2
  exit 1
fi
echo "$bits bits a byte (below $target); killed and resumed, the loss is that of the unbroken run to the last digit."
