#!/usr/bin/env bash
# Tests the GPU backend's host side with a fake CUDA runtime (tests/cuda_fake): training with every strategy against
# one CPU rank, checkpoints from the fake GPU and to the CPU, and the messages when NCCL or memory fails.
#   tests/gpu/fake_cuda.sh PROGRAM        where PROGRAM is llamesh_fake_cuda
set -uo pipefail
program=$(readlink -f "$1")
cd "$(dirname "$0")/../.." || exit 1
source tests/patience.sh
source tests/forget_runs.sh
export FAKE_GPUS=4 FAKE_GPU_MIB=4096
work=$(mktemp -d)
trap 'forget_runs "$work"; rm -rf "$work"' EXIT
trap 'exit 1' INT TERM
failures=0
limited() { timeout -k 10 "$(stretched 1800)" "$@"; }  # ends what hangs

seen_by_rank=() # per-rank launcher prefix
# ran NAME RANKS ARGUMENT...: trains run NAME for 4 steps; returns the program's exit status
ran() {
  local run=$1 ranks=$2
  shift 2
  limited tests/mpirun.sh "$ranks" "${seen_by_rank[@]}" "$program" train inputs/tiny.yaml train.steps=4 train.global_batch=8 \
    data.sequence_length=16 schedule.name=constant "mesh.ranks_per_node=$((ranks > 1 ? 2 : 1))" "run.folder=$work/$run" "$@" >"$work/$run.log" 2>&1
}
# report NAME RESULT [LOG]
report() {
  printf '%-6s %s\n' "$2" "$1"
  [[ $2 == ok ]] && return
  failures=$((failures + 1))
  tail -n 50 "$work/$3.log"  # a stack trace is this long
}
# close NAME STEPS RUN OTHER TOLERANCE: checks that the last command succeeded, and that the losses over STEPS steps
# agree between two runs
close() {
  local status=$? steps=$2
  set -- "$1" "${@:3}"
  losses() { sed -n 's/.*"step":\([0-9]*\),"loss":\([^,}]*\),"grad_norm.*/\1 \2/p' "$work/$1/metrics.jsonl"; }
  if paste <(losses "$2") <(losses "$3") | awk -v most="$4" '
    NF == 4 { d = ($2 - $4) / $4; ++n; if ($1 != $3 || d > most || d < -most) bad = 1 }
    END { exit bad || n != '"$steps"' }' && [[ $status == 0 ]]; then
    report "$1" ok
  else
    report "$1: $(losses "$2" | tr '\n' ' ')" FAILED "$2"
  fi
}
# fails NAME STATUS TEXT RANKS ARGUMENT...: checks for exit code STATUS and TEXT at most once per rank
fails() {
  local name=$1 expected=$2 text=$3 ranks=$4 status=0
  shift 4
  ran failing "$ranks" --device "${device:-cuda}" "$@" || status=$?
  local lines
  lines=$(grep -cE "$text" "$work/failing.log")
  if [[ $status == "$expected" && $lines -ge 1 && $lines -le $ranks ]]; then
    report "$name" ok
  else
    report "$name: exit $status, $lines lines" FAILED failing
  fi
}

# In the background, since it waits for a minute: after three steps, rank 1's GPU hangs in a kernel. Its host has queued
# the following collectives, in which rank 0's GPU waits.
(
  # shellcheck disable=SC2016
  seen_by_rank=(env "HANG=$work/hang" sh -c '[ "$OMPI_COMM_WORLD_RANK" = 1 ] && export FAKE_GPU_HANGS_WITH=$HANG; exec "$@"' sh)
  ran hanging 2 --device cuda sharding.strategy=full_shard train.steps=1000000 log.every_steps=1000
) &
hanging=$!
does_three_steps() { [[ $(grep -c '"loss"' "$work/hanging/metrics.jsonl" 2>/dev/null) -ge 3 ]]; }
(within 1800 does_three_steps; touch "$work/hang") &

ran cpu 1 --device cpu train.steps=6
for case in full_shard/2 shard_grad_op/4 no_shard/2 hybrid_shard/4 hybrid_shard_zero2/4; do
  ran "${case%/*}" "${case#*/}" --device cuda "sharding.strategy=${case%/*}" checkpoint.every_steps=2 checkpoint.async=true
  close "${case%/*}, ${case#*/} ranks" 4 "${case%/*}" cpu 1e-5
