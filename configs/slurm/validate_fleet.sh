#!/usr/bin/env bash
# Validates all nodes of an allocation at once, then merges what they found. At the root of this tree, built before:
#
#   sbatch --nodes 16 configs/slurm/validate_fleet.sh                        # a node a folder, its first GPU
#   sbatch --nodes 16 --gpus-per-node 8 --ntasks-per-node 8 configs/slurm/validate_fleet.sh --level standard
#                                                                            # each GPU by itself: NODE.RANK a folder
# Each task then has one GPU, by its number on the node. Without Slurm: docs/fleets.md, GPUs.
# Arguments go to nsa-validate (without any: --suite smoke). OUT names the folder on a disk that all nodes see; by default
# out/fleet-JOB. The exit code is that of the merge: 0 only when every node is READY.
#SBATCH --job-name=nsa-validate
#SBATCH --ntasks-per-node=1
#SBATCH --exclusive
#SBATCH --time=00:30:00
#SBATCH --output=%x-%j.log
set -euo pipefail

root=${SLURM_SUBMIT_DIR:-$PWD}  # sbatch runs a copy of this file, elsewhere
program=${PROGRAM:-$root/build/release/suites/nsa-validate}
out=${OUT:-$root/out/fleet-${SLURM_JOB_ID:?this is a script for sbatch}}
[[ -x $program ]] || { echo "error: $program is not built; run ./nsa-validate --version at $root first" >&2; exit 4; }
[[ $# -gt 0 ]] || set -- --suite smoke

# Nodes and tasks that must be there: a node that does not even start is missing in the merge, by its name.
expect=${SLURM_NTASKS:-${SLURM_JOB_NUM_NODES:?}}
if [[ ${SLURM_NTASKS:-} == "${SLURM_JOB_NUM_NODES:-}" ]] && command -v scontrol >/dev/null; then
  expect=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | paste -sd,)
fi

# A task that finds something ends with its code; the others go on, and the merge decides.
srun --kill-on-bad-exit=0 --cpu-bind=none "$program" "$@" --out "$out" --quiet ||
  echo "note: srun ended with $?: the first of the tasks that were not READY, or did not run" >&2

code=0
"$program" merge "$out" --expect "$expect" --out "$out" || code=$?
echo "report: $out/fleet.html"
exit "$code"
