// The ways through a model. All compute the logits of the same tokens with the same weights: training forward, forward
// without gradients, by each backend, packed, prefill, step by step, prefill of P tokens and then steps.
#pragma once

#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "nsa/route.hpp"
#include "suites/parity/prepared.hpp"

namespace suites::parity_cases {

// What a way showed of its pass, tokens in dimension 1 of everything.
struct Trace {
  at::Tensor logits;                                       // [B,tokens,vocab]
  std::vector<std::pair<std::string, at::Tensor>> stages;  // as observed, laid end to end over the calls of the way
  [[nodiscard]] std::int64_t tokens() const { return logits.size(1); }
  // Undefined when the way does not show it.
  [[nodiscard]] at::Tensor stage(const std::string& name) const;
};

struct ModelWay {
  std::string name;
  bool caches = false;                        // goes through nsa::decode
  std::int64_t prefill = -1;                  // P; -1 where there is none
  std::optional<nsa::Choice> selection = {};  // of attend_selected in a pass over the whole text, where there is one
  std::function<Trace(const at::Tensor& tokens)> run;
};

struct WaysOptions {
  nsa::Config config;
  nsa::Precision precision = nsa::Precision::fp32;
  std::int64_t handover_steps = 96;  // steps after a prefill of P < S tokens
  std::int64_t B = 2, S = 1;
};

// Of a batch of B rows of S tokens. The baseline: the forward pass of training, gradients on.
[[nodiscard]] ModelWay training_forward(harness::Context& context, const Subject& subject, const WaysOptions& options);
[[nodiscard]] std::vector<ModelWay> other_ways(harness::Context& context, const Subject& subject,
                                               const WaysOptions& options);

// A decoding step chose blocks that it cannot gather with. On a GPU nobody looks: the gather would break the process.
class BrokenChoice : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// One pass of the decoder: the first P tokens in a prefill (P = 0: none), the others step by step. Throws BrokenChoice
// before a step gathers what is not there.
[[nodiscard]] Trace decode(harness::Context& context, nsa::decode::Decoder& decoder, const at::Tensor& tokens,
                           std::int64_t P);

}  // namespace suites::parity_cases
