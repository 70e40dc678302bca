// One measured call: its inputs on the device, drawn once, and what is to be done with them again and again.
#pragma once

#include <functional>

#include "nsa/bench/choice.hpp"
#include "nsa/bench/subject.hpp"
#include "nsa/ops.hpp"

namespace nsa::bench {

struct CallSpec {
  Subject subject;
  Problem problem;
  Backend backend = Backend::cuda;
  Mode mode = Mode::fwd;
  ChoiceKind choice = ChoiceKind::random;  // where the subject takes one
};

// bf16 of unit scale, always the same numbers. fwd runs without gradients; fwd_bwd takes the gradients of all inputs.
// What a call gives is dropped at once. Waits for nothing that the backend does not wait for.
[[nodiscard]] std::function<void()> make_call(const CallSpec& spec, at::Device device);

}  // namespace nsa::bench
