#include "nsa/model/rope.hpp"

#include <ATen/ATen.h>

#include <cmath>

namespace nsa {

at::Tensor rope_rotations(std::int64_t S, std::int64_t D, double base, double scale, const CuSeqlens& cu_seqlens,
                          const at::TensorOptions& model) {
  const auto options = at::TensorOptions().dtype(at::kFloat).device(model.device());
  std::vector<at::Tensor> positions;
  for (const auto& [begin, end] : documents(cu_seqlens, S)) positions.push_back(at::arange(end - begin, options));
  const auto frequency = at::exp(at::arange(0, D, 2, options) * (-std::log(base) / static_cast<double>(D)));
  const auto angle = at::outer(at::cat(positions) / scale, frequency);
  const auto wide = angle.to(accumulation_type(c10::typeMetaToScalarType(model.dtype())));
  return at::polar(at::ones_like(wide), wide);
}

at::Tensor rotate(const at::Tensor& x, const at::Tensor& rotations) {
  const auto wide = x.to(accumulation_type(x.scalar_type()));
  const auto pairs = at::view_as_complex(wide.unflatten(-1, {x.size(-1) / 2, 2}).contiguous());  // [B,S,heads,D/2]
  return at::view_as_real(pairs * rotations.unsqueeze(1)).flatten(-2).to(x.scalar_type());
}

}  // namespace nsa
