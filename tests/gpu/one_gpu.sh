#!/usr/bin/env bash
# one_gpu.sh PROGRAM [ARGUMENTS], under mpirun: makes NCCL treat each rank as a separate machine, so that several ranks
# on one GPU can form a communicator, over TCP on loopback. It tests rings, splits, errors and order, not speed.
# NCCL_CUMEM_ENABLE=1 lets NCCL allocate memory by page and register windows, as it does by default elsewhere.
rank=${OMPI_COMM_WORLD_RANK:-${PMIX_RANK:-${SLURM_PROCID:-0}}}
ranks=${OMPI_COMM_WORLD_SIZE:-${SLURM_NTASKS:-1}}
export LLAMESH_SHARE_GPU=1 NCCL_HOSTID=rank$rank CUDA_VISIBLE_DEVICES=${CUDA_VISIBLE_DEVICES:-0}
export NCCL_NET=Socket NCCL_IB_DISABLE=1 NCCL_SOCKET_IFNAME=lo NCCL_MNNVL_ENABLE=0 NCCL_RAS_ENABLE=0
export NCCL_ALGO=${NCCL_ALGO:-Ring} NCCL_PROTO=${NCCL_PROTO:-Simple}
# A container may have only 64 MB of shared memory. A rank takes 33 MB for each connection set's queue, and related
# communicators can share one set. NCCL_CUMEM_ENABLE=1 takes more for buffers, unless these come from the driver.
export NCCL_CUMEM_ENABLE=${NCCL_CUMEM_ENABLE:-0}
queue=34 free=$(df --output=avail -B1M /dev/shm 2>/dev/null | tail -n 1)
if ((ranks > 1 && ${free:-0} < ranks * queue)); then
  ((rank)) || echo "one_gpu.sh: /dev/shm has ${free:-0} MB and NCCL wants $((ranks * queue)) of it: make it larger" \
    "(docker run --shm-size=1g)"
  exit 1
fi
((${free:-0} >= 4 * ranks * queue)) || export NCCL_COMM_SPLIT_SHARE_RESOURCES=1
exec "$@"
