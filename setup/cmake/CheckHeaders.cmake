# Every header by itself: a sample as the test setup.headers, and all of them, which want LibTorch.
if(NSA_VALIDATE_TESTS)
  add_test(NAME setup.headers COMMAND ${PROJECT_SOURCE_DIR}/setup/tests/check_headers.sh ${CMAKE_CXX_COMPILER}
           WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
  set_tests_properties(setup.headers PROPERTIES LABELS unit TIMEOUT 300 ENVIRONMENT "CUDACXX=${CMAKE_CUDA_COMPILER}")
endif()
if(NSA_VALIDATE_WITH_TORCH)
  set(include_flags ${TORCH_INCLUDE_DIRS} ${CUDAToolkit_INCLUDE_DIRS})
  list(TRANSFORM include_flags PREPEND -isystem)
  add_custom_target(check_headers COMMAND ${CMAKE_COMMAND} -E env CUDACXX=${CMAKE_CUDA_COMPILER}
                    setup/tests/check_headers.sh --all ${CMAKE_CXX_COMPILER} ${include_flags}
                    WORKING_DIRECTORY ${PROJECT_SOURCE_DIR} VERBATIM USES_TERMINAL)
endif()
