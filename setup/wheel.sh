#!/usr/bin/env bash
# wheel.sh [FOLDER]: builds the wheel `nsa` (python/README.md) into FOLDER (build/wheels unless said), installing what the build
# needs. It goes into any Python from 3.10 on that has torch 2.11. Everything but the wheel's path is said on stderr. Exit code
# 0, or 4 with the failed step, the reason and what to do.
set -euo pipefail

root=$(dirname "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")")
build=$root/build/wheel
state=$build/.setup
# shellcheck disable=SC2034  # cache, prefixes: for the parts
cache=${XDG_CACHE_HOME:-$HOME/.cache}/nsa-validate
folder=$(realpath -m "${1:-$root/build/wheels}")
# shellcheck disable=SC2034
prefixes=${CMAKE_PREFIX_PATH:-}
exec 3>&1 1>&2

for part in steps system python toolchain; do
  # shellcheck source=/dev/null
  source "$root/setup/$part.sh"
done

# pip's build knows what it is told and nothing of the launcher's environment.
make_wheel() {
  rm -rf "$state/made"
  CMAKE_PREFIX_PATH="${prefix_path:?}" CMAKE_ARGS="-DCUDAToolkit_ROOT=${cuda:?} -DCUDA_TOOLKIT_ROOT_DIR=$cuda -DTorch_ROOT=${torch:?}" \
    CMAKE_BUILD_PARALLEL_LEVEL=$(parallel_jobs) PATH=$(dirname "${cmake:?}"):$(dirname "${ninja:?}"):$PATH \
    "${venv:?}/bin/python" -m pip wheel --no-build-isolation --no-deps --disable-pip-version-check -w "$state/made" "$root"
}

mkdir -p "$state" "$folder"
exec 9>"$state/lock"
flock 9
want_set 'scikit-build-core>=0.10'
find_or_install_toolchain
step wheel "building the wheel" "the compiler's message stands above; if it speaks of killed processes, memory was short" make_wheel
made=$(basename "$state"/made/nsa-*.whl)
mv "$state/made/$made" "$folder/"
say "ready after $SECONDS s"
echo "$folder/$made" >&3
