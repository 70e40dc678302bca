# What `cmake --install` puts where: the programs with what they read, and the library for others (nsa/LIBRARY.md).
# Components: `programs` and `library`.
include(CMakePackageConfigHelpers)

install(TARGETS nsa-validate nsa-doctor nsa-train nsa-bench COMPONENT programs)
install(DIRECTORY adapters configs fixtures DESTINATION ${CMAKE_INSTALL_DATADIR}/nsa-validate COMPONENT programs
        PATTERN fuzz EXCLUDE  # inputs of nsa-fuzz, which stays here
        PATTERN tests EXCLUDE PATTERN __pycache__ EXCLUDE)
install(FILES LICENSE DESTINATION ${CMAKE_INSTALL_DATADIR}/licenses/nsa-validate COMPONENT programs)
install(FILES LICENSE DESTINATION ${CMAKE_INSTALL_DATADIR}/licenses/nsa-validate COMPONENT library)

# The archives' names are short, so they have a folder of their own.
foreach(target base nsa_configuration nsa_data nsa_kernels nsa_parallel nsa_torch nsa_torch_fmt nsa_world)
  string(REGEX REPLACE "^nsa_" "" short ${target})
  set_target_properties(${target} PROPERTIES EXPORT_NAME ${short})
endforeach()
set(archives ${CMAKE_INSTALL_LIBDIR}/nsa-validate)
set(package ${CMAKE_INSTALL_LIBDIR}/cmake/nsa_validate)
install(TARGETS nsa nsa_configuration nsa_data nsa_kernels nsa_parallel nsa_torch nsa_torch_fmt nsa_world base EXPORT nsa_validate
        ARCHIVE DESTINATION ${archives} COMPONENT library)
install(EXPORT nsa_validate NAMESPACE nsa_validate:: FILE nsa_validate-targets.cmake DESTINATION ${package}
        COMPONENT library)

# The rooms that others may use; the backends' insides, the programs and the tests stay here.
# What their headers include of base/.
install(FILES base/atomic_file.hpp base/clock.hpp base/environment.hpp base/fd.hpp base/files.hpp base/launch.hpp base/random.hpp
        DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/base COMPONENT library)
install(DIRECTORY nsa/ DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/nsa COMPONENT library FILES_MATCHING PATTERN *.hpp
        PATTERN bench EXCLUDE PATTERN cuda EXCLUDE PATTERN flash EXCLUDE PATTERN kernels EXCLUDE PATTERN run EXCLUDE
        PATTERN sdpa EXCLUDE PATTERN tests EXCLUDE)

set(nsa_torch_version 2.11)
configure_file(setup/cmake/nsa_validate-config.cmake.in nsa_validate-config.cmake @ONLY)
write_basic_package_version_file(${CMAKE_CURRENT_BINARY_DIR}/nsa_validate-config-version.cmake
                                 COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/nsa_validate-config.cmake setup/cmake/LibTorchQuirks.cmake
              ${CMAKE_CURRENT_BINARY_DIR}/nsa_validate-config-version.cmake DESTINATION ${package} COMPONENT library)

if(NSA_VALIDATE_TESTS)
  # The installed library as a user of it would use it: example/, against what this tree's own code computes.
  add_executable(nsa_library_reference nsa/tests/library_reference.cpp)
  nsa_compile_options(nsa_library_reference)
  nsa_sees_torch(nsa_library_reference)
  target_link_libraries(nsa_library_reference PRIVATE nsa)
  string(REPLACE ";" "|" prefixes "${CMAKE_PREFIX_PATH}")
  add_test(NAME install.example
           COMMAND ${CMAKE_COMMAND} -D SOURCE=${PROJECT_SOURCE_DIR} -D BUILD=${PROJECT_BINARY_DIR}
                   -D REFERENCE=$<TARGET_FILE:nsa_library_reference> -D GENERATOR=${CMAKE_GENERATOR}
                   -D "PREFIXES=${prefixes}" -D CXX=${CMAKE_CXX_COMPILER} -D CUDA=${CMAKE_CUDA_COMPILER}
                   -D CUDA_ROOT=${CUDAToolkit_ROOT} -D MAKE=${CMAKE_MAKE_PROGRAM}
                   -P ${PROJECT_SOURCE_DIR}/setup/tests/install_test.cmake)
  set_tests_properties(install.example PROPERTIES LABELS install TIMEOUT 600 ENVIRONMENT OMP_NUM_THREADS=1)
endif()
