#!/usr/bin/env bash
# bootstrap.sh TARGET: brings build/release up to date for TARGET ("nsa-validate", "nsa-train", or "all" with the tests),
# installing what is missing. Everything is said on stderr. Exit code 0, or 4 with the failed step, the reason and what to do.
set -euo pipefail
exec 1>&2

root=$(dirname "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")")
build=$root/build/release
state=$build/.setup                        # this script's own notes; deleting it costs one configure
cache=${XDG_CACHE_HOME:-$HOME/.cache}/nsa-validate  # shared by checkouts
target=$1
prefixes=${CMAKE_PREFIX_PATH:-}

# shellcheck source=setup/steps.sh
source "$root/setup/steps.sh"
# shellcheck source=setup/system.sh
source "$root/setup/system.sh"
# shellcheck source=setup/python.sh
source "$root/setup/python.sh"
# shellcheck source=setup/toolchain.sh
source "$root/setup/toolchain.sh"

trap 'case $? in 0 | 4) ;; *) fail "stopped before the end" "start again: what was complete is kept" ;; esac' EXIT

# One line for everything that decides what the build makes: content, not time, because a checkout may be switched,
# copied or unpacked with any time stamps.
inputs() {
  printf 'variable %s\n' "$root" "${CMAKE_PREFIX_PATH:-}" "${CC:-}" "${CXX:-}" "${CXXFLAGS:-}" "${CUDACXX:-}" \
    "${TORCH_CUDA_ARCH_LIST:-}"
  cd "$root"
  find CMakeLists.txt CMakePresets.json setup base fuzz harness nsa python reports suites -type f -not -name "*.pyc" -print0 | LC_ALL=C sort -z |
    xargs -0 sha256sum
}

# The programs that a target makes, below the build folder.
declare -A programs=([nsa-validate]=suites/nsa-validate [nsa-train]=nsa/train/run/nsa-train)
programs[all]="${programs[nsa-validate]} ${programs[nsa-train]}"

programs_are_built() {
  local program
  for program in ${programs[$target]}; do
    if [[ ! -x $build/$program ]]; then return 1; fi
  done
}

up_to_date() (  # a subshell: what stands in the file is not for the rest of this script
  programs_are_built && [[ -s $state/$target.inputs && -s $state/toolchain ]] || exit 1
  # shellcheck source=/dev/null
  source "$state/toolchain"
  [[ -d $torch && -x $cmake && -x $ninja && $(<"$state/$target.inputs") == "$now" ]]
)

# Ninja goes by time stamps: a file whose content changed since the last build but whose time is older gets a new time.
touch_changed() {
  [[ -s $state/any.inputs ]] || return 0
  comm -13 <(LC_ALL=C sort "$state/any.inputs") <(LC_ALL=C sort <<<"$now") | while read -r _ file; do
    if [[ -f $root/$file && ! $root/$file -nt $state/any.inputs ]]; then touch "$root/$file"; fi
  done
}

configure() {
  "$cmake" --preset release --fresh -S "$root" -DCMAKE_MAKE_PROGRAM="$ninja" -DCMAKE_PREFIX_PATH="$prefix_path" \
    -DCUDAToolkit_ROOT="$cuda" -DCUDA_TOOLKIT_ROOT_DIR="$cuda" -DNSA_VALIDATE_PYTHON=ON
}

bring_up_to_date() {
  find_or_install_toolchain
  touch_changed
  if [[ ! -s $build/build.ninja || $(describe_toolchain) != "$(cat "$state/toolchain" 2>/dev/null)" ]]; then
    rm -f "$state/toolchain"
    step configure "configuring (CMake)" \
      "see the message above; a library that CMake does not find can be named in CMAKE_PREFIX_PATH" configure
    describe_toolchain >"$state/toolchain"
  fi
  printf '%s\n' "$now" >"$state/any.inputs"
  local began=$SECONDS
  say "building $target"
  "$cmake" --build "$build" --target "$target" --parallel "$(parallel_jobs)" ||
    fail "the build of $target" "the compiler's message stands above; if it speaks of killed processes, memory was short"
  say "building $target: done in $((SECONDS - began)) s"
  printf '%s\n' "$now" >"$state/$target.inputs"
  if [[ $target == all ]]; then
    for program in nsa-validate nsa-train; do cp "$state/all.inputs" "$state/$program.inputs"; done
  fi
}

now=$(inputs)
if up_to_date; then exit 0; fi

mkdir -p "$state"
exec 9>"$state/lock"
if ! flock --nonblock 9; then
  say "another launcher is building in this checkout: waiting for it"
  flock 9
  now=$(inputs)
  if up_to_date; then exit 0; fi
fi
bring_up_to_date
say "ready after $SECONDS s"
