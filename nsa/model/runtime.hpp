// Everything besides the weights that a forward pass needs.
#pragma once

#include <functional>
#include <string_view>

#include "nsa/dispatch.hpp"
#include "nsa/flags.hpp"

namespace nsa {

struct Runtime {
  EffectiveFlags flags;
  OpsProvider ops;  // asked once per layer and pass
  // Called, when set, with every named stage of every layer as it is computed: "layers.3.attention.sel.o" (the names:
  // nsa/README.md, "Stages"). The tensor is the live one (its grad_fn included). For probes; costs nothing when unset.
  std::function<void(std::string_view name, const at::Tensor& value)> observe;
};

}  // namespace nsa
