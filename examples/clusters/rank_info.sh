#!/bin/bash
# Says which rank this is, where it runs and on what, and becomes the program; under any launcher:
#
#     ruedarun -np 4 examples/clusters/rank_info.sh ./train --epochs 10
#
# Gives the rank a GPU of its own where the batch system has given all of a host's to each of its
# ranks. Rank 0's library tells which backend it has chosen, and why (RUEDA_LOG_LEVEL=info).
set -euo pipefail

# As the library finds its place: the innermost launcher first.
if [[ -n ${RUEDA_RANK:-} ]]; then
  rank=$RUEDA_RANK size=$RUEDA_SIZE local_rank=$RUEDA_LOCAL_RANK
elif [[ -n ${TORCHELASTIC_RUN_ID:-} ]]; then
  # shellcheck disable=SC2153 # not misspelled: torchrun's
  rank=$RANK size=$WORLD_SIZE local_rank=$LOCAL_RANK
elif [[ -n ${OMPI_COMM_WORLD_RANK:-} ]]; then
  rank=$OMPI_COMM_WORLD_RANK size=$OMPI_COMM_WORLD_SIZE local_rank=$OMPI_COMM_WORLD_LOCAL_RANK
elif [[ -n ${MPI_LOCALNRANKS:-} ]]; then
  rank=$PMI_RANK size=$PMI_SIZE local_rank=$MPI_LOCALRANKID
elif [[ -n ${SLURM_STEP_ID:-} ]]; then
  rank=$SLURM_PROCID size=$SLURM_STEP_NUM_TASKS local_rank=$SLURM_LOCALID
elif [[ -n ${JSM_NAMESPACE_RANK:-} ]]; then
  rank=$JSM_NAMESPACE_RANK size=$JSM_NAMESPACE_SIZE local_rank=$JSM_NAMESPACE_LOCAL_RANK
else
  rank=${RANK:-0} size=${WORLD_SIZE:-1} local_rank=${LOCAL_RANK:-0}
fi

# A list of several is the host's: this rank takes its own. One device is what the batch system has
# given to this rank, and stays.
devices=${CUDA_VISIBLE_DEVICES-$local_rank}
if [[ $devices == *,* ]]; then
  IFS=, read -ra list <<<"$devices"
  devices=${list[local_rank % ${#list[@]}]}
fi
export CUDA_VISIBLE_DEVICES=$devices

if [[ $rank == 0 ]]; then export RUEDA_LOG_LEVEL=${RUEDA_LOG_LEVEL:-info}; fi
echo "rank $rank of $size, local rank $local_rank, host $(hostname -s)," \
  "CUDA_VISIBLE_DEVICES=$devices, RUEDA_BACKEND=${RUEDA_BACKEND:-auto}, OMP_NUM_THREADS=${OMP_NUM_THREADS:-not set}"
exec "$@"
