// From flags to a filled ops table, call by call: routes, assembles the chosen backends' functions, adds the strict
// fallback when it is asked for, and keeps the record of what was chosen and how often a fallback happened.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "nsa/flags.hpp"
#include "nsa/ops.hpp"
#include "nsa/parts.hpp"
#include "nsa/route.hpp"

namespace nsa {

// What the model asks once per attention layer and forward pass.
using OpsProvider = std::function<Ops(const Call&)>;
// Changes a table before anything looks at it or counts it: what a test puts under the strict fallback.
using OpsChange = std::function<Ops(Ops, const Call&)>;

// The functions of one backend as it is by itself: sdpa gathers into fresh tensors (packed_safe), flash takes the
// dense entry and leaves to sdpa what it does not serve.
[[nodiscard]] Ops backend_ops(Backend backend, const OnLaunch& on_launch = {});

// NSA_STRICT_ASSERTS: a part's output that was not finite, of which the first place is told.
struct Fallback {
  Op op = Op::compress;
  std::vector<std::int64_t> shape, index;  // of the output, and where in it the first NaN or infinity stands
  double value = 0;                        // what stands there
};
struct Fallbacks {
  std::int64_t times = 0;  // all, also where the reference's output was not finite either (as of inputs that are not)
  std::int64_t replaced = 0;  // where the reference's was finite: the function is at fault
  Fallback first;             // the first that was replaced; without one, the first of all
};

// Thread-safe. The tables that it gives may outlive it.
class Dispatcher {
 public:
  explicit Dispatcher(EffectiveFlags flags);
  Dispatcher(EffectiveFlags flags, OpsChange change);
  [[nodiscard]] Ops ops(const Call& call);  // its functions record themselves when they are called
  [[nodiscard]] Ops ops(Backend backend);   // those of backend_ops, recorded; the flags play no part
  [[nodiscard]] OpsProvider provider();     // a copyable handle; shares this dispatcher's record

  [[nodiscard]] const EffectiveFlags& flags() const;
  // What really ran, function by function. Attention in one calls no part (`attend` by cuda/in_one); where a part was
  // replaced, `attend` itself is another one and not listed, but the parts are.
  [[nodiscard]] std::vector<Taken> routes_taken() const;
  // For a model's Runtime: what ran of its parts outside the table.
  [[nodiscard]] const std::shared_ptr<PartRecord>& parts() const;
  // NSA_STRICT_ASSERTS: op -> how often its output was not finite and the reference's was taken instead, and the first
  // time. A value that is not finite there either stays so: nothing is ever replaced by a number that nobody computed.
  [[nodiscard]] std::map<std::string, Fallbacks> strict_fallbacks() const;

 private:
  // Goes to the record of the choice, which is counted before its function is called.
  [[nodiscard]] OnLaunch launches(std::shared_ptr<const Route> chosen) const;
  [[nodiscard]] Ops recorded(const Ops& table, const Route& chosen) const;

  struct State;
  std::shared_ptr<State> state_;
};

// routes_taken() and parts() as rows of one JSON array, of whichever library type.
template <typename Json>
[[nodiscard]] Json rows_taken(const Dispatcher& dispatcher) {
  Json rows = dispatcher.routes_taken();
  for (const PartTaken& part : dispatcher.parts()->taken()) rows.push_back(part);
  return rows;
}

// NSA_STRICT_ASSERTS: a table in which a part whose output is not finite is computed again by the
// reference, after `count` was told; `attend` goes part by part. Waits for the device at every part.
// Choices of blocks are not looked at.
[[nodiscard]] Ops strict(const Ops& table, const std::function<void(const Fallback&, bool replaced)>& count);

// Assembles the table that `route` describes; no record, no strict fallback. Throws std::logic_error for a variant that
// the backend does not have.
[[nodiscard]] Ops assemble(const Route& route, const EffectiveFlags& flags, const OnLaunch& on_launch = {});

}  // namespace nsa
