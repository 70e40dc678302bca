# A virtual environment in the user's cache for what comes from PyPI: LibTorch, CMake, Ninja, parts of the CUDA toolkit.
# Nothing of it runs at the program's run time except shared libraries.
# shellcheck shell=bash disable=SC2154  # cache: set by bootstrap.sh

venv=$cache/python
wanted=()  # requirement sets that are not there yet: "torch==2.11.0"

# The sets that were installed completely, one a line. A set enters the file when pip is through, and `interrupted`
# stands while pip works: an environment that was left half-way is thrown away, never used.
installed_sets=$venv/.installed
interrupted=$venv/.interrupted

has_set() { [[ -x $venv/bin/python && ! -e $interrupted ]] && grep -qxF -- "$1" "$installed_sets" 2>/dev/null; }
want_set() { if ! has_set "$1"; then wanted+=("$1"); fi; }
python_is_needed() { ((${#wanted[@]} > 0)); }
site_packages() { echo "$venv"/lib/python3*/site-packages; }

make_environment() {
  rm -rf "$venv" && mkdir -p "$cache" && python3 -m venv "$venv"
}

install_python_sets() {
  if ! python_is_needed; then return 0; fi
  mkdir -p "$cache"
  exec 8>"$cache/lock"
  if ! flock --nonblock 8; then
    say "another launcher is installing into $venv: waiting for it"
    flock 8
  fi
  if [[ -e $interrupted ]] || ! "$venv/bin/python" -c '' 2>/dev/null; then
    step environment "making a Python environment in $venv" "check that the folder can be written and that python3 has venv" make_environment
  fi
  local set words
  for set in "${wanted[@]}"; do
    if has_set "$set"; then continue; fi
    read -ra words <<<"$set"
    touch "$interrupted"
    step "python-${set%%[=>\[]*}" "installing $set (PyPI)" "check the network and the space in $cache (about 6 GB in all), then start again" \
      "$venv/bin/python" -m pip install --progress-bar off --disable-pip-version-check "${words[@]}"
    echo "$set" >>"$installed_sets"
    rm "$interrupted"
  done
  exec 8>&-
}
