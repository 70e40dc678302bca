# What the build needs from the system, each with a probe that works wherever it came from (package, source, prefix).
# shellcheck shell=bash disable=SC2154  # prefixes: set by bootstrap.sh

has_header() {
  local prefix
  for prefix in ${prefixes//:/ } /usr/local /usr; do
    if [[ -e $prefix/include/$1 ]]; then return 0; fi
  done
  return 1
}

can_install() { command -v apt-get >/dev/null && { (($(id -u) == 0)) || sudo -n true 2>/dev/null; }; }

missing_packages() {
  command -v "${CXX:-c++}" >/dev/null || echo g++
  if python_is_needed && ! python3 -c 'import ensurepip, venv' 2>/dev/null; then echo python3-venv; fi
  has_header fmt/format.h || echo libfmt-dev
  has_header nlohmann/json.hpp || echo nlohmann-json3-dev
  has_header CLI/CLI.hpp || echo libcli11-dev
  has_header yaml-cpp/yaml.h || echo libyaml-cpp-dev
  has_header gtest/gtest.h || echo libgtest-dev
  has_header gmock/gmock.h || echo libgmock-dev
  # Not needed: without it no processes train together on CPUs. So it is no reason to refuse a machine.
  has_header gloo/context.h || ! can_install || echo libgloo-dev
  has_header benchmark/benchmark.h || echo libbenchmark-dev
}

apt_install() {  # AS_ROOT... -- PACKAGES...
  local as_root=()
  while [[ $1 != -- ]]; do as_root+=("$1"); shift; done
  shift
  "${as_root[@]}" apt-get update -q &&
    "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends "$@"
}

install_system_packages() {
  local packages as_root=(env)
  mapfile -t packages < <(missing_packages)
  if ((${#packages[@]} == 0)); then return 0; fi

  command -v apt-get >/dev/null ||
    fail "missing on this system (by their Debian names): ${packages[*]}" "install them with the system's package manager, or name their prefix in CMAKE_PREFIX_PATH"
  if (($(id -u) != 0)); then
    as_root=(sudo -n)
    sudo -n true 2>/dev/null ||
      fail "missing packages, and no right to install them: ${packages[*]}" "run: sudo apt-get install ${packages[*]}"
  fi
  step system-packages "installing ${packages[*]} (apt)" "check the network and /etc/apt/sources.list, or install by hand: apt-get install ${packages[*]}" \
    apt_install "${as_root[@]}" -- "${packages[@]}"
}
