// Every parameter against its initial law, on the device and in the dtype of the run.
#include <algorithm>

#include "suites/init_stats/checks.hpp"
#include "suites/registry.hpp"

namespace suites {

using harness::Case;
using harness::Context;
namespace checks = init_checks;

harness::Suite init_stats(const Subject& subject) {
  harness::Suite suite;
  suite.name = "init_stats";
  suite.purpose = "every parameter starts as its law says, from a stream of its own, and the gates tell tokens apart";
  suite.requires_suites = {"preflight"};
  suite.cases = [subject](const harness::Settings&) {
    std::vector<Case> cases;
    const auto options = [subject](const Context& context) {
      return ModelOptions{.config = subject.config(context).model,
                          .flags = subject.flags(),
                          .precision = context.cuda() ? nsa::Precision::bf16 : nsa::Precision::fp32,
                          .device = device_of(context),
                          .seed = context.seed("weights")};
    };
    using Check = void (*)(Context&, const ModelOptions&, nsa::LanguageModelImpl&);
    const auto add = [&](const std::string& name, Check check, harness::Level level = harness::Level::smoke) {
      cases.push_back({.name = name, .params = {}, .level = level, .run = [=](Context& context) {
                         const ModelOptions asked = options(context);
                         context.phase("model");
                         Instance instance = subject.model(asked);
                         check(context, asked, *instance.model);
                       }});
    };
    add("parameter_set", checks::parameter_set);
    add("laws", checks::laws);
    add("streams", checks::streams);
    add("gates", checks::gates);
    cases.push_back({.name = "seeds", .params = {}, .run = [=](Context& context) {
                       ModelOptions asked = options(context);  // a draw of all layers takes half a second
                       asked.config.n_layers = std::min<std::int64_t>(asked.config.n_layers, 3);
                       asked.device = at::kCPU;  // where initial values are drawn, in fp32, whatever becomes of them
                       asked.precision = nsa::Precision::fp32;
                       checks::seeds(subject, context, asked);
                     }});
    add("shared_streams", checks::shared_streams, harness::Level::standard);
    add("activations", checks::activations, harness::Level::standard);
    add("gradient_scale", checks::gradient_scale, harness::Level::standard);
    add("gate_entropy", checks::gate_entropy, harness::Level::standard);
    add("initial_loss", checks::initial_loss, harness::Level::standard);
    cases.push_back(
        {.name = "processes", .params = {}, .level = harness::Level::standard, .run = [=](Context& context) {
           checks::processes(context, options(context), "/proc/self/exe");
         }});
    return cases;
  };
  return suite;
}

}  // namespace suites
