#include "nsa/dispatch.hpp"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <mutex>
#include <stdexcept>

#include "nsa/cuda/cuda.hpp"
#include "nsa/flash/flash.hpp"
#include "nsa/reference/reference.hpp"
#include "nsa/sdpa/sdpa.hpp"

namespace nsa {

struct Dispatcher::State {
  EffectiveFlags flags;
  mutable std::mutex mutex;
  std::map<std::string, std::int64_t> routes, fallbacks;

  void count(std::map<std::string, std::int64_t>& record, const std::string& key) {
    const std::lock_guard lock(mutex);
    ++record[key];
  }
};

namespace {

[[noreturn]] void unknown_variant(const Choice& choice) {
  throw std::logic_error(fmt::format("backend {} has no variant '{}'", to_string(choice.backend), choice.variant));
}

sdpa::Selection selection_of(const Choice& choice) {
  if (choice.variant == "packed") return sdpa::Selection::packed;
  if (choice.variant.empty() || choice.variant == "packed_safe") return sdpa::Selection::packed_safe;
  if (choice.variant == "masked") return sdpa::Selection::masked;
  unknown_variant(choice);
}

flash::Entry entry_of(const Choice& choice) {
  if (choice.variant.empty() || choice.variant == "dense") return flash::Entry::dense;
  if (choice.variant == "varlen") return flash::Entry::varlen;
  unknown_variant(choice);
}

// The table of one choice, of which only the chosen function is taken.
Ops table_of(const Choice& choice) {
  switch (choice.backend) {
    case Backend::reference:
      return reference::ops();
    case Backend::sdpa:
      return sdpa::ops(selection_of(choice));
    case Backend::flash:
      return flash::ops(entry_of(choice));
    case Backend::cuda:
      if (!choice.variant.empty()) unknown_variant(choice);
      return cuda::ops();
  }
  unknown_variant(choice);
}

bool finite(const at::Tensor& value) { return at::isfinite(value).all().item<bool>(); }
bool finite(const Attended& value) { return finite(value.o); }  // an LSE may be -inf
bool finite(const Compressed& value) { return finite(value.k) && finite(value.v); }

template <typename Result, typename Args>
void guard(std::function<Result(const Args&)>& op, std::function<Result(const Args&)> oracle,
           std::function<void()> count) {
  op = [op = std::move(op), oracle = std::move(oracle), count = std::move(count)](const Args& args) {
    Result result = op(args);
    if (finite(result)) return result;
    count();
    return oracle(args);
  };
}

}  // namespace

Ops strict(Ops table, std::function<void(Op)> count) {
  const Ops oracle = reference::ops();
  const auto counted = [&](Op op) { return [count, op] { count(op); }; };
  guard(table.compress, oracle.compress, counted(Op::compress));
  guard(table.attend_compressed, oracle.attend_compressed, counted(Op::attend_compressed));
  guard(table.attend_selected, oracle.attend_selected, counted(Op::attend_selected));
  guard(table.attend_window, oracle.attend_window, counted(Op::attend_window));
  guard(table.combine, oracle.combine, counted(Op::combine));
  return table;
}

Ops backend_ops(Backend backend) { return table_of({.backend = backend, .variant = "", .why = ""}); }

Ops assemble(const Route& route, const EffectiveFlags& /*flags*/) {
  return {table_of(route[Op::compress]).compress,
          table_of(route[Op::attend_compressed]).attend_compressed,
          table_of(route[Op::select]).select,
          table_of(route[Op::attend_selected]).attend_selected,
          table_of(route[Op::attend_window]).attend_window,
          table_of(route[Op::combine]).combine};
}

Dispatcher::Dispatcher(EffectiveFlags flags) : state_(std::make_shared<State>()) { state_->flags = std::move(flags); }

Ops Dispatcher::ops(const Call& call) {
  const Route chosen = route(state_->flags, call);
  for (const Op op : kAllOps) {
    const auto& [backend, variant, why] = chosen[op];
    state_->count(state_->routes, fmt::format("{}: {}{}{} ({})", to_string(op), to_string(backend),
                                              variant.empty() ? "" : "/", variant, why));
  }
  Ops table = assemble(chosen, state_->flags);
  // With NSA_FORCE_PARITY the reference would only be asked twice.
  if (!state_->flags.strict_asserts || state_->flags.force_parity) return table;
  return strict(std::move(table),
                [state = state_](Op op) { state->count(state->fallbacks, std::string(to_string(op))); });
}

OpsProvider Dispatcher::provider() {
  return [handle = *this](const Call& call) mutable { return handle.ops(call); };
}

const EffectiveFlags& Dispatcher::flags() const { return state_->flags; }

std::map<std::string, std::int64_t> Dispatcher::routes_taken() const {
  const std::lock_guard lock(state_->mutex);
  return state_->routes;
}

std::map<std::string, std::int64_t> Dispatcher::strict_fallbacks() const {
  const std::lock_guard lock(state_->mutex);
  return state_->fallbacks;
}

}  // namespace nsa
