# shellcheck shell=bash disable=SC2154,SC2034
# Sourced by the scripts in this folder: runs llamesh under mpirun in a fresh folder, and checks
# runs that end badly. $program is the llamesh under test, $sources the repository.
set -uo pipefail
source "$sources/tests/patience.sh"
source "$sources/tests/forget_runs.sh"

work=$(mktemp -d "${TMPDIR:-/tmp}/llamesh-faults.XXXXXX")
work=$(cd "$work" && pwd -P)
trap 'end_processes; forget_runs "$work"; rm -rf "$work"' EXIT
cd "$work" || exit 1
ln -s "$sources/inputs" inputs

llamesh=$program  # through may change $program
this_shell=$(readlink "/proc/$$/exe")

# Hide a Slurm job around the tests.
for variable in $(compgen -e SLURM_); do unset "$variable"; done

# A rank that is frozen is found after this many seconds, not after 30.
export LLAMESH_SILENCE=10

# processes: lists the ids of everything that runs in the work folder (the ranks and their mpirun)
# except our shells
processes() {
  local process
  for process in /proc/[0-9]*; do
    if [[ $(readlink "$process/cwd") == "$work" && $(readlink "$process/exe") != "$this_shell" ]]; then
      echo "${process#/proc/}"
    fi
  done 2>/dev/null
}

end_processes() {
  local process
  for process in $(processes); do kill -KILL "$process" 2>/dev/null; done
}

# bad TEXT: fails the test
bad() {
  echo "FAILED: $1"
  echo "--- exit code ${code:-?}; standard error:"
  cat err 2>/dev/null
  exit 1
}

# launch RANKS ARGUMENT...: runs llamesh with these arguments to its end, or until it counts as hung.
# Sets code.
launch() {
  local ranks=$1
  shift
  timeout -k 10 "$(stretched 300)" "$sources/tests/mpirun.sh" "$ranks" "$program" "$@" >out 2>err </dev/null
  code=$?
}

# through RANK COMMAND: from now on this rank runs the shell command before llamesh starts
through() {
  printf '#!/bin/bash\nif [[ $OMPI_COMM_WORLD_RANK == %s ]]; then %s; fi\nexec %q "$@"\n' "$1" "$2" "$llamesh" >through.sh
  chmod +x through.sh
  program=$work/through.sh
}

# hold RANK STEP: the next run of faulty_llamesh waits in this rank before this step, or the first
# one after it, until `let_go`. held: waits until it is there.
hold() {
  export LLAMESH_FAULT="held $1 $2 0" LLAMESH_HOLD=$work/hold
  rm -f "$LLAMESH_HOLD.reached"
  touch "$LLAMESH_HOLD"
}
held() { within 120 test -e "$LLAMESH_HOLD.reached" || bad "the run does not come to the step at which it is to be held"; }
let_go() { rm -f "$LLAMESH_HOLD"; }

no_processes() { [[ -z $(processes) ]]; }

# expect_end CODE: checks that the run ended with this exit code, and left no trace in the system
expect_end() {
  [[ $code == "$1" ]] || bad "exit code $code instead of $1"
  # mpirun may still be shutting down.
  within 60 no_processes || bad "processes are left: $(processes)"
}

# last_line: prints it, but for what Open MPI says of a copy from the memory of a rank that is gone,
# which another rank may have been making
last_line() { grep -vE '^\[[^]]+\] Read -?[0-9]+, expected [0-9]+, errno = 3$' err | tail -n 1; }

# expect_line TEXT...: checks that one rank printed a single line with these texts, and nothing
# after it (no page of text from mpirun or MPI_Abort)
expect_line() {
  local lines text
  [[ $(last_line) == "llamesh: "* ]] || bad "the last line does not begin with 'llamesh: '"
  lines=$(grep '^llamesh: ' err)
  [[ $(grep -c '^llamesh: ' err) == 1 ]] || bad "not exactly one line that begins with 'llamesh: '"
  for text in "$@"; do
    [[ $lines == *"$text"* ]] || bad "the line does not say '$text'"
  done
}

# expect_lines PATTERN: the same where several ranks may say what one says as a rule
expect_lines() {
  [[ $(last_line) == "llamesh: "* ]] || bad "the last line does not begin with 'llamesh: '"
  ! grep '^llamesh: ' err | grep -qv "^llamesh: $1" || bad "a line does not say '$1'"
}

# refused RANKS TEXT... -- ARGUMENT...: checks that `llamesh train ARGUMENT...` is refused before
# any work, with these texts
refused() {
  local ranks=$1 texts=()
  shift
  while [[ $1 != -- ]]; do texts+=("$1"); shift; done
  shift
  launch "$ranks" train "$@"
  expect_end 78
  expect_line "${texts[@]}"
  [[ ! -e runs ]] || bad "a run folder was made"
}

# a_rank N: prints the process id of rank N
a_rank() {
  local process
  for process in $(processes); do
    if [[ $(readlink "/proc/$process/exe") == "$llamesh" ]] &&
      { tr '\0' '\n' <"/proc/$process/environ" | grep -qx "OMPI_COMM_WORLD_RANK=$1"; } 2>/dev/null; then
      echo "$process"
    fi
  done
}
