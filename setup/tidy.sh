#!/usr/bin/env bash
# tidy.sh [REVISION]: clang-tidy on the lines of sources that differ from REVISION (HEAD unless said otherwise), with the flags
# of the release build and the checks of .clang-tidy. Exit code 0, or 1 with what was found. No test: 25 s of a processor for a
# file that sees LibTorch. 77: there is no clang-tidy that can.
set -euo pipefail
root=$(dirname "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")")
cd "$root"
revision=${1:-HEAD}
toolchain=build/release/.setup/toolchain
commands=build/tidy/compile_commands.json

# Older ones refuse lambdas that capture structured bindings.
readonly oldest=16
tidy=''
for candidate in clang-tidy clang-tidy-{20..16}; do
  version=$("$candidate" --version 2>/dev/null | sed -nE 's/.*version ([0-9]+)\..*/\1/p' | head -n 1 || true)
  if ((${version:-0} >= oldest)); then
    tidy=$(command -v "$candidate")
    break
  fi
done
if [[ -z $tidy ]]; then
  echo "tidy: no clang-tidy of version $oldest or newer here (Debian 12: clang-tidy-16)"
  exit 77
fi
if [[ ! -s $toolchain ]]; then
  echo "tidy: no $toolchain: build first (setup/bootstrap.sh nsa-validate)"
  exit 4
fi

# The release build compiles several files as one; here each has its own flags.
(
  # shellcheck source=/dev/null
  source "$toolchain"
  "${cmake:?}" --preset release -B build/tidy -DNSA_VALIDATE_UNITY=OFF -DCMAKE_MAKE_PROGRAM="${ninja:?}" \
    -DCMAKE_PREFIX_PATH="${prefix_path:?}" -DCUDAToolkit_ROOT="${cuda:?}" -DCUDA_TOOLKIT_ROOT_DIR="$cuda"
) >/dev/null

# CUDA sources are nvcc's, and headers are looked at with the sources that include them.
mapfile -t changed < <({ git diff --name-only --diff-filter=d "$revision" -- && git ls-files --others --exclude-standard; } |
  grep '\.cpp$' | sort -u || true)
sources=()
for source in "${changed[@]}"; do
  if grep -qF "\"$root/$source\"" "$commands"; then sources+=("$source"); else echo "tidy: not in the build: $source"; fi
done
if ((${#sources[@]} == 0)); then
  echo "tidy: no source differs from $revision"
  exit 0
fi

# clang reads neither the precompiled header of GCC nor its own warnings' names; compiler warnings are the build's business.
flags=$(mktemp -d)
trap 'rm -rf "$flags"' EXIT
sed -E 's/-Winvalid-pch//g; s/-include [^ ]*cmake_pch\.hxx//g; s/-Werror//g; s/ -Wno-[a-z-]+//g' "$commands" >"$flags/compile_commands.json"

# Lines, [[first, last], ...], that are new in a file; all of a file that git does not know; "" where lines were only taken away.
lines_of() {
  if ! git cat-file -e "$revision:$1" 2>/dev/null; then echo '[[1,1000000]]'; else
    git diff -U0 "$revision" -- "$1" | sed -nE 's/^@@ [^+]*\+([0-9]+)(,([0-9]+))? @@.*/\1 \3/p' |
      awk '{ n = $2 == "" ? 1 : $2; if (n) printf "%s[%d,%d]", (k++ ? "," : "["), $1, $1 + n - 1 } END { if (k) print "]" }'
  fi
}
mapfile -t headers < <({ git diff --name-only --diff-filter=d "$revision" -- && git ls-files --others --exclude-standard; } |
  grep '\.hpp$' | sort -u || true)
filter='' looked_at=()
for file in "${sources[@]}" "${headers[@]}"; do
  lines=$(lines_of "$file")
  [[ -n $lines ]] || continue
  filter+="${filter:+,}{\"name\":\"$file\",\"lines\":$lines}"
  [[ $file == *.hpp ]] || looked_at+=("$file")
done
if ((${#looked_at[@]} == 0)); then
  echo "tidy: no source has lines that $revision has not"
  exit 0
fi

printf '%s\n' "${looked_at[@]}" |
  xargs -P "$(nproc)" -n 1 "$tidy" -p "$flags" --quiet --warnings-as-errors='*' --extra-arg=-Wno-everything \
    --line-filter="[$filter]"
echo "tidy: ${#looked_at[@]} sources, nothing found"
