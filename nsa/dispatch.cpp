#include "nsa/dispatch.hpp"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <utility>

#include "nsa/cuda/cuda.hpp"
#include "nsa/flash/flash.hpp"
#include "nsa/reference/reference.hpp"
#include "nsa/sdpa/sdpa.hpp"

namespace nsa {

struct Dispatcher::State {
  EffectiveFlags flags;
  OpsChange change;
  mutable std::mutex mutex;
  struct Ran {
    std::int64_t calls = 0;
    std::vector<Launched> kernels;
  };
  std::map<std::pair<Op, Choice>, Ran> routes;
  std::map<std::string, Fallbacks> fallbacks;
  std::shared_ptr<PartRecord> parts = std::make_shared<PartRecord>();

  void count(Op op, const Choice& choice) {
    const std::lock_guard lock(mutex);
    ++routes[{op, choice}].calls;
  }
  void launched(Op op, const Choice& choice, const Launched& kernel) {
    const std::lock_guard lock(mutex);
    const auto row = routes.find({op, choice});
    if (row == routes.end()) return;  // of a function that was not called through the record
    auto& kernels = row->second.kernels;
    if (std::find(kernels.begin(), kernels.end(), kernel) == kernels.end()) kernels.push_back(kernel);
  }
  void count(const Fallback& fallback, bool replaced) {
    const std::lock_guard lock(mutex);
    Fallbacks& record = fallbacks[std::string(to_string(fallback.op))];
    if (record.times++ == 0 || (replaced && record.replaced == 0)) record.first = fallback;
    if (replaced) ++record.replaced;
  }
};

namespace {

[[noreturn]] void unknown_variant(const Choice& choice) {
  throw std::logic_error(
      fmt::format("backend {} has no variant '{}'", to_string(choice.backend), to_string(choice.variant)));
}

sdpa::Selection selection_of(const Choice& choice) {
  if (choice.variant == RouteVariant::packed) return sdpa::Selection::packed;
  if (choice.variant == RouteVariant::none || choice.variant == RouteVariant::packed_safe)
    return sdpa::Selection::packed_safe;
  if (choice.variant == RouteVariant::masked) return sdpa::Selection::masked;
  unknown_variant(choice);
}

flash::Entry entry_of(const Choice& choice) {
  if (choice.variant == RouteVariant::none || choice.variant == RouteVariant::dense) return flash::Entry::dense;
  if (choice.variant == RouteVariant::varlen) return flash::Entry::varlen;
  unknown_variant(choice);
}

// The table of one choice, of which only the chosen function is taken.
Ops table_of(const Choice& choice, const EffectiveFlags& flags, const OnLaunch& on_launch) {
  switch (choice.backend) {
    case Backend::reference:
      return reference::ops();
    case Backend::sdpa:
      return sdpa::ops(selection_of(choice));
    case Backend::flash:
      return flash::ops(entry_of(choice));
    case Backend::cuda:
      if (choice.variant != RouteVariant::none && choice.variant != RouteVariant::in_one) unknown_variant(choice);
      return cuda::ops(on_launch, flags.graph_calls);
  }
  unknown_variant(choice);
}

// The first place that is not finite; nothing where all is.
std::optional<Fallback> look(Op op, const at::Tensor& value) {
  const at::Tensor bad = at::isfinite(value).logical_not_();
  if (!bad.any().item<bool>()) return std::nullopt;
  const at::Tensor place = bad.nonzero()[0].cpu();
  Fallback found{op, value.sizes().vec(), {}, 0};
  at::Tensor element = value.detach();
  for (std::int64_t i = 0; i < place.numel(); ++i) {
    found.index.push_back(place[i].item<std::int64_t>());
    element = element.select(0, found.index.back());
  }
  found.value = element.item<double>();
  return found;
}
std::optional<Fallback> look(Op op, const Attended& value) { return look(op, value.o); }  // an LSE may be -inf
std::optional<Fallback> look(Op op, const Compressed& value) {
  auto found = look(op, value.k);
  return found ? found : look(op, value.v);
}

template <typename Result, typename Args>
OpFunction<Result, Args> guarded(Op op, OpFunction<Result, Args> function, OpFunction<Result, Args> oracle,
                                 std::function<void(const Fallback&, bool)> count) {
  return [op, function = std::move(function), oracle = std::move(oracle), count = std::move(count)](const Args& args) {
    Result result = function(args);
    const auto found = look(op, result);
    if (!found) return result;
    Result wanted = oracle(args);
    count(*found, !look(op, wanted));
    return wanted;
  };
}

}  // namespace

Ops strict(const Ops& table, const std::function<void(const Fallback&, bool)>& count) {
  const Ops oracle = reference::ops();
  return {guarded(Op::compress, table.compress, oracle.compress, count),
          guarded(Op::attend_compressed, table.attend_compressed, oracle.attend_compressed, count),
          table.select,
          guarded(Op::attend_selected, table.attend_selected, oracle.attend_selected, count),
          guarded(Op::attend_window, table.attend_window, oracle.attend_window, count),
          guarded(Op::combine, table.combine, oracle.combine, count)};
}

Ops backend_ops(Backend backend, const OnLaunch& on_launch) {
  return table_of({.backend = backend, .why = ""}, EffectiveFlags{}, on_launch);
}

Ops assemble(const Route& route, const EffectiveFlags& flags, const OnLaunch& on_launch) {
  const auto own = [&](Op op) { return table_of(route[op], flags, on_launch); };
  Ops parts{own(Op::compress).compress,
            own(Op::attend_compressed).attend_compressed,
            own(Op::select).select,
            own(Op::attend_selected).attend_selected,
            own(Op::attend_window).attend_window,
            own(Op::combine).combine};
  const Choice& attend = route[Op::attend];
  if (attend.variant == RouteVariant::in_parts) return parts;
  const Ops whole = own(Op::attend);
  if (whole.way != AttendWay::in_one) unknown_variant(attend);
  return parts.in_one(whole.attend);
}

Dispatcher::Dispatcher(EffectiveFlags flags) : Dispatcher(std::move(flags), {}) {}

Dispatcher::Dispatcher(EffectiveFlags flags, OpsChange change) : state_(std::make_shared<State>()) {
  state_->flags = std::move(flags);
  state_->change = std::move(change);
}

Ops Dispatcher::ops(const Call& call) {
  const auto chosen = std::make_shared<const Route>(route(state_->flags, call));
  Ops table = assemble(*chosen, state_->flags, launches(chosen));
  if (state_->change) table = state_->change(std::move(table), call);
  // With NSA_FORCE_PARITY the reference would only be asked twice.
  if (state_->flags.strict_asserts && !state_->flags.force_parity)
    table =
        strict(table, [state = state_](const Fallback& fallback, bool replaced) { state->count(fallback, replaced); });
  return recorded(table, *chosen);
}

Ops Dispatcher::ops(Backend backend) {
  const auto chosen = std::make_shared<Route>();
  const Ops table = backend_ops(backend, launches(chosen));
  for (const Op op : kAllOps) (*chosen)[op] = {backend, RouteVariant::none, "this backend by itself"};
  (*chosen)[Op::attend].variant = table.way == AttendWay::in_one ? RouteVariant::in_one : RouteVariant::in_parts;
  return recorded(table, *chosen);
}

OnLaunch Dispatcher::launches(std::shared_ptr<const Route> chosen) const {
  return [state = state_, chosen = std::move(chosen)](Op op, const Launched& kernel) {
    state->launched(op, (*chosen)[op], kernel);
  };
}

Ops Dispatcher::recorded(const Ops& table, const Route& chosen) const {
  const auto counted = [&]<typename Result, typename Args>(Op op, const OpFunction<Result, Args>& function) {
    return OpFunction<Result, Args>([state = state_, op, choice = chosen[op], function](const Args& args) {
      state->count(op, choice);
      return function(args);
    });
  };
  const Ops parts{counted(Op::compress, table.compress),
                  counted(Op::attend_compressed, table.attend_compressed),
                  counted(Op::select, table.select),
                  counted(Op::attend_selected, table.attend_selected),
                  counted(Op::attend_window, table.attend_window),
                  counted(Op::combine, table.combine)};
  if (table.way == AttendWay::in_one) return parts.in_one(counted(Op::attend, table.attend));
  Ops whole = parts;
  whole.replace(&Ops::attend, counted(Op::attend, parts.attend));
  return whole;
}

OpsProvider Dispatcher::provider() {
  return [handle = *this](const Call& call) mutable { return handle.ops(call); };
}

const EffectiveFlags& Dispatcher::flags() const { return state_->flags; }

std::vector<Taken> Dispatcher::routes_taken() const {
  const std::lock_guard lock(state_->mutex);
  std::vector<Taken> taken;
  for (const auto& [route, ran] : state_->routes) taken.push_back({route.first, route.second, ran.calls, ran.kernels});
  return taken;
}

const std::shared_ptr<PartRecord>& Dispatcher::parts() const { return state_->parts; }

std::map<std::string, Fallbacks> Dispatcher::strict_fallbacks() const {
  const std::lock_guard lock(state_->mutex);
  return state_->fallbacks;
}

}  // namespace nsa
