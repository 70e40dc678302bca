#include "suites/autograd/held_choice.hpp"

#include <map>
#include <memory>

namespace suites::autograd_cases {

HeldChoice::HeldChoice(nsa::Runtime& runtime, std::int64_t layers) : runtime_(runtime), before_(runtime.ops) {
  struct State {
    std::int64_t calls = 0;
    std::map<std::int64_t, at::Tensor> blocks;  // by layer
  };
  runtime_.ops = [inner = before_, layers, state = std::make_shared<State>()](const nsa::Call& call) {
    nsa::Ops ops = inner(call);
    const std::int64_t layer = state->calls++ % layers;  // the provider is asked once a layer and pass
    ops.select = [choose = ops.select, layer, state](const nsa::SelectArgs& args) {
      const auto held = state->blocks.find(layer);
      return held != state->blocks.end() ? held->second : state->blocks.emplace(layer, choose(args)).first->second;
    };
    return ops;
  };
}

}  // namespace suites::autograd_cases
