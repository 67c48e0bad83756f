#!/usr/bin/env bash
# Installs the Debian packages that llamesh is built from. Lists the missing ones first.
#   scripts/setup.sh [--no-install] [--tests] [--ci] [--mpich]
#     --no-install   only list what is missing
#     --tests        also what only the tests need: Slurm and the module systems
#     --ci           also the tools that CI uses
#     --mpich        also MPICH and its parallel HDF5, for the preset mpich
# docs/dependencies.md says why each package is needed.
set -euo pipefail

packages=(
  g++ cmake ninja-build
  libopenmpi-dev openmpi-bin libhdf5-openmpi-dev hdf5-tools libdnnl-dev
  libfmt-dev libspdlog-dev libyaml-cpp-dev libcli11-dev nlohmann-json3-dev libxxhash-dev
  libgtest-dev bible-kjv sentencepiece
  libsentencepiece-dev libpcre2-dev libutf8proc-dev libprotozero-dev libisal-dev
  python3-jinja2
)
test_packages=(
  slurm-wlm munge libpmix-dev iproute2  # libpmix-dev has the libpmix.so that Slurm's plugin opens
  tcl lua5.3 lua-filesystem lua-json lua-posix lua-term  # for the module systems that tests/modules unpacks
)
install=yes tests=no ci=no
for option in "$@"; do
  case $option in
    --no-install) install=no ;;
    --tests) tests=yes; packages+=("${test_packages[@]}") ;;
    --ci) ci=yes; packages+=(clang-format clang-16 clang-tidy-16 libclang-rt-16-dev ccache patchelf debootstrap) ;;
    --mpich) packages+=(mpich libmpich-dev libhdf5-mpich-dev) ;;
    -h | --help) sed -n '2,8s/^# \{0,1\}//p' "$0"; exit 0 ;;
    *) echo "setup.sh: unknown option $option (see --help)" >&2; exit 2 ;;
  esac
done

if ! command -v apt-get >/dev/null || ! command -v dpkg-query >/dev/null; then
  if [[ $install == no ]]; then exit 0; fi
  echo "This system does not use Debian packages. Install the equivalents of these, then add --no-install:" >&2
  echo "  ${packages[*]}" >&2
  exit 1
fi

missing=()
for package in "${packages[@]}"; do
  status=$(dpkg-query -W -f='${db:Status-Status} ' "$package" 2>/dev/null || true)
  if [[ " $status" != *" installed "* ]]; then missing+=("$package"); fi
done
unpack_module_systems() {
  if [[ $install$tests == yesyes ]]; then "$(dirname "$0")/../tests/modules/unpack.sh"; fi
}
# Downloads cuDNN's frontend headers for CI's GPU build into build/cudnn_frontend. CI goes on
# without them.
fetch_cudnn_frontend() {
  local home wheels sum=382ea063b92cbfd5b442cb75ff8422932d78276aecf139e46713ed1ad3d07af4
  home=$(cd "$(dirname "$0")/.." && pwd)/build/cudnn_frontend
  if [[ $install$ci != yesyes || -e $home/include/cudnn_frontend.h ]] || ! command -v nvcc >/dev/null; then return 0; fi
  wheels=$(mktemp -d)
  if python3 -m pip download -q --disable-pip-version-check --no-deps --only-binary=:all: --python-version 3.11 \
    --platform manylinux_2_28_x86_64 -d "$wheels" nvidia-cudnn-frontend==1.18.0 >/dev/null 2>&1 &&
    echo "$sum $(echo "$wheels"/*.whl)" | sha256sum -c --status &&
    mkdir -p "$home" && python3 -m zipfile -e "$wheels"/*.whl "$home"; then
    echo "cudnn_frontend 1.18.0: unpacked into build/cudnn_frontend"
  else
    echo "SKIPPED: cudnn_frontend 1.18.0 could not be downloaded (pip, network or checksum)"
  fi
  rm -rf "$wheels"
}
if [[ ${#missing[@]} == 0 ]]; then unpack_module_systems; fetch_cudnn_frontend; exit 0; fi

echo "Missing Debian packages: ${missing[*]}"
if [[ $install == no ]]; then
  echo "They are not installed (--no-install); the build may fail without them."
  exit 0
fi

as_root=()
if [[ $(id -u) != 0 ]]; then
  if ! command -v sudo >/dev/null; then
    echo "No root rights and no sudo: ask an administrator to run apt-get install ${missing[*]}" >&2
    exit 1
  fi
  as_root=(sudo)
fi
# Through env, since sudo drops the caller's environment.
apt=("${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -q -o Dpkg::Use-Pty=0)
"${apt[@]}" update
"${apt[@]}" install -y --no-install-recommends "${missing[@]}"
unpack_module_systems
fetch_cudnn_frontend
