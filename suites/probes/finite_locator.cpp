#include "suites/probes/finite_locator.hpp"

#include <ATen/ATen.h>

#include <atomic>
#include <cmath>
#include <limits>
#include <map>
#include <mutex>
#include <stdexcept>

#include "suites/probes/op_tap.hpp"

namespace suites::probes {

namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();

// An operation that made a non-finite value out of inputs without one, and when.
struct Maker {
  std::string op, node;
  std::int64_t sequence = -1;  // of the autograd node
  std::size_t moment = 0;      // forward: stages observed before; backward: stage gradients seen before
};

struct ForwardOp {
  std::string name;
  std::size_t stage;  // stages observed before it
};

}  // namespace

struct FiniteLocator::State {
  RowMap map;
  std::mutex mutex;
  bool in_backward = false;

  std::vector<std::string> stages;                          // forward, in order
  std::map<std::int64_t, ForwardOp> differentiable;         // by sequence number
  std::vector<std::pair<std::string, std::int64_t>> nodes;  // autograd nodes that are running, innermost last
  std::vector<Maker> forward_makers, backward_makers;

  std::size_t gradients_seen = 0;
  std::optional<NonFinite> bad_stage, bad_gradient;
  std::size_t bad_stage_moment = 0, bad_gradient_moment = 0;
};

namespace {

using State = FiniteLocator::State;

// RecordFunction's callbacks are plain functions; the one active locator is found here.
std::atomic<State*> active{nullptr};

bool worth_a_look(const at::Tensor& t) {
  return t.defined() && (t.is_floating_point() || t.is_complex()) && t.layout() == at::kStrided && t.numel() > 0 &&
         !t.is_meta() && !t.unsafeGetTensorImpl()->is_wrapped_number();
}

at::Tensor plain(const at::Tensor& t) {
  return t.is_complex() ? at::view_as_real(t.detach().resolve_conj()) : t.detach();
}

// NaN or +inf: amax propagates both, and lets the -inf of masks pass. A log-sum-exp that a fused attention kernel keeps
// for its backward pass ([B,H,S]) is padded with +inf, so there only NaN counts.
bool holds_nan_or_inf(const at::Tensor& t, bool attention) {
  if (!worth_a_look(t)) return false;
  const double top = plain(t).amax().item<double>();
  return std::isnan(top) || (top == kInf && !(attention && t.dim() == 3));
}

bool holds_nan_or_inf(const c10::IValue& value, bool attention) {
  if (value.isTensor()) return holds_nan_or_inf(value.toTensor(), attention);
  if (!value.isTensorList()) return false;
  for (const at::Tensor& t : value.toTensorVector()) {
    if (holds_nan_or_inf(t, attention)) return true;
  }
  return false;
}

bool any_holds(std::string_view op, c10::ArrayRef<c10::IValue> values) {
  const bool attention = op.find("_attention") != std::string_view::npos;
  for (const c10::IValue& value : values) {
    if (holds_nan_or_inf(value, attention)) return true;
  }
  return false;
}

// Fresh memory holds anything.
bool allocates(std::string_view op) {
  return op.starts_with("aten::empty") || op.starts_with("aten::new_empty") || op.starts_with("aten::resize") ||
         op.starts_with("aten::set_");
}
// What these write into is not an input: it may be fresh memory.
bool overwrites_first(std::string_view op) {
  return op == "aten::fill_" || op == "aten::copy_" || op == "aten::zero_" || op == "aten::uniform_" ||
         op == "aten::normal_";
}

c10::ArrayRef<c10::IValue> read_arguments(const at::RecordFunction& fn) {
  c10::ArrayRef<c10::IValue> arguments = fn.inputs();
  if (arguments.empty()) return arguments;
  if (overwrites_first(fn.name())) return arguments.slice(1);
  const bool writes_last = std::string_view(fn.overload_name()).find("out") != std::string_view::npos;
  return writes_last ? arguments.slice(0, arguments.size() - 1) : arguments;
}

struct OpBegun : at::ObserverContext {
  bool clean_inputs = false;
};

std::unique_ptr<at::ObserverContext> begin(const at::RecordFunction& fn) {
  State* const state = active;
  if (state == nullptr) return nullptr;
  const at::RecordFunctionGuard no_record(false);
  const at::NoGradGuard no_grad;
  if (fn.scope() == at::RecordScope::BACKWARD_FUNCTION) {
    const std::lock_guard lock(state->mutex);
    state->nodes.emplace_back(fn.name(), fn.seqNr());
    return nullptr;
  }
  auto begun = std::make_unique<OpBegun>();
  begun->clean_inputs = !allocates(fn.name()) && !any_holds(fn.name(), read_arguments(fn));
  const std::lock_guard lock(state->mutex);
  if (!state->in_backward && fn.seqNr() >= 0) {
    state->differentiable.try_emplace(fn.seqNr(), ForwardOp{fn.name(), state->stages.size()});
  }
  return begun;
}

void end(const at::RecordFunction& fn, at::ObserverContext* context) {
  State* const state = active;
  if (state == nullptr) return;
  const at::RecordFunctionGuard no_record(false);
  const at::NoGradGuard no_grad;
  if (fn.scope() == at::RecordScope::BACKWARD_FUNCTION) {
    const std::lock_guard lock(state->mutex);
    if (!state->nodes.empty()) state->nodes.pop_back();
    return;
  }
  const auto* const begun = static_cast<OpBegun*>(context);
  if (begun == nullptr || !begun->clean_inputs || !any_holds(fn.name(), fn.outputs())) return;
  const std::lock_guard lock(state->mutex);
  Maker maker;
  maker.op = fn.name();
  if (!state->nodes.empty()) std::tie(maker.node, maker.sequence) = state->nodes.back();
  maker.moment = state->in_backward ? state->gradients_seen : state->stages.size();
  (state->in_backward ? state->backward_makers : state->forward_makers).push_back(std::move(maker));
}

// Where in `value` something is not finite; nothing when all is well.
std::optional<NonFinite> look(const State& state, std::string_view name, const at::Tensor& value, bool backward) {
  if (!worth_a_look(value)) return std::nullopt;
  const at::Tensor t = plain(value);
  const bool lse = is_lse(name) && !backward;
  const at::Tensor bad = lse ? t.isnan().logical_or_(t == kInf) : t.isfinite().logical_not();
  if (!bad.any().item<bool>()) return std::nullopt;

  NonFinite found;
  found.backward = backward;
  found.stage = parse_stage(name);
  const double worst = t.flatten()[bad.flatten().to(at::kByte).argmax()].item<double>();
  found.value = reports::number(worst).get<std::string>();
  const StageLayout layout = stage_layout(name, t.dim());
  if (layout.row < 0) return found;

  std::vector<std::int64_t> others;
  for (std::int64_t i = 0; i < t.dim(); ++i) {
    if (i != layout.row) others.push_back(i);
  }
  const at::Tensor rows = (others.empty() ? bad : bad.any(at::IntArrayRef(others))).nonzero().flatten().cpu();
  for (std::int64_t i = 0; i < rows.numel(); ++i) found.rows.push_back(rows[i].item<std::int64_t>());
  found.place(state.map, t.size(layout.row));
  if (layout.head < 0) return found;
  const at::Tensor in_row = bad.select(layout.row, found.row).nonzero()[0].cpu();
  found.head = in_row[layout.head < layout.row ? layout.head : layout.head - 1].item<std::int64_t>();
  return found;
}

// The maker of what was first seen at `moment`: one caught since the look before, else the last one earlier (a value
// that hid in a place that is not observed).
const Maker* maker_of(const std::vector<Maker>& makers, std::size_t moment) {
  const Maker* earlier = nullptr;
  for (const Maker& maker : makers) {
    if (maker.moment == moment) return &maker;
    if (maker.moment < moment) earlier = &maker;
  }
  return earlier;
}

void name_maker(const State& state, const Maker& maker, NonFinite& found) {
  found.op = maker.op;
  found.node = maker.node;
  const auto forward = state.differentiable.find(maker.sequence);
  if (!found.backward || forward == state.differentiable.end()) return;
  found.forward_op = forward->second.name;
  if (forward->second.stage < state.stages.size()) found.forward_stage = state.stages[forward->second.stage];
}

void gradient_arrives(State& state, const std::string& name, const at::Tensor& gradient) {
  const at::RecordFunctionGuard no_record(false);
  const at::NoGradGuard no_grad;
  const std::lock_guard lock(state.mutex);
  if (!state.bad_gradient) {
    state.bad_gradient = look(state, name, gradient, true);
    state.bad_gradient_moment = state.gradients_seen;
  }
  ++state.gradients_seen;
}

}  // namespace