done
for case in full_shard hybrid_shard; do
  keys=("sharding.strategy=$case" sharding.reduce_dtype=int8)
  if [[ $case == hybrid_shard ]]; then
    keys+=(sharding.error_feedback=true)
  else
    keys+=(sharding.gather=int8 sharding.reshard_after_forward=2)
  fi
  ran "int8-cpu-$case" 4 --device cpu "${keys[@]}"
  ran "int8-$case" 4 --device cuda "${keys[@]}"
  close "$case, 4 ranks, int8 between nodes" 4 "int8-$case" "int8-cpu-$case" 1e-5
done
for case in none/auto none/int8 all/auto; do
  keys=(sharding.strategy=hybrid_shard optimizer.outer.every_steps=2 "sharding.offload=${case%/*}"
    "optimizer.outer.reduce_dtype=${case#*/}")
  [[ ${case%/*} == all ]] || keys+=(optimizer.outer.fragments=2 optimizer.outer.delay_steps=1)
  ran "outer-cpu-${case/\//-}" 4 --device cpu "${keys[@]}"
  ran "outer-${case/\//-}" 4 --device cuda "${keys[@]}" checkpoint.every_steps=3 checkpoint.async=true
  close "replicas apart, offload ${case%/*}, exchanged as ${case#*/}" 4 "outer-${case/\//-}" "outer-cpu-${case/\//-}" 1e-5
done
"$program" convert --from "$work/cpu" --to "$work/base" >"$work/convert.log" 2>&1
for case in 2/none 4/all; do
  keys=("model.hf=$work/base" 'model.lora={rank: 3, base: nf4}' sharding.strategy=full_shard "sharding.offload=${case#*/}")
  ran "nf4-cpu-${case%/*}" "${case%/*}" --device cpu "${keys[@]}"
  ran "nf4-${case%/*}" "${case%/*}" --device cuda "${keys[@]}"
  close "full_shard, ${case%/*} ranks, adapters beside NF4, sharding.offload=${case#*/}" 4 "nf4-${case%/*}" "nf4-cpu-${case%/*}" 1e-5
done
for i in {1..40}; do
  printf '{"prompt": "Q%d", "chosen": "good %d", "rejected": "bad%s"}\n' "$i" $((i * i)) "$(seq -s '' "$((i % 5))")"
done | tee "$work/cuda.jsonl" >"$work/cpu.jsonl" # a file each, so that each computes its own reference
for case in dpo/2/none ipo/4/all; do
  IFS=/ read -r objective ranks offload <<<"$case"
  keys=("train.objective=$objective" train.beta=0.5 data.sequence_length=64 sharding.strategy=full_shard "sharding.offload=$offload")
  for device in cpu cuda; do
    ran "$objective-$device" "$ranks" --device "$device" "data.train=[$work/$device.jsonl]" "${keys[@]}"
  done
  close "$objective, $ranks ranks, sharding.offload=$offload" 4 "$objective-cuda" "$objective-cpu" 1e-5
done
for case in full_shard/2/optimizer hybrid_shard/4/all no_shard/2/all; do
  IFS=/ read -r strategy ranks offload <<<"$case"
  ran "offload-$offload-$ranks" "$ranks" --device cuda "sharding.strategy=$strategy" "sharding.offload=$offload" \
    checkpoint.every_steps=2 checkpoint.async=true
  close "$strategy, $ranks ranks, sharding.offload=$offload" 4 "offload-$offload-$ranks" cpu 1e-5
done

# numbers RUN: prints its losses and norms, all digits, and the hashes of its state, if it has some
numbers() { sed -nE 's/.*("loss":[^,}]*,"grad_norm":[^,}]*).*/\1/p; s/.*"event":"state_hash".*("hashes".*)/\1/p' "$work/$1/metrics.jsonl"; }

# The same bits on every mesh, which the order of NCCL's sums does not give.
keys=(train.reproducible=mesh evaluate.every_steps=2 'data.validation=[inputs/text/tiny.txt]' evaluate.sequences=8 debug.state_hash_every=4)
ran same-bits 1 --device cuda "${keys[@]}"
for case in full_shard/2/1 full_shard/4/1 hybrid_shard/4/1 no_shard/4/1 full_shard/4/2; do
  IFS=/ read -r strategy ranks stages <<<"$case"
  run=same-bits-${case//\//-}
  ran "$run" "$ranks" --device cuda "sharding.strategy=$strategy" "mesh.axes.pipeline=$stages" "${keys[@]}"
  if [[ $? == 0 && $(numbers "$run" | wc -l) == 5 && $(numbers "$run") == "$(numbers same-bits)" ]]; then
    report "the same bits, $strategy, $ranks ranks, $stages stages" ok
  else
    report "the same bits, $strategy, $ranks ranks, $stages stages: $(numbers "$run")" FAILED "$run"
  fi
done
# Fewer ranks than they stand for. In bf16, sums of four show whether each level is rounded.
keys+=(model.vocab_size=260 model.num_attention_heads=8 precision.parameters=bf16 mesh.allow_tensor_across_nodes=true)
axes() { echo "mesh.axes.tensor=${1%x*} mesh.axes.context=${1#*x}"; } # axes TENSORxCONTEXT
for case in sequence/4x1/1/1x1 sequence/4x1/2/2x1 hidden/4x1/1/1x1 whole/4x1/1/1x1 whole/1x4/1/1x1 whole/1x4/2/1x2 sequence/2x2/1/1x1 sequence/2x2/4/1x2; do
  IFS=/ read -r residual virtual ranks mesh <<<"$case"
  real=same-bits-$residual-$virtual run=same-bits-${case//\//-}
  # shellcheck disable=SC2046
  { [[ -e $work/$real ]] || ran "$real" 4 --device cuda "${keys[@]}" "tensor.residual=$residual" $(axes "$virtual")
    ran "$run" "$ranks" --device cuda "${keys[@]}" "tensor.residual=$residual" $(axes "$mesh") \
      "train.reproducible_tensor=${virtual%x*}" "train.reproducible_context=${virtual#*x}"; }
  if [[ $? == 0 && $(numbers "$run" | wc -l) == 5 && $(numbers "$run") == "$(numbers "$real")" ]]; then
    report "the same bits, $residual, tensor x context $virtual on $ranks ranks as $mesh" ok
  else
    report "the same bits, $residual, tensor x context $virtual on $ranks ranks as $mesh: $(numbers "$run") $(numbers "$real")" FAILED "$run"
  fi
done

ran deep 1 --device cpu model.num_hidden_layers=7
ran activations 2 --device cuda model.num_hidden_layers=7 memory.activation_offload=true
close "memory.activation_offload, 2 ranks" 4 activations deep 1e-5

even=(model.vocab_size=260 model.num_attention_heads=8) # divisible by 4 ranks, which share 2 kv heads
ran even 1 --device cpu "${even[@]}"
for case in whole/2 hidden/2 sequence/4; do
  ran "tensor-${case%/*}" 4 --device cuda "${even[@]}" "mesh.axes.tensor=${case#*/}" "tensor.residual=${case%/*}" \
    sharding.offload=$([[ $case == sequence/4 ]] && echo all || echo none) mesh.allow_tensor_across_nodes=true memory.activation_checkpointing=full
  close "tensor ${case#*/}, ${case%/*}, 4 ranks" 4 "tensor-${case%/*}" even 1e-5
done
ran tensor-whole-bf16 4 --device cuda "${even[@]}" mesh.axes.tensor=2 tensor.residual=whole precision.parameters=bf16
close "tensor 2, whole, bf16, 4 ranks" 4 tensor-whole-bf16 even 2e-2

# Adjacent ranks on different sockets, each of which sees its own two GPUs; without windows.
# shellcheck disable=SC2016
seen_by_rank=(sh -c 'FAKE_GPUS=2 FAKE_FIRST_GPU=$((OMPI_COMM_WORLD_LOCAL_RANK % 2 * 2)) exec "$@"' sh)
FAKE_NCCL_WINDOWS=0 ran near 4 --device cuda sharding.strategy=full_shard
close "full_shard, 4 ranks that see two GPUs each" 4 near cpu 1e-5
seen_by_rank=()

bf16="precision.parameters=bf16 precision.reduce=bf16"
bf16+=" memory.activation_checkpointing=selective memory.full_checkpointing_layers=1 data.document_mask=true"
# shellcheck disable=SC2086
{ ran cpu-bf16 1 --device cpu $bf16
  LLAMESH_POISON=1 ran bf16 4 --device cuda $bf16 sharding.wrap=size sharding.min_numel=20000; }
close "bf16, recomputation, documents" 4 bf16 cpu-bf16 2e-2
# The thread that saves converts the moments, and must use its rank's GPU.
ran bf16-moments 2 --device cuda sharding.strategy=full_shard optimizer.moments=bf16 checkpoint.every_steps=2 checkpoint.async=true
close "bf16 moments, an asynchronous save" 4 bf16-moments cpu 1e-3

# Sequences of which each rank has two pieces.
ran context 2 --device cuda mesh.axes.context=2 sharding.strategy=full_shard
close "context 2, 2 ranks" 4 context cpu 1e-5
# shellcheck disable=SC2086
ran context-bf16 4 --device cuda $bf16 mesh.axes.context=4
close "context 4, 4 ranks, bf16, recomputation, documents" 4 context-bf16 cpu-bf16 2e-2

# Pipeline stages, one and two chunks on each.
layers=(model.num_hidden_layers=4 model.tie_word_embeddings=true)
ran cpu-layers 1 --device cpu "${layers[@]}"
ran stages 4 --device cuda mesh.axes.pipeline=2 "${layers[@]}"
close "2 stages, 4 ranks" 4 stages cpu-layers 1e-5
ran chunks 2 --device cuda mesh.axes.pipeline=2 pipeline.chunks=2 "${layers[@]}"
close "2 stages with 2 chunks each, 2 ranks" 4 chunks cpu-layers 1e-5
# shellcheck disable=SC2086
{ ran cpu-bf16-layers 1 --device cpu $bf16 "${layers[@]}"
  LLAMESH_POISON=1 ran bf16-stages 4 --device cuda $bf16 mesh.axes.pipeline=4 "${layers[@]}"; }
close "4 stages, bf16, recomputation, documents" 4 bf16-stages cpu-bf16-layers 2e-2

# Experts; in bf16 with rows of 16 bytes, as the tensor cores take them.
experts=(model.family=mixtral model.num_experts=5 model.num_experts_per_tok=2 model.intermediate_size=176)
ran cpu-experts 1 --device cpu "${experts[@]}"
for case in full_shard/2 hybrid_shard/4; do
  ran "experts-${case%/*}" "${case#*/}" --device cuda "sharding.strategy=${case%/*}" "${experts[@]}"
  close "experts, ${case%/*}, ${case#*/} ranks" 4 "experts-${case%/*}" cpu-experts 1e-5
done
# shellcheck disable=SC2086
{ ran cpu-bf16-experts 1 --device cpu $bf16 "${experts[@]}"
  LLAMESH_POISON=1 ran bf16-experts 2 --device cuda $bf16 "${experts[@]}"; }
close "experts, bf16, recomputation, documents" 4 bf16-experts cpu-bf16-experts 2e-2

# FP8: sizes that cuBLASLt takes, and others, which are emulated.
fp8=(precision.parameters=bf16 precision.linear=fp8 model.hidden_size=64 model.intermediate_size=176 model.num_attention_heads=4)
ran cpu-fp8 1 --device cpu "${fp8[@]}"
LLAMESH_POISON=1 ran fp8 4 --device cuda "${fp8[@]}" memory.activation_checkpointing=selective
close "precision.linear=fp8, 4 ranks" 4 fp8 cpu-fp8 5e-3
ran fp8-gathered 4 --device cuda "${fp8[@]}" sharding.strategy=full_shard sharding.gather=fp8 sharding.gather_within_node=true
close "sharding.gather=fp8, 4 ranks" 4 fp8-gathered cpu-fp8 5e-3
ran fp8-emulated 2 --device cuda "${fp8[@]}" precision.linear=fp8_emulated
close "precision.linear=fp8_emulated, 2 ranks" 4 fp8-emulated cpu-fp8 5e-3
ran cpu-fp8-experts 1 --device cpu "${experts[@]}" precision.parameters=bf16 precision.linear=fp8
ran fp8-experts 2 --device cuda "${experts[@]}" precision.parameters=bf16 precision.linear=fp8
close "precision.linear=fp8 with experts, 2 ranks" 4 fp8-experts cpu-fp8-experts 5e-3
fails "FP8 in fp32" 78 "precision.linear is fp8, which GPUs multiply for bf16 parameters" 2 precision.linear=fp8
FAKE_GPU_MAJOR=8 fails "FP8 on a GPU without it" 78 "precision.linear is fp8, for which .* has no units" 2 "${fp8[@]}"

for case in no_shard/2 full_shard/4; do
  for keep in true false; do
    ran "keep-$keep-${case#*/}" "${case#*/}" --device cuda precision.parameters=bf16 "sharding.strategy=${case%/*}" \
      "sharding.keep_bf16_weights=$keep" train.global_batch=16
  done
  close "${case%/*}, ${case#*/} ranks, sharding.keep_bf16_weights" 4 "keep-true-${case#*/}" "keep-false-${case#*/}" 0
done

recorded=$(cat "$work"/hybrid_shard/checkpoints/step_00000004/manifest.json | grep -o '"attention": *"[^"]*"')
[[ $recorded == *'"plain built-in kernels"' ]] || report "attention in a checkpoint: $recorded" FAILED hybrid_shard
ran hybrid_shard 2 --device cpu train.steps=5
close "a checkpoint of 4 GPU ranks on 2 CPU ranks" 5 hybrid_shard cpu 1e-5
ran hybrid_shard 2 --device cuda train.steps=6
close "a checkpoint of 2 CPU ranks on 2 GPU ranks" 6 hybrid_shard cpu 1e-5

# on DEVICE: a model's generated text and evaluation, without timings
on() {
  limited "$program" generate "$work/cpu" --prompt "In the beginning" --max-tokens 40 --device "$1" \
    2>"$work/$1.log" || echo "generate: exit $?"
  limited tests/mpirun.sh 2 "$program" evaluate "$work/cpu" "$work/some.txt" --sequence-length 300 \
    --device "$1" 2>>"$work/$1.log" | awk '/perplexity/ { next } /^loss|^bits/ { printf "%s %.4f\n", $1, $2; next } { print }'
}
head -c 6000 inputs/text/tiny.txt >"$work/some.txt"
here=$(on cpu) there=$(on cuda)
if [[ $there == "$here" && $here == *bits/byte* && $here != *generate:* ]]; then
  report "generate and evaluate" ok
else
  report "generate and evaluate: $there beside $here" FAILED cuda
fi

# The fake cuBLASLt's second algorithm sums in another order, so losses and norms show which one a product used.
tuning=$(FAKE_GEMM_SLOW_FIRST=1 limited tests/mpirun.sh 2 "$program" bench step inputs/tiny.yaml \
  train.steps=2 data.sequence_length=16 --device cuda --tune-gemms "$work/gemms.json" 2>"$work/tuning.log")
if [[ $tuning =~ ([0-9]+)\ products\ timed,\ ([0-9]+)\ of\ them\ faster && ${BASH_REMATCH[1]} -gt 10 &&
  ${BASH_REMATCH[1]} == "${BASH_REMATCH[2]}" ]]; then
  report "the faster algorithm of each product" ok
else
  report "the faster algorithm of each product: $tuning" FAILED tuning
fi
for run in tuned tuned-again; do
  ran $run 2 --device cuda sharding.strategy=full_shard train.gemm_table="$work/gemms.json"
  close "full_shard by a GEMM table, $run" 4 $run cpu 1e-5
done
if [[ $(numbers tuned) == "$(numbers tuned-again)" && $(numbers tuned) != "$(numbers full_shard)" ]]; then
  report "the table determines the bits" ok
else
  report "the table determines the bits: $(numbers tuned) $(numbers tuned-again)" FAILED tuned
fi
ran few-sms 2 --device cuda sharding.strategy=full_shard train.gemm_sm_count_target=100
close "full_shard, products on a part of the SMs" 4 few-sms cpu 1e-5
[[ $(numbers few-sms) != "$(numbers full_shard)" ]] || report "cuBLASLt does not receive train.gemm_sm_count_target" FAILED few-sms
fails "a GEMM table and a part of the SMs" 78 "gemm_table was timed on all SMs" 2 \
  train.gemm_table="$work/gemms.json" train.gemm_sm_count_target=100
sed 's/"cublaslt": "13/"cublaslt": "12/' "$work/gemms.json" >"$work/other.json"
fails "a table of another cuBLASLt" 78 "was made on .* with cuBLASLt 12.*, this is .* with 13" 2 \
  train.gemm_table="$work/other.json"
head -c 200 "$work/gemms.json" >"$work/half.json"
fails "half a GEMM table" 78 "half.json is not a GEMM table" 2 train.gemm_table="$work/half.json"

# Ranges that Nsight Systems would show for the profiled steps: the trace's steps, passes and collectives, nested.
# (A trace truncates long purposes for collectives on host values.)
FAKE_PROFILER=$work/profiler ran profiled 2 --device cuda sharding.strategy=full_shard profile.steps=2-3
titles() { sed -nE 's/^[0-9]+ push //; T; s/ along [a-z]+$//; p' "$work"/profiler.* | cut -c1-40 | sort; }
traced() { grep -E '"cat":"(step|pass|collective)"' "$work/profiled/trace/trace.json" | sed -E 's/.*"name":"([^"]*)".*/\1/' | cut -c1-40 | sort; }
ranges=$(awk 'FNR == 1 { if ($2 != "start") bad = 1 }
  $2 == "start" { ++starts }
  $2 == "push" && ++depth[FILENAME, $1] == 1 { outer = outer (outer ? ", " : "") substr($0, index($0, "push") + 5) }
  $2 == "pop" && --depth[FILENAME, $1] < 0 { bad = 1 }
  $2 == "stop" { ++stops; for (thread in depth) if (thread ~ "^" FILENAME && depth[thread]) bad = 1 }
  END { print starts, stops, bad + 0, outer }' "$work"/profiler.*)
if [[ $ranges == "2 2 0 step 2, step 3, step 2, step 3" && $(titles) == "$(traced)" &&
  $(grep -l 'push all-gather model.layers.0 along shard$' "$work"/profiler.* | wc -l) == 2 && $(titles) == *"backward model.layers.0.self_attn"* ]]; then
  report "NVTX ranges of the profiled steps" ok
else
  report "NVTX ranges of the profiled steps: $ranges $(diff <(titles) <(traced) | head -n 5)" FAILED profiled
fi

# waits STEPS SEQUENCES: prints how often a rank's host waits for its GPU in such a run
waits() {
  rm -rf "$work/waits"
  FAKE_GPU_TELLS_WAITS=1 ran waits 2 --device cuda sharding.strategy=full_shard "train.steps=$1" "train.global_batch=$2"
  sed -n 's/.*the host has waited \([0-9]*\) times.*/\1/p' "$work/waits.log" | sort -n | tail -n 1
}
short=$(waits 2 2) long=$(waits 22 2) micro_batches=$(waits 22 12)
# Complete events need no wait, so on a busy machine the count varies by ten or so between runs.
if ((long - short < 40 && micro_batches - long < 20)); then
  report "the host waits once a step, however many micro-batches it has" ok
else
  report "waits of 2 steps $short, of 22 $long, of 22 with 6 micro-batches $micro_batches" FAILED waits
fi

# Whichever collective in a step is aborted, its data is not used: the step is not taken, saved or written to metrics.
one_step=(train.global_batch=2 sharding.strategy=full_shard)
of_a_step=$("$program" plan inputs/tiny.yaml --ranks 2 --ranks-per-node 2 --dry-run "${one_step[@]}" | awk '$1 == "shard" { n += $NF } END { print n }')
[[ $of_a_step -gt 5 ]] || report "collectives of a step: '$of_a_step'" FAILED cpu
broken() { # broken NUMBER STEPS: checks that a run whose collective NUMBER breaks ends with STEPS steps
  rm -rf "$work/broken"
  local status=0
  FAKE_NCCL_BREAKS=$1 ran broken 2 --device cuda "${one_step[@]}" checkpoint.every_steps=1 evaluate.every_steps=0 || status=$?
  [[ $status == 75 && $(grep -c '"loss"' "$work/broken/metrics.jsonl") == "$2" &&
    $(find "$work/broken/checkpoints" -maxdepth 1 -name 'step_????????' | wc -l) == "$2" ]] ||
    report "collective $1 of $of_a_step: exit $status, $(grep -c '"loss"' "$work/broken/metrics.jsonl") rows" FAILED broken
}
before=$failures
for ((i = 1; i <= of_a_step; ++i)); do broken "$i" 0; done
broken $((2 * of_a_step)) 1
[[ $failures != "$before" ]] || report "no step on data of an aborted collective" ok

FAKE_NCCL_BREAKS=1 fails "a first collective that breaks" 75 "on axis shard .*failed in NCCL" 2
FAKE_NCCL_BREAKS=8 fails "a gather that breaks" 75 "all-gather of .* on axis shard .*failed in NCCL" 4
FAKE_NCCL_BREAKS=9 fails "a reduction that breaks" 75 "reduce-scatter of .* on axis shard .*failed in NCCL" 4
FAKE_GPUS=1 fails "two ranks on one GPU" 78 "on one GPU .*: start one rank a GPU" 2
FAKE_GPUS=1 FAKE_GPU_NAME="fake GPU MIG 1g.10gb" fails "two ranks on parts of one GPU" 78 \
  "on parts of one GPU .*MIG 1g.10gb.*, which NCCL cannot connect" 2
FAKE_GPU_MIB=4 fails "too little memory" 78 "cannot allocate [0-9]* bytes on the GPU .*; use more ranks" 2 memory.device_limit=1000000000
FAKE_GPU_MIB=1 fails "too little memory for NCCL" 78 "cannot allocate [0-9]* bytes on the GPU .*; use more ranks" 2 \
  sharding.strategy=no_shard memory.device_limit=1000000000
# 1537 MiB less the 1536 that libraries and NCCL will take
FAKE_GPU_MIB=1537 fails "a plan that does not fit" 78 \
  "a step takes [0-9]* bytes .*, but the GPU's free memory, less .*, is 1048576; use more ranks" 2
FAKE_GPU_MIB=2000 FAKE_NCCL_MIB=1500 fails "communicators without memory" 78 \
  "NCCL found no memory for its buffers on the GPU .[0-9]* of [0-9]* bytes are free.; use more ranks" 2
FAKE_GPU_MIB=2000 FAKE_NCCL_PAIRS_MIB=1500 fails "pairs without memory" 78 \
  "the first exchange.*NCCL found no memory for its buffers on the GPU .[0-9]* of [0-9]* bytes are free.; use more ranks" 2 \
  mesh.axes.pipeline=2
FAKE_GPUS=0 fails "no GPU" 78 "no GPU: .*--device cpu" 2
for device in cuda auto; do
  FAKE_GPU_FAILS=1 fails "a driver that fails, --device $device" 78 \
    "driver on .* cannot list its GPUs: an error of the fake GPU .*--device cpu" 2
done
device=cuda

# Rank 1's kernels take longer. It must be named although rank 0 waits for it in every step; the metrics show the waits. On
# a busy machine rank 0 may be slow, and named, as well; there a rank is named after three comparisons of 20 steps.
# shellcheck disable=SC2016
seen_by_rank=(sh -c '[ "$OMPI_COMM_WORLD_RANK" = 1 ] && export FAKE_GPU_KERNEL_TAKES=5000; exec "$@"' sh)
ran slow 2 --device cuda sharding.strategy=full_shard train.steps=62 train.global_batch=2
seen_by_rank=()
if [[ $(grep '"event":"straggler"' "$work/slow/metrics.jsonl") == *'"rank 1 on '*' is slow: '* &&
  $(grep -c '"seconds_compute":.*"exposed":{.*"shard":[0-9.]*[1-9]' "$work/slow/metrics.jsonl") -ge 20 ]]; then
  report "a slow GPU is named" ok
else
  report "a slow GPU is named: $(grep straggler "$work/slow/metrics.jsonl")" FAILED slow
fi

wait "$hanging"
status=$?
if [[ $status == 75 && $(cat "$work/hanging/failure.json") == *'"rank": 1,'*'"axis": "shard"'* ]]; then
  report "a GPU that hangs is named, and the collective in which the other one waits" ok
else
  report "a GPU that hangs: exit $status, $(cat "$work/hanging/failure.json")" FAILED hanging
fi

[[ $failures == 0 ]] || { echo "$failures failed"; exit 1; }
