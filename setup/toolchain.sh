# Which CMake, Ninja, LibTorch and CUDA toolkit to build with. What is installed wins; PyPI fills the gaps.
# shellcheck shell=bash disable=SC2154  # build, prefixes, venv: set by bootstrap.sh, python.sh

cmake_set='cmake>=3.28,<4 ninja'
torch_set='torch==2.11.0'
cuda_set='cuda-toolkit[nvcc,cccl,nvtx]==13.0.2 nvidia-nvvm==13.0.88 nvidia-cuda-crt==13.0.88'

cmake='' ninja='' ctest='' torch='' cuda=''

find_cmake() {  # CMake older than 3.28 does not know CUDA 13's C++20
  local version
  version=$(cmake --version 2>/dev/null | sed -n '1s/[^0-9]*//p' || true)
  if [[ $(printf '%s\n' 3.28 "$version" | sort -V | head -n 1) == 3.28 ]]; then cmake=$(command -v cmake); fi
  ninja=$(command -v ninja || true)
}

find_torch() {  # the folder that find_package(Torch) wants as a prefix
  local prefix
  for prefix in ${prefixes//:/ }; do
    if [[ -e $prefix/share/cmake/Torch/TorchConfig.cmake || -e $prefix/Torch/TorchConfig.cmake ]]; then
      torch=$prefix
      return
    fi
  done
  torch=$(python3 - 2>/dev/null <<'PYTHON' || true
import importlib.metadata, importlib.util, os
if importlib.metadata.version("torch").startswith("2.11."):
    print(os.path.join(os.path.dirname(importlib.util.find_spec("torch").origin), "share", "cmake"))
PYTHON
  )
}

find_cuda() {  # a toolkit of LibTorch's major version
  local nvcc
  for nvcc in "${CUDACXX:-}" "$(command -v nvcc || true)" "${CUDA_HOME:-}/bin/nvcc" /usr/local/cuda/bin/nvcc; do
    if [[ -x $nvcc && $("$nvcc" --version) == *"release 13."* ]]; then
      cuda=$(dirname "$(dirname "$(readlink -f "$nvcc")")")
      return
    fi
  done
}

# The wheels hold versioned libraries only, nothing at the names that a linker looks for, and no lib64 as nvcc expects.
link_cuda_libraries() {
  local library
  ln -sfn lib "$cuda/lib64"
  for library in "$cuda"/lib/lib{cudart,nvrtc}.so.[0-9]*; do
    ln -sfn "$(basename "$library")" "${library%.so.*}.so"
  done
}

find_or_install_toolchain() {
  find_cmake
  find_torch
  find_cuda
  if [[ -z $cmake || -z $ninja ]]; then want_set "$cmake_set"; fi
  # PyPI's toolkit is whole only beside torch's wheel, which brings the runtime and NVRTC in the versions that fit.
  if [[ -z $torch || -z $cuda ]]; then want_set "$torch_set"; fi
  if [[ -z $cuda ]]; then want_set "$cuda_set"; fi
  install_system_packages
  install_python_sets

  cmake=${cmake:-$venv/bin/cmake}
  ninja=${ninja:-$venv/bin/ninja}
  ctest=$(dirname "$cmake")/ctest
  torch=${torch:-$(site_packages)/torch/share/cmake}
  if [[ -z $cuda ]]; then
    cuda=$(site_packages)/nvidia/cu13
    link_cuda_libraries
  fi
  prefix_path="$torch${prefixes:+;${prefixes//:/;}}"
  export CUDACXX=$cuda/bin/nvcc
}

# What was chosen, for the launchers to read back; when it changes, CMake starts afresh.
describe_toolchain() {
  local architectures=${TORCH_CUDA_ARCH_LIST:-}
  declare -p build cmake ninja ctest torch cuda prefix_path architectures
}
