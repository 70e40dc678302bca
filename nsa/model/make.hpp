// A model that is ready to run, from a configuration and flags.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "nsa/config.hpp"
#include "nsa/dispatch.hpp"
#include "nsa/flags.hpp"
#include "nsa/model/lm.hpp"

namespace nsa {

struct MakeOptions {
  Precision precision = Precision::fp32;  // of the parameters; initial values are drawn in fp32 and rounded to it
  at::Device device = at::kCPU;
  // torch's generator is seeded with it before the initial values are drawn; without it they follow from the
  // generator's state.
  std::optional<std::uint64_t> seed = {};
  // The functions of attention. Empty: those that a Dispatcher of its own chooses by the flags. Give
  // Dispatcher::provider() to see what it chose.
  OpsProvider ops = {};
  // Where the model tells what ran of its other parts: Dispatcher::parts(). Empty: a record of its own.
  std::shared_ptr<PartRecord> parts = {};
};

// Throws ConfigInvalid with every error of the configuration's values, and ContractError for a GPU where torch finds no
// usable one. `flags`: resolve(read_environment()) for those of the environment, {} for the defaults.
[[nodiscard]] LanguageModel make_model(const ModelConfig& config, const EffectiveFlags& flags,
                                       const MakeOptions& options = {});

[[nodiscard]] at::ScalarType storage_type(Precision precision);  // kDouble, kFloat, kBFloat16

}  // namespace nsa
