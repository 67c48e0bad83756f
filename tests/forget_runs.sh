# shellcheck shell=bash
# Sourced: ranks that are killed leave flight records and memory checkpoints in /dev/shm for the next launch of their run. A
# test's run has no next launch in the end, so the test removes them.

# left_by RUN_FOLDER: prints the paths in /dev/shm of what this run has left there.
left_by() {
  local LC_ALL=C path hash=$((0xcbf29ce484222325)) byte i
  path=$(cd "$1" && pwd -P) || return
  # The names contain the FNV-1a hash of the run folder's path, as name_hash() in src/core/philox.cpp computes it.
  for ((i = 0; i < ${#path}; ++i)); do
    printf -v byte %d "'${path:i:1}"
    hash=$(((hash ^ (byte & 255)) * 0x100000001b3))
  done
  printf -v hash %016x "$hash"
  compgen -G "/dev/shm/llamesh-*-$EUID-$hash-*"
}

# forget_runs FOLDER: removes what the runs in this folder have left. Call it before the folder is removed, and when the
# ranks have ended.
forget_runs() {
  local folder left
  compgen -G "/dev/shm/llamesh-*-$EUID-*" >/dev/null || return 0  # as a rule nobody has left anything
  while IFS= read -r -d '' folder; do
    while IFS= read -r left; do rm -rf "$left"; done < <(left_by "$folder")
  done < <(find "$1" -type d ! -name 'step_*' -print0 2>/dev/null)
}
