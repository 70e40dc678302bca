// What a model, or a layer of one, needs of whoever makes it by hand; told before anything else fails for its lack.
#pragma once

#include "nsa/config.hpp"
#include "nsa/model/runtime.hpp"

namespace nsa {

// The configuration itself. Throws ConfigInvalid with every error of its values.
[[nodiscard]] const ModelConfig& checked(const ModelConfig& model);

// The functions of attention for a call. Throws ContractError where the runtime has no provider of them.
[[nodiscard]] Ops ops_for(const Runtime& runtime, const Call& call);

}  // namespace nsa
