# Makes C++ of CUDA C++: cmake -D FROM=<folder> -D TO=<folder> -D FILES=<a;b> -P translate.cmake
# Everything else that g++ does not know is a macro or a function in cuda.hpp.
foreach(file ${FILES})
  file(READ ${FROM}/${file} text)
  # kernel<<<grid, threads, shared, stream>>>(arguments)
  string(REPLACE "<<<" " | nsa::kernels::emulation::Grid(" text "${text}")
  string(REPLACE ">>>(" ") | nsa::kernels::emulation::arguments(" text "${text}")
  # extern __shared__ T name[];
  string(REGEX REPLACE "extern __shared__ (__align__\\([0-9]+\\) )?([a-z0-9]+) ([a-z_]+)\\[\\]"
         "\\2* const \\3 = static_cast<\\2*>(nsa::kernels::emulation::shared())" text "${text}")
  # A parameter that all threads share.
  string(REGEX REPLACE "__grid_constant__ ([A-Za-z]+) " "\\1& " text "${text}")
  string(REGEX REPLACE "\\.cu$" ".cpp" to ${TO}/${file})
  file(WRITE ${to} "${text}")
endforeach()
