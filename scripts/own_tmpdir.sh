# shellcheck shell=bash
# Sourced: gives the script a TMPDIR of its own, removed at its end.
# Open MPI names the folders of a job by mpirun's process id. If a killed job has left one behind, the next job with
# that id uses it, whatever its mode.
TMPDIR=$(mktemp -d "${TMPDIR:-/tmp}/llamesh-tests.XXXXXX")
export TMPDIR
chmod 1777 "$TMPDIR"  # tests also run as other users
trap 'rm -rf "$TMPDIR"' EXIT
