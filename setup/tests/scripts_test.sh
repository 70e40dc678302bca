#!/usr/bin/env bash
# The set-up scripts against a machine of our own making: nothing is installed, no network is touched.
# shellcheck disable=SC2016,SC2034,SC2154,SC2317  # variables and functions that the sourced scripts use
set -euo pipefail

here=$(dirname "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failures=0

# Each test runs in a subshell with fresh state; `output` holds what it said, `code` how it ended.
run() {
  rm -rf "${work:?}"/*
  code=0
  output=$(
    set -euo pipefail
    state=$work/state cache=$work/cache build=$work/build prefixes=''
    mkdir -p "$state"
    for part in steps system python toolchain; do
      # shellcheck source=/dev/null
      source "$here/$part.sh"
    done
    "$@" 2>&1
  ) || code=$?
}
expect_code() { if [[ $code != "$1" ]]; then complain "exit code $code instead of $1"; fi; }
expect_says() { if [[ $output != *"$1"* ]]; then complain "does not say: $1"; fi; }
expect_silent_about() { if [[ $output == *"$1"* ]]; then complain "should not say: $1"; fi; }
complain() {
  printf 'FAILED: %s: %s\n--- it said:\n%s\n---\n' "${FUNCNAME[2]}" "$1" "$output"
  failures=$((failures + 1))
}

test_failed_step_names_itself_its_reason_and_the_advice() {
  noisy() { for i in $(seq 100); do echo "line $i"; done; echo "disk is full"; return 3; }
  run step download "fetching things" "make room" noisy
  expect_code 4
  expect_says "FAILED: fetching things (step 'download'; whole output: $work/state/download.log)"
  expect_says "disk is full"
  expect_says "what to do: make room"
  expect_silent_about "line 50"
}

test_step_shows_progress_only() {
  installer() { echo "Collecting x"; echo "  Downloading x.whl (5 MB)"; echo "Reading database"; }
  run step install "installing x" "" installer
  expect_code 0
  expect_says "Downloading x.whl (5 MB)"
  expect_silent_about "Reading database"
}

test_nothing_is_installed_when_nothing_is_missing() {
  no_need() { missing_packages() { :; }; apt-get() { echo "apt-get was called"; }; install_system_packages; }
  run no_need
  expect_code 0
  expect_silent_about "apt-get"
}

test_missing_packages_without_rights_give_the_command() {
  no_rights() {
    missing_packages() { printf '%s\n' libfmt-dev g++; }
    id() { echo 1000; }
    sudo() { return 1; }
    apt-get() { :; }
    install_system_packages
  }
  run no_rights
  expect_code 4
  expect_says "run: sudo apt-get install libfmt-dev g++"
}

test_failing_apt_is_reported_with_its_last_words() {
  broken_apt() {
    missing_packages() { echo libfmt-dev; }
    apt_install() { echo "E: Unable to fetch some archives"; return 100; }
    id() { echo 0; }
    apt-get() { :; }
    install_system_packages
  }
  run broken_apt
  expect_code 4
  expect_says "E: Unable to fetch some archives"
  expect_says "apt-get install libfmt-dev"
}

# An environment that looks alive, with a pip that notes what it was asked for.
fake_environment() {
  mkdir -p "$venv/bin"
  printf '#!/bin/sh\nif [ "$2" = pip ]; then echo "pip $*" >>"%s/pip.log"; exit "${PIP_FAILS:-0}"; fi\n' "$work" >"$venv/bin/python"
  chmod +x "$venv/bin/python"
}

test_complete_environment_is_used_as_it_is() {
  complete() {
    fake_environment
    echo "$torch_set" >"$installed_sets"
    want_set "$torch_set"
    install_python_sets
    [[ ! -e $work/pip.log ]]
  }
  run complete
  expect_code 0
}

test_failed_installation_is_never_taken_for_a_good_one() {
  interrupted_once() {
    make_environment() { rm -rf "$venv"; fake_environment; echo "a fresh environment"; }
    want_set "$torch_set"
    (PIP_FAILS=1 install_python_sets) || echo "first: $?"
    if has_set "$torch_set"; then echo "taken for good"; fi
    wanted=()
    want_set "$torch_set"
    touch "$venv/half-written"
    install_python_sets
    [[ ! -e $venv/half-written ]] && has_set "$torch_set" && echo "second: good"
  }
  run interrupted_once
  expect_code 0
  expect_says "first: 4"
  expect_says "second: good"
  expect_silent_about "taken for good"
}

test_old_cmake_is_not_taken() {
  old() { cmake() { echo "cmake version 3.25.1"; }; find_cmake; echo "cmake='$cmake'"; }
  run old
  expect_says "cmake=''"
}

test_toolkit_of_another_major_version_is_not_taken() {
  other() {
    mkdir -p "$work/cuda-12/bin" "$work/cuda-13/bin"
    printf '#!/bin/sh\necho "Cuda compilation tools, release 12.8, V12.8.93"\n' >"$work/cuda-12/bin/nvcc"
    printf '#!/bin/sh\necho "Cuda compilation tools, release 13.0, V13.0.88"\n' >"$work/cuda-13/bin/nvcc"
    chmod +x "$work"/cuda-1?/bin/nvcc
    CUDACXX=$work/cuda-12/bin/nvcc CUDA_HOME=$work/cuda-13 PATH=/usr/bin:/bin find_cuda
    echo "cuda=$cuda"
  }
  run other
  expect_says "cuda=$work/cuda-13"
}

test_libtorch_in_the_prefix_path_wins() {
  own() {
    mkdir -p "$work/libtorch/share/cmake/Torch"
    touch "$work/libtorch/share/cmake/Torch/TorchConfig.cmake"
    prefixes=$work/elsewhere:$work/libtorch
    find_torch
    echo "torch=$torch"
  }
  run own
  expect_says "torch=$work/libtorch"
}

for test in $(declare -F | sed -n 's/^declare -f \(test_.*\)/\1/p'); do "$test"; done
if ((failures)); then exit 1; fi
echo "all set-up script tests passed"
