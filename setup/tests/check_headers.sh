#!/usr/bin/env bash
# Each header compiles alone: check_headers.sh [--all] CXX [FLAG...], at the root. With --all every one; those that reach
# LibTorch take 4 s each (`ninja check_headers`: 10 minutes on two cores). Without it a sample of the others, about a second
# each, and other ones every day; the seed is told, and NSA_HEADERS_SEED repeats it. Exit code 0, or 1 with the compiler's
# words.
set -euo pipefail

all=false
if [[ ${1:-} == --all ]]; then
  all=true
  shift
fi
export compile="$* -std=c++20 -fsyntax-only -Wall -Wextra -Wshadow -Wno-unused-function -Werror -I. -Isetup/build_info -x c++ -"

declare -A heavy=()  # header -> true or false, so that each is read once
is_heavy() {
  local header=$1 include
  if [[ -n ${heavy[$header]:-} ]]; then ${heavy[$header]} && return 0 || return 1; fi
  heavy[$header]=false
  if grep -qE '^#include <(torch|ATen|c10|cuda|nvtx3|gloo)' "$header"; then
    heavy[$header]=true
    return 0
  fi
  while read -r include; do
    if [[ -f $include ]] && is_heavy "$include"; then
      heavy[$header]=true
      return 0
    fi
  done < <(sed -n 's/^#include "\(.*\)".*/\1/p' "$header")
  return 1
}

chosen=()
while read -r header; do
  if $all || ! is_heavy "$header"; then chosen+=("$header"); fi
done < <(find base fuzz harness nsa reports setup suites -name '*.hpp' -not -path '*/tests/*' -not -path '*/emulation/*' | sort)

if ! $all; then
  seed=${NSA_HEADERS_SEED:-$(date +%Y%j)}
  mapfile -t chosen < <(printf '%s\n' "${chosen[@]}" | shuf -n 20 --random-source=<(yes "$seed"))
  echo "NSA_HEADERS_SEED=$seed: ${chosen[*]}"
fi

alone() {
  # shellcheck disable=SC2086  # words
  printf '#include "%s"\n#include "%s"\n' "$1" "$1" | $compile || { echo "does not compile alone: $1"; exit 1; }
}
export -f alone
# Included twice: its guard is looked at too.
printf '%s\n' "${chosen[@]}" | xargs -P "$(nproc)" -I{} bash -c 'alone {}'
echo "${#chosen[@]} headers compile alone"
