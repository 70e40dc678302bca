// What a run writes down about itself before it trains.
#pragma once

#include <ATen/core/Tensor.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "nsa/flags.hpp"
#include "nsa/model/lm.hpp"
#include "nsa/train/run/options.hpp"

namespace nsa::train {

// One start of a run: time, pid, host, arguments, build (id, version, compiler), torch and CUDA, device (name, compute
// capability, bytes, driver), effective NSA_* flags with their origin, and NSA_* names that nobody knows.
[[nodiscard]] nlohmann::json start_record(const std::vector<std::string>& arguments, at::Device device,
                                          const EffectiveFlags& flags, const Environment& environment);

// What is not as it was when the run was started before: build, device, flags. Each may change the
// bits of what follows.
[[nodiscard]] std::vector<std::string> changes_since(const nlohmann::json& before, const nlohmann::json& now);

// In words, for whoever set them.
[[nodiscard]] std::vector<std::string> descriptions(const std::vector<UnknownFlag>& unknown);

// dtypes.txt: elements by dtype, then one line a parameter with its shape, dtype, and the dtype of its optimizer state.
[[nodiscard]] std::string dtype_report(const LanguageModelImpl& model, const TrainConfig& config);

}  // namespace nsa::train
