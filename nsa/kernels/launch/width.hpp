// What is compiled for every pair of head widths: the functions of width_*.cu, both storage types in each.
#pragma once

#include <stdexcept>
#include <string>

#include "nsa/kernels/attention.hpp"

namespace nsa::kernels {

template <int Dk, int Dv>
void forward_of_width(const AttentionForward& p, const AttentionPlan& plan, cudaStream_t stream);
template <int Dk, int Dv>
void backward_of_width(const AttentionBackward& p, const AttentionPlan& plan, cudaStream_t stream);

// action(width of q and k, width of v) with both as constants.
template <typename Action>
auto with_widths(int Dk, int Dv, Action&& action) {
  if (Dk == 32 && Dv == 32) return action.template operator()<32, 32>();
  if (Dk == 64 && Dv == 64) return action.template operator()<64, 64>();
  if (Dk == 128 && Dv == 128) return action.template operator()<128, 128>();
  if (Dk == 192 && Dv == 128) return action.template operator()<192, 128>();
  throw std::invalid_argument("attention: head widths " + std::to_string(Dk) + " and " + std::to_string(Dv) +
                              "; allowed: 32/32, 64/64, 128/128, 192/128");
}

// One document: its blocks are counted here.
inline AttentionForward with_blocks(AttentionForward p) {
  if (p.selection.J == 0) p.selection.J = (p.S + p.geometry.l_sel - 1) / p.geometry.l_sel;
  return p;
}

}  // namespace nsa::kernels
