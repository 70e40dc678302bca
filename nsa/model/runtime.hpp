// Everything besides the weights that a forward pass needs.
#pragma once

#include <functional>
#include <memory>
#include <string_view>

#include "nsa/dispatch.hpp"
#include "nsa/flags.hpp"
#include "nsa/parts.hpp"

namespace nsa {

struct Runtime {
  EffectiveFlags flags;
  OpsProvider ops;  // asked once per layer and pass
  // Called, when set, with every named stage of every layer as it is computed: "layers.3.attention.sel.o" (the names:
  // nsa/README.md, "Stages"). The tensor is the live one (its grad_fn included). For probes; costs nothing when unset.
  std::function<void(std::string_view name, const at::Tensor& value)> observe;
  // Called, when set, with the gates of every layer, [B,S,G,3]: "layers.3.attention". A look that a captured step can
  // hold: the tensor that it is given while a step is captured has the values of each replay.
  std::function<void(std::string_view layer, const at::Tensor& gates)> watch_gates = {};
  // Layers keep only their input for the backward pass and compute the rest again in it (recompute.hpp). `observe` and
  // `ops` are then called twice for every layer: in the forward pass, and in the backward pass, last layer first, with
  // the tensors that gradients really flow through. Nothing here may change between the two.
  bool recompute = false;
  // What ran of the parts that are not in `ops`.
  std::shared_ptr<PartRecord> parts = std::make_shared<PartRecord>();
};

}  // namespace nsa
