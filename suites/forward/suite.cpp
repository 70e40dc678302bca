// The forward pass, smallest first: S = 128, then 1, 2, 4 and 12 layers, a packed batch, an awkward batch, bad input.
#include <ATen/ATen.h>
#include <fmt/format.h>

#include "harness/suite.hpp"
#include "suites/forward/checks.hpp"
#include "suites/subject.hpp"

namespace suites {

using harness::Case;
using harness::Context;
using harness::Params;
namespace checks = forward_checks;

namespace {

checks::Setup setup(const Subject& subject, const Context& context, nsa::Precision precision, std::int64_t layers = 0) {
  checks::Setup s{subject.config(context).model, subject.flags(), precision, device_of(context)};
  if (layers > 0) s.model.n_layers = layers;
  return s;
}

}  // namespace

harness::Suite forward(const Subject& subject) {
  harness::Suite suite;
  suite.name = "forward";
  suite.purpose =
      "the model computes: right shapes and dtypes, finite logits, the loss that untrained weights must have";
  suite.requires_suites = {"preflight"};
  suite.runs_after = "init_stats";
  suite.cases = [subject](const harness::Settings&) {
    std::vector<Case> cases;
    const auto add = [&](const std::string& name, Params params, std::function<void(Context&)> run) {
      cases.push_back({.name = name, .params = std::move(params), .run = std::move(run)});
    };
    for (const nsa::Precision precision : {nsa::Precision::fp32, nsa::Precision::bf16}) {
      add("first", {{"S", "128"}, {"dtype", std::string(nsa::to_string(precision))}}, [=](Context& x) {
        // On a GPU the whole depth in bf16 is below, in `layers`.
        const bool again = x.cuda() && precision == nsa::Precision::bf16;
        checks::batch(subject, x, setup(subject, x, precision, again ? 2 : 0), {1, 128});
      });
    }
    for (const std::int64_t layers : {1, 2, 4, 12}) {
      add("layers", {{"S", "256"}, {"layers", std::to_string(layers)}}, [=](Context& x) {
        checks::batch(subject, x, setup(subject, x, run_precision(x), layers), {1, 256});
      });
    }
    add("packed", {}, [=](Context& x) { checks::packed(subject, x, setup(subject, x, run_precision(x), 2)); });
    add("awkward_batch", {{"B", "2"}}, [=](Context& x) {
      const checks::Setup s = setup(subject, x, run_precision(x), 2);
      checks::batch(subject, x, s, {2, 2 * s.model.nsa.l_sel + 19});  // no multiple of any block size
    });
    // On the CPU whatever the device: an index out of range in a kernel would take the GPU's context with it.
    add("bad_input", {}, [=](Context& x) {
      checks::Setup s = setup(subject, x, nsa::Precision::fp32, 1);
      s.device = at::kCPU;
      checks::bad_input(subject, x, s);
    });
    return cases;
  };
  return suite;
}

}  // namespace suites
