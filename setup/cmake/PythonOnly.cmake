# For `pip install .` (pyproject.toml): the libraries below the Python package, and that. LibTorch is the one that
# setup/wheel.sh found (Torch_ROOT), which may be another interpreter's, else that of the interpreter which builds.
if(NOT DEFINED Torch_ROOT)
  find_package(Python REQUIRED COMPONENTS Interpreter)
  execute_process(COMMAND ${Python_EXECUTABLE} -c "import torch; print(torch.utils.cmake_prefix_path)"
                  OUTPUT_VARIABLE prefix ERROR_VARIABLE error RESULT_VARIABLE result OUTPUT_STRIP_TRAILING_WHITESPACE)
  if(NOT result EQUAL 0)
    message(FATAL_ERROR "${Python_EXECUTABLE} cannot import torch; the wheel nsa is built beside torch 2.11 "
                        "(pip install --no-build-isolation .)\n${error}")
  endif()
  list(APPEND CMAKE_PREFIX_PATH ${prefix})
endif()
include(LibTorch)
add_subdirectory(base)
add_subdirectory(nsa)
add_subdirectory(python)
