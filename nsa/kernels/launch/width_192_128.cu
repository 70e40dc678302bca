#include "nsa/kernels/launch/launch.cuh"

namespace nsa::kernels {

NSA_INSTANTIATE_WIDTH(192, 128);

}  // namespace nsa::kernels
