#!/usr/bin/env bash
# Packs llamesh and the GPU tests from build/cuda, with Debian's Open MPI and all other libraries except glibc, the
# driver and CUDA, into a folder that runs on another machine, and the folder into FOLDER.tar.gz. On that machine:
#   FOLDER/run.sh N FOLDER/bin/llamesh ...    tests/gpu/run.sh --programs FOLDER ...    tests/gpu/visit.sh (likewise)
# On this machine:
#   tests/gpu/bundle.sh [--llamesh PROGRAM --tests FOLDER] FOLDER [CUDA-LIBRARY-FOLDER:...]
#     --llamesh, --tests   pack these rather than build (tests/gpu/dry_run.sh); --tests holds gpu_ops
# Needs patchelf, which scripts/setup.sh --ci installs. cuDNN's headers come from CUDNN_FRONTEND_HOME, or from
# build/cudnn_frontend, where scripts/setup.sh --ci puts them. The second argument is the path to cuBLASLt, NCCL and cuDNN
# on the other machine; LD_LIBRARY_PATH can set it there as well.
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
llamesh='' tests=''
while [[ ${1:-} == --* ]]; do
  case $1 in
    --llamesh) llamesh=$2; shift 2 ;;
    --tests) tests=$2; shift 2 ;;
    *) sed -n '2,10s/^# \{0,1\}//p' "$0"; exit 2 ;;
  esac
done
out=${1:?"bundle.sh: give the folder to pack into"}
cuda=${2:-/usr/local/cuda/lib64:/usr/local/nvidia/lib64}
command -v patchelf >/dev/null || { echo "bundle.sh: needs patchelf (scripts/setup.sh --ci, or apt-get install patchelf)" >&2; exit 1; }

if [[ -z $llamesh ]]; then
  export CUDNN_FRONTEND_HOME=${CUDNN_FRONTEND_HOME:-$root/build/cudnn_frontend}
  # Targets any recent x86-64 CPU rather than this one.
  cmake --preset cuda -S "$root" -B "$root/build/bundle" -DLLAMESH_ARCH=x86-64-v3 >/dev/null
  ninja -C "$root/build/bundle" llamesh gpu_ops
  llamesh=$root/build/bundle/src/llamesh tests=$root/build/bundle/tests
fi
rm -rf "$out"
mkdir -p "$out"/{bin,lib/openmpi3,lib/pmix,share,etc/openmpi}
out=$(cd "$out" && pwd)

theirs='^(ld-linux-x86-64|lib(c|m|mvec|dl|rt|pthread|resolv|util|cuda|cudart|cublas|cublasLt|nccl))\.so'
mpi=$(pkg-config --variable=libdir ompi)
pmix=$(dirname "$(readlink -f "$(ldconfig -p | awk '/libpmix\.so\.2 /{print $NF; exit}')")")
[[ -d $pmix/pmix ]] || pmix=/usr/lib/x86_64-linux-gnu/pmix2/lib
cp "$llamesh" "$out/bin/llamesh"
cp "$tests/gpu_ops" "$out/bin"
cp -L "$(command -v mpirun)" "$out/bin/mpirun"
cp -L "$(command -v orted)" "$out/bin/orted"
cp -L "$mpi"/openmpi3/mca_*.so "$out/lib/openmpi3"
# Removes network and launcher plugins that one machine does not need, with the libraries they would pull in.
(cd "$out/lib/openmpi3" && rm -f -- *ucx* *_ofi.so *openib* *psm* *usnic* *slurm* *gridengine* *flux* *monitoring* \
  mca_memheap_* mca_scoll_* mca_spml_* mca_sshmem_* mca_atomic_* mca_pmix_isolated* mca_vprotocol_* mca_crs_*)
cp -L "$pmix"/pmix/pmix_mca_*.so "$out/lib/pmix"
rm -f "$out"/lib/pmix/*slurm*
cp -rL /usr/share/openmpi "$out/share/openmpi"
cp -rL "$pmix/../share/pmix" "$out/share/pmix" 2>/dev/null || mkdir -p "$out/share/pmix"
printf '%s\n' 'pml = ob1' 'btl = self,vader,tcp' 'btl_vader_single_copy_mechanism = none' >"$out/etc/openmpi/openmpi-mca-params.conf"

find "$out" -type f \( -path '*/bin/*' -o -name '*.so*' \) -print0 |
  LD_LIBRARY_PATH="$mpi:$pmix" xargs -0 ldd 2>/dev/null | awk '$2 == "=>" && $3 ~ /^\// { print $1, $3 }' | sort -u |
  while read -r name path; do
    [[ $name =~ $theirs ]] || cp -Ln "$path" "$out/lib/$name"
  done
find "$out" -type f \( -path '*/bin/*' -o -name '*.so*' \) -exec strip --strip-unneeded {} + 2>/dev/null || true
for file in "$out"/bin/*; do patchelf --force-rpath --set-rpath "\$ORIGIN/../lib:$cuda" "$file"; done
for file in "$out"/lib/{openmpi3,pmix}/*.so; do patchelf --set-rpath "\$ORIGIN/.." "$file"; done
for file in "$out"/lib/*.so*; do patchelf --set-rpath "\$ORIGIN" "$file"; done

cat >"$out/run.sh" <<'RUN'
#!/usr/bin/env bash
# run.sh N PROGRAM [ARGUMENTS]: runs N ranks on this machine. The folder may be anywhere.
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
export OPAL_PREFIX=$here OPAL_LIBDIR=$here/lib OPAL_PKGLIBDIR=$here/lib/openmpi3 OPAL_BINDIR=$here/bin
export OPAL_DATADIR=$here/share OPAL_PKGDATADIR=$here/share/openmpi OPAL_SYSCONFDIR=$here/etc/openmpi
export PMIX_PREFIX=$here PMIX_LIBDIR=$here/lib PMIX_PKGLIBDIR=$here/lib/pmix PMIX_DATADIR=$here/share
export PMIX_PKGDATADIR=$here/share/pmix OMPI_MCA_mca_base_component_path=$here/lib/openmpi3
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
command -v ssh >/dev/null 2>&1 || export OMPI_MCA_plm=isolated
ranks=$1
shift
exec "$here/bin/mpirun" --oversubscribe --bind-to none -n "$ranks" "$@"
RUN
chmod +x "$out/run.sh"
tar -C "$out" -czf "$out.tar.gz" .

# What it does not hold, the other machine has to.
"$out/run.sh" 1 "$out/bin/llamesh" --version
if grep -q cudnnBackendExecute "$out/bin/llamesh"; then
  echo "attention by cuDNN is built in"
else
  echo "attention by cuDNN is NOT built in: cuDNN or cudnn_frontend was not found (docs/gpu.md, \"Build\")"
fi
find "$out" -type f \( -path '*/bin/*' -o -name '*.so*' \) -print0 | xargs -0 ldd 2>/dev/null |
  awk -v own="$out/" '$2 == "=>" && index($3, own) != 1 { print $1 }' | sort -u | tr '\n' ' ' | sed 's/^/from the other machine: /; s/$/\n/'
du -sh "$out" "$out.tar.gz"
