# nsa_component(NAME [TORCH] SOURCES... [DEPENDS targets...]): a static library of one room of the house.
# Includes are written from the root of the tree ("reports/model.hpp"); warnings are errors. TORCH: nsa_sees_torch().

# Code that checks: a folder says set(NSA_OPTIMISATION -O1), and tests have it. It compiles in a fifth less time than with
# -O2, and computes little itself.
function(nsa_compile_options target)
  target_compile_features(${target} PUBLIC cxx_std_20)
  target_compile_options(${target} PRIVATE -Wall -Wextra -Wshadow -Wswitch-enum -Wnon-virtual-dtor -Werror)
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    # Warnings of GCC's optimiser and of its newest checks are wrong about code inlined from std::string and LibTorch;
    # which ones depends on the version.
    if(CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
      target_compile_options(${target} PRIVATE -Wno-array-bounds -Wno-maybe-uninitialized -Wno-restrict
                                               -Wno-stringop-overflow -Wno-stringop-overread)
    else()
      target_compile_options(${target} PRIVATE -Wno-array-bounds -Wno-maybe-uninitialized -Wno-stringop-overflow
                                               -Wno-stringop-overread -Wno-dangling-reference)
    endif()
  endif()
  if(NSA_OPTIMISATION)
    target_compile_options(${target} PRIVATE $<$<CONFIG:Release>:${NSA_OPTIMISATION}>)
  endif()
  get_target_property(type ${target} TYPE)
  if(type STREQUAL "EXECUTABLE")
    # Compiled as libraries are (-fPIC, where CMake says -fPIE), so that one precompiled header serves both.
    set_target_properties(${target} PROPERTIES POSITION_INDEPENDENT_CODE OFF)
    target_compile_options(${target} PRIVATE -fPIC)
  endif()
  target_include_directories(${target} PUBLIC $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}>
                                              $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
endfunction()

# Up to `most` files are compiled as one, and about as many each time. Names in anonymous namespaces therefore differ within
# a target.
option(NSA_VALIDATE_UNITY "Compile several files as one: the whole build is faster, the build after a small change slower" ON)
function(nsa_joins_files target most)
  if(NSA_VALIDATE_UNITY)
    get_target_property(sources ${target} SOURCES)
    list(LENGTH sources count)
    math(EXPR units "(${count} + ${most} - 1) / ${most}")
    math(EXPR each "(${count} + ${units} - 1) / ${units}")
    set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE ${each})
    # An included source is taken for a header; and a local name may be that of a neighbour's own.
    target_compile_options(${target} PRIVATE -Wno-subobject-linkage -Wno-shadow -Wshadow=local)
  endif()
endfunction()

# For a target that nsa_compile_options() made ready and whose files see LibTorch, each of which is 3 s of templates before
# its first line: it takes the precompiled header (LibTorch.cmake).
function(nsa_sees_torch target)
  target_precompile_headers(${target} REUSE_FROM nsa_torch_precompiled${NSA_OPTIMISATION})
  get_target_property(type ${target} TYPE)
  set(most 16)
  if(type STREQUAL "EXECUTABLE")
    set(most 8)
  endif()
  nsa_joins_files(${target} ${most})
endfunction()

# The same for code that checks (-O1) and sees no LibTorch, but json and fmt (Json.cmake).
function(nsa_sees_json target)
  target_precompile_headers(${target} REUSE_FROM nsa_json_precompiled)
  nsa_joins_files(${target} 16)
endfunction()

function(nsa_component name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "TORCH" "" "SOURCES;DEPENDS")
  add_library(${name} STATIC ${arg_SOURCES})
  nsa_compile_options(${name})
  if(arg_TORCH)
    nsa_sees_torch(${name})
  endif()
  target_link_libraries(${name} PUBLIC ${arg_DEPENDS})
endfunction()

# nsa_tests(NAME [TORCH] [SAMPLED] [GPU] SOURCES... DEPENDS targets... [LABEL name] [MAY_SKIP patterns...]): one GoogleTest
# executable; every test is a CTest of its own, and a GTEST_SKIP is shown as skipped. TORCH: eight tests are one CTest;
# SAMPLED: a quarter of them run, by a seed; GPU: most want one (TestGroups.cmake). One thread each: CTest runs as many at
# once as there are cores. The label is "unit" unless said otherwise, and only one: gtest_discover_tests() loses the others.
function(nsa_tests name)
  if(NOT NSA_VALIDATE_TESTS)
    return()
  endif()
  cmake_parse_arguments(PARSE_ARGV 1 arg "TORCH;SAMPLED;GPU" "LABEL" "SOURCES;DEPENDS;MAY_SKIP")
  set(NSA_OPTIMISATION -O1)
  add_executable(${name} ${arg_SOURCES})
  nsa_compile_options(${name})
  if(arg_TORCH)
    nsa_sees_torch(${name})
  elseif(NOT arg_SAMPLED)
    nsa_joins_files(${name} 16)
  endif()
  target_link_libraries(${name} PRIVATE ${arg_DEPENDS} GTest::gtest GTest::gmock GTest::gtest_main)
  if(NOT arg_LABEL)
    set(arg_LABEL unit)
  endif()
  if(NOT arg_TORCH AND NOT arg_SAMPLED)
    gtest_discover_tests(${name} DISCOVERY_MODE PRE_TEST TEST_PREFIX "${name}." PROPERTIES TIMEOUT 300 ENVIRONMENT
                         OMP_NUM_THREADS=1 LABELS ${arg_LABEL})
    return()
  endif()
  if(arg_SAMPLED)
    list(APPEND arg_LABEL emulated)
  endif()
  set(groups "${CMAKE_CURRENT_BINARY_DIR}/${name}_groups.cmake")
  file(
    GENERATE
    OUTPUT "${groups}"
    CONTENT
      "set(NAME ${name})\nset(EXECUTABLE \"$<TARGET_FILE:${name}>\")\nset(MAY_SKIP \".*(Gpu|/gpu).*;${arg_MAY_SKIP}\")\nset(LABEL \"${arg_LABEL}\")\nset(SAMPLED ${arg_SAMPLED})
set(GPU ${arg_GPU})
include(\"${PROJECT_SOURCE_DIR}/setup/cmake/TestGroups.cmake\")\n")
  set_property(DIRECTORY APPEND PROPERTY TEST_INCLUDE_FILES "${groups}")
endfunction()
