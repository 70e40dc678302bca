#!/usr/bin/env bash
# Each header compiles alone: check_headers.sh [--all] CXX [FLAG...], at the root. With --all every one; those that reach
# LibTorch take 4 s each (`ninja check_headers`: 16 minutes on two cores). Without it a sample of the others, one to two seconds
# each, and other ones every day; the seed is told, and NSA_HEADERS_SEED repeats it. A .cuh is nvcc's: $CUDACXX, else that of
# PATH; where there is none they are left out, and counted. Exit code 0, or 1 with the compiler's words.
set -euo pipefail

all=false
if [[ ${1:-} == --all ]]; then
  all=true
  shift
fi
export compile="$* -std=c++20 -fsyntax-only -Wall -Wextra -Wshadow -Wno-unused-function -Werror -I. -Isetup/build_info -x c++ -"
nvcc=$(command -v "${CUDACXX:-nvcc}" || true)
# Hopper's code is seen; a template that nobody instantiates costs nothing, so there is no machine code to make.
export compile_cuda="$nvcc -std=c++20 -arch=sm_90a -ptx -o /dev/null -I. -x cu -"

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

chosen=() chosen_cuda=()
while read -r header; do
  if [[ $header == *.cuh ]]; then
    chosen_cuda+=("$header")
  elif $all || ! is_heavy "$header"; then
    chosen+=("$header")
  fi
done < <(find adapters base example fuzz harness nsa python reports setup suites \( -name '*.hpp' -o -name '*.cuh' \) \
  -not -path '*/tests/*' -not -path '*/emulation/*' | sort)

left_out=''
if [[ -z $nvcc ]]; then
  left_out=", ${#chosen_cuda[@]} .cuh are left out: no nvcc here"
  chosen_cuda=()
fi
if ! $all; then
  seed=${NSA_HEADERS_SEED:-$(date +%Y%j)}
  sample() { shuf -n "$1" --random-source=<(yes "$seed"); }
  mapfile -t chosen < <(printf '%s\n' "${chosen[@]}" | sample 20)
  [[ -z $nvcc ]] || mapfile -t chosen_cuda < <(printf '%s\n' "${chosen_cuda[@]}" | sample 3)
  echo "NSA_HEADERS_SEED=$seed: ${chosen[*]} ${chosen_cuda[*]}"
fi
chosen+=("${chosen_cuda[@]}")

alone() {
  local how=$compile
  if [[ $1 == *.cuh ]]; then how=$compile_cuda; fi
  # shellcheck disable=SC2086  # words
  printf '#include "%s"\n#include "%s"\n' "$1" "$1" | $how || { echo "does not compile alone: $1"; exit 1; }
}
export -f alone
# Included twice: its guard is looked at too.
printf '%s\n' "${chosen[@]}" | xargs -P "$(nproc)" -I{} bash -c 'alone {}' || exit 1
echo "${#chosen[@]} headers compile alone$left_out"
