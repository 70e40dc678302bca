# What LibTorch's own CMake files need before and after find_package(Torch). In this tree and, installed, in the projects
# that use the library.
macro(nsa_before_torch)
  if(NOT DEFINED CMAKE_CUDA_RUNTIME_LIBRARY)
    set(CMAKE_CUDA_RUNTIME_LIBRARY Shared)  # LibTorch's: with a static one of our own there would be two runtimes
  endif()
  # Its two warnings (the architectures; kineto, a profiler that the wheels hold inside another library) mean nothing here.
  # Errors are shown.
  set(CMAKE_MESSAGE_LOG_LEVEL ERROR)
endmacro()

macro(nsa_after_torch)
  unset(CMAKE_MESSAGE_LOG_LEVEL)
  if(NOT DEFINED CMAKE_CUDA20_STANDARD_COMPILE_OPTION)  # CMake 3.25 does not know that nvcc has C++20
    set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
  endif()
  if(TARGET caffe2::mkl)  # it would put folders of another machine into the program's search path for libraries
    set_property(TARGET caffe2::mkl PROPERTY INTERFACE_LINK_DIRECTORIES "")
  endif()
endmacro()
