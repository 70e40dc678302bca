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
    ops.replace(&nsa::Ops::attend, [attend = ops.attend, layer, state](nsa::AttendArgs args) {
      if (const auto held = state->blocks.find(layer); held != state->blocks.end()) {
        args.blocks = held->second;
      } else {
        args.observe = [state, layer, watched = args.observe](std::string_view stage, const at::Tensor& value) {
          if (stage == "blocks") state->blocks.emplace(layer, value);
          if (watched) watched(stage, value);
        };
      }
      return attend(args);
    });
    return ops;
  };
}

}  // namespace suites::autograd_cases
