#!/usr/bin/env bash
# tidy.sh [REVISION]: clang-tidy on the lines of sources and headers that differ from REVISION (HEAD unless said otherwise), with
# the flags of the release build and the checks of .clang-tidy. It says what it leaves out. Exit code 0, or 1 with what was found.
# No test: 25 s of a processor for a file that sees LibTorch. 77: there is no clang-tidy that can.
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

# The release build compiles several files as one; here each has its own flags. With python/, as ./run-tests builds.
(
  # shellcheck source=/dev/null
  source "$toolchain"
  "${cmake:?}" --preset release -B build/tidy -DNSA_VALIDATE_UNITY=OFF -DNSA_VALIDATE_PYTHON=ON -DCMAKE_MAKE_PROGRAM="${ninja:?}" \
    -DCMAKE_PREFIX_PATH="${prefix_path:?}" -DCUDAToolkit_ROOT="${cuda:?}" -DCUDA_TOOLKIT_ROOT_DIR="$cuda"
) >/dev/null

# Lines, [[first, last], ...], that are new in a file; all of a file that git does not know; "" where lines were only taken away.
lines_of() {
  if ! git cat-file -e "$revision:$1" 2>/dev/null; then echo '[[1,1000000]]'; else
    git diff -U0 "$revision" -- "$1" | sed -nE 's/^@@ [^+]*\+([0-9]+)(,([0-9]+))? @@.*/\1 \3/p' |
      awk '{ n = $2 == "" ? 1 : $2; if (n) printf "%s[%d,%d]", (k++ ? "," : "["), $1, $1 + n - 1 } END { if (k) print "]" }'
  fi
}
in_the_build() { grep -qF "\"$root/$1\"" "$commands"; }
includes() { grep -qsF "#include \"$1\"" /dev/null "${@:2}"; }

mapfile -t changed < <({ git diff --name-only --diff-filter=d "$revision" -- && git ls-files --others --exclude-standard; } |
  grep -E '\.([ch]pp|cuh?)$' | sort -u || true)
filter='' sources=() headers=()
for file in "${changed[@]}"; do
  if [[ $file == *.cu || $file == *.cuh ]]; then
    echo "tidy: left out, nvcc's: $file" # clang does not know this CUDA
    continue
  fi
  if [[ $file == *.cpp ]] && ! in_the_build "$file"; then
    echo "tidy: left out, not in the build: $file"
    continue
  fi
  lines=$(lines_of "$file")
  [[ -n $lines ]] || continue
  filter+="${filter:+,}{\"name\":\"$file\",\"lines\":$lines}"
  if [[ $file == *.cpp ]]; then sources+=("$file"); else headers+=("$file"); fi
done
# A header is looked at with a source that includes it: one that differs too, else its own, else the first.
for header in "${headers[@]}"; do
  if includes "$header" "${sources[@]}"; then continue; fi
  mapfile -t including < <(git grep -lF "#include \"$header\"" -- '*.cpp' || true)
  with=''
  for source in "${header%.hpp}.cpp" "${including[@]}"; do
    if includes "$header" "$source" && in_the_build "$source"; then
      with=$source
      break
    fi
  done
  if [[ -n $with ]]; then sources+=("$with"); else echo "tidy: left out, no source includes it itself: $header"; fi
done
if ((${#sources[@]} == 0)); then
  echo "tidy: no source has lines that $revision has not"
  exit 0
fi

# clang reads neither the precompiled header of GCC nor its own warnings' names; compiler warnings are the build's business.
flags=$(mktemp -d)
trap 'rm -rf "$flags"' EXIT
sed -E 's/-Winvalid-pch//g; s/-include [^ ]*cmake_pch\.hxx//g; s/-Werror//g; s/ -Wno-[a-z-]+//g' "$commands" >"$flags/compile_commands.json"

printf '%s\n' "${sources[@]}" |
  xargs -P "$(nproc)" -n 1 "$tidy" -p "$flags" --quiet --warnings-as-errors='*' --extra-arg=-Wno-everything \
    --line-filter="[$filter]"
echo "tidy: ${#sources[@]} sources, nothing found"
