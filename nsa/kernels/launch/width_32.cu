#include "nsa/kernels/launch/launch.cuh"

namespace nsa::kernels {

NSA_INSTANTIATE_WIDTH(32, 32);

}  // namespace nsa::kernels
