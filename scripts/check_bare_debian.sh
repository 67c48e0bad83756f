#!/usr/bin/env bash
# Runs the demo and the tests on a bare Debian 12: a fresh debootstrap with git and a clone of HEAD,
# in namespaces of its own, removed at the end. Needs root, debootstrap and a Debian host, whose
# mirror it uses.
#   scripts/check_bare_debian.sh [--keep] [COMMAND...]
#     --keep      leave the system in its folder and say where
#     COMMAND     what to run in the clone instead of ./demo.sh and ./test.sh
set -euo pipefail
release=bookworm
repository=$(cd "$(dirname "$0")/.." && pwd)

keep=no
case ${1:-} in
  --keep) keep=yes; shift ;;
  -h | --help) sed -n '2,7s/^# \{0,1\}//p' "$0"; exit 0 ;;
esac
if [[ $(id -u) != 0 ]]; then echo "check_bare_debian.sh: must be run as root" >&2; exit 1; fi
if ! command -v debootstrap >/dev/null; then
  echo "check_bare_debian.sh: debootstrap is missing (apt-get install debootstrap)" >&2
  exit 1
fi
git -C "$repository" rev-parse -q --verify HEAD >/dev/null || {
  echo "check_bare_debian.sh: $repository has no commit to clone" >&2
  exit 1
}

# The host's own mirrors of this release, as lines "deb URI RELEASE COMPONENT".
sources=$(apt-get indextargets --format 'deb $(REPO_URI) $(RELEASE) $(COMPONENT) $(ORIGIN)' \
  'Created-By: Packages' | awk -v release=$release '$3 ~ "^"release && $5 == "Debian" {print $1, $2, $3, $4}' | sort -u)
mirror=$(awk -v release=$release '$3 == release {print $2; exit}' <<<"$sources")
if [[ -z $mirror ]]; then
  echo "check_bare_debian.sh: apt on this host names no mirror of Debian $release (try apt-get update)" >&2
  exit 1
fi
include=git
if [[ $sources == *https://* ]]; then include+=,ca-certificates; fi

root=$(mktemp -d "${TMPDIR:-/tmp}/llamesh-debian.XXXXXX")
chmod 755 "$root"
finish() {
  if [[ $keep == yes ]]; then echo "Left in $root"; else rm -rf --one-file-system "$root"; fi
}
trap finish EXIT

echo "-- Debian $release into $root"
debootstrap --variant=minbase --include=$include $release "$root" "$mirror" >"$root.log" 2>&1 || {
  tail -n 20 "$root.log" >&2
  rm -f "$root.log"
  exit 1
}
rm -f "$root.log"
echo "$sources" >"$root/etc/apt/sources.list"
apt-config dump | grep -E '^Acquire::(http|https)::' >"$root/etc/apt/apt.conf.d/90host" || true
cp -L /etc/resolv.conf /etc/hosts "$root/etc/"
git clone -q "$repository" "$root/root/llamesh"

# In a mount namespace of its own: /proc, /sys and /dev, all of which end with it.
inside() {
  mount -t proc proc "$root/proc"
  mount --bind /sys "$root/sys"  # hwloc reads the cores there
  mount -o remount,bind,ro "$root/sys"
  mount -t tmpfs -o mode=755 tmpfs "$root/dev"
  mkdir "$root/dev/shm" "$root/dev/pts"
  mount -t tmpfs -o mode=1777 tmpfs "$root/dev/shm"
  mount -t devpts -o newinstance,ptmxmode=0666 devpts "$root/dev/pts" || true
  ln -s pts/ptmx "$root/dev/ptmx"
  ln -s /proc/self/fd "$root/dev/fd"
  ln -s fd/0 "$root/dev/stdin"
  ln -s fd/1 "$root/dev/stdout"
  ln -s fd/2 "$root/dev/stderr"
  for device in null zero full random urandom tty; do
    touch "$root/dev/$device"
    mount --bind "/dev/$device" "$root/dev/$device"
  done
  exec env -i HOME=/root LANG=C.UTF-8 PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
    ${http_proxy:+http_proxy="$http_proxy"} ${https_proxy:+https_proxy="$https_proxy"} \
    chroot "$root" bash -c 'cd /root/llamesh && exec bash -c "$1"' bash "$1"
}
export -f inside
export root

if [[ $# == 0 ]]; then commands=("./demo.sh" "./test.sh"); else commands=("$*"); fi
for command in "${commands[@]}"; do
  echo "-- $command"
  started=$SECONDS
  unshare --mount --pid --fork --kill-child bash -c 'set -euo pipefail; inside "$1"' bash "$command" </dev/null
  echo "-- $command: exit 0 after $((SECONDS - started)) s"
done
