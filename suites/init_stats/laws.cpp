#include <ATen/ATen.h>
#include <fmt/format.h>

#include <map>

#include "harness/compare.hpp"
#include "suites/codes.hpp"
#include "suites/init_stats/checks.hpp"
#include "suites/init_stats/law.hpp"
#include "suites/init_stats/sample.hpp"
#include "suites/init_stats/tokens.hpp"

namespace suites::init_checks {

namespace {

using init_laws::Bound;
using init_laws::Expected;
using init_laws::Statistics;

constexpr std::int64_t kBoundsPerSample = 4;

// What a sample violates, in words; empty when it follows its law.
std::string violations(const std::vector<Bound>& bounds) {
  std::string text;
  for (const Bound& b : bounds) {
    if (harness::within(b.value, b.low, b.high)) continue;
    text +=
        fmt::format("{}{} {:.6g} outside [{:.6g}, {:.6g}]", text.empty() ? "" : ", ", b.what, b.value, b.low, b.high);
  }
  return text;
}

Json to_json(const Statistics& s) {
  return {{"n", s.n},
          {"mean", reports::number(s.mean)},
          {"std", reports::number(s.deviation)},
          {"min", reports::number(s.minimum)},
          {"max", reports::number(s.maximum)},
          {"kurtosis", reports::number(s.kurtosis)}};
}

// Rows that are exactly zero, of a law that gives each value with probability 0: too few for the moments to see.
std::string zero_rows(const at::Tensor& values, const init_laws::Law& law) {
  if (!law.random() || values.dim() < 2) return "";
  const at::Tensor zero = values.flatten(1).ne(0).any(1).logical_not().nonzero();
  if (zero.size(0) == 0) return "";
  return fmt::format("{} of {} rows are zero, the first is row {}", zero.size(0), values.size(0),
                     zero[0][0].item<std::int64_t>());
}

// The judgement over all samples, told as one finding: a changed law shows in every layer.
class Jury {
 public:
  Jury(Context& context, double alarm, double rounding) : context_(context), alarm_(alarm), rounding_(rounding) {}

  Statistics hear(const std::string& name, const at::Tensor& values, const init_laws::Law& law) {
    context_.progress();
    const Statistics s = init_laws::measure(values, law);
    std::string what = violations(init_laws::bounds(s, law, alarm_, rounding_));
    if (what.empty()) what = zero_rows(values, law);
    if (!what.empty()) {
      if (first_.empty()) first_ = fmt::format("{} ({}): {}", name, law.from, what);
      Json row = {{"parameter", name}, {"law", law.from}, {"law_std", law.deviation()}, {"violated", what}};
      row.update(to_json(s));
      violated_.push_back(row);
    }
    return s;
  }

  void sentence(std::int64_t samples) {
    context_.metric("parameters_off_their_law", static_cast<double>(violated_.size()), "samples");
    Json evidence = {{"violations", violated_}, {"false_alarm", kFalseAlarm}};
    if (!violated_.empty())
      for (const char* key : {"parameter", "law", "violated"}) evidence[key] = violated_[0].at(key);
    context_.expect(
        "laws", violated_.empty(),
        fmt::format("{} of {} samples do not follow their law; the first is {}", violated_.size(), samples, first_),
        codes::kParameterLaw, evidence);
  }

 private:
  Context& context_;
  double alarm_, rounding_;
  Json violated_ = Json::array();
  std::string first_;
};

bool is_gate_output(const Expected& e) { return e.role.ends_with("gate.fc2.weight"); }
bool all_zero(const at::Tensor& t) { return t.count_nonzero().item<std::int64_t>() == 0; }

void tell_zero_gates(Context& context, const std::vector<std::string>& zero, std::int64_t layers) {
  std::string names;
  for (const std::string& name : zero) names += (names.empty() ? "" : ", ") + name;
  context.expect(
      "gate.fc2", zero.empty(),
      fmt::format("the gate's last layer is exactly zero in {} of {} layers ({}): its gates are {} for every "
                  "token",
                  zero.size(), layers, names, "1/3"),
      codes::kGateZeroInit, {{"parameters", zero}, {"layers", layers}});
}

}  // namespace

void laws(Context& context, const ModelOptions& options, nsa::LanguageModelImpl& model) {
  const at::NoGradGuard no_grad;
  const auto parameters = model.named_parameters();
  const std::vector<Expected> expected = init_laws::expected_parameters(options.config);
  std::map<std::string, std::vector<at::Tensor>> by_role;
  std::map<std::string, init_laws::Law> law_of_role;
  std::vector<std::string> zero_gates;

  const double samples = 2 * static_cast<double>(expected.size());  // alone, and at most as many roles
  Jury jury(context, kFalseAlarm / (samples * kBoundsPerSample), rounding_of(options.precision));
  Json table = Json::object();
  context.phase("each parameter");
  for (const Expected& e : expected) {
    const at::Tensor* values = parameters.find(e.name);
    if (values == nullptr) continue;  // parameter_set tells
    if (is_gate_output(e) && all_zero(*values)) {
      zero_gates.push_back(e.name);  // named for what it is, not as one more sample off its law
      table[e.name] = {{"mean", 0.0}, {"std", 0.0}, {"law_std", e.law.deviation()}};
      continue;
    }
    const Statistics s = jury.hear(e.name, *values, e.law);
    table[e.name] = {
        {"mean", reports::number(s.mean)}, {"std", reports::number(s.deviation)}, {"law_std", e.law.deviation()}};
    by_role[e.role].push_back(values->flatten());
    law_of_role.insert_or_assign(e.role, e.law);
  }
  context.phase("all layers together");
  for (const auto& [role, tensors] : by_role) {
    if (tensors.size() > 1) (void)jury.hear(role, at::cat(tensors), law_of_role.at(role));
  }
  context.fact("parameters", table);
  tell_zero_gates(context, zero_gates, options.config.n_layers);
  jury.sentence(static_cast<std::int64_t>(table.size()));
}

}  // namespace suites::init_checks
