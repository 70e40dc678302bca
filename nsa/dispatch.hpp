// From flags to a filled ops table, call by call: routes, assembles the chosen backends' functions, adds the strict
// fallback when it is asked for, and keeps the record of what was chosen and how often a fallback happened.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "nsa/flags.hpp"
#include "nsa/ops.hpp"
#include "nsa/route.hpp"

namespace nsa {

// What the model asks once per attention layer and forward pass.
using OpsProvider = std::function<Ops(const Call&)>;

// The six functions of one backend as it is by itself: sdpa gathers into fresh tensors (packed_safe), flash takes the
// dense entry and leaves to sdpa what it does not serve.
[[nodiscard]] Ops backend_ops(Backend backend);

// Thread-safe. The tables that it gives may outlive it.
class Dispatcher {
 public:
  explicit Dispatcher(EffectiveFlags flags);
  [[nodiscard]] Ops ops(const Call& call);  // records the route
  [[nodiscard]] OpsProvider provider();     // a copyable handle; shares this dispatcher's record

  [[nodiscard]] const EffectiveFlags& flags() const;
  // "attend_window: flash/varlen (why)" -> calls
  [[nodiscard]] std::map<std::string, std::int64_t> routes_taken() const;
  // NSA_STRICT_ASSERTS: op -> times that its output was not finite and the reference's was taken instead. A value that
  // is not finite there either stays so: nothing is ever replaced by a number that nobody computed.
  [[nodiscard]] std::map<std::string, std::int64_t> strict_fallbacks() const;

 private:
  struct State;
  std::shared_ptr<State> state_;
};

// NSA_STRICT_ASSERTS: a table in which an op whose output is not finite is computed again by the reference, after
// `count` was told. Waits for the device at every op. Choices of blocks are not looked at.
[[nodiscard]] Ops strict(Ops table, std::function<void(Op)> count);

// Assembles the table that `route` describes; no record, no strict fallback. Throws std::logic_error for a variant that
// the backend does not have.
[[nodiscard]] Ops assemble(const Route& route, const EffectiveFlags& flags);

}  // namespace nsa
