#include <ATen/ATen.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>

#include "suites/autograd/cases.hpp"
#include "suites/autograd/op_watch.hpp"
#include "suites/codes.hpp"
#include "suites/probes/autograd_errors.hpp"
#include "suites/probes/finite_check.hpp"

namespace suites::autograd_cases {

namespace {

using harness::Context;
using harness::Json;

Json to_json(const std::vector<OpWatch::Written>& written) {
  Json rows = Json::array();
  for (const auto& w : written) {
    rows.push_back({{"layer", w.layer},
                    {"op", w.op},
                    {"tensor", w.tensor},
                    {"version_before", w.before},
                    {"version_after", w.after},
                    {"when", w.when}});
  }
  return rows;
}

// "layer 0, attend_window, input v: written in place after the op (version 3 -> 4)"; "" when nothing was.
std::string first_write(const std::vector<OpWatch::Written>& written) {
  if (written.empty()) return "";
  const auto& [layer, op, tensor, before, after, when] = written[0];
  return fmt::format("layer {}, {}, {}: written in place {} (version {} -> {})", layer, op, tensor, when, before,
                     after);
}

// Where, at the top of the evidence, then all of them.
Json evidence_of(const std::vector<OpWatch::Written>& written) {
  Json evidence = Json::object();
  if (!written.empty())
    evidence = {{"layer", written[0].layer}, {"op", written[0].op}, {"written_tensor", written[0].tensor}};
  evidence["written"] = to_json(written);
  return evidence;
}

void report_writes(Context& context, const std::vector<OpWatch::Written>& written) {
  context.expect("no tensor of an op is written in place", written.empty(),
                 fmt::format("{}; {} tensors in all", first_write(written), written.size()), codes::kInplaceWrite,
                 evidence_of(written));
}

void report_breaks(Context& context, const std::vector<OpWatch::Break>& breaks) {
  Json rows = Json::array();
  for (const auto& b : breaks) rows.push_back({{"layer", b.layer}, {"op", b.op}, {"output", b.output}});
  context.expect("every output of an op with differentiable inputs carries a graph", breaks.empty(),
                 breaks.empty() ? ""
                                : fmt::format("layer {}: {} of {} does not require a gradient although an input does",
                                              breaks[0].layer, breaks[0].output, breaks[0].op),
                 codes::kGraphBreak, {{"outputs", rows}});
}

using Values = std::vector<std::pair<std::string, at::Tensor>>;
Values values_of(const nsa::LanguageModelImpl& model) {
  Values values;
  for (const auto& parameter : model.named_parameters())
    values.emplace_back(parameter.key(), parameter.value().detach().clone());
  return values;
}

// The update alone may move a weight. The bits are compared: NaN is equal to nothing.
void report_moved(Context& context, const Values& before, const nsa::LanguageModelImpl& model) {
  const auto bits = [](const at::Tensor& t) { return t.detach().contiguous().flatten().view(at::kByte); };
  const auto now = model.named_parameters();
  std::vector<std::string> moved;
  for (const auto& [name, value] : before)
    if (!at::equal(bits(value), bits(now[name]))) moved.push_back(name);
  context.expect("forward and backward leave every parameter as it was", moved.empty(),
                 fmt::format("{} of {} parameters have other values after a forward and a backward pass, without an "
                             "update: {}",
                             moved.size(), before.size(), fmt::join(moved, ", ")),
                 codes::kInplaceWrite, {{"parameters", moved}});
}

bool has_part(const std::string& name, const char* part) { return name.find(part) != std::string::npos; }

// Whether the silent parameters are those that the compressed keys are made of, in every layer, and no others.
bool are_compressed_keys(const std::vector<std::string>& silent, const nsa::ModelConfig& model) {
  const auto makes_keys = [](const std::string& name) {
    return has_part(name, ".k_cmp.") || has_part(name, ".phi_k.");
  };
  const std::int64_t per_layer = model.phi == nsa::Phi::mlp ? 4 : 1;  // projection; position, fc1, fc2 of phi
  return static_cast<std::int64_t>(silent.size()) == per_layer * model.n_layers &&
         std::all_of(silent.begin(), silent.end(), makes_keys);
}

std::string silent_message(const std::vector<std::string>& silent, std::size_t all) {
  std::string text =
      fmt::format("{} of {} parameters get no gradient or one that is exactly zero: {}", silent.size(), all,
                  fmt::join(silent.begin(), silent.begin() + std::min<std::ptrdiff_t>(8, std::ssize(silent)), ", "));
  if (silent.size() > 8) text += ", ...";
  const bool only_gate_fc1 =
      std::all_of(silent.begin(), silent.end(), [](const std::string& name) { return has_part(name, "gate.fc1"); });
  if (only_gate_fc1) text += "; only the gate's fc1: its fc2 must be zero, so that nothing reaches fc1";
  return text;
}

struct Silence {
  std::vector<std::string> names;    // silent, and no flag says why
  std::vector<std::string> not_cut;  // learn although a flag cuts them off
  Json norms = Json::object();
  std::size_t parameters = 0;
};

Silence silent_parameters(const nsa::LanguageModelImpl& model) {
  std::vector<std::string> names;
  std::vector<at::Tensor> norms;
  for (const auto& parameter : model.named_parameters()) {
    const at::Tensor& gradient = parameter.value().grad();
    names.push_back(parameter.key());
    norms.push_back(gradient.defined() ? gradient.to(at::kFloat).abs().max()
                                       : at::zeros({}, parameter.value().options().dtype(at::kFloat)));
  }
  const at::Tensor largest = at::stack(norms).cpu();
  Silence silence;
  silence.parameters = names.size();
  for (std::size_t i = 0; i < names.size(); ++i) {
    const float value = largest[static_cast<std::int64_t>(i)].item<float>();
    silence.norms[names[i]] = reports::number(value);
    const bool cut = gradient_is_cut(names[i], model.runtime->flags);
    if (value == 0 && !cut) silence.names.push_back(names[i]);
    if (value != 0 && cut) silence.not_cut.push_back(names[i]);
  }
  return silence;
}

}  // namespace

void graph(Context& context, const Subject& subject, const StepOptions& options) {
  const Step step = make_step(context, subject, options);
  const Values weights = values_of(step.model());
  OpWatch watch(*step.model().runtime);
  const at::AutoGradMode grad(true);
  context.phase("forward");
  const at::Tensor loss = step.model().loss(step.tokens);
  context.phase("backward");
  bool refused = false;
  try {
    loss.backward();
  } catch (const c10::Error& error) {
    refused = true;
    const auto written = watch.written();
    probes::report_inplace_write(context, error, evidence_of(written), first_write(written));
  }
  if (!refused) report_writes(context, watch.written());
  report_breaks(context, watch.breaks());
  report_moved(context, weights, step.model());
  if (!options.way.empty()) require_route(step.instance, model_way(options.way));
}

void parameter_gradients(Context& context, const Subject& subject, const StepOptions& options) {
  const Step step = make_step(context, subject, options);
  context.phase("forward and backward");
  // Also what is not finite is reported there, located.
  if (!probes::expect_finite_step(context, "every gradient is finite", step.model(), step.tokens,
                                  probes::Pass::forward_and_backward)) {
    return;
  }
  const Silence silence = silent_parameters(step.model());
  context.fact("largest gradient per parameter", silence.norms);
  const bool keys = !silence.names.empty() && are_compressed_keys(silence.names, step.config.model);
  context.expect("every parameter gets a non-zero gradient", silence.names.empty(),
                 keys ? fmt::format("the compressed branch's keys ({}) get no gradient, every other parameter does",
                                    fmt::join(silence.names, ", "))
                      : silent_message(silence.names, silence.parameters),
                 keys ? codes::kCompressedKeysDetached : codes::kNoGradient,
                 {{"parameters", silence.names}, {"way", options.way}});
  context.expect("what a flag cuts off gets no gradient", silence.not_cut.empty(),
                 fmt::format("{} parameters get a gradient although a flag cuts them off: {}", silence.not_cut.size(),
                             fmt::join(silence.not_cut, ", ")),
                 codes::kNotSilenced, {{"parameters", silence.not_cut}, {"way", options.way}});
  if (!options.way.empty()) require_route(step.instance, model_way(options.way));
}

}  // namespace suites::autograd_cases
