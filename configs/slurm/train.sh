#!/usr/bin/env bash
# Trains on all GPUs of an allocation, a task a GPU. At the root of this tree, built before:
#
#   sbatch --nodes 2 --gpus-per-node 8 --ntasks-per-node 8 configs/slurm/train.sh \
#     --config configs/train/m7c_125m_2xa100_production.yaml --steps 25000
#
# Arguments go to nsa-train. OUT names the run's folder on a disk that all nodes see; by default out/train-JOB. Give the
# same OUT to the next job and the run goes on where it stopped, on as many GPUs as that job has.
# `train.batch_size` must be a multiple of the number of tasks.
#SBATCH --job-name=nsa-train
#SBATCH --ntasks-per-node=1
#SBATCH --exclusive
#SBATCH --time=24:00:00
#SBATCH --signal=TERM@300
#SBATCH --output=%x-%j.log
set -euo pipefail

root=${SLURM_SUBMIT_DIR:-$PWD}  # sbatch runs a copy of this file, elsewhere
program=${PROGRAM:-$root/build/release/nsa/train/run/nsa-train}
out=${OUT:-$root/out/train-${SLURM_JOB_ID:?this is a script for sbatch}}
[[ -x $program ]] || { echo "error: $program is not built; run ./nsa-train --help at $root first" >&2; exit 4; }
[[ $# -gt 0 ]] || { echo "error: no configuration; give --config FILE and --steps N" >&2; exit 2; }

# Ranks meet at the first node: nsa-train takes it from SLURM_JOB_NODELIST, and a port made from job and step, unless
# MASTER_ADDR and MASTER_PORT say otherwise. Five minutes before the end of its time each task gets SIGTERM (see
# --signal), finishes its step and saves. One rank that dies takes the others with it (--kill-on-bad-exit).
exec srun --kill-on-bad-exit=1 --cpu-bind=none "$program" "$@" --out "$out" --resume
