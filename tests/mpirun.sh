#!/bin/sh
# mpirun.sh N PROGRAM [ARGS]: N ranks on this machine, also as root, also more ranks than cores.
# LLAMESH_MPIRUN in the environment names another MPI's launcher, such as mpiexec.mpich for the
# preset mpich.
ranks=$1; shift
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
export LLAMESH_DEBUG_CONTRACT=1  # as debug.contract=true, in every test
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"
# Ranks may come to MPI_Init late on a busy machine. Still below the limits at which tests end what hangs, since llamesh says
# what it waits for.
export LLAMESH_MPI_TIMEOUT="${LLAMESH_MPI_TIMEOUT:-240}"
# Ranks that wait leave the processors to other tests, also where there are no more ranks than processors.
export OMPI_MCA_mpi_yield_when_idle=1
command -v ssh >/dev/null 2>&1 || export OMPI_MCA_plm=isolated   # mpirun looks for an ssh otherwise
[ "$ranks" = 1 ] && [ -z "$LLAMESH_TEST_MPIRUN" ] && exec "$@"
[ -n "$LLAMESH_MPIRUN" ] && exec "$LLAMESH_MPIRUN" -n "$ranks" "$@"
exec mpirun --oversubscribe --bind-to none -n "$ranks" "$@"
