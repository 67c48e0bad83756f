#!/bin/sh
# Runs inside Debian 12 while an image is built (Containerfile, llamesh.def), as root.
#   install.sh build [ARCH]   builds llamesh from /llamesh into /opt/llamesh, for -march=ARCH
#   install.sh runtime        installs the libraries and the launcher that it needs
set -eu
export DEBIAN_FRONTEND=noninteractive
apt-get update -q

case $1 in
  build)
    cd /llamesh
    scripts/setup.sh
    cmake --preset cpu -DCMAKE_INSTALL_PREFIX=/opt/llamesh -DLLAMESH_TESTS=OFF -DLLAMESH_ARCH="${2:-x86-64-v3}"
    cmake --build --preset cpu --target install
    ;;
  runtime)
    apt-get install -q -y --no-install-recommends \
      openmpi-bin libhdf5-openmpi-103-1 libdnnl2 libfmt9 libspdlog1.10 libyaml-cpp0.7 libsentencepiece0 \
      libpcre2-8-0 libutf8proc2 libisal2 libgomp1 python3-jinja2
    ;;
esac
rm -rf /var/lib/apt/lists/*
