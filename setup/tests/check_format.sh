#!/usr/bin/env bash
# Every source file is formatted as .clang-format says, and no comment goes beyond column 120: clang-format does not wrap
# them. Run at the root; `--fix` formats.
set -euo pipefail

# Versions format differently; one decides for all.
formatter=$(command -v clang-format-14 || command -v clang-format || true)
if [[ -z $formatter || $("$formatter" --version) != *"version 14."* ]]; then
  echo "skipped: no clang-format 14 here"
  exit 77
fi

mapfile -t sources < <(find base example fuzz harness nsa python reports setup suites -regex '.*\.\(cpp\|hpp\|cu\|cuh\|def\)')
if [[ ${1:-} == --fix ]]; then exec "$formatter" -i "${sources[@]}"; fi

if LC_ALL=C.UTF-8 grep -HnE '^.{121}' "${sources[@]}" | grep -E '^[^"]*//'; then
  echo "comments beyond column 120: wrap them by hand"
  exit 1
fi

# One process for all: a start of it costs more than most files.
if ! "$formatter" --dry-run --Werror "${sources[@]}" 2>&1 | sed -nE 's/^([^ :]+):[0-9]+:[0-9]+: error: .*/not formatted: \1/p' | sort -u | (! grep .); then
  echo "setup/tests/check_format.sh --fix formats them"
  exit 1
fi
