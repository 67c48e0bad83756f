#!/usr/bin/env bash
# one_gpu.sh PROGRAM [ARGUMENTS], under mpirun: NCCL takes each rank for a machine of its own, so that several ranks on
# one GPU form a communicator, over TCP on loopback. It tests rings, splits, errors and order, not speed.
rank=${OMPI_COMM_WORLD_RANK:-${PMIX_RANK:-${SLURM_PROCID:-0}}}
export LLAMESH_SHARE_GPU=1 NCCL_HOSTID=rank$rank CUDA_VISIBLE_DEVICES=${CUDA_VISIBLE_DEVICES:-0}
export NCCL_NET=Socket NCCL_IB_DISABLE=1 NCCL_SOCKET_IFNAME=lo NCCL_MNNVL_ENABLE=0 NCCL_RAS_ENABLE=0
export NCCL_CUMEM_HOST_ENABLE=0 NCCL_ALGO=${NCCL_ALGO:-Ring} NCCL_PROTO=${NCCL_PROTO:-Simple}
exec "$@"
