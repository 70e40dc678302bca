#!/usr/bin/env bash
# ShellCheck has nothing to say about the scripts. Run at the root.
set -euo pipefail

if ! command -v shellcheck >/dev/null; then
  echo "skipped: no shellcheck here"
  exit 77
fi
shellcheck -x nsa-validate nsa-train run-tests .ci/run setup/*.sh setup/tests/*.sh configs/slurm/*.sh
