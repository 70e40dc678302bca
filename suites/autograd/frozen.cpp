// Fine-tuning: where some parameters are frozen the others learn as they did, and the frozen ones do not.
#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>

#include "suites/autograd/cases.hpp"
#include "suites/autograd/gradients_of.hpp"
#include "suites/codes.hpp"
#include "suites/probes/autograd_errors.hpp"

namespace suites::autograd_cases {

namespace {

using harness::Context;

// What is frozen, by the names of its parameters.
struct Freeze {
  const char* name;
  bool (*holds)(const std::string& parameter);
};
constexpr Freeze kFreezes[] = {
    // The first layer's input needs no gradient then; its parameters do.
    {"the embedding", [](const std::string& p) { return p.starts_with("embedding"); }},
    // Gradients pass through attention whose own parameters need none.
    {"attention", [](const std::string& p) { return p.find(".attention.") != std::string::npos; }},
    {"the last layer's queries", [](const std::string& p) { return p.ends_with(".attention.q.weight"); }},
};

// Gradients of a step in which those parameters are frozen.
Gradients gradients_without(const Step& step, const Freeze& freeze) {
  nsa::LanguageModelImpl& model = step.model();
  for (auto& item : model.named_parameters()) item.value().requires_grad_(!freeze.holds(item.key()));
  model.zero_grad();
  const at::AutoGradMode grad(true);
  model.loss(step.tokens).backward();
  Gradients all = copy_gradients(model);
  for (auto& item : model.named_parameters()) item.value().requires_grad_(true);
  return all;
}

void judge(Context& context, const Freeze& freeze, const Gradients& whole, const Gradients& without, double allowed) {
  Gradients wanted, got;
  std::string learned, lost;
  for (std::size_t i = 0; i < whole.size(); ++i) {
    const auto& [name, gradient] = without[i];
    if (freeze.holds(name)) {
      if (gradient.defined() && learned.empty()) learned = name;
      continue;
    }
    if (whole[i].second.defined() && !gradient.defined() && lost.empty()) lost = name;
    wanted.push_back(whole[i]);
    got.push_back(without[i]);
  }
  const auto where = fmt::format("with {} frozen", freeze.name);
  context.expect(where + " it gets no gradient", learned.empty(), fmt::format("{} {} gets a gradient", where, learned),
                 codes::kNotSilenced, {{"parameters", {learned}}, {"frozen", freeze.name}});
  context.expect(where + " the rest learns", lost.empty(), fmt::format("{} {} gets no gradient", where, lost),
                 codes::kNoGradient, {{"parameters", {lost}}, {"frozen", freeze.name}});
  if (!lost.empty()) return;
  const Distance off = distance(got, wanted);
  harness::Json evidence = off.evidence();
  evidence["frozen"] = freeze.name;
  context.expect_at_most(fmt::format("relative difference of gradients {}", where), off.largest, allowed, "1",
                         codes::kFrozenDiffers, evidence);
}

}  // namespace

void frozen(Context& context, const Subject& subject, const StepOptions& options) {
  const Step step = make_step(context, subject, options);
  if (!expect_sound(context, step)) return;
  try {
    context.phase("everything learns");
    const Freeze nothing{"nothing", [](const std::string&) { return false; }};
    const Gradients whole = gradients_without(step, nothing), again = gradients_without(step, nothing);
    // A GPU adds in an order that varies; how far, two equal passes say. A CPU repeats itself.
    const double excuse = step.tokens.is_cuda() ? 4 : 0;
    const double allowed = excuse * distance(again, whole).largest + repeat_tolerance(step.model().head->weight);
    for (const Freeze& freeze : kFreezes) {
      context.phase(fmt::format("frozen: {}", freeze.name));
      judge(context, freeze, whole, gradients_without(step, freeze), allowed);
    }
  } catch (const c10::Error& error) {
    probes::report_inplace_write(context, error);
  }
  if (!options.way.empty()) require_route(step.instance, model_way(options.way));
}

}  // namespace suites::autograd_cases
