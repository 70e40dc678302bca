#!/usr/bin/env bash
# stress_two_runs.sh PROGRAM [PAIRS] [SEED]: two runs of the fake program in one folder, the second at a random moment of
# the first. The first has a block finding: it ends with 1, its own verdict, or 2, refused. The second is good: 0 or 2.
# Whatever is left in the folder is of one run. Exit code 1 when one pair was otherwise.
set -uo pipefail
program=$(realpath "$1") pairs=${2:-100} RANDOM=${3:-7}
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder" || exit 1
declare -A ends
wrong=0

ids() { grep -ho '"id": *"[0-9]\{8\}T[0-9]\{6\}Z-[0-9a-f]\{4\}"' run/events.jsonl run/report.json run/suites/*.json | grep -o '[0-9]*T.*' | sort -u | wc -l; }

for ((pair = 1; pair <= pairs; ++pair)); do
  rm -rf run
  "$program" --suite gate,middle,after_gate,good --gate block --out run --force >first.out 2>first.err &
  first=$!
  sleep "0.0$((RANDOM % 100))$((RANDOM % 10))"
  "$program" --suite good --out run --force >second.out 2>second.err &
  second=$!
  wait "$first"; first=$?
  wait "$second"; second=$?
  key="first $first, second $second"
  ends[$key]=$((${ends[$key]:-0} + 1))
  why=
  [[ $first == [12] ]] || why="the first ends with $first"
  [[ $second == [02] ]] || why="the second ends with $second"
  grep -q 'verdict: READY' first.out && why="the first, with a block finding, says READY"
  grep -q 'verdict: NOT READY' second.out && why="the second, a good one, says NOT READY"
  [[ -n $why || $(ids) == 1 ]] || why="the folder mixes runs"
  [[ -z $why ]] || { wrong=$((wrong + 1)); echo "pair $pair: $why"; }
done
echo "$pairs pairs, $wrong wrong"
for key in "${!ends[@]}"; do echo "  $key: ${ends[$key]}"; done | sort
((wrong == 0))
