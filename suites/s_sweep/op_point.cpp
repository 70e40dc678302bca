#include "suites/s_sweep/op_point.hpp"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <variant>

#include "suites/codes.hpp"
#include "suites/probes/finite_locator.hpp"
#include "suites/probes/unwritten_memory.hpp"
#include "suites/s_sweep/op_choice.hpp"
#include "suites/s_sweep/op_run.hpp"

namespace suites::s_sweep_cases {

namespace {

using harness::Json;
using oracle::Rows;
using probes::Diagnosis;

// One tensor of the results, and what to hold it against.
struct Looked {
  std::string name;  // "o", "gradient of k"
  bool gradient = false, lse = false;
  at::Tensor value, reference;  // the latter may be undefined: nothing overflows
  at::Tensor valid;             // bool, broadcastable; undefined: everything
};

at::Tensor valid_of(const OpInput& input, Rows rows, const at::Tensor& value, bool lse) {
  if (rows == Rows::none) return {};
  const at::Tensor& valid = rows == Rows::blocks ? input.valid_blocks : input.valid_tokens;
  if (lse) return valid.unsqueeze(1);  // [B,Hq,S]
  std::vector<std::int64_t> sizes(static_cast<std::size_t>(value.dim()), 1);
  sizes[0] = valid.size(0);
  sizes[1] = valid.size(1);
  return valid.view(sizes);
}

std::vector<Looked> everything(const OpInput& input, const OpResults& results, const OpResults* reference) {
  const oracle::OpCase& c = input.clean;
  std::vector<Looked> all;
  for (std::size_t i = 0; i < results.outputs.size(); ++i) {
    const at::Tensor& value = results.outputs[i];
    if (!value.defined() || value.numel() == 0) continue;
    const bool lse = c.output_names[i] == "lse";
    all.push_back({c.output_names[i], false, lse, value, reference ? reference->outputs[i] : at::Tensor(),
                   valid_of(input, c.output_rows, value, lse)});
  }
  for (std::size_t i = 0; i < results.gradients.size(); ++i) {
    const at::Tensor& value = results.gradients[i];
    if (!value.defined() || value.numel() == 0) continue;
    // What all rows share, as the weights of phi, sums over padding as well: 0 * NaN there is right.
    if (c.input_rows[i] == Rows::none && !input.valid_tokens.all().item<bool>()) continue;
    all.push_back({"gradient of " + c.input_names[i], true, false, value,
                   reference ? reference->gradients[i] : at::Tensor(), valid_of(input, c.input_rows[i], value, false)});
  }
  return all;
}

// Where `looked` is not what it must be: non-finite without a reason, or finite where the reference overflows.
struct Faults {
  at::Tensor wrong, hidden;  // bool, of value's shape
};
Faults faults_of(const Looked& looked, bool meant_to_overflow) {
  at::Tensor bad = looked.value.isfinite().logical_not();
  if (looked.lse) bad = looked.value.isnan().logical_or(looked.value.isposinf());
  at::Tensor hidden = at::zeros_like(bad);
  if (looked.reference.defined()) {
    const double end = largest(looked.value.scalar_type());
    const at::Tensor size = looked.reference.abs();
    const at::Tensor beyond = size.ge(4 * end);
    if (looked.lse) bad = bad.logical_or(looked.value.isneginf().ne(looked.reference.isneginf()));
    hidden = looked.value.isfinite().logical_and(beyond).logical_and(looked.reference.isfinite());
    bad = meant_to_overflow ? at::zeros_like(bad)
                            : bad.logical_and(size.lt(end / 4).logical_or(looked.reference.isneginf()));
  }
  if (looked.valid.defined()) {
    bad = bad.logical_and(looked.valid);
    hidden = hidden.logical_and(looked.valid);
  }
  return {bad, hidden};
}

std::int64_t first_row(const at::Tensor& bad, bool lse) {
  const at::Tensor index = bad.nonzero()[0].cpu();
  return index.numel() < 2 ? -1 : index[lse ? 2 : 1].item<std::int64_t>();
}

// Whether all is finite, without the reference; one wait for the device.
bool plainly_finite(const std::vector<Looked>& all) {
  std::vector<at::Tensor> bad;
  for (const Looked& looked : all) bad.push_back(faults_of(looked, false).wrong.any());
  return bad.empty() || !at::stack(bad).any().item<bool>();
}

// The first tensor at fault.
struct Seen {
  Looked looked;
  bool hidden = false;
  std::int64_t row = -1, count = 0;
  double reference = 0;  // at the first place, where it was computed
};
std::optional<Seen> first_fault(const std::vector<Looked>& all, bool meant_to_overflow) {
  for (const Looked& looked : all) {
    const Faults faults = faults_of(looked, meant_to_overflow);
    for (const bool hidden : {false, true}) {
      const at::Tensor& where = hidden ? faults.hidden : faults.wrong;
      const std::int64_t count = where.sum().item<std::int64_t>();
      if (count == 0) continue;
      Seen seen{looked, hidden, first_row(where, looked.lse), count, 0};
      if (looked.reference.defined()) seen.reference = looked.reference.masked_select(where)[0].item<double>();
      return seen;
    }
  }
  return std::nullopt;
}

std::string words(const OpPoint& point, const OpInput& input, const Seen& seen) {
  const std::string_view why = point.input.content == Content::poison ? "it may not see the NaN in padding"
                               : seen.looked.reference.defined()      ? "the reference is finite there"
                                                                      : "nothing there may overflow";
  if (seen.hidden) {
    return fmt::format("{} ({}): {} is finite at row {} and {} more places where the reference overflows ({:.3g})",
                       input.clean.name(), point.way, seen.looked.name, seen.row, seen.count - 1, seen.reference);
  }
  return fmt::format("{} ({}): {} is not finite at row {} and {} more places, although {}", input.clean.name(),
                     point.way, seen.looked.name, seen.row, seen.count - 1, why);
}

class Trial {
 public:
  Trial(const Subject& subject, const OpPoint& point, const OpTrial& trial)
      : point_(point),
        locate_(trial.locate),
        input_(make_input(point.input, trial.device, trial.seed)),
        ops_(oracle::ops_of(subject, way_named(point.way), input_.clean.shape, point.input.op, point.input.dtype,
                            trial.device)),
        backward_(way_named(point.way).gradients && !forward_only(point.input.content)) {}

