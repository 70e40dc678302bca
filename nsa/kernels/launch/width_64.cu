#include "nsa/kernels/launch/launch.cuh"

namespace nsa::kernels {

NSA_INSTANTIATE_WIDTH(64, 64);

}  // namespace nsa::kernels