FiniteLocator::FiniteLocator(RowMap map) : state_(std::make_shared<State>()) {
  state_->map = std::move(map);
  State* nobody = nullptr;
  if (!active.compare_exchange_strong(nobody, state_.get())) {
    throw std::logic_error("a FiniteLocator is active already");
  }
  tap_ = std::make_unique<OpTap>(OpTap::Of::this_thread, begin, end,
                                 TapSees{.inputs = true, .outputs = true, .nodes = true});
}

FiniteLocator::~FiniteLocator() {
  tap_.reset();
  active = nullptr;
}

void FiniteLocator::observe(std::string_view name, const at::Tensor& value) {
  const at::RecordFunctionGuard no_record(false);
  if (value.requires_grad()) {
    value.register_hook([state = state_, name = std::string(name)](const at::Tensor& gradient) {
      gradient_arrives(*state, name, gradient);
    });
  }
  const at::NoGradGuard no_grad;
  const std::lock_guard lock(state_->mutex);
  if (!state_->bad_stage) {
    state_->bad_stage = look(*state_, name, value, false);
    state_->bad_stage_moment = state_->stages.size();
  }
  state_->stages.emplace_back(name);
}

void FiniteLocator::begin_backward() {
  const std::lock_guard lock(state_->mutex);
  state_->in_backward = true;
}

bool FiniteLocator::forward_is_bad() const { return state_->bad_stage.has_value(); }

std::optional<NonFinite> FiniteLocator::first() const {
  const std::lock_guard lock(state_->mutex);
  std::optional<NonFinite> found = state_->bad_stage;
  if (found) {
    const Maker* const maker = maker_of(state_->forward_makers, state_->bad_stage_moment);
    if (maker != nullptr) name_maker(*state_, *maker, *found);
    return found;
  }
  found = state_->bad_gradient;
  const std::vector<Maker>& makers = state_->backward_makers;
  const Maker* maker = found ? maker_of(makers, state_->bad_gradient_moment) : nullptr;
  if (!found && !makers.empty()) {  // it reached a parameter, but no observed stage
    maker = &makers.front();
    found.emplace();
    found->backward = true;
  }
  if (!found || maker == nullptr) return found;
  name_maker(*state_, *maker, *found);
  if (found->stage.name.empty()) found->stage = parse_stage(found->forward_stage);
  return found;
}

}  // namespace suites::probes
