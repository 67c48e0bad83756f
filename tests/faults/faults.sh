# shellcheck shell=bash disable=SC2154,SC2034
# Sourced by the scripts in this folder: runs llamesh under mpirun in a fresh folder, and checks
# runs that end badly. $program is the llamesh under test, $sources the repository.
set -uo pipefail

work=$(mktemp -d "${TMPDIR:-/tmp}/llamesh-faults.XXXXXX")
work=$(cd "$work" && pwd -P)
trap 'end_processes; rm -rf "$work"' EXIT
cd "$work" || exit 1
ln -s "$sources/inputs" inputs

llamesh=$program  # through may change $program
this_shell=$(readlink "/proc/$$/exe")

# Hide a Slurm job around the tests.
for variable in $(compgen -e SLURM_); do unset "$variable"; done

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
  echo "--- exit code ${code:-?} after ${seconds:-?} s; standard error:"
  cat err 2>/dev/null
  exit 1
}

# launch RANKS ARGUMENT...: runs llamesh with these arguments to its end, or for 60 s. Sets code and
# seconds.
launch() {
  local ranks=$1 begin=$SECONDS
  shift
  timeout -k 2 60 "$sources/tests/mpirun.sh" "$ranks" "$program" "$@" >out 2>err </dev/null
  code=$?
  seconds=$((SECONDS - begin))
}

# through RANK COMMAND: from now on this rank runs the shell command before llamesh starts
through() {
  printf '#!/bin/bash\nif [[ $OMPI_COMM_WORLD_RANK == %s ]]; then %s; fi\nexec %q "$@"\n' "$1" "$2" "$llamesh" >through.sh
  chmod +x through.sh
  program=$work/through.sh
}

# expect_end CODE: checks that the run ended with this exit code, in time, and left no trace in the
# system
expect_end() {
  [[ $code == "$1" ]] || bad "exit code $code instead of $1"
  ((seconds < 28)) || bad "it took $seconds s"
  # mpirun may still be shutting down.
  for _ in {1..100}; do [[ -z $(processes) ]] && return || sleep 0.1; done
  bad "processes are left: $(processes)"
}

# expect_line TEXT...: checks that one rank printed a single line with these texts, and nothing
# after it (no page of text from mpirun or MPI_Abort)
expect_line() {
  local lines text
  [[ $(tail -n 1 err) == "llamesh: "* ]] || bad "the last line does not begin with 'llamesh: '"
  lines=$(grep '^llamesh: ' err)
  [[ $(grep -c '^llamesh: ' err) == 1 ]] || bad "not exactly one line that begins with 'llamesh: '"
  for text in "$@"; do
    [[ $lines == *"$text"* ]] || bad "the line does not say '$text'"
  done
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
