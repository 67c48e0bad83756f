#!/usr/bin/env bash
# Unpacks the two module systems below build/unpacked, where modules.sh looks for them after the system's own.
# Debian's packages of them exclude each other, and installed they change the login shells of the
# machine, so the tests take them without installing. What they need is in scripts/setup.sh.
set -euo pipefail
cd "$(dirname "$0")/../.."

for package in lmod environment-modules; do
  status=$(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null || true)
  if [[ $status == installed || -d build/unpacked/$package ]]; then continue; fi
  mkdir -p build/unpacked
  new=$(mktemp -d build/unpacked/new.XXXXXX)
  trap 'rm -rf "$new"' EXIT
  echo "Unpacking Debian's $package into build/unpacked (not installed)"
  if (cd "$new" && apt-get -qq -o APT::Sandbox::User="$(id -un)" -o Acquire::http::Timeout=20 download "$package") &&
    dpkg-deb -x "$new"/*.deb "$new/files"; then
    mv "$new/files" "build/unpacked/$package"
  else
    echo "$package could not be had (apt-get update?): the test that needs it will be skipped."
  fi
  rm -rf "$new"
done
