#include "nsa/model/norm.hpp"

#include <ATen/ATen.h>
#include <torch/nn/init.h>

namespace nsa {

RmsNormImpl::RmsNormImpl(std::int64_t width) : weight(register_parameter("weight", torch::ones({width}))) {}

torch::Tensor RmsNormImpl::forward(const torch::Tensor& x) { return at::rms_norm(x, {weight.size(0)}, weight, 1e-6); }

void RmsNormImpl::reset_parameters() { torch::nn::init::ones_(weight); }

}  // namespace nsa