  std::optional<Diagnosis> diagnose() {
    OpResults results = attempt();
    if (is(Content::stale_memory) && plainly_finite(everything(input_, results, nullptr))) {
      stale_ = true;
      results = attempt();
    }
    if (point_.input.op == nsa::Op::select) {
      const bool poisoned = is(Content::poison);
      return diagnose_choice(
          input_, point_.way, results.outputs[0],
          poisoned ? run_op(input_, ops_, {.given = input_.clean.inputs}).outputs[0] : results.outputs[0]);
    }
    const bool overflow = is(Content::overflow);
    if (!overflow && plainly_finite(everything(input_, results, nullptr))) return std::nullopt;
    const OpResults reference = run_reference(input_, backward_);
    const auto seen = first_fault(everything(input_, results, &reference), overflow);
    return seen ? std::optional(explain(*seen)) : std::nullopt;
  }

 private:
  [[nodiscard]] bool is(Content content) const { return point_.input.content == content; }

  [[nodiscard]] OpResults attempt(RunOptions options = {}) const {
    // 0 first, not memory as it comes, which may hold the NaN of an earlier attempt.
    std::variant<std::monostate, probes::ZeroMemory, probes::StaleMemory> unwritten;
    if (stale_) {
      unwritten.emplace<probes::StaleMemory>();
    } else if (is(Content::stale_memory)) {
      unwritten.emplace<probes::ZeroMemory>();
    }
    options.given = input_.given;
    options.backward = backward_;
    return run_op(input_, ops_, options);
  }

  Diagnosis explain(const Seen& seen) {
    const std::string what = words(point_, input_, seen);
    Json evidence = {{"op", input_.clean.name()},
                     {"branch", input_.clean.branch()},
                     {"backend", point_.way},
                     {"tensor", seen.looked.name},
                     {"row", seen.row},
                     {"places", seen.count},
                     {"reference", reports::number(seen.reference)}};
    if (seen.hidden) return {std::string(codes::kOverflowHidden), what, evidence};
    if (is(Content::poison)) return {std::string(codes::kPoisonLeak), what, evidence};
    const auto found = locate_ ? locate() : std::nullopt;
    if (found) evidence.update(found->evidence());
    if (stale_) {
      return {std::string(codes::kUninitialisedRead), what + "; with 0 in memory that nobody has written it was finite",
              evidence};
    }
    if (!locate_) return {std::string(codes::kNonFiniteForward), what, evidence};
    if (!found) {
      return {std::string(codes::kNonFiniteOnce), what + "; it was finite when it was repeated", evidence};
    }
    return {std::string(code_of(*found)), what + ": " + found->describe(), evidence};
  }

  // Once more, every operation looked at.
  [[nodiscard]] std::optional<probes::NonFinite> locate() const {
    probes::FiniteLocator locator({point_.input.geometry, input_.clean.shape.S, input_.clean.shape.cu_seqlens});
    const std::string prefix = input_.clean.branch().empty() ? "combine" : input_.clean.branch();
    (void)attempt({.observe = [&](const std::string& name,
                                  const at::Tensor& value) { locator.observe(prefix + "." + name, value); },
                   .begin_backward = [&] { locator.begin_backward(); }});
    return locator.first();
  }

  const OpPoint& point_;
  bool locate_;
  bool stale_ = false;  // finite with 0 in memory that nobody has written, now tried with NaN there
  OpInput input_;
  nsa::Ops ops_;
  bool backward_;
};

}  // namespace

std::optional<Diagnosis> diagnose_op(const Subject& subject, const OpPoint& point, const OpTrial& trial) {
  return Trial(subject, point, trial).diagnose();
}

}  // namespace suites::s_sweep_cases
