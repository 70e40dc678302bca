#include <string>

#include "nsa/kernels/params.hpp"

namespace nsa::kernels {

void check_launch(const char* kernel) {
  const cudaError_t error = cudaPeekAtLastError();
  if (error != cudaSuccess)
    throw LaunchError(std::string(kernel) + ": the CUDA runtime refused the launch: " + cudaGetErrorString(error));
}

bool on_processor() { return false; }

}  // namespace nsa::kernels
