#include "nsa/model/make.hpp"

#include <fmt/format.h>
#include <torch/cuda.h>
#include <torch/utils.h>

#include <utility>

#include "nsa/model/checked.hpp"

namespace nsa {

LanguageModel make_model(const ModelConfig& config, const EffectiveFlags& flags, const MakeOptions& options) {
  (void)checked(config);  // before the generator is touched
  if (options.device.is_cuda() && !torch::cuda::is_available())
    throw ContractError(
        fmt::format("device: {}, and torch finds no usable GPU here; allowed: cpu", options.device.str()));
  Runtime runtime;
  runtime.flags = flags;
  runtime.ops = options.ops ? options.ops : Dispatcher(flags).provider();
  if (options.parts) runtime.parts = options.parts;
  if (options.seed) torch::manual_seed(*options.seed);
  LanguageModel model(config, std::move(runtime));
  model->to(options.device, storage_type(options.precision));
  return model;
}

at::ScalarType storage_type(Precision precision) {
  switch (precision) {
    case Precision::fp64:
      return at::kDouble;
    case Precision::fp32:
      return at::kFloat;
    case Precision::bf16:
      return at::kBFloat16;
  }
  throw std::invalid_argument("storage_type: unknown precision");
}

}  // namespace nsa
