// The bits of every stage of a model's passes, step by step, as facts "trace/0", "trace/1", ...: {name: 64-bit hash},
// in the order in which they were computed. `compare --trace` names the first that differs between two runs. Only where
// the setting `trace` asks for it: each stage is copied to the host.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "harness/context.hpp"
#include "nsa/model/lm.hpp"
#include "suites/probes/stages.hpp"

namespace suites::probes {

// FNV-1a 64 over dtype, shape and bits, 16 hex digits: -0 is not 0, and one NaN is not another.
[[nodiscard]] std::string bits_of(const at::Tensor& value);

class BitTrace {
 public:
  // Observes `model` as long as this lives: its stages, and in a backward pass the gradients of its parameters as they
  // arrive. `model` and `context` must outlive it.
  BitTrace(harness::Context& context, nsa::LanguageModelImpl& model);
  ~BitTrace();
  BitTrace(const BitTrace&) = delete;
  BitTrace& operator=(const BitTrace&) = delete;

  [[nodiscard]] bool wanted() const { return observing_.has_value(); }
  // Beside the stages; a name that comes again within a step is "name #2".
  void add(std::string_view name, const at::Tensor& value);
  // What the parameters hold.
  void add_parameters();
  // Tells what was seen since the last call.
  void end_step(std::int64_t step);

 private:
  harness::Context& context_;
  nsa::LanguageModelImpl& model_;
  harness::Json seen_ = harness::Json::object();
  std::optional<Observing> observing_;
  std::vector<std::pair<at::Tensor, unsigned>> hooks_;
};

}  // namespace suites::probes
