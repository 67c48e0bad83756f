#!/bin/bash
# Trains under Flux. NOT RUN: no machine with Flux was available; written from the manuals of flux-core.
# Copy it, change what is above the line, and submit it in the folder that data paths are relative to:
#   flux batch train.flux INPUTS.yaml RUN_FOLDER [key.path=value ...]
# Submitted again with the same run folder, it continues from the newest checkpoint.

# flux: --job-name=llamesh
# flux: --nodes=2
# flux: --exclusive
# flux: # --gpus-per-node=4        GPU nodes: remove the second #, and set gpus_per_rank
# flux: --time-limit=1h
# flux: --output={{name}}-{{id}}.log

inputs=${1:-my.yaml}        # the run's inputs
folder=${2:-runs/my-run}    # the run's folder: checkpoints, metrics, state; an existing one is continued
overrides=("${@:3}")        # key.path=value ...
ranks_per_node=2            # MPI ranks per node: one per GPU, or per NUMA domain of CPUs
threads=4                   # cores per rank
gpus_per_rank=0             # GPU nodes: 1
strategy=hybrid_shard       # within nodes; full_shard: over all ranks, for models larger than a node
pmi=simple                  # simple: MPICH; pmix: Open MPI 5 (needs flux-pmix); cray-pals: Cray MPICH (flux-coral2)

# --- nothing below needs a change ---
# The file halt stops the run for good (docs/cluster.md).
[[ ! -e $folder/halt && ! -L $folder/halt ]] || { echo "$folder/halt exists: remove it, then submit this again"; exit 78; }

# Uses the llamesh that was loaded on the login node, else the module's.
command -v llamesh >/dev/null || module load llamesh
command -v llamesh >/dev/null || { echo "llamesh is not found: load its module, or extend PATH"; exit 78; }
export LLAMESH_LAUNCH_TIME=$(date +%s.%N)  # lets the log report the startup time

# Tells llamesh when the walltime ends, so that it saves and stops in time.
unset LLAMESH_JOB_END_TIME  # of the shell that submitted this
left=$(flux job timeleft 2>/dev/null)
left=${left%%.*}
if [[ $left =~ ^[0-9]+$ ]]; then
  export LLAMESH_JOB_END_TIME=$(($(date +%s) + left))
fi

# A checkpoint is one large file that all ranks write. On Lustre, stripe it over all storage targets.
mkdir -p "$folder/checkpoints"
if command -v lfs >/dev/null; then lfs setstripe -c -1 "$folder/checkpoints" 2>/dev/null || true; fi

nodes=$(flux getattr size)  # a broker per node
gpus=()
if ((gpus_per_rank > 0)); then gpus=(-g "$gpus_per_rank"); fi  # without -g, Flux hides the GPUs
flux run -N "$nodes" -n $((nodes * ranks_per_node)) -c "$threads" "${gpus[@]}" -o pmi="$pmi" -o exit-timeout=60s \
  llamesh train "$inputs" "run.folder=$folder" "sharding.strategy=$strategy" "${overrides[@]}"
