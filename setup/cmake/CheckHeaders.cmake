# Every header by itself; a sample is the test setup.headers.
set(include_flags ${TORCH_INCLUDE_DIRS} ${CUDAToolkit_INCLUDE_DIRS})
list(TRANSFORM include_flags PREPEND -isystem)
add_custom_target(check_headers COMMAND setup/tests/check_headers.sh --all ${CMAKE_CXX_COMPILER} ${include_flags}
                  WORKING_DIRECTORY ${PROJECT_SOURCE_DIR} VERBATIM USES_TERMINAL)
