// The functions that width_*.cu compile for their pair of head widths, both storage types in each.
#pragma once

#include "nsa/kernels/attention.hpp"

namespace nsa::kernels {

template <int Dk, int Dv>
void forward_of_width(const AttentionForward& p, const Device& device, cudaStream_t stream);
template <int Dk, int Dv>
void backward_of_width(const AttentionBackward& p, const Device& device, cudaStream_t stream);
template <int Dk, int Dv>
std::int64_t forward_workspace_of_width(const AttentionForward& p, const Device& device);
template <int Dk, int Dv>
std::int64_t backward_workspace_of_width(const AttentionBackward& p, const Device& device);

}  // namespace nsa::kernels
