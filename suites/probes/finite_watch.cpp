#include "suites/probes/finite_watch.hpp"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/graph_task.h>

#include <cmath>
#include <functional>
#include <limits>
#include <mutex>
#include <utility>

namespace suites::probes {

namespace {

struct Record {
  std::string name;
  bool backward = false, parameter = false;
  bool rows = false;  // it has rows, and a number for each
  Maxima::Place place;
};

bool has_numbers(const at::Tensor& t) {
  return t.defined() && t.is_floating_point() && t.layout() == at::kStrided && t.numel() > 0;
}

NonFinite describe(const Record& record, const at::Tensor& largest, const RowMap& rows) {
  NonFinite found;
  found.ops_watched = false;
  found.backward = record.backward;
  if (record.parameter) {
    found.parameter = record.name;
  } else {
    found.stage = parse_stage(record.name);
  }
  const auto values = largest.accessor<double, 1>();
  for (std::int64_t i = 0; i < values.size(0); ++i) {
    if (std::isfinite(values[i])) continue;
    if (found.value.empty()) found.value = reports::number(values[i]).get<std::string>();
    if (record.rows) found.rows.push_back(i);
  }
  if (record.rows) found.place(rows, values.size(0));
  return found;
}

}  // namespace

struct FiniteWatch::State {
  std::mutex mutex;  // hooks run on the thread of the backward pass
  std::uint64_t step = 0;
  std::vector<Record> forward, backward, parameters;
  Maxima of_stages, of_parameters;
  int backward_pass = -1;  // autograd's number of the one at whose end what waits is looked at
  const torch::nn::Module* followed = nullptr;
  at::Tensor largest;  // of all that was seen when the last backward pass ended; undefined when more was seen since

  explicit State(Look look) : of_stages(look), of_parameters(look, std::numeric_limits<std::size_t>::max()) {}

  void observe(const std::shared_ptr<State>& self, std::string_view name, const at::Tensor& value) {
    if (!has_numbers(value)) return;
    const std::lock_guard lock(mutex);
    largest.reset();
    if (value.requires_grad()) {
      value.register_hook([self, step = step, name = std::string(name)](const at::Tensor& gradient) {
        self->arrive(self, step, name, gradient);
      });
    }
    forward.push_back(stage(name, value, false));
  }

  void arrive(const std::shared_ptr<State>& self, std::uint64_t of_step, const std::string& name,
              const at::Tensor& gradient) {
    const std::lock_guard lock(mutex);
    if (of_step != step || !has_numbers(gradient)) return;
    largest.reset();
    backward.push_back(stage(name, gradient, true));
    if (of_stages.waits() || followed != nullptr) look_at_the_end(self);
  }

  Record stage(std::string_view name, const at::Tensor& value, bool of_gradient) {
    const std::int64_t row = stage_layout(name, value.dim()).row;
    // A log-sum-exp may be -inf: there the largest x, or 0.
    const bool positive = is_lse(name) && !of_gradient;
    return {std::string(name), of_gradient, false, row >= 0, of_stages.add(name, {value, row, positive})};
  }

  // Of the backward pass, by autograd and on its caller's stream: within the capture of a CUDA graph the last moment.
  // Recomputation has passes within the pass.
  void look_at_the_end(const std::shared_ptr<State>& self) {
    const int pass = torch::autograd::get_current_graph_task_id();
    if (std::exchange(backward_pass, pass) == pass) return;
    torch::autograd::Engine::get_default_engine().queue_callback([self] {
      const std::lock_guard lock(self->mutex);
      self->of_stages.look();
      if (self->followed == nullptr) return;
      const at::NoGradGuard no_grad;
      self->look_at_gradients(*self->followed);
      self->largest = self->numbers().max();
    });
  }

  void look_at_gradients(const torch::nn::Module& module) {
    parameters.clear();
    of_parameters.clear();
    for (const auto& parameter : module.named_parameters()) {
      const at::Tensor& gradient = parameter.value().grad();
      if (!has_numbers(gradient)) continue;
      parameters.push_back({parameter.key(), true, true, false, of_parameters.add(parameter.key(), {gradient})});
    }
    of_parameters.look();
  }

  // The numbers of all records, end to end on the device; undefined without any.
  [[nodiscard]] at::Tensor numbers() {
    of_stages.look();
    std::vector<at::Tensor> parts;
    for (const Maxima* maxima : {&of_stages, &of_parameters})
      if (const at::Tensor some = maxima->all(); some.defined()) parts.push_back(some);
    return parts.size() > 1 ? at::cat(parts) : parts.empty() ? at::Tensor() : parts.front();
  }
  // Each record with its own of these numbers, in the order of read(), until `see` says no.
  void each(const at::Tensor& all, const std::function<bool(const Record&, const at::Tensor&)>& see) const {
    for (const auto* records : {&forward, &backward, &parameters}) {
      for (const Record& record : *records) {
        const auto [first, count] = (record.parameter ? of_parameters : of_stages).of(record.place);
        if (!see(record, all.narrow(0, first + (record.parameter ? of_stages.count() : 0), count))) return;
      }
    }
  }
};

FiniteWatch::FiniteWatch(Look look) : state_(std::make_shared<State>(look)) {}

void FiniteWatch::begin() {
  const std::lock_guard lock(state_->mutex);
  ++state_->step;
  state_->forward.clear();
  state_->backward.clear();
  state_->parameters.clear();
  state_->of_stages.clear();
  state_->of_parameters.clear();
  state_->largest.reset();
}

void FiniteWatch::observe(std::string_view name, const at::Tensor& value) { state_->observe(state_, name, value); }

Observing::Observer FiniteWatch::observer() {
  return [state = state_](std::string_view name, const at::Tensor& value) { state->observe(state, name, value); };
}

void FiniteWatch::look_at_gradients(const torch::nn::Module& module) {
  const std::lock_guard lock(state_->mutex);
  state_->largest.reset();
  state_->look_at_gradients(module);
}

void FiniteWatch::follow(const torch::nn::Module& module) {
  const std::lock_guard lock(state_->mutex);
  state_->followed = &module;
}

std::optional<NonFinite> FiniteWatch::read(const RowMap& rows) const {
  const std::lock_guard lock(state_->mutex);
  const at::NoGradGuard no_grad;
  // A NaN is the largest.
  if (state_->largest.defined() && std::isfinite(state_->largest.item<double>())) return std::nullopt;
  const at::Tensor all = state_->numbers();
  if (!all.defined() || std::isfinite(all.max().item<double>())) return std::nullopt;

  std::optional<NonFinite> found;
  state_->each(all.to(at::kCPU, at::kDouble), [&](const Record& record, const at::Tensor& own) {
    if (!own.isfinite().all().item<bool>()) found = describe(record, own, rows);
    return !found;
  });
  return found;
}

std::vector<FiniteWatch::Peak> FiniteWatch::peaks() const {
  const std::lock_guard lock(state_->mutex);
  const at::NoGradGuard no_grad;
  const at::Tensor all = state_->numbers();
  std::vector<Peak> peaks;
  if (!all.defined()) return peaks;
  state_->each(all.to(at::kCPU, at::kDouble), [&](const Record& record, const at::Tensor& own) {
    peaks.push_back({record.name, record.backward, record.parameter, own.max().item<double>()});  // a NaN stays one
    return true;
  });
  return peaks;
}

}  // namespace suites::probes
