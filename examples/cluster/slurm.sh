#!/usr/bin/env bash
#SBATCH --job-name=labelkit
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=8
#SBATCH --time=04:00:00
#SBATCH --requeue
#
# The chain on several machines that share FOLDER; a job that was preempted is queued again and goes on.
#
#     sbatch examples/cluster/slurm.sh 'shards/{000..099}.tar' big 1000 --backbone resnet50 --pretrained
#
# PROCESSES=4 says how many on each machine (1).
set -euo pipefail
first=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
export LAUNCH="srun torchrun --nnodes $SLURM_NNODES --nproc-per-node ${PROCESSES:-1} --rdzv-id $SLURM_JOB_ID \
--rdzv-backend c10d --rdzv-endpoint $first:${PORT:-29500}"
# slurm runs a copy of this file from elsewhere
exec "$SLURM_SUBMIT_DIR/examples/cluster/chain.sh" "$@"
