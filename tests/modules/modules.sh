#!/usr/bin/env bash
# Installs the built tree into a temporary prefix and uses it as the user of a cluster would.
#   modules.sh install|lmod|environment_modules CMAKE BUILD_FOLDER VERSION
set -euo pipefail
what=$1 cmake=$2 build=$3 version=$4
here=$(cd "$(dirname "$0")" && pwd)
source=$(cd "$here/../.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/home"
clean_path=/usr/bin:/bin

fail() {
  echo "FAILED: $*" >&2
  exit 1
}

same() {  # WHAT GOT EXPECTED
  [[ $2 == "$3" ]] || fail "$1 is '$2', not '$3'"
}

# A shell with nothing of this one's environment.
clean() {
  env -i HOME="$work/home" PATH=$clean_path TERM=dumb "$@"
}

install_to() {  # PREFIX [CMAKE-OPTION...]
  "$cmake" "-DCMAKE_INSTALL_PREFIX=$1" "${@:2}" -P "$build/cmake_install.cmake" >"$work/install.log" 2>&1 ||
    fail "install to $1: $(cat "$work/install.log")"
}

source "$here/$what.sh"
echo "modules/$what passed"
