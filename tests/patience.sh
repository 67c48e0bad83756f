# shellcheck shell=bash
# Sourced: the limits of time in shell tests. They only end what hangs, so no test asserts that something takes less.
# tests/patience.hpp is the same for C++.

# stretched SECONDS: prints the seconds times LLAMESH_PATIENCE (1) and times the load per processor, plus one.
stretched() {
  local load running
  read -r load _ _ running _ </proc/loadavg
  load=${load%.*} running=${running%/*}
  echo $(($1 * ${LLAMESH_PATIENCE:-1} * (1 + (load > running ? load : running) / $(nproc))))
}

# within SECONDS COMMAND...: waits until the command succeeds. Returns 1 if it has not after these seconds, stretched by
# the load that there is by then.
within() {
  local seconds=$1 begin=$SECONDS
  shift
  until "$@"; do
    ((SECONDS - begin <= seconds || SECONDS - begin <= $(stretched "$seconds"))) || return 1
    sleep 0.1
  done
}
