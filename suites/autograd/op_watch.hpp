// Watches the ops of a model from outside: version counters of every tensor that goes into or comes out of an op, and
// whether outputs carry a graph. A write in place raises the counter even where autograd happens not to notice.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <vector>

#include "nsa/model/runtime.hpp"

namespace suites::autograd_cases {

class OpWatch {
 public:
  // Wraps runtime.ops until destroyed. `runtime` must outlive it.
  explicit OpWatch(nsa::Runtime& runtime);
  ~OpWatch();
  OpWatch(const OpWatch&) = delete;
  OpWatch& operator=(const OpWatch&) = delete;

  struct Written {
    std::int64_t layer = 0;
    std::string op, tensor;  // "attend_window", "input k"
    std::int64_t before = 0, after = 0;
    std::string when;  // "by the op itself", "after the op"
  };
  // Every watched tensor whose version is not what it was; also those that an op wrote while it ran.
  [[nodiscard]] std::vector<Written> written() const;

  struct Break {
    std::int64_t layer = 0;
    std::string op, output;
  };
  [[nodiscard]] std::vector<Break> breaks() const;

  struct State;

 private:
  nsa::Runtime& runtime_;
  nsa::OpsProvider before_;
  std::shared_ptr<State> state_;
};

}  // namespace suites::autograd_cases
