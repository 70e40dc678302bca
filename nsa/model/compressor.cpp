#include "nsa/model/compressor.hpp"

#include <torch/nn/init.h>

namespace nsa {

namespace {
constexpr double kPositionStd = 0.02;
}

// Linear draws by its law when it is made; reset_parameters draws in the same order, so that the same seed gives the
// same bits either way. (The same holds for every module of this folder.)
CompressorImpl::CompressorImpl(std::int64_t l, std::int64_t width)
    : position(register_parameter("position", torch::empty({l, width}))) {
  torch::nn::init::normal_(position, 0.0, kPositionStd);
  fc1 = register_module("fc1", torch::nn::Linear(torch::nn::LinearOptions(l * width, width).bias(false)));
  fc2 = register_module("fc2", torch::nn::Linear(torch::nn::LinearOptions(width, width).bias(false)));
}

PhiWeights CompressorImpl::weights() const { return {position, fc1->weight, fc2->weight}; }

void CompressorImpl::reset_parameters() {
  torch::nn::init::normal_(position, 0.0, kPositionStd);
  fc1->reset_parameters();
  fc2->reset_parameters();
}

}  // namespace nsa
