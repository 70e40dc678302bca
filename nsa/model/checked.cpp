#include "nsa/model/checked.hpp"

#include <algorithm>
#include <utility>

namespace nsa {

const ModelConfig& checked(const ModelConfig& model) {
  auto errors = validate({.model = model, .train = {}, .source = ""});
  // A file's widths are what kernels load; a model that is built by hand may have any that can be computed with.
  std::erase_if(errors, [&](const ConfigError& error) {
    return (error.key == "model.d_k" && model.d_k >= 2 && model.d_k % 2 == 0) ||
           (error.key == "model.d_v" && model.d_v >= 1) || (error.key == "model.vocab" && model.vocab >= 2);
  });
  if (!errors.empty()) throw ConfigInvalid(std::move(errors));
  return model;
}

Ops ops_for(const Runtime& runtime, const Call& call) {
  if (!runtime.ops)
    throw ContractError(
        "Runtime::ops is empty; allowed: a provider of the attention's functions, as Dispatcher(flags).provider() "
        "(nsa/dispatch.hpp) gives");
  return runtime.ops(call);
}

}  // namespace nsa
