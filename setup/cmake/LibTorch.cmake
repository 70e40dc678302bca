# LibTorch 2.11 for CUDA, as the target nsa_torch. Where it lies is CMAKE_PREFIX_PATH's business (the launcher sees to it).
# It enables the language CUDA, so .cu files need nothing more.
#
# torch's CMake ignores CMAKE_CUDA_ARCHITECTURES; TORCH_CUDA_ARCH_LIST rules (A100, H100 and H200 unless said otherwise).
if(NOT DEFINED TORCH_CUDA_ARCH_LIST AND NOT DEFINED ENV{TORCH_CUDA_ARCH_LIST})
  set(TORCH_CUDA_ARCH_LIST "8.0;9.0a")
endif()

include(${CMAKE_CURRENT_LIST_DIR}/LibTorchQuirks.cmake)
nsa_before_torch()
find_package(Torch 2.11 REQUIRED)
nsa_after_torch()
if(NOT TARGET torch_cuda)
  message(FATAL_ERROR "The LibTorch in ${TORCH_INSTALL_PREFIX} was built without CUDA. NSA needs a CUDA build of LibTorch "
                      "2.11, also on a machine without a GPU: the wheel torch==2.11.0 from PyPI is one.")
endif()
find_package(CUDAToolkit REQUIRED)  # NVTX3 and the runtime's headers

add_library(nsa_torch INTERFACE)
# First libstdc++: libtorch exports a std::filesystem of its own (of another compiler), and the first library wins. With
# LibTorch's, std::filesystem::remove_all jumps to address 0.
# An installed library takes the LibTorch of the machine that it is used on (nsa_validate-config.cmake.in).
target_link_libraries(nsa_torch INTERFACE stdc++ "$<BUILD_INTERFACE:${TORCH_LIBRARIES}>"
                                          $<INSTALL_INTERFACE:nsa_validate::libtorch> CUDA::nvtx3)
target_include_directories(nsa_torch SYSTEM INTERFACE "$<BUILD_INTERFACE:${TORCH_INCLUDE_DIRS}>")

# torch's include folder brings a newer fmt than the system's library, and no library to it. Compiled here, once: taken as
# headers alone it is compiled in every file, 30 % of all code. The two fmt live side by side, each in its own namespace.
nsa_component(nsa_torch_fmt SOURCES ${CMAKE_CURRENT_LIST_DIR}/torch_fmt.cpp)
target_include_directories(nsa_torch_fmt SYSTEM PRIVATE ${TORCH_INCLUDE_DIRS})
target_link_libraries(nsa_torch INTERFACE nsa_torch_fmt)

# A precompiled header for everything that sees LibTorch, once for each optimisation. Only what most files include: the
# templates that a precompiled header's inline functions use are instantiated in each file anew, with <torch/nn.h> 6 s of an
# empty file, with these 3 s.
foreach(NSA_OPTIMISATION "" -O1)
  set(precompiled nsa_torch_precompiled${NSA_OPTIMISATION})
  nsa_component(${precompiled} SOURCES ${CMAKE_CURRENT_LIST_DIR}/precompiled.cpp DEPENDS nsa_torch fmt::fmt nlohmann_json::nlohmann_json)
  target_precompile_headers(${precompiled} PRIVATE <ATen/ATen.h> <torch/nn/module.h> <nlohmann/json.hpp> <fmt/format.h>
                            <fmt/ranges.h> <string> <vector> <functional> <map>)
endforeach()
unset(NSA_OPTIMISATION)
