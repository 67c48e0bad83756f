#!/usr/bin/env bash
# Dry run of a GPU test session (visit.sh) on a fake CUDA runtime, in a root of its own that holds Debian's essential packages, the
# bundle and the sources: no MPI, HDF5, compiler or Python. Shows that the bundle is complete, and that every step of every
# part runs, ends and leaves its results. The fake GPU computes nothing (FAKE_GPU_IDLE), so losses mean nothing here.
# Needs root, for chroot; exits with 77 without.
#   tests/gpu/dry_run.sh PROGRAM FOLDER     where PROGRAM is llamesh_fake_cuda and FOLDER has gpu_ops
set -uo pipefail
program=$(readlink -f "$1") tests=$(readlink -f "$2")
cd "$(dirname "$0")/../.." || exit 1
if ! unshare -m true 2>/dev/null; then echo "SKIPPED: needs root"; exit 77; fi
work=$(mktemp -d)
trap 'rm -rf --one-file-system "$work"' EXIT
root=$work/root
fail() { echo "FAILED: $*"; exit 1; }

tests/gpu/bundle.sh --llamesh "$program" --tests "$tests" "$work/bundle" >"$work/bundle.log" 2>&1 ||
  { tail -n 20 "$work/bundle.log"; fail "bundle.sh"; }
grep -E '^(attention by cuDNN|from the other machine)' "$work/bundle.log" || fail "bundle.sh does not say what it holds"
mkdir -p "$root"/{proc,dev,tmp,visit/bundle,usr/bin,usr/sbin,usr/lib,usr/lib64,usr/local/cuda/lib64}
for link in bin sbin lib lib64; do ln -s usr/$link "$root/$link"; done
tar -xzf "$work/bundle.tar.gz" -C "$root/visit/bundle"
tar -c --exclude=./build --exclude=./.git . | tar -x -C "$root/visit"
# Models of two layers: their weights are drawn on the host.
sed -i 's/num_hidden_layers: .*/num_hidden_layers: 2/; s/vocab_size: .*/vocab_size: 4096/' "$root"/visit/inputs/models/llama3*.yaml

# Essential packages with mawk, and the libraries that they need. The fake runtime needs none of CUDA's.
mapfile -t packages < <(dpkg-query -W -f='${Package} ${Essential}\n' | awk '$2 == "yes" { print $1 }')
packages+=(mawk libc6)
dpkg-query -L "${packages[@]}" | sort -u | grep -E '^/(usr/)?(bin|sbin|lib|lib64)/|^/etc/(passwd|group)$' | grep -v terminfo |
  while read -r path; do if [[ -f $path || -L $path ]]; then printf '%s\0' "${path#/}"; fi; done |
  tar -C / --null -T - -c | tar -x -C "$root" --keep-directory-symlink
find "$root/usr/bin" "$root/usr/sbin" -type f -exec ldd {} + 2>/dev/null | awk '$3 ~ /^\// { print $3 }' | sort -u |
  while read -r library; do [[ -e $root/$library ]] || { mkdir -p "$root/${library%/*}"; cp -L "$library" "$root/$library"; }; done
ln -sf mawk "$root/usr/bin/awk"
# CUDA's own libraries, which the tests and cuDNN's loader link to; as on a machine with a GPU
for name in cublasLt nccl; do
  library=$(find /usr/local/cuda/lib64/ -maxdepth 1 -name "lib$name.so.*" 2>/dev/null | head -n 1)
  [[ -z $library ]] || cp -L "$library" "$root/usr/local/cuda/lib64/$(objdump -p "$library" | awk '$1 == "SONAME" { print $2 }')"
done

cat >"$root/usr/bin/nvidia-smi" <<'SMI'
#!/bin/sh
case $* in *nounits*) echo "$FAKE_GPU_MIB" ;; *) echo "fake GPU, 0, $FAKE_GPU_MIB MiB" ;; esac
SMI
# PyTorch's part, in the words of torch_fsdp2.py
cat >"$root/usr/bin/python3" <<'PYTHON'
#!/bin/sh
case $* in *torch_fsdp2*) echo "memory: peak 1024 MiB"; echo "median 1 2 tokens/s 3 %"; exit 0 ;; esac
exit 1
PYTHON
chmod +x "$root"/usr/bin/{nvidia-smi,python3}

