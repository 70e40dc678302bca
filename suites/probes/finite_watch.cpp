#include "suites/probes/finite_watch.hpp"

#include <ATen/ATen.h>

#include <cmath>
#include <limits>
#include <mutex>

namespace suites::probes {

namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();

struct Record {
  std::string name;
  bool backward = false, parameter = false;
  at::Tensor largest;  // [rows] or [], fp32 (fp64 for fp64)
};

bool worth_a_look(const at::Tensor& t) {
  return t.defined() && t.is_floating_point() && t.layout() == at::kStrided && t.numel() > 0;
}

// The largest |x| of each row, [rows]; of all without rows. A log-sum-exp may be -inf: there the largest x, or 0.
at::Tensor largest_by_row(std::string_view name, const at::Tensor& value, bool backward) {
  const at::Tensor t = value.detach();
  const std::int64_t row = stage_layout(name, t.dim()).row;
  std::vector<std::int64_t> others;
  for (std::int64_t i = 0; i < t.dim(); ++i) {
    if (i != row) others.push_back(i);
  }
  if (is_lse(name) && !backward) return t.amax(others).clamp_min(0);
  const auto wide = t.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  return at::linalg_vector_norm(t, kInf, others, /*keepdim=*/false, wide);
}

// All records end to end, on the device.
at::Tensor joined(const std::vector<Record>& records) {
  std::vector<at::Tensor> parts;
  parts.reserve(records.size());
  for (const Record& record : records) parts.push_back(record.largest.view({-1}));
  return at::cat(parts);
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
    found.rows.push_back(i);
  }
  if (record.largest.dim() == 0) {
    found.rows.clear();  // it has none
  } else {
    found.place(rows, values.size(0));
  }
  return found;
}

}  // namespace

struct FiniteWatch::State {
  std::mutex mutex;  // hooks run on the thread of the backward pass
  std::uint64_t step = 0;
  std::vector<Record> forward, backward, parameters;

  void observe(const std::shared_ptr<State>& self, std::string_view name, const at::Tensor& value) {
    if (!worth_a_look(value)) return;
    const std::lock_guard lock(mutex);
    if (value.requires_grad()) {
      value.register_hook([self, step = step, name = std::string(name)](const at::Tensor& gradient) {
        self->arrive(step, name, gradient);
      });
    }
    const at::NoGradGuard no_grad;
    forward.push_back({std::string(name), false, false, largest_by_row(name, value, false)});
  }

  void arrive(std::uint64_t of_step, const std::string& name, const at::Tensor& gradient) {
    const std::lock_guard lock(mutex);
    if (of_step != step || !worth_a_look(gradient)) return;
    const at::NoGradGuard no_grad;
    backward.push_back({name, true, false, largest_by_row(name, gradient, true)});
  }

  [[nodiscard]] std::vector<Record> all() {
    const std::lock_guard lock(mutex);
    std::vector<Record> records = forward;
    records.insert(records.end(), backward.begin(), backward.end());
    records.insert(records.end(), parameters.begin(), parameters.end());
    return records;
  }
};

FiniteWatch::FiniteWatch() : state_(std::make_shared<State>()) {}

void FiniteWatch::begin() {
  const std::lock_guard lock(state_->mutex);
  ++state_->step;
  state_->forward.clear();
  state_->backward.clear();
  state_->parameters.clear();
}

void FiniteWatch::observe(std::string_view name, const at::Tensor& value) { state_->observe(state_, name, value); }

Observing::Observer FiniteWatch::observer() {
  return [state = state_](std::string_view name, const at::Tensor& value) { state->observe(state, name, value); };
}

void FiniteWatch::look_at_gradients(const torch::nn::Module& module) {
  const at::NoGradGuard no_grad;
  std::vector<std::string> names;
  std::vector<at::Tensor> gradients;
  for (const auto& parameter : module.named_parameters()) {
    const at::Tensor& gradient = parameter.value().grad();
    if (!worth_a_look(gradient)) continue;
    names.push_back(parameter.key());
    gradients.push_back(gradient);
  }
  if (gradients.empty()) return;
  const std::vector<at::Tensor> largest = at::_foreach_norm(gradients, kInf);  // a few launches for all of them
  const std::lock_guard lock(state_->mutex);
  state_->parameters.clear();
  for (std::size_t i = 0; i < names.size(); ++i) state_->parameters.push_back({names[i], true, true, largest[i]});
}

std::optional<NonFinite> FiniteWatch::read(const RowMap& rows) const {
  const std::vector<Record> records = state_->all();
  if (records.empty()) return std::nullopt;
  const at::NoGradGuard no_grad;
  const at::Tensor all = joined(records);
  if (all.isfinite().all().item<bool>()) return std::nullopt;

  const at::Tensor host = all.to(at::kCPU, at::kDouble);
  std::int64_t first = 0;
  for (const Record& record : records) {
    const at::Tensor own = host.narrow(0, first, record.largest.numel());
    first += record.largest.numel();
    if (!own.isfinite().all().item<bool>()) return describe(record, own, rows);
  }
  return std::nullopt;
}

std::vector<FiniteWatch::Peak> FiniteWatch::peaks() const {
  const std::vector<Record> records = state_->all();
  if (records.empty()) return {};
  const at::NoGradGuard no_grad;
  const at::Tensor host = joined(records).to(at::kCPU, at::kDouble);
  std::vector<Peak> result;
  std::int64_t first = 0;
  for (const Record& record : records) {
    const at::Tensor own = host.narrow(0, first, record.largest.numel());
    first += record.largest.numel();
    result.push_back({record.name, record.backward, record.parameter, own.max().item<double>()});  // a NaN stays one
  }
  return result;
}

}  // namespace suites::probes
