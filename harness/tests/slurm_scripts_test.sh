#!/usr/bin/env bash
# slurm_scripts_test.sh PROGRAM: the scripts of configs/slurm/ under an srun of our own, which starts the tasks on this
# machine with the variables that Slurm gives. PROGRAM is the fake program of the harness's tests.
set -euo pipefail

program=$(readlink -f "$1")
root=$(dirname "$(dirname "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")")")
work=$(mktemp -d)
export CUDA_VISIBLE_DEVICES=0,1,2,3  # a machine of one GPU refuses a second task
trap 'rm -rf "$work"' EXIT
failures=0

# NODES and TASKS a node; ABSENT: a node on which no task starts. Ends with the largest code of a task.
mkdir "$work/bin"
cat >"$work/bin/srun" <<'SRUN'
#!/usr/bin/env bash
while [[ $1 == --* ]]; do shift; done
pids=() code=0
for ((rank = 0; rank < NODES * TASKS; ++rank)); do
  node=$((rank / TASKS))
  [[ node$node == "${ABSENT:-}" ]] && { code=1; continue; }
  SLURM_PROCID=$rank SLURM_LOCALID=$((rank % TASKS)) SLURM_NODEID=$node SLURMD_NODENAME=node$node SLURM_STEP_ID=0 \
    SLURM_STEP_NUM_TASKS=$((NODES * TASKS)) SLURM_STEP_TASKS_PER_NODE="$TASKS(x$NODES)" "$@" >"$WORK/task$rank.log" 2>&1 &
  pids+=($!)
done
for pid in "${pids[@]}"; do
  wait "$pid" || { ended=$?; ((ended > code)) && code=$ended; }
done
exit "$code"
SRUN
cat >"$work/bin/scontrol" <<'SCONTROL'
#!/usr/bin/env bash
for ((node = 0; node < NODES; ++node)); do echo "node$node"; done
SCONTROL
chmod +x "$work/bin/"*

# script NODES TASKS ARGUMENT...: as sbatch would run it. `output` holds what it said, `code` how it ended.
run() {
  local script=$1 nodes=$2 tasks=$3
  shift 3
  rm -rf "$work/out"
  code=0
  output=$(cd "$work" && env PATH="$work/bin:$PATH" WORK="$work" NODES="$nodes" TASKS="$tasks" PROGRAM="${PROGRAM-$program}" OUT="$work/out" \
    SLURM_JOB_ID=7 SLURM_JOB_NUM_NODES="$nodes" SLURM_NTASKS=$((nodes * tasks)) SLURM_JOB_NODELIST="node[0-$((nodes - 1))]" \
    SLURM_SUBMIT_DIR="$root" SLURM_PROCID=0 ABSENT="${ABSENT:-}" "$root/configs/slurm/$script" "$@" 2>&1) || code=$?
}
expect_code() { if [[ $code != "$1" ]]; then complain "exit code $code instead of $1"; fi; }
expect_says() { if [[ $output != *"$1"* ]]; then complain "does not say: $1"; fi; }
expect_file() { if [[ ! -f $work/out/$1 ]]; then complain "there is no $1"; fi; }
complain() {
  printf 'FAILED: %s: %s\n--- it said:\n%s\n---\n' "${FUNCNAME[2]}" "$1" "$output"
  failures=$((failures + 1))
}

test_a_ready_fleet() {
  run validate_fleet.sh 3 1 --suite good
  expect_code 0
  expect_says "merge: 3 hosts: 3 READY; READY, exit code 0"
  expect_file node2/report.json
  expect_file fleet.html
}

test_a_node_that_does_not_start_is_named() {
  ABSENT=node1 run validate_fleet.sh 3 1 --suite good
  expect_code 8
  expect_says "missing: node1"
}

test_several_tasks_a_node() {
  run validate_fleet.sh 2 2 --suite good
  expect_code 0
  expect_file node1.3/report.json
}

test_a_missing_task_of_several_is_named() {
  ABSENT=node1 run validate_fleet.sh 2 2 --suite good
  expect_code 8
  expect_says "rank 3 of 4"
}

test_a_failure_is_the_jobs_exit_code() {
  run validate_fleet.sh 2 1 --suite good,gate --gate block
  expect_code 1
  expect_says "NOT READY, exit code 1"
}

test_nothing_started_is_no_success() {
  ABSENT=node0 run validate_fleet.sh 1 1 --suite good
  expect_code 2
}

test_what_is_not_built_is_told() {
  for script in validate_fleet.sh train.sh; do
    PROGRAM=$work/nothing run "$script" 1 1
    expect_code 4
    expect_says "is not built"
  done
}

test_training_gets_its_arguments_and_gives_its_code() {
  # shellcheck disable=SC2016
  printf '#!/usr/bin/env bash\necho "$@"; exit $((SLURM_PROCID == 1 ? 6 : 0))\n' >"$work/trainer"
  chmod +x "$work/trainer"
  PROGRAM=$work/trainer run train.sh 1 2 --config c.yaml --steps 10
  expect_code 6
  output=$(cat "$work/task0.log")
  expect_says "--config c.yaml --steps 10 --out $work/out --resume"
  PROGRAM=$work/trainer run train.sh 1 2
  expect_code 2
  expect_says "no configuration"
}

for name in $(compgen -A function | grep '^test_'); do "$name"; done
if ((failures > 0)); then exit 1; fi
echo "all passed"