# visit MIB ARGUMENT...: a call on a fake GPU with that memory
visit() {
  # shellcheck disable=SC2016
  unshare -m bash -c '
    mount --rbind /proc "$1/proc" && mount --rbind /dev "$1/dev" || exit 1
    exec chroot "$@"' unshare "$root" /usr/bin/env -i PATH=/usr/bin:/bin HOME=/tmp \
    FAKE_GPU_IDLE=1 FAKE_GPU_MIB="$1" LLAMESH_VISIT_PATIENCE=20 /usr/bin/bash -c 'cd /visit && exec tests/gpu/visit.sh "$@"' bash \
    --programs bundle --python /usr/bin/python3 "${@:2}" >"$work/visit.log" 2>&1
}
summary=$root/tmp/out/summary.md
parts="kernels fp8 fp8_8b benches steps1b steps8b training ranks profile steps8192 sanitizers"

# No time: nothing runs, and the call says where the next one goes on.
visit 143771 --out /tmp/none --seconds 60
grep -q 'Left for the next call, from kernels on' "$root/tmp/none/summary.md" || { cat "$work/visit.log"; fail "a call without time"; }
[[ ! -s $root/tmp/none/done ]] || fail "a part was done without time"

visit 143771 --out /tmp/out --seconds 100000
[[ $(tr '\n' ' ' <"$root/tmp/out/done") == "$parts " ]] || { cat "$work/visit.log"; fail "parts that were done: $(<"$root/tmp/out/done")"; }
for part in $parts; do [[ -s $root/tmp/out/$part.log ]] || fail "$part left no log"; done
if grep -nE 'command not found|No such file|cannot open shared object|cannot load|not a valid|unbound variable|syntax error' \
  "$root"/tmp/out/*; then
  fail "what is above is missing on such a machine"
fi
# Rows of training: both runs ended, perhaps because the numbers that nobody computed are not finite (93). Tests of kernels end at once without a real GPU.
if grep -E '^(training|full_shard|shard_grad_op|no_shard|hybrid|checkpoint|a table)' "$summary" | grep -vE 'passed|exit (0|93) and (0|93),|steps 21 to 24'; then
  fail "the runs above did not end"
fi
for row in 'kernels: attention' 'training in bf16' 'a GEMM table +passed' 'full_shard, 4 NCCL ranks' 'compute-sanitizer' \
  'llama3.2-1b +4096 +llamesh' 'llama3.2-1b +4096 +fp8' 'llama3.2-1b +4096 +tuned' 'llama3.2-1b +4096 +torch' 'llama3.2-1b +4096 +plain' 'llama3.2-1b +4096 +torchao' 'llama3.2-1b +4096 +torchao_tw' 'llama3-8b +4096 +torchao' 'llama3-8b +4096 +llamesh' 'llama3-8b +8192 +llamesh' \
  'llamesh bench gemm' 'LLAMESH_ATTENTION=builtin llamesh bench ops' 'llamesh bench decode'; do
  grep -qE "$row" "$summary" || { tail -n 150 "$summary"; fail "no row '$row'"; }
done
if grep -E '^Exit (124|126|127|137)' "$summary"; then fail "a step was stopped or not found"; fi

# The rest of a visit, on a GPU that does not hold 8B.
printf '%s\n' kernels fp8 fp8_8b benches steps1b training ranks profile sanitizers >"$root/tmp/before"
visit 81559 --out /tmp/small --seconds 100000 --done /tmp/before
[[ $(grep -c '^### ' "$root/tmp/small/summary.md") == 2 ]] || fail "parts that were done before ran again"
grep -q '8B is left out: it needs a GPU with 130 GiB' "$root/tmp/small/summary.md" || fail "nothing says that 8B is left out"
grep -qE 'llama3.2-1b +8192' "$root/tmp/small/summary.md" || fail "1B at 8192 tokens is missing on a small GPU"
echo "the visit ran in a root without our packages: $(find "$root/visit/bundle/lib" -name '*.so*' | wc -l) libraries in the bundle"
